"""An endpoint of the OpenAI chat protocol on real sockets with scripted answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CUT = object()
SILENCE = object()


def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> str:
    said: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps({**said, 'usage': usage})}\n\n"


def fragment(index: int | None = 0, id: str | None = None, name: str | None = None, args: str = "") -> str:
    function = {"arguments": args, **({"name": name} if name else {})}
    numbered = {"index": index} if index is not None else {}
    return chunk(tool_calls=[{**numbered, **({"id": id} if id else {}), "function": function}])


END = "data: [DONE]\n\n"


class FakeEndpoint:
    """Answers each request with the next answer; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.bodies: list[Any] = []
        self.heads: list[str] = []
        self.url = ""
        self.hang_ups = 0
        """How many callers closed their connection during a silence."""
        self._came = asyncio.Condition()
        self._over = asyncio.Event()
        self._silent: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEndpoint"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            self._over.set()
            server.close()
            if self._silent:
                await asyncio.wait(self._silent)

    async def asked(self, times: int) -> None:
        """Return when it was called this often."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.bodies) >= times)

    async def hung_up(self, times: int) -> None:
        """Return when this many callers have hung up during a silence."""
        async with self._came:
            await self._came.wait_for(lambda: self.hang_ups >= times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        self.heads.append(head)
        self.bodies.append(json.loads(await reader.readexactly(length)))
        async with self._came:
            self._came.notify_all()
        answer = self.answers.pop(0)
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await self._stream(reader, writer, answer)
        writer.close()

    async def _silence(self, reader: asyncio.StreamReader) -> None:
        """Send nothing until the test ends, or until the caller hangs up."""
        task = asyncio.current_task()
        assert task is not None
        self._silent.add(task)
        task.add_done_callback(self._silent.discard)
        over, closed = asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(reader.read())
        done, waiting = await asyncio.wait({over, closed}, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        if closed in done:
            async with self._came:
                self.hang_ups += 1
                self._came.notify_all()

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: Sequence[Any]
    ) -> None:
        writer.write(HEAD)
        for piece in pieces:
            if piece is CUT:
                writer.transport.abort()
                return
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            if piece is SILENCE:
                await self._silence(reader)
                return
            data = piece if isinstance(piece, bytes) else piece.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")


def refusal(status: int, body: Any = "", **headers: str) -> bytes:
    text = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + text
