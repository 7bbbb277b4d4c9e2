"""Effects to perform: stored with the change that causes them, performed at least once, keyed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field

OUTBOX: Final = "outbox"
"""The topic on which hints come that there may be effects to perform."""
NO_END: Final = 1_000_000
"""How often an effect is tried whose handler decides when it is given up."""


class OutboxStatus(StrEnum):
    """Where an effect is in its delivery."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD_LETTER = "dead_letter"


class NackOutcome(StrEnum):
    """What became of an effect that could not be performed."""

    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"
    LOST_CLAIM = "lost_claim"


class OutboxDraft(Record, frozen=True, kw_only=True):
    """An effect to store: performed by the handler of its kind for its target, once a `dedupe_key`."""

    kind: str
    target: str
    payload: dict[str, Json] = field(default_factory=dict)
    dedupe_key: str | None = None
    available_at: int = 0
    max_attempts: int = 5
    order_key: str | None = None
    """Of those with the same key, of one kind and target, none is claimed before an older one is done."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The kind, the target and the dedupe key: of effects with the same key, one is stored."""
        return self.kind, self.target, self.dedupe_key

    @property
    def line(self) -> tuple[str, str, str] | None:
        """The kind, the target and the order key of effects that are performed one after another."""
        return None if self.order_key is None else (self.kind, self.target, self.order_key)

    @property
    def locks(self) -> set[str]:
        """What is locked before it is stored: the key that counts once."""
        return set() if self.dedupe_key is None else {f"effect:{self.kind}:{self.target}:{self.dedupe_key}"}


def line_lock(kind: str, target: str) -> str:
    """Return the name by which the effects of a kind for one target are locked while they are claimed."""
    return f"line:{kind}:{target}"


class OutboxMessage(Record, frozen=True, kw_only=True):
    """A stored effect; `attempt_count` is raised by each claim."""

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
    """Whether an earlier claim may have performed it: that claim's lease ended, or nobody knows."""
    steps_done: int = 0
    """How many of the steps that its handler has for it are known to have happened."""


class EffectPerformer(Protocol):
    """Who performs effects in this process: what it has room for is stored as claimed by it."""

    def lease_ms(self, kind: str, target: str) -> int | None:
        """Return how long an effect that is stored now is claimed for; None: it waits. Any thread may ask."""
        ...

    def begin(self, effects: Sequence[OutboxMessage]) -> None:
        """Perform effects that were stored as claimed, once they are committed."""
        ...

    def give_back(self, effects: Sequence[OutboxMessage]) -> None:
        """Have effects due for anybody of which nobody knows whether they were committed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How many effects of a kind wait, since when, and how many were given up."""

    waiting: int
    oldest_at: int | None
    dead: int = 0
