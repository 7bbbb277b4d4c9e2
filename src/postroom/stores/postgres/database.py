"""Sessions to lend, and the two ways to use one: a statement, or a transaction that may be done again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

from postroom.concurrency import Tasks
from postroom.contracts.errors import CommitUnknown, StoreError, StoreUnavailable
from postroom.stores.postgres.driver import ANSWER_WITHIN, HELD_UP, Clash, Connection, Contended, Row, connect

T = TypeVar("T")

TRIES = 5
"""How often a step is tried that gave way to another, or met one that was being written at that moment."""


class Database:
    """A bounded number of sessions of one schema, opened as they are needed."""

    def __init__(self, dsn: str, schema: str, *, size: int) -> None:
        self.dsn = dsn
        self.schema = schema
        self._idle: list[Connection] = []
        self._ending = Tasks("postgres sessions")
        self._slots = asyncio.Semaphore(size)
        self._closed = False

    async def connect(self, *, answer_within: timedelta | None = ANSWER_WITHIN, **session: str) -> Connection:
        """Open a session besides those that are lent."""
        return await connect(self.dsn, self.schema, answer_within=answer_within, **session)

    async def with_session(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do `work` on one session, outside of a transaction."""
        async with self._lent() as session:
            return await work(session)

    async def read(self, statement: str, *values: object) -> list[Row]:
        """Run a statement that changes nothing.

        Raises:
            StoreError: as the text says.
        """
        async with self._lent() as session:
            return await session.rows(statement, *values)

    async def first(self, statement: str, *values: object) -> Row | None:
        """Run a statement that changes nothing and return its first row."""
        rows = await self.read(statement, *values)
        return rows[0] if rows else None

    async def write(self, statement: str, *values: object) -> list[Row]:
        """Run a statement that is a transaction by itself.

        Raises:
            Clash: it breaks a rule of the schema.
            StoreError: nothing was written; after CommitUnknown it may have been.
        """
        for _ in range(TRIES):
            try:
                async with self._lent() as session:
                    return await session.rows(statement, *values, writes=True)
            except Contended as error:
                given_way = error
        raise StoreUnavailable(f"PostgreSQL is too busy with the same rows: {given_way}") from given_way

    async def transact(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do `work` in a transaction; it is done again when it met another that wrote the same rows.

        Raises:
            StoreError: nothing was written; after CommitUnknown it may have been.
        """
        for _ in range(TRIES):
            try:
                async with self._lent() as session, _transaction(session):
                    return await work(session)
            except (Contended, Clash) as error:
                given_way = error
        if isinstance(given_way, Clash):
            raise StoreError(f"PostgreSQL refused: {given_way}", value=given_way.rule) from given_way
        raise StoreUnavailable(f"PostgreSQL is too busy with the same rows: {given_way}") from given_way

    async def close(self) -> None:
        """Close every session; what is still at work is cut off."""
        self._closed = True
        while self._idle:
            self._ending.start(self._idle.pop().end(), name="end")
        await self._ending.settled()

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
        async with self._slots:
            session = await self._taken()
            try:
                yield session
            except BaseException as error:
                # Whatever it was in the middle of ends with it: a caller's cancellation, a lost answer.
                self._give_back(session, sound=_leaves_sound(error))
                raise
            self._give_back(session)

    def _give_back(self, session: Connection, *, sound: bool = True) -> None:
        if session.closed:
            return
        if sound and not self._closed:
            self._idle.append(session)
        else:
            self._ending.start(session.end(), name="end")

    async def _taken(self) -> Connection:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        while self._idle:
            session = self._idle.pop()
            if not session.closed:
                return session
        opening = self._ending.start(self._opened(), name="open")
        try:
            found: Connection | StoreError = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._end_unwanted)
            raise
        if isinstance(found, StoreError):
            raise found
        return found

    async def _opened(self) -> Connection | StoreError:
        """Open a session to its end, whatever becomes of who asked for it: half of one could not be ended."""
        try:
            return await self.connect()
        except StoreError as error:
            return error

    def _end_unwanted(self, opening: "asyncio.Task[Connection | StoreError]") -> None:
        found = None if opening.cancelled() or opening.exception() else opening.result()
        if isinstance(found, Connection):
            self._ending.start(found.end(), name="end")


def _leaves_sound(error: BaseException) -> bool:
    """Say whether a session in which this happened can be used again."""
    if isinstance(error, StoreUnavailable):
        return error.details == HELD_UP
    return isinstance(error, Exception) and not isinstance(error, CommitUnknown)


@asynccontextmanager
async def _transaction(session: Connection) -> AsyncIterator[None]:
    await session.run("BEGIN")
    try:
        yield
    except Exception:
        if not session.closed:
            await session.run("ROLLBACK")
        raise
    await session.run("COMMIT", commits=True)
