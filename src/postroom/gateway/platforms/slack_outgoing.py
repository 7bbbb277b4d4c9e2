"""Outgoing messages in Slack's form, and their results in the gateway's form."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID, uuid5

from postroom.contracts.errors import ConfigError, CredentialRefused, ServerUnavailable
from postroom.contracts.messages import storable
from postroom.contracts.records import replace
from postroom.gateway.capabilities import LengthUnit
from postroom.gateway.events import Button, Card, SendErrorKind, SendResult
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.slack_text import escape, to_mrkdwn
from postroom.gateway.platforms.slack_wire import ACTION, is_ts
from postroom.gateway.splitting import split
from postroom.log import get_logger

UNREACHABLE: Final = "unreachable"
ANSWER_LOST: Final = "answer_lost"
LONGEST_WAIT_MS: Final = 3_600_000
TO_WRITE: Final = "chat:write"
TO_REACT: Final = "reactions:write"
TO_READ: Final = frozenset(
    {"app_mentions:read", "channels:history", "commands", "groups:history", "im:history", "mpim:history"}
)

AS_WANTED: Final = frozenset({"already_reacted", "no_reaction"})
"""A mark is, or is not, there already."""
TOKEN_REFUSED: Final = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"}
)
"""A person must give another token."""

_LOG = get_logger(__name__)
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
    # For the first two, Slack may have performed a part; for the others, the key was used before.
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
        """Return it as the result of sending a message."""
        return SendResult.failed(self.kind, f"slack: {self.describe()}", retry_after_ms=self.retry_after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of the Web API; with a refusal, the body may be empty."""

    body: Mapping[str, Any] = field(default_factory=dict)
    scopes: frozenset[str] | None = None
    """The scopes of the token; None if Slack does not report them."""
    refusal: Refusal | None = None

    def word(self, name: str) -> str:
        """Return a text of the body; empty if the field is missing."""
        found = self.body.get(name)
        return found if isinstance(found, str) else ""


def refused(code: str, *, retry_after_ms: int | None = None, needed: str | None = None) -> Refusal:
    """Return the outcome of an error code. One that is not known will not pass by itself."""
    kind = _KIND_OF.get(code, SendErrorKind.FORBIDDEN)
    return Refusal(code=code, kind=kind, retry_after_ms=retry_after_ms, needed=needed)


def read_answer(status: int, headers: Mapping[str, str], raw: bytes) -> Answer:
    """Return the content of an HTTP answer.

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
    """Raise the error for a refusal at connect.

    Raises:
        ConfigError: A person must fix it.
        ServerUnavailable: The refusal may be temporary.
    """
    refusal = answer.refusal
    if refusal is None:
        return
    if refusal.kind.may_pass:
        raise ServerUnavailable(
            f"Slack cannot be reached: {refusal.code}",
            remedy="postroom retries",
            details={"retry_after_ms": refusal.retry_after_ms},
        )
    if refusal.needed:
        raise ConfigError(
            f"the {what} lacks the scope {refusal.needed}", value=refusal.needed, remedy=_give(refusal.needed)
        )
    kind = CredentialRefused if refusal.code in TOKEN_REFUSED else ConfigError
    raise kind(f"Slack rejected the {what}: {refusal.code}", remedy=remedy)


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
            f"the bot token lacks a scope for reading: one of {wanted}", remedy=_give("im:history")
        )
    for scope in sorted({"files:read", "files:write", TO_REACT} - scopes):
        _LOG.warning("slack.scope_missing", scope=scope)


def _give(scope: str) -> str:
    return f"add the scope {scope} in the app's settings, and install the app again"


LONGEST_TEXT: Final = 40_000
"""Characters beyond which Slack cuts a message off without a word."""
LONGEST_EDIT: Final = 4_000
"""Maximum bytes of text in an edit; longer text goes into blocks."""
LONGEST_BLOCKS: Final = 12_000
"""Maximum characters in all blocks together; Slack accepts some hundred more, but does not document it."""
LONGEST_SECTION: Final = 3_000
PIECE: Final = 2_500
"""Characters of Markdown that go into one section, where not too many become entities."""
LONGEST_LABEL: Final = 75
BUTTONS_A_ROW: Final = 25
_SUMMARY: Final = 500


def card_blocks(card: Card) -> list[dict[str, Any]]:
    """Return a card: its text, then its buttons."""
    blocks = _sections(card.text)
    for first in range(0, len(card.buttons), BUTTONS_A_ROW):
        row = card.buttons[first : first + BUTTONS_A_ROW]
        blocks.append(
            {"type": "actions", "elements": [_button(first + at, one) for at, one in enumerate(row)]}
        )
    return blocks


def card_body(card: Card) -> dict[str, Any]:
    """Return the request for a card; its text is for notices and for clients without blocks."""
    return {"text": _short(card.text), "blocks": card_blocks(card)}


def edit_body(markdown: str) -> dict[str, Any]:
    """Return the replacement of a message: as text without blocks if it fits, else in blocks."""
    text = to_mrkdwn(markdown)
    if len(text.encode()) <= LONGEST_EDIT:
        return {"text": text, "blocks": []}
    return {"text": _short(markdown), "blocks": _sections(markdown)}


def blocks_fit(blocks: list[dict[str, Any]]) -> bool:
    """Return whether Slack accepts this much text in blocks."""
    return sum(len(block["text"]["text"]) for block in blocks if block["type"] == "section") <= LONGEST_BLOCKS


def _short(markdown: str) -> str:
    text = to_mrkdwn(markdown)
    return text if len(text.encode()) <= LONGEST_EDIT else f"{escape(markdown[:_SUMMARY])}…"


def _button(index: int, button: Button) -> dict[str, Any]:
    label = {"type": "plain_text", "text": button.label[:LONGEST_LABEL] or "…"}
    return {"type": "button", "action_id": f"{ACTION}{index}", "text": label, "value": button.value}


def _sections(markdown: str) -> list[dict[str, Any]]:
    """Return a text in sections that are always shown whole; fences go on in the next one."""
    pieces = split(markdown, limit=PIECE, unit=LengthUnit.CHARACTERS)
    texts = [text for piece in pieces for text in _within_limit(to_mrkdwn(piece))]
    return [{"type": "section", "expand": True, "text": {"type": "mrkdwn", "text": text}} for text in texts]


def _within_limit(text: str) -> list[str]:
    """Cut what became too long by its entities: where a line ends, and never within an entity."""
    pieces: list[str] = []
    while len(text) > LONGEST_SECTION:
        cut = text.rfind("\n", 1, LONGEST_SECTION)
        if cut < 0:
            entity = text.rfind("&", LONGEST_SECTION - 5, LONGEST_SECTION)
            cut = entity if entity > 0 else LONGEST_SECTION
        pieces.append(text[:cut])
        text = text[cut:].removeprefix("\n")
    return [piece for piece in (*pieces, text) if piece.strip()]


QUICKLY: Final = 4_000
"""Characters that are converted at once; longer texts are on a thread."""
Given = TypeVar("Given")
Made = TypeVar("Made")
_KEYS: Final = UUID("6f8b6a0e-3f0e-4c55-9a54-2f1d8a1b7c10")


def in_thread(thread_id: object) -> dict[str, str]:
    """Return the fields that put a message into a thread; none for the id of a slash command."""
    return {"thread_ts": str(thread_id)} if is_ts(thread_id) else {}


def deduped(told: Metadata) -> dict[str, str]:
    """Return the field by which Slack recognises a repeated message: permanently the same for a key."""
    key = told.get("dedupe_key")
    return {"client_msg_id": str(uuid5(_KEYS, key))} if isinstance(key, str) and key else {}


def storable_card(card: Card) -> Card:
    """Return the card in text that can be sent."""
    return Card(
        text=storable(card.text),
        buttons=tuple(Button(label=storable(one.label), value=one.value) for one in card.buttons),
    )


async def off_loop(work: Callable[[Given], Made], given: Given, length: int) -> Made:
    """Perform pure work on a text of this length; on a thread if it takes some milliseconds."""
    return work(given) if length <= QUICKLY else await asyncio.to_thread(work, given)


async def converted(content: str) -> str:
    """Return Markdown in Slack's dialect."""
    return await off_loop(to_mrkdwn, storable(content), len(content))


def result_of(answer: Answer, *, nothing_done: bool = False) -> SendResult:
    """Return the result of a call; with `nothing_done`, a lost answer is harmless."""
    refusal = answer.refusal
    if refusal is None:
        return SendResult.sent(answer.word("ts") or None)
    if nothing_done and refusal.kind is SendErrorKind.UNKNOWN:
        return replace(refusal, kind=SendErrorKind.TRANSIENT).as_result()
    return refusal.as_result()
