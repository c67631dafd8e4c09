"""Other libraries that record steps or effects, each run in an environment of its own."""
