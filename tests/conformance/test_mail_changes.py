"""Transactions, answers that are kept for repeated calls, and effects."""

import asyncio

import pytest

from conformance.boxes import Box, on_both, on_each
from conformance.promises import given
from conformance.promises.given import Office, an_office, office, put_message, reservation
from machine import PATIENCE
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import StoredAnswer, Term
from postroom.contracts.outbox import OutboxDraft
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing import ManualClock

TOGETHER = 30


def enqueue(tx: MailWrites | Box, record: str, kind: str = "archive", target: str = "7") -> None:
    tx.outbox.enqueue([OutboxDraft(kind=kind, target=target, payload={"record": record})])


@on_both
def test_a_change_sees_its_own_writes(box: Box, here: Office) -> None:
    def change(tx: MailWrites) -> None:
        sent = put_message(tx, here.ada, [here.ben], body="plum", thread="t")
        assert tx.message(sent.id) == sent
        assert [entry.message for entry in tx.inbox(here.ben.id, limit=9)] == [sent]
        assert tx.thread(here.project.id, "t", limit=9) == [sent]
        assert tx.thread_tail(here.project.id, "t", limit=9) == [sent]
        assert tx.mark_read(sent.id, here.ben.id, 9) == 9
        assert tx.unread_count(here.ben.id) == 0
        held = reservation(tx, here.ada, "src", now=5)
        assert tx.live_reservations(here.project.id, now=5, near="src") == [held]

    box.change(change)


@on_both
async def test_what_a_change_or_a_look_returns_or_raises_is_the_callers(mail_store: MailStore) -> None:
    marker, raised = object(), ValueError("no")

    def fail(tx: MailReads) -> None:
        raise raised

    for run in (mail_store.write, mail_store.read):
        assert await run(lambda tx: marker) is marker
        with pytest.raises(ValueError, match="no") as caught:
            await run(fail)
        assert caught.value is raised
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(RuntimeError):  # and who waits for the answer is not left waiting
                await run(lambda tx: next(iter(())))
    await mail_store.probe()


def _snapshot(tx: MailReads, here: Office, now: int) -> list[object]:
    """Return all rows that a change of `_everything` could leave."""
    home, ids = here.project.id, range(1, 10)
    return [
        tx.projects(limit=9),
        tx.project("alias"),
        tx.agents(home, include_retired=True, limit=99),
        tx.agent_by_token("token"),
        tx.project_messages(home, limit=99),
        tx.recipients(ids),
        tx.attachments(ids),
        [tx.blob("new"), tx.blob("kept")],
        tx.threads(home, limit=99),
        tx.reservations(home, limit=99),
        tx.live_reservations(home, now=now, near="src"),
        tx.contacts(here.ada.id),
        [tx.answer("scope", "new"), tx.answer("scope", "kept")],
        tx.outbox.open("archive", limit=99),
        tx.unread_count(here.ben.id),
        [hit.message.id for hit in tx.search(home, Term("plum"), order="newest", limit=99)],
        [hit.message.id for hit in tx.search(home, Term("pear"), order="newest", limit=99)],
        tx.counts(),
        tx.project_events(home, after=0, limit=999),
        tx.log_bounds(home),
    ]


def _everything(tx: MailWrites, here: Office, now: int) -> None:
    """Make one change of every kind."""
    given.project(tx, "another")
    tx.add_project_alias(here.project.id, "alias")
    tx.set_git_identity(here.project.id, "changed")
    tx.set_project_folder(here.project.id, "/moved", spelling="/moved")
    given.agent(tx, here.project.id, "Dot")
    tx.update_agent(here.ada.id, program="x", model="x", task_description="x", now=now)
    tx.set_agent_retired(here.ben.id, now, now=now)
    tx.set_agent_token(here.ben.id, "token")
    tx.set_contact_policy(here.ben.id, "closed", now=now)
    tx.touch_agent(here.ada.id, now + 5)
    tx.mark_read(1, here.ben.id, now)
    tx.mark_acked(1, here.ben.id, now)
    tx.mark_recalled(1, now)
    sent = put_message(tx, here.ada, [here.ben, here.cyd], body="pear", thread="t")
    tx.insert_blob("new", b"new")
    tx.insert_attachment(sent.id, given.file("new"))
    reservation(tx, here.ada, "src/new", now=now)
    tx.extend_reservation(1, expires_at=now + 7, ttl=7, exclusive=False, reason="x", now=now)
    tx.release_reservation(2, now=now, by="Ada", reason="done")
    tx.expire_reservations(here.project.id, now)
    tx.put_contact(here.ada.id, here.ben.id, status="blocked", reason="x", now=now)
    tx.put_contact(here.ada.id, here.cyd.id, status="pending", reason="x", now=now)
    tx.insert_answer("scope", "new", "digest", b"answer", now)
    tx.purge_answers(now + 1, limit=1)
    enqueue(tx, "new")
    first, second, _ = tx.outbox.claim("archive", "7", lease_ms=9, limit=9)
    tx.outbox.nack([first.outbox_id], [first.claim_token or ""], error="x")
    tx.outbox.ack([second.outbox_id], [second.claim_token or ""])


@on_each
def test_a_change_that_raises_is_undone_whole(box: Box, here: Office, clock: ManualClock) -> None:
    now = clock.now()

    def prepare(tx: MailWrites) -> None:
        tx.insert_blob("kept", b"kept")
        sent = put_message(tx, here.ada, [here.ben], body="plum", thread="t")
        tx.insert_attachment(sent.id, given.file("kept"))
        for length in (60, 60, 1):
            reservation(tx, here.ada, "src", ttl=length, now=now - 30)
        tx.put_contact(here.ada.id, here.ben.id, status="pending", reason="", now=now)
        tx.insert_answer("scope", "kept", "digest", b"answer", now)
        for key in ("1", "2"):
            enqueue(tx, key)

    def names_are_free(tx: MailWrites) -> None:
        given.project(tx, "another")
        tx.insert_answer("scope", "new", "other", b"other", 1)
        tx.add_project_alias(here.project.id, "alias")
        assert tx.project("alias") is not None
        tx.set_agent_token(here.cyd.id, "token")
        assert given.agent(tx, here.project.id, "Dot").id > here.cyd.id

    box.change(prepare)
    box.settle()
    before = box.change(lambda tx: _snapshot(tx, here, now))
    box.undo(lambda tx: _everything(tx, here, now))
    box.settle()
    assert box.change(lambda tx: _snapshot(tx, here, now)) == before
    sent = box.put(here.ada, [here.ben]).id
    assert (sent > 1, box.recipients([sent])[sent][0].seq) == (True, 2)
    box.change(names_are_free)


def test_on_sqlite_a_change_that_was_undone_leaves_its_ids_to_the_next(box: Box, here: Office) -> None:
    box.undo(lambda tx: put_message(tx, here.ada, [here.ben]))
    box.undo(lambda tx: given.agent(tx, here.project.id, "Dot"))
    assert box.put(here.ada, [here.ben]).id == 1
    assert given.agent(box, here.project.id, "Eve").id == here.cyd.id + 1


@on_each
async def test_concurrent_changes_run_one_after_another(mail_store: MailStore) -> None:
    ada = (await an_office(mail_store)).ada.id

    def count_on(tx: MailWrites) -> int:
        before = int(tx.agents_by_id([ada])[ada].task_description or "0")
        tx.update_agent(ada, program="", model="", task_description=str(before + 1), now=1)
        return before

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(mail_store.write(count_on)) for _ in range(TOGETHER)]
    assert sorted(task.result() for task in tasks) == list(range(TOGETHER))


@on_each
async def test_a_change_that_raises_among_others_is_undone_alone(mail_store: MailStore) -> None:
    here = await an_office(mail_store)

    async def send(number: int) -> int | None:
        def change(tx: MailWrites) -> int:
            sent = put_message(tx, here.ada, [here.ben], subject=str(number))
            if number % 3 == 0:
                raise ValueError(number)
            return sent.id

        try:
            return await mail_store.write(change)
        except ValueError as error:
            return None if error.args == (number,) else -1

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send(number)) for number in range(TOGETHER)]
    kept = {task.result(): str(number) for number, task in enumerate(tasks) if task.result() is not None}
    found = await mail_store.read(lambda tx: tx.project_messages(here.project.id, limit=99))
    assert {message.id: message.subject for message in found} == kept
    assert len(kept) == TOGETHER - TOGETHER // 3
    events = await mail_store.read(lambda tx: tx.inbox_events(here.ben.id, after=0, limit=99))
    assert [entry.seq for entry in events] == list(range(1, len(kept) + 1))


@on_each
async def test_a_look_up_sees_one_consistent_view(mail_store: MailStore) -> None:
    here = await mail_store.write(office)

    def change(tx: MailWrites) -> None:
        enqueue(tx, "", "one")
        put_message(tx, here.ada, [here.ben])
        enqueue(tx, "", "two")

    def look(tx: MailReads) -> tuple[int, int, int]:
        one = tx.outbox.backlog("one").waiting
        messages = len(tx.inbox(here.ben.id, limit=99))
        return one, messages, tx.outbox.backlog("two").waiting

    async with asyncio.TaskGroup() as group:
        looks = []
        for _ in range(TOGETHER):
            group.create_task(mail_store.write(change))
            looks.append(group.create_task(mail_store.read(look)))
    assert {len(set(seen.result())) for seen in looks} == {1}
    assert await mail_store.read(look) == (TOGETHER, TOGETHER, TOGETHER)


@on_both
def test_the_first_answer_of_a_key_in_a_scope_is_kept(box: Box) -> None:
    box.insert_answer("a", "key", "d1", b"\x00\xff", 5)
    box.insert_answer("b", "key", "d2", b"", 5)
    with pytest.raises(StoreError):
        box.insert_answer("a", "key", "d3", b"3", 5)
    assert box.answer("a", "key") == StoredAnswer(digest="d1", answer=b"\x00\xff")
    assert box.answer("b", "key") == StoredAnswer(digest="d2", answer=b"")
    assert box.answer("a", "KEY") is None
