"""The mail port over a store."""

from collections.abc import Callable
from typing import Final, TypeVar

from typing_extensions import override

from postroom.contracts.store import MailReads, MailStore, MailWrites
from postroom.contracts.transactions import Store

T = TypeVar("T")

_KEY: Final = "mail"
"""One for all changes of mail: within a process they are run one after another."""


class StoredMail(MailStore):
    """Transactions of a store, of which only the mail is seen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    async def read(self, look: Callable[[MailReads], T]) -> T:
        return await self._store.read(lambda tx: look(tx.mail))

    @override
    async def write(self, change: Callable[[MailWrites], T]) -> T:
        return await self._store.write(lambda tx: change(tx.mail), key=_KEY)

    @override
    async def settle(self) -> None:
        await self._store.settle()

    @override
    async def probe(self) -> None:
        await self._store.probe()
