"""Shows the questions of an agent in the window of its client program, by MCP elicitation.

    2026-07-28   ask_person ─▶ input_required ─▶ ask_person with the person's answer ─▶ result
    before       ask_person ─▶ stream: elicitation/create ─▶ POST with the person's answer; stream: result

The answer is processed by the same service as the answers from all other surfaces. If somebody answers on
another surface first, the result of the tool says so. If the person declines or closes the window, the
question stays open, because neither is a yes or a no.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec
from starlette.requests import Request

from postroom.concurrency import SystemTimer
from postroom.contracts.errors import InvalidArgument, NotPermitted, StaleDecision
from postroom.contracts.messages import Json
from postroom.contracts.questions import NOBODY, QuestionKind, schema_of
from postroom.contracts.quoting import exact, readable
from postroom.contracts.work import GivenAnswer, OpenQuestion
from postroom.mcp_server.answers import ToolAnswer, as_json, refused
from postroom.mcp_server.cards import declares_cards
from postroom.services.questions import QuestionService
from postroom.sse import SseResponse, entry

ASK: Final = "ask_person"
ELICITS: Final = "elicits"
"""A mark in the session id of a client that supports elicitation.

The mark is used before protocol revision 2026-07-28.

The server stores no session ids: a client that sends this mark has declared the capability to this server or
to another one.
"""
CARDS: Final = "cards"
"""The mark of a client that can show cards."""
_LOOK_MS: Final = 500
_ENDS_MS: Final = 6_000
"""Milliseconds to wait until a question ends whose deadline has passed."""
MAX_WINDOWS: Final = 3
"""How often a question is shown in a window; it is shown again after an answer that is not valid."""
_HEARTBEAT: Final = 30
"""Number of checks for an answer after which a stream sends a comment, so that no proxy closes the stream."""
Arguments = Mapping[str, Any]


def marks_of(capabilities: object) -> list[str]:
    """Return the marks for a session id that encode the capabilities of a client."""
    elicits = isinstance(capabilities, Mapping) and "elicitation" in capabilities
    return [ELICITS] * elicits + [CARDS] * declares_cards(capabilities)


def is_marked(request: Request | None, mark: str) -> bool:
    """Return whether the session id of a request contains a mark."""
    return request is not None and mark in request.headers.get("mcp-session-id", "").split("-")


class Windows:
    """Shows questions in windows of client programs, and stores the answers."""

    def __init__(self, questions: QuestionService) -> None:
        self.questions = self._questions = questions
        self._timer = SystemTimer()
        self._replies: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        """The open windows of this process, keyed by the id of the request that opened the window."""

    async def look(self, asked: Arguments, number: str) -> OpenQuestion | GivenAnswer | None:
        """Return an open question or the answer to a question, or None for an unknown number."""
        return await self._questions.in_window(str(asked["project_key"]), str(asked["agent_name"]), number)

    async def opened(self, asked: Arguments, number: str, client: str) -> OpenQuestion | None:
        """Return a question to show in a client's window, or None if the question must not be shown."""
        question = await self.look(asked, number)
        if not isinstance(question, OpenQuestion) or question.asked.to or question.asked.not_by:
            return None  # a window does not prove who sits there
        await self._questions.note_shown(
            [(question.run_id, question.number)], f"in the window of {client or 'the client'}"
        )
        return question

    async def take(
        self, asked: Arguments, number: str, reply: Mapping[str, Any], client: str, *, left: int
    ) -> ToolAnswer | tuple[OpenQuestion, str]:
        """Store the person's input as the answer to a question, and return the tool result.

        For invalid input, return the question and the reason, so that the client can show the question again.
        If `left` is 0, invalid input leaves the question open.
        """
        question = await self.look(asked, number)
        if question is None:
            return refused(StaleDecision(f"question {number} is not open", value=number).as_dict())
        if isinstance(question, GivenAnswer):
            return told(question, first=True)
        if reply.get("action") != "accept":
            return still_open(number)
        content = reply.get("content")
        values: Json = content if isinstance(content, dict) else {}
        if question.asked.kind is not QuestionKind.FORM:
            values = values.get("answer") if isinstance(values, dict) else None
        try:
            await self._questions.answer_in_window(question, values, client)
        except InvalidArgument as error:
            if left > 0:
                return question, error.message
            return still_open(
                number,
                f"{error.message}. The window of the question stays closed after {MAX_WINDOWS} answers that "
                "are not valid. ",
            )
        except (StaleDecision, NotPermitted) as error:
            after = await self.look(asked, number)
            ends_at = None if isinstance(error, NotPermitted) else question.expires_at
            for _ in range(_ENDS_MS // 50 if ends_at is not None else 0):
                if not isinstance(after, OpenQuestion):
                    break
                await self._timer.sleep(50)  # its deadline has passed, and the server is ending it
                after = await self.look(asked, number)
            return told(after, first=True) if isinstance(after, GivenAnswer) else refused(error.as_dict())
        after = await self.look(asked, number)
        return told(after) if isinstance(after, GivenAnswer) else still_open(number)

    def replied(self, message: Mapping[str, Any]) -> bool:
        """Accept a client's reply to `elicitation/create`; return False if no window waits for the reply."""
        waiting = self._replies.get(str(message.get("id")))
        if waiting is None or waiting.done():
            return False
        result = message.get("result")
        waiting.set_result(result if isinstance(result, dict) else {"action": "cancel"})
        return True

    def stream(
        self, asked: Arguments, question: OpenQuestion, client: str, shown: Callable[[ToolAnswer], Any]
    ) -> SseResponse:
        """Return a response that asks the person in a window and then sends the tool result."""
        ids = [f"{question.number}-{uuid4().hex}"]

        async def source() -> AsyncGenerator[str]:
            answer: ToolAnswer | tuple[OpenQuestion, str] = question, ""
            left = MAX_WINDOWS
            while isinstance(answer, tuple):
                left -= 1
                waiting = asyncio.get_running_loop().create_future()
                self._replies[ids[-1]] = waiting
                params = elicitation(*answer)
                yield _line({"id": ids[-1], "method": "elicitation/create", "params": params})
                looks = 0
                while not waiting.done():
                    await asyncio.wait([waiting], timeout=_LOOK_MS / 1_000)
                    looks += 1
                    if not waiting.done() and not isinstance(
                        await self.look(asked, question.number), OpenQuestion
                    ):
                        reason = {
                            "requestId": ids[-1],
                            "reason": "the question was answered in another place, or has ended",
                        }
                        yield _line({"method": "notifications/cancelled", "params": reason})
                        waiting.set_result({"action": "cancel"})
                    elif looks % _HEARTBEAT == 0:
                        yield ": waits\n\n"
                answer = await self.take(asked, question.number, waiting.result(), client, left=left)
                ids.append(f"{question.number}-{uuid4().hex}")
            yield _line(shown(answer))

        def left() -> None:
            for number in ids:
                self._replies.pop(number, None)

        return SseResponse(source(), left=left)


def is_open(answer: ToolAnswer) -> bool:
    """Return whether the result of `ask_person` is a question that a window can show."""
    return not answer.is_error and answer.structured.get("state", "open") == "open"


def elicitation(question: OpenQuestion, why: str = "") -> dict[str, Any]:
    """Return the parameters of `elicitation/create` for a question.

    `why` is the reason why the last answer was rejected, or "".
    """
    action = f"A yes permits exactly this:\n{exact(question.asked.action)}" if question.asked.action else ""
    parts = (why, f"{question.agent} asks: {readable(question.text)}", action)
    return {"message": "\n\n".join(filter(None, parts)), "requestedSchema": schema_of(question.asked)}


def told(given: GivenAnswer, *, first: bool = False) -> ToolAnswer:
    """Return the tool result for a question that was answered or closed.

    `first` is True if the question ended before the person used the window.
    """
    reply = {"question_id": given.number, "asked": True, "state": "closed"}
    if given.is_closed:
        return ToolAnswer(f"{as_json(reply)}\nThe question is closed: {given.why}.", reply)
    word = {True: "yes", False: "no", None: ""}[given.approved]
    reply |= {"state": "answered", "answer": ": ".join(filter(None, (word, given.why)))}
    if given.by == NOBODY:
        which = "no" if given.approved is False else "the default of the question"
        how = f"Nobody answered in time, so the answer is {which}"
    else:
        how = f"A person answered, {given.where} before the window" if first else "A person answered"
    return ToolAnswer(f"{as_json(reply)}\n{how}.", reply)


def still_open(number: str, why: str = "") -> ToolAnswer:
    """Return the tool result for a window that was closed without an answer."""
    reply = {"question_id": number, "asked": True, "state": "open"}
    return ToolAnswer(f"{as_json(reply)}\n{why}No answer yet. The answer will come by mail.", reply)


def _line(message: Mapping[str, Any]) -> str:
    return entry("message", msgspec.json.encode({"jsonrpc": "2.0", **message}).decode())
