"""Whether each core module is covered, every line and branch, by its own tests in tests/core, run alone.

    python tests/core_coverage.py [MODULE...]

Exits with 1 where something is missing. Each module's tests run in a process of their own: what others have reached, or
have left in a cache, does not count.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from coverage import Coverage

TESTS = Path(__file__).parent
CORE = TESTS.parent / "src" / "intentlog" / "core"
MODULES = sorted(path.stem for path in CORE.glob("*.py") if path.stem != "__init__")


def file_of(module: str) -> Path:
    """The file that holds the module; what it has no room for stands in `test_core_MODULE_MORE.py`."""
    return TESTS / "core" / f"test_core_{module}.py"


def run(module: str, data: Path) -> None:
    """Run the module's tests under coverage; what they say is shown if they fail."""
    arguments = ["-m", "coverage", "run", f"--data-file={data}", "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *arguments, file_of(module), *sorted(file_of(module).parent.glob(f"test_core_{module}_*.py"))],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{file_of(module).name} fails")


def missing(module: str, folder: Path) -> str:
    """The lines and branches that its own tests do not reach, or nothing."""
    run(module, folder / module)
    found = Coverage(data_file=folder / module, config_file=TESTS.parent / "pyproject.toml")
    found.combine([str(folder)])
    report = io.StringIO()
    percent = found.report(include=[str(CORE / f"{module}.py")], file=report, skip_covered=False)
    lines = [line for line in report.getvalue().splitlines() if line.startswith(("src", str(CORE)))]
    return "" if percent == 100 else lines[0].partition("%")[2].strip()


def main(modules: list[str]) -> int:
    """Print a line for each module; 1 if any is not covered."""
    gaps = 0
    for module in modules or MODULES:
        with tempfile.TemporaryDirectory() as folder:
            gap = missing(module, Path(folder))
        gaps += bool(gap)
        print(f"{module:<10} {f'not covered: {gap}' if gap else '100 %'}", flush=True)
    return bool(gaps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
