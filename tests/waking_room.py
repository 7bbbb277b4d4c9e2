"""A mail room whose readers are woken: messages in, runs of a fake agent, answers out."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from dispatch_room import Deaf, done
from postroom.contracts.clock import Timer
from postroom.contracts.limits import Budget
from postroom.contracts.tracing import OFF, Tracing
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.routing import ExecutorsByThread
from postroom.mail.context import Rules
from postroom.mail.people import StoredChatDelivery
from postroom.mail.service import Mail
from postroom.mail.waking.mail_runs import MailRunExecutor, MessageEffects
from postroom.mail.waking.prompts import AGENT_THREAD
from postroom.mail.waking.waker import Waker
from postroom.ports import ChatOutbox
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

PROJECT = "/projects/shop"

both_engines = pytest.mark.parametrize("stores", ["sqlite", "postgres"], indirect=True)
"""For a test of tests/waking whose outcome locks, isolation or types decide; the others run on SQLite."""


class FakeAgents(Deaf):
    """A fake for tests: every agent answers `<name> did it`, or what the test lets it do."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[tuple[str, list[str]]] = []
        self.act: Callable[..., Any] | None = None

    def hold(self, name: str = "") -> tuple[asyncio.Event, asyncio.Event]:
        """Hold the runs of an agent, or of all; return what is set when one has begun, and what lets it go on."""
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def held(activation: Any) -> None:
            if activation.agent_id.startswith(name):
                began.set()
                await goes_on.wait()

        self.act = held
        return began, goes_on

    async def execute(self, activation, sink):
        self.prompts.append((activation.agent_id, [message.text() for message in activation.messages]))
        if self.act is not None:
            acted = await self.act(activation)
            if acted is not None:
                return acted
        return done(activation, f"{activation.agent_id.partition('@')[0]} did it")


@dataclass
class Room:
    """Mail, a mailbox and what joins them."""

    store: MailStore
    runs: RunStores
    clock: ManualClock
    rules: Rules = field(default_factory=Rules)
    budgets: tuple[Budget, ...] = ()
    agents: FakeAgents = field(default_factory=FakeAgents)
    tracing: Tracing = OFF
    wakes: bool = True
    """Whether a message wakes its readers in its own change; else a round finds them."""
    most_attempts: int = 1
    max_pending: int | None = None

    def __post_init__(self) -> None:
        self.mail = Mail(
            self.store,
            self.clock,
            self.rules,
            tracing=self.tracing,
            waker=lambda: self.waker if self.wakes else None,
        )
        self.effects = MessageEffects(self.mail.own_context)
        self.mailbox, self.waker = self.opened("server")

    def opened(self, consumer: str, *, timer: Timer | None = None) -> tuple[Mailbox, Waker]:
        """Return the parts of one process; with a separate timer, time can stop for it alone."""
        turns = MailRunExecutor(self.agents, self.store, self.clock, tracing=self.tracing, rules=self.rules)
        mailbox = Mailbox(
            ExecutorsByThread({AGENT_THREAD: turns}),
            self.runs,
            consumer_id=consumer,
            effects=self.effects,
            timer=timer or self.clock,
            config=MailboxConfig(
                drain_grace=timedelta(0),
                default_max_attempts=self.most_attempts,
                budgets=self.budgets,
                max_pending_per_thread=self.max_pending,
            ),
        )
        return mailbox, self.waker_of(mailbox)

    def waker_of(self, mailbox: Mailbox, chats: ChatOutbox | None = None) -> Waker:
        """Return what wakes readers by a mailbox, and has messages said in chats."""
        boxes = StoredChatDelivery(self.mail)
        return Waker(self.store, mailbox, verified=False, chat_delivery=boxes, chats=chats)

    async def people(self, *names: str, runners: tuple[str, ...] = ()) -> None:
        """Register agents, some of them with a runner."""
        await self.mail.call("ensure_project", {"human_key": PROJECT})
        for name in names:
            registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
            await self.mail.call("register_agent", registered)
        for name in runners:
            await self.mail.set_runner(PROJECT, name, "{}")

    async def send(self, sender: str, *to: str, body: str = "please", **more: Any) -> Any:
        """Send a message and return the answer."""
        asked = {"project_key": PROJECT, "sender_name": sender, "to": list(to), "body_md": body}
        return await self.mail.call("send_message", {"subject": "Work", **asked, **more})

    async def turn(self) -> None:
        """Perform all due work: wakes, runs, answers, until nothing is left."""
        await self.mailbox.settled()
        while await self.waker.round():
            await self.mailbox.settled()

    async def inbox(self, name: str) -> list[dict[str, Any]]:
        """Return an agent's messages, oldest first."""
        asked = {"project_key": PROJECT, "agent_name": name, "after": 0}
        return await self.mail.call("fetch_inbox", asked)

    async def texts(self, name: str) -> list[tuple[str, str]]:
        """Return who wrote what to an agent."""
        return [(one["from"], one["body_md"]) for one in await self.inbox(name)]

    async def handled(self, message_id: int, name: str) -> Any:
        """Return what a run made of a message."""

        def look(tx):
            project = tx.project(PROJECT)
            return tx.message_runs([message_id])[message_id].get(tx.agent(project.id, name).id)

        return await self.store.read(look)

    async def close(self) -> None:
        await self.mailbox.aclose(timedelta(0))


def number(sent: Any) -> int:
    """Return the id of a message that was sent."""
    return sent["deliveries"][0]["payload"]["id"]


__all__ = ["PROJECT", "FakeAgents", "Room", "number"]
