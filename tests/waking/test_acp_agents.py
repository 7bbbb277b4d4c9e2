"""Messages to an agent that speaks ACP, over the real executor: the question that it asks, and what follows."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executors.acp_room import QUICK, agent, heard
from executors.room import SERVER, OneRunner
from postroom.contracts.activation import RunActivation
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.tools import ToolCallResume
from postroom.executors.acp import AcpExecutor
from postroom.executors.processes.process_runner import ProcessRunner
from waking_room import PROJECT, Room

Opened = Callable[..., Awaitable[Room]]
ONE = "{'toolCallId': 'c', 'title': 'Remove', 'rawInput': {'path': 'one'}}"
TWO = "{'toolCallId': 'd', 'title': 'Remove', 'rawInput': {'path': 'two'}}"


@pytest_asyncio.fixture
async def opened(room: Room, tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens a room in which Bo is run by the fake agent, which does this in its turn."""
    made: list[Room] = []

    async def open_room(words: str, **options: Any) -> Room:
        process_runner = ProcessRunner(tmp_path / "private", environment=SERVER, limits=QUICK)
        executor = AcpExecutor(OneRunner(agent(words, options)), process_runner)
        made.append(Room(store=room.store, runs=room.runs, clock=room.clock, agents=executor))
        await made[-1].people("Ada", "Bo", runners=("Bo",))
        return made[-1]

    yield open_room
    for one in made:
        await one.close()
        await one.agents.close()


async def waiting(room: Room) -> RunRecord:
    [run] = await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    return run


async def answered(room: Room, approved: bool, name: str) -> None:
    """Answer the one question that is asked, as people do."""
    run = await waiting(room)
    assert run.waiting is not None
    [ticket] = run.waiting.tickets
    decision = ToolCallResume(decision_id=name, result={"approved": approved})
    request = RunActivation.new(
        run.thread_id, [], continue_run_id=run.run_id, decisions=[(ticket.tool_call_id, decision)]
    )
    await room.mailbox.submit_background(request)
    await room.turn()


@pytest.mark.parametrize("loads", [True, False])
async def test_a_permission_is_asked_by_mail_and_given_once(
    opened: Opened, tmp_path: Path, loads: bool
) -> None:
    journal = tmp_path / "heard"
    words = f"say(' '.join((may({ONE}), may({TWO}))))"
    room = await opened(words, loads=loads, memory=str(tmp_path), journal=str(journal))
    await room.send("Ada", "Bo", body="tidy up")
    await room.turn()
    [(_, asked)] = await room.texts("Ada")
    assert 'May the agent continue with "Remove"? The call: {"path": "one"}' in asked
    await answered(room, True, "first")
    second = (await room.texts("Ada"))[1][1]
    assert '{"path": "two"}' in second
    await answered(room, True, "second")
    third = (await room.texts("Ada"))[2][1]
    assert '{"path": "one"}' in third  # it began anew, and a permission that was used is asked for again
    assert room.agents.executing == 0
    prompts = [
        one["params"]["prompt"][0]["text"] for one in heard(journal) if one.get("method") == "session/prompt"
    ]
    assert all("The answer is yes." in prompt for prompt in prompts[1:])
    assert [("tidy up" in prompt) for prompt in prompts] == [True, not loads, not loads]


async def test_a_permission_that_is_denied_is_told_to_the_agent_and_its_answer_is_mailed(
    opened: Opened,
) -> None:
    room = await opened(f"say('I may not: ' + may({ONE}))")
    await room.send("Ada", "Bo", body="tidy up")
    await room.turn()
    await answered(room, False, "first")
    assert (await room.texts("Ada"))[1] == ("Bo", "I may not: no")
    assert all(one["read_at"] for one in await room.inbox("Bo"))


async def test_a_message_in_answer_to_the_question_allows_nothing(opened: Opened) -> None:
    room = await opened(f"say('So: ' + may({ONE}))")
    await room.send("Ada", "Bo", body="tidy up")
    await room.turn()
    [question] = await room.inbox("Ada")
    reply = {
        "project_key": PROJECT,
        "sender_name": "Ada",
        "message_id": question["id"],
        "body_md": "Yes, do.",
    }
    await room.mail.call("reply_message", reply)
    await room.turn()
    run = await waiting(room)
    assert run.waiting is not None
    assert [ticket.tool_name for ticket in run.waiting.tickets] == ["permission"]
    assert not any("So: yes" in text for _, text in await room.texts("Ada"))


async def test_what_it_asks_a_person_itself_is_asked_beside_the_permission(opened: Opened) -> None:
    room = await opened(f"say(may({ONE}))")
    plain = room.agents.run

    async def run(activation: RunActivation, sink: Any) -> Any:
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id, "question": "Blue?"}
        await room.mail.call("ask_person", asked)
        return await plain(activation, sink)

    room.agents.run = run
    await room.send("Ada", "Bo", body="tidy up")
    await room.turn()
    run_record = await waiting(room)
    assert run_record.waiting is not None
    assert [ticket.tool_name for ticket in run_record.waiting.tickets] == ["permission", "ask_person"]
    assert "- Blue?" in (await room.texts("Ada"))[0][1]
