"""Webhooks as values: routes, signatures, prompts, and what an answer's receiver said. Pure functions."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.contracts.signing import LEAST_SECRET, Proof, proof_of, same_secret
from postroom.contracts.tables import Secret, Table
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.platforms.http_adapter import Refused
from postroom.gateway.platforms.options import refuse_address, secret_remedy

DELIVERY: Final = "X-Postroom-Delivery"
LONGEST_PROMPT: Final = 2_000_000
"""Characters; a template may name a field of a body of 1 MiB more than once."""
LONGEST_SHOWN: Final = 200
"""Characters of a value by which the agent is shown which words of a prompt are not the operator's."""

_LONGEST_WAIT_MS: Final = 3_600_000
_DELIVERY: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FIELD: Final = re.compile(r"\{([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}")
RouteName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z", extra={"write": "a name of 1 to 64 letters, digits, _ and -"}),
]


class Scheme(StrEnum):
    """How a caller proves that it is the one it should be."""

    POSTROOM = "postroom"
    GITHUB = "github"
    GITLAB = "gitlab"


class HookTable(Table, frozen=True, kw_only=True):
    """The table [platforms.webhook.routes.<name>]: how a caller proves itself, and where answers go."""

    secret: Secret = Secret()
    """The secret that both sides know, of 16 characters or more."""
    scheme: Scheme = Scheme.POSTROOM
    """How the caller proves that it knows the secret."""
    prompt: str | None = None
    """The text for the agent, with fields as `{repo.name}`; None: the body's `text`, else the body."""
    callback_url: str | None = None
    """Receives answers: https, or http on this machine; redirects are not followed."""
    callback_secret: Secret | None = None
    """None: answers are signed with `secret`."""

    def __post_init__(self) -> None:
        for name, secret in (("secret", self.secret), ("callback_secret", self.callback_secret)):
            if secret is not None and len(secret) < LEAST_SECRET:
                raise ConfigError(
                    f"the {name} is missing or too short",
                    value=name,
                    remedy=secret_remedy(name, f"{LEAST_SECRET} characters or more"),
                )
        if self.callback_url is not None:
            refuse_address("callback_url", self.callback_url, query=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class HookRoute(HookTable, frozen=True, kw_only=True):
    """One caller, by its name."""

    name: str


def check_signed(secret: str, headers: Mapping[str, str], content: bytes, *, now: int) -> None:
    """Check the `v1=` signature of a request whose time stamp is within five minutes of `now`.

    Raises:
        Refused: it is missing, wrong or old.
    """
    proof = proof_of(secret, headers, content, now=now)
    if proof is Proof.WRONG:
        raise _not_proven()
    if proof is Proof.TOO_OLD:
        raise Refused(401, "too_old", "the time stamp differs from the server's time by more than 5 minutes")


def check_caller(route: HookRoute, headers: Mapping[str, str], body: bytes, *, now: int) -> None:
    """Check that a request comes from who has the route's secret.

    Raises:
        Refused: it does not.
    """
    match route.scheme:
        case Scheme.POSTROOM:
            check_signed(route.secret, headers, body, now=now)
        case Scheme.GITHUB:
            right = f"sha256={hmac.digest(route.secret.encode(), body, 'sha256').hex()}"
            if not same_secret(headers.get("X-Hub-Signature-256", ""), right):
                raise _not_proven()
        case Scheme.GITLAB:
            if not same_secret(headers.get("X-Gitlab-Token", ""), route.secret):
                raise _not_proven()


def _not_proven() -> Refused:
    return Refused(401, "wrong_signature", "the signature or token is missing or wrong")


_DELIVERY_HEADERS: Final = {
    Scheme.POSTROOM: DELIVERY,
    Scheme.GITHUB: "X-GitHub-Delivery",
    # X-Gitlab-Event-UUID is shared by hooks that trigger each other; this one is the same only for retries.
    Scheme.GITLAB: "Idempotency-Key",
}


def delivery_of(route: HookRoute, headers: Mapping[str, str], body: bytes) -> str:
    """Return the key that a delivery shares with its repetitions: the id in its header, else its content.

    Raises:
        Refused: the id cannot be one.
    """
    given = headers.get(_DELIVERY_HEADERS[route.scheme])
    if given is None:
        return hashlib.sha256(body).hexdigest()
    if not _DELIVERY.fullmatch(given):
        raise Refused(400, "malformed", "the delivery id must have 1 to 128 letters, digits and . _ : -")
    return given


def may_command(route: HookRoute) -> bool:
    """Return whether a message of this route may be a command of the chat.

    Only if its first character is from the operator, or from a trusted caller. Text that strangers wrote in a
    repository is never a command, even if it begins like one.
    """
    return route.scheme is Scheme.POSTROOM if route.prompt is None else route.prompt.startswith("/")


def prompt_of(template: str | None, data: Mapping[str, Json], body: bytes) -> str:
    """Return the prompt: the template with its fields, else the body's `text`, else the body.

    Values are inserted once and not searched for further fields; a missing value is an empty text.

    Raises:
        Refused: The prompt is blank or too long.
    """
    if template is None:
        text = data.get("text")
        said = text if isinstance(text, str) else body.decode("utf-8", "replace")
    else:
        said = _filled(template, data)
    if not said.strip():
        raise Refused(400, "malformed", "the message has no text")
    return said


def missing_field(template: str | None, data: Mapping[str, Json]) -> str | None:
    """Return the first field of a template that a body lacks; None if it has them all. A null is a value."""
    names = (found[1] for found in _FIELD.finditer(template or ""))
    return next((name for name in names if _looked_up(data, name) is _ABSENT), None)


def foreign_fields(route: HookRoute, data: Mapping[str, Json], body: bytes) -> dict[str, Json]:
    """Return the beginning of each value in the prompt that the operator did not write.

    A caller of the scheme `postroom` whose route has no template writes to the agent directly.
    """
    if route.prompt is not None:
        names = dict.fromkeys(found[1] for found in _FIELD.finditer(route.prompt))
        return {name: _shown(_looked_up(data, name))[:LONGEST_SHOWN] for name in names}
    said = prompt_of(None, data, body)
    return {} if route.scheme is Scheme.POSTROOM else {"the whole text": said[:LONGEST_SHOWN]}


def _filled(template: str, data: Mapping[str, Json]) -> str:
    parts: list[str] = []
    length = last = 0
    for found in _FIELD.finditer(template):
        parts += (template[last : found.start()], _shown(_looked_up(data, found[1])))
        length += len(parts[-1])
        if length > LONGEST_PROMPT:
            raise Refused(413, "too_large", f"the prompt would exceed {LONGEST_PROMPT} characters")
        last = found.end()
    return "".join((*parts, template[last:]))


class _Absent:
    """Stands for a field that a body lacks."""


_ABSENT: Final = _Absent()


def _looked_up(data: Json, path: str) -> Json | _Absent:
    for step in path.split("."):
        if isinstance(data, Mapping):
            if step not in data:
                return _ABSENT
            data = data[step]
        elif isinstance(data, list) and step.isdigit() and len(step) < 7 and int(step) < len(data):
            data = data[int(step)]
        else:
            return _ABSENT
    return data


def _shown(value: Json | _Absent) -> str:
    if value is None or isinstance(value, _Absent):
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def conversation_of(data: Mapping[str, Json]) -> str | None:
    """Return the `conversation` that a body names; None when it names none.

    Raises:
        Refused: it cannot be one.
    """
    named = data.get("conversation")
    if named is None:
        return None
    if not isinstance(named, str) or not 1 <= len(named) <= 200 or not named.isprintable():
        raise Refused(400, "malformed", "`conversation` must be one line of 1 to 200 characters")
    return named


def outcome_of(status: int, retry_after: str | None, *, now: int) -> SendResult:
    """Return the result of an answer, by the status from its receiver.

    After 500, 502 or 504 it is unknown whether it was accepted. A redirect is not followed.
    """
    if 200 <= status < 300:
        return SendResult.sent()
    error = f"the callback answered with status {status}"
    kind = _KINDS.get(status)
    if kind is None:
        kind = SendErrorKind.TRANSIENT if status >= 500 else SendErrorKind.BAD_FORMAT
    return SendResult.failed(kind, error, retry_after_ms=_wait(retry_after, now) if kind.may_pass else None)


_KINDS: Final = {
    **dict.fromkeys((401, 403), SendErrorKind.FORBIDDEN),
    **dict.fromkeys((404, 410, 301, 302, 303, 307, 308), SendErrorKind.NOT_FOUND),
    **dict.fromkeys((408, 500, 502, 504), SendErrorKind.UNKNOWN),
    413: SendErrorKind.TOO_LONG,
    425: SendErrorKind.TRANSIENT,
    429: SendErrorKind.RATE_LIMITED,
}


def _wait(text: str | None, now: int) -> int | None:
    """Read a Retry-After header: seconds or a date; None if it is missing or invalid."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(int(text) * 1000, _LONGEST_WAIT_MS)
    try:
        until = int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return min(max(until - now, 0), _LONGEST_WAIT_MS)
