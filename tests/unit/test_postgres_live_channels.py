"""Live commands between processes: two sets of stores on one schema stand for two processes."""

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from postgres_runs_room import OpenedRuns, Session
from postroom.contracts.live import (
    LiveCommandKind,
    LiveDeliveryOutcome,
    LiveRunCommand,
    LiveRunTarget,
    LiveSubscription,
)
from postroom.contracts.messages import Message
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.stores.postgres.live import PostgresLiveChannels
from postroom.testing import ManualClock

pytestmark = pytest.mark.usefixtures("postgres_dsn")

PATIENCE = 30
"""Seconds after which something hangs, on however busy a machine."""
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


@pytest_asyncio.fixture
async def here(postgres_dsn: str, a_schema: str, clock: ManualClock) -> AsyncIterator[PostgresLiveChannels]:
    """Where commands are sent from."""
    stores = await OpenedRuns.open(postgres_dsn, schema=a_schema)
    channels = PostgresLiveChannels(stores.kept.store, timer=clock)
    yield channels
    await channels.close()
    await stores.close()


@pytest_asyncio.fixture
async def there(
    postgres_dsn: str, a_schema: str, here: PostgresLiveChannels
) -> AsyncIterator[PostgresLiveChannels]:
    """Where runs are executing; as far away from `here` as another machine."""
    stores = await OpenedRuns.open(postgres_dsn, schema=a_schema)
    channels = PostgresLiveChannels(stores.kept.store)
    yield channels
    await channels.close()
    await channels.close()
    await stores.close()


async def accept(subscription: LiveSubscription, count: int = 1) -> list[LiveRunCommand]:
    """Accept so many commands and return them."""
    accepted = []
    async for entry in subscription:
        with entry:
            entry.receipt.ack()
            accepted.append(entry.command)
        if len(accepted) == count:
            break
    return accepted


async def until_sleeping(clock: ManualClock, count: int = 1) -> None:
    """Return when so many senders wait for their receipts."""
    async with asyncio.timeout(PATIENCE):
        while clock.sleeping < count:
            await asyncio.sleep(0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.kind)
async def test_a_command_that_another_process_accepts_is_delivered_whole(
    here: PostgresLiveChannels, there: PostgresLiveChannels, command: LiveRunCommand
) -> None:
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        accepted = group.create_task(accept(subscription))
        assert await here.deliver(THREAD, command) is DELIVERED
    assert accepted.result() == [command]


async def test_a_command_is_delivered_within_one_process(here: PostgresLiveChannels) -> None:
    subscription = await here.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(accept(subscription))
        assert await here.deliver(THREAD, CANCEL) is DELIVERED


async def test_without_a_listener_the_answer_comes_at_once(
    here: PostgresLiveChannels, there: PostgresLiveChannels, clock: ManualClock
) -> None:
    await there.open(LiveRunTarget(thread_id="other"))
    assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER
    assert clock.sleeping == 0


async def test_a_dropped_receipt_is_no_delivery(
    here: PostgresLiveChannels, there: PostgresLiveChannels
) -> None:
    subscription = await there.open(THREAD)

    async def look_away() -> None:
        async for entry in subscription:
            with entry:
                return

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(look_away())
        assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER


async def test_what_nobody_takes_up_is_withdrawn_in_time(
    here: PostgresLiveChannels, there: PostgresLiveChannels, clock: ManualClock
) -> None:
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


async def test_closing_drops_what_is_queued_and_ends_the_listener(
    here: PostgresLiveChannels, there: PostgresLiveChannels, clock: ManualClock
) -> None:
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


async def test_a_closed_listener_is_soon_none(
    here: PostgresLiveChannels, there: PostgresLiveChannels
) -> None:
    (await there.open(THREAD)).close()
    await there.close()
    assert await here.deliver(THREAD, CANCEL) is NO_SUBSCRIBER


async def test_opening_again_takes_over_from_another_process(
    here: PostgresLiveChannels, there: PostgresLiveChannels
) -> None:
    former = await here.open(THREAD)
    latter = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        accepted = group.create_task(accept(latter))
        assert await here.deliver(THREAD, CANCEL) is DELIVERED
        assert await accept(former) == []
    assert accepted.result() == [CANCEL]


async def test_opening_again_ends_the_former_of_this_process_at_once(here: PostgresLiveChannels) -> None:
    former = await here.open(THREAD)
    latter = await here.open(THREAD)
    assert await accept(former) == []
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(accept(latter))
        assert await here.deliver(THREAD, CANCEL) is DELIVERED


async def test_commands_come_in_order(
    here: PostgresLiveChannels, there: PostgresLiveChannels, clock: ManualClock
) -> None:
    subscription = await there.open(THREAD)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number, command in enumerate(COMMANDS, start=1):
            group.create_task(here.deliver(THREAD, command))
            await until_sleeping(clock, number)
        assert await accept(subscription, len(COMMANDS)) == COMMANDS


@pytest.mark.parametrize(
    ("target", "reached"),
    [
        (LiveRunTarget(thread_id="t"), {"t", "t/r1", "t/r2/d2"}),
        (LiveRunTarget(thread_id="t", run_id="r1"), {"t", "t/r1"}),
        (LiveRunTarget(thread_id="t", run_id="r2"), {"t", "t/r2/d2"}),
        (LiveRunTarget(thread_id="t", run_id="r2", dispatch_id="d9"), {"t"}),
        (LiveRunTarget(thread_id="t", dispatch_id="d2"), {"t", "t/r1", "t/r2/d2"}),
        (LiveRunTarget(thread_id="nobody"), set()),
    ],
)
async def test_a_command_reaches_all_whom_it_is_for_and_nobody_else(
    here: PostgresLiveChannels, there: PostgresLiveChannels, target: LiveRunTarget, reached: set[str]
) -> None:
    named = {
        "t": LiveRunTarget(thread_id="t"),
        "t/r1": LiveRunTarget(thread_id="t", run_id="r1"),
        "t/r2/d2": LiveRunTarget(thread_id="t", run_id="r2", dispatch_id="d2"),
    }
    heard: set[str] = set()

    async def listen(name: str, subscription: LiveSubscription) -> None:
        async for entry in subscription:
            with entry:
                heard.add(name)
                entry.receipt.ack()

    opened = {name: await (here if name == "t" else there).open(listener) for name, listener in named.items()}
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for name, subscription in opened.items():
            group.create_task(listen(name, subscription))
        outcome = await here.deliver(target, CANCEL)
        for subscription in opened.values():
            subscription.close()
    assert outcome is (DELIVERED if reached else NO_SUBSCRIBER)
    assert heard == reached


async def test_a_listener_whose_row_a_crash_took_registers_anew(
    here: PostgresLiveChannels, there: PostgresLiveChannels, postgres_dsn: str, a_schema: str
) -> None:
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
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(accept(subscription))
        assert await here.deliver(THREAD, CANCEL) is DELIVERED
    await session.end()


async def test_a_process_that_is_gone_is_forgotten(
    here: PostgresLiveChannels, postgres_dsn: str, a_schema: str, clock: ManualClock
) -> None:
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
    here: PostgresLiveChannels,
    there: PostgresLiveChannels,
    postgres_dsn: str,
    a_schema: str,
    clock: ManualClock,
) -> None:
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
