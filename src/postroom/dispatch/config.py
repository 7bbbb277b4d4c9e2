"""The settings of a mailbox; the defaults suit a personal computer."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from postroom.contracts.clock import Duration, given_duration, milliseconds
from postroom.contracts.dispatch import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_INTERRUPTIONS
from postroom.contracts.errors import ConfigError, InvalidArgument
from postroom.contracts.limits import Budget, Limit, same_limits

ACTIVE_RUN_CONFLICT_MESSAGE = "thread has an active run; cannot claim inline"
RECONCILE_PAGE = 100
RECLAIM_PAGE = 100
REPAIR_QUEUE_LIMIT = 1_024
_OUTAGE = timedelta(minutes=12)
_KINDS = {
    int: "an integer",
    float: "a number of seconds",
    timedelta: "a timedelta",
    bool: "True or False",
    NoneType: "None",
}
"""Names of the types of settings for error messages."""

_MORE_THAN_NOTHING = (
    "lease_ms",
    "suspended_lease_ms",
    "lease_renewal_interval",
    "lease_retry_ms",
    "sweep_interval",
    "gc_interval",
    "poll_interval",
    "default_max_attempts",
    "cancel_poll_ms",
    "max_run_ms",
    "event_channel_capacity",
)
_NOT_NEGATIVE = (
    "gc_ttl",
    "dead_letter_ttl",
    "default_max_interruptions",
    "default_retry_delay_ms",
    "max_retry_delay_ms",
    "cancel_wait_ms",
    "stop_wait_ms",
    "max_concurrent_runs",
    "max_concurrent_runs_per_tenant",
    "max_queued_per_thread",
    "max_pending_per_thread",
    "drain_grace",
    "outage",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxConfig:
    """The settings of a mailbox.

    Settings whose names end with `_ms` are in milliseconds; other durations are a `timedelta` or seconds.

    Raises:
        ConfigError: A setting has the wrong type, or is too small.
    """

    lease_ms: int = 30_000
    """The time that a claim lasts without a renewal. A renewal may take up to a third of this time."""
    suspended_lease_ms: int = 600_000
    lease_renewal_interval: Duration = timedelta(seconds=10)
    """The interval at which a lease is renewed, at most two thirds of `lease_ms`."""
    lease_retry_ms: int = 500
    """The delay after which a failed renewal is repeated.

    The renewal is repeated until the lease ends.
    """
    sweep_interval: Duration = timedelta(seconds=30)
    gc_interval: Duration = timedelta(seconds=60)
    gc_ttl: Duration = timedelta(hours=24)
    dead_letter_ttl: Duration = timedelta(days=30)
    poll_interval: Duration = timedelta(seconds=1)
    """The maximum delay of due work if all notifications about it are lost."""
    default_max_attempts: int = DEFAULT_MAX_ATTEMPTS
    default_max_interruptions: int = DEFAULT_MAX_INTERRUPTIONS
    """The number of a run's executions that may end early because a server stops or a lease is lost.

    The next interruption makes the run a dead letter. Interruptions do not count as failed attempts.
    """
    outage: Duration | None = None
    """The minimum time for which a run is retried after its normal attempts, if an outage may have caused the
    failure.

    None means twelve minutes or, if `default_max_attempts` is set, no further attempts.
    """
    default_retry_delay_ms: int = 250
    max_retry_delay_ms: int = 30_000
    """The longest delay before a retry. The default delay doubles at most six times, from 250 ms to 16 s."""
    cancel_wait_ms: int = 5_000
    """The time that a foreground submission waits for the active run to end."""
    cancel_poll_ms: int = 25
    stop_wait_ms: int = 5_000
    """The time that a run which lost its lease has to stop, before it is abandoned."""
    max_run_ms: int | None = None
    """The time after which a run is stopped permanently, or None for no limit."""
    max_concurrent_runs: int = 256
    """Maximum number of runs that this process executes at the same time. The maximum for each tenant is also
    per process, whereas `limits` apply to all workers of the database.

    A foreground `submit` starts its run at once, even beyond both maximums, because a caller waits for the
    run.
    """
    max_concurrent_runs_per_tenant: int | None = None
    limits: tuple[Limit, ...] = ()
    max_queued_per_thread: int | None = 1_000
    """The maximum number of queued runs on a thread, or None for no limit."""
    max_pending_per_thread: int | None = 10_000
    """The maximum number of pending messages on a thread, or None for no limit."""
    drain_grace: Duration = timedelta(seconds=30)
    event_channel_capacity: int = 256
    budgets: tuple[Budget, ...] = ()
    """The budgets of runs. When a budget is used up, one run asks whether to extend it, and the other runs
    stay queued.
    """
    give_up_on: tuple[type[Exception], ...] = ()
    """Exceptions after which neither a run nor its steps are retried, because a retry cannot help."""
    pending_zone: bool = True
    """Whether input for a busy run is stored durably until a step reads it."""
    places: Callable[[], Collection[str]] | None = None
    """Returns the names of the places that this process serves.

    The places whose runs the process claims, in addition to runs without a place, or None for all places.
    """
    gone: Callable[[], Collection[str]] | None = None
    """Returns the names of other consumers that have certainly exited.

    The claims of exited consumers are released, at the start and later.
    """
    claims_hold: Callable[[int], None] | None = None
    """A function that is called after each claim and renewal.

    The argument of the function is the number of milliseconds during which no other process can claim the
    runs of this process. If this process freezes, an external supervisor can use this number to kill it in
    time.
    """
    is_exclusive: bool = False
    """Whether no other process uses this store.

    If this process is the only one, claims of other consumers are released at the start, before their leases
    expire.
    """

    @property
    def outage_ms(self) -> int:
        """The time for which a run is retried during an outage, in milliseconds."""
        if self.outage is not None:
            return milliseconds(self.outage)
        return milliseconds(_OUTAGE) if self.default_max_attempts == DEFAULT_MAX_ATTEMPTS else 0

    def __post_init__(self) -> None:
        for name, kind in (("limits", Limit), ("budgets", Budget)):
            setting = getattr(self, name)
            if not isinstance(setting, tuple) or not all(isinstance(item, kind) for item in setting):
                raise ConfigError(
                    f"{name} must be a tuple of {kind.__name__}",
                    value=repr(setting)[:80],
                    remedy=f"write ({kind.__name__}(...),)",
                )
        final: object = self.give_up_on
        if not isinstance(final, tuple) or not all(
            isinstance(item, type) and issubclass(item, Exception) for item in final
        ):
            raise ConfigError(
                "give_up_on must be a tuple of exception classes",
                value=repr(final)[:80],
                remedy="write (ValueError,)",
            )
        for name, kinds in _kinds().items():
            value = getattr(self, name)
            if timedelta in kinds and value is not None:
                try:
                    object.__setattr__(self, name, given_duration(value, name))
                except InvalidArgument as error:
                    remedy = f"leave out {name} to use its default"
                    raise ConfigError(error.message, value=error.value, remedy=remedy) from error
                continue
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                allowed = " or ".join(_KINDS[kind] for kind in kinds)
                raise ConfigError(
                    f"{name} must be {allowed}, not {type(value).__name__}",
                    value=repr(value)[:80],
                    remedy=f"leave out {name} to use its default",
                )
        for name in (*_MORE_THAN_NOTHING, *_NOT_NEGATIVE):
            value = getattr(self, name)
            number = value.total_seconds() if isinstance(value, timedelta) else value
            if number is None or number > 0 or (number == 0 and name in _NOT_NEGATIVE):
                continue
            rule = "must not be negative" if name in _NOT_NEGATIVE else "must be above 0"
            raise ConfigError(
                f"{name} {rule}", value=str(value), remedy=f"leave out {name} to use its default"
            )
        for name in same_limits(self.budgets):
            raise ConfigError(
                f"two budgets limit {name} for the same runs in the same window",
                remedy="remove one of the two",
            )


@cache
def _kinds() -> dict[str, tuple[type[Any], ...]]:
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(MailboxConfig).items()}
    return {name: kinds for name, kinds in hints.items() if set(kinds) <= set(_KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupRecoveryConfig:
    """The retry settings for the recovery at startup."""

    max_attempts: int = 1
    retry_delay: timedelta = timedelta(milliseconds=250)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxLifecycleConfig:
    """The settings for the background work of a mailbox."""

    startup_delay: timedelta = timedelta(0)
    startup_recovery: StartupRecoveryConfig = field(default_factory=StartupRecoveryConfig)
    maintenance_callback: Callable[[], None] | None = None
    """A function that is called after each garbage collection."""
