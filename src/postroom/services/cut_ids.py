"""Resolves ids that people type, in full or as a unique beginning."""

from collections.abc import Iterable
from typing import Final

from postroom.contracts.errors import InvalidArgument

_SHOWN: Final = 5


def whole_id(given: str, ids: Iterable[str], *, what: str, remedy: str) -> str | None:
    """Return the id that equals a text, or the only id that starts with the text, or None.

    Raises:
        InvalidArgument: Several ids begin with this text; `what` names them, and `remedy` says where they are
            listed.
    """
    fields = {value for value in ids if given and value.startswith(given)}
    if given in fields:
        return given
    if len(fields) > 1:
        raise InvalidArgument(
            f"several {what} have ids that begin with {given!r}: {', '.join(sorted(fields)[:_SHOWN])}",
            value=given,
            remedy=f"use more characters of the id: {remedy}",
        )
    return next(iter(fields), None)
