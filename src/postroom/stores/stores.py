"""One store as those see it who know one kind of tables only: mail, runs, or what chats keep."""

from pathlib import Path

from postroom.contracts.transactions import Outline
from postroom.stores.chats import StoredChats
from postroom.stores.mail import StoredMail
from postroom.stores.runs.ports import SqlRunStores
from postroom.stores.store import SqlStore


class Stores(StoredMail):
    """The ports over one store; by itself it is the port of mail."""

    def __init__(self, store: SqlStore, *, is_shared: bool) -> None:
        super().__init__(store)
        self.store = store
        self._runs = SqlRunStores(store)
        self._chat = StoredChats(store, is_shared=is_shared)

    @property
    def runs(self) -> SqlRunStores:
        """Runs, in the same place."""
        return self._runs

    @property
    def chat(self) -> StoredChats:
        """What the chat gateway keeps, in the same place."""
        return self._chat

    async def back_up(self, target: Path) -> None:
        """Write a consistent copy while work goes on, and read it back whole; see `Store.back_up`."""
        await self.store.back_up(target)

    async def check(self) -> list[str]:
        """Read the whole database and return what is wrong with it; empty when nothing is."""
        return await self.store.check()

    async def outline(self) -> Outline:
        """Return the shape of the database without what is in it."""
        return await self.store.outline()

    def close(self) -> None:
        """Finish what was handed in and close; harmless when done twice. Blocks."""
        self.store.close()
