"""The address for the events of a project, as they happen: by long polling or as a stream.

    GET /v1/events?project_key=&after=&wait=30      one response: when there are events, or after the wait
    GET /v1/events?project_key=  text/event-stream  event by event, until the server stops or after 1 h

A reader that reconnects with `Last-Event-ID`, as browsers do, gets each missed event once.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from postroom import sse
from postroom.contracts.errors import InvalidArgument, PostroomError, ServerUnavailable
from postroom.http_api.rest.reading import JSON, list_fields, query_arguments
from postroom.mail.commands import FollowEvents, read_command
from postroom.mail.context import Caller
from postroom.mail.event_log import EventsView
from postroom.mcp_server.callers import read_caller
from postroom.mcp_server.schema import input_schema
from postroom.services.following import EventFollowing

STREAM: Final = "text/event-stream"
LAST_ID: Final = "Last-Event-ID"
REFUSED: Final = "refused"
"""The type of the last event in a stream that cannot continue after an error."""
ALIVE: Final = "beat"
"""The event type of a heartbeat.

A heartbeat is an event, and not a comment: pages must notice silence, and browsers do not pass comments to
scripts.
"""
RETRY_MS: Final = 2_000
BEAT: Final = 15
"""The number of seconds without an event after which a heartbeat is sent."""
LIFE: Final = timedelta(hours=1)
"""The maximum duration of a stream. Then callers must reconnect, and their access is checked again."""
MAX_LISTENERS: Final = 128
"""Maximum number of concurrent streams and waiting requests. Immediate responses are not limited."""
_LISTS: Final = list_fields(input_schema(FollowEvents))


class EventService:
    """Answers requests for events, and limits the number of waiting clients."""

    def __init__(self, following: EventFollowing) -> None:
        self._following = following
        self._listeners = 0

    async def answer(self, request: Request) -> Response:
        """Return stored events, or a stream of new events.

        Raises:
            InvalidArgument: A field, or the last event id, is invalid.
            ServerUnavailable: Too many clients are already listening.
            PostroomError: The log cannot be followed.
        """
        query = read_command(FollowEvents, query_arguments(request.scope["query_string"], _LISTS))
        last = request.headers.get(LAST_ID)
        if last is not None and _wants_stream(request):
            if not (last.isascii() and last.isdigit() and len(last) <= 16):
                raise InvalidArgument(
                    f"the header {LAST_ID} is not the number of an event",
                    value=last[:60],
                    remedy="send the `id` of the last event that you received",
                )
            query = msgspec.structs.replace(query, after=int(last))
        caller = read_caller(request)
        if request.method == "HEAD":
            return _as_json(await self._following.events(_at_once(query), caller))
        if _wants_stream(request):
            self._come()
            try:  # before the stream begins, an error can set the status
                first = await self._following.events(_at_once(query), caller)
            except BaseException:
                self._leave()
                raise
            return sse.SseResponse(self._events(query, first, caller), left=self._leave)
        if query.after is None or not query.wait:
            return _as_json(await self._following.events(query, caller))
        self._come()
        try:
            # Get the events; stop waiting if the client has disconnected.
            try:
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(_client_left(request))
                    page = await self._following.events(query, caller)
                    watching.cancel()
            except ExceptionGroup as errors:  # if there are two errors, raise the first one
                raise errors.exceptions[0] from None
            return _as_json(page)
        except ClientDisconnect:
            return Response(status_code=204)  # nobody reads this response
        finally:
            self._leave()

    def _come(self) -> None:
        if self._listeners >= MAX_LISTENERS:
            raise ServerUnavailable(
                f"{MAX_LISTENERS} clients already listen to events, the maximum",
                value=MAX_LISTENERS,
                remedy="try again later, or call without `wait` and without a stream",
            )
        self._listeners += 1

    def _leave(self) -> None:
        self._listeners -= 1

    async def _events(self, asked: FollowEvents, found: EventsView, caller: Caller) -> AsyncGenerator[str]:
        loop = asyncio.get_running_loop()
        until = loop.time() + LIFE.total_seconds()
        yield sse.retry(RETRY_MS)
        while True:
            for event in found["events"]:
                yield sse.entry(event["kind"], msgspec.json.encode(event).decode(), number=event["seq"])
            if not found["events"] or found["events"][-1]["seq"] < found["next"]:
                yield sse.entry(ALIVE, "{}", number=found["next"])
            if self._following.is_over or loop.time() >= until:
                return
            asked = msgspec.structs.replace(asked, after=found["next"], wait=BEAT)
            try:
                found = await self._following.events(asked, caller)
            except PostroomError as error:
                yield sse.entry(REFUSED, msgspec.json.encode(error.as_dict()).decode())
                return


async def _client_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


def _at_once(asked: FollowEvents) -> FollowEvents:
    return msgspec.structs.replace(asked, wait=0)


def _as_json(found: EventsView) -> Response:
    return Response(msgspec.json.encode(found), media_type=JSON)


def _wants_stream(request: Request) -> bool:
    accepted = request.headers.get("accept", "").split(",")
    return any(media_type.partition(";")[0].strip().lower() == STREAM for media_type in accepted)
