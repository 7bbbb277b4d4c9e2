"""Named tokens: their scopes, project and expiry. The database contains only the hash of a named token.

The module also contains the forms of the tokens of chat platforms.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from postroom.contracts.errors import InsufficientScope, NotPermitted

if TYPE_CHECKING:  # imports msgspec, which is slow for `postroom --help`
    from postroom.contracts.dispatch import Claim

Scope = Literal["mail:read", "mail:send", "reserve", "run", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
ADMIN: Final[frozenset[Scope]] = frozenset({"admin"})

UNBOUND: Final = "use a token that is not bound to a project, or the server's own token"
TOKEN_PREFIX: Final = "prt_"  # noqa: S105 - the prefix of every such token
RUN_PREFIX: Final = "prr_"
"""The beginning of every run's token."""
RUN_FORM: Final = re.compile(rf"{RUN_PREFIX}([^_]+)_[A-Za-z0-9_-]{{43}}")
"""Matches a run's token: the id of the server that issued it, and 256 random bits that only this server
knows.
"""
TOKEN_ID: Final = re.compile(r"[a-z0-9]{12}")
TOKEN_FORM: Final = re.compile(rf"{TOKEN_PREFIX}({TOKEN_ID.pattern})_[A-Za-z0-9_-]{{43}}")
"""Matches a named token: a public id with which it is found, and 256 secret random bits."""
PLATFORM_TOKENS: Final = re.compile(
    r"\b\d{6,12}:[A-Za-z0-9_-]{30,50}"  # Telegram
    r"|(?:xox[a-z]|\bxapp)-[A-Za-z0-9_.-]{8,}"  # Slack
    r"|\b[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}"  # Discord
    r"|\b(?:syt|mat|mct)_[A-Za-z0-9_+/-]{30,}"  # Matrix
)
"""Matches the tokens of chat platforms, which must appear neither in logs nor in dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptToken:
    """A stored named token.

    At most one token per name is current.
    """

    id: str
    name: str
    hash: str = field(repr=False)
    """The SHA-256 of the whole token, as hexadecimal digits."""
    scopes: frozenset[Scope]
    project_id: int | None = None
    """The only project that the token can access, or None for every project."""
    created_at: int
    expires_at: int | None = None
    replaced_at: int | None = None
    """The time when a newer token took over the name; the old token stays valid until it expires."""
    revoked_at: int | None = None
    last_used_at: int | None = None

    @property
    def is_current(self) -> bool:
        """Whether the token is neither replaced nor revoked."""
        return self.replaced_at is None and self.revoked_at is None

    def lives(self, now: int) -> bool:
        """Return whether the token is valid at the time `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The permissions of a call with a named token or a run's token."""

    token_id: str
    name: str
    scopes: frozenset[Scope]
    project_id: int | None = None
    project_slug: str | None = None
    expires_at: int | None = None
    agent_id: int | None = None
    """The only agent as which the call may act: the agent of the run."""
    run_id: str | None = None
    claim: "Claim | None" = None
    """The claim of the run's execution; if it was lost, the call may change nothing."""

    def check(
        self,
        needed: frozenset[Scope],
        what: str,
        *,
        is_of_one_project: bool = False,
        slug: str | None = None,
    ) -> None:
        """Raise an error unless the token has all needed scopes and may access the project.

        `what` describes the call in the error message. `slug` is the project of the call, if the project is
        already known.

        Raises:
            InsufficientScope: A required scope is missing.
            NotPermitted: The token is bound to a project, and the call concerns a different project or
                several.
        """
        missing = [scope for scope in SCOPES if scope in needed - self.scopes]
        if missing:
            named = ", ".join(f"`{scope}`" for scope in missing)
            raise InsufficientScope(
                f"the token `{self.name}` lacks the scope{'s' * (len(missing) > 1)} {named} for {what}",
                details={"missing": missing, "needed": [scope for scope in SCOPES if scope in needed]},
            )
        if self.project_id is not None and not is_of_one_project:
            raise NotPermitted(
                f"{what} covers more than one project, but the token `{self.name}` is bound to one project",
                remedy=UNBOUND,
            )
        if self.project_id is not None and slug is not None and slug != self.project_slug:
            raise NotPermitted(
                f"the token `{self.name}` is bound to the project {self.project_slug}",
                remedy=f"read this project's resources, such as mail://project/{self.project_slug}",
            )
