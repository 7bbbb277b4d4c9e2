"""Pages of a project with many agents: nothing that happened is missing because somebody is far down a list."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import httpx2
import pytest_asyncio

from postroom.contracts.work import WorkCounts
from postroom.mail.conflicts import together
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.web.frame import Frame, frame
from postroom.web.timeline_marks import TOGETHER
from web_samples import HOUR, MINUTE, Writer, reader_of


@pytest_asyncio.fixture
async def store(clock: ManualClock) -> AsyncIterator[SqliteStore]:
    held = SqliteStore.in_memory(clock)
    yield held
    held.close()


@pytest_asyncio.fixture
async def browser(store: SqliteStore, clock: ManualClock) -> AsyncIterator[httpx2.AsyncClient]:
    async with reader_of(store, clock) as client:
        yield client


async def orchard(store: SqliteStore, clock: ManualClock, agents: int, *pairs: tuple[int, int]) -> None:
    """Make a project with agents, and have some write to others."""

    def fill(tx: MailWrites) -> None:
        write = Writer(tx)
        project = write.project("orchard", "/orchard")
        made = [write.agent(project, f"Agent{number}") for number in range(agents)]
        for sender, reader in pairs:
            write.send(made[sender], f"From {sender}", "x", to=(made[reader],), at=clock.now() - 1_000)

    await store.write(fill)


async def orchard_message(store: SqliteStore, at: int) -> None:
    """Have the first agent write once more."""
    await store.write(
        lambda tx: Writer(tx).send(tx.agents(1, include_retired=False, limit=1)[0], "Again", "x", at=at)
    )


@dataclass(frozen=True)
class Numbered:
    id: int


def seen_frame(reads: MailReads, now: int) -> Frame:
    project = reads.project("orchard")
    assert project is not None
    return frame(
        reads, project, after=0, work=WorkCounts(questions=0, given_up=0, open_runs=0), me="", now=now
    )


def drawn(page: str) -> set[str]:
    return set(re.findall(r'data-mark="(message:\d+)"', page))


def listed(page: str) -> set[str]:
    return set(re.findall(r'data-key="(message:\d+)"', page))


async def test_of_more_agents_than_come_ungrouped_those_that_did_something_are_drawn(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await orchard(store, clock, TOGETHER + 4, (0, 1), (2, 3))
    page = (await browser.get("/p/orchard/timeline")).text
    assert drawn(page) == listed(page) == {"message:1", "message:2"}
    folded = (await browser.get("/p/orchard/timeline?open=-quiet")).text
    assert (drawn(folded), listed(folded)) == (set(), {"message:1", "message:2"})
    assert "Nothing in this time" not in folded
    assert 'open=quiet"' in folded
    assert 'open=-quiet"' in page


async def test_very_many_that_did_something_are_folded_and_what_they_did_is_listed(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    pairs = [(number, number + 1) for number in range(0, 2 * TOGETHER + 2, 2)]
    await orchard(store, clock, 2 * TOGETHER + 2, *pairs)
    page = (await browser.get("/p/orchard/timeline")).text
    assert (drawn(page), len(listed(page))) == (set(), len(pairs))
    unfolded = (await browser.get("/p/orchard/timeline?open=quiet")).text
    assert drawn(unfolded) == listed(unfolded) == listed(page)


async def test_an_agent_far_down_the_list_has_its_lane_when_it_did_something(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await orchard(store, clock, 310, (305, 309))
    page = (await browser.get("/p/orchard/timeline")).text
    assert drawn(page) == listed(page) == {"message:1"}
    assert "2 agents" in page
    assert "308 agents" in page


async def test_a_filter_with_more_agents_than_it_offers_takes_the_name_of_each(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await orchard(store, clock, 201, (200, 199), (0, 1))
    page = (await browser.get("/p/orchard/threads")).text
    assert re.search(r'<input name="agent" value="" list="agents"', page)
    assert page.count('<option value="Agent') == 200
    found = (await browser.get("/p/orchard/threads?agent=Agent200")).text
    assert ("From 200" in found, "From 0" in found) == (True, False)


def test_what_hangs_together_by_pairs_is_one_group() -> None:
    made = {number: Numbered(number) for number in range(1, 8)}
    for pairs, groups in {
        (): [],
        ((2, 1),): [[1, 2]],
        ((1, 2), (3, 4)): [[1, 2], [3, 4]],
        ((1, 2), (3, 4), (2, 3), (1, 4)): [[1, 2, 3, 4]],
        ((6, 7), (1, 5), (5, 6)): [[1, 5, 6, 7]],
    }.items():
        found = together((made[one], made[other]) for one, other in pairs)
        assert [[each.id for each in group] for group in found] == groups


async def test_many_that_hold_the_same_file_need_a_person_once(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    def hold(tx: MailWrites) -> None:
        project = tx.project("orchard")
        assert project is not None
        for agent in tx.agents(project.id, include_retired=False, limit=40):
            tx.insert_reservation(
                agent, pattern="src/**", prefix="src/", exclusive=True, reason="", ttl=3_600, now=clock.now()
            )

    await orchard(store, clock, 40)
    await store.write(hold)
    found = await store.read(lambda reads: seen_frame(reads, clock.now()))
    assert (found.conflicts, found.needs) == (1, 1)


async def test_who_holds_the_same_as_another_needs_you_on_the_timeline_as_in_the_control_room(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    def hold(tx: MailWrites) -> None:
        agents = tx.agents(1, include_retired=False, limit=5)
        for agent, pattern in zip(
            agents, ("src/**", "src/a.py", "docs/**", "tests/**", "tests/**"), strict=True
        ):
            tx.insert_reservation(
                agent, pattern=pattern, prefix="", exclusive=True, reason="", ttl=3_600, now=clock.now()
            )
        tx.begin_run("r", agents[0].id, clock.now())

    await orchard(store, clock, 40)
    await store.write(hold)
    names = re.compile(r'<ul aria-label="Needs you">(.*?)</ul>', re.DOTALL)
    page = (await browser.get("/p/orchard/timeline")).text
    assert re.findall(r"<bdi>(\w+)</bdi></a> <span class=\"soft\">in conflict<", names.findall(page)[0]) == [
        "Agent0",
        "Agent1",
        "Agent3",
        "Agent4",
    ]
    clock.advance(timedelta(hours=2))  # what they held has expired
    assert not names.findall((await browser.get("/p/orchard/timeline?span=8h")).text)


async def test_the_timeline_of_a_project_in_which_nothing_happened_opens_at_the_span_of_its_age(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await store.write(
        lambda tx: tx.insert_project(
            slug="orchard",
            human_key="/orchard",
            spelling="/orchard",
            git_identity="",
            owner="ana",
            now=clock.now(),
        )
    )
    for age, shown in {0: "1 min", 1: "15 min", 20: "1 h", 100: "8 h"}.items():
        clock.advance(timedelta(minutes=age))
        page = (await browser.get("/p/orchard/timeline")).text
        assert re.search(rf'aria-current="true">{shown}</a>', page), shown


async def test_the_timeline_opens_at_a_zoom_that_fits_what_there_is_however_long_ago_that_was(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    """A second of work, as the demonstration does, looked at after a while; then something new happens."""

    def worked(tx: MailWrites) -> None:
        ada = tx.agents(1, include_retired=False, limit=1)[0]
        tx.begin_run("r", ada.id, clock.now() - 800)
        tx.end_run("r", now=clock.now())

    await orchard(store, clock, 2, (0, 1))
    await store.write(worked)
    began, ended = clock.now() - 1_000, clock.now()
    for minutes in (2, 60, 60 * 24 * 7):
        clock.advance(timedelta(minutes=minutes))
        page = (await browser.get("/p/orchard/timeline")).text
        begin, end = map(int, re.findall(r'data-(?:begin|end)="(\d+)"', page)[:2])
        assert begin <= began
        assert ended <= end
        assert (ended - began) * 4 >= (end - begin) * 3, f"{end - begin} ms after {minutes} minutes"
        assert " data-follows" not in page, "it need not be fetched anew: nothing moves"
        assert "Follows" in page, "what happens is shown as it happens"
    await orchard_message(store, clock.now())
    page = (await browser.get("/p/orchard/timeline")).text
    assert re.search(r'aria-current="true">8 h</a>', page), "a week does not fit: the newest hours are shown"


async def test_everything_goes_up_to_the_present_while_somebody_is_at_work(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    await orchard(store, clock, 2, (0, 1))
    await store.write(lambda tx: tx.begin_run("r", 1, clock.now()))
    began = clock.now()
    clock.advance(timedelta(minutes=20))
    for address in ("/p/orchard/timeline", "/p/orchard/timeline?span=all"):
        page = (await browser.get(address)).text
        begin, end = map(int, re.findall(r'data-(?:begin|end)="(\d+)"', page)[:2])
        assert begin <= began
        assert end > clock.now()
        assert " data-follows" in page


async def test_everything_begins_with_what_a_person_wrote_before_anybody_of_the_project(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    def asked(tx: MailWrites) -> None:
        write = Writer(tx)
        people = write.project(PEOPLE_SLUG, PEOPLE_KEY)
        mira, ada = write.agent(people, "Mira"), tx.agents(1, include_retired=False, limit=1)[0]
        write.send(mira, "Please", "x", to=(ada,), at=clock.now())
        write.send(mira, "To nobody here", "x", to=(mira,), at=clock.now() + HOUR)
        write.send(ada, "Done", "x", to=(mira,), at=clock.now() + 10 * MINUTE)

    await orchard(store, clock, 2)
    first = clock.now()
    await store.write(asked)
    clock.advance(timedelta(hours=3))
    page = (await browser.get("/p/orchard/timeline")).text
    begin, end = map(int, re.findall(r'data-(?:begin|end)="(\d+)"', page)[:2])
    assert begin <= first
    assert end < first + 11 * MINUTE


async def test_the_list_has_a_run_where_that_happened_which_it_says(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    now = clock.now()

    def ran(tx: MailWrites) -> None:
        project = tx.project("orchard")
        assert project is not None
        ada = tx.agents(project.id, include_retired=False, limit=1)[0]
        tx.begin_run("r", ada.id, now - 9_000)
        tx.end_run("r", now=now - 3_000)

    await orchard(store, clock, 2)
    await store.write(
        lambda tx: Writer(tx).send(
            tx.agents(1, include_retired=False, limit=1)[0], "Mid", "x", at=now - 6_000
        )
    )
    await store.write(ran)
    page = (await browser.get("/p/orchard/timeline")).text
    assert re.findall(r'data-item data-key="(\w+):', page) == ["attempt", "message"]


async def test_where_a_question_ends_its_answer_is_marked(
    store: SqliteStore, clock: ManualClock, browser: httpx2.AsyncClient
) -> None:
    now = clock.now()

    def asked(tx: MailWrites) -> None:
        for number, agent in enumerate(tx.agents(1, include_retired=False, limit=2)):
            tx.begin_run(f"r{number}", agent.id, now - 9_000)
            tx.end_run(f"r{number}", now=now - 6_000, waits_for={"q": 1})
        tx.begin_run("r0", 1, now - 3_000, answered=("q",))

    await orchard(store, clock, 2)
    await store.write(asked)
    page = (await browser.get("/p/orchard/timeline")).text
    picture = page[page.index("tl-drawing") : page.index("tl-legend")]
    assert picture.count('class="tl-answer"') == 1
    assert ("Agent0 asked a person" in page, "Agent1 asks a person" in page) == (True, True)
