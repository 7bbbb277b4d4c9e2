"""Promises of an inbound journal about what is read and removed: by id, by what is open, and by age."""

from datetime import timedelta

from postroom.contracts.chat import (
    MAX_LINES,
    OPEN_LINES,
    ChatStores,
    LineMove,
    LineStatus,
)
from postroom.contracts.errors import InvalidRecord, UnknownMessage
from postroom.testing.clock import ManualClock
from postroom.testing.conformance.chat_given import (
    IMPOSSIBLE,
    TOGETHER,
    ChatPromise,
    at_once,
    brought_to,
    draft,
    line_ids,
    moved,
    received,
)
from postroom.testing.conformance.given import refused

WAITING, HANDED_OVER, DONE = LineStatus.WAITING, LineStatus.HANDED_OVER, LineStatus.DONE


async def lines_are_found_by_id(stores: ChatStores, clock: ManualClock) -> None:
    """Those that exist, in the order of their ids, each once, however they ended."""
    lines = [await brought_to(stores, status, status) for status in LineStatus]
    asked = [*reversed(line_ids(lines)), lines[0].line_id, lines[-1].line_id + 99, *IMPOSSIBLE]
    assert list(await stores.journal.lines(asked)) == lines
    assert await stores.journal.lines([]) == ()
    assert await stores.journal.lines(IMPOSSIBLE) == ()


async def the_newest_lines_of_a_platform_come_first(stores: ChatStores, clock: ManualClock) -> None:
    """Of that platform alone, however they ended, and no more than are asked for."""
    lines = [await brought_to(stores, status, status) for status in LineStatus]
    platform = lines[0].key.platform
    newest = await stores.journal.newest(platform)
    assert list(newest) == lines[::-1]
    assert await stores.journal.newest(platform, limit=2) == newest[:2]
    assert await stores.journal.newest("another") == ()


async def no_more_lines_are_asked_for_than_a_listing_holds(stores: ChatStores, clock: ManualClock) -> None:
    """As many are; one more is refused."""
    line = await received(stores)
    first = line.line_id
    assert await stores.journal.lines(range(first, first + MAX_LINES)) == (line,)
    with refused(InvalidRecord):
        await stores.journal.lines(range(first, first + MAX_LINES + 1))


async def open_lines_come_by_id(stores: ChatStores, clock: ManualClock) -> None:
    """Of both open states, or of one; what has ended is not among them."""
    lines = [await brought_to(stores, f"{n} {status}", status) for n in range(2) for status in LineStatus]
    still = [line for line in lines if line.status.is_open]
    assert list(await stores.journal.open_lines()) == still
    for status in LineStatus:
        wanted = [line for line in still if line.status is status]
        assert list(await stores.journal.open_lines(status=status)) == wanted


async def open_lines_are_told_by_session(stores: ChatStores, clock: ManualClock) -> None:
    """With the state or without."""
    lines = [await received(stores, f"m{n}", session_key=f"s{n % 2}") for n in range(6)]
    lines[2] = await moved(stores, lines[2], HANDED_OVER)
    await moved(stores, lines[4], DONE)
    journal = stores.journal
    assert list(await journal.open_lines(session_key="s0")) == [lines[0], lines[2]]
    assert list(await journal.open_lines(session_key="s1")) == lines[1::2]
    assert list(await journal.open_lines(session_key="s0", status=HANDED_OVER)) == [lines[2]]
    assert list(await journal.open_lines(session_key="s0", status=WAITING)) == [lines[0]]
    assert list(await journal.open_lines(session_key="s1", after=lines[1].line_id, limit=1)) == [lines[3]]
    assert await journal.open_lines(session_key="other") == ()


async def open_lines_come_page_by_page(stores: ChatStores, clock: ManualClock) -> None:
    """Behind the one that was seen last, no more than asked for."""
    lines = [await received(stores, f"m{n}") for n in range(5)]
    pages, after = [], 0
    while found := await stores.journal.open_lines(after=after, limit=2):
        pages.append(line_ids(found))
        after = found[-1].line_id
    ids = line_ids(lines)
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    assert await stores.journal.open_lines(limit=0) == ()
    assert await stores.journal.open_lines(limit=-1) == ()
    assert len(await stores.journal.open_lines(after=-7)) == 5
    assert await stores.journal.open_lines(after=10**30) == ()


async def no_listing_of_lines_is_longer_than_the_most(stores: ChatStores, clock: ManualClock) -> None:
    """Whatever is asked for."""
    for number in range(MAX_LINES + 1):
        await received(stores, f"m{number}")
    for found in (
        await stores.journal.open_lines(),
        await stores.journal.open_lines(limit=10**30),
        await stores.journal.open_lines(session_key="s", limit=MAX_LINES + 1),
    ):
        assert len(found) == MAX_LINES


async def lines_are_counted_by_status(stores: ChatStores, clock: ManualClock) -> None:
    """States without lines are left out."""
    assert await stores.journal.counts() == {}
    for number, status in enumerate(LineStatus, start=1):
        for one in range(number):
            await brought_to(stores, f"{status} {one}", status)
    assert await stores.journal.counts() == {
        status: number for number, status in enumerate(LineStatus, start=1)
    }
    clock.advance(timedelta(seconds=1))
    await stores.journal.purge(older_than=clock.now())
    assert await stores.journal.counts() == {WAITING: 1, HANDED_OVER: 2}


async def a_purge_removes_what_ended_long_ago(stores: ChatStores, clock: ManualClock) -> None:
    """What is open stays, however old; what changed at that instant or later stays."""
    old = [await brought_to(stores, f"old {status}", status) for status in LineStatus]
    late = await received(stores, "late")
    clock.advance(timedelta(seconds=1))
    border = clock.now()
    late = await moved(stores, late, DONE)
    recent = [await brought_to(stores, f"recent {status}", status) for status in LineStatus]
    assert await stores.journal.purge(older_than=border) == len(LineStatus) - len(OPEN_LINES)
    kept = [*(line for line in old if line.status.is_open), late, *recent]
    assert list(await stores.journal.lines(line_ids([*old, late, *recent]))) == kept
    assert await stores.journal.purge(older_than=border) == 0
    assert await stores.journal.purge(older_than=border + 1) == 1 + len(LineStatus) - len(OPEN_LINES)


async def a_purge_removes_no_more_than_asked(stores: ChatStores, clock: ManualClock) -> None:
    """Those that ended first go first."""
    lines = [await received(stores, f"m{number}") for number in range(5)]
    for line in reversed(lines):
        clock.advance(timedelta(seconds=1))
        await moved(stores, line, DONE)
    clock.advance(timedelta(seconds=1))
    now = clock.now()
    assert await stores.journal.purge(older_than=now, limit=0) == 0
    assert await stores.journal.purge(older_than=now, limit=2) == 2
    assert line_ids(await stores.journal.lines(line_ids(lines))) == line_ids(lines[:3])
    assert await stores.journal.purge(older_than=now, limit=99) == 3
    assert await stores.journal.counts() == {}


async def a_line_that_was_removed_is_not_known_any_more(stores: ChatStores, clock: ManualClock) -> None:
    """When it is sent again it is new."""
    line = await brought_to(stores, "m1", DONE)
    clock.advance(timedelta(seconds=1))
    await stores.journal.purge(older_than=clock.now())
    assert await stores.journal.find(line.key) is None
    with refused(UnknownMessage):
        await stores.journal.edit(line.key, {"text": "new"})
    again = await received(stores, "m1")
    assert (again.status, again.line_id != line.line_id) == (WAITING, True)


async def purges_at_the_same_time_count_each_line_once(stores: ChatStores, clock: ManualClock) -> None:
    """None twice, and none is left behind."""
    for number in range(TOGETHER):
        await brought_to(stores, f"m{number}", DONE)
    clock.advance(timedelta(seconds=1))
    now = clock.now()
    counted, _ = await at_once([stores.journal.purge(older_than=now, limit=5) for _ in range(TOGETHER)])
    assert sum(counted) + await stores.journal.purge(older_than=now) == TOGETHER
    assert await stores.journal.counts() == {}


async def the_body_of_a_line_is_the_stores_own(stores: ChatStores, clock: ManualClock) -> None:
    """What was given and what was read is the caller's; what is stored stays."""
    body = {"n": [1]}
    line = (await stores.journal.receive(draft(body=body))).line
    body["n"].append(2)
    line.body["n"].append(3)
    edit = {"n": [4]}
    for read in (
        await stores.journal.find(line.key),
        *await stores.journal.lines([line.line_id]),
        *await stores.journal.open_lines(),
        (await stores.journal.receive(draft())).line,
        *await stores.journal.move([line.line_id], LineMove(status=HANDED_OVER)),
    ):
        assert read is not None
        assert read.body == {"n": [1]}
        read.body["n"].append(5)
    (kept,) = await stores.journal.lines([line.line_id])
    assert kept.body == {"n": [1]}
    edited = await stores.journal.edit(line.key, edit)
    edit["n"].append(6)
    edited.body["n"].append(7)
    found = await stores.journal.find(line.key)
    assert found is not None
    assert found.body == {"n": [4]}


async def an_instant_of_a_line_may_be_given(stores: ChatStores, clock: ManualClock) -> None:
    """Then no clock is looked at."""
    line = (await stores.journal.receive(draft(), now=5)).line
    assert (line.received_at, line.updated_at) == (5, 5)
    assert (await stores.journal.edit(line.key, {"n": 1}, now=6)).updated_at == 6
    (done,) = await stores.journal.move([line.line_id], LineMove(status=DONE), now=7)
    assert (done.received_at, done.updated_at) == (5, 7)
    assert await stores.journal.find(line.key) == done
    assert await stores.journal.purge(older_than=7) == 0
    assert await stores.journal.purge(older_than=8) == 1


async def all_parts_write_in_one_place(stores: ChatStores, clock: ManualClock) -> None:
    """Which has a name."""
    names = {
        stores.journal.storage_identity,
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
