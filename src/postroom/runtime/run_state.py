"""The runtime's own entry in a run's state: what must survive between two executions of the run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from postroom.contracts.records import replace
from postroom.contracts.runs import PersistedState, RunRecord, RunWaitingTicket

KEY = "postroom.runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundNote:
    """A background task of the run as it was told of last."""

    task_id: str
    description: str
    instance: str
    """Names the process's `BackgroundTasks` that ran it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeState:
    """Open questions, where the run began again, and the tasks it had begun."""

    run_id: str
    hidden_until: str | None = None
    tickets: tuple[RunWaitingTicket, ...] = ()
    tasks: tuple[BackgroundNote, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return self.hidden_until is None and not self.tickets and not self.tasks


def state_of(record: RunRecord) -> RuntimeState:
    """Return what the run kept; the state of another run, which a new one inherits, does not count.

    Tickets of a run that waits are those in the record, whoever wrote it.
    """
    kept = _read(record.state) if record.state else None
    state = kept if kept is not None and kept.run_id == record.run_id else RuntimeState(run_id=record.run_id)
    return replace(state, tickets=record.waiting.tickets) if record.waiting else state


def _read(state: PersistedState) -> RuntimeState | None:
    if KEY not in state.extensions:
        return None
    try:
        return msgspec.convert(state.extensions[KEY], RuntimeState)
    except msgspec.ValidationError:
        return None  # an older or newer runtime wrote it


def with_state(record: RunRecord, state: RuntimeState) -> RunRecord:
    """Return the record with this state in it; everybody else's entries stay as they are."""
    before = record.state or PersistedState()
    # As it reads back from a store, where a tuple is a list: else every step would count as a change.
    entry = None if state.is_empty else msgspec.json.decode(msgspec.json.encode(state))
    if before.extensions.get(KEY) == entry:
        return record
    others = {key: value for key, value in before.extensions.items() if key != KEY}
    extensions: dict[str, Any] = others if entry is None else {**others, KEY: entry}
    return replace(record, state=PersistedState(revision=before.revision + 1, extensions=extensions))


def by_call(tickets: Iterable[RunWaitingTicket]) -> dict[str, RunWaitingTicket]:
    """Return tickets by the call they are about."""
    return {ticket.tool_call_id: ticket for ticket in tickets}
