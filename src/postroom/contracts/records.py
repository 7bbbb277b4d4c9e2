"""Immutable records, which are fast to create, because each run creates dozens of them.

Frequently created records are subclasses of `Record`, whose fields are set and copied in C; the others are
frozen dataclasses with slots.
"""

import dataclasses
from typing import Any, TypeVar

import msgspec
from msgspec import Meta as Meta
from msgspec import field as field

R = TypeVar("R")


class Record(msgspec.Struct, frozen=True):
    """The base class of frequently created records.

    A subclass must repeat `frozen=True, kw_only=True`.
    """


def replace(record: R, **changes: Any) -> R:
    """Return a copy of a record with some changed fields.

    The copy is validated.

    Raises:
        TypeError: The record has no such field.
    """
    if isinstance(record, Record):
        return msgspec.structs.replace(record, **changes)
    copied: R = dataclasses.replace(record, **changes)  # type: ignore[type-var]
    return copied


def as_plain(record: Any) -> Any:
    """Return a record as JSON-compatible data."""
    return msgspec.to_builtins(record)


def from_plain(told: Any, kind: type[R]) -> R:
    """Create a record from JSON-compatible data.

    Raises:
        ValueError: The data is not a valid record of that kind.
    """
    return msgspec.convert(told, kind)
