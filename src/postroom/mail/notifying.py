"""Waiting for changes of mail by any server. A hint may be lost, so each waiter also checks at intervals."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from postroom.stores.changes import MAIL, ChangeNotifier

T = TypeVar("T")

TOGETHER: Final = 0.05
"""Seconds that a waiter waits after a hint, so that a burst of changes is read once."""
LOOK_AGAIN: Final = timedelta(seconds=5)
"""Maximum time in which a change goes unnoticed if its hint was lost."""


class MailChanges:
    """Lets callers wait for changes of mail; after a stop, no caller waits."""

    def __init__(self, changes: ChangeNotifier) -> None:
        self._changes = changes
        self.is_stopped = False

    def ring(self) -> None:
        """Make all waiters check now."""
        self._changes.tell((MAIL,))

    def stop(self) -> None:
        """End all waits from now on; a repeated call has no effect."""
        self.is_stopped = True
        self.ring()

    async def awaited(
        self, look: Callable[[], Awaitable[T]], is_news: Callable[[T], bool], *, until: float
    ) -> T:
        """Read now and after each change; return the first result that is news, or the last result.

        The last read is before `until`, an instant of the event loop, or before the stop.
        """
        loop = asyncio.get_running_loop()
        with self._changes.listen(MAIL) as changed:
            while True:
                found = await look()
                if is_news(found) or self.is_stopped or loop.time() >= until:
                    return found
                await changed.wait(min(LOOK_AGAIN, timedelta(seconds=until - loop.time())))
                if not self.is_stopped:
                    await asyncio.sleep(min(TOGETHER, max(0.0, until - loop.time())))
