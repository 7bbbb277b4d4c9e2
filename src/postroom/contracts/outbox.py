"""Side effects outside the database.

They are stored with the change that causes them, and performed at least once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field

OUTBOX: Final = "outbox"
"""The topic of notifications that effects may be waiting."""
NO_END: Final = 1_000_000
"""The maximum number of attempts for an effect whose handler decides itself when to stop."""


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
    """An effect to store. The handler registered for its kind performs it on its target.

    Only one effect is stored per `dedupe_key`.
    """

    kind: str
    target: str
    payload: dict[str, Json] = field(default_factory=dict)
    dedupe_key: str | None = None
    available_at: int = 0
    max_attempts: int = 5
    order_key: str | None = None
    """Effects of one kind and target that share this key are claimed in order, each after the previous
    one is done.
    """

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The kind, target and dedupe key; only one effect is stored per key."""
        return self.kind, self.target, self.dedupe_key

    @property
    def line(self) -> tuple[str, str, str] | None:
        """The kind, target and order key, which are the same for effects that are performed in order."""
        return None if self.order_key is None else (self.kind, self.target, self.order_key)

    @property
    def locks(self) -> set[str]:
        """The name of the lock for the dedupe key; empty if the effect has none."""
        return set() if self.dedupe_key is None else {f"effect:{self.kind}:{self.target}:{self.dedupe_key}"}


def line_lock(kind: str, target: str) -> str:
    """Return the name of the lock for claiming effects of one kind and target."""
    return f"line:{kind}:{target}"


class OutboxMessage(Record, frozen=True, kw_only=True):
    """A stored effect; each claim increases `attempt_count`."""

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
    """Whether the effect may have been performed under an earlier claim that expired, or whose result is
    unknown.
    """
    steps_done: int = 0
    """Number of steps that its handler is known to have completed."""


class EffectPerformer(Protocol):
    """Performs effects in this process. Effects for which it has capacity are stored as already claimed."""

    def lease_ms(self, kind: str, target: str) -> int | None:
        """Return the length of the claim of a new effect, in milliseconds; None if it is not claimed.

        Thread-safe.
        """
        ...

    def begin(self, effects: Sequence[OutboxMessage]) -> None:
        """Start to perform effects that were stored as claimed, after their commit."""
        ...

    def give_back(self, effects: Sequence[OutboxMessage]) -> None:
        """Make effects claimable again if it is unknown whether they were committed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The number of a kind's waiting effects, the age of the oldest, and the number of dead letters."""

    waiting: int
    oldest_at: int | None
    dead: int = 0
