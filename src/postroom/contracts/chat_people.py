"""People who write in chats, those who ask to be let in, and the port that keeps both."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingRules:
    """How often strangers may ask, and how often a code may be guessed wrong; milliseconds."""

    code_ms: int = 3_600_000
    ask_again_ms: int = 600_000
    most_open: int = 3
    """Requests that wait on one platform at once."""
    most_wrong: int = 5
    locked_ms: int = 3_600_000


class ChatPeople(Protocol):
    """Who may write, and who asks to. Each method is one transaction."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        ...

    async def person(self, platform: str, user_id: str) -> Person | None:
        """Return somebody who was let in."""
        ...

    async def people(
        self, *, platform: str | None = None, after: tuple[str, str] = ("", ""), limit: int = MAX_PEOPLE
    ) -> tuple[Person, ...]:
        """Return those who were let in, by platform and id."""
        ...

    async def let_in(self, person: Person, *, now: int | None = None) -> Person:
        """Store a person, or a known one's new role and name; `added_at` stays what it was.

        Raises:
            InvalidRecord: the platform or the id is blank.
        """
        ...

    async def shut_out(self, platform: str, user_id: str) -> bool:
        """Forget a person; False when there was none."""
        ...

    async def ask(
        self, request: PairingRequest, rules: PairingRules, *, now: int | None = None
    ) -> PairingRequest:
        """Keep a request until `rules.code_ms` from now; `asked_at` and `expires_at` are set here.

        It takes the place of an ended one of the same person.

        Raises:
            InvalidRecord: the platform, the id or the hash is blank.
            QueueFull: the person asked less than `rules.ask_again_ms` ago, as many as may wait, or the
                platform is locked; nothing was stored.
        """
        ...

    async def redeem(
        self,
        platform: str,
        code_hash: str,
        rules: PairingRules,
        *,
        role: PersonRole = PersonRole.MEMBER,
        now: int | None = None,
    ) -> Person | None:
        """Let the person in whose open request has this hash, and forget the request; None when none has.

        Each None counts as a wrong guess on the platform; the last that `rules.most_wrong` allows locks it
        for `rules.locked_ms`. A right code begins the count anew.

        Raises:
            QueueFull: the platform is locked; the guess was not looked at.
        """
        ...

    async def requests(
        self, *, platform: str | None = None, now: int | None = None
    ) -> tuple[PairingRequest, ...]:
        """Return the open requests, the oldest first."""
        ...

    async def forget_requests(self, platform: str) -> int:
        """Remove all requests of a platform, its failures and its lock; return how many requests."""
        ...
