"""Messages that come while a model works on their thread: read at its next step, by the same run, answered with it."""

import asyncio
from typing import Any

import pytest

from postroom.contracts.messages import Boundary
from postroom.dispatch.worker import PendingInput
from runners.room import RunnerRoom
from runners.test_model_agents import bo, calls, says, seen
from runtime.endpoint import SILENCE, FakeEndpoint
from waking_room import PROJECT, number

LIVE = "live"


def look(*, until: asyncio.Event) -> list[Any]:
    """A step that is answered at the command of the test; messages arrive before."""
    return [until, *calls("whois", agent_name="Ada")]


async def at_work(room: RunnerRoom, endpoint: FakeEndpoint, **more: Any) -> Any:
    """Send a message and return when the model has it."""
    sent = await room.send("Ada", "Bo", body="the first", thread_id="plan", **more)
    async with asyncio.timeout(60):
        await endpoint.asked(1)
    return sent


async def test_a_message_on_its_thread_is_read_at_the_next_step_and_answered_with_the_first(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    go_on = asyncio.Event()
    endpoint.answers = [look(until=go_on), says("both are done")]
    first = await at_work(room, endpoint)
    second = await room.send("Ada", "Bo", body="the second", thread_id="plan")
    assert [one["deliveries"][0]["seen"] for one in (first, second)] == [["wake by runner"], [LIVE]]
    go_on.set()
    await room.turn()
    assert len(endpoint.bodies) == 2
    assert "the second" in seen(endpoint, 2)[-1][1]
    assert await room.texts("Ada") == [("Bo", "both are done")]
    assert all(one["read_at"] for one in await room.inbox("Bo"))
    runs = {(await room.handled(number(one), "Bo")).run_id for one in (first, second)}
    assert len(runs) == 1 == len(await room.runs_of())


async def test_everybody_whose_message_is_in_its_hands_is_answered(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    await room.people("Cy")
    go_on = asyncio.Event()
    endpoint.answers = [look(until=go_on), says("for all of you")]
    await at_work(room, endpoint)
    await room.send("Cy", "Bo", body="from Cy", thread_id="plan")
    go_on.set()
    await room.turn()
    assert await room.texts("Cy") == await room.texts("Ada") == [("Bo", "for all of you")]


async def test_a_message_on_another_thread_has_a_run_of_its_own(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    go_on = asyncio.Event()
    endpoint.answers = [look(until=go_on), says("one"), says("two")]
    await at_work(room, endpoint)
    other = await room.send("Ada", "Bo", body="of something else", thread_id="other")
    assert other["deliveries"][0]["seen"] == ["wake by runner"]
    go_on.set()
    await room.turn()
    assert not any("something else" in text for _, text in seen(endpoint, 2))
    assert "something else" in seen(endpoint, 3)[-1][1]
    assert [text for _, text in await room.texts("Ada")] == ["one", "two"]


async def test_a_message_that_comes_behind_the_last_word_has_an_answer_of_its_own(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    go_on = asyncio.Event()
    endpoint.answers = [[go_on, *says("one")], says("two")]
    await at_work(room, endpoint)
    await room.send("Ada", "Bo", body="the second", thread_id="plan")
    go_on.set()
    await room.turn()
    assert [text for _, text in await room.texts("Ada")] == ["one", "two"]
    assert len(await room.runs_of()) == 2


async def test_a_message_that_is_taken_back_before_the_step_is_not_read(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    go_on = asyncio.Event()
    endpoint.answers = [look(until=go_on), says("one")]
    await at_work(room, endpoint)
    second = await room.send("Ada", "Bo", body="the second", thread_id="plan")
    recalled = {"project_key": PROJECT, "sender_name": "Ada", "message_id": number(second)}
    await room.mail.call("recall_message", recalled)
    go_on.set()
    await room.turn()
    assert not any("the second" in text for _, text in seen(endpoint, 2))
    assert [text for _, text in await room.texts("Ada")] == ["one"]
    assert await room.handled(number(second), "Bo") is None


async def test_what_it_has_read_at_a_step_is_still_in_its_hands_after_a_crash(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    go_on = asyncio.Event()
    endpoint.answers = [look(until=go_on), [SILENCE]]
    first = await at_work(room, endpoint)
    second = await room.send("Ada", "Bo", body="the second", thread_id="plan")
    go_on.set()
    async with asyncio.timeout(60):
        await endpoint.asked(2)
    await room.end()
    room.begin()
    endpoint.answers = [says("both are done")]
    await room.mailbox.recover()
    await room.turn()
    assert seen(endpoint, 3) == seen(endpoint, 2)
    assert [text for _, text in await room.texts("Ada")] == ["both are done"]
    for one in (first, second):
        assert (await room.handled(number(one), "Bo")).ended_at is not None
    assert all(one["read_at"] for one in await room.inbox("Bo"))


async def test_a_message_is_its_run_s_from_the_change_that_takes_it_on_also_where_the_server_dies_there(
    room: RunnerRoom, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.employ(Bo=bo(endpoint))
    go_on, taken = asyncio.Event(), asyncio.Event()
    endpoint.answers = [look(until=go_on)]
    await at_work(room, endpoint)
    second = await room.send("Ada", "Bo", body="the second", thread_id="plan")
    freeze = PendingInput.freeze

    async def frozen(self: PendingInput, boundary: Boundary, **what: Any) -> Any:
        found = await freeze(self, boundary, **what)
        if found:
            taken.set()
            await asyncio.Event().wait()
        return found

    monkeypatch.setattr(PendingInput, "freeze", frozen)
    go_on.set()
    async with asyncio.timeout(60):
        await taken.wait()
    assert (await room.handled(number(second), "Bo")).ended_at is None
    await room.end()
    room.begin()
    monkeypatch.setattr(PendingInput, "freeze", freeze)
    endpoint.answers = [says("both are done")]
    await room.mailbox.recover()
    await room.turn()
    assert "the second" in seen(endpoint, 2)[-1][1]
    assert [text for _, text in await room.texts("Ada")] == ["both are done"]
    assert (await room.handled(number(second), "Bo")).ended_at is not None
    assert all(one["read_at"] for one in await room.inbox("Bo"))
