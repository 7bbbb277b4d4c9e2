"""The library for scripts: the asynchronous one, waited for."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest

from embedded_room import SOON
from machine import PATIENCE
from postroom import embedded, sync
from postroom.contracts.errors import (
    InvalidArgument,
    InvalidStep,
    MailboxClosed,
    RunUnsuccessful,
    StaleClaim,
    UnknownRun,
)
from postroom.sync import Item, Mailbox
from table_rows import each_row

LATER = timedelta(days=1)


@pytest.fixture
def url(database):
    return database.url


def opened(url, work, config=SOON):
    return Mailbox.open(url, work, config=config, schema=f"sync_{uuid4().hex}")


def echo(run):
    return f"you said {run.text}"


TWINS = [
    (sync.Mailbox, embedded.Mailbox),
    (sync.RunHandle, embedded.RunHandle),
    (sync.Run, embedded.Run),
]


@each_row("ours, theirs", TWINS)
def test_the_twins_have_the_same_methods_with_the_same_arguments(ours, theirs):
    def methods(of):
        names = [name for name in dir(of) if not name.startswith("_") and callable(getattr(of, name))]
        return {name: getattr(of, name) for name in names}

    def arguments(method):
        parameters = inspect.signature(method).parameters.values()
        return [(one.name, one.kind, one.default) for one in parameters]

    assert methods(ours).keys() == methods(theirs).keys()
    for name, method in methods(ours).items():
        assert arguments(method) == arguments(getattr(theirs, name)), name
        assert not inspect.iscoroutinefunction(inspect.unwrap(method, stop=lambda _: True)), name


def test_a_script_hands_work_over_and_waits_for_it(url):
    with opened(url, echo) as mailbox:
        handle = mailbox.enqueue("chat-1", "hello")
        assert handle.result(timeout=60) == "you said hello"
        assert [event.type for event in mailbox.stream("chat-2", "anybody?")] == ["end"]
        again = mailbox.handle(handle.id)
        assert (again.id, again.thread_id, again.status().text) == (handle.id, "chat-1", "you said hello")
        assert not mailbox.cancel(handle.id)
        with pytest.raises(UnknownRun):
            mailbox.handle("nobody's")


async def answered_by_a_coroutine(run):
    return await run.step("say", lambda: f"you said {run.text}")


def test_work_may_be_a_coroutine_function(url):
    with opened(url, answered_by_a_coroutine) as mailbox:
        assert mailbox.enqueue("t", "hello").result(timeout=60) == "you said hello"


def test_steps_are_called_on_the_thread_of_their_run_and_not_twice(url):
    called = []

    def work(run):
        here = threading.get_ident()
        number = run.step("one", lambda: called.append(threading.get_ident() - here) or 7)
        said = run.ask("go on?")
        run.sleep(timedelta(milliseconds=1))
        run.stream("text")
        run.log("line", fact=1)
        with pytest.raises(InvalidStep):
            run.step("one", print)
        return [number, said.text, len(called), [one.text() for one in run.history()]]

    with opened(url, work) as mailbox:
        handle, told = mailbox.enqueue("t", "go"), []
        for event in handle.events():
            told.append(event.type)
            if event.type == "question":
                handle.answer("yes", question_id=event.question_id)
        assert handle.result(type=list) == [7, "yes", 1, []]
        assert called == [0]
        assert sorted(told) == ["end", "log", "question", "step", "step", "text"]


def test_what_work_raises_is_its_run_s_failure(url):
    def broken(run):
        raise StopIteration if run.text == "stop" else KeyError("no such order")

    with opened(url, broken) as mailbox:
        for text, why in (("stop", "StopIteration"), ("key", "no such order")):
            with pytest.raises(RunUnsuccessful, match=why):
                mailbox.enqueue("t", text, attempts=1).result(timeout=60)


def test_much_is_handed_over_with_progress_on_the_caller_s_thread(url):
    told = []
    here = threading.get_ident()
    with opened(url, echo) as mailbox:
        handles = mailbox.enqueue_many(
            [Item(f"t{number}", number) for number in range(3)],
            progress=lambda done, of: told.append((done, of, threading.get_ident() == here)),
        )
        assert told == [(3, 3, True)]
        assert [one.result(timeout=60) for one in handles] == ["you said 0", "you said 1", "you said 2"]
        with pytest.raises(InvalidArgument, match=r"^item 0: "):
            mailbox.enqueue_many([Item("t", object())])


def test_several_threads_use_one_mailbox(url):
    with opened(url, echo) as mailbox, ThreadPoolExecutor(8) as pool:
        asked = range(24)
        said = pool.map(lambda n: mailbox.enqueue(f"t{n % 5}", str(n)).result(timeout=60), asked)
        assert list(said) == [f"you said {number}" for number in asked]


def test_closing_lets_work_end_and_takes_no_more(url):
    begun, going, ended = threading.Event(), threading.Event(), []

    def slow(run):
        begun.set()
        assert going.wait(60)
        ended.append(run.step("last", lambda: "its end"))

    with opened(url, slow) as mailbox:
        handle = mailbox.enqueue("t", "go")
        assert begun.wait(60)
        threading.Timer(0.01, going.set).start()
    assert ended == ["its end"]
    for call in (handle.status, lambda: mailbox.enqueue("t", "more"), lambda: list(handle.events())):
        with pytest.raises(MailboxClosed):
            call()


def test_a_run_that_was_cancelled_makes_no_further_step(url):
    begun, going, refused = threading.Event(), threading.Event(), threading.Event()

    def stubborn(run):
        begun.set()
        assert going.wait(60)
        try:
            run.step("after", print)
        except StaleClaim:
            refused.set()
            raise

    with opened(url, stubborn) as mailbox:
        handle = mailbox.enqueue("t", "go")
        assert begun.wait(60)
        assert handle.cancel()
        going.set()
        assert refused.wait(60)


@pytest.mark.parametrize("kind", ["function", "step of a coroutine"])
def test_a_cancelled_run_whose_function_fails_reports_no_lost_exception(url, kind, caplog):
    begun, going = threading.Event(), threading.Event()

    def failing(run=None):
        begun.set()
        assert going.wait(60)
        if run is not None:
            run.step("after", print)
        raise OSError("away")

    async def stepping(run):
        await run.step("fails", failing)

    with opened(url, failing if kind == "function" else stepping) as mailbox:
        handle = mailbox.enqueue("t", "go")
        assert begun.wait(60)
        assert handle.cancel()
        going.set()
        with pytest.raises(RunUnsuccessful, match="cancelled"):
            handle.result(timeout=60)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_call_on_the_loop_itself_is_refused_and_does_not_hang(url):
    async def calls_back(run):
        try:
            mailbox.enqueue("other", "from the loop")
        except RuntimeError as error:
            return str(error)
        return "it was taken"

    with opened(url, calls_back) as mailbox:
        assert "use postroom.embedded there" in mailbox.enqueue("t", "go").result(timeout=60)


SCRIPT = """
import sys, threading, time
from postroom.sync import Mailbox

def hang(run):
    print("at work", flush=True)
    threading.Event().wait()

with Mailbox.open(sys.argv[1], hang) as mailbox:
    try:
        mailbox.enqueue("t", "go", key="one").result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""


def test_ctrl_c_ends_a_script_that_waits_and_a_second_one_ends_the_draining(tmp_path):
    url = f"sqlite:///{tmp_path}/runs.db"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, url], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        for line in ("at work\n", "interrupted\n"):
            assert script.stdout.readline() == line
            script.send_signal(signal.SIGINT)
        # The second one may come before the draining begins, on a busy machine: then a third one ends it.
        for _ in range(12):
            with suppress(subprocess.TimeoutExpired):
                script.wait(PATIENCE / 12)
                break
            script.send_signal(signal.SIGINT)
        script.kill()
        assert script.wait() in (-signal.SIGINT, 130, 1)
    with Mailbox.open(url, echo) as mailbox:
        assert mailbox.enqueue("t", "go", key="one").result(timeout=60) == "you said go"


def test_a_loop_of_the_caller_s_own_is_left_alone(url):
    async def within() -> str:
        def script() -> str:
            with opened(url, echo) as mailbox:
                return mailbox.enqueue("t", "hello").result(timeout=60)

        return await asyncio.to_thread(script)

    assert asyncio.run(within()) == "you said hello"


def test_operators_of_a_script_have_what_those_of_a_program_have(url):
    def ask(run):
        if run.text == "fail":
            raise ValueError("no")
        return run.ask("may I?").text

    with opened(url, ask) as mailbox:
        asking, failed = mailbox.enqueue("a", "go"), mailbox.enqueue("b", "fail", attempts=1)
        with pytest.raises(RunUnsuccessful):
            failed.result(timeout=60)
        assert next(iter(asking.events())).type == "question"
        [asked] = mailbox.questions
        assert (asked.run_id, asked.thread_id, asked.text) == (asking.id, "a", "may I?")
        mailbox.handle(asked.run_id).answer("yes", question_id=asked.question_id)
        assert asking.result(timeout=60) == "yes"
        assert [one.run_id for one in mailbox.dead_letters] == [failed.id]
        assert isinstance(mailbox.dead_letters.replay(failed.id), sync.RunHandle)
        assert mailbox.schedules.add("poll", "a", "go", every=LATER).name == "poll"
        assert [one.name for one in mailbox.schedules.list()] == ["poll"]
        assert mailbox.pending.list("a") == ()
        with pytest.raises(AttributeError):
            _ = mailbox.pending.nothing
