"""Records in bytes: every one round-trips, and format version 1 is pinned; intents' names; values (DESIGN 2, 8, 10)."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from intentlog.core import codec
from intentlog.core import records as r
from intentlog.core.actions import IntentId
from intentlog.core.effects import Declaration, EffectKind
from intentlog.core.records import Answer, End, ErrorText, OutcomeKind, Resolution, Settlement, Verdict

CHARGE = {"attempt": 2, "step": "charge"}
THIRD = {**CHARGE, "generation": 3}
KEYED = Declaration(kind=EffectKind.KEYED, time_limit_ns=5, window_ns=6, settle_ns=7, probe=True)
PLAIN = Declaration(kind=EffectKind.UNSAFE, time_limit_ns=5)
CALL = {"tool": "pay", "request_id": "id", "digest": "1:00"}
E = ErrorText("OSError", "reset")

# Format version 1, as it is on disks. A line here changes only with the format's version.
GOLDEN = [
    (r.AttemptOpened(attempt=2, owner="o.1"), '{"kind":"AttemptOpened","attempt":2,"owner":"o.1"}'),
    (r.AttemptFenced(attempt=2), '{"kind":"AttemptFenced","attempt":2}'),
    (r.AttemptClosed(attempt=2, end=End.COMPLETED), '{"kind":"AttemptClosed","attempt":2,"end":"COMPLETED"}'),
    (
        r.AttemptClosed(attempt=2, end=End.INDETERMINATE, error=E),
        '{"kind":"AttemptClosed","attempt":2,"end":"INDETERMINATE","error":["OSError","reset"]}',
    ),
    (
        r.CancelRequested(attempt=2, by="ann", why="stop"),
        '{"kind":"CancelRequested","attempt":2,"by":"ann","why":"stop"}',
    ),
    (r.ApplicationEvent(attempt=2, name="seen"), '{"kind":"ApplicationEvent","attempt":2,"name":"seen"}'),
    (
        r.Pending(**CHARGE, **CALL, declaration=PLAIN),
        (
            '{"kind":"Pending","attempt":2,"step":"charge","tool":"pay","declaration":["UNSAFE",5,0,0,false,0],'
            '"request_id":"id","digest":"1:00"}'
        ),
    ),
    (
        r.Pending(**THIRD, **CALL, declaration=KEYED),
        (
            '{"kind":"Pending","attempt":2,"step":"charge","generation":3,"tool":"pay",'
            '"declaration":["KEYED",5,6,7,true,0],"request_id":"id","digest":"1:00"}'
        ),
    ),
    (r.Dispatched(**CHARGE), '{"kind":"Dispatched","attempt":2,"step":"charge"}'),
    (
        r.Dispatched(**THIRD, dispatch_no=4),
        '{"kind":"Dispatched","attempt":2,"step":"charge","generation":3,"dispatch_no":4}',
    ),
    (
        r.Committed(**CHARGE, outcome=OutcomeKind.RETURNED),
        '{"kind":"Committed","attempt":2,"step":"charge","outcome":"RETURNED"}',
    ),
    (
        r.Committed(**THIRD, outcome=OutcomeKind.NOT_SENT, dispatch_no=4, error=E, value_missing="large"),
        (
            '{"kind":"Committed","attempt":2,"step":"charge","generation":3,"outcome":"NOT_SENT","dispatch_no":4,'
            '"error":["OSError","reset"],"value_missing":"large"}'
        ),
    ),
    (
        r.Committed(
            **CHARGE, outcome=OutcomeKind.REJECTED, dispatch_no=0, read=r.ReadHeader(**CALL, declaration=PLAIN)
        ),
        (
            '{"kind":"Committed","attempt":2,"step":"charge","outcome":"REJECTED","dispatch_no":0,"read":{"tool":"pay",'
            '"declaration":["UNSAFE",5,0,0,false,0],"request_id":"id","digest":"1:00"}}'
        ),
    ),
    (
        r.CallEnded(**CHARGE, error=E),
        '{"kind":"CallEnded","attempt":2,"step":"charge","error":["OSError","reset"]}',
    ),
    (
        r.Suspended(**CHARGE, reason="waits", dispatch_no=4),
        '{"kind":"Suspended","attempt":2,"step":"charge","reason":"waits","dispatch_no":4}',
    ),
    (
        r.ProbeAnswered(**CHARGE, answer=Answer.UNKNOWN, expect_seq=9, dispatch_no=4, error=E),
        (
            '{"kind":"ProbeAnswered","attempt":2,"step":"charge","answer":"UNKNOWN","expect_seq":9,"dispatch_no":4,'
            '"error":["OSError","reset"]}'
        ),
    ),
    (
        r.Settled(**CHARGE, settlement=Settlement.NEVER_SENT, by="restart", why="w"),
        '{"kind":"Settled","attempt":2,"step":"charge","settlement":"NEVER_SENT","by":"restart","why":"w"}',
    ),
    (
        r.Settled(
            **THIRD,
            settlement=Settlement.APPLIED,
            by="ann",
            why="w",
            expect_seq=9,
            superseded_by=4,
            value_recorded=True,
        ),
        (
            '{"kind":"Settled","attempt":2,"step":"charge","generation":3,"settlement":"APPLIED","by":"ann","why":"w",'
            '"expect_seq":9,"superseded_by":4,"value_recorded":true}'
        ),
    ),
    (
        r.Classified(
            **CHARGE,
            last_state=r.IntentState.DISPATCHED,
            classification=Verdict.MAY_HAVE_BEEN_SENT,
            resolution=Resolution.ASK_PERSON,
        ),
        (
            '{"kind":"Classified","attempt":2,"step":"charge","last_state":"DISPATCHED",'
            '"classification":"MAY_HAVE_BEEN_SENT","resolution":"ASK_PERSON"}'
        ),
    ),
    (r.Renewed(**CHARGE, by="ann", why="w"), '{"kind":"Renewed","attempt":2,"step":"charge","by":"ann","why":"w"}'),
    (r.Supplied(**CHARGE, by="ann", why="w"), '{"kind":"Supplied","attempt":2,"step":"charge","by":"ann","why":"w"}'),
]


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=lambda value: type(value).__name__)
def test_format_version_1(record: r.Record, text: str) -> None:
    """The bytes on disk, literally: a renamed field, a new default or another order fails here."""
    assert codec.FORMAT_VERSION == 1
    assert codec.encode_record(record).decode() == text
    assert codec.decode_record(text.encode()) == record


def test_every_kind_of_record_is_pinned() -> None:
    """No record without a line above; all words of the format are known to it."""
    kinds = {type(record) for record, _ in GOLDEN}
    assert kinds == set(r.BranchRecord.__args__) | set(r.INTENT_RECORDS) == set(r.Record.__args__)
    assert set(r.INTENT_RECORDS) == set(r.IntentRecord.__args__)
    words = {enum.__name__: " ".join(enum) for enum in (Verdict, Resolution, OutcomeKind, Answer, Settlement, End)}
    assert words == {
        "Verdict": "NEVER_SENT MAY_HAVE_BEEN_SENT DONE",
        "Resolution": "RETRY RECALL PROBE ASK_PERSON REPLAY",
        "OutcomeKind": "RETURNED REJECTED NOT_SENT",
        "Answer": "APPLIED NOT_APPLIED UNKNOWN",
        "Settlement": "NEVER_SENT APPLIED NOT_APPLIED SUPERSEDED",
        "End": "COMPLETED FAILED CANCELLED INDETERMINATE",
    }


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=lambda value: type(value).__name__)
def test_defaults_are_left_out(record: r.Record, text: str) -> None:
    """A field at its default costs no bytes, and is read back."""
    said = json.loads(text)
    for field in record.__struct_fields__:
        default = dict(zip(reversed(record.__struct_fields__), reversed(record.__struct_defaults__), strict=False))
        assert (field in said) is (field not in default or getattr(record, field) != default[field])


def test_records_do_not_change() -> None:
    """Frozen: what is in the log is not edited in memory either."""
    for record, _ in GOLDEN:
        with pytest.raises(AttributeError):
            record.attempt = 9


# --- intents' names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("order-1042#2/charge", ("order-1042", 2, "charge")),
        ("a/b#12/charge~2", ("a/b", 12, "charge~2")),
        ("a#1/b#2/charge", ("a#1/b", 2, "charge")),
        ("a#1#2/c", ("a#1", 2, "c")),
        ("a#1/c#3", ("a", 1, "c#3")),
        (" #1/ ", (" ", 1, " ")),
        ("ä#1/ö", ("ä", 1, "ö")),
    ],
)
def test_an_intents_name_is_parsed_from_the_right(text: str, parts: tuple[str, int, str]) -> None:
    """`order-1042#2/charge`: a branch may hold `/` and `#`, a step no `/`; a name is text, and read as it was made."""
    intent = IntentId(text)
    assert (intent.branch, intent.attempt, intent.step) == parts
    assert IntentId.of(*parts) == text == str(intent)
    for again in (pickle.loads(pickle.dumps(intent)), copy.deepcopy(intent)):
        assert (type(again), again, again.branch, again.attempt, again.step) == (IntentId, text, *parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a/b",
        "a#1",
        "a#1/",
        "#1/b",
        "a#/b",
        "a#x/b",
        "a#-1/b",
        "a#1.0/b",
        "a#²/b",
        "a#\u0661/b",
        "a# 1/b",
        "a1/b",
    ],
)
def test_a_malformed_name_is_refused(text: str) -> None:
    """ValueError says the form."""
    with pytest.raises(ValueError, match="BRANCH#ATTEMPT/STEP"):
        IntentId(text)


# --- values, digests, keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 1, "null", [1.5, None], {"b": 1, "a": {"null": [None]}}, [[], {}]])
def test_values_round_trip(value: Any) -> None:
    """JSON, keys sorted, no white space."""
    encoded = codec.encode_value(value, 100)
    assert codec.decode_value(encoded, Any) == value
    assert encoded == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": {"b": [-float("inf")]}}, (None, {float("nan")})])
def test_what_is_not_finite_is_refused(value: Any) -> None:
    """DESIGN 10: NaN is refused before Pending, however deep."""
    with pytest.raises(codec.NotRecordable, match="not finite"):
        codec.encode_value(value, 100)


def test_what_cannot_be_kept_is_refused() -> None:
    """Cycles, strangers and what is too large."""
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value, why in ((cyclic, "cyclic"), (object(), "cannot be recorded"), ("x" * 99, "takes 101 bytes")):
        with pytest.raises(codec.NotRecordable, match=why):
            codec.encode_value(value, 100)


class Model:
    """What a pydantic model looks like to the codec."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"cents": self.cents}

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> Model:
        return cls(value["cents"])


def test_models_by_their_own_serialiser() -> None:
    """Pydantic's models, without importing it; other types are not read back."""
    encoded = codec.encode_value(Model(5), 100)
    assert (encoded, codec.decode_value(encoded, Model).cents) == (b'{"cents":5}', 5)
    for text in (b'"x"', b"{"):
        with pytest.raises(ValueError):
            codec.decode_value(text, int)


class Stranger:
    """A class that no serialiser knows."""


def test_a_type_that_cannot_be_read_back_is_a_value_error() -> None:
    """decode_value: ValueError, whatever the annotation is: perform catches no other, and would lose the outcome."""
    with pytest.raises(ValueError, match="cannot be read back"):
        codec.decode_value(b"{}", Stranger)


def test_request_ids_and_digests_are_pinned() -> None:
    """Equal for every attempt, a UUID of version 8, other with step, generation or salt (I6)."""
    one = codec.request_id(b"salt", "order-1", "charge", 1)
    others = [codec.request_id(b"tlas", "order-1", "charge", 1), codec.request_id(b"salt", "order-1", "charge", 2)]
    others += [codec.request_id(b"salt", "order-2", "charge", 1), codec.request_id(b"salt", "order-1", "refund", 1)]
    assert one == "a50fa4bd-96df-8bf5-88a0-69968711af8a"
    assert len({one, *others}) == 5
    assert codec.arguments_digest(b"{}") == "1:2afb9b83f9314e5d029766197f539792"
