"""The answer of a run is stored once: the message, the events and the dispatch refer to the run."""

import base64
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from embedded_room import SOON, Open
from postroom.contracts.events import EventScope
from postroom.contracts.runs import RunRecord
from postroom.embedded.handle import RunHandle
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Run

SIZE = 300_000
"""Characters of an answer that is large, and that no engine can compress."""


def large(seed: str) -> str:
    return base64.b64encode(Random(seed).randbytes(SIZE * 3 // 4)).decode()


async def answer(run: Run) -> str:
    return large(run.text)


class Database(NamedTuple):
    """A database file, or a schema of PostgreSQL, that a mailbox is opened on again and again."""

    open: Open
    size: Callable[[], int]
    """Return how many bytes its tables take."""
    change: Callable[[str], None]
    """Run one statement, as nobody but an older release does."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "runs.db"

        def rows(statement: str) -> Any:
            with closing(sqlite3.connect(path, isolation_level=None)) as session:
                return session.execute(statement).fetchall()

        def size() -> int:
            [[pages, free, bytes_of_page]] = rows(
                "SELECT page_count, freelist_count, page_size"
                " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
            )
            return (pages - free) * bytes_of_page

        yield Database(_opened(f"sqlite:///{path}"), size, rows)
        return
    dsn, schema = request.getfixturevalue("postgres_dsn"), f"answers_{uuid4().hex}"
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={schema}") as session:

        def size_of_tables() -> int:
            session.execute("VACUUM")
            [[size]] = session.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c"
                f" WHERE c.relkind = 'r' AND c.relnamespace = '{schema}'::regnamespace"
            ).fetchall()
            return int(size)

        yield Database(
            _opened(dsn, schema), size_of_tables, lambda statement: session.execute(statement.encode())
        )
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def _opened(url: str, schema: str = "postroom") -> Open:
    return lambda work: Mailbox.open(url, work, config=SOON, schema=schema)


class Told(NamedTuple):
    """What each of the readers of a run gets."""

    result: str
    status: str
    event: str
    data: Any
    message: str
    dispatch: str | None


async def told_of(mailbox: Mailbox, handle: RunHandle) -> Told:
    events = [event async for event in handle.events()]
    messages = await mailbox.stores.threads.load_messages(handle.thread_id) or ()
    run = await run_of(mailbox, handle)
    row = await mailbox.stores.dispatches.load_dispatch(run.dispatch_id or "")
    return Told(
        result=await handle.result(timeout=30),
        status=(await handle.status()).text,
        event=events[-1].text,
        data=events[-1].data["text"],
        message=messages[-1].text(),
        dispatch=None if row is None else row.run_response,
    )


async def run_of(mailbox: Mailbox, handle: RunHandle) -> RunRecord:
    run = await mailbox.stores.threads.load_run(handle.id)
    assert run is not None
    return run


async def test_the_database_grows_by_a_large_answer_and_not_by_copies_of_it(database: Database) -> None:
    async with database.open(answer) as mailbox:
        await (await mailbox.enqueue("t", "first")).result(timeout=30)
        before = database.size()
        for number in range(8):
            await (await mailbox.enqueue(f"t{number}", f"{number}")).result(timeout=30)
        assert database.size() - before < 1.3 * 8 * SIZE


async def test_each_reader_gets_the_answer_also_after_a_restart(database: Database) -> None:
    said = large("a")
    expected = Told(result=said, status=said, event=said, data=said, message=said, dispatch=said)
    async with database.open(answer) as mailbox:
        handle = await mailbox.enqueue("t", "a")
        assert await handle.result(timeout=30) == said
        assert await told_of(mailbox, handle) == expected
    async with database.open(answer) as mailbox:
        assert await told_of(mailbox, await mailbox.handle(handle.id)) == expected
        follower = await mailbox.enqueue("t", "b")
        assert await follower.result(timeout=30) == large("b")
        messages = await mailbox.stores.threads.load_messages("t") or ()
        assert [message.text() for message in messages] == ["a", said, "b", large("b")]


async def test_rows_that_an_older_release_wrote_still_tell_their_own_text(database: Database) -> None:
    async with database.open(answer) as mailbox:
        handle = await mailbox.enqueue("t", "a")
        await handle.result(timeout=30)
    block = '"content":[{"type":"text","text":"old message","data":{}}]'
    for statement in (
        """UPDATE events SET answer_of = NULL, payload = replace(payload, '"text":null', '"text":"old event"')""",
        f"""UPDATE run_messages SET answer_of = NULL, body = replace(body, '"content":[]', '{block}')""",
        "UPDATE run_dispatches SET answer_of = NULL, run_response = 'old dispatch'",
    ):
        database.change(statement)
    async with database.open(answer) as mailbox:
        told = await told_of(mailbox, await mailbox.handle(handle.id))
        assert (told.event, told.data) == ("old event", "old event")
        assert (told.message, told.dispatch) == ("old message", "old dispatch")
        assert told.result == large("a")


async def test_what_is_left_of_a_deleted_conversation_holds_no_answer_and_still_reads(
    database: Database,
) -> None:
    """Its dispatch stays until the queue deletes it; its events stay if a caller deletes the thread alone."""
    async with database.open(answer) as mailbox:
        handle = await mailbox.enqueue("t", "a")
        await handle.result(timeout=30)
        run = await run_of(mailbox, handle)
        assert await mailbox.stores.threads.delete_thread("t")
        [event] = (await mailbox.stores.events.list(EventScope.run(handle.id), after=0, limit=10)).events
        assert (event.event_kind, event.payload["text"]) == ("RunEnded", "")
        row = await mailbox.stores.dispatches.load_dispatch(run.dispatch_id or "")
        assert row is not None
        assert row.run_response is None


async def test_an_answer_with_odd_characters_is_told_as_it_was_said(database: Database) -> None:
    said = 'a "quoted" \\ \0 \x1a \u2028 ü 😀 {"text":null}'

    async def odd(run: Run) -> str:
        return said

    async with database.open(odd) as mailbox:
        handle = await mailbox.enqueue("t", "a")
        assert set(await told_of(mailbox, handle)) == {said}
