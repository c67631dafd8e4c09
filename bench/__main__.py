"""`python -m bench run [--quick] [--peers] [--only PART,...]`, `python -m bench profile`, `python -m bench show`."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import effects, growth, mcp, parts, postgres, small, standin, table
from bench.figures import draw
from bench.floor import Floor, p50_us, p99_us
from bench.measures import RawFloor, Run, machine
from bench.peers import compare

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SCRATCH = HERE / ".scratch"
PARTS = ("effects", "postgresql", "growth", "small", "mcp", "peers")
FLOOR_SYNCS = 300


def _results(run: Run) -> Path:
    return RESULTS / "quick" if run.quick else RESULTS


def _tell(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _take_floor(run: Run, folder: Path, when: str) -> None:
    with Floor(folder) as floor:
        taken = floor.take(FLOOR_SYNCS)
    run.floors.append(RawFloor(when, p50_us(taken), p99_us(taken), _python_us()))


def _python_us() -> float:
    value = {"order_id": "order-1042", "cents": 1999, "lines": [1, 2, 3]}
    return min(timeit.repeat(lambda: json.dumps(value), number=1_000, repeat=5)) * 1e3


def _effects(run: Run, folder: Path) -> None:
    for one in effects.measure(folder, quick=run.quick):
        _tell(f"{one.key}: {one.effects_per_s.mid:,.0f} effects/s")
        run.effects.append(one)
    for one in standin.measure(folder, quick=run.quick):
        _tell(f"the stand-in, {one.key}: {one.effects_per_s.mid:,.0f} effects/s")
        run.standin.append(one)
    if run.quick:
        run.absent["4096"] = "not in a quick run"


def _postgres(run: Run, folder: Path) -> None:
    try:
        for one in postgres.the_log(folder, quick=run.quick):
            _tell(f"{one.key}: {one.effects_per_s.mid:,.0f} effects/s")
            run.effects.append(one)
    except postgres.Absent as absent:
        run.absent["postgresql"] = str(absent)


def _growth(run: Run, folder: Path) -> None:
    logs = list(growth.make_logs(folder, quick=run.quick, tell=_tell))
    run.growth.extend(growth.measure(logs, folder, quick=run.quick))
    _tell("opening it again after a kill")
    run.restart = growth.restart(logs[-1], quick=run.quick)


def _small(run: Run, folder: Path) -> None:
    run.replay = small.replay(folder, *((200, 5) if run.quick else (2_000, 9)))
    run.imported = small.imported(5 if run.quick else 20)
    run.size = small.size(folder, 300 if run.quick else 3_000)


def _mcp(run: Run, folder: Path) -> None:
    run.mcp = mcp.measure(folder, *(mcp.QUICK if run.quick else mcp.FULL))


def _peers(run: Run, folder: Path) -> None:
    run.peers.extend(compare.measure(folder, quick=run.quick, tell=_tell))


def _parts(run: Run, folder: Path) -> None:
    run.parts.extend(parts.measure(folder, quick=run.quick))
    results = _results(run)
    results.mkdir(parents=True, exist_ok=True)
    (results / "profile-calls.txt").write_text(parts.calls(folder, 500 if run.quick else 3_000), encoding="utf-8")


MEASURES: dict[str, Callable[[Run, Path], None]] = {
    "effects": _effects,
    "postgresql": _postgres,
    "growth": _growth,
    "small": _small,
    "mcp": _mcp,
    "peers": _peers,
    "profile": _parts,
}


def measure(run: Run, names: list[str], scratch: Path) -> None:
    """Measure these, each in a folder of its own, with the raw floor before, between and after them."""
    scratch.mkdir(parents=True)
    try:
        _take_floor(run, scratch, "before")
        for name in names:
            _tell(name)
            folder = scratch / name
            folder.mkdir()
            MEASURES[name](run, folder)
            shutil.rmtree(folder)
            _take_floor(run, scratch, f"after {name}")
    finally:
        shutil.rmtree(scratch)


def save(run: Run, folder: Path, name: str) -> None:
    """Print the tables, and write them, the JSON and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    text = table.text(run)
    print(text)
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    encoded = msgspec.json.format(msgspec.json.encode(run), indent=1)
    (folder / f"{name}.json").write_bytes(encoded + b"\n")
    written = [f"{name}.txt", f"{name}.json", *(picture.name for picture in draw(run, folder))]
    _tell(f"written to {folder.relative_to(HERE.parent)}: {', '.join(written)}")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("command", choices=("run", "profile", "show"))
    parser.add_argument("--quick", action="store_true", help="small logs, few rounds, not the 4,096 tasks")
    parser.add_argument("--peers", action="store_true", help="compare with others, too; makes their environments first")
    parser.add_argument("--only", help=f"some of the parts, with commas between: {', '.join(PARTS)}")
    given = parser.parse_args()
    run = Run(machine(HERE), given.quick)
    results = _results(run)
    if given.command == "show":
        print(table.text(msgspec.json.decode((results / "run.json").read_bytes(), type=Run)))
        return
    names = ["profile"]
    if given.command == "run":
        default = [name for name in PARTS if given.peers or name != "peers"] + ["profile"]
        names = given.only.split(",") if given.only else default
    if unknown := set(names) - set(MEASURES):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was begun is removed
    started = time.monotonic()
    SCRATCH.mkdir(exist_ok=True)
    measure(run, names, SCRATCH / f"run-{time.time_ns()}")
    save(run, results, "run" if given.command == "run" and not given.only else "-".join(names))
    _tell(f"took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
