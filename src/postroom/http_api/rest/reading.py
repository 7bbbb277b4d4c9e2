"""Converts requests to the plain arguments of operations, which `read_command` validates later."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from postroom.contracts.errors import InvalidArgument

JSON: Final = "application/json"
KEY_HEADER: Final = "Idempotency-Key"
KEY_FIELD: Final = "idempotency_key"
MAX_FIELDS: Final = 2_000
"""Maximum number of query fields. About this number of short fields fit into the longest query."""


def query_arguments(query: bytes, lists: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a query; a list field is repeated in the query for each entry.

    Raises:
        InvalidArgument: The query is not UTF-8, has too many fields, or repeats a field that is not a list.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:  # invalid UTF-8 raises a ValueError, too
        raise InvalidArgument(
            "the query is malformed", remedy=f"send at most {MAX_FIELDS} fields, UTF-8 percent-encoded"
        ) from error
    values: dict[str, Any] = {name: [] for name, _ in pairs if name in lists}
    for name, value in pairs:
        if name in lists:
            values[name].append(value)
        elif name in values:
            raise InvalidArgument(
                f"{name[:200]} is given more than once",
                value=name[:200],
                remedy="pass it only once, because it is not a list",
            )
        else:
            values[name] = value
    return values


async def body_arguments(request: Request) -> dict[str, Any]:
    """Return the fields of a JSON body, together with the idempotency key from the header.

    Raises:
        HTTPException: The type of the body is not JSON (415).
        InvalidArgument: The body is not a JSON object, or the header and the body contain different keys.
    """
    kind, _, _ = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != JSON:
        raise HTTPException(415, f"the body's content type is not {JSON}", headers={"Accept-Post": JSON})
    try:
        values = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgument(
            f"the body is not valid JSON: {reason}"[:300], remedy="send one JSON object in UTF-8"
        ) from error
    if not isinstance(values, dict):
        raise InvalidArgument("the body is not a JSON object", remedy="send the fields as one JSON object")
    header = request.headers.get(KEY_HEADER)  # the guard passes at most one of these headers
    if header is None:
        return values
    key = header.strip()
    if values.get(KEY_FIELD) not in (None, key):
        raise InvalidArgument(
            f"the header {KEY_HEADER} and the field {KEY_FIELD} differ",
            remedy="pass the key in only one of them",
        )
    return {**values, KEY_FIELD: key}


def list_fields(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of all fields in a tool's schema that are lists."""
    properties: Mapping[str, Mapping[str, Any]] = schema["properties"]
    return frozenset(name for name, kind in properties.items() if kind.get("type") == "array")
