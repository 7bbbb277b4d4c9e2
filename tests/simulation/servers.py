"""The servers of a world: each has a mailbox over the shared database, its rounds, schedules, relay and leases."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any

from postroom.concurrency import SystemTimer
from postroom.contracts.limits import Budget, BudgetScope, Limit, LimitScope
from postroom.contracts.outbox import NO_END, OutboxDraft, OutboxMessage
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.dispatch.sinks import OutputKept
from postroom.embedded.effects import Ends
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import FunctionExecutor
from postroom.leases import Leases
from postroom.relay import NotPerformed, Outcome, Performed, Relay
from postroom.stores.changes import ChangeNotifier
from postroom.stores.store import SqlStore, Transaction
from postroom.stores.stores import Stores
from simulation.chats import ChatServer
from simulation.database import Database, Network, SimulatedEngine
from simulation.loop import Process, SimulatedLoop
from simulation.mail import MailServer
from simulation.plan import Fault

NOTICE = "notice"
"""The kind of the effects of a world."""
ALONE = "work for one server"
"""The lease that all servers want."""


@dataclass
class Post:
    """The notices that have arrived outside, and the faults on their way."""

    faults: dict[int, str]
    arrived: list[tuple[int, str, bool]] = field(default_factory=list)
    """When, of which run, and whether the notice was marked as a possible repeat."""
    sent: int = 0


class EndsWithNotices(Ends):
    """Each run that has ended sends a notice, by the change that ends it, as chats do."""

    def of(self, tx: Transaction, run: RunRecord) -> tuple[OutboxDraft, ...]:
        if run.status is not RunStatus.DONE:
            return ()
        return (
            OutboxDraft(
                kind=NOTICE,
                target="people",
                payload={"run": run.run_id},
                dedupe_key=run.run_id,
                order_key=run.thread_id,
                max_attempts=NO_END,
            ),
        )


class Notices:
    """Performs the effects: it takes time, and it fails as the plan says."""

    lease = timedelta(seconds=4)
    at_once = 2
    together = False
    retries = (timedelta(milliseconds=200), timedelta(seconds=2))

    def __init__(self, loop: SimulatedLoop, post: Post, database: Database) -> None:
        self._loop, self._post, self._database = loop, post, database

    def serves(self, target: str) -> bool:
        return True

    async def perform(self, rows: Sequence[OutboxMessage]) -> Outcome:
        [row] = rows
        post = self._post
        post.sent += 1
        fault = "" if self._database.is_calm else post.faults.get(post.sent, "")
        if fault:
            self._database.happened[fault] += 1
        await self._loop.passes(5)
        if fault == "effect refused":
            return NotPerformed(error="not now")
        post.arrived.append((self._loop.ms, str(row.payload["run"]), row.may_have_arrived))
        if self._database.note is not None:
            self._database.note(f"notice of {row.payload['run']}, attempt {row.attempt_count} {fault}")
        if fault == "effect unknown":
            return NotPerformed(error="no answer", may_have_arrived=True)
        await self._loop.passes(10_000 if fault == "effect slow" else 5)
        return Performed()


def config_of(settings: dict[str, Any]) -> MailboxConfig:
    """Return the settings of every mailbox of a world."""
    at_once, limits, budget = settings["at_once"], settings.get("limits"), settings.get("budget")
    bounds = [] if at_once is None else [Limit(per=LimitScope.ALL, at_once=at_once)]
    if limits == "key":
        bounds.append(Limit(per=LimitScope.KEY, at_once=1))
    elif limits == "starts":
        bounds.append(Limit(per=LimitScope.ALL, starts=2, period=timedelta(seconds=2)))
    return MailboxConfig(
        lease_ms=settings["lease_ms"],
        lease_renewal_interval=timedelta(milliseconds=settings["lease_ms"] // 3),
        lease_retry_ms=200,
        sweep_interval=timedelta(seconds=settings["sweep_s"]),
        poll_interval=timedelta(seconds=1),
        stop_wait_ms=1_500,
        default_retry_delay_ms=100,
        max_retry_delay_ms=2_000,
        default_max_attempts=8,
        outage=timedelta(0),
        max_concurrent_runs=settings["slots"],
        limits=tuple(bounds),
        budgets=() if budget is None else (Budget(per=BudgetScope.ALL, runs=budget),),
        drain_grace=timedelta(seconds=1),
    )


class Server:
    """One process with a mailbox."""

    def __init__(
        self,
        process: Process,
        database: Database,
        network: Network,
        post: Post,
        watch: Any,
        settings: dict[str, Any],
        random: Random,
    ) -> None:
        self.name, self.process = process.name, process
        self.loop, self.database = database.loop, database
        self.is_up = False
        """Whether it takes work."""
        self.executing: Counter[str] = Counter()
        """The runs whose functions execute here."""
        self.config = config_of(settings)
        changes = network.ends[process] = ChangeNotifier()
        self.engine = SimulatedEngine(database, process, network)
        self.stores = Stores(SqlStore(self.engine, changes), is_exclusive=False)
        runs, timer = self.stores.runs, SystemTimer()
        options = {"consumer_id": self.name, "config": self.config, "random": random}
        self.mail: MailServer | None = None
        self.chats: ChatServer | None = None
        if settings["chats"]:
            options["config"] = replace(self.config, places=lambda: self.chats.leases.places())
            agents, lease_ms = watch.agents(self), self.config.lease_ms
            self.chats = ChatServer(self.stores, agents, self.name, options, watch.platform, lease_ms)
            self.queue = self.chats.queue
        elif settings["mail"]:
            self.mail = MailServer(self.stores, watch.agents(self), options, settings)
            self.queue = self.mail.queue
        else:
            self.queue = Queue(
                OutputKept(FunctionExecutor(watch.work(self), runs, timer), runs.events, timer),
                runs,
                effects=EndsWithNotices() if settings["relay"] else Ends(),
                **options,
            )
        self.mailbox = Mailbox(self.queue, runs)
        self.leases: Leases | None = None
        if settings["leases"]:
            self.leases = Leases(
                self.stores.store, self.name, {}, length=timedelta(milliseconds=self.config.lease_ms)
            )
            self.leases.want(ALONE)
        self._settings = settings
        self.works_alone: Any = None
        """Told each time the server does what only one server may do at a time."""
        self.begin_another: Any = None
        """Starts another server in the place of this one."""
        self._relay = Relay(self.stores.store, {NOTICE: Notices(self.loop, post, database)})
        self._stopping = asyncio.Event()
        self.loop.processes.append(process)

    def start(self) -> None:
        """Begin to serve."""
        # in a context of its own: a server that replaces one that died in a call is not part of that call
        self.loop.spawn(self.process, self._serve(), Context())

    def kill(self) -> None:
        """End at once, with everything that the server was doing."""
        self.is_up = False
        if not self.process.is_dead:
            self.process.die(self.loop)

    def freeze(self, ms: int) -> None:
        """Stand still, as a process does that is stopped or swapped out."""
        self.process.frozen_until = max(self.process.frozen_until, self.loop.ms + ms)

    async def leave(self, grace_ms: int) -> None:
        """Drain and end, as on SIGTERM."""
        self.is_up = False
        self._stopping.set()
        if self.chats is not None:
            await self.chats.leave()
        await self.queue.aclose(timedelta(milliseconds=grace_ms))
        self.kill()

    @property
    def is_awake(self) -> bool:
        """Whether it can act now: it is neither frozen nor waiting for a slow answer."""
        now = self.loop.ms
        return self.is_up and self.process.frozen_until <= now and self.engine.slow_until <= now

    @property
    def free_slots(self) -> int:
        """How many more runs it may execute, by its own books."""
        return self.queue._dispatcher.slots.free

    async def _serve(self) -> None:
        while True:
            try:
                await self.queue.start_lifecycle_ready()
                break
            except Exception:  # whatever runs the server starts it again
                await self.loop.passes(500)
        self.is_up = True
        try:
            await self._serve_rest()
        except Exception:  # as above
            if self.database.note is not None:
                self.database.note(f"{self.name} ends: {traceback.format_exc()[-300:]}")
            self.kill()
            self.loop.call_at_ms(self.loop.ms + 500, self.begin_another, process=self.loop.outside)

    async def _serve_rest(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self.chats is not None:
                group.create_task(self.chats.serve())
            if self._settings["schedules"]:
                group.create_task(self.mailbox.schedules.kept.serve())
            if self.mail is not None:
                group.create_task(self.mail.waker.serve())
                if self.mail.has_tasks:
                    group.create_task(self.mail.tell_of_tasks(self.loop))
            if self._settings["relay"]:
                group.create_task(self._relay.serve(self._stopping))
            if self.leases is not None:
                group.create_task(self._work_alone())
                async with self.leases.serving():
                    await asyncio.Event().wait()

    async def _work_alone(self) -> None:
        """Do, while this server has the lease, what only one server may do at a time."""
        assert self.leases is not None
        while True:
            await self.loop.passes(150)
            if self.leases.holds(ALONE):
                self.works_alone(self)


def effect_faults(faults: Sequence[Fault]) -> dict[int, str]:
    """Return the faults of effects by the number of the effect."""
    return {fault.n: fault.kind for fault in faults if fault.kind.startswith("effect")}
