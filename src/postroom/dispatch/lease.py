"""Keeps a claim while its run is at work, and says in time when it is lost.

renewed ──▶ renewed ──▶ …          the store fails: tried again until shortly before the lease ends
   └──▶ refused, or ended ──▶ lost: the run is stopped before another worker can begin it
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

import structlog

from postroom.contracts.clock import milliseconds
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import PostroomError
from postroom.dispatch.core import Core

_LOG = structlog.get_logger(__name__)
_MOST_SAFETY_MS = 1_000


class LeaseEnd(StrEnum):
    """Why an execution is stopped from outside."""

    LOST = "lost"
    GIVEN_UP = "given_up"
    CANCELLED = "cancelled"


class Lease:
    """Whether the worker may go on, and if not, why."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self.end: LeaseEnd | None = None
        self.reason = ""

    def stop(self, end: LeaseEnd, reason: str) -> None:
        """Stop the execution; the first reason stands."""
        if self.end is None:
            self.end, self.reason = end, reason
            self._ended.set()

    async def ended(self) -> None:
        """Return when the execution is to be stopped."""
        await self._ended.wait()


@asynccontextmanager
async def lease_kept(
    core: Core, dispatch: RunDispatch, *, is_suspended: Callable[[], bool]
) -> AsyncIterator[Lease]:
    """Renew the claim of a dispatch until the block ends or the claim is lost."""
    lease = Lease()
    keeper = core.tasks.start(
        _keep(core, dispatch, lease, is_suspended), name=f"lease of {dispatch.dispatch_id}"
    )
    try:
        yield lease
    finally:
        keeper.cancel()


async def _keep(core: Core, dispatch: RunDispatch, lease: Lease, is_suspended: Callable[[], bool]) -> None:
    config = core.config
    interval = milliseconds(config.lease_renewal_interval)
    until = dispatch.lease_until or core.now()
    pause = interval
    while lease.end is None:
        await core.timer.sleep(pause)
        length = config.suspended_lease_ms if is_suspended() else config.lease_ms
        asked_at = core.now()
        try:
            renewed = await core.observed(
                "lease_renewal", core.dispatches.extend_lease(dispatch.claim_proof, extension_ms=length)
            )
        except PostroomError as error:
            _LOG.warning("lease.not_renewed", dispatch_id=dispatch.dispatch_id, reason=error.describe())
            if core.now() >= until - min(length // 10, _MOST_SAFETY_MS):
                lease.stop(LeaseEnd.LOST, "the lease ended and could not be renewed")
            pause = min(interval, config.lease_retry_ms)
            continue
        if not renewed:
            lease.stop(LeaseEnd.LOST, "the claim was taken away")
        until, pause = asked_at + length, interval
    if lease.end is not LeaseEnd.LOST:
        return
    core.metrics.lease_lost()
    _LOG.warning("lease.lost", dispatch_id=dispatch.dispatch_id, reason=lease.reason)
