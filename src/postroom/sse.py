"""Server-sent events as they travel, for every room that streams. Knows nothing of what they tell."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

SLOWEST: Final = 30.0
"""Seconds in which a reader must take one piece; one that does not is cut off, and may come again."""


def entry(kind: str, data: str, *, number: int | str | None = None) -> str:
    """Return one event; `data` is one line. Who is cut off behind it says `number` when it comes again."""
    named = "" if number is None else f"id: {number}\n"
    return f"{named}event: {kind}\ndata: {data}\n\n"


def retry(milliseconds: int) -> str:
    """Return what tells a reader after how long to come again."""
    return f"retry: {milliseconds}\n\n"


def beat(number: int | str | None = None) -> str:
    """Return a sign of life, which no reader is told of; with a number it moves the reader's place on."""
    return ": still here\n\n" if number is None else f": still here\nid: {number}\n\n"


class SseResponse(StreamingResponse):
    """A stream of events; the source is closed as soon as nobody reads any more.

    What waits for a slow reader is one piece, and what the connection buffers.
    """

    def __init__(
        self,
        source: AsyncGenerator[str],
        headers: Mapping[str, str] | None = None,
        *,
        left: Callable[[], None],
    ) -> None:
        """`left` is called when it is over, also when nobody began to read."""
        # A proxy that buffers would keep the events to itself.
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(source, headers={**unbuffered, **(headers or {})}, media_type="text/event-stream")
        self._source = source
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the stream, until it ends or nobody reads it any more."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()

    async def stream_response(self, send: Send) -> None:
        """Send what the source yields, and close it."""

        async def in_time(message: Message) -> None:
            async with asyncio.timeout(SLOWEST):
                await send(message)

        async with aclosing(self._source):
            try:
                await super().stream_response(in_time)
            except TimeoutError as error:
                raise ClientDisconnect from error  # as good as gone
