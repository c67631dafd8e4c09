"""Drivers: they do what a lifecycle asks, and never decide. `sync` on the caller's thread, `aio` on an event loop."""
