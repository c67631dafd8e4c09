"""READ: a call and one record, no Pending, no Dispatched (DESIGN 4)."""

from __future__ import annotations

import pytest
from core_player import RESET, Player, Stop
from msgspec.structs import replace

from intentlog.core.actions import Call, Interrupted
from intentlog.core.effects import EffectKind
from intentlog.core.machine import Reason
from intentlog.core.records import Durability
from intentlog.errors import (
    ArgumentDrift,
    AttemptCancelled,
    Fenced,
    InDoubt,
    LogUnavailable,
    NotSent,
    Rejected,
    Suspended,
)

NOW = {"kind": "READ", "read_durability": Durability.IMMEDIATE}


@pytest.fixture
def player() -> Player:
    return Player().opens()


def test_a_read_is_one_eventual_record(player: Player) -> None:
    """It waits for its branch's next record; nothing fences the call; dispatch 0, no grace."""
    outcome = player.performs("seen", kind="READ")
    assert player.did == ["call", "RETURNED"]
    assert player.kinds() == []
    call = next(action for action in player.seen if isinstance(action, Call))
    assert (call.dispatch_no, call.grace_ns, call.request_id) == (0, None, outcome.request_id)
    player.store.append(player.waiting)
    assert player.performs(kind="READ").replayed
    assert player.is_sound()


def test_an_immediate_read_is_replayed(player: Player) -> None:
    """IMMEDIATE: one record, durable at once; the next attempt gets it without a call."""
    player.performs("seen", **NOW)
    assert player.kinds() == ["RETURNED"]
    assert player.dies().opens().performs(**NOW).value == "seen"


def test_a_read_that_was_rejected(player: Player) -> None:
    """A declared rejection is recorded, live and replayed alike."""
    live = player.raises(Rejected, no := Rejected("no"), **NOW)
    assert (live.replayed, live.__cause__, live.effect_ran) == (False, no, "no")
    assert player.raises(Rejected, **NOW).replayed


@pytest.mark.parametrize("error", [RESET, NotSent("refused"), Suspended("later"), Stop()])
def test_an_error_that_decides_nothing_is_just_raised(player: Player, error: BaseException) -> None:
    """Nothing changed outside: no record, the tool's own error, and the next call calls."""
    assert player.raises(type(error), error, **NOW) is error
    assert player.kinds() == []
    assert player.performs("seen", **NOW).value == "seen"


def test_a_read_retries(player: Player) -> None:
    """Retry repeats a READ, with growing waits, and ends; a signal is not repeated."""
    player.performs(RESET, RESET, "seen", retry_times=2, **NOW)
    assert player.did == ["call", "wait 1", "call", "wait 2", "call", "RETURNED"]
    other = Player().opens()
    assert other.raises(ConnectionError, RESET, RESET, retry_times=1, **NOW) is RESET
    assert Player().opens().raises(Stop, Stop(), retry_times=1, **NOW)


def test_a_read_with_other_arguments(player: Player) -> None:
    """I6: ArgumentDrift, and nothing is called."""
    player.performs("seen", **NOW)
    player.raises(ArgumentDrift, digest="1:ff", **NOW)


@pytest.mark.parametrize(("reason", "error"), [(Reason.FENCED, Fenced), (Reason.CANCELLED, AttemptCancelled)])
def test_a_read_of_a_fenced_attempt(player: Player, reason: Reason, error: type) -> None:
    """Its one record is fenced (I2): the caller is told to stop."""
    player.befalls["RETURNED"] = reason
    player.raises(error, "seen", **NOW)


def test_a_read_overtaken_by_its_twin_gives_the_recorded_value(player: Player) -> None:
    """The first run returns what a replay would return: the value that the log has."""
    player.performs("first", **NOW)
    twin = Player(player.disk, "a", player.clock)
    twin.attempt = 1
    view = twin.store.view
    twin.store.view = lambda *key: replace(view(*key), operation=None)  # it looked before the first was recorded
    outcome = twin.performs("second", **NOW)
    assert outcome.value == player.performs(**NOW).value


def test_a_read_that_meets_other_arguments_at_its_record(player: Player) -> None:
    """I6 at the append: other arguments are an error, not a value that no record holds."""
    player.befalls["RETURNED"] = Reason.DRIFT
    player.raises(ArgumentDrift, "seen", **NOW)


@pytest.mark.parametrize("fate", ["landed", "interrupted"])
def test_a_read_that_is_interrupted(player: Player, fate: str) -> None:
    """The caller sees the cancellation, not the driver's word for it."""
    player.befalls["RETURNED"] = fate
    with pytest.raises((Stop, Interrupted)) as raised:
        player.performs("seen", **NOW)
    assert type(raised.value) is Stop


def test_a_read_that_cannot_be_recorded(player: Player) -> None:
    """The store's error is the caller's: a READ may be called again."""
    player.befalls["RETURNED"] = LogUnavailable("full")
    player.raises(LogUnavailable, "seen", **NOW)


def test_a_read_without_a_value(player: Player) -> None:
    """A result that cannot be stored is handed out, and recorded as done without a value."""
    value = object()
    assert player.performs(value, **NOW).value is value
    assert player.operation.decided.value_seq is None


def test_a_read_is_renewed(player: Player) -> None:
    """The next generation reads again, with a request id of its own (I6)."""
    first = player.performs("seen", **NOW)
    player.renews()
    player = player.dies().opens()
    second = player.performs("seen anew", **NOW)
    assert (second.value, second.replayed) == ("seen anew", False)
    assert second.request_id != first.request_id
    assert player.is_sound()


def test_a_step_that_was_no_read_takes_the_long_way(player: Player) -> None:
    """The stricter of recorded and present decides: a step recorded as UNSAFE is not read past its doubt (I4)."""
    player.raises(NotSent, NotSent("refused"), kind="UNSAFE")
    player = player.dies().opens()
    player.performs("seen", **NOW)
    assert player.did == ["Pending", "Dispatched", "call", "RETURNED"]
    assert player.operation.declaration.kind is EffectKind.UNSAFE


def test_a_branch_opens_after_a_read_followed_an_open_dispatch(player: Player) -> None:
    """Declared READ by now, and in doubt from before: it takes the long way, and a restart still opens the branch."""
    player.raises(InDoubt, RESET, kind="IDEMPOTENT")
    player = player.dies("b").opens()
    player.performs("seen", **NOW)
    assert "Dispatched" in player.did
    player = player.dies("c").opens()
    assert player.attempt == 3


def test_a_renewed_operation_is_declared_anew(player: Player) -> None:
    """What was UNSAFE and is renewed and declared READ is read: the new operation has nothing that could be hidden."""
    player.performs("paid", kind="UNSAFE")
    player.renews()
    player.did.clear()
    player.performs("seen", **NOW)
    assert player.did == ["call", "RETURNED"]
    assert player.dies("b").opens().attempt == 2
