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
    """Return a plan in which the writes with the given numbers fail. The first write is number 1."""
    return (number in numbers for number in range(1, max(numbers, default=0) + 1))


def writes_that(fail: Callable[[int], bool]) -> Iterator[bool]:
    """Return a plan, without end, in which each write fails for whose number `fail` returns True."""
    return (fail(number) for number in count(1))


class _PlannedStore:
    """A store whose writes follow a plan."""

    def __init__(self, store: MailStore, plan: Iterable[bool]) -> None:
        self._store = store
        self._plan = iter(plan)
        self.changes = store.changes
        """The notifier of the inner store."""
        self.failed = 0
        """The number of writes that failed on purpose."""

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Pass the read on."""
        return await self._store.read(look)

    async def settle(self) -> None:
        """Pass the request on."""
        await self._store.settle()

    async def probe(self) -> None:
        """Pass the probe on."""
        await self._store.probe()

    def _fails_now(self) -> bool:
        return next(self._plan, False)


class RefusingStore(_PlannedStore):
    """A store that refuses the planned writes: nothing is written, and the caller gets an error."""

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run a change, or write nothing and raise an error if the plan says so for this write.

        Raises:
            StoreUnavailable: The write was planned to fail. Nothing was written.
        """
        if self._fails_now():
            self.failed += 1
            raise StoreUnavailable("the store failed on purpose; nothing was written")
        return await self._store.write(change, key=key)


class LosingStore(_PlannedStore):
    """A store that loses the results of the planned writes: the caller gets an error after the write."""

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run a change. If the write is planned to fail, lose the result.

        Raises:
            StoreUnavailable: The write was planned to fail. The change was made nevertheless.
        """
        loses = self._fails_now()
        answer = await self._store.write(change, key=key)
        if loses:
            self.failed += 1
            raise StoreUnavailable("the answer was lost on purpose; the change was stored")
        return answer
