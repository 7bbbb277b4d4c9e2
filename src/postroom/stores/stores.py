"""One store as those see it who know one kind of tables only: mail, runs, or what chats keep."""

from pathlib import Path

from postroom.contracts.clock import Clock
from postroom.contracts.transactions import Outline
from postroom.stores.chats import StoredChats
from postroom.stores.mail import StoredMail
from postroom.stores.runs.ports import SqlRunStores
from postroom.stores.store import SqlStore


class Stores(StoredMail):
    """The ports over one store; by itself it is the port of mail."""

    def __init__(self, store: SqlStore, *, is_alone: bool) -> None:
        super().__init__(store)
        self.store = store
        self.is_alone = is_alone
        """Whether no other process writes to the same place."""
        self._runs = SqlRunStores(store)
        self._chat = StoredChats(store, is_shared=not is_alone)

    @property
    def runs(self) -> SqlRunStores:
        """Runs, in the same place."""
        return self._runs

    @property
    def chat(self) -> StoredChats:
        """What the chat gateway keeps, in the same place."""
        return self._chat

    @property
    def clock(self) -> Clock:
        """The clock to go by."""
        return self.store.clock

    @property
    def release(self) -> str:
        """The database and its release, as people name it."""
        return self.store.engine.release

    @property
    def grouping(self) -> tuple[int, int]:
        """How many commits were made, and how many changes they held."""
        return self.store.engine.grouping

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
