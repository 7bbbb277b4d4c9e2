"""Whether the cost of a send, a start, a claim and a poll stays flat with up to 100,000 waiting.

All mailboxes are open at once and take turns of ten calls, so that what other programs do to the processor
meanwhile meets all alike. The first turns are not counted: they fill the caches of pages, and the writer
copies the log of what waits to the database meanwhile. A figure is the median of the turns, as processor time
of this process, which depends less on other programs than elapsed time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figures import Table, median, ms, size
from postroom import Item, Mailbox, MailboxConfig
from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.run_stores import ClaimRequest

WAITING = size((0, 1_000, 10_000, 100_000), (0, 20))
TURNS, UNCOUNTED = size(40, 2), size(10, 1)
CALLS = size(10, 1)
"""Calls of one turn."""
BATCH = 500
FAR_AWAY = 9_999_999_999_999
DEEP, OTHERS = "deep", "other"
CONFIG = MailboxConfig(max_queued_per_thread=None, max_pending_per_thread=None)
WAITS = DeliveryMode(starts_run=True)


async def main() -> None:
    """Print the table: each cost with nothing waiting, and with more and more."""
    table = Table("What waits: processor time of one call on SQLite, medians")
    async with AsyncExitStack() as stack:
        calls = [_calls(await stack.enter_async_context(_filled(waiting))) for waiting in WAITING]
        for name in calls[0]:
            costs: list[list[float]] = [[] for _ in WAITING]
            for turn in range(UNCOUNTED + TURNS):
                for cost, of_mailbox in zip(costs, calls, strict=True):
                    cost.append(await _cost(of_mailbox[name], turn))
            begin, *_ = medians = [median(cost[UNCOUNTED:]) for cost in costs]
            for waiting, cost_now in zip(WAITING, medians, strict=True):
                row = f"{name}, {waiting:,} waiting"
                table.add(row, ms(cost_now), f"{ms(begin)} with 0", cost_now / begin, "under 1.5")


@asynccontextmanager
async def _filled(waiting: int) -> AsyncIterator[Mailbox]:
    """Open a mailbox that executes nothing, with so many runs, messages and effects that wait.

    They wait on one thread behind a claimed run, and in one order behind an effect that rests.
    """
    claim = ClaimRequest(consumer="elsewhere", lease_ms=3_600_000)
    with TemporaryDirectory() as folder:
        async with Mailbox.open(f"sqlite:///{Path(folder)}/runs.db", None, config=CONFIG) as mailbox:
            store = mailbox.stores.store
            await mailbox.enqueue(DEEP, "x")
            await store.write(lambda tx: tx.runs.dispatches.claim(DEEP, claim))
            await store.write(lambda tx: tx.outbox.enqueue([_effect(FAR_AWAY)]))
            await mailbox.enqueue_many([Item(DEEP, "x") for _ in range(waiting)])
            for begin in range(0, waiting, BATCH):
                messages = [Message.user("x", id=f"m{begin + number}") for number in range(BATCH)]
                await store.write(lambda tx, some=messages: tx.runs.put_waiting(DEEP, some, WAITS, None))
                await store.write(lambda tx: tx.outbox.enqueue([_effect(0)] * BATCH))
            yield mailbox


def _effect(available_at: int) -> OutboxDraft:
    return OutboxDraft(kind="chat", target="telegram", payload={}, order_key="one", available_at=available_at)


def _calls(mailbox: Mailbox) -> dict[str, Callable[[int], Awaitable[object]]]:
    store, admin = mailbox.stores.store, mailbox.admin
    claim = ClaimRequest(consumer="elsewhere", lease_ms=3_600_000)
    return {
        "send to a busy thread": lambda number: admin.deliver(
            DEEP, [Message.user("y", id=f"sent{number}")], WAITS
        ),
        "start on another thread": lambda number: mailbox.enqueue(f"{OTHERS}{number}", "y"),
        "claim on another thread": lambda number: store.write(
            lambda tx: tx.runs.dispatches.claim(f"{OTHERS}{number}", claim)
        ),
        "poll for due runs": lambda _: store.read(
            lambda tx: (tx.runs.dispatches.due_threads(10), tx.runs.dispatches.next_due_at())
        ),
        "poll for due effects": lambda _: store.read(lambda tx: tx.outbox.due(["chat"])),
    }


async def _cost(call: Callable[[int], Awaitable[object]], turn: int) -> float:
    """Return the processor time of one call, in seconds: the mean of a turn."""
    began = time.process_time()
    for number in range(turn * CALLS, (turn + 1) * CALLS):
        await call(number)
    return (time.process_time() - began) / CALLS


if __name__ == "__main__":
    asyncio.run(main())
