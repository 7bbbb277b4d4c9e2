"""Identifiers that sort by the time they were made."""

import uuid
from collections.abc import Callable
from random import Random

from postroom.contracts.clock import Clock

Ids = Callable[[], str]
"""Makes a new identifier of 36 characters."""


def time_ordered_ids(clock: Clock, random: Random) -> Ids:
    """Return a maker of version 7 UUIDs (RFC 9562): 48 bits of milliseconds, the rest random."""

    def make() -> str:
        bits = (clock.now() & (1 << 48) - 1) << 80 | random.getrandbits(80)
        bits = bits & ~(0xF << 76) | 0x7 << 76
        bits = bits & ~(0x3 << 62) | 0x2 << 62
        return str(uuid.UUID(int=bits))

    return make
