"""Immutable records; each run creates dozens of them.

Frequent records are a `Record`, whose fields are set and copied in C; the others are frozen dataclasses with
slots.
"""

import dataclasses
from typing import Any, TypeVar

import msgspec
from msgspec import Meta as Meta
from msgspec import field as field

R = TypeVar("R")


class Record(msgspec.Struct, frozen=True):
    """A record.

    A subclass must repeat `frozen=True, kw_only=True`. Its `__post_init__` raises if a value is invalid.
    """


def replace(record: R, **changes: Any) -> R:
    """Return a copy of the record with some fields changed; the copy is validated.

    Copying a run takes 1 µs for a `Record`, and 17 µs for a frozen dataclass.

    Raises:
        TypeError: The record has no such field.
    """
    if isinstance(record, Record):
        return msgspec.structs.replace(record, **changes)
    copied: R = dataclasses.replace(record, **changes)  # type: ignore[type-var]
    return copied


def as_plain(record: Any) -> Any:
    """Return a record as plain JSON data."""
    return msgspec.to_builtins(record)


def from_plain(told: Any, kind: type[R]) -> R:
    """Build a record from plain JSON data.

    Raises:
        ValueError: The data is not a valid record of that kind.
    """
    return msgspec.convert(told, kind)
