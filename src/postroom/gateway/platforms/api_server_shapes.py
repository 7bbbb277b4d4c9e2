"""The shapes of answers in the OpenAI protocol. Pure functions."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from postroom.contracts import errors
from postroom.contracts.messages import Json, ToolCall
from postroom.gateway.platforms.api_server_ids import digest
from postroom.gateway.platforms.refused import Refused


def error_body(refusal: Refused) -> dict[str, Any]:
    """Return a refusal in OpenAI's form."""
    kinds = {401: "invalid_request_error", 409: "idempotency_error", 429: "rate_limit_error"}
    fallback = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = kinds.get(refusal.status, fallback)
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}


_FAILURES: Final[Mapping[type[errors.PostroomError], tuple[int, str]]] = {
    errors.PostroomError: (500, "agent_failed"),
    errors.SubmissionRejected: (429, "busy"),
    errors.InputError: (400, "unsupported_parameter"),
    errors.AgentNotFound: (500, "agent_failed"),
    errors.RunnerNotFound: (500, "agent_failed"),
    errors.InvalidRunner: (500, "agent_failed"),
    errors.ResolveFailed: (500, "agent_failed"),
    errors.InvalidActivation: (500, "agent_failed"),
    errors.InvalidResume: (500, "agent_failed"),
    errors.InferenceError: (502, "model_failed"),
    errors.ContextOverflow: (400, "context_length_exceeded"),
    errors.RequestRefused: (400, "request_refused"),
    errors.ContentFiltered: (400, "content_filter"),
    errors.RateLimited: (503, "model_rate_limited"),
    errors.Overloaded: (503, "model_overloaded"),
    errors.InferenceTimeout: (504, "model_timeout"),
    errors.Unauthorized: (502, "model_refused_our_key"),
    errors.ModelNotFound: (502, "model_missing"),
    errors.NoModelEndpoint: (502, "model_endpoint_missing"),
    errors.StoreError: (503, "unavailable"),
}
"""The status and code of each error for callers; any other class has those of its nearest base class."""
_KINDS: Final = {kind.code: kind for kind in errors.all_errors()}


def failure_of(error: str, code: str | None = None) -> Refused:
    """Return the refusal that an answer is which tells a failure of its run, or that there was none."""
    kind = _KINDS.get(code or "", errors.PostroomError)
    status, told = next(_FAILURES[parent] for parent in kind.__mro__ if parent in _FAILURES)
    named = re.search(r"`(\w+)`", error) if told == "unsupported_parameter" else None
    refused = Refused(status, told, error, param=named[1] if named else None)
    if told != "busy":  # it was retried often enough: the SDK would retry it three more times
        refused.headers["x-should-retry"] = "false"
    return refused


def model_named(model: str, created: int) -> dict[str, Any]:
    """Return the one model that there is."""
    return {"id": model, "object": "model", "created": created, "owned_by": "postroom"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is whole: its text, the tools that the caller is to use, and the tokens that it took."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: tuple[int, int] = (0, 0)
    is_cut: bool = False
    """Whether a limit of the model or of the run cut it off."""
    is_cancelled: bool = False
    """Whether its caller cancelled it; then the text is the partial answer."""
    failure: Refused | None = None
    """Why there is none."""
    reasoning: str = ""
    """The reasoning of the model, which is not part of the text."""

    @property
    def is_partial(self) -> bool:
        """Whether its text may lack an end."""
        return self.is_cut or self.is_cancelled

    @classmethod
    def of(cls, text: str, details: Mapping[str, Any]) -> "Answer":
        """Return the answer in a channel's details; see `Metadata`."""
        calls = msgspec.convert(details.get("tool_calls", ()), tuple[ToolCall, ...])
        read, written = details.get("usage", (0, 0))
        error = details.get("error")
        return cls(
            text=details.get("text", "" if calls else text),
            is_cut=bool(details.get("is_cut")),
            calls=calls,
            usage=(read, written),
            failure=None if error is None else failure_of(error, details.get("code")),
            reasoning=details.get("reasoning", ""),
        )


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """The forms of one chat completion."""

    completion_id: str
    model: str
    created: int

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the whole answer."""
        content = answer.text if answer.text or not answer.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = self._calls(answer.calls)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": _chat_usage(answer)}

    def piece(self, delta: Mapping[str, Any], *, finish: str | None = None) -> dict[str, Any]:
        """Return a piece of it."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def end(self, answer: Answer, *, include_usage: bool) -> list[dict[str, Any]]:
        """Return the last pieces; usage is in the last one, or after it if requested."""
        calls = [{"index": index, **one} for index, one in enumerate(self._calls(answer.calls))]
        pieces = [self.piece({"tool_calls": calls})] if calls else []
        last, usage = self.piece({}, finish=_finish(answer)), _chat_usage(answer)
        if include_usage:
            alone = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}
            return [*pieces, {**last, "usage": None}, alone]
        return [*pieces, {**last, "usage": usage}]

    def _calls(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        return [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": _arguments(one)}}
            for one in calls
        ]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "length" if answer.is_cut else "stop"


def _chat_usage(answer: Answer) -> dict[str, int]:
    read, written = answer.usage
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _response_usage(answer: Answer) -> dict[str, Any]:
    read, written = answer.usage
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """The forms of one response."""

    response_id: str
    chat_id: str
    model: str
    created: int
    asked: Mapping[str, Json] = field(default_factory=dict)
    """The fields of its request that it repeats: see `echoed`."""

    @property
    def is_background(self) -> bool:
        """Whether its run continues when the caller hangs up."""
        return bool(self.asked.get("background"))

    @property
    def item_id(self) -> str:
        """The id of the one message in it."""
        return f"msg_{digest(self.response_id)}"

    def part(self, text: str) -> dict[str, Any]:
        """Return the one part of the message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, parts: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
        """Return the one message."""
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": list(parts),
        }

    def reasoning(self, text: str, status: str = "completed") -> dict[str, Any]:
        """Return the item with the reasoning of the model; until it is completed it is empty."""
        return {
            "id": f"rs_{digest(self.response_id)}",
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}] if status == "completed" else [],
        }

    def call(self, call: ToolCall, status: str = "completed") -> dict[str, Any]:
        """Return a call that the caller is to make."""
        return {
            "id": f"fc_{digest(self.response_id, call.id)}",
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": _arguments(call) if status == "completed" else "",
        }

    def output(self, answer: Answer) -> list[dict[str, Any]]:
        """Return the whole answer."""
        says = answer.text or not answer.calls
        status = "incomplete" if answer.is_cut else "completed"
        thoughts = [self.reasoning(answer.reasoning)] if answer.reasoning else []
        items = [self.item([self.part(answer.text)], status)] if says else []
        return [*thoughts, *items, *(self.call(call) for call in answer.calls)]

    def whole(self, answer: Answer | None = None, *, unanswered: str = "in_progress") -> dict[str, Any]:
        """Return the response as it stands; without an answer its status is `unanswered`."""
        failure = None if answer is None else answer.failure
        is_done = answer is not None and failure is None
        named = self.asked.get("conversation")
        status = "completed" if is_done else unanswered if failure is None else "failed"
        is_cut = answer is not None and answer.is_cut and is_done
        if answer is not None and is_done and answer.is_partial:
            status = "cancelled" if answer.is_cancelled else "incomplete"
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.created if status == "completed" else None,
            "status": status,
            "background": self.is_background,
            "error": None if failure is None else {"code": "server_error", "message": failure.message},
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": self.asked.get("instructions"),
            "max_output_tokens": self.asked.get("max_output_tokens"),
            "max_tool_calls": None,
            "model": self.model,
            "output": self.output(answer) if answer is not None and is_done else [],
            "parallel_tool_calls": self.asked.get("parallel_tool_calls", True),
            "previous_response_id": self.asked.get("previous_response_id"),
            "conversation": {"id": self.chat_id} if named else None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "prompt_cache_key": None,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "store": self.asked.get("store", True),
            "temperature": self.asked.get("temperature", 1.0),
            "text": self.asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": self.asked.get("tool_choice", "auto"),
            "tools": [_shown_tool(one) for one in self.asked.get("tools") or ()],
            "top_logprobs": 0,
            "top_p": self.asked.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": _response_usage(answer) if answer is not None and is_done else None,
            "user": None,
            "metadata": self.asked.get("metadata") or {},
        }


def _shown_tool(tool: Mapping[str, Json]) -> dict[str, Json]:
    return {"description": None, "parameters": None, "strict": None, **tool}
