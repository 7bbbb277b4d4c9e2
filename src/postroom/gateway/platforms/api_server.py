"""The OpenAI protocol: clients that know `/v1/chat/completions` or `/v1/responses` speak to an agent.

    POST ──▶ kept ──▶ waits for what is said in its session and answers it ──▶ pieces as they grow ──▶ the end

`config.api_key` is the bearer token that each request must bring, 16 characters or more. In `config.extra`:

| name | default | meaning |
|---|---|---|
| `timeout_s` | 600 | how long a request waits for its answer; 0.1 to 86400 |
| `model` | `postroom` | the name of the one model there is |
| `max_image_bytes` | 1000000 | how large an image may be; up to 5000000 |

A session is named by the header `X-Postroom-Session`, or in the body by `conversation`, `user` or
`previous_response_id`; without, each request is a session of its own. Who has the key may speak in every
session. The conversation is ours: of `messages` or `input` only the user's last message is read.
Instructions, tools and settings of models are not used, whatever `model` is named; usage is always 0.

`Idempotency-Key` names the message: with the same key the same answer is given, or waited for, and nothing is
asked twice. Each answer and each time-out (504) tells the key to ask again with. A client that goes away ends
nothing. Answers are kept in memory, the newest 2,000 and 20 million characters of them, responses that can be
fetched the newest 100; after a restart an old key waits for an answer that was given already.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, ServerUnavailable, TooLarge
from postroom.contracts.signing import same_secret
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import Attachment, MessageEvent, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms.api_server_answers import (
    SIGN_OF_LIFE,
    Exchanges,
    Responses,
    Wait,
    data_event,
    response_events,
)
from postroom.gateway.platforms.api_server_wire import (
    Asked,
    ChatShape,
    ResponseShape,
    decoded,
    error_body,
    idempotency_key,
    is_response_id,
    models,
    own_session,
    read_chat,
    read_response,
    response_id_of,
    session_name,
    wrong,
)
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.http_adapter import (
    HttpAdapter,
    Refused,
    json_response,
    parse_object,
    read_body,
    require_json,
)
from postroom.gateway.platforms.options import Options, secret_remedy
from postroom.gateway.session import Platform, SessionSource
from postroom.sse import SseResponse

LARGEST_BODY: Final = 10_000_000
LEAST_KEY: Final = 16
SESSION_HEADER: Final = "X-Postroom-Session"
KEY_HEADER: Final = "Idempotency-Key"


class ApiServerOptions(Options, frozen=True):
    """The names that stand in the table above."""

    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 600
    model: Annotated[str, Meta(min_length=1, description="a text that is not empty")] = "postroom"
    max_image_bytes: Annotated[int, Meta(ge=1, le=5_000_000)] = 1_000_000

    def __post_init__(self) -> None:
        if not self.model.isprintable():
            raise ValueError("`model` must be a text of one line")


class ApiServerAdapter(HttpAdapter):
    """Answers requests in OpenAI's protocol.

    Raises:
        ConfigError: the key is missing or too short, or a setting is not known or none.
    """

    platform: ClassVar = Platform.API_SERVER
    beats = True
    capabilities: ClassVar = ChannelCapabilities(
        limit=NO_LIMIT, streams=True, min_edit_interval_ms=0, holds_requests=True
    )

    def __init__(
        self, config: PlatformConfig, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = options = ApiServerOptions.read(config)
        key = config.api_key or ""
        if len(key) < LEAST_KEY:
            raise ConfigError(
                "the key is missing or too short",
                remedy=secret_remedy("api_key", f"{LEAST_KEY} random characters or more"),
            )
        self._model = options.model
        self._created = self._clock.now() // 1000
        self._exchanges = Exchanges()
        self._responses = Responses()
        self._deadlines: dict[Wait, asyncio.Task[None]] = {}

    def routes(self) -> Sequence[BaseRoute]:
        """Return the protocol's routes; a client's base URL ends with `/v1`."""
        return (
            Route("/v1/chat/completions", self._serve(self._complete), methods=["POST"]),
            Route("/v1/responses", self._serve(self._respond), methods=["POST"]),
            Route("/v1/responses/{id}", self._serve(self._stored), methods=["GET", "DELETE"]),
            Route("/v1/models", self._serve(self._list_models), methods=["GET"]),
        )

    async def disconnect(self) -> None:
        """Refuse requests, those that wait too: what they asked is kept and goes on."""
        self._exchanges.end(Refused(503, "stopping", "the server stops; ask again", retry_after=5))
        await super().disconnect()

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield an image that came along in a request.

        Raises:
            TooLarge: it is larger than `max_bytes`.
            ServerUnavailable: it is none of ours.
        """
        content, _ = decoded(attachment.ref)
        if content is None:
            raise ServerUnavailable("the attachment did not come over the API", remedy="send the image again")
        if len(content) > max_bytes:
            raise TooLarge(f"the image is larger than {max_bytes} bytes", value=len(content))
        yield content

    # What is asked.

    async def _complete(self, request: Request) -> Response:
        asked = await self._read(request, read_chat)
        wait, headers = await self._ask(request, asked)
        exchange = wait.exchange
        response_id = response_id_of(exchange.chat_id, exchange.message_id)
        shape = ChatShape(
            completion_id=f"chatcmpl-{response_id.removeprefix('resp_')}",
            model=self._model,
            created=self._clock.now() // 1000,
        )
        if asked.stream:
            events = self._chat_events(wait, shape, include_usage=asked.include_usage)
            return SseResponse(events, headers, left=lambda: self._leave(wait))
        return json_response(shape.whole(await self._answer(request, wait)), headers=headers)

    async def _respond(self, request: Request) -> Response:
        asked = await self._read(request, read_response)
        wait, headers = await self._ask(request, asked)
        exchange = wait.exchange
        shape = ResponseShape(
            response_id=response_id_of(exchange.chat_id, exchange.message_id),
            chat_id=exchange.chat_id,
            model=self._model,
            created=self._clock.now() // 1000,
            previous=asked.previous,
            names_conversation=asked.names_conversation,
            store=asked.store,
            metadata=asked.metadata,
        )
        if asked.store:
            self._responses.keep(shape, exchange)
        if asked.stream:
            return SseResponse(response_events(wait, shape), headers, left=lambda: self._leave(wait))
        text = await self._answer(request, wait)
        return json_response(shape.whole("completed", text), headers=headers)

    async def _stored(self, request: Request) -> Response:
        self._check_key(request)
        response_id = request.path_params["id"]
        found = self._responses.show(response_id) if is_response_id(response_id) else None
        if found is None:
            body = error_body(Refused(404, "not_found", "there is no such response, or it is kept no longer"))
            return json_response(body, 404)
        if request.method == "DELETE":
            self._responses.drop(response_id)
            return json_response({"id": response_id, "object": "response", "deleted": True})
        return json_response(found)

    async def _list_models(self, request: Request) -> Response:
        self._check_key(request)
        return json_response(models(self._model, self._created))

    def _check_key(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not same_secret(key.strip(), self.config.api_key or ""):
            raise Refused(
                401, "invalid_api_key", "the API key is missing or wrong: Authorization: Bearer <key>"
            )
        self._heard()

    async def _read(self, request: Request, reader: Callable[..., Asked]) -> Asked:
        self._check_key(request)
        require_json(request)
        body = await read_body(request, LARGEST_BODY)
        return reader(parse_object(body), image_bytes=self._options.max_image_bytes)

    async def _ask(self, request: Request, asked: Asked) -> tuple[Wait, dict[str, str]]:
        """Hand the message over and begin to wait for its answer."""
        key = idempotency_key(request.headers.get(KEY_HEADER)) or f"once-{secrets.token_hex(16)}"
        chat_id = self._session_of(request, asked) or own_session(key)
        wait = self._exchanges.ask(chat_id, key, asked.fingerprint)
        try:
            if wait.exchange.is_final:
                self._leave(wait)
            else:
                await self._keep(self._event(chat_id, key, asked))
                self._deadlines[wait] = self._tasks.start(self._expire(wait), name="deadline")
        except BaseException:
            self._leave(wait)
            self._exchanges.forget(wait.exchange)
            raise
        headers = {KEY_HEADER: key}
        return wait, headers | ({SESSION_HEADER: chat_id} if chat_id.isascii() else {})

    def _session_of(self, request: Request, asked: Asked) -> str | None:
        header = session_name(request.headers.get(SESSION_HEADER), None)
        if header is not None and not header.isascii():
            raise wrong(f"{SESSION_HEADER} holds ASCII only; name other sessions in the body")
        if asked.previous is None:
            return header or asked.session
        chat_id = self._responses.chat_of(asked.previous)
        if chat_id is None:
            raise wrong(
                "the previous response is not known any more; name a `conversation` to go on for ever",
                "previous_response_id",
                "previous_response_not_found",
            )
        if header not in (None, chat_id):
            raise wrong(f"the previous response is of another session than {SESSION_HEADER}")
        return chat_id

    def _event(self, chat_id: str, key: str, asked: Asked) -> MessageEvent:
        source = SessionSource(
            platform=self.platform, chat_id=chat_id, user_id="api", user_name="API", chat_type="dm"
        )
        event = MessageEvent(
            text=asked.text,
            message_type=MessageType.PHOTO if asked.media else MessageType.TEXT,
            media=asked.media,
            source=source,
            message_id=key,
            timestamp=self._clock.now(),
        )
        if event.is_command():
            event.message_type = MessageType.COMMAND
        return event

    # Who waits.

    async def _answer(self, request: Request, wait: Wait) -> str:
        """Return the final answer, unless the client goes away or its time is up."""
        left = None if wait.exchange.is_final else self._tasks.start(_left(request, wait), name="client")
        try:
            return await wait.answer()
        finally:
            if left is not None:
                left.cancel()
            self._leave(wait)

    async def _chat_events(self, wait: Wait, shape: ChatShape, *, include_usage: bool) -> AsyncGenerator[str]:
        yield data_event(shape.piece({"role": "assistant", "content": ""}))
        try:
            async with aclosing(wait.deltas()) as deltas:
                async for delta in deltas:
                    yield data_event(shape.piece({"content": delta})) if delta else SIGN_OF_LIFE
        except Refused as refusal:
            yield data_event(error_body(refusal))
            return
        for piece in shape.end(include_usage=include_usage):
            yield data_event(piece)
        yield "data: [DONE]\n\n"

    async def _expire(self, wait: Wait) -> None:
        await self._timer.sleep(int(self._options.timeout_s * 1000))
        key = wait.exchange.message_id
        message = (
            f"there is no answer within {self._options.timeout_s:g} seconds; it is still being worked on: "
            f"ask again with {KEY_HEADER}: {key}"
        )
        wait.end(Refused(504, "timeout", message, param=key))

    def _leave(self, wait: Wait) -> None:
        deadline = self._deadlines.pop(wait, None)
        if deadline is not None:
            deadline.cancel()
        self._exchanges.leave(wait)

    def _beat(self) -> None:
        self._exchanges.beat()

    def _shape(self, refusal: Refused) -> Response:
        headers = dict(refusal.headers)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if refusal.code == "timeout" and refusal.param:
            headers[KEY_HEADER] = refusal.param
        return json_response(error_body(refusal), refusal.status, headers)

    # What goes out.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Give a part of an answer to who waits for it; where nobody waits, it stays in the conversation."""
        part_id = f"msg_{secrets.token_hex(12)}"
        answered = _answered(metadata, reply_to)
        self._exchanges.answered(chat_id, answered, part_id, content, final=_is_final(metadata))
        self._said()
        return SendResult.sent(part_id)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Let a part of an answer grow."""
        if not self._exchanges.edited(chat_id, message_id, content, final=_is_final(metadata)):
            return SendResult.failed(SendErrorKind.NOT_FOUND, "the draft is kept no longer")
        self._said()
        return SendResult.sent(message_id)


def _answered(metadata: Mapping[str, Any] | None, reply_to: str | None) -> list[str]:
    told = (metadata or {}).get("answers")
    return [str(one) for one in told] if told else [] if reply_to is None else [reply_to]


def _is_final(metadata: Mapping[str, Any] | None) -> bool:
    return bool((metadata or {}).get("final"))


async def _left(request: Request, wait: Wait) -> None:
    """End the wait when the client goes away; what it asked goes on."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    wait.end(Refused(503, "client_left", "the client went away"))
