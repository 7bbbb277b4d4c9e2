"""The dispatch: a small record in the queue which requests the execution of a run.

A dispatch contains no message bodies.

                     enqueue                     claim / claim_dispatch
        (none) ───────────▶ Queued ─────────────────────────────────▶ Claimed
                             │  ▲                                    │ │ │ │
               cancel ───────┤  ├──── nack (attempts left) ──────────┘ │ │ │
                             │  ├──── lease ended (attempts left) ─────┘ │ │
          interrupt /        │  └──── release (drain)  ──────────────────┘ │
          stale epoch ───────┤                                             │
      deadline passed ───────┤                                             │
                             ▼                                             ▼
           Cancelled | Superseded | DeadLetter   Acked | DeadLetter | Superseded

A record changes only through the methods below. Each method returns a new record, and raises an error if the
current state does not permit the change. Stores write the returned record, or make the same change in SQL.
When a row is read from the store, it is validated by the same rules. `Acked` only means that the queue has
finished with the dispatch, not that the run succeeded. The outcome is stored with the run, and copied to the
fields from `run_status` to `run_error`.
"""

from enum import StrEnum
from typing import Any

from postroom.contracts.errors import DeadlinePassed, IllegalTransition, InvalidRecord
from postroom.contracts.records import Record, replace
from postroom.contracts.runs import RunStatus, TerminationReason

DEFAULT_PRIORITY = 128
LOWEST_PRIORITY = 255
DEFAULT_MAX_ATTEMPTS = 5
DEFAULT_MAX_INTERRUPTIONS = 20
INTERRUPTED = "queued dispatch superseded by interrupt"
STALE_EPOCH = "dispatch superseded: its epoch is older than the thread's"
LEASE_ENDED = "lease expired"
OWNER_GONE = "the process that executed the run has ended"
NO_ATTEMPTS_LEFT = "{}; max attempts reached"
"""The error text of a dead letter without attempts left; the braces are replaced by the reason for the last
interruption.
"""
INTERRUPTED_TOO_OFTEN = (
    "the run was interrupted {} because its server ended or lost its lease; the limit is {}"
)
_INTERRUPTION_DELAY_MS = 250
_MAX_INTERRUPTION_DELAY_MS = 5_000


class RunDispatchStatus(StrEnum):
    """The delivery state of a dispatch."""

    QUEUED = "Queued"
    CLAIMED = "Claimed"
    ACKED = "Acked"
    CANCELLED = "Cancelled"
    SUPERSEDED = "Superseded"
    DEAD_LETTER = "DeadLetter"

    @property
    def is_terminal(self) -> bool:
        """Whether the dispatch state is final."""
        return self not in (RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED)

    @property
    def label(self) -> str:
        """The name of the dispatch state in metrics and events."""
        return _LABELS[self]


_LABELS = {
    RunDispatchStatus.QUEUED: "queued",
    RunDispatchStatus.CLAIMED: "claimed",
    RunDispatchStatus.ACKED: "acked",
    RunDispatchStatus.CANCELLED: "cancelled",
    RunDispatchStatus.SUPERSEDED: "superseded",
    RunDispatchStatus.DEAD_LETTER: "dead_letter",
}
OPEN = (RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED)
TERMINAL = tuple(status for status in RunDispatchStatus if status not in OPEN)
UNHANDLED_AT_FIRST = (
    RunDispatchStatus.CANCELLED,
    RunDispatchStatus.SUPERSEDED,
    RunDispatchStatus.DEAD_LETTER,
)
"""Final states after which the run must still be updated. When the run has been updated, the row becomes
`reconciled`.

`Acked` rows are reconciled from the beginning.
"""


class RunDispatchResult(Record, frozen=True, kw_only=True):
    """The result of an execution, as a worker reports the result to the queue."""

    run_id: str
    dispatch_instance_id: str
    status: RunStatus
    termination: TerminationReason | None = None
    response: str | None = None
    error: str | None = None


class Claim(Record, frozen=True, kw_only=True):
    """Proof that a worker owns a dispatch.

    A store rejects writes with an outdated proof.
    """

    dispatch_id: str
    token: str


class RunDispatch(Record, frozen=True, kw_only=True):
    """A row of the queue, which requests the execution of a run.

    All times are in milliseconds since 1970. The lease of a claim ends after `lease_until`.
    """

    dispatch_id: str
    thread_id: str
    run_id: str
    created_at: int
    available_at: int
    """The earliest time at which the run may start. 0 means at once, even if the clock is wrong."""
    updated_at: int
    status: RunDispatchStatus = RunDispatchStatus.QUEUED
    priority: int = DEFAULT_PRIORITY
    dedupe_key: str | None = None
    dispatch_epoch: int = 0
    attempt_count: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    deadline_at: int | None = None
    tenant: str = ""
    last_error: str | None = None
    claim_token: str | None = None
    claimed_by: str | None = None
    claimed_at: int | None = None
    """The time of the last claim, which stays when the dispatch is requeued; None if it was never claimed."""
    lease_until: int | None = None
    dispatch_instance_id: str | None = None
    run_status: RunStatus | None = None
    termination: TerminationReason | None = None
    run_response: str | None = None
    run_error: str | None = None
    completed_at: int | None = None
    reconciled: bool = True
    limit_key: str = ""
    """The key by which limits count the run, in addition to the tenant."""
    interruption_count: int = 0
    """Number of executions that ended early because a server stopped or a lease was lost.

    `attempt_count` does not include these executions.
    """
    max_interruptions: int | None = None
    """Maximum number of interruptions; the next one makes the dispatch a dead letter.

    If None, each interruption counts as a failed attempt.
    """

    def __post_init__(self) -> None:
        """Raise an error if fields of the dispatch contradict each other.

        Raises:
            InvalidRecord: A field contradicts another one; the message names the field.
        """
        problem = None
        is_queued = self.status is RunDispatchStatus.QUEUED
        if not (self.dispatch_id.strip() and self.thread_id.strip() and self.run_id.strip()):
            problem = "needs a dispatch id, a thread id and a run id"
        elif self.dedupe_key is not None and not self.dedupe_key.strip():
            problem = "must not carry a blank dedupe key"
        elif not 0 <= self.priority <= LOWEST_PRIORITY:
            problem = f"must have a priority from 0 to {LOWEST_PRIORITY}"
        elif not 0 <= self.attempt_count <= self.max_attempts or self.max_attempts < 1:
            problem = "must have attempt_count from 0 to max_attempts, and max_attempts of at least 1"
        elif self.interruption_count < 0 or (self.max_interruptions or 0) < 0:
            problem = "must not have a negative number of interruptions"
        elif self.status is RunDispatchStatus.CLAIMED:
            if self.lease_until is None or not self.claim_token or not (self.claimed_by or "").strip():
                problem = "must carry claim_token, claimed_by, and lease_until"
        elif (self.claim_token, self.claimed_by, self.lease_until) != (None, None, None):
            problem = f"must not carry {'claim' if is_queued else 'active lease'} fields"
        elif not is_queued:
            problem = None if self.completed_at is not None else "must carry completed_at"
        elif self.completed_at is not None:
            problem = "must not carry completed_at"
        elif (
            any((self.dispatch_instance_id, self.run_status, self.termination, self.run_response))
            or self.run_error
        ):
            problem = "must not carry runtime result fields"
        if problem:
            raise InvalidRecord(f"dispatch {self.dispatch_id!r} {problem}", value=self.dispatch_id)

    @classmethod
    def queued(  # noqa: PLR0913 - the fields that a caller may set
        cls,
        dispatch_id: str,
        thread_id: str,
        run_id: str,
        *,
        created_at: int,
        available_at: int | None = None,
        priority: int = DEFAULT_PRIORITY,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        max_interruptions: int | None = None,
        dedupe_key: str | None = None,
        deadline_at: int | None = None,
        tenant: str = "",
        limit_key: str = "",
    ) -> "RunDispatch":
        """Return a new queued dispatch, due at `available_at` or immediately."""
        return cls(
            dispatch_id=dispatch_id,
            thread_id=thread_id,
            run_id=run_id,
            created_at=created_at,
            available_at=available_at or 0,
            updated_at=created_at,
            priority=priority,
            max_attempts=max_attempts,
            max_interruptions=max_interruptions,
            dedupe_key=dedupe_key,
            deadline_at=deadline_at,
            tenant=tenant,
            limit_key=limit_key,
        )

    @property
    def claim_proof(self) -> Claim:
        """The proof of ownership that the worker presents with each write.

        Raises:
            IllegalTransition: The dispatch is not claimed.
        """
        if self.claim_token is None:
            raise IllegalTransition(f"dispatch {self.dispatch_id!r} is not claimed", value=self.dispatch_id)
        return Claim(dispatch_id=self.dispatch_id, token=self.claim_token)

    @property
    def due_since(self) -> int:
        """The time from which a queued dispatch is due."""
        return max(self.available_at, self.updated_at)

    def prepared_for_enqueue(self, *, epoch: int) -> "RunDispatch":
        """Return a copy of the dispatch that is ready to be stored, with the given thread epoch.

        Raises:
            InvalidRecord: The dispatch is not Queued.
        """
        if self.status is not RunDispatchStatus.QUEUED:
            raise InvalidRecord(
                f"dispatch {self.dispatch_id!r} must have the status Queued when it is enqueued",
                value=self.dispatch_id,
            )
        return replace(self, dispatch_epoch=epoch)

    def claim(
        self, *, token: str, consumer: str, lease_ms: int, now: int, begins: str | None = None
    ) -> "RunDispatch":
        """Return a claimed copy of the dispatch, whose lease ends at `now + lease_ms`.

        `begins` is the id of the execution that starts with the claim, or None if no execution starts yet.
        """
        self._require(RunDispatchStatus.QUEUED, "claim")
        return replace(
            self,
            dispatch_instance_id=begins,
            run_status=None if begins is None else RunStatus.RUNNING,
            status=RunDispatchStatus.CLAIMED,
            claim_token=token,
            claimed_by=consumer,
            claimed_at=max(now, self.claimed_at or 0),  # the clock of an earlier claim may have been ahead
            lease_until=now + lease_ms,
            updated_at=now,
        )

    def extend_lease(self, *, extension_ms: int, now: int) -> "RunDispatch":
        """Return a copy of the dispatch whose lease ends at `now + extension_ms`."""
        self._require(RunDispatchStatus.CLAIMED, "extend_lease")
        return replace(self, lease_until=now + extension_ms, updated_at=now)

    def record_dispatch_start(self, instance_id: str, *, now: int) -> "RunDispatch":
        """Return a copy of the dispatch after the start of an execution."""
        self._require(RunDispatchStatus.CLAIMED, "record_dispatch_start")
        changes = {"dispatch_instance_id": instance_id, "run_status": RunStatus.RUNNING, "updated_at": now}
        return replace(self, **{**_NOTHING_REPORTED, **changes})

    def record_run_result(self, result: RunDispatchResult, *, now: int) -> "RunDispatch":
        """Return a copy of the claimed dispatch with the result of the run.

        Raises:
            InvalidRecord: The result belongs to another run.
        """
        self._require(RunDispatchStatus.CLAIMED, "record_run_result")
        if result.run_id != self.run_id:
            raise InvalidRecord(
                f"dispatch {self.dispatch_id!r} belongs to run {self.run_id!r}, but the result belongs to "
                f"run {result.run_id!r}",
                value=result.run_id,
            )
        return replace(
            self,
            dispatch_instance_id=result.dispatch_instance_id,
            run_status=result.status,
            termination=result.termination,
            run_response=result.response,
            run_error=result.error,
            completed_at=now,
            updated_at=now,
        )

    def acked(self, *, now: int) -> "RunDispatch":
        """Return a copy of the dispatch with the final status `Acked`."""
        self._require(RunDispatchStatus.CLAIMED, "ack")
        return _end(self, RunDispatchStatus.ACKED, now=now)

    def has_missed_deadline(self, now: int) -> bool:
        """Return whether the deadline passed before an execution of the run started."""
        has_started = self.attempt_count + self.interruption_count > 0
        return self.deadline_at is not None and now > self.deadline_at and not has_started

    @property
    def executions(self) -> int:
        """The number of executions that have started, including failed and interrupted ones."""
        counted = self.attempt_count + self.interruption_count
        is_before = self.status in (RunDispatchStatus.QUEUED, RunDispatchStatus.CANCELLED)
        if is_before or (self.status is RunDispatchStatus.SUPERSEDED and self.dispatch_instance_id is None):
            return counted
        return counted if self._has_used_up else counted + 1

    @property
    def failed_attempts(self) -> int:
        """The number of failed attempts, including a failure that could not be retried."""
        is_beyond_retry = self.status is RunDispatchStatus.DEAD_LETTER and not self._has_used_up
        return self.attempt_count + is_beyond_retry

    @property
    def _has_used_up(self) -> bool:
        """Whether the dispatch has reached its limit of attempts or interruptions."""
        most = self.max_interruptions
        return self.attempt_count >= self.max_attempts or (
            most is not None and self.interruption_count > most
        )

    def nacked(
        self,
        *,
        error: str,
        delay_ms: int,
        now: int,
        max_attempts: int | None = None,
        code: str | None = None,
    ) -> "RunDispatch":
        """Return the dispatch after a failed attempt.

        The dispatch is due again after `delay_ms`, or becomes a dead letter if no attempt is left.
        `max_attempts` replaces the dispatch's own limit.
        """
        self._require(RunDispatchStatus.CLAIMED, "nack")
        attempts, most = self.attempt_count + 1, max_attempts or self.max_attempts
        if attempts >= most:
            spent = replace(self, attempt_count=attempts, max_attempts=most, last_error=error)
            if code is not None:
                spent = replace(spent, termination=TerminationReason.error(error, code))
            return _end(spent, RunDispatchStatus.DEAD_LETTER, now=now)
        available_at = now + delay_ms if delay_ms else 0
        return self._requeue(available_at=available_at, attempts=attempts, most=most, error=error, now=now)

    def released(self, *, now: int, delay_ms: int = 0) -> "RunDispatch":
        """Return a requeued copy of the dispatch, due after `delay_ms`, without counting a failed attempt."""
        self._require(RunDispatchStatus.CLAIMED, "release")
        available_at = now + delay_ms if delay_ms else 0
        return self._requeue(
            available_at=available_at, attempts=self.attempt_count, error=self.last_error, now=now
        )

    def lease_ended(self, *, now: int, reason: str = LEASE_ENDED) -> "RunDispatch":
        """Return the dispatch after an interruption: queued again, or a dead letter at the limit.

        With `max_interruptions`, repeated interruptions delay the dispatch by 250 ms to 5 s.
        """
        self._require(RunDispatchStatus.CLAIMED, "lease_ended")
        if self.max_interruptions is not None:
            doublings = min(self.interruption_count - 1, 16)
            delay = 0 if doublings < 0 else _INTERRUPTION_DELAY_MS << doublings
            return self._interrupt(error=reason, delay_ms=min(delay, _MAX_INTERRUPTION_DELAY_MS), now=now)
        attempts = self.attempt_count + 1
        if attempts >= self.max_attempts:
            error = NO_ATTEMPTS_LEFT.format(reason)
            spent = replace(self, attempt_count=attempts, last_error=error, **_NOTHING_REPORTED)
            return _end(spent, RunDispatchStatus.DEAD_LETTER, now=now)
        return self._requeue(attempts=attempts, error=reason, now=now)

    def stopped(self, *, now: int) -> "RunDispatch":
        """Return the dispatch after a server shutdown: queued again, or a dead letter at the limit."""
        self._require(RunDispatchStatus.CLAIMED, "stop")
        if self.max_interruptions is None:
            return self.released(now=now)
        return self._interrupt(error=self.last_error, delay_ms=0, now=now)

    def _interrupt(self, *, error: str | None, delay_ms: int, now: int) -> "RunDispatch":
        count, most = self.interruption_count + 1, self.max_interruptions
        if most is not None and count > most:
            times = "once" if count == 1 else f"{count} times"
            limit = "1 interruption" if most == 1 else f"{most} interruptions"
            error = INTERRUPTED_TOO_OFTEN.format(times, limit)
            spent = replace(self, interruption_count=count, last_error=error, **_NOTHING_REPORTED)
            return _end(spent, RunDispatchStatus.DEAD_LETTER, now=now)
        available_at = now + delay_ms if delay_ms else 0
        row = self._requeue(available_at=available_at, attempts=self.attempt_count, error=error, now=now)
        return replace(row, interruption_count=count)

    def dead_lettered(self, *, error: str, now: int) -> "RunDispatch":
        """Return a dead letter of the dispatch, without counting an attempt."""
        self._require(RunDispatchStatus.CLAIMED, "dead_letter")
        return _end(replace(self, last_error=error), RunDispatchStatus.DEAD_LETTER, now=now)

    def too_late(self, *, now: int) -> "RunDispatch":
        """Return a dead letter of a queued dispatch that missed its deadline."""
        self._require(RunDispatchStatus.QUEUED, "end at its deadline")
        missed, attempts = deadline_passed(self.deadline_at), self.attempt_count + 1
        return _end(
            self,
            RunDispatchStatus.DEAD_LETTER,
            now=now,
            attempt_count=attempts,
            max_attempts=attempts,
            last_error=missed.describe(),
            termination=TerminationReason.error(missed.describe(), missed.code),
        )

    def hurried(self, *, not_before: int, now: int) -> "RunDispatch":
        """Return a copy of the queued dispatch that is due immediately, but not before `not_before`."""
        self._require(RunDispatchStatus.QUEUED, "hurry")
        return replace(self, available_at=not_before if not_before > now else 0, updated_at=now)

    def cancelled(self, *, now: int, reason: str | None = None) -> "RunDispatch":
        """Return a cancelled copy of a queued dispatch; `reason` is the reason for the end of its run."""
        self._require(RunDispatchStatus.QUEUED, "cancel")
        end = self.termination if reason is None else TerminationReason.cancelled(reason)
        return _end(self, RunDispatchStatus.CANCELLED, now=now, termination=end)

    def superseded(self, *, reason: str, now: int) -> "RunDispatch":
        """Return a copy of the dispatch that was superseded by newer work."""
        if self.status.is_terminal:
            raise IllegalTransition(
                f"dispatch {self.dispatch_id!r} is {self.status} and cannot be superseded",
                value=self.dispatch_id,
            )
        dropped = replace(self, last_error=reason, **_NOTHING_REPORTED)
        return _end(dropped, RunDispatchStatus.SUPERSEDED, now=now)

    def _require(self, status: RunDispatchStatus, move: str) -> None:
        if self.status is not status:
            raise IllegalTransition(
                f"dispatch {self.dispatch_id!r} must be {status} for {move}, but is {self.status}",
                value=self.dispatch_id,
            )

    def _requeue(
        self, *, attempts: int, error: str | None, now: int, available_at: int = 0, most: int | None = None
    ) -> "RunDispatch":
        return replace(
            self,
            status=RunDispatchStatus.QUEUED,
            available_at=available_at,
            attempt_count=attempts,
            max_attempts=most or self.max_attempts,
            last_error=error,
            claim_token=None,
            claimed_by=None,
            lease_until=None,
            updated_at=now,
            **_NOTHING_REPORTED,
        )


_NOTHING_REPORTED: dict[str, None] = dict.fromkeys(
    ("dispatch_instance_id", "run_status", "termination", "run_response", "run_error", "completed_at")
)


def deadline_passed(deadline_at: int | None) -> DeadlinePassed:
    """Return the error for a run that did not start before its deadline."""
    return DeadlinePassed("the deadline passed before the run was started", value=deadline_at)


def _end(record: RunDispatch, status: RunDispatchStatus, *, now: int, **changes: Any) -> RunDispatch:
    return replace(
        record,
        status=status,
        claim_token=None,
        claimed_by=None,
        lease_until=None,
        completed_at=now,
        updated_at=now,
        reconciled=status not in UNHANDLED_AT_FIRST,
        **changes,
    )


class Interrupt(Record, frozen=True, kw_only=True):
    """The result of an interrupt: the new epoch, the active dispatch, and the superseded dispatches."""

    new_dispatch_epoch: int
    active_dispatch: RunDispatch | None = None
    superseded_dispatches: tuple[RunDispatch, ...] = ()

    @property
    def superseded_count(self) -> int:
        """The number of queued dispatches that were superseded."""
        return len(self.superseded_dispatches)
