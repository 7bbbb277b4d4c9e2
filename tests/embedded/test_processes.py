"""Several processes and one database, forked processes, and what a program reads of its logs."""

import asyncio
import os
import subprocess
import sys
from datetime import timedelta

import pytest

from embedded_room import answer_open_question, asking, echo, in_state, on
from postroom import Mailbox, State
from postroom.contracts.errors import StoreHeld


def printed(code, *arguments, options=("-W", "ignore::DeprecationWarning")):
    """Return what a program prints to stdout, by line, and to stderr."""
    command = [sys.executable, *options, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.splitlines(), done.stderr


# Forks.

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


@on("memory", "sqlite", "postgres")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_each_call_of_a_forked_process_is_refused_by_name_and_calls_no_step(database):
    address = (database.url, database.schema)
    for code, calls, then in ((SYNC, 15, ["again"]), (ASYNC, 15, ["again"]), (RUN, 7, [])):
        said, told = printed(code, *address)
        assert said == [f"child {[True] * calls}", "ended with 0", *then], told


# Several processes.

HOLDS = """
import asyncio, sys
from postroom import Mailbox

async def main():
    async with Mailbox.open(sys.argv[1], None):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


async def test_a_second_process_on_one_sqlite_file_is_told_the_way_out(tmp_path):
    url = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-c", HOLDS, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert await asyncio.to_thread(first.stdout.readline) == b"open\n"
        with pytest.raises(StoreHeld, match=rf"process {first.pid} \(program, since") as refused:
            async with Mailbox.open(url, None):
                pass
        assert "PostgreSQL" in refused.value.remedy
        first.communicate(timeout=30)


@on("postgres")
async def test_a_process_may_hand_over_work_that_another_one_does(opening):
    async with opening(None) as office:
        first = await office.enqueue("chat", "0")
        assert "this process does not execute runs" in (await office.admin.why_not(first.id)).text
        async with opening(echo):
            for handle in (first, await office.enqueue("chat", "1")):
                assert (await handle.result(timeout=30)).startswith("you said")


@on("postgres")
async def test_a_function_at_work_elsewhere_is_cancelled_and_its_question_answered_from_here(opening):
    async def work(run):
        if run.text == "ask":
            return (await run.ask("Deploy?", timeout=timedelta(days=1))).text
        await run.stream("at work")
        return await asyncio.Event().wait()

    async with opening(work), opening(None) as here:
        handle = await here.enqueue("t", "go")
        assert (await anext(handle.events())).text == "at work"
        assert (await handle.status()).state is State.RUNNING
        assert await handle.cancel()
        await in_state(handle, State.CANCELLED)
        asks = await asking(await here.enqueue("u", "ask"))
        await answer_open_question(asks, "yes")
        assert await asks.result(timeout=30) == "yes"


@on("postgres")
@pytest.mark.parametrize("hints", ["heard", "lost"])
async def test_what_a_run_tells_is_followed_elsewhere_while_it_is_at_work(opening, hints, monkeypatch):
    """A lost hint costs one poll at most: the run continues only when the follower has its text."""
    going = asyncio.Event()

    async def slowly(run):
        await run.stream("one ")
        await going.wait()
        return "one two"

    async with opening(slowly) as serving, opening(None) as here:
        if hints == "lost":
            monkeypatch.setattr("postroom.stores.runs.ports.LOOK_AGAIN_AFTER", timedelta(milliseconds=20))
            await asyncio.to_thread(serving.stores.store.engine.notifications.close)
        events = (await here.enqueue("t", "go")).events()
        told = await anext(events)
        assert (told.type, told.text) == ("text", "one ")
        going.set()
        assert [event.type async for event in events] == ["end"]


IN_ORDER = """
import asyncio, os, sys
from postroom import Mailbox, MailboxConfig
url, schema, name, path = sys.argv[1:]
book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
async def work(run):
    os.write(book, f"begin {run.thread_id} {run.text}\\n".encode())
    await run.step("write", lambda: None)
    os.write(book, f"end {run.thread_id} {run.text}\\n".encode())
async def main():
    async with Mailbox.open(url, work, schema=schema, config=MailboxConfig(max_concurrent_runs=2)) as mailbox:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        handles = []
        for number in range(12):
            handles += await asyncio.gather(
                mailbox.enqueue("shared", f"{name}-{number:02}"), mailbox.enqueue(f"own-{name}", f"{name}-{number:02}")
            )
        for handle in handles:
            await handle.result(timeout=60)
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        if name == "ada":
            for record in await mailbox.stores.threads.load_messages("shared"):
                if record.role == "user":
                    print(record.text(), flush=True)
asyncio.run(main())
"""


@pytest.mark.long
@on("postgres")
def test_two_processes_keep_the_order_within_each_conversation(database, tmp_path):
    book, names, threads = tmp_path / "book.txt", ("ada", "ben"), {}
    words = [sys.executable, "-c", IN_ORDER, database.url, database.schema]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    programs = [subprocess.Popen([*words, name, str(book)], **pipes) for name in names]
    try:
        for told in ("ready", "done"):
            for program in programs:
                assert program.stdout.readline() == f"{told}\n"
            for program in programs:
                program.stdin.write("\n")
        accepted, _ = [program.communicate(timeout=60)[0].split() for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    for line in book.read_text().splitlines():
        step, thread, text = line.split()
        threads.setdefault(thread, []).append((step, text))
    own = {f"own-{name}": [f"{name}-{number:02}" for number in range(12)] for name in names}
    assert sorted(accepted) == sorted(text for texts in own.values() for text in texts)
    for thread, texts in {"shared": accepted, **own}.items():
        assert threads[thread] == [(step, text) for text in texts for step in ("begin", "end")]


# Logs: by loggers of the standard library, which the program sets up.

FAILING = """
import asyncio
from postroom import Mailbox

class Odd(Exception):
    def __str__(self): raise KeyError("x")

async def work(run):
    password = "hunter2"
    if run.text == "forged":
        raise ValueError("no\\nforged line")
    raise Odd() if run.text == "odd" else RuntimeError("x" * 1_000_000)

async def main():
    async with Mailbox.open("memory", work) as mailbox:
        for what in ("forged", "odd", "long"):
            try:
                await (await mailbox.enqueue(what, what, attempts=1)).result(timeout=30)
            except Exception as error:
                print(str(error).partition(" failed: ")[2].replace(chr(10), " ")[:60])

asyncio.run(main())
"""
SAID = [
    "ValueError: no forged line",
    "Odd: the text of the error cannot be read (KeyError)",
    f"RuntimeError: {'x' * 46}",
]


@pytest.mark.long
@pytest.mark.parametrize(
    "setup",
    [
        "import logging; logging.disable(logging.CRITICAL)",
        "import logging; logging.getLogger('postroom').setLevel(logging.CRITICAL)",
        "import logging; logging.getLogger('postroom').addHandler(logging.NullHandler())",
        "import logging; logging.getLogger('postroom').disabled = True; "
        "logging.getLogger('postroom').addHandler(logging.NullHandler())",
    ],
)
def test_a_program_that_turns_logs_off_reads_nothing(setup):
    assert printed(setup + FAILING) == (SAID, "")


def test_what_the_library_logs_goes_to_stderr_bounded_and_without_the_values_of_variables():
    said, errors = printed(FAILING)
    assert said == SAID
    assert errors.startswith("run.attempt_failed run_id=")
    assert errors.count("run.attempt_failed") == 3
    assert "hunter2" not in errors
    assert len(errors) < 100_000


@pytest.mark.long
def test_a_program_s_own_handler_writes_the_lines_in_its_own_form():
    form = "logging.basicConfig(stream=sys.stdout, format='<%(name)s %(levelname)s> %(message)s')"
    lines, errors = printed(f"import logging, sys; {form}{FAILING}")
    assert errors == ""
    assert lines[0].startswith("<postroom.dispatch.worker WARNING> run.attempt_failed run_id=")
    assert r"error='ValueError: no\nforged line'" in lines[0]
    assert lines[1].startswith("Traceback")
    place = lines.index("ValueError: no")
    assert lines[place + 1] == "forged line"
