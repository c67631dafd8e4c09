"""What is searched: which actors, which class, how death is known, how far the clock goes.

A search proves nothing about a situation that it never met: each scope names those that it has to have met.
"""

from __future__ import annotations

from typing import NamedTuple

from model.programs import Program, Setting, owner, person, recovery
from model.steps import Scope
from model.world import GRACE

from intentlog.core.effects import EffectKind

LOCK, LEASE = True, False
ANY_END = ("time-out", "not sent", "rejected", "suspended")

# Situations, by the names that `promises` gives them.
ZOMBIE = "Dispatched refused: FENCED"
ZOMBIE_PENDING = "Pending refused: FENCED"
ZOMBIE_OUTCOME = "a fenced owner's outcome is taken"
ZOMBIE_CALL = "a fenced owner calls within its grace"
LATE_OUTCOME = "a late outcome after its dispatch was settled"
TOO_LATE = "a call came too late and was not made"
RETRIED = "called after an earlier attempt was never sent"
CALLED_AGAIN = "called after NOT_APPLIED"
BESIDE = "called beside a doubt"
REPLAYED = "told: replayed"
DOUBT = "told: InDoubt"
BUSY = "told: BranchBusy"
COMPLETED = "closed: COMPLETED"
INDETERMINATE = "closed: INDETERMINATE"
UNTRUSTED = "a probe is not trusted yet"
BY_PROBE_LANDED = "settled: APPLIED by intentlog:probe"
BY_PROBE_NOT_LANDED = "settled: NOT_APPLIED by intentlog:probe"
BY_ANN_LANDED = "settled: APPLIED by ann"
BY_ANN_NOT_LANDED = "settled: NOT_APPLIED by ann"
SUPERSEDED = "settled: SUPERSEDED by intentlog:owner"
KEY_KNOWN = "the receiver knew the key"
KEY_FORGOTTEN = "the key may be forgotten"
CONTRADICTION = "contradiction"


class Case(NamedTuple):
    """A scope, and the situations that it must have met."""

    scope: Scope
    meets: tuple[str, ...]


def scope(
    cast: str,
    kind: EffectKind,
    certain: bool,
    horizon: int,
    *,
    probe: bool = False,
    retries: int = 0,
    grace: int = GRACE,
    tries: int = 1,
    closes: bool = False,
    patient: bool = True,
    minds_seq: bool = True,
    mortal: str = "A",
    endings: tuple[str, ...] = ("time-out",),
    mute: bool = False,
    prompt: bool = False,
) -> Scope:
    """A scope. `cast` has a letter for each actor: A, B, C owners, r recovery, p and q persons."""
    setting = Setting(kind, probe, certain, retries, grace)
    programs: dict[str, Program] = {}
    for letter in cast:
        if letter in "ABC":
            programs[letter] = owner(letter, setting, tries=1 if letter == "A" else tries, closes=closes)
        elif letter == "r":
            programs["recover"] = recovery(setting)
        else:
            programs["ann" if letter == "p" else "bob"] = person(patient=patient, minds_seq=minds_seq)
    mode = "lock" if certain else "lease"
    name = f"{kind}{'+probe' if probe else ''}-{mode}-{cast}-{horizon}"
    return Scope(name, setting, programs, horizon, tuple(mortal), endings, mute, prompt)


_, _IDEMPOTENT, _KEYED, _QUERYABLE, _UNSAFE = tuple(EffectKind)

# In each run of the suite. KEYED ones are `prompt`: see test_model.test_a_key_is_not_sent_after_it_was_forgotten.
SMALL = (
    Case(scope("AB", _UNSAFE, LOCK, 2), (RETRIED, TOO_LATE, REPLAYED, DOUBT, BUSY)),
    Case(
        scope("AB", _UNSAFE, LOCK, 0, tries=2, closes=True, endings=ANY_END),
        ("told: Rejected", "told: Suspended", "told: NotSent", COMPLETED, INDETERMINATE),
    ),
    Case(
        scope("AB", _UNSAFE, LEASE, 2),
        (ZOMBIE, ZOMBIE_PENDING, ZOMBIE_OUTCOME, ZOMBIE_CALL, "told: Fenced", RETRIED, TOO_LATE, REPLAYED, DOUBT),
    ),
    Case(
        scope("ABp", _UNSAFE, LOCK, 3),
        (BY_ANN_LANDED, BY_ANN_NOT_LANDED, CALLED_AGAIN, "told: StaleDecision", "told: NotInDoubt"),
    ),
    Case(scope("Ap", _UNSAFE, LEASE, 4), (BY_ANN_LANDED, BY_ANN_NOT_LANDED, LATE_OUTCOME, ZOMBIE_OUTCOME)),
    Case(
        scope("AB", _QUERYABLE, LOCK, 3, probe=True),
        (UNTRUSTED, BY_PROBE_LANDED, BY_PROBE_NOT_LANDED, CALLED_AGAIN, "classified: MAY_HAVE_BEEN_SENT, PROBE"),
    ),
    Case(
        scope("AB", _QUERYABLE, LEASE, 3, probe=True),
        (ZOMBIE, ZOMBIE_OUTCOME, ZOMBIE_CALL, UNTRUSTED, BY_PROBE_NOT_LANDED, LATE_OUTCOME),
    ),
    Case(
        scope("Ar", _QUERYABLE, LOCK, 3, probe=True, mute=True),
        ("probe: UNKNOWN", BY_PROBE_LANDED, BY_PROBE_NOT_LANDED),
    ),
    Case(scope("AB", _KEYED, LOCK, 3, prompt=True), (BESIDE, KEY_KNOWN, SUPERSEDED, KEY_FORGOTTEN)),
    Case(scope("AB", _KEYED, LEASE, 1, prompt=True), (BESIDE, KEY_KNOWN, ZOMBIE, LATE_OUTCOME)),
    Case(scope("AB", _KEYED, LOCK, 3, probe=True, prompt=True), (BESIDE, KEY_KNOWN, KEY_FORGOTTEN, UNTRUSTED)),
    Case(scope("AB", _IDEMPOTENT, LOCK, 0, retries=1), (BESIDE, SUPERSEDED, "classified: MAY_HAVE_BEEN_SENT, RECALL")),
)

# Beside the small ones where INTENTLOG_MODEL=large (`make model`).
LARGE = (
    Case(scope("ABC", _UNSAFE, LOCK, 2, mortal="AB"), (RETRIED, TOO_LATE, REPLAYED, BUSY)),
    Case(
        scope("ABC", _UNSAFE, LOCK, 0, tries=2, closes=True, mortal="AB", endings=ANY_END),
        ("told: Rejected", "told: Suspended", "told: NotSent", COMPLETED, INDETERMINATE, RETRIED),
    ),
    Case(
        scope("ABp", _UNSAFE, LEASE, 4),
        (ZOMBIE, ZOMBIE_OUTCOME, BY_ANN_LANDED, BY_ANN_NOT_LANDED, CALLED_AGAIN, LATE_OUTCOME, "told: StaleDecision"),
    ),
    Case(scope("ABr", _UNSAFE, LEASE, 2), (ZOMBIE, "AttemptFenced refused: FENCED", RETRIED)),
    Case(scope("Apq", _UNSAFE, LOCK, 4), (BY_ANN_LANDED, BY_ANN_NOT_LANDED, "told: StaleDecision")),
    Case(scope("ABr", _QUERYABLE, LOCK, 2, probe=True), (UNTRUSTED, BY_PROBE_LANDED, BY_PROBE_NOT_LANDED)),
    Case(
        scope("AB", _QUERYABLE, LEASE, 4, probe=True, mute=True),
        (ZOMBIE, ZOMBIE_OUTCOME, UNTRUSTED, BY_PROBE_NOT_LANDED, CALLED_AGAIN, LATE_OUTCOME, "probe: UNKNOWN"),
    ),
    Case(scope("AB", _QUERYABLE, LOCK, 4, probe=True), (UNTRUSTED, BY_PROBE_LANDED, BY_PROBE_NOT_LANDED, CALLED_AGAIN)),
    Case(scope("Ar", _QUERYABLE, LEASE, 4, probe=True), (BY_PROBE_LANDED, BY_PROBE_NOT_LANDED, ZOMBIE_OUTCOME)),
    Case(
        scope("AB", _KEYED, LOCK, 4, prompt=True, tries=2, endings=("time-out", "not sent")),
        (BESIDE, KEY_KNOWN, KEY_FORGOTTEN, SUPERSEDED, "told: NotSent"),
    ),
    Case(scope("AB", _KEYED, LEASE, 3, prompt=True), (BESIDE, KEY_KNOWN, KEY_FORGOTTEN, ZOMBIE, LATE_OUTCOME)),
    Case(scope("AB", _KEYED, LOCK, 4, probe=True, prompt=True), (BESIDE, KEY_KNOWN, KEY_FORGOTTEN, UNTRUSTED)),
    Case(scope("AB", _KEYED, LEASE, 4, probe=True, prompt=True), (BESIDE, KEY_KNOWN, UNTRUSTED, ZOMBIE, LATE_OUTCOME)),
    Case(scope("AB", _IDEMPOTENT, LEASE, 2), (BESIDE, SUPERSEDED, ZOMBIE, LATE_OUTCOME)),
)
