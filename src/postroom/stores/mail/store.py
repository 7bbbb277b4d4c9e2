"""The store, of which mail sees its own tables only."""

from collections.abc import Callable
from typing import TypeVar

from postroom.stores.changes import ChangeNotifier
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.sql_transaction import OF_A_PROJECT
from postroom.stores.store import SqlStore

T = TypeVar("T")


class MailStore:
    """Transactions of a store, of which only the mail is seen."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    @property
    def changes(self) -> ChangeNotifier:
        """Hints about what was committed, here and by other processes: `MAIL` for what is mail."""
        return self._store.changes

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Run `look` in one consistent view and return what it returns.

        Raises:
            StoreUnavailable: closed, or not answering in time.
        """
        return await self._store.read(lambda tx: look(tx.mail))

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run `change` as one transaction; when this returns, it survives a power cut.

        An exception from `change` undoes it and is raised here. `key` names the project that it is about, in
        any spelling: changes of one key are run one after another, others may run beside them.
        A cancelled caller does not learn the outcome: the change may have happened.

        Raises:
            StoreFull, StoreReadOnly, StoreUnavailable: nothing was written.
        """
        return await self._store.write(lambda tx: change(tx.mail), key=OF_A_PROJECT + key)

    async def settle(self) -> None:
        """Let reads that begin after this returns see every message written so far in search and threads."""
        await self._store.settle()

    async def probe(self) -> None:
        """Write and read back one row; raise what is wrong."""
        await self._store.probe()
