"""Mail behind the port of those who know no other tables."""

from collections.abc import Callable
from typing import TypeVar

from typing_extensions import override

from postroom.contracts.store import MailReads, MailStore, MailWrites
from postroom.contracts.transactions import Store

T = TypeVar("T")


class StoredMail(MailStore):
    """The mail tables of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @override
    async def read(self, look: Callable[[MailReads], T]) -> T:
        return await self.store.read(lambda tx: look(tx.mail))

    @override
    async def write(self, change: Callable[[MailWrites], T]) -> T:
        return await self.store.write(lambda tx: change(tx.mail))

    @override
    async def settle(self) -> None:
        await self.store.settle()

    @override
    async def probe(self) -> None:
        await self.store.probe()

    def close(self) -> None:
        """Close the store."""
        self.store.close()
