"""Two servers on one PostgreSQL, each with separate connections and caches: the promises of mail hold across them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from typing import Any

import mcp.server.subscriptions  # noqa: F401 - loaded before an event loop runs
import psycopg
import pytest
from psycopg import sql

from machine import PATIENCE
from mail_room import HARBOR, SHORE, Room, a_room
from postroom.app.tokens import new_named_token
from postroom.contracts.errors import NotHolder, TaskNotHeld
from postroom.mail.context import Caller
from postroom.mail.merging import merge
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.tokens import NamedTokens
from postroom.services.calls import Calls, Subscriptions
from postroom.services.following import Following
from postroom.stores.changes import SharedChanges
from postroom.stores.postgres.store import PostgresStore
from postroom.testing import ManualClock
from table_rows import each_row
from task_log import check_claims

SENDERS = ("Ada", "Cyd", "Dot")


@pytest.fixture
async def rooms(postgres_dsn: str, a_schema: str, clock: ManualClock) -> AsyncIterator[list[Room]]:
    """The same mail room, opened by two servers."""
    stores = [
        await asyncio.to_thread(PostgresStore.open, postgres_dsn, schema=a_schema, clock=clock, readers=2)
        for _ in range(2)
    ]
    rooms = [a_room(one, clock) for one in stores]
    await rooms[0].open("Ben", *SENDERS)
    await rooms[1].open("Eve", project=SHORE)
    yield rooms
    for store in stores:
        await asyncio.to_thread(store.close)


async def test_who_waits_at_one_server_is_answered_when_another_takes_the_message(rooms: list[Room]) -> None:
    here, there = rooms
    asked = {"project_key": HARBOR, "agent_name": "Ben", "after": 0, "wait_seconds": 30}
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        wait = group.create_task(Following(here.mail).messages(asked))
        await asyncio.sleep(0)
        sent = await there.send("Ada", "Ben")
    assert [one["id"] for one in wait.result()["events"]] == [sent]


@each_row("mode", ["refuse", "grant"])
async def test_of_two_servers_that_raise_shared_reservations_at_once_none_overtakes_the_other(
    rooms: list[Room], mode: str
) -> None:
    async def reserve(room: Room, name: str, path: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await room.call(
            "file_reservation_paths", agent_name=name, paths=[path], **more
        )
        return answer

    asked = {"Ada": "zz/**", "Cyd": "zz/a.py"}
    for name, path in asked.items():
        await reserve(rooms[0], name, path, exclusive=False)
    answers = await asyncio.gather(
        *(reserve(room, *item, mode=mode) for room, item in zip(rooms, asked.items(), strict=True)),
        return_exceptions=True,
    )
    listed = (await rooms[1].call("list_file_reservations"))["reservations"]
    if mode == "refuse":
        assert [type(answer) for answer in answers] == [NotHolder, NotHolder]
        assert [one["exclusive"] for one in listed] == [False, False]
    else:
        assert [one["exclusive"] for one in listed] == [True, True]
        again = [await reserve(rooms[0], one["agent"], one["path"]) for one in reversed(listed)]
        assert [answer["granted"][0]["held"] for answer in again] == [False, True]


async def test_a_message_writes_no_row_of_a_project_or_an_agent(
    rooms: list[Room], postgres_dsn: str, a_schema: str
) -> None:
    """All deliveries would need it; next to a transaction that stays open each would skip its former versions."""
    names = (
        "SELECT 'project', id, xmin::text FROM projects UNION ALL SELECT 'agent', id, xmin::text FROM agents"
    )
    session = await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True)
    async with session:
        await session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(a_schema)))
        before = await (await session.execute(names)).fetchall()
        await rooms[0].send("Ada", "Ben", f"Eve@{SHORE}")
        assert before
        assert await (await session.execute(names)).fetchall() == before


async def test_a_file_that_two_want_alone_at_two_servers_is_given_to_one(rooms: list[Room]) -> None:
    wanted = {"paths": ["quay/**"], "exclusive": True}
    for path in map("quay{}/**".format, range(10)):
        wanted["paths"] = [path]
        answers = await asyncio.gather(
            *(
                room.call("file_reservation_paths", agent_name=name, **wanted)
                for room, name in zip(rooms, SENDERS, strict=False)
            )
        )
        assert sorted(len(one["conflicts"]) for one in answers) == [0, 1]


async def test_what_waits_for_a_project_that_another_server_merges_is_done_in_the_other(
    rooms: list[Room],
) -> None:
    first, second = rooms
    await first.open("Zoe", project="/yard/tree")
    sent = [second.send("Zoe", "Zoe", project_key="/yard/tree", subject=f"{one}") for one in range(30)]
    merging = first.store.write(lambda tx: merge(tx, "/yard/tree", HARBOR))
    ids = [one for one in await asyncio.gather(*sent, merging) if isinstance(one, int)]
    found = await second.store.read(lambda tx: tx.messages(ids))
    home = await second.store.read(lambda tx: tx.project(HARBOR))
    assert home is not None
    assert {one.project_id for one in found.values()} == {home.id}
    assert len(await second.inbox("Zoe", limit=50)) == 30


async def test_who_listens_at_one_server_has_news_of_what_was_done_at_another(rooms: list[Room]) -> None:
    here, there = (
        Subscriptions(shared=SharedChanges(room.store.store.changes, room.store.store.engine.share))  # type: ignore[attr-defined]
        for room in rooms
    )
    uri, heard = f"mail://inbox/{await rooms[0].mail.slug(HARBOR)}/Ben", asyncio.Queue[str]()
    with here.heard_by(None, [uri]):
        stop = here.subscribe(lambda event: heard.put_nowait(event.uri))
    calls = Calls(rooms[1].mail, MAIL_OPERATIONS, news=there)
    message = {"project_key": HARBOR, "sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}
    async with asyncio.timeout(PATIENCE):
        await until_heard(rooms)
        while not heard.empty():
            heard.get_nowait()
        await calls.perform("send_message", message, caller=Caller(operator=True))
        assert await heard.get() == uri
    stop()


async def test_a_token_that_is_revoked_at_one_server_ends_what_another_tells_by_it(rooms: list[Room]) -> None:
    here, there = (
        NamedTokens(
            room.store,
            room.clock,
            shared=SharedChanges(room.store.store.changes, room.store.store.engine.share),  # type: ignore[attr-defined]
        )
        for room in rooms
    )
    token = new_named_token()
    await here.create("ci", token.id, token.hash, ["mail:read"])
    grant = await here.recognise(token.token)
    here.start()
    await until_heard(rooms)
    assert here.holds(grant)
    await there.revoke("ci")
    async with asyncio.timeout(PATIENCE):
        while here.holds(grant):
            await asyncio.sleep(0)
    await here.stop()


async def until_heard(rooms: list[Room]) -> None:
    """Wait until each server hears the other."""
    for room in rooms:
        await asyncio.to_thread(room.store.store.engine.notifications.is_listening.wait)  # type: ignore[attr-defined]


async def test_both_servers_give_each_task_to_one_agent_at_a_time(
    rooms: list[Room], clock: ManualClock
) -> None:
    """Holders freeze beyond their leases, and their late calls are refused at either server."""
    numbers = list[int]()
    for number in range(20):
        task = {
            "title": f"task {number}",
            "paths": [f"src/{number % 7}.py"],
            "depends_on": numbers[-1:][: number % 2],
        }
        numbers.append((await rooms[0].call("add_task", agent_name="Ben", **task))["id"])
    finished, refused = list[int](), list[int]()

    async def works(room: Room, other: Room, name: str) -> None:
        for turn in count():
            if len(finished) == len(numbers):
                return
            task = (await room.call("claim_task", agent_name=name, ttl_seconds=10))["task"]
            if task is None:
                await asyncio.sleep(0)
                continue
            held = {"agent_name": name, "task_id": task["id"], "epoch": task["epoch"]}
            if turn % 3 == 1:
                clock.advance(timedelta(seconds=11))
            try:
                await other.call("done_task", **held)
                finished.append(task["id"])
            except TaskNotHeld:
                refused.append(task["id"])

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for name in SENDERS:
            group.create_task(works(*rooms, name))
            group.create_task(works(*reversed(rooms), name))
    assert sorted(finished) == numbers
    assert refused
    log = await rooms[1].call("fetch_events", limit=1000)
    assert check_claims(log["events"]) == {}
