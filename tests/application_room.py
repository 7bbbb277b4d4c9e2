"""A whole application on an empty folder, its operator, and what tests put into its queue."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from postroom.app.admin_service import AdminService
from postroom.app.config import Settings
from postroom.app.wiring import Application
from postroom.contracts.dispatch import RunDispatch
from postroom.http_api.readiness import LagMeter
from postroom.testing import ManualClock


class Place:
    """An application that does nothing by itself, and readers of its state."""

    def __init__(self, application: Application, clock: ManualClock) -> None:
        self.application = application
        self.clock = clock
        self.operator = AdminService(application, LagMeter(), started_at=clock.now())

    async def finding(self, name: str) -> dict[str, Any]:
        """Return the doctor's result for one part."""
        found = await self.operator.doctor()
        (one,) = [one for one in found["checks"] if one["name"] == name]
        return one

    async def queue(self, name: str, *, thread: str = "", **more: Any) -> RunDispatch:
        """Queue a run that no worker claims."""
        thread = thread or f"thread-{name}"
        row = RunDispatch.queued(name, thread, f"run-{name}", created_at=self.clock.now(), **more)
        return await self.application.runs.stores.dispatches.enqueue(row, now=self.clock.now())

    async def give_up(self, name: str, error: str, **more: Any) -> None:
        """Queue a run and make it a dead letter."""
        await self.queue(name, **more)
        dispatches = self.application.runs.stores.dispatches
        claimed = await dispatches.claim_dispatch(name, "w", lease_ms=1000, now=self.clock.now())
        await dispatches.dead_letter(claimed.claim_proof, error=error, now=self.clock.now())

    def number(self, name: str, **labels: str) -> float | None:
        """Return what a gauge shows."""
        return self.application.metrics.registry.get_sample_value(name, labels)


@contextmanager
def place(folder: Path, clock: ManualClock, **given: Any) -> Iterator[Place]:
    """Open an application outside of an event loop, and close it."""
    settings = Settings(data_dir=folder, **given)
    application = Application.open(settings, clock=clock, purpose="test")
    try:
        yield Place(application, clock)
    finally:
        application.close()
