"""What PostgreSQL refuses, as the errors of the house: one table from its states to our types."""

from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import (
    ConfigError,
    InvalidRecord,
    PostroomError,
    StateError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

HELD_UP: Final = {"held_up": True}
"""In the details of a failure that concerns these rows alone; the server is well."""

_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03")
_CONTENDED = ("40001", "40P01")
_HELD_UP = "55P03"
_MISTAKEN = ("28", "3D000")
_UNFIT = ("22",)
_KINDS: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (("53100",), StoreFull, "the disk is full"),
    (("25006", "42501"), StoreReadOnly, "the database cannot be written"),
    (("XX001", "XX002"), StoreCorrupt, "the database does not read back"),
    (("53", "57014"), StoreUnavailable, "PostgreSQL did not answer"),
)
_REMEDIES: Final = {
    StoreFull: "free space on the disk of the PostgreSQL server; start the server only if it does not run",
    StoreReadOnly: "connect to the server that may be written, as a user that owns the schema",
    StoreCorrupt: "have the administrator of the PostgreSQL server restore a backup",
    StoreUnavailable: "see that the PostgreSQL server runs and can be reached",
}
_REFUSED_AT_LOGIN = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "is not permitted to log in",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the server said instead of doing something."""

    state: str
    """The five characters of SQLSTATE."""
    text: str
    """Without the details, which show whole rows."""
    rule: str = ""
    """The rule of the schema that stands against it, where it is one."""


class ConnectionLost(Exception):
    """The connection broke, or the server said nothing for too long."""


class Contended(Exception):
    """Two transactions waited for each other and this one gave way; it may simply be done again."""


def error_for(refusal: Refusal) -> Exception:
    """Return the error for what the server refused: one of ours, ConnectionLost or Contended."""
    state, text = refusal.state, refusal.text
    if state.startswith(_LOST):
        return ConnectionLost(text)
    if state in _CONTENDED:
        return Contended(text)
    if state == _HELD_UP:
        return StoreUnavailable(
            f"another transaction keeps the rows for too long: {text}",
            remedy="repeat the call",
            details=HELD_UP,
        )
    if state.startswith(_UNFIT):
        return InvalidRecord(f"PostgreSQL cannot hold a value: {text}")
    if state.startswith(_MISTAKEN):
        return ConfigError(f"PostgreSQL refuses the connection: {text}")
    for states, kind, saying in _KINDS:
        if state.startswith(states):
            return kind(f"{saying}: {text}", remedy=_REMEDIES[kind])
    return StoreError(f"PostgreSQL refused: {text}", value=refusal.rule or state)


def unreachable(error: object) -> StoreUnavailable:
    """Return the error for a server that does not answer."""
    first = str(error).strip().partition("\n")[0]  # the library asks questions on the lines behind it
    return StoreUnavailable(f"PostgreSQL cannot be reached: {first}", remedy=_REMEDIES[StoreUnavailable])


def no_backup() -> StateError:
    """Return the error for whoever wants a database backed up or restored that is not ours to copy."""
    return StateError(
        "PostgreSQL is backed up and restored by its own tools",
        remedy="use pg_dump and pg_restore, or the provider's backups",
    )


def login_error(text: str) -> PostroomError:
    """Return the error for a connection that was not made: a mistake in the settings, or nobody there.

    The library tells no SQLSTATE of it, only the text, which is in English or says what it is all the same.
    """
    if any(part in text for part in _REFUSED_AT_LOGIN):
        return ConfigError(f"PostgreSQL refuses the connection: {text}")
    return unreachable(text)
