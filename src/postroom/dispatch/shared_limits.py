"""Limits for all workers of one database: counted in the change that claims, under one lock.

Without limits there is no cost. With limits, a claim is a change of its own: a submission only stores, and
the end of a run claims nothing.
"""

from collections import Counter
from dataclasses import dataclass, field

from postroom.contracts.clock import milliseconds
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.limits import Held, Limit, LimitScope
from postroom.stores.transaction import Transaction


@dataclass(slots=True, kw_only=True)
class Room:
    """The remaining room under the limits, at one moment."""

    limits: tuple[Limit, ...]
    used: Counter[str] = field(default_factory=Counter[str])
    closed: frozenset[str] = frozenset()
    """Scopes in which nothing begins for a while."""

    def has(self, tenant: str, key: str) -> bool:
        """Whether one more may execute."""
        return all(self._has(limit, limit.scope(tenant, key)) for limit in self.limits)

    def take(self, tenant: str, key: str) -> bool:
        """Count one more, if it may execute."""
        if not self.has(tenant, key):
            return False
        self.used.update(_scopes(self.limits, tenant, key))
        return True

    def full_keys(self) -> list[str]:
        """Return the keys of which none may begin."""
        prefix = f"{LimitScope.KEY}:"
        found = {scope for scope in (*self.used, *self.closed) if scope.startswith(prefix)}
        return sorted(key for scope in found if not self.has("", key := scope.removeprefix(prefix)))

    def _has(self, limit: Limit, scope: str | None) -> bool:
        if scope is None:
            return True
        return scope not in self.closed and (limit.at_once is None or self.used[scope] < limit.at_once)


def room_in(tx: Transaction, limits: tuple[Limit, ...], closed: frozenset[str] = frozenset()) -> Room:
    """Check the free places of the limits."""
    room = Room(limits=limits, closed=closed)
    if any(limit.at_once is not None for limit in limits):
        for tenant, key, count in tx.runs.dispatches.claimed_by_limit():
            for scope in _scopes(limits, tenant, key):
                room.used[scope] += count
    return room


def held_back(tx: Transaction, limits: tuple[Limit, ...], dispatch: RunDispatch) -> Held | None:
    """Return the limits that keep a dispatch from beginning now; decide under the lock of limits."""
    room, now = room_in(tx, limits), tx.now()
    for limit in limits:
        scope = limit.scope(dispatch.tenant, dispatch.limit_key)
        if scope is None:
            continue
        if limit.at_once is not None and room.used[scope] >= limit.at_once:
            return Held(scope=scope, text=f"{room.used[scope]} active runs of {scope} reach the limit")
        if limit.starts is not None and limit.period is not None:
            _, before = tx.runs.dispatches.starts(scope, limit.starts)
            until = None if before is None else before + milliseconds(limit.period)
            if until is not None and until > now:
                return Held(
                    scope=scope,
                    text=f"{limit.starts} runs of {scope} started within {limit.period}",
                    until=until,
                )
    return None


def note_start(tx: Transaction, limits: tuple[Limit, ...], dispatch: RunDispatch) -> None:
    """Count that a dispatch begins, where a limit counts that; under the lock of limits."""
    most: dict[str, int] = {}
    for limit in limits:
        scope = limit.scope(dispatch.tenant, dispatch.limit_key)
        if scope is not None and limit.starts is not None:
            most[scope] = max(most.get(scope, 0), limit.starts)
    for scope, number in most.items():
        tx.runs.dispatches.note_start(scope, number)


def _scopes(limits: tuple[Limit, ...], tenant: str, key: str) -> set[str]:
    return {scope for limit in limits if (scope := limit.scope(tenant, key)) is not None}
