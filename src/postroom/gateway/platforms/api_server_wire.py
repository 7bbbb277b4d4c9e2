"""The OpenAI protocol as values: the content of a request, and the shapes of answers. Pure functions.

Without a session a request contains its whole conversation. In a session the conversation is stored here, and
only the request's last message and results of tools are new. Tools and settings go to the model.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroom.contracts.activation import InferenceOverride
from postroom.contracts.inference import CallerRequest
from postroom.contracts.messages import Json, Message
from postroom.contracts.tools import ToolDescriptor
from postroom.gateway.events import Attachment
from postroom.gateway.platforms.api_server_conversation import read_conversation, wrong
from postroom.gateway.platforms.api_server_ids import KEY, SESSION
from postroom.gateway.platforms.refused import Refused

UNSUPPORTED: Final = "unsupported_parameter"
MOST_TOOLS: Final = 128
_FORMS: Final = ("text", "json_object", "json_schema")
LONGEST_SESSION: Final = 200
_SHOWN: Final = 60
"""Characters of a wrong value that its refusal shows."""
_TOOL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LARGEST: Final = 2**31 - 1
_LONGEST_SEED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of value of a field: its words for people, and the check of a value."""

    words: str
    fits: Callable[[Json], bool]
    code: str = "invalid_value"
    """The code of the refusal of another value."""


def _integer(least: int, most: int) -> _Kind:
    words = f"an integer from {least:,} to {most:,}"
    return _Kind(
        words, lambda one: isinstance(one, int) and not isinstance(one, bool) and least <= one <= most
    )


def _number(least: int, most: int) -> _Kind:
    def fits(one: Json) -> bool:
        return isinstance(one, int | float) and not isinstance(one, bool) and least <= one <= most

    return _Kind(f"a number from {least} to {most}", fits)


def _is_texts(one: Json, most: int) -> bool:
    return isinstance(one, list) and len(one) <= most and all(isinstance(text, str) for text in one)


_TEXT: Final = _Kind("text", lambda one: isinstance(one, str))
_FLAG: Final = _Kind("true or false", lambda one: isinstance(one, bool))
_OBJECT: Final = _Kind("an object", lambda one: isinstance(one, Mapping))
_TEXT_OR_OBJECT: Final = _Kind("text or an object", lambda one: isinstance(one, str | Mapping))
_FIELDS: Final[Mapping[str, _Kind]] = {
    "model": _TEXT,
    "n": _Kind("1, because only one choice is possible", lambda one: one == 1 and not isinstance(one, bool)),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "max_tokens": _integer(1, _LARGEST),
    "max_completion_tokens": _integer(1, _LARGEST),
    "max_output_tokens": _integer(1, _LARGEST),
    "seed": _integer(-_LONGEST_SEED, _LONGEST_SEED),
    "stop": _Kind("text or a list of at most 4 texts", lambda one: isinstance(one, str) or _is_texts(one, 4)),
    "logit_bias": _Kind(
        "an object of numbers from -100 to 100",
        lambda one: isinstance(one, Mapping) and all(map(_number(-100, 100).fits, one.values())),
    ),
    "modalities": _Kind('["text"], because answers are text', lambda one: one in ([], ["text"]), UNSUPPORTED),
    "reasoning_effort": _TEXT,
    "verbosity": _TEXT,
    "tool_choice": _Kind(
        '"none", "auto", "required" or an object',
        lambda one: isinstance(one, Mapping) or one in ("none", "auto", "required"),
    ),
    "response_format": _OBJECT,
    "parallel_tool_calls": _FLAG,
    "stream": _FLAG,
    "stream_options": _OBJECT,
    "store": _FLAG,
    "background": _FLAG,
    "metadata": _Kind(
        "an object of at most 16 texts",
        lambda one: isinstance(one, Mapping) and _is_texts(list(one.values()), 16),
    ),
    "instructions": _TEXT,
    "previous_response_id": _TEXT,
    "conversation": _TEXT_OR_OBJECT,
    "text": _OBJECT,
    "reasoning": _OBJECT,
    "include": _Kind("a list of texts", lambda one: _is_texts(one, 100)),
    "truncation": _Kind('"auto" or "disabled"', lambda one: one in ("auto", "disabled")),
    "user": _TEXT,
    "safety_identifier": _TEXT,
    "service_tier": _TEXT,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
}
"""The kind of each field that is not read further below."""
_PASSED_ON: Final = (
    *("tool_choice", "response_format", "parallel_tool_calls", "stop", "seed", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "verbosity"),
)
"""The fields that the model's endpoint gets unchanged."""
_NOT_IN_CHAT: Final = {
    "functions": "; send `tools`",
    "function_call": "; send `tool_choice`",
    "logprobs": "",
    "top_logprobs": "",
    "audio": "",
    "prediction": "",
    "web_search_options": "",
}
_NOT_IN_RESPONSES: Final = {
    "prompt": "; send `instructions`",
    "top_logprobs": "",
    "max_tool_calls": "",
}


_WITHOUT_EFFECT: Final = frozenset(
    {
        *("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "user"),
        *("prompt_cache_retention", "stream_options"),
    }
)
"""Fields without an effect on the answer: accepted, and ignored unless they are shown again."""
_OF_CHAT: Final = _WITHOUT_EFFECT | {
    *("model", "messages", "n", "stream", "conversation", "tools", "modalities"),
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "reasoning_effort", *_PASSED_ON),
}
_OF_RESPONSES: Final = _WITHOUT_EFFECT | {
    *("model", "input", "instructions", "previous_response_id", "conversation", "stream", "tools"),
    *("tool_choice", "parallel_tool_calls", "text", "reasoning", "temperature", "top_p", "max_output_tokens"),
    *("presence_penalty", "frequency_penalty", "include", "truncation", "background"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The content of a request."""

    text: str
    """The user's last message; empty where a tool's result comes last."""
    media: tuple[Attachment, ...] = ()
    earlier: tuple[Message, ...] = ()
    """The conversation before it, from the request."""
    results: tuple[Message, ...] = ()
    """Those of them that are results of tools which the last answer asked for."""
    instructions: str = ""
    tools: tuple[ToolDescriptor, ...] = ()
    overrides: InferenceOverride | None = None
    stream: bool = False
    include_usage: bool = False
    session: str | None = None
    """The session that the body names."""
    previous: str | None = None
    """The response that this one continues."""
    store: bool = True
    background: bool = False
    """Whether its run continues when the caller hangs up."""
    shown: Mapping[str, Json] = field(default_factory=dict)
    """The fields that a response shows again."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint that two requests with one key must share."""
        told = (
            *(self.text, self.media, self.earlier, self.instructions, self.tools),
            *(self.overrides, self.previous),
            *((True,) if self.background else ()),  # nothing else, or no earlier request would be known
        )
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()

    def caller(self, *, in_session: bool) -> CallerRequest:
        """Return the context of the message; in a session the conversation is stored here."""
        return CallerRequest(
            instructions=self.instructions,
            context=self.results if in_session else self.earlier,
            tools=self.tools,
            overrides=self.overrides,
        )


def read_chat(data: Mapping[str, Json], *, model: str, image_bytes: int) -> Asked:
    """Return the content of a chat completion.

    Raises:
        Refused: The request is invalid, or asks for an unsupported feature.
    """
    _check(data, model, _OF_CHAT, _NOT_IN_CHAT)
    options = data.get("stream_options") or {}
    _check_value(options.get("include_usage"), "stream_options.include_usage", _FLAG)
    more = {name: data[name] for name in _PASSED_ON if data.get(name) is not None}
    limit = data.get("max_completion_tokens")
    tools = _tools(data.get("tools"), lambda one: one.get("function"))
    _check_choice(more, tools)
    return Asked(
        **read_conversation(data.get("messages"), "messages", image_bytes),
        tools=tools,
        overrides=_overrides(data, data.get("max_tokens") if limit is None else limit, more),
        stream=bool(data.get("stream")),
        include_usage=bool(options.get("include_usage")),
        session=_conversation(data),
    )


def read_response(data: Mapping[str, Json], *, model: str, image_bytes: int) -> Asked:
    """Return the content of a request for a response.

    Raises:
        Refused: The request is invalid, or asks for an unsupported feature.
    """
    _check(data, model, _OF_RESPONSES, _NOT_IN_RESPONSES)
    told, instructions = data.get("input"), data.get("instructions")
    messages = [{"role": "user", "content": told}] if isinstance(told, str) else told
    said = read_conversation(messages, "input", image_bytes)
    said["instructions"] = "\n\n".join(filter(None, (instructions, said["instructions"])))
    previous = data.get("previous_response_id")
    conversation = _conversation(data)
    if previous is not None and conversation is not None:
        raise wrong("give either `previous_response_id` or `conversation`", "conversation")
    effort = (data.get("reasoning") or {}).get("effort")
    _check_value(effort, "reasoning.effort", _TEXT)
    more, tools = _passed_on(data), _tools(data.get("tools"), lambda one: one)
    _check_choice(more, tools)
    store, background = data.get("store") is not False, bool(data.get("background"))
    if background and not store:
        raise wrong("`background` requires `store`, because the answer is fetched by its id", "background")
    return Asked(
        **said,
        tools=tools,
        overrides=_overrides({**data, "reasoning_effort": effort}, data.get("max_output_tokens"), more),
        stream=bool(data.get("stream")),
        session=conversation,
        previous=previous,
        store=store,
        background=background,
        shown=echoed(data),
    )


def _check(data: Mapping[str, Json], model: str, known: frozenset[str], absent: Mapping[str, str]) -> None:
    """Refuse what there is not, by name."""
    for name, instead in absent.items():
        if data.get(name) not in (None, False):
            raise wrong(f"`{name}` is not supported{instead}", name, UNSUPPORTED)
    for name in sorted(data.keys() - known - absent.keys()):
        if data[name] is not None:
            raise wrong(f"there is no parameter `{name[:100]}`", name[:100], UNSUPPORTED)
    for name, kind in _FIELDS.items():
        if name in known:
            _check_value(data.get(name), name, kind)
    named = data.get("model")
    if named is not None and named != model:
        told = f"there is no model {named[:100]!r}; use {model!r}"
        raise Refused(404, "model_not_found", told, param="model")


def _check_value(value: Json, name: str, kind: _Kind) -> None:
    """Refuse a value of another kind; a field that is null counts as absent."""
    if value is not None and not kind.fits(value):
        given = json.dumps(value, ensure_ascii=False)
        shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}…"
        raise wrong(f"`{name}` must be {kind.words}, not {shown}", name, kind.code)


def _overrides(data: Mapping[str, Json], limit: Json, more: dict[str, Json]) -> InferenceOverride | None:
    form = more.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in _FORMS:
        where = "response_format" if "messages" in data else "text"
        raise wrong(f"the format of an answer must be one of {', '.join(_FORMS)}", where)
    temperature, top_p = data.get("temperature"), data.get("top_p")
    made = InferenceOverride(
        temperature=None if temperature is None else float(temperature),
        top_p=None if top_p is None else float(top_p),
        max_tokens=limit,
        reasoning_effort=data.get("reasoning_effort"),
        more=more,
    )
    return None if made == InferenceOverride() else made


def _tools(told: Json, function_of: Callable[[Mapping[str, Json]], Json]) -> tuple[ToolDescriptor, ...]:
    if told is None:
        return ()
    if not isinstance(told, list) or len(told) > MOST_TOOLS:
        raise wrong(f"`tools` must be a list of at most {MOST_TOOLS} tools", "tools")
    made: list[ToolDescriptor] = []
    for index, one in enumerate(told):
        where = f"tools[{index}]"
        if not isinstance(one, Mapping) or one.get("type") != "function":
            raise wrong("only tools of the type `function` are supported", where, UNSUPPORTED)
        function = function_of(one)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not _TOOL.fullmatch(name):
            raise wrong("the name of a function must have 1 to 64 letters, digits, _ and -", where)
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise wrong("the parameters of a function must be a JSON schema", where)
        description = function.get("description")
        _check_value(description, f"{where}.description", _TEXT)
        tool = ToolDescriptor(id=name, name=name, description=description or "", parameters=parameters)
        made.append(tool)
    return tuple(made)


def _check_choice(more: Mapping[str, Json], tools: Sequence[ToolDescriptor]) -> None:
    """Refuse the choice of a function that is not among the tools: a model cannot call it."""
    choice = more.get("tool_choice")
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in [tool.name for tool in tools]:
        raise wrong(f"`tool_choice` names {str(name)[:100]!r}, which is not in `tools`", "tool_choice")


def _passed_on(data: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings of a response as those of a chat completion, which is what models speak."""
    named = ("parallel_tool_calls", "presence_penalty", "frequency_penalty")
    more = {name: data[name] for name in named if data.get(name) is not None}
    choice, text = data.get("tool_choice"), data.get("text")
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if choice is not None:
        more["tool_choice"] = choice
    form = text.get("format") if isinstance(text, Mapping) else None
    _check_value(form, "text.format", _OBJECT)
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        schema = {name: one for name, one in form.items() if name != "type"}
        more["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif isinstance(form, Mapping) and form.get("type") != "text":
        more["response_format"] = dict(form)
    return more


def session_name(told: Json, param: str | None) -> str | None:
    """Return a session's name, None when none was given.

    Raises:
        Refused: it cannot be one.
    """
    if told is None or told == "":
        return None
    if not isinstance(told, str) or not SESSION.fullmatch(told):
        raise wrong(f"the name of a session must be one line of 1 to {LONGEST_SESSION} characters", param)
    return told


def idempotency_key(told: str | None) -> str | None:
    """Return the key that a request came with.

    Raises:
        Refused: it cannot be one.
    """
    if told is None:
        return None
    if not KEY.fullmatch(told):
        raise wrong(
            "an Idempotency-Key must have 1 to 200 ASCII characters without spaces",
            "Idempotency-Key",
            "invalid_header",
        )
    return told


def _conversation(data: Mapping[str, Json]) -> str | None:
    told = data.get("conversation")
    if isinstance(told, Mapping):
        told = told.get("id")
    return session_name(told, "conversation")


_ECHOED: Final = (
    "background",
    "conversation",
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
)


def echoed(data: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields of the request that its response repeats."""
    return {name: data[name] for name in _ECHOED if data.get(name) is not None}
