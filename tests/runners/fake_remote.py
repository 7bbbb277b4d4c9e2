"""A fake of another server that runs agents, for tests: on real sockets, with scripted answers."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

CUT = object()
SILENCE = object()


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self.body)


class FakeRemote:
    """Answers each run with the next answer, each wish to cancel with 204; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[Asked] = []
        self.url = ""
        self._came = asyncio.Condition()
        self._over = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeRemote"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/run"
        try:
            yield self
        finally:
            self._over.set()
            server.close()

    @property
    def runs(self) -> list[Asked]:
        return [one for one in self.asked if one.told["kind"] == "run"]

    @property
    def cancels(self) -> list[Asked]:
        return [one for one in self.asked if one.told["kind"] == "cancel"]

    async def come(self, times: int) -> None:
        """Return when this many requests came."""
        async with asyncio.timeout(60), self._came:
            await self._came.wait_for(lambda: len(self.asked) >= times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                asked = await _request(head, reader)
                self.asked.append(asked)
                async with self._came:
                    self._came.notify_all()
                is_run = asked.told["kind"] == "run"
                answer = self.answers.pop(0) if is_run else reply(204)
                if answer is CUT:
                    return
                if answer is SILENCE:
                    await self._over.wait()
                    return
                writer.write(answer(asked) if callable(answer) else answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.transport.abort()


async def _request(head: str, reader: asyncio.StreamReader) -> Asked:
    first, *lines = head.splitlines()
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers["content-length"]))
    return Asked(path=first.split()[1], headers=headers, body=body)


def reply(status: int, body: bytes | Any = b"", **headers: str) -> bytes:
    """Return an answer in its wire form."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def says(text: str) -> Any:
    """Return an answer that is the result."""
    return lambda asked: reply(200, {"kind": "result", "dispatch": asked.told["dispatch"], "text": text})


def sign(secret: str, now: int, body: bytes) -> dict[str, str]:
    """Sign as the documents describe; written again here, so that the test checks the recipe."""
    timestamp = str(now // 1000)
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Postroom-Timestamp": timestamp, "X-Postroom-Signature": f"v1={digest}"}
