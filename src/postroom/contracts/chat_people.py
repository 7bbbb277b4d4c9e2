"""People who write in chats, those who ask to be let in, and the port that keeps both."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from postroom.contracts.clock import milliseconds
from postroom.contracts.durations import duration_of
from postroom.contracts.records import Meta, field
from postroom.contracts.tables import Table

MAX_PEOPLE = 200
"""No listing returns more than this at once."""


class PersonRole(StrEnum):
    """What a person may do in chats; each may do what those behind it may."""

    OWNER = "owner"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"

    def reaches(self, needed: "PersonRole") -> bool:
        """Say whether this role is enough where `needed` is asked for."""
        return _ORDER.index(self) <= _ORDER.index(needed)


_ORDER = tuple(PersonRole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody known on a platform, by the id that the platform never changes. Names are for show."""

    platform: str
    user_id: str
    role: PersonRole
    name: str | None = None
    added_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingRequest:
    """A stranger who asks to be let in; the code itself is known to them alone, its hash is kept."""

    platform: str
    user_id: str
    code_hash: str
    name: str | None = None
    asked_at: int = 0
    expires_at: int = 0


_Milliseconds = Annotated[int, Meta(extra={"read": lambda value: milliseconds(duration_of(value))})]


class PairingRules(Table, frozen=True, kw_only=True):
    """How often strangers may ask to be let in, and how often a code may be guessed wrong."""

    code_ms: _Milliseconds = field(default=3_600_000, name="code")
    ask_again_ms: _Milliseconds = field(default=600_000, name="ask_again")
    most_open: Annotated[int, Meta(ge=1, le=1_000)] = 3
    """Requests that wait on one platform at once."""
    most_wrong: Annotated[int, Meta(ge=1, le=100)] = 5
    locked_ms: _Milliseconds = field(default=3_600_000, name="locked")
