"""Identifiers that sort by the time they were made, also within one millisecond of one process."""

import uuid
from collections.abc import Callable
from random import Random

from postroom.contracts.clock import Clock

Ids = Callable[[], str]
"""Makes a new identifier of 36 characters."""

_TAIL_BITS = 74
_LARGEST_STEP = 1 << 32


def time_ordered_ids(clock: Clock, random: Random) -> Ids:
    """Return a maker of version 7 UUIDs (RFC 9562): 48 bits of milliseconds, then 74 bits that only grow.

    Within a millisecond, and while a clock that was set back catches up, each is a random step above the
    last (method 2 of section 6.2).
    """
    last_at, last_tail = 0, 0

    def make() -> str:
        nonlocal last_at, last_tail
        now = clock.now()
        if now > last_at:
            last_at, last_tail = now, random.getrandbits(_TAIL_BITS - 1)
        else:
            last_tail += random.randrange(1, _LARGEST_STEP)
        bits = (last_at & (1 << 48) - 1) << 80 | 0x7 << 76 | (last_tail >> 62 & 0xFFF) << 64
        return str(uuid.UUID(int=bits | 0b10 << 62 | last_tail & (1 << 62) - 1))

    return make
