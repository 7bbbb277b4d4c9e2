"""Leases: work that only one of the servers on a database does at a time.

    free ─▶ held ─▶ renewed ─▶ renewed ─▶ …
              │         └ not renewed: its work stops before the lease ends, then another server takes it
              └ released: another server takes it at once

A lease's `fence` grows each time it changes hands. The holder proves the lease and the fence in the
transaction of each change, so that a server that stalled or was cut off cannot write for work that another
server has taken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.contracts.messages import Json

LEASES: Final = "leases"
"""The topic of hints that a lease is free, and the name of the lock for changes of hands."""
SERVER: Final = "server "
"""The prefix of the lease by which a server shows that it is running; the server's name follows."""
IsGone = Callable[[Mapping[str, Json]], bool]
"""Returns whether a server has surely ended, from its description of itself; it may block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A stored lease. The row of a free lease stays, so that its fence only grows."""

    name: str
    holder: str
    """The server that holds it or held it last."""
    about: Mapping[str, Json]
    """The holder's description of itself."""
    fence: int
    since: int
    """The time when the holder took it."""
    until: int
    """The time when it ends unless it is renewed."""


def nobody_is_gone(_about: Mapping[str, Json]) -> bool:
    """Return False: without knowledge of other servers, their leases end by themselves."""
    return False


def servers(leases: Iterable[Lease], now: int, place: str = "") -> list[Lease]:
    """Return the leases of running servers; with `place`, only of servers at that place.

    A server is at the places that it describes in `places`, and at those whose lease it holds.
    """
    held = [one for one in leases if one.until > now]
    holders = {
        one.holder for one in held if not place or one.name == place or place in named_places(one.about)
    }
    return [one for one in held if one.name.startswith(SERVER) and one.holder in holders]


def named_places(about: Mapping[str, Json]) -> list[str]:
    """Return the places that a server describes: its host, and labels."""
    named = about.get("places")
    return [str(one) for one in named] if isinstance(named, list) else []
