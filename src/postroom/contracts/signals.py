"""Dispatch signals: a work queue of hints that a dispatch waits, for stores whose engine has one."""

from dataclasses import dataclass
from typing import Protocol


class DispatchSignalReceipt(Protocol):
    """Answers the queue that a signal came from."""

    @property
    def redelivery_attempts(self) -> int | None:
        """How often the signal was delivered, where the engine counts it."""
        ...

    async def ack(self) -> None:
        """The signal was used."""
        ...

    async def nack(self, delay_ms: int = 0) -> None:
        """The signal is to come again, after `delay_ms`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSignal:
    """A hint that this dispatch waits."""

    thread_id: str
    dispatch_id: str
    receipt: DispatchSignalReceipt


class DispatchSignals(Protocol):
    """Where signals come from."""

    async def pull(self, limit: int, *, wait_ms: int) -> tuple[DispatchSignal, ...]:
        """Return up to `limit` signals, waiting at most `wait_ms` for the first."""
        ...
