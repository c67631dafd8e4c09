"""Memory runs out at any allocation of a guarded effect: nothing acknowledged is lost, nobody is told a lie (I2, I5).

By the nth allocation of Python's, which fails; by a limit of address space (RLIMIT_AS), which fails SQLite's own too;
and by the kernel, which kills (cgroups). What is raised is the library's or a MemoryError; its `effect_ran` is true.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from reliability import forked
from reliability.conftest import Lab, by_form
from reliability.life import World
from reliability.marks import mark_appends
from reliability.oracle import violations

from intentlog import IntentLogError, Log, UnguardedCall
from intentlog.errors import EffectRan
from intentlog.run.group import GroupCommit

HARNESS = "memory runs out"
KINDS = ("UNSAFE", "KEYED", "QUERYABLE", "IDEMPOTENT", "READ")
CGROUPS = Path("/sys/fs/cgroup/memory")
GROUP_BYTES = 24 << 20
HANGS_S = 20.0
# The second is CPython's word for C code that failed without one, the third what it says where it makes a lock.
WANT = ("MemoryError", "SystemError", "RuntimeError: can't allocate lock")
HOARD_MAX = 200_000
ALLOCATIONS = 2_500  # an effect makes fewer


def one_effect(world: World, log: Log, branch: str, starve_it: Callable[[], None], feed: Callable[[], None]) -> None:
    """An effect in want of memory; what its error says of it has to be what the witness saw of it."""
    handle = world.tools[branch.partition("-")[0]]
    raised: Exception | None = None
    try:
        starve_it()
        with log.attempt(branch) as attempt:
            attempt.call(handle, branch, amount=1999)
    except (MemoryError, SystemError, IntentLogError) as error:
        raised = error
    except RuntimeError as error:
        if str(error) != "can't allocate lock":
            raise
        raised = error
    finally:
        feed()
    if isinstance(raised, IntentLogError):
        check_told(world, branch, raised.effect_ran, type(raised))
    elif raised is not None:
        world.marks.tell("memory", branch)


def check_told(world: World, branch: str, told: EffectRan, kind: type[IntentLogError]) -> None:
    """`effect_ran` is what happened."""
    called = any(mark.words[0].startswith(f"{branch}#") for mark in world.marks.calls())
    world.marks.tell("error", branch, kind.__name__, told)
    assert not (told == "no" and called), f"{kind.__name__} of {branch} says that it did not run, and it did"
    assert not (told == "yes" and not called), f"{kind.__name__} of {branch} says that it ran, and it did not"


def raised_wrongly(ended: forked.Ended) -> list[str]:
    """What a process ended with, if it may not: what memory's want itself does is nobody's lie."""
    last = ended.raised.splitlines()[-1] if ended.raised else ""
    return [ended.raised] if last and not last.startswith(WANT) else []


def test_the_nth_allocation_fails(lab: Lab, quick_folder: Path) -> None:
    """Every nth allocation of an effect in turn, of each class; then the same process goes on, and the log is sound."""
    testcapi = pytest.importorskip("_testcapi", reason="this Python has no _testcapi, which lets an allocation fail")
    wrong: list[str] = []
    struck = 0
    for kind in KINDS:
        (folder := quick_folder / kind).mkdir()
        world = World(folder)
        step = by_form(109, 13, 1)
        for number in range(random.randrange(step), ALLOCATIONS, step):
            with forked.running(fail_one, world, kind, testcapi, number) as child:
                ended = child.ends(HANGS_S)
            assert ended.code in (0, 1, -signal.SIGSEGV), (kind, number, ended)
            wrong += [f"{kind}, allocation {number}: {one}" for one in raised_wrongly(ended)]
        wrong += [f"{kind}: {one}" for one in violations(world.path, world.marks.read())]
        struck += sum(mark.kind in ("memory", "error") for mark in world.marks.read())
    assert struck, "memory never ran out"
    lab.seen(struck, wrong)


def fail_one(world: World, kind: str, testcapi: Any, number: int) -> None:
    """An effect of which one allocation fails, and then others."""
    mark_appends(world.marks)
    log = world.open()
    branch = f"{kind}-returned-{number}"
    one_effect(world, log, branch, partial(testcapi.set_nomemory, number, number + 1), testcapi.remove_mem_hooks)
    goes_on(world, log, branch).close()


def goes_on(world: World, log: Log, branch: str) -> Log:
    """The next effect of the same process succeeds, on this log or, if that was poisoned, on the log opened again."""
    for _ in range(2):
        try:
            with log.attempt(f"{branch}-next") as attempt:
                attempt.call(world.tools[branch.partition("-")[0]], f"{branch}-next", amount=1999)
        except IntentLogError:
            with suppress(IntentLogError):
                log.close()
            log = world.open()
        else:
            return log
    msg = f"after {branch} nothing works any more"
    raise AssertionError(msg)


def test_a_limit_of_address_space(lab: Lab, long: bool, quick_folder: Path) -> None:
    """RLIMIT_AS just above what is in use, at random points, for Python and SQLite alike."""
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
    rounds = 45 if long else 7
    wrong: list[str] = []
    struck = 0
    chance = random.Random(seed)
    for number in range(rounds):
        (folder := quick_folder / str(number)).mkdir()
        world = World(folder)
        ended = forked.run(starve, world, chance.random())
        wrong += raised_wrongly(ended) + violations(world.path, world.marks.read())
        assert ended.code in (0, 1, -signal.SIGSEGV), ended  # msgspec's encoder does not bear it: a crash like another
        struck += ended.code != 0 or any(mark.kind in ("memory", "error") for mark in world.marks.read())
    command = "make test-reliability PYTEST_ARGS='-k limit_of_address_space'"
    lab.seen(rounds, [f"seed {seed}: {one}" for one in wrong], repeat=f"SEED={seed} {command}")
    assert struck, "memory never ran out"


def starve(world: World, seed: float) -> None:
    """Effects with so little room left that some of their allocations fail; the room is given back now and then."""
    mark_appends(world.marks)
    chance = random.Random(seed)
    log = world.open()
    for number in range(15):
        branch = f"{chance.choice(KINDS)}-returned-{number}"
        hoard: list[bytes] = [b""] * HOARD_MAX
        one_effect(
            world, log, branch, partial(take_all, hoard, chance.choice((0, 20, 200, 1_000))), partial(feed, hoard)
        )
        log = goes_on(world, log, branch)
    log.close()


def take_all(hoard: list[bytes], left: int) -> None:
    """Set the limit to what is in use, and take what can still be had, large and small, but for some small pieces."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    at = 0
    for size in (1 << 20, 70_000, 5_000, 600, 400, 300, 200, 100, 60, 40):
        try:
            while at < HOARD_MAX:
                hoard[at] = bytes(size)
                at += 1
        except MemoryError:
            pass
    for number in range(max(0, at - left), at):
        hoard[number] = b""


def feed(hoard: list[bytes]) -> None:
    hoard.clear()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def small_group() -> Iterator[Callable[[], None]]:
    """A cgroup with little memory. Yields what moves a process into it."""
    group = CGROUPS / f"intentlog-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(GROUP_BYTES))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        group.rmdir()


def test_killed_by_the_kernel(lab: Lab, long: bool, tmp_path: Path) -> None:
    """The OOM killer in the middle of work: as any kill."""
    rounds = 30 if long else 3
    wrong: list[str] = []
    with small_group() as enter:
        for number in range(rounds):
            (folder := tmp_path / str(number)).mkdir()
            world = World(folder)
            ended = forked.run(hog, world, enter, number)
            assert ended.code == -signal.SIGKILL, ended
            wrong += violations(world.path, world.marks.read())
    lab.seen(rounds, wrong)


def hog(world: World, enter: Callable[[], None], seed: int) -> None:
    """Effects, and beside them more and more memory, until the kernel ends it."""
    enter()
    mark_appends(world.marks)
    chance = random.Random(seed)
    hoard: list[bytearray] = []
    with world.open() as log:
        for number in range(10_000):
            world.effect(log, f"{chance.choice(KINDS)}-returned-{number}")
            hoard.append(bytearray(os.urandom(1 << chance.randrange(16, 21))))


def test_control_an_error_that_lies(lab: Lab, quick_folder: Path) -> None:
    """An error that denies a call that was made is seen for what it is."""
    world = World(quick_folder)
    caught = 0
    with world.open() as log:
        world.effect(log, "UNSAFE-returned")
    for told in ("no", "yes"):
        branch = "UNSAFE-returned" if told == "no" else "UNSAFE-other"
        try:
            check_told(world, branch, told, UnguardedCall)
        except AssertionError:
            caught += 1
    lab.control("an error that lies", 2, caught if caught == 2 else 0)


def test_control_a_record_that_is_not_kept(lab: Lab, quick_folder: Path) -> None:
    """A record that was acknowledged, and is not there, is missed."""
    world = World(quick_folder)
    with world.open() as log:
        world.effect(log, "UNSAFE-returned")
    marks: list[Any] = [*world.marks.read()]
    world.marks.tell("try", "UNSAFE-returned", "Committed")
    world.marks.tell("ack", 99, "UNSAFE-returned", "Committed")
    lab.control("a record that is not kept", 1, len(violations(world.path, world.marks.read())))
    assert marks


def test_a_script_whose_end_fails_leaves_the_log_usable(quick_folder: Path) -> None:
    """Memory may run out while a script is closed: the thread does not count as inside a call for ever after."""
    world = World(quick_folder)

    class Unclosable:
        def __next__(self) -> None:
            raise StopIteration

        def close(self) -> None:
            raise MemoryError

    with world.open() as log:
        with pytest.raises(MemoryError):
            log._driver.run(Unclosable())
        assert world.effect(log, "UNSAFE-returned")


def test_a_lead_is_given_back_without_memory() -> None:
    """Whichever allocation fails, the next append does not wait for a leader that has gone."""
    testcapi = pytest.importorskip("_testcapi", reason="this Python has no _testcapi, which lets an allocation fail")
    group = GroupCommit(lambda batch: None, lambda: None)
    for number in range(8):
        assert group.takes_lead()
        testcapi.set_nomemory(number, number + 1)
        try:
            group.hand_over()
        except MemoryError:
            pass
        finally:
            testcapi.remove_mem_hooks()
        assert not group._is_led, number
