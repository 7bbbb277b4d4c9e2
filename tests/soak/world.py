"""The server that is killed, as a separate process."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from channels.fake_telegram import TOKEN
from e2e.forked import ForkedProcess
from e2e.running import plain_environment
from soak.lines import Cut, Door, Line
from soak.peers import Peers

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
"""Modules that a process need not load at each start: there should be many kills, and no data is lost while Python loads."""
ANSWERS = "Echo"
"""The prefix of the names of agents with runners."""
TWO_AT_ONCE = "two-at-once"
"""The file in which a program records that another program works for its thread."""
ECHO = f"""
exec 9> "thread-$(printf '%s' "$POSTROOM_THREAD" | tr -c 'a-zA-Z0-9' -)"
flock --nonblock 9 || printf '%s\\n' "$POSTROOM_THREAD" >> {TWO_AT_ONCE}
said=$(cat)
found=$(printf '%s' "$said" | grep -o 'nonce-[0-9a-z-]*' | sort -u | tr '\\n' ' ')
printf 'start %s %s\\n' "$$" "$found" >> journal
case "$found" in *-slow*) sleep 40;; *) sleep 0.05;; esac
printf 'end %s %s\\n' "$$" "$found" >> journal
echo "re: $found"
"""
"""The program of the agent with a runner: it works a moment, and returns its input.

It holds a lock of its thread, which ends with its last process: two at once are noted by the second."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a process of `postroom`, in addition to its data folder."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment."""
    within: tuple[str, ...] = ()
    """Words that start a program elsewhere."""
    wrong_by: float = 0
    """By how many seconds its wall clock is wrong."""


PLAIN = Environment()


async def begun(
    arguments: Sequence[str], log: Path, home: Path, around: Environment = PLAIN
) -> ForkedProcess:
    """Start `postroom` with these arguments over the data below a folder."""
    environment = plain_environment(home) | {"POSTROOM_DATA_DIR": str(home / "data")} | around.settings
    return await asyncio.to_thread(
        ForkedProcess, arguments, log, environment, LOADED, around.within, around.wrong_by
    )


class Deployment(Door, Protocol):
    """The facts about a server, or several, that callers know."""

    is_up: asyncio.Event
    yard: Path
    data_dir: Path
    around: Environment
    """For commands that call it."""
    echoes: int
    """The number of agents with runners."""
    slow: float
    """The share of messages whose work lasts longer than a lease."""


class Server:
    """`postroom up` over one data folder, killed and started again."""

    def __init__(
        self, folder: Path, around: Environment = PLAIN, listens: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self.data_dir, self.yard = folder / "data", folder / "yard"
        self.log = folder / "server.log"
        self.around, self.listens, self.slow, self.echoes = around, listens, 0.0, 1
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
        host, port = self.listens
        words = ("up", "--host", host, "--port", str(port), "--log-level", "warning")
        self._process = await begun(words, self.log, self.data_dir.parent, self.around)
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
            while not await self.answers():
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server ended by itself:\n{self.log.read_text()[-3000:]}")
                await asyncio.sleep(0.02)
        self.longest_start = max(self.longest_start, time.monotonic() - self._began)
        self.is_up.set()

    async def answers(self) -> bool:
        """Whether it reports that it is ready."""
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

    def ended(self) -> int | None:
        """Return how it ended by itself; None while it runs, or when it was ended."""
        return None if self._process is None else self._process.poll()

    def pause(self) -> None:
        """Suspend it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue a suspended server."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        assert self._process is not None
        self.is_up.clear()
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, START_PATIENCE)

    def memory(self) -> int:
        """Return the bytes that it has in memory; 0 if it is gone."""
        assert self._process is not None
        with suppress(FileNotFoundError):
            for row in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if row.startswith("VmRSS:"):
                    return int(row.split()[1]) * 1024
        return 0

    def kill_a_program(self, dice: random.Random) -> bool:
        """Kill one of the programs that it runs for an agent, with its group; False if none is active."""
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


async def furnish(server: Server, around: Peers, agents: Sequence[str], echoes: int = 1) -> None:
    """Register the agents, give some more a runner, and connect the chats to one of these and to the model."""
    server.yard.mkdir(exist_ok=True)
    await server.spawn()
    await server.ready()
    line, project = Line(server), str(server.yard)
    await line.tool("ensure_project", human_key=project)
    answering = [f"{ANSWERS}{number}" for number in range(echoes)]
    for name in (*answering, *agents):
        await line.tool("register_agent", project_key=project, program="soak", model="none", name=name)
    for name in answering:
        told = {"project": project, "agent": name, "runner": {"argv": ["/bin/sh", "-c", ECHO]}}
        status, said = await line.exchange("PUT", "/admin/runners", json.dumps(told).encode())
        assert status == 200, said
    line.close()
    assert await server.stop() == 0
    write_chats(server.data_dir, around, around.telegram_urls[0], project)


def write_chats(data_dir: Path, around: Peers, telegram_url: str, project: str) -> None:
    """Write the server's configuration of chats."""
    secrets = {"bot.token": TOKEN, "api.key": KEY, "hook.secret": HOOK_SECRET}
    for name, text in secrets.items():
        (data_dir / name).write_text(text)
        (data_dir / name).chmod(0o600)
    (data_dir / "gateway.toml").write_text(f"""
[agent]
base_url = "{around.model_url}/v1"
model = "echo"
[gateway]
streaming.enabled = false
delivery.first_retry = "200ms"
delivery.longest_retry = "2s"
[platforms.telegram]
token_file = "bot.token"
base_url = "{telegram_url}"
allow = {{ "*" = "owner" }}
[platforms.api_server]
api_key_file = "api.key"
[platforms.webhook.routes.ci]
secret_file = "hook.secret"
callback_url = "{around.callback_url}/answers"
[[routes]]
agent = "{ANSWERS}0@{project}"
platform = "webhook"
""")
