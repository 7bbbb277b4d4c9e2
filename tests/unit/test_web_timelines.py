"""Timelines of projects with many agents, many messages, or none recently: no event is missing."""

import html
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import httpx2
import pytest
import pytest_asyncio

from postroom.contracts.work import WorkCounts
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.web.reading import Frame, frame
from postroom.web.timeline_marks import TOGETHER
from table_rows import each_row
from web_samples import HOUR, MINUTE, Writer, reader_of

DAY = 24 * HOUR


@dataclass
class Here:
    """A store, and a browser that reads its pages."""

    store: SqliteStore
    clock: ManualClock
    browser: httpx2.AsyncClient

    async def timeline(self, asked: str = "") -> str:
        return (await self.browser.get(f"/p/orchard/timeline{asked}")).text


@pytest_asyncio.fixture
async def here(clock: ManualClock) -> AsyncIterator[Here]:
    held = SqliteStore.in_memory(clock)
    async with reader_of(held, clock) as client:
        yield Here(held, clock, client)
    held.close()


def drawn(page: str) -> set[str]:
    return set(re.findall(r'data-mark="(message:\d+)"', page))


def listed(page: str) -> set[str]:
    return set(re.findall(r'data-key="(message:\d+)"', page))


def bounds(page: str) -> tuple[int, int]:
    begin, end = map(int, re.findall(r'data-(?:begin|end)="(\d+)"', page)[:2])
    return begin, end


async def orchard(here: Here, agents: int, *pairs: tuple[int, int]) -> None:
    """Make a project with agents, and have some write to others."""

    def fill(tx: MailWrites) -> None:
        write = Writer(tx)
        project = write.project("orchard", "/orchard")
        made = [write.agent(project, f"Agent{number}") for number in range(agents)]
        for sender, reader in pairs:
            write.send(made[sender], f"From {sender}", "x", to=(made[reader],), at=here.clock.now() - 1_000)

    await here.store.write(fill)


async def orchard_message(here: Here, at: int) -> None:
    """Make the first agent write once more."""
    await here.store.write(
        lambda tx: Writer(tx).send(tx.agents(1, include_retired=False, limit=1)[0], "Again", "x", at=at)
    )


def seen_frame(reads: MailReads, now: int) -> Frame:
    project = reads.project("orchard")
    assert project is not None
    return frame(
        reads, project, after=0, work=WorkCounts(questions=0, failures=0, open_runs=0), me="", now=now
    )


async def test_of_more_agents_than_come_ungrouped_those_that_did_something_are_drawn(here: Here) -> None:
    await orchard(here, TOGETHER + 4, (0, 1), (2, 3))
    page = await here.timeline("")
    assert drawn(page) == listed(page) == {"message:1", "message:2"}
    folded = await here.timeline("?open=-quiet")
    assert (drawn(folded), listed(folded)) == (set(), {"message:1", "message:2"})
    assert "No events in this period" not in folded
    assert 'open=quiet"' in folded
    assert 'open=-quiet"' in page


async def test_very_many_that_did_something_are_folded_and_what_they_did_is_listed(here: Here) -> None:
    pairs = [(number, number + 1) for number in range(0, 2 * TOGETHER + 2, 2)]
    await orchard(here, 2 * TOGETHER + 2, *pairs)
    page = await here.timeline("")
    assert (drawn(page), len(listed(page))) == (set(), len(pairs))
    unfolded = await here.timeline("?open=quiet")
    assert drawn(unfolded) == listed(unfolded) == listed(page)


async def test_an_agent_far_down_the_list_has_its_lane_when_it_did_something(here: Here) -> None:
    await orchard(here, 310, (305, 309))
    page = await here.timeline("")
    assert drawn(page) == listed(page) == {"message:1"}
    assert "2 agents" in page
    assert "308 agents" in page


async def test_a_filter_with_more_agents_than_it_offers_takes_the_name_of_each(here: Here) -> None:
    await orchard(here, 201, (200, 199), (0, 1))
    page = (await here.browser.get("/p/orchard/threads")).text
    assert re.search(r'<input name="agent" value="" list="agents"', page)
    assert page.count('<option value="Agent') == 200
    found = (await here.browser.get("/p/orchard/threads?agent=Agent200")).text
    assert ("From 200" in found, "From 0" in found) == (True, False)


async def test_many_that_hold_the_same_file_need_a_person_once(here: Here) -> None:
    def hold(tx: MailWrites) -> None:
        project = tx.project("orchard")
        assert project is not None
        for agent in tx.agents(project.id, include_retired=False, limit=40):
            tx.insert_reservation(
                agent,
                pattern="src/**",
                prefix="src/",
                exclusive=True,
                reason="",
                ttl=3_600,
                now=here.clock.now(),
            )

    await orchard(here, 40)
    await here.store.write(hold)
    found = await here.store.read(lambda reads: seen_frame(reads, here.clock.now()))
    assert (found.conflicts, found.needs) == (1, 1)


async def test_who_holds_the_same_as_another_needs_you_on_the_timeline_as_in_the_control_room(
    here: Here,
) -> None:
    def hold(tx: MailWrites) -> None:
        agents = tx.agents(1, include_retired=False, limit=5)
        for agent, pattern in zip(
            agents, ("src/**", "src/a.py", "docs/**", "tests/**", "tests/**"), strict=True
        ):
            tx.insert_reservation(
                agent, pattern=pattern, prefix="", exclusive=True, reason="", ttl=3_600, now=here.clock.now()
            )
        tx.begin_run("r", agents[0].id, here.clock.now())

    await orchard(here, 40)
    await here.store.write(hold)
    names = re.compile(r'<ul aria-label="Needs you">(.*?)</ul>', re.DOTALL)
    page = await here.timeline("")
    assert re.findall(r"<bdi>(\w+)</bdi></a> <span class=\"soft\">in conflict<", names.findall(page)[0]) == [
        *("Agent0", "Agent1", "Agent3", "Agent4"),
    ]
    here.clock.advance(timedelta(hours=2))  # what they held has expired
    assert not names.findall(await here.timeline("?span=8h"))


async def test_the_timeline_of_a_project_in_which_nothing_happened_opens_at_the_span_of_its_age(
    here: Here,
) -> None:
    await here.store.write(
        lambda tx: tx.insert_project(
            slug="orchard",
            human_key="/orchard",
            spelling="/orchard",
            git_identity="",
            owner="ana",
            now=here.clock.now(),
        )
    )
    for age, shown in {0: "1 min", 1: "15 min", 20: "1 h", 100: "8 h"}.items():
        here.clock.advance(timedelta(minutes=age))
        page = await here.timeline("")
        assert re.search(rf'aria-current="true">{shown}</a>', page), shown


async def test_the_timeline_opens_at_a_zoom_that_fits_what_there_is_however_long_ago_that_was(
    here: Here,
) -> None:
    """A second of work, like the demonstration's, shown after a while; then a new event happens."""

    def worked(tx: MailWrites) -> None:
        ada = tx.agents(1, include_retired=False, limit=1)[0]
        tx.begin_run("r", ada.id, here.clock.now() - 800)
        tx.end_run("r", now=here.clock.now())

    await orchard(here, 2, (0, 1))
    await here.store.write(worked)
    began, ended = here.clock.now() - 1_000, here.clock.now()
    for minutes in (2, 60, 60 * 24 * 7):
        here.clock.advance(timedelta(minutes=minutes))
        page = await here.timeline("")
        begin, end = bounds(page)
        assert begin <= began
        assert ended <= end
        assert (ended - began) * 4 >= (end - begin) * 3, f"{end - begin} ms after {minutes} minutes"
        assert " data-follows" not in page, "it need not be fetched anew: nothing moves"
        assert "Following" in page, "what happens is shown as it happens"
    await orchard_message(here, here.clock.now())
    page = await here.timeline("")
    assert re.search(r'aria-current="true">8 h</a>', page), "a week does not fit: the newest hours are shown"


async def test_everything_goes_up_to_the_present_while_somebody_is_at_work(here: Here) -> None:
    await orchard(here, 2, (0, 1))
    await here.store.write(lambda tx: tx.begin_run("r", 1, here.clock.now()))
    began = here.clock.now()
    here.clock.advance(timedelta(minutes=20))
    for address in ("/p/orchard/timeline", "/p/orchard/timeline?span=all"):
        page = (await here.browser.get(address)).text
        begin, end = bounds(page)
        assert begin <= began
        assert end > here.clock.now()
        assert " data-follows" in page


async def test_everything_begins_with_what_a_person_wrote_before_anybody_of_the_project(here: Here) -> None:
    def asked(tx: MailWrites) -> None:
        write = Writer(tx)
        people = write.project(PEOPLE_SLUG, PEOPLE_KEY)
        mira, ada = write.agent(people, "Mira"), tx.agents(1, include_retired=False, limit=1)[0]
        write.send(mira, "Please", "x", to=(ada,), at=here.clock.now())
        write.send(mira, "To nobody here", "x", to=(mira,), at=here.clock.now() + HOUR)
        write.send(ada, "Done", "x", to=(mira,), at=here.clock.now() + 10 * MINUTE)

    await orchard(here, 2)
    first = here.clock.now()
    await here.store.write(asked)
    here.clock.advance(timedelta(hours=3))
    page = await here.timeline("")
    begin, end = bounds(page)
    assert begin <= first
    assert end < first + 11 * MINUTE


async def test_the_list_has_a_run_where_that_happened_which_it_says(here: Here) -> None:
    now = here.clock.now()

    def ran(tx: MailWrites) -> None:
        project = tx.project("orchard")
        assert project is not None
        ada = tx.agents(project.id, include_retired=False, limit=1)[0]
        tx.begin_run("r", ada.id, now - 9_000)
        tx.end_run("r", now=now - 3_000)

    await orchard(here, 2)
    await here.store.write(
        lambda tx: Writer(tx).send(
            tx.agents(1, include_retired=False, limit=1)[0], "Mid", "x", at=now - 6_000
        )
    )
    await here.store.write(ran)
    page = await here.timeline("")
    assert re.findall(r'data-item data-key="(\w+):', page) == ["attempt", "message"]


async def test_where_a_question_ends_its_answer_is_marked(here: Here) -> None:
    now = here.clock.now()

    def asked(tx: MailWrites) -> None:
        for number, agent in enumerate(tx.agents(1, include_retired=False, limit=2)):
            tx.begin_run(f"r{number}", agent.id, now - 9_000)
            tx.end_run(f"r{number}", now=now - 6_000, outcome="waiting", asked_at={"q": 1})
        tx.begin_run("r0", 1, now - 3_000, answered=("q",))

    await orchard(here, 2)
    await here.store.write(asked)
    page = await here.timeline("")
    picture = page[page.index("tl-drawing") : page.index("tl-legend")]
    assert picture.count('class="tl-answer"') == 1
    assert ("Agent0 asked a person" in page, "Agent1 waits for an answer" in page) == (True, True)


# More messages than are drawn one by one.


async def busy(here: Here, *, agents: int, messages: int) -> None:
    """Make every agent but the last write in turn to the next, once a second up to the present."""

    def fill(tx: MailWrites) -> None:
        project = Writer(tx).project("orchard", "/orchard")
        made = [Writer(tx).agent(project, f"Agent{number}") for number in range(agents + 1)]
        for number in range(messages):
            Writer(tx).send(
                made[number % agents],
                f"Step {number}",
                "x",
                to=(made[(number + 1) % agents],),
                at=here.clock.now() - 1_000 * (messages - number),
            )

    await here.store.write(fill)


async def test_more_messages_than_are_drawn_are_listed_the_newest_first_and_the_way_back_has_each_of_them(
    here: Here,
) -> None:
    await busy(here, agents=3, messages=599)
    page = await here.timeline("?span=1h")
    assert "No events in this period" not in page
    assert drawn(page) == set(), "they are counted, not drawn one by one"
    found = [listed(page)]
    while "The list shows the newest 150" in page:
        further = re.search(r'href="([^"]+)">Earlier</a>', page)
        assert further
        page = (await here.browser.get(html.unescape(further[1]))).text
        assert not listed(page) <= found[-1], "it goes on where the list ended"
        found.append(listed(page))
    assert [len(one) for one in found[:3]] == [150, 150, 150]
    assert "message:599" in found[0]
    assert set[str]().union(*found) == {f"message:{number}" for number in range(1, 600)}


async def test_who_wrote_or_was_written_to_is_not_idle_where_messages_are_only_counted(here: Here) -> None:
    await busy(here, agents=60, messages=599)
    page = await here.timeline("?span=1h")
    counts = dict(re.findall(r"<b>. (\w[\w ]+)</b> <span class=\"soft\">(\d+) agent", page))
    assert counts == {"Needs you": "0", "Active": "0", "Quiet": "60", "Idle": "1"}


async def test_a_longer_span_never_has_fewer_messages_than_a_shorter_one(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(page: str) -> str:
        found = re.search(r"· ([\w ,]+) messages?, 0 runs", page)
        assert found
        return found[1]

    async def numbers(of: str = "") -> list[str]:
        lengths = ("1m", "15m", "1h", "8h", "all")
        return [told((await here.browser.get(f"/p/orchard/timeline?span={one}{of}")).text) for one in lengths]

    await busy(here, agents=3, messages=599)
    assert await numbers() == ["57", "599", "599", "599", "599"]
    assert await numbers("&agent=Agent0") == ["38", *["more than 300"] * 4]
    monkeypatch.setattr("postroom.web.timeline.TOTAL", 400)
    assert await numbers() == ["57", *["more than 400"] * 4]


async def test_what_people_wrote_to_a_project_is_counted_with_what_its_agents_wrote(here: Here) -> None:
    def asked(tx: MailWrites) -> None:
        write = Writer(tx)
        people = write.project(PEOPLE_SLUG, PEOPLE_KEY)
        mira, other = write.agent(people, "Mira"), write.agent(write.project("shed", "/shed"), "Zoe")
        ada = tx.agents(1, include_retired=False, limit=1)[0]
        for number in range(310):
            write.send(mira, "Elsewhere", "x", to=(other,), at=here.clock.now() - 2_000 - number)
        for number in range(5):
            write.send(mira, "Please", "x", to=(ada,), at=here.clock.now() - 9_000 - number)

    await busy(here, agents=3, messages=200)
    await here.store.write(asked)
    few = await here.timeline("?span=1h")
    assert "205 messages" in few
    assert len(drawn(few)) == 205, "those to elsewhere are neither drawn nor counted"

    def more(tx: MailWrites) -> None:
        ada = tx.agents(1, include_retired=False, limit=1)[0]
        for _ in range(200):
            Writer(tx).send(ada, "More", "x", at=here.clock.now() - 20_000)

    await here.store.write(more)
    many = await here.timeline("?span=1h")
    assert "405 messages" in many
    assert len(listed(many)) == 150


def leads(page: str, name: str) -> str:
    found = re.search(
        rf'<a (?:class="[^"]*" )?href="([^"]+)"[^>]*>{name}', page.replace(' aria-label="', ">")
    )
    assert found, name
    return html.unescape(found[1])


@each_row(
    "length, nearest",
    [(200, "2s"), (3_900, "2s"), (20_000, "1m"), (600_000, "15m"), (2 * HOUR, "1h"), (90 * HOUR, "8h")],
)
async def test_to_follow_the_present_keeps_about_the_length_that_is_seen(
    here: Here, length: int, nearest: str
) -> None:
    if not await here.store.read(lambda tx: tx.project("orchard")):
        await busy(here, agents=2, messages=3)
    address = f"/p/orchard/timeline?from={here.clock.now() - length - 9_000}&to={here.clock.now() - 9_000}"
    assert leads((await here.browser.get(address)).text, "To now") == f"/p/orchard/timeline?span={nearest}"


async def test_zoom_stays_within_what_can_be_chosen_and_ends_at_most_a_moment_after_now(here: Here) -> None:
    await busy(here, agents=2, messages=3)
    for name, length in (("Zoom in", 2_000), ("Zoom out", 8 * HOUR)):
        page = await here.timeline("?span=15m")
        for _ in range(12):
            page = (await here.browser.get(leads(page, name))).text
            begin, end = bounds(page)
            assert 2_000 <= end - begin <= 8 * HOUR
            assert end <= here.clock.now() + (end - begin) // 20
        assert end - begin == length
    for _ in range(3):
        page = (await here.browser.get(leads(page, "Later"))).text
        begin, end = bounds(page)
        assert (end - begin, end) == (8 * HOUR, here.clock.now() + 8 * HOUR // 20)


async def test_zoom_goes_out_to_all_there_is_where_that_is_longer(here: Here) -> None:
    await busy(here, agents=2, messages=3)
    began = here.clock.now() - 3_000
    here.clock.advance(timedelta(days=3))
    page = await here.timeline("?span=8h")
    for _ in range(6):
        page = (await here.browser.get(leads(page, "Zoom out"))).text
    begin, end = bounds(page)
    assert (begin <= began, end > here.clock.now(), end - begin < 120 * HOUR) == (True, True, True)


async def test_a_span_that_is_none_is_told_with_those_there_are(here: Here) -> None:
    await busy(here, agents=2, messages=3)
    page = await here.timeline("?span=9h")
    assert "Span must be one of 2s, 1m, 15m, 1h, 8h, all, last, not &#39;9h&#39;" in page


# Where nothing has happened for a while.


async def wrote(here: Here, *ago: int) -> None:
    """Make an agent write, and another work on it for ten minutes, each the given milliseconds ago."""

    def fill(tx: MailWrites) -> None:
        project = Writer(tx).project("orchard", "/orchard")
        ada, ben = (Writer(tx).agent(project, name) for name in ("Ada", "Ben"))
        for number, before in enumerate(ago):
            at = here.clock.now() - before
            Writer(tx).send(ada, f"Step {number}", "x", to=(ben,), at=at)
            tx.begin_run(f"run-{number}", ben.id, at)
            tx.end_run(f"run-{number}", now=at + 10 * MINUTE)

    await here.store.write(fill)


async def test_it_opens_at_the_last_that_happened_and_says_that_this_is_not_now(here: Here) -> None:
    now = here.clock.now()
    await wrote(here, 30 * DAY, 3 * DAY + 50 * MINUTE, 3 * DAY + 10 * MINUTE)
    page = await here.timeline("")
    assert drawn(page) == {"message:2", "message:3"}
    begin, end = bounds(page)
    assert now - 3 * DAY <= end < now - 3 * DAY + 5 * MINUTE
    assert now - 3 * DAY - HOUR < begin < now - 3 * DAY - 50 * MINUTE
    told = re.sub("<[^>]+>", "", page)
    assert "Past: the last event was 3 days ago" in told
    assert "Following" in told, "what happens is shown as it happens"
    assert re.search(r'href="/p/orchard/timeline\?span=1h"[^>]*>To now', page)


async def test_its_links_lead_to_the_same_and_it_goes_on_with_the_present_once_something_happens(
    here: Here,
) -> None:
    await wrote(here, 30 * DAY, 3 * DAY)
    page = await here.timeline("?sel=message:2")
    assert 'href="/p/orchard/timeline?span=last"' in page, "what closes the panel"
    assert bounds(await here.timeline("?span=last")) == bounds(page)
    begin, end = bounds(page)
    assert end - begin < HOUR, "what happened last is not a dot in a void"
    await here.store.write(lambda tx: _written_now(tx, here.clock.now()))
    for address in ("/p/orchard/timeline", "/p/orchard/timeline?span=last"):
        page = (await here.browser.get(address)).text
        assert "message:3" in drawn(page)
        assert bounds(page)[1] > here.clock.now()
        assert "Past: " not in page


async def test_all_of_a_short_life_says_how_long_ago_it_ended(here: Here) -> None:
    await wrote(here, 2 * DAY + HOUR, 2 * DAY)
    page = await here.timeline("")
    assert drawn(page) == {"message:1", "message:2"}
    assert "Past: the last event was " in re.sub("<[^>]+>", "", page)


def _written_now(tx: MailWrites, now: int) -> None:
    ada, ben = tx.agents(1, include_retired=False, limit=2)
    Writer(tx).send(ada, "Again", "x", to=(ben,), at=now)
