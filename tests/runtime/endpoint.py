"""An endpoint of the OpenAI chat protocol on real sockets that says exactly what it is told to."""

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
        self._came = asyncio.Condition()
        self._over = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEndpoint"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            self._over.set()
            server.close()

    async def asked(self, times: int) -> None:
        """Return when it was asked so often."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.bodies) >= times)

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
            await self._stream(writer, answer)
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, pieces: Sequence[Any]) -> None:
        writer.write(HEAD)
        for piece in pieces:
            if piece is CUT:
                writer.transport.abort()
                return
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            if piece is SILENCE:
                await self._over.wait()
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
