"""Named tokens on SQLite."""

import sqlite3
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from postroom.contracts.tokens import KeptToken
from postroom.stores.sqlite.statements import STATEMENTS as SQL

_COLUMNS = tuple(field.name for field in fields(KeptToken))


class SqliteTokenReads:
    """Look-ups over one connection."""

    _connection: sqlite3.Connection

    def token(self, token_id: str) -> KeptToken | None:
        """Return the token with this id."""
        row = self._connection.execute(SQL["token"], (token_id,)).fetchone()
        return _token(row) if row else None

    def tokens_named(self, name: str) -> list[KeptToken]:
        """Return every token that has or had this name, oldest first."""
        return [_token(row) for row in self._connection.execute(SQL["tokens_named"], (name,))]

    def tokens(self, *, limit: int, after: str = "") -> list[KeptToken]:
        """Return tokens by id, those after `after`."""
        return [_token(row) for row in self._connection.execute(SQL["tokens"], (after, limit))]


class SqliteTokenWrites(SqliteTokenReads):
    """Changes over the writer's connection."""

    def put_token(self, token: KeptToken) -> None:
        """Store a token, or replace the one with its id."""
        values = {name: getattr(token, name) for name in _COLUMNS}
        self._connection.execute(SQL["put_token"], {**values, "scopes": " ".join(sorted(token.scopes))})

    def note_token_uses(self, uses: Mapping[str, int]) -> None:
        """Note by id when tokens were last used; an earlier instant and an unknown id change nothing."""
        self._connection.executemany(SQL["note_token_use"], list(uses.items()))


def _token(row: tuple[Any, ...]) -> KeptToken:
    found = dict(zip(_COLUMNS, row, strict=True))
    return KeptToken(**{**found, "scopes": frozenset(found["scopes"].split(" "))})
