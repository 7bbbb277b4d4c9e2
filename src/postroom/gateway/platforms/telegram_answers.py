"""What the answers of Telegram's Bot API mean: pure translation of a status and a body."""

import json
from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import ServerUnavailable
from postroom.contracts.messages import Json
from postroom.gateway.events import SendErrorKind
from postroom.gateway.platforms.telegram_wire import mended

_OK: Final = 200
_BY_STATUS: Final = {
    401: SendErrorKind.FORBIDDEN,
    403: SendErrorKind.FORBIDDEN,
    404: SendErrorKind.NOT_FOUND,
    409: SendErrorKind.TRANSIENT,
    413: SendErrorKind.TOO_LONG,
    429: SendErrorKind.RATE_LIMITED,
    502: SendErrorKind.UNKNOWN,
    503: SendErrorKind.TRANSIENT,
    504: SendErrorKind.UNKNOWN,
}
_BY_WORDS: Final = (
    (("too long", "too_long", "too big"), SendErrorKind.TOO_LONG),
    (("not found", "peer_id_invalid", "topic_deleted", "upgraded to a supergroup"), SendErrorKind.NOT_FOUND),
    (
        (
            "not enough rights",
            "no rights",
            "need administrator rights",
            "write_forbidden",
            "channel_private",
            "topic_closed",
        ),
        SendErrorKind.FORBIDDEN,
    ),
)
"""What Telegram's own words for a request that it refuses with 400 mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Telegram answered, or what became of a request that was not answered."""

    result: Json = None
    status: int = 0
    """0 when there was no answer."""
    kind: SendErrorKind | None = None
    """None when it was done."""
    error: str = ""
    retry_after_ms: int | None = None
    is_telegram: bool = False
    """Whether Telegram itself said so, and not something that stands before it."""

    def says(self, *words: str) -> bool:
        """Whether the refusal holds one of these words, in small letters."""
        told = self.error.lower()
        return any(word in told for word in words)

    @property
    def is_unauthorized(self) -> bool:
        """Whether the token is refused; one that no bot has is answered with 404."""
        return self.is_telegram and self.status in (401, 403, 404)

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else receives for this bot."""
        return self.is_telegram and self.status == 409


def read_answer(status: int, body: bytes) -> Answer:
    """Return what an answer of the Bot API says."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    told = told if isinstance(told, dict) else {}
    if told.get("ok") is True and status == _OK:
        return Answer(result=told.get("result"), status=status, is_telegram=True)
    words = told.get("description")
    described = mended(words)[:300] if isinstance(words, str) else f"Telegram answered {status} without words"
    is_telegram = told.get("ok") is False
    return Answer(
        status=status,
        kind=_kind(status, described.lower(), is_telegram=is_telegram),
        error=described,
        retry_after_ms=_retry_after(told.get("parameters")),
        is_telegram=is_telegram,
    )


def _kind(status: int, described: str, *, is_telegram: bool) -> SendErrorKind:
    """Return what a refusal means. What stands before Telegram may refuse what Telegram has taken."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status < 300 or (status >= 500 and not is_telegram):
        return SendErrorKind.UNKNOWN
    if status < 400 or status >= 500:
        return SendErrorKind.TRANSIENT
    for words, kind in _BY_WORDS:
        if any(word in described for word in words):
            return kind
    return SendErrorKind.BAD_FORMAT


def _retry_after(parameters: Json) -> int | None:
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 86_400:
        return None
    return int(seconds * 1_000)


def unreachable(why: str) -> ServerUnavailable:
    """Return that Telegram, or a file there, could not be had."""
    return ServerUnavailable(
        f"Telegram could not be asked: {why}",
        remedy="check the network and extra.base_url; it may be repeated",
    )
