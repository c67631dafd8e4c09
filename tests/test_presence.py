"""Whether an open file is still there, asked by several threads at once."""

import os
from pathlib import Path

import pytest

from intentlog.store import presence
from intentlog.store.presence import Present


def test_a_file_that_grows_between_two_looks_was_not_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread looks, the file grows, another thread sees that, and only then does the first compare."""
    path = tmp_path / "log"
    path.write_bytes(b"1")
    present, look = Present(path, "the log"), os.stat

    def overtaken(name: str) -> os.stat_result:
        before = look(name)
        monkeypatch.setattr(presence.os, "stat", look)
        path.write_bytes(b"12")
        assert present.gone() == ""
        return before

    monkeypatch.setattr(presence.os, "stat", overtaken)
    assert present.gone() == ""
    path.write_bytes(b"")
    assert present.gone() == "the log was cut short while it was open"
