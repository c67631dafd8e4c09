"""The command with $INTENTLOG_CODEC: it reads and writes sealed payloads as the program does; and without it."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from bad_input import SAID, Cipher, opened
from test_cli import DECISION, Bench

from intentlog import Applied, InDoubt, Settings
from intentlog.core import records as r

VAULT = (
    """
from datetime import timedelta
from hashlib import blake2b
from intentlog import QUERYABLE, Applied, NotApplied, tool

"""
    + inspect.getsource(Cipher)
    + """

codec = Cipher()
other = Cipher(b"another")

@tool(name="vault-push", effect=QUERYABLE(settle=timedelta(0)), time_limit=timedelta(microseconds=1))
def push(text: str) -> str:
    raise TimeoutError

@push.probe
def pushed(text: str):
    return Applied("found-7") if text == "argument-7" else NotApplied()

@tool(name="vault-charge")
def charge(text: str) -> str:
    raise TimeoutError
"""
)
CODEC = {"INTENTLOG_CODEC": "vault:codec"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("sealing-cli"))
    (made.folder / "vault.py").write_text(VAULT, encoding="utf-8")
    yield made
    made.close()


@pytest.fixture(scope="module")
def vault(bench: Bench) -> Iterator[ModuleType]:
    """The module that the command imports, for the program that fills the log."""
    spec = importlib.util.spec_from_file_location("vault", bench.folder / "vault.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vault"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["vault"]


@pytest.fixture
def log(vault: ModuleType, quick_folder: Path) -> Path:
    path = quick_folder / "log.db"
    with opened(path, "sync", settings=Settings(codec=vault.codec)) as face:
        for branch, handle in (("charged", vault.charge), ("pushed", vault.push), ("valueless", vault.charge)):
            with pytest.raises(InDoubt):
                face.call(branch, "s", handle, "argument-7")
        face.log.resolve("valueless#1/s", Applied(), **SAID)
    return path


def in_the_clear(log: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in log.parent.rglob("*") if path.is_file())


def test_show_and_tail_open_what_is_sealed(bench: Bench, log: Path) -> None:
    """With the codec the payloads as they were; without it, or with another, only their size; never a traceback."""
    for command in (("show", log, "charged"), ("tail", log, "-n", "99")):
        shown = bench(*command, **CODEC)
        assert (shown.code, shown.err) == (0, "")
        assert '{"text": "argument-7"}' in shown.out
        document = bench(*command, "--json", **CODEC).document
        assert {"text": "argument-7"} in [entry["payload"] for entry in document]
        for variables in ({}, {"INTENTLOG_CODEC": "vault:other"}):
            shown = bench(*command, **variables)
            assert (shown.code, shown.err) == (0, "")
            assert "sealed_bytes" in shown.out
            assert "argument-7" not in shown.out
            document = bench(*command, "--json", **variables).document
            sealed = [entry["payload"] for entry in document if entry["payload"] is not None]
            assert all(list(payload) == ["sealed_bytes"] for payload in sealed)


def test_status_and_verify_need_no_codec(bench: Bench, log: Path) -> None:
    """Names, states and chains are no payloads."""
    for variables in (CODEC, {}):
        assert bench("status", log, **variables).code == 3
        assert "charged#1/s" in bench("status", log, **variables).out
        assert bench("verify", log, **variables).code == 0


def test_a_value_is_sealed_by_the_command(bench: Bench, log: Path, vault: ModuleType) -> None:
    """resolve --outcome and supply write what the program reads; without the codec they are refused, in its words."""
    value = ("--outcome", '"by hand"', *DECISION)
    for command in (("resolve", log, "charged#1/s", "--landed", *value), ("supply", log, "valueless#1/s", *value)):
        refused = bench(*command)
        assert (refused.code, refused.out) == (1, "")
        assert "opened without its codec" in refused.err
        assert "INTENTLOG_CODEC=MODULE:NAME" in refused.err
        assert bench(*command, **CODEC).code == 0
    assert b"by hand" not in in_the_clear(log)
    with opened(log, "sync", settings=Settings(codec=vault.codec)) as face:
        for branch in ("charged", "valueless"):
            assert face.call(branch, "s", vault.charge, "argument-7") == "by hand"


def test_recover_lets_a_probe_read_what_was_sealed(bench: Bench, log: Path, vault: ModuleType) -> None:
    """Without the codec it cannot be asked, and says why; with it, its answer is sealed in its turn."""
    arguments = ("recover", log, "--import", "vault", "--json")
    without = bench(*arguments)
    found = {one["intent_id"]: one["resolution"] for one in without.document}
    assert (without.code, found["pushed#1/s"]) == (3, "PROBE")
    assert "opened without its codec" in bench("show", log, "pushed").out
    found = {one["intent_id"]: one["resolution"] for one in bench(*arguments, **CODEC).document}
    assert found["pushed#1/s"] == "REPLAY"
    assert b"found-7" not in in_the_clear(log)
    with opened(log, "sync", settings=Settings(codec=vault.codec)) as face:
        assert face.call("pushed", "s", vault.push, "argument-7") == "found-7"
        answers = [e.record.answer for e in face.log.history("pushed") if isinstance(e.record, r.ProbeAnswered)]
        assert answers == ["UNKNOWN", "APPLIED"]


def test_decisions_without_a_value_need_no_codec(bench: Bench, log: Path) -> None:
    """A name, a reason and a verdict are no payloads."""
    assert bench("resolve", log, "charged#1/s", "--not-landed", *DECISION).code == 0
    assert bench("renew", log, "valueless#1/s", *DECISION).code == 0
    assert bench("cancel", log, "pushed", *DECISION).code == 3
