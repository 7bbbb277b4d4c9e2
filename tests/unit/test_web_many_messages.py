"""The timeline of a span with more messages than are drawn one by one."""

import html
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest
import pytest_asyncio

from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.stores.mail.access import MailWrites
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from web_samples import HOUR, Writer, reader_of


@pytest_asyncio.fixture
async def store(clock: ManualClock) -> AsyncIterator[SqliteStore]:
    held = SqliteStore.in_memory(clock)
    yield held
    held.close()


@pytest_asyncio.fixture
async def browser(store: SqliteStore, clock: ManualClock) -> AsyncIterator[httpx2.AsyncClient]:
    async with reader_of(store, clock) as client:
        yield client


def drawn(page: str) -> set[str]:
    return set(re.findall(r'data-mark="(message:\d+)"', page))


def listed(page: str) -> set[str]:
    return set(re.findall(r'data-key="(message:\d+)"', page))


async def busy(store: SqliteStore, clock: ManualClock, *, agents: int, messages: int) -> None:
    """Have every agent but the last write in turn to the next, once a second up to the present."""

    def fill(tx: MailWrites) -> None:
        project = Writer(tx).project("orchard", "/orchard")
        made = [Writer(tx).agent(project, f"Agent{number}") for number in range(agents + 1)]
        for number in range(messages):
            Writer(tx).send(
                made[number % agents],
                f"Step {number}",
                "x",
                to=(made[(number + 1) % agents],),
                at=clock.now() - 1_000 * (messages - number),
            )

    await store.write(fill)


async def test_more_messages_than_are_drawn_are_listed_the_newest_first_and_the_way_back_has_each_of_them(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await busy(store, clock, agents=3, messages=599)
    page = (await browser.get("/p/orchard/timeline?span=1h")).text
    assert "Nothing in this time" not in page
    assert drawn(page) == set(), "they are counted, not drawn one by one"
    found = [listed(page)]
    while "The newest 150 are listed" in page:
        further = re.search(r'href="([^"]+)">Earlier</a>', page)
        assert further
        page = (await browser.get(html.unescape(further[1]))).text
        assert not listed(page) <= found[-1], "it goes on where the list ended"
        found.append(listed(page))
    assert [len(one) for one in found[:3]] == [150, 150, 150]
    assert "message:599" in found[0]
    assert set[str]().union(*found) == {f"message:{number}" for number in range(1, 600)}


async def test_who_wrote_or_was_written_to_is_not_idle_where_messages_are_only_counted(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await busy(store, clock, agents=60, messages=599)
    page = (await browser.get("/p/orchard/timeline?span=1h")).text
    counts = dict(re.findall(r"<b>. (\w[\w ]+)</b> <span class=\"soft\">(\d+) agent", page))
    assert counts == {"Needs you": "0", "At work": "0", "Quiet": "60", "Idle": "1"}


async def test_a_longer_span_never_has_fewer_messages_than_a_shorter_one(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(page: str) -> str:
        found = re.search(r"· ([\w ,]+) messages?, 0 runs", page)
        assert found
        return found[1]

    async def numbers(of: str = "") -> list[str]:
        lengths = ("1m", "15m", "1h", "8h", "all")
        return [told((await browser.get(f"/p/orchard/timeline?span={one}{of}")).text) for one in lengths]

    await busy(store, clock, agents=3, messages=599)
    assert await numbers() == ["57", "599", "599", "599", "599"]
    assert await numbers("&agent=Agent0") == ["38", *["more than 300"] * 4]
    monkeypatch.setattr("postroom.web.timeline.TOTAL", 400)
    assert await numbers() == ["57", *["more than 400"] * 4]


async def test_what_people_wrote_to_a_project_is_counted_with_what_its_agents_wrote(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    def asked(tx: MailWrites) -> None:
        write = Writer(tx)
        people = write.project(PEOPLE_SLUG, PEOPLE_KEY)
        mira, other = write.agent(people, "Mira"), write.agent(write.project("shed", "/shed"), "Zoe")
        ada = tx.agents(1, include_retired=False, limit=1)[0]
        for number in range(310):
            write.send(mira, "Elsewhere", "x", to=(other,), at=clock.now() - 2_000 - number)
        for number in range(5):
            write.send(mira, "Please", "x", to=(ada,), at=clock.now() - 9_000 - number)

    await busy(store, clock, agents=3, messages=200)
    await store.write(asked)
    few = (await browser.get("/p/orchard/timeline?span=1h")).text
    assert "205 messages" in few
    assert len(drawn(few)) == 205, "those to elsewhere are neither drawn nor counted"

    def more(tx: MailWrites) -> None:
        ada = tx.agents(1, include_retired=False, limit=1)[0]
        for _ in range(200):
            Writer(tx).send(ada, "More", "x", at=clock.now() - 20_000)

    await store.write(more)
    many = (await browser.get("/p/orchard/timeline?span=1h")).text
    assert "405 messages" in many
    assert len(listed(many)) == 150


def bounds(page: str) -> tuple[int, int]:
    begin, end = map(int, re.findall(r'data-(?:begin|end)="(\d+)"', page)[:2])
    return begin, end


def leads(page: str, name: str) -> str:
    found = re.search(
        rf'<a (?:class="[^"]*" )?href="([^"]+)"[^>]*>{name}', page.replace(' aria-label="', ">")
    )
    assert found, name
    return html.unescape(found[1])


@pytest.mark.parametrize(
    ("length", "nearest"),
    [(200, "2s"), (3_900, "2s"), (20_000, "1m"), (600_000, "15m"), (2 * HOUR, "1h"), (90 * HOUR, "8h")],
)
async def test_to_follow_the_present_keeps_about_the_length_that_is_seen(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient, length: int, nearest: str
) -> None:
    await busy(store, clock, agents=2, messages=3)
    address = f"/p/orchard/timeline?from={clock.now() - length - 9_000}&to={clock.now() - 9_000}"
    assert leads((await browser.get(address)).text, "To now") == f"/p/orchard/timeline?span={nearest}"


async def test_zoom_stays_within_what_can_be_chosen_and_ends_at_most_a_moment_after_now(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await busy(store, clock, agents=2, messages=3)
    for name, length in (("Zoom in", 2_000), ("Zoom out", 8 * HOUR)):
        page = (await browser.get("/p/orchard/timeline?span=15m")).text
        for _ in range(12):
            page = (await browser.get(leads(page, name))).text
            begin, end = bounds(page)
            assert 2_000 <= end - begin <= 8 * HOUR
            assert end <= clock.now() + (end - begin) // 20
        assert end - begin == length
    for _ in range(3):
        page = (await browser.get(leads(page, "Later"))).text
        begin, end = bounds(page)
        assert (end - begin, end) == (8 * HOUR, clock.now() + 8 * HOUR // 20)


async def test_zoom_goes_out_to_all_there_is_where_that_is_longer(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await busy(store, clock, agents=2, messages=3)
    began = clock.now() - 3_000
    clock.advance(timedelta(days=3))
    page = (await browser.get("/p/orchard/timeline?span=8h")).text
    for _ in range(6):
        page = (await browser.get(leads(page, "Zoom out"))).text
    begin, end = bounds(page)
    assert (begin <= began, end > clock.now(), end - begin < 120 * HOUR) == (True, True, True)


async def test_a_span_that_is_none_is_told_with_those_there_are(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await busy(store, clock, agents=2, messages=3)
    page = (await browser.get("/p/orchard/timeline?span=9h")).text
    assert "Span must be one of 2s, 1m, 15m, 1h, 8h, all, last, not &#39;9h&#39;" in page
