"""What an operation works with: the open transaction, the moment, the rules and who is asking."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Literal, TypeVar

from postroom.contracts.mail import Attachment
from postroom.contracts.store import MailReads, MailWrites

Tx = TypeVar("Tx", bound=MailReads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits and choices an installation sets; sizes in bytes unless they say otherwise."""

    verified: bool = False
    """Whether a call must carry the token of the agent that it names."""
    owner: str = "local"
    """Who owns the projects made here; mail between projects of one owner needs no approval."""
    max_subject_chars: int = 512
    max_body_bytes: int = 1 << 20
    max_attachment_bytes: int = 10 << 20
    max_attachments_bytes: int = 25 << 20
    max_attachments: int = 20
    inline_image_max_bytes: int = 64 << 10
    max_recipients: int = 1_000
    max_reservation_ttl: timedelta = timedelta(days=7)
    default_reservation_ttl: timedelta = timedelta(hours=1)
    answer_retention: timedelta = timedelta(days=7)
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
    agent_id: int | None = None
    """The agent whose run the server itself executes, and nobody else, whatever a call says."""
    house: bool = False
    """postroom itself, which acts for the people whom it knows. No edge says this of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAttachment:
    """A file read and checked before the transaction began."""

    attachment: Attachment
    content: bytes
    preview: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk(Generic[Tx]):
    """One operation's place of work; valid only while its transaction is open."""

    tx: Tx
    now: int
    rules: Rules
    caller: Caller
    dice: random.Random
    loaded: Sequence[LoadedAttachment] = ()


Reading = Desk[MailReads]
Writing = Desk[MailWrites]


def token_hash(token: str) -> str:
    """Return the form in which a token is kept; tokens are 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
