"""Records: frozen dataclasses with slots, of which a run makes dozens."""

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

R = TypeVar("R")

_Fields = tuple[Callable[[Any], tuple[Any, ...]], dict[str, Callable[..., None]]]
_KNOWN: dict[type[Any], _Fields] = {}


def replace(record: R, **changes: Any) -> R:
    """Return the record with other values in some fields, checked anew.

    As `dataclasses.replace`, which goes through the `__init__` of a frozen class: 17 µs for a run, this 4.

    Raises:
        TypeError: the record has no such field.
    """
    kind: type[Any] = type(record)
    values_of, writers = _KNOWN.get(kind) or _known(kind)
    new: R = object.__new__(kind)
    for put, value in zip(writers.values(), values_of(record), strict=True):
        put(new, value)
    for name, value in changes.items():
        if name not in writers:
            raise TypeError(f"{kind.__name__} has no field {name!r}")
        writers[name](new, value)
    check: Callable[[R], None] | None = getattr(kind, "__post_init__", None)
    if check is not None:
        check(new)
    return new


def _known(kind: type[Any]) -> _Fields:
    """Return what reads all fields of a class, and what writes each past the guard of a frozen record."""
    names = [field.name for field in fields(kind)]
    read = attrgetter(*names)
    values_of = read if len(names) > 1 else lambda record: (read(record),)
    found = _KNOWN[kind] = values_of, {name: getattr(kind, name).__set__ for name in names}
    return found
