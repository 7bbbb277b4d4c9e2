"""A call that is cancelled at any of its awaits leaves no run behind: each accepted run executes, once."""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from embedded_room import Open
from postroom import BusyPolicy, Item, Mailbox, MailboxConfig, PostroomError, Run, RunHandle
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.embedded.operators import DeadLetters, Pending, Questions
from postroom.embedded.schedules import RunSchedules

pytestmark = pytest.mark.long

SLOTS = 4
PATIENCE = 10
"""Seconds: a third of a lease, and enough for a busy machine."""
CONFIG = MailboxConfig(
    max_concurrent_runs=SLOTS,
    poll_interval=timedelta(milliseconds=200),
    default_retry_delay_ms=0,
    drain_grace=timedelta(seconds=5),
)
Call = Callable[[], Coroutine[Any, Any, object]]


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
    """Make a call anew for each of its awaits, cut there; return at how many awaits it was."""
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
        """Return when nothing is queued or claimed.

        Raises:
            TimeoutError: a run lies there.
        """
        queue = self.mailbox.stores.dispatches
        async with asyncio.timeout(PATIENCE):
            while True:
                counts = await queue.count_by_status()
                if not counts[RunDispatchStatus.QUEUED] and not counts[RunDispatchStatus.CLAIMED]:
                    return
                await asyncio.sleep(0)

    async def check(self) -> None:
        """Refuse runs that were left behind or executed twice, and slots that are lost."""
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
        assert not await self.mailbox.admin.unexecuted_claims()
        self._gate = asyncio.Barrier(SLOTS)  # they meet only where each has a slot
        meeting = [await self.enqueued("meet") for _ in range(SLOTS)]
        for handle in meeting:
            await handle.result(timeout=PATIENCE)


def calls_of(office: Office) -> dict[str, Callable[[], Awaitable[Call]]]:
    """Return, by name, what prepares each public call of the library."""
    mailbox = office.mailbox

    def plain(call: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], Awaitable[Call]]:
        async def prepare() -> Call:
            return call

        return prepare

    def policy(when_busy: BusyPolicy, *, is_busy: bool) -> Callable[[], Awaitable[Call]]:
        async def prepare() -> Call:
            handle = await (office.state("ask", "waiting") if is_busy else office.enqueued())
            return partial(mailbox.enqueue, handle.thread_id, "y", when_busy=when_busy)

        return prepare

    def of_run(
        text: str, state: str, call: Callable[[RunHandle], Coroutine[Any, Any, object]], **options: Any
    ) -> Callable[[], Awaitable[Call]]:
        async def prepare() -> Call:
            handle = await office.state(text, state, **options)
            return lambda: call(handle)

        return prepare

    def of_pending(call: Callable[[str, str], Coroutine[Any, Any, object]]) -> Callable[[], Awaitable[Call]]:
        async def prepare() -> Call:
            thread, id = uuid4().hex, uuid4().hex
            await mailbox.admin.append_pending(thread, [Message.user("x", id=id)])
            return lambda: call(thread, id)

        return prepare

    def of_schedule(call: Callable[[str], Coroutine[Any, Any, object]]) -> Callable[[], Awaitable[Call]]:
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
            [thread], lambda tx, accept: accept.put(thread, Message.user("x", id=uuid4().hex), mode)
        )

    async def submit() -> None:
        _, stream = await mailbox.admin.submit(RunActivation.new(uuid4().hex, [Message.user("x")]))
        await read(stream)

    def run_of(name: str) -> Callable[[], Awaitable[Call]]:
        return plain(lambda: _result(office, f"cut {name}"))

    return {
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
        "admin.submit": plain(submit),
        "admin.accepting": plain(accepting),
        "admin.deliver": plain(
            lambda: mailbox.admin.deliver(uuid4().hex, [Message.user("x")], DeliveryMode(starts_run=True))
        ),
    }  # fmt: skip


async def _answered(handle: RunHandle) -> None:
    await handle.answer("this", question_id=(await handle.status()).question_id)


async def _result(office: Office, text: str) -> str:
    return await (await office.enqueued(text)).result(timeout=3 * PATIENCE)


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


async def test_each_public_coroutine_is_among_the_calls_that_are_cancelled(opening: Open) -> None:
    suspending = {"Run.ask", "Run.sleep"}  # they suspend the run by an exception, and await nothing
    public = {
        f"{kind.__name__}.{name}"
        for kind in (Mailbox, RunHandle, Pending, Questions, DeadLetters, RunSchedules, Run)
        for name, function in vars(kind).items()
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if name == "__aiter__" or not name.startswith("_")
    }
    office = Office()
    async with opening(office.work) as office.mailbox:
        assert public - suspending <= calls_of(office).keys()
