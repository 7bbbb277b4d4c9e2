"""Promises of a mail store about transactions, idempotency keys and effects."""

import asyncio
from collections.abc import Awaitable
from functools import partial

from conformance.promises import given
from conformance.promises.given import (
    Office,
    an_office,
    never_made,
    put_message,
    refused,
    reservation,
)
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import StoredAnswer, Term
from postroom.contracts.outbox import Backlog, OutboxDraft
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

TOGETHER = 30
"""How many callers a promise about concurrency uses."""


async def a_change_sees_its_own_writes(store: MailStore, clock: ManualClock) -> None:
    """Each look-up within a change answers as if what was done before it were there already."""
    here = await an_office(store)

    def change(tx: MailWrites) -> None:
        sent = put_message(tx, here.ada, [here.ben], body="plum", thread="t")
        assert tx.message(sent.id) == sent
        assert [entry.message for entry in tx.inbox(here.ben.id, limit=9)] == [sent]
        assert tx.thread(here.project.id, "t", limit=9) == [sent]
        assert tx.thread_tail(here.project.id, "t", limit=9) == [sent]
        assert tx.mark_read(sent.id, here.ben.id, clock.now()) == clock.now()
        assert tx.unread_count(here.ben.id) == 0
        held = reservation(tx, here.ada, "src", now=clock.now())
        assert tx.live_reservations(here.project.id, now=clock.now(), near="src") == [held]

    await store.write(change)


async def what_a_change_returns_is_the_answer(store: MailStore, clock: ManualClock) -> None:
    """So it is with look-ups, and a write that was answered is seen by every later one."""
    made = await store.write(given.project)
    assert await store.read(lambda tx: tx.project_by_id(made.id)) == made
    marker = object()
    assert await store.write(lambda tx: marker) is marker
    assert await store.read(lambda tx: marker) is marker
    await store.probe()


async def _failure(work: Awaitable[object]) -> BaseException | None:
    """Return what awaiting `work` raises."""
    try:
        await work
    except Exception as error:
        return error
    return None


async def what_a_change_raises_is_raised(store: MailStore, clock: ManualClock) -> None:
    """The very exception reaches the caller, from changes and look-ups alike; the store goes on."""
    raised = ValueError("no")

    def fail(tx: MailReads) -> None:
        raise raised

    assert await _failure(store.write(fail)) is raised
    assert await _failure(store.read(fail)) is raised
    assert await store.read(lambda tx: tx.projects(limit=9)) == []


async def a_change_that_runs_out_of_items_fails(store: MailStore, clock: ManualClock) -> None:
    """An exhausted iterator within a function is an error to its caller, who is not left waiting."""

    def exhaust(tx: MailReads) -> object:
        return next(iter(()))

    async with asyncio.timeout(5):
        with refused(RuntimeError):
            await store.write(exhaust)
        with refused(RuntimeError):
            await store.read(exhaust)


def _snapshot(tx: MailReads, here: Office, now: int) -> list[object]:
    """Return whatever a change of `_everything` could leave behind."""
    home, ids = here.project.id, range(1, 10)
    return [
        tx.projects(limit=9),
        tx.project("alias"),
        tx.agents(home, include_retired=True, limit=99),
        tx.agent_by_token("token"),
        tx.project_messages(home, limit=99),
        tx.recipients(ids),
        tx.attachments(ids),
        tx.blob("new"),
        tx.blob("kept"),
        tx.threads(home, limit=99),
        tx.reservations(home, limit=99),
        tx.live_reservations(home, now=now, near="src"),
        tx.contacts(here.ada.id),
        tx.answer("scope", "new"),
        tx.answer("scope", "kept"),
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
    _enqueue(tx, "new")
    first, second, _ = tx.outbox.claim("archive", "7", lease_ms=9, limit=9)
    tx.outbox.nack([first.outbox_id], [first.claim_token or ""], error="x")
    tx.outbox.ack([second.outbox_id], [second.claim_token or ""])


async def a_change_that_raises_is_undone_whole(store: MailStore, clock: ManualClock) -> None:
    """Nothing of it stays, in any table, index, counter or log; made again it gets new ids or the same."""
    here, now = await an_office(store), clock.now()

    def prepare(tx: MailWrites) -> None:
        tx.insert_blob("kept", b"kept")
        sent = put_message(tx, here.ada, [here.ben], body="plum", thread="t")
        tx.insert_attachment(sent.id, given.file("kept"))
        for length in (60, 60, 1):
            reservation(tx, here.ada, "src", ttl=length, now=now - 30)
        tx.put_contact(here.ada.id, here.ben.id, status="pending", reason="", now=now)
        tx.insert_answer("scope", "kept", "digest", b"answer", now)
        for key in ("1", "2"):
            _enqueue(tx, key)

    await store.write(prepare)
    await store.settle()
    before = await store.read(lambda tx: _snapshot(tx, here, now))
    await never_made(store, lambda tx: _everything(tx, here, now))
    await store.settle()
    assert await store.read(lambda tx: _snapshot(tx, here, now)) == before

    def send(tx: MailWrites) -> tuple[int, int, int]:
        sent = put_message(tx, here.ada, [])
        tx.insert_recipient(sent.id, here.ben, "to")
        seq = tx.recipients([sent.id])[sent.id][0].seq
        return sent.id, seq, given.agent(tx, here.project.id, "Dot").id

    sent, seq, made = await store.write(send)
    assert (sent > 1, seq, made > here.cyd.id) == (True, 2, True)
    await store.write(lambda tx: tx.set_agent_token(here.cyd.id, "token"))
    await store.write(lambda tx: _undoable_names(tx, here))


def _undoable_names(tx: MailWrites, here: Office) -> None:
    """Take every name that an undone change had taken."""
    given.project(tx, "another")
    tx.insert_answer("scope", "new", "other", b"other", 1)
    tx.add_project_alias(here.project.id, "alias")
    assert tx.project("alias") is not None


async def concurrent_changes_run_one_after_another(store: MailStore, clock: ManualClock) -> None:
    """A change that looks and then writes loses nothing to another that does the same."""
    here = await an_office(store)

    def count_on(tx: MailWrites) -> int:
        before = int(tx.agents_by_id([here.ada.id])[here.ada.id].task_description or "0")
        tx.update_agent(here.ada.id, program="", model="", task_description=str(before + 1), now=1)
        return before

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.write(count_on)) for _ in range(TOGETHER)]
    assert sorted(task.result() for task in tasks) == list(range(TOGETHER))
    ada = (await store.read(lambda tx: tx.agents_by_id([here.ada.id])))[here.ada.id]
    assert ada.task_description == str(TOGETHER)


async def a_change_that_raises_among_others_is_undone_alone(store: MailStore, clock: ManualClock) -> None:
    """Of many at once, those that raise learn so and leave nothing; the others stand, without gaps."""
    here = await an_office(store)

    async def send(number: int) -> int | None:
        def change(tx: MailWrites) -> int:
            sent = put_message(tx, here.ada, [here.ben], subject=str(number))
            if number % 3 == 0:
                raise ValueError(number)
            return sent.id

        try:
            return await store.write(change)
        except ValueError as error:
            return None if error.args == (number,) else -1

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send(number)) for number in range(TOGETHER)]
    kept = {task.result(): str(number) for number, task in enumerate(tasks) if task.result() is not None}
    found = await store.read(lambda tx: tx.project_messages(here.project.id, limit=99))
    assert {message.id: message.subject for message in found} == kept
    assert len(kept) == TOGETHER - TOGETHER // 3
    events = await store.read(lambda tx: tx.inbox_events(here.ben.id, after=0, limit=99))
    assert [entry.seq for entry in events] == list(range(1, len(kept) + 1))


async def a_look_up_sees_one_consistent_view(store: MailStore, clock: ManualClock) -> None:
    """Two things that change together are never seen apart, however often changes happen meanwhile."""
    here = await an_office(store)

    def change(tx: MailWrites) -> None:
        _enqueue(tx, "", "one")
        put_message(tx, here.ada, [here.ben])
        _enqueue(tx, "", "two")

    def look(tx: MailReads) -> tuple[int, int, int]:
        one = tx.outbox.backlog("one").waiting
        messages = len(tx.inbox(here.ben.id, limit=99))
        return one, messages, tx.outbox.backlog("two").waiting

    async with asyncio.TaskGroup() as group:
        looks = []
        for _ in range(TOGETHER):
            group.create_task(store.write(change))
            looks.append(group.create_task(store.read(look)))
    assert {len(set(seen.result())) for seen in looks} == {1}
    assert await store.read(look) == (TOGETHER, TOGETHER, TOGETHER)


async def the_first_answer_is_kept(store: MailStore, clock: ManualClock) -> None:
    """Under a key of a scope there is one answer, whose bytes read back; another is refused."""
    await store.write(lambda tx: tx.insert_answer("a", "key", "d1", b"\x00\xff", clock.now()))
    await store.write(lambda tx: tx.insert_answer("b", "key", "d2", b"", clock.now()))
    with refused(StoreError):
        await store.write(lambda tx: tx.insert_answer("a", "key", "d3", b"3", clock.now()))
    found = await store.read(lambda tx: [tx.answer("a", "key"), tx.answer("b", "key"), tx.answer("a", "KEY")])
    assert found == [
        StoredAnswer(digest="d1", answer=b"\x00\xff"),
        StoredAnswer(digest="d2", answer=b""),
        None,
    ]


async def old_answers_are_forgotten_oldest_first(store: MailStore, clock: ManualClock) -> None:
    """Those older than an instant, not those of it, a limited number a call; their keys are free again."""
    now = clock.now()

    def keep(tx: MailWrites) -> None:
        for key, late in (("c", 2), ("a", 0), ("b", 1), ("d", 3)):
            tx.insert_answer("s", key, "", b"", now + late)

    def left(tx: MailReads) -> str:
        return "".join(key for key in "abcd" if tx.answer("s", key))

    await store.write(keep)
    assert await store.write(lambda tx: tx.purge_answers(now, limit=9)) == 0
    assert await store.write(lambda tx: tx.purge_answers(now + 3, limit=2)) == 2
    assert await store.read(left) == "cd"
    assert await store.write(lambda tx: tx.purge_answers(now + 3, limit=9)) == 1
    assert await store.read(left) == "d"
    await store.write(lambda tx: tx.insert_answer("s", "a", "again", b"", now))


async def effects_wait_in_the_order_of_their_storing(store: MailStore, clock: ManualClock) -> None:
    """Those of a kind read back; the backlog says how many wait, since when, and how many were given up."""
    now = clock.now()
    for number, kind in enumerate(["archive", "notice", "archive", "archive"]):
        clock.set(now + number)
        await store.write(partial(_enqueue, record=f"m:{number}", kind=kind))
    rows = await store.read(lambda tx: tx.outbox.open("archive", limit=9))
    assert [(row.kind, row.payload, row.target, row.created_at) for row in rows] == [
        ("archive", {"record": f"m:{number}"}, "7", now + number) for number in (0, 2, 3)
    ]
    assert {(row.attempt_count, row.last_error) for row in rows} == {(0, None)}
    assert await store.read(lambda tx: tx.outbox.open("archive", limit=2)) == rows[:2]
    assert await store.read(lambda tx: tx.outbox.backlog("archive")) == Backlog(waiting=3, oldest_at=now)
    assert await store.read(lambda tx: tx.outbox.backlog("none")) == Backlog(waiting=0, oldest_at=None)
    claimed = await store.write(lambda tx: tx.outbox.claim("archive", "7", lease_ms=9, limit=2))
    ids, tokens = [row.outbox_id for row in claimed], [row.claim_token or "" for row in claimed]
    await store.write(lambda tx: tx.outbox.nack(ids[:1], tokens[:1], error="no", final=True))
    found = await store.read(lambda tx: tx.outbox.backlog("archive"))
    assert found == Backlog(waiting=2, oldest_at=now + 2, dead=1)


async def effects_that_are_claimed_together_end_together(store: MailStore, clock: ManualClock) -> None:
    """Who has the newest claims ends them, once; what is performed without a key is gone; others stay."""
    for record in "abc":
        await store.write(partial(_enqueue, record=record))
    claimed = await store.write(lambda tx: tx.outbox.claim("archive", "7", lease_ms=9, limit=9))
    ids, tokens = [row.outbox_id for row in claimed], [row.claim_token or "" for row in claimed]
    assert await store.write(lambda tx: tx.outbox.ack(ids, ["another"] * 3)) == 0
    became = await store.write(lambda tx: tx.outbox.nack(ids[:2], tokens[:2], error="no git", delay_ms=5))
    assert [one.value for one in became] == ["pending", "pending"]
    assert await store.write(lambda tx: tx.outbox.ack(ids, tokens)) == 1
    rows = await store.read(lambda tx: tx.outbox.open("archive", limit=9))
    assert [(row.payload["record"], row.attempt_count, row.last_error) for row in rows] == [
        ("a", 1, "no git"),
        ("b", 1, "no git"),
    ]
    assert await store.write(lambda tx: tx.outbox.claim("archive", "7", lease_ms=9, limit=9)) == ()
    clock.set(clock.now() + 5)
    again = await store.write(lambda tx: tx.outbox.claim("archive", "7", lease_ms=9, limit=9))
    assert [row.outbox_id for row in again] == ids[:2]
    assert await store.write(lambda tx: tx.outbox.ack(ids, tokens)) == 0  # claimed by another since then
    await store.write(lambda tx: tx.outbox.ack(ids[:2], [row.claim_token or "" for row in again]))
    assert await store.read(lambda tx: tx.outbox.backlog("archive")) == Backlog(waiting=0, oldest_at=None)


async def what_is_due_is_told_by_kind_and_target(store: MailStore, clock: ManualClock) -> None:
    """A claim hides a target until it ends or is released; what was released may have been performed."""
    for target in ("7", "8", "70"):
        await store.write(partial(_enqueue, record="a", target=target))
    await store.write(partial(_enqueue, record="a", kind="notice"))
    await store.write(
        lambda tx: tx.outbox.enqueue([OutboxDraft(kind="late", target="7", available_at=2**50)])
    )

    async def due(*kinds: str) -> list[tuple[str, str]]:
        return sorted(await store.read(lambda tx: tx.outbox.due(kinds)))

    assert await due("archive") == [("archive", "7"), ("archive", "70"), ("archive", "8")]
    assert await due("late", "notice", "none") == [("notice", "7")]
    await store.write(lambda tx: tx.outbox.claim("archive", "70", lease_ms=9, limit=1))
    assert await due("archive") == [("archive", "7"), ("archive", "8")]
    await store.write(lambda tx: tx.outbox.release(["archive"]))
    assert ("archive", "70") in await due("archive")
    found = await store.write(lambda tx: tx.outbox.claim("archive", "70", lease_ms=9, limit=1))
    assert [row.may_have_arrived for row in found] == [True]
    clock.set(clock.now() + 9)
    assert ("archive", "70") in await due("archive")


def _enqueue(tx: MailWrites, record: str, kind: str = "archive", target: str = "7") -> None:
    tx.outbox.enqueue([OutboxDraft(kind=kind, target=target, payload={"record": record})])


async def records_are_counted(store: MailStore, clock: ManualClock) -> None:
    """Pages and metrics find a number for each kind of record."""
    here = await an_office(store)

    def change(tx: MailWrites) -> None:
        put_message(tx, here.ada, [here.ben])
        reservation(tx, here.ada, "src", now=clock.now())
        ended = reservation(tx, here.ada, "docs", now=clock.now())
        tx.release_reservation(ended.id, now=clock.now(), by="Ada", reason="done")
        _enqueue(tx, "message:1")

    await store.write(change)
    counts = await store.read(lambda tx: tx.counts())
    stored = {"projects": 1, "agents": 3, "messages": 1, "live_reservations": 1, "outbox": 1}
    assert counts == {**stored, "runners": 0, "unread": 1}

    recalled, deleted, _ = await store.write(
        lambda tx: [put_message(tx, here.ada, [here.ben]) for _ in range(3)]
    )
    await store.settle()  # what is not in the search index yet is not deleted
    await store.write(lambda tx: tx.mark_recalled(recalled.id, clock.now()))
    await store.write(lambda tx: tx.delete_messages(here.project.id, [deleted.id], now=clock.now()))
    counts = await store.read(lambda tx: tx.counts())
    assert (counts["messages"], counts["unread"]) == (3, 2), "of messages that are there"


PROMISES = (
    a_change_sees_its_own_writes,
    what_a_change_returns_is_the_answer,
    what_a_change_raises_is_raised,
    a_change_that_runs_out_of_items_fails,
    a_change_that_raises_is_undone_whole,
    concurrent_changes_run_one_after_another,
    a_change_that_raises_among_others_is_undone_alone,
    a_look_up_sees_one_consistent_view,
    the_first_answer_is_kept,
    old_answers_are_forgotten_oldest_first,
    effects_wait_in_the_order_of_their_storing,
    effects_that_are_claimed_together_end_together,
    what_is_due_is_told_by_kind_and_target,
    records_are_counted,
)
