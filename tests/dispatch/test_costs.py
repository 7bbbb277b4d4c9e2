"""Waiting work costs nothing: changes and polls read as much with thousands waiting as with hundreds.

The writes of a run are bounded, too.

SQLite counts the steps of its virtual machine, which are the same on a busy computer. The statements are the same on
both engines.
"""

import struct

import pytest

from postroom import Item, Mailbox, MailboxConfig
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import DuplicateRecord
from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.run_stores import ClaimRequest, DueThread
from postroom.stores.runs.dispatches import state_look

FEW, MANY, AT_MOST = 300, 3_000, 1.5
WAITS = DeliveryMode(starts_run=True)
ELSEWHERE = ClaimRequest(consumer="elsewhere", lease_ms=600_000)
KNOWN = RunActivation.new("deep", [Message.user("x", id="known")])


class Undo(Exception):
    pass


async def steps(mailbox, change):
    """Return how many steps SQLite needs for a change, in hundreds; the change is undone."""
    counted = []

    def counting(tx):
        counted.clear()  # a change that shared its transaction is run again alone, because it raises
        # A mailbox that has just been opened releases the claims of other processes once, when it gets to it.
        if tx.runs.dispatches.claimed("deep") is None:
            tx.runs.dispatches.claim("deep", ELSEWHERE)
        connection = tx.runs._sql.connection  # the store's own: no public face shows a step
        connection.set_progress_handler(lambda: counted.append(1) and None, 100)
        try:
            change(tx)
        finally:
            connection.set_progress_handler(None, 0)
        raise Undo

    with pytest.raises(Undo):
        await mailbox.stores.store.write(counting)
    return len(counted) + 1


async def queued(mailbox, waiting):
    """Queue runs on one thread after a claimed one, and one run on another thread after them all."""
    await mailbox.enqueue_many([Item("deep", "x") for _ in range(waiting)])
    await mailbox.enqueue("other", "x")
    await mailbox.stores.store.write(lambda tx: tx.runs.dispatches.claim("deep", ELSEWHERE))


async def queued_and_known(mailbox, waiting):
    await queued(mailbox, waiting)
    await mailbox.admin.submit_background(KNOWN)


async def resting(mailbox, waiting):
    """Store effects after an effect that is not due, and one of another order after them all."""

    def draft(order, available_at=0):
        key = {"order_key": order, "available_at": available_at}
        return OutboxDraft(kind="chat", target="telegram", payload={}, **key)

    drafts = [
        draft("resting", 9_999_999_999_999),
        *(draft("resting") for _ in range(waiting)),
        draft("other"),
    ]
    await mailbox.stores.store.write(lambda tx: tx.outbox.enqueue(drafts) and None)


async def messages_wait(mailbox, waiting):
    await queued(mailbox, 1)
    messages = [Message.user("x", id=f"m{number}") for number in range(waiting)]
    await mailbox.stores.threads.append_pending("deep", messages, WAITS)


def poll(tx):
    assert tx.runs.dispatches.due_threads(10) == (DueThread("other", "", ""),)
    assert tx.runs.dispatches.next_due_at() == 0


def submission(tx):
    tx.runs.state(state_look("deep", at_most=100, is_submission=True))


def claim(tx):
    request = ClaimRequest(consumer="here", lease_ms=1_000)
    assert tx.runs.dispatches.claim("deep", request) is None
    assert tx.runs.dispatches.claim("other", request) is not None


def look_for_effects(tx):
    assert tx.outbox.due(["chat"]) == [("chat", "telegram")]
    [taken] = tx.outbox.claim("chat", "telegram", lease_ms=1_000, limit=10)
    assert taken.order_key == "other"


def message_to_a_busy_thread(tx):
    tx.runs.put_waiting("deep", (Message.user("y", id="y"),), WAITS, 10_000)
    assert tx.runs.messages.full(("deep",), 10_000) == frozenset()
    assert tx.runs.state(state_look("deep", is_submission=True)).waiting


def look_for_threads_on_which_messages_wait(tx):
    assert tx.runs.messages.threads_with_waiting(10, "") == ("deep",)
    assert tx.runs.dispatches.queued_threads(10, "") == ("other",)


def repeated_message(tx):
    assert tx.runs.messages.given_to("deep", "known").input.trigger_message_ids == ("known",)


@pytest.mark.parametrize(
    ("fill", "change"),
    [
        (queued, poll),
        (queued, submission),
        (queued, claim),
        (queued_and_known, repeated_message),
        (resting, look_for_effects),
        (messages_wait, message_to_a_busy_thread),
        (messages_wait, look_for_threads_on_which_messages_wait),
    ],
    ids=lambda one: one.__name__,
)
async def test_what_is_looked_at_does_not_grow_with_what_waits(tmp_path, fill, change):
    found = []
    for waiting in (FEW, MANY):
        nobody_works = MailboxConfig(max_queued_per_thread=None)
        async with Mailbox.open(f"sqlite:///{tmp_path}/{waiting}.db", None, config=nobody_works) as mailbox:
            await fill(mailbox, waiting)
            found.append(await steps(mailbox, change))
    assert found[1] <= found[0] * AT_MOST, found


def logged(log):
    """Return the bytes in the log of a SQLite database since the log was last restarted."""
    written = log.read_bytes()
    page_size, salts = struct.unpack(">I", written[8:12])[0], written[16:24]
    at = 32
    while written[at + 8 : at + 16] == salts:
        at += 24 + page_size
    return at


async def test_a_run_writes_at_most_70_kilobytes_to_the_log_of_its_database(tmp_path):
    async def work(run):
        return "ok"

    async with Mailbox.open(f"sqlite:///{tmp_path}/p.db", work) as mailbox:
        before = 0
        for number in range(60):
            if number == 40:
                before = logged(tmp_path / "p.db-wal")
            handle = await mailbox.enqueue(f"t{number}", "hi")
            await handle.result(timeout=60)
        assert 0 < logged(tmp_path / "p.db-wal") - before <= 20 * 70_000


async def test_a_repeated_message_that_the_release_before_stored_finds_its_run():
    async with Mailbox.open("memory", None) as mailbox:
        first = await mailbox.admin.submit_background(KNOWN)

        def forget(tx):
            tx.runs._sql.connection.execute("UPDATE run_messages SET given_to = NULL")

        await mailbox.stores.store.write(forget)
        with pytest.raises(DuplicateRecord) as refused:
            await mailbox.admin.submit_background(KNOWN)
        assert refused.value.details == {"run_id": first.run_id}
