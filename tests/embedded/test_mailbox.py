"""The library as a program uses it: values, steps, keys, policies, streams, failures, cancels."""

import asyncio
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import postroom
from embedded_room import (
    SOON,
    asking,
    both_engines,
    echo,
    in_state,
    on,
    texts,
    told,
)
from machine import PATIENCE
from postroom import (
    BusyPolicy,
    GiveUp,
    IdempotencyConflict,
    Item,
    Mailbox,
    MailboxConfig,
    Message,
    RunUnsuccessful,
    State,
    SubmissionRejected,
)
from postroom.contracts import errors
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Boundary
from postroom.contracts.records import replace
from postroom.runtime import AgentRuntime, FixedResolver, ResolvedAgent, ScriptedModel

HOUR = timedelta(hours=1)


def failing(why):
    return pytest.raises(RunUnsuccessful, match=why)


class Gate:
    """Work that reports its start, and returns its input once it may continue."""

    def __init__(self):
        self.begun, self.going = asyncio.Event(), asyncio.Event()

    async def __call__(self, run):
        self.begun.set()
        await self.going.wait()
        return run.text


async def stuck(run):
    await asyncio.Event().wait()


@dataclass
class Job:
    page: int
    tags: list[str]


# What goes in and comes out.


@both_engines
async def test_values_go_in_and_out(opening):
    async def count(run):
        job = run.input(Job)
        return Job(job.page + 1, [*job.tags, run.text])

    async with opening(count) as mailbox:
        handle = await mailbox.enqueue("jobs", Job(1, ["a"]))
        assert await handle.result(timeout=30, type=Job) == Job(2, ["a", '{"page":1,"tags":["a"]}'])
        with pytest.raises(errors.InvalidArgument, match="the answer is not of type int"):
            await handle.result(type=int)
        again = await mailbox.handle(handle.id)
        assert (await again.status()).state is State.DONE
        assert not await again.cancel()
        with failing("the enqueued content is not of type Job"):
            await (await mailbox.enqueue("jobs", {"page": "three"})).result(timeout=PATIENCE)


@dataclass
class Wrapped:
    value: object


async def test_what_would_read_back_otherwise_or_not_at_all_is_refused(opening):
    refused = []

    async def returning(run):
        try:
            await run.step("it", lambda: value)
        except errors.InvalidArgument as error:
            refused.append(error.message)
        return value

    async with opening(returning) as mailbox:
        for value in (
            object(),
            {1: "a", "1": "b"},  # two keys that are one as text
            [Wrapped(value={"deep": {None: 1, "null": 2, 2: 3, "2": 4}})],
            {"a": ["\ud800"]},
            {"\ud800": 1},
            "half \ud800",
        ):
            with pytest.raises((errors.InvalidArgument, errors.InvalidSubmission)):
                await mailbox.enqueue("t", value)
            with failing("the result of the run cannot be stored"):
                await (await mailbox.enqueue("t", "go", attempts=1)).result(timeout=PATIENCE)
            assert "step 'it' cannot be stored" in refused.pop()


async def test_the_result_of_a_run_takes_no_longer_than_it_may(opening):
    work = Gate()
    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        for timeout, waited in (
            (0, "0"),
            (-1, "0"),
            (0.001, "0.001"),
            (timedelta(0), "0"),
            (timedelta(milliseconds=1), "0.001"),
        ):
            says = (
                f"^run {handle.id} did not end within {waited} s. The run continues: call result\\(\\) again"
            )
            with pytest.raises(TimeoutError, match=says):
                await handle.result(timeout=timeout)
        work.going.set()
        await handle.result(timeout=PATIENCE)
        assert [await handle.result(timeout=timeout) for timeout in (0, -1, 1e-9)] == ["go"] * 3


async def test_a_run_that_fails_with_an_exception_without_a_text_fails_with_the_name_of_the_exception(
    opening,
):
    async def work(run):
        raise TimeoutError

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go", attempts=1)
        with pytest.raises(errors.RunUnsuccessful, match=f"^run {handle.id} failed: TimeoutError\n"):
            await handle.result(timeout=PATIENCE)
        assert [one.error async for one in mailbox.dead_letters] == ["TimeoutError"]


async def test_a_run_that_ends_in_this_process_is_awaited_without_reading_it(opening, monkeypatch):
    async with opening(echo) as mailbox:
        reads, load_run = [], mailbox.stores.threads.load_run

        async def counted(run_id):
            reads.append(run_id)
            return await load_run(run_id)

        monkeypatch.setattr(mailbox.stores.threads, "load_run", counted)
        handles = [await mailbox.enqueue(f"t{number}", "hello") for number in range(20)]
        handles += await mailbox.enqueue_many(Item(f"m{number}", "hello", key="k") for number in range(20))
        assert [await handle.result() for handle in handles] == ["you said hello"] * 40
        assert len(reads) < 20, "on a busy machine a run may take longer than a handle waits before it reads"
        known = await mailbox.handle(handles[0].id)
        assert await known.result() == "you said hello", "a handle that was made later reads the run"


async def test_the_conversation_is_told_without_what_is_to_be_answered_or_was_queued_later(opening):
    going = asyncio.Event()

    async def remember(run):
        await going.wait()
        return " / ".join([*[message.text() for message in await run.history()], run.text.upper()])

    async with opening(remember) as mailbox:
        handles = [await mailbox.enqueue("t", text) for text in "abc"]
        going.set()
        answers = [await handle.result(timeout=PATIENCE) for handle in handles]
    assert answers == ["A", "a / A / B", "a / A / b / a / A / B / C"]


# Steps.


async def test_a_step_is_not_done_twice_when_the_run_comes_again(opening):
    done = []

    def charge(amount):
        done.append("charged")
        return {"charged": amount}

    async def book(receipt) -> Job:
        return Job(receipt["charged"], [])

    async def order(run):
        receipt = await run.step("charge", charge, 7)
        if len(done) < 2:
            done.append("failed")
            raise ConnectionError("the other side is away")
        return f"{receipt['charged']} by step {await run.step('book', book, receipt, returns=Job)}"

    async with opening(order) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        said = "7 by step Job(page=7, tags=[])"
        assert await handle.result(timeout=PATIENCE) == said
        assert done == ["charged", "failed"]
        assert await told(handle.events()) == [("step", "charge"), ("step", "book"), ("end", said)]


async def test_a_step_is_tried_as_often_as_it_may_be_and_its_name_is_its_own(opening):
    tries = []

    async def call():
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("away")
        return len(tries)

    async def flaky(run):
        number = await run.step("call", call, attempts=3, delay=timedelta(0))
        return number if run.text == "go" else await run.step(run.text, print)

    async with opening(flaky) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        assert await handle.result(timeout=30, type=int) == 3
        logged = [text for type, text in await told(handle.events()) if type == "log"]
        assert logged == [f"step call failed, attempt {n} of 3: away" for n in (1, 2)]
        for name, why in ((" ", "needs a name"), ("call", "occurs twice")):
            with failing(why):
                await (await mailbox.enqueue("t", name)).result(timeout=PATIENCE)


@on("sqlite")
async def test_what_was_left_is_gone_on_with(opening):
    begun = []

    async def first_half(run):
        await run.log("the first half")
        await run.step("half", lambda: begun.append("half"))
        begun.append("stuck")
        await asyncio.Event().wait()

    async def whole(run):
        await run.log("the whole")
        await run.step("half", lambda: begun.append("half again"))
        return run.text

    async with opening(first_half, MailboxConfig(drain_grace=timedelta(0))) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        async with asyncio.timeout(PATIENCE):
            while begun != ["half", "stuck"]:
                await asyncio.sleep(0)
    async with opening(whole) as mailbox:
        handle = await mailbox.handle(handle.id)
        assert await handle.result(timeout=PATIENCE) == "go"
        logged = [text for type, text in await told(handle.events()) if type == "log"]
    assert (begun, logged) == (["half", "stuck"], ["the first half", "the whole"])


async def test_nothing_begins_beside_a_step_that_cannot_be_stopped(opening):
    began, let_go, at_work = threading.Event(), threading.Event(), []

    def blocking(text):
        at_work.append(f"{text} begins")
        began.set()
        let_go.wait(PATIENCE)
        at_work.append(f"{text} ends")

    async def work(run):
        await run.step("block", blocking, run.text)

    async with opening(work) as mailbox:
        first, second = [await mailbox.enqueue("chat", text) for text in ("one", "two")]
        await asyncio.to_thread(began.wait, 30)
        assert await first.cancel()
        let_go.set()
        await second.result(timeout=PATIENCE)
    assert at_work == ["one begins", "one ends", "two begins", "two ends"]


async def test_a_cancelled_run_whose_step_blocks_a_thread_is_left_behind(opening):
    began, let_go = threading.Event(), threading.Event()

    async def work(run):
        await run.step("block", lambda: (began.set(), let_go.wait(60)))

    try:
        async with opening(work, MailboxConfig(stop_wait_ms=20)) as mailbox:
            handle = await mailbox.enqueue("t", "go")
            await asyncio.to_thread(began.wait, 30)
            assert await handle.cancel()
            with failing("cancelled"):
                await handle.result(timeout=PATIENCE)
            let_go.set()
    finally:
        let_go.set()


# What is told of a run.


async def test_events_come_in_the_order_in_which_the_run_told_them_and_are_read_again_from_a_cursor(opening):
    followed = asyncio.Event()

    async def work(run):
        for part in ("a", "b"):
            await run.stream(part)
            await followed.wait()
            await run.log(f"behind {part}")
            await run.step(f"step {part}", lambda: None)
        await run.stream("c")
        return "abc"

    expected = [
        *(("text", "a"), ("log", "behind a"), ("step", "step a")),
        *(("text", "b"), ("log", "behind b"), ("step", "step b")),
        *(("text", "c"), ("end", "abc")),
    ]
    async with opening(work) as mailbox:
        events = mailbox.stream("t", "go")
        live = [await anext(events)]
        followed.set()
        live += [event async for event in events]
        assert [(event.type, event.text) for event in live] == expected
        handle = await mailbox.enqueue("u", "go")
        await handle.result(timeout=PATIENCE)
        kept = [event async for event in handle.events()]
        assert [(event.type, event.text) for event in kept] == expected
        assert [event async for event in handle.events(after=None)] == kept
        for place, event in enumerate(kept):  # as a browser sends the cursor
            assert [one async for one in handle.events(after=str(event.cursor))] == kept[place + 1 :]
        with pytest.raises(postroom.PostroomError, match="the newest event of"):
            await anext(handle.events(after=10**18 - 1))
        for after in ("", "x", "-1", "1.5", "²", "9" * 40, -1, 1.5, True, b"1", 10**18, 2**63):
            with pytest.raises(errors.InvalidArgument, match="`after` must be the cursor"):
                await anext(handle.events(after=after))


async def test_what_was_told_before_a_failure_or_a_question_is_told_not_to_count(opening):
    tries = []

    async def tell(run):
        await run.stream("half ")
        tries.append(run.attempt)
        if len(tries) == 1:
            raise ConnectionError("cut off")
        await run.ask("whole?")
        return "half whole"

    async with opening(tell) as mailbox:
        handle, seen = await mailbox.enqueue("chat", "go"), []
        async for event in handle.events():
            seen.append((event.type, event.text))
            if event.type == "question":
                await handle.answer("yes", question_id=event.question_id)
    half, question = ("text", "half "), ("question", "whole?")
    failed, again = ("reset", "ConnectionError: cut off"), ("reset", "the run starts again")
    assert seen == [half, failed, half, question, again, half, ("end", "half whole")]


async def test_a_reader_is_told_the_end_of_a_run_whose_executor_stored_it_first(opening):
    may_end = asyncio.Event()

    class StoresItsEnd(AgentRuntime):
        async def run(self, activation, sink):
            result = await super().run(activation, sink)
            await may_end.wait()
            return result

    agent = ResolvedAgent.new("helper", "scripted", "", ScriptedModel(), [])
    async with opening(StoresItsEnd(FixedResolver(agent))) as mailbox, asyncio.timeout(60):
        handle = await mailbox.enqueue("chat-1", "hello")
        await in_state(handle, State.DONE)  # the change that ends its dispatch is still to come
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(told(handle.events()))
            for _ in range(20):  # meanwhile the reader looks
                await handle.status()
            may_end.set()
        assert reader.result()[-1] == ("end", "done")


async def test_readers_get_an_error_by_its_public_name_at_once_when_the_mailbox_closes(opening):
    work = Gate()
    async with opening(work, MailboxConfig(drain_grace=timedelta(0))) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        readers = [asyncio.ensure_future(one) for one in (handle.result(), told(handle.events()))]
        await work.begun.wait()
        assert not (await asyncio.wait(readers, timeout=0))[0]
    done, _ = await asyncio.wait(readers, timeout=5)  # seconds less than the poll that would find it, too
    assert [type(one.exception()) for one in done] == [postroom.StoreClosed] * 2


# Failures.


@pytest.mark.parametrize("in_step", [False, True])
async def test_work_that_cannot_succeed_is_executed_once_and_so_is_its_step(opening, in_step):
    executions = []

    async def call():
        executions.append(1)
        raise failure

    async def work(run):
        return await (run.step("call", call, attempts=5, delay=timedelta(0)) if in_step else call())

    async with opening(work, replace(SOON, give_up_on=(KeyError,))) as mailbox:
        for failure in (
            GiveUp("550 no such user"),
            KeyError("550 no such user"),
            ExceptionGroup("two", [ValueError("away"), GiveUp("550 no such user")]),
            ExceptionGroup("two", [ValueError("away"), KeyError("550 no such user")]),
        ):
            handle = await mailbox.enqueue("mail", "to nobody")
            with failing("550 no such user|two"):
                await handle.result(timeout=PATIENCE)
            assert (await handle.status()).state is State.FAILED
            is_tried_again = in_step and isinstance(failure, ExceptionGroup)
            assert len(executions) == (5 if is_tried_again else 1)
            executions.clear()


async def test_what_was_given_up_counts_its_attempts_and_is_tried_again_or_discarded(opening):
    broken = [True]

    async def fragile(run):
        if run.text == "gives up" and broken:
            raise GiveUp("no light")
        if run.text == "invalid":
            await run.step("", print)  # a step needs a name
        if run.text == "retried":
            raise OSError("away")
        return "light"

    async with opening(fragile) as mailbox:
        dead, runs = mailbox.dead_letters, {}
        for text, attempts in (("gives up", 5), ("invalid", 5), ("retried", 2)):
            runs[text] = await mailbox.enqueue(text, text, attempts=attempts)
            with pytest.raises(RunUnsuccessful):
                await runs[text].result(timeout=PATIENCE)
        found = {one.thread_id: (one.run_id, one.attempts) async for one in dead}
        counts = {"gives up": 1, "invalid": 1, "retried": 2}
        assert found == {text: (runs[text].id, count) for text, count in counts.items()}
        broken.clear()
        again = await dead.replay(runs["gives up"].id)
        assert await again.result(timeout=PATIENCE) == "light"
        with failing("no light"):  # its handle does not take the answer of its replay
            await runs["gives up"].result(timeout=PATIENCE)
        for text in ("invalid", "retried"):
            await dead.discard(runs[text].id)
        assert [one async for one in dead] == []
        refusals = [
            (one.id, errors.IllegalTransition, "not a dead letter") for one in (*runs.values(), again)
        ]
        for id, error, why in (*refusals, ("nobody", errors.UnknownRun, "there is no run")):
            for ask in (dead.replay, dead.discard):
                with pytest.raises(error, match=why) as caught:
                    await ask(id)
                assert repr(id) in str(caught.value)
                assert "postroom runs" not in str(caught.value.remedy)


async def test_a_traceback_shows_the_remedy():
    with pytest.raises(postroom.PostroomError) as caught:
        async with Mailbox.open("mysql://x", echo):
            pass
    assert caught.value.remedy
    assert f"Remedy: {caught.value.remedy}" in "".join(traceback.format_exception(caught.value))


# Keys: a key names one job.

CONTENTS = {
    "text": ("lamp", "desk"),
    "data": ({"item": "lamp", "prices": [1, 2.5, None]}, {"item": "lamp", "prices": [1, 2.5]}),
    "message": (Message.user("lamp"), Message.user("desk")),
    "message with an id": (Message.user("lamp", id="m1"), Message.user("desk", id="m2")),
}


@both_engines
async def test_the_same_content_under_a_key_is_the_same_run_and_another_is_refused_by_its_name(opening):
    async with opening(echo) as mailbox:
        for thread, (content, other) in CONTENTS.items():
            first = await mailbox.enqueue(thread, content, key="order-7")
            for _ in ("while it may be open", "when it is over"):
                assert (await mailbox.enqueue(thread, content, key="order-7")).id == first.id
                with pytest.raises(IdempotencyConflict, match="'order-7'") as refused:
                    await mailbox.enqueue(thread, other, key="order-7")
                assert refused.value.details == {"key": "order-7", "run_id": first.id}
                assert first.id in refused.value.message
                items = [Item(thread, "new", key="order-8"), Item(thread, other, key="order-7")]
                with pytest.raises(IdempotencyConflict, match="item 1: the key 'order-7'"):
                    await mailbox.enqueue_many(items)
                [again] = await mailbox.enqueue_many([Item(thread, content, key="order-7")])
                assert again.id == first.id
                await first.result(timeout=PATIENCE)
            assert len(await texts(mailbox, thread)) == 2  # nothing of the refused calls was stored
        elsewhere = await mailbox.enqueue("elsewhere", "lamp", key="order-7")
        assert elsewhere.id != first.id


async def test_two_items_with_a_key_and_two_contents_are_refused_before_anything_is_written(opening):
    async with opening(None) as mailbox:
        same, other = [Item("shop", {"item": item}, key="order-7") for item in ("lamp", "desk")]
        with pytest.raises(IdempotencyConflict, match="item 2: the key 'order-7'"):
            await mailbox.enqueue_many([Item("other", "work"), same, other])
        assert await texts(mailbox, "other") == []
        assert len({handle.id for handle in await mailbox.enqueue_many([same, same])}) == 1


@both_engines
async def test_of_two_contents_at_once_one_is_stored_and_the_other_is_refused(opening):
    async with opening(echo) as mailbox:
        calls = [mailbox.enqueue("shop", content, key="order-7") for content in ("lamp", "desk") * 4]
        done = await asyncio.gather(*calls, return_exceptions=True)
        stored = [one for one in done if not isinstance(one, IdempotencyConflict)]
        assert (len({handle.id for handle in stored}), len(stored)) == (1, 4)


@both_engines
async def test_the_same_key_twice_at_once_is_one_run_that_is_not_in_its_own_way(opening):
    async with opening(echo) as mailbox:
        for policy in (BusyPolicy.QUEUE, BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK, BusyPolicy.REJECT):
            calls = [mailbox.enqueue(policy, "hello", key="1", when_busy=policy) for _ in range(4)]
            [one, *others] = await asyncio.gather(*calls)
            assert {other.id for other in others} == {one.id}
            assert await one.result(timeout=PATIENCE) == "you said hello"


@pytest.mark.parametrize("policy", [BusyPolicy.COLLECT, BusyPolicy.STEER])
async def test_a_key_is_known_where_its_message_joined_a_run_and_names_one_content_there(opening, policy):
    work = Gate()
    async with opening(work) as mailbox:
        for text in ("busy", "queued"):
            await mailbox.enqueue("shop", text)
        joined = await mailbox.enqueue("shop", "lamp", key="order-7", when_busy=policy)
        for _ in ("while it waits", "when it is over"):
            again = await mailbox.enqueue("shop", "lamp", key="order-7", when_busy=policy)
            assert again.id == joined.id
            with pytest.raises(IdempotencyConflict, match="'order-7'"):
                await mailbox.enqueue("shop", "desk", key="order-7", when_busy=policy)
            work.going.set()
            await joined.result(timeout=PATIENCE)


# What a job does when its conversation is busy.


async def test_collect_joins_only_a_run_that_is_due_and_has_the_same_options(opening):
    work = Gate()
    async with opening(work) as mailbox:
        for options in (
            {"priority": 0},
            {"delay": HOUR},
            {"deadline": datetime(2100, 1, 1, tzinfo=UTC)},
            {"attempts": 7},
            {"interruptions": 7},
            {"retry_delay": timedelta(seconds=7)},
            {"max_retry_delay": timedelta(seconds=7)},
            {"tenant": "acme"},
            {"limit_key": "acme"},
            {"agent": "other"},
        ):
            [thread] = options
            await mailbox.enqueue(thread, "active")
            plain = await mailbox.enqueue(thread, "plain")
            other = await mailbox.enqueue(thread, "other", when_busy="collect", **options)
            again = await mailbox.enqueue(thread, "again", when_busy="collect", **options)
            hello = await mailbox.enqueue(thread, "hello", when_busy="collect")
            assert hello.id == plain.id != other.id, options
            assert (again.id == other.id) == (thread != "delay")
        work.going.set()
        assert await hello.result(timeout=PATIENCE) == "plain\nhello"


async def test_what_is_collected_behind_a_run_that_has_begun_or_is_delayed_has_a_run_of_its_own(manual):
    tries = []

    async def work(run):
        tries.append(run.text)
        if len(tries) == 1:
            raise ConnectionError("away")
        if run.text == "sleep":
            await run.sleep(HOUR)
        return f"did {run.text}"

    async with manual(work) as mailbox:
        for first, options in (("fails", {"retry_delay": HOUR}), ("sleep", {}), ("later", {"delay": HOUR})):
            handle = await mailbox.enqueue(first, first, **options)
            await mailbox.run_until_idle()
            second = await mailbox.enqueue(first, "two", when_busy=BusyPolicy.COLLECT)
            for _ in range(2):
                mailbox.clock.advance(2 * HOUR)
                await mailbox.run_until_idle()
            assert [await one.result() for one in (handle, second)] == [f"did {first}", "did two"]


async def test_a_run_that_is_delayed_or_waits_for_its_next_attempt_lets_the_next_run_go_first(manual):
    async def work(run):
        if run.text == "fails":
            raise ConnectionError("away")
        return run.text

    async with manual(work) as mailbox:
        for text, options in (("delayed", {"delay": HOUR}), ("fails", {"retry_delay": 1_000 * HOUR})):
            waiting = await mailbox.enqueue(text, text, max_retry_delay=1_000 * HOUR, **options)
            await mailbox.run_until_idle()
            following = await mailbox.enqueue(text, "next")
            await mailbox.run_until_idle()
            assert await following.result() == "next"
            assert (await waiting.status()).state is State.QUEUED


@pytest.mark.parametrize("policy", [BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK])
async def test_an_interrupting_job_ends_what_is_active_what_asks_and_what_is_delayed(opening, policy):
    begun = asyncio.Event()

    async def work(run):
        if run.text == "ask":
            await run.ask("May I?")
        if run.text == "stuck":
            begun.set()
            await asyncio.Event().wait()
        return f"{run.text} after {[message.text() for message in await run.history()]}"

    async with opening(work) as mailbox:
        busy = await mailbox.enqueue("busy", "stuck")
        delayed = await mailbox.enqueue("busy", "late", delay=HOUR)
        asks = await asking(await mailbox.enqueue("asks", "ask"))
        await asyncio.wait_for(begun.wait(), 30)
        for thread, before in (("busy", "stuck"), ("asks", "ask")):
            answer = await (await mailbox.enqueue(thread, "now", when_busy=policy)).result(timeout=PATIENCE)
            assert answer.startswith("now after")
            assert (f"'{before}'" in answer) == (policy is BusyPolicy.INTERRUPT)
        for handle in (busy, asks, delayed):
            with failing("cancelled"):
                await handle.result(timeout=PATIENCE)
        assert [one async for one in mailbox.questions] == []


async def test_a_job_that_rejects_a_busy_conversation_is_refused_and_stores_nothing(opening):
    async def work(run):
        return (await run.ask("May I?")).text if run.text == "asks" else await stuck(run)

    async with opening(work) as mailbox:
        for text, state in (("asks", State.WAITING), ("works", State.RUNNING)):
            first = await mailbox.enqueue(text, text)
            await in_state(first, state)
            with pytest.raises(SubmissionRejected):
                await mailbox.enqueue(text, "second", when_busy=BusyPolicy.REJECT)
            assert await texts(mailbox, text) == [text]
            await first.cancel()


class Listening(RunDispatchExecutor):
    """Answers with its input, and with the input that arrives during its work, once it is released."""

    def __init__(self):
        self.let_go = asyncio.Event()

    async def run(self, activation, sink):
        await sink.emit(TextDelta(delta="hm, "))
        await self.let_go.wait()
        steered = await activation.control.pending.freeze(Boundary.NEXT_STEP)
        said = [message.text() for message in (*activation.messages, *steered)]
        return AgentRunResult(run_id=activation.run_id, response=" and ".join(said))

    def wake_pending_boundary(self, id):
        return True


async def test_what_waits_for_a_run_at_work_can_be_changed_until_it_reads_it(opening):
    executor = Listening()
    async with opening(executor) as mailbox:
        handle = await mailbox.enqueue("chat", "one")
        assert (
            await anext(handle.events())
        ).text == "hm, "  # an executor's texts are followed as a function's are

        async def steer(text, **options):
            return await mailbox.enqueue("chat", text, when_busy=BusyPolicy.STEER, **options)

        assert {(await steer(text)).id for text in ("two", "three", "four")} == {handle.id}
        pending = mailbox.pending
        two, three, four = (one.message.id for one in await pending.list("chat"))
        await pending.retract("chat", two)
        await pending.edit("chat", four, "five")
        await pending.reorder("chat", [four, three])
        assert [one.message.text() for one in await pending.list("chat")] == ["five", "three"]
        keyed = [await steer("six", key="6") for _ in "12"]
        executor.let_go.set()
        assert await handle.result(timeout=PATIENCE) == "one and five and three and six"
        keyed.append(await steer("six", key="6"))
        assert {one.id for one in keyed} == {handle.id}
        with pytest.raises(errors.AlreadyConsumed):
            await pending.retract("chat", three)


async def test_newer_arrivals_never_overtake_older_work_that_waits_for_a_slot(opening):
    order = []

    async def note(run):
        order.append(run.thread_id)

    async with opening(note, MailboxConfig(max_concurrent_runs=1)) as mailbox:
        handles = [await mailbox.enqueue(f"t{number:02}", "hello", tenant="acme") for number in range(40)]
        for one in handles:
            await one.result(timeout=PATIENCE)
    assert order == sorted(order)


# Cancels.


async def test_a_cancelled_run_says_so_at_work_and_in_the_queue_and_an_ended_one_is_not_cancelled(opening):
    work = Gate()
    async with opening(work) as mailbox:
        handle, queued = [await mailbox.enqueue("t", text) for text in ("go", "next")]
        await work.begun.wait()
        for one in (queued, handle):
            assert await one.cancel()
            with failing("was cancelled"):
                await one.result(timeout=PATIENCE)
            assert (await one.status()).state is State.CANCELLED
        work.going.set()
        ended = await mailbox.enqueue("u", "done")
        assert await ended.result(timeout=PATIENCE) == "done"
        assert not await ended.cancel()
        assert (await ended.status()).state is State.DONE


WORKER = """
import asyncio, sys
from postroom import Mailbox, MailboxConfig

async def hang(run):
    print("at work", flush=True)
    await asyncio.Event().wait()

async def main():
    async with Mailbox.open(sys.argv[1], hang, config=MailboxConfig(lease_ms=3_600_000)) as mailbox:
        await mailbox.enqueue("chat-1", "hello", key="one")
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_work_of_the_only_process_that_was_killed_goes_on_before_its_lease_ends(tmp_path):
    url = f"sqlite:///{tmp_path}/runs.db"
    with subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE) as killed:
        assert await asyncio.to_thread(killed.stdout.readline) == b"at work\n"
        killed.kill()
    async with Mailbox.open(url, echo) as mailbox:
        handle = await mailbox.enqueue("chat-1", "hello", key="one")
        assert await handle.result(timeout=60) == "you said hello"
