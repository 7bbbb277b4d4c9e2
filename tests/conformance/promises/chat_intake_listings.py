"""Promises of an the intake log about what is read and removed: by id, by what is open, and by age."""

from datetime import timedelta

from conformance.promises.chat_given import (
    IMPOSSIBLE,
    TOGETHER,
    ChatPromise,
    at_once,
    brought_to,
    draft,
    inbound_ids,
    moved,
    received,
)
from conformance.promises.given import refused
from postroom.contracts.chat import MAX_INBOUND, OPEN_STATUSES, InboundMove, InboundStatus
from postroom.contracts.errors import InvalidRecord, UnknownMessage
from postroom.stores.chats.stores import ChatStores
from postroom.testing.clock import ManualClock

WAITING, HANDED_OVER, DONE = InboundStatus.WAITING, InboundStatus.HANDED_OVER, InboundStatus.DONE


async def lines_are_found_by_id(stores: ChatStores, clock: ManualClock) -> None:
    """Those that exist, in the order of their ids, each once, however they ended."""
    messages = [await brought_to(stores, status, status) for status in InboundStatus]
    asked = [
        *reversed(inbound_ids(messages)),
        messages[0].inbound_id,
        messages[-1].inbound_id + 99,
        *IMPOSSIBLE,
    ]
    assert list(await stores.intake_log.messages(asked)) == messages
    assert await stores.intake_log.messages([]) == ()
    assert await stores.intake_log.messages(IMPOSSIBLE) == ()


async def the_newest_lines_of_a_platform_come_first(stores: ChatStores, clock: ManualClock) -> None:
    """Of that platform alone, however they ended, and no more than are asked for."""
    messages = [await brought_to(stores, status, status) for status in InboundStatus]
    platform = messages[0].key.platform
    newest = await stores.intake_log.newest(platform)
    assert list(newest) == messages[::-1]
    assert await stores.intake_log.newest(platform, limit=2) == newest[:2]
    assert await stores.intake_log.newest("another") == ()


async def no_more_lines_are_asked_for_than_a_listing_holds(stores: ChatStores, clock: ManualClock) -> None:
    """As many are; one more is refused."""
    message = await received(stores)
    first = message.inbound_id
    assert await stores.intake_log.messages(range(first, first + MAX_INBOUND)) == (message,)
    with refused(InvalidRecord):
        await stores.intake_log.messages(range(first, first + MAX_INBOUND + 1))


async def open_lines_come_by_id(stores: ChatStores, clock: ManualClock) -> None:
    """Of both open states, or of one; what has ended is not among them."""
    messages = [
        await brought_to(stores, f"{n} {status}", status) for n in range(2) for status in InboundStatus
    ]
    still = [message for message in messages if message.status.is_open]
    assert list(await stores.intake_log.open_messages()) == still
    for status in InboundStatus:
        wanted = [message for message in still if message.status is status]
        assert list(await stores.intake_log.open_messages(status=status)) == wanted


async def open_lines_are_told_by_session(stores: ChatStores, clock: ManualClock) -> None:
    """With the state or without."""
    messages = [await received(stores, f"m{n}", session_key=f"s{n % 2}") for n in range(6)]
    messages[2] = await moved(stores, messages[2], HANDED_OVER)
    await moved(stores, messages[4], DONE)
    intake_log = stores.intake_log
    assert list(await intake_log.open_messages(session_key="s0")) == [messages[0], messages[2]]
    assert list(await intake_log.open_messages(session_key="s1")) == messages[1::2]
    assert list(await intake_log.open_messages(session_key="s0", status=HANDED_OVER)) == [messages[2]]
    assert list(await intake_log.open_messages(session_key="s0", status=WAITING)) == [messages[0]]
    assert list(await intake_log.open_messages(session_key="s1", after=messages[1].inbound_id, limit=1)) == [
        messages[3]
    ]
    assert await intake_log.open_messages(session_key="other") == ()


async def open_lines_come_page_by_page(stores: ChatStores, clock: ManualClock) -> None:
    """Behind the one that was seen last, no more than asked for."""
    messages = [await received(stores, f"m{n}") for n in range(5)]
    pages, after = [], 0
    while found := await stores.intake_log.open_messages(after=after, limit=2):
        pages.append(inbound_ids(found))
        after = found[-1].inbound_id
    ids = inbound_ids(messages)
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    assert await stores.intake_log.open_messages(limit=0) == ()
    assert await stores.intake_log.open_messages(limit=-1) == ()
    assert len(await stores.intake_log.open_messages(after=-7)) == 5
    assert await stores.intake_log.open_messages(after=10**30) == ()


async def no_listing_of_lines_is_longer_than_the_most(stores: ChatStores, clock: ManualClock) -> None:
    """Whatever is asked for."""
    for number in range(MAX_INBOUND + 1):
        await received(stores, f"m{number}")
    for found in (
        await stores.intake_log.open_messages(),
        await stores.intake_log.open_messages(limit=10**30),
        await stores.intake_log.open_messages(session_key="s", limit=MAX_INBOUND + 1),
    ):
        assert len(found) == MAX_INBOUND


async def lines_are_counted_by_status(stores: ChatStores, clock: ManualClock) -> None:
    """States without messages are left out."""
    assert await stores.intake_log.counts() == {}
    for number, status in enumerate(InboundStatus, start=1):
        for one in range(number):
            await brought_to(stores, f"{status} {one}", status)
    assert await stores.intake_log.counts() == {
        status: number for number, status in enumerate(InboundStatus, start=1)
    }
    clock.advance(timedelta(seconds=1))
    await stores.intake_log.purge(older_than=clock.now())
    assert await stores.intake_log.counts() == {WAITING: 1, HANDED_OVER: 2}


async def a_purge_removes_what_ended_long_ago(stores: ChatStores, clock: ManualClock) -> None:
    """What is open stays, however old; what changed at that instant or later stays."""
    old = [await brought_to(stores, f"old {status}", status) for status in InboundStatus]
    late = await received(stores, "late")
    clock.advance(timedelta(seconds=1))
    border = clock.now()
    late = await moved(stores, late, DONE)
    recent = [await brought_to(stores, f"recent {status}", status) for status in InboundStatus]
    assert await stores.intake_log.purge(older_than=border) == len(InboundStatus) - len(OPEN_STATUSES)
    kept = [*(message for message in old if message.status.is_open), late, *recent]
    assert list(await stores.intake_log.messages(inbound_ids([*old, late, *recent]))) == kept
    assert await stores.intake_log.purge(older_than=border) == 0
    assert await stores.intake_log.purge(older_than=border + 1) == 1 + len(InboundStatus) - len(OPEN_STATUSES)


async def a_purge_removes_no_more_than_asked(stores: ChatStores, clock: ManualClock) -> None:
    """Those that ended first go first."""
    messages = [await received(stores, f"m{number}") for number in range(5)]
    for message in reversed(messages):
        clock.advance(timedelta(seconds=1))
        await moved(stores, message, DONE)
    clock.advance(timedelta(seconds=1))
    now = clock.now()
    assert await stores.intake_log.purge(older_than=now, limit=0) == 0
    assert await stores.intake_log.purge(older_than=now, limit=2) == 2
    assert inbound_ids(await stores.intake_log.messages(inbound_ids(messages))) == inbound_ids(messages[:3])
    assert await stores.intake_log.purge(older_than=now, limit=99) == 3
    assert await stores.intake_log.counts() == {}


async def a_line_that_was_removed_is_not_known_any_more(stores: ChatStores, clock: ManualClock) -> None:
    """When it is sent again it is new."""
    message = await brought_to(stores, "m1", DONE)
    clock.advance(timedelta(seconds=1))
    await stores.intake_log.purge(older_than=clock.now())
    assert await stores.intake_log.find(message.key) is None
    with refused(UnknownMessage):
        await stores.intake_log.edit(message.key, {"text": "new"})
    again = await received(stores, "m1")
    assert (again.status, again.inbound_id != message.inbound_id) == (WAITING, True)


async def purges_at_the_same_time_count_each_line_once(stores: ChatStores, clock: ManualClock) -> None:
    """None twice, and none is left behind."""
    for number in range(TOGETHER):
        await brought_to(stores, f"m{number}", DONE)
    clock.advance(timedelta(seconds=1))
    now = clock.now()
    counted, _ = await at_once([stores.intake_log.purge(older_than=now, limit=5) for _ in range(TOGETHER)])
    assert sum(counted) + await stores.intake_log.purge(older_than=now) == TOGETHER
    assert await stores.intake_log.counts() == {}


async def the_body_of_a_line_is_the_stores_own(stores: ChatStores, clock: ManualClock) -> None:
    """What was given and what was read is the caller's; what is stored stays."""
    body = {"n": [1]}
    message = (await stores.intake_log.receive(draft(body=body))).message
    body["n"].append(2)
    message.body["n"].append(3)
    edit = {"n": [4]}
    for read in (
        await stores.intake_log.find(message.key),
        *await stores.intake_log.messages([message.inbound_id]),
        *await stores.intake_log.open_messages(),
        (await stores.intake_log.receive(draft())).message,
        *await stores.intake_log.move([message.inbound_id], InboundMove(status=HANDED_OVER)),
    ):
        assert read is not None
        assert read.body == {"n": [1]}
        read.body["n"].append(5)
    (kept,) = await stores.intake_log.messages([message.inbound_id])
    assert kept.body == {"n": [1]}
    edited = await stores.intake_log.edit(message.key, edit)
    edit["n"].append(6)
    edited.body["n"].append(7)
    found = await stores.intake_log.find(message.key)
    assert found is not None
    assert found.body == {"n": [4]}


async def an_instant_of_a_line_may_be_given(stores: ChatStores, clock: ManualClock) -> None:
    """Then no clock is looked at."""
    message = (await stores.intake_log.receive(draft(), now=5)).message
    assert (message.received_at, message.updated_at) == (5, 5)
    assert (await stores.intake_log.edit(message.key, {"n": 1}, now=6)).updated_at == 6
    (done,) = await stores.intake_log.move([message.inbound_id], InboundMove(status=DONE), now=7)
    assert (done.received_at, done.updated_at) == (5, 7)
    assert await stores.intake_log.find(message.key) == done
    assert await stores.intake_log.purge(older_than=7) == 0
    assert await stores.intake_log.purge(older_than=8) == 1


async def all_parts_write_in_one_place(stores: ChatStores, clock: ManualClock) -> None:
    """Which has a name."""
    names = {
        stores.intake_log.storage_identity,
        stores.sessions.storage_identity,
        stores.people.storage_identity,
    }
    assert len(names) == 1
    assert all(names)


PROMISES: tuple[ChatPromise, ...] = (
    lines_are_found_by_id,
    no_more_lines_are_asked_for_than_a_listing_holds,
    the_newest_lines_of_a_platform_come_first,
    open_lines_come_by_id,
    open_lines_are_told_by_session,
    open_lines_come_page_by_page,
    no_listing_of_lines_is_longer_than_the_most,
    lines_are_counted_by_status,
    a_purge_removes_what_ended_long_ago,
    a_purge_removes_no_more_than_asked,
    a_line_that_was_removed_is_not_known_any_more,
    purges_at_the_same_time_count_each_line_once,
    the_body_of_a_line_is_the_stores_own,
    an_instant_of_a_line_may_be_given,
    all_parts_write_in_one_place,
)
