"""A gateway over stores of every kind, with a fake channel and a fake agent."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from dispatch_room import Deaf, done
from fake_channel import FakeChannel
from postroom.concurrency import Tasks
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.chat import CHAT_KIND, InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.records import replace
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import (
    BusyConfig,
    BusyPolicy,
    ChatRules,
    DeliveryConfig,
    GatewayConfig,
    PlatformConfig,
)
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.replies import ChatEffects
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.gateway.voices import Speak
from postroom.leases import Leases
from postroom.ports import ChatDelivery
from postroom.relay import Relay
from postroom.services.work import failed_runs
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from postroom.testing.channels import settled
from store_kinds import KINDS

both_engines = pytest.mark.parametrize("prepared_stores", KINDS, indirect=True)
"""Marks a test of tests/chats that PostgreSQL could fail where SQLite does not: locks, isolation, its search."""

CONFIG = GatewayConfig(
    platforms={
        Platform.TELEGRAM: PlatformConfig(
            enabled=True, allow={"u1": PersonRole.OWNER, "u2": PersonRole.MEMBER, "u3": PersonRole.MEMBER}
        )
    },
    drain=timedelta(0),
)


def with_rules(chats: Mapping[str, ChatRules], config: GatewayConfig = CONFIG) -> GatewayConfig:
    """Return a configuration of the room with rules for single chats."""
    platform = replace(config.platforms[Platform.TELEGRAM], chats=chats)
    return replace(config, platforms={Platform.TELEGRAM: platform})


class Agent(Deaf):
    """A fake agent: answers `re: <what it read>`; a test can hold it, and see what it was asked and when."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.at_work = 0
        self.peak: dict[str, int] = {}
        self.now: dict[str, int] = {}
        self.read: list[list[str]] = []
        self.senders: list[list[str]] = []
        self.files: list[list[str]] = []
        self.cancelled: set[str] = set()
        self.running: dict[str, asyncio.Event] = {}
        self.stream: list[str] = []
        self.act: Callable[..., Any] | None = None

    async def execute(self, activation, sink):
        thread = activation.thread_id
        self.now[thread] = self.now.get(thread, 0) + 1
        self.peak[thread] = max(self.peak.get(thread, 0), self.now[thread])
        asked = [message.text() for message in activation.messages]
        self.read.append(asked)
        self.senders.append([message.content[0].data.get("sender") for message in activation.messages])
        self.files.append(
            [block.data["ref"] for message in activation.messages for block in message.content[1:]]
        )
        try:
            for delta in self.stream:
                await sink.emit(TextDelta(delta=delta))
                await asyncio.sleep(0)
            if self.act is not None:
                return await self.act(activation, sink)
            await self.free.wait()
            return done(activation, "re: " + " | ".join(asked))
        finally:
            self.now[thread] -= 1

    def began(self, runs: int) -> Callable[[], bool]:
        return lambda: len(self.read) >= runs


@dataclass
class Room:
    """Stores and a clock, and the gateways that a test opens over them."""

    stores: Any
    runs: RunStores
    clock: ManualClock
    opened: list[tuple[Gateway, Mailbox]] = field(default_factory=list)
    hurried_at: float = 0.0
    files: ChatFiles | None = None
    speak: Speak | None = None
    relaying: Tasks = field(default_factory=lambda: Tasks("relays"))
    relays: dict[Gateway, Relay] = field(default_factory=dict)

    async def open(
        self,
        agent: Any,
        *,
        config: GatewayConfig = CONFIG,
        channel: FakeChannel | None = None,
        consumer: str | None = None,
        mail: ChatDelivery | None = None,
        others: Sequence[FakeChannel] = (),
        leases: Leases | None = None,
        attempts: int | None = None,
        **details: Any,
    ) -> tuple[Gateway, FakeChannel]:
        """Start a gateway with a channel, and `others` next to it; it is stopped after the test."""
        channel = channel or FakeChannel(clock=self.clock, **details)
        relay = Relay(self.runs.store, {})
        sessions = Sessions(self.stores, config, self.clock)
        presenter = StreamingPresenter(config.streaming, sessions, [channel, *others], self.clock, self.clock)
        files = self.files = ChatFiles(config, self.stores.files, [channel, *others])
        rules = MailboxConfig(drain_grace=timedelta(0), places=None if leases is None else leases.places)
        mailbox = Mailbox(
            ChatExecutor(agent, presenter, files.of_run),
            self.runs,
            consumer_id=consumer or f"gateway-{len(self.opened)}",
            effects=ChatEffects() if attempts is None else ChatEffects(attempts),
            timer=self.clock,
            config=rules
            if attempts is None
            else replace(rules, default_max_attempts=attempts, outage=timedelta(minutes=12)),
        )
        gateway = Gateway(
            config,
            stores=self.stores,
            outbox=self.runs.outbox,
            threads=self.runs.threads,
            run_queue=mailbox,
            presenter=presenter,
            relay=relay,
            clock=self.clock,
            timer=self.clock,
            mail=mail,
            failed=failed_runs,
            store=self.runs.store,
            leases=leases,
            speak=self.speak,
        )
        self.relays[gateway] = relay
        await gateway.start()
        self.relaying.start(relay.serve(asyncio.Event()), name="serve")
        self.opened.append((gateway, mailbox))
        return gateway, channel

    async def with_agent(self, *, held: bool = False, **how: Any) -> tuple[Agent, Gateway, FakeChannel]:
        """Start a gateway with an agent, who answers once `agent.free` is set if it is `held`."""
        agent = Agent()
        if held:
            agent.free.clear()
        return agent, *await self.open(agent, **how)

    async def close(self) -> None:
        """Stop everything that is open."""
        while self.opened:
            gateway, mailbox = self.opened.pop()
            await gateway.stop()
            await mailbox.aclose(timedelta(0))
        await self.relaying.close()
        self.relaying = Tasks("relays")

    async def statuses(self) -> dict[InboundStatus, int]:
        """Count the inbound messages."""
        return await self.stores.intake_log.counts()

    def hurry(self, gateway: Gateway) -> Callable[[], bool]:
        """Return a condition that advances the time and sends a hint at each check.

        It passes five times as fast as outside: leases of half a minute outlast a disk that stalls. It holds when
        time has passed: who looked and woke others in each round of the loop would keep the store's threads from
        the interpreter.
        """

        def hurried() -> bool:
            now = time.monotonic()
            if now - self.hurried_at < 0.01:
                return False
            self.hurried_at = now
            self.clock.advance(timedelta(milliseconds=50))
            gateway.wake()
            return True

        return hurried


def busy(mode: BusyPolicy, **more):
    return replace(CONFIG, busy=BusyConfig(mode=mode, **more))


async def all_answered(room, gateway, messages: int) -> None:
    """Wait until every inbound message has ended, and every due message to a chat has been sent."""

    async def counted() -> bool:
        found = await room.statuses()
        return sum(found.values()) == messages and not any(
            found.get(one) for one in (InboundStatus.WAITING, InboundStatus.HANDED_OVER)
        )

    time_passes = room.hurry(gateway)
    async with (
        asyncio.timeout(90),
        asyncio.TaskGroup() as tasks,
    ):  # a disk may keep a commit for half a minute
        while not (time_passes() and await counted()):
            await asyncio.sleep(0)
        sent = tasks.create_task(room.relays[gateway].idle(CHAT_KIND))
        while not sent.done():
            time_passes()
            await asyncio.sleep(0)


async def at_work(agent, channel, text: str) -> None:
    """Send a message, and return when the agent has read it."""
    await channel.say(text)
    await settled(agent.began(1))


async def tried(room, agent, times: int) -> None:
    """Advance the time by hours until the agent was called this often, and until the last of these attempts has ended."""
    [(_, mailbox)] = room.opened
    await settled(agent.began(1))
    await mailbox.settled()
    for _ in range(times):
        if len(agent.read) >= times:
            return
        room.clock.advance(timedelta(hours=1))
        await mailbox.poll()
        await mailbox.settled()
    assert len(agent.read) >= times, f"after {times} hours the agent was asked {len(agent.read)} times"


def delivery(config: GatewayConfig = CONFIG, **changes: Any) -> GatewayConfig:
    """Return the settings with other rules of delivery."""
    return replace(config, delivery=replace(config.delivery or DeliveryConfig(), **changes))


__all__ = ["CONFIG", "Agent", "Room", "all_answered", "busy", "delivery", "settled", "tried"]
