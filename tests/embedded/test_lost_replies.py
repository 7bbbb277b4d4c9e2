"""The reply to a change is lost, though the change is stored: what it has claimed is executed all the same."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from embedded_room import Open, both_engines, echo, in_state
from machine import PATIENCE
from postroom import MailboxConfig, Run, RunUnsuccessful, State, StoreUnavailable
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import StoreError
from postroom.stores.engine import Engine

T = TypeVar("T")
CONFIG = MailboxConfig(
    poll_interval=timedelta(milliseconds=100), lease_retry_ms=20, drain_grace=timedelta(seconds=5)
)


class LosingEngine:
    """An engine that loses the reply to one change, which is stored."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.left = -1
        """Number of changes that are answered before the change whose reply is lost; -1: all."""
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """The event before the caller learns that it gets no reply."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(
        self, change: Callable[..., T], *, key: str = "", committed: Callable[[], None] | None = None
    ) -> T:
        """Run a change."""
        self.left -= 1
        if self.left != -1:
            return await self._engine.write(change, key=key, committed=committed)
        await self._engine.write(change, key=key)  # the hint that goes with the reply is lost as well
        if self.meanwhile is not None:
            await self.meanwhile()
        raise StoreUnavailable("the reply is lost")


@pytest.mark.long
async def test_a_claim_that_nobody_here_executes_is_released_uncounted_also_when_no_slot_is_free(
    opening: Open,
) -> None:
    begun, gate = Counter[str](), asyncio.Event()

    async def work(run: Run) -> str:
        begun[run.text] += 1
        if run.text == "long":
            await gate.wait()
        return "done"

    async with opening(
        work, config=MailboxConfig(max_concurrent_runs=1, poll_interval=timedelta(milliseconds=100))
    ) as mailbox:
        long = await mailbox.enqueue("a", "long")
        while not begun["long"]:
            await asyncio.sleep(0)
        left = await mailbox.enqueue("b", "left", attempts=1)
        claimed = await mailbox.stores.dispatches.claim(
            "b", consumer=mailbox.admin.consumer_id, lease_ms=60_000
        )
        assert claimed is not None
        async with asyncio.timeout(PATIENCE):
            while await mailbox.admin.unexecuted_claims():
                await asyncio.sleep(0)
        row = await mailbox.stores.dispatches.load_dispatch(claimed.dispatch_id)
        assert row is not None
        assert (row.status, row.attempt_count) == (RunDispatchStatus.QUEUED, 0)
        gate.set()
        assert [await one.result(timeout=PATIENCE) for one in (long, left)] == ["done", "done"]


@both_engines
@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING])
async def test_a_cancel_whose_reply_is_lost_is_kept_and_the_next_run_of_the_thread_starts(
    opening: Open, state: State
) -> None:
    begun, gate = Counter[str](), asyncio.Event()

    async def work(run: Run) -> str:
        begun[run.text] += 1
        if run.text == "waiting":
            await run.ask("Go on?")
        if run.text in {"running", "before"}:
            await gate.wait()
        return "done"

    async with opening(work, config=CONFIG) as mailbox, asyncio.timeout(2 * PATIENCE):
        before = None
        if state is State.QUEUED:
            before = await mailbox.enqueue("t", "before")
            await in_state(before, State.RUNNING)
        cancelled = await mailbox.enqueue("t", state)
        await in_state(cancelled, state)
        # A run that waits for an answer holds back no other: it would be claimed beside the cancel.
        following = None if state is State.WAITING else await mailbox.enqueue("t", "following")
        engine = LosingEngine(mailbox.stores.store.engine)
        mailbox.stores.store.engine = engine
        told = asyncio.create_task(cancelled.result())
        engine.left = 0
        with pytest.raises(StoreError):
            await cancelled.cancel()
        await cancelled.cancel()  # the caller asks again
        with pytest.raises(RunUnsuccessful):
            await told
        assert (await cancelled.status()).state is State.CANCELLED
        gate.set()
        following = following or await mailbox.enqueue("t", "following")
        assert await following.result() == "done"
        if before is not None:
            assert await before.result() == "done"
        assert begun[state] == (0 if state is State.QUEUED else 1)


@both_engines
async def test_a_run_that_is_cancelled_while_the_reply_to_its_claim_is_lost_does_not_start(
    opening: Open,
) -> None:
    begun, gate = Counter[str](), asyncio.Event()

    async def work(run: Run) -> str:
        begun[run.text] += 1
        await gate.wait()
        return "done"

    async with opening(work, config=CONFIG) as mailbox:
        first = await mailbox.enqueue("t", "first")
        await in_state(first, State.RUNNING)
        second = await mailbox.enqueue("t", "second")
        third = await mailbox.enqueue("t", "third")
        engine = LosingEngine(mailbox.stores.store.engine)
        mailbox.stores.store.engine = engine
        engine.left, engine.meanwhile = 0, second.cancel
        gate.set()  # the change that ends the first run claims the second
        assert await first.result(timeout=PATIENCE) == await third.result(timeout=PATIENCE) == "done"
        assert (await second.status()).state is State.CANCELLED
        assert begun["second"] == 0


async def test_the_refusal_of_an_enqueue_whose_caller_left_is_a_warning(
    opening: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with opening(echo) as mailbox:
        await mailbox.enqueue("t", "one", key="k")
        leaving = asyncio.create_task(mailbox.enqueue("t", "two", key="k"))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    [told] = [one for one in caplog.records if "caller.gone" in one.getMessage()]
    assert told.levelname == "WARNING"
    assert "'k'" in told.getMessage()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
