"""Programs that play a part, an executor over them, and repeated actions of its tests."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from dispatch_room import PATIENCE
from patient_loop import a_moment
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import AgentEvent, StreamReset, TextDelta
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runners import Runner
from postroom.executors.command import CommandExecutor, CommandLimits
from postroom.ports import RunControl
from postroom.stores.memory import MemoryRunStores

T = TypeVar("T")
PYTHON = (sys.executable, "-I", "-S", "-c")
SERVER = {"PATH": os.environ["PATH"], "HOME": "/home/of/the/server", "LC_ALL": "C.UTF-8", "UNSAID": "unsaid"}
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
TELL = "import os, sys, time\ndef tell(*words): print(*words, flush=True)\n"
HANG = "while True: time.sleep(3600)\n"
FORKING = """
def leave(work, setsid=True):
    reader, writer = os.pipe()
    if between := os.fork():
        os.close(writer); os.waitpid(between, 0)
        return int(os.read(reader, 20))
    if setsid: os.setsid()
    if os.fork(): os._exit(0)
    work(); os.write(writer, str(os.getpid()).encode()); os.close(writer)
    while True: time.sleep(3600)
"""
"""Leaves a child process, forked twice, in its own session; returns its pid."""


class Sink:
    """Keeps the events of an execution, and lets a test wait for its text."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self._more = asyncio.Event()

    async def emit(self, event: AgentEvent) -> None:
        self.events.append(event)
        self._more.set()

    @property
    def text(self) -> str:
        deltas: list[str] = []
        for event in self.events:
            if isinstance(event, StreamReset):
                deltas.clear()
            if isinstance(event, TextDelta):
                deltas.append(event.delta)
        return "".join(deltas)

    async def tells(self, words: str) -> str:
        """Return the text as soon as these words and the rest of their line are in it."""
        async with asyncio.timeout(PATIENCE):
            while "\n" not in self.text.partition(words)[2] or words not in self.text:
                self._more.clear()
                await self._more.wait()
        return self.text

    async def number(self, name: str) -> int:
        """Return the number that the program prints after a name."""
        return int((await self.tells(f"{name} ")).partition(f"{name} ")[2].split()[0])


class OneRunner:
    """Has the same runner for everybody."""

    def __init__(self, runner: Runner | None) -> None:
        self.runner = runner

    async def runner_of(self, agent_id: str, agent: object = None) -> Runner | None:
        return self.runner


def script(text: str, *words: str, **fields: Any) -> Runner:
    """Return a runner whose program is this Python."""
    return Runner(argv=(*PYTHON, TELL + text, *words), **{"cwd": "/", **fields})


class Room:
    """An executor with one runner, over stores in memory."""

    made: ClassVar[list["Room"]] = []

    def __init__(self, folder: Path, runner: Runner | None, **fields: Any) -> None:
        self.folder = folder / "private"
        self.stores = MemoryRunStores()
        self.runners = OneRunner(runner)
        environment: Mapping[str, str] = fields.pop("environment", SERVER)
        self.executor = CommandExecutor(
            self.runners,
            folder=self.folder,
            environment=environment,
            limits=fields.pop("limits", CommandLimits()),
            **fields,
        )
        self.sink = Sink()
        self.made.append(self)

    async def activation(self, text: str = "go", *, thread: str = "t", run: str = "r") -> RunActivation:
        if await self.stores.threads.load_thread(thread) is None:
            await self.stores.coordinator.commit(ThreadCommit(thread_id=thread))
        request = RunActivation.new(thread, [text], agent_id="Ada").hinted(run_id=run)
        request = request.traced(dispatch_id=f"dispatch-of-{run}", session_id=uuid4().hex)
        return replace(
            request,
            control=RunControl(coordinator=self.stores.coordinator, threads=self.stores.threads),
        )

    async def run(self, text: str = "go", **names: str) -> str:
        """Run it and return its answer."""
        async with asyncio.timeout(PATIENCE):
            result = await self.executor.run(await self.activation(text, **names), self.sink)
        return result.response

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


async def shown(look: Callable[[], Awaitable[T | None]]) -> T:
    """Poll until there is a result."""
    async with asyncio.timeout(PATIENCE):
        while (found := await look()) is None:
            await a_moment()
        return found


def lives(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return words[0] not in (b"Z", b"X")


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def stand_still(shim: int) -> None:
    """Stop a shim and its launcher, whose end would continue the shim: as if a disk did not answer."""
    os.kill(parent_of(shim), signal.SIGSTOP)
    os.kill(shim, signal.SIGSTOP)


def go_on(shim: int) -> None:
    """Continue a suspended shim, and its launcher."""
    os.kill(parent_of(shim), signal.SIGCONT)
    os.kill(shim, signal.SIGCONT)


async def is_gone(pid: int) -> None:
    """Wait until a process has ended."""
    async with asyncio.timeout(PATIENCE):
        while lives(pid):
            await a_moment()


def zombies() -> list[int]:
    """Return the ended children of this process that nobody has reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (
                (entry / "stat").read_bytes().rpartition(b")")[2].split() if entry.name.isdecimal() else []
            )
        except OSError:
            continue
        if words and words[0] == b"Z" and int(words[1]) == os.getpid():
            found.append(int(entry.name))
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
