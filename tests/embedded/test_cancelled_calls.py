"""A call that is cancelled at any of its awaits leaves no run unexecuted: each accepted run executes once."""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, get_origin
from uuid import uuid4

import pytest

import postroom
from embedded_room import Open, on
from machine import PATIENCE
from postroom import (
    BusyPolicy,
    Item,
    Mailbox,
    MailboxConfig,
    PostroomError,
    Run,
    RunDispatchExecutor,
    RunHandle,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.dispatch.mailbox import Mailbox as Queue

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]

SLOTS = 4
CONFIG = MailboxConfig(
    max_concurrent_runs=SLOTS,
    poll_interval=timedelta(milliseconds=200),
    default_retry_delay_ms=0,
    drain_grace=timedelta(seconds=5),
)
Call = Callable[[], Coroutine[Any, Any, object]]
Prepare = Callable[[], Awaitable[Call]]


class Moment(Enum):
    """When a call is cancelled at an await."""

    WAITING = "while it waits"
    ANSWERED = "when the answer is there and not yet read"


class Cut:
    """Awaits a call; the task that awaits it is cancelled at one of the call's awaits."""

    def __init__(self, call: Coroutine[Any, Any, object], at: int, moment: Moment) -> None:
        self._call, self._at, self._moment = call, at, moment
        self.was_cut = False

    def __await__(self) -> Generator[Any, Any, object]:
        steps, seen = self._call.__await__(), 0
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration as ended:
                return ended.value
            if seen == self._at:
                self._cancel(waits_for)
            seen += 1
            try:
                step = partial(steps.send, (yield waits_for))
            except BaseException as error:
                step = partial(steps.throw, error)

    def _cancel(self, waits_for: asyncio.Future[object] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.was_cut = True
        if waits_for is None or self._moment is Moment.WAITING:
            task.cancel()
        else:  # before the task hears of it
            waits_for.add_done_callback(lambda _: task.cancel())


async def cut_at_each_await(prepare: Callable[[], Awaitable[Call]], moment: Moment) -> int:
    """Repeat a call for each of its awaits, cut there; return the number of awaits."""
    at = 0
    while True:
        call = await prepare()
        cut = Cut(call(), at, moment)

        async def hang_up(cut: Cut = cut) -> None:
            await cut

        task = asyncio.create_task(hang_up())
        with suppress(asyncio.CancelledError, PostroomError):
            await task
        if not cut.was_cut:
            return at
        at += 1


class Office:
    """A mailbox whose runs are counted, and what its callers need."""

    def __init__(self) -> None:
        self.mailbox: Mailbox
        self.begun = Counter[str]()
        self.moment = Moment.WAITING
        self.awaits_of_runs = Counter[str]()
        self._gate: asyncio.Barrier | None = None

    async def work(self, run: Run) -> str:
        """Do what the text of the run says."""
        self.begun[run.id] += 1
        match run.text.split():
            case ["fail"]:
                raise ValueError("broken")
            case ["ask"]:
                return (await run.ask("which?")).text
            case ["meet"]:
                assert self._gate is not None
                await self._gate.wait()
            case ["cut", name]:
                await self._cut(run, name)
        return "done"

    async def _cut(self, run: Run, name: str) -> None:
        number = 0

        async def prepare() -> Call:
            nonlocal number
            number += 1
            calls: dict[str, Call] = {
                "step": partial(run.step, f"s{number}", str),
                "history": run.history,
                "log": partial(run.log, "a line"),
                "stream": partial(run.stream, "text"),
            }
            return calls[name]

        self.awaits_of_runs[name] += await cut_at_each_await(prepare, self.moment)

    async def enqueued(self, text: str = "x", **options: Any) -> RunHandle:
        return await self.mailbox.enqueue(uuid4().hex, text, **options)

    async def state(self, text: str, state: str, **options: Any) -> RunHandle:
        """Enqueue a run and return it when it is in a state."""
        handle = await self.enqueued(text, **options)
        async with asyncio.timeout(PATIENCE):
            while (await handle.status()).state != state:
                await asyncio.sleep(0)
        return handle

    async def settled(self) -> None:
        """Return when nothing is queued or claimed, and no run is open that does not wait.

        The change of a cancelled call may reach the store after a read.

        Raises:
            TimeoutError: A run was left.
        """
        queue, runs = self.mailbox.stores.dispatches, self.mailbox.stores.threads
        async with asyncio.timeout(PATIENCE):
            while True:
                counts = await queue.count_by_status()
                open_runs = await runs.list_runs(RunQuery(statuses=(RunStatus.CREATED, RunStatus.RUNNING)))
                if not (counts[RunDispatchStatus.QUEUED] or counts[RunDispatchStatus.CLAIMED] or open_runs):
                    return
                await asyncio.sleep(0)

    async def check(self) -> None:
        """Refuse unexecuted runs, runs that executed twice, and lost slots."""
        await self.settled()
        after, runs = "", self.mailbox.stores.threads
        while page := await runs.list_runs(RunQuery(after=after)):
            for run in page:
                assert run.status in (RunStatus.DONE, RunStatus.WAITING), run
                if run.started_at is not None or run.error is None:
                    text = run.run_id
                    assert self.begun[text] <= (2 if run.answered or run.waiting else 1), run
                if run.status is RunStatus.DONE and run.termination and run.termination.type == "natural_end":
                    assert self.begun[run.run_id], run
            after = page[-1].run_id
        async with asyncio.timeout(PATIENCE):
            while await self.mailbox.admin.unexecuted_claims():  # of a change that has just reached the store
                await self.settled()
        self._gate = asyncio.Barrier(SLOTS)  # they meet only where each has a slot
        meeting = [await self.enqueued("meet") for _ in range(SLOTS)]
        for handle in meeting:
            await handle.result(timeout=PATIENCE)


def calls_of(office: Office) -> dict[str, Prepare]:
    """Return, by name, what prepares each public call of the library."""
    mailbox = office.mailbox

    def plain(call: Callable[[], Coroutine[Any, Any, object]]) -> Prepare:
        async def prepare() -> Call:
            return call

        return prepare

    def policy(when_busy: BusyPolicy, *, is_busy: bool) -> Prepare:
        async def prepare() -> Call:
            handle = await (office.state("ask", "waiting") if is_busy else office.enqueued())
            return partial(mailbox.enqueue, handle.thread_id, "y", when_busy=when_busy)

        return prepare

    def of_run(
        text: str, state: str, call: Callable[[RunHandle], Coroutine[Any, Any, object]], **options: Any
    ) -> Prepare:
        async def prepare() -> Call:
            handle = await office.state(text, state, **options)
            return lambda: call(handle)

        return prepare

    def of_pending(call: Callable[[str, str], Coroutine[Any, Any, object]]) -> Prepare:
        async def prepare() -> Call:
            thread, id = uuid4().hex, uuid4().hex
            await mailbox.admin.append_pending(thread, [Message.user("x", id=id)])
            return lambda: call(thread, id)

        return prepare

    def of_schedule(call: Callable[[str], Coroutine[Any, Any, object]]) -> Prepare:
        async def prepare() -> Call:
            name = uuid4().hex
            await mailbox.schedules.add(name, name, "x", every=timedelta(days=1))
            return lambda: call(name)

        return prepare

    async def read(events: AsyncIterator[object]) -> None:
        async for _ in events:
            pass

    async def accepting() -> None:
        thread = uuid4().hex
        mode = DeliveryMode(starts_run=True)
        await mailbox.admin.accepting(
            [thread], lambda tx, accept: accept(thread, Message.user("x", id=uuid4().hex), mode)
        )

    async def submit() -> None:
        _, stream = await mailbox.admin.submit(RunActivation.new(uuid4().hex, [Message.user("x")]))
        await read(stream)

    def run_of(name: str) -> Prepare:
        return plain(lambda: _result(office, f"cut {name}"))

    return {
        # First: they look through what the other calls leave behind.
        "Queue.recover": plain(mailbox.admin.recover),
        "Queue.run_sweep": plain(mailbox.admin.run_sweep),
        "Queue.run_gc": plain(mailbox.admin.run_gc),
        "Queue.recover_prepared_runs_missing_dispatch": plain(mailbox.admin.recover_prepared_runs_missing_dispatch),
        "Queue.repair_thread_message_checkpoint_events": plain(mailbox.admin.repair_thread_message_checkpoint_events),
        "Queue.gc_idle_workers": plain(mailbox.admin.gc_idle_workers),
        "Queue.settled": plain(mailbox.admin.settled),
        "Mailbox.enqueue": plain(lambda: office.enqueued()),
        "Mailbox.enqueue with a key": plain(lambda: office.enqueued(key="k")),
        **{
            f"Mailbox.enqueue, {one}, {'asking' if is_busy else 'free'}": policy(one, is_busy=is_busy)
            for one in BusyPolicy
            for is_busy in ((False, True) if one in (BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK) else (False,))
        },
        "Mailbox.enqueue_many": plain(lambda: mailbox.enqueue_many([Item(uuid4().hex, "x") for _ in range(3)])),
        "Mailbox.stream": plain(lambda: read(mailbox.stream(uuid4().hex, "x"))),
        "Mailbox.handle": of_run("x", "done", lambda handle: mailbox.handle(handle.id)),
        "Mailbox.cancel": of_run("ask", "waiting", lambda handle: mailbox.cancel(handle.id)),
        "RunHandle.result": of_run("x", "done", lambda handle: handle.result()),
        "RunHandle.status": of_run("x", "done", lambda handle: handle.status()),
        "RunHandle.events": of_run("x", "done", lambda handle: read(handle.events())),
        "RunHandle.cancel": of_run("ask", "waiting", lambda handle: handle.cancel()),
        "RunHandle.answer": of_run("ask", "waiting", _answered),
        "Pending.list": of_pending(lambda thread, id: mailbox.pending.list(thread)),
        "Pending.edit": of_pending(lambda thread, id: mailbox.pending.edit(thread, id, "y")),
        "Pending.retract": of_pending(lambda thread, id: mailbox.pending.retract(thread, id)),
        "Pending.reorder": of_pending(lambda thread, id: mailbox.pending.reorder(thread, [id])),
        "Questions.__aiter__": of_run("ask", "waiting", lambda _: read(aiter(mailbox.questions))),
        "DeadLetters.__aiter__": of_run("fail", "failed", lambda _: read(aiter(mailbox.dead_letters)), attempts=1),
        "DeadLetters.replay": of_run("fail", "failed", lambda handle: mailbox.dead_letters.replay(handle.id), attempts=1),
        "DeadLetters.discard": of_run("fail", "failed", lambda handle: mailbox.dead_letters.discard(handle.id), attempts=1),
        "RunSchedules.add": plain(lambda: mailbox.schedules.add(uuid4().hex, "t", "x", every=timedelta(days=1))),
        "RunSchedules.list": plain(mailbox.schedules.list),
        "RunSchedules.pause": of_schedule(mailbox.schedules.pause),
        "RunSchedules.resume": of_schedule(mailbox.schedules.resume),
        "RunSchedules.trigger": of_schedule(mailbox.schedules.trigger),
        "RunSchedules.remove": of_schedule(mailbox.schedules.remove),
        "Run.step": run_of("step"),
        "Run.history": run_of("history"),
        "Run.log": run_of("log"),
        "Run.stream": run_of("stream"),
        "Queue.submit": plain(submit),
        "Queue.accepting": plain(accepting),
        "Queue.deliver": plain(
            lambda: mailbox.admin.deliver(uuid4().hex, [Message.user("x")], DeliveryMode(starts_run=True))
        ),
        "Queue.append_pending": plain(
            lambda: mailbox.admin.append_pending(uuid4().hex, [Message.user("x", id=uuid4().hex)])
        ),
        "Queue.pending": of_pending(lambda thread, id: mailbox.admin.pending(thread)),
        "Queue.edit_pending": of_pending(
            lambda thread, id: mailbox.admin.edit_pending(thread, Message.user("y", id=id))
        ),
        "Queue.retract_pending": of_pending(lambda thread, id: mailbox.admin.retract_pending(thread, id)),
        "Queue.reorder_pending": of_pending(lambda thread, id: mailbox.admin.reorder_pending(thread, [id])),
        **queue_calls_of(mailbox, plain, of_run),
    }  # fmt: skip


def queue_calls_of(
    mailbox: Mailbox, plain: Callable[..., Prepare], of_run: Callable[..., Prepare]
) -> dict[str, Prepare]:
    """Return, by name, the functions that prepare the calls of the queue that begin, end or read work."""
    queue = mailbox.admin

    async def dispatch_of(handle: RunHandle) -> str:
        return (await queue.list_dispatches(handle.thread_id))[0].dispatch_id

    def request() -> RunActivation:
        return RunActivation.new(uuid4().hex, [Message.user("x")])

    def told() -> ToolCallResume:
        return ToolCallResume(decision_id=uuid4().hex, action=ResumeDecisionAction.RESUME, updated_at=1)

    async def waiting(handle: RunHandle) -> bool:
        run = await mailbox.stores.threads.load_run(handle.id)
        assert run is not None
        return await queue.cancel_waiting(run)

    async def of_dispatch(call: Callable[[str], Coroutine[Any, Any, object]], handle: RunHandle) -> object:
        return await call(await dispatch_of(handle))

    done, asking = ("x", "done"), ("ask", "waiting")
    return {
        "Queue.submit_background": plain(lambda: queue.submit_background(request())),
        "Queue.submit_many": plain(lambda: queue.submit_many([request(), request()])),
        "Queue.submit_live_then_queue": plain(lambda: queue.submit_live_then_queue(request())),
        "Queue.cancel": of_run(*asking, lambda handle: queue.cancel(handle.id)),
        "Queue.cancel_waiting": of_run(*asking, waiting),
        "Queue.interrupt": of_run(*asking, lambda handle: queue.interrupt(handle.thread_id)),
        "Queue.send_decision_live": of_run(
            *asking, lambda handle: queue.send_decision_live(handle.id, "no call", told())
        ),
        "Queue.take_back_decision": of_run(
            *asking, lambda handle: queue.take_back_decision(handle.thread_id, handle.id, "no decision")
        ),
        "Queue.list_dispatches": of_run(*done, lambda handle: queue.list_dispatches(handle.thread_id)),
        "Queue.why_not": of_run(*done, partial(of_dispatch, queue.why_not)),
        "Queue.hasten": of_run(
            "x", "queued", partial(of_dispatch, queue.hasten), delay=timedelta(milliseconds=300)
        ),
        "Queue.dead_letters": plain(queue.dead_letters),
        "Queue.replay_dead_letter": of_run(
            "fail", "failed", partial(of_dispatch, queue.replay_dead_letter), attempts=1
        ),
        "Queue.discard_dead_letter": of_run(
            "fail", "failed", partial(of_dispatch, queue.discard_dead_letter), attempts=1
        ),
        "Queue.unexecuted_claims": plain(queue.unexecuted_claims),
        "Queue.release_unexecuted_claims": plain(queue.release_unexecuted_claims),
        "Queue.poll": plain(queue.poll),
        "Queue.reusable_waiting_run_id": of_run(
            *asking, lambda handle: queue.reusable_waiting_run_id(handle.thread_id)
        ),
        "Queue.materialize_pinned_registry_set": plain(lambda: queue.materialize_pinned_registry_set("pin")),
        "Queue.try_dispatch_next": of_run(*done, lambda handle: queue.try_dispatch_next(handle.thread_id)),
    }


async def _answered(handle: RunHandle) -> None:
    await handle.answer("this", question_id=(await handle.status()).question_id)


async def _result(office: Office, text: str) -> str:
    return await (await office.enqueued(text)).result(timeout=3 * PATIENCE)


@on("memory", "postgres")
@pytest.mark.parametrize("moment", Moment)
async def test_a_call_that_is_cancelled_at_any_await_leaves_no_run_and_no_slot_behind(
    opening: Open, moment: Moment
) -> None:
    office = Office()
    async with opening(office.work, config=CONFIG) as office.mailbox:
        office.moment = moment
        for name, prepare in calls_of(office).items():
            await cut_at_each_await(prepare, moment)
            try:
                await office.check()
            except (TimeoutError, AssertionError) as error:
                raise AssertionError(f"after {name} was cancelled: {error!r}") from error


@on("memory", "postgres")
@pytest.mark.parametrize("key", [None, "k"])
async def test_an_enqueue_that_is_cancelled_stores_its_run_with_a_key_and_without(
    opening: Open, key: str | None
) -> None:
    threads = list[str]()

    async def work(run: Run) -> str:
        return "done"

    async with opening(work, config=CONFIG) as mailbox:

        async def prepare() -> Call:
            threads.append(uuid4().hex)
            return partial(mailbox.enqueue, threads[-1], "x", key=key)

        for moment in Moment:
            assert await cut_at_each_await(prepare, moment) > 0
        for thread in threads:
            async with asyncio.timeout(PATIENCE):
                while not (runs := await mailbox.stores.threads.list_runs(RunQuery(thread_id=thread))):
                    await asyncio.sleep(0)
            assert len(runs) == 1


@on("sqlite", "postgres")
async def test_an_open_that_is_cancelled_at_any_await_leaves_the_database_free(opening: Open) -> None:
    begun: list[str] = []

    async def work(run: Run) -> str:
        begun.append(run.id)
        return "done"

    async def executed() -> None:
        async with opening(work, config=CONFIG) as mailbox:
            handle = await mailbox.enqueue(uuid4().hex, "x")
            assert await handle.result(timeout=PATIENCE) == "done"

    async def prepare() -> Call:
        return executed

    for moment in Moment:
        assert await cut_at_each_await(prepare, moment) > 2  # each open behind a cancelled one succeeds
    await executed()
    assert max(Counter(begun).values()) == 1


NOT_CUT = {
    "Run.ask": "it suspends the run by an exception, and awaits nothing",
    "Run.sleep": "it suspends the run by an exception, and awaits nothing",
    "Queue.start_lifecycle_ready": "`Mailbox.open` has started the queue; a test of its own cuts that",
    "Queue.drain": "it ends the mailbox: the test of `Mailbox.open` cuts it",
    "Queue.aclose": "it ends the mailbox: the test of `Mailbox.open` cuts it",
    "Queue.abandon": "it ends the mailbox: the test of `Mailbox.open` cuts it",
    "Mailbox.open": "it has a test of its own",
    "Queue.prepare_run_for_dispatch": "it stores a run that only the next recovery queues",
}
"""Public coroutines that no call above is cut in, each with the reason."""
NOT_CALLED = (RunDispatchExecutor,)
"""Public classes whose coroutines a program writes, and does not call."""


def coroutines_of(kind: type) -> set[str]:
    """Return the public functions of a class that are awaited or iterated over."""
    found = set[str]()
    for name, member in inspect.getmembers_static(kind):
        function = inspect.unwrap(getattr(member, "__func__", member))
        returned = getattr(function, "__annotations__", {}).get("return")
        is_awaited = get_origin(returned) in (Awaitable, Coroutine, AsyncIterator)
        is_coroutine = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if (is_awaited or is_coroutine) and (name == "__aiter__" or not name.startswith("_")):
            found.add(name)
    return found


async def test_each_public_coroutine_is_among_the_calls_that_are_cancelled(opening: Open) -> None:
    office = Office()
    async with opening(office.work) as office.mailbox:
        exported = (getattr(postroom, name) for name in postroom.__all__)
        kinds = {one: one.__name__ for one in exported if isinstance(one, type) and one not in NOT_CALLED}
        parts = {name: part for name, part in vars(office.mailbox).items() if not name.startswith("_")}
        del parts["stores"]  # what adapters work with, and no page tells of
        kinds |= {type(part): type(part).__name__ for part in parts.values()}
        kinds[Queue] = "Queue"
        public = {f"{called}.{name}" for kind, called in kinds.items() for name in coroutines_of(kind)}
        assert {"Mailbox.open", "Questions.__aiter__", "Queue.poll", "Run.step"} <= public
        assert public - NOT_CUT.keys() <= calls_of(office).keys()
        assert NOT_CUT.keys() <= public
