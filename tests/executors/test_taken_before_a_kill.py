"""A message that a run accepted during its work reaches its next program too, on both engines, also after an answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dispatch_room import done
from executors.acp_room import QUICK
from executors.room import SERVER, OneRunner, script
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import CommandBusy
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.contracts.runners import Runner, RunnerKind
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.executors.processes.executor import LastWords, ProgramExecutor
from postroom.executors.processes.process_runner import ProcessRunner, Work
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from store_kinds import KINDS, opened, refuse_missing

Act = Callable[[Work], Awaitable[str]]
QUESTION = "May I?"


class Over:
    """A program that has ended with an answer, or with a question."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def result(self, activation: RunActivation) -> AgentRunResult:
        if self.answer != QUESTION:
            return done(activation, self.answer)
        ticket = RunWaitingTicket(ticket_id="q", tool_call_id="q", tool_name="permission", reason=QUESTION)
        state = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
        run_id = activation.run_id or ""
        return AgentRunResult(run_id=run_id, termination=TerminationReason.suspended(), waiting=state)

    def last_words(self) -> LastWords:
        return LastWords()


class Programs(ProgramExecutor):
    """Each attempt is what the test lets its program do; `told` is what the programs were given to read."""

    kind = RunnerKind.COMMAND

    def __init__(self, folder: Path) -> None:
        process_runner = ProcessRunner(folder, environment=SERVER, limits=QUICK)
        super().__init__(OneRunner(script("")), process_runner, name="programs")
        self.told: list[list[str]] = []
        self.acts: list[Act] = []

    async def _attempt(self, work: Work) -> Over:
        self.told.append([message.text() for message in work.activation.messages])
        return Over(await self.acts.pop(0)(work))

    async def _keep(self, work: Work, finished: Any) -> None:
        """Keep nothing."""

    def build_command(self, runner: Runner) -> tuple[str, ...]:
        return runner.argv

    def find_client(self, runner: Runner) -> None:
        return None


class Room:
    """A mailbox over programs; each of its threads is `t`."""

    def __init__(self, folder: Path, stores: RunStores, clock: ManualClock) -> None:
        self.programs, self.clock, self.stores = Programs(folder), clock, stores
        self.mailbox = self.opened("first")

    def opened(self, consumer: str) -> Mailbox:
        config = MailboxConfig(drain_grace=timedelta(0), default_max_attempts=5)
        return Mailbox(self.programs, self.stores, consumer_id=consumer, timer=self.clock, config=config)

    async def ask(self, *texts: str, **more: Any) -> None:
        request = RunActivation.new("t", texts, agent_id="Ada", **more)
        self.run_id = (await self.mailbox.submit_background(request)).run_id
        await self.mailbox.settled()

    async def answer(self) -> None:
        decision = ToolCallResume(decision_id="d", result={"approved": True})
        await self.ask(continue_run_id=self.run_id, decisions=[("q", decision)])

    async def again(self) -> None:
        """Advance the time beyond the pause before a retry."""
        self.clock.advance(timedelta(minutes=5))
        await self.mailbox.poll()
        await self.mailbox.settled()

    def takes(self, text: str, *, then: Act) -> Act:
        """Let a program accept a message that arrives during its work."""

        async def act(work: Work) -> str:
            await self.mailbox.deliver("t", [Message.user(text)], DeliveryMode(boundary=Boundary.NEXT_STEP))
            pending = work.control.pending
            assert pending is not None
            [taken] = await pending.freeze(Boundary.NEXT_STEP)
            assert taken.text() == text
            return await then(work)

        return act


async def is_killed(work: Work) -> str:
    raise CommandBusy("it was cut off")


async def asks(work: Work) -> str:
    return QUESTION


async def ends(work: Work) -> str:
    return "all is done"


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Any:
    refuse_missing(request.param)
    with opened(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"), clock) as store:
        yield RunStores(store)


@pytest_asyncio.fixture
async def room(stores: RunStores, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path / "private", stores, clock)
    yield made
    await made.mailbox.aclose(timedelta(0))
    await made.programs.close()


async def test_a_run_that_an_answer_let_go_on_is_told_again_what_it_took_since(room: Room) -> None:
    room.programs.acts = [asks, room.takes("and this", then=is_killed), ends]
    await room.ask("dig")
    await room.answer()
    await room.again()
    assert room.programs.told == [["dig"], [], ["and this"]]


async def test_what_it_took_before_its_question_is_not_told_again_behind_the_answer(room: Room) -> None:
    acts = [room.takes("and this", then=asks), room.takes("and that", then=is_killed), ends]
    room.programs.acts = list(acts)
    await room.ask("dig")
    await room.answer()
    await room.again()
    assert room.programs.told == [["dig"], [], ["and that"]]


async def test_what_it_took_in_several_attempts_is_told_in_the_order_it_came(room: Room) -> None:
    room.programs.acts = [
        *(asks, room.takes("and this", then=is_killed), room.takes("and that", then=is_killed), ends),
    ]
    await room.ask("dig")
    await room.answer()
    await room.again()
    await room.again()
    assert room.programs.told == [["dig"], [], ["and this"], ["and this", "and that"]]


async def test_a_run_that_a_leaving_server_gave_back_is_told_again_what_it_took(room: Room) -> None:
    """Such an attempt does not count: the next attempt is the first again."""

    at_work = asyncio.Event()

    async def until_it_is_cut_off(work: Work) -> str:
        at_work.set()
        await work.active.stop.asked()
        return "cut off"

    room.programs.acts = [room.takes("and this", then=until_it_is_cut_off), ends]
    await room.mailbox.submit_background(RunActivation.new("t", ["dig"], agent_id="Ada"))
    await at_work.wait()
    await room.mailbox.aclose(timedelta(0))
    room.mailbox = room.opened("second")
    await room.mailbox.poll()
    await room.mailbox.settled()
    assert room.programs.told == [["dig"], ["dig", "and this"]]
