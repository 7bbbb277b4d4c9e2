"""Runs that wait: new input, or the end of their own background work, lets the same run go on."""

import asyncio
from typing import Any

from dispatch.conftest import Room
from dispatch_room import Counting, latest_run_that, waiting_run
from dispatch_runtime import calls, runtime_of
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.inference import InferenceResult
from postroom.contracts.messages import DeliveryMode, Message, Role, Visibility
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, RunWaitingState, TerminationReason, WaitingReason
from postroom.contracts.tools import ToolDescriptor
from postroom.runtime import BackgroundTasks, BackgroundTaskTool, ScriptedModel, ToolContext


def for_input(message: str) -> RunWaitingState:
    return RunWaitingState(reason=WaitingReason.USER_INPUT, message=message)


def asked(thread_id: str, text: str) -> RunActivation:
    return RunActivation.new(thread_id, [text], agent_id="agent")


async def texts_of(room: Room, thread_id: str) -> list[str]:
    return [message.text() for message in await room.stores.threads.load_messages(thread_id) or ()]


async def test_waiting_thread_is_reactivated_by_incoming_message(room: Room) -> None:
    await room.stores.threads.create_run(waiting_run("run-waiting", "thread-waiting"))
    model = ScriptedModel([InferenceResult.text("reactivated")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        submitted = await mailbox.submit_background(asked("thread-waiting", "poke"))
        assert submitted.run_id == "run-waiting"
        await mailbox.settled()
    latest = await room.stores.threads.latest_run("thread-waiting")
    assert latest is not None
    assert (latest.run_id, latest.status) == ("run-waiting", RunStatus.DONE)
    assert latest.termination == TerminationReason.natural_end()
    assert latest.updated_at > 1
    assert latest.final_output == "reactivated"
    assert await texts_of(room, "thread-waiting") == ["poke", "reactivated"]


async def test_structured_user_input_waiting_thread_is_reused_by_incoming_message(room: Room) -> None:
    waiting = waiting_run("run-user-input", "thread-user-input", waiting=for_input("waiting for user input"))
    await room.stores.threads.create_run(waiting)
    model = ScriptedModel([InferenceResult.text("continued")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        submitted = await mailbox.submit_background(asked("thread-user-input", "continue"))
        assert submitted.run_id == "run-user-input"
        await mailbox.settled()
    run = await room.stores.threads.load_run("run-user-input")
    assert run is not None
    assert (run.status, run.waiting, run.final_output) == (RunStatus.DONE, None, "continued")
    assert len(model.requests) == 1


async def test_reusable_waiting_run_prefers_thread_open_run_projection_over_latest_run(room: Room) -> None:
    thread_id, threads = "thread-open-projection", room.stores.threads
    waiting = for_input("waiting for explicit input")
    await threads.create_run(waiting_run("run-open", thread_id, waiting=waiting, updated_at=10))
    await threads.create_run(waiting_run("run-newer-latest", thread_id, updated_at=20))
    thread = await threads.load_thread(thread_id)
    assert thread is not None
    await threads.save_thread(replace(thread, open_run_id="run-open"))
    latest = await threads.latest_run(thread_id)
    assert latest is not None
    assert latest.run_id == "run-newer-latest"

    executor = Counting()
    mailbox = room.mailbox(executor)
    submitted = await mailbox.submit_background(asked(thread_id, "continue open"))
    assert submitted.run_id == "run-open"
    await mailbox.settled()
    assert [activation.continue_run_id for activation in executor.activations] == ["run-open"]


async def test_input_that_resumes_nothing_waits_until_the_run_that_asks_was_cancelled(room: Room) -> None:
    waiting = waiting_run("run-asks", "thread", waiting=for_input("may I?"))
    await room.stores.threads.create_run(waiting)
    executor = Counting()
    mailbox = room.mailbox(executor)
    mode = DeliveryMode(starts_run=True, resumes=False)
    assert await mailbox.deliver("thread", [Message.user("aside", id="m1")], mode) is None
    assert (await mailbox.recover(), executor.activations) == (0, [])
    assert await room.stores.threads.load_run("run-asks") == waiting
    assert await mailbox.cancel("run-asks")
    await mailbox.settled()
    [activation] = executor.activations
    assert activation.continue_run_id is None
    assert [message.id for message in activation.messages] == ["m1"]


async def test_input_for_the_run_that_waits_resumes_it_past_what_waits_behind_it(room: Room) -> None:
    waiting = waiting_run("run-asks", "thread", waiting=for_input("may I?"))
    await room.stores.threads.create_run(waiting)
    executor = Counting()
    mailbox = room.mailbox(executor)
    behind = DeliveryMode(starts_run=True, resumes=False)
    await mailbox.deliver("thread", [Message.user("aside", id="m1")], behind)
    answer = replace(behind, target_run_id="run-asks")
    submitted = await mailbox.deliver("thread", [Message.user("you may", id="m2")], answer)
    assert submitted is not None
    assert submitted.run_id == "run-asks"
    await mailbox.settled()
    first, second = executor.activations
    assert (first.continue_run_id, [one.id for one in first.messages]) == ("run-asks", ["m2"])
    assert (second.continue_run_id, [one.id for one in second.messages]) == (None, ["m1"])


async def test_background_task_completion_should_enqueue_internal_wake_message(room: Room) -> None:
    ends = asyncio.Event()

    async def work(arguments: dict[str, Any], context: ToolContext) -> dict[str, bool]:
        await ends.wait()
        return {"done": True}

    tasks = BackgroundTasks(timer=room.clock)
    descriptor = ToolDescriptor(id="spawn_bg", name="spawn_bg", description="Spawn a short background task")
    model = ScriptedModel(
        [
            calls("spawn_bg", "c1", text="spawning task"),
            InferenceResult.text("waiting for background task"),
            InferenceResult.text("it is done"),
        ]
    )
    async with runtime_of(room, model, BackgroundTaskTool(tasks, descriptor, work), tasks=tasks) as runtime:
        mailbox = room.mailbox(runtime)

        async def wake(activation: RunActivation) -> None:
            await mailbox.submit_background(activation)

        runtime.wake = wake
        first = await mailbox.submit_background(asked("thread-bg", "start"))
        await mailbox.settled()
        waiting = await room.stores.threads.load_run(first.run_id)
        assert waiting is not None
        assert waiting.is_background_task_waiting
        assert len(await mailbox.list_dispatches("thread-bg")) == 1

        ends.set()
        ended = await latest_run_that(room.stores, "thread-bg", lambda run: run.status is RunStatus.DONE)
        await mailbox.settled()
    assert (ended.run_id, ended.final_output) == (first.run_id, "it is done")
    rows = await mailbox.list_dispatches("thread-bg")
    assert [(row.run_id, row.status) for row in rows] == [(first.run_id, RunDispatchStatus.ACKED)] * 2
    messages = await room.stores.threads.load_messages("thread-bg") or ()
    assert len([one for one in messages if _is_wake(one)]) == 1


def _is_wake(message: Message) -> bool:
    """Say whether it tells the model, and nobody else, that the task has ended."""
    told = message.role is Role.USER and message.visibility is Visibility.INTERNAL
    return told and "<background-task-event" in message.text() and '"done":true' in message.text()
