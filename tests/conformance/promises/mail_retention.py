"""Promises of a mail store about deleting messages: whole, told, and no number is given out again."""

from dataclasses import replace

from conformance.promises.given import (
    Office,
    agent,
    an_office,
    file,
    never_made,
    put_message,
)
from postroom.contracts.mail import Term
from postroom.contracts.retention import OldMessages
from postroom.contracts.waking import MessageRun
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock


async def a_message_is_deleted_with_all_that_is_kept_of_it(store: MailStore, clock: ManualClock) -> None:
    """Text, words, readers, runs, answers and attachments; what another message has too stays with that."""
    here = await an_office(store)

    def sent(tx: MailWrites) -> tuple[int, int]:
        old = put_message(tx, here.ada, [here.ben], body="plum", thread="t")
        new = put_message(tx, here.ada, [here.ben], body="plum jam", thread="t")
        for number, digit in ((old.id, "a"), (old.id, "b"), (new.id, "b")):
            tx.insert_blob(digit * 64, digit.encode())
            tx.insert_attachment(number, file(digit * 64))
        tx.put_message_run(
            MessageRun(message_id=old.id, agent_id=here.ben.id, run_id="r", delivered_at=1, ended_at=2)
        )
        tx.note_answer(old.id, "r")
        return old.id, new.id

    old, new = await store.write(sent)
    await store.settle()
    await never_made(store, lambda tx: tx.delete_messages(here.project.id, [old], now=9))
    assert await store.read(lambda tx: tx.message(old)) is not None
    assert await store.write(lambda tx: tx.delete_messages(here.project.id, [old, 99], now=9)) == [old]

    def look(tx: MailReads) -> None:
        assert tx.message(old) is None
        assert tx.recipients([old]) == {old: []}
        assert tx.message_runs([old]) == {old: {}}
        assert tx.answering_run(old) is None
        assert (tx.blob("a" * 64), tx.blob("b" * 64)) == (None, b"b")
        assert tx.attached_in(here.project.id, ["a" * 64, "b" * 64]) == {"b" * 64}
        assert [
            hit.message.id for hit in tx.search(here.project.id, Term("plum"), order="newest", limit=9)
        ] == [new]
        [head] = tx.threads(here.project.id, limit=9)
        assert (head.messages, head.first_id, head.last_id) == (1, new, new)
        assert tx.unread_count(here.ben.id) == 1

    await store.read(look)
    assert await store.write(lambda tx: tx.delete_messages(here.project.id, [old], now=9)) == []
    await store.write(lambda tx: tx.delete_messages(here.project.id, [new], now=9))
    assert await store.read(lambda tx: tx.threads(here.project.id, limit=9)) == []


async def the_number_of_a_message_that_was_deleted_is_not_given_out_again(
    store: MailStore, clock: ManualClock
) -> None:
    """Nor is its place in an inbox, whose cursors are told up to which number something is gone."""
    here = await an_office(store)
    first = (await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))).id
    newest = (await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))).id
    await store.settle()
    await store.write(lambda tx: tx.delete_messages(here.project.id, [newest], now=9))
    [ben] = (await store.read(lambda tx: tx.agents_by_id([here.ben.id]))).values()
    assert (ben.inbox_floor, ben.inbox_seq) == (2, 2)
    again = await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
    assert again.id > newest
    found = await store.read(lambda tx: tx.inbox_events(here.ben.id, after=2, limit=9))
    assert [(one.message.id, one.seq) for one in found] == [(again.id, 3)]
    assert [one.message.id for one in await store.read(lambda tx: tx.inbox(here.ben.id, limit=9))] == [
        again.id,
        first,
    ]


async def a_deletion_is_told_once_to_each_project_that_knew(store: MailStore, clock: ManualClock) -> None:
    """One entry for a step; of a hidden reader nothing is told."""
    here, there, hidden = [await an_office(store, slug) for slug in ("harbor", "shore", "cove")]

    def sent(tx: MailWrites) -> list[int]:
        both = put_message(tx, here.ada, [here.ben, there.ben])
        tx.insert_recipient(both.id, hidden.ben, "bcc")
        return [both.id, put_message(tx, here.ada, [here.cyd]).id]

    ids = await store.write(sent)
    await store.settle()
    await store.write(lambda tx: tx.delete_messages(here.project.id, ids, now=9))

    def told(tx: MailReads, office: Office) -> list[dict[str, object]]:
        found = tx.project_events(office.project.id, after=0, limit=99, kinds=("message.deleted",))
        return [dict(one.happening.detail) for one in found]

    assert await store.read(lambda tx: told(tx, here)) == [{"messages": 2, "ids": f"{ids[0]} {ids[1]}"}]
    assert await store.read(lambda tx: told(tx, there)) == [{"messages": 1, "ids": f"{ids[0]}"}]
    assert await store.read(lambda tx: told(tx, hidden)) == []


async def what_decides_about_old_messages_is_told(store: MailStore, clock: ManualClock) -> None:
    """Whether somebody has yet to read or acknowledge it, and whether a run is at work on it."""
    here = await an_office(store)

    def sent(tx: MailWrites) -> None:
        unread = put_message(tx, here.ada, [here.ben], topic="build", thread="t", now=5)
        read = put_message(tx, here.ada, [here.ben])
        tx.mark_read(read.id, here.ben.id, 2)
        working = put_message(tx, here.ada, [here.cyd])
        tx.mark_read(working.id, here.cyd.id, 2)
        tx.put_message_run(
            MessageRun(message_id=working.id, agent_id=here.cyd.id, run_id="r", delivered_at=1, ended_at=None)
        )
        gone = agent(tx, here.project.id, "Gone")
        put_message(tx, here.ada, [gone])
        tx.set_agent_retired(gone.id, 3, now=3)
        assert unread.id == read.id - 1

    await store.write(sent)
    found = await store.read(lambda tx: tx.aged_messages(here.project.id, after=0, limit=9))
    assert [(one.is_awaited, one.is_at_work) for one in found] == [
        (True, False),
        (False, False),
        (False, True),
        (False, False),
    ]
    assert (found[0].thread_id, found[0].topic, found[0].created_at) == ("t", "build", 5)
    after = await store.read(lambda tx: tx.aged_messages(here.project.id, after=found[0].id, limit=1))
    assert after == [found[1]]
    ids = [one.id for one in found]
    some = [ids[3], ids[1], 99]
    of_them = await store.read(lambda tx: tx.aged_messages_of(here.project.id, some))
    assert of_them == [found[1], found[3]]
    assert await store.read(lambda tx: tx.aged_messages_of(here.project.id + 1, ids)) == []


async def old_messages_are_found_page_by_page(store: MailStore, clock: ManualClock) -> None:
    """A page is so many messages that were looked at, whether or not they are sought; the last has no end."""
    here = await an_office(store)

    def sent(tx: MailWrites) -> list[int]:
        made = [
            put_message(tx, here.ada, [here.ben], thread=thread, topic=topic, now=now).id
            for now, (thread, topic) in enumerate(
                [("t", ""), ("u", "build"), ("v", ""), ("t", "build"), ("t", "")]
            )
        ]
        tx.mark_read(made[0], here.ben.id, 9)
        tx.mark_recalled(made[3], 9)
        return made

    a, b, c, d, e = await store.write(sent)
    every = OldMessages(before=9, is_any=True, with_awaited=True)
    cases: tuple[tuple[OldMessages, int, tuple[list[int], int | None]], ...] = (
        (every, 9, ([a, b, c, d, e], None)),
        (every, 2, ([a, b], b)),
        (replace(every, before=2), 9, ([a, b, c], None)),
        (replace(every, before=-1), 4, ([], d)),
        (replace(every, with_awaited=False), 9, ([a, d], None)),
        (replace(every, is_any=False, threads=["t"]), 4, ([a, d], d)),
        (replace(every, is_any=False, topics=["build"], threads=["v"]), 9, ([b, c], None)),
        (replace(every, is_any=False), 9, ([], None)),
    )

    def look(tx: MailReads) -> None:
        for sought, limit, expected in cases:
            assert tx.old_messages(here.project.id, sought, after=0, limit=limit) == expected, sought
        for after, limit, expected in ((b, 2, ([c, d], d)), (d, 1, ([e], e)), (e, 1, ([], None))):
            assert tx.old_messages(here.project.id, every, after=after, limit=limit) == expected

    await store.read(look)


PROMISES = (
    a_message_is_deleted_with_all_that_is_kept_of_it,
    the_number_of_a_message_that_was_deleted_is_not_given_out_again,
    a_deletion_is_told_once_to_each_project_that_knew,
    what_decides_about_old_messages_is_told,
    old_messages_are_found_page_by_page,
)
