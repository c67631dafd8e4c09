"""What the calls on one event loop share: one timer for all of one limit, and turns for those of one step."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from intentlog.run.limits import Limits
from intentlog.run.turns import Turns

SOON_S = 0.01
NEVER_S = 3_600.0


def limited(work: Callable[[], Awaitable[Any]], limit_s: float, limits: Limits) -> asyncio.Task[Any]:
    """A call as the driver makes it: what the work returns, or what the limit says of what it raised."""

    async def call() -> Any:
        limit = limits.begin(limit_s)
        try:
            value = await work()
        except BaseException as error:
            return limit.told(error)
        limit.over()
        return value

    return asyncio.ensure_future(call())


async def forever() -> None:
    await asyncio.Event().wait()


async def at_once() -> str:
    return "done"


def run(scenario: Callable[[Limits], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Limits(asyncio.get_running_loop()))

    asyncio.run(main())


def test_a_call_that_takes_too_long_is_a_timeout() -> None:
    """DESIGN 3: an async tool is cut off at its time limit; that the loop cancelled it is the cause, not the answer."""

    async def scenario(limits: Limits) -> None:
        task = limited(forever, SOON_S, limits)
        error = await task
        assert type(error) is TimeoutError
        assert type(error.__cause__) is asyncio.CancelledError
        assert not task.cancelling(), "who awaits the call is not cancelled by its limit"
        assert not limits._running, "and no timer is left"

    run(scenario)


def test_each_call_has_its_own_time() -> None:
    """One timer serves all: those that ended do not keep it from the others, which are cut off in their order."""

    async def scenario(limits: Limits) -> None:
        ended: list[str] = []

        async def noted(name: str) -> None:
            try:
                await forever()
            finally:
                ended.append(name)

        first = limited(lambda: noted("first"), SOON_S, limits)
        quick = [limited(at_once, SOON_S, limits) for _ in range(100)]
        assert await asyncio.gather(*quick) == ["done"] * 100
        second = limited(lambda: noted("second"), SOON_S, limits)
        long = limited(lambda: noted("long"), NEVER_S, limits)
        assert {type(one) for one in await asyncio.gather(first, second)} == {TimeoutError}
        assert ended == ["first", "second"]
        assert not long.done(), "another limit is another queue"
        long.cancel()
        assert type(await long) is asyncio.CancelledError

    run(scenario)


def test_a_cancellation_from_outside_stays_one() -> None:
    """A caller's cancellation is told as such, also where the limit is exceeded in the same moment."""

    async def scenario(limits: Limits) -> None:
        task = limited(forever, NEVER_S, limits)
        await asyncio.sleep(0)
        task.cancel()
        assert type(await task) is asyncio.CancelledError
        both = limited(forever, SOON_S, limits)
        await asyncio.sleep(0)
        for limit in [*limits._running[SOON_S]]:
            limit.deadline_s = 0.0
        limits._exceed(SOON_S)
        both.cancel()
        assert type(await both) is asyncio.CancelledError
        assert both.cancelling() == 1, "the limit's own request was taken back, the caller's was not"

    run(scenario)


def test_what_a_call_makes_of_its_limit_stands() -> None:
    """A tool may end in its own way when it is cut off: with a value, or with an error of its own."""

    async def scenario(limits: Limits) -> None:
        async def ends_well() -> str:
            try:
                await forever()
            except asyncio.CancelledError:
                return "ended well"
            return "never"

        async def ends_badly() -> None:
            try:
                await forever()
            finally:
                raise LookupError

        well, badly = limited(ends_well, SOON_S, limits), limited(ends_badly, SOON_S, limits)
        assert await well == "ended well"
        assert type(await badly) is LookupError
        assert not well.cancelling() + badly.cancelling()

    run(scenario)


def test_a_call_outside_a_task_has_no_limit() -> None:
    """Whom would it cancel? The driver calls from a task only."""
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(AssertionError, match="outside a task"):
            Limits(loop).begin(1.0)
    finally:
        loop.close()


# --- turns -----------------------------------------------------------------------------------------------------------


def test_turns_are_taken_in_order() -> None:
    async def main() -> None:
        turns, order = Turns(asyncio.get_running_loop()), list[int]()

        async def call(number: int) -> None:
            if not turns.takes("charge"):
                await turns.wait("charge")
            order.append(number)
            await asyncio.sleep(0)
            turns.give("charge")

        assert turns.takes("refund")
        await asyncio.gather(*(call(number) for number in range(5)))
        assert order == [*range(5)]
        assert not turns.takes("refund"), "another step's turn is another's"
        assert turns.takes("charge"), "nothing is left of those that ended"

    asyncio.run(main())


@pytest.mark.parametrize("just_then", [False, True], ids=["while it waits", "when it got the turn"])
def test_who_is_cancelled_leaves_the_turn_to_the_next(just_then: bool) -> None:
    async def main() -> None:
        turns, order = Turns(asyncio.get_running_loop()), list[str]()

        async def call(name: str) -> None:
            await turns.wait("charge")
            order.append(name)
            turns.give("charge")

        assert turns.takes("charge")
        first, second = (asyncio.ensure_future(call(name)) for name in ("first", "second"))
        await asyncio.sleep(0)
        if just_then:
            turns.give("charge")
            first.cancel()
        else:
            first.cancel()
            await asyncio.sleep(0)
            turns.give("charge")
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert order == ["second"]
        assert turns.takes("charge")

    asyncio.run(main())
