"""The context of an operation: the open transaction, the current time, the rules and the caller."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from postroom.contracts.dispatch import Claim
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
    """The limits and options of an installation.

    Sizes are in bytes.
    """

    verified: bool = False
    """Whether a call must include the token of the agent that it acts as."""
    owner: str = "local"
    """The owner of new projects. Mail between projects of the same owner needs no approval."""
    projects_by: Literal["repository", "folder"] = "repository"
    """Whether all folders of one Git repository belong to one project."""
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
    note_tokens: int = 1_000
    """The maximum number of tokens of the notes that a session or a run gets at once."""
    note_ttl: timedelta = timedelta(days=90)
    """How long a note stays active if its author states no time."""
    enforced_by: tuple[str, ...] = ()
    """The hooks that enforce reservations, each with the client in which it is installed."""
    guard_mode: Literal["warn", "block", "off"] = "warn"
    """The reaction to an edit or a commit if reservations cannot be checked. `off` disables the check."""
    stale_write_mode: Literal["warn", "block", "off"] = "block"
    """The reaction if an agent writes a whole file that has changed since the agent read it."""
    stale_edit_mode: Literal["warn", "block", "off"] = "warn"
    """The reaction if an agent changes a part of a file that has changed since the agent read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of an operation, as identified by the HTTP or MCP layer."""

    agent_token: str | None = None
    operator: bool = False
    """Whether the caller is a person at the command line of this machine, with the server's token."""
    postroom: bool = False
    """Whether the caller is postroom itself, acting for known people.

    This field is never True for a request from outside.
    """
    agent_id: int | None = None
    """The agent of the run that makes this call.

    The call can act only as this agent, even if it names another one.
    """
    run_id: str | None = None
    """The id of the run that makes this call."""
    claim: Claim | None = None
    """The claim of the execution of the run. If the claim was lost, a change is refused."""
    grant: Grant | None = None
    """The permissions of the named token with which the call was made.

    If None, no scopes restrict the caller.
    """
    trace: str | None = None
    """The trace context of the call, which no decision depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAttachment:
    """An attachment whose content was read and checked before the transaction."""

    attachment: Attachment
    content: bytes
    preview: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext(Generic[Records, Projects]):
    """The transaction, caller and rules of an operation.

    The context is valid only while the transaction is open.
    """

    tx: Records
    projects: Projects
    """The projects that the caller can see: all, or only the one to which its token is bound."""
    now: int
    rules: Rules
    caller: Caller
    dice: random.Random
    loaded: Sequence[LoadedAttachment] = ()
    recognition: Recognition | None = None
    """The facts about the folder that the command names as its project, read before the transaction."""
    is_traced: bool = False
    """Whether calls and runs are traced. If they are not, trace positions are not looked up."""
    waking: "OpenChange | None" = None
    """Wakes the recipients within this transaction. If None, the waker finds them later."""
    active: set[int] = field(default_factory=set)
    """The agents as which this call acts. Each check of an agent's identity adds the agent."""


ReadContext = OperationContext[RecordReads, ProjectReads]
WriteContext = OperationContext[RecordWrites, ProjectWrites]


def token_hash(token: str) -> str:
    """Return the SHA-256 hash under which a token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()
