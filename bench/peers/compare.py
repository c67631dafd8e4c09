"""Runs each peer in its own environment, made here from a small file of pinned versions, and counts its syncs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from bench.floor import SYNCS_PER_EFFECT, p50_us, p99_us
from bench.measures import AtOnce, Peer, spread
from bench.peers.runner import AT_ONCE
from bench.postgres import Absent, Server, server, strace, syncs_in

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENTS = HERE.parent / ".venvs"
RUN_LIMIT_S = 240
INSTALL_LIMIT_S = 280
KINDS = {"sequential": "sequential", "at-once": f"{AT_ONCE} threads"}


class Spec(NamedTuple):
    """A peer, and what it does for an effect."""

    name: str
    store: str
    what: str


SPECS = (
    Spec("intentlog", "SQLite", "3 records: before the call two, after it one"),
    Spec("sakrit", "SQLite", "3 records: before the call two, after it one"),
    Spec("effect_ledger", "SQLite", "2 records: before the call one, after it one"),
    Spec("exactly_once", "SQLite", "2 records: before the call one, after it one"),
    Spec("dbos", "SQLite", "1 record, after the step"),
    Spec("dbos", "PostgreSQL", "1 record, after the step"),
    Spec("langgraph", "SQLite", "a checkpoint and its writes, after the node"),
)


class Amount(NamedTuple):
    """How often everything is run, rounds in each run, and effects of each worker in a round."""

    passes: int
    rounds: int
    sequential: int
    at_once: int


QUICK, FULL = Amount(1, 3, 40, 2), Amount(3, 4, 60, 4)


class RunnerRound(msgspec.Struct):
    """What a runner prints of one round, in nanoseconds."""

    elapsed_ns: int
    effects_ns: list[int]
    syncs_ns: list[int]


class RunnerOutput(msgspec.Struct):
    """What a runner prints."""

    version: str
    rounds: list[RunnerRound]


def environment(name: str) -> Path:
    """The peer's interpreter; its environment is made if it is not there, or if what is pinned has changed.

    Raises:
        Absent: it does not install.
    """
    if name == "intentlog":
        return Path(sys.executable)
    requirements = HERE / f"{name}.txt"
    folder = ENVIRONMENTS / name
    stamp, python = folder / ".installed", folder / "bin" / "python"
    wanted = requirements.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "-r", str(requirements)]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], pip):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Absent(f"it does not install within {INSTALL_LIMIT_S} s") from None
        if done.returncode:
            raise Absent(f"it does not install: {_last_line(done.stderr)}")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


@contextmanager
def _empty(folder: Path) -> Generator[Path]:
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run(spec: Spec, folder: Path, kind: str, rounds: int, per_worker: int, url: str, before: list[str]) -> RunnerOutput:
    """One run of a peer's runner.

    Args:
        spec: the peer.
        folder: made, and removed afterwards.
        kind: one of KINDS.
        rounds: how many.
        per_worker: effects of each worker in a round.
        url: of the server, or "".
        before: the beginning of the command, as strace's.

    Raises:
        Absent: it does not install, or does not run.
    """
    module = f"bench.peers.run_{spec.name}"
    arguments = [kind, str(rounds), str(per_worker), *([url] if url else [])]
    with _empty(folder):
        command = [*before, str(environment(spec.name)), "-m", module, str(folder), *arguments]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Absent(f"it does not end within {RUN_LIMIT_S} s") from None
    if done.returncode:
        raise Absent(f"it fails: {_last_line(done.stderr)}")
    found = msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=RunnerOutput)
    made = {len(one.effects_ns) for one in found.rounds}
    if made != {per_worker * (AT_ONCE if kind == "at-once" else 1)}:
        raise Absent(f"it made {made} effects in a round, not what it was asked for")
    return found


def syncs_per_effect(spec: Spec, folder: Path, kind: str, traced: Server | None) -> float:
    """How many syncs an effect makes: two runs that differ in the number of effects alone, by strace.

    Raises:
        Absent: there is no strace, or the peer does not run under it.
    """
    few, many = (1, 7) if kind == "at-once" else (10, 50)  # many: how commits are shared differs from run to run
    counted: list[int] = []
    if traced:  # what it makes in a new database, the first time
        run(spec, folder, kind, 1, few, traced.url, [])
    for number, per_worker in enumerate((few, many)):
        trace = traced.trace if traced and traced.trace else folder.with_name(f"{folder.name}-{number}.trace")
        earlier = syncs_in(trace) if traced else 0
        before = [] if traced else strace(trace)
        run(spec, folder, kind, 1, per_worker, traced.url if traced else "", before)
        counted.append(syncs_in(trace) - earlier)
    effects = (many - few) * (AT_ONCE if kind == "at-once" else 1)
    return (counted[1] - counted[0]) / effects


def _figures(kind: str, rounds: list[RunnerRound], syncs: float | None) -> AtOnce:
    took = [one for r in rounds for one in r.effects_ns]
    per_effect = [r.elapsed_ns / len(r.effects_ns) for r in rounds]
    ratios = [one / median(r.syncs_ns) / SYNCS_PER_EFFECT for one, r in zip(per_effect, rounds, strict=True)]
    return AtOnce(
        kind=KINDS[kind],
        effects=len(took),
        effects_per_s=spread([1e9 / one for one in per_effect]),
        effect_p50_us=p50_us(took),
        effect_p99_us=p99_us(took),
        x_three_syncs=spread(ratios),
        sync_p50_us=p50_us([one for r in rounds for one in r.syncs_ns]),
        syncs_per_effect=syncs,
    )


class _Peers:
    """What is measured of all peers, pass by pass, so that a slower moment meets all of them."""

    def __init__(self, folder: Path, amount: Amount, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._amount = amount
        self._tell = tell
        self._rounds: dict[tuple[Spec, str], list[RunnerRound]] = {}
        self._syncs: dict[tuple[Spec, str], float] = {}
        self._versions: dict[Spec, str] = {}
        self.absent: dict[Spec, str] = {}

    def time(self, spec: Spec, url: str) -> None:
        self._tell(f"{spec.name} on {spec.store}")
        for kind, per_worker in (("sequential", self._amount.sequential), ("at-once", self._amount.at_once)):
            found = run(spec, self._folder / spec.name, kind, self._amount.rounds, per_worker, url, [])
            self._versions[spec] = found.version
            self._rounds.setdefault((spec, kind), []).extend(found.rounds)

    def count(self, spec: Spec, traced: Server | None) -> None:
        self._tell(f"syncs of {spec.name} on {spec.store}")
        for kind in KINDS:
            self._syncs[spec, kind] = syncs_per_effect(spec, self._folder / spec.name, kind, traced)

    def peer(self, spec: Spec) -> Peer:
        figures = [
            _figures(kind, self._rounds[spec, kind], self._syncs.get((spec, kind)))
            for kind in KINDS
            if (spec, kind) in self._rounds
        ]
        absent = self.absent.get(spec, "")
        return Peer(spec.name, self._versions.get(spec, ""), spec.store, spec.what, figures, absent)


def measure(folder: Path, *, quick: bool, tell: Callable[[str], None]) -> list[Peer]:
    """Every peer: timed in passes, then its syncs counted. One that is not there says why."""
    amount = QUICK if quick else FULL
    peers = _Peers(folder, amount, tell)
    for part in ("time", "count"):
        with ExitStack() as stack:
            running: Server | None = None
            try:
                running = stack.enter_context(server(folder / f"postgres-{part}", traced=part == "count"))
            except Absent as reason:
                peers.absent.update({spec: str(reason) for spec in SPECS if spec.store == "PostgreSQL"})
            for spec in SPECS * (amount.passes if part == "time" else 1):
                if spec in peers.absent:
                    continue
                on = running if spec.store == "PostgreSQL" else None
                try:
                    if part == "time":
                        peers.time(spec, on.url if on else "")
                    else:
                        peers.count(spec, on)
                except Absent as reason:
                    peers.absent[spec] = str(reason)
    return [peers.peer(spec) for spec in SPECS]
