"""What an engine is: transactions, what is particular to its files or server, and hints between processes."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from postroom.contracts.clock import Clock
from postroom.stores.outline import Outline
from postroom.stores.sql_transaction import SqlTransaction

T = TypeVar("T")


class Engine(Protocol):
    """Runs functions over open transactions, on threads of its own."""

    @property
    def identity(self) -> str:
        """Names the place where it writes."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock to go by."""
        ...

    @property
    def release(self) -> str:
        """The database and its release, as people name it."""
        ...

    @property
    def checks_pages(self) -> bool:
        """Whether each page has a checksum, so that one that was damaged is refused when it is read."""
        ...

    @property
    def grouping(self) -> tuple[int, int]:
        """How many commits were made, and how many changes they held."""
        ...

    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        """Run `look` in one consistent view.

        Raises:
            StoreError: as the text says.
        """
        ...

    async def write(
        self,
        change: Callable[[SqlTransaction], T],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> T:
        """Run `change` in a transaction and return once it is durable; it may be run again.

        Changes of one key are run in the order in which they came. `committed` is called on the caller's
        event loop once the change is durable, also when the caller was cancelled meanwhile.

        Raises:
            StoreError: the change was undone; nothing was written.
            CommitUnknown: it may or may not have been written.
        """
        ...

    async def settle(self) -> None:
        """Bring indexes up to date that are maintained after the commit."""
        ...

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy of the database; without `is_read_back` the caller reads it back."""
        ...

    async def check(self) -> list[str]:
        """Read the whole database and return what is wrong with it."""
        ...

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the indexes that can be written again from their tables without losing anything."""
        ...

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Write these indexes again.

        Raises:
            StoreCorrupt: something is wrong still; nothing was changed.
        """
        ...

    async def outline(self) -> Outline:
        """Return the shape of the database without what is in it."""
        ...

    def take_room(self, sql: SqlTransaction, size: int) -> None:
        """Take so many bytes of room on the disk, and give them back; 0: as much as shows that rows fit.

        Raises:
            StoreFull: there is none.
        """
        ...

    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        """Refuse a user who lacks a right to any of the tables; one look, however many there are.

        Raises:
            StoreReadOnly: as said; the remedy gives the right back.
        """
        ...

    def share(self, topics: Collection[str]) -> None:
        """Tell other processes of these topics, some time soon."""
        ...

    def close(self) -> None:
        """Finish what was handed in and close; harmless when done twice. May block."""
        ...
