"""The least MCP server between pipes: answers each request at once."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Answer until the client closes its end."""
    for line in sys.stdin:
        asked = json.loads(line)
        result = {"content": [{"type": "text", "text": "done"}]}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
