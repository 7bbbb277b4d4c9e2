"""The statements of one open transaction over a connection to SQLite."""

import sqlite3
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from typing_extensions import override

from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Values
from postroom.stores.statements import Statement, statements

_NONE: Final[Values] = {}


class SqliteTransaction(SqlTransaction):
    """Runs named statements over one connection. It neither begins nor ends the transaction."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.known = {}
        self.spent = {}
        self.instant = None
        self._execute = connection.execute
        self._execute_many = connection.executemany
        self._statements = statements("sqlite")

    @override
    def one(self, statement: str, values: Values = _NONE) -> Row | None:
        row: Row | None = self._run(statement, values).fetchone()
        return row

    @override
    def all(self, statement: str, values: Values = _NONE) -> list[Row]:
        return self._run(statement, values).fetchall()

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        found = list[list[Row]]()
        for statement, values in looks:
            found.append(self._run(statement, values).fetchall())
        return found

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        self._run(statement, values)

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        self.known.clear()
        found = self._statements[statement]
        self._execute_many(found.text, [_bound(found, values) for values in rows] if found.lists else rows)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        return self._run(statement, values).rowcount

    def _run(self, statement: str, values: Values) -> sqlite3.Cursor:
        found = self._statements[statement]
        if self.known and not found.text.startswith("SELECT"):
            self.known.clear()
        if not found.lists:
            return self._execute(found.text, values)
        bound = dict(values)
        for name in found.lists:
            entries = values[name]
            if entries is None or len(entries) != 1:
                return self._execute(found.text, _bound(found, values))
            [bound[name]] = entries
        return self._execute(found.text_of_one, bound)

    @override
    def lock(self, *names: str) -> None:
        """Do nothing: only one thread writes."""

    @override
    def wait_for_locks(self) -> None:
        """Do nothing: there are no locks."""


def _bound(statement: Statement, values: Values) -> Values:
    """Return the values for SQLite: a list as a JSON array."""
    bound = dict[str, Any](values)
    for name in statement.lists:
        if bound[name] is not None:
            bound[name] = f"[{','.join(map(_json, bound[name]))}]"
    return bound


def _json(one: int | str) -> str:
    """Return an entry of a JSON array; `json.dumps` would make an encoder for each call, which costs more."""
    return encode_basestring_ascii(one) if isinstance(one, str) else str(int(one))
