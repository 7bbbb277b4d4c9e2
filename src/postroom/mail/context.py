"""What an operation works with: the open transaction, the instant, the rules and the caller."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from postroom.contracts.mail import Attachment
from postroom.contracts.tokens import Grant
from postroom.mail.git_identity import Recognition
from postroom.stores.mail.access import ProjectReads, ProjectWrites, RecordReads, RecordWrites

if TYPE_CHECKING:
    from postroom.mail.waking.waker import OpenChange

Records = TypeVar("Records", bound=RecordReads, covariant=True)
Projects = TypeVar("Projects", bound=ProjectReads, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits and choices an installation sets; sizes in bytes unless they say otherwise."""

    verified: bool = False
    """Whether a call must carry the token of the agent that it names."""
    owner: str = "local"
    """Who owns the projects made here; mail between projects of one owner needs no approval."""
    projects_by: Literal["repository", "folder"] = "repository"
    """Whether the folders of one Git repository are one project."""
    max_subject_chars: int = 512
    max_body_bytes: int = 1 << 20
    max_attachment_bytes: int = 10 << 20
    max_attachments_bytes: int = 25 << 20
    max_attachments: int = 20
    inline_image_max_bytes: int = 64 << 10
    max_recipients: int = 1_000
    max_reservation_ttl: timedelta = timedelta(days=7)
    default_reservation_ttl: timedelta = timedelta(hours=1)
    case_sensitive_paths: bool = True
    enforced_by: tuple[str, ...] = ()
    """The hooks that make a reservation more than advice. The server does not see who has them installed."""
    guard_mode: Literal["warn", "block", "off"] = "warn"
    """What it means for an edit or a commit when reservations cannot be looked at; `off` looks at none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as far as the edge knows."""

    agent_token: str | None = None
    operator: bool = False
    """A person at this machine's command line, proved by the server's own token."""
    postroom: bool = False
    """postroom itself, which acts for the people whom it knows. No edge says this of a request."""
    agent_id: int | None = None
    """The agent whose run the server itself executes, and nobody else, whatever a call says."""
    run_id: str | None = None
    """That run."""
    grant: Grant | None = None
    """What the named token that came lets its holder do. Without one nothing is held back by scopes."""
    trace: str | None = None
    """Where in a trace the call is done; no decision hangs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAttachment:
    """A file read and checked before the transaction began."""

    attachment: Attachment
    content: bytes
    preview: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext(Generic[Records, Projects]):
    """What one operation works with; valid only while its transaction is open."""

    tx: Records
    projects: Projects
    """The projects that its caller may name: all, or the one that a token is bound to."""
    now: int
    rules: Rules
    caller: Caller
    dice: random.Random
    loaded: Sequence[LoadedAttachment] = ()
    recognition: Recognition | None = None
    """What was read of the folder that the command names as a project's."""
    is_traced: bool = False
    """Whether calls and runs are watched; if not, no places in traces are looked up."""
    waking: "OpenChange | None" = None
    """Wakes readers in this change; without one they are found later."""


ReadContext = OperationContext[RecordReads, ProjectReads]
WriteContext = OperationContext[RecordWrites, ProjectWrites]


def token_hash(token: str) -> str:
    """Return the form in which a token is kept; tokens are 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
