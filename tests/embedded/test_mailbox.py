"""The library as a program uses it: opened by an address, on both engines, with time as it passes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from embedded_room import Open, echo
from postroom import GiveUp, Item, testing
from postroom.contracts.activation import BusyPolicy, RunActivation
from postroom.contracts.agent_events import EventSink, TextDelta
from postroom.contracts.budgets import Budget, BudgetScope, BudgetWindow
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    AlreadyConsumed,
    ConfigError,
    IllegalTransition,
    InvalidArgument,
    InvalidSubmission,
    RunUnsuccessful,
    StaleDecision,
    SubmissionRejected,
    UnknownRun,
)
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Boundary
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.handle import RunEvent, RunHandle, State
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Run
from postroom.runtime import AgentRuntime, FixedResolver, ResolvedAgent, ScriptedModel


async def in_state(handle: RunHandle, state: State) -> None:
    async with asyncio.timeout(30):
        while (await handle.status()).state is not state:
            await asyncio.sleep(0)


async def answer_open_question(handle: RunHandle, text: str = "", **more: Any) -> str:
    """Answer the question that is open now, and return its id."""
    question_id = (await handle.status()).question_id
    assert question_id is not None
    await handle.answer(text, question_id=question_id, **more)
    return question_id


async def test_what_is_enqueued_is_answered(opening: Open) -> None:
    async with opening(echo) as mailbox:
        handle = await mailbox.enqueue("chat-1", "hello")
        assert await handle.result(timeout=30) == "you said hello"
        again = await mailbox.handle(handle.id)
        assert (await again.status()).state is State.DONE
        assert not await again.cancel()


@dataclass
class Job:
    page: int
    tags: list[str]


async def test_values_go_in_and_out(opening: Open) -> None:
    async def count(run: Run) -> Job:
        job = run.input(Job)
        return Job(job.page + 1, [*job.tags, run.text])

    async with opening(count) as mailbox:
        handle = await mailbox.enqueue("jobs", Job(1, ["a"]))
        assert await handle.result(timeout=30, type=Job) == Job(2, ["a", '{"page":1,"tags":["a"]}'])
        with pytest.raises(InvalidArgument, match="the answer is no int"):
            await handle.result(type=int)
        failed = await mailbox.enqueue("jobs", {"page": "three"})
        with pytest.raises(RunUnsuccessful, match="what was enqueued is no Job"):
            await failed.result(timeout=30)


async def test_what_cannot_be_stored_is_refused_before_anything_is_written(opening: Open) -> None:
    async with opening(echo) as mailbox:
        with pytest.raises(InvalidArgument, match="what is enqueued cannot be stored"):
            await mailbox.enqueue("t", object())
        with pytest.raises(InvalidArgument, match="no time zone"):
            await mailbox.enqueue("t", "a", deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - the point
        with pytest.raises(InvalidSubmission, match="priority"):
            await mailbox.enqueue("t", "a", priority=256)
        with pytest.raises(UnknownRun):
            await mailbox.handle("nobody's")
        assert await mailbox.stores.threads.load_messages("t") is None


async def test_a_run_that_returns_what_cannot_be_stored_fails_with_that(opening: Open) -> None:
    async def odd(run: Run) -> object:
        return object()

    async with opening(odd) as mailbox:
        with pytest.raises(RunUnsuccessful, match="what the run returned cannot be stored"):
            await (await mailbox.enqueue("t", "a")).result(timeout=30)


async def test_the_same_key_is_the_same_run(opening: Open) -> None:
    async with opening(echo) as mailbox:
        handles = await asyncio.gather(*(mailbox.enqueue("t", "once", key="order-7") for _ in range(5)))
        assert len({handle.id for handle in handles}) == 1
        assert await handles[0].result(timeout=30) == "you said once"
        assert (await mailbox.enqueue("t", "once", key="order-7")).id == handles[0].id
        assert (await mailbox.enqueue("other", "once", key="order-7")).id != handles[0].id
        messages = await mailbox.stores.threads.load_messages("t") or ()
        assert [message.text() for message in messages] == ["once", "you said once"]


async def test_a_step_is_not_done_twice_when_the_run_comes_again(opening: Open) -> None:
    done: list[str] = []

    def charge(amount: int) -> dict[str, int]:
        done.append("charged")
        return {"charged": amount}

    async def order(run: Run) -> str:
        receipt = await run.step("charge", charge, 7)
        if len(done) < 2:
            done.append("failed")
            raise ConnectionError("the other side is away")
        return f"{receipt['charged']} by step {await run.step('book', book, receipt, returns=Job)}"

    async def book(receipt: dict[str, int]) -> Job:
        return Job(receipt["charged"], [])

    async with opening(order) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        assert await handle.result(timeout=30) == "7 by step Job(page=7, tags=[])"
        assert done == ["charged", "failed"]
        told = [(event.type, event.text) async for event in handle.events()]
        assert told == [("step", "charge"), ("step", "book"), ("end", "7 by step Job(page=7, tags=[])")]


async def test_a_step_is_tried_as_often_as_it_may_be(opening: Open) -> None:
    tries: list[int] = []

    async def flaky(run: Run) -> object:
        async def call() -> int:
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("away")
            return len(tries)

        return await run.step("call", call, attempts=3, delay=timedelta(0))

    async with opening(flaky) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        assert await handle.result(timeout=30, type=int) == 3
        told = [event.text async for event in handle.events() if event.type == "log"]
        assert told == [f"step call failed, attempt {n} of 3: away" for n in (1, 2)]


@pytest.mark.parametrize(("name", "why"), [("", "needs a name"), ("one", "comes twice")])
async def test_a_step_s_name_is_its_own(opening: Open, name: str, why: str) -> None:
    async def twice(run: Run) -> None:
        await run.step("one", lambda: 1)
        await run.step(name, lambda: 2)

    async with opening(twice) as mailbox:
        with pytest.raises(RunUnsuccessful, match=why):
            await (await mailbox.enqueue("t", "go")).result(timeout=30)


async def deploy(run: Run) -> str:
    await run.step("build", lambda: "built")
    said = await run.ask(f"Deploy {run.text}?")
    return f"{run.text}: {said.approved} {said.text} by {said.by}"


async def test_a_run_that_asks_goes_on_with_the_answer(opening: Open) -> None:
    async with opening(deploy) as mailbox:
        handle = await mailbox.enqueue("t", "main")
        events = handle.events()
        told = [(event.type, event.text) async for event in first(events, 2)]
        assert told == [("step", "build"), ("question", "Deploy main?")]
        state = await handle.status()
        assert (state.state, state.question) == (State.WAITING, "Deploy main?")
        elsewhere = await mailbox.handle(handle.id)
        asked = await answer_open_question(elsewhere, "go ahead", approved=True, by="Ann")
        assert await handle.result(timeout=30) == "main: True go ahead by Ann"
        assert [(event.type, event.text) async for event in events] == [("end", "main: True go ahead by Ann")]
        with pytest.raises(StaleDecision):
            await handle.answer("too late", question_id=asked)


async def first(events: Any, count: int) -> Any:
    for _ in range(count):
        yield await anext(events)


async def test_what_comes_behind_a_question_waits_for_its_end(opening: Open) -> None:
    async with opening(deploy) as mailbox:
        asks = await mailbox.enqueue("t", "main")
        await in_state(asks, State.WAITING)
        behind = await mailbox.enqueue("t", "next")
        assert behind.id != asks.id
        elsewhere = await mailbox.enqueue("u", "other")
        await in_state(elsewhere, State.WAITING)
        assert (await behind.status()).state is State.QUEUED
        assert "has an open question" in await why_not(mailbox, behind)
        await answer_open_question(asks, approved=False)
        assert await asks.result(timeout=30) == "main: False  by "
        await in_state(behind, State.WAITING)
        assert await behind.cancel()
        with pytest.raises(RunUnsuccessful, match="was cancelled"):
            await behind.result(timeout=30)


async def why_not(mailbox: Mailbox, handle: RunHandle) -> str:
    run = await mailbox.stores.threads.load_run(handle.id)
    assert run is not None
    return (await mailbox.admin.why_not(run.dispatch_id or "")).text


async def test_a_run_that_sleeps_goes_on_in_time(opening: Open) -> None:
    begun: list[str] = []

    async def nap(run: Run) -> str:
        begun.append(run.text)
        await run.sleep(timedelta(milliseconds=50))
        await run.sleep(datetime.now(UTC) - timedelta(hours=1))
        return "awake"

    async with opening(nap) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        behind = await mailbox.enqueue("t", "next")
        assert await handle.result(timeout=30) == "awake"
        assert await behind.result(timeout=30) == "awake"
    assert begun == ["go", "go", "next", "next"]


async def test_a_run_that_sleeps_can_be_cancelled(opening: Open) -> None:
    async def nap(run: Run) -> None:
        await run.sleep(timedelta(days=1))

    async with opening(nap) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await in_state(handle, State.WAITING)
        assert await handle.cancel()
        assert (await handle.status()).state is State.CANCELLED


async def test_a_run_that_sleeps_is_queued_as_it_was_submitted(opening: Open) -> None:
    async def nap(run: Run) -> None:
        await run.sleep(timedelta(days=1))

    async with opening(nap, MailboxConfig(default_max_attempts=2)) as mailbox:
        asked = RunActivation.new("t", ["go"]).delivered(tenant="a", limit_key="k", priority=7)
        submitted = await mailbox.admin.submit_background(asked)
        handle = await mailbox.handle(submitted.run_id)
        await in_state(handle, State.WAITING)
        [row] = await mailbox.admin.list_dispatches("t", (RunDispatchStatus.QUEUED,))
        assert (row.tenant, row.limit_key, row.priority, row.max_attempts) == ("a", "k", 7, 2)


async def test_what_is_streamed_is_followed_and_read_again_from_a_cursor(opening: Open) -> None:
    followed = asyncio.Event()

    async def slowly(run: Run) -> str:
        await run.stream("one ")
        await followed.wait()
        await run.stream("two")
        return "one two"

    async with opening(slowly) as mailbox:
        events = mailbox.stream("t", "go")
        told = await anext(events)
        followed.set()
        told_then = [(event.type, event.text) async for event in events]
        assert (told.type, told.text, told_then) == ("text", "one ", [("text", "two"), ("end", "one two")])


async def test_a_reader_is_told_the_end_of_a_run_whose_executor_stored_it_first(opening: Open) -> None:
    told = asyncio.Event()

    class StoresItsEnd(AgentRuntime):
        async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
            result = await super().run(activation, sink)
            await told.wait()
            return result

    agent = ResolvedAgent.new("helper", "scripted", "", ScriptedModel(), [])
    async with opening(StoresItsEnd(FixedResolver(agent))) as mailbox, asyncio.timeout(60):
        handle = await mailbox.enqueue("chat-1", "hello")
        await in_state(handle, State.DONE)  # the change that ends its dispatch is still to come

        async def read() -> list[RunEvent]:
            return [event async for event in handle.events()]

        reader = asyncio.create_task(read())
        for _ in range(20):  # meanwhile the reader looks
            await handle.status()
        told.set()
        *_, end = await reader
        assert (end.type, end.text) == ("end", "done")
        assert [event async for event in handle.events(after=end.cursor)] == []


async def test_a_cancelled_run_says_so(opening: Open) -> None:
    begun = asyncio.Event()

    async def stuck(run: Run) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with opening(stuck) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        queued = await mailbox.enqueue("t", "next")
        await begun.wait()
        assert await queued.cancel()
        assert await handle.cancel()
        for one in (handle, queued):
            with pytest.raises(RunUnsuccessful, match="was cancelled"):
                await one.result(timeout=30)
            assert (await one.status()).state is State.CANCELLED


async def test_a_run_that_ends_in_this_process_is_awaited_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Mailbox.open(f"sqlite:///{tmp_path}/runs.db", echo) as mailbox:
        read, load_run = [0], mailbox.stores.threads.load_run

        async def counted(run_id: str) -> Any:
            read[0] += 1
            return await load_run(run_id)

        monkeypatch.setattr(mailbox.stores.threads, "load_run", counted)
        handles = [await mailbox.enqueue(f"t{number}", "hello") for number in range(20)]
        handles += await mailbox.enqueue_many(Item(f"m{number}", "hello") for number in range(20))
        assert [await handle.result() for handle in handles] == ["you said hello"] * 40
        assert read[0] < 20, "on a busy machine a run may take longer than a handle waits before it reads"
        known = await mailbox.handle(handles[0].id)
        assert await known.result() == "you said hello", "a handle that was made later reads the run"


async def test_the_handle_of_a_failed_run_does_not_take_the_answer_of_its_replay(opening: Open) -> None:
    broken = [True]

    async def work(run: Run) -> str:
        if broken:
            raise GiveUp("no light")
        return "light"

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go", attempts=1)
        with pytest.raises(RunUnsuccessful):
            await handle.result(timeout=30)
        broken.clear()
        again = await mailbox.dead_letters.replay(handle.id)
        assert await again.result(timeout=30) == "light"
        with pytest.raises(RunUnsuccessful, match="no light"):
            await handle.result(timeout=30)


async def test_a_result_that_is_late_is_waited_for_no_longer(opening: Open) -> None:
    going = asyncio.Event()

    async def slow(run: Run) -> str:
        await going.wait()
        return "done"

    async with opening(slow) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)
        going.set()
        assert await handle.result(timeout=30) == "done"


async def test_the_conversation_is_told_without_what_is_to_be_answered(opening: Open) -> None:
    async def remember(run: Run) -> str:
        return " / ".join([message.text() for message in await run.history()]) or "nothing"

    async with opening(remember) as mailbox:
        answers = [await (await mailbox.enqueue("t", text)).result(timeout=30) for text in ("a", "b", "c")]
    assert answers == ["nothing", "a / nothing", "a / nothing / b / a / nothing"]


async def test_the_conversation_is_told_without_what_was_queued_later(opening: Open) -> None:
    going = asyncio.Event()

    async def remember(run: Run) -> str:
        await going.wait()
        return " / ".join([*[message.text() for message in await run.history()], run.text.upper()])

    async with opening(remember) as mailbox:
        handles = [await mailbox.enqueue("t", text) for text in ("a", "b", "c")]
        going.set()
        answers = [await handle.result(timeout=30) for handle in handles]
    assert answers == ["A", "a / A / B", "a / A / b / a / A / B / C"]


async def test_the_policy_for_a_busy_thread_is_the_caller_s(opening: Open) -> None:
    going = asyncio.Event()

    async def slow(run: Run) -> str:
        await going.wait()
        return run.text

    async with opening(slow) as mailbox:
        await mailbox.enqueue("t", "a")
        joined = [await mailbox.enqueue("t", text, when_busy=BusyPolicy.COLLECT) for text in ("b", "c")]
        assert joined[0].id == joined[1].id
        going.set()
        assert await joined[1].result(timeout=30) == "b\nc"


async def test_collect_leaves_a_delayed_run_alone() -> None:
    async with testing.mailbox(echo) as mailbox:
        reminder = await mailbox.enqueue("chat", "remind me", delay=timedelta(hours=1))
        hello = await mailbox.enqueue("chat", "hello", when_busy="collect")
        await mailbox.run_until_idle()
        assert await hello.result() == "you said hello"
        assert (await reminder.status()).state is State.QUEUED


SOME_DAY = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 0},
        {"delay": timedelta(hours=1)},
        {"deadline": SOME_DAY},
        {"attempts": 7},
        {"interruptions": 7},
        {"retry_delay": timedelta(seconds=7)},
        {"max_retry_delay": timedelta(seconds=7)},
        {"tenant": "acme"},
        {"limit_key": "acme"},
        {"agent": "other"},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_collect_joins_only_a_run_with_the_same_options(opening: Open, options: dict[str, Any]) -> None:
    going = asyncio.Event()

    async def slow(run: Run) -> str:
        await going.wait()
        return run.text

    async with opening(slow) as mailbox:
        await mailbox.enqueue("t", "active")
        plain = await mailbox.enqueue("t", "plain")
        other = await mailbox.enqueue("t", "other", when_busy="collect", **options)
        again = await mailbox.enqueue("t", "again", when_busy="collect", **options)
        hello = await mailbox.enqueue("t", "hello", when_busy="collect")
        assert other.id != plain.id
        assert (again.id == other.id) == ("delay" not in options)
        assert hello.id == plain.id
        going.set()
        assert await hello.result(timeout=30) == "plain\nhello"


async def test_what_was_left_is_gone_on_with(opening: Open, request: pytest.FixtureRequest) -> None:
    if "memory" in request.node.callspec.id:
        return  # nothing of it outlives the mailbox
    begun: list[str] = []

    async def first_half(run: Run) -> None:
        await run.log("the first half")
        await run.step("half", lambda: begun.append("half"))
        begun.append("stuck")
        await asyncio.Event().wait()

    async def whole(run: Run) -> str:
        await run.log("the whole")
        await run.step("half", lambda: begun.append("half again"))
        return run.text

    async with opening(first_half, MailboxConfig(drain_grace=timedelta(0))) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        async with asyncio.timeout(30):
            while begun != ["half", "stuck"]:
                await asyncio.sleep(0)
    async with opening(whole) as mailbox:
        handle = await mailbox.handle(handle.id)
        assert await handle.result(timeout=30) == "go"
        told = [event.text async for event in handle.events() if event.type == "log"]
    assert begun == ["half", "stuck"]
    assert told == ["the first half", "the whole"]


@pytest.mark.parametrize(
    "url",
    ["", "runs.db", "sqlite:runs.db", "sqlite://host/runs.db", "sqlite:///:memory:", "mysql://u:secret@h/d"],
)
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        async with Mailbox.open(url, echo):
            pass
    assert "secret" not in refused.value.describe()


async def test_an_enqueued_run_has_a_retry_policy_of_its_own(opening: Open) -> None:
    calls = 0

    async def away(run: Run) -> str:
        nonlocal calls
        calls += 1
        raise ConnectionError("away")

    async with opening(away, MailboxConfig(default_retry_delay_ms=600_000)) as mailbox:
        soon = timedelta(milliseconds=1)
        handle = await mailbox.enqueue("a", "go", attempts=7, retry_delay=soon, max_retry_delay=soon)
        with pytest.raises(RunUnsuccessful, match="away"):
            await handle.result(timeout=30)
    assert calls == 7


WORKER = """
import asyncio, sys
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Boundary
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.mailbox import Mailbox

async def hang(run):
    print("at work", flush=True)
    await asyncio.Event().wait()

async def main():
    async with Mailbox.open(sys.argv[1], hang, config=MailboxConfig(lease_ms=3_600_000)) as mailbox:
        await mailbox.enqueue("chat-1", "hello", key="one")
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_work_of_the_only_process_that_was_killed_goes_on_before_its_lease_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, url, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert killed.stdout is not None
        assert await asyncio.wait_for(killed.stdout.readline(), 60) == b"at work\n"
    finally:
        killed.kill()
        await killed.wait()
    async with Mailbox.open(url, echo) as mailbox:
        handle = await mailbox.enqueue("chat-1", "hello", key="one")
        assert await handle.result(timeout=60) == "you said hello"


async def test_what_was_given_up_is_tried_again_or_discarded(opening: Open) -> None:
    tried: list[str] = []

    async def fragile(run: Run) -> str:
        tried.append(run.text)
        if tried.count(run.text) == 1:
            raise ValueError("not yet")
        return "done"

    async with opening(fragile) as mailbox:
        failed = [await mailbox.enqueue(f"job-{name}", name, attempts=1) for name in "ab"]
        for handle in failed:
            with pytest.raises(RunUnsuccessful):
                await handle.result(timeout=30)
        given_up = [one async for one in mailbox.dead_letters]
        assert sorted(one.run_id for one in given_up) == sorted(handle.id for handle in failed)
        assert {(one.attempts, "not yet" in one.error) for one in given_up} == {(1, True)}
        again = await mailbox.dead_letters.replay(failed[0].id)
        assert await again.result(timeout=30) == "done"
        await mailbox.dead_letters.discard(failed[1].id)
        assert [one async for one in mailbox.dead_letters] == []
        for refused, error, told in (
            (failed[0].id, IllegalTransition, "not a dead letter"),
            (failed[1].id, IllegalTransition, "not a dead letter"),
            ("nobody", UnknownRun, "there is no run"),
            (again.id, IllegalTransition, "not a dead letter"),
        ):
            for ask in (mailbox.dead_letters.replay, mailbox.dead_letters.discard):
                with pytest.raises(error, match=told) as caught:
                    await ask(refused)
                assert repr(refused) in str(caught.value)
                assert "postroom runs" not in str(caught.value.remedy)


async def test_a_failure_that_no_retry_can_mend_is_an_attempt_that_failed(opening: Open) -> None:
    async def failing(run: Run) -> str:
        if run.text == "gives up":
            raise GiveUp("no")
        if run.text == "retried" and run.attempt == 1:
            raise OSError("away")
        return await run.step("", print)  # a step needs a name

    async with opening(failing) as mailbox:
        for text in ("gives up", "invalid", "retried"):
            handle = await mailbox.enqueue(text, text, retry_delay=timedelta(0))
            with pytest.raises(RunUnsuccessful):
                await handle.result(timeout=30)
        counts = {one.thread_id: one.attempts async for one in mailbox.dead_letters}
        assert counts == {"gives up": 1, "invalid": 1, "retried": 2}


class Listening(RunDispatchExecutor):
    """Answers with what it was told, and with what it is told while it works, once it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        assert activation.control is not None
        assert activation.control.pending is not None
        await sink.emit(TextDelta(delta="hm, "))
        await self.let_go.wait()
        steered = await activation.control.pending.freeze(Boundary.NEXT_STEP)
        said = [message.text() for message in (*activation.messages, *steered)]
        return AgentRunResult(run_id=activation.run_id or "", response=" and ".join(said))

    def wake_pending_boundary(self, id: str) -> bool:
        return True


async def test_what_waits_for_a_run_at_work_can_be_changed_until_it_reads_it(opening: Open) -> None:
    executor = Listening()
    async with opening(executor) as mailbox:
        handle = await mailbox.enqueue("chat", "one")
        told = handle.events()
        assert (await anext(told)).text == "hm, "  # an executor's texts are followed as a function's are
        for text in ("two", "three", "four"):
            steered = await mailbox.enqueue("chat", text, when_busy=BusyPolicy.STEER)
            assert steered.id == handle.id
        two, three, four = (one.message.id or "" for one in await mailbox.pending.list("chat"))
        await mailbox.pending.retract("chat", two)
        await mailbox.pending.edit("chat", four, "five")
        await mailbox.pending.reorder("chat", [four, three])
        assert [one.message.text() for one in await mailbox.pending.list("chat")] == ["five", "three"]
        keyed = [await mailbox.enqueue("chat", "six", key="6", when_busy=BusyPolicy.STEER) for _ in "12"]
        executor.let_go.set()
        assert await handle.result(timeout=30) == "one and five and three and six"
        keyed.append(await mailbox.enqueue("chat", "six", key="6", when_busy=BusyPolicy.STEER))
        assert {one.id for one in keyed} == {handle.id}
        with pytest.raises(AlreadyConsumed):
            await mailbox.pending.retract("chat", three)


async def test_a_key_is_known_where_its_message_was_joined_to_another_run(opening: Open) -> None:
    executor = Listening()
    async with opening(executor) as mailbox:
        await mailbox.enqueue("chat", "one")

        async def said(text: str) -> RunHandle:
            return await mailbox.enqueue("chat", text, key=text, when_busy=BusyPolicy.COLLECT)

        together = [await said(text) for text in ("two", "three", "two", "three")]
        executor.let_go.set()
        assert await together[0].result(timeout=30) == "two and three"
        assert {one.id for one in (*together, await said("two"), await said("three"))} == {together[0].id}


@pytest.mark.parametrize("opening", ["postgres"], indirect=True)
async def test_a_process_may_hand_over_work_that_another_one_does(opening: Open) -> None:
    async with opening(None) as office:
        first = await office.enqueue("chat", "0")
        assert "no run executes in this process" in await why_not(office, first)
        async with opening(echo):
            for handle in (first, await office.enqueue("chat", "1")):
                assert (await handle.result(timeout=30)).startswith("you said")


@pytest.mark.parametrize("of", [{"tenant": "acme"}, {"limit_key": "model"}, {"agent": "ada"}])
async def test_when_a_budget_is_used_up_one_asks_and_one_answer_has_all_go_on(
    opening: Open, of: dict[str, str]
) -> None:
    scope = {"tenant": BudgetScope.TENANT, "limit_key": BudgetScope.KEY, "agent": BudgetScope.AGENT}
    budget = Budget(per=scope[next(iter(of))], window=BudgetWindow.MONTH, runs=5)
    config = MailboxConfig(budgets=(budget,), max_concurrent_runs=1)
    async with opening(echo, config) as mailbox:
        handles = [await mailbox.enqueue(f"t{number}", "hello", **of) for number in range(10)]
        await in_state(handles[5], State.WAITING)
        told = await handles[5].status()
        assert told.question is not None
        assert told.question.startswith(f"The budget of {next(iter(of.values()))} for this month is used up")
        await answer_open_question(handles[5], approved=True, by="Ann")
        assert {await one.result(timeout=30) for one in handles} == {"you said hello"}


async def test_newer_arrivals_never_overtake_older_work_that_waits_for_a_slot(opening: Open) -> None:
    order = list[str]()

    async def note(run: Run) -> str:
        order.append(run.thread_id)
        return "noted"

    budget = Budget(per=BudgetScope.TENANT, runs=1_000)
    async with opening(note, MailboxConfig(budgets=(budget,), max_concurrent_runs=1)) as mailbox:
        handles = [await mailbox.enqueue(f"t{number:02}", "hello", tenant="acme") for number in range(40)]
        for one in handles:
            await one.result(timeout=30)
    assert order == sorted(order)


async def test_what_was_told_before_a_failure_or_a_question_is_told_not_to_count(opening: Open) -> None:
    tries: list[int] = []

    async def tell(run: Run) -> str:
        await run.stream("half ")
        tries.append(run.attempt)
        if len(tries) == 1:
            raise ConnectionError("cut off")
        await run.ask("whole?")
        return "half whole"

    async with opening(tell) as mailbox:
        handle = await mailbox.enqueue("chat", "go")
        told = []
        async for event in handle.events():
            told.append((event.type, event.text))
            if event.type == "question":
                await handle.answer("yes", question_id=event.question_id)
    again = ("reset", "the run begins again")
    assert told == [
        ("text", "half "),
        ("reset", "ConnectionError: cut off"),
        ("text", "half "),
        ("question", "whole?"),
        again,
        ("text", "half "),
        ("end", "half whole"),
    ]


async def test_what_a_run_has_used_counts_for_its_budget(opening: Open) -> None:
    async def think(run: Run) -> None:
        run.used(input_tokens=900, output_tokens=100)
        with pytest.raises(InvalidArgument, match="cost_micros"):
            run.used(cost_micros=-1)

    budget = Budget(per=BudgetScope.TENANT, tokens=1_000)
    async with opening(think, MailboxConfig(budgets=(budget,))) as mailbox:
        await (await mailbox.enqueue("one", "go", tenant="acme")).result(timeout=30)
        second = await mailbox.enqueue("two", "go", tenant="acme")
        await in_state(second, State.WAITING)


async def test_what_is_collected_behind_a_run_that_has_begun_has_a_run_of_its_own(opening: Open) -> None:
    tries: list[str] = []

    async def once_failing(run: Run) -> str:
        tries.append(run.text)
        if len(tries) == 1:
            raise ConnectionError("away")
        if run.text == "sleep":
            await run.sleep(timedelta(milliseconds=200))
        return f"did {run.text}"

    async with opening(once_failing, MailboxConfig(default_retry_delay_ms=200)) as mailbox:
        for first in ("one", "sleep"):
            handle = await mailbox.enqueue("chat", first)
            while not tries or tries[-1] != first:
                await asyncio.sleep(0)
            second = await mailbox.enqueue("chat", "two", key=first, when_busy=BusyPolicy.COLLECT)
            assert await handle.result(timeout=30) == f"did {first}"
            assert await second.result(timeout=30) == "did two"


@pytest.mark.parametrize("policy", [BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK, BusyPolicy.REJECT])
async def test_the_same_key_twice_at_once_is_one_run_that_is_not_in_its_own_way(
    opening: Open, policy: BusyPolicy
) -> None:
    async with opening(echo) as mailbox:
        both = await asyncio.gather(
            *(mailbox.enqueue("chat", "hello", key="1", when_busy=policy) for _ in range(4))
        )
        assert len({one.id for one in both}) == 1
        assert await both[0].result(timeout=30) == "you said hello"


@pytest.mark.parametrize("policy", [BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK, BusyPolicy.REJECT])
async def test_a_conversation_with_an_open_question_is_busy(opening: Open, policy: BusyPolicy) -> None:
    seen: list[list[str]] = []

    async def asking(run: Run) -> str:
        seen.append([message.text() for message in await run.history()])
        return (await run.ask("may I?")).text if run.text == "ask" else f"did {run.text}"

    async with opening(asking) as mailbox:
        first = await mailbox.enqueue("chat", "ask")
        while (await first.status()).state is not State.WAITING:
            await asyncio.sleep(0)
        if policy is BusyPolicy.REJECT:
            with pytest.raises(SubmissionRejected):
                await mailbox.enqueue("chat", "now", when_busy=policy)
            await answer_open_question(first, "yes")
            assert await first.result(timeout=30) == "yes"
            return
        second = await mailbox.enqueue("chat", "now", when_busy=policy)
        assert await second.result(timeout=30) == "did now"
        with pytest.raises(RunUnsuccessful, match="cancelled"):
            await first.result(timeout=30)
        assert [one async for one in mailbox.questions] == []
        assert ("ask" in seen[-1]) is (policy is BusyPolicy.INTERRUPT)


NAMING: dict[str, Callable[[Mailbox, Any], Awaitable[object]]] = {
    "handle": lambda mailbox, id: mailbox.handle(id),
    "cancel": lambda mailbox, id: mailbox.cancel(id),
    "pause": lambda mailbox, id: mailbox.schedules.pause(id),
    "resume": lambda mailbox, id: mailbox.schedules.resume(id),
    "trigger": lambda mailbox, id: mailbox.schedules.trigger(id),
    "remove": lambda mailbox, id: mailbox.schedules.remove(id),
    "add": lambda mailbox, id: mailbox.schedules.add(id, "t", "go", every=timedelta(hours=1)),
    "replay": lambda mailbox, id: mailbox.dead_letters.replay(id),
    "discard": lambda mailbox, id: mailbox.dead_letters.discard(id),
    "list": lambda mailbox, id: mailbox.pending.list(id),
    "edit": lambda mailbox, id: mailbox.pending.edit("t", "m", id),
    "retract": lambda mailbox, id: mailbox.pending.retract("t", id),
    "reorder": lambda mailbox, id: mailbox.pending.reorder("t", [id]),
}


@pytest.mark.parametrize("call", NAMING)
async def test_what_names_something_is_text_that_can_be_kept(opening: Open, call: str) -> None:
    async with opening(echo) as mailbox:
        for wrong in (None, 5, b"x", "\ud800"):
            with pytest.raises(InvalidArgument, match=r"must be text, not|half of a character"):
                await NAMING[call](mailbox, wrong)


@dataclass
class Wrapped:
    value: object


UNREADABLE = {
    "two keys that are one as text": {1: "a", "1": "b"},
    "such keys within": [Wrapped(value={"deep": {None: 1, "null": 2, 2: 3, "2": 4}})],
    "half a character": {"a": ["\ud800"]},
    "half a character as a key": {"\ud800": 1},
}


@pytest.mark.parametrize("case", [*UNREADABLE, "half a character as text"])
async def test_what_would_read_back_otherwise_is_refused(opening: Open, case: str) -> None:
    value = UNREADABLE.get(case, "half \ud800")
    refused: list[InvalidArgument] = []

    async def returning(run: Run) -> object:
        try:
            await run.step("it", lambda: value)
        except InvalidArgument as error:
            refused.append(error)
        return value

    async with opening(returning) as mailbox:
        with pytest.raises((InvalidArgument, InvalidSubmission)):
            await mailbox.enqueue("t", value)
        handle = await mailbox.enqueue("t", "go", attempts=1)
        with pytest.raises(RunUnsuccessful, match="what the run returned cannot be stored"):
            await handle.result(timeout=30)
        assert "step 'it' cannot be stored" in refused[0].message


async def test_what_no_database_can_keep_is_refused_and_the_question_stays_open(opening: Open) -> None:
    refused: list[str] = []

    async def ask(run: Run) -> str:
        for wrong in (
            lambda: run.ask(None),  # type: ignore[arg-type]
            lambda: run.ask(" "),
            lambda: run.ask("half \ud800"),
            lambda: run.ask("may I?", timeout=5),  # type: ignore[arg-type]
            lambda: run.sleep(5),  # type: ignore[arg-type]
            lambda: run.step(5, asyncio.sleep, 0),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgument):
                await wrong()
        with pytest.raises(InvalidArgument, match="cost_micros"):
            run.used(cost_micros=1.5)  # type: ignore[arg-type]
        refused.append(run.id)
        return (await run.ask("may I?")).text

    async with opening(ask) as mailbox:
        handle = await mailbox.enqueue("chat", "go")
        await in_state(handle, State.WAITING)
        asked = (await handle.status()).question_id
        assert asked is not None
        for wrong in ({"by": None}, {"text": 5}, {"approved": "yes"}, {"question_id": None}):
            with pytest.raises(InvalidArgument):
                await handle.answer(**{"question_id": asked} | wrong)  # type: ignore[arg-type]
        with pytest.raises(StaleDecision):
            await handle.answer("late", question_id="an earlier one")
        await handle.answer("yes", question_id=asked)
        assert await handle.result(timeout=30) == "yes"
        with pytest.raises(InvalidArgument, match="when_busy"):
            await mailbox.enqueue("chat", "go", when_busy="interupt")  # type: ignore[arg-type]


async def test_questions_side_by_side_have_their_own_answers(opening: Open) -> None:
    async def both(run: Run) -> dict[str, bool | None]:
        async def looked() -> bool | None:
            await run.step("look", asyncio.sleep, 0)
            return (await run.ask("Refund?")).approved

        async def greeted() -> bool | None:
            return (await run.ask("Greet?")).approved

        async with asyncio.TaskGroup() as group:
            refund, greet = group.create_task(looked()), group.create_task(greeted())
        return {"refund": refund.result(), "greet": greet.result()}

    async with opening(both) as mailbox:
        handle = await mailbox.enqueue("chat", "go")
        async for event in handle.events():
            if event.type == "question":
                await handle.answer(approved=event.text == "Greet?", question_id=event.question_id)
        assert await handle.result(type=dict) == {"refund": False, "greet": True}


@pytest.mark.parametrize("work", [5, lambda run: "hello", "answer"])
async def test_work_that_cannot_be_awaited_is_refused(work: Any) -> None:
    with pytest.raises(ConfigError, match="coroutine function"):
        async with Mailbox.open("memory", work):
            pass


async def test_nothing_begins_beside_a_step_that_cannot_be_stopped(opening: Open) -> None:
    began, let_go, at_work = threading.Event(), threading.Event(), []

    def blocking(text: str) -> None:
        at_work.append(f"{text} begins")
        began.set()
        let_go.wait(30)
        at_work.append(f"{text} ends")

    async def work(run: Run) -> None:
        await run.step("block", blocking, run.text)

    async with opening(work) as mailbox:
        first, second = await mailbox.enqueue("chat", "one"), await mailbox.enqueue("chat", "two")
        await asyncio.to_thread(began.wait, 30)
        assert await first.cancel()
        let_go.set()
        await second.result(timeout=30)
    assert at_work == ["one begins", "one ends", "two begins", "two ends"]


FAILING = """
import asyncio
from postroom import Mailbox

class Odd(Exception):
    def __str__(self): raise KeyError("x")

async def work(run):
    password = "hunter2"
    raise Odd() if run.text == "odd" else RuntimeError("x" * 1_000_000)

async def main():
    async with Mailbox.open("memory", work) as mailbox:
        for what in ("odd", "long"):
            handle = await mailbox.enqueue(what, what, attempts=1)
            try:
                await handle.result(timeout=30)
            except Exception as error:
                print(str(error).partition(" failed: ")[2][:60])

asyncio.run(main())
"""


def test_what_the_library_logs_goes_to_stderr_bounded_and_without_the_values_of_variables() -> None:
    command = [sys.executable, "-c", FAILING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "Odd: its text cannot be told (KeyError)",
        f"RuntimeError: {'x' * 46}",
    ]
    assert done.stderr.count("run.attempt_failed") == 2
    assert "hunter2" not in done.stderr
    assert len(done.stderr) < 100_000
