"""Live commands in one process: delivered means that a run accepted it; everything else is no subscriber."""

import asyncio
from datetime import timedelta

import pytest

from postroom.contracts.live import (
    LiveCommandKind,
    LiveDeliveryOutcome,
    LiveRunCommand,
    LiveRunTarget,
    LiveSubscription,
)
from postroom.contracts.messages import Message
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.stores.live import LocalLiveChannels
from postroom.testing import ManualClock

DELIVERED = LiveDeliveryOutcome.DELIVERED
NO_SUBSCRIBER = LiveDeliveryOutcome.NO_SUBSCRIBER
THREAD = LiveRunTarget(thread_id="t")
CANCEL = LiveRunCommand(kind=LiveCommandKind.CANCEL)
RESUME = ToolCallResume(decision_id="d", action=ResumeDecisionAction.RESUME)
COMMANDS = [
    LiveRunCommand(kind=LiveCommandKind.MESSAGES, messages=(Message.user("hello", id="m"),)),
    LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE),
    CANCEL,
    LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=(("call", RESUME),)),
]


@pytest.fixture
def channels(clock: ManualClock) -> LocalLiveChannels:
    return LocalLiveChannels(timer=clock)


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
    async with asyncio.timeout(60):
        while clock.sleeping < count:
            await asyncio.sleep(0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.kind)
async def test_an_accepted_command_is_delivered(channels: LocalLiveChannels, command: LiveRunCommand) -> None:
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        accepted = group.create_task(accept(subscription))
        assert await channels.deliver(THREAD, command) is DELIVERED
    assert accepted.result() == [command]


async def test_nobody_listens(channels: LocalLiveChannels, clock: ManualClock) -> None:
    assert await channels.deliver(THREAD, CANCEL) is NO_SUBSCRIBER
    assert clock.sleeping == 0


async def test_a_dropped_receipt_is_no_delivery(channels: LocalLiveChannels) -> None:
    subscription = await channels.open(THREAD)

    async def look_away() -> None:
        async for entry in subscription:
            with entry:
                return

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(look_away())
        assert await channels.deliver(THREAD, CANCEL) is NO_SUBSCRIBER


async def test_closing_drops_what_is_queued_and_what_is_in_hand(
    channels: LocalLiveChannels, clock: ManualClock
) -> None:
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sent = [group.create_task(channels.deliver(THREAD, CANCEL)) for _ in range(2)]
        await until_sleeping(clock, 2)
        in_hand = await anext(aiter(subscription))
        subscription.close()
        subscription.close()
    assert [one.result() for one in sent] == [NO_SUBSCRIBER, NO_SUBSCRIBER]
    in_hand.receipt.ack()
    assert await accept(subscription) == []
    assert await channels.deliver(THREAD, CANCEL) is NO_SUBSCRIBER


async def test_a_listener_that_waits_ends_when_its_subscription_is_closed(
    channels: LocalLiveChannels,
) -> None:
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        listening = group.create_task(accept(subscription))
        for _ in range(3):
            await asyncio.sleep(0)
        subscription.close()
    assert listening.result() == []


async def test_opening_again_ends_the_former_subscription(channels: LocalLiveChannels) -> None:
    former = await channels.open(THREAD)
    latter = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        accepted = group.create_task(accept(latter))
        assert await channels.deliver(THREAD, CANCEL) is DELIVERED
    assert await accept(former) == []
    former.close()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(accept(latter))
        assert await channels.deliver(THREAD, CANCEL) is DELIVERED
    assert accepted.result() == [CANCEL]


async def test_commands_come_in_order(channels: LocalLiveChannels, clock: ManualClock) -> None:
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number, command in enumerate(COMMANDS, start=1):
            group.create_task(channels.deliver(THREAD, command))
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
        (LiveRunTarget(thread_id="other"), {"other"}),
        (LiveRunTarget(thread_id="nobody"), set()),
    ],
)
async def test_a_command_reaches_all_whom_it_is_for_and_nobody_else(
    channels: LocalLiveChannels, target: LiveRunTarget, reached: set[str]
) -> None:
    listeners = {
        "t": THREAD,
        "t/r1": LiveRunTarget(thread_id="t", run_id="r1"),
        "t/r2/d2": LiveRunTarget(thread_id="t", run_id="r2", dispatch_id="d2"),
        "other": LiveRunTarget(thread_id="other"),
    }
    subscriptions = {name: await channels.open(listener) for name, listener in listeners.items()}
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        got = {name: group.create_task(accept(one)) for name, one in subscriptions.items()}
        outcome = await channels.deliver(target, CANCEL)
        for one in subscriptions.values():
            one.close()
    assert {name for name, task in got.items() if task.result()} == reached
    assert outcome is (DELIVERED if reached else NO_SUBSCRIBER)


async def test_one_who_accepts_is_enough(channels: LocalLiveChannels) -> None:
    first = await channels.open(THREAD)
    second = await channels.open(LiveRunTarget(thread_id="t", run_id="r"))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sent = group.create_task(channels.deliver(THREAD, CANCEL))
        await accept(first)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not sent.done()
        second.close()
    assert sent.result() is DELIVERED


async def test_a_command_that_nobody_takes_up_in_time_is_withdrawn(
    channels: LocalLiveChannels, clock: ManualClock
) -> None:
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        late = group.create_task(channels.deliver(THREAD, COMMANDS[0]))
        await until_sleeping(clock)
        clock.advance(timedelta(milliseconds=4_999))
        await asyncio.sleep(0)
        assert not late.done()
        clock.advance(timedelta(milliseconds=1))
        assert await late is NO_SUBSCRIBER
        group.create_task(channels.deliver(THREAD, COMMANDS[1]))
        assert await accept(subscription) == [COMMANDS[1]]


async def test_a_sender_that_is_cancelled_withdraws_its_command(
    channels: LocalLiveChannels, clock: ManualClock
) -> None:
    subscription = await channels.open(THREAD)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        sent = group.create_task(channels.deliver(THREAD, COMMANDS[0]))
        await until_sleeping(clock)
        sent.cancel()
        await asyncio.wait([sent])
        assert clock.sleeping == 0
        group.create_task(channels.deliver(THREAD, COMMANDS[1]))
        assert await accept(subscription) == [COMMANDS[1]]


async def test_closed_subscriptions_leave_nothing_behind(channels: LocalLiveChannels) -> None:
    for number in range(3):
        (await channels.open(LiveRunTarget(thread_id="t", run_id=str(number)))).close()
    assert channels._listening == {}
