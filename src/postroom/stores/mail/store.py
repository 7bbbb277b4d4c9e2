"""The mail port over a store."""

from collections.abc import Callable
from typing import TypeVar

from typing_extensions import override

from postroom.contracts.store import MailReads, MailStore, MailWrites
from postroom.contracts.transactions import Store

T = TypeVar("T")


class StoredMail(MailStore):
    """Transactions of a store, of which only the mail is seen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    async def read(self, look: Callable[[MailReads], T]) -> T:
        return await self._store.read(lambda tx: look(tx.mail))

    @override
    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        return await self._store.write(lambda tx: change(tx.mail), key=f"mail:{key}")

    @override
    async def settle(self) -> None:
        await self._store.settle()

    @override
    async def probe(self) -> None:
        await self._store.probe()
