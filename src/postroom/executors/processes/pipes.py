"""The pipes of a program: asyncio has them, and on Windows, where it takes none of `Popen`'s, threads do."""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Protocol

from typing_extensions import override

from postroom.executors.processes.limits import READ_BYTES


class Pipe(Protocol):
    """The end of a pipe that is read."""

    async def read(self, most: int) -> bytes:
        """Return the next bytes; none at the end."""
        ...

    async def close(self) -> None:
        """Read no more; what was opened here is closed, or is once the program has ended."""
        ...


async def reading(end: IO[bytes], *, platform: str = sys.platform) -> Pipe:
    """Begin to read a pipe of `Popen`."""
    if platform == "win32":
        return ReadByThread(end)
    transport, protocol = await asyncio.get_running_loop().connect_read_pipe(_Read, end)
    protocol.transport = transport
    return protocol


async def writing(
    end: IO[bytes], protocol: Callable[[], asyncio.BaseProtocol], *, platform: str = sys.platform
) -> None:
    """Begin to write to a pipe of `Popen`; the protocol is given the transport."""
    if platform == "win32":
        made = protocol()
        made.connection_made(WrittenByThread(end, made))
        return
    await asyncio.get_running_loop().connect_write_pipe(protocol, end)


class _Read(asyncio.StreamReaderProtocol):
    """A pipe that the event loop reads."""

    def __init__(self) -> None:
        self._reader = asyncio.StreamReader(limit=READ_BYTES)
        super().__init__(self._reader)
        self._let_go = asyncio.Event()
        self.transport: asyncio.ReadTransport | None = None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the descriptor is closed."""
        super().connection_lost(exc)
        self._let_go.set()

    async def read(self, most: int) -> bytes:
        """Return the next bytes; none at the end."""
        return await self._reader.read(most)

    async def close(self) -> None:
        """Return when the descriptor is closed."""
        if self.transport is not None:
            self.transport.close()
            await self._let_go.wait()


class ReadByThread:
    """A pipe that a thread reads, a piece ahead of whoever takes them.

    The thread closes it at its end, which comes with the last process that has the other one.
    """

    def __init__(self, end: IO[bytes]) -> None:
        """Begin to read."""
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(1)
        self._is_closed = self._is_over = False
        threading.Thread(target=self._serve, name="output of a program", daemon=True).start()

    async def read(self, most: int) -> bytes:
        """Return the next bytes, as many as came; none at the end."""
        if self._is_over:
            return b""
        piece = await self._pieces.get()
        self._is_over = not piece
        self._room.release()
        return piece

    async def close(self) -> None:
        """Let the thread read on by itself: nobody who writes waits for a reader."""
        self._is_closed = True
        self._room.release()

    def _serve(self) -> None:
        while piece := self._next():
            if not self._is_closed:
                self._hand_over(piece)
                self._room.acquire()
        self._hand_over(b"")
        self._end.close()

    def _next(self) -> bytes:
        try:
            return os.read(self._end.fileno(), READ_BYTES)
        except (OSError, ValueError):  # broken, or closed by the end of the event loop
            return b""

    def _hand_over(self, piece: bytes) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


class WrittenByThread(asyncio.WriteTransport):
    """A pipe to which a thread writes, however slowly the program reads."""

    def __init__(self, end: IO[bytes], protocol: asyncio.BaseProtocol) -> None:
        """Begin to write."""
        super().__init__()
        self._end = end
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unread = 0
        self._is_closing = self._is_dropped = False
        threading.Thread(target=self._serve, name="input of a program", daemon=True).start()

    @override
    def write(self, data: "bytes | bytearray | memoryview") -> None:
        self._unread += len(data)
        self._pieces.put(bytes(data))

    @override
    def get_write_buffer_size(self) -> int:
        return self._unread

    @override
    def is_closing(self) -> bool:
        return self._is_closing

    @override
    def close(self) -> None:
        self._is_closing = True
        self._pieces.put(None)

    @override
    def abort(self) -> None:
        """Write no more. A write that the program does not read ends with the program."""
        self._is_dropped = True
        self.close()
        self._protocol.connection_lost(None)

    def _serve(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads any more
            while (piece := self._pieces.get()) is not None and not self._is_dropped:
                self._end.write(piece)
                self._end.flush()
                self._tell(self._was_read, len(piece))
        with suppress(OSError, ValueError):
            self._end.close()
        self._tell(self._has_ended)

    def _tell(self, what: Callable[..., None], *words: int) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(what, *words)

    def _was_read(self, size: int) -> None:
        self._unread -= size

    def _has_ended(self) -> None:
        self._is_closing = True
        if not self._is_dropped:
            self._protocol.connection_lost(None)
