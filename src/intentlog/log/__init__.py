"""The public face, in parts: `declare` the tools, `sync` and `aio` the logs, `engine` what both share."""
