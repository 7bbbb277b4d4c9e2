"""A card with the open questions: a small HTML page that an MCP client shows to its user.

    list_questions ─▶ result, and the client shows the card `ui://postroom/questions` in a sandbox
    the person presses a button in the card ─▶ client ─▶ answer_question ─▶ the record of the question

The two tools are offered only to clients that declare the MCP Apps extension and whose caller has the
operator's rights. The second tool is for the card, and not for the model. All other clients get the same
tools as before.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.types import Tool, ToolAnnotations

from postroom.contracts.errors import InvalidArgument, NotPermitted, PostroomError
from postroom.contracts.plain_answers import MAX_NAME_LENGTH
from postroom.contracts.questions import IN_WINDOW
from postroom.contracts.tokens import ADMIN
from postroom.mail.context import Caller
from postroom.mcp_server.answers import ToolAnswer, as_json, refused
from postroom.services.questions import QuestionService

EXTENSION: Final = "io.modelcontextprotocol/ui"
MIME_TYPE: Final = "text/html;profile=mcp-app"
CARD_URI: Final = "ui://postroom/questions"
MAX_LISTED: Final = 50
"""Maximum number of questions in a card."""
LIST: Final = "list_questions"
ANSWER: Final = "answer_question"
CARD_TOOLS: Final = (LIST, ANSWER)


def is_offered(caller: Caller) -> bool:
    """Return whether a caller has the operator's rights, which the card for questions requires."""
    is_agent = caller.agent_token is not None or caller.run_id is not None or caller.agent_id is not None
    return not is_agent and (caller.grant is None or caller.grant.scopes >= ADMIN)


def declares_cards(capabilities: object) -> bool:
    """Return whether a client's capabilities say that the client can show HTML cards."""
    extensions = capabilities.get("extensions") if isinstance(capabilities, Mapping) else None
    declared = extensions.get(EXTENSION) if isinstance(extensions, Mapping) else None
    kinds = declared.get("mimeTypes") if isinstance(declared, Mapping) else None
    return isinstance(kinds, list) and MIME_TYPE in kinds


@cache
def card_tools() -> tuple[Tool, ...]:
    """Return the tool that shows the card, and the tool that stores the card's answer."""
    number = {"type": "string", "description": "the question's number"}
    answer = {"type": ["string", "object"], "description": "yes or no, a choice, a text, or the fields"}
    return (
        Tool(
            name=LIST,
            description="Show the open questions of all agents to the person, who can answer them.",
            input_schema={"type": "object", "properties": {}, "additionalProperties": False},
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
            _meta={"ui": {"resourceUri": CARD_URI, "visibility": ["model", "app"]}},
        ),
        Tool(
            name=ANSWER,
            description="Store the person's answer to a question. Only the card calls this tool.",
            input_schema={
                "type": "object",
                "properties": {"number": number, "answer": answer, "why": {"type": "string"}},
                "required": ["number", "answer"],
                "additionalProperties": False,
            },
            annotations=ToolAnnotations(
                read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
            ),
            _meta={"ui": {"visibility": ["app"]}},
        ),
    )


def card() -> ReadResourceContents:
    """Return the HTML page of the card for questions."""
    page = files("postroom.mcp_server").joinpath("card.html").read_text(encoding="utf-8")
    return ReadResourceContents(content=page, mime_type=MIME_TYPE, meta={"ui": {"prefersBorder": True}})


async def call_card_tool(
    questions: QuestionService, name: str, arguments: Mapping[str, Any], client: str
) -> ToolAnswer:
    """Execute a call of a card tool; an error becomes a tool result."""
    try:
        if name == LIST:
            page = await questions.page(MAX_LISTED)
            shown = [(one["run_id"], one["number"]) for one in page["questions"]]
            await questions.note_shown(shown, f"in a card of {client or 'the client'}")
            listed = {"questions": page["questions"], "has_more": page["next"] is not None}
            return ToolAnswer(as_json(listed), listed)
        number, answer, why = arguments.get("number"), arguments.get("answer"), arguments.get("why", "")
        if not isinstance(number, str) or not isinstance(answer, str | dict) or not isinstance(why, str):
            raise InvalidArgument(
                "in answer_question, number and why must be texts, and answer must be a text or an object",
                value=str(number)[:64],
                remedy="use a button on the card",
            )
        question = await questions.show(number)
        if question["to"] or question["not_by"]:
            raise NotPermitted(
                f"question {question['number']} may only be answered by certain people, and a card does not "
                f"prove who answers",
                value=question["number"],
                remedy="answer the question on its page; nothing was changed",
            )
        by = f"the person at {client or 'the client'}"[:MAX_NAME_LENGTH]
        result = await questions.answer(question["number"], answer, why=why, by=by, at=IN_WINDOW)
        content = {"number": result["number"], "answer": result["answer"]}
        return ToolAnswer(as_json(content), content)
    except PostroomError as error:
        return refused(error.as_dict())
