"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

RAM = Path("/dev/shm")


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is room for one: for tests that kill processes, not machines.

    A SIGKILL loses nothing that the kernel has, so that what such a test finds does not depend on the disk; only the
    time does.
    """
    if not (RAM.is_dir() and os.access(RAM, os.W_OK) and shutil.disk_usage(RAM).free > 1 << 30):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="intentlog-test-", dir=RAM))
    yield folder
    shutil.rmtree(folder)
