"""The table of administration: each address is declared once, with its callers, its words and its operations.

Routes, permissions and the reference pages are made from it. A module of operations says for each method what
it asks for and what it does:

    prune = SERVER.at("/admin/prune", "Deletes the messages that ...", is_long=True)

    @prune("POST", Prune)
    async def _(server: Server, asked: Prune) -> object:
        return await server.operations.prune(dry_run=asked.dry_run)
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.misfits import misfit
from postroom.http_api.long_work import LongWork


class Who(StrEnum):
    """Whom an address answers."""

    ANYONE = "anyone"
    PROVED_THERE = "callers that the path authenticates itself"
    """A channel, or a result by its signature: each authenticates its callers itself."""
    PEOPLE = "people"
    """Who has logged in; the server's token counts as well."""
    LOOKERS = "agents, programs and people"
    """A named token as far as its scopes go."""
    CALLERS = "agents and programs"
    HOOKS = "the operator and runs"
    ADMINS = "the operator and `admin`"
    OPERATOR = "the operator"


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a body asks for."""


class Query(msgspec.Struct, frozen=True):
    """What the parameters of an address ask for; other parameters are ignored."""


S = TypeVar("S")
A = TypeVar("A", bound=msgspec.Struct)
D = TypeVar("D")
Operation = Callable[[S, A], Awaitable[object]]
"""Does what is asked of a service, and returns the answer: plain JSON data, or a response of its own."""


class Address(Generic[S]):
    """One address of administration."""

    def __init__(self, path: str, words: str, who: Who, *, is_long: bool) -> None:
        self.path, self.words, self.who, self.is_long = path, words, who, is_long
        self.methods: dict[str, Callable[[S, Request], Awaitable[Response]]] = {}

    def __call__(
        self, method: str, asks: type[A], *, status: int = 200
    ) -> Callable[[Operation[S, A]], Operation[S, A]]:
        """Return the decorator of the operation behind a method.

        `asks` is read from the JSON body, or with GET from the parameters of the address.
        """

        def declared(run: Operation[S, A]) -> Operation[S, A]:
            async def answer(service: S, request: Request) -> Response:
                asked = asked_of(request, asks) if method == "GET" else await read_body(request, asks)
                found = await run(service, asked)
                if isinstance(found, Response):
                    return found
                return JSONResponse(dict(found) if isinstance(found, Mapping) else found, status_code=status)

            self.methods[method] = answer
            return run

        return declared

    def raw(self, method: str) -> Callable[[Callable[[S, Request], Awaitable[Response]]], None]:
        """Return the decorator of an operation that reads the request itself."""

        def declared(run: Callable[[S, Request], Awaitable[Response]]) -> None:
            self.methods[method] = run

        return declared

    def route(self, service: S, work: LongWork) -> Route:
        """Return the route of the address; how far an operation is can be asked of `work` if it is long."""

        async def answer(request: Request) -> Response:
            run = self.methods["GET" if request.method == "HEAD" else request.method]
            return await run(service, request)

        endpoint = work.watched(self.path, answer) if self.is_long else answer
        return Route(self.path, endpoint, methods=list(self.methods))


class Table(Generic[S]):
    """The addresses of one service, in the order in which they were declared."""

    def __init__(self) -> None:
        self.addresses: list[Address[S]] = []

    def at(self, path: str, words: str, who: Who = Who.ADMINS, *, is_long: bool = False) -> Address[S]:
        """Declare an address; `words` say what its operations do."""
        made = Address[S](path, words, who, is_long=is_long)
        self.addresses.append(made)
        return made

    def routes(self, service: S, work: LongWork | None = None) -> list[Route]:
        """Return the routes to a service."""
        watched = work or LongWork()
        return [one.route(service, watched) for one in self.addresses]


def asked_of(request: Request, kind: type[A]) -> A:
    """Return what the parameters of an address ask for.

    Raises:
        InvalidArgument: They do not fit.
    """
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(getattr(kind, "__struct_fields__", ()))
        raise InvalidArgument(misfit(str(error))[:300], remedy=f"the parameters are: {names}") from error


async def read_body(request: Request, kind: type[D]) -> D:
    """Return a JSON body as what it is to be.

    Raises:
        InvalidArgument: it does not fit.
    """
    names = getattr(kind, "__struct_fields__", ())
    remedy = f"send a JSON object with {', '.join(names)} as text" if names else "send a JSON object"
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(misfit(str(error))[:300], remedy=remedy) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}"[:300], remedy=remedy) from error


AnyTable = Table[Any]
