"""The rounds of a mailbox: started once whoever starts them, stopped for good, never by letting go."""

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from dispatch.conftest import Room
from dispatch_room import AgentUnknown, dispatch_in, prepare_queued_dispatch
from dispatch_waiting import PATIENCE, turns, until
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import LifecycleBusy, StoreError, StoreUnavailable
from postroom.dispatch.config import MailboxConfig, MailboxLifecycleConfig, StartupRecoveryConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.runs.ports import DispatchStore, RunStores
from postroom.testing.run_faults import failing, with_parts

TICK = timedelta(milliseconds=10)
GC_EACH_TICK = MailboxConfig(gc_interval=TICK, sweep_interval=timedelta(seconds=60))
LOOK = "unreconciled_dispatches"


def attempts(max_attempts: int, **settings: Any) -> MailboxLifecycleConfig:
    """Return how to start with so many attempts to recover, one right after the other."""
    recovery = StartupRecoveryConfig(max_attempts=max_attempts, retry_delay=timedelta(0))
    return MailboxLifecycleConfig(startup_recovery=recovery, **settings)


@dataclass
class Watched:
    """Stores whose first recoveries fail as often as is said; each recovery looks once for runs to be told, and is counted."""

    stores: RunStores
    failures: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def recoveries(self) -> int:
        return self.counts[LOOK]

    def set(self) -> RunStores:
        def fault(method: str) -> StoreUnavailable:
            return StoreUnavailable("injected startup recovery failure")

        plan = {LOOK: [True] * self.failures}
        flaky = failing(self.stores.dispatches, before=plan, counts=self.counts, error=fault)
        return with_parts(self.stores, dispatches=flaky)


class HeldPurge:
    """A queue whose removal of old rows can be held in the middle, and is not broken off when it is stubborn."""

    storage_identity = None

    def __init__(self, dispatches: DispatchStore) -> None:
        self._dispatches = dispatches
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.stubborn = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatches, name)

    async def purge_terminal(self, **bounds: Any) -> int:
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if self.stubborn:
                await self.gate.wait()
            raise
        return await self._dispatches.purge_terminal(**bounds)


async def queued_for_missing_agent(mailbox: Mailbox, stores: RunStores, thread_id: str) -> str:
    """Enqueue a dispatch for an agent that nobody knows; nothing is told that it waits."""
    queued = await prepare_queued_dispatch(mailbox, thread_id, "recover", "missing-agent")
    return (await stores.dispatches.enqueue(queued.dispatch)).dispatch_id


async def test_start_lifecycle_ready_fails_when_startup_recovery_fails(room: Room) -> None:
    watched = Watched(room.stores, failures=1)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())
    with pytest.raises(StoreError, match="injected startup recovery failure"):
        await mailbox.start_lifecycle_ready(attempts(1))
    assert not mailbox.lifecycle_is_running()
    assert watched.recoveries == 1
    await turns()
    assert room.clock.sleeping == 0, "no round may be left that waits for its time"

    handle = await mailbox.start_lifecycle_ready(attempts(1))
    assert handle.is_running
    await handle.shutdown()


async def test_start_lifecycle_ready_retries_startup_recovery_until_ready(room: Room) -> None:
    watched = Watched(room.stores, failures=1)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())
    dispatch_id = await queued_for_missing_agent(mailbox, room.stores, "thread-retry-recover")

    handle = await mailbox.start_lifecycle_ready(attempts(2))
    assert watched.recoveries == 2
    row = await dispatch_in(room.stores, dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert row.last_error is not None
    assert "missing-agent" in row.last_error
    await handle.shutdown()
    assert not handle.is_running
    assert not mailbox.lifecycle_is_running()


async def test_start_lifecycle_ready_serializes_concurrent_recovery(room: Room) -> None:
    watched = Watched(room.stores)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        starters = [group.create_task(mailbox.start_lifecycle_ready()) for _ in range(32)]
    handles = [starter.result() for starter in starters]
    assert watched.recoveries == 1
    assert all(handle.is_running for handle in handles)
    await handles[0].shutdown()
    assert not any(handle.is_running for handle in handles)


async def test_start_lifecycle_does_not_bypass_ready_transition(room: Room) -> None:
    watched = Watched(room.stores)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())
    delayed = attempts(1, startup_delay=timedelta(milliseconds=75))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        ready = group.create_task(mailbox.start_lifecycle_ready(delayed))
        await until(lambda: room.clock.sleeping == 1)
        with pytest.raises(LifecycleBusy, match="lifecycle transition is already running"):
            mailbox.start_lifecycle()
        room.clock.advance(timedelta(milliseconds=74))
        await turns()
        assert (watched.recoveries, mailbox.lifecycle_is_running()) == (0, False)
        room.clock.advance(timedelta(milliseconds=1))
    handle = ready.result()
    await turns()
    assert watched.recoveries == 1
    assert mailbox.start_lifecycle().is_running, "what runs already is no transition"
    await handle.shutdown()
    assert not mailbox.lifecycle_is_running()


async def test_start_lifecycle_is_idempotent_and_drop_does_not_abort_recovery(room: Room) -> None:
    watched = Watched(room.stores)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())
    dispatch_id = await queued_for_missing_agent(mailbox, room.stores, "thread-drop-recover")

    handle = mailbox.start_lifecycle(MailboxLifecycleConfig(startup_delay=TICK))
    duplicate = mailbox.start_lifecycle()
    assert handle.is_running
    assert duplicate.is_running
    del handle, duplicate
    gc.collect()
    await turns()
    assert watched.recoveries == 0, "recovery waits for its delay"
    room.clock.advance(TICK)
    await until(lambda: watched.recoveries == 1)
    await dispatch_in(room.stores, dispatch_id, RunDispatchStatus.DEAD_LETTER)

    later = mailbox.start_lifecycle()
    await turns()
    assert watched.recoveries == 1, "the rounds that are made already were meant"
    await later.shutdown()
    assert not later.is_running


async def test_start_lifecycle_explicit_abort_allows_restart(room: Room) -> None:
    mailbox = room.mailbox(AgentUnknown())
    first = mailbox.start_lifecycle()
    assert first.is_running
    await first.shutdown()
    assert not first.is_running

    second = mailbox.start_lifecycle()
    assert second.is_running
    second.abort()
    assert not second.is_running

    third = mailbox.start_lifecycle()
    assert third.is_running
    await third.shutdown()
    assert not third.is_running


async def test_shutdown_ends_a_recovery_that_has_not_begun(room: Room) -> None:
    watched = Watched(room.stores)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())
    handle = mailbox.start_lifecycle(MailboxLifecycleConfig(startup_delay=timedelta(seconds=5)))
    await turns()
    await handle.shutdown()
    room.clock.advance(timedelta(seconds=5))
    await turns()
    assert watched.recoveries == 0, "after shutdown nothing of the lifecycle runs"


async def test_start_lifecycle_is_refused_while_it_is_being_stopped(room: Room) -> None:
    held = HeldPurge(room.stores.dispatches)
    mailbox = room.mailbox(
        AgentUnknown(), stores=with_parts(room.stores, dispatches=held), config=GC_EACH_TICK
    )
    handle = mailbox.start_lifecycle()
    await turns()
    held.gate.clear()
    held.stubborn = True
    room.clock.advance(TICK)
    await until(held.entered.is_set)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        stopping = group.create_task(handle.shutdown())
        await turns()
        try:
            assert not stopping.done(), "a round is still being made"
            with pytest.raises(LifecycleBusy):
                mailbox.start_lifecycle()
        finally:
            held.gate.set()
    assert not handle.is_running


async def test_maintenance_callback_runs_on_gc_tick(room: Room) -> None:
    calls: list[int] = []
    mailbox = room.mailbox(AgentUnknown(), config=GC_EACH_TICK)
    handle = mailbox.start_lifecycle(
        MailboxLifecycleConfig(maintenance_callback=lambda: calls.append(room.clock.now()))
    )
    await turns()
    began = room.clock.now()
    room.clock.advance(TICK - timedelta(milliseconds=1))
    await turns()
    assert calls == [], "the first tick is one interval after the start"
    room.clock.advance(timedelta(milliseconds=1))
    await until(lambda: len(calls) == 1)
    room.clock.advance(TICK)
    await until(lambda: len(calls) == 2)
    assert calls == [began + 10, began + 20]
    await handle.shutdown()


async def test_start_lifecycle_handle_drop_keeps_lifecycle_running(room: Room) -> None:
    calls: list[int] = []
    mailbox = room.mailbox(AgentUnknown(), config=GC_EACH_TICK)
    handle = mailbox.start_lifecycle(
        MailboxLifecycleConfig(maintenance_callback=lambda: calls.append(room.clock.now()))
    )
    assert handle.is_running
    del handle
    gc.collect()
    await turns()
    assert mailbox.lifecycle_is_running()
    room.clock.advance(TICK)
    await until(lambda: len(calls) == 1)

    again = mailbox.start_lifecycle()
    assert again.is_running
    await again.shutdown()
    assert not mailbox.lifecycle_is_running()


async def test_lifecycle_shutdown_waits_for_maintenance_to_quiesce(room: Room) -> None:
    """Not between two rounds only: a round that is being made when it comes is ended as well."""
    calls: list[int] = []
    held = HeldPurge(room.stores.dispatches)
    mailbox = room.mailbox(
        AgentUnknown(), stores=with_parts(room.stores, dispatches=held), config=GC_EACH_TICK
    )
    handle = mailbox.start_lifecycle(
        MailboxLifecycleConfig(maintenance_callback=lambda: calls.append(room.clock.now()))
    )
    await turns()
    room.clock.advance(TICK)
    await until(lambda: len(calls) == 1)

    held.gate.clear()
    held.entered.clear()
    room.clock.advance(TICK)
    await until(held.entered.is_set)
    async with asyncio.timeout(PATIENCE):
        await handle.shutdown()
    assert not handle.is_running
    held.gate.set()
    for _ in range(4):
        room.clock.advance(TICK)
        await turns()
    assert len(calls) == 1, "after shutdown the callback is not called"


async def test_concurrent_start_lifecycle_is_idempotent(room: Room) -> None:
    watched = Watched(room.stores)
    mailbox = room.mailbox(AgentUnknown(), stores=watched.set())

    async def start() -> Any:
        await asyncio.sleep(0)
        return mailbox.start_lifecycle()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        starters = [group.create_task(start()) for _ in range(32)]
    handles = [starter.result() for starter in starters]
    assert len(handles) == 32
    assert all(handle.is_running for handle in handles)
    await until(lambda: watched.recoveries)
    await turns()
    assert watched.recoveries == 1
    await handles[0].shutdown()
    assert not any(handle.is_running for handle in handles)
