"""Immutable records, of which each run makes dozens.

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

    A subclass repeats `frozen=True, kw_only=True`; its `__post_init__` refuses invalid values.
    """


def replace(record: R, **changes: Any) -> R:
    """Return the record with changed fields, after its checks.

    A copy of a run takes 1 µs as a `Record`, 17 µs as a frozen dataclass.

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
    """Return the record that plain JSON data describes.

    Raises:
        ValueError: The data is not a valid record of that kind.
    """
    return msgspec.convert(told, kind)
