"""Messages, recipients, inboxes and threads."""

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import Office
from postroom.contracts.errors import StoreError
from postroom.testing import ManualClock

ODD_TEXT = "a\r\nb\tc \u00a0\u200b\u202e\ufeff\x01\x7f é e\u0301 ß 中文 👩‍👩‍👧 \U0010ffff '\"; -- % _ \\"
FAR = 2**53 + 1
"""The first whole number that a floating-point number cannot hold."""
LARGEST = 2**63 - 1


def three(box: Box, office: Office) -> list[int]:
    return [box.put(office.ada, [office.ben], now=5).id for _ in range(3)]


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
