"""Messages for a busy thread: they steer the active run, here or elsewhere, or wait, and are read once."""

import asyncio
from collections import Counter

import pytest

from dispatch.conftest import both_engines
from dispatch_room import (
    CLAIMED,
    QUEUED,
    Blocking,
    Counting,
    Noop,
    Raising,
    WakeRecording,
    ask,
    done,
    drop,
    enqueue_prepared_dispatch,
    eventually,
    listening,
    make_resume,
    make_run,
    put_to_work,
    said,
    sample_dispatch,
    until,
    waiting_run,
)
from dispatch_runtime import calls, runtime_of
from postroom.contracts import errors
from postroom.contracts.activation import RunActivation
from postroom.contracts.inference import InferenceResult
from postroom.contracts.live import LiveCommandKind
from postroom.contracts.messages import Boundary, DeliveryMode, Granularity, Message, Role, Visibility
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, TerminationKind
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.control import live_target
from postroom.dispatch.sinks import ReconnectableEventSink
from postroom.dispatch.submission import MailboxDispatchStatus
from postroom.ports import RunEffects
from postroom.runtime import ScriptedModel, function_tool
from postroom.testing.run_faults import failing_changes

ON, OFF = MailboxConfig(pending_zone=True), MailboxConfig(pending_zone=False)
both_ways = pytest.mark.parametrize("config", [OFF, ON], ids=["direct", "pending zone"])
RUNNING = MailboxDispatchStatus.RUNNING


async def waiting_texts(room):
    return [entry.message.text() for entry in await room.stores.threads.pending_messages("t")]


async def only_dispatch(room):
    [row] = (await room.rows()).values()
    return row


async def running_elsewhere(room, run_id="r"):
    """Return a run that executes in another process."""
    run = make_run(run_id, "t", RunStatus.RUNNING, steps=2)
    await room.place(run)
    return run


def works_here(mailbox, run_id, dispatch_id):
    """Make the thread's worker report that it executes this."""
    put_to_work(mailbox, sample_dispatch("t", run_id, dispatch_id, now=0), ReconnectableEventSink())


# A run of this process.


@both_ways
async def test_live_then_queue_steers_active_run_without_new_dispatch(room, config):
    started, release = asyncio.Event(), asyncio.Event()

    @function_tool()
    async def block() -> dict[str, bool]:
        """Wait until released."""
        started.set()
        await release.wait()
        return {"released": True}

    model = ScriptedModel([calls("block", "block-1", text="start tool"), InferenceResult.text("saw it")])
    async with runtime_of(room, model, block) as runtime:
        mailbox = room.mailbox(runtime, config=config)
        first = await mailbox.submit_background(ask("t", "start", agent_id="agent"))
        async with asyncio.timeout(60):
            await started.wait()
        steered = await mailbox.submit_live_then_queue(ask("t", "live steer", agent_id="agent"))
        assert steered.status is RUNNING
        assert (steered.run_id, steered.dispatch_id) == (first.run_id, first.dispatch_id)
        release.set()
        await mailbox.settled()
    run = await room.stores.threads.latest_run("t")
    assert (run.run_id, run.status) == (first.run_id, RunStatus.DONE)
    assert len(model.requests) == 2
    seen = [message for message in model.requests[1].messages if message.text() == "live steer"]
    assert [(one.role, one.visibility) for one in seen] == [(Role.USER, Visibility.ALL)]
    assert (await room.texts()).count("live steer") == 1
    assert await waiting_texts(room) == []
    assert (await only_dispatch(room)).dispatch_id == first.dispatch_id


@both_ways
async def test_live_then_queue_falls_back_to_durable_dispatch_when_receiver_unavailable(room, config):
    mailbox = room.mailbox(Noop(), config=config)
    active = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "active")
    dispatches = room.stores.dispatches
    assert await dispatches.claim_dispatch(active.dispatch_id, "test-consumer", lease_ms=30_000)
    works_here(mailbox, active.run_id, active.dispatch_id)
    result = await mailbox.submit_live_then_queue(ask("t", "fallback"))
    assert result.status is MailboxDispatchStatus.QUEUED
    assert result.run_id != active.run_id
    assert (await room.texts(), await waiting_texts(room)) == (["active", "fallback"], [])
    statuses = {row.dispatch_id: row.status for row in (await room.rows()).values()}
    assert statuses == {active.dispatch_id: CLAIMED, result.dispatch_id: QUEUED}


async def test_live_then_queue_wakes_local_active_pending_run(room):
    executor = WakeRecording()
    mailbox = room.mailbox(executor, config=ON)
    works_here(mailbox, "r", "d")
    result = await mailbox.submit_live_then_queue(ask("t", "pending-live"), "r")
    assert (result.status, result.run_id, result.dispatch_id) == (RUNNING, "r", "d")
    assert executor.wakes == ["r"]
    (entry,) = await room.stores.threads.pending_messages("t")
    assert entry.message.text() == "pending-live"
    assert (entry.mode.boundary, entry.mode.target_run_id) == (Boundary.NEXT_STEP, "r")
    assert await room.rows() == {}


# A run of another process.


async def test_live_then_queue_publishes_for_remote_active_run(room):
    run, mailbox = await running_elsewhere(room), room.mailbox(Noop(), config=OFF)
    async with listening(room.live, live_target(run)) as heard:
        result = await mailbox.submit_live_then_queue(ask("t", "steer-remote"))
        (command,) = heard
    assert (result.status, result.run_id) == (RUNNING, "r")
    assert command.kind is LiveCommandKind.MESSAGES
    assert [message.text() for message in command.messages] == ["steer-remote"]
    assert await room.rows() == {}


async def test_live_then_queue_wakes_remote_active_pending_run(room):
    run, mailbox = await running_elsewhere(room), room.mailbox(Noop(), config=ON)
    async with listening(room.live, live_target(run)) as heard:
        result = await mailbox.submit_live_then_queue(ask("t", "remote-pending"), "r")
        assert [command.kind for command in heard] == [LiveCommandKind.PENDING_BOUNDARY_WAKE]
    assert (result.status, result.run_id) == (RUNNING, "r")
    assert (await waiting_texts(room), await room.rows()) == (["remote-pending"], {})


@both_ways
async def test_live_then_queue_falls_back_when_subscriber_drops_receipt(room, config):
    run, executor = await running_elsewhere(room), Counting()
    mailbox = room.mailbox(executor, config=config)
    async with listening(room.live, live_target(run), drop) as heard:
        result = await mailbox.submit_live_then_queue(ask("t", "hello?"))
        assert len(heard) == 1
    assert result.dispatch_id == (await only_dispatch(room)).dispatch_id
    await mailbox.settled()
    assert [one.run_id for one in executor.activations] == [result.run_id]
    assert ((await room.texts()).count("hello?"), await waiting_texts(room)) == (1, [])


async def test_live_then_queue_is_at_least_once_when_ack_lost(room):
    run, mailbox = await running_elsewhere(room), room.mailbox(Counting(), config=OFF)
    async with listening(room.live, live_target(run), drop) as heard:
        result = await mailbox.submit_live_then_queue(ask("t", "steer-payload"))
        [taken] = [message for command in heard for message in command.messages]
    assert taken.text() == "steer-payload"
    assert result.run_id != run.run_id
    assert result.dispatch_id == (await only_dispatch(room)).dispatch_id
    (queued,) = await room.stores.threads.load_message_records("t", [taken.id])
    assert queued.message == taken  # the same id both times: a receiver can tell


async def test_live_then_queue_rejects_remote_mismatched_expected_run_id(room):
    run, mailbox = await running_elsewhere(room), room.mailbox(Counting(), config=OFF)
    async with listening(room.live, live_target(run)) as heard:
        result = await mailbox.submit_live_then_queue(ask("t", "wrong-run"), "run-stale")
        assert heard == []
    assert result.run_id not in ("r", "run-stale")
    assert (await only_dispatch(room)).run_id == result.run_id


async def test_live_then_queue_falls_back_to_queue_when_no_remote_subscriber(room):
    run, mailbox = await running_elsewhere(room), room.mailbox(Counting(), config=OFF)
    result = await mailbox.submit_live_then_queue(ask("t", "hello?"))
    row = await only_dispatch(room)
    assert (row.dispatch_id, row.run_id) == (result.dispatch_id, result.run_id)
    assert row.run_id != run.run_id
    assert (await room.texts()).count("hello?") == 1


async def test_send_decision_live_delivers_to_remote_waiting_run(room):
    run, mailbox = waiting_run("r", "t"), room.mailbox(Noop())
    await room.place(run)
    async with listening(room.live, live_target(run)) as heard:
        assert await mailbox.send_decision_live("t", "tool-1", make_resume()) is True
        (command,) = heard
    assert command.kind is LiveCommandKind.DECISION
    assert command.decisions == (("tool-1", make_resume()),)
    assert await mailbox.send_decision_live("t", "tool-1", make_resume()) is False


# Input that waits durably: read by the run at work when it looks, or else by the next one.

ALONE = DeliveryMode(granularity=Granularity.ONE, starts_run=True)
NEXT_STEP = DeliveryMode(boundary=Boundary.NEXT_STEP, starts_run=True)


def of(*words):
    """Return messages, each with its text as its id."""
    return [Message.user(word, id=word) for word in words]


async def all_read(room, mailbox, executor, *expected):
    """Return when nothing waits, and assert what each run was asked."""

    async def nothing_waits():
        waits = await room.stores.threads.pending_messages("t")
        return (not waits and executor.run_count == len(expected)) or None

    await eventually(nothing_waits)
    await mailbox.settled()
    assert said(executor) == list(expected)


class Reading(Blocking):
    """Looks for input at this many steps, when it is released or notified of input."""

    def __init__(self, looks=1):
        super().__init__()
        self.looks, self.read = looks, []

    def wake_pending_boundary(self, id):
        return True

    async def execute(self, activation, sink):
        self.started.put_nowait(activation)
        await self.release.wait()
        for _ in range(self.looks if self.run_count == 1 else 0):
            frozen = await activation.control.pending.freeze(Boundary.NEXT_STEP)
            self.read.append([message.text() for message in frozen])
        return done(activation)


async def test_steered_input_is_read_at_the_next_step_and_committed_once(room):
    executor = Reading()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(ask("t", "start"))
    await executor.started.get()
    for word in ("left", "right"):
        steered = await mailbox.submit_live_then_queue(ask("t", word))
        assert (steered.run_id, steered.dispatch_id) == (first.run_id, first.dispatch_id)
    assert await mailbox.deliver("t", of("up"), NEXT_STEP) is None
    assert await waiting_texts(room) == ["left", "right", "up"]
    executor.release.set()
    await room.acked(first)
    assert executor.read == [["left", "right", "up"]]
    assert await room.texts() == ["start", "left", "right", "up", "ok"]
    assert (await mailbox.pending("t"), len(await room.rows())) == ((), 1)
    asked = (await room.run(first)).input
    assert (len(asked.trigger_message_ids), asked.range.from_seq, asked.range.to_seq) == (4, 1, 4)


async def test_input_that_the_run_ended_without_reading_goes_to_a_new_run(room):
    executor = Reading(looks=0)
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(ask("t", "start"))
    await executor.started.get()
    await mailbox.submit_live_then_queue(ask("t", "nobody read me"))
    executor.release.set()
    await room.acked(first)
    await all_read(room, mailbox, executor, ["start"], ["nobody read me"])
    assert executor.activations[1].run_id != first.run_id


async def test_one_that_wants_to_be_alone_is_read_alone(room):
    executor = Reading(looks=3)
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(ask("t", "start"))
    await executor.started.get()
    alone = DeliveryMode(boundary=Boundary.NEXT_STEP, granularity=Granularity.ONE, target_run_id=first.run_id)
    await mailbox.append_pending("t", of("a"), alone)
    await mailbox.append_pending("t", of("b", "c"), replace(alone, granularity=Granularity.BATCH))
    executor.release.set()
    await room.acked(first)
    assert executor.read == [["a"], ["b", "c"], []]


async def test_what_waits_is_edited_at_a_known_revision_and_taken_back_once(room):
    """That a run reads the edited, reordered rest, and nothing is changed then: `tests/embedded/test_mailbox.py`."""
    mailbox = room.mailbox(Counting())
    await mailbox.append_pending("t", of("one", "two"))
    for expected in (1, 2):
        edited = await mailbox.edit_pending("t", Message.user("TWO", id="two"), expected_revision=expected)
        assert edited.revision == expected + 1
        with pytest.raises(errors.VersionConflict):
            await mailbox.edit_pending("t", Message.user("zwei", id="two"), expected_revision=expected)
    await mailbox.retract_pending("t", "one")
    with pytest.raises(errors.UnknownMessage):
        await mailbox.retract_pending("t", "one")
    assert await waiting_texts(room) == ["TWO"]
    await room.acked(await mailbox.submit_background(ask("t", "now")))
    with pytest.raises(errors.AlreadyConsumed):
        await mailbox.edit_pending("t", Message.user("too late", id="two"))


async def test_what_stands_before_it_keeps_a_submission_back_and_is_named(room):
    mailbox = room.mailbox(Counting())
    mode = DeliveryMode(boundary=Boundary.RESUME_INPUT, barrier=True)
    await mailbox.append_pending("t", of("barrier"), mode)
    await room.waits("u", ALONE, "alone")
    for submit, thread, name in (
        (mailbox.submit, "t", "barrier"),
        (mailbox.submit_background, "t", "barrier"),
        (mailbox.submit_background, "u", "alone"),
    ):
        with pytest.raises(errors.DeliveryBlocked, match=f"'{name}'") as refused:
            await submit(ask(thread, "behind it"))
        assert refused.value.value == name
        assert await room.rows(thread) == {}
        assert [entry.pending_id for entry in await mailbox.pending(thread)] == [name]


async def test_a_foreground_submission_reads_its_own_message_and_passes_over_those_for_a_new_run(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    await mailbox.append_pending("t", of("for later"))
    _, events = await mailbox.submit(ask("t", "now"))
    assert [event.event_type async for event in events] == ["run_finish"]
    assert (said(executor), await waiting_texts(room)) == ([["now"]], ["for later"])


async def test_recovery_takes_up_input_whose_run_ended_and_an_agent_that_is_gone_keeps_no_other_waiting(room):
    class Knowing(Counting):
        async def resolve(self, activation, *, pinned):
            if activation.thread_id == "gone":
                raise errors.AgentNotFound("nobody runs it", value="gone")
            return await super().resolve(activation, pinned=pinned)

    mode = DeliveryMode(boundary=Boundary.NEXT_STEP, target_run_id="ended")
    for thread_id in ("gone", "here"):
        await room.waits(thread_id, mode, thread_id)
    mailbox = room.mailbox(Knowing())
    assert await mailbox.recover() == 1
    await mailbox.settled()
    assert [one.message.id for one in await mailbox.pending("gone")] == ["gone"]
    assert await room.texts("here") == ["here", "ok"]


# Messages that start runs themselves: handed in once, read in order, by one run at a time, never lost.


async def test_an_idle_thread_begins_at_once_and_the_others_follow_one_by_one_each_once(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    assert await mailbox.deliver("t", of("one"), ALONE) is not None
    await executor.started.get()
    for word in ("one", "two", "three", "two"):
        assert await mailbox.deliver("t", of(word), ALONE) is None
    assert await waiting_texts(room) == ["two", "three"]
    executor.release.set()
    await all_read(room, mailbox, executor, ["one"], ["two"], ["three"])
    assert await room.texts() == ["one", "ok", "two", "ok", "three", "ok"]
    await mailbox.recover()
    await mailbox.run_sweep()
    assert (executor.run_count, len(await room.rows())) == (3, 3)


async def test_a_message_too_many_is_refused_and_those_that_wait_are_read(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_pending_per_thread=2))
    await mailbox.deliver("t", of("one"), ALONE)
    await executor.started.get()
    await mailbox.deliver("t", of("two", "three"), ALONE)
    with pytest.raises(errors.QueueFull) as refused:
        await mailbox.deliver("t", of("four"), ALONE)
    assert refused.value.message == "thread 't' already has 2 waiting messages, the maximum"
    assert refused.value.details == {"max_pending": 2}
    await mailbox.deliver("t", of("two"), ALONE)  # known: the call may be repeated
    with pytest.raises(errors.QueueFull):
        await mailbox.deliver("other", of("five", "six", "seven"), DeliveryMode())
    assert await mailbox.pending("other") == ()
    executor.release.set()
    await all_read(room, mailbox, executor, ["one"], ["two"], ["three"])


async def test_a_run_reads_the_messages_of_its_group_from_far_behind_and_no_others(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", of("begin"), DeliveryMode(group="a", starts_run=True))
    await executor.started.get()
    groups = [[f"{group}{number}" for number in range(90)] for group in "ab"] + [["a90"]]
    for name in [name for names in groups for name in names]:
        await mailbox.deliver("t", of(name), DeliveryMode(group=name[0], starts_run=True))
    executor.release.set()
    await all_read(room, mailbox, executor, ["begin"], *groups)


async def test_what_is_handed_in_on_an_idle_thread_has_begun_with_its_commit(room):
    """One change, without another read: the run reads what the change wrote. Its end is the second. Its end is the second."""
    changes, executor = Counter(), Blocking()
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, counts=changes))
    started = await mailbox.deliver("t", of("one"), ALONE)
    await executor.started.get()
    assert changes == {"submit": 1}
    row, run = await room.row(started), await room.run(started)
    assert (row.status, run.status, run.dispatch_id) == (CLAIMED, RunStatus.RUNNING, row.dispatch_id)
    [activation] = executor.activations
    assert run.session_id == activation.trace.session_id == row.dispatch_instance_id
    assert activation.attempt == 1
    executor.release.set()
    await mailbox.settled()
    assert (await room.run(started)).status is RunStatus.DONE
    assert changes == {"submit": 1, "end": 1}


@both_engines
async def test_a_hundred_at_once_are_all_read_and_never_two_runs_at_once(room):
    class Watching(Counting):
        at_once = peak = 0

        async def execute(self, activation, sink):
            self.at_once += 1
            self.peak = max(self.peak, self.at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
            return done(activation)

    executor, words = Watching(), [f"w{number}" for number in range(50)]
    mailboxes = [room.mailbox(executor, consumer_id=name) for name in ("here", "there")]
    async with asyncio.TaskGroup() as group:
        for number, word in enumerate(words):
            group.create_task(mailboxes[number % 2].deliver("t", of(word), ALONE))
    await until(lambda: executor.run_count == 50)
    for mailbox in mailboxes:
        await mailbox.settled()
    assert sorted(word for [word] in said(executor)) == sorted(words)
    assert (executor.peak, await waiting_texts(room)) == (1, [])


async def test_what_waits_when_its_process_dies_is_begun_by_another(room):
    await room.waits("t", ALONE, "one")
    await room.waits("t", ALONE, "two")
    executor = Counting()
    heir = room.mailbox(executor, consumer_id="heir")
    await heir.recover()
    await all_read(room, heir, executor, ["one"], ["two"])


async def test_a_run_that_fails_for_good_does_not_keep_the_next_from_its_turn(room):
    executor = Raising(errors.Unauthorized("no"))
    mailbox = room.mailbox(executor)
    for word in ("one", "two"):
        await mailbox.deliver("t", of(word), ALONE)
    await all_read(room, mailbox, executor, ["one"], ["two"])


async def test_a_request_that_brings_nothing_and_finds_nothing_is_refused(room):
    with pytest.raises(errors.AlreadyConsumed):
        await room.mailbox(Counting()).prepare_run_for_dispatch(RunActivation(thread_id="t"))
    assert await room.stores.threads.latest_run("t") is None


async def test_a_message_that_waits_on_an_idle_thread_is_read_once_when_it_is_delivered_again(room):
    """It waits without a run if a process was killed between its delivery and the following look."""
    executor = Counting()
    mailbox = room.mailbox(executor)
    await room.waits("t", ALONE, "one")
    with pytest.raises(errors.DuplicateRecord):
        await mailbox.submit_background(RunActivation.new("t", of("one")))
    for word in ("one", "one", "two"):
        await mailbox.deliver("t", of(word), ALONE)
    await all_read(room, mailbox, executor, ["one"], ["two"])


class Telling(RunEffects):
    """Stores one effect for each end of a run."""

    def __init__(self):
        self.asked, self.known = [], []

    def of(self, tx, run):
        self.asked.append(run)
        payload = {"run": run.run_id, "status": run.status, "said": run.final_output}
        return [OutboxDraft(kind="chat", target="t", payload=payload, dedupe_key=f"end/{run.dispatch_id}")]

    def stored(self, run):
        self.known.append(run.run_id)


async def test_the_effects_of_an_end_are_stored_with_it_whoever_wrote_it(room):
    telling = Telling()
    executor = Raising(errors.Unauthorized("no"))
    given_up = await room.mailbox(executor, effects=telling).deliver("t", of("one"), ALONE)
    await room.given_up(given_up)
    mailbox = room.mailbox(Counting(), effects=telling)
    cancelled = await mailbox.submit_background(ask("u", delay_ms=60_000))
    assert await mailbox.cancel(cancelled.dispatch_id)
    done = await mailbox.deliver("v", of("one"), ALONE)
    await room.acked(done)
    await mailbox.settled()
    ends = {run.run_id: run.termination.type for run in telling.asked}
    ids = [one.run_id for one in (given_up, cancelled, done)]
    kinds = [TerminationKind.ERROR, TerminationKind.CANCELLED, TerminationKind.NATURAL_END]
    assert ends == dict(zip(ids, kinds, strict=True))
    found = await room.stores.outbox.claim("chat", "t", lease_ms=1_000, limit=10)
    told = [(one.payload["run"], one.payload["status"], one.payload["said"]) for one in found]
    assert [(run_id, status) for run_id, status, _ in told] == [(one, "done") for one in ids]
    assert told[-1][2] == "ok"
    assert telling.known == ids
