"""`Secret` and the log's salt: searched for in every byte that is written and in everything that is shown.

A worker has a secret in each place where a user can put one, under all classes and endings, on both faces
(`secret_worker`). What it leaves is searched for the secret, in each form in which a text is written down: the log's
files, its rows in PostgreSQL, what is logged and printed, the texts of all that the public face hands out, and all that
the command says of the log. A tool's own error, which its caller gets as `__cause__`, and the value that it returned,
are the tool's own.

That single texts are masked, and which types are refused, is in `test_arguments`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NewType, TypedDict

import psycopg
import pydantic
import pytest
from reliability.looking import run_command
from secret_worker import CASES, FORMS, PLACES, SECRET, SHOWN, branch_of, coded, found_in, tool_of

from intentlog import (
    IDEMPOTENT,
    READ,
    UNSAFE,
    AsyncLog,
    IntentLogError,
    Log,
    OutcomeUnavailable,
    Secret,
    ToolMisdefined,
    tool,
)
from intentlog.log.engine import Engine

COMMANDS = (["status"], ["verify"], ["tail", "-n", "9999"], ["recover"], ["doctor"])


class Shown:
    """Everything that the public face handed out, as text."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, *objects: object) -> None:
        for one in objects:
            self.texts += texts_of(one, set())


def texts_of(one: object, seen: set[int]) -> Iterator[str]:
    """Its texts, and those of what can be reached from it without an underscore."""
    if id(one) in seen or isinstance(one, type):
        return
    seen.add(id(one))
    yield repr(one)
    yield str(one)
    if isinstance(one, dict):
        parts: Iterable[object] = [*one.keys(), *one.values()]
    elif isinstance(one, list | tuple | set | frozenset):
        parts = list(one)
    elif isinstance(one, str | bytes | int | float | timedelta) or one is None or callable(one):
        parts = ()
    else:
        names = [name for name in dir(one) if not name.startswith("_")]
        parts = [getattr(one, name, None) for name in names]
    if isinstance(one, BaseException):
        parts = [*one.args, getattr(one, "__notes__", None), vars(one), json.dumps(vars(one), default=repr)]
    for part in parts:
        if not callable(part):
            yield from texts_of(part, seen)


def work(log: Log, shown: Shown, cases: Sequence[tuple[str, str, str]] = CASES) -> None:
    """Each case twice, as by a restart; then all that a log can be asked."""
    for case in [*cases, *cases]:
        handle = tool_of(*case, is_async=False)
        shown.add(handle)
        try:
            with log.attempt(branch_of(case)) as attempt:
                outcome = attempt.perform(handle, SHOWN, PLACES[case[2]])
                shown.add(attempt.number, outcome.intent_id, outcome.request_id, repr(attempt))
        except IntentLogError as error:
            if error.intent_id or case[0] != "READ":  # a READ's own error reaches its caller as it is
                shown.add(error)
        except Exception:
            assert case[0] == "READ", "only a READ's own error reaches its caller as it is"
    look(log, shown)


async def work_async(log: AsyncLog, shown: Shown) -> None:
    for case in CASES * 2:
        handle = tool_of(*case, is_async=True)
        shown.add(handle)
        try:
            async with log.attempt(branch_of(case)) as attempt:
                outcome = await attempt.perform(handle, SHOWN, PLACES[case[2]])
                shown.add(attempt.number, outcome.intent_id, outcome.request_id, repr(attempt))
        except IntentLogError as error:
            if error.intent_id or case[0] != "READ":
                shown.add(error)
        except Exception:
            assert case[0] == "READ", "only a READ's own error reaches its caller as it is"


def look(log: Log, shown: Shown) -> None:
    shown.add(
        log.open_intents(), log.contradictions(), log.unfinished(), log.recover(), log.verify(), log, log.counters
    )
    for case in CASES:
        shown.add(list(log.history(branch_of(case))))
    shown.add(log.tail(1_000_000))
    for intent in log.open_intents():
        for act in (
            lambda i: log.renew(i.intent_id, by="ada", why="x"),
            lambda i: log.supply(i.intent_id, 1, by="a", why="x"),
        ):
            with suppress(IntentLogError):
                act(intent)
            try:
                act(intent)
            except IntentLogError as error:
                shown.add(error)


def commanded(place: str) -> list[str]:
    """All that the command says of a log."""
    said = []
    for words in [*COMMANDS, *(["show", branch_of(case)] for case in CASES[::9])]:
        for form in ([], ["--json"]):
            _, out, err = run_command([words[0], place, *words[1:], *form], {})
            said += [out, err]
    return said


@pytest.fixture(params=["sync", "asyncio"])
def left(request: pytest.FixtureRequest, quick_folder: Path, caplog: Any, capfd: Any) -> tuple[Path, list[str]]:
    """A log that such a worker left, and everything that was shown meanwhile."""
    caplog.set_level(logging.DEBUG)
    path, shown = quick_folder / "log.db", Shown()
    if request.param == "sync":
        with Log.open(path) as log:
            work(log, shown)
            kept(quick_folder)
    else:

        async def run() -> None:
            async with AsyncLog.open(path) as log:
                await work_async(log, shown)
                kept(quick_folder)

        asyncio.run(run(), debug=False)
        with Log.open(path) as log:
            look(log, shown)
    said = [*shown.texts, *commanded(str(path)), caplog.text, *capfd.readouterr()]
    said += [str(vars(record)) for record in caplog.records if record.name.startswith("intentlog")]
    return quick_folder, said


def kept(folder: Path) -> None:
    """Keep the files as they are while the log is open: closing it may leave less."""
    copies = {p: p.read_bytes() for p in folder.rglob("*-wal")}
    (folder / "wal-while-open").write_bytes(b"".join(copies.values()))


def test_a_secret_and_the_salt_are_in_nothing_that_is_shown(left: tuple[Path, list[str]]) -> None:
    """DESIGN 10: no byte of the log's files, no text that was logged, printed, handed out, or exported has it.

    DESIGN 2: nor do those texts have the salt, without which request ids cannot be guessed.
    """
    folder, said = left
    files = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert any(SHOWN.encode() in content for content in files.values()), "control: what is no secret is there"
    assert sum(SHOWN in text for text in said) > 100, "control: it is shown, too"
    assert {str(p): found_in(content) for p, content in files.items() if found_in(content)} == {}
    wrong = [(found_in(text.encode("utf-8", "replace")), text[:600]) for text in said]
    assert [one for one in wrong if one[0]] == []
    with Log.open(folder / "log.db", read_only=True) as log:
        salt = log._engine.store.salt
    forms = {"raw": salt, "repr": repr(salt)[2:-1].encode(), "hex": salt.hex().encode(), **coded(salt)}
    assert any(salt in p.read_bytes() for p in folder.glob("log.db*") if p.is_file()), "control: the log has it"
    assert [text[:300] for text in said if found_in(text.encode("utf-8", "replace"), forms)] == []


def test_a_search_that_finds_is_a_search() -> None:
    """Control: each form of the secret is found where it stands, and base64 wherever it begins."""
    for name, form in FORMS.items():
        assert name in found_in(b"before " + form + b" after")
    for before in range(9):
        assert found_in(b64encode(b"u" * before + SECRET.encode() + b"v" * before))


def test_a_secret_is_in_no_row_of_postgresql(postgres_log_url: str) -> None:
    """DESIGN 10, 9: the same worker over PostgreSQL, every column of every row."""
    shown = Shown()
    with Log.open(postgres_log_url) as log:
        work(log, shown, CASES[:24])
    url, _, schema = postgres_log_url.partition("?schema=")
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        rows = [row for (name,) in names for row in connection.execute(f'SELECT * FROM "{schema}"."{name}"').fetchall()]
    cells = [cell for row in rows for cell in row]
    written = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in cells]
    assert any(SHOWN.encode() in one for one in written), "control: what is no secret is there"
    assert [(found_in(one), one[:300]) for one in written if found_in(one)] == []
    assert [text[:300] for text in shown.texts if found_in(text.encode("utf-8", "replace"))] == []


# --- results ------


@pytest.mark.parametrize("effect", [UNSAFE, IDEMPOTENT, READ], ids=lambda e: e.kind)
def test_a_result_that_holds_a_secret_is_not_stored(quick_folder: Path, effect: Any) -> None:
    """DESIGN 10: done without a value: its first caller gets the value, a replay says that it was not stored."""

    @tool(effect=effect)
    def login(password: Secret[str]) -> dict[str, str]:
        return {"echo": f"it was {password}!"}

    with Log.open(quick_folder / "log.db") as log:
        with log.attempt("order") as attempt:
            assert attempt.step("s").call(login, SECRET) == {"echo": f"it was {SECRET}!"}
        with pytest.raises(OutcomeUnavailable), log.attempt("order") as attempt:
            attempt.step("s").call(login, SECRET)
        assert log.verify().ok
    assert not [p for p in quick_folder.rglob("*") if p.is_file() and found_in(p.read_bytes())]


def test_a_short_secret_is_not_looked_for_in_results(quick_folder: Path) -> None:
    """It would stand in anything: `1` in a receipt. It is masked in errors all the same."""

    @tool
    def pay(pin: Secret[str]) -> str:
        return "receipt-1234"

    with Log.open(quick_folder / "log.db") as log:
        for _ in range(2):
            with log.attempt("order") as attempt:
                assert attempt.step("s").call(pay, "1234") == "receipt-1234"


class TypedPart(TypedDict):
    token: Secret[str]


class NamedPart(NamedTuple):
    token: Secret[str]


class PlainPart:
    token: Secret[str]


class ModelPart(pydantic.BaseModel):
    token: Secret[str]


Marked = NewType("Marked", Annotated[str, "mark"])  # type: ignore[valid-newtype]
Hidden = NewType("Hidden", Secret[str])  # type: ignore[valid-newtype]


@pytest.mark.parametrize(
    "part", [TypedPart, NamedPart, PlainPart, ModelPart, Hidden, list[TypedPart], dict[str, NamedPart]]
)
def test_a_mark_inside_any_type_is_refused(part: Any) -> None:
    """DESIGN 10: what the guard could not keep, it does not take: a typed dict, a named tuple, a model, a new type."""

    def login(part: Any) -> None: ...

    login.__annotations__["part"] = part
    with pytest.raises(ToolMisdefined, match="a whole argument"):
        tool(login)
    login.__annotations__["part"] = Marked
    tool(login)


# --- request ids ------


def test_request_ids_cannot_be_computed_without_the_salt(quick_folder: Path) -> None:
    """DESIGN 2: equal for every attempt of one log, other in another log; the salt is 32 random bytes."""

    @tool(effect=IDEMPOTENT)
    def put(number: int) -> int:
        return number

    ids, salts = [], []
    for name in ("one.db", "two.db"):
        with Log.open(quick_folder / name) as log:
            for _ in range(2):
                with log.attempt("order") as attempt:
                    ids.append(attempt.step("s").perform(put, 1).request_id)
            salts.append(log._engine.store.salt)
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert [len(salt) for salt in salts] == [32, 32]
    assert salts[0] != salts[1]
    assert all(len(set(salt)) > 12 for salt in salts), "no run of zeros"
    guesses = {
        blake2b(text.encode(), digest_size=16, key=key).hexdigest()
        for text in ("order\0s\0" + "1", "order#1/s", "order#2/s", "order/s", "orders1")
        for key in (b"", bytes(32), b"intentlog")
    }
    plain = ids[0].replace("-", "")
    assert all(sum(a == b for a, b in zip(guess, plain, strict=True)) < 16 for guess in guesses)


def test_what_frames_show_has_no_secret(quick_folder: Path) -> None:
    """Whoever reports an error shows the locals of its frames: those of the library hold neither salt nor secret."""

    @tool
    def login(user: str, password: Secret[str]) -> str:
        return user

    with Log.open(quick_folder / "log.db") as log, log.attempt("order") as attempt:
        bound = login.signature.bind(("ada", SECRET), {}, 1_000)
        engine: Engine = log._engine
        prepared = engine.prepare(attempt._state, login, "s", ("ada", SECRET), {}, is_async=False)
        shown = repr(bound) + repr(prepared._plan) + repr(prepared) + repr(engine) + repr(engine.store)
        prepared.withdraw()
        assert found_in(shown.encode()) == []
        assert repr(engine.store.salt) not in shown
