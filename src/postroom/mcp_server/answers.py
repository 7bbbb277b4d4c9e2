"""What a tool answers: the result of an operation, or its refusal, in the form that MCP gives to both."""

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from postroom.contracts.errors import PostroomError
from postroom.log import get_logger
from postroom.mail.context import Caller
from postroom.services.calls import Calls

_LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to one call."""

    text: str
    structured: dict[str, Any]
    is_error: bool = False


async def answer_call(
    calls: Calls, name: str, arguments: dict[str, Any], *, caller: Caller, follows: str | None = None
) -> ToolAnswer:
    """Perform an operation; every refusal is an answer with code, value and remedy, never a traceback."""
    try:
        answer = await calls.perform(name, arguments, caller=caller, follows=follows)
    except PostroomError as error:
        return _refused(error.as_dict())
    except Exception:  # the edge around one call: logged with its traceback, which stays here
        return _refused(crash(name))
    return ToolAnswer(as_json(answer), answer if isinstance(answer, dict) else {"result": answer})


def as_json(value: Any) -> str:
    """Return a plain value as JSON text."""
    return msgspec.json.encode(value).decode()


def crash(name: str) -> dict[str, object]:
    """Log the exception that is being handled, and return what a client is told of it."""
    reference = uuid.uuid4().hex[:12]
    _LOG.exception("mcp.tool_crashed", tool=name, reference=reference)
    return {
        "code": "internal_error",
        "message": f"{name[:100]} failed inside the server (reference {reference})",
        "value": None,
        "remedy": "tell the operator the reference; the server's log has the cause",
        "retryable": False,
        "details": {"reference": reference},
    }


def _refused(error: dict[str, object]) -> ToolAnswer:
    text = f"{error['code']}: {error['message']}"
    if error["remedy"]:
        text += f"\nremedy: {error['remedy']}"
    return ToolAnswer(text, {"error": error}, is_error=True)
