"""Faults of server and network under the real library: what PostgreSQL answers, and does not (I1, I3, I5, I8).

A proxy cuts at the COMMIT of one record of an effect. What a client sees then is the same whether the server has the
record or not; the library has to learn which, before anything more is done. Whether a call happened is read from a
witness outside the log, and what the log holds through a connection past the proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from field_case_programs import attempt_at, field_tool, opened, raised, settled, started, until
from postgres_pair import Pair
from postgres_programs import holds, judge
from postgres_proxy import Act, Proxy
from postgres_servers import Server

from intentlog import (
    Call,
    InDoubt,
    IntentLogError,
    Log,
    LogPoisoned,
    LogUnavailable,
    OutcomeNotRecorded,
    Verdict,
)
from intentlog.crash import Witness
from intentlog.log.sync import Attempt
from intentlog.store import postgres_fate
from intentlog.store.postgres import PostgresStore

MODES = ("sync", "asyncio")
RECORDS = ("Pending", "Dispatched", "Committed")
BRANCH = "order-1042"
WHOLE = ["AttemptOpened", "Pending", "Dispatched", "Committed", "AttemptClosed"]


class Scene:
    """One effect over a proxy.

    Attributes:
        url: of the log, through the proxy.
        direct: of the same, past it.
        proxy: between them.
        witness: of the calls.
        mode: of the face.
    """

    def __init__(self, server: Server, proxy: Proxy, database: str, folder: Path, mode: str) -> None:
        self.url = proxy.url(database=database)
        self.direct = server.url(database=database)
        self.proxy = proxy
        self.mode = mode
        self.witness = Witness(folder / "witness")
        self.tool = field_tool("UNSAFE", self._act, mode)

    def _act(self, call: Call, item: str) -> str:
        self.witness.record(f"{BRANCH} act {call.dispatch_no} {call.request_id}")
        return f"did {item}"

    @property
    def calls(self) -> int:
        return len(self.witness.lines())

    def kinds(self) -> list[str]:
        """The records of the branch, as a reader of their own sees them."""
        with Log.open(self.direct, read_only=True) as log:
            return [entry.kind for entry in log.history(BRANCH)]

    def judged(self) -> Verdict | None:
        """The verdict of the effect, which log and witness agree on; None where neither knows of one."""
        with Log.open(self.direct) as log:
            return judge(log, self.witness).verdicts.get((BRANCH, "act"))


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that could not give its lease back, its connection being gone, is dead a second later."""
    monkeypatch.setenv("INTENTLOG_LEASE_S", "1")


@pytest.fixture(params=MODES)
def scene(
    request: pytest.FixtureRequest, postgres: Server, postgres_proxy: Proxy, quick_folder: Path
) -> Iterator[Scene]:
    database = postgres.fresh_database()
    yield Scene(postgres, postgres_proxy, database, quick_folder, str(request.param))
    postgres.drop_database(database)


@pytest.fixture
def brief_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of a commit is asked for a third of a second, not for a minute."""
    monkeypatch.setattr(postgres_fate, "learn", partial(postgres_fate.learn, limit_s=0.3))


async def perform(attempt: Any, scene: Scene) -> Any:
    return await settled(attempt.step("act").perform(scene.tool, "1042"))


# -- the connection is cut -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", RECORDS)
def test_a_cut_before_commit_writes_nothing_and_is_made_good(scene: Scene, record: str) -> None:
    """The transaction is found aborted, and the append is made once more: each record once, one call (I3, I8)."""
    trap = scene.proxy.at_commit(Act.CUT_BEFORE, matching=holds(record))

    async def main() -> None:
        async with opened(scene.mode, scene.url) as log, attempt_at(log) as attempt:
            outcome = await perform(attempt, scene)
            assert (outcome.value, outcome.replayed) == ("did 1042", False)

    asyncio.run(main())
    trap.wait()
    assert scene.kinds() == WHOLE
    assert scene.calls == 1


@pytest.mark.parametrize("record", RECORDS)
def test_cut_before_commit_again_and_again_the_caller_is_told_that_nothing_was_written(
    scene: Scene, record: str
) -> None:
    """LogUnavailable before the call, OutcomeNotRecorded after it; the next append goes on (I1, I4, I8)."""
    traps = [scene.proxy.at_commit(Act.CUT_BEFORE, matching=holds(record)) for _ in range(2)]

    async def main() -> None:
        async with opened(scene.mode, scene.url) as log, attempt_at(log) as attempt:
            error = await raised(perform, attempt, scene)
            for trap in traps:
                trap.wait()
            assert scene.kinds() == WHOLE[: WHOLE.index(record)]
            if record == "Committed":
                assert isinstance(error, OutcomeNotRecorded)
                assert error.effect_ran == "yes"
                assert isinstance(await raised(perform, attempt, scene), InDoubt)
            else:
                assert isinstance(error, LogUnavailable)
                assert error.effect_ran == "no"
                assert scene.calls == 0
                assert (await perform(attempt, scene)).value == "did 1042"

    asyncio.run(main())
    assert scene.calls == 1
    assert scene.judged() is (Verdict.MAY_HAVE_BEEN_SENT if record == "Committed" else Verdict.DONE)


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_IN_FLIGHT, Act.HALF_CLOSE_AFTER])
@pytest.mark.parametrize("record", RECORDS)
def test_a_cut_after_commit_is_found_committed(scene: Scene, record: str, act: Act) -> None:
    """The server is asked what became of the transaction, and the effect goes on: each record once, one call (I8)."""
    trap = scene.proxy.at_commit(act, matching=holds(record))

    async def main() -> None:
        async with opened(scene.mode, scene.url) as log, attempt_at(log) as attempt:
            outcome = await perform(attempt, scene)
            assert (outcome.value, outcome.replayed) == ("did 1042", False)

    asyncio.run(main())
    trap.wait_for_answer()
    assert scene.kinds() == WHOLE
    assert scene.calls == 1


@pytest.mark.parametrize("act", [Act.HOLD_BEFORE, Act.HOLD_AFTER])
@pytest.mark.parametrize("record", RECORDS)
def test_nothing_is_done_while_the_fate_of_a_commit_is_unknown(scene: Scene, record: str, act: Act) -> None:
    """Cut, and the server not to be reached: no call is made until it is, and then the effect goes on (I1, I8)."""
    trap = scene.proxy.at_commit(act, matching=holds(record))
    called = int(record == "Committed")

    async def main() -> None:
        async with opened(scene.mode, scene.url) as log, attempt_at(log) as attempt:
            effect = started(attempt.step("act").perform, scene.tool, "1042")
            await asyncio.to_thread(trap.wait)
            scene.proxy.turn_away()
            scene.proxy.cut()
            for _ in range(2):
                await asyncio.to_thread(scene.proxy.wait_for_one_turned_away)
                assert scene.calls == called
                assert not effect.done()
            scene.proxy.accept()
            assert (await effect).value == "did 1042"

    asyncio.run(main())
    assert scene.kinds() == WHOLE
    assert scene.calls == 1


@pytest.mark.parametrize("act", [Act.HOLD_BEFORE, Act.HOLD_AFTER])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.usefixtures("brief_asking")
def test_a_fate_that_cannot_be_learnt_poisons_the_log(scene: Scene, record: str, act: Act) -> None:
    """The server stays away: nothing more is acknowledged or called until the log is opened anew (I8).

    Then the record is there or not, and log and witness agree either way.
    """
    trap = scene.proxy.at_commit(act, matching=holds(record))

    async def main() -> None:
        async with opened(scene.mode, scene.url) as log:
            attempt = log.attempt(BRANCH)
            await entered(attempt)
            effect = started(attempt.step("act").perform, scene.tool, "1042")
            await asyncio.to_thread(trap.wait)
            scene.proxy.turn_away()
            scene.proxy.cut()
            with pytest.raises(OutcomeNotRecorded if record == "Committed" else LogPoisoned) as found:
                await effect
            assert found.value.effect_ran == ("yes" if record == "Committed" else "no")
            scene.proxy.accept()
            assert isinstance(await raised(perform, attempt, scene), LogPoisoned)
            assert isinstance(await raised(log.append, BRANCH, "note", {}), LogPoisoned)
            assert isinstance(await raised(left, attempt), LogPoisoned)
        assert scene.calls == int(record == "Committed")

    asyncio.run(main())
    landed = act is Act.HOLD_AFTER
    assert scene.kinds() == WHOLE[: WHOLE.index(record) + landed]
    unsent = {"Pending": Verdict.NEVER_SENT if landed else None, "Dispatched": Verdict.NEVER_SENT}
    if (landed and record == "Dispatched") or (record == "Committed" and not landed):
        assert scene.judged() is Verdict.MAY_HAVE_BEEN_SENT
    else:
        assert scene.judged() is unsent.get(record, Verdict.DONE)


async def entered(attempt: Any) -> None:
    """Enter an attempt of either face."""
    await settled(attempt.__enter__() if isinstance(attempt, Attempt) else attempt.__aenter__())


async def left(attempt: Any) -> None:
    """Leave it."""
    await settled((attempt.__exit__ if isinstance(attempt, Attempt) else attempt.__aexit__)(None, None, None))


def commit_errors_are_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a store that takes whatever COMMIT raises for success."""
    monkeypatch.setattr(PostgresStore, "_learn", lambda self, sent, cause: self._discard())


def test_control_commit_errors_taken_for_success(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of all above: the call is made, and its Dispatched is not there."""
    commit_errors_are_success(monkeypatch)
    trap = scene.proxy.at_commit(Act.CUT_BEFORE, matching=holds("Dispatched"))

    async def main() -> None:
        async with opened(scene.mode, scene.url) as log, attempt_at(log) as attempt:
            await raised(perform, attempt, scene)

    with suppress(IntentLogError):
        asyncio.run(main())
    trap.wait()
    assert scene.calls == 1
    with pytest.raises(AssertionError, match="lost: called, and its Dispatched is not there"):
        scene.judged()


# -- the server dies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [Act.HOLD_BEFORE, Act.HOLD_AFTER])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_dies_at_the_commit_comes_back(
    own_postgres: Server, quick_folder: Path, mode: str, record: str, act: Act
) -> None:
    """SIGKILL of the server before or after its COMMIT, and a restart: the effect goes on where it was (I5, I8)."""
    with Proxy(own_postgres) as proxy:
        scene = Scene(own_postgres, proxy, "postgres", quick_folder, mode)
        trap = proxy.at_commit(act, matching=holds(record))

        async def main() -> None:
            async with opened(mode, scene.url) as log, attempt_at(log) as attempt:
                effect = started(attempt.step("act").perform, scene.tool, "1042")
                await asyncio.to_thread(trap.wait)
                own_postgres.kill()
                proxy.cut()  # the answer, if there was one, is lost with it
                assert scene.calls == int(record == "Committed")
                own_postgres.start()
                assert (await effect).value == "did 1042"

        asyncio.run(main())
        assert scene.kinds() == WHOLE
        assert scene.calls == 1
        assert scene.judged() is Verdict.DONE


# -- the standby -----------------------------------------------------------------------------------------------------

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def waiting_for_standby(server: Server, count: int = 1) -> list[int]:
    """The server processes whose commit waits for the standby, once there are as many."""

    def found() -> list[int]:
        return [pid for (pid,) in server.sql(WAITING)]

    await asyncio.to_thread(until, lambda: len(found()) >= count, "a commit that waits for the standby")
    return found()


@pytest.mark.parametrize("ended_by", ["cut", "crash"])
@pytest.mark.parametrize("synchronous_commit", ["on", "remote_apply"])
@pytest.mark.parametrize("mode", MODES)
def test_what_no_standby_has_confirmed_is_not_taken_for_durable(
    quick_folder: Path, mode: str, synchronous_commit: str, ended_by: str
) -> None:
    """Dispatched waits for a standby that hangs, and its connection goes: no call until the standby has it (I1, I8).

    After a crash of the primary the record can be seen there, and still no standby has it: a commit has to confirm it.
    """
    with Pair(synchronous_commit) as pair, Proxy(pair.primary) as proxy:
        scene = Scene(pair.primary, proxy, "postgres", quick_folder, mode)
        trap = proxy.at_commit(Act.HOLD_BEFORE, matching=holds("Dispatched"))

        async def main() -> None:
            async with opened(mode, scene.url) as log, attempt_at(log) as attempt:
                effect = started(attempt.step("act").perform, scene.tool, "1042")
                await asyncio.to_thread(trap.wait)
                pair.standby.pause()
                trap.release()
                await waiting_for_standby(pair.primary)
                if ended_by == "cut":
                    proxy.cut()
                else:
                    pair.primary.kill()
                    pair.primary.start()
                    await waiting_for_standby(pair.primary)  # the commit that is to confirm it
                assert scene.calls == 0
                assert not effect.done()
                pair.standby.resume()
                assert (await effect).value == "did 1042"

        asyncio.run(main())
        assert scene.kinds() == WHOLE
        assert scene.calls == 1


@pytest.mark.parametrize("given_up_by", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_wait_for_the_standby_that_was_given_up_is_a_failure(
    quick_folder: Path, mode: str, record: str, given_up_by: str
) -> None:
    """PostgreSQL then answers COMMIT with success and a WARNING: the log is poisoned and nothing is called (I1, I8)."""
    with Pair() as pair, Proxy(pair.primary) as proxy:
        scene = Scene(pair.primary, proxy, "postgres", quick_folder, mode)
        trap = proxy.at_commit(Act.HOLD_BEFORE, matching=holds(record))

        async def main() -> None:
            async with opened(mode, scene.url) as log:
                attempt = log.attempt(BRANCH)
                await entered(attempt)
                effect = started(attempt.step("act").perform, scene.tool, "1042")
                await asyncio.to_thread(trap.wait)
                pair.standby.pause()
                trap.release()
                (pid,) = await waiting_for_standby(pair.primary)
                pair.primary.sql(f"SELECT {given_up_by}({pid})")
                with pytest.raises(OutcomeNotRecorded if record == "Committed" else LogPoisoned):
                    await effect
                assert isinstance(await raised(left, attempt), LogPoisoned)
                pair.standby.resume()
            assert scene.calls == int(record == "Committed")

        asyncio.run(main())
        assert scene.kinds() == WHOLE[: WHOLE.index(record) + 1]
        assert scene.judged() is not None


@pytest.mark.parametrize(
    ("act", "synchronous_commit"), [(Act.HOLD_BEFORE, "on"), (Act.HOLD_AFTER, "on"), (Act.HOLD_AFTER, "remote_apply")]
)
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_commit_at_which_the_standby_is_promoted_is_looked_for_there(
    quick_folder: Path, mode: str, record: str, act: Act, synchronous_commit: str
) -> None:
    """The primary dies before or after its COMMIT; its name leads to the promoted standby: the effect goes on (I5, I8).

    What was not committed is committed there, what was is found there, by the record itself: the number of a
    transaction may be another's in a new history.
    """
    with Pair(synchronous_commit) as pair, Proxy(pair.primary) as proxy:
        scene = Scene(pair.standby, proxy, "postgres", quick_folder, mode)
        trap = proxy.at_commit(act, matching=holds(record))

        async def main() -> None:
            async with opened(mode, scene.url) as log, attempt_at(log) as attempt:
                effect = started(attempt.step("act").perform, scene.tool, "1042")
                await asyncio.to_thread(trap.wait)
                pair.primary.kill()
                proxy.lead_to(pair.promote())
                trap.release()
                assert (await effect).value == "did 1042"

        asyncio.run(main())
        assert scene.kinds() == WHOLE
        assert scene.calls == 1
        assert scene.judged() is Verdict.DONE


def test_a_standby_that_lacks_what_was_acknowledged_is_found_out(quick_folder: Path) -> None:
    """The control of the promotion: a standby that nobody waited for has lost the Pending, and nothing is called."""
    with Pair() as pair, Proxy(pair.primary) as proxy:
        scene = Scene(pair.standby, proxy, "postgres", quick_folder, "sync")
        with Log.open(scene.url):
            pass  # the tables are made, and the standby has them
        pair.primary.configure(synchronous_standby_names="")
        pair.standby.kill()

        async def main() -> None:
            async with opened("sync", scene.url) as log:
                attempt = log.attempt(BRANCH)
                await entered(attempt)
                trap = proxy.at_commit(Act.HOLD_BEFORE, matching=holds("Dispatched"))
                effect = started(attempt.step("act").perform, scene.tool, "1042")
                await asyncio.to_thread(trap.wait)
                pair.primary.kill()
                pair.standby.start()
                proxy.lead_to(pair.promote())
                trap.release()
                with pytest.raises(LogPoisoned, match="which was acknowledged, is not there"):
                    await effect
                assert isinstance(await raised(left, attempt), LogPoisoned)

        asyncio.run(main())
        assert scene.calls == 0
