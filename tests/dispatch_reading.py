"""What tests of the mailbox read back from the stores. For tests only."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from postroom.contracts.dispatch import OPEN, RunDispatch
from postroom.contracts.runs import RunRecord
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.runs.ports import RunStores
from postroom.testing.run_faults import failing_changes


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


async def row_of(stores: RunStores, dispatch_id: str) -> RunDispatch:
    """Return a dispatch that must be there."""
    row = await stores.dispatches.load_dispatch(dispatch_id)
    assert row is not None
    return row


async def run_of(stores: RunStores, run_id: str) -> RunRecord:
    """Return a run that must be there."""
    run = await stores.threads.load_run(run_id)
    assert run is not None
    return run


async def rows_of(stores: RunStores, thread_id: str) -> dict[str, RunDispatch]:
    """Return all dispatches of a thread by id."""
    return {row.dispatch_id: row for row in await stores.dispatches.list_dispatches(thread_id, limit=200)}


async def open_rows(stores: RunStores, thread_id: str) -> tuple[RunDispatch, ...]:
    """Return what of a thread is queued or claimed."""
    return await stores.dispatches.list_dispatches(thread_id, OPEN)


async def texts_of(stores: RunStores, thread_id: str) -> list[str]:
    """Return what a thread's committed messages say, in order."""
    return [message.text() for message in await stores.threads.load_messages(thread_id) or ()]


def operations(mailbox: Mailbox, operation: str, result: str = "ok") -> float:
    """Return how often a store operation came to this result."""
    return mailbox.metrics.value("postroom_mailbox_operations_total", operation=operation, result=result)


def runs_ended(mailbox: Mailbox, outcome: str) -> float:
    """Return how many runs came to this outcome."""
    return mailbox.metrics.value("postroom_runs_total", outcome=outcome)


def failing_queue(
    stores: RunStores, *, counts: Counter[str] | None = None, **plans: Sequence[bool]
) -> RunStores:
    """Return the stores with changes of the mailbox that are refused as planned, by name."""
    return failing_changes(stores, before=plans, counts=counts)
