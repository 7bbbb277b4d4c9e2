"""Lines that were asked over the API, what is known of their answers, and who waits for them. In memory.

    opened ──▶ drafts grow, parts come ──▶ final ──▶ forgotten, the oldest first, when there are too many

An answer only ever grows while it is read as a stream: what was sent cannot be taken back.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from postroom.gateway.platforms.growing_text import grows_from, settled
from postroom.gateway.platforms.http_adapter import Refused

MOST_WAITING: Final = 1_000
MOST_LINES: Final = 2_000
MOST_CHARACTERS: Final = 20_000_000
_BETWEEN: Final = "\n\n"


class Line:
    """A line and its answer as far as it came."""

    def __init__(self, chat_id: str, message_id: str) -> None:
        self.chat_id = chat_id
        self.message_id = message_id
        self.fingerprint: str | None = None
        """What the line said; None when nobody of this process asked it."""
        self.is_final = False
        self.waits: set[Wait] = set()
        self.is_stored = False
        """Whether a response that can be fetched shows it."""
        self._parts: list[tuple[str, str]] = []

    @property
    def text(self) -> str:
        """The answer as far as it came."""
        return _BETWEEN.join(text for _, text in self._parts)

    @property
    def size(self) -> int:
        """The characters that it holds."""
        return sum(len(text) for _, text in self._parts)

    @property
    def sure(self) -> str:
        """What of it will not change any more."""
        return self.text if self.is_final else settled(self.text)

    def holds(self, part_id: str) -> bool:
        """Say whether a part of the answer has this id."""
        return any(known == part_id for known, _ in self._parts)

    def add(self, part_id: str, text: str, *, final: bool) -> None:
        """Take another part, or the last one grown; after the final part nothing changes."""
        if self.is_final:
            return
        if self._parts and grows_from(self._parts[-1][1], text):
            self._parts.pop()
        self._parts.append((part_id, text))
        self._told(final=final)

    def replace(self, part_id: str, text: str, *, final: bool) -> None:
        """Take other words of a part."""
        if not self.is_final:
            self._parts = [(known, text if known == part_id else old) for known, old in self._parts]
            self._told(final=final)

    def _told(self, *, final: bool) -> None:
        self.is_final = final
        for wait in self.waits:
            wait.wake()


class Wait:
    """One request that waits for the answer to a line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._ended: Refused | None = None
        self._beats = False
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Let it look."""
        self._news.set()

    def beat(self) -> None:
        """Let it show that it lives."""
        self._beats = True
        self.wake()

    def end(self, refusal: Refused) -> None:
        """Let it wait no longer."""
        self._ended = refusal
        self.wake()

    async def answer(self) -> str:
        """Return the answer when it is final.

        Raises:
            Refused: it was not waited for any longer.
        """
        while not self.line.is_final:
            await self._next()
        return self.line.text

    async def deltas(self) -> AsyncGenerator[str]:
        """Yield the answer piece by piece as it grows, and nothing from time to time as a sign of life.

        Raises:
            Refused: it was not waited for any longer.
        """
        told = ""
        while True:
            final, sure = self.line.is_final, self.line.sure
            new = sure[len(told) :] if sure.startswith(told) else ""
            if final and not sure.startswith(told):
                new = f"{_BETWEEN}{sure}"  # what was shown is no beginning of it
            if new:
                told = sure
                yield new
            if final:
                return
            await self._next()
            if self._beats:
                self._beats = False
                yield ""

    async def _next(self) -> None:
        if self._ended is not None:
            raise self._ended
        await self._news.wait()
        self._news.clear()


class Lines:
    """All lines that are known."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, str], Line] = OrderedDict()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._waiting

    def ask(self, chat_id: str, message_id: str, fingerprint: str) -> Wait:
        """Begin to wait for the answer to a line, which may be there already.

        Raises:
            Refused: the line said something else before, or too many wait.
        """
        known = self._lines.get((chat_id, message_id))
        if known is not None and known.fingerprint not in (None, fingerprint):
            raise Refused(409, "idempotency_conflict", "this Idempotency-Key was used with another message")
        if self._waiting >= MOST_WAITING:
            raise Refused(429, "too_many_waiting", f"{MOST_WAITING} requests wait already", retry_after=5)
        line = known or self._opened(chat_id, message_id)
        line.fingerprint = fingerprint
        wait = Wait(line)
        line.waits.add(wait)
        self._waiting += 1
        return wait

    def leave(self, wait: Wait) -> None:
        """Wait no longer; harmless when done twice."""
        if wait in wait.line.waits:
            wait.line.waits.discard(wait)
            self._waiting -= 1

    def forget(self, line: Line) -> None:
        """Forget a line that was not kept, unless somebody else waits for it."""
        if not line.waits and not line.size:
            self._lines.pop((line.chat_id, line.message_id), None)

    def answered(
        self, chat_id: str, message_ids: Iterable[str], part_id: str, text: str, *, final: bool
    ) -> None:
        """Take a part of the answer to lines of a chat, whether anybody waits or not."""
        for message_id in message_ids:
            line = self._lines.get((chat_id, message_id)) or self._opened(chat_id, message_id)
            line.add(part_id, text, final=final)

    def edited(self, chat_id: str, part_id: str, text: str, *, final: bool) -> bool:
        """Take other words of a part that was sent before, and say whether it is known."""
        found = [one for one in self._lines.values() if one.chat_id == chat_id and one.holds(part_id)]
        for line in found:
            line.replace(part_id, text, final=final)
        return bool(found)

    def find(self, chat_id: str, message_id: str) -> Line | None:
        """Return what is known of a line."""
        return self._lines.get((chat_id, message_id))

    def beat(self) -> None:
        """Let all who wait show that they live."""
        for line in self._lines.values():
            for wait in line.waits:
                wait.beat()

    def end(self, refusal: Refused) -> None:
        """Let nobody wait any longer."""
        for line in self._lines.values():
            for wait in line.waits:
                wait.end(refusal)

    def _opened(self, chat_id: str, message_id: str) -> Line:
        self._trim()
        line = self._lines[chat_id, message_id] = Line(chat_id, message_id)
        return line

    def _trim(self) -> None:
        characters = sum(line.size for line in self._lines.values())
        for key, line in list(self._lines.items()):
            if len(self._lines) <= MOST_LINES and characters <= MOST_CHARACTERS:
                return
            if not line.waits and not line.is_stored:
                del self._lines[key]
                characters -= line.size
