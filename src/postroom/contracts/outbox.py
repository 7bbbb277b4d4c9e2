"""Effects outside the database: stored with the change that causes them, performed at least once, keyed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field

OUTBOX: Final = "outbox"
"""The topic of hints that there may be effects to perform."""
NO_END: Final = 1_000_000
"""Maximum attempts of an effect whose handler decides itself when to stop."""


class OutboxStatus(StrEnum):
    """The delivery state of an effect."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD_LETTER = "dead_letter"


class NackOutcome(StrEnum):
    """The new state of an effect that could not be performed."""

    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"
    LOST_CLAIM = "lost_claim"


class OutboxDraft(Record, frozen=True, kw_only=True):
    """An effect to store, performed by the handler of its kind for its target.

    A `dedupe_key` is stored once.
    """

    kind: str
    target: str
    payload: dict[str, Json] = field(default_factory=dict)
    dedupe_key: str | None = None
    available_at: int = 0
    max_attempts: int = 5
    order_key: str | None = None
    """Effects of one kind and target with the same key are claimed in order, each after the previous one is
    done."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The kind, target and dedupe key: of effects with the same key, one is stored."""
        return self.kind, self.target, self.dedupe_key

    @property
    def line(self) -> tuple[str, str, str] | None:
        """The kind, target and order key of effects that are performed in order."""
        return None if self.order_key is None else (self.kind, self.target, self.order_key)

    @property
    def locks(self) -> set[str]:
        """The name of the lock for the dedupe key; empty without one."""
        return set() if self.dedupe_key is None else {f"effect:{self.kind}:{self.target}:{self.dedupe_key}"}


def line_lock(kind: str, target: str) -> str:
    """Return the name of the lock on a kind and target while its effects are claimed."""
    return f"line:{kind}:{target}"


class OutboxMessage(Record, frozen=True, kw_only=True):
    """A stored effect; each claim raises `attempt_count`."""

    outbox_id: str
    kind: str
    target: str
    payload: dict[str, Json]
    status: OutboxStatus
    available_at: int
    created_at: int
    dedupe_key: str | None = None
    attempt_count: int = 0
    max_attempts: int = 5
    claim_token: str | None = None
    lease_until: int | None = None
    last_error: str | None = None
    order_key: str | None = None
    may_have_arrived: bool = False
    """Whether an earlier claim may have performed it: that claim expired, or its result is unknown."""
    steps_done: int = 0
    """Number of its handler's steps that are known to be done."""


class EffectPerformer(Protocol):
    """Performs effects in this process; effects for which it has room are stored as claimed by it."""

    def lease_ms(self, kind: str, target: str) -> int | None:
        """Return how long a new effect is claimed for, in milliseconds; None if it is not claimed.

        Thread-safe.
        """
        ...

    def begin(self, effects: Sequence[OutboxMessage]) -> None:
        """Perform effects that were stored as claimed, after their commit."""
        ...

    def give_back(self, effects: Sequence[OutboxMessage]) -> None:
        """Make effects whose commit status is unknown claimable again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The number of waiting effects of a kind, the oldest one's age, and the number of dead letters."""

    waiting: int
    oldest_at: int | None
    dead: int = 0
