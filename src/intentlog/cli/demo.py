"""The demonstration: a worker with real effects, killed in every window, and its log held against the witnesses.

It runs the worker of `examples/orders.py` as a child and kills it with SIGKILL: at named points, in window A and window
B of each tool; at random moments; while it takes a branch over; and it kills recoveries too. After each kill the log is
looked at, then `intentlog recover` classifies what is open, and what needs a person is settled with `intentlog resolve`
by looking into the mail file. At the end the comparison reads what the receivers have, not what the log says.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import intentlog
from intentlog.cli import demo_report, demo_witness
from intentlog.cli.demo_children import Children, DemoFailed, Moment
from intentlog.cli.demo_report import Answer, Kill
from intentlog.cli.demo_witness import TOOLS, Claims, Judgement, Place
from intentlog.core.actions import IntentId
from intentlog.core.records import Resolution

ERROR, USAGE, INTERRUPTED = 1, 2, 130
RANDOM_KILLS_MIN, RANDOM_KILLS_MORE = 6, 3
RANDOM_UNTIL_S = 25.0  # a slow machine makes the least number only
RANDOM_ROUNDS_MAX = 40  # a random moment may come when the worker has ended already
WHILE_STARTING_S, WHILE_AT_WORK_S = 0.6, 0.12  # where random moments lie: an order takes about a tenth of a second
ORDERS_AT_HAND = 3  # a worker that is killed at a random moment has at least so many orders to do
FINISH_S = 25.0  # for the last orders, some of which wait for a probe
ASK_AGAIN_S = 0.5
AIMED_TRIES_MAX = 3


class Aim(NamedTuple):
    """A kill at a named point.

    Attributes:
        window: as the table calls it: A, B- where the call was not made yet, B+ where it was.
        point: the crash point; armed for the tool's own turn.
        state: the state that the intent has to be left in.
        calls: how many calls its witness has to have seen.
        recovery: the point at which the recovery that follows is killed for each tool, or "".
    """

    window: str
    point: str
    state: str
    calls: int
    recovery: Mapping[str, str]


AIMS = (
    Aim("A", "after_pending", "PENDING", 0, {"charge": "after_fenced", "mail": "after_settled"}),
    Aim("B-", "before_call", "DISPATCHED", 0, {"push": "after_classified"}),
    Aim("B+", "after_call", "DISPATCHED", 1, {}),
)
# Which point kills the worker that takes over, after the aimed kills of each tool. The fourth call is the charge of the
# second order, sent again with its key: the first order, never charged, makes three calls before it.
TAKEOVERS = {"charge": "after_opened:1", "push": "after_call:4", "mail": "before_closed:1"}


class Demo:
    """One run. Its choices come from `chance` alone."""

    def __init__(self, place: Place, children: Children, chance: random.Random, progress: Progress) -> None:
        self.place = place
        self.kills: list[Kill] = []
        self.judgements: list[Judgement] = []
        self.misaimed: list[str] = []
        self.orders: list[str] = []
        self._finished: set[str] = set()
        self._children = children
        self._chance = chance
        self._progress = progress
        planned = len(TOOLS) * len(AIMS) + len(TAKEOVERS) + sum(len(aim.recovery) for aim in AIMS) + RANDOM_KILLS_MIN
        self._task = progress.add_task("kills", total=planned)
        self._was_open: set[str] = set()
        self._begun_s = time.monotonic()

    def run(self) -> None:
        """Kill in every window of every tool, in takeovers and at random, then let the worker finish."""
        for tool in TOOLS:
            for aim in AIMS:
                self._aimed(tool, aim)
            self._takeover(tool)
        self._random_kills()
        self._finish()

    # --- the kills ---------------------------------------------------------------------------------------------

    def _aimed(self, tool: str, aim: Aim) -> None:
        """Kill a worker in one window of one tool. On a machine so slow that a tool runs into its limit, try again."""
        for _ in range(AIMED_TRIES_MAX):
            backlog, order = self._backlog(), self._new_order()
            # The order is new and the first in the process: its n-th tool makes the n-th Pending and the n-th call.
            code = self._children.work([order, *backlog], f"{aim.point}:{TOOLS.index(tool) + 1}")
            if code != -signal.SIGKILL:
                continue
            kill = self._look_after(f"{tool} {aim.window}", aim.recovery.get(tool, ""), detail=f", {aim.point}")
            found = [(one.intent, one.seen, calls) for one, calls in zip(kill.left, kill.calls, strict=True)]
            if [intent for intent, _, _ in found] == [f"{order}#1/{tool}"]:
                if found[0][1:] != (aim.state, aim.calls):
                    self.misaimed.append(f"killed in {tool} {aim.window}: {found} instead of {aim.state}, {aim.calls}")
                return
        self.misaimed.append(f"{tool} {aim.window}: not hit in {AIMED_TRIES_MAX} tries")

    def _takeover(self, tool: str) -> None:
        """Kill a worker while it takes over what an earlier one left."""
        point = TAKEOVERS[tool]
        if self._children.work(self._backlog(), point) == -signal.SIGKILL:
            self._look_after("takeover", detail=f", {point.partition(':')[0]}")

    def _random_kills(self) -> None:
        enough = len(self.kills) + RANDOM_KILLS_MIN
        for _ in range(RANDOM_ROUNDS_MAX):
            late = time.monotonic() - self._begun_s > RANDOM_UNTIL_S
            if len(self.kills) >= (enough if late else enough + RANDOM_KILLS_MORE):
                return
            while len(self._backlog()) < ORDERS_AT_HAND:
                self._new_order()
            # While it starts, or after it has told of so many orders.
            lines = self._chance.choice((0, 0, 1, 1, 2, 2))
            moment = Moment(lines, self._chance.uniform(0.0, WHILE_AT_WORK_S if lines else WHILE_STARTING_S))
            code = self._children.work(self._backlog(), kill_at=moment)
            if code == -signal.SIGKILL:
                self._look_after("random", detail=f", {moment}")

    def _finish(self) -> None:
        """Run the worker until every order is finished, then once more over all: nothing may happen twice."""
        self._progress.update(self._task, description="finishing")
        deadline_s = time.monotonic() + FINISH_S
        while self._backlog() and time.monotonic() < deadline_s:
            if self._children.work(self._backlog()):
                self._recover()
                time.sleep(ASK_AGAIN_S)  # a probe's "not applied" counts only after time limit and settle time
        self._children.work(self.orders)

    # --- after a kill --------------------------------------------------------------------------------------------

    def _look_after(self, what: str, crash_at: str = "", detail: str = "") -> Kill:
        """Look at what a kill left, recover, and settle what a person has to."""
        left = demo_report.look(self.place)
        new = [intent for intent in left if intent not in self._was_open]
        seen = demo_witness.read_witnesses(self.place).calls
        calls = [demo_report.calls_of(seen, IntentId(intent)) for intent in new]
        recovery_killed = bool(crash_at) and self._recover_once(f"{crash_at}:1") is None
        judged = self._recover(left, recorded_too=recovery_killed)
        kill = Kill(what, [judged[intent] for intent in new], calls)
        self._count(kill, detail)
        if recovery_killed:
            self._count(Kill("recovery", [], []), f", {crash_at}")
        return kill

    def _count(self, kill: Kill, detail: str) -> None:
        self.kills.append(kill)
        left = "; ".join(f"{one.intent}: {one.seen}, {one.classification}" for one in kill.left) or "nothing new open"
        self._progress.console.print(f"kill {len(self.kills):2}: {kill.what}{detail}: {left}", soft_wrap=True)
        self._progress.advance(self._task)

    def _recover(self, left: Mapping[str, str] | None = None, *, recorded_too: bool = False) -> dict[str, Judgement]:
        """Recover, judge what was said of everything open, and settle what a person has to.

        Args:
            left: what was open before; by default, what is open now.
            recorded_too: an earlier recovery was killed: what it recorded before that counts as said.
        """
        left = demo_report.look(self.place) if left is None else left
        said = {one.intent_id: one for one in self._recover_once() or []}
        if not said.keys() >= left.keys() and recorded_too:
            said = demo_report.recorded(self.place, left.keys()) | said
        if not said.keys() >= left.keys():
            # A child of the dead worker, between its fork and its exec, holds the dead one's lock a moment longer.
            time.sleep(ASK_AGAIN_S)
            said |= {one.intent_id: one for one in self._recover_once() or []}
        judged = {
            intent: Judgement(intent, seen, *(said[intent][1:] if intent in said else ()))
            for intent, seen in left.items()
        }
        self.judgements.extend(judged.values())
        for one in said.values():
            intent = IntentId(one.intent_id)
            if one.resolution == Resolution.ASK_PERSON and intent.step == "mail":
                self._decide(intent)
        self._was_open = set(demo_report.look(self.place))
        return judged

    def _recover_once(self, crash_at: str = "") -> list[Answer] | None:
        """What `intentlog recover` answers; None if it was killed."""
        command = ("recover", str(self.place.log), "--import", "orders", "--json")
        code, output, errors = self._children.command(*command, crash_at=crash_at)
        if code == -signal.SIGKILL:
            return None
        if code not in (0, 3):
            raise DemoFailed(f"intentlog recover ended with {code}: {output}{errors}")
        objects = msgspec.json.decode(output, type=list[dict[str, str | int]])
        return [Answer(*(str(found[name]) for name in Answer._fields)) for found in objects]

    def _decide(self, intent: IntentId) -> None:
        """Do what a person does who is asked about a mail: look whether it is there, and say so."""
        key = demo_witness.mail_key(self.place, intent.branch)
        said = ["--not-landed"] if key is None else ["--landed", "--outcome", msgspec.json.encode(key).decode()]
        why = "looked into the mail file: it is " + ("not there" if key is None else "there")
        command = ("resolve", str(self.place.log), intent, *said, "--by", "demo", "--why", why)
        code, output, errors = self._children.command(*command)
        if code:
            raise DemoFailed(f"intentlog resolve ended with {code}: {output}{errors}")

    # --- the orders ----------------------------------------------------------------------------------------------

    def _new_order(self) -> str:
        self.orders.append(f"order-{len(self.orders) + 1}")
        return self.orders[-1]

    def _backlog(self) -> list[str]:
        """The orders that the worker has not called finished."""
        if self.place.output.exists():
            lines = self.place.output.read_text(encoding="utf-8", errors="replace").splitlines()
            self._finished.update(line.removesuffix(": finished") for line in lines if line.endswith(": finished"))
        return [order for order in self.orders if order not in self._finished]

    def claims(self, says: demo_report.LogSays) -> Claims:
        """What was done, and what the log says of it."""
        done, dispatched = says.done(), says.dispatched()
        return Claims(len(self.kills), self.orders, self.judgements, self.misaimed, done, dispatched, says.unsound)


def run_demo(folder: Path | None, seed: int | None, console: Console) -> int:
    """Run the demonstration and print its table and its verdict.

    Args:
        folder: keep log and witnesses there; by default they are removed, unless something is wrong.
        seed: makes the same choices as an earlier run; by default another one each time.
        console: where it prints.

    Returns:
        0 if nothing was doubled, lost or misclassified and the log is sound; 1 if something was, or the demonstration
        could not run; 2 if the folder is not empty; 130 if it was interrupted.
    """
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    if shutil.which("git") is None:
        console.print("error: the demonstration pushes commits with git, and there is no git on the PATH.")
        return ERROR
    if folder is not None and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        console.print(f"error: {folder} is not an empty folder.")
        return USAGE
    place = Place(Path(tempfile.mkdtemp(prefix="intentlog-demo-")) if folder is None else folder.absolute())
    keep = True
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        code = _run(place, seed, console)
        keep = folder is not None or code != 0
    except KeyboardInterrupt:
        console.print("interrupted")
        keep = folder is not None
        return INTERRUPTED
    except (DemoFailed, subprocess.CalledProcessError, OSError) as error:
        console.print(f"error: the demonstration could not run: {error}")
        console.print(f"its files are in {place.folder}", soft_wrap=True)
        return ERROR
    finally:
        if not keep:
            shutil.rmtree(place.folder, ignore_errors=True)
    return code


def _run(place: Place, seed: int, console: Console) -> int:
    console.print(f"orders with a charge, a push and a mail each; a worker that is killed; seed {seed}")
    children = Children(place, _examples())
    children.make_repositories()
    with _progress(console) as progress, children.shop():
        demo = Demo(place, children, random.Random(seed), progress)  # noqa: S311 - chance, not secrecy
        demo.run()
    says, seen = demo_report.read_log(place, demo.orders), demo_witness.read_witnesses(place)
    verdict = demo_witness.compare(demo.claims(says), seen)
    console.print(demo_report.table(demo.kills, says, seen.calls, console.width))
    console.print(demo_report.LEGEND, soft_wrap=True)
    for problem in (*verdict.duplicates, *verdict.lost, *verdict.misclassified, *verdict.unsound):
        console.print(f"wrong: {problem}", soft_wrap=True)
    if verdict.exit_code:
        console.print(f"the log and its witnesses are in {place.folder}", soft_wrap=True)
    console.print(str(verdict), soft_wrap=True)
    return verdict.exit_code


@contextmanager
def _progress(console: Console) -> Generator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def _examples() -> Path:
    """The folder of the examples: inside the package when installed from a wheel, else in the checkout."""
    package = Path(intentlog.__file__).parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        if (folder / "orders.py").is_file():
            return folder
    raise DemoFailed("the examples are not beside the package: the installation is not complete")
