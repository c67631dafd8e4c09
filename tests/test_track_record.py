"""The track record shows what it claims: each of its commands selects at least one test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECORD = (ROOT / "docs" / "track-record.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"\| `(tests[^`]*)` \|$", RECORD, re.MULTILINE)


def words(expression: str) -> list[str]:
    """The names in a `-k` expression."""
    return [word for word in re.findall(r"\w+", expression) if word not in ("or", "and", "not")]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_track_record_selects_tests(command: str) -> None:
    """Its files are there, and each word of its `-k` is part of the name of one of their tests or cases."""
    paths, _, expression = command.partition(" -k ")
    files = [
        p for path in paths.split() for p in ([ROOT / path] if path.endswith(".py") else (ROOT / path).glob("*.py"))
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for word in words(" ".join(shlex.split(expression))):
        assert re.search(rf"\b\w*{word}\w*\b", text), word


def test_the_track_record_is_read() -> None:
    """Control: the pattern above finds the rows of the table."""
    assert len(COMMANDS) == RECORD.count("\n|") - 2 > 20
