"""A record of a newer release is passed over and said to be newer; a release that can read it finds it as before."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from embedded_room import echo
from log_lines import capture_logs
from postroom import BusyPolicy, Mailbox, PostroomError, RecordTooNew, Run, State
from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.run_stores import RunQuery
from postroom.testing import mailbox as manual

LATER = timedelta(hours=3)


class Place:
    """A database, and a way past the library into its rows."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema

    def open(self) -> AbstractAsyncContextManager[Mailbox]:
        return Mailbox.open(self.url, None, schema=self.schema)

    def run(self, statement: str) -> list[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as database, database:
                return database.execute(statement).fetchall()
        with psycopg.connect(self.url, autocommit=True) as session:
            session.execute(f"SET search_path TO {self.schema}")
            done = session.execute(statement)
            return done.fetchall() if done.description else []

    def rewrite(self, table: str, where: str, change: Callable[[str], str]) -> None:
        """Change the body of one row, as another release would write it."""
        [[body]] = self.run(f"SELECT body FROM {table} WHERE {where}")
        after = change(body).replace("'", "''")
        self.run(f"UPDATE {table} SET body = '{after}' WHERE {where}")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    schema = f"newer_{uuid4().hex}"
    if request.param == "sqlite":
        yield Place(f"sqlite:///{tmp_path}/runs.db", schema)
        return
    url = request.getfixturevalue("postgres_dsn")
    yield Place(url, schema)
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def with_status(status: str) -> Callable[[str], str]:
    return lambda body: json.dumps({**json.loads(body), "status": status})


async def listed(mailbox: Mailbox) -> set[str]:
    return {run.run_id for run in await mailbox.stores.threads.list_runs(RunQuery())}


async def test_a_run_of_a_newer_release_is_passed_over_until_it_can_be_read(place: Place) -> None:
    async with place.open() as mailbox:
        newer, other = [await mailbox.enqueue(thread, "go", delay=LATER) for thread in ("t1", "t2")]
    place.rewrite("runs", f"run_id = '{newer.id}'", with_status("paused_by_budget"))
    with capture_logs() as lines:
        async with place.open() as mailbox:
            assert await listed(mailbox) == {other.id}
            with pytest.raises(RecordTooNew, match="paused_by_budget"):
                await mailbox.handle(newer.id)
            [row] = await mailbox.stores.store.unreadable(10)
            assert (row.kind, row.id) == ("run", newer.id)
    [line] = [line for line in lines if line["event"].startswith("store.row")]
    assert (line["event"], line["log_level"], line["id"]) == ("store.row_too_new", "warning", newer.id)
    assert "newer release" in line["remedy"]
    place.rewrite("runs", f"run_id = '{newer.id}'", with_status("created"))
    async with place.open() as mailbox, asyncio.timeout(30):
        while await listed(mailbox) != {newer.id, other.id}:  # a start reads such rows again beside its work
            await asyncio.sleep(0)
        assert await mailbox.stores.store.unreadable(10) == []


@pytest.mark.parametrize(
    ("rewritten", "kind"),
    [(with_status("paused_by_budget"), RecordTooNew), (lambda body: body[:-9], StoreCorrupt)],
    ids=["of a newer release", "damaged"],
)
async def test_an_unreadable_run_blocks_its_own_thread_and_no_other(
    place: Place, rewritten: Callable[[str], str], kind: type[PostroomError]
) -> None:
    async def work(run: Run) -> str:
        if run.text == "ask":
            await run.ask("may it go on?")
        return run.text

    async with Mailbox.open(place.url, work, schema=place.schema) as mailbox, asyncio.timeout(30):
        asking = await mailbox.enqueue("t1", "ask", key="k")
        assert (await anext(asking.events())).type == "question"
    place.rewrite("runs", f"run_id = '{asking.id}'", rewritten)
    async with Mailbox.open(place.url, work, schema=place.schema) as mailbox, asyncio.timeout(30):
        for call in (
            lambda: mailbox.cancel(asking.id),
            lambda: mailbox.handle(asking.id),
            lambda: mailbox.enqueue("t1", "ask", key="k"),
            lambda: mailbox.enqueue("t1", "more", when_busy=BusyPolicy.INTERRUPT),
            lambda: mailbox.enqueue("t1", "more", when_busy=BusyPolicy.ROLLBACK),
        ):
            with pytest.raises(kind):
                await call()
        behind = await mailbox.enqueue("t1", "behind")
        assert await (await mailbox.enqueue("t2", "other")).result() == "other"
        assert (await behind.status()).state is State.QUEUED


async def test_a_release_lists_the_rows_that_another_one_cannot_read(place: Place) -> None:
    async with place.open() as mailbox:
        run = await mailbox.enqueue("t1", "go", delay=LATER)
    place.run(
        "INSERT INTO unreadable_rows (kind, id, release, reason, at) "
        f"VALUES ('run', '{run.id}', 'another', 'too new', 1)"
    )
    place.run(f"INSERT INTO run_quarantine (kind, id, reason, at) VALUES ('run', '{run.id}', 'too new', 1)")
    async with place.open() as mailbox:
        assert await listed(mailbox) == {run.id}
        assert await mailbox.stores.store.unreadable(10) == []


async def test_a_message_of_a_newer_release_is_there_again_when_it_can_be_read(place: Place) -> None:
    async with place.open() as mailbox:
        for text in ("one", "two"):
            await mailbox.enqueue("t1", text, delay=LATER)

    def of_role(role: str) -> Callable[[str], str]:
        return lambda body: json.dumps({**json.loads(body), "role": role})

    async def texts() -> list[str]:
        async with place.open() as mailbox:
            return [one.text() for one in await mailbox.stores.threads.load_messages("t1") or ()]

    place.rewrite("run_messages", "thread_id = 't1' AND seq = 1", of_role("overseer"))
    with capture_logs() as lines:
        async with place.open() as mailbox:
            with pytest.raises(RecordTooNew, match="overseer"):
                await mailbox.stores.threads.load_messages("t1")
    assert {line["event"] for line in lines if line["log_level"] == "error"} == set()
    place.rewrite("run_messages", "thread_id = 't1' AND seq = 1", of_role("user"))
    assert await texts() == ["one", "two"]


async def test_a_damaged_record_is_no_newer_one(place: Place) -> None:
    async with place.open() as mailbox:
        run = await mailbox.enqueue("t1", "go", delay=LATER)
    place.rewrite("runs", f"run_id = '{run.id}'", lambda body: "{}")
    with capture_logs() as lines:
        async with place.open() as mailbox:
            assert await listed(mailbox) == set()
            with pytest.raises(StoreCorrupt) as refused:
                await mailbox.handle(run.id)
            assert type(refused.value) is StoreCorrupt
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["store.row_quarantined"]


async def test_a_row_is_read_again_after_an_hour_without_a_restart(place: Place) -> None:
    async with place.open() as mailbox:
        run = await mailbox.enqueue("t1", "go", delay=LATER)
    place.rewrite("runs", f"run_id = '{run.id}'", with_status("paused_by_budget"))
    async with manual(echo, place.url, schema=place.schema) as mailbox:
        assert await listed(mailbox) == set()
        place.rewrite("runs", f"run_id = '{run.id}'", with_status("created"))
        assert await listed(mailbox) == set()
        mailbox.clock.advance(timedelta(hours=1))
        await mailbox.admin.run_gc()
        assert await listed(mailbox) == {run.id}
