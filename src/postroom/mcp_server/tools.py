"""Which operations are tools, in which profile, and how a tool is described to a client."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from mcp.types import Tool, ToolAnnotations

from postroom.mail.operations import ALL_OPERATIONS, Operation
from postroom.mcp_server.schema import estimated_tokens, input_schema

Profile = Literal["full", "core"]

CORE = (
    "start_session",
    "send_message",
    "reply_message",
    "fetch_inbox",
    "acknowledge_message",
    "search_messages",
    "file_reservation_paths",
    "release_file_reservations",
    "list_agents",
    "delivery_status",
)
CORE_TOKEN_LIMIT = 2_500


@cache
def tools_of(profile: Profile) -> tuple[Tool, ...]:
    """Return the tools of a profile in an order that never changes: clients cache prompts with it."""
    return tuple(_tool(operation) for operation in operations_of(profile))


def operations_of(profile: Profile) -> Sequence[Operation]:
    """Return the operations that a profile offers."""
    if profile == "full":
        return ALL_OPERATIONS
    by_name = {operation.name: operation for operation in ALL_OPERATIONS}
    return [by_name[name] for name in CORE]


def _tool(operation: Operation) -> Tool:
    return Tool(
        name=operation.name,
        description=operation.description,
        input_schema=input_schema(operation.command),
        annotations=ToolAnnotations(destructive_hint=operation.destructive)
        if operation.changes
        else ToolAnnotations(read_only_hint=True),
    )


def definition_tokens(profile: Profile) -> int:
    """Return an estimate of what a profile's definitions cost a model, as they travel."""
    definitions: list[dict[str, Any]] = [
        tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools_of(profile)
    ]
    return estimated_tokens(json.dumps(definitions, separators=(",", ":")))
