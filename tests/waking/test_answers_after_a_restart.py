"""An agent's answer is on the page of its run and in the sender's inbox, also on a new server."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postroom.contracts.run_stores import RunQuery
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from sqlite_files import open_new
from waking_room import PROJECT
from work_room import SLUG, WorkRoom

ANSWER = "Bo did it"


@pytest.fixture(params=["sqlite", "postgres"])
def reopened(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Callable[[], Any]:
    """Open the same database repeatedly."""
    if request.param == "sqlite":
        path = tmp_path / "postroom.db"
        open_new(path, clock).close()
        return lambda: SqliteStore.open(path, clock=clock, purpose="test")
    dsn, schema = request.getfixturevalue("postgres_dsn"), request.getfixturevalue("a_schema")
    return lambda: PostgresStore.open(dsn, schema=schema, clock=clock)


async def shown(room: WorkRoom) -> tuple[bool, bool]:
    """Return whether the page of the run shows the answer, and whether the sender's inbox holds it."""
    [run] = await room.stores.threads.list_runs(RunQuery())
    async with room.browser() as browser:
        page = await browser.get(f"/p/{SLUG}/runs/{run.run_id}")
    asked = {"project_key": PROJECT, "agent_name": "Ada", "include_bodies": True}
    inbox = await room.mail.call("fetch_inbox", asked)
    return ANSWER in page.text, ANSWER in str(inbox)


async def answered(room: WorkRoom) -> None:
    await room.people("Ada", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo")
    await room.turn()
    assert await shown(room) == (True, True)
    await room.close()


async def read_again(room: WorkRoom) -> None:
    assert await shown(room) == (True, True)
    await room.close()


def test_a_new_server_shows_the_answer_of_a_run_on_its_page_and_in_the_inbox(
    reopened: Callable[[], Any], clock: ManualClock
) -> None:
    for step in (answered, read_again):
        with closing(reopened()) as store:
            asyncio.run(step(WorkRoom(store, store.runs, clock)))
