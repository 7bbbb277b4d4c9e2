"""Stored side effects, which change something outside the database.

An effect is stored together with the change that causes it, and performed at least once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field

OUTBOX: Final = "outbox"
"""The topic under which listeners are notified that effects may be due."""
NO_END: Final = 1_000_000
"""The maximum number of attempts for an effect whose handler decides when to stop."""


class OutboxStatus(StrEnum):
    """The delivery state of an effect."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD_LETTER = "dead_letter"


class NackOutcome(StrEnum):
    """The new state of an effect after a failed attempt."""

    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"
    LOST_CLAIM = "lost_claim"


class OutboxDraft(Record, frozen=True, kw_only=True):
    """An effect to store in the outbox.

    Effects with the same `dedupe_key` are stored only once.
    """

    kind: str
    target: str
    payload: dict[str, Json] = field(default_factory=dict)
    dedupe_key: str | None = None
    available_at: int = 0
    max_attempts: int = 5
    order_key: str | None = None
    """Effects of one kind and target with the same order key are claimed in order, one at a time."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The kind, target and dedupe key of the effect."""
        return self.kind, self.target, self.dedupe_key

    @property
    def line(self) -> tuple[str, str, str] | None:
        """The kind, target and order key of the effect.

        Effects with the same kind, target and order key are performed in order.
        """
        return None if self.order_key is None else (self.kind, self.target, self.order_key)

    @property
    def locks(self) -> set[str]:
        """The names of the locks for the effect's `dedupe_key`."""
        return set() if self.dedupe_key is None else {f"effect:{self.kind}:{self.target}:{self.dedupe_key}"}


def line_lock(kind: str, target: str) -> str:
    """Return the name of the lock for claiming effects of one kind and target."""
    return f"line:{kind}:{target}"


class OutboxMessage(Record, frozen=True, kw_only=True):
    """A stored effect.

    `attempt_count` is the number of claims.
    """

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
    """Whether the effect may have been performed under an earlier claim, which expired or whose result is
    unknown.
    """
    steps_done: int = 0
    """Number of steps that the handler has completed, as far as is known."""


class EffectPerformer(Protocol):
    """Performs effects in the current process."""

    def lease_ms(self, kind: str, target: str) -> int | None:
        """Return the lease of a new effect in milliseconds, or None if the process does not claim the effect.

        Thread-safe.
        """
        ...

    def begin(self, effects: Sequence[OutboxMessage]) -> None:
        """Start to perform effects that are stored as claimed."""
        ...

    def give_back(self, effects: Sequence[OutboxMessage]) -> None:
        """Release the claims of effects whose commit may have failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The number of pending effects and dead letters of one kind, and the age of the oldest effect."""

    waiting: int
    oldest_at: int | None
    dead: int = 0
