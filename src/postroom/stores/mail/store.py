"""The view of the store that mail gets: only its own tables."""

from collections.abc import Callable
from typing import TypeVar

from postroom.stores.changes import ChangeNotifier
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.sql_transaction import OF_A_PROJECT
from postroom.stores.store import SqlStore

T = TypeVar("T")


class MailStore:
    """Transactions of a store, limited to mail."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    @property
    def changes(self) -> ChangeNotifier:
        """Hints about commits of this and other processes; the topic of mail is `MAIL`."""
        return self._store.changes

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Run `look` in one consistent view and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not answer in time.
        """
        return await self._store.read(lambda tx: look(tx.mail))

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run `change` as one transaction; when this returns, the change survives a power cut.

        An exception from `change` rolls it back and is raised here. `key` names the project of the change, in
        any spelling: changes of one key run one after another, other changes may run in parallel. If the
        caller is cancelled, the change may or may not have happened.

        Raises:
            StoreFull, StoreReadOnly, StoreUnavailable: Nothing was written.
        """
        return await self._store.write(lambda tx: change(tx.mail), key=OF_A_PROJECT + key)

    async def settle(self) -> None:
        """Update search and threads, so that later reads see every message written so far."""
        await self._store.settle()

    async def probe(self) -> None:
        """Write and read back one row; raise the error of a failure."""
        await self._store.probe()
