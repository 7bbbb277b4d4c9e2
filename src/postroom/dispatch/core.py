"""What every part of a mailbox works with: its ports, its settings, its ids, and nothing that decides."""

from collections.abc import Callable
from random import Random

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.effects import RunEffects
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.live import LiveChannels
from postroom.contracts.run_stores import RunStores
from postroom.dispatch.capture import Capture
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.metrics import MailboxMetrics
from postroom.dispatch.registry import Pinning

Ids = Callable[[], str]
"""Makes a new identifier of 36 characters."""

_TAIL_BITS = 74


class Core:
    """The ports and settings of one mailbox."""

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        *,
        executor: RunDispatchExecutor,
        stores: RunStores,
        consumer_id: str,
        config: MailboxConfig,
        timer: Timer,
        random: Random,
        new_id: Ids,
        metrics: MailboxMetrics,
        live: LiveChannels | None,
        effects: RunEffects | None,
    ) -> None:
        self.executor = executor
        self.stores = stores
        self.store = stores.store
        self.dispatches = stores.dispatches
        self.threads = stores.threads
        self.coordinator = stores.coordinator
        self.consumer_id = consumer_id
        self.config = config
        self.timer = timer
        self.random = random
        self.new_id = new_id
        self.now = stores.clock.now
        self.metrics = metrics
        self.observed = metrics.observed
        self.live = live
        self.pinning = Pinning(executor)
        self.capture: Capture | None = None
        """What keeps the executions' events, when something does."""
        self.tasks = Tasks("mailbox")
        self.effects = effects
        """What belongs to the beginning and the end of runs, where something does."""


def time_ordered_ids(clock: Clock, random: Random) -> Ids:
    """Return a maker of version 7 UUIDs (RFC 9562): 48 bits of milliseconds, then 74 bits that only grow.

    Identifiers sort by the time they were made. Within a millisecond, and while a clock that was set back
    catches up, each is a random step above the last (method 2 of section 6.2).
    """
    last_at, last_tail = 0, 0

    def make() -> str:
        nonlocal last_at, last_tail
        now = clock.now()
        if now > last_at:
            last_at, last_tail = now, random.getrandbits(_TAIL_BITS - 1)
        else:
            last_tail += random.getrandbits(32) + 1
        bits = (last_at & (1 << 48) - 1) << 80 | 0x7 << 76 | (last_tail >> 62 & 0xFFF) << 64
        digits = f"{bits | 0b10 << 62 | last_tail & (1 << 62) - 1:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return make
