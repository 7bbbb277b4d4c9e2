"""Notes in the prompts of runs that mail or a task starts: those that concern the run, before its message."""

import asyncio
from typing import Any

from postroom.contracts.tokens import Grant
from postroom.mail.context import Caller
from postroom.mail.waking.task_runs import TaskRuns
from postroom.services.hooks import Hooks
from waking_room import PROJECT, Room


async def call(room: Room, operation: str, name: str, **arguments: Any) -> Any:
    return await room.mail.call(operation, {"project_key": PROJECT, "agent_name": name, **arguments})


async def add(room: Room, subject: str, **more: Any) -> None:
    await call(room, "add_note", "Ada", subject=subject, text=f"About {subject}.", **more)


def notes_in(prompt: list[str]) -> list[str]:
    """Return the subjects of the notes in a prompt, and see that they stand before the message."""
    *notes, message = prompt
    assert "Mail has come for you" in message
    assert len(notes) <= 1
    lines = [line for text in notes for line in text.splitlines() if line.startswith("- ")]
    return [line.split('"')[1] for line in lines]


async def test_a_run_is_given_the_notes_of_its_agents_files_and_a_run_on_a_task_those_of_its_task(
    room: Room,
) -> None:
    await room.people("Ada", "Bo")
    await room.mail.set_runner(PROJECT, "Bo", "{}", runs_at_once=4, claims_tasks=True)
    await room.send("Ada", "Bo")
    await room.turn()
    for title, path in (("first", "src/**"), ("second", "docs/**")):
        await call(room, "add_task", "Ada", title=title, paths=[path], text=title)
    await call(room, "file_reservation_paths", "Bo", paths=["lib/a.py"])
    for subject, more in (
        ("Whole", {}),
        ("Library", {"paths": ["lib/**"]}),
        ("Source", {"paths": ["src/a.py"]}),
        ("Words", {"paths": ["docs/a.md"]}),
        ("Second", {"task_id": 2}),
        ("Elsewhere", {"paths": ["piers/**"]}),
    ):
        await add(room, subject, **more)
    await room.send("Ada", "Bo")
    await room.turn()
    go_on = asyncio.Event()

    async def waits(activation: Any) -> None:
        await go_on.wait()

    room.agents.act = waits
    while await TaskRuns(room.mail, room.waker).round():
        pass
    async with asyncio.timeout(30):
        while len(room.agents.prompts) < 4:
            await asyncio.sleep(0)
    go_on.set()
    await room.turn()
    seen = {("first" in texts[-1], "second" in texts[-1]): texts for _, texts in room.agents.prompts[2:]}
    assert notes_in(room.agents.prompts[0][1]) == []
    assert notes_in(room.agents.prompts[1][1]) == ["Library", "Whole"]
    assert notes_in(seen[True, False]) == ["Source", "Whole"]
    assert notes_in(seen[False, True]) == ["Second", "Words", "Whole"]


async def test_the_hooks_of_a_run_repeat_no_note_of_its_prompt(room: Room) -> None:
    await room.people("Ada", "Bo", runners=("Bo",))
    await add(room, "Whole")
    told = list[str]()

    async def starts_a_client(activation: Any) -> None:
        bo = await room.store.read(lambda tx: tx.agent_addressed(PROJECT, "Bo"))
        assert bo is not None
        grant = Grant(
            token_id="t", name="run", scopes=frozenset(), agent_id=bo.agent.id, run_id=activation.run_id
        )
        session = {"cwd": PROJECT, "session_id": "s", "agent": "Bo"}
        for event in ("SessionStart", "UserPromptSubmit"):
            answer = await Hooks(room.mail).answer("claude", event, session, grant=grant)
            told.append(answer["text"])

    room.agents.act = starts_a_client
    await room.send("Ada", "Bo")
    await room.turn()
    assert notes_in(room.agents.prompts[0][1]) == ["Whole"]
    assert told == ["", ""]
    caller = Caller(operator=True)
    found = await room.mail.call("find_notes", {"project_key": PROJECT}, caller=caller)
    assert [one["subject"] for one in found["notes"]] == ["Whole"]
