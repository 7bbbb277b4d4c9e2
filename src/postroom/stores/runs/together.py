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
_FOUND_OF_NOTHING: Final[dict[str, tuple[Row, ...]]] = {
    "threads.thread": (),
    "threads.pending": (),
    "threads.last_runs": (),
    "threads.committed": (),
    "threads.run": (),
    "dispatches.against": (),
    "dispatches.queue_of_thread": ((None, 0, 0, 0, None),),
}
"""What looks find of a thread, a run or a dispatch that has no rows."""
_KEPT: Final = (
    "threads.put_thread",
    "threads.move_thread",
    "threads.append_message",
    "threads.put_run",
    "dispatches.enqueue",
)
"""In the order in which they are written: messages and runs refer to their threads."""
_IDS: Final = ("thread_id", "run_id", "dispatch_id")


class TogetherTransaction(SqlTransaction):
    """An open transaction that knows which ids have no rows, and keeps writes until they are needed."""

    def __init__(self, sql: SqlTransaction, new: set[str]) -> None:
        """Pass statements on to `sql`; `new` are ids of threads, runs and dispatches without rows."""
        self._sql = sql
        self._new = new
        self._kept: dict[str, list[Values]] = {}
        self.known = {}

    @property
    @override
    def dialect(self) -> Dialect:
        return self._sql.dialect

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        found, asked, places = list[list[Row]](), list[tuple[str, Values]](), list[int]()
        for statement, values in looks:
            rows = _FOUND_OF_NOTHING.get(statement)
            if rows is None or not self._is_new(values):
                places.append(len(found))
                asked.append((statement, values))
            found.append(list(rows or ()))
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
        self.run_many(statement, (values,))

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        self.known.clear()
        if statement not in _KEPT:
            self.write()
            self._sql.run_many(statement, rows)
            return
        kept, new = self._kept.setdefault(statement, []), self._new
        for values in rows:
            kept.append(values)
            for name in _IDS:
                new.discard(values.get(name, ""))

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
        kept, self._kept = self._kept, {}
        for statement in _KEPT:
            if rows := kept.get(statement):
                self._sql.run_many(statement, rows)

    def _is_new(self, values: Values) -> bool:
        """Say whether these values name ids without rows and no others."""
        new = self._new
        for name in _IDS:
            id = values.get(name)
            if id is not None and id not in new:
                return False
        return True
