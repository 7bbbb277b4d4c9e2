"""Many submissions at once: nothing is lost, and one run of a thread executes at a time."""

import asyncio

import pytest

from dispatch_reading import ms, rows_of, run_of, texts_of
from dispatch_room import Counting, Deaf, done, enqueue_prepared_dispatch, eventually
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import ActiveRunConflict
from postroom.contracts.messages import Message
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.limits import WorkerStatus
from postroom.dispatch.submission import MailboxDispatchStatus
from postroom.dispatch.worker import DispatchAttempt

CONCURRENCY = 32
DONE_CANCELLED = (RunStatus.DONE, TerminationReason.cancelled())


class OneAtATime(Deaf):
    """Holds every run until it is released, and knows how many of a thread were at work at once."""

    def __init__(self, at_work: dict[str, int] | None = None) -> None:
        super().__init__()
        self.started: asyncio.Queue[RunActivation] = asyncio.Queue()
        self.release = asyncio.Event()
        self.at_work = {} if at_work is None else at_work
        self.most = 0

    async def execute(self, activation, sink):
        thread_id = activation.thread_id
        self.at_work[thread_id] = self.at_work.get(thread_id, 0) + 1
        self.most = max(self.most, self.at_work[thread_id])
        self.started.put_nowait(activation)
        try:
            await self.release.wait()
            return done(activation)
        finally:
            self.at_work[thread_id] -= 1


def request(thread_id: str, text: str) -> RunActivation:
    return RunActivation.new(thread_id, [Message.user(text, id=f"{thread_id}/{text}")], agent_id="agent")


async def prepared_by(mailboxes, thread_id: str) -> dict[str, str]:
    """Prepare many runs at once, by the mailboxes in turn; return the message of each run."""

    async def prepare(number: int) -> None:
        mailbox = mailboxes[number % len(mailboxes)]
        prepared = await mailbox.prepare_run_for_dispatch(request(thread_id, f"msg-{number}"))
        messages[prepared.run_id] = f"{thread_id}/msg-{number}"

    messages: dict[str, str] = {}
    async with asyncio.TaskGroup() as group:
        for number in range(CONCURRENCY):
            group.create_task(prepare(number))
    return messages


async def assert_nothing_lost(room, thread_id: str, messages: dict[str, str]) -> None:
    """Assert that each run's message stands once in the thread, numbered without a gap."""
    assert len(messages) == CONCURRENCY, "each submission has a run of its own"
    records = await room.stores.threads.list_message_records(thread_id, MessageQuery(limit=MAX_PAGE))
    assert [record.seq for record in records] == list(range(1, CONCURRENCY + 1))
    assert sorted(record.message_id for record in records) == sorted(messages.values())
    seqs = {record.message_id: record.seq for record in records}
    for run_id, message_id in messages.items():
        run = await run_of(room.stores, run_id)
        assert run.status is RunStatus.CREATED
        assert run.activation.trigger_message_ids == run.input.trigger_message_ids == (message_id,)
        assert (run.input.range.from_seq, run.input.range.to_seq) == (1, seqs[message_id])
    thread = await room.stores.threads.load_thread(thread_id)
    assert thread.message_count == CONCURRENCY


async def test_concurrent_same_thread_submits_do_not_lose_messages(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    messages = await prepared_by([mailbox], "thread-race")
    await assert_nothing_lost(room, "thread-race", messages)
    assert executor.run_count == 0


@pytest.mark.parametrize("instances", [2, 4])
async def test_cross_instance_concurrent_submits_do_not_lose_messages(room, instances):
    mailboxes = [room.mailbox(Counting(), consumer_id=f"consumer-{number}") for number in range(instances)]
    messages = await prepared_by(mailboxes, "thread-cross-instance")
    await assert_nothing_lost(room, "thread-cross-instance", messages)


async def test_concurrent_submit_background_same_thread_only_one_runs(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(mailbox.submit_background(request("thread-conc", f"msg-{number}")))
            for number in range(5)
        ]
    results = {task.result().dispatch_id: task.result() for task in tasks}
    assert len(results) == 5
    (running,) = (one for one in results.values() if one.status is MailboxDispatchStatus.RUNNING)
    assert (await executor.started.get()).trace.dispatch_id == running.dispatch_id

    rows = await rows_of(room.stores, "thread-conc")
    assert rows.keys() == results.keys()
    for dispatch_id, row in rows.items():
        is_first = dispatch_id == running.dispatch_id
        assert row.status is (RunDispatchStatus.CLAIMED if is_first else RunDispatchStatus.QUEUED)
        assert row.run_id == results[dispatch_id].run_id

    executor.release.set()
    await mailbox.settled()
    rows = await rows_of(room.stores, "thread-conc")
    assert {row.status for row in rows.values()} == {RunDispatchStatus.ACKED}
    asked = [activation.trace.dispatch_id for activation in executor.activations]
    assert (sorted(asked), executor.most) == (sorted(results), 1)
    said = [message.text() for activation in executor.activations for message in activation.messages]
    assert sorted(said) == [f"msg-{number}" for number in range(5)]


async def test_background_submissions_to_two_mailboxes_never_run_a_thread_twice_at_once(room):
    at_work: dict[str, int] = {}
    executors = [OneAtATime(at_work) for _ in range(2)]
    mailboxes = [
        room.mailbox(executor, consumer_id=f"consumer-{number}") for number, executor in enumerate(executors)
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(mailboxes[number % 2].submit_background(request("t", f"msg-{number}")))
            for number in range(10)
        ]
    dispatches = sorted(task.result().dispatch_id for task in tasks)
    claimed = [
        row for row in (await rows_of(room.stores, "t")).values() if row.status is RunDispatchStatus.CLAIMED
    ]
    assert len(claimed) == 1
    for executor in executors:
        executor.release.set()
    for mailbox in (*mailboxes, *mailboxes):
        await mailbox.settled()
        await mailbox.try_dispatch_next("t")
        await mailbox.settled()
    rows = await rows_of(room.stores, "t")
    assert {row.status for row in rows.values()} == {RunDispatchStatus.ACKED}
    asked = [activation.trace.dispatch_id for one in executors for activation in one.activations]
    assert sorted(asked) == dispatches == sorted(rows)
    assert max(executor.most for executor in executors) == 1


async def test_concurrent_submit_same_thread_only_one_claims(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor, config=MailboxConfig(cancel_wait_ms=60_000))
    accepted, refused = {}, []

    async def submit(number: int) -> None:
        try:
            result, stream = await mailbox.submit(request("thread-stream-conc", f"msg-{number}"))
            accepted[result.dispatch_id] = (result, stream, f"msg-{number}")
        except ActiveRunConflict:
            refused.append(f"msg-{number}")

    async def tick() -> None:
        """Let time pass for those who wait for another run to give way, no faster than the store works."""
        while len(accepted) + len(refused) < 3:
            await room.stores.dispatches.cancel("nothing has this id")
            room.clock.advance(ms(5))

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(tick())
        for number in range(3):
            group.create_task(submit(number))
    assert accepted

    rows = await rows_of(room.stores, "thread-stream-conc")
    assert rows.keys() == accepted.keys(), "what was refused has written nothing"
    texts = await texts_of(room.stores, "thread-stream-conc")
    assert sorted(texts) == sorted(text for _, _, text in accepted.values())
    (claimed,) = (row for row in rows.values() if row.status is RunDispatchStatus.CLAIMED)
    newest = list(accepted)[-1]
    assert claimed.dispatch_id == newest
    for dispatch_id, (result, stream, _) in accepted.items():
        assert result.status is MailboxDispatchStatus.RUNNING
        if dispatch_id != newest:
            assert rows[dispatch_id].status is RunDispatchStatus.ACKED
            run = await run_of(room.stores, result.run_id)
            assert (run.status, run.termination) == DONE_CANCELLED
            assert [event.is_terminal for event in [one async for one in stream]][-1:] == [True]
    assert executor.most == 1

    executor.release.set()
    await mailbox.settled()
    assert (await rows_of(room.stores, "thread-stream-conc"))[newest].status is RunDispatchStatus.ACKED
    assert (await run_of(room.stores, accepted[newest][0].run_id)).termination == (
        TerminationReason.natural_end()
    )


async def test_worker_status_not_corrupted_after_empty_claim(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    worker = mailbox.get_or_create_worker("thread-guard")
    assert await mailbox.try_dispatch_next("thread-guard") is DispatchAttempt.NO_ELIGIBLE
    assert worker.status is WorkerStatus.IDLE, "an empty claim leaves the worker as it was"

    submitted = await mailbox.submit_background(request("thread-guard", "a"))
    assert submitted.status is MailboxDispatchStatus.RUNNING
    for _ in range(3):
        assert mailbox.get_or_create_worker("thread-guard") is worker
        assert worker.status is WorkerStatus.RUNNING
        assert (worker.dispatch_id, worker.run_id) == (submitted.dispatch_id, submitted.run_id)
        assert await mailbox.try_dispatch_next("thread-guard") is DispatchAttempt.BUSY

    await executor.started.get()
    executor.release.set()
    await mailbox.settled()
    assert (worker.status, worker.dispatch_id, worker.run_id) == (WorkerStatus.IDLE, None, None)
    assert await mailbox.try_dispatch_next("thread-guard") is DispatchAttempt.NO_ELIGIBLE
    assert (await mailbox.submit_background(request("thread-guard", "b"))).status is (
        MailboxDispatchStatus.RUNNING
    )
    await mailbox.settled()
    assert executor.run_count == 2


async def test_a_submission_that_starts_an_older_dispatch_is_told_that_its_own_waits(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    older = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-older", "older")
    room.clock.advance(ms(1))
    newer = await mailbox.submit_background(request("thread-older", "newer"))
    assert (await executor.started.get()).trace.dispatch_id == older.dispatch_id
    assert newer.status is MailboxDispatchStatus.QUEUED
    executor.release.set()
    await mailbox.settled()
    asked = [activation.trace.dispatch_id for activation in executor.activations]
    assert asked == [older.dispatch_id, newer.dispatch_id]


async def test_tries_at_the_same_time_claim_one_dispatch_once(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    prepared = await mailbox.prepare_run_for_dispatch(request("thread-tries", "a"))
    await room.stores.dispatches.enqueue(mailbox.build_dispatch(prepared.activation))
    mailbox.get_or_create_worker("thread-tries")
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(mailbox.try_dispatch_next("thread-tries")) for _ in range(8)]
    assert sorted(one.result() for one in tries) == [DispatchAttempt.BUSY] * 7 + [DispatchAttempt.CLAIMED]

    async def started() -> bool:
        return executor.run_count > 0

    await eventually(started)
    executor.release.set()
    await mailbox.settled()
    assert (executor.run_count, executor.most) == (1, 1)
