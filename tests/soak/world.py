"""The server that is killed, as a process of its own, and what it speaks to: a model, a Telegram, a caller's own address."""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from channels.fake_telegram import TOKEN, Call, FakeTelegram
from e2e.forked import ForkedProcess
from e2e.running import plain_environment
from postroom.gateway import wording
from runtime.endpoint import END, HEAD, chunk

NONCE = re.compile(r"nonce-[0-9a-z-]+")
KEY = "key-of-the-api-0123456789"
HOOK_SECRET = "secret-of-the-build-server"
START_PATIENCE = 300.0
LOADED = (
    "postroom.app.serve",
    "postroom.app.gateway_service",
    "postroom.app.gateway_wiring",
    "postroom.gateway.platforms.api_server",
    "postroom.gateway.platforms.telegram",
    "postroom.gateway.platforms.webhook",
    "postroom.mcp_server.endpoint",
    "postroom.runtime.openai_endpoint",
    "postroom.cli.main",
    "postroom.cli.mail",
)
"""What a process need not load at each start: kills are to be many, and nothing is lost while Python loads."""
ONE_ANSWER = HEAD.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
"""The model says that it takes one request on each connection: else the next one may meet its end."""
ECHO = """
said=$(cat)
found=$(printf '%s' "$said" | grep -o 'nonce-[0-9a-z-]*' | sort -u | tr '\\n' ' ')
printf 'start %s %s\\n' "$$" "$found" >> journal
sleep 0.05
printf 'end %s %s\\n' "$$" "$found" >> journal
echo "re: $found"
"""
"""What the agent behind the runner is: it works a moment, and says what it was asked."""


@dataclass
class Heard:
    """What came back from the server for one message of a chat, by the name of each answer."""

    texts: dict[str, str] = field(default_factory=dict)

    @property
    def unmarked(self) -> int:
        """How many of them do not say that they may be duplicates."""
        return sum(not text.startswith(wording.POSSIBLE_DUPLICATE) for text in self.texts.values())


class Telegram(FakeTelegram):
    """A Telegram that tells at once what is said in a chat, and keeps no more than that."""

    def __init__(self, said: Callable[[int, str, str], Awaitable[None]]) -> None:
        super().__init__()
        self._heard = said

    async def _sendMessage(self, call: Call) -> Any:
        answer = await super()._sendMessage(call)
        if isinstance(answer, dict):
            await self._heard(int(call.fields["chat_id"]), str(answer["message_id"]), answer["text"])
        for kept in (self.calls, self.paths, self.messages):
            kept.clear()
        return answer


class Peers:
    """What the server speaks to. All of it lives on while the server is killed."""

    def __init__(self) -> None:
        self.telegram = Telegram(self._said_in_chat)
        self.model_url = self.callback_url = ""
        self.called_back: dict[str, Heard] = defaultdict(Heard)
        """By delivery."""
        self.news = asyncio.Condition()
        self.in_chat: dict[int, Heard] = defaultdict(Heard)
        """What was said in each chat of Telegram, by the message's id."""
        self.numbers = count(1)
        """Numbers of Telegram's updates."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Peers"]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.telegram.serving())
            for name, answer in (("model_url", self._model), ("callback_url", self._callback)):
                server = await asyncio.start_server(answer, "127.0.0.1", 0)
                stack.callback(server.close)
                setattr(self, name, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            yield self

    async def _model(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer as a model does, with the names that the last message has; files in it count too."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            _, body = await _request(reader)
            last = [one for one in json.loads(body)["messages"] if one["role"] == "user"][-1]
            names = " ".join(sorted(set(NONCE.findall(json.dumps(last)))))
            writer.write(ONE_ANSWER)
            for piece in (chunk(content="re: "), chunk("stop", content=names), END):
                data = piece.encode()
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()

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


async def begun(arguments: Sequence[str], log: Path, home: Path) -> ForkedProcess:
    """Start `postroom` with these arguments over the data below a folder."""
    environment = plain_environment(home) | {"POSTROOM_DATA_DIR": str(home / "data")}
    return await asyncio.to_thread(ForkedProcess, arguments, log, environment, LOADED)


class Server:
    """`postroom up` over one data folder, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.data_dir, self.yard = folder / "data", folder / "yard"
        self.log = folder / "server.log"
        self.is_up = asyncio.Event()
        self.starts = 0
        self.longest_start = 0.0
        """Seconds from the beginning of a process until it was ready."""
        self._began = 0.0
        self._process: ForkedProcess | None = None
        self.address = ("127.0.0.1", 0)
        self.token = ""

    @property
    def database(self) -> Path:
        return self.data_dir / "postroom.db"

    async def spawn(self) -> None:
        """Begin to start it."""
        note = self.data_dir / "server.json"
        note.unlink(missing_ok=True)
        words = ("up", "--port", "0", "--log-level", "warning")
        self._process = await begun(words, self.log, self.data_dir.parent)
        self.starts += 1
        self._began = time.monotonic()

    async def ready(self) -> None:
        """Return when it answers that it is ready.

        Raises:
            RuntimeError: it has ended.
            TimeoutError: it was not ready in time.
        """
        assert self._process is not None
        async with asyncio.timeout(START_PATIENCE):
            while not await self._answers():
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server ended by itself:\n{self.log.read_text()[-3000:]}")
                await asyncio.sleep(0.02)
        self.longest_start = max(self.longest_start, time.monotonic() - self._began)
        self.is_up.set()

    async def _answers(self) -> bool:
        note = self.data_dir / "server.json"
        try:
            host, _, port = json.loads(note.read_text())["url"].removeprefix("http://").partition(":")
            self.address, self.token = (host, int(port)), (self.data_dir / "token").read_text().strip()
            line = Line(self, patience=5)
            status, _ = await line.exchange("GET", "/readyz")
            line.close()
        except (OSError, ValueError, Cut):
            return False
        return status == 200

    async def kill(self) -> None:
        """End it with no chance to tidy up."""
        self.is_up.clear()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None

    async def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        assert self._process is not None
        self.is_up.clear()
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, START_PATIENCE)

    def memory(self) -> int:
        """Return the bytes that it has in memory; 0 where it is gone."""
        assert self._process is not None
        with suppress(FileNotFoundError):
            for row in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if row.startswith("VmRSS:"):
                    return int(row.split()[1]) * 1024
        return 0

    def kill_a_program(self, dice: random.Random) -> bool:
        """Kill one of the programs that it runs for an agent, with its group; False when none is at work."""
        assert self._process is not None
        found = []
        with suppress(OSError):
            for children in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
                found += [int(one) for one in children.read_text().split()]
        with suppress(OSError):
            if found:
                os.killpg(dice.choice(found), signal.SIGKILL)
                return True
        return False


class Cut(Exception):
    """The connection ended before the answer was whole: nobody knows whether the call was done."""


class Line:
    """One connection, kept alive, and made again when the server was."""

    def __init__(self, server: Server, patience: float = 60.0) -> None:
        self._server, self._patience = server, patience
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._made_at = 0
        self._one_at_a_time = asyncio.Lock()

    async def exchange(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request behind those before it; return status and document.

        Raises:
            Cut: it broke off.
        """
        async with self._one_at_a_time:
            return await self._exchange(method, path, body, headers)

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> tuple[int, Any]:
        if self._made_at != self._server.starts:
            self.close()
        try:
            async with asyncio.timeout(self._patience):
                if self._stream is None:
                    self._stream = await asyncio.open_connection(*self._server.address)
                    self._made_at = self._server.starts
                return await self._exchanged(*self._stream, method, path, body, dict(headers or {}))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self.close()
            raise Cut(repr(error)) from error

    async def _exchanged(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
    ) -> tuple[int, Any]:
        told = {
            "Host": "{}:{}".format(*self._server.address),
            "Authorization": f"Bearer {self._server.token}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        head = "".join(f"{name}: {text}\r\n" for name, text in told.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        status, *rows = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = {row.partition(":")[0].lower(): row.partition(":")[2].strip() for row in rows if row}
        content = await reader.readexactly(int(found.get("content-length", "0")))
        if found.get("connection", "").lower() == "close":
            self.close()
        return int(status.split(" ")[1]), json.loads(content) if content else None

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool.

        Raises:
            Cut: it broke off.
            RuntimeError: it was refused.
        """
        params = {"name": name, "arguments": arguments}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        status, document = await self.exchange("POST", "/mcp", json.dumps(call).encode())
        if status == 503:
            raise Cut(str(document))
        if status != 200 or document["result"].get("isError"):
            raise RuntimeError(f"{name}: {status} {str(document)[:500]}")
        found = document["result"]["structuredContent"]
        return found["result"] if set(found) == {"result"} else found

    def close(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


async def furnish(server: Server, around: Peers, agents: Sequence[str]) -> None:
    """Register the agents, give one a runner, and have the chats answered, by it and by the model."""
    server.yard.mkdir()
    await server.spawn()
    await server.ready()
    line, project = Line(server), str(server.yard)
    await line.tool("ensure_project", human_key=project)
    for name in ("Echo", *agents):
        await line.tool("register_agent", project_key=project, program="soak", model="none", name=name)
    runner = {"argv": ["/bin/sh", "-c", ECHO]}
    told = json.dumps({"project": project, "agent": "Echo", "runner": runner}).encode()
    status, said = await line.exchange("PUT", "/admin/runners", told)
    assert status == 200, said
    line.close()
    assert await server.stop() == 0
    secrets = {"bot.token": TOKEN, "api.key": KEY, "hook.secret": HOOK_SECRET}
    for name, text in secrets.items():
        (server.data_dir / name).write_text(text)
        (server.data_dir / name).chmod(0o600)
    (server.data_dir / "gateway.toml").write_text(f"""
[agent]
base_url = "{around.model_url}/v1"
model = "echo"
[gateway]
streaming.enabled = false
delivery.first_retry = "200ms"
delivery.longest_retry = "2s"
[platforms.telegram]
token_file = "bot.token"
base_url = "{around.telegram.url}"
allow = {{ "*" = "owner" }}
[platforms.api_server]
api_key_file = "api.key"
[platforms.webhook.routes.ci]
secret_file = "hook.secret"
callback_url = "{around.callback_url}/answers"
[[routes]]
agent = "Echo@{project}"
platform = "webhook"
""")
