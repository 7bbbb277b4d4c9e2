"""Ports that fail on purpose, around real ones: before a call, or after it when the answer is lost.

A plan says of each call of a method in turn whether it fails, as `postroom.testing.writes` makes them; after
its end, and where there is no plan, every call goes through.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from postroom.contracts.clock import Clock
from postroom.contracts.errors import PostroomError, StoreUnavailable
from postroom.contracts.events import EventStore
from postroom.contracts.outbox import OutboxStore
from postroom.contracts.run_stores import CommitCoordinator, DispatchStore, RunStores, ThreadStore, Wakeups

P = TypeVar("P")

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
    """Return `port`, whose methods are coroutines, with planned failures of them.

    With a plan in `before` a call is refused and nothing is done; with one in `after` it is done and its
    answer is lost. `counts` is given the number of calls by method, the failed ones included. The result
    shares no transaction with others, unless `storage_identity` says where it writes. What is raised is
    `StoreUnavailable`, or what `error` makes of the method's name.

    Raises:
        AttributeError: a plan names a method that the port does not have.
    """
    for name in {**(before or {}), **(after or {})}:
        getattr(port, name)
    planned = _FailingPort(port, before or {}, after or {}, counts, storage_identity, error or injected)
    return cast("P", planned)


def injected(method: str) -> PostroomError:
    """Return the error that a planned failure raises."""
    return StoreUnavailable(f"injected {method} failure")


class _FailingPort:
    """Any port, with its calls looked up in plans."""

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
        found = getattr(self._port, name)
        if not callable(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            refuses, loses = _next(self._before, name), _next(self._after, name)
            if refuses:
                raise self._error(name)
            answer = await found(*arguments, **named)
            if loses:
                raise self._error(name)
            return answer

        return call


def _next(plans: dict[str, Iterator[bool]], name: str) -> bool:
    return next(plans[name], False) if name in plans else False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStoresOf:
    """Run stores put together from parts, some of which may fail on purpose."""

    clock: Clock
    dispatches: DispatchStore
    threads: ThreadStore
    events: EventStore
    outbox: OutboxStore
    coordinator: CommitCoordinator
    wakeups: Wakeups


def with_parts(
    stores: RunStores,
    *,
    dispatches: DispatchStore | None = None,
    threads: ThreadStore | None = None,
    events: EventStore | None = None,
    outbox: OutboxStore | None = None,
    coordinator: CommitCoordinator | None = None,
) -> RunStores:
    """Return the same stores with these parts in place of their own."""
    return RunStoresOf(
        clock=stores.clock,
        dispatches=dispatches or stores.dispatches,
        threads=threads or stores.threads,
        events=events or stores.events,
        outbox=outbox or stores.outbox,
        coordinator=coordinator or stores.coordinator,
        wakeups=stores.wakeups,
    )
