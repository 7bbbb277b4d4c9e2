"""One statement that asks or writes what several do, which differ in their values only."""

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
"""The types by which statements are asked together, by the numbers that PostgreSQL has for them."""


@cache
def together(statement: Statement, types: tuple[int, ...]) -> Statement | None:
    """Return the statement that takes an array for each parameter of a look, whose types are given.

    Each row ends with the place, from 1 on, of the values that it was found with; rows of one place stand in
    the order that the look gives them. None where there are no parameters, or some of another type.
    """
    if not types or not _TYPES.keys() >= set(types):
        return None
    # OFFSET 0 keeps the look apart, which is then planned as the statement of one is.
    looked = f"SELECT * FROM ({_from_given(statement, types)}) AS one OFFSET 0"  # noqa: S608 - our own texts
    text = f"SELECT found.*, given.place FROM {_given(types)} CROSS JOIN LATERAL ({looked}) AS found"  # noqa: S608
    return replace(statement, name=f"{statement.name}+", text=text)


@cache
def written_together(statement: Statement, types: tuple[int, ...]) -> Statement | None:
    """Return the statement that takes an array for each parameter of a write of one row; None as `together`.

    No two may write the same row, unless the statement adds them up: of an UPDATE one would be left out.
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
    """Return the type in an array; one of arrays would need them all of one length, and is one of texts."""
    return "text" if _TYPES[number].endswith("[]") else _TYPES[number]


def _from_given(statement: Statement, types: tuple[int, ...]) -> str:
    """Return the text with what is given in the place of its parameters."""
    return _PLACE.sub(lambda match: _use(int(match[1]), _TYPES[types[int(match[1]) - 1]]), statement.text)


def _use(place: int, kind: str) -> str:
    return f"CAST(given.p{place} AS {kind})" if kind.endswith("[]") else f"given.p{place}"
