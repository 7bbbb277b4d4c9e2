"""The tools of an agent that is a model: mail operations, which always act as this agent."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, get_type_hints

import msgspec

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.messages import Json
from postroom.contracts.operations import Operation
from postroom.contracts.tools import Suspension, ToolCallResumeMode, ToolDescriptor, ToolResult
from postroom.mail.commands import AgentName
from postroom.mail.context import Caller
from postroom.mail.operations import OPERATIONS
from postroom.mail.waking.open_questions import ASK
from postroom.mail.waking.prompts import decision_told
from postroom.mcp_server.schema import input_schema
from postroom.runtime import Tool, ToolContext
from postroom.runtime.files import SEND_FILE, SendFileTool
from postroom.services.calls import Calls

MAX_ANSWER_LENGTH: Final = 200_000
"""Maximum characters of a result. The model must request a longer result in parts."""
MAX_QUESTION_LENGTH: Final = 2_000
_PROJECT: Final = "project_key"
_KEY: Final = "idempotency_key"
TOOLS: Final = (
    "show_project",
    "whois",
    "list_agents",
    "retire_agent",
    "unretire_agent",
    "send_message",
    "reply_message",
    "recall_message",
    "fetch_inbox",
    "fetch_inbox_events",
    "get_message",
    "get_attachment",
    "delivery_status",
    "mark_message_read",
    "acknowledge_message",
    "search_messages",
    "fetch_thread",
    "summarize_thread",
    "ask_person",
    "request_contact",
    "respond_contact",
    "list_contacts",
    "set_contact_policy",
    "file_reservation_paths",
    "check_file_reservations",
    "release_file_reservations",
    "renew_file_reservations",
    "force_release_file_reservation",
    "list_file_reservations",
    "list_tasks",
    "claim_task",
    "add_task",
    "update_task",
    "done_task",
    "add_note",
    "find_notes",
    "end_note",
    "subscribe",
    "list_subscriptions",
    "end_subscription",
    "fetch_events",
    "catch_up",
    SEND_FILE,
)
"""The tools that a model may have: mail operations, questions to people, and files for the chat.

A mail operation acts as the model's agent in its project.
"""


def check_tools(names: Sequence[str]) -> None:
    """Check that a model may call all tools in the list `names`.

    Raises:
        InvalidRunner: A name is not the name of a permitted tool.
    """
    if wrong := [name for name in names if name not in TOOLS]:
        raise InvalidRunner(
            f"the list of tools in this runner is invalid: a model may not call {wrong[0]!r}",
            value=wrong,
            remedy=f"choose from: {', '.join(TOOLS)}",
        )


def tools_for(names: Sequence[str], calls: Calls, *, project: str, agent: str, caller: Caller) -> list[Tool]:
    """Return the tools with the names `names` for an agent.

    Raises:
        InvalidRunner: A name is not the name of a permitted tool.
    """
    check_tools(names)
    made: list[Tool] = []
    for name in names:
        if name == ASK:
            made.append(AskTool())
        elif name == SEND_FILE:
            made.append(SendFileTool())
        else:
            made.append(MailTool(OPERATIONS[name], calls, project=project, agent=agent, caller=caller))
    return made


class MailTool:
    """A mail operation as a tool for a model.

    The agent and the project are fixed, so the model cannot choose them.
    """

    def __init__(
        self, operation: Operation, calls: Calls, *, project: str, agent: str, caller: Caller
    ) -> None:
        self._operation = operation
        self._calls = calls
        self._caller = caller
        hints = get_type_hints(operation.command, include_extras=True)
        acting = [name for name, hint in hints.items() if hint == AgentName]
        self._given = {_PROJECT: project, **dict.fromkeys(acting, agent)}
        schema = input_schema(operation.command)
        hidden = {*self._given, _KEY}
        parameters = {
            **schema,
            "properties": {name: field for name, field in schema["properties"].items() if name not in hidden},
            "required": [name for name in schema.get("required", ()) if name not in hidden],
        }
        self.descriptor = ToolDescriptor(
            id=operation.name,
            name=operation.name,
            description=operation.description,
            parameters=parameters,
        )

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Execute the mail operation. A repeated call makes the change only once.

        Raises:
            PostroomError: The operation failed. Nothing was changed.
        """
        name = self._operation.name
        all_arguments: dict[str, Any] = {**arguments, **self._given}
        if self._operation.changes:
            all_arguments[_KEY] = derive_key(context.identity.run_id, context.call_id)
        caller = replace(self._caller, run_id=context.identity.run_id, claim=context.claim)
        answer = msgspec.to_builtins(await self._calls.perform(name, all_arguments, caller=caller))
        if len(json.dumps(answer)) > MAX_ANSWER_LENGTH:
            remedy = (
                "the tool was executed, so do not call it again"
                if self._operation.changes
                else "request less at once"
            )
            return ToolResult.error(name, f"the answer exceeds {MAX_ANSWER_LENGTH} characters: {remedy}")
        return ToolResult.success(name, answer)


class AskTool:
    """Asks a person a yes or no question; the run waits for the answer without a time limit."""

    descriptor = ToolDescriptor(
        id=ASK,
        name=ASK,
        description="Ask a person a yes or no question. The run waits, and this tool returns the answer.",
        parameters={
            "type": "object",
            "properties": {"question": {"type": "string"}},
            "required": ["question"],
            "additionalProperties": False,
        },
    )

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Ask the person a question, or return the answer if the person has answered."""
        question = str(arguments["question"]).strip()
        if context.decision is not None:
            return ToolResult.success(ASK, decision_told(context.decision))
        if not 0 < len(question) <= MAX_QUESTION_LENGTH:
            return ToolResult.error(ASK, f"the question must have 1 to {MAX_QUESTION_LENGTH} characters")
        suspension = Suspension(id=f"ask_{context.call_id}", action=ASK, message=question)
        return ToolResult.suspended(ASK, suspension, resume_mode=ToolCallResumeMode.PASS_DECISION_TO_TOOL)


def derive_key(run_id: str, call_id: str) -> str:
    """Return an idempotency key for a tool call; a repeated call has the same key."""
    seed = f"{run_id}\0{call_id}"
    return f"run-{hashlib.sha256(seed.encode()).hexdigest()}"
