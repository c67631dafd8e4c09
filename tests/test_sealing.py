"""The codec seam: what is sealed in the file and what is not, and what a log can do without its codec (DESIGN 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bad_input import MODES, SAID, Cipher, Face, check_told, opened, read_elsewhere, refused

from intentlog import (
    QUERYABLE,
    READ,
    Applied,
    ArgumentDrift,
    ArgumentsNotRecordable,
    Durability,
    InDoubt,
    IntentLogError,
    LogUnavailable,
    NotApplied,
    OutcomeUnavailable,
    Rejected,
    Resolution,
    Sealed,
    Settings,
    ToolMisdefined,
    tool,
)
from intentlog.core import codec as format_
from intentlog.core import records as r

CLEAR = ("argument-7", "value-7", "found-7", "decided-7", "supplied-7", "event-7", "read-7")


class Broken(Cipher):
    """Fails where it is told to."""

    fails_at = ""

    def seal(self, payload: bytes, branch: str) -> bytes:
        if self.fails_at == "seal":
            raise RuntimeError("the key is away")
        return super().seal(payload, branch)

    def open(self, sealed: bytes, branch: str) -> bytes:
        if self.fails_at == "open":
            raise RuntimeError("the key is away")
        return super().open(sealed, branch)


@tool(name="sealed-charge")
def charge(text: str) -> str:
    return "value-7"


@tool(name="sealed-lost")
def lost(text: str) -> str:
    raise TimeoutError(f"clear-error: not sealed, and its text is not {len(text)} arguments")


@tool(name="sealed-refused")
def refuses(text: str) -> str:
    raise Rejected("clear-refusal")


@tool(name="sealed-look", effect=READ)
def look(text: str) -> str:
    return "read-7"


@tool(name="sealed-push", effect=QUERYABLE(settle=timedelta(0)), time_limit=timedelta(microseconds=1))
def push(text: str) -> str:
    raise TimeoutError


@push.probe
def pushed(text: str) -> Applied[str] | NotApplied:
    return Applied("found-7") if text == "argument-7" else NotApplied()


def sealing(path: Path, mode: str, cipher: Any) -> Any:
    return opened(path, mode, settings=Settings(codec=cipher))


def fill(face: Face) -> None:
    """Everything that a log stores a payload of."""
    face.call("order", "clear-step", charge, "argument-7")
    face.call("order", "look", look, "argument-7")
    with pytest.raises(Rejected):
        face.call("order", "refused", refuses, "argument-7")
    for step, handle in (("decided", lost), ("bare", lost), ("pushed", push)):
        with pytest.raises(InDoubt):
            face.call(step, "s", handle, "argument-7")
    face.do(lambda log: log.recover())
    face.do(lambda log: log.resolve("decided#1/s", Applied("decided-7"), **SAID))
    face.do(lambda log: log.resolve("bare#1/s", Applied(), **SAID))
    face.do(lambda log: log.supply("bare#1/s", "supplied-7", **SAID))
    face.do(lambda log: log.append("order", "clear-kind", {"text": "event-7"}, durability=Durability.IMMEDIATE))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filled(quick_folder: Path, mode: str) -> Iterator[Path]:
    """A log that was filled with a codec, and closed."""
    with sealing(quick_folder / "log.db", mode, Cipher()) as face:
        fill(face)
    yield quick_folder / "log.db"
    with sealing(quick_folder / "log.db", mode, Cipher()) as face:
        face.goes_on()


def bytes_of(folder: Path) -> bytes:
    return b"\n".join(read_elsewhere(path) for path in sorted(folder.rglob("*")) if path.is_file())


# --- with its codec ------


def test_no_payload_stands_in_the_file(quick_folder: Path, mode: str) -> None:
    """Not in the log and not in its WAL, open or closed. Names, steps, reasons and the texts of errors do."""
    with sealing(quick_folder / "log.db", mode, Cipher()) as face:
        fill(face)
        while_open = bytes_of(quick_folder)
    for found in (while_open, bytes_of(quick_folder)):
        assert [text for text in CLEAR if text.encode() in found] == []
        for text in ("order", "clear-step", "clear-kind", "sealed-charge", "clear-error", "clear-refusal", SAID["why"]):
            assert text.encode() in found, text


def test_without_a_codec_they_do(quick_folder: Path) -> None:
    """The control: the same log, unsealed, shows them all."""
    with opened(quick_folder / "log.db", "sync") as face:
        fill(face)
        found = bytes_of(quick_folder)
    assert [text for text in CLEAR if text.encode() not in found] == []


def test_a_sealed_log_is_used_like_any_other(filled: Path, mode: str) -> None:
    """Replay of a value that was returned, read, found, decided, supplied; history and tail show what was sealed."""
    with sealing(filled, mode, Cipher()) as face:
        steps = [
            ("order", "clear-step", charge, "value-7"),
            ("order", "look", look, "read-7"),
            ("decided", "s", lost, "decided-7"),
            ("bare", "s", lost, "supplied-7"),
            ("pushed", "s", push, "found-7"),
        ]
        for branch, step, handle, value in steps:
            with face.attempt(branch) as attempt:
                outcome = face.wait(attempt.step(step).perform(handle, "argument-7"))
            assert (outcome.value, outcome.replayed) == (value, True)
        payloads = [e.payload for e in face.do(lambda log: log.history("order")) if e.payload is not None]
        arguments = {"text": "argument-7"}
        assert payloads[:2] == [arguments, "value-7"]
        assert {"text": "event-7"} in payloads
        assert face.do(lambda log: log.tail(0)) == []
        tail = face.do(lambda log: log.tail(after=0))
        assert not any(isinstance(entry.payload, Sealed) for entry in tail)
        assert face.do(lambda log: log.verify()).ok


def test_drift_in_a_sealed_log_names_the_arguments(filled: Path, mode: str) -> None:
    """The codec opens the recorded ones, so that the error says which differ."""
    with sealing(filled, mode, Cipher()) as face, face.attempt("order") as attempt:
        intent = f"order#{attempt.number}/clear-step"
        with refused(face, ArgumentDrift, "other arguments: text differ", ran="yes", intent=intent):
            face.wait(attempt.step("clear-step").call(charge, "other"))


def test_recover_asks_the_probe_with_what_was_sealed(quick_folder: Path, mode: str) -> None:
    """Its arguments come from the log, its value goes into it, sealed both."""
    path = quick_folder / "log.db"
    with sealing(path, mode, Cipher()) as face, pytest.raises(InDoubt):
        face.call("pushed", "s", push, "argument-7")
    with sealing(path, mode, Cipher()) as face:
        (found,) = face.do(lambda log: log.recover())
        assert found.resolution is Resolution.REPLAY
        assert face.call("pushed", "s", push, "argument-7") == "found-7"
    assert b"found-7" not in bytes_of(quick_folder)


def test_each_branch_is_sealed_for_itself(filled: Path, mode: str) -> None:
    """The codec is told whose payload it is; equal arguments of two branches are stored as different bytes."""
    cipher, seen = Cipher(), set()

    class Watching(Cipher):
        def open(self, sealed: bytes, branch: str) -> bytes:
            seen.add(branch)
            with pytest.raises(ValueError, match="another key"):
                cipher.open(sealed, branch + "x")
            return super().open(sealed, branch)

    with sealing(filled, mode, Watching()) as face:
        face.do(lambda log: log.tail(after=0))
        stored = [
            face.log._engine.store.record(e.seq) for e in face.do(lambda log: log.tail(after=0)) if e.kind == "Pending"
        ]
    assert {"order", "decided", "bare", "pushed"} <= seen
    assert len({one.payload for one in stored if one.payload}) == len({one.branch for one in stored})


# --- without it ------


def test_a_log_that_is_read_without_its_codec(filled: Path, mode: str) -> None:
    """Sealed payloads with their size, whole records, sound; what is open and done is told as ever."""
    for read_only in (True, False):
        with opened(filled, mode, read_only=read_only) as face:
            entries = face.do(lambda log: log.tail(after=0))
            assert {type(entry.payload) for entry in entries} == {Sealed, type(None)}
            sealed = [entry.payload.sealed_bytes for entry in entries if entry.payload]
            assert min(sealed) > 17, "a zero byte, the check, and at least one more"
            assert face.do(lambda log: log.verify()).ok
            assert face.do(lambda log: log.open_intents()) == []


def test_a_replay_without_the_codec(filled: Path, mode: str) -> None:
    """OutcomeUnavailable, done: nothing is called again. Drift is still seen, without names."""
    with opened(filled, mode) as face, face.attempt("order") as attempt:
        for step, handle in (("clear-step", charge), ("look", look)):
            with refused(
                face, OutcomeUnavailable, "opened without its codec", ran="yes", intent=f"order#{attempt.number}/{step}"
            ):
                face.wait(attempt.step(step).call(handle, "argument-7"))
        with refused(
            face, ArgumentDrift, r"other arguments \[", ran="yes", intent=f"order#{attempt.number}/clear-step"
        ):
            face.wait(attempt.step("clear-step").call(charge, "other"))


def test_a_replay_without_the_codec_says_what_to_do(filled: Path, mode: str) -> None:
    """Open it with its codec."""
    with opened(filled, mode) as face, pytest.raises(OutcomeUnavailable) as caught:
        face.call("order", "clear-step", charge, "argument-7")
    assert "Settings(codec=" in caught.value.remedy


def test_a_replay_without_a_codec_that_keys_the_digest(quick_folder: Path, mode: str) -> None:
    """ "Recorded with other arguments" is not true: they are the same, and the codec is not there."""
    with sealing(quick_folder / "log.db", mode, Cipher(digest_key=b"key")) as face:
        face.call("order", "s", charge, "argument-7")
    with opened(quick_folder / "log.db", mode) as face, pytest.raises(OutcomeUnavailable):
        face.call("order", "s", charge, "argument-7")


def test_a_value_cannot_be_given_without_the_codec(quick_folder: Path, mode: str) -> None:
    """It would stand in the clear: LogUnavailable names what is missing. A decision without a value is fine."""
    path = quick_folder / "log.db"
    with sealing(path, mode, Cipher()) as face, pytest.raises(InDoubt):
        face.call("order", "s", lost, "argument-7")
    with opened(path, mode) as face:
        with refused(face, LogUnavailable, "opened without its codec"):
            face.do(lambda log: log.resolve("order#1/s", Applied("clear-value"), **SAID))
        face.do(lambda log: log.resolve("order#1/s", Applied(), **SAID))
        with refused(face, LogUnavailable, "opened without its codec"):
            face.do(lambda log: log.supply("order#1/s", "clear-value", **SAID))
    assert b"clear-value" not in bytes_of(quick_folder)
    with sealing(path, mode, Cipher()) as face:
        face.do(lambda log: log.supply("order#1/s", "sealed-value", **SAID))
        assert face.call("order", "s", lost, "argument-7") == "sealed-value"
    assert b"sealed-value" not in bytes_of(quick_folder)


def test_a_probe_cannot_be_asked_without_the_codec(quick_folder: Path, mode: str) -> None:
    """Its arguments cannot be read: UNKNOWN with the reason, the doubt stays until the codec is there."""
    path = quick_folder / "log.db"
    with sealing(path, mode, Cipher()) as face, pytest.raises(InDoubt):
        face.call("order", "s", push, "argument-7")
    with opened(path, mode) as face:
        (found,) = face.do(lambda log: log.recover())
        assert found.resolution is Resolution.PROBE
        (answer,) = [
            e.record for e in face.do(lambda log: log.history("order")) if isinstance(e.record, r.ProbeAnswered)
        ]
        assert "opened without its codec" in answer.error.text
    with sealing(path, mode, Cipher()) as face:
        assert face.do(lambda log: log.recover())[0].resolution is Resolution.REPLAY


# --- a codec that fails, or is another ------


def test_a_codec_that_cannot_seal(quick_folder: Path, mode: str) -> None:
    """Arguments, events, decided values: refused before anything. A value: done, without one. A found one likewise."""
    cipher = Broken()

    @tool(name="sealed-breaks")
    def breaks(text: str) -> str:
        cipher.fails_at = "seal"
        return "value-7"

    with sealing(quick_folder / "log.db", mode, cipher) as face:
        assert face.call("order", "breaks", breaks, "x") == "value-7", "its caller gets it all the same"
        with (
            face.attempt("order") as attempt,
            refused(face, ArgumentsNotRecordable, "codec failed: RuntimeError: the key"),
        ):
            face.wait(attempt.step("s").call(charge, "x"))
        with refused(face, ArgumentsNotRecordable, "the event cannot be recorded: the log's codec failed"):
            face.do(lambda log: log.append("order", "kind", 1))
        with refused(face, ArgumentsNotRecordable, "the value cannot be recorded: the log's codec failed"):
            face.do(lambda log: log.supply("order#1/breaks", "later", **SAID))
        (committed,) = [e.record for e in face.do(lambda log: log.history("order")) if e.kind == "Committed"]
        assert "the key is away" in committed.value_missing
        cipher.fails_at = ""
        with pytest.raises(OutcomeUnavailable):
            face.call("order", "breaks", breaks, "x")
        face.do(lambda log: log.supply("order#1/breaks", "later", **SAID))
        assert face.call("order", "breaks", breaks, "x") == "later"


OTHERS: dict[str, Callable[[], Cipher]] = {"another key": lambda: Cipher(b"other"), "it fails": Broken}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS.keys())
def test_a_codec_that_cannot_open(filled: Path, mode: str, make: Callable[[], Cipher]) -> None:
    """As without one: payloads are Sealed, a replay is OutcomeUnavailable in the codec's own words, no call."""
    cipher: Any = make()
    cipher.fails_at = "open"
    words = "another key, or altered" if cipher.secret == b"other" else "the key is away"
    with sealing(filled, mode, cipher) as face:
        assert {type(e.payload) for e in face.do(lambda log: log.tail(after=0))} == {Sealed, type(None)}
        with face.attempt("order") as attempt:
            intent = f"order#{attempt.number}/clear-step"
            with refused(face, OutcomeUnavailable, words, ran="yes", intent=intent):
                face.wait(attempt.step("clear-step").call(charge, "argument-7"))


class Unchecked(Cipher):
    """Answers whatever comes out."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def open(self, sealed: bytes, branch: str) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", ["{", None, 7.5])
def test_a_codec_that_opens_to_no_bytes(filled: Path, mode: str, answer: Any) -> None:
    """It has failed: payloads are Sealed, and nothing of Python's own is raised."""
    with sealing(filled, mode, Unchecked(answer)) as face:
        assert {type(e.payload) for e in face.do(lambda log: log.tail(after=0))} == {Sealed, type(None)}


@pytest.mark.parametrize("answer", [b"\xff\xfe", b""])
def test_a_codec_that_opens_to_nonsense(filled: Path, mode: str, answer: Any) -> None:
    """A wrong key that nothing checks is no damage to the log: what is told is that the payload cannot be opened."""
    with sealing(filled, mode, Unchecked(answer)) as face:
        entries = face.do(lambda log: log.tail(after=0))
        assert {type(e.payload) for e in entries} == {Sealed, type(None)}


# --- the digest ------


def guessed(path: Path) -> str | None:
    """The four digits that somebody with the file alone finds by trying them all against the digest."""
    with opened(path, "sync", read_only=True) as face:
        digests = {e.record.digest for e in face.do(lambda log: log.tail(after=0)) if isinstance(e.record, r.Pending)}
    for number in range(10_000):
        if format_.arguments_digest(b'{"text":"%04d"}' % number) in digests:
            return f"{number:04d}"
    return None


def test_a_keyed_digest_tells_nothing_of_short_arguments(quick_folder: Path, mode: str) -> None:
    """ "2:" before a keyed one. The control: without a key, sealed arguments of four digits are found by trying."""
    for name, key in (("plain", b""), ("keyed", b"k" * 64)):
        with sealing(quick_folder / f"{name}.db", mode, Cipher(digest_key=key)) as face:
            face.call("order", "s", charge, "4711")
            digest = face.do(lambda log: log.history("order"))[1].record.digest
            assert digest.startswith("2:" if key else "1:")
            assert face.call("order", "s", charge, "4711") == "value-7", "and it replays"
            with pytest.raises(ArgumentDrift, match="text differ"):
                face.call("order", "s", charge, "4712")
    assert guessed(quick_folder / "plain.db") == "4711"
    assert guessed(quick_folder / "keyed.db") is None


def test_another_digest_key_is_drift(quick_folder: Path, mode: str) -> None:
    """The key is for the log's whole life; with another no step is known again, and nothing is called."""
    with sealing(quick_folder / "log.db", mode, Cipher(digest_key=b"one")) as face:
        face.call("order", "s", charge, "x")
    with sealing(quick_folder / "log.db", mode, Cipher(digest_key=b"two")) as face, face.attempt("order") as attempt:
        assert attempt.number == 2
        with refused(face, ArgumentDrift, "with other arguments", ran="yes", intent="order#2/s"):
            face.wait(attempt.step("s").call(charge, "x"))


class Half:
    digest_key = b""

    def seal(self, payload: bytes, branch: str) -> bytes:
        return payload


BAD_CODECS = {
    "a number": (7, "is no codec"),
    "text": ("vault:codec", "is no codec"),
    "no open": (Half(), "is no codec"),
    "the class": (Cipher, "needs a digest_key"),
    "a text for a key": (Cipher(digest_key="key"), "needs a digest_key"),  # type: ignore[arg-type]
    "no key": (Cipher(digest_key=None), "needs a digest_key"),  # type: ignore[arg-type]
    "a long key": (Cipher(digest_key=bytes(65)), "at most 64 bytes"),
}


@pytest.mark.parametrize(("codec", "match"), BAD_CODECS.values(), ids=BAD_CODECS.keys())
def test_what_is_no_codec(codec: Any, match: str) -> None:
    """Told before a log is opened with it."""
    with pytest.raises(IntentLogError, match=match) as caught:
        Settings(codec=codec)
    check_told(caught.value, ToolMisdefined)
