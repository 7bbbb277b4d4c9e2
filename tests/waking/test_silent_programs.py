"""Programs that print no answer: a run that asked a person waits, or continues with a late answer; others fail."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from executors.acp_room import QUICK, agent
from executors.room import SERVER, OneRunner, Sink, script
from postroom.contracts.activation import RunActivation
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runners import Runner
from postroom.contracts.runs import RunStatus
from postroom.executors.acp import AcpExecutor
from postroom.executors.command import CommandExecutor
from postroom.executors.processes.process_runner import ProcessRunner
from postroom.testing import ManualClock
from waking_room import PROJECT
from work_room import WorkRoom

Opened = Callable[[Runner], Awaitable[WorkRoom]]
ASKS = {"project_key": PROJECT, "agent_name": "Bo"}
QUESTIONS = ("May I?", "EUR or USD?")


@pytest.fixture
def late() -> list[str]:
    """The answer to the second question, which a person gives while Bo works with the first answer."""
    return []


@pytest_asyncio.fixture
async def opened(stores, clock: ManualClock, tmp_path: Path, late: list[str]) -> AsyncIterator[Opened]:
    """Opens a room with Bo's runner; while Bo's program of a message "tidy first" is active, Bo asks a person.

    For a message "tidy first, twice", Bo asks two questions.
    """
    room, executors = WorkRoom(*stores, clock), list[CommandExecutor | AcpExecutor]()
    await room.people("Ada", "Bo", runners=("Bo",))

    @asynccontextmanager
    async def asking(activation: RunActivation) -> AsyncIterator[None]:
        texts = [message.text() for message in activation.messages]
        if not activation.decisions and any("tidy first" in text for text in texts):
            for question in QUESTIONS[: 1 + any("twice" in text for text in texts)]:
                asked = {**ASKS, "question": question, "run_id": activation.run_id}
                await room.mail.call("ask_person", asked)
        elif late:
            [open_question] = await room.questions.questions()
            await room.questions.answer(open_question["number"], late.pop(), by="bob")
        yield None

    async def open_room(runner: Runner) -> WorkRoom:
        runners, folder = OneRunner(runner), tmp_path / "private"
        if runner.kind is AcpExecutor.kind:
            process_runner = ProcessRunner(folder, environment=SERVER, limits=QUICK)
            executor = AcpExecutor(runners, process_runner, access_of=asking)
        else:
            executor = CommandExecutor(
                runners, folder=folder, environment=SERVER, limits=QUICK, access_of=asking
            )
        executors.append(executor)
        room.agents.act = lambda activation: executor.run(activation, Sink())
        return room

    yield open_room
    await room.close()
    for executor in executors:
        await executor.close()


async def told(room: WorkRoom) -> str:
    """Return the newest message to Ada."""
    inbox = await room.mail.call("fetch_inbox", {"project_key": PROJECT, "agent_name": "Ada", "after": 0})
    return inbox[-1]["body_md"]


SILENT = {
    "command": script("pass"),
    "blank": script("print('  ')"),
    "acp": agent("pass"),
}


@pytest.mark.parametrize("kind", SILENT)
async def test_a_run_that_asked_a_person_and_printed_nothing_waits_for_the_answer(
    opened: Opened, kind: str
) -> None:
    room = await opened(SILENT[kind])
    await room.send("Ada", "Bo", body="tidy first")
    await room.turn()
    assert (await told(room)).startswith("Bo has a question:\n\n- May I?")
    [run] = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    assert [ticket.reason for ticket in run.open_tickets] == ["May I?"]


@pytest.mark.parametrize("kind", SILENT)
async def test_a_run_that_asked_nobody_and_printed_nothing_fails(opened: Opened, kind: str) -> None:
    room = await opened(SILENT[kind])
    await room.send("Ada", "Bo", body="tidy all")
    await room.turn()
    assert "without an answer" in await told(room)


async def test_a_program_that_fails_does_not_wait_for_the_answer_to_its_question(opened: Opened) -> None:
    room = await opened(script("sys.exit(3)"))
    await room.send("Ada", "Bo", body="tidy first")
    await room.turn()
    assert "exit code 3" in await told(room)


async def answered(room: WorkRoom) -> None:
    """Let Bo ask two questions, and answer the first one."""
    await room.send("Ada", "Bo", body="tidy first, twice")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    await room.questions.answer(numbers["May I?"], "yes", by="ana")
    await room.turn()


async def test_a_silent_turn_in_which_another_answer_arrives_continues_with_that_answer(
    opened: Opened, late: list[str]
) -> None:
    room = await opened(script("told = sys.stdin.read()\nif 'EUR or USD' in told: print(told)"))
    late.append("EUR")
    await answered(room)
    assert re.findall(r"You asked a person: (.*)\n(.*)", await told(room)) == [
        ("May I?", "The answer is yes."),
        ("EUR or USD?", "They answered: EUR"),
    ]
    [run] = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.DONE,)))
    assert {one.ticket.reason: one.decision.by for one in run.answered} == {
        "May I?": "ana",
        "EUR or USD?": "bob",
    }


@pytest.mark.parametrize("kind", SILENT)
async def test_the_last_turn_fails_if_it_is_silent_although_another_answer_arrived_before(
    opened: Opened, late: list[str], kind: str
) -> None:
    room = await opened(SILENT[kind])
    late.append("EUR")
    await answered(room)
    assert "without an answer" in await told(room)
    [run] = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.DONE,)))
    assert [one.is_answer for one in run.answered] == [True, True]


async def test_a_silent_turn_with_an_open_question_and_no_further_answer_fails_and_closes_the_question(
    opened: Opened,
) -> None:
    room = await opened(SILENT["command"])
    await answered(room)
    assert "without an answer" in await told(room)
    assert await room.questions.questions() == []
