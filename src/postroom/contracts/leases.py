"""Leases: work that one server does at a time, of all servers on one database.

    free ─▶ held ─▶ renewed ─▶ renewed ─▶ …
              │         └ not renewed: stopped before the lease ends, then another server's
              └ given back: at once another server's

Each time a lease changes hands its `fence` grows. A change of its holder proves the lease and the fence in
the same transaction, so that a server that stood still, or was cut off, writes nothing for work that another
has.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.contracts.messages import Json

LEASES: Final = "leases"
"""The topic on which hints come that a lease is free; also what is locked where leases change hands."""
SERVER: Final = "server "
"""How the name of the lease begins that says that a server is up; its own name follows."""
IsGone = Callable[[Mapping[str, Json]], bool]
"""Says of what a server said of itself whether it has surely ended; it may block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease as it is stored. Its row stays when it is free, so that its fence only grows."""

    name: str
    holder: str
    """The server that has it, or had it last."""
    about: Mapping[str, Json]
    """What the holder says of itself."""
    fence: int
    since: int
    """Since when the holder has it."""
    until: int
    """When it ends, unless it is renewed."""


def nobody_is_gone(_about: Mapping[str, Json]) -> bool:
    """Say that nothing is known of another server: its leases end by themselves."""
    return False


def servers(leases: Iterable[Lease], now: int, place: str = "") -> list[Lease]:
    """Return the leases of the servers that are up, of those that are a place where one is named.

    A server is what it says of itself by `places`, and what it has a lease of.
    """
    held = [one for one in leases if one.until > now]
    holders = {
        one.holder for one in held if not place or one.name == place or place in named_places(one.about)
    }
    return [one for one in held if one.name.startswith(SERVER) and one.holder in holders]


def named_places(about: Mapping[str, Json]) -> list[str]:
    """Return the places that a server says it is: its host, and labels."""
    named = about.get("places")
    return [str(one) for one in named] if isinstance(named, list) else []
