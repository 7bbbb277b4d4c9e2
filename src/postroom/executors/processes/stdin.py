"""Writes to a program that runs, without ever waiting for it to read."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from postroom.executors.processes.pipes import writing

MOST_UNREAD: Final = 1 << 20
"""Bytes beside the longest thing it was told that a program may leave unread."""


class StdinWriter(asyncio.Protocol):
    """The end of a pipe or socket that is written to; `on_full` is called when the program does not read."""

    def __init__(self, on_full: Callable[[], None]) -> None:
        self._on_full = on_full
        self._let_go = asyncio.Event()
        self._longest = 0
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def on(
        cls,
        process: "subprocess.Popen[bytes]",
        on_full: Callable[[], None],
        *,
        platform: str = sys.platform,
    ) -> "StdinWriter":
        """Return the writer to a program that was started with a pipe."""
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        writer = cls(on_full)
        await writing(process.stdin, lambda: writer, platform=platform)
        return writer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def write(self, line: bytes) -> None:
        """Write a line; it is dropped when the pipe is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._longest = max(self._longest, len(line))
        transport.write(line)
        if transport.get_write_buffer_size() > self._longest + MOST_UNREAD:
            self._on_full()

    def finish(self) -> None:
        """Close the pipe when everything that was written has been read."""
        if self._transport is not None:
            self._transport.close()

    async def drop(self) -> None:
        """Close the pipe at once, and return when it is closed."""
        if self._transport is not None and not self._let_go.is_set():
            self._transport.abort()
            await self._let_go.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the descriptor is closed."""
        self._let_go.set()
