"""The callers of the server: each repeats its call until it is confirmed, and records the confirmation.

A caller waits for its answer before the next call, sometimes with a second question right after the first.
"""

import asyncio
import json
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from channels.fake_telegram import message, update
from postroom.contracts.signing import signature
from soak.lines import Cut, Line, McpLine
from soak.peers import NONCE, PER_CONVERSATION, Heard, Peers
from soak.world import ANSWERS, HOOK_SECRET, KEY, Deployment, begun

AGAIN_AFTER, AGAIN_SHARE = 0.2, 0.1
"""Seconds, and the share of its longest pause, after the longer of which a caller tries or polls again: many callers at
once, each with a new client, would leave the servers no processor.
"""
KILLED, MAX_COMMAND_LENGTH = 0.25, 0.3
"""The share of commands that are killed, and the seconds within which; some have ended before."""
RETRYABLE = 75
"""The exit code of a command that found no server, or lost it."""
FAILED = "could not answer"
"""Part of the notice to a person when an agent has failed for good; `FAILED_FOR_NOW` means that retries continue."""
FAILED_FOR_NOW = "could not answer yet"


@dataclass
class Asked:
    """One question, as the one knows it who asked."""

    channel: str
    nonce: str
    is_accepted: bool = False
    """Whether the server has said that it has it."""
    stored_as: str = ""
    """The server's name for it."""
    wanted: tuple[str, ...] = ()
    """The name that its answer must contain."""
    heard: Heard = field(default_factory=Heard)
    told: str = ""
    """The reason for a missing answer, as the caller got it."""
    asked_at: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return bool(self.heard.texts or self.told)


class Caller(ABC):
    """One who asks."""

    channel: str

    def __init__(self, number: int, server: Deployment, around: Peers, think: float) -> None:
        self.number, self.server, self.around, self.think = number, server, around, think
        self.dice = random.Random(f"{self.channel} {number}")
        self.asked: list[Asked] = []
        self.line = Line(server)
        self.again_after = max(AGAIN_AFTER, AGAIN_SHARE * think)

    async def work(self, stop: asyncio.Event) -> None:
        """Ask until the stop, and return when every question has its answer."""
        await self._pause(stop)  # not all at the same moment
        try:
            while not stop.is_set():
                asked = [self._new() for _ in range(self.dice.choice((1, 1, 1, 2)))]
                async with asyncio.TaskGroup() as group:
                    for one in asked:
                        group.create_task(self.ask(one))
                await self._pause(stop)
        finally:
            await self.leave()

    async def _pause(self, stop: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.dice.uniform(0, self.think)):
                await stop.wait()

    async def leave(self) -> None:
        """End the connections."""
        self.line.close()

    def _new(self) -> Asked:
        slow = "-slow" if self.dice.random() < self.server.slow else ""
        nonce = f"nonce-{self.channel}-{self.number}-{len(self.asked)}{slow}"
        self.asked.append(Asked(self.channel, nonce, wanted=(nonce,)))
        return self.asked[-1]

    @property
    def conversation(self) -> str:
        return f"{self.channel}-{self.number}-{len(self.asked) // PER_CONVERSATION}"

    @abstractmethod
    async def ask(self, asked: Asked) -> None:
        """Ask one question, and return when it has its answer."""

    async def until_taken(
        self,
        line: Line,
        method: str,
        path: str,
        body: bytes,
        headers: Callable[[], dict[str, str]],
        good: Sequence[int],
    ) -> tuple[int, object]:
        """Send a request, with headers made for each try, until it is answered with one of these statuses."""
        while True:
            await self.server.is_up.wait()
            try:
                status, told = await line.exchange(method, path, body, headers())
            except Cut:
                await asyncio.sleep(self.again_after)
                continue
            if status in good:
                return status, told
            if status not in (429, 502, 503, 504):
                raise RuntimeError(f"{path} was refused: {status} {told}")
            await asyncio.sleep(self.again_after)


class Mate(Caller):
    """An agent that writes to agents that are run, and to others of its kind, each call under a key."""

    channel = "mail"
    kind = "Mate"
    mates = 1
    """How many there are of its kind."""

    def __init__(self, number: int, server: Deployment, around: Peers, think: float) -> None:
        super().__init__(number, server, around, think)
        self.name = f"{self.kind}{number}"
        self.echo = f"{ANSWERS}{number % server.echoes}"
        self.mcp = McpLine(server)
        self._cursor = 0
        self._reading = asyncio.Lock()
        self._by_nonce: dict[str, Asked] = {}
        self.inbox: list[int] = []
        """The places of what it has read, in the order in which it has."""

    async def ask(self, asked: Asked) -> None:
        others = [f"{self.kind}{other}" for other in range(self.mates) if other != self.number]
        to_echo = not others or self.dice.random() < 0.7
        self._by_nonce[asked.nonce] = asked
        sent = await self._sent(asked.nonce, self.echo if to_echo else self.dice.choice(others))
        asked.is_accepted, asked.stored_as = True, str(sent["deliveries"][0]["payload"]["id"])
        if not to_echo:
            asked.wanted, asked.told = (), "a message to a mate has no answer"
        while not asked.is_over:
            async with self._reading:
                if not asked.is_over:
                    await self.read()
            if not asked.is_over:
                await asyncio.sleep(self.again_after)

    async def _sent(self, nonce: str, to: str) -> dict:
        return await self._called(
            "send_message", sender_name=self.name, subject=nonce, body_md=f"Say {nonce}", to=[to], idempotency_key=nonce
        )  # fmt: skip

    async def read(self) -> None:
        """Read the new messages of the inbox, once and in order."""
        page = await self._called("fetch_inbox_events", agent_name=self.name, after=self._cursor, limit=100)
        for event in page["events"]:
            self.inbox.append(event["seq"])
            asked = self._by_nonce.get(next(iter(NONCE.findall(event["subject"])), ""))
            if asked is None or event["from"] != self.echo:
                continue
            said = await self._called("get_message", agent_name=self.name, message_id=event["id"])
            if said["body_md"].startswith("re: "):
                asked.heard.texts[str(said["id"])] = said["body_md"]
            else:
                asked.told = said["body_md"]
        self._cursor = page["next"]

    async def _called(self, tool: str, /, **arguments: object) -> dict:
        while True:
            await self.server.is_up.wait()
            try:
                return await self.mcp.tool(tool, project_key=str(self.server.yard), **arguments)
            except Cut:
                await asyncio.sleep(self.again_after)

    async def leave(self) -> None:
        await super().leave()
        await self.mcp.close()


class Terminal(Mate):
    """An agent that sends by the command, whose process is killed now and then: it sends again under its key."""

    channel = "command"
    kind = "Hand"
    kills = 0

    async def _sent(self, nonce: str, to: str) -> dict:
        words = ("mail", "send", f"Say {nonce}", "--subject", nonce, "--as", self.name, "--to", to, "--project",
                 str(self.server.yard), "--idempotency-key", nonce, "--json")  # fmt: skip
        said = self.server.data_dir.with_name(f"{nonce}.json")
        while True:
            await self.server.is_up.wait()
            said.unlink(missing_ok=True)
            process = await begun(words, said, self.server.data_dir.parent, self.server.around)
            if self.dice.random() < KILLED:
                await asyncio.sleep(self.dice.uniform(0, MAX_COMMAND_LENGTH))
                process.kill()
            code = await asyncio.to_thread(process.wait)
            self.kills += code == -signal.SIGKILL
            if code == 0:
                sent = json.loads(said.read_text())
                said.unlink()
                return sent
            if code not in (-signal.SIGKILL, RETRYABLE):
                raise RuntimeError(f"the command ended with {code}: {said.read_text()}")
            await asyncio.sleep(self.again_after)


class Person(Caller):
    """Somebody at Telegram, who sends a file now and then."""

    channel = "telegram"

    def _new(self) -> Asked:
        asked = super()._new()
        if self.dice.random() < 0.25:
            asked.wanted = (asked.nonce, asked.nonce.replace("nonce-", "nonce-file-"))
        return asked

    async def ask(self, asked: Asked) -> None:
        telegram, number = self.around.telegram, next(self.around.numbers)
        chat = 10_000 * (self.number + 1) + self.asked.index(asked) // PER_CONVERSATION
        who = {"id": chat, "is_bot": False, "first_name": f"P{chat}"}
        told = message(number, None, chat={"id": chat, "type": "private", "first_name": f"P{chat}"})
        if len(asked.wanted) > 1:
            path = f"documents/{number}.txt"
            file = {
                "file_id": f"f{number}",
                "file_unique_id": f"u{number}",
                "file_size": len(asked.wanted[1]),
            }
            telegram.files[f"f{number}"] = {**file, "file_path": path}
            telegram.contents[path] = asked.wanted[1].encode()
            named = {"file_name": f"{number}.txt", "mime_type": "text/plain"}
            told |= {"document": {**file, **named}, "caption": f"Say {asked.nonce}"}
        else:
            told["text"] = f"Say {asked.nonce}"
        asked.stored_as = str(number)
        heard = self.around.in_chat[chat]
        telegram.feed(update(number, message={**told, "from": who, "date": int(time.time())}))
        async with self.around.news:
            await self.around.news.wait_for(lambda: self._is_over(asked, heard))
        asked.is_accepted = True

    def _is_over(self, asked: Asked, heard: Heard) -> bool:
        for name, text in heard.texts.items():
            if asked.nonce in NONCE.findall(text):
                asked.heard.texts[name] = text
        if not asked.is_over:
            for name, text in list(heard.texts.items()):
                if FAILED in text and FAILED_FOR_NOW not in text:
                    asked.told = heard.texts.pop(name)  # those of one chat are answered in their order
                    break
        return asked.is_over


class BuildServer(Caller):
    """A program that sends signed webhooks; the agent of the runner answers it."""

    channel = "webhook"

    async def ask(self, asked: Asked) -> None:
        body = json.dumps({"text": f"Say {asked.nonce}", "conversation": self.conversation}).encode()

        def headers() -> dict[str, str]:
            stamp = str(int(time.time()))
            return {
                "X-Postroom-Timestamp": stamp,
                "X-Postroom-Signature": signature(HOOK_SECRET, stamp, body),
                "X-Postroom-Delivery": asked.nonce,
            }

        line = Line(self.server)
        _, told = await self.until_taken(line, "POST", "/channels/webhook/ci", body, headers, (202,))
        line.close()
        asked.is_accepted, asked.stored_as = True, str(told["message_id"])  # type: ignore[index]
        heard = self.around.called_back
        async with self.around.news:
            await self.around.news.wait_for(lambda: asked.nonce in heard)
        asked.heard = heard[asked.nonce]
        for name, text in list(asked.heard.texts.items()):
            if FAILED in text and asked.nonce not in text:
                asked.told = asked.heard.texts.pop(name)


class Program(Caller):
    """A program that speaks the OpenAI protocol, each request under a key; now and then it asks once more."""

    channel = "api"

    async def ask(self, asked: Asked) -> None:
        said = [{"role": "user", "content": f"Say {asked.nonce}"}]
        body = json.dumps({"model": "postroom", "messages": said}).encode()
        headers = {
            "Authorization": f"Bearer {KEY}",
            "X-Postroom-Session": self.conversation,
            "Idempotency-Key": asked.nonce,
        }
        line = Line(self.server)
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            path = "/v1/chat/completions"
            status, told = await self.until_taken(line, "POST", path, body, lambda: headers, (200, 500))
            asked.is_accepted = True
            if status == 500:
                asked.told = str(told)
            else:
                name, choice = told["id"], told["choices"][0]  # type: ignore[index]
                asked.heard.texts[name] = choice["message"]["content"]
        line.close()
