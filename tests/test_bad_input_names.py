"""Bad input: names, intents' texts, decisions, events, counts and settings. The table is in `test_bad_input`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bad_input import MODES, SAID, Face, check_told, note, opened, refused

from intentlog import (
    Applied,
    ArgumentsNotRecordable,
    Durability,
    InDoubt,
    IntentLogError,
    Log,
    LogUnavailable,
    NotApplied,
    NotInDoubt,
    Settings,
    StaleDecision,
    ToolMisdefined,
    UnknownIntent,
)


@pytest.fixture(params=MODES)
def face(quick_folder: Path, request: pytest.FixtureRequest) -> Iterator[Face]:
    """A log with an effect that is done and one that is in doubt, in two branches."""
    with opened(quick_folder / "log.db", request.param) as made:
        made.call("order", "done")
        made.doubt("doubtful")
        yield made
        made.goes_on()


BAD_NAMES = {
    "empty": ("", "1 to 255 characters, not 0"),
    "too long": ("x" * 256, "1 to 255 characters, not 256"),
    "NUL": ("a\0b", "no control characters"),
    "newline": ("a\nb", "no control characters"),
    "escape": ("\x1b[2J", "no control characters"),
    "C1 control": ("a\x9bb", "no control characters"),
    "turned round": ("a\u202eb", "no control characters"),
    "surrogate": ("a\ud800", "no control characters"),
    "None": (None, "is text, not NoneType"),
    "number": (7, "is text, not int"),
    "bytes": (b"order", "is text, not bytes"),
}
WITH_SLASH = {**BAD_NAMES, "slash": ("a/b", "no '/'")}
TAKING_A_BRANCH: dict[str, Callable[[Any, Any], Any]] = {
    "attempt": lambda log, name: log.attempt(name),
    "run": lambda log, name: log.run(name, lambda attempt: pytest.fail("run")),
    "history": lambda log, name: log.history(name),
    "cancel": lambda log, name: log.cancel(name, **SAID),
    "append": lambda log, name: log.append(name, "kind"),
}


@pytest.mark.parametrize("use", TAKING_A_BRANCH.values(), ids=TAKING_A_BRANCH.keys())
def test_a_branch_that_is_no_name(face: Face, use: Callable[[Any, Any], Any]) -> None:
    """Refused by every method that takes a branch, before anything is asked of the store."""
    for name, match in BAD_NAMES.values():
        with refused(face, ArgumentsNotRecordable, f"^a branch .*{match}"):
            face.do(lambda log, given=name: use(log, given))


def test_a_step_that_is_no_name(face: Face) -> None:
    """A step has no `/` either, on both faces; the attempt goes on."""
    with face.attempt("order") as attempt:
        for name, match in WITH_SLASH.values():
            with refused(face, ArgumentsNotRecordable, f"^a step .*{match}"):
                face.wait(attempt.step(name).call(note, "x"))
        assert face.wait(attempt.step("good").call(note, "x")) == "x"


@pytest.mark.parametrize("durability", list(Durability))
def test_an_events_kind_that_is_no_name(face: Face, durability: Durability) -> None:
    """Refused whatever its durability; nothing waits to be written afterwards."""
    for kind, match in BAD_NAMES.values():
        with refused(face, ArgumentsNotRecordable, f"event kind .*{match}"):
            face.do(lambda log, given=kind: log.append("order", given, 1, durability=durability))


UNRECORDABLE = {
    "nan": math.nan,
    "inf inside": {"a": [math.inf]},
    "an object": object(),
    "a surrogate": "a\ud800",
    "too large": "x" * (1 << 20),
}


@pytest.mark.parametrize("durability", list(Durability))
def test_an_event_that_cannot_be_written_down(face: Face, durability: Durability) -> None:
    """Refused at once, not when the record that would take it along is written."""
    for payload in UNRECORDABLE.values():
        with refused(face, ArgumentsNotRecordable, "the event cannot be recorded"):
            face.do(lambda log, given=payload: log.append("order", "kind", given, durability=durability))


def test_a_durability_that_is_none(face: Face) -> None:
    """As `@tool(durability=...)` refuses it: ToolMisdefined."""
    for durability in ("EVENTUAL", "never", None, 7):
        with refused(face, ToolMisdefined, "durability"):
            face.do(lambda log, given=durability: log.append("order", "kind", 1, durability=given))


# --- the text of an intent ------

ILL_FORMED = [
    "", "order", "order#1", "order/s", "order#/s", "order#0/s", "order#01/s", "order#-1/s", "order#+1/s", "order#1.0/s",
    "order#\uff11/s", "order# 1/s", "#1/s", "order#1/", "order#1/s/", "/", "#", "order#one/s", "order#1#/s",
]  # fmt: skip
NOT_THERE = [
    "order#1/other", "order#2/done", "other#1/done", "order#99999999999999999999999/done", "order#1/done ",
    " order#1/done", "ORDER#1/done", "order#1/done\n", "or\0der#1/done", "order#1/d\u202eone",
]  # fmt: skip
TAKING_AN_INTENT: dict[str, Callable[[Any, Any], Any]] = {
    "resolve": lambda log, intent: log.resolve(intent, NotApplied(), **SAID),
    "resolve with a value": lambda log, intent: log.resolve(intent, Applied(1), **SAID),
    "supply": lambda log, intent: log.supply(intent, 1, **SAID),
    "renew": lambda log, intent: log.renew(intent, **SAID),
}


@pytest.mark.parametrize("use", TAKING_AN_INTENT.values(), ids=TAKING_AN_INTENT.keys())
def test_a_text_that_is_no_intent(face: Face, use: Callable[[Any, Any], Any]) -> None:
    """UnknownIntent shows the text and the form it should have."""
    for text in ILL_FORMED:
        with refused(face, UnknownIntent, "the form is|The form is"):
            face.do(lambda log, given=text: use(log, given))


@pytest.mark.parametrize("use", TAKING_AN_INTENT.values(), ids=TAKING_AN_INTENT.keys())
def test_an_intent_that_is_not_there(face: Face, use: Callable[[Any, Any], Any]) -> None:
    """UnknownIntent names it; a near miss is not corrected."""
    for text in NOT_THERE:
        with refused(face, UnknownIntent, "no such intent", intent=text):
            face.do(lambda log, given=text: use(log, given))


@pytest.mark.parametrize("use", TAKING_AN_INTENT.values(), ids=TAKING_AN_INTENT.keys())
def test_an_intent_that_no_record_can_hold(face: Face, use: Callable[[Any, Any], Any]) -> None:
    """Not text, or a lone surrogate: UnknownIntent, as for any other text that names nothing."""
    for text in (None, 7, b"order#1/done", "order\ud800#1/done", "order#1/done\ud800"):
        with refused(face, UnknownIntent, "intent"):
            face.do(lambda log, given=text: use(log, given))


def test_an_attempt_with_more_digits_than_python_reads(face: Face) -> None:
    """The text says what an intent is, not what sys.set_int_max_str_digits() does."""
    with pytest.raises(UnknownIntent, match="The form is BRANCH"):
        face.do(lambda log: log.renew(f"order#{'9' * 5000}/done", **SAID))
    with pytest.raises(UnknownIntent) as caught:
        face.do(lambda log: log.renew(f"order#{'9' * 5000}/done", **SAID))
    assert "set_int_max_str_digits" not in caught.value.message


# --- decisions ------

DECISIONS: dict[str, Callable[..., Any]] = {
    "resolve": lambda log, **said: log.resolve("doubtful#1/s", NotApplied(), **said),
    "supply": lambda log, **said: log.supply("order#1/done", 1, **said),
    "renew": lambda log, **said: log.renew("order#1/done", **said),
    "cancel": lambda log, **said: log.cancel("doubtful", **said),
}


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS.keys())
@pytest.mark.parametrize("field", ["by", "why"])
def test_a_decision_by_nobody_or_for_no_reason(face: Face, decide: Callable[..., Any], field: str) -> None:
    """Who and why stay in the log: blank, or no text, is refused and named."""
    for text in ("", " ", "\t\n", None, 7, b"ann"):
        with refused(face, ArgumentsNotRecordable, f"a decision needs {field}="):
            face.do(lambda log, given=text: decide(log, **{**SAID, field: given}))


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS.keys())
def test_a_decision_in_the_librarys_own_name(face: Face, decide: Callable[..., Any]) -> None:
    """`intentlog:probe` would be taken for the probe: refused before the fence of a dead owner is raised."""
    for name in ("intentlog:", "intentlog:probe", "intentlog:anything"):
        with refused(face, ArgumentsNotRecordable, "library's own"):
            face.do(lambda log, given=name: decide(log, by=given, why="why"))


@pytest.mark.parametrize("decide", [DECISIONS[one] for one in ("resolve", "renew", "cancel")])
@pytest.mark.parametrize("field", ["by", "why"])
def test_a_decision_with_text_that_no_record_can_hold(face: Face, decide: Callable[..., Any], field: str) -> None:
    """A lone surrogate (a file name's byte, say): refused in words, before anything is appended."""
    with refused(face, ArgumentsNotRecordable, field):
        face.do(lambda log: decide(log, **{**SAID, field: "ann\udcff"}))


@pytest.mark.parametrize("field", ["by", "why"])
def test_a_decision_with_control_characters_is_kept_as_it_is(face: Face, field: str) -> None:
    """JSON holds them, so they are recorded whole; it is the command line that does not obey them."""
    text = "ann\0\x1b[2J\r\n\u202e\x9b"
    face.do(lambda log: log.resolve("doubtful#1/s", NotApplied(), **{**SAID, field: text}))
    assert getattr(face.do(lambda log: log.history("doubtful"))[-1].record, field) == text


def test_an_answer_that_is_none(face: Face) -> None:
    """Only Applied(...) and NotApplied() decide anything."""
    for answer in ("landed", True, None, Applied, NotApplied, ValueError()):
        with refused(face, ToolMisdefined, r"resolved as Applied\(value\) or NotApplied\(\)"):
            face.do(lambda log, given=answer: log.resolve("doubtful#1/s", given, **SAID))


@pytest.mark.parametrize("value", UNRECORDABLE.values(), ids=UNRECORDABLE.keys())
def test_a_decided_value_that_cannot_be_written_down(face: Face, value: Any) -> None:
    """A person's value is held to the same rules; the intent stays in doubt."""
    if value == "x" * (1 << 20):
        value += "x"
    with refused(face, ArgumentsNotRecordable, "the value cannot be recorded"):
        face.do(lambda log: log.resolve("doubtful#1/s", Applied(value), **SAID))
    with refused(face, ArgumentsNotRecordable, "the value cannot be recorded"):
        face.do(lambda log: log.supply("doubtful#1/s", value, **SAID))
    assert [one.in_doubt for one in face.do(lambda log: log.open_intents())] == [True]


def test_resolving_what_is_not_in_doubt(face: Face) -> None:
    """Done; decided already: NotInDoubt says how it stands."""
    with refused(face, NotInDoubt, "its verdict is DONE", ran="yes", intent="order#1/done"):
        face.do(lambda log: log.resolve("order#1/done", NotApplied(), **SAID))
    face.do(lambda log: log.resolve("doubtful#1/s", NotApplied(), **SAID))
    for answer in (NotApplied(), Applied(), Applied(1)):
        with refused(face, NotInDoubt, "its verdict is NEVER_SENT", ran="no", intent="doubtful#1/s"):
            face.do(lambda log, given=answer: log.resolve("doubtful#1/s", given, **SAID))


def test_a_stale_decision(face: Face) -> None:
    """Prepared at another seq, earlier or later or no seq at all: StaleDecision tells both."""
    (intent,) = face.do(lambda log: log.open_intents())
    for seq in (0, 1, intent.seq - 1, intent.seq + 1, -1, 10**30, "x"):
        with refused(
            face, StaleDecision, f"at seq {seq}, the .* at {intent.seq}", ran="unknown", intent="doubtful#1/s"
        ):
            face.do(lambda log, given=seq: log.resolve("doubtful#1/s", NotApplied(), expect_seq=given, **SAID))
    face.do(lambda log: log.resolve("doubtful#1/s", NotApplied(), expect_seq=intent.seq, **SAID))


def test_an_old_name_of_what_a_newer_attempt_may_have_sent(face: Face) -> None:
    """Decided by the first attempt's name, without a seq: StaleDecision names the newer intent."""
    face.do(lambda log: log.resolve("doubtful#1/s", NotApplied(), **SAID))
    assert face.doubt("doubtful") == "doubtful#2/s"
    for answer in (NotApplied(), Applied(), Applied("x")):
        with refused(face, StaleDecision, r"doubtful#2/s", ran="unknown", intent="doubtful#1/s"):
            face.do(lambda log, given=answer: log.resolve("doubtful#1/s", given, **SAID))
    face.do(lambda log: log.resolve("doubtful#2/s", NotApplied(), **SAID))


def test_renewing_what_cannot_be_renewed(face: Face) -> None:
    """In doubt: settle it first, with the command. Renewed and not called since: NotInDoubt, and one renewal stands."""
    with refused(face, InDoubt, "settled before it is renewed", ran="unknown", intent="doubtful#1/s"):
        face.do(lambda log: log.renew("doubtful#1/s", **SAID))
    face.do(lambda log: log.renew("order#1/done", **SAID))
    for decide in (DECISIONS["renew"], DECISIONS["supply"]):
        with refused(face, NotInDoubt, "renewed, and not called since", intent="order#1/done"):
            face.do(lambda log, act=decide: act(log, **SAID))


def test_supplying_what_needs_no_value(face: Face) -> None:
    """In doubt, or done with its value: NotInDoubt, and the value that stands is not touched."""
    for intent, ran in (("doubtful#1/s", "unknown"), ("order#1/done", "yes")):
        with refused(face, NotInDoubt, "it needs no value", ran=ran, intent=intent):
            face.do(lambda log, given=intent: log.supply(given, "other", **SAID))
    assert face.call("order", "done") == "x"


def test_cancelling_what_is_not_there(face: Face) -> None:
    """No such branch, events alone, or an attempt that has ended: nothing is recorded."""
    face.do(lambda log: log.append("events", "kind", durability=Durability.IMMEDIATE))
    for branch in ("nowhere", "events"):
        with refused(face, UnknownIntent, f"no attempt at branch '{branch}'"):
            face.do(lambda log, given=branch: log.cancel(given, **SAID))
    with refused(face, NotInDoubt, "nothing to cancel"):
        face.do(lambda log: log.cancel("order", **SAID))


# --- counts, settings ------


def test_a_tail_of_less_than_nothing(face: Face) -> None:
    """Negative or no number: refused. Nothing, and more than there is, are fine."""
    for count, after in ((-1, None), (1, -1), ("1", None), (1.5, None), (True, None), (None, None), (1, "2"), (1, 1.0)):
        with refused(face, ArgumentsNotRecordable, "a count and a seq, each 0 or more"):
            face.do(lambda log, n=count, a=after: log.tail(n, after=a))
    assert face.do(lambda log: log.tail(0)) == []
    assert len(face.do(lambda log: log.tail(10**30))) == len(face.records())
    assert face.do(lambda log: log.tail(after=2**63 - 1)) == []


def test_a_tail_after_more_than_there_can_be(face: Face) -> None:
    """Nothing stands after it."""
    assert face.do(lambda log: log.tail(after=2**63)) == []


@pytest.mark.parametrize("field", ["argument_bytes_max", "result_bytes_max", "threads_max"])
def test_a_setting_out_of_its_range(field: str) -> None:
    """ToolMisdefined names the setting and the value."""
    for value in (0, -1, -(10**30)):
        with pytest.raises(IntentLogError, match=f"{field} must be at least 1, not {value}") as caught:
            Settings(**{field: value})
        check_told(caught.value, ToolMisdefined)


@pytest.mark.parametrize(
    "value", [timedelta(0), timedelta(microseconds=-1), timedelta.max, 10, 10.0, "10", None, math.nan]
)
def test_a_grace_that_is_none(value: Any) -> None:
    """Zero, negative, endless, or no timedelta."""
    with pytest.raises(IntentLogError) as caught:
        Settings(dispatch_grace=value)
    check_told(caught.value, ToolMisdefined)
    assert str(value) in caught.value.message


@pytest.mark.parametrize("field", ["argument_bytes_max", "result_bytes_max", "threads_max"])
@pytest.mark.parametrize("value", ["1", None, 1.5, math.nan, math.inf, True, b"1"])
def test_a_setting_of_the_wrong_type(field: str, value: Any) -> None:
    """ToolMisdefined, before a log is opened with it."""
    with pytest.raises(ToolMisdefined, match=field):
        Settings(**{field: value})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [3, "x", {"threads_max": 2}, Settings])
def test_settings_that_are_none(quick_folder: Path, mode: str, settings: Any) -> None:
    """Told when the log is opened, and no file is made."""
    with pytest.raises(ToolMisdefined), opened(quick_folder / "log.db", mode, settings=settings):
        pass
    assert list(quick_folder.iterdir()) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_that_is_no_time(quick_folder: Path, mode: str) -> None:
    """`wait=5`, or for ever, is told when the attempt is asked for."""
    with opened(quick_folder / "log.db", mode) as face:
        for wait in (5, "5", math.inf, timedelta.max):
            with refused(face, ToolMisdefined, "a time"):
                face.do(lambda log, given=wait: log.attempt("order", wait=given))


# --- every refusal says what to do next ------


def test_every_refusal_says_what_to_do_next(quick_folder: Path) -> None:
    """DESIGN 13: each error says what to do next."""
    with opened(quick_folder / "log.db", "sync") as face:
        face.call("order", "done")
        uses: list[Callable[[], Any]] = [
            lambda: face.log.attempt(""),
            lambda: face.log.renew("order#1/done", by="", why=""),
            lambda: face.log.resolve("order#1/done", "landed", **SAID),
            lambda: face.log.append("order", "kind", object()),
            lambda: face.log.tail(-1),
            lambda: face.call("order", "s", note, object()),
            lambda: Settings(threads_max=0),
            lambda: Log.open(face.path, read_only=True).attempt("order").__enter__(),
        ]
        silent = []
        for use in uses:
            with pytest.raises((ArgumentsNotRecordable, ToolMisdefined, LogUnavailable)) as caught:
                use()
            if not caught.value.remedy:
                silent.append(caught.value.message)
    assert silent == []
