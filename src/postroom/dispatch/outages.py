"""Repeats what a run writes, and what its readers read, until a database that was away is back."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from postroom.contracts.clock import Timer
from postroom.contracts.errors import StoreClosed, StoreError

T = TypeVar("T")

FIRST_PAUSE_MS: Final = 50
LONGEST_PAUSE_MS: Final = 500


def never() -> bool:
    """Return False: the caller is cancelled when the step is no longer wanted."""
    return False


async def retried(
    step: Callable[[], Awaitable[T]], timer: Timer, *, gives_up: Callable[[], bool] = never
) -> T:
    """Return what `step` returns; while the store is unavailable, call it again after 50 to 500 ms.

    A step is called again also after a lost reply: it must find out whether it was written before.

    Raises:
        StoreError: The store is closed, `gives_up` returned True, or the failure does not pass by itself.
    """
    pause = FIRST_PAUSE_MS
    while True:
        try:
            return await step()
        except StoreError as error:
            if not error.retryable or isinstance(error, StoreClosed) or gives_up():
                raise
        await timer.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_MS)
