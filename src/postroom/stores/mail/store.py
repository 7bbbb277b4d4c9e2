"""The part of the store that mail may use. This part of the store contains only mail's own tables."""

from collections.abc import Callable
from typing import TypeVar

from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.sql_transaction import OF_A_PROJECT
from postroom.stores.store import SqlStore

T = TypeVar("T")


class MailStore:
    """Transactions of a store, limited to mail."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.changes = store.changes
        """Notifications about commits of this and other processes; mail uses the topic `MAIL`."""

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Run `look` on one consistent snapshot of the store and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not answer in time.
        """
        return await self._store.read(lambda tx: look(tx.mail))

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run `change` as one transaction; when the call returns, the change survives a power failure.

        An exception from `change` rolls it back and is passed on to the caller. `key` is the slug or path of
        the project that changes. Changes with the same key run one after another; other changes may run in
        parallel. If the caller is cancelled, the change may or may not have been made.

        Raises:
            StoreFull, StoreReadOnly, StoreUnavailable: Nothing was written.
        """
        return await self._store.write(lambda tx: change(tx.mail), key=OF_A_PROJECT + key)

    async def settle(self) -> None:
        """Update the search index and thread lists, so that later reads see all messages written so far."""
        await self._store.settle()

    async def probe(self) -> None:
        """Write a row and read it back; raise the error if that fails."""
        await self._store.probe()
