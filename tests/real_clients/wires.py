"""Four wire formats of models: how a request is read, and how an answer to it is written as events.

Each format is two functions: `read_X(body)` gives the neutral request, `write_X(asked, steps)` the events of the
stream (or, for a request without a stream, the one document).
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from real_clients.asked import Asked, Called, CallTool, Offered, Returned, Said, Say, Step, Turn

_IDS = itertools.count(1)
USED = 7
"""How many tokens every request and every answer counts."""


def _new(kind: str) -> str:
    return f"{kind}_{next(_IDS):06d}"


def _texts(content: Any) -> str:
    """Return the text in a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return str(content.get("text", json.dumps(content)))
    return "\n".join(_texts(part) for part in content or ())


def _named(asked: Asked, step: CallTool) -> Offered:
    """Return the tool as the client calls it; a tool that is not offered is called by its name in the script."""
    return asked.tool(step.name) or Offered(step.name, "", {})


# --- Anthropic Messages ---


def read_anthropic(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """Read `POST /v1/messages`."""
    turns: list[Turn] = []
    for message in body.get("messages", ()):
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match part["type"]:
                case "text":
                    turns.append(Said(message["role"], part["text"]))
                case "tool_use":
                    turns.append(Called(part["id"], part["name"], part["input"]))
                case "tool_result":
                    turns.append(Returned(part["tool_use_id"], _texts(part.get("content", ""))))
    tools = [
        Offered(tool["name"], tool.get("description", ""), tool.get("input_schema", {}))
        for tool in body.get("tools", ())
    ]
    return Asked(
        "anthropic",
        body.get("model", ""),
        _texts(body.get("system", "")),
        tuple(turns),
        tuple(tools),
        headers,
        body,
        bool(body.get("stream")),
    )


def write_anthropic(asked: Asked, steps: Sequence[Step]) -> Iterator[tuple[str, Any]]:
    """Write the events of a message; the last is the message itself, for who asked without a stream."""
    blocks: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Say):
            blocks.append({"type": "text", "text": step.text})
        else:
            use = {"id": _new("toolu"), "name": _named(asked, step).name, "input": dict(step.arguments)}
            blocks.append({"type": "tool_use", **use})
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    usage = {"input_tokens": USED, "output_tokens": USED}
    message = {"id": _new("msg"), "type": "message", "role": "assistant", "model": asked.model}
    whole = {**message, "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}
    if not asked.is_stream:
        yield "", whole
        return
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield "message_start", {"message": start}
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield "content_block_start", {"index": index, "content_block": empty}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    yield "message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield "message_stop", {}


# --- OpenAI Responses ---


def read_responses(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """Read `POST /v1/responses`."""
    turns: list[Turn] = []
    tools = list(_response_tools(body.get("tools") or ()))
    given = body.get("input", ())
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item.get("type", "message"):
            case "message":
                turns.append(Said(item["role"], _texts(item["content"])))
            case "function_call":
                turns.append(Called(item["call_id"], item["name"], _arguments(item["arguments"])))
            case "custom_tool_call":
                turns.append(Called(item["call_id"], item["name"], {"input": item["input"]}))
            case "function_call_output" | "custom_tool_call_output":
                turns.append(Returned(item["call_id"], _texts(item["output"])))
            case "additional_tools" if "format" not in (
                body.get("text") or {}
            ):  # with one it asks for a title
                tools += _response_tools(item["tools"])
            case "tool_search_call":
                turns.append(Called(item["call_id"], "tool_search", item["arguments"]))
            case "tool_search_output":
                found = list(_response_tools(item["tools"]))
                tools += found
                turns.append(Returned(item["call_id"], " ".join(tool.name for tool in found)))
    return Asked(
        "responses",
        body.get("model", ""),
        body.get("instructions") or "",
        tuple(turns),
        tuple(tools),
        headers,
        body,
        bool(body.get("stream")),
    )


def _arguments(text: str) -> Mapping[str, Any]:
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}


def _response_tools(tools: Iterable[Mapping[str, Any]], namespace: str = "") -> Iterator[Offered]:
    for tool in tools:
        if tool["type"] == "namespace":
            yield from _response_tools(tool["tools"], tool["name"])
        else:
            schema = tool.get("parameters") or {}
            name, kind = tool.get("name", tool["type"]), tool["type"]
            yield Offered(name, tool.get("description", ""), schema, namespace, kind)


def _deferred(asked: Asked, name: str) -> Offered:
    """Return a tool that is not in the request: Codex runs those of servers without their having been searched."""
    return Offered(name, "", {}, "mcp__postroom" if asked.tool("tool_search") else "")


def _response_call(tool: Offered, arguments: dict[str, Any]) -> dict[str, Any]:
    call = {"id": _new("item"), "call_id": _new("call")}
    if tool.kind == "custom":
        return {**call, "type": "custom_tool_call", "name": tool.name, "input": arguments["input"]}
    if tool.kind == "tool_search":
        return {**call, "type": "tool_search_call", "execution": "client", "arguments": arguments}
    call |= {"namespace": tool.namespace} if tool.namespace else {}
    return {**call, "type": "function_call", "name": tool.name, "arguments": json.dumps(arguments)}


def write_responses(asked: Asked, steps: Sequence[Step]) -> Iterator[tuple[str, Any]]:
    """Write the events of a response."""
    items: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Say):
            part = {"type": "output_text", "text": step.text, "annotations": []}
            items.append({"type": "message", "id": _new("msg"), "role": "assistant", "content": [part]})
        else:
            tool = asked.tool(step.name) or _deferred(asked, step.name)
            items.append(_response_call(tool, dict(step.arguments)))
    items = [{**item, "status": "completed"} for item in items]
    usage = {
        "input_tokens": USED,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": USED,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2 * USED,
    }
    response = {"id": _new("resp"), "object": "response", "created_at": 1, "model": asked.model}
    whole = {**response, "status": "completed", "output": items, "usage": usage}
    if not asked.is_stream:
        yield "", whole
        return
    yield "response.created", {"response": {**response, "status": "in_progress", "output": []}}
    for index, item in enumerate(items):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            text = item["content"][0]["text"]
            empty = {**item, "status": "in_progress", "content": []}
            yield "response.output_item.added", {**at, "item": empty}
            opened = {"type": "output_text", "text": "", "annotations": []}
            yield "response.content_part.added", {**at, "content_index": 0, "part": opened}
            yield "response.output_text.delta", {**at, "content_index": 0, "delta": text}
            yield "response.output_text.done", {**at, "content_index": 0, "text": text}
            yield "response.content_part.done", {**at, "content_index": 0, "part": item["content"][0]}
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            opened = {**item, "status": "in_progress", "arguments": ""}
            yield "response.output_item.added", {**at, "item": opened}
            yield "response.function_call_arguments.delta", {**at, "delta": arguments}
            yield "response.function_call_arguments.done", {**at, "arguments": arguments}
        yield "response.output_item.done", {**at, "item": item}
    yield "response.completed", {"response": whole}


# --- OpenAI Chat Completions ---


def read_chat(body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
    """Read `POST /v1/chat/completions`."""
    turns: list[Turn] = []
    system = []
    for message in body.get("messages", ()):
        text = _texts(message.get("content"))
        if message["role"] in ("system", "developer"):
            system.append(text)
        elif message["role"] == "tool":
            turns.append(Returned(message["tool_call_id"], text))
        else:
            if text:
                turns.append(Said(message["role"], text))
            for call in message.get("tool_calls") or ():
                function = call["function"]
                turns.append(Called(call["id"], function["name"], _arguments(function["arguments"])))
    tools = [
        Offered(
            tool["function"]["name"],
            tool["function"].get("description", ""),
            tool["function"].get("parameters", {}),
        )
        for tool in body.get("tools") or ()
    ]
    return Asked(
        "chat",
        body.get("model", ""),
        "\n".join(system),
        tuple(turns),
        tuple(tools),
        headers,
        body,
        bool(body.get("stream")),
    )


def write_chat(asked: Asked, steps: Sequence[Step]) -> Iterator[tuple[str, Any]]:
    """Write the chunks of a completion."""
    text = "\n".join(step.text for step in steps if isinstance(step, Say))
    calls = [
        {
            "index": index,
            "id": _new("call"),
            "type": "function",
            "function": {"name": _named(asked, step).name, "arguments": json.dumps(dict(step.arguments))},
        }
        for index, step in enumerate(step for step in steps if isinstance(step, CallTool))
    ]
    reason = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": USED, "completion_tokens": USED, "total_tokens": 2 * USED}
    base = {"id": _new("chatcmpl"), "created": 1, "model": asked.model}
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    if not asked.is_stream:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        yield "", {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        return
    chunk = {**base, "object": "chat.completion.chunk"}
    yield "", {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
    yield "", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    yield "", {**chunk, "choices": [], "usage": usage}


# --- Gemini ---


def read_gemini(body: Mapping[str, Any], headers: Mapping[str, str], model: str, is_stream: bool) -> Asked:
    """Read `POST /v1beta/models/MODEL:generateContent`."""
    turns: list[Turn] = []
    for content in body.get("contents", ()):
        role = "assistant" if content.get("role") == "model" else "user"
        for part in content.get("parts", ()):
            if "functionCall" in part:
                call = part["functionCall"]
                turns.append(Called(call.get("id", ""), call["name"], call.get("args", {})))
            elif "functionResponse" in part:
                found = part["functionResponse"]
                turns.append(Returned(found.get("id", ""), _answer(found["response"])))
            elif "text" in part and not part.get("thought"):
                turns.append(Said(role, part["text"]))
    tools = [
        Offered(
            tool["name"],
            tool.get("description", ""),
            tool.get("parametersJsonSchema") or tool.get("parameters") or {},
        )
        for group in body.get("tools") or ()
        for tool in group.get("functionDeclarations", ())
    ]
    system = _texts((body.get("systemInstruction") or {}).get("parts", ()))
    return Asked("gemini", model, system, tuple(turns), tuple(tools), headers, body, is_stream)


def _answer(response: Mapping[str, Any]) -> str:
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in response.values())


def write_gemini(asked: Asked, steps: Sequence[Step]) -> Iterator[tuple[str, Any]]:
    """Write the one chunk of a generated content."""
    parts: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Say):
            parts.append({"text": step.text})
        else:
            call = {"name": _named(asked, step).name, "args": dict(step.arguments), "id": _new("call")}
            parts.append({"functionCall": call, "thoughtSignature": "c2lnbmVk"})
    usage = {"promptTokenCount": USED, "candidatesTokenCount": USED, "totalTokenCount": 2 * USED}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    yield "", {"candidates": [candidate], "usageMetadata": usage, "modelVersion": asked.model}
