"""The logs of projects: whole, without gaps, undone with their change."""

import asyncio
from collections.abc import Callable

from conformance.boxes import Box, on_each
from conformance.promises.given import MINUTE, Office, agent, an_office, never_made, put_message, reservation
from postroom.contracts.mail import LogBounds
from postroom.contracts.waking import AskedQuestion, MessageRun
from postroom.stores.mail.store import MailStore

TOGETHER = 30
FURNISHED = 4
"""Entries that an office begins with: itself and its agents."""


def told(box: Box, office: Office, *, after: int = FURNISHED) -> list[tuple[object, ...]]:
    """Return the new entries: kind, instant, agent and detail."""
    found = [one.happening for one in box.project_events(office.project.id, after=after, limit=999)]
    return [(one.kind, one.at, one.agent_id, dict(one.detail)) for one in found]


def test_a_log_begins_with_its_project(box: Box, here: Office) -> None:
    assert told(box, here, after=0) == [
        ("project.made", 1, None, {}),
        *(("agent.registered", 1, one.id, {}) for one in (here.ada, here.ben, here.cyd)),
    ]
    assert box.log_bounds(here.project.id) == LogBounds(oldest=0, newest=4)
    assert box.log_bounds(99) == LogBounds(oldest=0, newest=0)


def test_what_agents_do_of_themselves_is_told_unless_it_says_the_same(box: Box, here: Office) -> None:
    ada, says = here.ada.id, {"program": "p", "model": "m", "task_description": "t"}
    for now in (5, 6):
        box.update_agent(ada, now=now, **says)
    for now, retired_at in ((7, 7), (8, 8), (8, None)):
        box.set_agent_retired(ada, retired_at, now=now)
    for now in (9, 9):
        box.set_contact_policy(ada, "closed", now=now)
    box.put_runner(ada, "{}", declared_by="file", now=10)
    for now in (11, 12):
        box.drop_runner(ada, now=now)
    assert [(kind, at) for kind, at, who, _ in told(box, here) if who == ada] == [
        ("agent.changed", 5),
        ("agent.retired", 7),
        ("agent.unretired", 8),
        ("agent.policy_set", 9),
        ("agent.runner_set", 10),
        ("agent.runner_dropped", 11),
    ]


def test_a_message_is_told_once_in_each_project_and_marked_where_only_hidden_copies_came(
    box: Box, here: Office, there: Office
) -> None:
    box.change(lambda tx: agent(tx, there.project.id, "Dot"))
    ada, readers = here.ada.id, [here.ben, there.ada, there.ben]
    sent = box.put(here.ada, readers, thread="t", importance="high", now=5)
    hidden = box.put(here.ada, [there.ada], kind="bcc", thread="t", now=6)
    for message, now in ((sent, 7), (sent, 8), (hidden, 9)):
        box.mark_recalled(message.id, now)
    detail = {"thread_id": "t", "importance": "high"}
    normal = {"thread_id": "t", "importance": "normal"}
    assert told(box, here) == [
        ("message.sent", 5, ada, detail),
        ("message.sent", 6, ada, normal),
        ("message.recalled", 7, ada, {}),
        ("message.recalled", 9, ada, {}),
    ]
    assert told(box, there, after=FURNISHED + 1) == [
        ("message.sent", 5, ada, detail),
        ("message.sent", 6, ada, {**normal, "hidden": True}),
        ("message.recalled", 7, ada, {}),
        ("message.recalled", 9, ada, {"hidden": True}),
    ]
    [entry] = box.project_events(there.project.id, after=FURNISHED + 1, limit=1)
    assert (entry.project_id, entry.seq) == (there.project.id, FURNISHED + 2)
    assert entry.happening.message_id == sent.id


def test_each_step_of_a_delivery_is_told_once_to_both_projects(box: Box, here: Office, there: Office) -> None:
    reader = there.ada.id
    sent = box.put(here.ada, [there.ada], now=5).id
    run = {"message_id": sent, "agent_id": reader, "run_id": "r", "delivered_at": 7}
    for _ in range(2):
        box.mark_announced(reader, [sent, 99], by="hook", now=6)
    for mark, now in ((box.mark_acked, 8), (box.mark_acked, 8), (box.mark_read, 9)):
        mark(sent, reader, now)
    box.put_message_run(MessageRun(**run))
    box.put_message_run(MessageRun(**run, ended_at=11, failure="why"))
    for home in (here, there):
        assert told(box, home)[1:] == [
            ("delivery.announced", 6, reader, {"by": "hook"}),
            ("delivery.read", 8, reader, {}),
            ("delivery.acknowledged", 8, reader, {}),
            ("delivery.delivered", 7, reader, {}),
            ("delivery.failed", 11, reader, {}),
        ]
    [last] = box.project_events(here.project.id, after=9, limit=1)
    assert (last.happening.run_id, last.happening.message_id) == ("r", sent)


def test_messages_are_announced_in_the_order_in_which_they_are_named(box: Box, here: Office) -> None:
    one, two, three = (box.put(here.ada, [here.ben], now=5).id for _ in range(3))
    assert box.mark_announced(here.ben.id, [three, one, three, two], by="hook", now=6) == 3
    found = box.project_events(here.project.id, after=FURNISHED + 3, limit=9)
    assert [one.happening.message_id for one in found] == [three, one, two]


def test_what_comes_of_a_hidden_copy_is_marked(box: Box, here: Office) -> None:
    ben = here.ben.id
    sent = box.put(here.ada, [here.ben], kind="bcc", now=5).id
    box.mark_announced(ben, [sent], by="hook", now=6)
    box.put_message_run(MessageRun(message_id=sent, agent_id=ben, run_id="r", delivered_at=6, ended_at=7))
    box.mark_acked(sent, ben, 8)
    assert [(kind, detail.get("hidden")) for kind, _, _, detail in told(box, here)] == [
        ("message.sent", None),
        ("delivery.announced", True),
        ("delivery.handled", True),
        ("delivery.read", True),
        ("delivery.acknowledged", True),
    ]


def test_what_becomes_of_a_reservation_is_told(box: Box, here: Office) -> None:
    a, b, _ = (reservation(box, here.ada, name, now=5).id for name in ("a", "b", "c"))
    box.extend_reservation(a, expires_at=5 + 2 * MINUTE, ttl=MINUTE, exclusive=False, reason="x", now=6)
    for _ in range(2):
        box.release_reservation(a, now=7, by="ADA", reason="done")
    box.release_reservation(b, now=8, by="Ben", reason="done")
    for _ in range(2):
        box.expire_reservations(here.project.id, 5 + MINUTE)
    ada = here.ada.id
    assert told(box, here)[3:] == [
        ("reservation.renewed", 6, ada, {"path": "a/**", "exclusive": False}),
        ("reservation.released", 7, ada, {"path": "a/**"}),
        ("reservation.taken", 8, ada, {"path": "b/**", "by": "Ben"}),
        ("reservation.expired", 5 + MINUTE, ada, {"path": "c/**"}),
    ]


def test_contacts_are_told_in_both_projects(box: Box, here: Office, there: Office) -> None:
    ada, other = here.ada.id, there.ben.id
    for status, now in (("pending", 5), ("approved", 6), ("approved", 6), ("blocked", 7)):
        box.put_contact(ada, other, status=status, reason="", now=now)
    expected = [
        ("contact.asked", 5, ada, {"other_id": other}),
        ("contact.granted", 6, other, {"other_id": ada}),
        ("contact.blocked", 7, other, {"other_id": ada}),
    ]
    assert told(box, here) == told(box, there) == expected


def test_a_run_and_its_questions_are_told(box: Box, here: Office) -> None:
    ada, question = here.ada.id, AskedQuestion(id="q", text="SECRET")
    box.begin_run("r", ada, 5)
    for now in (6, 7):  # the same question again, or the end of no run, is not told
        box.ask("r", ada, question, now)
    box.end_run("r", now=8, outcome="waiting", asked_at={"q": 8})
    box.end_run("r", now=9)
    box.begin_run("r", ada, 10, answered=["q"])
    box.end_run("r", now=11, outcome="failed")
    box.begin_run("s", ada, 12)
    box.begin_run("s", ada, 13)  # one that begins while it is at work was cut off before
    box.end_run("s", now=14, outcome="waiting", asked_at={"p": 13, "q": 14})
    box.begin_run("s", ada, 15, answered=["p"])
    box.end_run("s", now=16, outcome="waiting", asked_at={"q": 14})
    box.begin_run("s", ada, 17)
    box.end_run("s", now=18)
    box.withdraw_questions("r", ada, ["q", "p"], now=19)
    assert [(kind, at, *detail.values()) for kind, at, who, detail in told(box, here) if who == ada] == [
        ("run.began", 5),
        ("question.asked", 6, "q"),
        ("run.waiting", 8),
        ("question.answered", 10, "q"),
        ("run.began", 10),
        ("run.failed", 11),
        ("run.began", 12),
        ("run.cut_off", 13),
        ("run.began", 13),
        ("question.asked", 14, "p"),
        ("question.asked", 14, "q"),
        ("run.waiting", 14),
        ("question.answered", 15, "p"),
        ("run.began", 15),
        ("run.waiting", 16),
        ("run.began", 17),
        ("run.ended", 18),
        ("question.withdrawn", 19, "q"),
        ("question.withdrawn", 19, "p"),
        ("run.failed", 19),
    ]


@on_each
async def test_a_log_has_no_gaps_under_concurrent_writers(mail_store: MailStore) -> None:
    here, there = await an_office(mail_store), await an_office(mail_store, "shore")

    async def work(number: int) -> None:
        home = here if number % 3 else there
        if number % 2:
            await never_made(mail_store, lambda tx: put_message(tx, home.ada, [here.ben]))
        await mail_store.write(lambda tx: put_message(tx, home.ada, [home.ben, home.cyd]))

    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(work(number))
    for home, messages in ((here.project.id, TOGETHER * 2 // 3), (there.project.id, TOGETHER // 3)):
        look: Callable = lambda tx, home=home: tx.project_events(home, after=0, limit=999)  # noqa: E731
        found = await mail_store.read(look)
        assert [one.seq for one in found] == list(range(1, FURNISHED + messages + 1))


def test_a_change_that_is_undone_is_not_told_and_its_numbers_go_to_the_next(box: Box, here: Office) -> None:
    box.undo(lambda tx: put_message(tx, here.ada, [here.ben]))
    assert box.log_bounds(here.project.id).newest == FURNISHED
    dot = agent(box, here.project.id, "Dot", now=8)
    assert told(box, here) == [("agent.registered", 8, dot.id, {})]


def test_a_log_is_read_in_pages_and_by_kind(box: Box, here: Office) -> None:
    for _ in range(3):
        box.put(here.ada, [here.ben])
        reservation(box, here.ada, "src", now=1)

    def seqs(after: int, limit: int, *kinds: str) -> list[int]:
        found = box.project_events(here.project.id, after=after, limit=limit, kinds=kinds)
        return [one.seq for one in found]

    assert seqs(0, 3) == [1, 2, 3]
    assert seqs(8, 9) == [9, 10]
    assert seqs(10, 9) == []
    assert seqs(5, 2, "reservation.made") == [6, 8]
    assert seqs(0, 9, "project.made", "message.sent") == [1, 5, 7, 9]


def test_a_log_is_trimmed_from_its_beginning_and_never_of_its_newest(
    box: Box, here: Office, there: Office
) -> None:
    home = here.project.id

    def trim(keep: int, limit: int) -> tuple[int, int, int]:
        gone, bounds = box.trim_log(home, keep=keep, limit=limit), box.log_bounds(home)
        return gone, bounds.oldest, bounds.newest

    assert trim(4, 9) == (0, 0, 4)
    box.undo(lambda tx: tx.trim_log(home, keep=1, limit=9))
    assert [trim(2, 1), trim(2, 9), trim(0, 9), trim(1, 9)] == [(1, 1, 4), (1, 2, 4), (1, 3, 4), (0, 3, 4)]
    agent(box, home, "Dot")
    assert [one.seq for one in box.project_events(home, after=0, limit=9)] == [4, 5]
    assert box.log_bounds(there.project.id).oldest == 0
    assert box.trim_log(99, keep=1, limit=9) == 0


def test_who_has_to_do_with_a_message_is_known(box: Box, here: Office) -> None:
    own = box.put(here.ada, [here.ada]).id
    hidden = box.put(here.ben, [here.ada], kind="bcc").id
    other = box.put(here.ben, [here.cyd]).id
    assert box.messages_of(here.ada.id, [own, hidden, other, 99]) == ({own}, {own, hidden})
    assert box.messages_of(here.ada.id, []) == (set(), set())
