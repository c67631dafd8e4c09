"""What the operator says of a server's tools, what the server says of itself, and what is made of both."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest
from mcp_guard.guarded import SERVER

from intentlog import IDEMPOTENT, KEYED, QUERYABLE, READ, UNSAFE
from intentlog.mcp.catalog import Catalog
from intentlog.mcp.naming import server_name
from intentlog.mcp.rules import Hints, Rule, Rules, RulesUnreadable, read_rules

RULES = """
trust_annotations = true

[tools.write_file]
effect = "IDEMPOTENT"

[tools."charge_*"]
effect = "KEYED"
window_s = 86400
key_argument = "idempotency_key"
redact = ["card"]

[tools."*"]
effect = "QUERYABLE"
settle_s = 5
probe = ["python", "probe.py"]
time_limit_s = 60
"""


def test_a_file_of_rules(tmp_path: Path) -> None:
    """A plain name counts before any pattern, and of patterns the first."""
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    rules = read_rules(path)
    assert rules.trust_annotations
    assert rules.effect_of("write_file", None) == IDEMPOTENT
    assert rules.effect_of("charge_card", None) == KEYED(timedelta(days=1))
    assert rules.effect_of("other", Hints(readOnlyHint=True)) == QUERYABLE(timedelta(seconds=5))
    assert rules.rule_for("charge_card").redact == {"card"}
    assert rules.rule_for("other").time_limit_s == 60


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tools = 3", "object"),
        ("[tools.a]\neffect = 'SAFE'", "SAFE"),
        ("[tools.a]\nwindow = 3", "window"),
        ("[tools.a]\neffect = 'KEYED'\nwindow_s = 9", "key_argument or key_header"),
        ("[tools.a]\neffect = 'KEYED'\nkey_argument = 'k'", "positive window"),
        ("[tools.a]\ntime_limit_s = inf", "above 0"),
        ("[tools.a]\ntime_limit_s = 1e300", "above 0"),
        ("[tools.a]\neffect = 'QUERYABLE'", "needs a probe"),
        ("[tools.a]\nprobe = ['x']", "have a probe"),
        ("[tools.a]\ntime_limit_s = 0", "above 0"),
        ("[tools.a", "Expected"),
    ],
)
def test_rules_that_make_no_sense(tmp_path: Path, text: str, why: str) -> None:
    """Refused before the server is started, and in words."""
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RulesUnreadable, match=why):
        read_rules(path)
    with pytest.raises(RulesUnreadable):
        read_rules(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("hints", "trusted"),
    [
        (None, UNSAFE),
        (Hints(), UNSAFE),
        (Hints(readOnlyHint=True), READ),
        (Hints(idempotentHint=True), IDEMPOTENT),
        (Hints(readOnlyHint=True, idempotentHint=True), READ),
    ],
)
def test_annotations_count_only_where_they_are_trusted(hints: Hints | None, trusted: object) -> None:
    """A server's hints are its own word: without trust every tool is UNSAFE; without a list too."""
    assert Rules().effect_of("a", hints) == UNSAFE
    assert Rules().trusting().effect_of("a", hints) == trusted
    assert Rules(tools={"a": Rule(effect="UNSAFE")}).trusting().effect_of("a", hints) == UNSAFE


def test_what_a_server_lists() -> None:
    """Pages add up; a new list, a change, or one that cannot be read begins anew: nothing is assumed."""

    def page(*names: str) -> msgspec.Raw:
        tools = [{"name": name, "annotations": {"readOnlyHint": True}, "inputSchema": {}} for name in names]
        return msgspec.Raw(msgspec.json.encode({"tools": tools, "nextCursor": "x"}))

    catalog = Catalog()
    catalog.listed(page("a"), is_first=True)
    catalog.listed(page("b"), is_first=False)
    assert catalog.hints("a") == catalog.hints("b") == Hints(readOnlyHint=True)
    catalog.listed(page("c"), is_first=True)
    assert catalog.hints("a") is None
    catalog.changed()
    assert catalog.hints("c") is None
    catalog.listed(page("c"), is_first=True)
    catalog.listed(msgspec.Raw(b'{"tools":[{"name":3}]}'), is_first=False)
    assert catalog.hints("c") is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem@2026.1 /srv", "server-filesystem-{/srv}"),
        ("npx @modelcontextprotocol/server-filesystem /srv", "server-filesystem-{/srv}"),
        ("npx -y @modelcontextprotocol/server-memory", "server-memory"),
        ("uvx mcp-server-git==2026.1 --repository /srv", "mcp-server-git-{--repository /srv}"),
        ("python3.12 -m mcp_server_time", "mcp_server_time"),
        ("/usr/bin/node dist/index.js", "index"),
        ("docker run -i --rm mcp/fetch", "fetch"),
        ("env ACCOUNT=prod uv run server.py --all", "server-{ACCOUNT=prod --all}"),
        ("./charge", "charge"),
        ("python", "python"),
    ],
)
def test_a_server_is_named_after_its_command(command: str, name: str) -> None:
    """Without who launches it and without a version, so that an update finds the doubts of the version before; with
    what it is given, for another folder or account is another server."""
    name, _, given = name.partition("{")
    told_apart = blake2b("\0".join(given.rstrip("}").split()).encode(), digest_size=4).hexdigest() if given else ""
    assert server_name(command.split()) == name + told_apart


def test_a_first_file_of_rules_is_suggested(tmp_path: Path) -> None:
    """It can be read as it is, and permits nothing: what the server hints stands in it as a comment."""
    command = [sys.executable, "-m", "intentlog", "mcp", "--suggest", "--", sys.executable, str(SERVER)]
    done = subprocess.run([*command, str(tmp_path / "w")], capture_output=True, text=True, check=True, timeout=30)
    (tmp_path / "rules.toml").write_text(done.stdout)
    rules = read_rules(tmp_path / "rules.toml")
    assert rules.tools.keys() >= {"act", "idem", "look"}
    assert all(rules.effect_of(name, Hints(readOnlyHint=True)) == UNSAFE for name in rules.tools)
    assert '# effect = "READ"' in done.stdout
    assert not (tmp_path / "w").read_text()


def test_a_server_that_lists_nothing() -> None:
    """An error in words, and nothing is printed that could be taken for rules."""
    command = [sys.executable, "-m", "intentlog", "mcp", "--suggest", "--", "sh", "-c", "read asked"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ended before it answered" in done.stderr
