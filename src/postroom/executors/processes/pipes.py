"""The output and input of a program and the control socket of its shim, as protocols of the event loop."""

import asyncio
from collections.abc import Callable
from typing import IO, Final

from typing_extensions import override

from postroom.executors.processes.limits import READ_BYTES

MOST_UNREAD: Final = 1 << 20
"""The bytes that a program may leave unread, in addition to its longest message."""


class Output(asyncio.StreamReaderProtocol):
    """The output of a program, which is read piece by piece."""

    def __init__(self) -> None:
        """Read nothing yet."""
        self.reader = asyncio.StreamReader(limit=READ_BYTES)
        super().__init__(self.reader)
        self._let_go = asyncio.Event()
        self._pipe: asyncio.BaseTransport | None = None

    @classmethod
    async def of(cls, end: IO[bytes]) -> "Output":
        """Begin to read a pipe, and return what reads it."""
        return (await asyncio.get_running_loop().connect_read_pipe(cls, end))[1]

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        super().connection_made(transport)
        self._pipe = transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the descriptor is closed."""
        super().connection_lost(exc)
        self._let_go.set()

    async def close(self) -> None:
        """Return when the descriptor is closed."""
        if self._pipe is not None:
            self._pipe.close()
            await self._let_go.wait()


class StdinWriter(asyncio.Protocol):
    """Writes to a program without waiting for it; `on_full` is called if the program does not read."""

    def __init__(self, on_full: Callable[[], None]) -> None:
        self._on_full = on_full
        self._closed = asyncio.Event()
        self._longest = 0
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def on(cls, stdin: IO[bytes], on_full: Callable[[], None]) -> "StdinWriter":
        """Return the writer to a pipe."""
        writer = cls(on_full)
        await asyncio.get_running_loop().connect_write_pipe(lambda: writer, stdin)
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
        if self._transport is not None and not self._closed.is_set():
            self._transport.abort()
            await self._closed.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the descriptor is closed."""
        self._closed.set()


class Control(asyncio.Protocol):
    """The server's end of the control socket of a shim, which `shim.py` describes."""

    def __init__(self) -> None:
        """Know nothing of the program yet."""
        self.exited, self.gone = asyncio.Event(), asyncio.Event()
        """Set when the program has exited; when none of its processes is left, or the shim itself is gone."""
        self.code: int | None = None
        """The exit code of the program, negative for a signal; None before it has exited."""
        self.left: tuple[int, ...] = ()
        """The processes that a kill had not ended when the shim last looked."""
        self.is_late = False
        """Whether the shim kills the program at its deadline: this server was frozen, or disconnected."""
        self.is_lost = False
        """Whether the shim ended before it had ended all processes of the program."""
        self._begun = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def say(self, line: str) -> None:
        """Send a line to the shim; do nothing if the shim has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(f"{line}\n".encode())

    def close(self) -> None:
        """Close the socket: the shim kills all remaining processes."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hear the shim."""
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
            else:  # it has ended
                self.gone.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the shim is gone."""
        self.is_lost = not self.gone.is_set()
        self.exited.set()
        self.gone.set()
