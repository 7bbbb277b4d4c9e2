"""The address that Slack calls: signed events, slash commands and buttons.

The body is parsed only after its signature was verified. The answer is 200 only if the request
was accepted, and 503 if it could not be stored: Slack then sends events again.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from postroom.contracts.clock import Clock
from postroom.contracts.messages import Json
from postroom.gateway.platforms.http_adapter import bounded_body
from postroom.gateway.platforms.slack_wire import COMMANDS, EVENTS, INTERACTIVE, Malformed, is_signed
from postroom.log import get_logger

LARGEST_BODY: Final = 1024 * 1024
MOST_FIELDS: Final = 100

_LOG = get_logger(__name__)


class SlackReceiver:
    """Answers requests; those that may pass are taken one after another, in the order they came."""

    def __init__(
        self,
        secret: str,
        clock: Clock,
        *,
        is_taken: Callable[[Callable[[], Awaitable[None]]], Awaitable[bool]],
        take: Callable[[str, Json], Awaitable[None]],
        take_unreadable: Callable[[bytes, str], Awaitable[None]],
        refused: Callable[[str], None],
    ) -> None:
        """`is_taken` does the work, and returns whether its request may be acknowledged."""
        self._secret = secret
        self._clock = clock
        self._is_taken = is_taken
        self._take = take
        self._take_unreadable = take_unreadable
        self._refused = refused
        self._in_order = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """Answer one request: 200, 401 (not signed by Slack, or long ago), 413, or 503 (not kept)."""
        try:
            body = await bounded_body(request, LARGEST_BODY)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            self._refused("too large")
            return Response(status_code=413)
        if not is_signed(self._secret, request.headers, body, now=self._clock.now()):
            self._refused("the signature is missing, wrong or too old")
            return Response(status_code=401)
        try:
            kind, payload = _parsed(request.headers.get("content-type", ""), body)
        except Malformed as error:
            # A form holds its secrets in another spelling.
            return await self._kept(partial(self._take_unreadable, unquote_to_bytes(body), error.message))
        if kind == EVENTS and payload.get("type") == "url_verification":
            return PlainTextResponse(str(payload.get("challenge", ""))[:1_000])
        return await self._kept(partial(self._take, kind, payload))

    async def _kept(self, take: Callable[[], Awaitable[None]]) -> Response:
        async def in_turn() -> None:
            async with self._in_order:
                await take()

        return Response() if await self._is_taken(in_turn) else Response(status_code=503)


def _parsed(content_type: str, body: bytes) -> tuple[str, Mapping[str, Any]]:
    if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return EVENTS, _object(body)
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise Malformed("the form cannot be read") from None
    form = {name: values[0] for name, values in fields.items()}
    if "payload" in form:
        return INTERACTIVE, _object(form["payload"])
    return COMMANDS, form


def _object(text: str | bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if not isinstance(found, dict):
        raise Malformed("not a JSON object")
    return found
