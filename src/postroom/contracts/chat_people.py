"""The people who write in chats, the strangers who request access, and the port that stores both."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from postroom.contracts.clock import duration_of, milliseconds
from postroom.contracts.records import Meta, field
from postroom.contracts.tables import Table

MAX_PEOPLE = 200
"""Maximum length of a list that a call returns."""


class PersonRole(StrEnum):
    """The permissions of a person in chats.

    Each role includes the permissions of all lower roles.
    """

    OWNER = "owner"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"

    def reaches(self, needed: "PersonRole") -> bool:
        """Return whether the role includes the permissions of the role `needed`."""
        return _ORDER.index(self) <= _ORDER.index(needed)


_ORDER = tuple(PersonRole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person on a chat platform, identified by the platform's permanent user id."""

    platform: str
    user_id: str
    role: PersonRole
    name: str | None = None
    added_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingRequest:
    """A stranger's request for access to a chat.

    Only the hash of the stranger's code is stored.
    """

    platform: str
    user_id: str
    code_hash: str
    name: str | None = None
    asked_at: int = 0
    expires_at: int = 0


_Milliseconds = Annotated[int, Meta(extra={"read": lambda value: milliseconds(duration_of(value))})]


class PairingRules(Table, frozen=True, kw_only=True):
    """The limits on pairing requests from strangers, and on wrong guesses of a code."""

    code_ms: _Milliseconds = field(default=3_600_000, name="code")
    ask_again_ms: _Milliseconds = field(default=600_000, name="ask_again")
    most_open: Annotated[int, Meta(ge=1, le=1_000)] = 3
    """Maximum number of open requests on each platform."""
    most_wrong: Annotated[int, Meta(ge=1, le=100)] = 5
    locked_ms: _Milliseconds = field(default=3_600_000, name="locked")
