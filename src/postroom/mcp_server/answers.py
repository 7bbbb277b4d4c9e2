"""Converts the result of an operation, or its error, to the result of an MCP tool call."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from postroom.contracts.errors import PostroomError
from postroom.log import get_logger
from postroom.mail.context import Caller
from postroom.services.calls import Calls

_LOG = get_logger(__name__)
Untold = Callable[[str], Awaitable[str]]
"""Returns the new messages for a run that its program has not received yet; empty if there are none."""
CAME: Final = "messages_for_this_run"
"""The field of the structured content that contains these messages."""
_GIVES_STRUCTURED: Final = ("claude", "codex")
"""The clients that pass the structured content to their model, but not the text.

Other clients pass the text.
"""
_GIVES_BOTH: Final = ("cline", "@cline", "copilot", "github-copilot")
"""The clients that pass both the text and the structured content to their model."""


def takes_text_only(client: str) -> bool:
    """Return whether tool results for a client program must contain only text."""
    return client.lower().startswith(_GIVES_BOTH)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of one tool call.

    `came` is the text of new messages for the run that made the call, or "".
    """

    text: str
    structured: dict[str, Any]
    is_error: bool = False
    came: str = ""

    def told_to(self, client: str) -> tuple[list[str], dict[str, Any] | None]:
        """Return the texts and the structured content of the result for a client program."""
        if self.came and client.lower().startswith(_GIVES_STRUCTURED):
            return [self.text], {**self.structured, CAME: self.came}
        texts = [self.text, self.came] if self.came else [self.text]
        return texts, None if takes_text_only(client) else self.structured


async def answer_call(
    calls: Calls,
    name: str,
    arguments: dict[str, Any],
    *,
    caller: Caller,
    follows: str | None = None,
    untold: Untold | None = None,
) -> ToolAnswer:
    """Perform a mail operation, and return the tool result.

    An error becomes a tool result with an error code and a remedy. If a run made the call, the tool result
    contains new messages for the run.
    """
    try:
        answer = await calls.perform(name, arguments, caller=caller, follows=follows)
        tool_answer = ToolAnswer(as_json(answer), answer if isinstance(answer, dict) else {"result": answer})
    except PostroomError as error:
        tool_answer = refused(error.as_dict())
    except Exception:  # the edge around one call: logged with its traceback, which stays here
        tool_answer = refused(crash(name))
    if untold is None or caller.run_id is None:
        return tool_answer
    try:
        return replace(tool_answer, came=await untold(caller.run_id))
    except PostroomError as error:  # the messages keep waiting, and the next call looks again
        _LOG.warning("mcp.run_not_told", run_id=caller.run_id, reason=error.describe())
        return tool_answer


def as_json(value: Any) -> str:
    """Return plain data as JSON text."""
    return msgspec.json.encode(value).decode()


def crash(name: str) -> dict[str, object]:
    """Log the current exception, and return an error for the client."""
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


def refused(error: dict[str, object]) -> ToolAnswer:
    """Return an error in the form of a tool result."""
    text = f"{error['code']}: {error['message']}"
    if error["remedy"]:
        text += f"\nremedy: {error['remedy']}"
    return ToolAnswer(text, {"error": error}, is_error=True)
