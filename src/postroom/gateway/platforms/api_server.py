"""The OpenAI protocol: clients of `/v1/chat/completions` or `/v1/responses` talk to an agent.

    POST ──▶ stored ──▶ waits for its turn in the session, then is answered ──▶ pieces as they grow ──▶ end

Each request must have `api_key` as its bearer token, of 16 characters or more.

The header `X-Postroom-Session` names a session, or in the body `conversation` or `previous_response_id`. The
field `user` names a person, not a session. In a session the conversation is stored here: of `messages` or
`input` only the user's last message and results of tools are read. Without a session, each request contains
its whole conversation. The holder of the key may write in every session. Instructions, tools and settings go
to agents that are models; others refuse `tools`, `tool_choice` and `response_format` by name.

`Idempotency-Key` names the message: with the same key the same answer is given, or waited for, and no
question is asked twice. A request that failed or was cancelled has no answer: its repetition starts a new
run.

Without a key, a request that declares itself a retry (`x-stainless-retry-count`) repeats the newest equal
request of the last hour. So does an equal request with the same history whose caller got no answer. Equal
words alone are not a repetition: in a session, a request without history is a new message. Each answer and
each time-out (504) contains the key for a repetition. Requests and answers that are not in memory are read
from the store: the same rules apply after a restart, for as long as inbound messages are kept.

A caller that hangs up cancels the run, unless the request asked for `background`, or the run also answers a
caller who still waits.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from postroom.concurrency import retried
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, ServerUnavailable, StoreError, TooLarge
from postroom.contracts.signing import same_secret
from postroom.gateway import wording
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import Attachment, MessageEvent, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms import api_server_ids as ids
from postroom.gateway.platforms.api_server_answers import (
    SIGN_OF_LIFE,
    Exchange,
    Exchanges,
    Wait,
    data_event,
    response_events,
)
from postroom.gateway.platforms.api_server_conversation import check_results, decoded, wrong
from postroom.gateway.platforms.api_server_repeats import Repeats
from postroom.gateway.platforms.api_server_shapes import (
    Answer,
    ChatShape,
    ResponseShape,
    error_body,
    model_named,
)
from postroom.gateway.platforms.api_server_wire import (
    Asked,
    idempotency_key,
    read_chat,
    read_response,
    session_name,
)
from postroom.gateway.platforms.base import AdapterState, KnownMessage, Metadata
from postroom.gateway.platforms.http_adapter import (
    HttpAdapter,
    Refused,
    json_response,
    parse_object,
    read_body,
    require_json,
)
from postroom.gateway.platforms.options import secret_remedy
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger
from postroom.sse import SseResponse

_LOG = get_logger(__name__)
LARGEST_BODY: Final = 10_000_000
LEAST_KEY: Final = 16
SESSION_HEADER: Final = "X-Postroom-Session"
KEY_HEADER: Final = "Idempotency-Key"


class ApiServerOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.api_server]."""

    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 590
    """How long a request waits for its answer. OpenAI's SDK waits for 600 s."""
    model: Annotated[str, Meta(min_length=1, extra={"write": "a text that is not empty"})] = "postroom"
    """The name of the one model that is listed."""
    max_image_bytes: Annotated[int, Meta(ge=1, le=5_000_000)] = 1_000_000
    """The largest image."""

    def __post_init__(self) -> None:
        if not self.model.isprintable():
            raise ValueError("`model` must be one line of text")


class ApiServerAdapter(HttpAdapter):
    """Answers requests in OpenAI's protocol.

    Raises:
        ConfigError: the key is missing or too short, or a setting is not known or none.
    """

    platform: ClassVar = Platform.API_SERVER
    options: ClassVar = ApiServerOptions
    at_root: ClassVar = True
    largest_body: ClassVar = LARGEST_BODY
    beats = True
    capabilities: ClassVar = ChannelCapabilities(
        limit=NO_LIMIT, streams=True, min_edit_interval_ms=0, holds_requests=True, reasoning=True
    )

    def __init__(
        self, config: ApiServerOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = options = config
        key = config.api_key or ""
        if len(key) < LEAST_KEY:
            raise ConfigError(
                "the key is missing or too short",
                remedy=secret_remedy("api_key", f"at least {LEAST_KEY} random characters"),
            )
        self._model = options.model
        self._created = self._clock.now() // 1000
        self._exchanges = Exchanges()
        self._repeats = Repeats(self._exchanges, self._look_up, self._clock)
        self._while_waiting: dict[Wait, list[asyncio.Task[None]]] = {}

    lease = None  # each server answers its own requests

    def routes(self) -> Sequence[BaseRoute]:
        """Return the protocol's routes; a client's base URL ends with `/v1`."""
        return (
            Route("/v1/chat/completions", self._serve(self._complete), methods=["POST"]),
            Route("/v1/responses", self._serve(self._respond), methods=["POST"]),
            Route("/v1/responses/{id}", self._serve(self._stored), methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/cancel", self._serve(self._cancel), methods=["POST"]),
            Route("/v1/models", self._serve(self._list_models), methods=["GET"]),
            Route("/v1/models/{id:path}", self._serve(self._one_model), methods=["GET"]),
        )

    def refuse(self, status: int, code: str, message: str, headers: Mapping[str, str]) -> Response:
        """Return a refusal as `HttpAdapter.refuse` does; that of an unknown path names the known paths."""
        if status == HTTPStatus.NOT_FOUND:
            known = dict.fromkeys(route.path for route in self.routes() if isinstance(route, Route))
            message = f"{message}; the paths are {', '.join(known)}"
        return super().refuse(status, code, message, headers)

    async def disconnect(self) -> None:
        """Refuse requests, including waiting ones: their messages are stored and continue."""
        self._exchanges.end(Refused(503, "stopping", "the server is stopping; ask again", retry_after=5))
        await super().disconnect()

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield an image from a request.

        Raises:
            TooLarge: The image is larger than `max_bytes`.
            ServerUnavailable: The image is not from the API.
        """
        content, _ = decoded(attachment.ref)
        if content is None:
            raise ServerUnavailable("the attachment was not sent over the API", remedy="send the image again")
        if len(content) > max_bytes:
            raise TooLarge(f"the image is larger than {max_bytes} bytes", value=len(content))
        yield content

    # What is asked.

    async def _complete(self, request: Request) -> Response:
        asked = await self._read(request, read_chat)
        wait, headers = await self._ask(request, asked)
        exchange = wait.exchange
        response_id = ids.response_id_of(exchange.chat_id, exchange.message_id)
        shape = ChatShape(
            completion_id=f"chatcmpl-{ids.digest(response_id)}",
            model=self._model,
            created=self._clock.now() // 1000,
        )
        if asked.stream:
            events = self._chat_events(wait, shape, include_usage=asked.include_usage)
            return SseResponse(events, headers, left=lambda: self._over(wait))
        return json_response(shape.whole(await self._answer(request, wait)), headers=headers)

    async def _respond(self, request: Request) -> Response:
        asked = await self._read(request, read_response)
        wait, headers = await self._ask(request, asked)
        exchange = wait.exchange
        shape = self._response_shape(exchange.chat_id, exchange.message_id, exchange.since, asked.shown)
        if asked.stream:
            return SseResponse(response_events(wait, shape), headers, left=lambda: self._over(wait))
        if asked.background:
            self._leave(wait)
            return json_response(shape.whole(exchange.answer, unanswered="queued"), headers=headers)
        return json_response(shape.whole(await self._answer(request, wait)), headers=headers)

    async def _stored(self, request: Request) -> Response:
        self._check_key(request)
        response_id = request.path_params["id"]
        found = await self._response(response_id)
        if found is None:
            raise Refused(404, "not_found", "there is no such response, or it was deleted")
        chat_id, message_id, known = found
        if request.method == "DELETE":
            await self._receiver().forget_answer(self._source(chat_id), message_id)
            return json_response({"id": response_id, "object": "response", "deleted": True})
        shape = self._response_shape(chat_id, message_id, known.received_at, known.event.metadata["response"])
        if request.query_params.get("stream") == "true":
            if not shape.is_background:
                raise wrong("only a response with `background` can be streamed again", "stream")
            after = request.query_params.get("starting_after", "-1")
            if not re.fullmatch(r"-1|\d{1,9}", after, re.ASCII):
                raise wrong("`starting_after` must be the sequence number of an event", "starting_after")
            wait = await self._watch(chat_id, message_id, known)
            return SseResponse(response_events(wait, shape, int(after)), left=lambda: self._leave(wait))
        return json_response(shape.whole(self._answer_of(chat_id, message_id, known)))

    async def _cancel(self, request: Request) -> Response:
        """Cancel the run of a response and return the response; a response with an answer is unchanged."""
        self._check_key(request)
        found = await self._response(request.path_params["id"])
        if found is None:
            raise Refused(404, "not_found", "there is no such response, or it was deleted")
        chat_id, message_id, known = found
        shape = self._response_shape(chat_id, message_id, known.received_at, known.event.metadata["response"])
        answer = self._answer_of(chat_id, message_id, known)
        # A stored cancel may not have reached its run: the repetition completes it.
        is_open = answer is None or known.is_cancelled
        if is_open and await self._cancel_run(chat_id, message_id):
            exchange = self._exchanges.find(chat_id, message_id)
            answer = Answer(text="" if exchange is None else exchange.text, is_cancelled=True)
        return json_response(shape.whole(answer))

    def _answer_of(self, chat_id: str, message_id: str, known: KnownMessage) -> Answer | None:
        """Return the answer to a message, from memory or as it is stored; None if there is none yet."""
        exchange = self._exchanges.find(chat_id, message_id)
        if exchange is not None and exchange.answer is not None:
            return exchange.answer
        if known.is_cancelled:
            return Answer(text="", is_cancelled=True)
        return None if known.answer is None else Answer.of(known.answer, known.details)

    def _response_shape(
        self, chat_id: str, message_id: str, since: int, shown: Mapping[str, Any]
    ) -> ResponseShape:
        response_id = ids.response_id_of(chat_id, message_id)
        return ResponseShape(response_id, chat_id, self._model, since // 1000, shown)

    async def _response(self, response_id: str) -> tuple[str, str, KnownMessage] | None:
        """Return the message of a response; None if it must not be shown."""
        names = ids.read_response_id(response_id)
        known = None if names is None else await self._look_up(*names)
        if names is None or known is None or known.is_forgotten or "response" not in known.event.metadata:
            return None
        return *names, known

    async def _look_up(self, chat_id: str, message_id: str) -> KnownMessage | None:
        return await self._receiver().look_up(self._source(chat_id), message_id)

    def _source(self, chat_id: str) -> SessionSource:
        return SessionSource(
            platform=self.platform, chat_id=chat_id, user_id="api", user_name="API", chat_type="dm"
        )

    async def _list_models(self, request: Request) -> Response:
        self._check_key(request)
        return json_response({"object": "list", "data": [model_named(self._model, self._created)]})

    async def _one_model(self, request: Request) -> Response:
        self._check_key(request)
        if request.path_params["id"] != self._model:
            raise Refused(
                404, "model_not_found", f"there is no such model; use {self._model!r}", param="model"
            )
        return json_response(model_named(self._model, self._created))

    def _check_key(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not same_secret(key.strip(), self.config.api_key or ""):
            raise Refused(
                401,
                "invalid_api_key",
                "Incorrect API key provided, or none: send Authorization: Bearer <key>",
            )
        self._heard()

    async def _read(self, request: Request, reader: Callable[..., Asked]) -> Asked:
        self._check_key(request)
        require_json(request)
        body = await read_body(request, LARGEST_BODY)
        return reader(parse_object(body), model=self._model, image_bytes=self._options.max_image_bytes)

    async def _ask(self, request: Request, asked: Asked) -> tuple[Wait, dict[str, str]]:
        """Hand the message over and begin to wait for its answer."""
        if (session := await self._session_of(request, asked)) is None:
            check_results(asked.earlier)
        key = idempotency_key(request.headers.get(KEY_HEADER))
        if key is None:
            key = await self._repeats.key_of(
                session,
                ids.digest(f"{session}\0{asked.fingerprint}"),
                is_again=request.headers.get("X-Stainless-Retry-Count", "0") not in ("", "0"),
                has_history=bool(asked.earlier) or asked.previous is not None,
            )
        else:
            key = await self._repeats.key_in_use(session, key, asked.fingerprint)
        chat_id = session or ids.own_session(key)
        wait = self._exchanges.ask(chat_id, key, asked.fingerprint)
        try:
            if not await self._repeats.is_known(wait.exchange, asked.fingerprint):
                await self._keep(self._event(wait.exchange, asked, in_session=session is not None))
            wait.exchange.is_background = wait.exchange.is_collected = asked.background
            self._begin_waiting(wait)
        except BaseException:
            self._leave(wait)
            self._exchanges.forget(wait.exchange)
            raise
        return wait, {KEY_HEADER: key} | ({SESSION_HEADER: chat_id} if chat_id.isascii() else {})

    async def _watch(self, chat_id: str, message_id: str, known: KnownMessage) -> Wait:
        """Begin to wait for the answer to a message that was asked before."""
        wait = self._exchanges.ask(chat_id, message_id, known.event.metadata.get("fingerprint", ""))
        try:
            await self._repeats.is_known(wait.exchange, wait.exchange.fingerprint or "")
        except BaseException:
            self._leave(wait)
            raise
        self._begin_waiting(wait)
        return wait

    def _begin_waiting(self, wait: Wait) -> None:
        if wait.exchange.is_final:
            self._leave(wait)
            return
        self._while_waiting[wait] = [self._tasks.start(self._expire(wait), name="deadline")]
        if self.is_shared:
            look = self._tasks.start(self._repeats.follow(wait.exchange, self._timer), name="look")
            self._while_waiting[wait].append(look)

    async def _session_of(self, request: Request, asked: Asked) -> str | None:
        header = session_name(request.headers.get(SESSION_HEADER), SESSION_HEADER)
        if header is not None and not header.isascii():
            raise wrong(f"{SESSION_HEADER} must be ASCII; name other sessions in the body", SESSION_HEADER)
        if asked.previous is None:
            return header or asked.session
        found = await self._response(asked.previous)
        if found is None:
            raise wrong(
                "the previous response is unknown; use a `conversation`, which does not expire",
                "previous_response_id",
                "previous_response_not_found",
            )
        if header not in (None, found[0]):
            raise wrong(
                f"the previous response belongs to another session than {SESSION_HEADER}",
                "previous_response_id",
            )
        return found[0]

    def _event(self, exchange: Exchange, asked: Asked, *, in_session: bool) -> MessageEvent:
        metadata: dict[str, Any] = {"fingerprint": asked.fingerprint}
        metadata |= asked.caller(in_session=in_session).as_data()
        if asked.store:
            metadata["response"] = dict(asked.shown)
        if asked.background:
            metadata["background"] = True
        event = MessageEvent(
            text=asked.text,
            message_type=MessageType.PHOTO if asked.media else MessageType.TEXT,
            media=asked.media,
            source=self._source(exchange.chat_id),
            message_id=exchange.message_id,
            timestamp=self._clock.now(),
            metadata=metadata,
        )
        if event.is_command():
            event.message_type = MessageType.COMMAND
        return event

    # Who waits.

    async def _answer(self, request: Request, wait: Wait) -> Answer:
        """Return the final answer, unless the client disconnects or its time has passed."""
        left = (
            None
            if wait.exchange.is_final
            else self._tasks.start(wait.end_with(request.receive), name="client")
        )
        try:
            return await wait.answer()
        finally:
            if left is not None:
                left.cancel()
            self._over(wait)

    async def _chat_events(self, wait: Wait, shape: ChatShape, *, include_usage: bool) -> AsyncGenerator[str]:
        yield data_event(shape.piece({"role": "assistant", "content": ""}))
        try:
            async with aclosing(wait.deltas()) as deltas:
                async for delta in deltas:
                    if wait.thought:
                        yield data_event(shape.piece({"reasoning_content": wait.thought}))
                    if delta:
                        yield data_event(shape.piece({"content": delta}))
                    elif not wait.thought:
                        yield SIGN_OF_LIFE
        except Refused as refusal:
            yield data_event(error_body(refusal))
            return
        for piece in shape.end(wait.collected(), include_usage=include_usage):
            yield data_event(piece)
        yield "data: [DONE]\n\n"

    async def _expire(self, wait: Wait) -> None:
        await self._timer.sleep(int(self._options.timeout_s * 1000))
        key = wait.exchange.message_id
        message = (
            f"no answer within {self._options.timeout_s:g} seconds; the run continues: ask again "
            f"with {KEY_HEADER}: {key}"
        )
        wait.end(Refused(504, "timeout", message, param=key))

    def _leave(self, wait: Wait) -> None:
        for task in self._while_waiting.pop(wait, ()):
            task.cancel()
        self._exchanges.leave(wait)

    def _over(self, wait: Wait) -> None:
        """End the wait of a finished request; if its caller hung up, cancel the run."""
        exchange = wait.exchange
        self._leave(wait)
        is_stopping = self.liveness.state is not AdapterState.CONNECTED  # then requests end without callers
        if wait.is_abandoned and not (exchange.waits or exchange.is_background or is_stopping):
            exchange.is_cancelled = True
            self._tasks.start(self._abandon(exchange), name="hung up")

    async def _abandon(self, exchange: Exchange) -> None:
        """Cancel the run of an exchange whose caller hung up."""

        async def cancel() -> bool:
            return await self._cancel_run(exchange.chat_id, exchange.message_id)

        try:
            exchange.is_cancelled = await retried(cancel, self._timer)
        except (StoreError, Refused) as error:  # Refused: the channel has been disconnected meanwhile
            _LOG.warning("run.not_cancelled", message_id=exchange.message_id, reason=str(error))

    async def _cancel_run(self, chat_id: str, message_id: str) -> bool:
        """Cancel the run that answers a message; return False if it continues, or has its answer."""

        def is_waited_for(other: str) -> bool:
            exchange = self._exchanges.find(chat_id, other)
            return self.is_shared if exchange is None else bool(exchange.waits)

        source = self._source(chat_id)
        is_cancelled = await self._receiver().cancel_answer(source, message_id, is_waited_for)
        exchange = self._exchanges.find(chat_id, message_id)
        if is_cancelled and exchange is not None:
            exchange.cancel()
        return is_cancelled

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
        """Give a part of an answer to the waiting caller; without one, it stays in the conversation."""
        part_id = f"msg_{secrets.token_hex(12)}"
        answered = _answered(metadata, reply_to)
        text = content.removeprefix(f"{wording.POSSIBLE_DUPLICATE}\n")  # who asks by a key has it once
        self._exchanges.answered(
            chat_id, answered, part_id, text, final=_is_final(metadata), details=metadata or {}
        )
        self._said()
        return SendResult.sent(part_id)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Let a part of an answer grow."""
        told, answered = metadata or {}, _answered(metadata, None)
        if told.get("begins_again"):
            self._exchanges.begin_again(chat_id, message_id)
            return SendResult.sent(message_id)
        final = _is_final(metadata)
        if not self._exchanges.edited(chat_id, answered, message_id, content, final=final, details=told):
            return SendResult.failed(SendErrorKind.NOT_FOUND, "the draft was deleted")
        self._said()
        return SendResult.sent(message_id)


def _answered(metadata: Mapping[str, Any] | None, reply_to: str | None) -> list[str]:
    told = (metadata or {}).get("answers")
    return [str(one) for one in told] if told else [] if reply_to is None else [reply_to]


def _is_final(metadata: Mapping[str, Any] | None) -> bool:
    return bool((metadata or {}).get("final"))
