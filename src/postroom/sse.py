"""A writer of server-sent events for every room that streams; ADR 33 explains why no library is used."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

SLOWEST: Final = 30.0
"""Seconds within which a reader must accept one piece; a slower reader is disconnected, and may return."""


def entry(kind: str, data: str, *, number: int | str | None = None) -> str:
    """Return one event; `data` is one line. A reader that reconnects sends the last `number`."""
    named = "" if number is None else f"id: {number}\n"
    return f"{named}event: {kind}\ndata: {data}\n\n"


def retry(milliseconds: int) -> str:
    """Return the instruction how long a reader must wait before it reconnects."""
    return f"retry: {milliseconds}\n\n"


class SseResponse(StreamingResponse):
    """A stream of events; its source is closed as soon as the reader is gone.

    At most one piece, and the connection's buffer, waits for a slow reader.
    """

    def __init__(
        self,
        source: AsyncGenerator[str],
        headers: Mapping[str, str] | None = None,
        *,
        left: Callable[[], None],
    ) -> None:
        """`left` is called at the end of the stream, even if no client read from it."""
        # A proxy that buffers would keep the events to itself.
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(source, headers={**unbuffered, **(headers or {})}, media_type="text/event-stream")
        self._source = source
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the stream, until it ends or the reader is gone."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()

    async def stream_response(self, send: Send) -> None:
        """Send the pieces of the source, and close it."""

        async def in_time(message: Message) -> None:
            async with asyncio.timeout(SLOWEST):
                await send(message)

        async with aclosing(self._source):
            try:
                await super().stream_response(in_time)
            except TimeoutError as error:
                raise ClientDisconnect from error  # as good as gone
