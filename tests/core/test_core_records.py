"""Records in bytes: every one round-trips, format version 1 is pinned, each has its crash points (DESIGN 8)."""

from __future__ import annotations

import json

import pytest

from intentlog import failpoints
from intentlog.core import codec
from intentlog.core import records as r
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
    (
        r.Renewed(**CHARGE, by="ann", why="w", expect_seq=9),
        '{"kind":"Renewed","attempt":2,"step":"charge","by":"ann","why":"w","expect_seq":9}',
    ),
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


# --- crash points ----------------------------------------------------------------------------------------------------

# A record, and the word for it in `before_...` and `after_...`: users' crash tests name them, so that they stay.
POINTS = {
    "AttemptOpened": "opened",
    "AttemptFenced": "fenced",
    "AttemptClosed": "closed",
    "CancelRequested": "cancelled",
    "ApplicationEvent": "event",
    "Pending": "pending",
    "Dispatched": "dispatched",
    "Committed": "committed",
    "CallEnded": "call_ended",
    "Suspended": "suspended",
    "ProbeAnswered": "probe_answered",
    "Settled": "settled",
    "Classified": "classified",
    "Renewed": "renewed",
    "Supplied": "supplied",
}


def test_every_record_has_its_crash_points() -> None:
    """DESIGN 13: one before and one after each kind's append, named for it; one on either side of a call."""
    assert failpoints.APPENDS == POINTS
    assert set(POINTS) == {kind.__struct_config__.tag for kind in r.Record.__args__}
    assert set(POINTS) == {kind.__name__ for kind in r.Record.__args__}, "drivers look them up by the class's name"
    assert len(set(POINTS.values())) == len(POINTS), "no two kinds share a point"
    wanted = {f"{side}_{word}" for side in ("before", "after") for word in (*POINTS.values(), "call")}
    assert wanted == failpoints.POINTS
