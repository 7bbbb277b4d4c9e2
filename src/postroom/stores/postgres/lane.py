"""Callers who want the same at the same moment share one statement, one answer and one commit.

A commit waits for the disk and a statement for the way to the server and back; both cost the same for one row
and for many. What comes while a statement is under way makes up the next one, so that a caller who is alone
never waits for others.
"""

from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from postroom.concurrency import Tasks
from postroom.contracts.errors import (
    CommitUnknown,
    InvalidRecord,
    PostroomError,
    StoreError,
    StoreUnavailable,
)
from postroom.stores.postgres.driver import HELD_UP, Clash

A = TypeVar("A")
R = TypeVar("R")

AT_MOST = 128
"""How many callers share a statement."""


class Lane(Generic[A, R]):
    """One statement at a time, for all who asked meanwhile; in it each row is named once.

    `perform` gets what was asked, in order of `row`, and gives an answer or an error for each. When it breaks
    a rule of the schema, holds a value that cannot be stored or is held up by another transaction, each is
    served alone.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[A]], Awaitable[Sequence[R | PostroomError]]],
        *,
        row: Callable[[A], str],
        tasks: Tasks,
        name: str,
    ) -> None:
        self._perform = perform
        self._row = row
        self._tasks = tasks
        self._name = name
        self._waiting: deque[tuple[A, Future[R]]] = deque()
        self._at_work = False

    async def ask(self, one: A) -> R:
        """Have it done, and return the answer.

        Raises:
            PostroomError: as `perform` says, for this caller.
        """
        if self._tasks.closed:
            raise StoreUnavailable("the store is closed")
        answer: Future[R] = get_running_loop().create_future()
        self._waiting.append((one, answer))
        if not self._at_work:
            self._tasks.start(self._serve(), name=self._name)
            self._at_work = True
        return await answer

    async def _serve(self) -> None:
        try:
            while batch := self._next():
                await self._answer(batch)
        except BaseException:
            _refuse(self._waiting, StoreUnavailable("the store is closed"))
            raise
        finally:
            self._at_work = False

    def _next(self) -> list[tuple[A, Future[R]]]:
        """Take who is served next: who came first, no two of one row; who gave up is left out."""
        taken: dict[str, tuple[A, Future[R]]] = {}
        later = []
        while self._waiting and len(taken) < AT_MOST:
            entry = self._waiting.popleft()
            if entry[1].done():
                continue
            if (row := self._row(entry[0])) in taken:
                later.append(entry)
            else:
                taken[row] = entry
        self._waiting.extendleft(reversed(later))
        return [taken[row] for row in sorted(taken)]

    async def _answer(self, batch: Sequence[tuple[A, Future[R]]]) -> None:
        try:
            answers = await self._perform([one for one, _ in batch])
        except (Clash, InvalidRecord, StoreUnavailable) as error:
            if len(batch) > 1 and _concerns_some(error):
                for entry in batch:
                    await self._answer([entry])
                return
            if isinstance(error, PostroomError):
                _refuse(batch, error)
            else:
                _refuse(batch, StoreError(f"PostgreSQL refused: {error}", value=error.rule))
            return
        except PostroomError as error:
            _refuse(batch, error)
            return
        except BaseException:
            _refuse(batch, CommitUnknown("the store was closed before PostgreSQL answered"))
            raise
        for (_, answer), said in zip(batch, answers, strict=True):
            if answer.done():
                continue
            if isinstance(said, PostroomError):
                answer.set_exception(said)
            else:
                answer.set_result(said)


def _concerns_some(error: Clash | InvalidRecord | StoreUnavailable) -> bool:
    """Say whether others of the batch may fare better alone."""
    return not isinstance(error, StoreUnavailable) or error.details == HELD_UP


def _refuse(entries: Iterable[tuple[Any, Future[Any]]], error: PostroomError) -> None:
    for _, answer in entries:
        if not answer.done():
            answer.set_exception(_alike(error))


def _alike(error: PostroomError) -> PostroomError:
    """Return the same failure for another caller: each has a traceback of its own."""
    other = type(error)(error.message, value=error.value, remedy=error.remedy, details=error.details)
    other.__cause__ = error
    return other
