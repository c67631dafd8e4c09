"""What the README shows works as it is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

STAND_IN = """
    import types
    payments = types.SimpleNamespace(charged=[])
    def _charge(order_id, cents, idempotency_key):
        payments.charged.append(idempotency_key)
        return f"receipt for {order_id}"
    payments.charge = _charge
"""


def first_example() -> str:
    """The first python block."""
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block
    return block[1]


def test_the_first_guarded_effect_runs_as_written_and_is_replayed(tmp_path: Path) -> None:
    """Run twice, it charges once; the second run answers the recorded receipt."""
    program = dedent(STAND_IN) + first_example() + "\nprint(receipt, len(payments.charged))\n"
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    said = [
        subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert said == ["receipt for 1042 1\n", "receipt for 1042 0\n"]


def test_the_first_guarded_effect_is_fifteen_lines_at_most() -> None:
    """A new user reads it at a glance."""
    assert len(first_example().strip().splitlines()) <= 15


def test_the_pages_keep_their_length() -> None:
    """README up to 200 lines, ARCHITECTURE up to 150."""
    assert README.count("\n") <= 200
    assert (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").count("\n") <= 150


def test_every_command_that_the_readme_shows_exists(tmp_path: Path) -> None:
    """Each `intentlog COMMAND --option` of the README is known to the command line."""
    shown = re.findall(r"\$ intentlog ([a-z]+)([^#\n]*)", README)
    assert {name for name, _ in shown} == {
        "cancel",
        "doctor",
        "recover",
        "renew",
        "resolve",
        "show",
        "status",
        "tail",
        "verify",
    }
    for name, arguments in shown:
        command = [sys.executable, "-m", "intentlog", name, "--help"]
        text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in text, f"{name} {option}"


def test_every_page_that_is_linked_is_there() -> None:
    """No link to a page of the project leads nowhere."""
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
