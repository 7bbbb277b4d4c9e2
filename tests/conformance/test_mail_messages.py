"""Messages, recipients, inboxes and threads."""

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import MINUTE, Office
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import ThreadFilter
from postroom.testing import ManualClock

ODD_TEXT = "a\r\nb\tc \u00a0\u200b\u202e\ufeff\x01\x7f é e\u0301 ß 中文 👩‍👩‍👧 \U0010ffff '\"; -- % _ \\"
FAR = 2**53 + 1
"""The first whole number that a floating-point number cannot hold."""
LARGEST = 2**63 - 1


def three(box: Box, office: Office) -> list[int]:
    return [box.put(office.ada, [office.ben], now=5).id for _ in range(3)]


def ids(messages) -> list[int]:
    return [one.id for one in messages]


def inbox(box: Box, agent_id: int, **narrowed) -> list[int]:
    return [entry.message.id for entry in box.inbox(agent_id, **{"limit": 10, **narrowed})]


@on_both
def test_a_message_reads_back_as_it_was_sent(box: Box, here: Office, clock: ManualClock) -> None:
    given = {
        "project_id": here.project.id,
        "thread_id": "plan:1.a_b-c",
        "subject": f"Subject {ODD_TEXT}",
        "body_md": ODD_TEXT * 1_000,
        "importance": "urgent",
        "ack_required": True,
        "topic": "tøpic",
        "broadcast": True,
        "reply_to": 7,
    }
    sent = box.insert_message(sender=here.ada, now=clock.now(), **given)
    assert {name: getattr(sent, name) for name in given} == given
    assert (sent.sender_id, sent.sender_name) == (here.ada.id, "Ada")
    assert (sent.created_at, sent.recalled_at) == (clock.now(), None)
    assert box.message(sent.id) == sent
    assert box.messages([sent.id, 99, sent.id]) == {sent.id: sent}


def test_a_message_without_a_thread_begins_one(box: Box, here: Office) -> None:
    sent = box.put(here.ada, [here.ben])
    assert sent.thread_id == f"msg-{sent.id}"
    assert box.message(sent.id) == sent
    assert box.thread(here.project.id, sent.thread_id, limit=10) == [sent]


@on_both
def test_ids_that_nobody_has_find_nothing(box: Box, here: Office) -> None:
    three(box, here)
    for number in (0, -1, FAR, LARGEST):
        assert (box.message(number), box.reservation(number), box.project_by_id(number)) == (None,) * 3
    assert (box.messages([FAR, LARGEST]), box.agents_by_id([FAR, LARGEST])) == ({}, {})
    assert box.agents_named(LARGEST, ["Ada"]) == []
    assert box.inbox_events(here.ben.id, after=LARGEST, limit=10) == []
    assert box.project_messages(here.project.id, after=LARGEST, limit=10) == []
    assert box.unread_count(LARGEST) == 0


def test_recipients_come_in_the_order_in_which_they_were_named(box: Box, here: Office, there: Office) -> None:
    one = box.put(here.ada, []).id
    box.insert_recipient(one, here.cyd, "cc")
    box.insert_recipient(one, there.ben, "to")
    two = box.put(here.ada, [here.ben]).id
    box.insert_recipient(one, here.ada, "bcc")
    box.insert_recipient(one, here.ben, "to")
    found = box.recipients([two, one, 99])
    assert [(each.agent_id, each.name, each.project_slug, each.kind, each.seq) for each in found[one]] == [
        (here.cyd.id, "Cyd", "harbor", "cc", 1),
        (there.ben.id, "Ben", "elsewhere", "to", 1),
        (here.ada.id, "Ada", "harbor", "bcc", 1),
        (here.ben.id, "Ben", "harbor", "to", 2),
    ]
    assert {(each.message_id, each.read_at, each.acked_at) for each in found[one]} == {(one, None, None)}
    assert [(each.agent_id, each.seq) for each in found[two]] == [(here.ben.id, 1)]
    assert found[99] == []
    ben = box.agents_by_id([here.ben.id])[here.ben.id]
    assert (ben.inbox_seq, ben.inbox_floor) == (2, 0)


@on_both
def test_an_agent_is_named_once_in_a_message(box: Box, here: Office) -> None:
    sent = box.put(here.ada, [here.ben])
    for message_id in (sent.id, 99):
        with pytest.raises(StoreError):
            box.insert_recipient(message_id, here.ben, "cc")
    assert len(box.recipients([sent.id])[sent.id]) == 1
    again = box.put(here.ada, [here.ben])
    assert box.recipients([again.id])[again.id][0].seq == 2


def test_an_inbox_comes_newest_first_and_after_a_cursor_oldest_first(box: Box, here: Office) -> None:
    first, second, third = three(box, here)
    ben = here.ben.id
    assert inbox(box, ben) == [third, second, first]
    assert inbox(box, ben, limit=2) == [third, second]
    assert inbox(box, ben, limit=0) == inbox(box, here.ada.id) == inbox(box, ben, after=3) == []
    [newest] = box.inbox(ben, limit=1)
    assert newest.message == box.message(third)
    assert (newest.kind, newest.seq, newest.read_at, newest.acked_at) == ("to", 3, None, None)
    assert inbox(box, ben, after=0) == [first, second, third]
    assert inbox(box, ben, after=0, limit=2) == [first, second]
    assert inbox(box, ben, after=2, limit=2) == [third]


def test_since_keeps_messages_of_that_very_instant(box: Box, here: Office) -> None:
    _, exact, later = (box.put(here.ada, [here.ben], now=now).id for now in (4, 5, 6))
    assert inbox(box, here.ben.id, since=5) == [later, exact]
    assert inbox(box, here.ben.id, since=5, after=2) == [later]
    assert inbox(box, here.ben.id, since=5, before=3) == [exact]


def test_an_inbox_is_narrowed_by_what_is_unread_and_important(box: Box, here: Office) -> None:
    levels = ("low", "normal", "high", "urgent", "high")
    low, normal, read, urgent, high = (box.put(here.ada, [here.ben], importance=level).id for level in levels)
    box.mark_read(read, here.ben.id, 9)

    def unread(**narrowed) -> list[int]:
        return inbox(box, here.ben.id, unread_only=True, **narrowed)

    assert unread() == unread(importance=[]) == [high, urgent, normal, low]
    assert unread(before=3) == [normal, low]
    assert unread(after=1) == [normal, urgent, high]
    assert unread(after=1, limit=2) == [normal, urgent]
    assert inbox(box, here.ben.id, importance=["high"]) == [high, read]
    assert unread(importance=["high"]) == [high]
    assert unread(importance=["high", "urgent"]) == [high, urgent]


def test_unread_messages_are_counted(box: Box, here: Office) -> None:
    first, second, _ = three(box, here)
    counts = [box.unread_count(here.ben.id)]
    for mark in (box.mark_read, box.mark_read):
        mark(first, here.ben.id, 9)
        counts.append(box.unread_count(here.ben.id))
    box.mark_recalled(second, 9)
    assert [*counts, box.unread_count(here.ben.id), box.unread_count(here.ada.id)] == [3, 2, 2, 1, 0]


def test_the_first_mark_stays(box: Box, here: Office) -> None:
    sent = box.put(here.ada, [here.ben, here.cyd]).id
    ben, cyd = here.ben.id, here.cyd.id
    assert [box.mark_read(sent, ben, now) for now in (10, 11)] == [10, 10]
    assert [box.mark_acked(sent, ben, now) for now in (12, 13)] == [12, 12]
    assert (box.mark_acked(sent, cyd, 14), box.mark_read(sent, cyd, 15)) == (14, 14)
    assert (box.mark_read(sent, here.ada.id, 9), box.mark_acked(sent, here.ada.id, 9)) == (None, None)
    assert box.mark_read(99, ben, 9) is None
    marks = [(one.agent_id, one.read_at, one.acked_at) for one in box.recipients([sent])[sent]]
    assert marks == [(ben, 10, 12), (cyd, 14, 14)]
    [entry] = box.inbox(ben, limit=1)
    assert (entry.read_at, entry.acked_at) == (10, 12)


def test_a_recalled_message_keeps_its_entry_and_loses_its_text(box: Box, here: Office) -> None:
    sent = box.put(here.ada, [here.ben], topic="t", importance="high")
    for now in (7, 7 + MINUTE):
        box.mark_recalled(sent.id, now)
    found = box.message(sent.id)
    assert (found.subject, found.body_md, found.topic, found.recalled_at) == ("", "", "", 7)
    assert (found.sender_name, found.thread_id, found.importance) == ("Ada", sent.thread_id, "high")
    assert inbox(box, here.ben.id) == inbox(box, here.ben.id, after=0, unread_only=True) == []
    events = box.inbox_events(here.ben.id, after=0, limit=10)
    assert [(entry.message, entry.seq) for entry in events] == [(found, 1)]
    assert len(box.recipients([sent.id])[sent.id]) == 1
    assert box.thread(here.project.id, sent.thread_id, limit=10) == [found]


def test_events_of_an_inbox_are_every_entry_in_order(box: Box, here: Office) -> None:
    first, second, third = three(box, here)
    box.mark_read(first, here.ben.id, 9)
    box.mark_recalled(second, 9)
    events = [box.inbox_events(here.ben.id, after=after, limit=limit) for after, limit in ((0, 9), (1, 1))]
    assert [(entry.seq, entry.message.id) for entry in events[0]] == [(1, first), (2, second), (3, third)]
    assert [entry.seq for entry in events[1]] == [2]
    assert box.inbox_events(here.ben.id, after=3, limit=10) == []


def test_a_thread_is_read_in_order(box: Box, here: Office, there: Office) -> None:
    box.put(there.ada, [there.ben], thread="plan")
    box.put(here.ada, [here.ben], thread="other")
    sent = [box.put(here.ada, [here.ben], thread="plan") for _ in range(4)]
    home = here.project.id
    assert box.thread(home, "plan", limit=10) == sent
    assert box.thread(home, "plan", limit=2, after=sent[0].id) == sent[1:3]
    assert box.thread(home, "plan", limit=2, after=sent[3].id) == []
    assert box.thread_tail(home, "plan", limit=3) == sent[1:]
    assert box.thread_tail(home, "plan", limit=9) == sent
    assert box.thread_tail(home, "none", limit=9) == []
    box.settle()
    assert [box.thread_size(home, name) for name in ("plan", "other", "none")] == [4, 1, 0]


def test_participants_of_a_thread_are_counted(box: Box, here: Office, there: Office) -> None:
    home = here.project.id
    sent = [box.put(here.ada, [here.ben, there.ada], thread="plan") for _ in range(4)]
    box.put(here.ben, [here.cyd], thread="plan", kind="bcc")
    box.put(there.ada, [here.ada], thread="plan")
    box.put(there.ben, [there.ada], thread="plan")
    box.mark_read(sent[0].id, here.ben.id, 9)
    box.mark_recalled(sent[3].id, 9)

    def counted(project_id: int, among: int) -> list[tuple]:
        found = box.thread_participants(project_id, "plan", home_id=home, among=among)
        return [(f"{one.project_slug} {one.name}", one.wrote, one.unread) for one in found]

    assert counted(home, 9) == [("harbor Ada", 3, 0), ("harbor Ben", 1, 2), ("elsewhere Ada", 0, 3)]
    assert counted(home, 3) == [("harbor Ada", 1, 0), ("harbor Ben", 1, 1), ("elsewhere Ada", 0, 1)]
    assert counted(there.project.id, 9) == [("harbor Ada", 0, 1), ("elsewhere Ada", 1, 0)]


@on_both
def test_threads_come_by_their_newest_message(box: Box, here: Office, there: Office) -> None:
    box.put(there.ada, [there.ben], thread="foreign")
    first = box.put(here.ada, [here.ben], thread="one", subject="First", now=1)
    second = box.put(here.ada, [here.ben], thread="two", subject="Second", now=2)
    box.settle()
    answer = box.put(here.ben, [here.ada], thread="one", subject="Re: First", now=3)
    box.settle()
    heads = box.threads(here.project.id, limit=10)
    assert [(head.thread_id, head.subject, head.messages) for head in heads] == [
        ("one", "First", 2),
        ("two", "Second", 1),
    ]
    assert (heads[0].first_id, heads[0].last_id) == (first.id, answer.id)
    assert (heads[0].last_at, heads[0].last_sender) == (3, "Ben")
    assert box.threads(here.project.id, limit=1) == heads[:1]
    assert box.threads(here.project.id, limit=9, before=answer.id) == heads[1:]
    assert box.threads(here.project.id, limit=9, before=second.id) == []


def test_projects_are_counted_up_to_a_number(box: Box, here: Office, there: Office) -> None:
    for number in range(3):
        box.put(here.ada, [here.ben], thread=f"thread {number}", now=number)
    box.set_agent_retired(there.ben.id, 9, now=9)
    box.settle()
    ids = [here.project.id, there.project.id]
    told = box.tallies([*ids, 999], most=9)
    assert [(one.project_id, one.threads, one.last_at) for one in told] == [(ids[0], 3, 2), (ids[1], 0, None)]
    assert told[0].agents == told[1].agents + 1
    assert [(one.threads, one.agents) for one in box.tallies(ids, most=1)] == [(1, 1), (0, 1)]


def test_threads_are_wanted_by_what_is_in_them(box: Box, here: Office, there: Office) -> None:
    plain = box.put(here.ada, [here.ben], thread="plain", now=1)
    box.put(here.ben, [here.ada], thread="urgent", importance="urgent", ack=True)
    box.put(here.ada, [here.ben], thread="hidden", kind="bcc", now=3)
    recalled = box.put(here.ada, [here.ben], thread="recalled", now=4)
    box.put(there.cyd, [here.ada], thread="plain", now=5)
    box.put(there.cyd, [there.ada], thread="urgent", now=6)
    box.mark_recalled(recalled.id, 7)
    box.mark_read(plain.id, here.ben.id, 7)
    box.settle()

    def found(**wanted) -> list[str]:
        asked = ThreadFilter(people_id=there.project.id, **wanted)
        heads, more = box.wanted_threads(here.project.id, asked, limit=9, among=9)
        assert more is None
        return [head.thread_id for head in heads]

    assert found() == ["hidden", "urgent", "plain"]
    assert found(seen="unread") == ["urgent", "plain"]
    assert found(seen="unread", agent_id=here.ben.id) == []
    assert found(seen="unacknowledged") == found(importance=("high", "urgent")) == ["urgent"]
    assert found(agent_id=here.ben.id) == ["urgent", "plain"]
    assert found(person_id=there.cyd.id) == ["plain"]
    assert found(person_id=there.cyd.id, agent_id=here.ada.id, seen="unread") == ["plain"]


def test_wanted_threads_are_looked_for_window_by_window(box: Box, here: Office) -> None:
    sent = [
        box.put(here.ada, [here.ben], thread=f"t{number}", importance=level).id
        for number, level in enumerate(("urgent", "low", "low"))
    ]
    box.settle()

    def found(limit: int, among: int, before: int | None = None, **wanted) -> tuple:
        asked = ThreadFilter(**wanted)
        heads, more = box.wanted_threads(here.project.id, asked, limit=limit, among=among, before=before)
        return [head.thread_id for head in heads], more

    assert found(9, 2, importance=("urgent",)) == ([], sent[1])
    assert found(9, 2, sent[1], importance=("urgent",)) == (["t0"], None)
    assert found(1, 9) == (["t2"], sent[2])


def test_messages_of_a_project_come_by_id(box: Box, here: Office, there: Office) -> None:
    sent, home = three(box, here), here.project.id
    three(box, there)
    box.mark_recalled(sent[1], 9)
    assert ids(box.project_messages(home, after=0, limit=10)) == sent
    assert ids(box.project_messages(home, after=0, limit=2)) == sent[:2]
    assert ids(box.project_messages(home, after=sent[1], limit=2)) == sent[2:]
    assert ids(box.newest_messages(home, limit=9)) == sent
    assert ids(box.newest_messages(home, limit=2)) == sent[1:]


def test_what_an_agent_sent_comes_newest_first(box: Box, here: Office) -> None:
    sent = three(box, here)
    box.put(here.ben, [here.ada])
    box.mark_recalled(sent[1], 9)
    assert ids(box.sent_messages(here.ada.id, limit=9)) == [sent[2], sent[0]]
    assert ids(box.sent_messages(here.ada.id, limit=1)) == [sent[2]]
    assert ids(box.sent_messages(here.ada.id, limit=9, before=sent[2])) == [sent[0]]
