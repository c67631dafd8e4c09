"""Answering from the record: what a replay returns and raises, and when it is refused (DESIGN 5, 10)."""

from __future__ import annotations

from typing import Any

import pytest
from core_player import Player
from msgspec.structs import replace

from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import Fetch
from intentlog.core.replay import replay
from intentlog.errors import ArgumentDrift, OutcomeUnavailable, Rejected


@pytest.fixture
def player() -> Player:
    return Player().opens()


def test_a_rejection_replays_as_one(player: Player) -> None:
    """Live and replayed both raise Rejected, told apart by `.replayed`; it is never called again (I3)."""
    assert not player.raises(Rejected, Rejected("no")).replayed
    later = player.dies().opens()
    found = later.raises(Rejected)
    assert (found.replayed, found.error_type, found.effect_ran) == (True, "Rejected", "no")
    assert later.did == []


def test_a_replay_reads_and_writes_nothing_but_the_value(player: Player) -> None:
    """I3: done is answered from the record, in any later attempt: one look, one value, no call and no append."""
    first = player.performs({"a": 1})
    later = player.dies().opens()
    later.seen.clear()
    again = later.performs()
    assert (again.value, again.replayed, again.request_id) == ({"a": 1}, True, first.request_id)
    assert again.intent_id == "order-1#2/charge"
    assert [type(action).__name__ for action in later.seen] == ["Load", "Fetch"]
    assert later.did == []


def test_values_that_cannot_be_kept_or_read(player: Player) -> None:
    """Done without a value: the first caller gets what the tool returned, a replay OutcomeUnavailable."""
    value = object()
    assert player.performs(value).value is value
    assert player.raises(OutcomeUnavailable).effect_ran == "yes"
    assert player.store.record(4).record.value_missing

    def unfit(payload: bytes) -> Any:
        raise ValueError(payload)

    other = Player().opens()
    assert other.performs("paid", decode=unfit).value == "paid", "what will not be read back is handed out as it came"
    assert "cannot be read as the tool's type" in str(other.raises(OutcomeUnavailable, decode=unfit))


def test_a_value_that_can_only_be_one(player: Player) -> None:
    """A tool that returns None can return nothing else: decided as landed without a value, it is replayed as None."""
    player.performs(object())
    assert player.performs(implied_value=b"null").value is None
    assert player.raises(OutcomeUnavailable).effect_ran == "yes"


def test_a_recorded_value_goes_before_the_only_one_possible(player: Player) -> None:
    """What stands in the record is the answer; the implied value fills a gap and nothing else."""
    player.performs("paid")
    assert player.performs(implied_value=b"null").value == "paid"


def test_other_arguments_are_an_error(player: Player) -> None:
    """I6: another digest or tool is ArgumentDrift, never a replay, and `effect_ran` is what is known."""
    player.performs("paid")
    for change in ({"digest": "1:ff"}, {"tool": "refund"}):
        found = player.raises(ArgumentDrift, **change)
        assert found.effect_ran == "yes"
    player.renews()
    assert player.performs("paid", digest="1:ff").replayed is False, "a renewed operation is another one"
    assert player.raises(ArgumentDrift).effect_ran == "yes"


def test_a_drift_names_what_differs(player: Player) -> None:
    """I6: the arguments by name, compared with those of the operation's first Pending, whatever came after it."""
    player.performs("paid")
    later = player.dies().opens()
    found = later.raises(ArgumentDrift, digest="1:ff", arguments=b'{"cents":2,"to":"ann"}')
    assert "other arguments: cents, to differ" in found.message
    assert Fetch(2) in later.seen, "the payload of the first Pending"
    assert (
        "recorded for tool 'charge', it is called with 'refund'" in later.raises(ArgumentDrift, tool="refund").message
    )


def unsealed(payload: bytes) -> bytes:
    """A user's codec that turns the bytes round, behind one zero byte."""
    if payload[:1] != b"\0":
        msg = "not sealed"
        raise ValueError(msg)
    return payload[:0:-1]


def test_a_drift_of_sealed_arguments_names_them_too(player: Player) -> None:
    """Recorded and present ones are opened by the user's codec before they are compared."""
    sealed = b"\0" + b'{"cents":1}'[::-1]
    player.performs("paid", arguments=sealed, digest="2:00")
    other = b"\0" + b'{"cents":2}'[::-1]
    found = player.raises(ArgumentDrift, arguments=other, digest="2:ff", opened=unsealed)
    assert "other arguments: cents differ" in found.message


def test_a_drift_that_cannot_be_opened_is_still_one(player: Player) -> None:
    """I6: another key, or none: the error says that they differ, and not which; never a replay."""
    player.performs("paid", arguments=b"\0???", digest="2:00")
    for opened in (bytes, unsealed):
        found = player.raises(ArgumentDrift, digest="2:ff", opened=opened)
        assert found.message == "the step was recorded with other arguments"
        assert found.effect_ran == "yes"


def test_a_drift_of_a_read_names_nothing(player: Player) -> None:
    """A READ's one record holds no arguments, so that its value is not taken for them (I6)."""
    record = r.Durability.IMMEDIATE
    player.performs({"cents": 1}, kind="READ", read_durability=record)
    found = player.raises(ArgumentDrift, kind="READ", digest="1:ff", arguments=b'{"cents":2}')
    assert found.message == "the step was recorded with other arguments"


def test_a_renewed_operation_is_not_compared(player: Player) -> None:
    """I6 holds within an operation: the first call of a new one says what it is."""
    player.performs("paid")
    player.renews()
    assert player.performs("paid", tool="refund", digest="1:ff").replayed is False


def test_there_is_nothing_to_replay_without_an_outcome(player: Player) -> None:
    """A fault of a caller of `replay` is loud, and no value is made up."""
    player.performs("paid")
    with pytest.raises(AssertionError, match="without an outcome"):
        next(replay(player.plan(), replace(player.operation, decided=None)))


def test_a_rejection_without_its_text_is_one(player: Player) -> None:
    """The error's record is evidence: where it has none, the answer is still the definite no (I3)."""
    player.raises(Rejected, Rejected("no"))
    script = replay(player.plan(), player.operation)
    next(script)
    with pytest.raises(Rejected) as raised:
        script.send(None)
    assert (raised.value.replayed, raised.value.error_type) == (True, "Rejected")


def test_a_value_that_stays_sealed_is_told_with_what_opens_it() -> None:
    """Done, and its value is there for whoever has the log's codec: not the remedy of a type that has changed."""
    player = Player().opens()
    player.performs("paid")

    def sealed(payload: bytes) -> object:
        raise codec.StaysSealed("it is sealed, and the log was opened without its codec")

    found = player.raises(OutcomeUnavailable, decode=sealed)
    assert found.effect_ran == "yes"
    assert "codec" in found.message
    assert "Settings(codec=" in found.remedy


def test_a_digest_that_is_keyed_is_not_taken_for_drift() -> None:
    """Without the codec's key nothing can be held against it: other arguments, or the same ones, who knows (I6)."""
    player = Player().opens()
    player.performs("paid", digest="2:00")
    found = player.raises(OutcomeUnavailable, digest="1:00")
    assert found.effect_ran == "yes"
    assert "Settings(codec=" in found.remedy
