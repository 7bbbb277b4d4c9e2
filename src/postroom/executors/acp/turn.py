"""The agent's output and actions in its turn, from `session/update`: in bounded memory, and as events."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from postroom.contracts.agent_events import EventSink, ToolCallDone, ToolCallReady, ToolCallStart
from postroom.contracts.messages import storable
from postroom.contracts.tools import ToolCallOutcome, ToolResult
from postroom.executors.acp.permissions import told_of
from postroom.executors.processes.output import Stream, Tail
from postroom.log import get_logger

MOST_CALLS: Final = 256
"""Tool calls whose details are remembered at the same time."""
MOST_EVENTS: Final = 3_000
"""Maximum events about calls in a turn; further events are dropped."""
MOST_KEPT: Final = 16 << 10
"""Maximum characters of a detail of a call; a longer detail is replaced by its digest."""
MOST_TOLD: Final = 2_000
_LOG = get_logger(__name__)
_ENDS: Final = {"completed": ToolCallOutcome.SUCCEEDED, "failed": ToolCallOutcome.FAILED}


class Turn:
    """Processes the agent's output and actions."""

    def __init__(self, sink: EventSink, stream: Stream, *, most: int) -> None:
        """Keep the sink; of the text the last `most` bytes are kept."""
        self._sink = sink
        self._stream = stream
        self._calls: dict[str, dict[str, Any]] = {}
        self._ended: set[str] = set()
        self._events = 0
        self._message_id: str | None = None
        self._begins_anew = False
        self.said = Tail(most)
        self.is_broken_off = False
        """Whether the turn was aborted: later output of the agent is not its answer."""

    async def hear(self, update: Mapping[str, Any]) -> None:
        """Process an update; unknown kinds are ignored."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                await self._text(update)
            case "tool_call" | "tool_call_update":
                self._begins_anew = True
                await self._call(update)
            case "notice":
                words = (str(update.get(part) or "") for part in ("title", "description"))
                _LOG.warning("acp.notice", notice=storable(" ".join(words))[:MOST_TOLD])

    async def _text(self, update: Mapping[str, Any]) -> None:
        content, message_id = update.get("content"), update.get("messageId")
        text = content.get("text") if isinstance(content, dict) else None
        if not isinstance(text, str) or not text or self.is_broken_off:
            return
        if isinstance(message_id, str):
            self._begins_anew = self._begins_anew or self._message_id not in (None, message_id)
            self._message_id = message_id
        if self._begins_anew and self.said.total:
            text = f"\n\n{text}"
        self._begins_anew = False
        text = storable(text)
        self.said.add(text.encode())
        await self._stream.pass_on(text)

    def details(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return all known details of a call, with those of this update."""
        id = call.get("toolCallId")
        known = self._calls.get(id, {}) if isinstance(id, str) else {}
        new = {name: _bounded(value) for name, value in told_of(call).items()}
        return {**known, **new}

    async def _call(self, update: Mapping[str, Any]) -> None:
        id, status = update.get("toolCallId"), update.get("status")
        if not isinstance(id, str) or not id or len(id) > MOST_TOLD:
            return
        is_new = id not in self._calls
        call = self._calls[id] = self.details(update)
        if len(self._calls) > MOST_CALLS:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            self._ended.discard(oldest)
        name = storable(str(call.get("title", "tool")))[:MOST_TOLD]
        told = told_id(id)
        if is_new and self._may_tell(2):
            await self._sink.emit(ToolCallStart(id=told, name=name))
            await self._sink.emit(ToolCallReady(id=told, name=name, arguments=_short(call.get("rawInput"))))
        if isinstance(status, str) and status in _ENDS and id not in self._ended:
            self._ended.add(id)
            if self._may_tell(1):
                await self._sink.emit(_done(told, name, status, update))

    def _may_tell(self, events: int) -> bool:
        self._events += events
        return self._events <= MOST_EVENTS


def told_id(id: object) -> str:
    """Return the id of a call in the form for the run's events."""
    return storable(str(id))[:MOST_TOLD]


def _done(id: str, name: str, status: str, update: Mapping[str, Any]) -> ToolCallDone:
    shown = _short(update.get("rawOutput") if update.get("content") is None else update["content"])
    outcome = _ENDS[status]
    failed = outcome is ToolCallOutcome.FAILED
    result = ToolResult.error(name, str(shown or "it failed")) if failed else ToolResult.success(name, shown)
    return ToolCallDone(id=id, message_id="", result=result, outcome=outcome)


def _short(value: object) -> str | None:
    """Return a detail as text for the run's events."""
    if value is None:
        return None
    text = storable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}…"


def _bounded(value: object) -> object:
    """Return a detail, or its digest if it is long."""
    text = json.dumps(value, sort_keys=True)
    if len(text) <= MOST_KEPT:
        return value
    return {"characters": len(text), "sha256": sha256(text.encode()).hexdigest()}
