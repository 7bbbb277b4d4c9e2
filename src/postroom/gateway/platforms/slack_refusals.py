"""What Slack's Web API refuses, and what follows from it: by tables of its error codes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from postroom.contracts.errors import ConfigError, ServerUnavailable
from postroom.gateway.events import SendErrorKind, SendResult

UNREACHABLE: Final = "unreachable"
ANSWER_LOST: Final = "answer_lost"
LONGEST_WAIT_MS: Final = 3_600_000
TO_WRITE: Final = "chat:write"
TO_READ: Final = frozenset(
    {"app_mentions:read", "channels:history", "commands", "groups:history", "im:history", "mpim:history"}
)

TOKEN_REFUSED: Final = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"}
)
"""A person must give another token."""

_LOG = structlog.get_logger(__name__)
_KINDS: Final[Mapping[SendErrorKind, frozenset[str]]] = {
    SendErrorKind.TOO_LONG: frozenset({"msg_too_long", "msg_blocks_too_long"}),
    SendErrorKind.BAD_FORMAT: frozenset(
        {
            "invalid_blocks",
            "invalid_blocks_format",
            "invalid_attachments",
            "invalid_arguments",
            "no_text",
            "too_many_attachments",
        }
    ),
    SendErrorKind.NOT_FOUND: frozenset(
        {
            "channel_not_found",
            "file_not_found",
            "message_not_found",
            "thread_not_found",
            "user_not_found",
            "users_not_found",
        }
    ),
    SendErrorKind.RATE_LIMITED: frozenset({"ratelimited", "rate_limited"}),
    SendErrorKind.TRANSIENT: frozenset(
        {UNREACHABLE, "service_unavailable", "request_timeout", "team_added_to_org"}
    ),
    # Slack says of the first two that a part may have been done, of the others that the key was used before.
    SendErrorKind.UNKNOWN: frozenset(
        {
            ANSWER_LOST,
            "fatal_error",
            "internal_error",
            "duplicate_channel_not_found",
            "duplicate_message_not_found",
        }
    ),
}
_KIND_OF: Final = {code: kind for kind, codes in _KINDS.items() for code in codes}
_MARKUP: Final = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "invalid_attachments", "invalid_arguments"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call was not done, or that nobody knows."""

    code: str
    kind: SendErrorKind
    retry_after_ms: int | None = None
    needed: str | None = None
    """The scope that is missing."""

    @property
    def is_of_markup(self) -> bool:
        """Whether the same may be taken as plain text."""
        return self.code in _MARKUP

    def describe(self) -> str:
        """Return it in a few words, without anything that was sent."""
        return f"{self.code}: the scope {self.needed} is missing" if self.needed else self.code

    def as_result(self) -> SendResult:
        """Return it as what becomes of something that was to be said."""
        return SendResult.failed(self.kind, f"slack: {self.describe()}", retry_after_ms=self.retry_after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the Web API answered; with a refusal, the body may be empty."""

    body: Mapping[str, Any] = field(default_factory=dict)
    scopes: frozenset[str] | None = None
    """What the token may do; None where Slack does not say."""
    refusal: Refusal | None = None

    def word(self, name: str) -> str:
        """Return a text of the body; empty when it is not there."""
        found = self.body.get(name)
        return found if isinstance(found, str) else ""


def refused(code: str, *, retry_after_ms: int | None = None, needed: str | None = None) -> Refusal:
    """Return what follows from an error code. One that is not known will not pass by itself."""
    kind = _KIND_OF.get(code, SendErrorKind.FORBIDDEN)
    return Refusal(code=code, kind=kind, retry_after_ms=retry_after_ms, needed=needed)


def read_answer(status: int, headers: Mapping[str, str], raw: bytes) -> Answer:
    """Return what an HTTP answer says.

    After 503 nothing was done. After other failures of the server nobody knows, and neither after an answer
    that cannot be read.
    """
    wait = _wait(headers.get("retry-after"))
    if status == 429:
        return Answer(refusal=refused("ratelimited", retry_after_ms=wait))
    if status == 503:
        return Answer(refusal=refused("service_unavailable", retry_after_ms=wait))
    if status >= 500:
        return Answer(refusal=refused(ANSWER_LOST))
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("ok"), bool):
        return Answer(refusal=refused(ANSWER_LOST if status < 400 else f"http_{status}"))
    given = headers.get("x-oauth-scopes")
    scopes = None if given is None else frozenset(one.strip() for one in given.split(",") if one.strip())
    if body["ok"]:
        return Answer(body=body, scopes=scopes)
    needed = body.get("needed")
    refusal = refused(
        str(body.get("error") or "refused")[:64],
        retry_after_ms=wait,
        needed=needed[:200] if isinstance(needed, str) else None,
    )
    return Answer(body=body, scopes=scopes, refusal=refusal)


def _wait(header: str | None) -> int | None:
    if header is None or not (header.isascii() and header.isdigit()):
        return None
    return min(int(header[:9]) * 1000, LONGEST_WAIT_MS)


def refuse(answer: Answer, what: str, remedy: str) -> None:
    """Raise what a refusal at connect means.

    Raises:
        ConfigError: a person must mend it.
        ServerUnavailable: it may pass.
    """
    refusal = answer.refusal
    if refusal is None:
        return
    if refusal.kind.may_pass:
        raise ServerUnavailable(
            f"Slack cannot be reached: {refusal.code}",
            remedy="it is tried again",
            details={"retry_after_ms": refusal.retry_after_ms},
        )
    if refusal.needed:
        raise ConfigError(
            f"the {what} lacks the scope {refusal.needed}", value=refusal.needed, remedy=_give(refusal.needed)
        )
    raise ConfigError(f"Slack refuses the {what}: {refusal.code}", remedy=remedy)


def check_scopes(scopes: frozenset[str] | None) -> None:
    """Refuse a token that cannot write or cannot read; say in the log what else it lacks.

    Raises:
        ConfigError: it names the scope.
    """
    if scopes is None:
        return
    if TO_WRITE not in scopes:
        raise ConfigError(f"the bot token lacks the scope {TO_WRITE}", value=TO_WRITE, remedy=_give(TO_WRITE))
    if not scopes & TO_READ:
        wanted = ", ".join(sorted(TO_READ))
        raise ConfigError(
            f"the bot token lacks a scope to read with: one of {wanted}", remedy=_give("im:history")
        )
    for scope in sorted({"files:read", "files:write"} - scopes):
        _LOG.warning("slack.scope_missing", scope=scope)


def _give(scope: str) -> str:
    return f"add the scope {scope} in the app's settings, and install the app again"
