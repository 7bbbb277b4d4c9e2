"""Logs are kept at a bounded length, in small steps, whatever fails in between."""

import asyncio
from pathlib import Path

import pytest

from machine import PATIENCE
from mail_room import SHORE, Room, room_in_memory
from postroom.app.config import Settings
from postroom.app.retention import INTERVAL, STEP, Retention
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import CursorExpired, StoreUnavailable
from postroom.contracts.mail import LogBounds
from postroom.testing.faults import LosingStore, RefusingStore, writes

room = room_in_memory
MINUTE = milliseconds(INTERVAL)


def settings(path: Path, keep: int) -> Settings:
    return Settings(data_dir=path, event_keep=keep)


async def bounds(room: Room, project_id: int = 1) -> LogBounds:
    return await room.store.read(lambda tx: tx.log_bounds(project_id))


async def furnished(room: Room, messages: int) -> None:
    """Open a project whose log has four entries and one for each message, and another with two."""
    await room.open()
    for _ in range(messages):
        await room.send("Ada", "Ben")
    await room.open("Eve", project=SHORE)


async def test_the_oldest_go_and_a_cursor_among_them_is_told_so(room: Room, tmp_path: Path) -> None:
    await furnished(room, 106)
    trimming = Retention(settings(tmp_path, 100), room.store)
    assert await trimming.logs() == 10
    assert await trimming.logs() == 0
    assert await bounds(room) == LogBounds(oldest=10, newest=110)
    assert await bounds(room, 2) == LogBounds(oldest=0, newest=2)
    await room.refused(CursorExpired, "fetch_events", after=9)
    assert (await room.call("fetch_events", after=10, limit=1))["events"][0]["seq"] == 11
    await room.send("Ada", "Ben")
    assert (await bounds(room)).newest == 111


async def test_a_long_log_is_trimmed_in_steps_while_others_write(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.app.retention.STEP", 3)
    await furnished(room, 106)
    trimming = Retention(settings(tmp_path, 100), room.store)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(trimming.logs())
        for _ in range(5):
            group.create_task(room.send("Ada", "Ben"))
    await trimming.logs()
    assert await bounds(room) == LogBounds(oldest=15, newest=115)
    assert STEP > 3


async def test_a_store_that_fails_loses_nothing_but_time(room: Room, tmp_path: Path) -> None:
    await furnished(room, 106)
    refusing = Retention(settings(tmp_path, 100), RefusingStore(room.store, writes(1)))
    with pytest.raises(StoreUnavailable):
        await refusing.logs()
    assert await bounds(room) == LogBounds(oldest=0, newest=110)
    losing = Retention(settings(tmp_path, 100), LosingStore(room.store, writes(1)))
    with pytest.raises(StoreUnavailable):
        await losing.logs()
    assert await losing.logs() == 0
    assert await bounds(room) == LogBounds(oldest=10, newest=110)


class ManualTimer:
    """A timer that a test lets go on from minute to minute; rests between steps are over at once."""

    def __init__(self) -> None:
        self.slept: list[int] = []
        self.asleep = asyncio.Event()
        self.wake = asyncio.Event()

    async def sleep(self, milliseconds: int) -> None:
        if milliseconds < MINUTE:
            return
        self.slept.append(milliseconds)
        self.asleep.set()
        await self.wake.wait()
        self.wake.clear()


async def test_it_goes_on_in_the_background_also_after_a_failure(room: Room, tmp_path: Path) -> None:
    await furnished(room, 106)
    timer = ManualTimer()
    store = RefusingStore(room.store, writes(1))
    trimming = Retention(settings(tmp_path, 100), store, timer=timer)
    trimming.start()
    async with asyncio.timeout(PATIENCE):
        for expected in (0, 10):
            await timer.asleep.wait()
            timer.asleep.clear()
            timer.wake.set()
            await timer.asleep.wait()
            assert (await bounds(room)).oldest == expected
    await trimming.stop()
    assert store.failed == 1
    assert set(timer.slept) == {MINUTE}
