"""The initial records of promises about the outbox: effects with a number each, and how they are claimed."""

from collections.abc import Iterable
from typing import Any

from conformance.promises.run_given import KIND, LEASE, TARGET
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.stores.runs.ports import RunStores


def effect(number: int = 0, **details: Any) -> OutboxDraft:
    """Return an effect to store, whose payload is its number if none is given."""
    details.setdefault("kind", KIND)
    details.setdefault("target", TARGET)
    details.setdefault("payload", {"n": number})
    return OutboxDraft(**details)


async def claim_effects(stores: RunStores, *, limit: int = 99, **where: str) -> tuple[OutboxMessage, ...]:
    """Claim due effects, by default on `KIND` for `TARGET`."""
    kind, target = where.get("kind", KIND), where.get("target", TARGET)
    return await stores.outbox.claim(kind, target, lease_ms=LEASE, limit=limit)


async def claim_one(stores: RunStores) -> tuple[OutboxMessage, str]:
    """Claim the one effect that is due; return it with its token."""
    (found,) = await claim_effects(stores)
    assert found.claim_token
    return found, found.claim_token


def outbox_ids(found: Iterable[OutboxMessage]) -> list[str]:
    """Return the ids of effects, in their order."""
    return [one.outbox_id for one in found]


def numbers(found: tuple[OutboxMessage, ...]) -> list[int]:
    """Return the numbers of effects, in their order."""
    return [one.payload["n"] for one in found]
