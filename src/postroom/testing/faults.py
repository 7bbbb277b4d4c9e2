"""Wrappers around a store that fail on purpose: before a write, or after it, so that the result is lost.

A plan states whether each write fails, one after the other. After the end of the plan, every write succeeds.
Reads and probes are passed on unchanged, and are not counted.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TypeVar

from postroom.contracts.errors import StoreUnavailable
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore

T = TypeVar("T")


def writes(*numbers: int) -> Iterator[bool]:
    """Return a plan in which the writes with the given numbers fail; the first write is number 1."""
    return (number in numbers for number in range(1, max(numbers, default=0) + 1))


def writes_that(fail: Callable[[int], bool]) -> Iterator[bool]:
    """Return a plan in which a write fails if `fail` returns True for the number of the write."""
    return (fail(number) for number in count(1))


class _PlannedStore:
    def __init__(self, store: MailStore, plan: Iterable[bool]) -> None:
        self._store = store
        self._plan = iter(plan)
        self.changes = store.changes
        """The notifier of the inner store."""
        self.failed = 0
        """The number of writes that failed on purpose."""

    async def read(self, look: Callable[[MailReads], T]) -> T:
        return await self._store.read(look)

    async def settle(self) -> None:
        await self._store.settle()

    async def probe(self) -> None:
        await self._store.probe()

    def _fails_now(self) -> bool:
        return next(self._plan, False)


class RefusingStore(_PlannedStore):
    """A store in which planned writes fail without writing anything."""

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Make a change, or raise the planned error without writing anything.

        Raises:
            StoreUnavailable: The write was planned to fail. Nothing was written.
        """
        if self._fails_now():
            self.failed += 1
            raise StoreUnavailable("the store failed on purpose; nothing was written")
        return await self._store.write(change, key=key)


class LosingStore(_PlannedStore):
    """A store in which planned writes succeed, but raise an error."""

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Make a change, and raise an error after the change if the plan says so.

        Raises:
            StoreUnavailable: The write was planned to fail. The change was made nevertheless.
        """
        loses = self._fails_now()
        answer = await self._store.write(change, key=key)
        if loses:
            self.failed += 1
            raise StoreUnavailable("the answer was lost on purpose; the change was stored")
        return answer
