"""A server is suspended beyond its lease, another server ends the run, and then the first continues: it writes nothing."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from postroom.contracts.errors import StaleClaim
from postroom.contracts.events import CanonicalEventDraft, EventScope
from postroom.contracts.run_stores import ThreadCommit
from postroom.mail.context import Caller
from postroom.ports import get_claim
from postroom.testing import ManualClock
from waking_room import PROJECT, Room

LATE = "written late"


def call(operation: str, **arguments: Any) -> Callable[[Room, Any], Awaitable[Any]]:
    """Return a call that a run's program makes with the token of its execution."""

    async def made(room: Room, activation: Any) -> Any:
        caller = Caller()
        if activation is not None:
            caller = Caller(run_id=activation.run_id, claim=get_claim(activation))
        return await room.mail.call(operation, {"project_key": PROJECT, **arguments}, caller=caller)

    return made


async def output(room: Room, activation: Any) -> None:
    scopes = (EventScope.thread(activation.thread_id), EventScope.run(activation.run_id))
    draft = CanonicalEventDraft(scopes=scopes, event_kind="TextDeltaObserved", payload={"delta": LATE})
    await room.runs.events.add(draft, claim=get_claim(activation))


async def step(room: Room, activation: Any) -> None:
    await activation.control.coordinator.commit(ThreadCommit(thread_id=activation.thread_id))


WRITES = {
    "a message": call("send_message", sender_name="Bo", to=["Ada"], subject=LATE, body_md=LATE),
    "a task": call("add_task", agent_name="Bo", title=LATE),
    "a claim of a task": call("claim_task", agent_name="Bo"),
    "the end of a task": call("done_task", agent_name="Bo", task_id=1, epoch=1),
    "a question": call("ask_person", agent_name="Bo", question=LATE),
    "a note": call("add_note", agent_name="Bo", subject=LATE, text=LATE),
    "a reservation": call("file_reservation_paths", agent_name="Bo", paths=["src/**"]),
    "output": output,
    "a step": step,
}


async def seen(room: Room, run_id: str) -> list[Any]:
    """Return what people see of the project and of a run."""
    project = {"project_key": PROJECT}
    found = [await room.mail.call(one, project) for one in ("list_tasks", "find_notes")]
    return [*found, await room.inbox("Ada"), await room.runs.events.count(EventScope.run(run_id))]


@pytest.mark.parametrize("late", WRITES.values(), ids=WRITES)
async def test_what_a_frozen_server_writes_after_the_end_of_its_run_is_refused(
    room: Room, late: Callable[[Room, Any], Awaitable[Any]]
) -> None:
    frozen, heir = room.opened("frozen", timer=ManualClock()), room.opened("heir")
    room.mailbox, room.waker = frozen
    begun = asyncio.get_running_loop().create_future()

    async def acts(activation: Any) -> None:
        if not begun.done():
            begun.set_result(activation)
            await asyncio.Event().wait()

    room.agents.act = acts
    await room.people("Ada", "Bo", runners=("Bo",))
    await call("add_task", agent_name="Ada", title="work")(room, None)
    await room.send("Ada", "Bo")
    activation = await begun
    await call("claim_task", agent_name="Bo")(room, activation)
    room.clock.advance(timedelta(minutes=10))
    await heir[0].run_sweep()
    await heir[0].settled()
    before = await seen(room, activation.run_id)
    assert ("Bo", "Bo did it") in await room.texts("Ada")
    with contextlib.nullcontext() if late is output else pytest.raises(StaleClaim):
        await late(room, activation)
    assert await seen(room, activation.run_id) == before
    await heir[0].aclose(timedelta(0))
