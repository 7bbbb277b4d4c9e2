"""Leases for work that only one of several servers on a database may do at a time.

    free ─▶ held ─▶ renewed ─▶ renewed ─▶ …
              │         └ not renewed: its work stops before the lease ends, then another server takes it
              └ released: another server takes it at once

Each time another server takes a lease, its `fence` grows. Every transaction of the holder checks the lease
and the fence. Therefore a server that stalled or was disconnected cannot write after another server has taken
over.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.contracts.messages import Json

LEASES: Final = "leases"
"""The topic of notifications about free leases, and the name of the lock for taking or releasing a lease."""
SERVER: Final = "server "
"""The prefix of the names of leases which show that a server is running; the server's name follows."""
IsGone = Callable[[Mapping[str, Json]], bool]
"""A function that decides from a server's stored description whether the server has certainly exited; it may
block.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A named lease with the lease's holder and expiry."""

    name: str
    holder: str
    """The current holder of the lease or, if the lease is free, its last holder."""
    about: Mapping[str, Json]
    """The holder's description of itself."""
    fence: int
    since: int
    """The time when the holder took the lease."""
    until: int
    """The time when the lease ends unless it is renewed."""


def nobody_is_gone(_about: Mapping[str, Json]) -> bool:
    """Return False for every lease holder: no holder is known to have exited."""
    return False


def servers(leases: Iterable[Lease], now: int, place: str = "") -> list[Lease]:
    """Return the leases of running servers, or only of the running servers at `place`."""
    held = [lease for lease in leases if lease.until > now]
    holders = {
        lease.holder
        for lease in held
        if not place or lease.name == place or place in named_places(lease.about)
    }
    return [lease for lease in held if lease.name.startswith(SERVER) and lease.holder in holders]


def named_places(about: Mapping[str, Json]) -> list[str]:
    """Return the host name and labels in the description of a server."""
    named = about.get("places")
    return [str(item) for item in named] if isinstance(named, list) else []
