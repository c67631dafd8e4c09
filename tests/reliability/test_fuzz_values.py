"""Outcomes, names and intent ids of every kind: refused by a typed error, or stored and read back equal.

An outcome is given as JSON to the command (`resolve --landed --outcome`, `supply --outcome`) and as a value to the
library. Equal is what Python's own JSON reader makes of the text; an object with a key that stands in it twice has no
one meaning, and must be refused. A float is equal to itself, and not to an integer; beyond its range it is refused.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from reliability import commanding, fuzzing
from reliability.commanding import LOG, same
from reliability.conftest import Lab
from reliability.oracle import quick_open
from reliability.test_fuzz_cli import Judge, made, wrong_with
from reliability.watched import Watched

from intentlog import Applied, InDoubt, IntentLogError, tool
from intentlog.core.actions import IntentId

HARNESS = "fuzz: outcomes and names"
SAID = {"by": "ann", "why": "looked"}
__all__ = ["made"]  # a fixture

numbers = st.one_of(
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400]),
    st.floats(),
    st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, math.nan, math.inf, 0.1 + 0.2, 1e22, 123456789012345680.0]),
)
any_text = st.text(st.characters(exclude_categories=[]), max_size=12)  # lone surrogates too
leaves = st.one_of(st.none(), st.booleans(), numbers, any_text)
jsonable = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(any_text, inner, max_size=4)),
    max_leaves=12,
)
ODD_TEXTS = [
    "",
    " ",
    "nul",
    "NaN",
    "-Infinity",
    "[1e400]",
    "1E400",
    "-0",
    "-0.0",
    "01",
    "1.",
    ".5",
    "+1",
    "0x10",
    "1_000",
    "'a'",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\ud83d\\ude00"',
    '{"a":1,"a":1}',
    '{"a":1,"\\u0061":2}',
    '{"":{"b":1,"b":2}}',
    "[" * 200 + "]" * 200,
    "[" * 201 + "]" * 201,
    '{"a":[' * 450 + "]}" * 450,
    "[" * 200_000,
    "9" * 4_000,
    "9" * 5_000,
    "1" + "0" * 308,
    "1" + "0" * 309 + ".0",
    "0." + "1" * 300,
    "123456789012345678901234567890",
    "18446744073709551616",
    "1e-400",
    "\ufeff1",
    "1 2",
    "[1,]",
    '{"a"}',
    '"\t"',
    '"a\x00b"',
    "true false",
    '{"a":NaN}',
    "// x\n1",
    '"' + "x" * 65_000 + '"',
]
json_texts = st.one_of(
    jsonable.map(json.dumps),
    jsonable.map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.sampled_from(ODD_TEXTS),
    st.text(st.sampled_from('{}[]",:0123456789.eE+-truefalsn\\u \n'), max_size=20),
    st.lists(jsonable, min_size=2, max_size=2).map(
        lambda two: '{"k": ' + json.dumps(two[0]) + ', "k": ' + json.dumps(two[1]) + "}"
    ),
)


def test_fuzz_outcome_json(lab: Lab, made: dict[str, bytes], quick_folder: Path) -> None:
    """DESIGN 10, I9: an outcome is refused with exit code 1 or 2, or the log has exactly what the text means."""

    def broken(drawn: tuple[str, bool]) -> list[str]:
        text, landed = drawn
        text = text.replace("\0", "")  # which no argument of a process can hold
        line = ["resolve", LOG, "doubtful#1/s", "--landed"] if landed else ["supply", LOG, "valueless#1/s"]
        line += [f"--outcome={text}", "--by", "ann", "--why", "looked"]
        answer = judge.ask(line, {}, keep=True)
        if isinstance(answer, str):
            return [f"the process {answer}"]
        wrong = wrong_with(line, answer)
        if answer.code == 0:
            kept = watched.run(commanding.kept_wrong, str(judge.place), line[2].partition("#")[0], text)
            wrong += [kept.wrong] if kept.wrong else kept.value
            judge.begin_anew()
        return wrong

    with Watched(commanding.bounded) as watched:
        judge = Judge(quick_folder, watched, made)
        cases = st.tuples(json_texts, st.booleans())
        fuzzing.hold(lab, cases, broken, fuzzing.examples(30, 200), selects="test_fuzz_outcome_json")


@tool(name="fuzz-lost")
def lost(number: int) -> Any:
    raise TimeoutError


@tool(name="fuzz-done")
def done(number: int) -> int:
    return number


def test_fuzz_values_in_the_library(lab: Lab, quick_folder: Path) -> None:
    """DESIGN 10: `resolve(Applied(value))` and `append`: a typed error and no record, or the value again."""
    number = 0

    def broken(value: Any) -> list[str]:
        nonlocal number
        number += 1
        branch = f"b{number}"
        with suppress(InDoubt), log.attempt(branch) as attempt:
            attempt.step("s").call(lost, number)
        wrong = []
        for name, act in (
            ("resolve", lambda: log.resolve(f"{branch}#1/s", Applied(value), **SAID)),
            ("append", lambda: log.append(branch, "kind", value)),
        ):
            before = len(list(log.history(branch)))
            try:
                act()
            except IntentLogError:
                if len(list(log.history(branch))) != before:
                    wrong.append(f"{name} was refused, and has written")
                continue
            kept = list(log.history(branch))[-1].payload
            if not same(kept, value):
                wrong.append(f"{name} took {value!r}, and the log has {kept!r}")
        return wrong

    with quick_open(quick_folder / LOG) as log:
        fuzzing.hold(lab, jsonable, broken, fuzzing.examples(60, 800), selects="test_fuzz_values_in_the_library")
        assert log.verify().ok


odd_names = st.one_of(
    any_text.filter(bool),
    st.text(st.sampled_from("#/~%:@ 123456789ab"), min_size=1, max_size=9),
    st.sampled_from(
        ["a#1/b", "#", "/", "a/b/c", "order#2", "x" * 255, "x" * 256, "é" * 255, "\u200b", "a\x85b", "\u2028"]
    ),
)


def test_fuzz_branch_and_step_names(lab: Lab, quick_folder: Path) -> None:
    """DESIGN 2: a name is refused, or stored and read back as it is; its intent's text is parsed from the right."""

    def broken(drawn: tuple[str, str]) -> list[str]:
        branch, step = drawn
        before = len(log.tail(1_000_000))
        try:
            with log.attempt(branch) as attempt:
                outcome = attempt.step(step).perform(done, 1)
        except IntentLogError as error:
            wrote = len(log.tail(1_000_000)) - before
            # An attempt that a step's name was refused in was opened and closed.
            return (
                [] if wrote in (0, 2) and error.code == "arguments_not_recordable" else [f"{error!r}, {wrote} records"]
            )
        intent = IntentId(str(outcome.intent_id))
        entries = list(log.history(branch))
        steps = {entry.record.step for entry in entries if hasattr(entry.record, "step")}
        if (intent.branch, intent.step) != (branch, step) or step not in steps or entries[-1].branch != branch:
            return [f"{intent!r} is {intent.branch!r}, {intent.step!r}"]
        return []

    with quick_open(quick_folder / LOG) as log:
        cases = st.tuples(odd_names, odd_names)
        fuzzing.hold(lab, cases, broken, fuzzing.examples(60, 800), selects="test_fuzz_branch_and_step_names")
        assert log.verify().ok


def test_fuzz_intent_ids(lab: Lab) -> None:
    """DESIGN 2: what is parsed is written back as the same text; what is written is parsed into the same parts."""

    def broken(drawn: tuple[str, int, str]) -> list[str]:
        branch, attempt, step = drawn
        found = []
        text = f"{branch}#{attempt}/{step}"
        try:
            intent = IntentId(text)
        except ValueError:
            intent = None
        if intent is not None and str(IntentId.of(intent.branch, intent.attempt, intent.step)) != text:
            found.append(f"{text!r} is parsed as {intent.branch!r}, {intent.attempt}, {intent.step!r}")
        if (
            attempt > 0
            and "/" not in step
            and (intent is None or (intent.branch, intent.attempt, intent.step) != drawn)
        ):
            found.append(f"{drawn} is written as {text!r}, and parsed as {intent!r}")
        return found

    attempts = st.one_of(st.integers(-3, 12), st.integers(0, 10**99))
    cases = st.tuples(odd_names, attempts, odd_names)
    fuzzing.hold(lab, cases, broken, fuzzing.examples(300, 10_000), selects="test_fuzz_intent_ids")


def test_control_fuzz_values(lab: Lab, quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CONTROL: values that are cut to what a float can hold are found by the same comparison."""
    from intentlog.core import codec

    original = codec.encode_value
    monkeypatch.setattr(codec, "encode_value", lambda value, limit: original(_rounded(value), limit))

    def broken(value: Any) -> list[str]:
        try:
            log.append("b", "kind", value)
        except IntentLogError:
            return []
        kept = list(log.history("b"))[-1].payload
        return [] if same(kept, value) else [f"{value!r} became {kept!r}"]

    with quick_open(quick_folder / LOG) as log:
        fuzzing.caught(lab, "integers as floats", jsonable, broken, 300)


def _rounded(value: Any) -> Any:
    """The value, each of its integers as a float holds it: wherever one stands, or chance might not come upon any."""
    match value:
        case list():
            return [_rounded(one) for one in value]
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case int() if type(value) is int and abs(value) < sys.float_info.max:
            return int(float(value))
        case _:
            return value
