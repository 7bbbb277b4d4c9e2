"""Values to and from PostgreSQL, as text in the formats of its types."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from postroom.contracts.errors import InvalidRecord

Bound = Sequence[bytes | None]
"""Encoded values of a statement, in order."""
_INTEGERS = (20, 21, 23, 26)
_FLOATS = (700, 701)


def encoded(value: object) -> bytes | None:
    """Return a value as PostgreSQL reads it; a list as an array.

    Raises:
        InvalidRecord: The text cannot be stored.
    """
    if value is None:
        return None
    if type(value) is int:
        return b"%d" % value
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidRecord("PostgreSQL cannot store a value: a text contains a zero byte")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(
                "PostgreSQL cannot store a value: a text contains half of a character"
            ) from error
    if isinstance(value, int):  # truth values too, as 0 and 1
        return b"%d" % value
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, Iterable):
        return b"{%s}" % b",".join([_element(one) for one in value])
    raise TypeError(f"a database cannot store a {type(value).__name__}")


def decoder(oid: int) -> Callable[[bytes], Any]:
    """Return the function that reads the text of a type."""
    return _DECODERS.get(oid, bytes.decode)


def array(several: Iterable[bytes | None]) -> bytes:
    """Return an array of encoded values."""
    return b"{%s}" % b",".join([b"NULL" if one is None else _quoted(one) for one in several])


def _element(value: object) -> bytes:
    text = encoded(value)
    if text is None:
        return b"NULL"
    return _quoted(text) if isinstance(value, str) else text


def _quoted(text: bytes) -> bytes:
    return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _number(text: bytes) -> int | float:
    """Read a numeric, the type of sums and averages of integers."""
    return float(text) if b"." in text or b"N" in text else int(text)


def _truth(text: bytes) -> int:
    return int(text == b"t")


def _bytes(text: bytes) -> bytes:
    return bytes.fromhex(text[2:].decode())


_DECODERS: Final[dict[int, Callable[[bytes], Any]]] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(_FLOATS, float),
    16: _truth,
    17: _bytes,
    1700: _number,
}
