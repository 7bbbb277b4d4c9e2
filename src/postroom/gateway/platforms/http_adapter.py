"""The base class of adapters whose platform calls this server, with refusals, size limits and JSON.

    request ──▶ open? ──▶ caller? ──▶ body, bounded ──▶ understood ──▶ stored ──▶ answered with success
                 503       401         413, 415          400            503 if it could not be stored

No part of a request is ever logged.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from postroom.concurrency import Tasks
from postroom.contracts.errors import InputError, StoreError
from postroom.contracts.messages import Json
from postroom.gateway.platforms.base import AdapterState, BasePlatformAdapter, Inbound, MessageEvent

Endpoint = Callable[[Request], Awaitable[Response]]

RETRY_SECONDS: Final = 2
BEAT_MS: Final = 15_000
_BODY_SECONDS: Final = 60
_COUNTED: Final = frozenset({400, 401, 403, 404, 408, 413, 415})
_SAFE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Refused(Exception):
    """The adapter refuses a request.

    The message is shown to the caller, and contains no secret.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        """The name of the invalid field."""
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


class HttpAdapter(BasePlatformAdapter):
    """An adapter that only answers HTTP requests.

    The adapter is connected as soon as it accepts requests.
    """

    beats: ClassVar[bool] = False
    """Whether the adapter has open streams that need heartbeats."""

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Start accepting requests."""
        if self._tasks.closed:
            self._tasks = Tasks(f"channel {self.platform.value}")
        begins = self.liveness.state is not AdapterState.CONNECTED
        self._connected()
        if begins and self.beats:
            self._tasks.start(self._keep_beating(), name="signs of life")

    async def _keep_beating(self) -> None:
        while True:
            await self._timer.sleep(BEAT_MS)
            self._beat()

    def _beat(self) -> None:
        """Send a heartbeat to all open streams."""

    async def disconnect(self) -> None:
        """Refuse all requests from now on, and acknowledge no message of an active request."""
        self.liveness.state = AdapterState.STOPPED
        await self._tasks.close()

    def _shape(self, refusal: Refused) -> Response:
        """Return the HTTP response for a refused request."""
        error = {"code": refusal.code, "message": refusal.message}
        return json_response({"error": error}, refusal.status, refusal.headers)

    def refuse(self, status: int, code: str, message: str, headers: Mapping[str, str]) -> Response:
        """Return the HTTP response for a request that the server refused."""
        refusal = Refused(status, code, message)
        refusal.headers.update(headers)
        return self._refuse(refusal)

    def _serve(self, work: Endpoint) -> Endpoint:
        """Wrap an endpoint so that each expected failure is counted and becomes a response."""

        async def serve(request: Request) -> Response:
            try:
                self._receiver()
                return await work(request)
            except Refused as refusal:
                return self._refuse(refusal)
            except StoreError:
                return self._refuse(_not_now("the message could not be stored; send it again"))
            except InputError as error:
                return self._refuse(Refused(400, error.code, error.message))
            except ClientDisconnect:
                return self._refuse(Refused(400, "cut_off", "the request body ended too early"))

        return serve

    def _refuse(self, refusal: Refused) -> Response:
        self.liveness.refused += refusal.status in _COUNTED
        return self._shape(refusal)

    def _receiver(self) -> Inbound:
        """Return the object that receives the adapter's messages.

        Raises:
            Refused: The adapter is not receiving.
        """
        if self._inbound is None or self.liveness.state is not AdapterState.CONNECTED:
            raise _not_now("the channel cannot receive messages at the moment")
        return self._inbound

    async def _keep(self, event: MessageEvent) -> None:
        """Pass a message to the gateway. When the call returns, the message may be acknowledged.

        Raises:
            StoreError, InputError: As in `handle_message`.
            Refused: The adapter was stopped during the call.
        """
        await self.handle_message(event)
        self._receiver()


def _not_now(message: str) -> Refused:
    return Refused(503, "unavailable", message, retry_after=RETRY_SECONDS)


def json_response(
    data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response that contains only ASCII characters."""
    return Response(
        json.dumps(data),
        status_code=status,
        headers={**_SAFE, **(headers or {})},
        media_type="application/json",
    )


async def read_body(request: Request, limit: int) -> bytes:
    """Return the raw body of a request, which may have at most `limit` bytes.

    Raises:
        Refused: The body is longer than `limit`, or arrives too slowly.
        ClientDisconnect: The client disconnected.
    """
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await bounded_body(request, limit)
    except TimeoutError as error:
        raise Refused(
            408, "too_slow", f"the request body did not arrive within {_BODY_SECONDS} seconds"
        ) from error
    if body is None:
        raise Refused(413, "too_large", f"the request body exceeds {limit} bytes")
    return body


async def bounded_body(request: Request, limit: int) -> bytes | None:
    """Return the raw body of a request, or None if the body has more than `limit` bytes.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        return None
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            return None
    return bytes(body)


def require_json(request: Request) -> None:
    """Check that the content type of a request is JSON.

    Raises:
        Refused: The content type is not JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "unsupported_media_type", "send JSON with the content type application/json")


def parse_object(body: bytes) -> dict[str, Json]:
    """Parse the body of a request as a JSON object.

    Raises:
        Refused: The body is not a JSON object.
    """
    try:
        data = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", "the request body is not valid JSON") from error
    if not isinstance(data, dict):
        raise Refused(400, "malformed", "the request body is not a JSON object")
    return data
