"""Handles a program's output in limited memory: keeps its end, splits it into lines, and streams it."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Final

from typing_extensions import override

from postroom.contracts.agent_events import EventSink, TextDelta
from postroom.contracts.clock import Clock
from postroom.contracts.quoting import without_escapes

READ_BYTES: Final = 64 << 10
"""Maximum number of bytes in one read from a pipe; the reader buffers about as many bytes again."""
ERRORS_KEPT: Final = 8 << 10
"""Maximum number of bytes of standard error that are kept for an error message."""
ERRORS_SHOWN: Final = 2_000
"""Maximum number of characters of a program's output in an error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """The limits for ending programs, and for streaming their output.

    `grace` is the time that a program has to end before the program is killed. `kill_wait` is the maximum
    time to wait for a killed program. At most `stream_per_second` characters per second are streamed. A
    program is ended if the total output exceeds `most_output_bytes`.
    """

    grace: timedelta = timedelta(seconds=5)
    leftover_grace: timedelta = timedelta(milliseconds=500)
    """The grace period for processes that remain after the program has exited, unless `grace` is shorter."""
    kill_wait: timedelta = timedelta(seconds=5)
    drain: timedelta = timedelta(seconds=2)
    """The time to wait for the output in a pipe after the last process of the run has ended."""
    handshake: timedelta = timedelta(minutes=2)
    """The time that a program may take to answer the first request of its protocol."""
    farewell: timedelta = timedelta(seconds=2)
    """The time that a program may take to end its turn and exit, before its processes get SIGTERM."""
    stream_per_second: int = 256 << 10
    most_output_bytes: int = 8 << 30


CUT_NOTE: Final = "[the beginning was cut off: {count} bytes]\n"
STREAM_NOTE: Final = "\n[further output is not streamed]\n"
MIN_LINE_BYTES: Final = 4 << 20
"""The minimum limit for the length of a JSON line, because programs report the output of a tool in one line.
"""


class Tail:
    """Keeps the last bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Add bytes to the stream; the oldest bytes are dropped if the limit is exceeded."""
        self.total += len(chunk)
        self._chunks.append(chunk[-self._most :])
        self._kept += len(self._chunks[-1])
        while self._kept - len(self._chunks[0]) >= self._most:
            self._kept -= len(self._chunks.popleft())
        if len(self._chunks) > 2 * self._most // 4_096 + 64:
            # many small pieces take more memory than their bytes
            self._chunks = deque([b"".join(self._chunks)])

    @property
    def is_cut(self) -> bool:
        """Whether bytes of the stream were dropped."""
        return self.total > self._most

    def bytes(self) -> bytes:
        """Return the kept bytes at the end of the stream."""
        return b"".join(self._chunks)[-self._most :]

    def text(self) -> str:
        """Return the kept bytes as text, with a note if earlier bytes were dropped."""
        kept_text = self.plain()
        if not self.is_cut:
            return kept_text
        return CUT_NOTE.format(count=self.total - self._most) + kept_text

    def plain(self) -> str:
        """Return the kept bytes as text, without a note and without escape sequences."""
        kept_data = self.bytes()
        rest = 0
        while self.is_cut and rest < min(3, len(kept_data)) and kept_data[rest] & 0xC0 == 0x80:
            rest += 1  # this byte belongs to a character before the cut
        return without_escapes(kept_data[rest:].decode("utf-8", "replace"))


class Lines:
    """Splits a stream into lines; lines beyond the maximum length are skipped."""

    def __init__(self, most: int) -> None:
        self._most = max(most, MIN_LINE_BYTES)
        self._begun = bytearray()
        self._too_long = False

    def add(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete after a piece of the stream."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._begin(piece)
            yield from self.end()
        self._begin(rest)

    def end(self) -> Iterator[bytes]:
        """Yield the unfinished last line of the stream, if there is one."""
        line, is_kept = bytes(self._begun), not self._too_long
        self._begun, self._too_long = bytearray(), False
        if line.strip() and is_kept:
            yield line

    def _begin(self, piece: bytes) -> None:
        if self._too_long or len(self._begun) + len(piece) > self._most:
            self._begun, self._too_long = bytearray(), True
        else:
            self._begun += piece


class Stream:
    """Passes text on within limits, and adds a note if text is dropped."""

    def __init__(self, sink: EventSink, clock: Clock, *, per_second: int, in_all: int) -> None:
        self._sink = sink
        self._clock = clock
        self._per_second = per_second
        self._left_in_all = in_all
        self._since = clock.now()
        self._left = per_second
        self._is_noted = False

    @property
    def is_over(self) -> bool:
        """Whether the total limit of the stream is reached."""
        return self._left_in_all <= 0

    async def pass_on(self, text: str) -> None:
        """Pass on as much of the text as the limits allow."""
        if self.is_over or not text:
            return
        now = self._clock.now()
        if not self._since <= now < self._since + 1_000:
            self._since, self._left = now, self._per_second
            self._is_noted = False
        most = min(self._left, self._left_in_all)
        shown = text[:most]
        self._left -= len(shown)
        self._left_in_all -= len(shown)
        if shown:
            await self._sink.emit(TextDelta(delta=shown))
        if len(shown) < len(text) and not self._is_noted:
            self._is_noted = True
            await self._sink.emit(TextDelta(delta=STREAM_NOTE))


MAX_UNREAD: Final = 1 << 20
"""Maximum number of bytes that a program may leave unread, in addition to the longest message."""


class Output(asyncio.StreamReaderProtocol):
    """Reads a program's output in pieces."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=READ_BYTES)
        super().__init__(self.reader)
        self._let_go = asyncio.Event()
        self._pipe: asyncio.BaseTransport | None = None

    @classmethod
    async def of(cls, end: IO[bytes]) -> "Output":
        """Start to read a pipe, and return the reader."""
        return (await asyncio.get_running_loop().connect_read_pipe(cls, end))[1]

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the pipe."""
        super().connection_made(transport)
        self._pipe = transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the pipe is closed."""
        super().connection_lost(exc)
        self._let_go.set()

    async def close(self) -> None:
        """Close the pipe, and wait until the file descriptor is closed."""
        if self._pipe is not None:
            self._pipe.close()
            await self._let_go.wait()


class StdinWriter(asyncio.Protocol):
    """Writes lines to a program's standard input without waiting.

    `on_full` is called if the program does not read the input.
    """

    def __init__(self, on_full: Callable[[], None]) -> None:
        self._on_full = on_full
        self._closed = asyncio.Event()
        self._longest = 0
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def on(cls, stdin: IO[bytes], on_full: Callable[[], None]) -> "StdinWriter":
        """Return a writer to a pipe."""
        writer = cls(on_full)
        await asyncio.get_running_loop().connect_write_pipe(lambda: writer, stdin)
        return writer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the pipe."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def write(self, line: bytes) -> None:
        """Write a line to the program; drop the line if the pipe is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._longest = max(self._longest, len(line))
        transport.write(line)
        if transport.get_write_buffer_size() > self._longest + MAX_UNREAD:
            self._on_full()

    def finish(self) -> None:
        """Close the pipe after the program has read all lines."""
        if self._transport is not None:
            self._transport.close()

    async def drop(self) -> None:
        """Close the pipe immediately, and wait until the pipe is closed."""
        if self._transport is not None and not self._closed.is_set():
            self._transport.abort()
            await self._closed.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the pipe is closed."""
        self._closed.set()


class Control(asyncio.Protocol):
    """The server's end of the control socket of a shim (see `shim.py`)."""

    def __init__(self, end: socket.socket) -> None:
        """Create the protocol of the socket `end`, which must not block."""
        self._end = end
        self.exited, self.gone = asyncio.Event(), asyncio.Event()
        """Events that report the end of the program.

        `exited` is set when the program has exited. `gone` is set when no process of the program is left, or
        the shim has ended.
        """
        self.code: int | None = None
        """The program's exit code, negative after a signal, or None before the program has exited."""
        self.left: tuple[int, ...] = ()
        """The processes that the shim still found after its last kill."""
        self.is_late = False
        """Whether the shim killed the program at the deadline, because this server was frozen or
        disconnected.
        """
        self.is_lost = False
        """Whether the shim ended before all processes of the program had ended."""
        self._begun = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the socket."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def say(self, line: str) -> None:
        """Send a line to the shim; do nothing if the shim has ended, or is frozen and the socket full.

        The transport must not send the line. If the shim has ended, the transport would close the socket and
        lose what the shim has reported last, such as the program's exit code.
        """
        with suppress(OSError):
            self._end.send(f"{line}\n".encode())

    def close(self) -> None:
        """Close the socket, which makes the shim kill all remaining processes."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Process a message from the shim."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            about, *numbers = line.split()
            if about == b"exited":
                self.code = int(numbers[0])
                self.exited.set()
            elif about == b"late":
                self.is_late = True
            elif about == b"left":
                self.left = tuple(map(int, numbers))
            else:  # the message is `ended`
                self.gone.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the shim has ended."""
        self.is_lost = not self.gone.is_set()
        self.exited.set()
        self.gone.set()
