"""Each core module has its tests in a file of its own; tests/core_coverage.py shows that they reach all of it."""

from __future__ import annotations

from pathlib import Path

from core_coverage import MODULES, file_of


def test_each_module_has_a_file_of_its_own() -> None:
    """A stranger finds what a module promises by its name."""
    assert MODULES
    assert [module for module in MODULES if not file_of(module).is_file()] == []


def test_each_file_belongs_to_a_module() -> None:
    """`test_core_MODULE.py`, or `test_core_MODULE_MORE.py` where one file would be too long; and this file."""
    names = {path.stem.removeprefix("test_core_").split("_")[0] for path in Path(__file__).parent.glob("test_*.py")}
    assert names == {*MODULES, "modules"}
