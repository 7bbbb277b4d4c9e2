"""Promises of a mail store about the logs of projects: whole, without gaps, undone with their change."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from conformance.promises.given import (
    MINUTE,
    Office,
    agent,
    an_office,
    never_made,
    project,
    put_message,
    reservation,
)
from postroom.contracts.project_log import EventKind, LogBounds
from postroom.contracts.waking import AskedQuestion, MessageRun
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

TOGETHER = 30
"""How many writers a promise about concurrency uses."""
FURNISHED = 4
"""Entries that an office begins with: itself and its agents."""


async def _told(store: MailStore, project_id: int, *, after: int = FURNISHED) -> list[tuple[object, ...]]:
    """Return what was told since: kind, instant, ids and detail."""
    found = await store.read(lambda tx: tx.project_events(project_id, after=after, limit=999))
    return [
        (one.happening.kind, one.happening.at, one.happening.agent_id, dict(one.happening.detail))
        for one in found
    ]


async def _kinds(store: MailStore, here: Office, change: Callable[[MailWrites], object]) -> list[EventKind]:
    """Return the kinds that a change adds to the log of an office."""
    before = await store.read(lambda tx: tx.log_bounds(here.project.id).newest)
    await store.write(change)
    found = await store.read(lambda tx: tx.project_events(here.project.id, after=before, limit=999))
    return [one.happening.kind for one in found]


async def a_log_begins_with_its_project(store: MailStore, clock: ManualClock) -> None:
    """Numbered from 1; a project that is not there has an empty one."""
    here = await an_office(store)
    assert await _told(store, here.project.id, after=0) == [
        ("project.made", 1, None, {}),
        *(("agent.registered", 1, one.id, {}) for one in (here.ada, here.ben, here.cyd)),
    ]
    assert await store.read(lambda tx: tx.log_bounds(here.project.id)) == LogBounds(oldest=0, newest=4)
    assert await store.read(lambda tx: tx.log_bounds(99)) == LogBounds(oldest=0, newest=0)


async def what_agents_do_of_themselves_is_told(store: MailStore, clock: ManualClock) -> None:
    """What says the same as before is not told."""
    here = await an_office(store)
    ada, says = here.ada.id, {"program": "p", "model": "m", "task_description": "t"}
    assert await _kinds(store, here, lambda tx: tx.update_agent(ada, now=5, **says)) == ["agent.changed"]
    assert await _kinds(store, here, lambda tx: tx.update_agent(ada, now=6, **says)) == []
    assert await _kinds(store, here, lambda tx: tx.set_agent_retired(ada, 7, now=7)) == ["agent.retired"]
    assert await _kinds(store, here, lambda tx: tx.set_agent_retired(ada, 8, now=8)) == []
    assert await _kinds(store, here, lambda tx: tx.set_agent_retired(ada, None, now=8)) == ["agent.unretired"]
    closed = [await _kinds(store, here, lambda tx: tx.set_contact_policy(ada, "closed", now=9)) for _ in "12"]
    assert closed == [["agent.policy_set"], []]
    put = await _kinds(store, here, lambda tx: tx.put_runner(ada, "{}", declared_by="file", now=10))
    assert put == ["agent.runner_set"]
    assert await _kinds(store, here, lambda tx: tx.drop_runner(ada, now=11)) == ["agent.runner_dropped"]
    assert await _kinds(store, here, lambda tx: tx.drop_runner(ada, now=12)) == []
    assert [at for _, at, who, _ in await _told(store, here.project.id) if who == ada] == [5, 7, 8, 9, 10, 11]


async def a_message_is_told_once_in_each_project(store: MailStore, clock: ManualClock) -> None:
    """In its own and in those of its readers; where only hidden copies came it is marked so."""
    here, there = await an_office(store), await an_office(store, "shore")
    await an_office(store, "inland")
    sent = await store.write(
        lambda tx: put_message(
            tx, here.ada, [here.ben, there.ada, there.ben], thread="t", importance="high", now=5
        )
    )
    open_detail = {"thread_id": "t", "importance": "high"}
    entry = ("message.sent", 5, here.ada.id, open_detail)
    assert await _told(store, here.project.id) == [entry]
    assert await _told(store, there.project.id) == [entry]
    found = await store.read(lambda tx: tx.project_events(there.project.id, after=FURNISHED, limit=9))
    assert (found[0].project_id, found[0].seq, found[0].happening.message_id) == (
        there.project.id,
        5,
        sent.id,
    )
    hidden = await store.write(
        lambda tx: put_message(tx, here.ada, [there.ada], kind="bcc", thread="t", now=6)
    )
    assert await _told(store, there.project.id, after=5) == [
        ("message.sent", 6, here.ada.id, {"thread_id": "t", "importance": "normal", "hidden": True})
    ]
    await store.write(lambda tx: tx.mark_recalled(sent.id, 7))
    await store.write(lambda tx: tx.mark_recalled(sent.id, 8))
    await store.write(lambda tx: tx.mark_recalled(hidden.id, 9))
    recalled: list[tuple[object, ...]] = [
        ("message.recalled", 7, here.ada.id, {}),
        ("message.recalled", 9, here.ada.id, {}),
    ]
    assert (await _told(store, here.project.id))[2:] == recalled
    assert (await _told(store, there.project.id))[2:] == [
        recalled[0],
        ("message.recalled", 9, here.ada.id, {"hidden": True}),
    ]


async def each_step_of_a_delivery_is_told_once(store: MailStore, clock: ManualClock) -> None:
    """To the message's project and the reader's; an acknowledgement of an unread message is a reading too."""
    here, there = await an_office(store), await an_office(store, "shore")
    reader = there.ada.id
    sent = await store.write(lambda tx: put_message(tx, here.ada, [there.ada], now=5).id)
    message_run = MessageRun(message_id=sent, agent_id=reader, run_id="r", delivered_at=7)
    steps: list[Callable[[MailWrites], object]] = [
        lambda tx: tx.mark_announced(reader, [sent, 99], by="hook", now=6),
        lambda tx: tx.put_message_run(message_run),
        lambda tx: tx.mark_acked(sent, reader, 8),
        lambda tx: tx.mark_read(sent, reader, 9),
    ]
    for step in [one for one in steps for _ in range(2) if one is not steps[1]] + [steps[1]]:
        await store.write(step)
    ended = MessageRun(
        message_id=sent, agent_id=reader, run_id="r", delivered_at=7, ended_at=11, failure="why"
    )
    await store.write(lambda tx: tx.put_message_run(ended))
    told = [
        ("delivery.announced", 6, reader, {"by": "hook"}),
        ("delivery.read", 8, reader, {}),
        ("delivery.acknowledged", 8, reader, {}),
        ("delivery.delivered", 7, reader, {}),
        ("delivery.failed", 11, reader, {}),
    ]
    for home in (here.project.id, there.project.id):
        assert (await _told(store, home))[1:] == told
    last = await store.read(lambda tx: tx.project_events(here.project.id, after=9, limit=1))
    assert (last[0].happening.run_id, last[0].happening.message_id) == ("r", sent)


async def messages_are_announced_in_the_order_in_which_they_are_named(
    store: MailStore, clock: ManualClock
) -> None:
    """Each once, however often it is named."""
    here = await an_office(store)
    ids = await store.write(lambda tx: [put_message(tx, here.ada, [here.ben], now=5).id for _ in range(3)])
    named = [ids[2], ids[0], ids[2], ids[1]]
    assert await store.write(lambda tx: tx.mark_announced(here.ben.id, named, by="hook", now=6)) == 3
    found = await store.read(lambda tx: tx.project_events(here.project.id, after=FURNISHED + 3, limit=9))
    assert [one.happening.message_id for one in found] == [ids[2], ids[0], ids[1]]


async def what_comes_of_a_hidden_copy_is_marked(store: MailStore, clock: ManualClock) -> None:
    """Whoever may not know of the copy can be kept from it."""
    here = await an_office(store)
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben], kind="bcc", now=5).id)
    handled = MessageRun(message_id=sent, agent_id=here.ben.id, run_id="r", delivered_at=6, ended_at=7)
    await store.write(lambda tx: tx.mark_announced(here.ben.id, [sent], by="hook", now=6))
    await store.write(lambda tx: tx.put_message_run(handled))
    await store.write(lambda tx: tx.mark_acked(sent, here.ben.id, 8))
    told = [(kind, detail.get("hidden")) for kind, _, _, detail in await _told(store, here.project.id)]  # type: ignore[attr-defined]
    assert told == [
        ("message.sent", None),
        ("delivery.announced", True),
        ("delivery.handled", True),
        ("delivery.read", True),
        ("delivery.acknowledged", True),
    ]


async def what_becomes_of_a_reservation_is_told(store: MailStore, clock: ManualClock) -> None:
    """Who ends another's takes it; one whose time is over is told when that is noticed."""
    here, now = await an_office(store), clock.now()
    ids = await store.write(
        lambda tx: [reservation(tx, here.ada, name, now=now).id for name in ("a", "b", "c")]
    )
    await store.write(
        lambda tx: tx.extend_reservation(
            ids[0], expires_at=now + 2 * MINUTE, ttl=MINUTE, exclusive=False, reason="x", now=now + 1
        )
    )
    for _ in range(2):
        await store.write(lambda tx: tx.release_reservation(ids[0], now=now + 2, by="ADA", reason="done"))
    await store.write(lambda tx: tx.release_reservation(ids[1], now=now + 3, by="Ben", reason="done"))
    for _ in range(2):
        await store.write(lambda tx: tx.expire_reservations(here.project.id, now + MINUTE))
    ada = here.ada.id
    assert (await _told(store, here.project.id))[3:] == [
        ("reservation.renewed", now + 1, ada, {"path": "a/**", "exclusive": False}),
        ("reservation.released", now + 2, ada, {"path": "a/**"}),
        ("reservation.taken", now + 3, ada, {"path": "b/**", "by": "Ben"}),
        ("reservation.expired", now + MINUTE, ada, {"path": "c/**"}),
    ]


async def contacts_are_told_in_both_projects(store: MailStore, clock: ManualClock) -> None:
    """With who did something, and with the other."""
    here, there = await an_office(store), await an_office(store, "shore")
    ada, other = here.ada.id, there.ben.id
    for status, now in (("pending", 5), ("approved", 6), ("approved", 6), ("blocked", 7)):
        await store.write(
            lambda tx, status=status, now=now: tx.put_contact(ada, other, status=status, reason="", now=now)  # type: ignore[misc]
        )
    told = [
        ("contact.asked", 5, ada, {"other_id": other}),
        ("contact.granted", 6, other, {"other_id": ada}),
        ("contact.blocked", 7, other, {"other_id": ada}),
    ]
    assert await _told(store, here.project.id) == told
    assert await _told(store, there.project.id) == told


async def a_run_and_its_questions_are_told(store: MailStore, clock: ManualClock) -> None:
    """A run that has asked is paused, one that begins while it is at work was cut off before.

    The same question again, or the end of no run, is not told.
    """
    here = await an_office(store)
    ada, question = here.ada.id, AskedQuestion(id="q", text="SECRET")
    await store.write(lambda tx: tx.begin_run("r", ada, 5))
    for now in (6, 7):
        await store.write(lambda tx, now=now: tx.ask("r", ada, question, now))  # type: ignore[misc]
    await store.write(lambda tx: tx.end_run("r", now=8, waits_for={"q": 8}))
    await store.write(lambda tx: tx.end_run("r", now=9))
    await store.write(lambda tx: tx.begin_run("r", ada, 10, answered=["q"]))
    await store.write(lambda tx: tx.end_run("r", now=11, failed=True))
    await store.write(lambda tx: tx.begin_run("s", ada, 12))
    await store.write(lambda tx: tx.begin_run("s", ada, 13))
    await store.write(lambda tx: tx.end_run("s", now=14, waits_for={"p": 13, "q": 14}))
    await store.write(lambda tx: tx.begin_run("s", ada, 15, answered=["p"]))
    await store.write(lambda tx: tx.end_run("s", now=16, waits_for={"q": 14}))
    await store.write(lambda tx: tx.begin_run("s", ada, 17))
    await store.write(lambda tx: tx.end_run("s", now=18))
    await store.write(lambda tx: tx.withdraw_questions("r", ada, ["q", "p"], now=19))
    assert await _told(store, here.project.id) == [
        ("run.began", 5, ada, {}),
        ("question.asked", 6, ada, {"question_id": "q"}),
        ("run.waiting", 8, ada, {}),
        ("question.answered", 10, ada, {"question_id": "q"}),
        ("run.began", 10, ada, {}),
        ("run.failed", 11, ada, {}),
        ("run.began", 12, ada, {}),
        ("run.cut_off", 13, ada, {}),
        ("run.began", 13, ada, {}),
        ("question.asked", 14, ada, {"question_id": "p"}),
        ("question.asked", 14, ada, {"question_id": "q"}),
        ("run.waiting", 14, ada, {}),
        ("question.answered", 15, ada, {"question_id": "p"}),
        ("run.began", 15, ada, {}),
        ("run.waiting", 16, ada, {}),
        ("run.began", 17, ada, {}),
        ("run.ended", 18, ada, {}),
        ("question.withdrawn", 19, ada, {"question_id": "q"}),
        ("question.withdrawn", 19, ada, {"question_id": "p"}),
        ("run.failed", 19, ada, {}),
    ]


async def a_log_has_no_gaps_under_concurrent_writers(store: MailStore, clock: ManualClock) -> None:
    """Nor for changes that are undone in between; each project has numbers of its own."""
    here, there = await an_office(store), await an_office(store, "shore")

    async def work(number: int) -> None:
        home = here if number % 3 else there
        if number % 2:
            await never_made(store, lambda tx: put_message(tx, home.ada, [here.ben]))
        await store.write(lambda tx: put_message(tx, home.ada, [home.ben, home.cyd]))

    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(work(number))
    for home, messages in ((here, TOGETHER * 2 // 3), (there, TOGETHER // 3)):
        found = await store.read(lambda tx, home=home: tx.project_events(home.project.id, after=0, limit=999))  # type: ignore[misc]
        assert [one.seq for one in found] == list(range(1, FURNISHED + messages + 1))


async def a_change_that_is_undone_is_not_told(store: MailStore, clock: ManualClock) -> None:
    """Its numbers go to the next."""
    here = await an_office(store)
    await never_made(store, lambda tx: put_message(tx, here.ada, [here.ben]))
    assert await store.read(lambda tx: tx.log_bounds(here.project.id).newest) == FURNISHED
    await store.write(lambda tx: agent(tx, here.project.id, "Dot", now=8))
    assert await _told(store, here.project.id) == [("agent.registered", 8, here.ada.id + 3, {})]


async def a_log_is_read_in_pages_and_by_kind(store: MailStore, clock: ManualClock) -> None:
    """Oldest first, those behind a number."""
    here = await an_office(store)
    for _ in range(3):
        await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
        await store.write(lambda tx: reservation(tx, here.ada, "src", now=1))

    async def seqs(after: int, limit: int, *kinds: EventKind) -> list[int]:
        found = await store.read(
            lambda tx: tx.project_events(here.project.id, after=after, limit=limit, kinds=kinds)
        )
        return [one.seq for one in found]

    assert await seqs(0, 3) == [1, 2, 3]
    assert await seqs(8, 9) == [9, 10]
    assert await seqs(10, 9) == []
    assert await seqs(5, 2, "reservation.made") == [6, 8]
    assert await seqs(0, 9, "project.made", "message.sent") == [1, 5, 7, 9]


async def a_log_is_trimmed_from_its_beginning(store: MailStore, clock: ManualClock) -> None:
    """In steps, never the newest; numbers go on. A trim that is undone takes nothing."""
    here, there = await an_office(store), await an_office(store, "shore")
    home = here.project.id

    async def trim(keep: int, limit: int) -> tuple[int, LogBounds]:
        gone = await store.write(lambda tx: tx.trim_log(home, keep=keep, limit=limit))
        return gone, await store.read(lambda tx: tx.log_bounds(home))

    assert await trim(4, 9) == (0, LogBounds(oldest=0, newest=4))
    await never_made(store, lambda tx: tx.trim_log(home, keep=1, limit=9))
    assert await trim(2, 1) == (1, LogBounds(oldest=1, newest=4))
    assert await trim(2, 9) == (1, LogBounds(oldest=2, newest=4))
    assert await trim(0, 9) == (1, LogBounds(oldest=3, newest=4))
    assert await trim(1, 9) == (0, LogBounds(oldest=3, newest=4))
    await store.write(lambda tx: agent(tx, home, "Dot"))
    found = await store.read(lambda tx: tx.project_events(home, after=0, limit=9))
    assert [one.seq for one in found] == [4, 5]
    assert all(later.seq == earlier.seq + 1 for earlier, later in pairwise(found))
    assert await store.read(lambda tx: tx.log_bounds(there.project.id).oldest) == 0
    assert await store.write(lambda tx: tx.trim_log(99, keep=1, limit=9)) == 0


async def who_has_to_do_with_a_message_is_known(store: MailStore, clock: ManualClock) -> None:
    """Its writer, and those to whom it came, hidden or not."""
    here = await an_office(store)

    def change(tx: MailWrites) -> list[int]:
        own = put_message(tx, here.ada, [here.ada], now=1).id
        hidden = put_message(tx, here.ben, [here.ada], kind="bcc", now=1).id
        other = put_message(tx, here.ben, [here.cyd], now=1).id
        return [own, hidden, other]

    own, hidden, other = await store.write(change)
    asked = [own, hidden, other, 99]
    assert await store.read(lambda tx: tx.messages_of(here.ada.id, asked)) == ({own}, {own, hidden})
    assert await store.read(lambda tx: tx.messages_of(here.ada.id, [])) == (set(), set())


async def nothing_is_told_of_rows_that_are_put_back(store: MailStore, clock: ManualClock) -> None:
    """A store that was filled from elsewhere begins its logs with what happens next."""
    row = {"id": 7, "slug": "s", "human_key": "/s", "created_at": 1, "spelling": "/s"}
    await store.write(lambda tx: tx.restore_rows({"projects": [row]}))
    assert await store.read(lambda tx: tx.log_bounds(7)) == LogBounds(oldest=0, newest=0)
    await store.write(lambda tx: agent(tx, 7, "Ada"))
    await store.write(lambda tx: project(tx, "another"))
    assert await _told(store, 7, after=0) == [("agent.registered", 1, 1, {})]


PROMISES = (
    a_log_begins_with_its_project,
    what_agents_do_of_themselves_is_told,
    a_message_is_told_once_in_each_project,
    each_step_of_a_delivery_is_told_once,
    messages_are_announced_in_the_order_in_which_they_are_named,
    what_comes_of_a_hidden_copy_is_marked,
    what_becomes_of_a_reservation_is_told,
    contacts_are_told_in_both_projects,
    a_run_and_its_questions_are_told,
    a_log_has_no_gaps_under_concurrent_writers,
    a_change_that_is_undone_is_not_told,
    a_log_is_read_in_pages_and_by_kind,
    a_log_is_trimmed_from_its_beginning,
    who_has_to_do_with_a_message_is_known,
    nothing_is_told_of_rows_that_are_put_back,
)
