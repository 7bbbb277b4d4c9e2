"""The runtime with a real mailbox: promises that need both of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

import pytest_asyncio

from dispatch_room import dispatch_in, events_of, latest_run_that
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.events import RuntimeEventDurability
from postroom.contracts.inference import InferenceResult
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.runtime import (
    AgentRuntime,
    BackgroundTasks,
    FixedResolver,
    MapResolver,
    ResolvedAgent,
    ScriptedModel,
    ToolContext,
    function_tool,
)
from postroom.stores.live import LocalLiveChannels
from postroom.stores.memory import MemoryRunStores
from postroom.testing import ManualClock
from runtime.room import call, calls, until


class Application:
    """Stores, a runtime with one agent, and a mailbox over both."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.stores = MemoryRunStores(clock)
        self.live = LocalLiveChannels(timer=clock)
        self.model = ScriptedModel()
        self.tasks = BackgroundTasks(timer=clock)
        self.opened: list[Mailbox] = []

    def open(self, *tools: Any, config: MailboxConfig | None = None) -> Mailbox:
        agent = ResolvedAgent.new("agent", "m", "sys", self.model)
        agent = replace(agent, spec=replace(agent.spec, tool_timeout_ms=None), tools=tools)
        self.runtime = AgentRuntime(
            FixedResolver(agent), clock=self.clock, timer=self.clock, tasks=self.tasks
        )
        mailbox = Mailbox(
            self.runtime,
            self.stores,
            consumer_id="c",
            live=self.live,
            timer=self.clock,
            random=Random(1),
            config=config,
        )
        self.runtime.wake = mailbox.submit_background
        self.opened.append(mailbox)
        return mailbox

    async def texts(self) -> list[str]:
        return [message.text() for message in await self.stores.threads.load_messages("t") or ()]


@pytest_asyncio.fixture
async def application(clock: ManualClock) -> AsyncIterator[Application]:
    made = Application(clock)
    yield made
    await made.tasks.close()
    for mailbox in made.opened:
        await mailbox.aclose(timedelta(0))


def asked(text: str = "go", **fields: Any) -> RunActivation:
    return RunActivation.new("t", [text], agent_id="agent", **fields)


@asynccontextmanager
async def time_passing(application: Application) -> AsyncIterator[None]:
    """Advance the time, no faster than the store writes, and start the runs that are due at that time."""

    async def passing() -> None:
        while True:
            await application.stores.store.write(lambda tx: None, key="t")  # behind what was asked before
            application.clock.advance(timedelta(milliseconds=250))
            for mailbox in application.opened:
                await mailbox.poll()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(passing())
        yield
        task.cancel()


class Blocking:
    """A tool that waits until it is released, the first time."""

    def __init__(self) -> None:
        self.started, self.release = asyncio.Event(), asyncio.Event()

        @function_tool()
        async def block() -> str:
            self.started.set()
            await self.release.wait()
            return "released"

        self.tool = block


async def test_a_result_is_recorded_on_the_dispatch(application: Application) -> None:
    application.model.add(InferenceResult.text("finished"))
    submitted = await application.open().submit_background(asked())
    row = await dispatch_in(application.stores, submitted.dispatch_id, RunDispatchStatus.ACKED)
    assert row.run_id != row.dispatch_id
    assert row.dispatch_instance_id is not None
    assert (row.run_status, row.termination, row.run_response, row.run_error) == (
        *(RunStatus.DONE, TerminationReason.natural_end(), "finished", None),
    )
    record = await application.stores.threads.load_run(row.run_id)
    assert (record.status, record.final_output, record.steps) == (RunStatus.DONE, "finished", 1)
    assert await application.texts() == ["go", "finished"]


async def test_an_agent_that_nobody_knows_is_a_dead_letter(application: Application) -> None:
    mailbox = application.open()
    application.runtime._resolver = MapResolver({})
    submitted = await mailbox.submit_background(RunActivation.new("t", ["go"], agent_id="missing-agent"))
    row = await dispatch_in(application.stores, submitted.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert "missing-agent" in (row.run_error or "")
    assert "missing-agent" in (row.last_error or "")


async def test_steering_reaches_the_active_run_without_another_dispatch(application: Application) -> None:
    tool = Blocking()
    application.model.add(calls(call("block"), text="start tool"), InferenceResult.text("saw live input"))
    mailbox = application.open(tool.tool, config=MailboxConfig(pending_zone=False))
    first = await mailbox.submit_background(asked("start"))
    await asyncio.wait_for(tool.started.wait(), 5)
    steered = await mailbox.submit_live_then_queue(asked("live steer"))
    assert (steered.status, steered.run_id, steered.dispatch_id) == (
        "running",
        first.run_id,
        first.dispatch_id,
    )
    tool.release.set()
    await latest_run_that(application.stores, "t", lambda run: run.status is RunStatus.DONE)
    assert len(application.model.requests) == 2
    assert "live steer" in [message.text() for message in application.model.requests[1].messages]
    assert (await application.texts()).count("live steer") == 1
    rows = await application.stores.dispatches.list_dispatches("t")
    assert [row.run_id for row in rows] == [first.run_id]


async def test_a_task_that_ends_at_the_very_end_of_the_run_wakes_it_as_well(application: Application) -> None:
    release = asyncio.Event()

    @function_tool()
    async def spawn_bg(context: ToolContext) -> str:
        application.tasks.spawn(context.identity.thread_id, "bg", "x", release.wait)
        return "ok"

    application.model.add(calls(call("spawn_bg")), InferenceResult.text("waiting"))
    mailbox = application.open(spawn_bg)
    first = await mailbox.submit_background(asked("start"))
    await until(lambda: application.runtime.executing == 1)
    await until(lambda: application.runtime.executing == 0)
    release.set()  # the dispatch may not be acknowledged yet
    async with time_passing(application):
        await latest_run_that(application.stores, "t", lambda run: run.status is RunStatus.DONE)
    runs = {row.run_id for row in await application.stores.dispatches.list_dispatches("t")}
    assert first.run_id in runs
    assert sum("<background-task-event" in text for text in await application.texts()) == 1
    assert "<background-task-event" in application.model.requests[2].messages[-1].text()


async def test_the_events_of_a_step_are_kept_with_it(application: Application) -> None:
    @function_tool()
    async def look() -> str:
        return "seen"

    application.model.add(calls(call("look")), InferenceResult.text("end"))
    mailbox = application.open(look).with_runtime_event_capture(RuntimeEventDurability.COMPACTED, "test")
    submitted = await mailbox.submit_background(asked())
    await dispatch_in(application.stores, submitted.dispatch_id, RunDispatchStatus.ACKED)
    kinds = [event.event_kind for event in await events_of(application.stores, "t")]
    told = [kind for kind in kinds if kind in ("RunStarted", "ToolCallReady", "ToolCallDone", "RunFinished")]
    assert told == ["RunStarted", "ToolCallReady", "ToolCallDone", "RunFinished"]


async def test_an_answer_of_a_model_is_stored_once_and_stands_in_the_conversation(
    application: Application,
) -> None:
    async def size() -> int:
        """Return how many bytes the database takes."""

        def look(sql: Any) -> int:
            asked = ("page_count", "freelist_count", "page_size")
            pages, free, each = (sql.connection.execute(f"PRAGMA {one}").fetchone()[0] for one in asked)
            return (pages - free) * each

        return await application.stores.store.engine.write(look)

    said = "a long answer " * 100_000
    mailbox = application.open().with_runtime_event_capture(RuntimeEventDurability.COMPACTED, "test")
    before = await size()
    application.model.add(InferenceResult.text(said))
    submitted = await mailbox.submit_background(asked())
    row = await dispatch_in(application.stores, submitted.dispatch_id, RunDispatchStatus.ACKED)
    run = await application.stores.threads.load_run(row.run_id)
    assert await size() - before < 1.3 * len(said)
    assert (row.run_response, run.final_output, await application.texts()) == (said, said, ["go", said])
    events = await events_of(application.stores, "t")
    [finished] = [event for event in events if event.event_kind == "RunFinished"]
    assert finished.payload["result"]["response"] == said
    application.model.add(InferenceResult.text("and more"))
    assert (await mailbox.submit_background(asked("go on"))).run_id
    await until(lambda: len(application.model.requests) == 2)
    assert [one.text() for one in application.model.requests[1].messages][:2] == ["go", said]
