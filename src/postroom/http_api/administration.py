"""The administration routes, which are generated from the table of operations."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.misfits import misfit, place_of
from postroom.contracts.operations import Operation
from postroom.contracts.work import plain
from postroom.http_api.long_work import LongWork
from postroom.http_api.words import note_operation
from postroom.mail.commands import kinds_in

D = TypeVar("D")
S = TypeVar("S", bound=msgspec.Struct)
_YES = {"yes": "true", "": "false"}
"""The forms of booleans in query parameters, besides the JSON values `true` and `false`."""


def administration_routes(operations: Iterable[Operation], services: Mapping[type[Any], Any]) -> list[Route]:
    """Return the routes for the administration operations of the services in `services`.

    A `LongWork` object in `services` tracks the progress of long requests.
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        if operation.service in services:
            by_path.setdefault(operation.path, {})[operation.method] = operation
    return [_route(path, rows, services) for path, rows in by_path.items()]


def _route(path: str, rows: Mapping[str, Operation], services: Mapping[type[Any], Any]) -> Route:
    taken = {method: frozenset(inspect.signature(row.run).parameters) for method, row in rows.items()}

    async def perform(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        operation, parameters = rows[method], taken[method]
        note_operation(request, operation)
        kind = operation.command
        command = read_query(request, kind) if method == "GET" else await read_body(request, kind)
        given_fields = {"command": command, "request": request, **msgspec.structs.asdict(command)}
        assert operation.service is not None  # noqa: S101 - of the rows with a service
        result = await operation.run(
            services[operation.service],
            **{name: given_fields[name] for name in given_fields if name in parameters},
        )
        if isinstance(result, Response):
            return result
        answer = plain(result)
        document = {operation.answer_key: answer} if operation.answer_key else answer
        return JSONResponse(document, status_code=operation.status)

    is_long = any(row.doing for row in rows.values())
    work = services.get(LongWork)
    return Route(path, work.watched(path, perform) if is_long and work else perform, methods=list(rows))


def read_query(request: Request, kind: type[S]) -> S:
    """Convert the query parameters of a request to an object of the type `kind`.

    Raises:
        InvalidArgument: The parameters do not match the type.
    """
    flags = {field.name for field in msgspec.structs.fields(kind) if field.default is False}
    by_name = {
        name: _YES.get(value, value) if name in flags else value
        for name, value in request.query_params.items()
    }
    try:
        return msgspec.convert(by_name, kind, strict=False)
    except msgspec.ValidationError as error:
        remedy = _choices(kind, str(error)) or f"the parameters are: {', '.join(kind.__struct_fields__)}"
        raise InvalidArgument(misfit(str(error))[:300], remedy=remedy) from error


def _choices(kind: type[Any], said: str) -> str:
    kinds = (kinds_in(field.type) for field in msgspec.structs.fields(kind) if field.name == place_of(said))
    choices = [get_args(member) for members in kinds for member in members if get_origin(member) is Literal]
    return f"`{place_of(said)}` must be one of: {', '.join(map(str, choices[0]))}" if choices else ""


async def read_body(request: Request, kind: type[D]) -> D:
    """Convert the JSON body of a request to an object of the type `kind`.

    Raises:
        InvalidArgument: The body does not match the type.
    """
    names = ", ".join(getattr(kind, "__struct_fields__", ()))
    remedy = f"the fields are: {names}" if names else "send a JSON object"
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=kind)
    except msgspec.ValidationError as error:
        choices = _choices(kind, str(error)) if names else ""
        raise InvalidArgument(misfit(str(error))[:300], remedy=choices or remedy) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}"[:300], remedy=remedy) from error
