"""Checks of runner fields, with the same refusals for every kind.

A refusal names the field and the remedy. It never contains a value that may be secret.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.messages import Json

MAX_RUNS_AT_ONCE: Final = 64
DEFAULT_TIMEOUT = timedelta(minutes=30)
LONGEST_TIMEOUT = timedelta(days=7)
KIND: Final = "kind"

T = TypeVar("T", bound=StrEnum)


class RunnerKind(StrEnum):
    """The kind of a runner: a program per run, a program with a protocol, a model loop, another server."""

    COMMAND = "command"
    ACP = "acp"
    MODEL = "model"
    HTTP = "http"


def refused(name: str, value: object, what: str, remedy: str | None = None) -> InvalidRunner:
    """Return the refusal of a field."""
    return InvalidRunner(f"the runner's {name} is invalid: {what}", value=value, remedy=remedy)


def told_fields(
    plain: Mapping[str, Json], kind: type[Any], *, times: Collection[str] = (), needed: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of a runner from plain data, with durations converted.

    `needed` maps the required fields to their descriptions.

    Raises:
        InvalidRunner: A field is unknown or missing, or a duration is invalid.
    """
    if not isinstance(plain, Mapping):
        raise refused("runner", type(plain).__name__, "a runner must be a table of fields")
    known = {one.name for one in fields(kind)} | {KIND}
    if unknown := sorted(str(name) for name in plain if name not in known):
        raise refused(unknown[0], unknown, "unknown field", f"fields: {', '.join(sorted(known))}")
    for name, called in needed.items():
        if name not in plain:
            raise refused(name, None, f"{called} is missing")
    given: dict[str, Any] = dict(plain)
    for name in times:
        if given.get(name) is not None:
            given[name] = duration(given[name], name)
    return given


def one_of(kind: type[T], value: object, name: str) -> T:
    """Return the member of an enumeration."""
    known = {one.value: one for one in kind}
    if not isinstance(value, str) or value not in known:
        raise refused(name, value, f"{value!r} is unknown", f"use one of: {', '.join(known)}")
    return known[value]


def words(value: object, name: str) -> tuple[str, ...]:
    """Return a list of texts that can be arguments of a program."""
    if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
        raise refused(name, value, "this must be a list of texts")
    if not all(can_be_given(one) for one in value):
        raise refused(
            name, value, "a text contains a zero byte or half a character, which no program accepts"
        )
    return tuple(value)


def can_be_given(text: str) -> bool:
    """Return whether a text can be an argument of a program."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def refuse_variable(name: object, of: str) -> None:
    """Refuse an invalid name of an environment variable."""
    if not isinstance(name, str) or not name or "=" in name or not can_be_given(name):
        raise refused(
            of, name if isinstance(name, str) else None, "this is not a valid name of an environment variable"
        )


def refuse_time(length: object, name: str) -> None:
    """Refuse an invalid time limit of a run."""
    if not isinstance(length, timedelta) or not timedelta(0) < length <= LONGEST_TIMEOUT:
        raise refused(name, length, "the time must be above 0 and at most 7 days")


def refuse_number(value: object, name: str, *, most: int) -> None:
    """Refuse a value that is not an integer from 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise refused(name, value, f"this must be an integer from 1 to {most}")


def refuse_switch(value: object, name: str) -> None:
    """Refuse a value that is neither true nor false."""
    if not isinstance(value, bool):
        raise refused(name, value, "this must be true or false")


def duration(value: object, name: str) -> timedelta:
    """Return a number of seconds as a duration."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(name, value, "this must be a number of seconds")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise refused(name, value, "this must be a number of seconds") from None
