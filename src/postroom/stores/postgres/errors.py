"""Converts errors of PostgreSQL to errors of postroom, by a table with SQLSTATE codes."""

import re
from dataclasses import dataclass
from datetime import timedelta
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
    WrongStore,
)

HELD_UP: Final = {"held_up": True}
"""The details of a failure that only concerns certain rows while the server works."""

_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03")
_CONTENDED = ("40001", "40P01")
_HELD_UP = "55P03"
_NO_RIGHT = "42501"
_MISTAKEN = ("28", "3D000")
_UNFIT = ("22",)
_KINDS: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (("53100",), StoreFull, "the disk is full"),
    (("25006",), StoreReadOnly, "the database is not writable"),
    (("XX001", "XX002"), StoreCorrupt, "the database is damaged"),
    (("42P01", "3F000"), WrongStore, "a table of the schema is missing"),
    (("53", "57014"), StoreUnavailable, "PostgreSQL did not answer"),
)
BACKUP_OF_POSTGRES: Final = "ask the administrator of the PostgreSQL server to restore a backup"
_REMEDIES: Final = {
    StoreFull: "free space on the disk of the PostgreSQL server, and try again",
    StoreReadOnly: "connect to the writable server; this server is a standby or read-only",
    StoreCorrupt: BACKUP_OF_POSTGRES,
    WrongStore: (
        "stop the server and restore a backup of the database or schema with pg_restore; if the "
        "schema exists, restore the access of the user in database_url"
    ),
    StoreUnavailable: "check that the PostgreSQL server runs and is reachable",
}
_MORE_CONNECTIONS: Final = (
    "raise the server's max_connections, the user's or database's CONNECTION LIMIT, or a pooler's "
    "max_client_conn; or end other sessions"
)
_NO_DATABASE: Final = re.compile('database ".+" does not exist')
_CORRECT: Final = "correct database_url: postgresql://user:password@host:port/database"
_REFUSED_AT_LOGIN: Final = (
    (
        'database "(.+)" does not exist',
        "create it with `createdb \\1`, or use another database in database_url",
    ),
    ('role "(.+)" does not exist', "create it with `createuser \\1`, or use another user in database_url"),
    ("authentication failed|no password supplied", "correct the user and the password in database_url"),
    (
        "no pg_hba.conf entry|is not permitted to log in",
        "ask the server's administrator to allow this user to connect",
    ),
    ("does not support SSL", "enable SSL on the server, or write sslmode=disable in database_url"),
    (
        "unsupported startup parameter",
        "with a pooler, remove `options` from database_url and PGOPTIONS, and set timeouts with ALTER ROLE "
        "... SET",
    ),
    ("^invalid |does not exist", _CORRECT),
)
"""The texts with which libpq reports wrong connection settings, and the remedies."""
_NO_POSTGRES: Final = re.compile(
    'at "(.+?)".*, port (\\d+) failed: (received invalid response|expected authentication request)'
)
_TOO_MANY: Final = re.compile(
    "too many (clients|connections)|connection slots are reserved|no more connections allowed"
)
_POOLERS_PATIENCE: Final = "query_wait_timeout"
"""The setting that PgBouncer names when it closes a connection that has waited too long."""
_NO_USE: Final = "no schema has been selected"
"""The beginning of the error for an existing schema that the user may not use."""
_PERMISSION: Final = re.compile("permission denied for (database|schema) (.+)")
_OF_A_TABLE: Final = re.compile("permission denied for (table|sequence) ")
_RIGHTS: Final = {"database": "CREATE", "schema": "USAGE, CREATE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error that the database server returned."""

    state: str
    """The five-character SQLSTATE code."""
    text: str
    """The text of the error without its details, because details contain whole rows."""
    rule: str = ""
    """The constraint of the schema that was violated, if any."""
    schema: str = ""
    user: str = ""
    """The schema and the user of the statement, quoted as SQL identifiers."""


class ConnectionLost(Exception):
    """The connection broke, or the server did not respond for too long."""


class Silent(ConnectionLost):
    """The server did not respond for too long."""


class Contended(Exception):
    """The server ended the transaction because of a deadlock; the transaction can be repeated."""


def error_for(refusal: Refusal) -> Exception:
    """Convert an error of the server to an error of postroom, ConnectionLost or Contended."""
    state, text = refusal.state, refusal.text
    if state.startswith(_LOST):
        return ConnectionLost(text)
    if state in _CONTENDED:
        return Contended(text)
    if state == _HELD_UP:
        return StoreUnavailable(
            f"another transaction has locked the rows for too long: {text}",
            remedy="repeat the call",
            details=HELD_UP,
        )
    if state.startswith(_UNFIT):
        return InvalidRecord(f"PostgreSQL cannot store a value: {text}")
    if state.startswith(_MISTAKEN):
        return ConfigError(f"PostgreSQL rejected the connection: {text}")
    if state == _NO_RIGHT or _NO_USE in text:
        return StoreReadOnly(f"the user has no permission: {text}", remedy=_granting(refusal))
    for states, kind, saying in _KINDS:
        if state.startswith(states):
            return kind(f"{saying}: {text}", remedy=_REMEDIES[kind])
    return StoreError(f"PostgreSQL rejected the statement: {text}", value=refusal.rule or state)


def unreachable(error: object) -> StoreUnavailable:
    """Return the error for a database server that does not respond."""
    if _POOLERS_PATIENCE in str(error):
        return sessionless(f"the pooler's {_POOLERS_PATIENCE}")
    return StoreUnavailable(
        f"PostgreSQL cannot be reached: {_first_line(error)}", remedy=_REMEDIES[StoreUnavailable]
    )


def silent(place: str, within: timedelta) -> StoreUnavailable:
    """Return the error for a program that accepts connections, but does not respond like PostgreSQL."""
    return StoreUnavailable(
        f"PostgreSQL cannot be reached: the program that listens at {place} did not answer as "
        f"PostgreSQL within {within.total_seconds():g} s",
        remedy="check that PostgreSQL listens there and is not blocked",
    )


def sessionless(within: str = "") -> StoreUnavailable:
    """Return the error for a connection that got no session in time; `within` names the timeout."""
    return StoreUnavailable(
        "PostgreSQL cannot be reached: the connection was accepted, but no session was free "
        + (f"within {within}" if within else "in time"),
        remedy=(
            "give a pooler more than eight sessions for each server (PgBouncer's default_pool_size); "
            "without a pooler, check that the PostgreSQL server is not blocked"
        ),
    )


def no_backup() -> StateError:
    """Return the error for a backup of PostgreSQL, which postroom does not support."""
    return StateError(
        "postroom cannot back up or restore PostgreSQL",
        remedy="use pg_dump and pg_restore, or the provider's backups",
    )


def login_error(text: str) -> PostroomError:
    """Return the error for a failed connection, from the text that libpq provides."""
    first = _first_line(text)
    if other := _NO_POSTGRES.search(first):
        return ConfigError(
            f"the program that listens at {other[1]}:{other[2]} is not PostgreSQL", remedy=_CORRECT
        )
    for pattern, remedy in _REFUSED_AT_LOGIN:
        if match := re.search(pattern, first):
            was_asked = first.startswith("connection to server")
            saying = "PostgreSQL rejected the connection" if was_asked else "the PostgreSQL URL is wrong"
            return ConfigError(f"{saying}: {first}", remedy=match.expand(remedy))
    if _TOO_MANY.search(first):
        return StoreUnavailable(f"PostgreSQL accepts no more connections: {first}", remedy=_MORE_CONNECTIONS)
    return unreachable(first)


def dropped(error: ConfigError) -> PostroomError:
    """Return WrongStore if `error` states that the database does not exist, or else `error` itself."""
    if not _NO_DATABASE.search(error.message):
        return error
    return WrongStore(f"the database no longer exists: {error.message}", remedy=_REMEDIES[WrongStore])


def unreadable(text: str) -> ConfigError:
    """Return the error for a malformed address, without libpq's text, which may contain a password."""
    if unknown := re.search('^invalid (?:URI query parameter: |connection option )("[^"]+")$', text.strip()):
        return ConfigError(
            f"the PostgreSQL URL has an unknown parameter {unknown[1]}",
            remedy="remove it from database_url, or correct it",
        )
    return ConfigError("the PostgreSQL URL is malformed", remedy=_CORRECT)


def grants(schema: str, user: str) -> list[str]:
    """Return the SQL statements that grant a user all rights on a schema that a server needs."""
    every = ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES", "USAGE ON ALL SEQUENCES")
    return [f"GRANT {rights} IN SCHEMA {schema} TO {user}" for rights in every]


def _granting(refusal: Refusal) -> str:
    """Return the remedy for a missing right."""
    if denied := _PERMISSION.search(refusal.text):
        what, name = denied.groups()
        rights = f"GRANT {_RIGHTS[what]} ON {what.upper()} {name}"
        return f"let an administrator run {rights} TO {refusal.user}"
    if _NO_USE in refusal.text:
        rights = f"GRANT {_RIGHTS['schema']} ON SCHEMA {refusal.schema}"
        return f"let an administrator run {rights} TO {refusal.user}"
    if _OF_A_TABLE.search(refusal.text):
        return f"ask an administrator to run {'; '.join(grants(refusal.schema, refusal.user))}"
    return "make the user in database_url the owner of the schema and its objects"


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
