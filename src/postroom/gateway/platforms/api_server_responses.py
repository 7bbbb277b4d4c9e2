"""Responses: those that can be fetched again, in memory, and the events of one that is streamed."""

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from postroom.gateway.platforms.api_server_lines import Line, Wait
from postroom.gateway.platforms.api_server_wire import ResponseShape, error_body
from postroom.gateway.platforms.http_adapter import Refused

MOST_RESPONSES: Final = 100
SIGN_OF_LIFE: Final = ": waiting\n\n"


class Responses:
    """The newest 100 responses; they are gone after a restart, the conversation is not."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[ResponseShape, Line]] = OrderedDict()

    def keep(self, shape: ResponseShape, line: Line) -> None:
        """Keep a response whose answer may still come; the oldest falls away."""
        self._kept[shape.response_id] = (shape, line)
        self._kept.move_to_end(shape.response_id)
        line.is_stored = True
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
        shape, line = found
        return shape.whole("completed", line.text) if line.is_final else shape.whole("in_progress")


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
