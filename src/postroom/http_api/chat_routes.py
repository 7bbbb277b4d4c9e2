"""The operator's rows for chats: how the gateway is, who may write, what is said, what could not be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from postroom.contracts.errors import ConfigError
from postroom.http_api.administration import Asked, Query, Table, read_body
from postroom.http_api.operations import Operations


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


@dataclass(frozen=True, slots=True)
class Chats:
    """The chats of a server; without a gateway most operations say that there is none."""

    operations: Operations
    gateway: ChatOperations | None
    undelivered: UndeliveredOperations

    @property
    def there(self) -> ChatOperations:
        """The gateway.

        Raises:
            ConfigError: This server has none.
        """
        if self.gateway is None:
            raise ConfigError(
                "this server has no gateway: it found no gateway.toml when it started",
                remedy=(
                    "write the file (`postroom gateway config check` checks it) and start the server again"
                ),
            )
        return self.gateway


CHATS: Final = Table[Chats]()
_health = CHATS.at(
    "/health/detailed",
    "Readiness, and the gateway: its channels, the states of accepted messages, and the queue. Its "
    "`state` is `off` without chats.",
)


@_health("GET", Query)
async def _detailed(chats: Chats, _: Query) -> object:
    found = {"state": "off"} if chats.gateway is None else dict(await chats.gateway.health())
    return {**(await chats.operations.ready()).as_dict(), "gateway": found}


_pairing = CHATS.at(
    "/admin/gateway/pair",
    'Admits a person with a code. Body: `{"platform": "...", "code": "...", "role": "member"}`.',
)


@_pairing("POST", Pairing)
async def _pair(chats: Chats, asked: Pairing) -> object:
    return await chats.there.pair(asked.platform, asked.code, asked.role)


_people = CHATS.at(
    "/admin/gateway/people",
    "Lists the people who may write, and those who ask to (`GET`); removes a person (`DELETE`). "
    'Body: `{"platform": "...", "user_id": "..."}`.',
)


@_people("GET", Query)
async def _list_people(chats: Chats, _: Query) -> object:
    return await chats.there.people()


@_people("DELETE", Somebody)
async def _shut_out(chats: Chats, asked: Somebody) -> object:
    return await chats.there.shut_out(asked.platform, asked.user_id)


_sending = CHATS.at(
    "/admin/gateway/send",
    'Sends a message to a chat; answers 202 with the id of its row. Body: `{"platform": "...", '
    '"chat_id": "...", "text": "..."}`, optionally `thread_id` and `key`: the same key sends the '
    "message once. Without `chat_id` it goes to the home channel.",
)


@_sending.raw("POST")
async def _send(chats: Chats, request: Request) -> Response:
    asked = await read_body(request, Notice)
    if (answer := await chats.there.passed_on(asked.platform, request)) is not None:
        return answer
    return JSONResponse(dict(await chats.there.send(asked)), status_code=202)


_reconnecting = CHATS.at(
    "/admin/gateway/reconnect",
    'Reconnects a channel, and answers with its new state. Body: `{"platform": "..."}`.',
)


@_reconnecting.raw("POST")
async def _reconnect(chats: Chats, request: Request) -> Response:
    asked = await read_body(request, Channel)
    if (answer := await chats.there.passed_on(asked.platform, request)) is not None:
        return answer
    return JSONResponse(dict(await chats.there.reconnect(asked.platform)))


_dead = CHATS.at(
    "/admin/gateway/dead",
    "Lists the undelivered messages (`GET`); retries one (`POST`) or discards one (`DELETE`). Body: "
    '`{"outbox_id": "..."}`.',
)


@_dead("GET", Query)
async def _list_dead(chats: Chats, _: Query) -> object:
    return await chats.undelivered.dead()


@_dead("POST", Undelivered)
async def _revive(chats: Chats, asked: Undelivered) -> object:
    return await chats.undelivered.revive(asked.outbox_id)


@_dead("DELETE", Undelivered)
async def _discard(chats: Chats, asked: Undelivered) -> object:
    return await chats.undelivered.discard(asked.outbox_id)
