"""The part of the store that mail may use, which contains only mail's own tables."""

from collections.abc import Callable
from typing import TypeVar

from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.sql_transaction import OF_A_PROJECT
from postroom.stores.store import SqlStore

T = TypeVar("T")


class MailStore:
    """The transactions of a store, limited to mail."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.changes = store.changes
        """Notifications about commits of this and other processes; mail uses the topic `MAIL`."""

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Call `look` with one consistent snapshot of the store, and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not respond in time.
        """
        return await self._store.read(lambda tx: look(tx.mail))

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Make a change in one transaction; when the call returns, the change survives a power failure.

        Changes with equal keys are made one after another; a key is the slug or the path of a project. If
        `change` raises an exception, the transaction is rolled back, and the caller gets the exception. If
        the caller is cancelled, it is unknown whether the change was made.

        Raises:
            StoreFull, StoreReadOnly, StoreUnavailable: Nothing was written.
        """
        return await self._store.write(lambda tx: change(tx.mail), key=OF_A_PROJECT + key)

    async def settle(self) -> None:
        """Update the search index and the lists of threads, so that later reads see all messages."""
        await self._store.settle()

    async def probe(self) -> None:
        """Check that the store accepts writes: write a row and read it back.

        Raises:
            StoreError: The write failed, or the database was replaced by another one.
        """
        await self._store.probe()
