"""Threads, runs and committed messages in memory, and what finds them. Decides nothing."""

from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice, takewhile
from typing import TypeVar

from postroom.contracts.budgets import Spending
from postroom.contracts.messages import Json, Message, MessageRecord
from postroom.contracts.run_stores import MessageQuery, RunQuery, ThreadQuery
from postroom.contracts.runs import RunRecord, RunStatus, Thread
from postroom.stores.memory.pending import PendingZone
from postroom.stores.memory.run_tables import K, Key, Ordered

Name = TypeVar("Name", bound=Hashable)


@dataclass(slots=True)
class Log:
    """The committed messages of a thread: their numbers follow one another."""

    records: list[MessageRecord] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    """By message id."""

    def found(self, query: MessageQuery) -> Iterator[MessageRecord]:
        """Iterate over the records that a query asks for."""
        first = self.records[0].seq if self.records else 1
        begin = max(0, query.after + 1 - first)
        end = len(self.records) if query.before is None else min(len(self.records), query.before - first)
        places = range(begin, end)
        for place in reversed(places) if query.newest_first else places:
            record = self.records[place]
            said_by = record.message.metadata.run_id if record.message.metadata else None
            if query.visibility not in (None, record.message.visibility):
                continue
            if query.run_id in (None, said_by):
                yield record

    def named(self, message_ids: Sequence[str]) -> list[MessageRecord]:
        """Return those records, in order."""
        seqs = sorted({self.seqs[one] for one in message_ids if one in self.seqs})
        return [self.records[seq - self.records[0].seq] for seq in seqs]


class ThreadTable:
    """Threads with all that belongs to them."""

    def __init__(self) -> None:
        self.threads: dict[str, Thread] = {}
        self.runs: dict[str, RunRecord] = {}
        self.logs: dict[str, Log] = {}
        self.states: dict[str, dict[str, Json]] = {}
        self.spent: dict[str, Spending] = {}
        self.pending = PendingZone(self.is_committed)
        self._thread_ids: Ordered[str] = Ordered()
        self._children: dict[str, Ordered[str]] = {}
        self._of_resource: dict[str, Ordered[str]] = {}
        self._run_ids: dict[tuple[str | None, RunStatus], Ordered[str]] = {}
        self._recent: dict[tuple[str, bool], Ordered[Key]] = {}

    def put_thread(self, thread: Thread) -> None:
        """Store or replace a thread."""
        self._unlist(thread.id)
        self.threads[thread.id] = thread
        self._thread_ids.add(thread.id)
        self._children.setdefault(thread.parent_thread_id or "", Ordered()).add(thread.id)
        self._of_resource.setdefault(thread.resource_id or "", Ordered()).add(thread.id)

    def drop_thread(self, thread_id: str) -> None:
        """Remove a thread with its messages and runs."""
        self._unlist(thread_id)
        del self.threads[thread_id]
        self._thread_ids.discard(thread_id)
        for run_id in list(self.found_runs(RunQuery(thread_id=thread_id))):
            self._forget_run(self.runs.pop(run_id))
        self.logs.pop(thread_id, None)
        self.states.pop(thread_id, None)
        self.pending.clear(thread_id)

    def children(self, thread_id: str) -> tuple[str, ...]:
        """Return the threads whose parent it is."""
        return tuple(self._children.get(thread_id, ()))

    def found_threads(self, query: ThreadQuery) -> Iterator[Thread]:
        """Iterate over the threads that a query asks for, without regard to its limit."""
        index: Ordered[str] | None = self._thread_ids
        if query.parent_thread_id is not None:
            index = self._children.get(query.parent_thread_id)
        elif query.resource_id is not None:
            index = self._of_resource.get(query.resource_id)
        for thread_id in _ids([index] if index else [], query.id_prefix, query.after):
            thread = self.threads[thread_id]
            if query.resource_id in (None, thread.resource_id):
                yield thread

    def put_run(self, run: RunRecord) -> None:
        """Store or replace a run."""
        if run.run_id in self.runs:
            self._forget_run(self.runs[run.run_id])
        self.runs[run.run_id] = run
        for key in ((None, run.status), (run.thread_id, run.status)):
            self._run_ids.setdefault(key, Ordered()).add(run.run_id)
        for started in _started(run):
            self._recent.setdefault((run.thread_id, started), Ordered()).add(_age(run))

    def found_runs(self, query: RunQuery) -> Iterator[str]:
        """Iterate over the ids of the runs that a query asks for, without regard to its limit."""
        keys = [(query.thread_id, status) for status in set(query.statuses) or RunStatus]
        indexes = [self._run_ids[key] for key in keys if key in self._run_ids]
        return _ids(indexes, query.id_prefix, query.after)

    def latest_run(self, thread_id: str, *, started: bool = False) -> RunRecord | None:
        """Return the thread's newest run, or the newest of those that were ever past `created`."""
        index = self._recent.get((thread_id, started))
        newest = index.last if index else None
        return self.runs[newest[-1]] if newest else None

    def latest_runs(self, thread_id: str, limit: int) -> tuple[RunRecord, ...]:
        """Return the thread's newest runs, the newest first."""
        newest = islice(reversed(list(self._recent.get((thread_id, False), ()))), limit)
        return tuple(self.runs[age[-1]] for age in newest)

    def is_committed(self, thread_id: str, message_id: str) -> bool:
        """Say whether the thread has a committed message with this id."""
        log = self.logs.get(thread_id)
        return log is not None and message_id in log.seqs

    def append(self, thread_id: str, messages: Sequence[Message], *, behind: int, now: int) -> None:
        """Add committed messages; they are numbered from `behind + 1`."""
        if not messages:
            return
        log = self.logs.setdefault(thread_id, Log())
        for seq, message in enumerate(messages, start=behind + 1):
            log.records.append(MessageRecord(thread_id=thread_id, seq=seq, message=message, created_at=now))
            log.seqs[message.id or ""] = seq

    def _unlist(self, thread_id: str) -> None:
        before = self.threads.get(thread_id)
        if before is not None:
            _leave(self._children, before.parent_thread_id or "", thread_id)
            _leave(self._of_resource, before.resource_id or "", thread_id)

    def _forget_run(self, run: RunRecord) -> None:
        _leave(self._run_ids, (None, run.status), run.run_id)
        _leave(self._run_ids, (run.thread_id, run.status), run.run_id)
        for started in _started(run):
            _leave(self._recent, (run.thread_id, started), _age(run))


def own_copy(run: RunRecord) -> RunRecord:
    """Return the run with a copy of what its executor keeps, which goes on changing it."""
    if run.state is None:
        return run
    return replace(run, state=replace(run.state, extensions=deepcopy(run.state.extensions)))


def _age(run: RunRecord) -> Key:
    return run.updated_at, run.created_at, run.run_id


def _started(run: RunRecord) -> tuple[bool, ...]:
    """Return the listings of runs by age that it stands in: of all, and of those past `created`."""
    return (False,) if run.status is RunStatus.CREATED else (False, True)


def _ids(indexes: Sequence[Ordered[str]], prefix: str, after: str) -> Iterator[str]:
    """Iterate over ids in order, behind `after` and with the prefix."""
    if prefix > after:
        parts = [index.behind(prefix, inclusive=True) for index in indexes]
    else:
        parts = [index.behind(after) for index in indexes]
    return takewhile(lambda one: one.startswith(prefix), merge(*parts))


def _leave(indexes: dict[Name, Ordered[K]], name: Name, key: K) -> None:
    """Remove a key from an index, and the index when nothing is left in it."""
    index = indexes.get(name)
    if index is not None:
        index.discard(key)
        if not index:
            del indexes[name]
