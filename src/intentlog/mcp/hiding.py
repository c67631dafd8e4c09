"""What the rules redact of a call's arguments, and the server may say again: it is not written from there either."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from intentlog.log.binding import KNOWN_AGAIN_MIN
from intentlog.log.secrecy import MASK, mask, texts_of


class Hidden(Struct, frozen=True):
    """Texts that are never written, long enough to be known again.

    Attributes:
        texts: in every form in which they could stand in another text.
    """

    texts: frozenset[str] = frozenset()

    def masked(self, text: str) -> str:
        """The text without them."""
        return mask(text, self.texts) if self.texts else text

    def masked_in(self, value: Any) -> Any:
        """The value, whatever in it holds one of them masked: a number as a whole."""
        match value:
            case dict():
                return {self.masked(name): self.masked_in(part) for name, part in cast("dict[str, Any]", value).items()}
            case list():
                return [self.masked_in(part) for part in cast("list[object]", value)]
            case str():
                return self.masked(value)
            case _:
                return MASK if self.is_in(value) else value

    def is_in(self, value: object) -> bool:
        """Whether a value holds one of them."""
        if not self.texts:
            return False
        encoded = msgspec.json.encode(value)
        return any(text.encode("utf-8", "replace") in encoded for text in self.texts)


def hidden_in(values: object) -> Hidden:
    """Those of these values."""
    return Hidden(frozenset(text for text in texts_of(values) if len(text) >= KNOWN_AGAIN_MIN))
