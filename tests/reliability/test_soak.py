"""The soak (`make soak`) in some seconds: no effect twice, none lost, none misclassified (I1 to I5).

Workers over the payment sandbox, killed, stopped and short of room at random. The controls take a protection away from
the workers, each of which one of the three counts has to see.
"""

from __future__ import annotations

import random

import pytest
from reliability.conftest import Lab
from reliability.soak import STRIKES, Soak, main, soak

HARNESS = "soak over the payment sandbox"
TRIES = 8  # of a control: chance may spare it


def test_the_soak(lab: Lab, long: bool) -> None:
    """Log and sandbox agree after each round, and when everything is decided and run to its end."""
    seed = random.SystemRandom().randrange(1, 1_000_000)
    run = soak(40 if long else 2, seed)
    print(run)
    lab.seen(run.kills, run.problems(), repeat=f"make soak SEED={seed}")


@pytest.mark.parametrize(("control", "seen_by"), [("unwritten", "lost"), ("repeatable", "duplicates")])
def test_control_of_the_soak(lab: Lab, control: str, seen_by: str) -> None:
    """Outcomes acknowledged unwritten; what may not be repeated is called again."""
    caught: list[str] = []
    kills = 0
    for _ in range(TRIES):
        run: Soak = soak(0, random.SystemRandom().randrange(1, 1_000_000), control)
        kills += run.kills
        caught = getattr(run, seen_by)
        if caught:
            break
    lab.control(control, kills, len(caught))


def test_control_two_records(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Dispatched records the command ends with 1, and prints the seed and the command that repeats it."""
    caught = main(["--minutes", "0", "--seed", "7", "--control", "two-records"])
    lab.control("two records", STRIKES, caught)
    printed = capsys.readouterr().out
    assert "repeat: make soak SEED=7 MINUTES=0 CONTROL=two-records" in printed
    assert "misclassified" in printed.splitlines()[-2]
