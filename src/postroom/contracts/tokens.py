"""Named tokens: what each lets its holder do, where, and until when. Of the token only the hash is kept."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from postroom.contracts.errors import InsufficientScope, NotPermitted

Scope = Literal["mail:read", "mail:send", "reserve", "run", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
ADMIN: Final[frozenset[Scope]] = frozenset({"admin"})

UNBOUND: Final = "use a token that is not bound to a project, or the server's own token"
TOKEN_PREFIX: Final = "prt_"  # noqa: S105 - what every token of this kind begins with
RUN_PREFIX: Final = "prr_"
"""What the token of a run begins with."""
RUN_FORM: Final = re.compile(rf"{RUN_PREFIX}([^_]+)_[A-Za-z0-9_-]{{43}}")
"""What tells the server that gave it out, and 256 random bits, which that one alone knows."""
TOKEN_ID: Final = re.compile(r"[a-z0-9]{12}")
TOKEN_FORM: Final = re.compile(rf"{TOKEN_PREFIX}({TOKEN_ID.pattern})_[A-Za-z0-9_-]{{43}}")
"""A public id, by which the token is looked up, and 256 random bits, which are only ever compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptToken:
    """A named token as it is kept. Of one name at most one is current: neither replaced nor revoked."""

    id: str
    name: str
    hash: str = field(repr=False)
    """The SHA-256 of the whole token, in hexadecimal digits."""
    scopes: frozenset[Scope]
    project_id: int | None = None
    """The only project that it shows; None for every one."""
    created_at: int
    expires_at: int | None = None
    replaced_at: int | None = None
    """When a newer one took its name; it goes on until it expires."""
    revoked_at: int | None = None
    last_used_at: int | None = None

    @property
    def is_current(self) -> bool:
        """Whether it has its name to itself."""
        return self.replaced_at is None and self.revoked_at is None

    def lives(self, now: int) -> bool:
        """Whether it opens anything; one that ends exactly now does not."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a named token, or that of a run, lets a call do that it came with."""

    token_id: str
    name: str
    scopes: frozenset[Scope]
    project_id: int | None = None
    project_slug: str | None = None
    expires_at: int | None = None
    agent_id: int | None = None
    """The agent as which alone it acts: that of its run."""
    run_id: str | None = None

    def check(
        self,
        needed: frozenset[Scope],
        what: str,
        *,
        is_of_one_project: bool = False,
        slug: str | None = None,
    ) -> None:
        """Raise unless its holder may do `what`: scopes and the bound project are looked at here alone.

        `slug` is the project that it is about, where that is known before anything is read.

        Raises:
            InsufficientScope: it lacks a scope that is needed.
            NotPermitted: it is bound to a project, and this is about more than one, or about another.
        """
        missing = [one for one in SCOPES if one in needed - self.scopes]
        if missing:
            named = ", ".join(f"`{one}`" for one in missing)
            raise InsufficientScope(
                f"the token `{self.name}` lacks the scope{'s' * (len(missing) > 1)} {named} for {what}",
                details={"missing": missing, "needed": [one for one in SCOPES if one in needed]},
            )
        if self.project_id is not None and not is_of_one_project:
            raise NotPermitted(
                f"{what} concerns more than one project, and the token `{self.name}` is bound to one project",
                remedy=UNBOUND,
            )
        if self.project_id is not None and slug is not None and slug != self.project_slug:
            raise NotPermitted(
                f"the token `{self.name}` is bound to the project {self.project_slug}",
                remedy=f"read resources of this project, such as mail://project/{self.project_slug}",
            )
