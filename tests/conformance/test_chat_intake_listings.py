"""Promises of the intake log about reads and removals: by id, by open state, and by age."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.chat_given import (
    TOGETHER,
    at_once,
    brought_to,
    inbound_ids,
    moved,
    received,
)
from postroom.contracts.chat import MAX_INBOUND, OPEN_STATUSES, InboundStatus
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock

WAITING, HANDED_OVER, DONE = InboundStatus.WAITING, InboundStatus.HANDED_OVER, InboundStatus.DONE


async def test_the_newest_lines_of_a_platform_come_first(chats: ChatStores) -> None:
    messages = [await brought_to(chats, status, status) for status in InboundStatus]
    platform = messages[0].key.platform
    newest = await chats.intake_log.newest(platform)
    assert list(newest) == messages[::-1]
    assert await chats.intake_log.newest(platform, limit=2) == newest[:2]
    assert await chats.intake_log.newest("another") == ()


async def test_open_lines_come_by_id(chats: ChatStores) -> None:
    messages = [
        await brought_to(chats, f"{n} {status}", status) for n in range(2) for status in InboundStatus
    ]
    still = [message for message in messages if message.status.is_open]
    assert list(await chats.intake_log.open_messages()) == still
    for status in InboundStatus:
        wanted = [message for message in still if message.status is status]
        assert list(await chats.intake_log.open_messages(status=status)) == wanted


async def test_open_lines_are_told_by_session(chats: ChatStores) -> None:
    messages = [await received(chats, f"m{n}", session_key=f"s{n % 2}") for n in range(6)]
    messages[2] = await moved(chats, messages[2], HANDED_OVER)
    await moved(chats, messages[4], DONE)
    intake_log = chats.intake_log
    assert list(await intake_log.open_messages(session_key="s0")) == [messages[0], messages[2]]
    assert list(await intake_log.open_messages(session_key="s1")) == messages[1::2]
    assert list(await intake_log.open_messages(session_key="s0", status=HANDED_OVER)) == [messages[2]]
    assert list(await intake_log.open_messages(session_key="s0", status=WAITING)) == [messages[0]]
    assert list(await intake_log.open_messages(session_key="s1", after=messages[1].inbound_id, limit=1)) == [
        messages[3]
    ]
    assert await intake_log.open_messages(session_key="other") == ()


async def test_open_lines_come_page_by_page(chats: ChatStores) -> None:
    messages = [await received(chats, f"m{n}") for n in range(5)]
    pages, after = [], 0
    while found := await chats.intake_log.open_messages(after=after, limit=2):
        pages.append(inbound_ids(found))
        after = found[-1].inbound_id
    ids = inbound_ids(messages)
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    assert await chats.intake_log.open_messages(limit=0) == ()
    assert await chats.intake_log.open_messages(limit=-1) == ()
    assert len(await chats.intake_log.open_messages(after=-7)) == 5
    assert await chats.intake_log.open_messages(after=10**30) == ()


async def test_no_listing_of_lines_is_longer_than_the_most(chats: ChatStores) -> None:
    for number in range(MAX_INBOUND + 1):
        await received(chats, f"m{number}")
    for found in (
        await chats.intake_log.open_messages(),
        await chats.intake_log.open_messages(limit=10**30),
        await chats.intake_log.open_messages(session_key="s", limit=MAX_INBOUND + 1),
    ):
        assert len(found) == MAX_INBOUND


async def test_lines_are_counted_by_status(chats: ChatStores, clock: ManualClock) -> None:
    assert await chats.intake_log.counts() == {}
    for number, status in enumerate(InboundStatus, start=1):
        for one in range(number):
            await brought_to(chats, f"{status} {one}", status)
    assert await chats.intake_log.counts() == {
        status: number for number, status in enumerate(InboundStatus, start=1)
    }
    clock.advance(timedelta(seconds=1))
    await chats.intake_log.purge(older_than=clock.now())
    assert await chats.intake_log.counts() == {WAITING: 1, HANDED_OVER: 2}


async def test_a_purge_removes_what_ended_long_ago(chats: ChatStores, clock: ManualClock) -> None:
    old = [await brought_to(chats, f"old {status}", status) for status in InboundStatus]
    late = await received(chats, "late")
    clock.advance(timedelta(seconds=1))
    border = clock.now()
    late = await moved(chats, late, DONE)
    recent = [await brought_to(chats, f"recent {status}", status) for status in InboundStatus]
    assert await chats.intake_log.purge(older_than=border) == len(InboundStatus) - len(OPEN_STATUSES)
    kept = [*(message for message in old if message.status.is_open), late, *recent]
    assert list(await chats.intake_log.messages(inbound_ids([*old, late, *recent]))) == kept
    assert await chats.intake_log.purge(older_than=border) == 0
    assert await chats.intake_log.purge(older_than=border + 1) == 1 + len(InboundStatus) - len(OPEN_STATUSES)


@on_both
async def test_purges_at_the_same_time_count_each_line_once(chats: ChatStores, clock: ManualClock) -> None:
    for number in range(TOGETHER):
        await brought_to(chats, f"m{number}", DONE)
    clock.advance(timedelta(seconds=1))
    now = clock.now()
    counted, _ = await at_once([chats.intake_log.purge(older_than=now, limit=5) for _ in range(TOGETHER)])
    assert sum(counted) + await chats.intake_log.purge(older_than=now) == TOGETHER
    assert await chats.intake_log.counts() == {}
