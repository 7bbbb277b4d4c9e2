"""The database's clock, as this process sees it."""

from postroom.contracts.clock import SystemClock
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.statements import load_statements

_SQL = load_statements("clock")
_SAMPLES = 5


class DatabaseClock:
    """This process's clock, corrected by what it was off from the database's when that was measured last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._own = SystemClock()
        self._offset = 0

    def now(self) -> int:
        """Return the present instant in milliseconds since the epoch."""
        return self._own.now() + self._offset

    async def measure(self) -> int:
        """Compare with the database and return what this process's clock is off, in milliseconds.

        The quickest of some answers counts: a slow one says little about when it was given.
        """
        quickest: int | None = None
        for _ in range(_SAMPLES):
            before = self._own.now()
            [[theirs]] = await self._database.read(_SQL["now"])
            after = self._own.now()
            if quickest is None or after - before < quickest:
                quickest, self._offset = after - before, theirs - (before + after) // 2
        return self._offset
