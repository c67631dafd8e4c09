"""The MCP guard: stands between any MCP client and server, and writes every tool call ahead."""
