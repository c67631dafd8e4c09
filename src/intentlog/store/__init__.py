"""Stores: memory (loses what was not synced, for tests and models) and SQLite. One contract suite for all."""
