"""Effects to perform: stored with the change that causes them, performed at least once, keyed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, Self

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


class OutboxTables(Protocol):
    """The rows of the outbox, over an open transaction: stored with the change that causes the effect."""

    def at(self, now: int) -> Self:
        """Return the same rows at another instant."""
        ...

    def enqueue(self, drafts: Sequence[OutboxDraft]) -> tuple[OutboxMessage, ...]:
        """Store effects; the same key of the same kind and target gives its first effect back.

        Raises:
            IdempotencyConflict: the key was used with another payload.
        """
        ...

    def put(self, draft: OutboxDraft, *, now: int) -> None:
        """Store an effect that has no dedupe key."""
        ...

    def open(self, kind: str, *, limit: int) -> tuple[OutboxMessage, ...]:
        """Return the effects of a kind that wait or are claimed, oldest first."""
        ...

    def backlog(self, kind: str) -> Backlog:
        """Return how much of a kind waits, since when, and how much was given up."""
        ...

    def due(self, kinds: Sequence[str]) -> list[tuple[str, str]]:
        """Return kind and target of whatever of these kinds may be claimed now."""
        ...

    def claim(self, kind: str, target: str, *, lease_ms: int, limit: int) -> tuple[OutboxMessage, ...]:
        """Take what is due, oldest first, also what another took and whose lease ended (`<= now`).

        An effect whose attempts are used up by claims alone becomes a dead letter instead. Of those with
        the same order key only the oldest that is neither delivered nor a dead letter is taken. Who claims
        holds `line_lock`.
        """
        ...

    def ack(self, outbox_ids: Sequence[str], tokens: Sequence[str]) -> int:
        """Record that effects were performed; return how many of the claims still held.

        The first token is that of the first id, and so on.

        Raises:
            ValueError: There are more ids than tokens, or more tokens than ids.
        """
        ...

    def note_steps(self, outbox_id: str, steps_done: int) -> None:
        """Keep how many steps of an effect have happened; fewer than are known change nothing."""
        ...

    def call_next(self, performed: Sequence[OutboxMessage]) -> None:
        """Tell who performs where another effect waits behind one of these under its order key."""
        ...

    def nack(  # noqa: PLR0913 - what is known of what became of them
        self,
        outbox_ids: Sequence[str],
        tokens: Sequence[str],
        *,
        error: str,
        delay_ms: int = 0,
        final: bool = False,
        may_have_arrived: bool = False,
        untried: bool = False,
    ) -> list[OutboxStatus]:
        """Give effects back for later, or to the dead letters when attempts are used up or it is `final`.

        Return what became of each that still was theirs. With `may_have_arrived` later claims are told that
        it may have been performed; without, what was known of that stays. What is `untried` is no attempt.
        The first token is that of the first id, and so on.

        Raises:
            ValueError: There are more ids than tokens, or more tokens than ids.
        """
        ...

    def release(
        self, kinds: Sequence[str], *, target: str | None = None, besides: Sequence[str] = ()
    ) -> None:
        """Make what is claimed of these kinds due again, as perhaps performed: nobody is at it.

        For one target where it is given, and `besides` these effects.
        """
        ...

    def dead_letters(self, *, kind: str | None, after: str, limit: int) -> tuple[OutboxMessage, ...]:
        """Return dead letters by id behind the one seen last, of one kind where that is asked."""
        ...

    def revive(self, outbox_id: str) -> OutboxMessage | None:
        """Make a dead letter pending, due now, its attempts counted anew and its last error kept.

        None when it is none; of several who ask at once, one gets it.
        """
        ...

    def discard(self, outbox_id: str) -> bool:
        """Have a dead letter performed by nobody: it counts as performed, its key as used.

        False when it is none; of several who ask at once, one has it discarded.
        """
        ...

    def purge(self, older_than: int, limit: int) -> int:
        """Remove up to `limit` keyed effects that were performed, the oldest first; return how many.

        The key of one that was removed counts as unused.
        """
        ...
