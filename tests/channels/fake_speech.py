"""A fake speech endpoint of the OpenAI protocol on loopback. It speaks every text, or answers what a test says."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from postroom.contracts.clock import SystemClock
from postroom.runtime.openai import OpenAISpeaker

KEY = "the key of the speech endpoint"
HEADS = {"opus": b"OggS", "mp3": b"ID3\x04"}


def answer(status: int, body: bytes, *, length: int | None = None) -> bytes:
    """Return an HTTP answer that the client does not ask for again."""
    size = len(body) if length is None else length
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\nx-should-retry: false\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def sound(text: str, sound_format: str) -> bytes:
    """Return the sound of a text as this endpoint makes it."""
    return HEADS[sound_format] + b"\0" + text.encode()


class FakeSpeech:
    """Speaks, or does what the test says."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.faults: deque[bytes] = deque()
        """Whole answers, one for each of the next requests."""
        self.free = asyncio.Event()
        """Until it is set, nothing is answered."""
        self.free.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[OpenAISpeaker]:
        """Serve, and yield the client that the gateway has."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        speaker = await asyncio.to_thread(
            OpenAISpeaker, self.url, KEY, model="mouth", voice="nova", silence_ms=30_000, clock=SystemClock()
        )
        try:
            yield speaker
        finally:
            self.free.set()
            await speaker.close()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("POST /v1/audio/speech "), head
        assert f"Bearer {KEY}" in head
        length = int(head.lower().partition("content-length:")[2].split()[0])
        body = json.loads(await reader.readexactly(length))
        self.asked.append(body)
        await self.free.wait()
        spoken = answer(200, sound(body["input"], body["response_format"]))
        writer.write(self.faults.popleft() if self.faults else spoken)
        writer.close()
