"""Callers: they ask any server, hang up, lose patience, and ask again under the same key."""

from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from postroom.contracts.activation import BusyPolicy, RunActivation
from postroom.contracts.errors import PostroomError
from postroom.contracts.messages import DeliveryMode
from postroom.embedded.items import Item, build_message
from simulation.database import CALL, Call
from simulation.loop import START_MS, SimulatedLoop
from simulation.plan import Act
from simulation.servers import Server

DELIVERED = "delivered"
"""In place of a run id: the message has its run later."""
_AGAIN = {"mailbox_closed", "store_unavailable", "commit_unknown"}


@dataclass(eq=False)
class Job:
    """Work that a caller wants done."""

    act: Act
    run_id: str | None = None
    """The run that was promised."""
    refused: str = ""
    """Why no run was promised."""
    calls: int = 0
    """How often its caller has called a server."""
    may_be_retracted: bool = False
    """Whether a person asked to withdraw its message."""
    is_retracted: bool = False
    """Whether its message was withdrawn after its only delivery. A caller that repeats its call, or whose call was cut
    off and arrives late, delivers the message again.
    """
    was_cancelled: bool = False
    """Whether a caller asked for its end."""

    def __post_init__(self) -> None:
        data = self.act.data
        self.n: int = data["job"]
        self.thread: str = data.get("thread", "")
        self.script: list[list[Any]] = data["script"]
        self.how = self.act.kind
        self.policy = {"enqueue": data.get("policy", "queue"), "many": "queue", "now": "interrupt"}.get(
            self.how, "deliver"
        )
        self.attempts: int | None = data.get("attempts")
        self.deadline_ms: int | None = data.get("deadline_ms")
        self.key = f"k{self.n}"
        self.message_id = f"m-{self.key}"
        self.content = {"n": self.n, "script": self.script}

    async def submit(self, server: Server) -> str:
        """Have a server take the job; return its run."""
        self.calls += 1
        queue, mailbox = server.queue, server.mailbox
        message = build_message(self.content, id=self.message_id)
        match self.how:
            case "many":
                items = [Item(self.thread, self.content, key=self.key, attempts=self.attempts)]
                items += [
                    Item(f"t{n}", {"n": f"{self.n} beside", "script": []}, key=f"{self.key}-{n}")
                    for n in (0, 2)
                ]
                return (await mailbox.enqueue_many(items))[0].id
            case "send":
                assert server.mail is not None
                return await server.mail.send(self.n, self.act.data)
            case "deliver":
                await queue.deliver(self.thread, [message], DeliveryMode(starts_run=True))
                return DELIVERED
            case "now":
                strategy = BusyPolicy(self.act.data.get("strategy", "interrupt"))
                request = RunActivation.new(self.thread, [message])
                accepted, _ = await queue.submit(request, strategy=strategy)
                return accepted.run_id
        delay, deadline = self.act.data.get("delay_ms"), self.deadline_ms
        handle = await mailbox.enqueue(
            self.thread,
            self.content,
            key=self.key,
            when_busy=BusyPolicy(self.policy),
            delay=timedelta(milliseconds=delay) if delay else None,
            deadline=None
            if deadline is None
            else datetime.fromtimestamp((START_MS + self.act.at + deadline) / 1000, UTC),
            attempts=self.attempts,
            limit_key=self.act.data.get("limit_key", ""),
        )
        return handle.id


@dataclass(eq=False)
class Follower:
    """Reads what a run tells, over one server after another, as a page does that connects again."""

    run_id: str
    told: list[tuple[int, str, str]] = field(default_factory=list)
    is_over: bool = False
    _connection: object = None

    async def read(self, server: Server) -> None:
        """Continue to read after the last event."""
        self._connection = connection = object()
        handle = await server.mailbox.handle(self.run_id)
        async for event in handle.events(after=self.told[-1][0] if self.told else 0):
            if self._connection is not connection:  # it reads over another server by now
                return
            self.told.append((event.cursor, event.type, event.text))
        self.is_over = True


class HungUp(Exception):
    """The caller broke the call off; its effect is unknown."""


class Caller:
    """Calls servers, as a program does that has several addresses."""

    def __init__(self, loop: SimulatedLoop, random: Random, servers: Callable[[], list[Server]]) -> None:
        self._loop, self._random, self._servers = loop, random, servers

    async def call(
        self,
        work: Callable[[Server], Coroutine[Any, Any, Any]],
        *,
        prefers: int = 0,
        hangs_up_at: int | None = None,
        slow_ms: int = 0,
        patience_ms: int = 5_000,
    ) -> Any:
        """Have a server that is up do the work; each of its changes takes `slow_ms` longer to arrive.

        Raises:
            HungUp: It is unknown whether it was done.
            PostroomError: The server refused it.
        """
        while not (up := self._servers()):
            await self._loop.passes(100)
        server = up[prefers % len(up)]
        context = copy_context()
        call = Call(hangs_up_at, slow_ms)
        context.run(CALL.set, call)
        task = call.task = self._loop.spawn(server.process, work(server), context)
        await self._loop.ended(task, patience_ms)
        if not task.done():  # the server notices that the caller has gone, and cancels the call
            self._loop.call_in(server.process, task.cancel)
            raise HungUp
        if task.cancelled():
            raise HungUp
        return task.result()

    async def insist(
        self,
        work: Callable[[Server], Coroutine[Any, Any, Any]],
        *,
        prefers: int = 0,
        hangs_up_at: int | None = None,
    ) -> Any:
        """Ask until a server answers.

        Raises:
            PostroomError: It was refused for good.
        """
        while True:
            try:
                return await self.call(work, prefers=prefers, hangs_up_at=hangs_up_at)
            except HungUp:
                pass
            except PostroomError as error:
                if not error.retryable and error.code not in _AGAIN:
                    raise
            hangs_up_at, prefers = None, prefers + 1
            await self._loop.passes(self._random.choice((10, 50, 200, 1_000)))
