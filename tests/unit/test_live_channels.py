"""Live commands: delivered means that a run accepted it; in every other case there is no subscriber.

Within one process, and between processes: two sets of stores on one schema of PostgreSQL stand for two.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import pytest_asyncio

from machine import PATIENCE
from postgres_runs_room import OpenedRuns, Session
from postroom.contracts.live import (
    LiveChannels,
    LiveCommandKind,
    LiveDeliveryOutcome,
    LiveRunCommand,
    LiveRunTarget,
    LiveSubscription,
)
from postroom.contracts.messages import Message
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.stores.live import LocalLiveChannels
from postroom.stores.postgres.live import PostgresLiveChannels
from postroom.testing import ManualClock
from table_rows import each_row

DELIVERED = LiveDeliveryOutcome.DELIVERED
NO_SUBSCRIBER = LiveDeliveryOutcome.NO_SUBSCRIBER
THREAD = LiveRunTarget(thread_id="t")
CANCEL = LiveRunCommand(kind=LiveCommandKind.CANCEL)
RESUME = ToolCallResume(decision_id="d", action=ResumeDecisionAction.RESUME, result={"approved": True})
COMMANDS = [
    LiveRunCommand(kind=LiveCommandKind.MESSAGES, messages=(Message.user("hello \0 ü", id="m"),)),
    LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE),
    CANCEL,
    LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=(("call", RESUME),)),
]
Ends = tuple[LiveChannels, LiveChannels]
Processes = tuple[PostgresLiveChannels, PostgresLiveChannels]


@asynccontextmanager
async def two_processes(dsn: str, schema: str, clock: ManualClock) -> AsyncIterator[Processes]:
    """Channels where commands are sent from, and others as far away from them as another machine."""
    stores = [await OpenedRuns.open(dsn, schema=schema) for _ in range(2)]
    here, there = (
        PostgresLiveChannels(stores[0].kept.store, timer=clock),
        PostgresLiveChannels(stores[1].kept.store),
    )
    yield here, there
    for one in (here, there, there, *stores):
        await one.close()


@pytest_asyncio.fixture
async def processes(postgres_dsn: str, a_schema: str, clock: ManualClock) -> AsyncIterator[Processes]:
    async with two_processes(postgres_dsn, a_schema, clock) as made:
        yield made


@pytest_asyncio.fixture(params=["one-process", "two-processes"])
async def ends(request: pytest.FixtureRequest, a_schema: str, clock: ManualClock) -> AsyncIterator[Ends]:
    """Where commands are sent from, and where runs are executing."""
    if request.param == "one-process":
        channels = LocalLiveChannels(timer=clock)
        yield channels, channels
        return
    async with two_processes(request.getfixturevalue("postgres_dsn"), a_schema, clock) as made:
        yield made


async def accept(subscription: LiveSubscription, count: int = 1) -> list[LiveRunCommand]:
    """Accept this many commands and return them."""
    accepted = []
    async for entry in subscription:
        with entry:
            entry.receipt.ack()
            accepted.append(entry.command)
        if len(accepted) == count:
            break
    return accepted


async def delivers(
    here: LiveChannels, subscription: LiveSubscription, command: LiveRunCommand = CANCEL
) -> None:
    """See that a command reaches this listener."""
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        accepted = group.create_task(accept(subscription))
        assert await here.deliver(THREAD, command) is DELIVERED
    assert accepted.result() == [command]


async def until_sleeping(clock: ManualClock, count: int = 1) -> None:
    """Return when this many senders wait for their receipts."""
    async with asyncio.timeout(PATIENCE):
        while clock.sleeping < count:
            await asyncio.sleep(0)


async def test_accepted_commands_are_delivered_whole_and_in_order(ends: Ends, clock: ManualClock) -> None:
    here, there = ends
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        sent = []
        for number, command in enumerate(COMMANDS, start=1):
            sent.append(group.create_task(here.deliver(THREAD, command)))
            await until_sleeping(clock, number)
        assert await accept(subscription, len(COMMANDS)) == COMMANDS
    assert {one.result() for one in sent} == {DELIVERED}
    subscription.close()
    await delivers(here, await here.open(THREAD))


async def test_without_a_listener_the_answer_comes_at_once(ends: Ends, clock: ManualClock) -> None:
    here, there = ends
    await there.open(LiveRunTarget(thread_id="other"))
    (await there.open(THREAD)).close()
    if isinstance(there, PostgresLiveChannels):
        await there.close()
    assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER
    assert clock.sleeping == 0


async def test_a_dropped_receipt_is_no_delivery(ends: Ends) -> None:
    here, there = ends
    subscription = await there.open(THREAD)

    async def look_away() -> None:
        async for entry in subscription:
            with entry:
                return

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(look_away())
        assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER


async def test_closing_drops_what_is_queued_and_ends_the_listener(ends: Ends, clock: ManualClock) -> None:
    here, there = ends
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        sent = [group.create_task(here.deliver(THREAD, CANCEL)) for _ in range(2)]
        await until_sleeping(clock, 2)
        in_hand = await anext(aiter(subscription))
        subscription.close()
        subscription.close()
    assert [one.result() for one in sent] == [NO_SUBSCRIBER, NO_SUBSCRIBER]
    in_hand.receipt.ack()
    assert await accept(subscription) == []


async def test_a_listener_that_waits_ends_when_its_subscription_is_closed(ends: Ends) -> None:
    subscription = await ends[1].open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        listening = group.create_task(accept(subscription))
        for _ in range(3):
            await asyncio.sleep(0)
        subscription.close()
    assert listening.result() == []


async def test_opening_again_ends_the_former_subscription(ends: Ends) -> None:
    here, there = ends
    for elsewhere in (there, here):
        former = await here.open(THREAD)
        latter = await elsewhere.open(THREAD)
        await delivers(here, latter)
        async with asyncio.timeout(PATIENCE):
            assert await accept(former) == []
        former.close()
        await delivers(here, latter)
        latter.close()


@each_row(
    "target, reached",
    [
        (LiveRunTarget(thread_id="t"), {"t", "t/r1", "t/r2/d2"}),
        (LiveRunTarget(thread_id="t", run_id="r1"), {"t", "t/r1"}),
        (LiveRunTarget(thread_id="t", run_id="r2"), {"t", "t/r2/d2"}),
        (LiveRunTarget(thread_id="t", run_id="r2", dispatch_id="d9"), {"t"}),
        (LiveRunTarget(thread_id="t", dispatch_id="d2"), {"t", "t/r1", "t/r2/d2"}),
        (LiveRunTarget(thread_id="other"), {"other"}),
        (LiveRunTarget(thread_id="nobody"), set()),
    ],
)
async def test_a_command_reaches_all_whom_it_is_for_and_nobody_else(
    ends: Ends, target: LiveRunTarget, reached: set[str]
) -> None:
    here, there = ends
    named = {
        "t": THREAD,
        "t/r1": LiveRunTarget(thread_id="t", run_id="r1"),
        "t/r2/d2": LiveRunTarget(thread_id="t", run_id="r2", dispatch_id="d2"),
        "other": LiveRunTarget(thread_id="other"),
    }
    opened = {name: await (here if name == "t" else there).open(listener) for name, listener in named.items()}
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        heard = {name: group.create_task(accept(one)) for name, one in opened.items()}
        outcome = await here.deliver(target, CANCEL)
        for one in opened.values():
            one.close()
    assert {name for name, task in heard.items() if task.result()} == reached
    assert outcome is (DELIVERED if reached else NO_SUBSCRIBER)


async def test_one_who_accepts_is_enough(ends: Ends) -> None:
    here, there = ends
    first = await there.open(THREAD)
    second = await there.open(LiveRunTarget(thread_id="t", run_id="r"))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        sent = group.create_task(here.deliver(THREAD, CANCEL))
        await accept(first)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not sent.done()
        second.close()
    assert sent.result() is DELIVERED


async def test_a_command_that_nobody_takes_up_in_time_is_withdrawn(clock: ManualClock) -> None:
    channels = LocalLiveChannels(timer=clock)
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        late = group.create_task(channels.deliver(THREAD, COMMANDS[0]))
        await until_sleeping(clock)
        clock.advance(timedelta(milliseconds=4_999))
        await asyncio.sleep(0)
        assert not late.done()
        clock.advance(timedelta(milliseconds=1))
        assert await late is NO_SUBSCRIBER
        cancelled = group.create_task(channels.deliver(THREAD, COMMANDS[0]))
        await until_sleeping(clock)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert clock.sleeping == 0
    await delivers(channels, subscription, COMMANDS[1])


async def test_what_nobody_takes_up_is_withdrawn_in_time(processes: Processes, clock: ManualClock) -> None:
    here, there = processes
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        sent = group.create_task(here.deliver(THREAD, CANCEL))
        await until_sleeping(clock)
        while not there._in_hand:
            await asyncio.sleep(0)
        [receipt] = there._in_hand.values()
        clock.advance(timedelta(seconds=5))
        assert await sent is NO_SUBSCRIBER
        while not receipt.settled:  # who took it up by then would do what is done in another way already
            await asyncio.sleep(0)
        accepted = group.create_task(accept(subscription))
        assert await here.deliver(THREAD, COMMANDS[1]) is DELIVERED
    assert accepted.result() == [COMMANDS[1]]


async def test_a_listener_whose_row_a_crash_took_registers_anew(
    processes: Processes, postgres_dsn: str, a_schema: str
) -> None:
    here, there = processes
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE):
        while not there._renew_at:
            await asyncio.sleep(0)
    there._renew_at = math.inf  # its own renewal could come between the crash and the command
    session = await Session.open(postgres_dsn, a_schema)
    await session.run("TRUNCATE run_live_listeners, run_live_commands")
    assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER
    there._renew_at = 0.0
    await there._renew()
    await delivers(here, subscription)
    await session.end()


async def test_a_process_that_is_gone_is_forgotten(
    processes: Processes, postgres_dsn: str, a_schema: str, clock: ManualClock
) -> None:
    here, _ = processes
    session = await Session.open(postgres_dsn, a_schema)
    await session.run(
        "INSERT INTO run_live_listeners (listener_id, process_id, thread_id, expires_at) VALUES ('l', 'p', 't', 0)"
    )
    assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER
    assert clock.sleeping == 0
    await here.open(LiveRunTarget(thread_id="other"))
    here._renew_at = 0.0
    await here._renew()
    [[left]] = await session.rows("SELECT count(*) FROM run_live_listeners WHERE listener_id = 'l'")
    assert left == 0
    await session.end()


async def test_a_command_that_does_not_read_back_counts_as_dropped(
    processes: Processes, postgres_dsn: str, a_schema: str, clock: ManualClock
) -> None:
    here, there = processes
    session = await Session.open(postgres_dsn, a_schema)
    await session.run(
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.body := '{'; RETURN NEW; END $$;"
        "CREATE TRIGGER spoil BEFORE INSERT ON run_live_commands FOR EACH ROW EXECUTE FUNCTION spoil()"
    )
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE):
        assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER
    subscription.close()
    await session.end()
