"""The queue of dispatches, as a transaction reads and writes it.

A method that changes a dispatch requires the lock of its thread. The method reads the record, calls the
record's transition, and writes the result. A lost claim is returned, not raised, because the method may have
ended the dispatch, and an exception would roll that back.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from postroom.contracts.dispatch import (
    INTERRUPTED,
    STALE_EPOCH,
    TERMINAL,
    Claim,
    Interrupt,
    RunDispatch,
    RunDispatchStatus,
)
from postroom.contracts.errors import (
    DedupeKeyInUse,
    DuplicateRecord,
    PostroomError,
    RunNotOpen,
    StaleClaim,
    UnknownDispatch,
)
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_COUNTED, ClaimRequest, DueThread, Places
from postroom.contracts.runs import RunRecord
from postroom.stores.changes import WORK, commands_to
from postroom.stores.codec import decode, encode
from postroom.stores.runs import rows
from postroom.stores.runs.rows import beyond
from postroom.stores.sql_transaction import Look, Row, SqlTransaction, Tables, Values

PURGED_AT_ONCE: Final = 1_000
"""Maximum number of rows removed in one transaction: about 5 ms, during which no caller gets a result."""

_EARLIEST: Final = (-(2**63), "")
_FOR_EVER: Final = 2**63 - 1
"""The stored end of a hold that has no time limit."""
_FEW: Final = 16
"""Maximum number of due rows, or of threads in the queue, that are examined one by one."""
_LATER_WINDOW: Final = 64
"""Minimum number of queue rows that are read together after the first window."""
_WINDOWS: Final = 4
"""Number of windows of rows that are read before each thread is examined instead."""
_SOON_MS: Final = 10_000
"""A queued run that is due within this many milliseconds counts as executing for budgets."""
_QUEUED, _CLAIMED = RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED


class Dispatches(Tables):
    """The rows of the dispatch queue."""

    def load(self, dispatch_id: str) -> RunDispatch | None:
        """Return the dispatch with this id, or None."""
        row = self._row(dispatch_id)
        return rows.dispatch(row) if row else None

    def begun_with(self, prefix: str, limit: int) -> dict[str, str]:
        """Return the run ids of the dispatches whose ids begin with `prefix`, keyed by dispatch id."""
        parameters = {"low": prefix, "beyond": beyond(prefix), "limit": limit}
        return {row[0]: row[1] for row in self._sql.all("dispatches.begun_with", parameters)}

    def thread_of(self, dispatch_id: str) -> str | None:
        """Return the thread id of a dispatch, or None if no dispatch has this id."""
        row = self._sql.one("dispatches.thread_of", {"dispatch_id": dispatch_id})
        return row[0] if row else None

    def claimed(self, thread_id: str) -> RunDispatch | None:
        """Return the claimed dispatch of a thread, or None."""
        row = self._sql.one("dispatches.claimed", {"thread_id": thread_id})
        return rows.dispatch(row) if row else None

    def claimed_by(self, consumer: str, *, besides: Sequence[str]) -> tuple[RunDispatch, ...]:
        """Return the claimed dispatches of a consumer, except those with a claim token in `besides`."""
        found_rows = self._sql.all("dispatches.claimed_by", {"consumer": consumer, "besides": besides})
        return tuple(map(rows.dispatch, found_rows))

    def epoch(self, thread_id: str) -> int:
        """Return the epoch of a thread."""
        return int(self._queue(thread_id)[1])

    def enqueue(self, dispatch: RunDispatch) -> RunDispatch:
        """Store a queued dispatch with the epoch of its thread, as `DispatchStore.enqueue` describes."""
        [[_, epoch, *_]], against = self._sql.ask(queue_look(dispatch.thread_id), against_look(dispatch))
        stored = dispatch.prepared_for_enqueue(epoch=epoch)
        refuse_taken(dispatch, against)
        return self.insert(stored)

    def due(
        self, thread_id: str, *, behind: RunDispatch | None = None, now: int | None = None
    ) -> RunDispatch | None:
        """Return the next due dispatch of a thread, or None if a dispatch of the thread is claimed.

        Dispatches of an older epoch become superseded. With `behind`, the thread is read as if the dispatch
        `behind` had ended, and nothing is written.
        """
        now, of_thread = self._now() if now is None else now, {"thread_id": thread_id}
        looks = [due_look(thread_id, now, behind)]
        if behind is None:
            looks.append(("dispatches.stale_queue", of_thread))
            looks.append(("threads.thread", of_thread))  # the start of the run writes to this thread
        due, *others = self._asked(looks).values()
        for *_, run_id, body in due:
            self._sql.known["threads.run", run_id] = [] if body is None else [(run_id, body)]
        # An interrupt leaves no stale dispatch, but a program that writes to the table may.
        for row in others[0] if others else ():
            self.put(rows.dispatch(row).superseded(reason=STALE_EPOCH, now=now))
        return rows.dispatch(due[0]) if due else None

    def first_due(self, thread_ids: Sequence[str]) -> list[RunDispatch]:
        """Return the next due dispatch of each thread; threads with a claimed dispatch are omitted."""
        answers = self._asked(due_look(thread_id, self._now()) for thread_id in thread_ids)
        due = [row for rows_of_thread in answers.values() for row in rows_of_thread]
        for *_, run_id, body in due:
            self._sql.known["threads.run", run_id] = [] if body is None else [(run_id, body)]
        return [rows.dispatch(row) for row in due]

    def claim(self, thread_id: str, asks: ClaimRequest) -> RunDispatch | None:
        """Claim the next due dispatch of a thread, as `DispatchStore.claim` describes."""
        due = self.due(thread_id)
        return None if due is None else self._taken(due, asks, self._now())

    def claim_dispatch(self, dispatch_id: str, asks: ClaimRequest) -> RunDispatch | None:
        """Claim a dispatch, even if it is not due, as `DispatchStore.claim_dispatch` describes."""
        now, row = self._now(), self._row(dispatch_id)
        dispatch = rows.dispatch(row) if row else None
        if row is None or dispatch is None or dispatch.status is not _QUEUED:
            return None
        if dispatch.dispatch_epoch < row[-1]:
            self.put(dispatch.superseded(reason=STALE_EPOCH, now=now))
            return None
        claimed, *_, held_by = self._queue(dispatch.thread_id)
        if claimed is not None or held_by not in (None, dispatch.run_id):
            return None
        return self._taken(dispatch, asks, now)

    def _taken(self, row: RunDispatch, asks: ClaimRequest, now: int) -> RunDispatch:
        return self.put(
            row.claim(token=self._new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=now)
        )

    def move_owned(
        self, claim: Claim, move: Callable[[RunDispatch, int], RunDispatch]
    ) -> RunDispatch | StaleClaim:
        """Apply `move` to the dispatch of a claim and store the result, or return StaleClaim.

        Raises:
            UnknownDispatch: No dispatch has this id.
        """
        row = self._row(claim.dispatch_id)
        if row is None:
            raise UnknownDispatch(f"no dispatch {claim.dispatch_id!r}", value=claim.dispatch_id)
        dispatch = self.proved(claim, rows.dispatch(row), row[-1])
        return dispatch if isinstance(dispatch, StaleClaim) else self.put(move(dispatch, self._now()))

    def proved(self, claim: Claim, found: RunDispatch, epoch: int) -> RunDispatch | StaleClaim:
        """Return the dispatch if the claim owns it, or StaleClaim.

        A dispatch with an older epoch than its thread becomes superseded.
        """
        if found.status is not _CLAIMED or found.claim_token != claim.token:
            return _ownership_error(found)
        if found.dispatch_epoch < epoch:
            self.put(found.superseded(reason=STALE_EPOCH, now=self._now()))
            return StaleClaim(f"dispatch {found.dispatch_id!r} was interrupted", value=found.dispatch_id)
        return found

    def renew(self, lengths: Mapping[Claim, int]) -> frozenset[str]:
        """Extend claims from now by milliseconds; return the ids of the dispatches that are still owned."""
        now, owned = self._now(), set[str]()
        for length in set(lengths.values()):
            claims = [claim for claim, until in lengths.items() if until == length]
            values = {
                "dispatch_ids": sorted(claim.dispatch_id for claim in claims),
                "claims": [f"{claim.dispatch_id} {claim.token}" for claim in claims],
                "now": now,
                "lease_until": now + length,
            }
            self._sql.run("dispatches.renew", values)
            owned.update(row[0] for row in self._sql.all("dispatches.renewed", values))
        return frozenset(owned)

    def supersede_stale(self, claim: Claim) -> None:
        """Supersede the dispatch of a claim if its epoch is older than the epoch of its thread."""
        row = self._row(claim.dispatch_id)
        if row is not None:
            self.proved(claim, rows.dispatch(row), row[-1])

    def cancel(self, dispatch_id: str, reason: str | None = None) -> RunDispatch | None:
        """Cancel a dispatch, or return None if the dispatch is not queued.

        `reason` is the reason for the end of its run.
        """
        dispatch = self.load(dispatch_id)
        if dispatch is None or dispatch.status is not _QUEUED:
            return None
        return self.put(dispatch.cancelled(now=self._now(), reason=reason))

    def hurry(self, dispatch_id: str, *, not_before: int) -> None:
        """Make a delayed dispatch due at the time `not_before`."""
        dispatch = self.load(dispatch_id)
        if dispatch is not None and dispatch.status is _QUEUED and dispatch.available_at:
            self.put(dispatch.hurried(not_before=not_before, now=self._now()))

    def interrupt(self, thread_id: str) -> Interrupt:
        """Increase the epoch of a thread and supersede its queued dispatches."""
        named, now = {"thread_id": thread_id}, self._now()
        [[_, epoch, *_]], claimed, queue = self._sql.ask(
            queue_look(thread_id), ("dispatches.claimed", named), ("dispatches.queue", named)
        )
        superseded = [rows.dispatch(row).superseded(reason=INTERRUPTED, now=now) for row in queue]
        self._sql.run("dispatches.put_epoch", {"thread_id": thread_id, "epoch": epoch + 1})
        self._sql.run_many("dispatches.move", map(rows.dispatch_values, superseded))
        self._tell(WORK)
        return Interrupt(
            new_dispatch_epoch=epoch + 1,
            active_dispatch=rows.dispatch(claimed[0]) if claimed else None,
            superseded_dispatches=tuple(superseded),
        )

    def supersede_claimed(self, claim: Claim, reason: str) -> RunDispatch | StaleClaim | None:
        """Supersede the dispatch of a claim, or return None if the dispatch is no longer claimed."""
        dispatch = self.load(claim.dispatch_id)
        if dispatch is None or dispatch.status is not _CLAIMED:
            return None
        if dispatch.claim_token != claim.token:
            return _ownership_error(dispatch)
        return self.put(dispatch.superseded(reason=reason, now=self._now()))

    def overdue(self, limit: int) -> list[RunDispatch]:
        """Return up to `limit` claimed dispatches whose lease has expired, longest overdue first."""
        found_rows = self._sql.all("dispatches.overdue", {"now": self._now(), "limit": limit})
        return [rows.dispatch(row) for row in found_rows]

    def retried(self, limit: int) -> list[RunDispatch]:
        """Return up to `limit` queued dispatches with failed attempts, by the time of the next attempt."""
        return [rows.dispatch(row) for row in self._sql.all("dispatches.retried", {"limit": limit})]

    def late(self, limit: int) -> list[RunDispatch]:
        """Return up to `limit` queued dispatches that missed their deadline."""
        found_rows = self._sql.all("dispatches.late", {"now": self._now(), "limit": limit})
        return [rows.dispatch(row) for row in found_rows]

    def end_late(self, dispatch_id: str) -> RunDispatch | None:
        """Make a queued dispatch that missed its deadline a dead letter; return None for other dispatches."""
        dispatch, now = self.load(dispatch_id), self._now()
        if dispatch is None or dispatch.status is not _QUEUED or not dispatch.has_missed_deadline(now):
            return None
        return self.put(dispatch.too_late(now=now))

    def reclaim(self, dispatch_id: str, *, counts: bool = True) -> RunDispatch | None:
        """Release a claimed dispatch whose lease has expired; return None for any other dispatch.

        If the thread was interrupted after the claim, supersede the dispatch, and return None.
        With `counts`, the lost execution counts as an interruption, or as a failed attempt if interruptions
        have no limit.
        """
        now, row = self._now(), self._row(dispatch_id)
        dispatch = rows.dispatch(row) if row else None
        if row is None or dispatch is None or dispatch.lease_until is None or dispatch.lease_until >= now:
            return None
        if dispatch.dispatch_epoch < row[-1]:
            self.put(dispatch.superseded(reason=STALE_EPOCH, now=now))
            return None
        return self.put(dispatch.lease_ended(now=now) if counts else dispatch.released(now=now))

    def insert(self, row: RunDispatch) -> RunDispatch:
        """Store a new dispatch, and return the dispatch."""
        self._sql.run("dispatches.enqueue", rows.dispatch_values(row))
        if row.status is not _CLAIMED:  # it is queued, or its thread is free
            self._tell(WORK)
        return row

    def put(self, row: RunDispatch, *, is_last: bool = False, answer: RunRecord | None = None) -> RunDispatch:
        """Store a changed dispatch, and return the dispatch.

        `is_last` states that no other dispatch of the thread is queued. If the dispatch contains the answer
        of the run `answer`, the run must already be stored.
        """
        self._sql.run("dispatches.move", rows.dispatch_values(row, answer))
        if row.status is not _CLAIMED and not is_last:  # it is queued, or its thread is free
            self._tell(WORK)
        return row

    def of_thread(
        self, thread_id: str, statuses: Collection[RunDispatchStatus], *, limit: int, offset: int
    ) -> tuple[RunDispatch, ...]:
        """Return the dispatches of a thread, ordered by priority, then by age, then by id."""
        parameters = {"thread_id": thread_id, "limit": limit, "offset": max(offset, 0)}
        if set(statuses) == {_QUEUED}:
            return self._all("queued_of_thread", parameters)
        return self._all("of_thread", {**parameters, "statuses": sorted(statuses)})

    def by_status(
        self,
        status: RunDispatchStatus,
        *,
        limit: int,
        after: tuple[int, str] | None,
        thread_prefix: str = "",
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches with a status after the position `after`, ordered by last change, then by id.

        Only dispatches of threads whose ids begin with `thread_prefix` are returned.
        """
        at, dispatch_id = after or _EARLIEST
        parameters = {"status": status.value, "at": at, "id": dispatch_id, "limit": limit}
        parameters |= {"low": thread_prefix, "beyond": beyond(thread_prefix)}
        return self._all("ended_by_change" if status.is_terminal else "open_by_change", parameters)

    def unreconciled(self, limit: int) -> tuple[RunDispatch, ...]:
        """Return up to `limit` ended dispatches whose runs were not updated yet, oldest first."""
        return self._all("unreconciled", {"limit": limit})

    def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of ended dispatches were updated."""
        self._sql.run("dispatches.mark_reconciled", {"dispatch_ids": dispatch_ids})

    def due_threads(
        self,
        limit: int,
        *,
        tenant: str | None = None,
        full_keys: Sequence[str] = (),
        places: Places = None,
    ) -> tuple[DueThread, ...]:
        """Return up to `limit` threads with a due dispatch but no claimed one, most urgent first.

        `tenant` selects one tenant; "" selects the dispatches without a tenant. Dispatches with a key in
        `full_keys` are excluded. Only threads that may run at one of `places` are returned.
        """
        threads: dict[str, DueThread] = {}
        for row in self._due(limit, tenant, full_keys, places):
            threads.setdefault(row[3], DueThread(*row[3:6]))
        return tuple(threads.values())[:limit]

    def _due(self, limit: int, tenant: str | None, full_keys: Sequence[str], places: Places) -> Sequence[Row]:
        """Return the due rows of up to `limit` threads, most urgent first."""
        within = {"is_anywhere": places is None, "places": sorted(places or ())}
        parameters = {"now": self._now(), "full_keys": full_keys, "tenant": tenant, **within}
        window = 1 if tenant is not None else max(limit, 1)
        first = self._sql.all("dispatches.due_first", {**parameters, "few": _FEW, "window": window})
        if not first:
            return ()
        part = [row[:-1] for row in first if row[-1]]
        if not part:
            return sorted((row[:-1] for row in first if row[-2]), key=_turn)
        statement = "due_threads"
        if tenant is not None:
            statement = "due_threads_of_tenant" if tenant else "due_threads_of_nobody"
        found_rows: list[Row] = []
        behind: Sequence[Any] = (-1, *_EARLIEST)
        for number in range(_WINDOWS):
            if number or tenant is not None:
                window = max(2 * limit, _LATER_WINDOW)
                after = dict(zip(("priority", "created_at", "dispatch_id"), behind, strict=True))
                part = self._sql.all(f"dispatches.{statement}", {**parameters, **after, "window": window})
            found_rows += [row for row in part if row[-1]]
            if len(part) < window or len({row[3] for row in found_rows}) >= limit:
                return found_rows
            behind = part[-1][:3]
        return sorted(self._sql.all("dispatches.due_by_thread", parameters), key=_turn)

    def begun_by_limit(self) -> tuple[tuple[str, str, int], ...]:
        """Count runs that execute, or will be retried within 10 s, by tenant and key."""
        look = ("dispatches.begun_by_limit", {"soon": self._now() + _SOON_MS})
        [found_rows] = self._asked([look]).values()
        return tuple((row[0], row[1], row[2]) for row in found_rows)

    def begun_of_agent(self, agent_id: str) -> int:
        """Return the number of an agent's runs that execute, or will be retried within 10 s."""
        found_rows = self._sql.all("dispatches.begun_runs", {"soon": self._now() + _SOON_MS})
        return sum(rows.run(row).agent_id == agent_id for row in found_rows)

    def claimed_by_limit(self) -> tuple[tuple[str, str, int], ...]:
        """Return the number of claims per tenant and key.

        The caller must hold the lock of the limits.
        """
        return tuple((row[0], row[1], row[2]) for row in self._sql.all("dispatches.claimed_by_limit"))

    def starts(self, scope: str, most: int) -> tuple[int, int | None]:
        """Return the number of a scope's last start, and the time of the start `most` before the next."""
        [row] = self._sql.all("dispatches.starts", {"scope": scope, "most": most})
        return row[0], row[1]

    def note_start(self, scope: str, most: int) -> None:
        """Record a start in a scope, and keep only the newest `most` starts."""
        number = self.starts(scope, most)[0] + 1
        self._sql.run("dispatches.note_start", {"scope": scope, "number": number, "started_at": self._now()})
        self._sql.run("dispatches.forget_start", {"scope": scope, "number": number - most})

    def forget_starts(self, older_than: int) -> None:
        """Delete all starts before the time `older_than`."""
        self._sql.run("dispatches.forget_starts", {"older_than": older_than})

    def hold(self, thread_id: str, scope: str, until: int | None) -> None:
        """Omit the queued dispatches of a thread from `due_threads` until a time, or until `release_held`.

        A held dispatch can still be claimed; each claim ends the hold.
        """
        values = {"thread_id": thread_id, "scope": scope, "until": until or _FOR_EVER}
        self._sql.run("dispatches.hold", values)

    def release_held(self, scope: str, until: int | None) -> None:
        """End the holds of a scope that were stored with the end `until`."""
        self._sql.run("dispatches.release_held", {"scope": scope, "until": until or _FOR_EVER})
        self._tell(WORK)

    def held_until(self) -> int | None:
        """Return when the next hold ends, or None if no hold has an end."""
        row = self._sql.one("dispatches.held_until", {"now": self._now()})
        return None if row is None or row[0] in (None, _FOR_EVER) else row[0]

    def set_back(self, back_ms: int) -> int:
        """Shorten delays and leases after the clock was set back; return the number of shortened delays.

        A second call has no effect, even in another process.
        """
        values = {"back": back_ms, "now": self._now()}
        self._sql.run("dispatches.set_back_leases", values)
        changed = self._sql.changed("dispatches.set_back", values)
        if changed:
            self._tell(WORK)
        return changed

    def due_tenants(self, limit: int) -> tuple[str, ...]:
        """Return the names of up to `limit` tenants with queued dispatches."""
        return tuple(row[0] for row in self._sql.all("dispatches.due_tenants", {"limit": limit}))

    def next_due_at(self, places: Places = None) -> int | None:
        """Return when the next dispatch is due: 0 for now, None for never.

        Threads with a claimed dispatch are skipped. Only threads that may run at one of `places` are
        searched.
        """
        if due := self._due(1, None, (), places):
            return min(int(row[6]) for row in due)
        return self.later_due_at(places)

    def later_due_at(self, places: Places = None) -> int | None:
        """Return when the next delayed dispatch is due, or None if no dispatch is delayed.

        Threads with a claimed dispatch are skipped. Only threads that may run at one of `places` are
        searched.
        """
        within = {"is_anywhere": places is None, "places": sorted(places or ())}
        [row] = self._sql.all("dispatches.next_due_at", {"now": self._now(), **within}) or [(None,)]
        due_at: int | None = row[0]
        return due_at

    def place(self, thread_id: str) -> str:
        """Return the place where the runs of a thread must execute, or "" for any place."""
        row = self._sql.one("dispatches.place", {"thread_id": thread_id})
        return row[0] if row else ""

    def put_place(self, thread_id: str, place: str) -> None:
        """Store the place where the runs of a thread must execute, or "" for any place."""
        put_place(self._sql, thread_id, place)
        self._tell(WORK)

    def open_threads(self, among: Sequence[str]) -> frozenset[str]:
        """Return which of the given threads have an open dispatch."""
        return frozenset(row[0] for row in self._sql.all("dispatches.open_threads", {"thread_ids": among}))

    def queued_threads(self, limit: int, after: str) -> tuple[str, ...]:
        """Return threads with queued dispatches, ordered by id, from the first id after `after`."""
        found_rows = self._sql.all("dispatches.queued_threads", {"after": after, "limit": limit})
        return tuple(row[0] for row in found_rows)

    def count_queued(self, thread_id: str, at_most: int) -> int:
        """Return the number of a thread's queued dispatches, at most `at_most`."""
        values = {"thread_id": thread_id, "at_most": max(at_most, 0)}
        row = self._sql.one("dispatches.count_queued", values)
        return int(row[0]) if row else 0

    def dead_errors(self, thread_prefix: str, at_most: int) -> Sequence[tuple[str, str]]:
        """Return the distinct pairs of thread and error among up to `at_most` dead letters.

        Only threads whose ids begin with `thread_prefix` are searched.
        """
        parameters = {"low": thread_prefix, "beyond": beyond(thread_prefix), "at_most": at_most}
        return [*map(tuple, self._sql.all("dispatches.dead_errors", parameters))]

    def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Return the number of dispatches per status, for successful ones up to `MAX_COUNTED`."""
        counted = dict(map(tuple, self._sql.all("dispatches.count_by_status", {"at_most": MAX_COUNTED})))
        return {status: counted.get(status.value, 0) for status in RunDispatchStatus}

    def hasten(self, dispatch_id: str) -> RunDispatch | None:
        """Make a delayed dispatch due at once; return None for any other dispatch."""
        dispatch = self.load(dispatch_id)
        if dispatch is None or dispatch.status is not _QUEUED or dispatch.available_at <= self._now():
            return None
        return self.put(replace(dispatch, available_at=0, updated_at=self._now()))

    def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Delete a dead letter; return None for any other dispatch."""
        dispatch = self.load(dispatch_id)
        if dispatch is None or dispatch.status is not RunDispatchStatus.DEAD_LETTER:
            return None
        self._sql.run("dispatches.discard", {"dispatch_id": dispatch_id})
        return dispatch

    def put_command(self, dispatch: RunDispatch, command: LiveRunCommand) -> None:
        """Store a command for an active run, and notify the owner of the run.

        A second decision for a call, and a second cancel of a run, are ignored.
        """
        values = {
            "dispatch_id": dispatch.dispatch_id,
            # No call has a blank id. A cancel by a person and a cancel by a submission are stored separately.
            "call_id": next((call for call, _ in command.decisions), " " if command.gives_way else ""),
            "body": encode(command),
            "created_at": self._now(),
        }
        self._sql.run("dispatches.put_command", values)
        self._tell(commands_to(dispatch.claimed_by or ""))

    def commands(self, dispatch_ids: Sequence[str]) -> tuple[tuple[str, LiveRunCommand], ...]:
        """Return the commands for dispatches in order of arrival, each with the id of the dispatch."""
        found_rows = self._sql.all("dispatches.commands", {"dispatch_ids": tuple(dispatch_ids)})
        return tuple(
            (row[0], decode(LiveRunCommand, row[1], where=f"command {row[0]}")) for row in found_rows
        )

    def drop_commands(self, dispatch_id: str) -> None:
        """Delete the commands for a dispatch."""
        self._sql.run("dispatches.drop_commands", {"dispatch_id": dispatch_id})

    def drop_decision(self, dispatch_id: str, call_id: str) -> None:
        """Delete the command with the decision about a tool call."""
        self._sql.run("dispatches.drop_decision", {"dispatch_id": dispatch_id, "call_id": call_id})

    def purge_some(self, older_than: int, dead_letters_older_than: int | None) -> int:
        """Delete some dispatches that ended before `older_than`; return the number deleted.

        0 means that no such dispatch is left.
        """
        for status in TERMINAL:
            bound = older_than
            if status is RunDispatchStatus.DEAD_LETTER and dead_letters_older_than is not None:
                bound = dead_letters_older_than
            parameters = {"status": status.value, "older_than": bound, "limit": PURGED_AT_ONCE}
            if gone := self._sql.changed("dispatches.purge", parameters):
                return gone
        self._sql.run("dispatches.forget_gone")
        self._sql.run("dispatches.forget_commands")
        return 0

    def _row(self, dispatch_id: str) -> Row | None:
        found_rows = self._asked([("dispatches.dispatch", {"dispatch_id": dispatch_id})])
        return next(iter(found_rows["dispatches.dispatch", dispatch_id]), None)

    def _queue(self, thread_id: str) -> Row:
        look = queue_look(thread_id)
        return self._asked([look])[look[0], *look[1].values()][0]

    def _all(self, statement: str, values: Values) -> tuple[RunDispatch, ...]:
        return tuple(map(rows.dispatch, self._sql.all(f"dispatches.{statement}", values)))


def _turn(row: Row) -> tuple[int, int, str]:
    """Return the columns by which due rows are sorted."""
    return row[0], row[1], row[2]


def queue_look(thread_id: str, at_most: int = 1, waiting: int = 1) -> Look:
    """Return the query for the claimed dispatch, the epoch and the queue of a thread.

    Up to `at_most` queued dispatches and `waiting` pending messages are counted.
    """
    values = {"thread_id": thread_id, "at_most": max(at_most, 1), "waiting": waiting}
    return "dispatches.queue_of_thread", values


def state_look(  # noqa: PLR0913 - the inputs of a step, by name
    thread_id: str,
    *,
    run_id: str = "",
    owned: str = "",
    parent: str = "",
    adds: tuple[str, str | None, str] = ("", None, ""),
    message_ids: tuple[str, ...] = (),
    at_most: int = 1,
    waiting: int = 1,
    is_submission: bool = False,
) -> Look:
    """Return the query for the `ThreadState` of a thread.

    Args:
        thread_id: The thread.
        run_id: The run that the caller will write.
        owned: The dispatch whose claim the caller will prove.
        parent: The parent of the thread.
        adds: The id of a new dispatch, its dedupe key, and the id of its run.
        message_ids: The ids of new messages.
        at_most: The maximum for the number of queued dispatches.
        waiting: The maximum for the number of pending messages.
        is_submission: Whether the newest runs of the thread are also read.
    """
    values = {
        "thread_id": thread_id,
        "at_most": max(at_most, 1),
        "waiting": waiting,
        "parent": parent,
        "adds": adds[0],
        "dedupe_key": adds[1],
        "delivers": adds[2],
        "message_ids": message_ids,
        "owned": owned,
        "run_id": run_id,
        "begins_on": thread_id if is_submission else "",
    }
    return "dispatches.thread_state", values


def due_look(thread_id: str, now: int, behind: RunDispatch | None = None) -> Look:
    """Return the query for the next due dispatch of a thread, as if the dispatch `behind` had ended."""
    ending = ("", "") if behind is None else (behind.dispatch_id, behind.run_id)
    values = {"thread_id": thread_id, "now": now, "ending": ending[0], "ending_run": ending[1]}
    return "dispatches.next_due", values


def against_look(dispatch: RunDispatch) -> Look:
    """Return the query for stored dispatches that conflict with a new dispatch."""
    return "dispatches.against", {
        "dispatch_id": dispatch.dispatch_id,
        "thread_id": dispatch.thread_id,
        "dedupe_key": dispatch.dedupe_key,
        "run_id": dispatch.run_id,
    }


def refuse_taken(dispatch: RunDispatch, against: Sequence[Row]) -> None:
    """Check that `against_look` has found no conflicting dispatch.

    Raises:
        DuplicateRecord, DedupeKeyInUse, RunNotOpen: As for `DispatchStore.enqueue`.
    """
    for rule, conflicting in against:
        if rule == 0:
            raise DuplicateRecord(f"dispatch {conflicting!r} already exists", value=conflicting)
        kind: type[PostroomError] = DedupeKeyInUse if rule == 1 else RunNotOpen
        does = (
            f"has the dedupe key {dispatch.dedupe_key!r}"
            if rule == 1
            else f"delivers run {dispatch.run_id!r}"
        )
        text = f"dispatch {conflicting!r} is open and {does}"
        raise kind(text, value=dispatch.dispatch_id, details={"dispatch_id": conflicting})


def put_place(sql: SqlTransaction, thread_id: str, place: str) -> None:
    """Store the place where the runs of a thread must execute, or "" for any place."""
    if place:
        sql.run("dispatches.put_place", {"thread_id": thread_id, "place": place})
    else:
        sql.run("dispatches.drop_place", {"thread_id": thread_id})


def _ownership_error(row: RunDispatch) -> StaleClaim:
    return StaleClaim(f"this claim does not own dispatch {row.dispatch_id!r}", value=row.dispatch_id)
