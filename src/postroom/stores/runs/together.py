"""Many steps in one transaction, as if each were alone, with few statements: most are about new threads.

look ──▶ of ids that have no rows ──▶ answered at once
     └─▶ of others ─────────────────▶ what was kept is written, then it is asked
write ─▶ of a row of its own ───────▶ kept: all rows of a statement are written together
     └─▶ others ────────────────────▶ what was kept is written, then this
"""

from collections.abc import Iterable
from typing import Final

from typing_extensions import override

from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Values

_NONE: Final[Values] = {}
_FOUND_OF_NOTHING: Final[dict[str, tuple[tuple[str, ...], tuple[Row, ...]]]] = {
    "threads.thread": (("thread_id",), ()),
    "threads.pending": (("thread_id",), ()),
    "threads.last_runs": (("thread_id",), ()),
    "threads.committed": (("thread_id",), ()),
    "threads.run": (("run_id",), ()),
    "dispatches.against": (("dispatch_id", "thread_id", "run_id"), ()),
    "dispatches.queue_of_thread": (("thread_id",), ((None, 0, 0, 0, None),)),
}
"""What a look finds when the ids that it names have no rows."""
_UNKNOWN: Final = (("",), ())
"""Of any other look: it is asked."""
_KEPT: Final = {
    "threads.put_thread": "thread_id",
    "threads.move_thread": "thread_id",
    "threads.append_message": "thread_id",
    "threads.put_run": "run_id",
    "dispatches.enqueue": "dispatch_id",
}
"""In the order in which they are written; and the id that has a row then."""


class TogetherTransaction(SqlTransaction):
    """An open transaction that knows which ids have no rows, and keeps writes until they are needed."""

    def __init__(self, sql: SqlTransaction, new: set[str]) -> None:
        """Pass statements on to `sql`; `new` are ids of threads, runs and dispatches without rows."""
        self._sql = sql
        self._new = new
        self._kept: dict[str, list[Values]] = {statement: [] for statement in _KEPT}
        self.known = {}

    @property
    @override
    def dialect(self) -> Dialect:
        return self._sql.dialect

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        found, asked, places = list[list[Row]](), list[tuple[str, Values]](), list[int]()
        for statement, values in looks:
            ids, rows = _FOUND_OF_NOTHING.get(statement, _UNKNOWN)
            for name in ids:
                if values.get(name) not in self._new:
                    places.append(len(found))
                    asked.append((statement, values))
                    break
            found.append(list(rows))
        if asked:
            self.write()
            for place, answer in zip(places, self._sql.ask(*asked), strict=True):
                found[place] = answer
        return found

    @override
    def all(self, statement: str, values: Values = _NONE) -> list[Row]:
        return self.ask((statement, values))[0]

    @override
    def one(self, statement: str, values: Values = _NONE) -> Row | None:
        self.known.clear()  # it may be a write
        self.write()
        return self._sql.one(statement, values)

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        self.known.clear()
        kept = self._kept.get(statement)
        if kept is None:
            self.write()
            self._sql.run(statement, values)
        else:
            kept.append(values)
            self._new.discard(values[_KEPT[statement]])

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        for values in rows:
            self.run(statement, values)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        self.known.clear()
        self.write()
        return self._sql.changed(statement, values)

    @override
    def lock(self, *names: str) -> None:
        self._sql.lock(*names)

    @override
    def wait_for_locks(self) -> None:
        self._sql.wait_for_locks()

    def write(self) -> None:
        """Write what was kept."""
        for statement, rows in self._kept.items():
            if rows:
                self._kept[statement] = []
                self._sql.run_many(statement, rows)
