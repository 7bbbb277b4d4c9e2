"""Looks that are asked together, each under a key, so that they take one round trip and are asked once.

What a change has asked under a key is known until it writes: a step that is decided on a thread and then
written looks at its row once.
"""

from collections.abc import Mapping
from typing import Any

from postroom.stores.sql_transaction import Row, SqlTransaction, Values

Looks = dict[tuple[Any, ...], tuple[str, Values]]
"""Statements and their values, by what is asked: a word, and of what."""
Found = Mapping[tuple[Any, ...], list[Row]]
"""The rows that each look gave; what was not asked is not there."""


def asked(sql: SqlTransaction, looks: Looks) -> Found:
    """Ask what is not known yet and return what each look finds."""
    known = sql.known
    new = {key: look for key, look in looks.items() if key not in known}
    if new:
        known.update(zip(new, sql.ask(*new.values()), strict=True))
    return {key: known[key] for key in looks}


def thread_look(thread_id: str) -> Looks:
    """Return the look for a thread."""
    return {("thread", thread_id): ("threads.thread", {"thread_id": thread_id})}


def run_look(run_id: str) -> Looks:
    """Return the look for a run."""
    return {("run", run_id): ("threads.run", {"run_id": run_id})}


def dispatch_look(dispatch_id: str) -> Looks:
    """Return the look for a dispatch and its thread's epoch."""
    return {("dispatch", dispatch_id): ("dispatches.dispatch", {"dispatch_id": dispatch_id})}


def queue_look(thread_id: str, at_most: int = 1) -> Looks:
    """Return the look for what is claimed, queued (no further than `at_most`) and waits on a thread."""
    values = {"thread_id": thread_id, "at_most": max(at_most, 1)}
    return {("queue", thread_id, values["at_most"]): ("dispatches.queue_of_thread", values)}
