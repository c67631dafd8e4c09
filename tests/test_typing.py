"""The types are the guard's first layer (DESIGN 7): what must be accepted is, and what must be rejected is, by both.

mypy and basedpyright read `typing/api.py`, which has to pass, and a copy of `typing/rejections/cases.py.txt`, of which
each line marked `# rejected` has to get an error and no other line may. A rejection that vanished is thus a failure.
The settings are the project's own, from pyproject.toml; only what is read is another.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
API = ROOT / "tests" / "typing" / "api.py"
CASES = ROOT / "tests" / "typing" / "rejections" / "cases.py.txt"
BIN = Path(sys.executable).parent


def toml_value(value: object) -> str:
    """Strings, booleans and lists are written in TOML as JSON writes them."""
    return json.dumps(value)


def errors_of_mypy(checked: Path, folder: Path) -> set[int]:
    """The lines of a file that mypy, set as the project sets it, reports."""
    options: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    options |= {"files": [str(checked)], "mypy_path": [str(ROOT / "src")]}
    config = folder / "mypy.toml"
    config.write_text("[tool.mypy]\n" + "".join(f"{name} = {toml_value(value)}\n" for name, value in options.items()))
    done = subprocess.run(
        [BIN / "mypy", "--config-file", config, "--cache-dir", folder / "cache", "--no-error-summary"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [re.match(r"(.*?):(\d+):(?:\d+:)? error: ", line) for line in done.stdout.splitlines()]
    elsewhere = [match[0] for match in found if match and Path(match[1]).name != checked.name]
    assert not elsewhere, done.stdout
    return {int(match[2]) for match in found if match}


def errors_of_basedpyright(checked: Path, folder: Path) -> set[int]:
    """The lines of a file that basedpyright, set as the project sets it, reports."""
    options: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    for name in ("venv", "venvPath", "exclude"):
        options.pop(name, None)
    options |= {"include": [str(checked)], "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    done = subprocess.run(
        [BIN / "basedpyright", "--project", folder, "--outputjson", "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return {
        diagnostic["range"]["start"]["line"] + 1
        for diagnostic in report["generalDiagnostics"]
        if diagnostic["severity"] == "error"
    }


CHECKERS = pytest.mark.parametrize("errors_of", [errors_of_mypy, errors_of_basedpyright], ids=["mypy", "basedpyright"])


def described(text: str, lines: set[int]) -> list[str]:
    return [f"{line}: {text.splitlines()[line - 1].strip()}" for line in sorted(lines)]


@CHECKERS
def test_wrong_uses_are_rejected(tmp_path: Path, errors_of) -> None:
    """DESIGN 7: mypy and pyright reject a direct call, and whatever else the signatures rule out; nothing beside it."""
    text = CASES.read_text()
    copy = tmp_path / "cases.py"
    copy.write_text(text)
    wanted = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# rejected")}
    assert len(wanted) > 50
    found = errors_of(copy, tmp_path)
    assert described(text, wanted - found) == [], "accepted, and should be rejected"
    assert described(text, found - wanted) == [], "rejected, and should be accepted"


@CHECKERS
def test_right_uses_are_accepted(tmp_path: Path, errors_of) -> None:
    """DESIGN 13: programs written against the public face pass strict settings, and results have their types."""
    assert described(API.read_text(), errors_of(API, tmp_path)) == []


FIRST_PARAMETERS = """
from typing import Any
from intentlog import Attempt, Call, tool

@tool
def of_object(value: object) -> int:
    return 1

@tool
def of_any(value: Any, cents: int) -> int:
    return cents

@tool
def after_call(call: Call, *files: str) -> int:
    return len(files)

def calls(attempt: Attempt) -> None:
    attempt.call(of_object, "text")
    attempt.call(of_any, "text", 1)
    attempt.call(after_call, "a", "b")
    attempt.call(of_object)  # rejected
    attempt.call(after_call, 1)  # rejected
"""


@CHECKERS
def test_only_a_call_is_taken_for_the_call(tmp_path: Path, errors_of) -> None:
    """DESIGN 13: a first parameter annotated `Call` is filled; one of `object` or `Any` is the caller's."""
    copy = tmp_path / "cases.py"
    copy.write_text(FIRST_PARAMETERS)
    wanted = {n for n, line in enumerate(FIRST_PARAMETERS.splitlines(), 1) if line.endswith("# rejected")}
    found = errors_of(copy, tmp_path)
    assert described(FIRST_PARAMETERS, wanted - found) == [], "accepted, and should be rejected"
    assert described(FIRST_PARAMETERS, found - wanted) == [], "rejected, and should be accepted"
