"""Rows of other releases: a newer row is skipped and reported, and read later; an answer is stored once."""

import asyncio
import base64
import json
from datetime import timedelta
from random import Random

import pytest

from embedded_room import both_engines, echo, on, texts
from log_lines import capture_logs
from machine import PATIENCE
from postroom import BusyPolicy, RecordTooNew, State
from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.events import EventScope
from postroom.contracts.run_stores import RunQuery

LATER = timedelta(hours=3)


def rewrite(database, table, where, change):
    """Change the body of one row, as another release would write it."""
    [[body]] = database.run(f"SELECT body FROM {table} WHERE {where}")
    after = change(body).replace("'", "''")
    database.run(f"UPDATE {table} SET body = '{after}' WHERE {where}")


def of(**fields):
    return lambda body: json.dumps({**json.loads(body), **fields})


TOO_NEW = of(status="paused_by_budget")


async def listed(mailbox):
    return {run.run_id for run in await mailbox.stores.threads.list_runs(RunQuery())}


@both_engines
async def test_a_run_of_a_newer_release_is_passed_over_until_it_can_be_read(database, opening):
    async with opening(None) as mailbox:
        newer, other = [await mailbox.enqueue(thread, "go", delay=LATER) for thread in ("t1", "t2")]
    row = ("runs", f"run_id = '{newer.id}'")
    rewrite(database, *row, TOO_NEW)
    with capture_logs() as lines:
        async with opening(None) as mailbox:
            assert await listed(mailbox) == {other.id}
            with pytest.raises(RecordTooNew, match="paused_by_budget"):
                await mailbox.handle(newer.id)
            [unread] = await mailbox.stores.store.unreadable(10)
            assert (unread.kind, unread.id) == ("run", newer.id)
    [line] = [line for line in lines if line["event"].startswith("store.row")]
    assert (line["event"], line["log_level"], line["id"]) == ("store.row_too_new", "warning", newer.id)
    assert "newer release" in line["remedy"]
    rewrite(database, *row, of(status="created"))
    async with opening(None) as mailbox, asyncio.timeout(PATIENCE):
        while await listed(mailbox) != {newer.id, other.id}:  # a start reads such rows again beside its work
            await asyncio.sleep(0)
        assert await mailbox.stores.store.unreadable(10) == []


@on("sqlite")
@pytest.mark.parametrize(
    ("rewritten", "kind"),
    [(TOO_NEW, RecordTooNew), (lambda body: body[:-9], StoreCorrupt)],
    ids=["of a newer release", "damaged"],
)
async def test_an_unreadable_run_blocks_its_own_thread_and_no_other(database, opening, rewritten, kind):
    async def work(run):
        if run.text == "ask":
            await run.ask("may it go on?")
        return run.text

    async with opening(work) as mailbox, asyncio.timeout(PATIENCE):
        asking = await mailbox.enqueue("t1", "ask", key="k")
        assert (await anext(asking.events())).type == "question"
    rewrite(database, "runs", f"run_id = '{asking.id}'", rewritten)
    async with opening(work) as mailbox, asyncio.timeout(PATIENCE):
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


@on("sqlite")
async def test_a_release_lists_the_rows_that_another_one_cannot_read(database, opening):
    async with opening(None) as mailbox:
        run = await mailbox.enqueue("t1", "go", delay=LATER)
    row = f"('run', '{run.id}', 'too new', 1"
    database.run(f"INSERT INTO unreadable_rows (kind, id, reason, at, release) VALUES {row}, 'another')")
    database.run(f"INSERT INTO run_quarantine (kind, id, reason, at) VALUES {row})")
    async with opening(None) as mailbox:
        assert await listed(mailbox) == {run.id}
        assert await mailbox.stores.store.unreadable(10) == []


@on("sqlite")
async def test_a_message_of_a_newer_release_is_there_again_when_it_can_be_read(database, opening):
    async with opening(None) as mailbox:
        for text in ("one", "two"):
            await mailbox.enqueue("t", text, delay=LATER)
    row = ("run_messages", "thread_id = 't' AND seq = 1")
    rewrite(database, *row, of(role="overseer"))
    with capture_logs() as lines:
        async with opening(None) as mailbox:
            with pytest.raises(RecordTooNew, match="overseer"):
                await texts(mailbox)
    assert [line for line in lines if line["log_level"] == "error"] == []
    rewrite(database, *row, of(role="user"))
    async with opening(None) as mailbox:
        assert await texts(mailbox) == ["one", "two"]


@on("sqlite")
async def test_a_damaged_record_is_no_newer_one(database, opening):
    async with opening(None) as mailbox:
        run = await mailbox.enqueue("t", "go", delay=LATER)
    rewrite(database, "runs", f"run_id = '{run.id}'", lambda body: "{}")
    with capture_logs() as lines:
        async with opening(None) as mailbox:
            assert await listed(mailbox) == set()
            with pytest.raises(StoreCorrupt) as refused:
                await mailbox.handle(run.id)
            assert type(refused.value) is StoreCorrupt
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["store.row_quarantined"]


@on("sqlite")
async def test_a_row_is_read_again_after_an_hour_without_a_restart(database, opening, manual):
    async with opening(None) as mailbox:
        run = await mailbox.enqueue("t", "go", delay=LATER)
    row = ("runs", f"run_id = '{run.id}'")
    rewrite(database, *row, TOO_NEW)
    async with manual(echo) as mailbox:
        assert await listed(mailbox) == set()
        rewrite(database, *row, of(status="created"))
        assert await listed(mailbox) == set()
        mailbox.clock.advance(timedelta(hours=1))
        await mailbox.admin.run_gc()
        assert await listed(mailbox) == {run.id}


# The answer of a run is stored once: the message, the events and the dispatch refer to the run.

SIZE = 300_000
"""Characters of an answer that is large, and that no engine can compress."""


def large(seed):
    return base64.b64encode(Random(seed).randbytes(SIZE * 3 // 4)).decode()


async def answer(run):
    return 'a "quoted" \\ \0 \x1a \u2028 ü 😀 {"text":null}' if run.text == "odd" else large(run.text)


def bytes_of(database):
    """Return how many bytes the tables take."""
    if database.url.startswith("sqlite"):
        sizes = "pragma_page_count, pragma_freelist_count, pragma_page_size"
        [[size]] = database.run(f"SELECT (page_count - freelist_count) * page_size FROM {sizes}")
        return size
    database.run("VACUUM")
    of_schema = f"relkind = 'r' AND relnamespace = '{database.schema}'::regnamespace"
    [[size]] = database.run(f"SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE {of_schema}")
    return size


async def row_of(mailbox, handle):
    run = await mailbox.stores.threads.load_run(handle.id)
    return await mailbox.stores.dispatches.load_dispatch(run.dispatch_id)


async def readers_of(mailbox, handle):
    """Return what each of the readers of a run gets: result, status, event, its data, message, dispatch."""
    end = [event async for event in handle.events()][-1]
    said = (await texts(mailbox, handle.thread_id))[-1]
    dispatch = (await row_of(mailbox, handle)).run_response
    return [
        await handle.result(timeout=PATIENCE),
        (await handle.status()).text,
        end.text,
        end.data["text"],
        said,
        dispatch,
    ]


@both_engines
async def test_the_database_grows_by_a_large_answer_and_not_by_copies_of_it(database, opening):
    async with opening(answer) as mailbox:
        await (await mailbox.enqueue("t", "first")).result(timeout=PATIENCE)
        before = bytes_of(database)
        for number in range(8):
            await (await mailbox.enqueue(f"t{number}", f"{number}")).result(timeout=PATIENCE)
        assert bytes_of(database) - before < 1.3 * 8 * SIZE


@on("sqlite")
async def test_each_reader_gets_the_answer_also_after_a_restart_and_in_rows_of_the_release_before(
    database, opening
):
    async with opening(answer) as mailbox:
        handles = [await mailbox.enqueue(text, text) for text in ("a", "odd")]
        said = [await handle.result(timeout=PATIENCE) for handle in handles]
        assert [await readers_of(mailbox, handle) for handle in handles] == [[one] * 6 for one in said]
    async with opening(answer) as mailbox:
        again = [await mailbox.handle(handle.id) for handle in handles]
        assert [await readers_of(mailbox, handle) for handle in again] == [[one] * 6 for one in said]
        assert await (await mailbox.enqueue("a", "b")).result(timeout=PATIENCE) == large("b")
        assert await texts(mailbox, "a") == ["a", said[0], "b", large("b")]
    block = '"role":"assistant","content":[{"type":"text","text":"old message","data":{}}]'
    for statement in (
        """UPDATE events SET answer_of = NULL, payload = replace(payload, '"text":null', '"text":"old event"')""",
        f"""UPDATE run_messages SET answer_of = NULL, body = replace(body, '"role":"assistant"', '{block}')""",
        "UPDATE run_dispatches SET answer_of = NULL, run_response = 'old dispatch'",
    ):
        database.run(statement)
    async with opening(answer) as mailbox:
        told = await readers_of(mailbox, await mailbox.handle(handles[0].id))
        assert told == [said[0], said[0], "old event", "old event", "old message", "old dispatch"]


@on("sqlite")
async def test_what_is_left_of_a_deleted_conversation_holds_no_answer_and_still_reads(opening):
    """Its dispatch stays until the queue deletes it; its events stay if a caller deletes the thread alone."""
    async with opening(answer) as mailbox:
        handle = await mailbox.enqueue("t", "a")
        await handle.result(timeout=PATIENCE)
        dispatch_id = (await row_of(mailbox, handle)).dispatch_id
        assert await mailbox.stores.threads.delete_thread("t")
        [event] = (await mailbox.stores.events.list(EventScope.run(handle.id), after=0, limit=10)).events
        assert (event.event_kind, event.payload["text"]) == ("RunEnded", "")
        assert (await mailbox.stores.dispatches.load_dispatch(dispatch_id)).run_response is None
