"""Exchanges of the API, their known answers, and their waiting callers. In memory.

    opened ──▶ drafts grow, parts arrive ──▶ final ──▶ forgotten, the oldest first, when there are too many

While an answer is read as a stream it only grows: sent text cannot be recalled.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.types import Receive

from postroom.contracts.records import replace
from postroom.gateway.drafts import grows_from, settled
from postroom.gateway.platforms.api_server_shapes import Answer, ResponseShape, error_body
from postroom.gateway.platforms.refused import Refused

SIGN_OF_LIFE: Final = ": waiting\n\n"


MOST_WAITING: Final = 1_000
MOST_EXCHANGES: Final = 2_000
MOST_CHARACTERS: Final = 20_000_000
_BETWEEN: Final = "\n\n"
_HUNG_UP: Final = "hung_up"
_NOTHING: Final[Mapping[str, Any]] = {}


class Exchange:
    """A message and its answer as far as it came."""

    def __init__(self, chat_id: str, message_id: str) -> None:
        self.chat_id = chat_id
        self.message_id = message_id
        self.fingerprint: str | None = None
        """The fingerprint of the message; None if this process did not receive it."""
        self.answer: Answer | None = None
        """The answer, when it is whole."""
        self.since = 0
        """When it was asked first, as far as that is known here."""
        self.is_collected = False
        """Whether a caller was given the answer, or the id under which it can be fetched."""
        self.is_background = False
        """Whether its run continues when nobody waits."""
        self.is_cancelled = False
        """Whether its caller hung up or cancelled it before there was an answer."""
        self.has_begun_again = False
        """Whether a started answer broke off and another attempt wrote it again."""
        self.reasoning = ""
        """The reasoning of the model as far as it came."""
        self.waits: set[Wait] = set()
        self._parts: list[tuple[str, str]] = []

    @property
    def is_final(self) -> bool:
        """Whether the answer is whole."""
        return self.answer is not None

    @property
    def has_failed(self) -> bool:
        """Whether there will be no answer: it was cancelled or rejected, or its run failed."""
        return self.is_cancelled or (self.answer is not None and self.answer.failure is not None)

    @property
    def text(self) -> str:
        """The answer as far as it came."""
        return _BETWEEN.join(text for _, text in self._parts if text)

    @property
    def size(self) -> int:
        """The characters that it holds."""
        return len(self.reasoning) + sum(len(text) for _, text in self._parts)

    @property
    def sure(self) -> str:
        """The part of the text that will not change."""
        return self.answer.text if self.answer is not None else settled(self.text)

    def holds(self, part_id: str) -> bool:
        """Return whether a part of the answer has this id."""
        return any(known == part_id for known, _ in self._parts)

    def add(self, part_id: str, text: str, *, final: bool, details: Mapping[str, Any] = _NOTHING) -> None:
        """Take another part, or the last one grown; after the final part nothing changes."""
        if self.is_final:
            return
        if self._parts and grows_from(self._parts[-1][1], text):
            self._parts.pop()
        self._parts.append((part_id, text))
        self._told(final, details)

    def replace(self, part_id: str, text: str, *, final: bool, details: Mapping[str, Any] = _NOTHING) -> None:
        """Take other words of a part."""
        if not self.is_final:
            self._parts = [(known, text if known == part_id else old) for known, old in self._parts]
            self._told(final, details)

    def cancel(self) -> None:
        """End the answer with the text so far, as cancelled; a final answer is unchanged."""
        if self.answer is None:
            self.is_cancelled = True
            self.answer = Answer(text=self.text, is_cancelled=True)
            for wait in self.waits:
                wait.wake()

    def _told(self, final: bool, details: Mapping[str, Any]) -> None:
        self.reasoning = details.get("reasoning") or self.reasoning
        if final:
            self.answer = Answer.of(self.text, {**details, "reasoning": self.reasoning})
        for wait in self.waits:
            wait.wake()


class Wait:
    """One request that waits for the answer to a message."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.thought = ""
        """The reasoning that came with the newest delta."""
        self._ended: Refused | None = None
        self._beats = False
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Let it look."""
        self._news.set()

    def beat(self) -> None:
        """Request a heartbeat."""
        self._beats = True
        self.wake()

    def end(self, refusal: Refused) -> None:
        """End its wait."""
        self._ended = refusal
        self.wake()

    async def end_with(self, receive: Receive) -> None:
        """Wait no longer once the caller hangs up."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end(Refused(503, _HUNG_UP, "the caller hung up"))

    @property
    def is_abandoned(self) -> bool:
        """Whether its end means that the caller hung up: neither an answer nor an error was sent."""
        is_refused = self._ended is not None and self._ended.code != _HUNG_UP
        return not self.exchange.is_final and not is_refused

    async def answer(self) -> Answer:
        """Return the answer when it is final.

        Raises:
            Refused: it was not waited for any longer, or there is none.
        """
        while self.exchange.answer is None:
            await self._next()
        return self.collected()

    def collected(self) -> Answer:
        """Return the whole answer, and record that its caller has it.

        Raises:
            Refused: there is none.
        """
        answer = self.exchange.answer or Answer(text="")
        self.exchange.is_collected = True
        if answer.failure is not None:
            raise answer.failure
        return answer

    async def deltas(self) -> AsyncGenerator[str]:
        """Yield the answer piece by piece as it grows, and an empty text for reasoning and as a sign of life.

        Raises:
            Refused: it was not waited for any longer, or there is none.
        """
        told = reasoned = ""
        while True:
            final, sure = self.exchange.is_final, self.exchange.sure
            if final and self.exchange.has_begun_again and not _goes_on(told, sure):
                raise self._broken()
            if final:
                self.collected()
            new = sure[len(told) :] if sure.startswith(told) else ""
            if final and not _goes_on(told, sure):
                new = f"{_BETWEEN}{sure}"  # the sent text is neither its beginning nor its end
            reasoning = self.exchange.reasoning
            self.thought = reasoning[len(reasoned) :] if reasoning.startswith(reasoned) else ""
            if new or self.thought:
                told, reasoned = sure if new else told, reasoned + self.thought
                yield new
                self.thought = ""
            if final:
                return
            await self._next()
            if self._beats:
                self._beats = False
                yield ""

    def _broken(self) -> Refused:
        """Return the failure that says that the caller has the beginning of another answer."""
        answer = self.exchange.answer
        if answer is not None and answer.failure is not None:
            return answer.failure
        key = self.exchange.message_id
        told = (
            "the model's answer broke off after a part of it was sent, and the next attempt has "
            f"other words: discard that part and ask again with Idempotency-Key: {key} for the whole "
            "answer"
        )
        return Refused(502, "model_broke_off", told)

    async def _next(self) -> None:
        if self._ended is not None:
            raise self._ended
        await self._news.wait()
        self._news.clear()


def _goes_on(told: str, sure: str) -> bool:
    """Return whether a whole answer continues the sent text, or is the end of it."""
    return sure.startswith(told) or told.endswith(sure)


def refuse_other_content(earlier: str | None, fingerprint: str) -> None:
    """Refuse a key whose earlier request has another fingerprint; None if the earlier response is unknown.

    Raises:
        Refused: The fingerprints differ.
    """
    if earlier not in (None, fingerprint):
        raise Refused(409, "idempotency_conflict", "this Idempotency-Key was used with another message")


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
        if known is not None:
            refuse_other_content(known.fingerprint, fingerprint)
        if self._waiting >= MOST_WAITING:
            raise Refused(
                429, "too_many_waiting", f"{MOST_WAITING} requests are waiting already", retry_after=5
            )
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
        """Forget an exchange whose message was not stored, unless another caller waits for it."""
        if not exchange.waits and not exchange.size:
            self._exchanges.pop((exchange.chat_id, exchange.message_id), None)

    def answered(
        self,
        chat_id: str,
        message_ids: Iterable[str],
        part_id: str,
        text: str,
        *,
        final: bool,
        details: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """Take a part of the answer to messages of a chat, whether anybody waits or not."""
        for message_id in message_ids:
            exchange = self._exchanges.get((chat_id, message_id)) or self._opened(chat_id, message_id)
            exchange.add(part_id, text, final=final, details=details)

    def edited(
        self,
        chat_id: str,
        message_ids: Iterable[str],
        part_id: str,
        text: str,
        *,
        final: bool,
        details: Mapping[str, Any] = _NOTHING,
    ) -> bool:
        """Replace the text of a sent part; return whether the part is known.

        A message that its run has read since then is answered by it, too.
        """
        found = [one for one in self._exchanges.values() if one.chat_id == chat_id and one.holds(part_id)]
        for exchange in found:
            exchange.replace(part_id, text, final=final, details=details)
        if found:
            shown = {one.message_id for one in found}
            others = [one for one in message_ids if one not in shown]
            self.answered(chat_id, others, part_id, text, final=final, details=details)
        return bool(found)

    def begin_again(self, chat_id: str, part_id: str) -> None:
        """Note that another attempt writes a part of an answer again."""
        for exchange in self._exchanges.values():
            if exchange.chat_id == chat_id and exchange.holds(part_id):
                exchange.has_begun_again = True

    def find(self, chat_id: str, message_id: str) -> Exchange | None:
        """Return the exchange of a message, if it is known."""
        return self._exchanges.get((chat_id, message_id))

    def beat(self) -> None:
        """Request a heartbeat of all waiting callers."""
        for exchange in self._exchanges.values():
            for wait in exchange.waits:
                wait.beat()

    def end(self, refusal: Refused) -> None:
        """End all waits."""
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
            if not exchange.waits:
                del self._exchanges[key]
                characters -= exchange.size


def data_event(data: Mapping[str, Any]) -> str:
    """Return one event that holds JSON, as chat completions send it."""
    return f"data: {json.dumps(data)}\n\n"


class _ResponseEvents:
    """The events of one response, numbered.

    In a background response a delta counts as many numbers as it has characters. So a number names the same
    place in each stream of the response, however its text is cut into deltas, and a reader can resume there.
    """

    def __init__(self, shape: ResponseShape, after: int = -1) -> None:
        """Leave out the events with numbers up to `after`."""
        self.text = self.reasoning = ""
        self._shape = shape
        self._has_message = False
        self._count = 0
        self._after = after

    def event(self, kind: str, **told: Any) -> str:
        """Return an event; if the reader has it already, return a sign of life."""
        number, self._count = self._count, self._count + 1
        if number <= self._after:
            return SIGN_OF_LIFE
        return f"event: {kind}\n{data_event({'type': kind, **told, 'sequence_number': number})}"

    @property
    def _index(self) -> int:
        """The number of the message among the items of the response."""
        return int(bool(self.reasoning))

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._shape.item_id, "output_index": self._index, "content_index": 0}

    def thought(self, delta: str) -> Iterator[str]:
        """Yield the events of more reasoning before the text; later reasoning has none: its item is whole.

        A background response has none at all: reasoning is not kept, and a number would name another place
        once the server was restarted.
        """
        if not delta or self._has_message or self._shape.is_background:
            return
        item = self._shape.reasoning("", "in_progress")
        if not self.reasoning:
            yield self.event("response.output_item.added", output_index=0, item=item)
        self.reasoning += delta
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield self.event("response.reasoning_text.delta", **place, delta=delta)

    def _thought_whole(self) -> Iterator[str]:
        """Yield the events that end the reasoning, if there was any."""
        if self.reasoning:
            item = self._shape.reasoning(self.reasoning)
            place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            yield self.event("response.reasoning_text.done", **place, text=self.reasoning)
            yield self.event("response.output_item.done", output_index=0, item=item)

    def said(self, delta: str) -> Iterator[str]:
        """Yield what tells more of the text; its message begins with the first."""
        shape = self._shape
        if not self._has_message:
            yield from self._thought_whole()
            self._has_message = True
            item = shape.item([], "in_progress")
            yield self.event("response.output_item.added", output_index=self._index, item=item)
            yield self.event("response.content_part.added", **self._place, part=shape.part(""))
        self.text += delta
        if delta:
            unread = delta[max(self._after + 1 - self._count, 0) :]
            self._count += len(delta) - 1 if self._shape.is_background else 0
            yield self.event("response.output_text.delta", **self._place, delta=unread, logprobs=[])

    def ended(self, answer: Answer) -> Iterator[str]:
        """Yield what tells that the answer is whole, and the calls in it."""
        if not self._has_message and not answer.calls:
            yield from self.said("")
        if not self._has_message:
            yield from self._thought_whole()
        shape, part = self._shape, self._shape.part(self.text)
        if self._has_message:
            yield self.event("response.output_text.done", **self._place, text=self.text, logprobs=[])
            yield self.event("response.content_part.done", **self._place, part=part)
            item = shape.item([part], "incomplete" if answer.is_partial else "completed")
            yield self.event("response.output_item.done", output_index=self._index, item=item)
        for index, call in enumerate(answer.calls, start=self._index + int(self._has_message)):
            whole, began = shape.call(call), shape.call(call, "in_progress")
            place = {"output_index": index, "item_id": whole["id"]}
            arguments = whole["arguments"]
            yield self.event("response.output_item.added", output_index=index, item=began)
            yield self.event("response.function_call_arguments.delta", **place, delta=arguments)
            kind = "response.function_call_arguments.done"
            yield self.event(kind, **place, name=call.name, arguments=arguments)
            yield self.event("response.output_item.done", output_index=index, item=whole)
        kind = "response.incomplete" if answer.is_partial else "response.completed"
        told = replace(answer, text=self.text, reasoning=self.reasoning)
        yield self.event(kind, response=shape.whole(told))


async def response_events(wait: Wait, shape: ResponseShape, after: int = -1) -> AsyncGenerator[str]:
    """Yield the events of a response with numbers beyond `after`.

    The last event of a failed response is `response.failed`; without an answer in time it is `error`.
    """
    events = _ResponseEvents(shape, after)
    yield events.event("response.created", response=shape.whole())
    yield events.event("response.in_progress", response=shape.whole())
    try:
        async with aclosing(wait.deltas()) as deltas:
            async for delta in deltas:
                for one in events.thought(wait.thought):
                    yield one
                for one in events.said(delta) if delta else (SIGN_OF_LIFE,):
                    yield one
    except Refused as refusal:
        answer = wait.exchange.answer
        if answer is not None:
            yield events.event("response.failed", response=shape.whole(replace(answer, failure=refusal)))
        else:
            yield events.event("error", **error_body(refusal)["error"])
        return
    for one in events.ended(wait.collected()):
        yield one
