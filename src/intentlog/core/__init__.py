"""The protocol, pure: no I/O, no clock, no randomness, no threads, no asyncio. Start with `machine`."""
