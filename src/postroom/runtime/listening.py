"""Carries live commands to a run of this process, and says that they were accepted when they were."""

from postroom.concurrency import Tasks
from postroom.contracts.errors import StoreError
from postroom.contracts.live import (
    LiveChannels,
    LiveCommandKind,
    LiveRunCommand,
    LiveRunTarget,
    LiveSubscription,
)
from postroom.log import get_logger
from postroom.runtime.slots import ActiveRun

_LOG = get_logger(__name__)


class Listener:
    """Listens for one run. Without it, or when it fails, senders take the durable way."""

    def __init__(self, channels: LiveChannels | None, active: ActiveRun) -> None:
        self._channels = channels
        self._active = active
        self._subscription: LiveSubscription | None = None
        self._task = Tasks("live commands")

    async def start(self) -> None:
        """Listen from now on."""
        if self._channels is None:
            return
        identity = self._active.identity
        target = LiveRunTarget(
            thread_id=identity.thread_id, run_id=identity.run_id, dispatch_id=identity.dispatch_id
        )
        try:
            self._subscription = await self._channels.open(target)
        except StoreError as error:
            _LOG.warning("runtime.not_listening", run_id=identity.run_id, code=error.code)
            return
        self._task.start(self._listen(self._subscription), name=identity.run_id)

    async def stop(self) -> None:
        """Listen no more; what was not accepted is dropped."""
        if self._subscription is not None:
            self._subscription.close()
        await self._task.close()

    async def _listen(self, subscription: LiveSubscription) -> None:
        async for entry in subscription:
            with entry:
                if _taken(self._active, entry.command):
                    entry.receipt.ack()


def _taken(active: ActiveRun, command: LiveRunCommand) -> bool:
    match command.kind:
        case LiveCommandKind.MESSAGES:
            return active.accept(command.messages)
        case LiveCommandKind.PENDING_BOUNDARY_WAKE:
            return active.wake()
        case LiveCommandKind.CANCEL:
            return active.cancel()
        case LiveCommandKind.DECISION:
            return active.decide(command.decisions)
