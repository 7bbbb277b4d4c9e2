"""The timeline of a project in which nothing has happened for a while."""

import re
from collections.abc import AsyncIterator

import httpx2
import pytest_asyncio

from postroom.stores.mail.access import MailWrites
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from web_samples import HOUR, MINUTE, Writer, reader_of

DAY = 24 * HOUR


@pytest_asyncio.fixture
async def store(clock: ManualClock) -> AsyncIterator[SqliteStore]:
    held = SqliteStore.in_memory(clock)
    yield held
    held.close()


@pytest_asyncio.fixture
async def browser(store: SqliteStore, clock: ManualClock) -> AsyncIterator[httpx2.AsyncClient]:
    async with reader_of(store, clock) as client:
        yield client


async def wrote(store: SqliteStore, clock: ManualClock, *ago: int) -> None:
    """Have an agent write, and another work on it for ten minutes, so many milliseconds ago each."""

    def fill(tx: MailWrites) -> None:
        project = Writer(tx).project("orchard", "/orchard")
        ada, ben = (Writer(tx).agent(project, name) for name in ("Ada", "Ben"))
        for number, before in enumerate(ago):
            at = clock.now() - before
            Writer(tx).send(ada, f"Step {number}", "x", to=(ben,), at=at)
            tx.begin_run(f"run-{number}", ben.id, at)
            tx.end_run(f"run-{number}", now=at + 10 * MINUTE)

    await store.write(fill)


def span(page: str) -> tuple[int, int]:
    found = re.search(r'data-begin="(\d+)" data-end="(\d+)"', page)
    assert found
    return int(found[1]), int(found[2])


def drawn(page: str) -> list[str]:
    return re.findall(r'data-mark="(message:\d+)"', page)


async def test_it_opens_at_the_last_that_happened_and_says_that_this_is_not_now(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    now = clock.now()
    await wrote(store, clock, 30 * DAY, 3 * DAY + 50 * MINUTE, 3 * DAY + 10 * MINUTE)
    page = (await browser.get("/p/orchard/timeline")).text
    assert drawn(page) == ["message:2", "message:3"]
    begin, end = span(page)
    assert now - 3 * DAY <= end < now - 3 * DAY + 5 * MINUTE
    assert now - 3 * DAY - HOUR < begin < now - 3 * DAY - 50 * MINUTE
    told = re.sub("<[^>]+>", "", page)
    assert "Not now: the last was 3 days ago" in told
    assert "Follows" in told, "what happens is shown as it happens"
    assert re.search(r'href="/p/orchard/timeline\?span=1h"[^>]*>To now', page)


async def test_its_links_lead_to_the_same_and_it_goes_on_with_the_present_once_something_happens(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await wrote(store, clock, 30 * DAY, 3 * DAY)
    page = (await browser.get("/p/orchard/timeline?sel=message:2")).text
    assert 'href="/p/orchard/timeline?span=last"' in page, "what closes the panel"
    assert span((await browser.get("/p/orchard/timeline?span=last")).text) == span(page)
    begin, end = span(page)
    assert end - begin < HOUR, "what happened last is not a dot in a void"
    await store.write(lambda tx: _written_now(tx, clock.now()))
    for address in ("/p/orchard/timeline", "/p/orchard/timeline?span=last"):
        page = (await browser.get(address)).text
        assert "message:3" in drawn(page)
        assert span(page)[1] > clock.now()
        assert "Not now" not in page


async def test_all_of_a_short_life_says_how_long_ago_it_ended(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await wrote(store, clock, 2 * DAY + HOUR, 2 * DAY)
    page = (await browser.get("/p/orchard/timeline")).text
    assert drawn(page) == ["message:1", "message:2"]
    assert "Not now: the last was " in re.sub("<[^>]+>", "", page)


async def test_an_empty_time_leads_to_the_last_that_happened(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await wrote(store, clock, 30 * DAY, 3 * DAY)
    page = (await browser.get("/p/orchard/timeline?span=8h")).text
    assert "Nothing in this time" in page
    assert 'href="/p/orchard/timeline?span=last"' in page


def _written_now(tx: MailWrites, now: int) -> None:
    project = tx.project("orchard")
    assert project is not None
    ada, ben = (tx.agent(project.id, name) for name in ("Ada", "Ben"))
    assert ada is not None
    assert ben is not None
    Writer(tx).send(ada, "Again", "x", to=(ben,), at=now)
