"""The codec seam: a user's own code seals what a log stores of arguments, values and events, for encryption.

A sealed payload begins with a zero byte, which no JSON does, so that a log read without its codec shows that something
is there, and which records are not sealed. Names, steps and the texts of errors are parts of records, not payloads:
they stay readable.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from intentlog.core import codec
from intentlog.core.codec import NotRecordable, StaysSealed
from intentlog.errors import ToolMisdefined

SEALED = b"\0"
DIGEST_KEY_MAX = 64  # bytes: what BLAKE2b takes


class Codec(Protocol):
    """Seals payloads for one log. Called from any thread, outside every transaction, before a record is appended.

    What `seal` raises for arguments refuses the call before anything is written; for a value, the effect is recorded as
    done without one. What `open` raises means that the payload cannot be read here.

    Attributes:
        digest_key: up to 64 secret bytes for the digest of arguments, which stands beside them and would otherwise let
            short ones be guessed; it stays the same for the log's whole life. Empty: the digest is not keyed.
    """

    @property
    def digest_key(self) -> bytes:
        """See above."""
        ...

    def seal(self, payload: bytes, branch: str) -> bytes:
        """The payload as it shall be stored. `branch` says whose it is, for a key of its own."""
        ...

    def open(self, sealed: bytes, branch: str) -> bytes:
        """What `seal` was given."""
        ...


def check_codec(codec: object) -> None:
    """Refuse what cannot be a codec, before a log is opened with it.

    Raises:
        ToolMisdefined: it has no `seal` or `open`, or its digest key is no bytes, or longer than 64.
    """
    key: object = getattr(codec, "digest_key", None)
    if not (callable(getattr(codec, "seal", None)) and callable(getattr(codec, "open", None))):
        raise ToolMisdefined(f"{codec!r} is no codec: it needs seal(payload, branch) and open(sealed, branch)")
    if not isinstance(key, bytes) or len(key) > DIGEST_KEY_MAX:
        raise ToolMisdefined(f"a codec needs a digest_key of at most {DIGEST_KEY_MAX} bytes; b'' for none")


class Payloads(Struct, frozen=True):
    """Writes and reads the payloads of one branch. Safe from any thread.

    Attributes:
        codec: the user's, or None.
        branch: whose payloads.
        bytes_max: the largest encoding of a value, in bytes, before it is sealed.
    """

    codec: Codec | None
    branch: str
    bytes_max: int

    def sealed(self, payload: bytes) -> bytes:
        """A payload as it is stored.

        Raises:
            NotRecordable: the user's codec failed.
        """
        if self.codec is None:
            return payload
        try:
            return SEALED + self.codec.seal(payload, self.branch)
        except Exception as error:
            raise NotRecordable(f"the log's codec failed: {type(error).__name__}: {error}") from error

    def opened(self, stored: bytes) -> bytes:
        """A payload as it was before it was sealed.

        Raises:
            StaysSealed: it is sealed, and cannot be opened here.
        """
        if not stored.startswith(SEALED):
            return stored
        if self.codec is None:
            raise StaysSealed("it is sealed, and the log was opened without its codec")
        try:
            return bytes(self.codec.open(stored[len(SEALED) :], self.branch))
        except Exception as error:
            msg = f"the log's codec cannot open it: {type(error).__name__}: {error}"
            raise StaysSealed(msg) from error

    def value(self, value: object, unwritten: frozenset[str] = frozenset()) -> bytes:
        """A value as it is stored.

        Args:
            value: the value.
            unwritten: texts that are never written anywhere, not even as part of a value.

        Raises:
            NotRecordable: it cannot be written down, or the user's codec failed.
        """
        try:
            encoded = codec.encode_value(value, self.bytes_max)
            if any(text.encode("utf-8", "replace") in encoded for text in unwritten):
                raise NotRecordable("it holds a Secret argument, which is never written")
            return self.sealed(encoded)
        except SystemExit as error:  # of the user's codec or model: what was returned is done all the same
            raise NotRecordable(f"SystemExit: {error}") from error

    def decoded(self, stored: bytes, of_type: object) -> object:
        """A stored value, as the annotated type.

        Raises:
            ValueError: it cannot be opened, or does not fit the type.
        """
        return codec.decode_value(self.opened(stored), of_type)

    def digest(self, arguments: bytes) -> str:
        """The digest of encoded arguments, keyed if the codec has a key.

        Raises:
            NotRecordable: the user's codec has no such key now.
        """
        try:
            return codec.arguments_digest(arguments, self.codec.digest_key if self.codec else b"")
        except Exception as error:
            raise NotRecordable(f"the log's codec has no digest key: {type(error).__name__}: {error}") from error
