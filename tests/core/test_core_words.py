"""`core.words`: a word is its text, in a table as in the log."""

from __future__ import annotations

from intentlog.core.words import Word


class Colour(Word):
    RED = "R"


def test_a_word_is_found_by_its_text_and_by_itself() -> None:
    """Equal things have equal hashes: a word that was read back as plain text finds its cell."""
    assert {Colour.RED: 1}["R"] == {"R": 1}[Colour.RED] == 1
    assert hash(Colour.RED) == hash("R")
