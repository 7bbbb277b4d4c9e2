"""A message whose text changed on the disk is reported as damaged, on both engines."""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.boxes import on_both
from log_lines import capture_logs
from mail_room import Room, a_room
from postroom.contracts.errors import StoreCorrupt
from postroom.stores.mail.access import MailReads
from postroom.stores.mail.store import MailStore
from postroom.testing import ManualClock
from store_kinds import SCHEMA, opened

Spoil = Callable[[str], Awaitable[Any]]
TEXT = "Ship on Friday, not on Monday."
SPOILED = "Ship on Monday, not on Friday."


@pytest.fixture
def place(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[tuple[Room, Spoil]]:
    """A mail room, and a way to run a statement that no store would."""

    def on_the_server(statement: str) -> None:
        with psycopg.connect(request.getfixturevalue("postgres_dsn"), autocommit=True) as connection:
            connection.execute(f'SET search_path TO "{SCHEMA}"')
            connection.execute(statement.encode())

    with opened(engine, tmp_path, lambda: request.getfixturevalue("postgres_dsn"), clock) as store:

        async def spoil(statement: str) -> None:
            if engine == "postgres":
                await asyncio.to_thread(on_the_server, statement)
            else:  # beneath the checks of `CheckingEngine`
                checking: Any = store.engine
                await checking.engine.write(lambda sql: sql.connection.execute(statement))

        yield a_room(MailStore(store), clock), spoil


async def damaged(room: Room) -> list[int]:
    def look(tx: MailReads) -> list[int]:
        found, after = list[int](), 0
        while True:
            ids, last = tx.damaged_messages(after=after, limit=2)
            found += ids
            if last is None:
                return found
            after = last

    return await room.store.read(look)


@on_both
async def test_a_changed_text_is_shown_nowhere_and_found_by_the_check(place: tuple[Room, Spoil]) -> None:
    room, spoil = place
    await room.open("Ada", "Ben")
    whole = await room.send("Ada", "Ben", body_md=TEXT, topic="t", thread_id="plan")
    other = await room.send("Ada", "Ben", body_md=TEXT, thread_id="plan")
    await room.send("Ben", "Ada", body_md="No \U0001f680", thread_id="plan")
    assert await damaged(room) == []
    await spoil(f"UPDATE messages SET body_md = '{SPOILED}' WHERE id = {other}")
    assert await damaged(room) == [other]
    with capture_logs() as lines:
        shown = [
            *(await room.inbox("Ben")),
            await room.call("get_message", agent_name="Ben", message_id=other),
            *(await room.call("fetch_thread", thread_id="plan"))["messages"],
        ]
    assert SPOILED not in str(shown)
    of_other = [one for one in shown if one["id"] == other]
    assert len(of_other) == 3
    assert {one["subject"] for one in of_other} == {"[damaged message]"}
    assert all("changed on the disk" in one["body_md"] for one in of_other)
    assert {one["body_md"] for one in shown if one["id"] == whole} == {TEXT}
    told = [one["message_id"] for one in lines if one["event"] == "store.message_damaged"]
    assert set(told) == {other}


async def test_each_text_of_a_message_is_checked(place: tuple[Room, Spoil]) -> None:
    room, spoil = place
    await room.open("Ada", "Ben")
    sent = await room.send("Ada", "Ben", topic="t")
    for column in ("subject", "body_md", "topic"):
        await spoil(f"UPDATE messages SET {column} = {column} || 'x'")
        assert await damaged(room) == [sent], column
        await spoil(f"UPDATE messages SET {column} = substr({column}, 1, length({column}) - 1)")
        assert await damaged(room) == []


async def test_a_message_of_an_earlier_release_and_a_recalled_one_are_not_told_as_damaged(
    place: tuple[Room, Spoil],
) -> None:
    room, spoil = place
    await room.open("Ada", "Ben")
    earlier = await room.send("Ada", "Ben", body_md=TEXT)
    await spoil(f"UPDATE messages SET check_value = NULL WHERE id = {earlier}")
    recalled = await room.send("Ada", "Ben")
    await room.call("recall_message", sender_name="Ada", message_id=recalled)
    by_an_earlier_release = await room.send("Ada", "Ben")
    await spoil(f"UPDATE messages SET recalled_at = 1, body_md = '' WHERE id = {by_an_earlier_release}")
    assert await damaged(room) == []
    assert [one["body_md"] for one in await room.inbox("Ben")] == [TEXT]


@on_both
async def test_bytes_that_changed_are_not_given_out_as_the_file_that_was_sent(
    place: tuple[Room, Spoil],
) -> None:
    room, spoil = place
    await room.open("Ada", "Ben")
    content = base64.b64encode(b"as it was sent").decode()
    sent = await room.send("Ada", "Ben", attachments=[{"name": "a.txt", "content_base64": content}])
    await room.send("Ada", "Ben", attachments=[{"name": "b.txt", "content_base64": ""}])
    sha256 = hashlib.sha256(b"as it was sent").hexdigest()
    asked = {"agent_name": "Ben", "message_id": sent, "sha256": sha256}
    assert (await room.call("get_attachment", **asked))["text"] == "as it was sent"
    await spoil(f"UPDATE blobs SET content = (SELECT b.content FROM blobs b WHERE b.sha256 <> '{sha256}')")
    with pytest.raises(StoreCorrupt, match="changed on the disk"):
        await room.call("get_attachment", **asked)
