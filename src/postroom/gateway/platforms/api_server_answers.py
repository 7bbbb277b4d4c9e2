"""Exchanges that were asked over the API, what is known of their answers, and who waits for them. In memory.

    opened ──▶ drafts grow, parts come ──▶ final ──▶ forgotten, the oldest first, when there are too many

An answer only ever grows while it is read as a stream: what was sent cannot be taken back.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

from postroom.gateway.drafts import grows_from, settled
from postroom.gateway.platforms.api_server_wire import ResponseShape, error_body
from postroom.gateway.platforms.http_adapter import Refused

MOST_RESPONSES: Final = 100
SIGN_OF_LIFE: Final = ": waiting\n\n"


MOST_WAITING: Final = 1_000
MOST_EXCHANGES: Final = 2_000
MOST_CHARACTERS: Final = 20_000_000
_BETWEEN: Final = "\n\n"


class Exchange:
    """A message and its answer as far as it came."""

    def __init__(self, chat_id: str, message_id: str) -> None:
        self.chat_id = chat_id
        self.message_id = message_id
        self.fingerprint: str | None = None
        """What the message said; None when nobody of this process asked it."""
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
    """One request that waits for the answer to a message."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
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
        while not self.exchange.is_final:
            await self._next()
        return self.exchange.text

    async def deltas(self) -> AsyncGenerator[str]:
        """Yield the answer piece by piece as it grows, and nothing from time to time as a sign of life.

        Raises:
            Refused: it was not waited for any longer.
        """
        told = ""
        while True:
            final, sure = self.exchange.is_final, self.exchange.sure
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


class Exchanges:
    """All messages and their answers that are known."""

    def __init__(self) -> None:
        self._exchanges: OrderedDict[tuple[str, str], Exchange] = OrderedDict()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._waiting

    def ask(self, chat_id: str, message_id: str, fingerprint: str) -> Wait:
        """Begin to wait for the answer to a message, which may be there already.

        Raises:
            Refused: the message said something else before, or too many wait.
        """
        known = self._exchanges.get((chat_id, message_id))
        if known is not None and known.fingerprint not in (None, fingerprint):
            raise Refused(409, "idempotency_conflict", "this Idempotency-Key was used with another message")
        if self._waiting >= MOST_WAITING:
            raise Refused(429, "too_many_waiting", f"{MOST_WAITING} requests wait already", retry_after=5)
        exchange = known or self._opened(chat_id, message_id)
        exchange.fingerprint = fingerprint
        wait = Wait(exchange)
        exchange.waits.add(wait)
        self._waiting += 1
        return wait

    def leave(self, wait: Wait) -> None:
        """Wait no longer; harmless when done twice."""
        if wait in wait.exchange.waits:
            wait.exchange.waits.discard(wait)
            self._waiting -= 1

    def forget(self, exchange: Exchange) -> None:
        """Forget an exchange that was not kept, unless somebody else waits for it."""
        if not exchange.waits and not exchange.size:
            self._exchanges.pop((exchange.chat_id, exchange.message_id), None)

    def answered(
        self, chat_id: str, message_ids: Iterable[str], part_id: str, text: str, *, final: bool
    ) -> None:
        """Take a part of the answer to messages of a chat, whether anybody waits or not."""
        for message_id in message_ids:
            exchange = self._exchanges.get((chat_id, message_id)) or self._opened(chat_id, message_id)
            exchange.add(part_id, text, final=final)

    def edited(self, chat_id: str, part_id: str, text: str, *, final: bool) -> bool:
        """Take other words of a part that was sent before, and say whether it is known."""
        found = [one for one in self._exchanges.values() if one.chat_id == chat_id and one.holds(part_id)]
        for exchange in found:
            exchange.replace(part_id, text, final=final)
        return bool(found)

    def find(self, chat_id: str, message_id: str) -> Exchange | None:
        """Return what is known of a message."""
        return self._exchanges.get((chat_id, message_id))

    def beat(self) -> None:
        """Let all who wait show that they live."""
        for exchange in self._exchanges.values():
            for wait in exchange.waits:
                wait.beat()

    def end(self, refusal: Refused) -> None:
        """Let nobody wait any longer."""
        for exchange in self._exchanges.values():
            for wait in exchange.waits:
                wait.end(refusal)

    def _opened(self, chat_id: str, message_id: str) -> Exchange:
        self._trim()
        exchange = self._exchanges[chat_id, message_id] = Exchange(chat_id, message_id)
        return exchange

    def _trim(self) -> None:
        characters = sum(exchange.size for exchange in self._exchanges.values())
        for key, exchange in list(self._exchanges.items()):
            if len(self._exchanges) <= MOST_EXCHANGES and characters <= MOST_CHARACTERS:
                return
            if not exchange.waits and not exchange.is_stored:
                del self._exchanges[key]
                characters -= exchange.size


class Responses:
    """The newest 100 responses; they are gone after a restart, the conversation is not."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[ResponseShape, Exchange]] = OrderedDict()

    def keep(self, shape: ResponseShape, exchange: Exchange) -> None:
        """Keep a response whose answer may still come; the oldest falls away."""
        self._kept[shape.response_id] = (shape, exchange)
        self._kept.move_to_end(shape.response_id)
        exchange.is_stored = True
        while len(self._kept) > MOST_RESPONSES:
            self.drop(next(iter(self._kept)))

    def drop(self, response_id: str) -> bool:
        """Forget a response and say whether it was known."""
        found = self._kept.pop(response_id, None)
        if found is not None:
            found[1].is_stored = False
        return found is not None

    def chat_of(self, response_id: str) -> str | None:
        """Return the session that a response belongs to."""
        found = self._kept.get(response_id)
        return None if found is None else found[0].chat_id

    def show(self, response_id: str) -> dict[str, Any] | None:
        """Return a response as it stands."""
        found = self._kept.get(response_id)
        if found is None:
            return None
        shape, exchange = found
        return shape.whole("completed", exchange.text) if exchange.is_final else shape.whole("in_progress")


def data_event(data: Mapping[str, Any]) -> str:
    """Return one event that holds JSON, as chat completions send it."""
    return f"data: {json.dumps(data)}\n\n"


async def response_events(wait: Wait, shape: ResponseShape) -> AsyncGenerator[str]:
    """Yield the events of a response; one that is waited for in vain ends with `error`."""
    count = 0

    def event(kind: str, **told: Any) -> str:
        nonlocal count
        data = {"type": kind, **told, "sequence_number": count}
        count += 1
        return f"event: {kind}\n{data_event(data)}"

    place = {"item_id": shape.item_id, "output_index": 0, "content_index": 0}
    told: list[str] = []
    yield event("response.created", response=shape.whole("in_progress"))
    yield event("response.in_progress", response=shape.whole("in_progress"))
    yield event("response.output_item.added", output_index=0, item=shape.item([], "in_progress"))
    yield event("response.content_part.added", **place, part=shape.part(""))
    try:
        async with aclosing(wait.deltas()) as deltas:
            async for delta in deltas:
                if not delta:
                    yield SIGN_OF_LIFE
                    continue
                told.append(delta)
                yield event("response.output_text.delta", **place, delta=delta, logprobs=[])
    except Refused as refusal:
        yield event("error", **error_body(refusal)["error"])
        return
    text = "".join(told)
    yield event("response.output_text.done", **place, text=text, logprobs=[])
    yield event("response.content_part.done", **place, part=shape.part(text))
    item = shape.item([shape.part(text)], "completed")
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=shape.whole("completed", text))
