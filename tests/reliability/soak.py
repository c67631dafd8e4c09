"""Workers over the payment sandbox, killed, stopped and short of room at random; the sandbox held against the log.

    make soak MINUTES=10
    make soak SEED=7 MINUTES=1              the same chances again
    make soak CONTROL=two-records           a protection taken away: has to fail (also: unwritten, repeatable)

Each round has a log of its own, many orders with three effects each, and three workers. They are struck every few
milliseconds. When no worker lives, the log is judged by what the sandbox was asked; then everything is decided and run
to its end, and judged again. It exits with 1 where an effect was made twice, lost or misclassified, where a log is not
sound, or where something that was to happen did not; and with 2 where it could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from reliability import forked
from reliability.soak_worker import CONTROLS, LIMIT, SETTLE, Found, Place, settle, work

WORKERS, STRIKES = 3, 40
BETWEEN_S = (0.002, 0.05)  # from one strike to the next
STOPPED_S = (0.005, 0.12)
FULL_S = (0.01, 0.08)
DISK = "12m"
FILE_BYTES = (60_000, 500_000)
EVERY_S = 10.0  # from one line of progress to the next
SANDBOX = Path(__file__).parent.parent.parent / "examples" / "payment_sandbox.py"
RAM = Path("/dev/shm")
DIED_OF_NO_ROOM = -signal.SIGBUS  # of a mapped page that the disk has no room for: a crash like another


class Soak:
    """One run.

    Args:
        folder: everything is in it.
        disk: of the logs; a small file system of its own, or the folder again.
        can_fill: whether it may be filled.
        shop: the sandbox's address.
        seed: of every choice.
        control: the name of a protection that the workers do without; "" for none.
    """

    def __init__(self, folder: Path, disk: Path, *, can_fill: bool, shop: str, seed: int, control: str) -> None:
        self._folder, self._disk, self._can_fill, self._shop = folder, disk, can_fill, shop
        self._control = control
        self._chance = random.Random(seed)
        self._workers: list[forked.Child] = []
        self._asleep: list[tuple[float, forked.Child]] = []
        self._full_until_s = 0.0
        self._begun: list[tuple[Place, float]] = []  # rounds that are to be judged, and from when on
        self._place: Place | None = None
        self.rounds = self.kills = self.stops = self.faults = self.effects = 0
        self.duplicates: list[str] = []
        self.lost: list[str] = []
        self.misclassified: list[str] = []
        self.unsound: list[str] = []

    def round(self) -> None:
        """Strike the workers of a new log; judge the round before."""
        self.rounds += 1
        place = self._place = self._new_place()
        try:
            for _ in range(STRIKES):
                self._fill_up()
                time.sleep(self._chance.uniform(*BETWEEN_S))
                self._wake()
                self._strike()
        finally:
            self._give_room()
            for child in [*self._workers, *(one for _, one in self._asleep)]:
                self._kill(child)
            self._workers, self._asleep = [], []
        self.judge()
        quiet_s = (LIMIT + SETTLE).total_seconds()  # what a dead worker sent may still be on its way
        self._begun.append((place, time.monotonic() + quiet_s))

    def judge(self) -> None:
        """Judge the rounds that were struck, and let go of their logs."""
        for place, from_s in self._begun:
            time.sleep(max(0.0, from_s - time.monotonic()))
            report = place.told.with_suffix(".found")
            ended = forked.run(settle, place, report)
            if ended != (0, ""):
                self.unsound.append(f"{place.name}: the judge ended with {ended.code}: {ended.raised}")
                continue
            found = Found(*json.loads(report.read_text()))
            self.effects += found.effects
            for kind in ("duplicates", "lost", "misclassified", "unsound"):
                getattr(self, kind).extend(f"{place.name}: {one}" for one in getattr(found, kind))
            shutil.rmtree(place.log.parent)
        self._begun = []

    # --- what strikes ----------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        what = self._chance.choices(("kill", "stop", "full"), (10, 3, 2))[0]
        if what == "full":
            self._take_room()
        elif self._workers:
            child = self._workers.pop(self._chance.randrange(len(self._workers)))
            if what == "kill":
                self._kill(child)
                return
            child.signal(signal.SIGSTOP)
            if child.stops():
                self.stops += 1
                self._asleep.append((time.monotonic() + self._chance.uniform(*STOPPED_S), child))

    def _kill(self, child: forked.Child) -> None:
        child.kill()
        self._ended(child)

    def _ended(self, child: forked.Child) -> None:
        ended = child.ended
        assert ended is not None
        self.kills += ended.code == -signal.SIGKILL
        if ended.code not in (0, -signal.SIGKILL, DIED_OF_NO_ROOM):
            self.unsound.append(f"a worker ended with {ended.code}: {ended.raised}")

    def _wake(self) -> None:
        now = time.monotonic()
        for one in [one for one in self._asleep if one[0] <= now]:
            self._asleep.remove(one)
            one[1].go_on()
            self._workers.append(one[1])
        if self._full_until_s <= now:
            self._give_room()

    def _fill_up(self) -> None:
        for child in [child for child in self._workers if not child.is_running()]:
            self._workers.remove(child)
            self._ended(child)
        while len(self._workers) + len(self._asleep) < WORKERS:
            limited = not self._can_fill and self._chance.random() < 0.2
            limit = self._chance.randrange(*FILE_BYTES) if limited else 0
            self.faults += limited
            self._workers.append(forked.Child(work, self._place, self._chance.random(), self._control, limit))

    # --- the disk --------------------------------------------------------------------------------------------------

    @property
    def _filler(self) -> Path:
        return self._disk / "filler"

    def _take_room(self) -> None:
        """The disk is full, but for what the workers themselves give up, for a little while."""
        if not self._can_fill or self._full_until_s:
            return
        self.faults += 1
        self._full_until_s = time.monotonic() + self._chance.uniform(*FULL_S)
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def _give_room(self) -> None:
        self._full_until_s = 0.0
        self._filler.unlink(missing_ok=True)

    def _new_place(self) -> Place:
        name = f"order-{self.rounds}"
        folder = self._disk / name
        folder.mkdir()
        requests = self._folder / "requests.jsonl"
        since = requests.stat().st_size if requests.exists() else 0
        return Place(folder / "log.db", self._folder / f"{name}.told", requests, self._shop, name, since)

    # --- what it came to -------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return (
            f"soak: {self.rounds} rounds, {self.kills} kills, {self.stops} stops, {self.faults} disk faults, "
            f"{self.effects} effects: {len(self.duplicates)} duplicates, {len(self.lost)} lost, "
            f"{len(self.misclassified)} misclassified, {len(self.unsound)} other"
        )

    def problems(self) -> list[str]:
        """Everything that was wrong, in words."""
        listed = {"duplicate": self.duplicates, "lost": self.lost, "misclassified": self.misclassified}
        return [f"{kind}: {one}" for kind, found in {**listed, "other": self.unsound}.items() for one in found]


@contextmanager
def sandbox(folder: Path) -> Iterator[str]:
    """The payment sandbox, which outlives every worker. Yields its address."""
    files = ["--ledger", str(folder / "ledger.jsonl"), "--requests", str(folder / "requests.jsonl")]
    command = [sys.executable, str(SANDBOX), "--stop-with-stdin", *files]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip() if process.stdout else ""
        finally:
            if process.stdin:
                process.stdin.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A small file system in memory; None where it cannot be mounted."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "intentlog-soak", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def duplicate_charges(folder: Path) -> list[str]:
    """Charges of one key that stand twice in the ledger: the sandbox's own promise."""
    lines = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    keys = [json.loads(line)["key"] for line in lines]
    return [] if len(keys) == len(set(keys)) else ["the sandbox charged one key twice"]


def soak(seconds: float, seed: int, control: str = "") -> Soak:
    """Rounds for so many seconds; at least one."""
    with tempfile.TemporaryDirectory(prefix="intentlog-soak-", dir=RAM if RAM.is_dir() else None) as name:
        folder = Path(name)
        with small_disk(folder) as disk, sandbox(folder) as shop:
            run = Soak(folder, disk or folder, can_fill=disk is not None, shop=shop, seed=seed, control=control)
            if disk is None:
                print("not root: the disk cannot be filled; some workers have a limit of file size in its place")
            begun_s = told_s = time.monotonic()
            while run.rounds < 1 or time.monotonic() - begun_s < seconds:
                run.round()
                if time.monotonic() - told_s >= EVERY_S:
                    told_s = time.monotonic()
                    print(f"{told_s - begun_s:4.0f} s: {run}", flush=True)
            run.judge()
            run.unsound += duplicate_charges(folder)
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the choices of an earlier run; 0 for others")
    parser.add_argument("--control", choices=["", *CONTROLS], default="", help="take a protection away: has to fail")
    given = parser.parse_args(arguments)
    seed = given.seed or random.SystemRandom().randrange(1, 1_000_000)
    again = f"make soak SEED={seed} MINUTES={given.minutes:g}" + (f" CONTROL={given.control}" if given.control else "")
    print(f"seed {seed}: repeat with {again}", flush=True)
    run = soak(given.minutes * 60, seed, given.control)
    problems = run.problems()
    for problem in problems[:20]:
        print(problem)
    print(run)
    if problems:
        print(f"repeat: {again}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
