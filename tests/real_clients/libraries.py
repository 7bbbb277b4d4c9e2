"""Programs of other people's libraries against an API of ours; run by the Python that has them.

`python libraries.py BASE_URL KEY` prints what each case came to, as JSON: nothing, or why it failed.
"""

import base64
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

BASE, KEY = sys.argv[1:]
CASES: dict[str, Callable[[], None]] = {}
TIDE = {
    "name": "tide",
    "description": "How high the water is",
    "parameters": {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]},
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def case(work: Callable[[], None]) -> Callable[[], None]:
    CASES[work.__name__] = work
    return work


def langchain() -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="postroom", base_url=BASE, api_key=KEY, max_retries=0)


@case
def langchain_chat() -> None:
    told = langchain().invoke([("system", "Be brief"), ("human", "a"), ("ai", "b"), ("human", "Hello")])
    assert told.content == "re: Hello (3)", told
    assert told.usage_metadata["total_tokens"] == 7, told


@case
def langchain_stream() -> None:
    assert "".join(piece.content for piece in langchain().stream("Hello")) == "re: Hello (1)"


@case
def langchain_tools() -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    model = langchain().bind_tools([{"type": "function", "function": TIDE}])
    asked = model.invoke([HumanMessage("use the tool")])
    [call] = asked.tool_calls
    assert (call["name"], call["args"]) == ("tide", {"port": "Hull"}), call
    told = model.invoke([HumanMessage("use the tool"), asked, ToolMessage("3 m", tool_call_id=call["id"])])
    assert told.content == "re: 3 m (3)", told
    whole = None
    for piece in model.stream("use the tool"):
        whole = piece if whole is None else whole + piece
    assert whole.tool_calls[0]["args"] == {"port": "Hull"}, whole


@case
def langchain_structured_output() -> None:
    from pydantic import BaseModel

    class Boat(BaseModel):
        name: str
        masts: int

    assert langchain().with_structured_output(Boat).invoke("A boat") == Boat(name="Ada", masts=2)


@case
def langchain_responses() -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="postroom", base_url=BASE, api_key=KEY, max_retries=0, use_responses_api=True)
    assert model.invoke("Hello").text == "re: Hello (1)"
    [call] = model.bind_tools([{"type": "function", "function": TIDE}]).invoke("use the tool").tool_calls
    assert call["args"] == {"port": "Hull"}, call


@case
def langchain_errors() -> None:
    import openai
    from langchain_openai import ChatOpenAI

    try:
        ChatOpenAI(model="gpt-9", base_url=BASE, api_key=KEY, max_retries=0).invoke("Hello")
    except openai.NotFoundError:
        return
    raise AssertionError("an unknown model answered")


def litellm(**told: Any) -> Any:
    import litellm as library

    return library.completion(model="openai/postroom", api_base=BASE, api_key=KEY, **told)


@case
def litellm_chat() -> None:
    told = litellm(messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}])
    assert told.choices[0].message.content == "re: Hello (1)", told
    assert told.usage.total_tokens == 7, told


@case
def litellm_stream() -> None:
    pieces = litellm(messages=[{"role": "user", "content": "Hello"}], stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "re: Hello (1)"


@case
def litellm_tools() -> None:
    messages: list[Any] = [{"role": "user", "content": "use the tool"}]
    tools = [{"type": "function", "function": TIDE}]
    asked = litellm(messages=messages, tools=tools).choices[0].message
    [call] = asked.tool_calls
    assert json.loads(call.function.arguments) == {"port": "Hull"}, call
    messages += [asked.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "3 m"}]
    assert litellm(messages=messages, tools=tools).choices[0].message.content == "re: 3 m (3)"


@case
def litellm_structured_output() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "boat", "schema": {"type": "object"}}}
    told = litellm(messages=[{"role": "user", "content": "A boat"}], response_format=form)
    assert json.loads(told.choices[0].message.content) == {"name": "Ada", "masts": 2}, told


@case
def litellm_errors() -> None:
    import litellm as library

    try:
        library.completion(
            model="openai/gpt-9",
            api_base=BASE,
            api_key=KEY,
            num_retries=0,
            messages=[{"role": "user", "content": "Hello"}],
        )
    except library.NotFoundError:
        return
    raise AssertionError("an unknown model answered")


# The Open Responses compliance cases. Their shapes are checked by the types made from its specification.


def respond(**told: Any) -> Any:
    import httpx
    from openresponses_types.types import ResponseResource

    body = {"model": "postroom", **told}
    answer = httpx.post(f"{BASE}/responses", json=body, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200, answer.text
    ResponseResource.model_validate(answer.json())
    return answer.json()


def message(text: Any, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def text_of(response: Any) -> str:
    assert response["status"] == "completed", response
    return "".join(
        part["text"] for one in response["output"] if one["type"] == "message" for part in one["content"]
    )


@case
def open_responses_basic_text() -> None:
    assert text_of(respond(input=[message("Hello")])) == "re: Hello (1)"


@case
def open_responses_streaming() -> None:
    import httpx
    from openresponses_types import types

    kinds = {
        "response.created": types.ResponseCreatedStreamingEvent,
        "response.in_progress": types.ResponseInProgressStreamingEvent,
        "response.output_item.added": types.ResponseOutputItemAddedStreamingEvent,
        "response.content_part.added": types.ResponseContentPartAddedStreamingEvent,
        "response.output_text.delta": types.ResponseOutputTextDeltaStreamingEvent,
        "response.output_text.done": types.ResponseOutputTextDoneStreamingEvent,
        "response.content_part.done": types.ResponseContentPartDoneStreamingEvent,
        "response.output_item.done": types.ResponseOutputItemDoneStreamingEvent,
        "response.function_call_arguments.delta": types.ResponseFunctionCallArgumentsDeltaStreamingEvent,
        "response.function_call_arguments.done": types.ResponseFunctionCallArgumentsDoneStreamingEvent,
        "response.completed": types.ResponseCompletedStreamingEvent,
    }
    seen = set()
    for asked in ("Hello", "use the tool"):
        body = {"model": "postroom", "input": [message(asked)], "stream": True}
        body["tools"] = [{"type": "function", **TIDE}]
        answer = httpx.post(f"{BASE}/responses", json=body, headers={"Authorization": f"Bearer {KEY}"})
        events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
        assert events[-1]["type"] == "response.completed", events
        for number, event in enumerate(events):
            kinds[event["type"]].model_validate(event)
            assert event["sequence_number"] == number, event
            seen.add(event["type"])
    assert seen == set(kinds), set(kinds) - seen


@case
def open_responses_system_prompt() -> None:
    told = respond(input=[message("You speak like a pirate", "system"), message("tell your instructions")])
    assert "You speak like a pirate" in text_of(told), told


@case
def open_responses_tool_calling() -> None:
    told = respond(input=[message("use the tool")], tools=[{"type": "function", **TIDE}])
    [call] = [one for one in told["output"] if one["type"] == "function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("tide", {"port": "Hull"}), call


@case
def open_responses_image_input() -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]
    assert text_of(respond(input=[message(parts)])).startswith("re: What is this?")


@case
def open_responses_multi_turn() -> None:
    said = [message("My name is Ada"), message("Hello Ada", "assistant"), message("What is my name?")]
    assert text_of(respond(input=said)) == "re: What is my name? (3)"


def outcome(work: Callable[[], None]) -> str | None:
    """Return why a case failed."""
    try:
        work()
    except Exception:  # whatever a library raises is what the test shows
        return traceback.format_exc()
    return None


print(json.dumps({name: outcome(work) for name, work in CASES.items()}))
