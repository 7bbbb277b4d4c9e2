"""Runs that wait: new input, or the end of their background work, resumes the same run; the input of models."""

import asyncio

import pytest

from dispatch_room import Blocking, Counting, ask, latest_run_that, make_resume, said, waiting_run
from dispatch_runtime import calls, runtime_of
from postroom.contracts import errors
from postroom.contracts.activation import BusyPolicy, InferenceOverride, RunActivation, RunOptions
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.inference import InferenceResult
from postroom.contracts.messages import DeliveryMode, Message, Role, Visibility
from postroom.contracts.records import replace
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolDescriptor
from postroom.runtime import BackgroundTasks, BackgroundTaskTool, ScriptedModel

FOR_INPUT = RunWaitingState(reason=WaitingReason.USER_INPUT, message="waiting for user input")


def asked(*words):
    return ask("t", *words, agent_id="agent")


async def continued(room, waiting):
    """Let a thread's waiting run go on with a message; return it, and how often the model was asked."""
    await room.place(waiting)
    model = ScriptedModel([InferenceResult.text("goes on")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        submitted = await mailbox.submit_background(asked("poke"))
        assert submitted.run_id == waiting.run_id
        await mailbox.settled()
    return await room.stores.threads.latest_run("t"), len(model.requests)


async def test_waiting_thread_is_reactivated_by_incoming_message(room):
    latest, _ = await continued(room, waiting_run("r", "t"))
    assert (latest.run_id, latest.status, latest.final_output) == ("r", RunStatus.DONE, "goes on")
    assert latest.termination == TerminationReason.natural_end()
    assert latest.updated_at > 1
    assert await room.texts() == ["poke", "goes on"]


async def test_structured_user_input_waiting_thread_is_reused_by_incoming_message(room):
    latest, times = await continued(room, waiting_run("r", "t", waiting=FOR_INPUT))
    assert (latest.run_id, latest.status, latest.waiting) == ("r", RunStatus.DONE, None)
    assert (latest.final_output, times) == ("goes on", 1)


async def test_reusable_waiting_run_prefers_thread_open_run_projection_over_latest_run(room):
    threads = room.stores.threads
    await room.place(waiting_run("run-open", "t", waiting=FOR_INPUT, updated_at=10))
    await room.place(waiting_run("run-newer-latest", "t", updated_at=20))
    await threads.save_thread(replace(await threads.load_thread("t"), open_run_id="run-open"))
    assert (await threads.latest_run("t")).run_id == "run-newer-latest"
    executor = Counting()
    mailbox = room.mailbox(executor)
    assert (await mailbox.submit_background(asked("continue open"))).run_id == "run-open"
    await mailbox.settled()
    assert [one.continue_run_id for one in executor.activations] == ["run-open"]


BESIDE = DeliveryMode(starts_run=True, resumes=False)


async def test_input_that_resumes_nothing_waits_until_the_run_that_asks_was_cancelled(room):
    waiting, executor = waiting_run("w", "t", waiting=FOR_INPUT), Counting()
    await room.place(waiting)
    mailbox = room.mailbox(executor)
    assert await mailbox.deliver("t", [Message.user("aside", id="m1")], BESIDE) is None
    assert (await mailbox.recover(), executor.activations) == (0, [])
    assert await room.run("w") == waiting
    assert await mailbox.cancel("w")
    await mailbox.settled()
    assert [(one.continue_run_id, one.messages[0].id) for one in executor.activations] == [(None, "m1")]


async def test_input_for_the_run_that_waits_resumes_it_past_what_waits_behind_it(room):
    await room.place(waiting_run("w", "t", waiting=FOR_INPUT))
    executor = Counting()
    mailbox = room.mailbox(executor)
    await mailbox.deliver("t", [Message.user("aside", id="m1")], BESIDE)
    answer = replace(BESIDE, target_run_id="w")
    assert (await mailbox.deliver("t", [Message.user("you may", id="m2")], answer)).run_id == "w"
    await mailbox.settled()
    assert [one.continue_run_id for one in executor.activations] == ["w", None]
    assert said(executor) == [["you may"], ["aside"]]


async def test_background_task_completion_should_enqueue_internal_wake_message(room):
    ends = asyncio.Event()

    async def work(arguments, context):
        await ends.wait()
        return {"done": True}

    tasks = BackgroundTasks(timer=room.clock)
    tool = ToolDescriptor(id="spawn_bg", name="spawn_bg", description="Spawn a short background task")
    replies = [InferenceResult.text(text) for text in ("waiting for background task", "it is done")]
    model = ScriptedModel([calls("spawn_bg", "c1", text="spawning task"), *replies])
    async with runtime_of(room, model, BackgroundTaskTool(tasks, tool, work), tasks=tasks) as runtime:
        mailbox = room.mailbox(runtime)
        runtime.wake = mailbox.submit_background
        first = await mailbox.submit_background(asked("start"))
        await mailbox.settled()
        assert (await room.run(first)).is_background_task_waiting
        assert len(await room.rows()) == 1
        ends.set()
        ended = await latest_run_that(room.stores, "t", lambda run: run.status is RunStatus.DONE)
        await mailbox.settled()
    assert (ended.run_id, ended.final_output) == (first.run_id, "it is done")
    rows = (await room.rows()).values()
    assert [(row.run_id, row.status) for row in rows] == [(first.run_id, "Acked")] * 2
    kept = await room.stores.threads.load_messages("t")
    [wake] = [one.text() for one in kept if (one.role, one.visibility) == (Role.USER, Visibility.INTERNAL)]
    assert "<background-task-event" in wake
    assert '"done":true' in wake


# A message to a run that is being resumed is never swallowed: it joins, or it is for the next run.


async def both_submitted(room, first, second):
    """Submit twice to a waiting run before it resumes; return both, and the only execution."""
    await room.place(waiting_run("w", "t", WaitingReason.USER_INPUT))
    executor = Counting()
    mailbox = room.mailbox(executor)
    results = [await mailbox.submit_background(one.delivered(delay_ms=10)) for one in (first, second)]
    assert {one.dispatch_id for one in results} == set(await room.rows())
    room.passes(milliseconds=10)
    await mailbox.poll()
    await room.acked(*results)
    [activation] = executor.activations
    return results, activation


async def test_a_second_message_joins_the_dispatch_that_is_queued(room):
    (_, second), activation = await both_submitted(room, ask("t", "one"), ask("t", "two"))
    assert (second.run_id, second.joined) == ("w", True)
    assert [message.text() for message in activation.messages] == ["one", "two"]
    run = await room.run("w")
    assert (run.status, len(run.input.trigger_message_ids)) == (RunStatus.DONE, 2)


async def test_a_decision_for_a_queued_resume_joins_it_and_counts_once(room):
    decisions = (("call", make_resume()),)
    decided = RunActivation.new("t", [], continue_run_id="w", decisions=decisions)
    _, activation = await both_submitted(room, decided, decided)
    assert activation.decisions == decisions


class AsksFirst(Counting):
    """Asks a person in its first execution."""

    async def execute(self, activation, sink):
        if activation.decisions:
            return await super().execute(activation, sink)
        ticket = RunWaitingTicket(ticket_id="q", tool_call_id="call", reason="May I?")
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=(ticket,))
        suspended = TerminationReason.suspended()
        return AgentRunResult(run_id=activation.run_id, termination=suspended, waiting=waiting)


async def test_a_run_that_continues_after_an_answer_keeps_the_options_it_was_asked_with(room):
    """Among the options are the rolled-back runs that it must not see."""
    options = RunOptions(overrides=InferenceOverride(max_tokens=7), without_runs=("rolled-back",))
    executor = AsksFirst()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(replace(ask("t", "one"), options=options))
    await room.acked(first)
    await mailbox.settled()
    decisions = (("call", make_resume()),)
    answer = RunActivation.new("t", [], continue_run_id=first.run_id, decisions=decisions)
    await room.acked(await mailbox.submit_background(answer))
    assert [activation.options for activation in executor.activations] == [options, options]
    assert executor.activations[1].decisions == decisions


async def test_a_message_to_a_run_at_work_is_for_the_next_run(room):
    await room.place(waiting_run("w", "t", WaitingReason.USER_INPUT))
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(ask("t", "one"))
    await executor.started.get()
    second = await mailbox.submit_background(ask("t", "two"))
    assert second.run_id != first.run_id == "w"
    executor.release.set()
    await room.acked(first, second)
    assert said(executor) == [["one"], ["two"]]
    assert [(await room.run(one)).status for one in (first, second)] == [RunStatus.DONE] * 2


# What the model is shown of a thread on which several messages were queued.


@pytest.fixture
def shown(room):
    """Return a function that has a model answer a story's messages; it gives what the model was shown each time."""

    async def shown(story, *answers):
        replies = [InferenceResult.text(one) if isinstance(one, str) else one for one in answers]
        model = ScriptedModel(replies)
        async with runtime_of(room, model) as runtime:
            mailbox = room.mailbox(runtime)
            await story(mailbox)
            await mailbox.settled()
        return [[message.text() for message in request.messages] for request in model.requests]

    return shown


async def submitted(mailbox, *words, last=BusyPolicy.QUEUE):
    for number, word in enumerate(words, start=1):
        strategy = last if number == len(words) else BusyPolicy.QUEUE
        await mailbox.submit_background(asked(word), strategy=strategy)


async def test_a_queued_message_is_seen_by_its_own_run_with_what_joined_it_and_by_those_after_it(shown):
    async def story(mailbox):
        await submitted(mailbox, "a", "b", "b2", last=BusyPolicy.COLLECT)
        await submitted(mailbox, "c")

    seen = await shown(story, "A", "B", "C")
    assert seen == [["a"], ["a", "A", "b", "b2"], ["a", "A", "b", "b2", "B", "c"]]


async def test_a_run_that_is_tried_again_sees_what_was_answered_meanwhile_before_its_question(room, shown):
    async def story(mailbox):
        await mailbox.submit_background(asked("a").delivered(retry_delay_ms=1_000, max_retry_delay_ms=1_000))
        await mailbox.settled()
        room.passes(milliseconds=1)
        await submitted(mailbox, "b")
        await mailbox.settled()
        room.passes(seconds=5)
        await mailbox.poll()
        await mailbox.settled()
        await submitted(mailbox, "c")

    seen = await shown(story, errors.RateLimited("later"), "B", "A", "C")
    assert seen == [["a"], ["b"], ["b", "B", "a"], ["a", "A", "b", "B", "c"]]


async def test_a_replayed_message_is_shown_once_and_behind_what_was_answered_before(room, shown):
    async def story(mailbox):
        await submitted(mailbox, "a", "b")
        await mailbox.settled()
        [failed] = await mailbox.dead_letters()
        await mailbox.replay_dead_letter(failed.dispatch_id)
        await mailbox.settled()
        await submitted(mailbox, "c")

    seen = await shown(story, errors.Unauthorized("no key"), "B", "A", "C")
    assert seen == [["a"], ["a", "b"], ["b", "B", "a"], ["b", "B", "a", "A", "c"]]


class SilentToTheFirst(ScriptedModel):
    """Never answers the message "a"."""

    async def stream(self, request):
        if request.messages[-1].text() == "a":
            await asyncio.Event().wait()
        async for piece in super().stream(request):
            yield piece


async def test_what_an_interrupt_ended_in_the_queue_is_shown_in_the_order_of_asking(room):
    model = SilentToTheFirst([InferenceResult.text("D")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        await submitted(mailbox, "a", "b", "c", "d", last=BusyPolicy.INTERRUPT)
        await mailbox.settled()
    [request] = model.requests
    assert [message.text() for message in request.messages] == ["a", "b", "c", "d"]


async def test_what_was_rolled_back_is_not_shown_also_later(shown):
    async def story(mailbox):
        await submitted(mailbox, "a", "b", "d", last=BusyPolicy.ROLLBACK)
        await mailbox.settled()
        await submitted(mailbox, "e")

    *_, seen, later = await shown(story, "A", "D", "E")
    assert (seen[-1], later[-1]) == ("d", "e")
    assert "b" not in seen + later
