"""Schedules of the library, on every kind of database, with time as it passes."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from embedded_room import Open, echo
from postroom.contracts.errors import InvalidArgument, InvalidSchedule, InvalidSubmission, UnknownSchedule
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Run

HOUR = timedelta(hours=1)


async def test_a_schedule_is_kept_listed_paused_triggered_and_removed(opening: Open) -> None:
    async with opening(echo) as mailbox:
        await mailbox.schedules.add("hourly", "chat-1", "report", every=HOUR, zone="Europe/Berlin")
        await mailbox.schedules.add("monday", "chat-2", {"page": 1}, cron="0 9 * * MON", missed="skip")
        assert [one.name for one in await mailbox.schedules.list()] == ["hourly", "monday"]
        assert (await mailbox.schedules.pause("monday")).is_paused
        handle = await mailbox.schedules.trigger("monday")
        assert await handle.result(timeout=30) == 'you said {"page":1}'
        assert not (await mailbox.schedules.resume("monday")).is_paused
        assert [one.submitted for one in await mailbox.schedules.list()] == [0, 1]
        assert await mailbox.schedules.remove("monday")
        with pytest.raises(UnknownSchedule):
            await mailbox.schedules.trigger("monday")


async def test_workers_that_share_a_database_enqueue_each_tick_once(postgres_dsn: str) -> None:
    schema, seen, three = f"embedded_{uuid4().hex}", Counter[str](), asyncio.Event()

    async def note(run: Run) -> None:
        seen[run.id] += 1
        if len(seen) == 3:
            three.set()

    try:
        async with AsyncExitStack() as opened:
            mailboxes = [
                await opened.enter_async_context(Mailbox.open(postgres_dsn, note, schema=schema))
                for _ in range(4)
            ]
            for one in mailboxes:
                await one.schedules.add("ticking", "t", "go", every=timedelta(seconds=1))
            async with asyncio.timeout(30):
                await three.wait()
            for one in mailboxes:
                await one.schedules.remove("ticking")
            messages = await mailboxes[0].stores.threads.load_messages("t") or ()
            asked = [one.id for one in messages if one.role == "user"]
            assert set(seen.values()) == {1}
            assert {*seen} <= {*asked}
            assert len(asked) == len({*asked}) <= 4
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


async def test_what_could_not_be_enqueued_is_refused_at_once(opening: Open) -> None:
    async with opening(echo) as mailbox:
        add = mailbox.schedules.add
        with pytest.raises(InvalidArgument, match="what is enqueued cannot be stored"):
            await add("a", "t", object(), every=HOUR)
        with pytest.raises(InvalidSubmission, match="priority"):
            await add("a", "t", "go", every=HOUR, priority=256)
        with pytest.raises(InvalidSchedule, match="one of them"):
            await add("a", "t", "go")
        assert await mailbox.schedules.list() == []


async def test_a_program_that_starts_again_goes_on_with_its_schedules(tmp_path: Path) -> None:
    async def started() -> str:
        async with Mailbox.open(f"sqlite:///{tmp_path}/runs.db", echo) as mailbox:
            return (await mailbox.schedules.add("nightly", "t", "go", cron="0 2 * * *")).schedule_id

    assert await started() == await started()
