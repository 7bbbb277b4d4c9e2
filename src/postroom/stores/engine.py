"""The port to a database engine: transactions, maintenance of its files or server, and hints."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from postroom.contracts.clock import Clock
from postroom.stores.outline import Outline
from postroom.stores.sql_transaction import SqlTransaction

T = TypeVar("T")


class Engine(Protocol):
    """Runs functions over open transactions, on its own threads."""

    @property
    def identity(self) -> str:
        """The name of the database to which it writes."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the database."""
        ...

    @property
    def release(self) -> str:
        """The database and its release, as people name it."""
        ...

    @property
    def checks_pages(self) -> bool:
        """Whether each page has a checksum, so that a damaged page is refused when it is read."""
        ...

    @property
    def grouping(self) -> tuple[int, int]:
        """The number of commits, and the number of changes in them."""
        ...

    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        """Run `look` in one consistent view.

        Raises:
            StoreError: The read failed.
        """
        ...

    async def write(
        self,
        change: Callable[[SqlTransaction], T],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> T:
        """Run `change` in a transaction and return once it is durable; it may run more than once.

        Changes of one key run in their order of arrival. `committed` is called on the caller's event loop
        once the change is durable, even if the caller was cancelled in between.

        Raises:
            StoreError: The change was rolled back; nothing was written.
            CommitUnknown: The change may or may not have been written.
        """
        ...

    async def settle(self) -> None:
        """Update indexes that are maintained after the commit."""
        ...

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy of the database and verify it, unless `is_read_back` is False."""
        ...

    async def check(self) -> list[str]:
        """Read the whole database and return its problems."""
        ...

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the indexes that can be rebuilt from their tables without loss."""
        ...

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Rebuild these indexes.

        Raises:
            StoreCorrupt: A problem remains; nothing was changed.
        """
        ...

    async def outline(self) -> Outline:
        """Return the schema of the database without its data."""
        ...

    def take_room(self, sql: SqlTransaction, size: int) -> None:
        """Allocate `size` bytes on the disk and free them again; 0 for enough to show that rows fit.

        Raises:
            StoreFull: There is not enough space.
        """
        ...

    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        """Refuse a user who lacks a right to one of the tables, with one query for all tables.

        Raises:
            StoreReadOnly: A right is missing; the remedy grants it.
        """
        ...

    def share(self, topics: Collection[str]) -> None:
        """Send these topics to other processes soon."""
        ...

    def close(self) -> None:
        """Finish submitted work and close; a repeated call has no effect. May block."""
        ...
