"""The operator's routes for chats: how the gateway is, who may write, what is said, what could not be."""

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.errors import ConfigError
from postroom.http_api.operations import Operations
from postroom.http_api.operators import Asked, operators, read_body


class UndeliveredOperations(Protocol):
    """What no chat took. Answers are plain JSON data."""

    async def dead(self) -> Mapping[str, object]:
        """Return what could not be delivered."""
        ...

    async def revive(self, outbox_id: str) -> Mapping[str, object]:
        """Have it tried again.

        Raises:
            InvalidArgument: it is not among what could not be delivered.
        """
        ...

    async def discard(self, outbox_id: str) -> Mapping[str, object]:
        """Take it off the list, for good.

        Raises:
            InvalidArgument: it is not among what could not be delivered.
        """
        ...


class ChatOperations(Protocol):
    """The gateway as its operator sees it. Answers are plain JSON data."""

    async def health(self) -> Mapping[str, object]:
        """Return its state, its channels, where the accepted messages are, and what is queued."""
        ...

    async def pair(self, platform: str, code: str, role: str) -> Mapping[str, object]:
        """Let in who was given this code.

        Raises:
            InvalidArgument: nobody was given it, or platform or role is none.
            QueueFull: too many wrong codes were tried.
        """
        ...

    async def people(self) -> Mapping[str, object]:
        """Return who may write, and who asks to."""
        ...

    async def shut_out(self, platform: str, user_id: str) -> Mapping[str, object]:
        """Forget somebody who was let in.

        Raises:
            InvalidArgument: nobody of this id was let in.
        """
        ...

    async def passed_on(self, platform: str, request: Request) -> Response | None:
        """Return the answer of the other server that has a channel; None where that is this one.

        Raises:
            InvalidArgument: there is no such channel.
            ServerUnavailable: no server has it at the moment, or that one does not answer.
        """
        ...

    async def send(self, notice: "Notice") -> Mapping[str, object]:
        """Have something said in a chat; return the id of its outbox row.

        Raises:
            InvalidArgument: there is no such channel, no home channel, or nothing to say.
            ServerUnavailable: the channel has not been connected yet.
            IdempotencyConflict: the key was used for something else.
        """
        ...

    async def reconnect(self, platform: str) -> Mapping[str, object]:
        """Connect a channel anew and return how it stands then.

        Raises:
            InvalidArgument: there is no such channel.
            ServerUnavailable: the gateway starts or ends.
        """
        ...


class Pairing(Asked, frozen=True):
    """A code that a stranger was given."""

    platform: str
    code: str
    role: str = "member"


class Somebody(Asked, frozen=True):
    """A person on a platform."""

    platform: str
    user_id: str


class Notice(Asked, frozen=True):
    """Something to be said, once a key. Without a chat it goes to the home channel."""

    platform: str
    text: str
    chat_id: str | None = None
    thread_id: str | None = None
    key: str | None = None


class Channel(Asked, frozen=True):
    """A channel of the gateway."""

    platform: str


class Undelivered(Asked, frozen=True):
    """A row of the dead-letter queue."""

    outbox_id: str


def chat_routes(
    operations: Operations, chats: ChatOperations | None, undelivered: UndeliveredOperations
) -> list[Route]:
    """Return the routes; without a gateway they say that there is none."""

    async def detailed(_: Request) -> Response:
        found = {"state": "off"} if chats is None else dict(await chats.health())
        return JSONResponse({**(await operations.ready()).as_dict(), "gateway": found})

    async def pair(request: Request) -> Response:
        asked = await read_body(request, Pairing)
        return JSONResponse(dict(await _there(chats).pair(asked.platform, asked.code, asked.role)))

    async def people(_: Request) -> Response:
        return JSONResponse(dict(await _there(chats).people()))

    async def shut_out(request: Request) -> Response:
        asked = await read_body(request, Somebody)
        return JSONResponse(dict(await _there(chats).shut_out(asked.platform, asked.user_id)))

    async def send(request: Request) -> Response:
        asked = await read_body(request, Notice)
        if (answer := await _there(chats).passed_on(asked.platform, request)) is not None:
            return answer
        return JSONResponse(dict(await _there(chats).send(asked)), status_code=202)

    async def reconnect(request: Request) -> Response:
        asked = await read_body(request, Channel)
        if (answer := await _there(chats).passed_on(asked.platform, request)) is not None:
            return answer
        return JSONResponse(dict(await _there(chats).reconnect(asked.platform)))

    return [
        operators("/health/detailed", {"GET": detailed}),
        operators("/admin/gateway/pair", {"POST": pair}),
        operators("/admin/gateway/people", {"GET": people, "DELETE": shut_out}),
        operators("/admin/gateway/send", {"POST": send}),
        operators("/admin/gateway/reconnect", {"POST": reconnect}),
        _undelivered(undelivered),
    ]


def _undelivered(undelivered: UndeliveredOperations) -> Route:
    """Return the route to what could not be delivered."""

    async def dead(_: Request) -> Response:
        return JSONResponse(dict(await undelivered.dead()))

    async def revive(request: Request) -> Response:
        asked = await read_body(request, Undelivered)
        return JSONResponse(dict(await undelivered.revive(asked.outbox_id)))

    async def discard(request: Request) -> Response:
        asked = await read_body(request, Undelivered)
        return JSONResponse(dict(await undelivered.discard(asked.outbox_id)))

    return operators("/admin/gateway/dead", {"GET": dead, "POST": revive, "DELETE": discard})


def _there(chats: ChatOperations | None) -> ChatOperations:
    if chats is None:
        raise ConfigError(
            "this server has no gateway: it found no gateway.toml when it started",
            remedy="write the file (`postroom gateway config check` checks it) and start the server again",
        )
    return chats
