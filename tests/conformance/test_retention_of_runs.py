"""Idle threads of runs are deleted whole, on both engines; threads that are active, wait or have child threads stay."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from conformance.boxes import on_both
from conformance.promises.given import an_office, put_message
from conformance.promises.run_given import a_thread, enqueued, event, run, said, waiting
from postroom.app.config import Settings
from postroom.app.retention import Retention
from postroom.contracts.errors import UnknownMessage
from postroom.contracts.files import ChatFile, SpooledFile
from postroom.contracts.runs import RunStatus
from postroom.contracts.tracing import run_trace
from postroom.stores.stores import Stores
from postroom.testing import ManualClock
from store_kinds import opened, refuse_missing

PLACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class AtOnce:
    """A timer that never waits."""

    async def sleep(self, milliseconds: int) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def stores(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Stores]:
    refuse_missing(engine)
    with opened(engine, tmp_path, lambda: request.getfixturevalue("postgres_dsn"), clock) as found:
        yield Stores(found, is_exclusive=True)


def retention(stores: Stores, tmp_path: Path, days: int = 30) -> Retention:
    settings = Settings(data_dir=tmp_path, run_retention=timedelta(days=days))
    return Retention(settings, stores, runs=stores.store, files=stores.chat.files, timer=AtOnce())


async def an_old_thread(stores: Stores, name: str, status: RunStatus = RunStatus.DONE) -> None:
    """A thread with a message, a run and an event."""
    await a_thread(stores.runs, name)
    await said(stores.runs, f"m-{name}", thread=name)
    await stores.runs.threads.create_run(run(stores.runs, f"r-{name}", thread=name, status=status))
    await stores.runs.events.append(event(thread=name))
    await stores.store.write(lambda tx: tx.mail.put_trace(run_trace(f"r-{name}"), PLACE))


@on_both
async def test_only_threads_at_rest_are_forgotten(stores: Stores, clock: ManualClock, tmp_path: Path) -> None:
    for name in ("rests", "queued", "pending", "parent"):
        await an_old_thread(stores, name)
    await an_old_thread(stores, "waits", RunStatus.WAITING)
    await enqueued(stores.runs, "d", thread="queued")
    await waiting(stores.runs, "p", thread="pending")
    clock.advance(timedelta(days=31))
    await a_thread(stores.runs, "child", parent_thread_id="parent", updated_at=clock.now())
    await an_old_thread(stores, "young")
    assert await retention(stores, tmp_path, days=0).runs() == 0
    assert await retention(stores, tmp_path).runs() == 1
    threads = stores.runs.threads
    left = [
        name
        for name in ("rests", "queued", "pending", "parent", "waits", "young", "child")
        if await threads.load_thread(name) is not None
    ]
    assert left == ["queued", "pending", "parent", "waits", "young", "child"]
    assert await threads.load_run("r-rests") is None
    assert await stores.store.read(lambda tx: tx.events.newest("thread:rests")) == 0
    names = [run_trace("r-rests"), run_trace("r-young")]
    assert await stores.store.read(lambda tx: tx.mail.traces(names)) == {names[1]: PLACE}
    assert await stores.store.read(lambda tx: tx.events.newest("thread:young")) > 0


async def test_attempts_go_with_their_run(stores: Stores, clock: ManualClock, tmp_path: Path) -> None:
    ada = (await an_office(stores)).ada.id
    for name in ("rests", "young"):
        await an_old_thread(stores, name)
        await stores.write(lambda tx, run_id=f"r-{name}": tx.begin_run(run_id, ada, clock.now()))
        await stores.write(lambda tx, run_id=f"r-{name}": tx.end_run(run_id, now=clock.now()))
        clock.advance(timedelta(days=16))
    assert await retention(stores, tmp_path).runs() == 1
    left = await stores.read(lambda tx: tx.attempts_of_runs(["r-rests", "r-young"]))
    assert [one.run_id for one in left] == ["r-young"]


async def test_files_go_with_their_thread_and_their_bytes_a_week_later_where_nothing_else_has_them(
    stores: Stores, clock: ManualClock, tmp_path: Path
) -> None:
    contents = {"rests": b"old", "young": b"new", "shared": b"both", "nobody": b"left behind"}
    hashes = {}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        hashes[name] = sha256(content).hexdigest()
        await stores.chat.files.put_bytes(SpooledFile(path=path, sha256=hashes[name], size=len(content)))
    await an_old_thread(stores, "rests")
    for name in ("rests", "shared"):
        await stores.chat.files.put(chat_file("rests", hashes[name], len(name)))
    clock.advance(timedelta(days=31))
    await an_old_thread(stores, "young")
    for name in ("young", "shared"):
        await stores.chat.files.put(chat_file("young", hashes[name], len(name)))
    job = retention(stores, tmp_path)
    assert await job.runs() == 1
    assert await stores.chat.files.files("rests", ["m-rests"]) == ()
    assert len(await stores.chat.files.files("young", ["m-young"])) == 2
    assert await job.files() == 2
    for name in ("young", "shared"):
        assert b"".join([piece async for piece in stores.chat.files.content(hashes[name])]) == contents[name]
    for name in ("rests", "nobody"):
        with pytest.raises(UnknownMessage):
            await anext(stores.chat.files.content(hashes[name]))
    assert await job.files() == 0


def chat_file(thread: str, hashed: str, position: int) -> ChatFile:
    return ChatFile(
        thread_id=thread,
        message_id=f"m-{thread}",
        position=position,
        name="a.txt",
        media_type="text/plain",
        size=9,
        sha256=hashed,
    )


async def test_what_begins_while_it_is_looked_at_stays(
    stores: Stores, clock: ManualClock, tmp_path: Path
) -> None:
    await an_old_thread(stores, "t")
    clock.advance(timedelta(days=31))
    store = stores.store
    read = store.read

    async def read_then_enqueue(look):  # type: ignore[no-untyped-def]
        found = await read(look)
        await enqueued(stores.runs, "d", thread="t")
        store.read = read  # type: ignore[method-assign]
        return found

    store.read = read_then_enqueue  # type: ignore[method-assign]
    assert await retention(stores, tmp_path).runs() == 0
    assert await stores.runs.threads.load_thread("t") is not None


@on_both
async def test_the_newest_message_may_go_and_the_store_is_still_as_new_as_its_archive(
    stores: Stores, clock: ManualClock, tmp_path: Path
) -> None:
    here = await an_office(stores)
    slug, project_id = here.project.slug, here.project.id
    newest = await stores.write(lambda tx: put_message(tx, here.ada, [here.ben]).id)
    await stores.settle()
    before = (await stores.identity([slug])).logs[slug]
    await stores.write(lambda tx: tx.delete_messages(project_id, [newest], now=1))
    assert (await stores.identity([slug])).logs[slug] == before + 1, "it is told that it is gone"
    await stores.write(lambda tx: tx.trim_log(project_id, keep=1, limit=100))
    found = await stores.identity([slug, "elsewhere"])
    assert found.made == {slug: here.project.created_at}
    assert (found.logs, found.merged) == ({slug: before + 1}, set()), (
        "what is forgotten of a log is its beginning"
    )
