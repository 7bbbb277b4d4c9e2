"""What waits costs nothing: changes and polls read as much with thousands waiting as with hundreds.

SQLite counts the steps of its own machine, which are the same on a busy computer. The statements are the same on
both engines.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import Item, Mailbox, MailboxConfig
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import DuplicateRecord
from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.run_stores import ClaimRequest, DueThread
from postroom.stores.transaction import Transaction

FEW, MANY = 300, 3_000
AT_MOST = 1.5
FAR_AWAY = 9_999_999_999_999
NOBODY_WORKS = MailboxConfig(max_queued_per_thread=None)
WAITS = DeliveryMode(starts_run=True)


async def steps(mailbox: Mailbox, change: Callable[[Transaction], object]) -> int:
    """Return how many steps SQLite needs for a change, in hundreds; the change is undone."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    class Undo(Exception):
        pass

    def counting(tx: Transaction) -> None:
        connection = tx.runs._sql.connection  # the store's own: no public face shows a step
        connection.set_progress_handler(count, 100)
        try:
            change(tx)
        finally:
            connection.set_progress_handler(None, 0)
        raise Undo

    with pytest.raises(Undo):
        await mailbox.stores.store.write(counting)
    return counted + 1


@pytest.fixture
def opening(tmp_path: Path) -> Callable[[int], Any]:
    def opened(number: int) -> Any:
        return Mailbox.open(f"sqlite:///{tmp_path}/{number}.db", None, config=NOBODY_WORKS)

    return opened


async def compared(opening: Callable[[int], Any], fill: Any, change: Callable[[Transaction], object]) -> None:
    few, many = [], []
    for waiting, found in ((FEW, few), (MANY, many)):
        async with opening(waiting) as mailbox:
            await fill(mailbox, waiting)
            found.append(await steps(mailbox, change))
    assert many[0] <= few[0] * AT_MOST, (few, many)


async def queued(mailbox: Mailbox, waiting: int) -> None:
    """Queue runs on one thread behind a claimed one, and one run on another thread behind them all."""
    await mailbox.enqueue_many([Item("deep", "x") for _ in range(waiting)])
    await mailbox.enqueue("other", "x")
    claim = ClaimRequest(consumer="elsewhere", lease_ms=600_000)
    await mailbox.stores.store.write(lambda tx: tx.runs.dispatches.claim("deep", claim))


async def resting(mailbox: Mailbox, waiting: int) -> None:
    """Store effects behind one that rests, and one of another order behind them all."""
    drafts = [draft("resting", FAR_AWAY), *(draft("resting") for _ in range(waiting)), draft("other")]
    await mailbox.stores.store.write(lambda tx: [tx.outbox.put(one, now=1) for one in drafts] and None)


def draft(order: str, available_at: int = 0) -> OutboxDraft:
    return OutboxDraft(kind="chat", target="telegram", payload={}, order_key=order, available_at=available_at)


async def waiting_messages(mailbox: Mailbox, waiting: int) -> None:
    await queued(mailbox, 1)
    messages = [Message.user("x", id=f"m{number}") for number in range(waiting)]
    await mailbox.stores.threads.append_pending("deep", messages, WAITS)


async def test_a_poll_reads_nothing_of_what_is_behind_a_claimed_run(opening) -> None:
    def look(tx: Transaction) -> None:
        assert tx.runs.dispatches.due_threads(10) == (DueThread("other", "", ""),)
        assert tx.runs.dispatches.next_due_at() == 0

    await compared(opening, queued, look)


async def test_a_submission_reads_nothing_of_what_is_queued_before_it(opening) -> None:
    await compared(opening, queued, lambda tx: tx.runs.threads.submission_facts("deep", None, 100))


async def test_a_claim_reads_nothing_of_what_is_behind_it(opening) -> None:
    def claim(tx: Transaction) -> None:
        request = ClaimRequest(consumer="here", lease_ms=1_000)
        assert tx.runs.dispatches.claim("deep", request) is None
        assert tx.runs.dispatches.claim("other", request) is not None

    await compared(opening, queued, claim)


async def test_a_look_for_effects_reads_nothing_of_what_is_behind_one_that_rests(opening) -> None:
    def look(tx: Transaction) -> None:
        assert tx.outbox.due(["chat"]) == [("chat", "telegram")]
        [taken] = tx.outbox.claim("chat", "telegram", lease_ms=1_000, limit=10)
        assert taken.order_key == "other"

    await compared(opening, resting, look)


async def test_a_message_to_a_busy_thread_reads_nothing_of_what_waits_there(opening) -> None:
    def put(tx: Transaction) -> None:
        tx.runs.put_waiting("deep", (Message.user("y", id="y"),), WAITS, 10_000)
        assert tx.runs.messages.full(("deep",), 10_000) == frozenset()
        assert tx.runs.threads.submission_facts("deep", None).waits

    await compared(opening, waiting_messages, put)


async def test_who_looks_for_threads_on_which_messages_wait_reads_one_message_of_each(opening) -> None:
    def look(tx: Transaction) -> None:
        assert tx.runs.messages.threads_with_waiting(10, "") == ("deep",)
        assert tx.runs.dispatches.queued_threads(10, "") == ("other",)

    await compared(opening, waiting_messages, look)


async def test_a_repeated_message_finds_its_run_without_a_look_at_the_other_runs(opening) -> None:
    run_ids: list[str] = []

    async def fill(mailbox: Mailbox, waiting: int) -> None:
        request = RunActivation.new("deep", [Message.user("x", id="known")])
        await queued(mailbox, waiting)
        run_ids.append((await mailbox.admin.submit_background(request)).run_id)

    def look(tx: Transaction) -> None:
        run = tx.runs.messages.given_to("deep", "known")
        assert run is not None
        assert run.run_id == run_ids[-1]

    await compared(opening, fill, look)


async def test_a_repeated_message_of_an_earlier_release_finds_its_run(opening) -> None:
    async with opening(1) as mailbox:
        request = RunActivation.new("t", [Message.user("x", id="known")])
        first = await mailbox.admin.submit_background(request)

        def forget(tx: Transaction) -> None:
            tx.runs._sql.connection.execute("UPDATE run_messages SET given_to = NULL")  # as it stored them

        await mailbox.stores.store.write(forget)
        with pytest.raises(DuplicateRecord) as refused:
            await mailbox.admin.submit_background(request)
        assert refused.value.details == {"run_id": first.run_id}
