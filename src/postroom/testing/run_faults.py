"""Wrappers around ports that fail on purpose: before a call, or after it, so that the result is lost.

A plan, which `postroom.testing.faults.writes` returns, states whether each call of a method fails, one after
the other. Without a plan, and after its end, every call succeeds.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any, TypeVar, cast

from postroom.contracts.errors import PostroomError, StaleClaim, StoreUnavailable
from postroom.contracts.run_stores import CommitCoordinator
from postroom.stores.changes import TopicListener
from postroom.stores.runs.ports import (
    DispatchStore,
    EventStore,
    OutboxStore,
    RunStores,
    ThreadStore,
)
from postroom.stores.store import SqlStore, Transaction

P = TypeVar("P")
T = TypeVar("T")

Plans = Mapping[str, Iterable[bool]]


def failing(
    port: P,
    *,
    before: Plans | None = None,
    after: Plans | None = None,
    counts: Counter[str] | None = None,
    storage_identity: str | None = None,
    error: Callable[[str], PostroomError] | None = None,
) -> P:
    """Return a wrapper around an object, in which calls of async methods fail as planned.

    A failure in the plan `before` prevents the call. A failure in the plan `after` loses the result of the
    call. `counts` receives the number of calls of each method. `storage_identity` names the database whose
    transactions the wrapper shares, or is None. A failing call raises `StoreUnavailable`, or the error that
    the function `error` returns.

    Raises:
        AttributeError: A plan names a method that the port does not have.
    """
    for name in {**(before or {}), **(after or {})}:
        getattr(port, name)
    planned = _FailingPort(port, before or {}, after or {}, counts, storage_identity, error or injected)
    return cast("P", planned)


def injected(method: str) -> PostroomError:
    """Return the error that a planned failure raises."""
    return StoreUnavailable(f"injected {method} failure")


class _FailingPort:
    def __init__(
        self,
        port: object,
        before: Plans,
        after: Plans,
        counts: Counter[str] | None,
        storage_identity: str | None,
        error: Callable[[str], PostroomError],
    ) -> None:
        self._port = port
        self._before = {name: iter(plan) for name, plan in before.items()}
        self._after = {name: iter(plan) for name, plan in after.items()}
        self._counts = Counter[str]() if counts is None else counts
        self._error = error
        self.storage_identity = storage_identity

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._port, name)
        if not callable(result):
            return result

        async def call(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            refuses, loses = _next(self._before, name), _next(self._after, name)
            if refuses:
                raise self._error(name)
            answer = await result(*arguments, **named)
            if loses:
                raise self._error(name)
            return answer

        return call


def _next(plans: dict[str, Iterator[bool]], name: str) -> bool:
    return next(plans[name], False) if name in plans else False


def with_parts(  # noqa: PLR0913 - the parts by name
    stores: RunStores,
    *,
    dispatches: DispatchStore | None = None,
    threads: ThreadStore | None = None,
    events: EventStore | None = None,
    outbox: OutboxStore | None = None,
    coordinator: CommitCoordinator | None = None,
    wakeups: TopicListener | None = None,
    store: SqlStore | None = None,
) -> RunStores:
    """Return a copy of `stores` in which the given parts replace the original parts."""
    changed = copy(stores)
    changed.store = store or stores.store
    changed.dispatches = dispatches or stores.dispatches
    changed.threads = threads or stores.threads
    changed.events = events or stores.events
    changed.outbox = outbox or stores.outbox
    changed.coordinator = coordinator or stores.coordinator
    changed.wakeups = wakeups or stores.wakeups
    return changed


class FailingChanges:
    """A store in which changes with certain names fail as planned."""

    def __init__(
        self,
        store: SqlStore,
        *,
        before: Plans | None = None,
        after: Plans | None = None,
        counts: Counter[str] | None = None,
        begins: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._before = {name: iter(plan) for name, plan in (before or {}).items()}
        self._after = {name: iter(plan) for name, plan in (after or {}).items()}
        self._counts = Counter[str]() if counts is None else counts
        self._begins = begins

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, change: Callable[[Transaction], T | StaleClaim], *, key: str = "") -> T:
        """Make a change, unless the change is planned to fail."""
        name = change.__name__
        self._counts[name] += 1
        refuses, loses = _next(self._before, name), _next(self._after, name)
        if self._begins is not None:
            await self._begins(name)
        if refuses:
            raise injected(name)
        answer = await self._store.write(change, key=key)
        if loses:
            raise injected(name)
        return answer


def failing_changes(
    stores: RunStores,
    *,
    before: Plans | None = None,
    after: Plans | None = None,
    counts: Counter[str] | None = None,
    begins: Callable[[str], Awaitable[None]] | None = None,
) -> RunStores:
    """Return stores in which a mailbox's changes with certain names fail as planned."""
    failing_store = FailingChanges(stores.store, before=before, after=after, counts=counts, begins=begins)
    return with_parts(stores, store=cast("SqlStore", failing_store))
