"""A forked process is refused by name, and readers learn at once that their mailbox was closed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from embedded_room import Open
from postroom import Mailbox, MailboxConfig, PostroomError, Run
from postroom.contracts.errors import StoreHeld

SYNC = """
import os, sys
from postroom import MailboxForked, sync
def calls(mailbox, handle):
    yield lambda: mailbox.enqueue("t", "child")
    yield lambda: mailbox.enqueue_many([sync.Item("t", "child")])
    yield lambda: mailbox.handle(handle.id)
    yield lambda: mailbox.cancel("t")
    yield lambda: list(mailbox.questions)
    yield lambda: mailbox.dead_letters.discard("x")
    yield lambda: handle.result()
    yield lambda: handle.status()
    yield lambda: list(handle.events())
    yield lambda: handle.answer("yes", question_id="q")
    yield lambda: handle.cancel()
    yield lambda: mailbox.enqueue_many([])
    yield lambda: list(mailbox.stream("t", "child"))
    yield lambda: mailbox.pending.list("t")
    yield lambda: mailbox.schedules.remove("s")
def refused(call):
    try:
        call()
    except MailboxForked as error:
        return str(os.getppid()) in str(error) and "open a mailbox in the child" in error.remedy
with sync.Mailbox.open(sys.argv[1], lambda run: "done", schema=sys.argv[2]) as mailbox:
    handle = mailbox.enqueue("t", "parent")
    handle.result(timeout=30)
    child = os.fork()
    if not child:
        print("child", [refused(call) for call in calls(mailbox, handle)], flush=True)
if child:
    print("ended with", os.waitpid(child, 0)[1])
    with sync.Mailbox.open(sys.argv[1], lambda run: "again", schema=sys.argv[2]) as mailbox:
        print(mailbox.enqueue("t", "parent").result(timeout=30))
"""
ASYNC = """
import asyncio, os, sys
from postroom import Mailbox, MailboxForked
async def work(run):
    return "done"
async def refused(call):
    try:
        await call
    except MailboxForked as error:
        return str(os.getppid()) in str(error) and "open a mailbox in the child" in error.remedy
async def child(mailbox, handle):
    calls = (mailbox.enqueue("t", "child"), mailbox.handle(handle.id), mailbox.cancel("t"), handle.result(),
             handle.status(), anext(handle.events()), handle.answer("yes", question_id="q"), anext(aiter(mailbox.questions)),
             mailbox.schedules.list(), mailbox.dead_letters.discard("x"), handle.cancel(), mailbox.enqueue_many([]),
             anext(mailbox.stream("t", "child")), mailbox.pending.list("t"), mailbox.schedules.remove("s"))
    print("child", [await refused(call) for call in calls], flush=True)
async def main():
    async with Mailbox.open(sys.argv[1], work, schema=sys.argv[2]) as mailbox:
        handle = await mailbox.enqueue("t", "parent")
        await handle.result(timeout=30)
        if not (forked := os.fork()):
            asyncio.run(child(mailbox, handle))
            os._exit(0)
        print("ended with", (await asyncio.to_thread(os.waitpid, forked, 0))[1])
        print(await handle.result(timeout=30) and "again")
asyncio.run(main())
"""


RUN = """
import asyncio, os, sys
from postroom import Mailbox, MailboxForked
async def refused(call):
    try:
        await call()
    except MailboxForked as error:
        return True
    except BaseException as error:
        return repr(error)
async def child(run):
    async def used():
        run.used(input_tokens=1)
    calls = (lambda: run.step("child", lambda: print("called")), lambda: run.ask("Child?"), lambda: run.sleep(HOUR),
             lambda: run.stream("child"), lambda: run.log("child"), run.history, used)
    print("child", [await refused(call) for call in calls], flush=True)
from datetime import timedelta
HOUR = timedelta(hours=1)
async def work(run):
    if not (forked := os.fork()):
        asyncio.set_event_loop(None)
        asyncio.events._set_running_loop(None)
        asyncio.run(child(run))
        os._exit(0)
    return f"ended with {(await asyncio.to_thread(os.waitpid, forked, 0))[1]}"
async def main():
    async with Mailbox.open(sys.argv[1], work, schema=sys.argv[2]) as mailbox:
        print(await (await mailbox.enqueue("t", "parent")).result(timeout=30))
asyncio.run(main())
"""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    schema = f"embedded_{uuid4().hex}"
    url = {"memory": "memory", "sqlite": f"sqlite:///{tmp_path}/runs.db"}.get(request.param)
    if url is None:
        url = request.getfixturevalue("postgres_dsn")
    yield [url, schema]
    if request.param == "postgres":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "asyncio"])
def test_each_call_of_a_forked_process_is_refused_by_name(address: list[str], code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [f"child {[True] * 15}", "ended with 0", "again"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_each_call_of_a_run_is_refused_in_a_forked_process_and_calls_no_step(address: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", RUN, *address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [f"child {[True] * 7}", "ended with 0"], done.stderr


async def test_who_waits_for_a_run_hears_at_once_that_the_mailbox_was_closed(opening: Open) -> None:
    begun = asyncio.Event()

    async def work(run: Run) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with opening(work, config=MailboxConfig(drain_grace=timedelta(0))) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await begun.wait()
        readers = [asyncio.create_task(handle.result()), asyncio.ensure_future(anext(handle.events()))]
        done, _ = await asyncio.wait(readers, timeout=0)
        assert not done
    done, _ = await asyncio.wait(readers, timeout=5)  # seconds less than the poll that would find it, too
    assert done == set(readers)
    assert all(isinstance(reader.exception(), PostroomError) for reader in readers)


HOLDS = """
import asyncio, sys
from postroom import Mailbox

async def main():
    async with Mailbox.open(sys.argv[1], None):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


async def test_a_second_process_on_one_sqlite_file_is_told_the_way_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-c", HOLDS, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert await asyncio.to_thread(first.stdout.readline) == b"open\n"
        with pytest.raises(StoreHeld, match=rf"process {first.pid} \(program, since") as refused:
            async with Mailbox.open(url, None):
                pass
        assert "PostgreSQL" in refused.value.remedy
        first.communicate(timeout=30)
