"""What an execution's end means for the queue: consumed, tried again later, or given up."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from postroom.contracts.errors import InvalidResume, PhaseError, PostroomError, RunFailure, StoreError
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import storable
from postroom.dispatch.config import MailboxConfig

_MOST_DOUBLINGS = 6


class OutcomeKind(StrEnum):
    """How the queue goes on."""

    COMPLETED = "completed"
    TRANSIENT_ERROR = "transient_error"
    PERMANENT_ERROR = "permanent_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxRunOutcome:
    """An end, with the error's text and how long the other side asked to be left alone."""

    kind: OutcomeKind
    error: str = ""
    retry_after_ms: int | None = None

    @property
    def metric_label(self) -> str:
        """The word for it in metrics."""
        return self.kind.value


COMPLETED = MailboxRunOutcome(kind=OutcomeKind.COMPLETED)


def classify(ended: AgentRunResult | BaseException) -> MailboxRunOutcome:
    """Say what an execution's end means.

    A result of any termination is consumed. A failure of the house says by `retryable` whether it is tried
    again; a phase that failed on its own state, and a resume of nothing, leave nothing to try. A store's
    failure, and everything that says nothing, is tried again, as often as the dispatch allows.
    """
    if isinstance(ended, AgentRunResult | PhaseError | InvalidResume):
        return COMPLETED
    text = ended.describe() if isinstance(ended, PostroomError) else f"{type(ended).__name__}: {ended}"
    permanent = isinstance(ended, PostroomError) and not (ended.retryable or isinstance(ended, StoreError))
    return MailboxRunOutcome(
        kind=OutcomeKind.PERMANENT_ERROR if permanent else OutcomeKind.TRANSIENT_ERROR,
        error=storable(text),
        retry_after_ms=ended.retry_after_ms if isinstance(ended, RunFailure) else None,
    )


def backoff_ms(config: MailboxConfig, attempt: int) -> int:
    """Return the longest delay before attempt number `attempt + 1`: doubled each time, up to the cap."""
    doublings = min(max(attempt - 1, 0), _MOST_DOUBLINGS)
    return min(config.default_retry_delay_ms << doublings, config.max_retry_delay_ms)


def retry_delay_ms(config: MailboxConfig, attempt: int, random: Random, *, retry_after_ms: int | None) -> int:
    """Return the delay after failure number `attempt`: anywhere up to the backoff, never before asked.

    Full jitter spreads those who failed together
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """
    return max(random.randint(0, backoff_ms(config, attempt)), retry_after_ms or 0)


class DispatchAttempt(StrEnum):
    """What became of one try to start work on a thread."""

    CLAIMED = "claimed"
    BUSY = "busy"
    NO_ELIGIBLE = "no_eligible"
    TRANSIENT_ERROR = "transient_error"
