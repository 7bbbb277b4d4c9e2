"""The runs of a house: its one mailbox, and what executes the threads of each room."""

from datetime import timedelta

from prometheus_client import CollectorRegistry

from postroom.concurrency import SystemTimer
from postroom.contracts.clock import Timer
from postroom.contracts.effects import RunEffects
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.run_stores import RunStores
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.metrics import MailboxMetrics
from postroom.dispatch.routing import ExecutorsByThread, JoinedEffects

STOP_WAIT_MS = 15_000
"""A program that is asked to end has a third of it for that, then it is killed."""


class HouseRuns:
    """One queue for everything that needs work; rooms say who executes their threads, and what ends cause."""

    def __init__(self, stores: RunStores, *, registry: CollectorRegistry, timer: Timer | None = None) -> None:
        self.stores = stores
        self._executors = ExecutorsByThread({})
        self._effects = JoinedEffects()
        self.mailbox = Mailbox(
            self._executors,
            stores,
            effects=self._effects,
            timer=timer or SystemTimer(),
            config=MailboxConfig(
                drain_grace=timedelta(0),
                stop_wait_ms=STOP_WAIT_MS,
                cancel_wait_ms=STOP_WAIT_MS,
                is_alone=True,
            ),
            metrics=MailboxMetrics(registry),
        )

    def serve(self, threads: str, executor: RunDispatchExecutor, effects: RunEffects) -> None:
        """Have the threads whose names begin like this executed, before anything is started."""
        self._executors.add(threads, executor)
        self._effects.add(effects)

    async def start(self) -> None:
        """Take up what was left and begin to look for work; harmless when it runs.

        Raises:
            StoreError: what was left could not be taken up.
        """
        if not self.mailbox.lifecycle_is_running():
            await self.mailbox.start_lifecycle_ready()

    async def stop(self) -> None:
        """Give back what is at work and end; harmless when it never started."""
        await self.mailbox.aclose(timedelta(0))
