"""The base of every closed set of words."""

from __future__ import annotations

from enum import StrEnum


class Word(StrEnum):
    """A word. It is hashed as the text that it is: an enum's own hash is a call of Python code at each look-up."""

    __hash__ = str.__hash__
