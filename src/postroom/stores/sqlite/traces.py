"""Places in traces, on SQLite."""

import json
import sqlite3
from collections.abc import Sequence

from postroom.stores.sqlite.statements import STATEMENTS as SQL


class SqliteTraceReads:
    """Look-ups over one connection."""

    _connection: sqlite3.Connection

    def traces(self, names: Sequence[str]) -> dict[str, str]:
        """Return what is kept under these names; a name without any is not there."""
        return dict(self._connection.execute(SQL["traces"], (json.dumps(list(names)),)))


class SqliteTraceWrites(SqliteTraceReads):
    """Changes over the writer's connection."""

    def put_trace(self, name: str, traceparent: str) -> None:
        """Keep a place in a trace, or replace it."""
        self._connection.execute(SQL["put_trace"], (name, traceparent))
