"""The page of REST: every address, from the document that the server serves."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from from_code.markdown import table
from postroom.http_api.rest.document import EVENTS, OPENAPI
from postroom.http_api.rest.schemas import ONLY_OF_CHANGES, PROBLEM, codes_by_status
from postroom.mail.commands import FollowEvents
from postroom.mail.operations import MAIL_OPERATIONS


def page() -> str:
    """Return the page."""
    addresses = table(
        ("method", "address", "effect", "fields and answer"),
        [
            (
                one.method,
                f"`{one.path}`",
                one.summary,
                f"[`{one.name}`](tools.md#{one.name})",
            )
            for one in MAIL_OPERATIONS
        ]
        + [("GET", f"`{EVENTS}`", inspect.cleandoc(FollowEvents.__doc__ or ""), "[Events](../events.md)")],
    )
    return f"""
# REST

Each mail operation has an address. `/v1/openapi.json` describes them as an OpenAPI {OPENAPI} document.
[REST](../rest.md) shows how to use them.

{addresses}

## Refusals

A refusal is `application/problem+json`. The table lists the possible codes by status. [Errors](errors.md) has
the meaning of each code, and its remedy.

{table(("status", "codes", "where"), _statuses())}

A request with another method is refused with 405, `method_not_allowed` and an `Allow` header; a request to
any other address with 404 and `not_found`.

## Problem

{table(("key", "type", "meaning"), _keys(PROBLEM["properties"]))}
"""


def _statuses() -> Iterator[tuple[object, str, str]]:
    for status, codes in codes_by_status().items():
        where = "changes" if status in ONLY_OF_CHANGES else "everywhere"
        yield status, ", ".join(f"`{code}`" for code in codes), where


def _keys(properties: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, schema in properties.items():
        yield f"`{name}`", schema.get("type", "any"), schema.get("description", "")
