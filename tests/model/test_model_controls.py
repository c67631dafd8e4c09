"""The controls: take one thing away from the protocol, and the search must find what it was there for.

A search that finds nothing here would prove nothing elsewhere. Each prints its shortest counter-example.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from model import controls
from model.scopes import LEASE, LOCK, scope
from model.search import Search
from model.steps import Scope

from intentlog.core.effects import EffectKind

UNSAFE_LOCK = scope("AB", EffectKind.UNSAFE, LOCK, 2)
UNSAFE_LEASE = scope("AB", EffectKind.UNSAFE, LEASE, 2)
KEYED_AGAIN = scope("AB", EffectKind.KEYED, LOCK, 4, tries=2, prompt=True, endings=("not sent",))
PROBE_LEASE = scope("Ar", EffectKind.QUERYABLE, LEASE, 3, probe=True)
PERSON_LEASE = scope("Ap", EffectKind.UNSAFE, LEASE, 4)


@pytest.mark.parametrize(
    ("control", "searched", "watched", "broken"),
    [
        pytest.param(controls.two_records_only, UNSAFE_LOCK, "I1", "I1: the call", id="two-records-I1"),
        pytest.param(
            controls.two_records_only, UNSAFE_LOCK, "truth", "NEVER_SENT, and it landed", id="two-records-truth"
        ),
        pytest.param(controls.two_records_only, UNSAFE_LOCK, "witness", "happened 2 times", id="two-records-witness"),
        pytest.param(controls.no_fence, UNSAFE_LEASE, "I2: a call", "recorded as never sent", id="no-fence-I2"),
        pytest.param(
            controls.doubt_of_the_newest_attempt,
            KEYED_AGAIN,
            "truth",
            "told NotSent, effect ran: no",
            id="newest-doubt-truth",
        ),
        pytest.param(
            controls.doubt_of_the_newest_attempt, KEYED_AGAIN, "witness", "happened 2 times", id="newest-doubt-witness"
        ),
        pytest.param(controls.no_grace, PROBE_LEASE, "truth", "NEVER_SENT, and it landed", id="no-grace-probe"),
        pytest.param(controls.no_grace, PERSON_LEASE, "truth", "NEVER_SENT, and it landed", id="no-grace-person"),
    ],
)
def test_what_is_taken_away_is_missed(
    monkeypatch: pytest.MonkeyPatch,
    control: Callable[[pytest.MonkeyPatch], None],
    searched: Scope,
    watched: str,
    broken: str,
) -> None:
    """I1, I2, doubt over all attempts, the grace before a call: without it, a counter-example, and of its own kind."""
    control(monkeypatch)
    found = Search(searched, watched=(watched,)).run()
    print(found.story())
    assert found.broken.startswith(watched)
    assert broken in found.broken


@pytest.mark.parametrize(
    "searched",
    [pytest.param(s, id=s.name) for s in (UNSAFE_LOCK, UNSAFE_LEASE, PERSON_LEASE)],
)
def test_with_nothing_taken_away_nothing_is_found(searched: Scope) -> None:
    """The same scopes hold as they are; the others are among `scopes.SMALL` and `scopes.LARGE`."""
    assert not Search(searched).run().broken
