"""What happens in a project, as it happens: an answer that waits, or a stream of events. By one address.

    GET /v1/events?project_key=&after=&wait=30      one answer: when there is something or the wait is over
    GET /v1/events?project_key=  text/event-stream  event by event, until the server stops or the hour is over

A reader that comes again with `Last-Event-ID` (browsers do by themselves) gets what it missed, each once.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom import sse
from postroom.contracts.errors import InvalidArgument, PostroomError, ServerUnavailable
from postroom.http_api.rest.reading import JSON, list_fields, query_arguments
from postroom.mail.commands import FollowEvents, read_command
from postroom.mail.desk import Caller
from postroom.mail.event_log import EventsView
from postroom.mcp_server.schema import input_schema
from postroom.mcp_server.server import caller_of

STREAM: Final = "text/event-stream"
LAST_ID: Final = "Last-Event-ID"
REFUSED: Final = "refused"
"""The kind of the last event of a stream that cannot go on."""
RETRY_MS: Final = 2_000
BEAT: Final = 15
"""Seconds of silence before a sign of life."""
LIFE: Final = timedelta(hours=1)
"""After so long a stream ends: who comes again is looked at again."""
MOST_STREAMS: Final = 64
_LISTS: Final = list_fields(input_schema(FollowEvents))


class EventOperations(Protocol):
    """What a mail room answers to those who follow a project's log."""

    @property
    def is_over(self) -> bool:
        """Whether the server stops."""
        ...

    async def events(self, asked: FollowEvents, caller: Caller) -> EventsView:
        """Return what happened after a cursor, as soon as there is something or the wait is over."""
        ...


class EventDesk:
    """Answers those who ask, and counts those who stay."""

    def __init__(self, following: EventOperations) -> None:
        self._following = following
        self._streams = 0

    async def answer(self, request: Request) -> Response:
        """Return what happened, or the stream of it.

        Raises:
            InvalidArgument: a field, or the last id, does not fit.
            ServerUnavailable: too many streams are open.
            PostroomError: the log cannot be followed.
        """
        asked = _asked(request)
        caller = caller_of(request)
        if request.method == "HEAD":
            asked = msgspec.structs.replace(asked, wait=0)
        if request.method == "HEAD" or not _wants_stream(request):
            return Response(msgspec.json.encode(await self._following.events(asked, caller)), media_type=JSON)
        return await self._stream(asked, caller)

    async def _stream(self, asked: FollowEvents, caller: Caller) -> Response:
        if self._streams >= MOST_STREAMS:
            raise ServerUnavailable(
                f"{MOST_STREAMS} streams of events are open",
                value=MOST_STREAMS,
                remedy="come again later, or ask with `wait` and without a stream",
            )
        self._streams += 1
        try:  # what cannot be followed is refused with a status, before the stream begins
            first = await self._following.events(msgspec.structs.replace(asked, wait=0), caller)
        except BaseException:
            self._streams -= 1
            raise
        return sse.SseResponse(self._events(asked, first, caller), left=self._left)

    def _left(self) -> None:
        self._streams -= 1

    async def _events(self, asked: FollowEvents, found: EventsView, caller: Caller) -> AsyncGenerator[str]:
        """Yield events as they come; a sign of life in between says how far the log was read."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LIFE.total_seconds()
        yield sse.retry(RETRY_MS)
        while True:
            for one in found["events"]:
                yield sse.entry(one["kind"], msgspec.json.encode(one).decode(), number=one["seq"])
            if not found["events"] or found["events"][-1]["seq"] < found["next"]:
                yield sse.beat(found["next"])
            if self._following.is_over or loop.time() >= until:
                return
            asked = msgspec.structs.replace(asked, after=found["next"], wait=BEAT)
            try:
                found = await self._following.events(asked, caller)
            except PostroomError as error:
                yield sse.entry(REFUSED, msgspec.json.encode(error.as_dict()).decode())
                return


def _asked(request: Request) -> FollowEvents:
    given: dict[str, Any] = query_arguments(request.scope["query_string"], _LISTS)
    asked = read_command(FollowEvents, given)
    last = request.headers.get(LAST_ID)
    if last is None or not _wants_stream(request):
        return asked
    if not (last.isascii() and last.isdigit() and len(last) <= 16):
        raise InvalidArgument(
            f"the header {LAST_ID} is no number of an event", value=last[:60], remedy="send the last `id`"
        )
    return msgspec.structs.replace(asked, after=int(last))


def _wants_stream(request: Request) -> bool:
    accepted = request.headers.get("accept", "").split(",")
    return any(one.partition(";")[0].strip().lower() == STREAM for one in accepted)
