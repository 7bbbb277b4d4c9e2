"""The partners of a server: a Telegram, a model, a caller's own address. They see whether two of it work at once."""

import asyncio
import json
import re
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from channels.fake_telegram import Call, FakeTelegram
from networks import Network
from postroom.gateway import wording
from runtime.endpoint import END, HEAD, chunk

NONCE = re.compile(r"nonce-[0-9a-z-]+")
PER_CONVERSATION = 20
"""Messages after which a caller begins another conversation: what a model is shown stays bounded."""
THINKS = 0.05
"""Seconds that the model takes for an answer."""
ONE_ANSWER = HEAD.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
"""The model declares that it takes one request on each connection: otherwise the next request may meet its end."""


def conversation_of(names: str) -> str:
    """Return the conversation of a message, by a name in it: channel, number of its caller, number of the message."""
    *who, number = re.sub(r"nonce-(file-)?|-slow", "", names.split()[-1]).split("-")
    return "-".join((*who, str(int(number) // PER_CONVERSATION)))


@dataclass
class Heard:
    """The server's responses to one message of a chat, by the name of each answer."""

    texts: dict[str, str] = field(default_factory=dict)

    @property
    def unmarked(self) -> int:
        """How many of them do not say that they may be duplicates."""
        return sum(not text.startswith(wording.POSSIBLE_DUPLICATE) for text in self.texts.values())


@dataclass(frozen=True, eq=False)
class _Poll:
    """An open long poll of one of the servers."""

    server: int
    reader: asyncio.StreamReader

    @property
    def is_over(self) -> bool:
        """Whether the caller has gone: the connections of a process end with it."""
        return self.reader.at_eof() or self.reader.exception() is not None


_ASKED_BY: ContextVar[tuple[int, asyncio.StreamReader]] = ContextVar("asked_by")


class Telegram(FakeTelegram):
    """A Telegram that delivers each message of a chat at once, and keeps no other state.

    Each server has a separate address for it, so that two that poll at once are detected.
    """

    def __init__(self, said: Callable[[int, str, str], Awaitable[None]]) -> None:
        super().__init__()
        self._heard = said
        self._polls: set[_Poll] = set()
        self.still: set[int] = set()
        """The servers that were stopped: what they had asked before stays open."""
        self.pollers: Counter[int] = Counter()
        """How often each server asked for news."""
        self.poller = 0
        """The server that asked last."""
        self.two_at_once: list[str] = []

    @asynccontextmanager
    async def serving_each(self, servers: int, apart: Sequence[Network]) -> AsyncIterator[list[str]]:
        """Give an address for each server, in its network if it has one."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.serving())
            addresses = []
            for number in range(servers):
                listening = apart[number].listening() if apart else socket.create_server(("127.0.0.1", 0))
                server = await asyncio.start_server(partial(self._of, number), sock=listening)
                stack.callback(server.close)
                addresses.append(f"http://127.0.0.1:{listening.getsockname()[1]}")
            yield addresses

    async def _of(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ASKED_BY.set((number, reader))
        await self._connection(reader, writer)

    async def _getUpdates(self, call: Call) -> Any:
        if not (asked_by := _ASKED_BY.get(None)):
            return await super()._getUpdates(call)
        poll = _Poll(*asked_by)
        self.pollers[poll.server] += 1
        self.poller = poll.server
        others = [one for one in self._polls if one.server not in {poll.server, *self.still}]
        if others:
            await settle()
        for one in others:
            if one in self._polls and not one.is_over:
                self.two_at_once.append(
                    f"server {poll.server} asks Telegram for news while {one.server} does"
                )
        self._polls.add(poll)
        try:
            return await super()._getUpdates(call)
        finally:
            self._polls.discard(poll)

    async def _sendMessage(self, call: Call) -> Any:
        answer = await super()._sendMessage(call)
        if isinstance(answer, dict):
            await self._heard(int(call.fields["chat_id"]), str(answer["message_id"]), answer["text"])
        for kept in (self.calls, self.paths, self.messages):
            kept.clear()
        return answer


async def settle() -> None:
    """Wait until earlier data is read: the end of one connection may come after the beginning of another."""
    for _ in range(5):
        await asyncio.sleep(0)


class Peers:
    """The partners of the server. All of it lives on while the server is killed."""

    def __init__(self) -> None:
        self.telegram = Telegram(self._said_in_chat)
        self.telegram_urls: list[str] = []
        """Of each server."""
        self.model_url = self.callback_url = ""
        self.called_back: dict[str, Heard] = defaultdict(Heard)
        """By delivery."""
        self.news = asyncio.Condition()
        self.in_chat: dict[int, Heard] = defaultdict(Heard)
        """The messages in each chat of Telegram, by id."""
        self.numbers = count(1)
        """Numbers of Telegram's updates."""
        self._thinking: dict[str, asyncio.StreamReader] = {}
        self.two_at_once: list[str] = []
        """Observations of two runs of one conversation at once."""

    @asynccontextmanager
    async def serving(self, servers: int = 1, apart: Sequence[Network] = ()) -> AsyncIterator["Peers"]:
        """Serve for this many servers, each here or in a separate network."""
        async with AsyncExitStack() as stack:
            self.telegram_urls = await stack.enter_async_context(self.telegram.serving_each(servers, apart))
            for name, answer in (("model_url", self._model), ("callback_url", self._callback)):
                here = socket.create_server(("127.0.0.1", 0))
                port = here.getsockname()[1]
                for listening in (here, *(one.listening(port) for one in apart)):
                    server = await asyncio.start_server(answer, sock=listening)
                    stack.callback(server.close)
                setattr(self, name, f"http://127.0.0.1:{port}")
            yield self
        await settle()

    async def _model(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer as a model does, with the names that the last message has; files in it count too."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            _, body = await _request(reader)
            last = [one for one in json.loads(body)["messages"] if one["role"] == "user"][-1]
            names = " ".join(sorted(set(NONCE.findall(json.dumps(last)))))
            await self._think(conversation_of(names), reader)
            writer.write(ONE_ANSWER)
            for piece in (chunk(content="re: "), chunk("stop", content=names), END):
                data = piece.encode()
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    async def _think(self, conversation: str, reader: asyncio.StreamReader) -> None:
        """Take a moment for an answer; two at once for one conversation are two runs at once."""
        if conversation in self._thinking:
            await settle()
            other = self._thinking.get(conversation)
            if other is not None and not other.at_eof() and other.exception() is None:
                self.two_at_once.append(f"{conversation} has two runs at once: both ask the model")
        self._thinking[conversation] = reader
        await asyncio.sleep(THINKS)
        if self._thinking.get(conversation) is reader:
            del self._thinking[conversation]

    async def _said_in_chat(self, chat: int, message_id: str, text: str) -> None:
        self.in_chat[chat].texts[message_id] = text
        await self._ring()

    async def _ring(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def _callback(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take an answer to a webhook."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head, body = await _request(reader)
            document = json.loads(body)
            for delivery in document["deliveries"]:
                self.called_back[delivery].texts[head["x-postroom-delivery"]] = document["text"]
            await self._ring()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    rows = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:]
    head = {row.partition(":")[0].lower(): row.partition(":")[2].strip() for row in rows if row}
    return head, await reader.readexactly(int(head.get("content-length", "0")))
