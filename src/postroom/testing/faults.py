"""Stores that fail on purpose, around a real one: before a write, or after it when the answer is lost.

A plan says of each write in turn whether it fails; after its end every write goes through. Reads and
probes go through unchanged and are not counted.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TypeVar

from postroom.contracts.errors import StoreUnavailable
from postroom.stores.changes import ChangeNotifier
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore

T = TypeVar("T")


def writes(*numbers: int) -> Iterator[bool]:
    """Plan that the writes with these numbers fail; the first write is number 1."""
    return (number in numbers for number in range(1, max(numbers, default=0) + 1))


def writes_that(fail: Callable[[int], bool]) -> Iterator[bool]:
    """Plan that those writes fail whose number satisfies `fail`, without end."""
    return (fail(number) for number in count(1))


class _PlannedStore:
    """A store whose writes are looked up in a plan."""

    def __init__(self, store: MailStore, plan: Iterable[bool]) -> None:
        self._store = store
        self._plan = iter(plan)
        self.failed = 0
        """How many writes have failed on purpose."""

    @property
    def changes(self) -> ChangeNotifier:
        """Those of the store."""
        return self._store.changes

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Pass the look-up on."""
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
    """Refuses the planned writes: nothing is written, and the caller is told so."""

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run the change, or refuse it before it begins.

        Raises:
            StoreUnavailable: the plan said so; nothing was written.
        """
        if self._fails_now():
            self.failed += 1
            raise StoreUnavailable("the store failed on purpose; nothing was written")
        return await self._store.write(change, key=key)


class LosingStore(_PlannedStore):
    """Loses the answers to the planned writes: everything is written, and the caller is told of a failure."""

    async def write(self, change: Callable[[MailWrites], T], *, key: str = "") -> T:
        """Run the change; its answer may be lost.

        Raises:
            StoreUnavailable: the plan said so; the change was made all the same.
        """
        loses = self._fails_now()
        answer = await self._store.write(change, key=key)
        if loses:
            self.failed += 1
            raise StoreUnavailable("the answer was lost on purpose; the change was stored")
        return answer
