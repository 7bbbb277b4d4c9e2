"""An agent that may execute several runs at once: a long run of one mail thread delays no other mail thread."""

import asyncio

import pytest

from machine import PATIENCE
from postroom.contracts.errors import InvalidRunner
from postroom.contracts.runners import Runner, runner_of
from postroom.mail.waking.prompts import choose_lane
from waking_room import PROJECT, number

THREADS = [f"thread-{number}" for number in range(40)]


class LongRun:
    """The run of one mail thread takes until it is let go; runs of other threads end at once."""

    def __init__(self, room, thread: str) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.prompts: list[str] = []
        self._thread = thread
        room.agents.act = self

    async def __call__(self, activation):
        text = activation.messages[0].text()
        self.prompts.append(text)
        if f"Thread: {self._thread}" in text or self._thread in text:
            self.begun.set()
            await self.go_on.wait()


def in_lane(lane: int, runs_at_once: int = 2) -> list[str]:
    return [one for one in THREADS if choose_lane(one, runs_at_once) == lane]


async def answered(room, reader: str, thread: str) -> bool:
    return any(one["thread_id"] == thread for one in await room.inbox(reader))


async def until_answered(room, thread: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await answered(room, "Ada", thread):
            await asyncio.sleep(0)


@pytest.mark.parametrize("runs_at_once", [1, 2])
async def test_a_long_run_delays_other_threads_only_if_one_run_executes_at_a_time(room, runs_at_once):
    await room.people("Ada", "Bo")
    await room.mail.set_runner(PROJECT, "Bo", "{}", runs_at_once=runs_at_once)
    long, same, other = in_lane(0)[0], in_lane(0)[1], in_lane(1)[0]
    run = LongRun(room, long)
    for thread in (long, same, other):
        await room.send("Ada", "Bo", thread_id=thread, body=f"about {thread}.")
        if thread == long:
            await asyncio.wait_for(run.begun.wait(), 30)
    if runs_at_once == 2:
        await until_answered(room, other)
    assert not await answered(room, "Ada", long)
    assert not await answered(room, "Ada", same)
    assert await answered(room, "Ada", other) == (runs_at_once == 2)
    run.go_on.set()
    await room.turn()
    for thread in (long, same, other):
        assert await answered(room, "Ada", thread)
    assert len(run.prompts) == 3


async def test_a_message_that_begins_a_thread_wakes_its_reader_in_its_own_change(room):
    await room.people("Ada", "Bo")
    await room.mail.set_runner(PROJECT, "Bo", "{}", runs_at_once=4)
    for _ in range(6):
        sent = await room.send("Ada", "Bo")
        await room.mailbox.settled()
        assert await answered(room, "Ada", f"msg-{number(sent)}")


async def test_fewer_runs_at_once_lose_no_message(room):
    await room.people("Ada", "Bo")
    await room.mail.set_runner(PROJECT, "Bo", "{}", runs_at_once=2)
    long = in_lane(1)[0]
    run = LongRun(room, long)
    await room.send("Ada", "Bo", thread_id=long, body=f"about {long}.")
    await asyncio.wait_for(run.begun.wait(), 30)
    await room.send("Ada", "Bo", thread_id=in_lane(1)[1])
    await room.mail.set_runner(PROJECT, "Bo", "{}")
    await room.send("Ada", "Bo", thread_id=in_lane(1)[2])
    await until_answered(room, in_lane(1)[2])
    run.go_on.set()
    await room.turn()
    for thread in in_lane(1)[:3]:
        assert await answered(room, "Ada", thread)


def test_a_runner_says_how_many_of_its_runs_execute_at_once() -> None:
    plain = {"cwd": "/srv", "recipe": "claude", "resume": True}
    assert "runs_at_once" not in runner_of(plain).to_dict()
    runner = runner_of({**plain, "runs_at_once": 4})
    assert isinstance(runner, Runner)
    assert runner_of(runner.to_dict()) == runner
    for kind in (
        {"kind": "model", "base_url": "http://127.0.0.1/v1", "model": "m"},
        {"kind": "http", "url": "http://127.0.0.1/run", "secret_env": "KEY"},
    ):
        told = runner_of({**kind, "runs_at_once": 4})
        assert (told.runs_at_once, runner_of(told.to_dict())) == (4, told)
    for wrong in (0, 65, True, "2"):
        with pytest.raises(InvalidRunner, match="it must be an integer from 1 to 64"):
            runner_of({**plain, "runs_at_once": wrong})
    with pytest.raises(InvalidRunner, match="one session cannot have two runs at once"):
        runner_of({**plain, "session_per": "agent", "runs_at_once": 2})
