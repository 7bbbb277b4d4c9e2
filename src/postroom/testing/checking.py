"""Checks whether the contents of a database keep the promises of the queue."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from postroom.contracts.dispatch import OPEN, RunDispatch, RunDispatchStatus
from postroom.contracts.events import EventScope
from postroom.contracts.run_stores import MAX_PAGE, RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.embedded.effects import ENDED, WAITS
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import LOGGED, SLEEP, STEP
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction
from postroom.testing.history import History
from postroom.testing.recording import recorded

_FENCED: Final = (STEP, LOGGED, WAITS)
"""The kinds of events that only the owner of an open run may write."""


async def check(
    looked_at: Mailbox | RunStores,
    *,
    accepted: Mapping[str, str] | None = None,
    history: History | None = None,
    at_once: int | None = None,
) -> list[str]:
    """Return a sentence for each promise of the queue that the database breaks.

    The promises are:

    - An open run is queued, claimed or waiting.
    - A thread has at most one owner.
    - Open dispatches have the epoch of their thread.
    - Accepted messages exist.
    - Nothing is written for an ended run, and its end is announced once.

    `accepted` maps the ids of accepted runs to thread ids; all accepted runs must exist. `history` adds the
    recorded executions of the workers to the check. `at_once` is the maximum number of runs that may be
    active at the same time. Call `check` while no worker is writing, because the database is read in several
    transactions.

    Raises:
        StoreError: The database could not be read.
    """
    stores = looked_at.stores if isinstance(looked_at, Mailbox) else looked_at
    is_told = isinstance(looked_at, Mailbox)
    texts: list[str] = []
    owners: dict[str, RunDispatch] = {}
    for status in OPEN:
        last: tuple[int, str] | None = None
        while rows := await stores.dispatches.list_by_status(status, limit=MAX_PAGE, after=last):
            last = (rows[-1].updated_at, rows[-1].dispatch_id)
            texts += await stores.store.read(partial(_of_rows, rows=rows))
            for row in rows if status is RunDispatchStatus.CLAIMED else ():
                if (other := owners.setdefault(row.thread_id, row)) != row:
                    texts.append(
                        f"thread {row.thread_id} has two owners: {other.claimed_by} of run {other.run_id}, "
                        f"and {row.claimed_by} of run {row.run_id}"
                    )
    if at_once is not None:
        claimed = (await stores.dispatches.count_by_status())[RunDispatchStatus.CLAIMED]
        if claimed > at_once:
            texts.append(f"{claimed} runs are claimed at once, but the limit is {at_once}")
    missing = dict(accepted or {})
    after = ""
    while True:
        query = RunQuery(after=after)
        runs, broken = await stores.store.read(partial(_of_runs, query=query, is_told=is_told))
        texts += broken
        for run in runs:
            if missing.pop(run.run_id, run.thread_id) != run.thread_id:
                texts.append(f"run {run.run_id} was accepted for another thread than {run.thread_id}")
        if len(runs) < MAX_PAGE:
            break
        after = runs[-1].run_id
    texts += [
        f"run {run} of thread {thread} was accepted but does not exist" for run, thread in missing.items()
    ]
    histories = [History(executions=await recorded(stores)), *([history] if history else [])]
    return texts + [finding for each in histories for finding in each.findings(at_once=at_once)]


def _of_rows(tx: Transaction, rows: Iterable[RunDispatch]) -> list[str]:
    results: list[str] = []
    for row in rows:
        epoch = tx.runs.dispatches.epoch(row.thread_id)
        if row.dispatch_epoch != epoch and tx.runs.dispatches.load(row.dispatch_id) == row:
            results.append(
                f"run {row.run_id} of thread {row.thread_id} is {row.status.label} in epoch "
                f"{row.dispatch_epoch}, but the thread is in epoch {epoch}"
            )
        if tx.runs.threads.load_run(row.run_id) is None:
            results.append(
                f"run {row.run_id} of thread {row.thread_id} is {row.status.label} but does not exist"
            )
    return results


def _of_runs(tx: Transaction, query: RunQuery, *, is_told: bool) -> tuple[tuple[RunRecord, ...], list[str]]:
    runs = tx.runs.threads.list_runs(query, query.limit)
    texts: list[str] = []
    for run in runs:
        trigger_message_ids = run.input.trigger_message_ids if run.input is not None else ()
        there = (
            {record.message_id for record in tx.runs.messages.named(run.thread_id, trigger_message_ids)}
            if trigger_message_ids
            else set()
        )
        texts += [
            f"message {id} of run {run.run_id} of thread {run.thread_id} was accepted but does not exist"
            for id in trigger_message_ids
            if id not in there
        ]
        if run.status is RunStatus.DONE:
            scope = EventScope.run(run.run_id).key
            values = tx.events.of_scope(scope, after=0, limit=2, kinds=(ENDED,))
            of_run = f"run {run.run_id} of thread {run.thread_id}"
            if is_told and not values:
                texts.append(f"{of_run} has ended, but its log has no such event")
            if len(values) > 1:
                texts.append(f"{of_run} has ended twice: events {values[0][0]} and {values[1][0]} of its log")
            if values:
                end = values[0][0]
                texts += [
                    f"{of_run} ended with event {end} of its log, "
                    f"but event {place} ({event.event_kind}) follows"
                    for place, event in tx.events.of_scope(scope, after=end, limit=1, kinds=_FENCED)
                ]
        elif (
            run.waiting is None or any(ticket.tool_name == SLEEP for ticket in run.waiting.tickets)
        ) and not _has_queued_dispatch(tx, run):
            texts.append(
                f"run {run.run_id} of thread {run.thread_id} is {run.status.value}, but neither "
                "queued nor claimed, so it will not be executed"
            )
    return runs, texts


def _has_queued_dispatch(tx: Transaction, run: RunRecord) -> bool:
    last = tx.runs.dispatches.load(run.dispatch_id) if run.dispatch_id else None
    if last is not None and last.status in OPEN:
        return last.run_id == run.run_id
    offset = 0
    while rows := tx.runs.dispatches.of_thread(run.thread_id, OPEN, limit=MAX_PAGE, offset=offset):
        if any(row.run_id == run.run_id for row in rows):
            return True
        offset += MAX_PAGE
    return False
