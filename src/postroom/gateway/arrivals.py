"""The order of what comes in one chat: a message behind a command waits until the command is done.

`/new` and a text behind it may come in one answer of a platform. The text is about the new conversation then.
The text is stored at once, so that the platform and other chats wait for nothing, and is handed over when the
command is done. `/agent`, `/link` and `/unlink` decide in which session a text is said: it is stored when
they are done. A command waits for those three alone: `Commands` does the commands of one session in their
order, and `/stop` at once. One of the three waits until the messages before it are stored.
"""

import asyncio

from postroom.gateway.events import MessageEvent
from postroom.gateway.session import SessionSource

_AT_ONCE = "stop"
_DECIDE_THE_SESSION = ("agent", "link", "unlink")


class Arrival:
    """The arrival of one message, from its coming to its end; a command's ends when it is done."""

    def __init__(self, command: str | None, siblings: list["Arrival"]) -> None:
        """Stand behind those that have come; `command` is None for what is none."""
        self.decides = command in _DECIDE_THE_SESSION
        """Whether what comes behind it may be of another session by it."""
        self.kept, self.ended = asyncio.Event(), asyncio.Event()
        """Set when its session is decided and stored; and when those behind it may come."""
        self.is_in_turn = False
        """Whether a task in the background ends it."""
        self.is_free: bool
        """Whether it is a message that waits for nobody, and nobody but who decides for it."""
        if command is None:
            ended = [one for one in siblings if not one.is_free]
        else:
            ended = [one for one in siblings if one.decides and command != _AT_ONCE]
        self._before = [one.ended for one in ended]
        self._deciding = [one.ended for one in ended if one.decides]
        self.is_free = command is None and not ended
        if self.decides:
            self._before += [one.kept for one in siblings]
            self._deciding = self._before
        self._siblings = siblings

    @property
    def may_come(self) -> bool:
        """Whether all that it stands behind have ended."""
        return all(one.is_set() for one in self._before)

    async def decided(self) -> None:
        """Return when it is decided in which session the message is said, so that it can be stored."""
        for one in self._deciding:
            await one.wait()

    async def come(self) -> None:
        """Return when all that it stands behind have ended."""
        await self.decided()
        for one in self._before:
            await one.wait()

    def waits_in_turn(self) -> None:
        """Note that the message is stored, and is handed over in the background when `come` returns."""
        self.is_in_turn = True
        self.kept.set()

    def lasts(self, task: "asyncio.Task[None] | None") -> None:
        """Let the arrival end with a task, or now where there is none: the message is kept."""
        self.kept.set()
        if task is None:
            self.end()
        else:
            task.add_done_callback(lambda _: self.end())

    def end(self) -> None:
        """Let those behind it come; harmless when done twice."""
        self.kept.set()
        self.ended.set()
        if self in self._siblings:
            self._siblings.remove(self)


class Arrivals:
    """The arrivals of all chats, each until its message is kept, a command's until it is done."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], list[Arrival]] = {}

    def take(self, event: MessageEvent, source: SessionSource) -> Arrival:
        """Return the arrival of a message that comes now."""
        chat = (source.platform, source.account, source.chat_id or source.user_id)
        self._open = {one: arrivals for one, arrivals in self._open.items() if arrivals}
        waiting = self._open.get(chat, [])
        arrival = Arrival(event.get_command(), waiting)
        waiting.append(arrival)
        self._open[chat] = waiting
        return arrival
