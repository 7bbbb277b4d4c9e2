"""Messages that start runs themselves: handed in once, read in order, by one run at a time, never lost."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from dispatch_room import Blocking, Counting, Raising, dispatch_in, done, eventually
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    AlreadyConsumed,
    DeliveryBlocked,
    DuplicateRecord,
    QueueFull,
    Unauthorized,
)
from postroom.contracts.messages import Boundary, DeliveryMode, Granularity, Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind
from postroom.dispatch.config import MailboxConfig
from postroom.testing.run_faults import failing_changes

ALONE = DeliveryMode(granularity=Granularity.ONE, starts_run=True)


def together(group: str) -> DeliveryMode:
    return DeliveryMode(group=group, starts_run=True)


def said(*words: str) -> list[Message]:
    return [Message.user(word, id=word) for word in words]


def read(executor) -> list[list[str]]:
    return [[message.text() for message in one.messages] for one in executor.activations]


async def nothing_waits(room, *, runs: int, executor) -> bool | None:
    waits = await room.stores.threads.pending_messages("t")
    return (not waits and executor.run_count == runs) or None


async def test_an_idle_thread_begins_at_once_and_the_others_follow_one_by_one(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first = await mailbox.deliver("t", said("one"), ALONE)
    await executor.started.get()
    assert first is not None
    assert await mailbox.deliver("t", said("two"), ALONE) is None
    assert await mailbox.deliver("t", said("three"), ALONE) is None
    assert [entry.pending_id for entry in await mailbox.pending("t")] == ["two", "three"]
    executor.release.set()
    await eventually(lambda: nothing_waits(room, runs=3, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["one"], ["two"], ["three"]]
    texts = [message.text() for message in await room.stores.threads.load_messages("t")]
    assert texts == ["one", "ok", "two", "ok", "three", "ok"]


async def test_a_message_too_many_is_refused_and_those_that_wait_are_read(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_pending_per_thread=2))
    await mailbox.deliver("t", said("one"), ALONE)
    await executor.started.get()
    await mailbox.deliver("t", said("two", "three"), ALONE)
    with pytest.raises(QueueFull) as refused:
        await mailbox.deliver("t", said("four"), ALONE)
    assert (refused.value.message, refused.value.details) == (
        "2 messages wait on thread 't', the most that may",
        {"max_pending": 2},
    )
    await mailbox.deliver("t", said("two"), ALONE)  # known: the call may be repeated
    with pytest.raises(QueueFull):
        await mailbox.deliver("other", said("five", "six", "seven"), DeliveryMode())
    assert await mailbox.pending("other") == ()
    executor.release.set()
    await eventually(lambda: nothing_waits(room, runs=3, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["one"], ["two"], ["three"]]


async def test_a_run_reads_the_messages_of_its_group_from_far_behind(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", said("begin"), together("a"))
    await executor.started.get()
    names = [f"{group}{number}" for group in "ab" for number in range(90)]
    for name in names:
        await mailbox.deliver("t", said(name), together(name[0]))
    executor.release.set()
    await eventually(lambda: nothing_waits(room, runs=3, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["begin"], names[:90], names[90:]]


async def test_what_is_handed_in_on_an_idle_thread_has_begun_with_its_commit(room):
    """One change, and no look back at it: what the run reads is what was written. Its end is the second."""
    changes: Counter[str] = Counter()
    executor = Blocking()
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, counts=changes))
    started = await mailbox.deliver("t", said("one"), ALONE)
    await executor.started.get()
    assert changes == {"submit": 1}
    row = await room.stores.dispatches.load_dispatch(started.dispatch_id)
    run = await room.stores.threads.load_run(started.run_id)
    assert row.status is RunDispatchStatus.CLAIMED
    assert (run.status, run.session_id) == (RunStatus.RUNNING, row.dispatch_instance_id)
    assert run.dispatch_id == row.dispatch_id
    [activation] = executor.activations
    assert (activation.attempt, activation.trace.session_id) == (1, row.dispatch_instance_id)
    executor.release.set()
    await mailbox.settled()
    assert (await room.stores.threads.load_run(started.run_id)).status is RunStatus.DONE
    assert changes == {"submit": 1, "end": 1}


async def test_what_had_begun_when_its_process_died_is_begun_again_by_another(room):
    dead = room.mailbox(Counting(), consumer_id="dead")

    async def dies(claimed, begun=None):
        raise Unauthorized("the process died here")

    dead._dispatcher.begin_or_release = dies
    with pytest.raises(Unauthorized):
        await dead.deliver("t", said("one"), ALONE)
    [row] = await room.stores.dispatches.list_dispatches("t")
    assert (await room.stores.threads.load_run(row.run_id)).status is RunStatus.RUNNING
    room.clock.advance(timedelta(minutes=5))
    executor = Counting()
    heir = room.mailbox(executor, consumer_id="heir")
    await heir.recover()
    await eventually(lambda: nothing_waits(room, runs=1, executor=executor))
    await heir.settled()
    assert read(executor) == [["one"]]
    assert (await room.stores.threads.load_run(row.run_id)).status is RunStatus.DONE


async def test_those_of_a_group_are_read_together_and_other_groups_apart(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", said("start"), ALONE)
    await executor.started.get()
    for word, sender in (("a1", "ann"), ("a2", "ann"), ("b1", "bob"), ("a3", "ann")):
        await mailbox.deliver("t", said(word), together(sender))
    executor.release.set()
    await eventually(lambda: nothing_waits(room, runs=4, executor=executor))
    assert read(executor) == [["start"], ["a1", "a2"], ["b1"], ["a3"]]


async def test_what_is_handed_in_twice_is_read_once(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", said("one"), ALONE)
    await executor.started.get()
    assert await mailbox.deliver("t", said("one"), ALONE) is None
    await mailbox.deliver("t", said("two"), ALONE)
    await mailbox.deliver("t", said("two"), ALONE)
    executor.release.set()
    await eventually(lambda: nothing_waits(room, runs=2, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["one"], ["two"]]


async def test_a_hundred_at_once_are_all_read_and_never_two_runs_at_once(room):
    class Watching(Counting):
        at_once = peak = 0

        async def execute(self, activation, sink):
            Watching.at_once += 1
            Watching.peak = max(Watching.peak, Watching.at_once)
            await asyncio.sleep(0)
            Watching.at_once -= 1
            return done(activation)

    executor = Watching()
    here, there = room.mailbox(executor, consumer_id="here"), room.mailbox(executor, consumer_id="there")
    words = [f"w{number}" for number in range(50)]
    async with asyncio.TaskGroup() as group:
        for number, word in enumerate(words):
            group.create_task((here, there)[number % 2].deliver("t", said(word), ALONE))
    await eventually(lambda: nothing_waits(room, runs=50, executor=executor))
    assert sorted(word for [word] in read(executor)) == sorted(words)
    assert Watching.peak == 1


async def test_what_waits_can_be_changed_and_taken_back_until_it_is_read(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", said("one"), ALONE)
    await executor.started.get()
    for word in ("two", "three"):
        await mailbox.deliver("t", said(word), ALONE)
    await mailbox.edit_pending("t", Message.user("other", id="two"))
    await mailbox.retract_pending("t", "three")
    executor.release.set()
    await eventually(lambda: nothing_waits(room, runs=2, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["one"], ["other"]]


async def test_a_run_at_work_is_told_of_what_is_for_its_next_step(room):
    class Reading(Blocking):
        def __init__(self) -> None:
            super().__init__()
            self.steered: list[str] = []

        def wake_pending_boundary(self, id):
            self.release.set()
            return True

        async def execute(self, activation, sink):
            self.started.put_nowait(activation)
            await self.release.wait()
            frozen = await activation.control.pending.freeze(Boundary.NEXT_STEP)
            self.steered += [message.text() for message in frozen]
            return done(activation)

    executor = Reading()
    mailbox = room.mailbox(executor)
    first = await mailbox.deliver("t", said("start"), ALONE)
    await executor.started.get()
    mode = DeliveryMode(boundary=Boundary.NEXT_STEP, starts_run=True)
    assert await mailbox.deliver("t", said("left"), mode) is None
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    await mailbox.settled()
    assert executor.steered == ["left"]
    assert executor.run_count == 1


async def test_what_waits_when_its_process_dies_is_begun_by_another(room):
    await room.stores.threads.append_pending("t", said("one"), ALONE)
    await room.stores.threads.append_pending("t", said("two"), ALONE)
    executor = Counting()
    heir = room.mailbox(executor, consumer_id="heir")
    await heir.recover()
    await eventually(lambda: nothing_waits(room, runs=2, executor=executor))
    assert read(executor) == [["one"], ["two"]]


async def test_a_run_that_fails_for_good_does_not_keep_the_next_from_its_turn(room):
    executor = Raising(Unauthorized("no"), Unauthorized("no"))
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", said("one"), ALONE)
    await mailbox.deliver("t", said("two"), ALONE)
    await eventually(lambda: nothing_waits(room, runs=2, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["one"], ["two"]]


async def test_a_submission_behind_one_that_is_read_alone_is_refused_and_names_it(room):
    await room.stores.threads.append_pending("t", said("alone"), ALONE)
    mailbox = room.mailbox(Counting())
    with pytest.raises(DeliveryBlocked, match="'alone'"):
        await mailbox.submit_background(RunActivation.new("t", ["behind it"]))
    assert [entry.pending_id for entry in await mailbox.pending("t")] == ["alone"]


async def test_nothing_begins_when_nothing_waits(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", said("one"), ALONE)
    await eventually(lambda: nothing_waits(room, runs=1, executor=executor))
    await mailbox.settled()
    await mailbox.recover()
    await mailbox.run_sweep()
    assert executor.run_count == 1
    assert len(await mailbox.list_dispatches("t")) == 1


async def test_a_request_that_brings_nothing_and_finds_nothing_is_refused(room):
    mailbox = room.mailbox(Counting())
    bare = RunActivation(thread_id="t")
    try:
        await mailbox.prepare_run_for_dispatch(bare)
    except AlreadyConsumed:
        assert await room.stores.threads.latest_run("t") is None
    else:
        raise AssertionError("a run was made of nothing")


class Telling:
    """Stores one effect for each end of a run."""

    def __init__(self) -> None:
        self.asked: list[RunRecord] = []
        self.known: list[RunRecord] = []

    def begin(self, tx, run, messages) -> bool:
        return False

    def write(self, tx, run: RunRecord, accept) -> None:
        self.written = [*getattr(self, "written", []), run.run_id]

    def put_back(self, tx, row) -> None:
        raise AssertionError("nothing fails here")

    def withdraw(self, tx, run: RunRecord) -> None:
        raise AssertionError("nothing asks here")

    def of(self, tx, run: RunRecord) -> list[OutboxDraft]:
        self.asked.append(run)
        payload = {"run": run.run_id, "status": run.status, "said": run.final_output}
        return [OutboxDraft(kind="chat", target="t", payload=payload, dedupe_key=f"end/{run.dispatch_id}")]

    def stored(self, run: RunRecord) -> None:
        self.known.append(run)


async def effects(room) -> list[dict]:
    found = await room.stores.outbox.claim("chat", "t", lease_ms=1_000, limit=10)
    return [one.payload for one in found]


async def test_the_effects_of_an_end_are_stored_with_it(room):
    mailbox = room.mailbox(Counting(), effects=Telling())
    first = await mailbox.deliver("t", said("one"), ALONE)
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert await effects(room) == [{"run": first.run_id, "status": "done", "said": "ok"}]


async def test_ends_that_no_execution_wrote_have_their_effects_too(room):
    telling = Telling()
    mailbox = room.mailbox(Raising(Unauthorized("no")), effects=telling)
    given_up = await mailbox.deliver("t", said("one"), ALONE)
    await dispatch_in(room.stores, given_up.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    await mailbox.settled()
    mailbox.workers.get_or_create("u")
    far = RunActivation.new("u", ["later"]).delivered(delay_ms=60_000)
    cancelled = await mailbox.submit_background(far)
    assert await mailbox.cancel(cancelled.dispatch_id)
    ends = {run.run_id: run.termination.type for run in telling.asked}
    assert ends == {
        given_up.run_id: TerminationKind.ERROR,
        cancelled.run_id: TerminationKind.CANCELLED,
    }
    assert [one["status"] for one in await effects(room)] == [RunStatus.DONE, RunStatus.DONE]
    assert [run.run_id for run in telling.known] == list(dict.fromkeys(run.run_id for run in telling.asked))


async def test_a_message_that_waits_on_an_idle_thread_is_read_once_when_it_is_delivered_again(room):
    """It waits without a run where a process was killed between its delivery and the look that follows."""
    executor = Counting()
    mailbox = room.mailbox(executor)
    await room.stores.threads.append_pending("t", said("one"), ALONE)
    with pytest.raises(DuplicateRecord):
        await mailbox.submit_background(RunActivation.new("t", said("one")))
    for _ in range(2):
        await mailbox.deliver("t", said("one"), ALONE)
    await mailbox.deliver("t", said("two"), ALONE)
    await eventually(lambda: nothing_waits(room, runs=2, executor=executor))
    await mailbox.settled()
    assert read(executor) == [["one"], ["two"]]
