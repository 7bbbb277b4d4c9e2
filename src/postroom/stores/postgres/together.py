"""One statement for several equal reads or writes with different values."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from postroom.stores.postgres.values import Bound, array
from postroom.stores.statements import Statement

_PLACE: Final = re.compile(r"\$(\d+)")
_VALUES: Final = re.compile(r"VALUES \(((?:[^()]|\([^()]*\))*)\)")
_WHERE: Final = re.compile(r"\s+WHERE ")
_TYPES: Final = {20: "bigint", 25: "text", 1016: "bigint[]", 1009: "text[]"}
"""The types of parameters that can be combined, by their numbers in PostgreSQL."""


@cache
def together(statement: Statement, types: tuple[int, ...]) -> Statement | None:
    """Return the statement that takes an array for each parameter of a read, whose types are given.

    Each row ends with the place, from 1, of the values that found it; the rows of one place keep the order of
    the read. Return None without parameters, or with one of another type.
    """
    if not types or not _TYPES.keys() >= set(types):
        return None
    # OFFSET 0 keeps the query separate, so that it is planned like the original statement.
    looked = f"SELECT * FROM ({_from_given(statement, types)}) AS one OFFSET 0"  # noqa: S608 - our own texts
    text = f"SELECT found.*, given.place FROM {_given(types)} CROSS JOIN LATERAL ({looked}) AS found"  # noqa: S608
    return replace(statement, name=f"{statement.name}+", text=text)


@cache
def written_together(statement: Statement, types: tuple[int, ...]) -> Statement | None:
    """Return the statement that takes an array for each parameter of a write of one row; None as `together`.

    No two sets may write the same row, unless the statement adds them up: of two UPDATEs one would be lost.
    """
    if not types or not _TYPES.keys() >= set(types):
        return None
    given = f"FROM {_given(types)}"
    text = _from_given(statement, types)
    if text.startswith("INSERT"):
        text = _VALUES.sub(lambda match: f"SELECT {_named(match[1])} {given}", text)
    else:
        text = _WHERE.sub(f" {given} WHERE ", text)
    return replace(statement, name=f"{statement.name}+", text=text)


def _named(values: str) -> str:
    """Return values with the names that the columns of VALUES have."""
    return ", ".join(f"{value} AS column{place}" for place, value in enumerate(values.split(","), start=1))


def _given(types: tuple[int, ...]) -> str:
    places = range(1, len(types) + 1)
    arrays = ", ".join(f"${place}::{_type(types[place - 1])}[]" for place in places)
    names = ", ".join(f"p{place}" for place in places)
    return f"unnest({arrays}) WITH ORDINALITY AS given ({names}, place)"


def columns(several: Sequence[Bound]) -> list[bytes]:
    """Return an array of the values for each parameter."""
    return [array(column) for column in zip(*several, strict=True)]


def _type(number: int) -> str:
    """Return the type in an array; lists become texts, because an array of arrays needs equal lengths."""
    return "text" if _TYPES[number].endswith("[]") else _TYPES[number]


def _from_given(statement: Statement, types: tuple[int, ...]) -> str:
    """Return the text with the given columns in place of its parameters."""
    return _PLACE.sub(lambda match: _use(int(match[1]), _TYPES[types[int(match[1]) - 1]]), statement.text)


def _use(place: int, kind: str) -> str:
    return f"CAST(given.p{place} AS {kind})" if kind.endswith("[]") else f"given.p{place}"
