"""Messages that a program gets during its work, and that its model also finds: each has one answer."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dispatch_room import done
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.messages import Boundary
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from store_kinds import opened
from waking_room import PROJECT, Room, number

BO = {"project_key": PROJECT, "agent_name": "Bo"}


@pytest.fixture
def stores(tmp_path: Path, clock: ManualClock):
    with opened("sqlite", tmp_path, str, clock) as store:
        yield MailStore(store), RunStores(store)


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Room]:
    made = Room(*stores, clock=clock, most_attempts=2)
    await made.people("Ada", "Cyd", "Bo", runners=("Bo",))
    yield made
    await made.close()


def is_told(room: Room, *, marks: bool, takes: bool):
    """Announce a message to the first run; its model reads the inbox as well."""
    sent: list[int] = []

    async def act(activation: Any) -> Any:
        if len(room.agents.prompts) > 1:
            return None
        sent.append(number(await room.send("Cyd", "Bo", thread_id="plan", body="and this")))
        pending = activation.control.pending
        [told] = await pending.waiting(Boundary.NEXT_STEP)
        assert "and this" in told.text()
        assert sent[0] in [one["id"] for one in await room.mail.call("fetch_inbox", BO)]
        if marks:
            await room.mail.call("acknowledge_message", {**BO, "message_id": sent[0]})
            assert await pending.waiting(Boundary.NEXT_STEP) == ()
        if takes:
            await pending.freeze(Boundary.NEXT_STEP, only=frozenset({told.id}))
        return done(activation, "both are done")

    room.agents.act = act
    return sent


@pytest.mark.parametrize("marks", [True, False])
async def test_a_message_that_is_taken_is_answered_with_the_run_also_where_its_model_had_read_it(room, marks):
    sent = is_told(room, marks=marks, takes=True)
    await room.send("Ada", "Bo", thread_id="plan")
    await room.turn()
    assert await room.texts("Ada") == await room.texts("Cyd") == [("Bo", "both are done")]
    assert len(room.agents.prompts) == 1
    assert (await room.handled(sent[0], "Bo")).ended_at is not None


async def test_a_message_that_its_model_only_saw_and_the_program_did_not_take_begins_the_next_run(room):
    is_told(room, marks=False, takes=False)
    await room.send("Ada", "Bo", thread_id="plan")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "both are done")]
    assert await room.texts("Cyd") == [("Bo", "Bo did it")]
    assert len(room.agents.prompts) == 2


async def test_a_message_that_its_model_has_read_and_the_program_did_not_take_begins_no_run(room):
    is_told(room, marks=True, takes=False)
    await room.send("Ada", "Bo", thread_id="plan")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "both are done")]
    assert await room.texts("Cyd") == []
    assert len(room.agents.prompts) == 1


async def test_a_message_taken_while_the_store_goes_away_is_answered_with_the_run_that_took_it(
    room, monkeypatch
):
    """Programs go on with their work if a message could not be noted; nobody else is notified of it then."""
    write = room.store.write

    async def is_away(change: Any, **more: Any) -> Any:
        monkeypatch.setattr(room.store, "write", write)
        raise StoreUnavailable("the store is away")

    async def act(activation: Any) -> Any:
        await room.send("Cyd", "Bo", thread_id="plan", body="and this")
        monkeypatch.setattr(room.store, "write", is_away)
        with suppress(StoreUnavailable):
            await activation.control.pending.freeze(Boundary.NEXT_STEP)
        monkeypatch.setattr(room.store, "write", write)
        return done(activation, "both are done")

    room.agents.act = act
    await room.send("Ada", "Bo", thread_id="plan")
    await room.turn()
    assert await room.texts("Ada") == await room.texts("Cyd") == [("Bo", "both are done")]


async def test_a_run_whose_first_message_is_recalled_before_its_retry_does_what_it_has_received_since(room):
    sent: list[int] = []

    async def act(activation: Any) -> Any:
        if len(room.agents.prompts) > 1:
            return None
        await room.send("Cyd", "Bo", thread_id="plan", body="and this")
        await activation.control.pending.freeze(Boundary.NEXT_STEP)
        recalled = {"project_key": PROJECT, "sender_name": "Ada", "message_id": sent[0]}
        await room.mail.call("recall_message", recalled)
        raise ConnectionError("the model is away")

    room.agents.act = act
    sent.append(number(await room.send("Ada", "Bo", thread_id="plan")))
    await room.turn()
    room.clock.advance(timedelta(minutes=1))
    await room.mailbox.poll()
    await room.turn()
    assert len(room.agents.prompts) == 2
    assert await room.texts("Cyd") == [("Bo", "Bo did it")]
