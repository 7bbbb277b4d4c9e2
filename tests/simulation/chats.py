"""Chats in a world: a platform that sends each message until a server has acknowledged it, and its gateways."""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fake_channel import FakeChannel
from postroom.concurrency import SystemTimer
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.errors import PostroomError
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.gateway import wording
from postroom.gateway.config import GatewayConfig, PlatformConfig
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.base import AdapterState, Metadata
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.leases import Leases
from postroom.relay import Relay
from postroom.stores.stores import Stores
from simulation.loop import SimulatedLoop

CONFIG = GatewayConfig(
    platforms={Platform.TELEGRAM: PlatformConfig(enabled=True, allow={"u1": PersonRole.OWNER})},
    drain=timedelta(0),
)
_NUMBER = re.compile(r"job (\d+)")


@dataclass(frozen=True)
class Told:
    """A message of a person, its new text, or that it was deleted, as the platform sends it."""

    how: str
    chat: str
    message_id: str
    text: str

    async def send(self, channel: "SimulatedChannel") -> None:
        """Send it to a server, which has stored it when this returns."""
        event = channel.message(self.text, chat=self.chat, id=self.message_id)
        match self.how:
            case "edit":
                await channel.edit(event, self.text)
            case "delete":
                await channel.take_back(event)
            case _:
                await channel.handle_message(event)


@dataclass
class ChatPlatform:
    """The messages that people sent and see; it outlives every server."""

    loop: SimulatedLoop
    post: Any
    database: Any
    waiting: list[Told] = field(default_factory=list)
    """The messages that no server has acknowledged, in order."""
    excused: set[int] = field(default_factory=set)
    """The jobs that a person deleted or stopped: they may have no reply."""
    shown: list[tuple[str, str]] = field(default_factory=list)
    """The chat and the text of each message of the bot."""

    def show(self, chat: str, text: str) -> SendResult:
        """Show a message of the bot, unless a fault comes between."""
        post = self.post
        post.sent += 1
        fault = "" if self.database.is_calm else post.faults.get(post.sent, "")
        if fault:
            self.database.happened[fault] += 1
        if self.database.note is not None:
            self.database.note(f"platform is told {text!r} in {chat} {fault}")
        if fault == "effect refused":
            return SendResult.failed(SendErrorKind.RATE_LIMITED, "429", retry_after_ms=700)
        self.shown.append((chat, text))
        if fault:
            return SendResult.failed(SendErrorKind.UNKNOWN, "no answer")
        return SendResult.sent(f"s{len(self.shown)}")

    async def deliver(self, servers: list[Any]) -> None:
        """Send the waiting messages to the server that has the channel, repeatedly until they are acknowledged."""
        while True:
            await self.loop.passes(50)
            while self.waiting:
                connected = [one for one in servers if one.is_up and one.chats.is_connected]
                if not connected:
                    break
                server, told = connected[-1], self.waiting[0]
                task = self.loop.spawn(server.process, told.send(server.chats.channel))
                await self.loop.ended(task, 2_000)
                if not task.done() or task.cancelled():
                    if not server.process.is_dead:
                        self.loop.call_in(server.process, task.cancel)
                    break
                if isinstance(task.exception(), PostroomError):
                    break
                task.result()
                self.waiting.pop(0)


class SimulatedChannel(FakeChannel):
    """The channel of one server to the platform of the world."""

    platform_of_world: ChatPlatform

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        await self.platform_of_world.loop.passes(3)
        return self.platform_of_world.show(chat_id, content)


class ChatServer:
    """The parts of a server of a chat world in addition to its mailbox: a gateway, its relay and its leases."""

    def __init__(
        self,
        stores: Stores,
        agents: Any,
        name: str,
        options: dict[str, Any],
        platform: ChatPlatform,
        lease_ms: int,
    ) -> None:
        clock, timer, runs = stores.clock, SystemTimer(), stores.runs
        self.channel = SimulatedChannel(clock=clock)
        self.channel.platform_of_world = platform
        self.leases = Leases(stores.store, name, {}, length=timedelta(milliseconds=lease_ms))
        self.relay = Relay(stores.store, {})
        sessions = Sessions(stores.chat, CONFIG, clock)
        presenter = StreamingPresenter(CONFIG.streaming, sessions, [self.channel], clock, timer)
        files = ChatFiles(CONFIG, stores.chat.files, [self.channel])
        self.queue = Queue(
            ChatExecutor(agents, presenter, files.of_run), runs, effects=ChatEffects(), **options
        )
        self.gateway = Gateway(
            CONFIG,
            stores=stores.chat,
            outbox=runs.outbox,
            threads=runs.threads,
            run_queue=self.queue,
            presenter=presenter,
            relay=self.relay,
            clock=clock,
            timer=timer,
            store=stores.store,
            leases=self.leases,
        )
        self._stopping = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether the platform sends messages to this server."""
        return self.channel.liveness.state is AdapterState.CONNECTED

    async def serve(self) -> None:
        """Serve until the process ends."""
        async with self.leases.serving(), asyncio.TaskGroup() as group:
            group.create_task(self.relay.serve(self._stopping))
            await self.gateway.start()

    async def leave(self) -> None:
        """End in good order."""
        await self.gateway.stop()
        self._stopping.set()


def audit_chats(
    rows: Any, jobs: dict[int, str], platform: ChatPlatform, reads: dict[int, set[str]], failing: set[str]
) -> Iterator[str]:
    """Yield the faults of chats.

    `jobs` has the chat of each sent message, `reads` the runs that read it, and `failing` the chats in which a run fails for
    good.
    """
    if platform.waiting:
        yield f"NEVER TAKEN: {len(platform.waiting)} messages were never acknowledged"
    answers: Counter[int] = Counter()
    unmarked: Counter[int] = Counter()
    order: dict[str, list[int]] = defaultdict(list)
    for chat, text in platform.shown:
        for n in map(int, _NUMBER.findall(text)):
            answers[n] += 1
            unmarked[n] += wording.POSSIBLE_DUPLICATE not in text
            if n not in order[chat]:
                order[chat].append(n)
    for n, chat in jobs.items():
        if chat in failing:  # a failure is told in other words
            if not any(one == chat for one, _ in platform.shown):
                yield f"NO REPLY: job {n} failed, and chat {chat} was not told"
            continue
        if not answers[n] and n in platform.excused:
            continue
        if not answers[n]:
            yield f"NO REPLY: job {n} in chat {chat} has no reply"
        if unmarked[n] > 1:
            yield f"REPLY TWICE: job {n} has {unmarked[n]} replies that are not marked"
        if n not in order[chat]:
            yield f"WRONG CHAT: the reply of job {n} is not in {chat}"
        if len(reads[n]) > 1:
            yield f"READ TWICE: job {n} was read by the runs {sorted(reads[n])}"
    for status, number in rows("SELECT status, count(*) FROM inbound_messages GROUP BY 1"):
        if status in ("waiting", "handed_over"):
            yield f"INTAKE: {number} messages are {status} still"
