"""Formats server-sent events for all parts of the server that stream (ADR 33: why without a library)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

SLOWEST: Final = 30.0
"""Number of seconds within which a reader must accept a piece of data.

A slower reader is disconnected, and may reconnect.
"""


def entry(kind: str, data: str, *, number: int | str | None = None) -> str:
    """Format a server-sent event; `data` must be one line.

    A reader that reconnects sends the last `number` that the reader has received.
    """
    named = "" if number is None else f"id: {number}\n"
    return f"{named}event: {kind}\ndata: {data}\n\n"


def retry(milliseconds: int) -> str:
    """Format the field that tells a reader how long to wait before a new connection."""
    return f"retry: {milliseconds}\n\n"


class SseResponse(StreamingResponse):
    """A response that streams events; the source is closed when the reader disconnects.

    For a slow reader, at most one piece waits in addition to the connection's buffer.
    """

    def __init__(
        self,
        source: AsyncGenerator[str],
        headers: Mapping[str, str] | None = None,
        *,
        left: Callable[[], None],
    ) -> None:
        """Create the response; `left` is called at the end of the stream, even if nothing was read."""
        # a proxy that buffers would delay the events
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(source, headers={**unbuffered, **(headers or {})}, media_type="text/event-stream")
        self._source = source
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until the stream ends or the reader disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()

    async def stream_response(self, send: Send) -> None:
        """Send the pieces of the source, and close the source."""

        async def in_time(message: Message) -> None:
            async with asyncio.timeout(SLOWEST):
                await send(message)

        async with aclosing(self._source):
            try:
                await super().stream_response(in_time)
            except TimeoutError as error:
                raise ClientDisconnect from error  # treat a reader that is too slow as disconnected
