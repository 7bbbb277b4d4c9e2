"""The cost of commands in a long chat: how many stored messages and runs they read, on both engines."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fake_channel import FakeChannel
from gateway_room import Agent, Room, all_answered, both_engines, settled
from postroom.contracts.messages import Message, Role
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.gateway import sessions, wording
from postroom.gateway.commands import BY_NAME, Commands
from postroom.stores.runs import rows

PAGE = 200
SEARCHED = 2_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the stored messages and runs that are read."""
    counted = Counter[str]()
    for name in ("message", "run"):

        def counting(row: Any, name: str, of: Any) -> Any:
            counted[name] += 1
            return of(row)

        monkeypatch.setattr(rows, name, partial(counting, name=name, of=getattr(rows, name)))
    return counted


async def long_chat(
    room: Room, gateway: Any, channel: FakeChannel, agent: Agent, messages: int, runs: int
) -> None:
    """Make a chat with one exchange, and copies of its run and its messages before."""
    await channel.say("the newest")
    await all_answered(room, gateway, 1)
    thread_id = agent.activations[-1].thread_id
    [run] = await room.runs.threads.latest_runs(thread_id)
    for number in range(runs):
        asked = Message(role=Role.USER, content=(), id=f"q{number}")
        copy = replace(
            run,
            run_id=f"old-{number:05}",
            input=replace(run.input, trigger_message_ids=(f"q{number}",)),
            created_at=run.created_at - 1_000_000 + number,
            updated_at=run.updated_at - 1_000_000 + number,
        )
        await room.runs.coordinator.commit(ThreadCommit(thread_id=thread_id, run=copy, messages=(asked,)))
    for first in range(0, messages, 1_000):
        words = [Message.user(f"word {number}", id=f"m{number}") for number in range(first, first + 1_000)]
        await room.runs.coordinator.commit(ThreadCommit(thread_id=thread_id, messages=tuple(words)))


async def told(gateway: Any, channel: FakeChannel, text: str) -> str | None:
    """Return what a command says at once."""
    event = channel.message(text)
    event.inbound_id = 1
    services = gateway.runner.services
    key = gateway.runner.config.session_key(event.source)
    commands: Commands = services.commands
    return await commands.obey(BY_NAME[event.get_command()], event, event.source, key)


@both_engines
async def test_a_search_reads_2000_messages_and_goes_on_from_there(room, read) -> None:
    agent, gateway, channel = await room.with_agent()
    await long_chat(room, gateway, channel, agent, messages=5_000, runs=0)
    read.clear()
    said = await told(gateway, channel, "/search nowhere")
    assert said == f"Searched {SEARCHED} messages. To search older messages: /search @0:3003 nowhere"
    assert read["message"] == SEARCHED
    found = await told(gateway, channel, "/search @0:3003 word 1990")
    assert found.splitlines()[0] == "untitled: word 1990"
    assert await told(gateway, channel, "/search @0:1003 nowhere") == "No matches."
    assert await told(gateway, channel, "/search newest") == "\n".join(
        [f"Searched {SEARCHED} messages. To search older messages: /search @0:3003 newest"]
    )
    assert await told(gateway, channel, "/search @7:1 newest") == "No matches."


@pytest.mark.parametrize("command", ["/usage", "/undo", "/retry"])
async def test_a_command_reads_no_more_in_a_conversation_of_twice_the_length(room, read, command) -> None:
    agent, counts = Agent(), []
    gateway, channel = await room.open(agent)
    await long_chat(room, gateway, channel, agent, messages=1_000, runs=PAGE + 10)
    thread_id = agent.activations[-1].thread_id
    agent.free.clear()
    for _ in range(2):
        read.clear()
        said = await told(gateway, channel, command)
        counts.append(dict(read))
        if command == "/usage":
            assert said.startswith("The newest 200 runs: ")
        if command == "/undo":
            assert said == "Removed the last exchange."
        if command == "/retry":
            assert said is None
        if command == "/retry" or len(counts) == 2:
            break
        for number in range(1_000, 1_000 + PAGE):
            message = Message.user("more", id=f"m{number}")
            [run] = await room.runs.threads.latest_runs(thread_id, limit=1)
            copy = replace(run, run_id=f"older-{number}", updated_at=1, created_at=1)
            await room.runs.coordinator.commit(
                ThreadCommit(thread_id=thread_id, run=copy, messages=(message,))
            )
    assert counts[-1].get("run", 0) <= PAGE + 5
    assert counts[-1].get("message", 0) <= PAGE + 10
    agent.free.set()


async def test_what_is_forgotten_is_kept_apart_from_the_session_and_has_an_end(room, monkeypatch) -> None:
    monkeypatch.setattr(sessions, "MAX_HIDDEN", 2)
    agent, gateway, channel = await room.with_agent()
    for number in range(1, 4):
        await channel.say(f"number {number}")
        await all_answered(room, gateway, number)
    assert await told(gateway, channel, "/undo") == "Removed the last exchange."
    [key] = {gateway.runner.config.session_key(channel.message("x").source)}
    size = len(str((await room.stores.sessions.load(key)).settings))
    assert await told(gateway, channel, "/undo") == "Removed the last exchange."
    assert len(str((await room.stores.sessions.load(key)).settings)) == size
    before = await gateway.runner.services.sessions.hidden(agent.activations[-1].thread_id)
    assert await told(gateway, channel, "/undo") == wording.too_much_forgotten(200)
    assert await gateway.runner.services.sessions.hidden(agent.activations[-1].thread_id) == before
    assert len(before) == 2


class Slow:
    """Mail that takes its time to reply."""

    def __init__(self) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any, **__: Any) -> None:
            return None

        return nothing

    async def reply(self, *_: Any, **__: Any) -> str:
        self.begun.set()
        await self.free.wait()
        return "Ada"


async def test_a_slow_command_holds_up_no_other_chat_and_keeps_the_order_of_its_own(room) -> None:
    """A channel hands over one message after another, and waits for each, as polling does."""
    agent, mail = Agent(), Slow()
    gateway, channel = await room.open(agent, mail=mail)
    async with asyncio.timeout(60):
        await channel.say("/reply 5 hello", chat="a")
        await mail.begun.wait()
        for text in ("behind", "and behind that"):
            await channel.say(text, chat="a")
        await channel.say("/title Later", chat="a")
        await channel.say("elsewhere", chat="b", user="u1")
        await settled(lambda: agent.read == [["elsewhere"]], room.hurry(gateway))
        assert (await room.statuses())["waiting"] == 4
        mail.free.set()
        await all_answered(room, gateway, 5)
    assert agent.read == [["elsewhere"], ["behind"], ["and behind that"]]
    said = channel.texts("a")
    assert said.index("Sent to Ada.") < said.index("re: behind") < said.index("re: and behind that")
    assert "Title: Later" in said
