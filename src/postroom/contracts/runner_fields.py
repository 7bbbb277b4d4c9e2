"""How the fields of a runner are read and refused: the same words for every kind.

A refusal names the field and the remedy. It never holds what a field may keep secret.
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
    """How an agent is run: a program a run, a program that is spoken to, a model's loop, another server."""

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
    """Return the fields that plain data tell of a kind of runner, times as such.

    `needed` are those that have no default, with what each is called.

    Raises:
        InvalidRunner: a field is unknown or missing, or a time is none.
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
    """Return the word of an enumeration."""
    known = {one.value: one for one in kind}
    if not isinstance(value, str) or value not in known:
        raise refused(name, value, f"{value!r} is unknown", f"use one of: {', '.join(known)}")
    return known[value]


def words(value: object, name: str) -> tuple[str, ...]:
    """Return a list of texts, each of which a program can be given."""
    if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
        raise refused(name, value, "this must be a list of texts")
    if not all(can_be_given(one) for one in value):
        raise refused(
            name, value, "a text contains a zero byte or half a character, which no program accepts"
        )
    return tuple(value)


def can_be_given(text: str) -> bool:
    """Say whether a program can be given this text."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def refuse_variable(name: object, of: str) -> None:
    """Refuse what is no name of a variable of the environment."""
    if not isinstance(name, str) or not name or "=" in name or not can_be_given(name):
        raise refused(
            of, name if isinstance(name, str) else None, "this is not a valid name of an environment variable"
        )


def refuse_time(length: object, name: str) -> None:
    """Refuse what is no time that a run may take."""
    if not isinstance(length, timedelta) or not timedelta(0) < length <= LONGEST_TIMEOUT:
        raise refused(name, length, "the time must be above 0 and at most 7 days")


def refuse_number(value: object, name: str, *, most: int) -> None:
    """Refuse what is no whole number from 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise refused(name, value, f"this must be an integer from 1 to {most}")


def refuse_switch(value: object, name: str) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise refused(name, value, "this must be true or false")


def duration(value: object, name: str) -> timedelta:
    """Return a number of seconds as a time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(name, value, "this must be a number of seconds")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise refused(name, value, "this must be a number of seconds") from None
