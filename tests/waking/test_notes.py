"""Notes in the prompts of runs that mail or a task starts: those that concern the run, before its message."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.errors import NoteContradicts
from postroom.contracts.tokens import Grant
from postroom.mail.context import Caller, Rules
from postroom.mail.waking.task_runs import TaskRuns
from postroom.services.hooks import Hooks
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from waking_room import PROJECT, Room


async def call(room: Room, operation: str, name: str, **arguments: Any) -> Any:
    return await room.mail.call(operation, {"project_key": PROJECT, "agent_name": name, **arguments})


async def add(room: Room, subject: str, **more: Any) -> None:
    await call(room, "add_note", "Ada", subject=subject, text=f"About {subject}.", **more)


def notes_in(prompt: list[str]) -> list[str]:
    """Return the subjects of the notes in a prompt, and see that they stand before the message."""
    *notes, message = prompt
    assert "Mail has come for you" in message or "are your order" in message
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
    async with asyncio.timeout(PATIENCE):
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


FOLDERS = [f"f{number}" for number in range(6)]
WAKES = ("mail", "task", "question", "retry")


@pytest_asyncio.fixture
async def tight_room(
    request: pytest.FixtureRequest, stores: tuple[MailStore, RunStores], clock: ManualClock
) -> AsyncIterator[Room]:
    """A room whose runs are tried twice, with a budget for notes that depends on the seed."""
    tokens = (1_000, 300, 150)[request.getfixturevalue("seed") % 3]
    made = Room(*stores, clock=clock, most_attempts=2, rules=Rules(note_tokens=tokens))
    yield made
    await made.close()


async def make_notes(room: Room, dice: Random, tasks: list[int]) -> dict[str, dict[str, Any]]:
    """Add notes of all kinds; return the active ones by subject, with what each is about, oldest first."""
    kept = dict[str, dict[str, Any]]()
    for number in range(16):
        task, folder = dice.choice(tasks), dice.choice(FOLDERS)
        more: dict[str, Any] = dice.choice([{}, {"paths": [f"{folder}/a.py"]}, {"task_id": task}])
        subject, fate = (
            f"Subject {number}",
            dice.choice(["kept", "kept", "ended", "expired", "replaced", "asked"]),
        )
        days = {"days": 1} if fate == "expired" else {}
        made = await call(room, "add_note", "Ada", subject=subject, text="Old.", **more, **days)
        again = {"subject": subject.upper(), "text": f"New {number}.", **more}
        if fate == "ended":
            await call(room, "end_note", "Ada", note_id=made["id"])
        elif fate == "replaced":
            await call(room, "add_note", "Cy", **again, replaces=[made["id"]])
            kept[subject.upper()] = more
        elif fate == "asked":
            with pytest.raises(NoteContradicts):
                await call(room, "add_note", "Cy", **again)
        if fate in ("kept", "asked"):
            kept[subject] = more
    room.clock.advance(timedelta(days=2))
    return kept


@pytest.mark.parametrize("seed", range(50))
async def test_the_first_request_of_a_run_has_every_note_that_concerns_it_and_no_other(
    tight_room: Room, seed: int
) -> None:
    room, dice, wake = tight_room, Random(seed), WAKES[seed % 4]
    await room.people("Ada", "Bo", "Cy")
    held, other, reserved = dice.sample(FOLDERS, 3)
    tasks = [
        (await call(room, "add_task", "Ada", title=folder, paths=[f"{folder}/**"], assignee=name))["id"]
        for folder, name in ((held, "Bo" if wake == "task" else ""), (other, "Cy"))
    ]
    kept = await make_notes(room, dice, tasks)
    await call(room, "file_reservation_paths", "Bo", paths=[f"{reserved}/a.py"], ttl_seconds=3_600)
    await call(room, "file_reservation_paths", "Cy", paths=[f"{other}/a.py"], ttl_seconds=3_600)
    requests = list[list[str]]()

    async def act(activation: Any) -> None:
        requests.append([message.text() for message in activation.messages])
        if wake == "question" and len(requests) == 1:
            asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
            await room.mail.call("ask_person", {**asked, "question": "May I?"})
        if wake == "retry" and len(requests) == 1:
            raise OSError("the connection was lost")

    room.agents.act = act
    await room.mail.set_runner(PROJECT, "Bo", "{}", claims_tasks=wake == "task")
    if wake == "task":
        await TaskRuns(room.mail, room.waker).round()
    else:
        await room.send("Ada", "Bo")
    await room.turn()
    if wake == "question":
        await room.turn()
        [question] = [one for one in await room.inbox("Ada") if "has a question" in one["body_md"]]
        answer = {
            "project_key": PROJECT,
            "sender_name": "Ada",
            "message_id": question["id"],
            "body_md": "yes",
        }
        await room.mail.call("reply_message", answer)
        await room.turn()
    if wake == "retry":
        room.clock.advance(timedelta(minutes=5))
        await room.mailbox.poll()
        await room.turn()

    files = {held} if wake == "task" else {reserved}
    ranks = dict[str, int]()
    for subject, more in kept.items():
        if "task_id" in more:
            if wake == "task" and more["task_id"] == tasks[0]:
                ranks[subject] = 0
        elif not more:
            ranks[subject] = 2
        elif more["paths"][0].partition("/")[0] in files:
            ranks[subject] = 1
    newest_first = list(reversed(kept))
    wanted = sorted(ranks, key=lambda one: (ranks[one], newest_first.index(one)))
    given = notes_in(requests[0])
    assert given == wanted[: len(given)], (wake, given, wanted)
    text = requests[0][0] if len(requests[0]) > 1 else ""
    assert len(text.encode()) <= 4 * room.rules.note_tokens
    left = len(wanted) - len(given)
    assert (f"{left} more: call find_notes" in text) == bool(left)
    if left:
        longest = max(len(line.encode()) for line in text.splitlines() if line.startswith("- "))
        assert len(text.encode()) + longest + 60 > 4 * room.rules.note_tokens, "another note would fit"
    if wake in ("question", "retry"):
        assert len(requests) == 2, wake
    if wake == "retry":
        assert notes_in(requests[1]) == given, "a new attempt begins anew"
    if wake == "question":
        assert "notes" not in requests[1][0][:40]
