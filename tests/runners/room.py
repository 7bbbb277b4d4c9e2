"""A mail room whose agents are run as their runners say: messages in, real executors, answers out."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from postroom.app.agent_supervisor import ExecutorsByRunner, signing_secret
from postroom.app.model_agents import ModelAgents
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runners import AnyRunner, HttpRunner, RunnerKind, written_runner
from postroom.contracts.runs import AGENT_THREAD, RunRecord, agent_of
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.routing import ExecutorsByThread, JoinedEffects
from postroom.executors.remote import RemoteExecutor
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.people import StoredChatDelivery
from postroom.mail.service import Mail
from postroom.mail.waking.mail_runs import MailRunExecutor, MessageEffects
from postroom.mail.waking.waker import Waker
from postroom.services.calls import Calls
from waking_room import PROJECT, Room

KEY = "sk-very-secret"
SECRET = "a secret that both sides know"
ENVIRONMENT = {"MODEL_KEY": KEY, "BO_SECRET": SECRET, "BLANK": " "}


@dataclass
class RunnerRoom(Room):
    """Mail, a mailbox and executors; `Process` has the parts of one process."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    address: str = "http://127.0.0.1:8765"

    def __post_init__(self) -> None:
        self.mail = Mail(self.store, self.clock, self.rules, waker=lambda: self.waker)
        self.runners: dict[str, AnyRunner] = {}
        self.begin()

    def begin(self) -> None:
        """Begin as a new process does, on what the former one has left."""
        self.calls = Calls(self.mail, MAIL_OPERATIONS)
        self.models = ModelAgents(
            self, self.calls, self.store, environment=self.environment, clock=self.clock, timer=self.clock
        )
        self.results = RemoteExecutor(
            self,
            self.runs.dispatches,
            secret_of=self._secret_of,
            agent_on=lambda thread: "@".join((agent_of(thread) or ("", ""))[::-1]),
            address=lambda: self.address,
            clock=self.clock,
            timer=self.clock,
        )
        self.executors = ExecutorsByRunner(
            self, {RunnerKind.MODEL: self.models, RunnerKind.HTTP: self.results}
        )
        self.turns = MailRunExecutor(self.executors, self.store, self.clock)
        self.mailbox = Mailbox(
            ExecutorsByThread({AGENT_THREAD: self.turns}),
            self.runs,
            consumer_id="server",
            effects=JoinedEffects(MessageEffects(self.mail.own_context), self.results),
            timer=self.clock,
            random=Random(1),
            config=MailboxConfig(drain_grace=timedelta(0), default_max_attempts=self.most_attempts),
        )
        boxes = StoredChatDelivery(self.mail)
        verified = self.rules.verified
        self.waker = Waker(self.store, self.mailbox, verified=verified, chat_delivery=boxes)

    async def runner_of(self, agent_id: str, agent: object = None) -> AnyRunner | None:
        return self.runners.get(agent_id.partition("@")[0])

    async def _secret_of(self, runner: HttpRunner) -> str:
        return await asyncio.to_thread(signing_secret, runner, self.environment)

    async def employ(self, **runners: AnyRunner) -> None:
        """Register agents that are run so, and Ada, who is not."""
        await self.people("Ada", *runners)
        for name, runner in runners.items():
            self.runners[name] = runner
            await self.mail.set_runner(PROJECT, name, written_runner(runner))

    async def runs_of(self) -> list[RunRecord]:
        """Return every run."""
        return list(await self.runs.threads.list_runs(RunQuery()))

    async def dead(self) -> list[RunDispatch]:
        """Return the dead letters."""
        return list(await self.runs.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER))

    async def end(self) -> None:
        """End as a process does that gets a signal."""
        await self.mailbox.aclose(timedelta(0))
        await self.models.close()
        await self.results.close()
