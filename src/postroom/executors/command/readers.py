"""Readers of the programs' output: text, answer, session and usage.

`docs/clients.md` names the releases whose output was tested. Every reader ignores unknown lines. If no line
has the answer, the plain text is the answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from postroom.contracts.runs import Usage


@dataclass(slots=True)
class Said:
    """The content of the output that was read up to now."""

    answer: str | None = None
    error: str | None = None
    session: str | None = None
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False
    """Whether the model has output or called something."""
    is_ended: bool = False
    """Whether the program reported its end; without an answer before it, there is none."""
    must_end: bool = False
    """Whether the program always reports its end unless it is cut off."""
    earlier: str = ""
    """The answers of earlier turns; messages that arrived after them get separate answers."""
    last: str = ""
    """The last thing that happened, in the program's terms."""
    starts_anew: bool = False
    """Whether the next text starts another answer."""


class LineReader(Protocol):
    """Reads the lines of one program, each a JSON object."""

    def __call__(self, said: Said, line: Mapping[str, Any]) -> str:
        """Process a line and return the text to stream."""
        ...


def object_in(line: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of a line, or None."""
    stripped = line.strip()
    if not stripped.startswith(b"{"):
        return None
    try:
        read = json.loads(stripped.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def claude(said: Said, line: Mapping[str, Any]) -> str:
    """Read `claude -p --output-format stream-json --verbose`: the line of type `result` has the answer."""
    kind = line.get("type")
    if kind == "user" and line.get("isReplay") is True and said.is_ended:
        said.earlier, said.is_ended = (
            _behind(said.answer),
            False,
        )  # a new turn for messages that came too late for this one
    if kind == "system":
        said.session = _text(line, "session_id") or said.session
    if kind == "assistant":
        said.is_begun = True
        content = _table(line, "message").get("content")
        blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
        return "".join(_text(one, "text") or "" for one in blocks if one.get("type") == "text")
    if kind == "result":
        said.is_ended = True
        result = _text(line, "result")
        failed = line.get("is_error") is True or str(line.get("subtype", "")).startswith("error")
        said.error = (result or _listed(line, "errors") or str(line.get("subtype"))) if failed else None
        said.answer = None if failed else f"{said.earlier}{result or ''}"
        said.session = _text(line, "session_id") or said.session
        used = _table(line, "usage")
        cached = _number(used, "cache_creation_input_tokens") + _number(used, "cache_read_input_tokens")
        said.usage = Usage(
            input_tokens=int(_number(used, "input_tokens") + cached),
            output_tokens=int(_number(used, "output_tokens")),
            cost_micros=round(_number(line, "total_cost_usd") * 1_000_000),
        )
    return ""


def codex(said: Said, line: Mapping[str, Any]) -> str:
    """Read `codex exec --json`: the last completed item with an agent's message is the answer."""
    if "method" in line:
        return codex_server(said, line)
    kind = line.get("type")
    if kind == "thread.started":
        said.session = _text(line, "thread_id") or said.session
    if kind in ("turn.failed", "error"):
        said.error = _text(_table(line, "error"), "message") or _text(line, "message") or kind
    if kind == "turn.completed":
        said.is_ended = True
        used = _table(line, "usage")
        said.usage += Usage(
            input_tokens=int(_number(used, "input_tokens")), output_tokens=int(_number(used, "output_tokens"))
        )
        said.error = None  # what it told before was overcome
    if kind == "item.completed":
        said.is_begun = True
        item = _table(line, "item")
        if (item.get("type") or item.get("item_type")) in ("agent_message", "assistant_message"):
            said.answer = _text(item, "text") or said.answer
            return _text(item, "text") or ""
    return ""


def codex_server(said: Said, line: Mapping[str, Any]) -> str:
    """Read `codex app-server`: as `codex exec`, in notifications.

    A user message right after an agent's message gets its own answer: both are kept.
    """
    params = _table(line, "params")
    if line["method"] == "turn/completed":
        turn = _table(params, "turn")
        said.is_ended, said.error = True, None
        if turn.get("status") != "completed":
            said.error = _text(_table(turn, "error"), "message") or f"the turn ended: {turn.get('status')}"
    if line["method"] == "thread/tokenUsage/updated":
        used = _table(_table(params, "tokenUsage"), "last")
        said.usage += Usage(
            input_tokens=int(_number(used, "inputTokens")), output_tokens=int(_number(used, "outputTokens"))
        )
    if line["method"] != "item/completed":
        return ""
    item, former = _table(params, "item"), said.last
    said.last = _text(item, "type") or ""
    if said.last == "userMessage" and former == "agentMessage":
        said.earlier = _behind(said.answer)
    if said.last != "userMessage":
        said.is_begun = True
    if said.last != "agentMessage":
        return ""
    text = _text(item, "text") or ""
    said.answer = f"{said.earlier}{text}"
    return text


def _behind(answer: str | None) -> str:
    """Return an answer as the prefix of another one."""
    return f"{answer}\n\n" if answer else ""


def gemini(said: Said, line: Mapping[str, Any]) -> str:
    """Read `gemini --output-format json`: one object in total; its `response` is the answer."""
    answer = _text(line, "response")
    error = line.get("error")
    if answer is None and error is None:
        return ""
    said.is_begun, said.is_ended = answer is not None, True
    said.answer = answer
    said.error = _text(error, "message") or str(error) if isinstance(error, dict) else None
    said.session = _text(line, "session_id") or _text(line, "sessionId") or said.session
    for model in _table(_table(line, "stats"), "models").values():
        tokens = _table(model, "tokens") if isinstance(model, dict) else {}
        said.usage += Usage(
            input_tokens=int(_number(tokens, "prompt")), output_tokens=int(_number(tokens, "candidates"))
        )
    return answer or ""


def opencode(said: Said, line: Mapping[str, Any]) -> str:
    """Read `opencode run --format json`: the texts of the last step with text are the answer.

    A step after the last step of its turn answers messages that arrived during the turn: both answers are
    kept.
    """
    kind, part = line.get("type"), _table(line, "part")
    said.session = _text(line, "sessionID") or _text(part, "sessionID") or said.session
    if kind == "error":
        error = _table(line, "error")
        said.error = _text(_table(error, "data"), "message") or _text(error, "name") or "error"
    if kind == "step_start":
        said.starts_anew = True
        if said.last == "stop":
            said.earlier = _behind(said.answer)
    if kind in ("text", "tool_use"):
        said.is_begun = True
    if kind == "text":
        before = said.earlier if said.starts_anew else said.answer or ""
        said.starts_anew = False
        said.answer = before + (_text(part, "text") or "")
        return _text(part, "text") or ""
    if kind == "step_finish":
        said.is_ended = True
        said.last = _text(part, "reason") or ""
        tokens = _table(part, "tokens")
        said.usage += Usage(
            input_tokens=int(_number(tokens, "input")),
            output_tokens=int(_number(tokens, "output")),
            cost_micros=round(_number(part, "cost") * 1_000_000),
        )
    return ""


def copilot(said: Said, line: Mapping[str, Any]) -> str:
    """Read `copilot -p --output-format json`: the last message of the assistant is the answer."""
    kind, data = line.get("type"), _table(line, "data")
    said.session = _text(line, "sessionId") or _text(data, "sessionId") or said.session
    if kind == "assistant.message":
        said.is_begun = True
        said.answer = _text(data, "content") or said.answer
        return _text(data, "content") or ""
    if kind in ("session.error", "error"):
        said.error = _text(data, "message") or _text(line, "message") or kind
    if kind == "result":
        said.is_ended = True
    return ""


def cline(said: Said, line: Mapping[str, Any]) -> str:
    """Read `cline --json`: the text of the line of type `run_result` is the answer."""
    kind, event = line.get("type"), _table(line, "event")
    if kind == "agent_event" and event.get("type") == "content_end":
        said.is_begun = True
        return (_text(event, "text") or "") if event.get("contentType") == "text" else ""
    if kind == "error":
        said.error = _text(line, "message") or kind
    if kind == "run_result":
        said.is_begun = said.is_ended = True
        said.answer = _text(line, "text")
        reason = _text(line, "finishReason") or ""
        said.error = None if reason == "completed" else said.error or f"its run ended: {reason}"
        used = _table(line, "aggregateUsage")
        said.usage = Usage(
            input_tokens=int(_number(used, "inputTokens")),
            output_tokens=int(_number(used, "outputTokens")),
            cost_micros=round(_number(used, "totalCost") * 1_000_000),
        )
    return ""


def _text(table: object, name: str) -> str | None:
    found = table.get(name) if isinstance(table, Mapping) else None
    return found if isinstance(found, str) and found else None


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _number(table: Mapping[str, Any], name: str) -> float:
    found = table.get(name)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return found if is_number and 0 <= found < 1e15 else 0  # type: ignore[operator,return-value]


def _listed(table: Mapping[str, Any], name: str) -> str | None:
    found = table.get(name)
    return "; ".join(str(one) for one in found) if isinstance(found, list) and found else None
