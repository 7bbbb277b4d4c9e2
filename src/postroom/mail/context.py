"""The context of an operation: the open transaction, the instant, the rules and the caller."""

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
    """The limits and choices of an installation; sizes in bytes unless stated otherwise."""

    verified: bool = False
    """Whether a call must include the token of the agent that it names."""
    owner: str = "local"
    """The owner of the projects created here; mail between projects of one owner needs no approval."""
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
    """The hooks that enforce reservations, in the clients that have them installed."""
    guard_mode: Literal["warn", "block", "off"] = "warn"
    """The reaction of an edit or a commit if reservations cannot be checked; `off` never checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller, as far as the edge knows it."""

    agent_token: str | None = None
    operator: bool = False
    """Whether the caller is a person at this machine's command line, with the server's token."""
    postroom: bool = False
    """Whether the caller is postroom itself, acting for known people. No edge sets this for a request."""
    agent_id: int | None = None
    """The agent whose run the server executes; it is the only possible agent, whatever a call names."""
    run_id: str | None = None
    """The id of that run."""
    grant: Grant | None = None
    """The rights of the named token of the call. Without a grant, scopes do not restrict the caller."""
    trace: str | None = None
    """The place of the call in a trace; no decision depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAttachment:
    """A file that was read and checked before the start of the transaction."""

    attachment: Attachment
    content: bytes
    preview: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext(Generic[Records, Projects]):
    """The context of one operation; valid only while its transaction is open."""

    tx: Records
    projects: Projects
    """The projects that the caller can name: all, or the project of a bound token."""
    now: int
    rules: Rules
    caller: Caller
    dice: random.Random
    loaded: Sequence[LoadedAttachment] = ()
    recognition: Recognition | None = None
    """The facts read from the folder that the command names as a project's."""
    is_traced: bool = False
    """Whether calls and runs are traced; if not, no places in traces are looked up."""
    waking: "OpenChange | None" = None
    """Wakes recipients in this change; without it they are found later."""


ReadContext = OperationContext[RecordReads, ProjectReads]
WriteContext = OperationContext[RecordWrites, ProjectWrites]


def token_hash(token: str) -> str:
    """Return the stored form of a token; tokens are 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
