"""Waiting for changes of mail, whichever server made them. A hint may be lost, so who waits looks again."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from postroom.stores.changes import MAIL, ChangeNotifier

T = TypeVar("T")

TOGETHER: Final = 0.05
"""Seconds that a waiter lets pass after a hint: a burst of changes is one look."""
LOOK_AGAIN: Final = timedelta(seconds=5)
"""How long a change goes unnoticed whose hint was lost."""


class MailChanges:
    """Lets callers wait for what is written to mail; once stopped, nobody waits any more."""

    def __init__(self, changes: ChangeNotifier) -> None:
        self._changes = changes
        self.is_stopped = False

    def ring(self) -> None:
        """Have everybody look who waits here."""
        self._changes.tell((MAIL,))

    def stop(self) -> None:
        """Let nobody wait from now on; harmless when done twice."""
        self.is_stopped = True
        self.ring()

    async def awaited(
        self, look: Callable[[], Awaitable[T]], is_news: Callable[[T], bool], *, until: float
    ) -> T:
        """Look now and after each change; return what was seen when it is news, or last of all.

        The last look is that before `until`, an instant of the event loop, or before it is stopped.
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
