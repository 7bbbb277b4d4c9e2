"""Live channels for a mailbox that was given none: nobody listens."""

from collections.abc import AsyncIterator

from postroom.contracts.live import (
    LiveCommandEntry,
    LiveDeliveryOutcome,
    LiveRunCommand,
    LiveRunTarget,
    LiveSubscription,
)


class NoLiveChannels:
    """Reaches no run; what is sent takes the durable way."""

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Return that nobody listens."""
        return LiveDeliveryOutcome.NO_SUBSCRIBER

    async def open(self, target: LiveRunTarget) -> LiveSubscription:
        """Return a subscription that ends at once."""
        return _Silence()


class _Silence:
    def __aiter__(self) -> AsyncIterator[LiveCommandEntry]:
        return self

    async def __anext__(self) -> LiveCommandEntry:
        raise StopAsyncIteration

    def close(self) -> None:
        """Nothing is open."""
