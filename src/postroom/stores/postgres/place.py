"""What the stores of one schema share: sessions, clock, hints, and the rows that were set aside."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock
from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.run_stores import MAX_PAGE
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.driver import Row
from postroom.stores.postgres.hints import Hints
from postroom.stores.postgres.rows import kept
from postroom.stores.postgres.statements import load_statements

T = TypeVar("T")

_LOG = structlog.get_logger(__name__)
_SQL = load_statements("quarantine")


class Place:
    """One schema, as the stores of one process see it."""

    def __init__(
        self, database: Database, hints: Hints, tasks: Tasks, *, identity: str, clock: Clock | None
    ) -> None:
        self.database = database
        self.hints = hints
        self.tasks = tasks
        self.identity = identity
        self._clock = clock

    def at(self, now: int | None) -> int | None:
        """Return the instant to go by; None leaves it to the database's clock."""
        if now is None and self._clock is not None:
            return self._clock.now()
        return now

    async def readable(self, kind: str, rows: Iterable[Row], read: Callable[[Row], T]) -> list[T]:
        """Return what the rows hold; one that does not read back is set aside and stops no other.

        The first column of a row names it.
        """
        found = []
        for row in rows:
            try:
                found.append(read(row))
            except StoreCorrupt as error:
                await self.set_aside(kind, row[0], error)
        return found

    async def set_aside(self, kind: str, name: str, error: StoreCorrupt) -> None:
        """Record a row that does not read back, so that nobody takes it for work; the log says so once."""
        if await self.database.write(_SQL["set_aside"], kind, name, kept(error.message)):
            _LOG.error("store.row_quarantined", kind=kind, id=name, reason=error.message)


def page(limit: int) -> int:
    """Return how much a listing holds that was asked for so much."""
    return max(0, min(limit, MAX_PAGE))
