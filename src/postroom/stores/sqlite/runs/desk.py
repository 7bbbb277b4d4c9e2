"""What the stores of one file share: its name, its clock, the way to its threads, and who waits for news.

A row that does not read back stops no other: it is set aside, which is logged once, and the step is done
again without it. Whoever asked for that very row learns it.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

import structlog

from postroom.contracts.clock import Clock
from postroom.contracts.errors import StaleClaim, StoreCorrupt
from postroom.contracts.run_stores import MAX_PAGE
from postroom.stores.sqlite.readers import Readers, SharedReader
from postroom.stores.sqlite.runs.queue import SQL
from postroom.stores.sqlite.writer import Writer

T = TypeVar("T")

_LOG = structlog.get_logger(__name__)


class Desk:
    """Hands steps to the threads of one file."""

    def __init__(self, writer: Writer, readers: Readers | SharedReader, clock: Clock, identity: str) -> None:
        self.clock = clock
        self.identity = identity
        self.bell = asyncio.Event()
        self._submit = writer.submit
        self._look_up = readers.submit
        self._look_at = readers.submit_free
        self._listeners: dict[str, set[asyncio.Future[None]]] = {}

    def at(self, now: int | None) -> int:
        """Return the instant to go by."""
        return self.clock.now() if now is None else now

    async def write(self, step: Callable[[sqlite3.Connection], T | StaleClaim]) -> T:
        """Run a step on the writer thread; answer after the fsync that covers it.

        Raises:
            StaleClaim: the step returned it; what it wrote stands.
            StoreError: the step was undone.
        """
        aside: set[str] = set()
        while True:
            try:
                done = await self._submit(step)
            except StoreCorrupt as error:
                await self._set_aside(error, aside)
                continue
            if isinstance(done, StaleClaim):
                raise done
            return done

    async def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run a look-up of several statements on a reader thread in one consistent view."""
        return await self._seen(self._look_up, look)

    async def look(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run a look-up of one statement, which is a consistent view by itself; that is quicker."""
        return await self._seen(self._look_at, look)

    async def _seen(
        self,
        submit: Callable[[Callable[[sqlite3.Connection], T]], Awaitable[T]],
        look: Callable[[sqlite3.Connection], T],
    ) -> T:
        aside: set[str] = set()
        while True:
            try:
                return await submit(look)
            except StoreCorrupt as error:
                await self._set_aside(error, aside)

    async def _set_aside(self, error: StoreCorrupt, aside: set[str]) -> None:
        """Mark the row that the failure names; raise the failure when it names none, or one marked before."""
        row = {"at": self.clock.now(), **error.details}
        name = f"{row.get('kind')}:{row.get('id')}"
        if "kind" not in row or name in aside:
            raise error
        aside.add(name)
        if await self._submit(lambda db: db.execute(SQL["set_aside"], row).fetchone()):
            _LOG.error("store.row_quarantined", kind=row["kind"], id=row["id"], reason=row["reason"])

    def ring(self) -> None:
        """Say that something may be claimable."""
        self.bell.set()

    def tell(self, scopes: Iterable[str]) -> None:
        """Wake those who wait for events of these scopes."""
        if self._listeners:
            for scope in scopes:
                for listener in self._listeners.pop(scope, ()):
                    if not listener.done():
                        listener.set_result(None)

    @contextlib.contextmanager
    def listening(self, scope: str) -> Iterator["asyncio.Future[None]"]:
        """Give a future that is done when events of the scope may have been added."""
        listener = asyncio.get_running_loop().create_future()
        self._listeners.setdefault(scope, set()).add(listener)
        try:
            yield listener
        finally:
            if waiting := self._listeners.get(scope):
                waiting.discard(listener)
                if not waiting:
                    del self._listeners[scope]


class SqliteWakeups:
    """Hints within the process that owns the file, which is the only one that writes to it."""

    def __init__(self, desk: Desk) -> None:
        self._bell = desk.bell

    async def wait(self, timeout_ms: int) -> None:
        """Return when something was enqueued or released since the last call, or the time is up."""
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await self._bell.wait()
        except TimeoutError:
            return
        self._bell.clear()


def page(limit: int) -> int:
    """Return how much a listing holds that was asked for so much."""
    return max(0, min(limit, MAX_PAGE))
