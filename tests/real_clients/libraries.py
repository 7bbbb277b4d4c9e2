"""Programs of other people's libraries against postroom's API; run by the Python that has them.

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


def langchain(**told: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(**{"model": "postroom", "base_url": BASE, "api_key": KEY, "max_retries": 0, **told})


MUCH = "".join(f"line {n}\n" for n in range(1_000)).strip()


def check_stop(begin: Callable[[], Callable[[], None]]) -> None:
    """Check that a client which stops reading an answer stops the model.

    `begin` reads the beginning of an answer without an end, and returns how to stop.
    """
    before = int(langchain().invoke("how many hung up").content)
    begin()()
    for _ in range(200):
        if int(langchain().invoke("how many hung up").content) > before:
            return
    raise AssertionError("the model was not stopped")


def check_refused(work: Callable[[], object], kind: type[Exception], words: str) -> None:
    """Check that a call is refused with an exception of this type, whose message holds the words."""
    try:
        work()
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"{words!r} is not in {error}") from error
        return
    raise AssertionError(f"there was no {kind.__name__}")


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
    model = langchain(use_responses_api=True)
    assert model.invoke("Hello").text == "re: Hello (1)"
    [call] = model.bind_tools([{"type": "function", "function": TIDE}]).invoke("use the tool").tool_calls
    assert call["args"] == {"port": "Hull"}, call


@case
def langchain_session() -> None:
    model = langchain(default_headers={"X-Postroom-Session": "langchain"})
    told = [model.invoke(words).content for words in ("Sail", "yes", "yes")]
    assert told == ["re: Sail (1)", "re: yes (3)", "re: yes (5)"], told
    body = langchain(extra_body={"conversation": "langchain"})
    assert body.invoke("more").content == "re: more (7)"
    first = langchain(use_responses_api=True).invoke("Hello")
    named = first.response_metadata["id"]
    again = langchain(use_responses_api=True).invoke("again", previous_response_id=named)
    assert again.text == "re: again (3)", again


@case
def langchain_stop() -> None:
    def begin() -> Callable[[], None]:
        pieces = langchain().stream("never end")
        while "begins" not in next(pieces).content:
            pass
        return pieces.close

    check_stop(begin)


@case
def langchain_long_answer() -> None:
    assert langchain().invoke("say much").content.strip() == MUCH
    pieces = list(langchain(stream_usage=True).stream("say much"))
    assert "".join(piece.content for piece in pieces).strip() == MUCH
    assert [piece.usage_metadata["total_tokens"] for piece in pieces if piece.usage_metadata] == [7]
    cut = langchain().invoke("be cut off")
    assert (cut.content, cut.response_metadata["finish_reason"]) == ("It is cut", "length"), cut


@case
def langchain_side_by_side() -> None:
    told = [one.content for one in langchain().batch([f"Hello {n}" for n in range(8)])]
    assert told == [f"re: Hello {n} (1)" for n in range(8)], told


@case
def langchain_errors() -> None:
    import openai
    from langchain_core.exceptions import ContextOverflowError

    check_refused(lambda: langchain(model="gpt-9").invoke("Hello"), openai.NotFoundError, "gpt-9")
    check_refused(lambda: langchain(api_key="wrong").invoke("Hello"), openai.AuthenticationError, "API key")
    check_refused(lambda: langchain().invoke("refuse the key"), openai.InternalServerError, "key")
    check_refused(lambda: langchain().invoke("refuse the content"), openai.BadRequestError, "")
    check_refused(lambda: list(langchain().stream("refuse the content")), openai.APIError, "")
    check_refused(lambda: langchain().invoke("refuse the length"), ContextOverflowError, "context_length")
    check_refused(lambda: list(langchain().stream("refuse the length")), ContextOverflowError, "")
    odd = langchain(use_responses_api=False, model_kwargs={"tools": [{"type": "browser"}]})
    check_refused(lambda: odd.invoke("Hello"), openai.BadRequestError, "only tools of the type")
    search = langchain().bind_tools([{"type": "web_search_preview"}])
    check_refused(lambda: search.invoke("Hello"), openai.BadRequestError, "only tools of the type")
    choice = langchain().bind(tool_choice={"type": "function", "function": {"name": "tide"}})
    check_refused(lambda: choice.invoke("Hello"), openai.BadRequestError, "tool_choice")
    result = [("human", "x"), {"role": "tool", "tool_call_id": "nobody", "content": "3 m"}]
    check_refused(lambda: langchain().invoke(result), openai.BadRequestError, "no message calls the tool")


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
def litellm_responses() -> None:
    import litellm as library

    told = {"model": "openai/postroom", "api_base": BASE, "api_key": KEY}
    first = library.responses(input="Hello", **told)
    assert first.output[-1].content[0].text == "re: Hello (1)", first
    again = library.responses(input="again", previous_response_id=first.id, **told)
    assert again.output[-1].content[0].text == "re: again (3)", again
    kinds = [event.type for event in library.responses(input="Hello", stream=True, **told)]
    assert kinds[-1] == "response.completed", kinds


@case
def litellm_session() -> None:
    for words, answer in (("Sail", "re: Sail (1)"), ("yes", "re: yes (3)"), ("yes", "re: yes (5)")):
        asked = [{"role": "user", "content": words}]
        told = litellm(messages=asked, extra_headers={"X-Postroom-Session": "litellm"})
        assert told.choices[0].message.content == answer, told
    told = litellm(messages=[{"role": "user", "content": "more"}], extra_body={"conversation": "litellm"})
    assert told.choices[0].message.content == "re: more (7)", told


@case
def litellm_stop() -> None:
    def begin() -> Callable[[], None]:
        pieces = litellm(messages=[{"role": "user", "content": "never end"}], stream=True)
        while "begins" not in (next(pieces).choices[0].delta.content or ""):
            pass
        return pieces.completion_stream.close

    check_stop(begin)


@case
def litellm_long_answer() -> None:
    asked = [{"role": "user", "content": "say much"}]
    assert litellm(messages=asked).choices[0].message.content.strip() == MUCH
    pieces = list(litellm(messages=asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in pieces if one.choices).strip() == MUCH
    cut = litellm(messages=[{"role": "user", "content": "be cut off"}]).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("It is cut", "length"), cut


@case
def litellm_errors() -> None:
    import litellm as library

    def ask(words: str, **told: Any) -> Any:
        return lambda: litellm(**{"messages": [{"role": "user", "content": words}], "num_retries": 0, **told})

    check_refused(ask("refuse the length"), library.ContextWindowExceededError, "context length")
    check_refused(
        lambda: list(ask("refuse the length", stream=True)()), library.ContextWindowExceededError, ""
    )
    other = {"model": "openai/gpt-9", "api_base": BASE, "api_key": KEY}
    asked = [{"role": "user", "content": "Hello"}]
    check_refused(lambda: library.completion(messages=asked, **other), library.NotFoundError, "gpt-9")
    wrong = {"model": "openai/postroom", "api_base": BASE, "api_key": "wrong"}
    check_refused(lambda: library.completion(messages=asked, **wrong), library.AuthenticationError, "API key")
    check_refused(ask("refuse the key"), library.exceptions.BadGatewayError, "key")
    check_refused(ask("refuse the content"), library.BadRequestError, "")
    check_refused(lambda: list(ask("refuse the content", stream=True)()), Exception, "")
    check_refused(
        ask("Hello", tools=[{"type": "browser"}]), library.BadRequestError, "only tools of the type"
    )
    result = [*asked, {"role": "tool", "tool_call_id": "nobody", "content": "3 m"}]
    check_refused(ask("", messages=result), library.BadRequestError, "no message calls the tool")


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
