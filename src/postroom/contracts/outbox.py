"""Effects to perform: stored with the change that causes them, performed at least once, keyed."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from postroom.contracts.messages import Json


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxDraft:
    """An effect to store: performed by whoever serves `target` on `lane`, once a `dedupe_key`."""

    lane: str
    target: str
    payload: dict[str, Json] = field(default_factory=dict)
    dedupe_key: str | None = None
    available_at: int = 0
    max_attempts: int = 5
    order_key: str | None = None
    """Of those with the same key, on one lane and target, none is claimed before an older one is done."""

    @property
    def locks(self) -> set[str]:
        """What is locked before it is stored: the key that counts once."""
        return set() if self.dedupe_key is None else {f"effect:{self.lane}:{self.target}:{self.dedupe_key}"}


def line_lock(lane: str, target: str) -> str:
    """Return the name by which the effects for one target of a lane are locked while they move."""
    return f"line:{lane}:{target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """A stored effect; `attempt_count` is raised by each claim."""

    outbox_id: str
    lane: str
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


class OutboxStore(Protocol):
    """The effects that wait."""

    async def enqueue(self, draft: OutboxDraft, *, now: int | None = None) -> OutboxMessage:
        """Store an effect; the same key on the same lane and target gives the first one back.

        Raises:
            IdempotencyConflict: the key was used with another payload.
        """
        ...

    async def claim(
        self, lane: str, target: str, *, lease_ms: int, limit: int = 1, now: int | None = None
    ) -> tuple[OutboxMessage, ...]:
        """Take what is due, oldest first, also what another took and whose lease ended (`<= now`).

        An effect whose attempts are used up by claims alone becomes a dead letter instead. Of those with
        the same order key only the oldest that is neither delivered nor a dead letter is taken.
        """
        ...

    async def ack(self, outbox_id: str, token: str, *, now: int | None = None) -> bool:
        """Record that the effect was performed; False when the claim was lost."""
        ...

    async def nack(  # noqa: PLR0913 - what became of it, by name
        self,
        outbox_id: str,
        token: str,
        *,
        error: str,
        delay_ms: int = 0,
        now: int | None = None,
        final: bool = False,
        may_have_arrived: bool = False,
    ) -> NackOutcome:
        """Give it back for later, or to the dead letters when its attempts are used up.

        With `final` it becomes a dead letter at once, whatever attempts are left. With `may_have_arrived`
        later claims are told that it may have been performed; without, what was known of that stays.
        """
        ...

    async def dead_letters(
        self, *, lane: str | None = None, after: str = "", limit: int = 100
    ) -> tuple[OutboxMessage, ...]:
        """Return dead letters by id, of one lane where that is asked, behind the id that was seen last.

        It costs what is dead, not what ever was.
        """
        ...

    async def revive(self, outbox_id: str, *, now: int | None = None) -> OutboxMessage | None:
        """Make a dead letter pending again, due now, its attempts counted anew and its last error kept.

        None when there is no such dead letter; of several who ask at once, one gets it.
        """
        ...

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove up to `limit` delivered effects that were created before `older_than`, the oldest first.

        Return how many that were. Dead letters and what is pending or claimed stay. The key of an effect
        that was removed counts as unused: the next effect with it is stored and performed like a first one,
        so keep effects for longer than a key may be repeated.
        """
        ...
