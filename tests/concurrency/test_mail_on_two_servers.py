"""Two servers on one database of PostgreSQL: logs without gaps, ids in order, keys answered once, no name twice."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from machine import PATIENCE
from postroom.contracts.errors import PostroomError
from postroom.mail.commands import MarkMessageRead
from postroom.mail.service import Mail, projects_of
from postroom.stores.mail.access import MailReads
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.sql_transaction import lock_number
from postroom.stores.postgres.store import PostgresStore
from postroom.testing import ManualClock
from store_kinds import SCHEMA, empty

ROUNDS = 20
HOMES = ("/one", "/two")


@pytest.fixture
def servers(postgres_dsn: str, clock: ManualClock) -> Iterator[tuple[Mail, Mail]]:
    first, second = (PostgresStore.open(postgres_dsn, schema=SCHEMA, clock=clock) for _ in range(2))
    empty(postgres_dsn)
    yield Mail(first, clock), Mail(second, clock)
    first.close()
    second.close()


async def furnished(mail: Mail) -> None:
    for home in HOMES:
        await mail.call("ensure_project", {"human_key": home})
        for name in ("Ada", "Ben"):
            agent = {"project_key": home, "name": name, "program": "p", "model": "m"}
            await mail.call("register_agent", agent)


async def test_messages_across_projects_leave_no_gap_and_no_order_undone(servers: tuple[Mail, Mail]) -> None:
    await furnished(servers[0])

    async def send(mail: Mail, home: str, other: str, number: int) -> None:
        message = {
            "project_key": home,
            "sender_name": "Ada",
            "to": ["Ben", f"Ben@{other}"],
            "subject": f"{number}",
            "body_md": "plum",
        }
        await mail.call("send_message", message)

    async with asyncio.TaskGroup() as group:
        for number in range(ROUNDS):
            for mail in servers:
                group.create_task(send(mail, HOMES[0], HOMES[1], number))
                group.create_task(send(mail, HOMES[1], HOMES[0], number))
    for project_id in (1, 2):
        told = await servers[0].store.read(
            lambda tx, home=project_id: tx.project_events(home, after=0, limit=999)  # type: ignore[misc]
        )
        assert [one.seq for one in told] == list(range(1, 3 + 4 * ROUNDS + 1))
        sent = [one.happening.message_id for one in told if one.happening.message_id is not None]
        own = await servers[1].store.read(
            lambda tx, home=project_id: tx.project_messages(home, limit=999)  # type: ignore[misc]
        )
        ids = [message.id for message in own]
        assert [one for one in sent if one in set(ids)] == ids


async def test_a_key_is_answered_once_and_a_name_given_once(servers: tuple[Mail, Mail]) -> None:
    await furnished(servers[0])

    async def outcome(mail: Mail, name: str, arguments: dict[str, Any]) -> object:
        try:
            return await mail.call(name, arguments)
        except PostroomError as error:
            return type(error)

    agent = {"project_key": "/one", "name": "Cyd", "program": "p", "model": "m"}
    message = {"project_key": "/one", "sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}
    made = await asyncio.gather(*(outcome(mail, "register_agent", agent) for mail in servers * ROUNDS))
    assert all(isinstance(one, dict) for one in made)
    keyed = {**message, "idempotency_key": "k"}
    sent = await asyncio.gather(*(outcome(mail, "send_message", keyed) for mail in servers * ROUNDS))
    assert all(one == sent[0] for one in sent)
    new = await asyncio.gather(
        *(outcome(mail, "ensure_project", {"human_key": "/three"}) for mail in servers * ROUNDS)
    )
    assert all(one == new[0] for one in new)
    assert len(await servers[0].store.read(lambda tx: tx.projects(limit=9))) == len(HOMES) + 1


async def test_a_project_that_is_held_up_stops_no_other(
    servers: tuple[Mail, Mail], postgres_dsn: str
) -> None:
    """Two projects of one server, and another transaction that holds one of them."""
    mail = servers[1]
    held, free = "/home0", "/home1"
    for home in (held, free):
        await mail.call("ensure_project", {"human_key": home})
        for name in ("Ada", "Ben"):
            agent = {"project_key": home, "name": name, "program": "p", "model": "m"}
            await mail.call("register_agent", agent)

    def message(home: str) -> dict[str, Any]:
        return {"project_key": home, "sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}

    def lock(tx: MailReads) -> str:
        found = tx.project(held)
        assert found is not None
        return f"project:{found.id}"

    name = await mail.store.read(lock)
    holder = await asyncio.to_thread(Connection, Address(dsn=postgres_dsn, schema=SCHEMA))
    try:
        holder.begin()
        holder.send("SELECT pg_advisory_xact_lock($1)", (lock_number(name),))
        await asyncio.to_thread(holder.wait)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            waiting = group.create_task(mail.call("send_message", message(held)))
            for _ in range(ROUNDS):
                await mail.call("send_message", message(free))
            assert not waiting.done()
            await asyncio.to_thread(holder.undo)
            await waiting
    finally:
        await asyncio.to_thread(holder.close)


async def test_spellings_of_a_path_are_one_project_to_be_locked(servers: tuple[Mail, Mail]) -> None:
    await furnished(servers[0])
    for named in ("/one", "/one/", "//one"):
        command = MarkMessageRead(project_key=named, agent_name="Ada", message_id=1)
        found = await servers[0].store.read(lambda tx, asked=command: projects_of(tx, asked))  # type: ignore[misc]
        assert found == {1}, named
