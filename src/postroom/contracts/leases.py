"""Leases for work that only one of the servers on a database may do at a time.

    free ─▶ held ─▶ renewed ─▶ renewed ─▶ …
              │         └ not renewed: its work stops before the lease ends, then another server takes it
              └ released: another server takes it at once

A lease's `fence` grows each time another server takes it. Each of the holder's transactions checks the lease
and its fence, so that a server that stalled or was disconnected cannot write after another server has taken
over.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.contracts.messages import Json

LEASES: Final = "leases"
"""The topic of notifications that a lease is free, and the name of the lock for taking or releasing a lease.
"""
SERVER: Final = "server "
"""The prefix of the name of the lease that shows that a server is running; the server's name follows."""
IsGone = Callable[[Mapping[str, Json]], bool]
"""A function that returns whether a server has certainly exited, judged from its stored description; it may
block.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A stored lease. The row remains after a release, so that the fence never decreases."""

    name: str
    holder: str
    """The server that holds the lease or was the last to hold it."""
    about: Mapping[str, Json]
    """The holder's description of itself."""
    fence: int
    since: int
    """The time when the holder took it."""
    until: int
    """The time when it ends unless it is renewed."""


def nobody_is_gone(_about: Mapping[str, Json]) -> bool:
    """Return False: nothing is known about other servers, so callers wait until leases expire."""
    return False


def servers(leases: Iterable[Lease], now: int, place: str = "") -> list[Lease]:
    """Return the leases of running servers; with `place`, only of servers at that place.

    A server is at each place that it lists in `places`, and at each place whose lease it holds.
    """
    held = [lease for lease in leases if lease.until > now]
    holders = {
        lease.holder
        for lease in held
        if not place or lease.name == place or place in named_places(lease.about)
    }
    return [lease for lease in held if lease.name.startswith(SERVER) and lease.holder in holders]


def named_places(about: Mapping[str, Json]) -> list[str]:
    """Return the places that a server lists in its description: its host name and its labels."""
    named = about.get("places")
    return [str(item) for item in named] if isinstance(named, list) else []
