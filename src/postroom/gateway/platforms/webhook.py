"""Signed webhooks, with which any program that can POST JSON can write to an agent and get its answer.

    POST /webhook/<name>, signed ──▶ stored ──▶ 202
                          answer ──▶ POST callback_url, signed
                                     or, without one, GET /webhook/<name>/answers/<delivery>

`WebhookOptions` is the table [platforms.webhook], and `HookTable` is the table of each caller.

In the scheme `postroom`, `X-Postroom-Timestamp` is the time in seconds since the epoch, and
`X-Postroom-Signature: v1=<hex>` is the HMAC-SHA256 of `<timestamp>.<raw body>`. `X-Postroom-Delivery` is the
delivery id, which is the same in each repetition. Without a delivery id, an id is derived from the content. A
request with a known id but a different body in the same chat is refused with 409. Bodies are compared as
JSON, not byte by byte. The delivery id is not signed. Therefore, while the timestamp of a signature is valid,
the process that has accepted the signature refuses it under another delivery id. GitHub's signature and
GitLab's token contain no timestamp, so their security depends on a private connection.

A body that lacks a field of the template, such as GitHub's `ping`, does not become a message. The response is
202 with the status `ignored` and the name of the field. A null counts as a value. The prompt lists the values
that come from the body, unless the scheme is `postroom` and there is no template.

A message can be a command, such as `/stop`, only if the template begins with a slash, or if there is no
template and the scheme is `postroom`. So text by strangers in a repository never becomes a command.

The chat is `<name>`, or `<name>/<conversation>` if the body names a `conversation`, so routes never share a
chat. A callback gets an `X-Postroom-Delivery` that is the same for each repetition of an answer. If a route
has no callback, its answers are kept in memory until a restart: at most the newest 1,000 answers of all
routes, with 20 million characters in total. `answers` in the 202 response is the address of the answer, below
the mount point of these routes. To fetch the answer, sign `<timestamp>.<path>` with the route's secret, as in
the scheme `postroom`. The signed path is either the full path or the path in `answers`.
"""

import asyncio
import hashlib
import hmac
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, MissingExtra
from postroom.contracts.messages import Json
from postroom.contracts.signing import (
    MIN_SECRET_LENGTH,
    SIGNATURE,
    TIMESTAMP,
    WINDOW_SECONDS,
    Proof,
    same_secret,
    signed,
    verify_signature,
)
from postroom.contracts.tables import Secret, Table
from postroom.extras import install_command
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import MessageEvent, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.http_adapter import (
    HttpAdapter,
    Refused,
    json_response,
    parse_object,
    read_body,
    require_json,
)
from postroom.gateway.platforms.options import refuse_address, secret_remedy
from postroom.gateway.platforms.safe_text import clean
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

if TYPE_CHECKING:
    import httpx2

_LOG = get_logger(__name__)


# Pure functions for routes, signatures and prompts, and for the responses of the receivers of answers.


DELIVERY: Final = "X-Postroom-Delivery"
MAX_PROMPT_LENGTH: Final = 2_000_000
"""Maximum characters of a prompt. A template that repeats a large field could exceed any size."""
MAX_SHOWN_LENGTH: Final = 200
"""How many characters of each inserted value the prompt quotes, so that the agent recognises foreign text."""

_MAX_WAIT_MS: Final = 3_600_000
_DELIVERY: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FIELD: Final = re.compile(r"\{([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}")
RouteName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z", extra={"write": "a name of 1 to 64 letters, digits, _ and -"}),
]


class Scheme(StrEnum):
    """The authentication method of a webhook caller."""

    POSTROOM = "postroom"
    GITHUB = "github"
    GITLAB = "gitlab"


class HookTable(Table, frozen=True, kw_only=True):
    """The settings of one webhook caller, from the table `[platforms.webhook.routes.<name>]`."""

    secret: Secret = Secret()
    """The shared secret, with at least 16 characters."""
    scheme: Scheme = Scheme.POSTROOM
    """How the caller proves that it knows the secret."""
    prompt: str | None = None
    """The text for the agent, with fields such as `{repo.name}`.

    If None, the text is the field `text` of the body, or the whole body if it has no such field.
    """
    callback_url: str | None = None
    """The address that receives answers: https, or http on this machine. Redirects are not followed."""
    callback_secret: Secret | None = None
    """The secret that signs answers. If None, `secret` signs them."""

    def __post_init__(self) -> None:
        for name, secret in (("secret", self.secret), ("callback_secret", self.callback_secret)):
            if secret is not None and len(secret) < MIN_SECRET_LENGTH:
                raise ConfigError(
                    f"the {name} of a webhook is missing or too short",
                    value=name,
                    remedy=secret_remedy(name, f"{MIN_SECRET_LENGTH} characters or more"),
                )
        if self.callback_url is not None:
            refuse_address("callback_url", self.callback_url, query=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class HookRoute(HookTable, frozen=True, kw_only=True):
    """The settings of one webhook caller, with the name of the caller."""

    name: str


def check_signature(secret: str, headers: Mapping[str, str], content: bytes, *, now: int) -> None:
    """Check the `v1=` signature and the timestamp of a request.

    The timestamp must be within five minutes of `now`.

    Raises:
        Refused: The signature is missing, wrong or too old.
    """
    proof = verify_signature(secret, headers, content, now=now)
    if proof is Proof.WRONG:
        raise _not_proven()
    if proof is Proof.TOO_OLD:
        raise Refused(
            401, "too_old", "the request's time stamp differs from the server's time by more than 5 minutes"
        )


def check_caller(route: HookRoute, headers: Mapping[str, str], body: bytes, *, now: int) -> None:
    """Check that the caller of a route knows the secret of the route.

    Raises:
        Refused: The request is not authenticated.
    """
    match route.scheme:
        case Scheme.POSTROOM:
            check_signature(route.secret, headers, body, now=now)
        case Scheme.GITHUB:
            right = f"sha256={hmac.digest(route.secret.encode(), body, 'sha256').hex()}"
            if not same_secret(headers.get("X-Hub-Signature-256", ""), right):
                raise _not_proven()
        case Scheme.GITLAB:
            if not same_secret(headers.get("X-Gitlab-Token", ""), route.secret):
                raise _not_proven()


def _not_proven() -> Refused:
    return Refused(401, "wrong_signature", "the request's signature or token is missing or wrong")


_DELIVERY_HEADERS: Final = {
    Scheme.POSTROOM: DELIVERY,
    Scheme.GITHUB: "X-GitHub-Delivery",
    # This header is the same only for retries. Hooks that trigger each other share X-Gitlab-Event-UUID.
    Scheme.GITLAB: "Idempotency-Key",
}


def read_delivery_id(route: HookRoute, headers: Mapping[str, str], body: bytes) -> str:
    """Return the delivery id of a request, or a hash of the body if there is no id.

    A repeated delivery has an equal id.

    Raises:
        Refused: The id is invalid.
    """
    given_header = headers.get(_DELIVERY_HEADERS[route.scheme])
    if given_header is None:
        return hashlib.sha256(body).hexdigest()
    if not _DELIVERY.fullmatch(given_header):
        raise Refused(400, "malformed", "the delivery id must have 1 to 128 letters, digits and . _ : -")
    return given_header


def may_command(route: HookRoute) -> bool:
    """Return whether a message of this route may be a chat command.

    Text by strangers is never a command, even if the text begins with a slash.
    """
    return route.scheme is Scheme.POSTROOM if route.prompt is None else route.prompt.startswith("/")


def build_prompt(template: str | None, data: Mapping[str, Json], body: bytes) -> str:
    """Return the prompt for the agent.

    With a template, the prompt is the template filled with values from the body. Without a template, the
    prompt is the field `text` of the body, or the whole body. A missing value becomes an empty string.
    Placeholders inside inserted values are not replaced.

    Raises:
        Refused: The prompt is blank or too long.
    """
    if template is None:
        text = data.get("text")
        prompt = text if isinstance(text, str) else body.decode("utf-8", "replace")
    else:
        parts: list[str] = []
        length = last = 0
        for match in _FIELD.finditer(template):
            parts += (template[last : match.start()], _as_text(_looked_up(data, match[1])))
            length += len(parts[-1])
            if length > MAX_PROMPT_LENGTH:
                raise Refused(
                    413,
                    "too_large",
                    f"the prompt made from this delivery would exceed {MAX_PROMPT_LENGTH} characters",
                )
            last = match.end()
        prompt = "".join((*parts, template[last:]))
    if not prompt.strip():
        raise Refused(400, "malformed", "the message has no text")
    return prompt


def missing_field(template: str | None, data: Mapping[str, Json]) -> str | None:
    """Return the first field of a template that is missing in the body, or None if the body has all fields.

    A field whose value is null is not missing.
    """
    names = (match[1] for match in _FIELD.finditer(template or ""))
    return next((name for name in names if _looked_up(data, name) is _ABSENT), None)


def foreign_fields(route: HookRoute, data: Mapping[str, Json], body: bytes) -> dict[str, Json]:
    """Return the beginning of each value that the prompt takes from the body, keyed by field.

    The result is empty if a trusted caller writes the whole prompt.
    """
    if route.prompt is not None:
        names = dict.fromkeys(match[1] for match in _FIELD.finditer(route.prompt))
        return {name: _as_text(_looked_up(data, name))[:MAX_SHOWN_LENGTH] for name in names}
    prompt = build_prompt(None, data, body)
    return {} if route.scheme is Scheme.POSTROOM else {"the whole text": prompt[:MAX_SHOWN_LENGTH]}


class _Absent:
    """The marker for a field that is missing in a body."""


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


def _as_text(value: Json | _Absent) -> str:
    if value is None or isinstance(value, _Absent):
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def read_conversation_name(data: Mapping[str, Json]) -> str | None:
    """Return the field `conversation` of a body, or None if the field is missing.

    Raises:
        Refused: The name is invalid.
    """
    named = data.get("conversation")
    if named is None:
        return None
    if not isinstance(named, str) or not 1 <= len(named) <= 200 or not named.isprintable():
        raise Refused(400, "malformed", "`conversation` must be one line of 1 to 200 characters")
    return named


def classify_response(status: int, retry_after: str | None, *, now: int) -> SendResult:
    """Convert the status code of a callback to the result of sending an answer.

    After the status 500, 502 or 504, the receiver may have accepted the answer.
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
    """Parse a Retry-After header; return None if the header is missing or invalid."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(int(text) * 1000, _MAX_WAIT_MS)
    try:
        until = int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return min(max(until - now, 0), _MAX_WAIT_MS)


LARGEST_BODY: Final = 1024 * 1024
MAX_ANSWERS: Final = 1_000
MAX_CHARACTERS: Final = 20_000_000
MAX_SIGNATURES: Final = 50_000


class WebhookOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.webhook]`."""

    routes: Annotated[Mapping[RouteName, HookTable], Meta(min_length=1)]
    """The callers, keyed by name. The name is part of the address that the caller calls."""
    callback_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 10
    """The time, in seconds, after which a callback that receives no data fails."""


class WebhookAdapter(HttpAdapter):
    """Receives signed webhooks and sends the answers."""

    platform: ClassVar = Platform.WEBHOOK
    options: ClassVar = WebhookOptions
    capabilities: ClassVar = ChannelCapabilities(limit=NO_LIMIT)

    def __init__(
        self, config: WebhookOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._routes = {
            name: HookRoute(name=name, **structs.asdict(route)) for name, route in config.routes.items()
        }
        self._seconds = config.callback_timeout_s
        self._answers = _Answers()
        self._seen: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """The accepted signatures whose timestamps are still valid, each with its delivery id and expiry."""
        self._client: httpx2.AsyncClient | None = None

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes for incoming webhooks and for fetching answers."""
        return (
            Route("/webhook/{name}", self._serve(self._take), methods=["POST"]),
            Route("/webhook/{name}/answers/{delivery}", self._serve(self._fetch), methods=["GET"]),
        )

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Start accepting webhooks.

        Raises:
            MissingExtra: A route has a callback, and no HTTP client is installed.
        """
        if self._client is None and any(route.callback_url for route in self._routes.values()):
            # Create the client on a thread, because this reads the system's certificates.
            self._client = await asyncio.to_thread(_client, self._seconds)
        await super().connect(is_reconnect=is_reconnect)

    async def disconnect(self) -> None:
        """Stop accepting webhooks, and close the connections to callbacks."""
        await super().disconnect()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # Incoming webhooks.

    async def _take(self, request: Request) -> Response:
        route = self._routes.get(request.path_params["name"])
        if route is None:
            raise Refused(404, "unknown_route", "there is no webhook at this path")
        require_json(request)
        body = await read_body(request, LARGEST_BODY)
        check_caller(route, request.headers, body, now=self._clock.now())
        self._heard()
        delivery = read_delivery_id(route, request.headers, body)
        if route.scheme is Scheme.POSTROOM:
            until = (int(request.headers[TIMESTAMP]) + WINDOW_SECONDS) * 1000
            # Refuse a signature that was accepted under another delivery id, because the request may be a
            # replay.
            signed = f"{route.name} {request.headers[SIGNATURE]}"
            now = self._clock.now()
            while self._seen and (
                len(self._seen) > MAX_SIGNATURES or next(iter(self._seen.values()))[1] < now
            ):
                self._seen.popitem(last=False)
            known_value, _ = self._seen.setdefault(signed, (delivery, until))
            if known_value != delivery:
                raise Refused(401, "replayed", "this signature was already used with another delivery id")
        data = parse_object(body)
        if (missing := missing_field(route.prompt, data)) is not None:
            _LOG.info("webhook.ignored", route=route.name, delivery=delivery, missing=missing)
            return json_response({"delivery": delivery, "status": "ignored", "missing": missing}, 202)
        event = self._event(route, delivery, data, body)
        await self._keep(event)
        # Refuse a message if a stored message with the same delivery id has other content. The stored message
        # does not change. The comparison comes after storing, so that the later of two concurrent requests is
        # refused, too. Messages that an older release has stored are not compared.
        if not (event.source is None or event.message_id is None):
            stored = await self._receiver().look_up(event.source, event.message_id)
            fingerprint = event.metadata["fingerprint"]
            if stored is not None and stored.event.metadata.get("fingerprint", fingerprint) != fingerprint:
                text = "this delivery id was already used with another body: use a new id for each delivery"
                raise Refused(409, "idempotency_conflict", text)
        fields = {"message_id": event.message_id, "delivery": delivery, "status": "kept"}
        if route.callback_url is None:
            fields["answers"] = _whole(request, _answers_at(route.name, delivery))
        return json_response(fields, 202)

    def _event(self, route: HookRoute, delivery: str, data: Mapping[str, Json], body: bytes) -> MessageEvent:
        conversation = read_conversation_name(data)
        source = SessionSource(
            platform=self.platform,
            chat_id=route.name if conversation is None else f"{route.name}/{conversation}",
            user_id=f"webhook:{route.name}",
            user_name=route.name,
        )
        text = clean(build_prompt(route.prompt, data, body))
        event = MessageEvent(
            text=text if may_command(route) or not text.startswith("/") else f" {text}",
            source=source,
            message_id=f"{route.name}/{delivery}",
            timestamp=self._clock.now(),
        )
        event.metadata["fingerprint"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        if fields := foreign_fields(route, data, body):
            event.metadata["fields"] = fields
        if event.is_command():
            event.message_type = MessageType.COMMAND
        return event

    async def _fetch(self, request: Request) -> Response:
        name, delivery = request.path_params["name"], request.path_params["delivery"]
        route = self._routes.get(name)
        if route is None:
            raise Refused(404, "unknown_route", "there is no webhook at this path")
        below, now = _answers_at(name, delivery), self._clock.now()
        whole = _whole(request, below)
        is_whole = verify_signature(route.secret, request.headers, whole.encode(), now=now) is not Proof.WRONG
        check_signature(route.secret, request.headers, (whole if is_whole else below).encode(), now=now)
        items = self._answers.of(f"{name}/{delivery}")
        if items is None:
            return json_response(
                {
                    "error": {
                        "code": "no_answer",
                        "message": "this delivery has no answer yet, or the answer was deleted",
                    }
                },
                404,
            )
        return json_response({"delivery": delivery, "answers": items, "final": items[-1]["final"]})

    # Outgoing answers.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Post an answer to the callback of the route, or keep the answer until the caller fetches it."""
        route, fields = self._routes.get(chat_id.partition("/")[0]), metadata or {}
        if route is None:
            return SendResult.failed(SendErrorKind.NOT_FOUND, "no webhook route has the name of this chat")
        answered = [str(item) for item in fields.get("answers") or (() if reply_to is None else (reply_to,))]
        final = bool(fields.get("final"))
        if route.callback_url is not None:
            document: dict[str, Any] = {
                "route": route.name,
                "conversation": chat_id.partition("/")[2] or None,
                "deliveries": [value.partition("/")[2] for value in answered],
                "text": content,
                "final": final,
            }
            result = await self._post(route, route.callback_url, document, fields.get("dedupe_key"))
        elif answered:
            self._answers.keep(answered, content, final=final, key=fields.get("dedupe_key"))
            result = SendResult.sent()
        else:
            result = SendResult.failed(
                SendErrorKind.NOT_FOUND,
                "the route has no callback, and this message does not answer a delivery",
            )
        if result.success:
            self._said()
        return result

    async def _post(self, route: HookRoute, url: str, document: Mapping[str, Any], key: Json) -> SendResult:
        if self._client is None:
            return SendResult.failed(SendErrorKind.TRANSIENT, "the webhook channel is not connected")
        import httpx2

        body = json.dumps(document).encode()
        proof = signed(route.callback_secret or route.secret, body, now=self._clock.now())
        headers = {"Content-Type": "application/json", **proof}
        if isinstance(key, str) and key.isascii() and key.isprintable():
            headers[DELIVERY] = key
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as answer:
                return classify_response(
                    answer.status_code, answer.headers.get("retry-after"), now=self._clock.now()
                )
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            return SendResult.failed(SendErrorKind.TRANSIENT, "the callback URL cannot be reached")
        except httpx2.RequestError as error:
            return SendResult.failed(
                SendErrorKind.UNKNOWN, f"the request to the callback URL failed: {type(error).__name__}"
            )


class _Answers:
    """The answers that callers can fetch, keyed by the answered message."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._characters = 0

    def of(self, message_id: str) -> list[dict[str, Any]] | None:
        items = self._kept.get(message_id)
        return None if items is None else [{"text": item["text"], "final": item["final"]} for item in items]

    def keep(self, answered: Sequence[str], text: str, *, final: bool, key: Json) -> None:
        for message_id in answered:
            parts = self._kept.setdefault(message_id, [])
            if key is not None and any(part["key"] == key for part in parts):
                continue
            parts.append({"text": text, "final": final, "key": key})
            self._characters += len(text)
        while len(self._kept) > MAX_ANSWERS or (self._characters > MAX_CHARACTERS and len(self._kept) > 1):
            _, gone = self._kept.popitem(last=False)
            self._characters -= sum(len(part["text"]) for part in gone)


def _answers_at(name: str, delivery: str) -> str:
    return f"/webhook/{name}/answers/{delivery}"


def _whole(request: Request, path: str) -> str:
    """Return the public path of a webhook, including the mount point of the server."""
    return f"{request.scope.get('root_path', '')}{path}"


def _client(seconds: float) -> "httpx2.AsyncClient":
    try:
        import httpx2
    except ImportError as error:
        raise MissingExtra(
            f"the library {error.name}, which callbacks of webhooks need, is not installed",
            value=error.name,
            remedy=install_command("openai"),
        ) from error
    # Ignore the environment, so that neither a proxy nor a netrc file affects the signed request.
    return httpx2.AsyncClient(timeout=seconds, follow_redirects=False, trust_env=False)
