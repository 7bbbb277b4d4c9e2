"""Puts the request of a claimed dispatch together again, from its run and its thread.

What is missing here cannot come back: every failure is permanent.
"""

from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.activation import Recovery, RunActivation, RunHints
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import (
    ForeignThread,
    InvalidActivation,
    ResolveFailed,
    UnknownMessage,
    UnknownRun,
)
from postroom.contracts.messages import Message
from postroom.contracts.run_stores import ThreadStore
from postroom.contracts.runs import RunRecord, RunStatus


async def load_run_of(threads: ThreadStore, dispatch: RunDispatch) -> RunRecord:
    """Return the run that a dispatch delivers.

    Raises:
        UnknownRun, ForeignThread: there is none, or it is another thread's.
    """
    run = await threads.load_run(dispatch.run_id)
    if run is None:
        raise UnknownRun(f"run {dispatch.run_id!r} not found", value=dispatch.run_id)
    if run.thread_id != dispatch.thread_id:
        raise ForeignThread(f"run {run.run_id!r} belongs to thread {run.thread_id!r}", value=run.run_id)
    return run


async def rebuild(
    threads: ThreadStore,
    dispatch: RunDispatch,
    run: RunRecord,
    *,
    instance_id: str,
    messages: tuple[Message, ...] | None = None,
) -> RunActivation:
    """Return the request that the run was accepted with, its messages read from the thread if not given.

    Raises:
        InvalidActivation, UnknownMessage, ResolveFailed: the request cannot be put together.
    """
    kept = run.activation
    if kept is None:
        raise InvalidActivation(f"run {run.run_id!r} has no stored request", value=run.run_id)
    if run.resolution_id is None:
        raise ResolveFailed(f"run {run.run_id!r} is pinned to nothing", value=run.run_id)
    trace = replace(kept.trace, dispatch_id=dispatch.dispatch_id, session_id=instance_id)
    if messages is None:
        messages = await _triggers(threads, run, kept.trigger_message_ids)
    return RunActivation(
        thread_id=run.thread_id,
        messages=messages,
        agent_id=run.agent_id,
        continue_run_id=kept.continue_run_id,
        decisions=kept.seeded_decisions,
        options=kept.options,
        trace=trace,
        delivery=kept.delivery,
        hints=RunHints(run_id=run.run_id, dispatch_id=dispatch.dispatch_id, resolution_id=run.resolution_id),
        attempt=dispatch.attempt_count + 1,
    )


def was_cut_off(run: RunRecord) -> bool:
    """Say whether an execution of the run ended between two of its checkpoints."""
    return run.status is RunStatus.RUNNING and run.steps > 0


def is_settled(run: RunRecord, dispatch: RunDispatch) -> bool:
    """Say whether this dispatch has done its work already and only its acknowledgement was lost."""
    if not run.is_open:
        return True
    return run.waiting is not None and run.waiting.since_dispatch_id == dispatch.dispatch_id


def begins_as(run: RunRecord, said: Recovery) -> Recovery:
    """Return how an execution begins when the executor says how it takes up what was cut off."""
    return said if was_cut_off(run) else Recovery.START


async def asked_of(threads: ThreadStore, run_ids: Sequence[str]) -> frozenset[str]:
    """Return the messages that these runs were started with."""
    found: set[str] = set()
    for run_id in run_ids:
        run = await threads.load_run(run_id)
        if run is not None and run.input is not None:
            found.update(run.input.trigger_message_ids)
    return frozenset(found)


async def _triggers(threads: ThreadStore, run: RunRecord, ids: tuple[str, ...]) -> tuple[Message, ...]:
    if not ids:
        return ()
    records = await threads.load_message_records(run.thread_id, ids)
    found = {record.message_id for record in records}
    for message_id in ids:
        if message_id not in found:
            raise UnknownMessage(f"message {message_id!r} not found on its thread", value=message_id)
    return tuple(record.message for record in records)
