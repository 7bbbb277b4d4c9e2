"""The OpenAI protocol as values: what a request asks, and the shapes of answers. Pure functions.

Without a session a request tells its whole conversation; in one the conversation is ours, and of the request
its last message and results of tools are new. Tools and settings go to the model.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroom.contracts.activation import InferenceOverride
from postroom.contracts.inference import CallerRequest
from postroom.contracts.messages import Json, Message
from postroom.contracts.misfits import misfit, place_of
from postroom.contracts.tools import ToolDescriptor
from postroom.gateway.events import Attachment
from postroom.gateway.platforms.api_server_conversation import read_conversation, wrong
from postroom.gateway.platforms.api_server_ids import KEY, SESSION
from postroom.gateway.platforms.refused import Refused

UNSUPPORTED: Final = "unsupported_parameter"
MOST_TOOLS: Final = 128
_FORMS: Final = ("text", "json_object", "json_schema")
LONGEST_SESSION: Final = 200
_TOOL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PASSED_ON: Final[Mapping[str, tuple[type, ...]]] = {
    "tool_choice": (str, Mapping),
    "response_format": (Mapping,),
    "parallel_tool_calls": (bool,),
    "stop": (str, list),
    "seed": (int,),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "logit_bias": (Mapping,),
    "verbosity": (str,),
}
"""What a model is told as it stands, and what it may be."""
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
"""What says nothing about the answer: taken, and what is not shown again is passed over."""
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
    """What a request asks."""

    text: str
    """The user's last message; empty where a tool's result comes last."""
    media: tuple[Attachment, ...] = ()
    earlier: tuple[Message, ...] = ()
    """What the request tells of the conversation before that."""
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
    """Whether its run goes on when the caller hangs up."""
    shown: Mapping[str, Json] = field(default_factory=dict)
    """What a response shows again of it."""

    @property
    def fingerprint(self) -> str:
        """What two requests under one key must have in common."""
        told = (
            *(self.text, self.media, self.earlier, self.instructions, self.tools),
            *(self.overrides, self.previous),
            *((True,) if self.background else ()),  # nothing else, or no earlier request would be known
        )
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()

    def caller(self, *, in_session: bool) -> CallerRequest:
        """Return what goes along with the message; in a session the conversation is ours."""
        return CallerRequest(
            instructions=self.instructions,
            context=self.results if in_session else self.earlier,
            tools=self.tools,
            overrides=self.overrides,
        )


def read_chat(data: Mapping[str, Json], *, model: str, image_bytes: int) -> Asked:
    """Return what a chat completion asks.

    Raises:
        Refused: it is none, or asks for what there is not.
    """
    _check(data, model, _OF_CHAT, _NOT_IN_CHAT)
    if data.get("modalities") not in (None, [], ["text"]):
        raise wrong("answers are text: `modalities` must be ['text']", "modalities", UNSUPPORTED)
    if data.get("n") not in (None, 1):
        raise wrong("only one choice is possible: `n` must be 1", "n")
    options = data.get("stream_options")
    more = {name: data[name] for name in _PASSED_ON if data.get(name) is not None}
    for name, one in more.items():
        if not isinstance(one, _PASSED_ON[name]):
            raise wrong(f"`{name}` cannot have this value", name)
    limit = data.get("max_completion_tokens")
    tools = _tools(data.get("tools"), lambda one: one.get("function"))
    _check_choice(more, tools)
    return Asked(
        **read_conversation(data.get("messages"), "messages", image_bytes),
        tools=tools,
        overrides=_overrides(data, data.get("max_tokens") if limit is None else limit, more),
        stream=_flag(data, "stream", default=False),
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        session=_conversation(data),
    )


def read_response(data: Mapping[str, Json], *, model: str, image_bytes: int) -> Asked:
    """Return what a request for a response asks.

    Raises:
        Refused: it is none, or asks for what there is not.
    """
    _check(data, model, _OF_RESPONSES, _NOT_IN_RESPONSES)
    told, instructions = data.get("input"), data.get("instructions")
    messages = [{"role": "user", "content": told}] if isinstance(told, str) else told
    said = read_conversation(messages, "input", image_bytes)
    if instructions is not None and not isinstance(instructions, str):
        raise wrong("`instructions` must be text", "instructions")
    said["instructions"] = "\n\n".join(filter(None, (instructions, said["instructions"])))
    previous = data.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise wrong("`previous_response_id` must be text", "previous_response_id")
    conversation = _conversation(data)
    if previous is not None and conversation is not None:
        raise wrong("give either `previous_response_id` or `conversation`", "conversation")
    reasoning = data.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    more, tools = _passed_on(data), _tools(data.get("tools"), lambda one: one)
    _check_choice(more, tools)
    store, background = _flag(data, "store", default=True), _flag(data, "background", default=False)
    if background and not store:
        raise wrong("`background` requires `store`, because the answer is fetched by its id", "background")
    return Asked(
        **said,
        tools=tools,
        overrides=_overrides({**data, "reasoning_effort": effort}, data.get("max_output_tokens"), more),
        stream=_flag(data, "stream", default=False),
        session=conversation,
        previous=previous,
        store=store,
        background=background,
        shown=echoed(data),
    )


def _check(data: Mapping[str, Json], model: str, known: frozenset[str], absent: Mapping[str, str]) -> None:
    """Refuse what there is not, by name."""
    named = data.get("model")
    if named is not None and named != model:
        told = f"there is no model {str(named)[:100]!r}; use {model!r}"
        raise Refused(404, "model_not_found", told, param="model")
    metadata = data.get("metadata")
    if metadata is not None and (not isinstance(metadata, Mapping) or len(metadata) > 16):
        raise wrong("`metadata` can have at most 16 entries", "metadata")
    for name, instead in absent.items():
        if data.get(name) not in (None, False):
            raise wrong(f"`{name}` is not supported{instead}", name, UNSUPPORTED)
    for name in sorted(data.keys() - known - absent.keys()):
        if data[name] is not None:
            raise wrong(f"there is no parameter `{name[:100]}`", name[:100], UNSUPPORTED)


def _overrides(data: Mapping[str, Json], limit: Json, more: dict[str, Json]) -> InferenceOverride | None:
    told = {name: data.get(name) for name in ("temperature", "top_p", "reasoning_effort")}
    told |= {"max_tokens": limit, "more": more}
    form = more.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in _FORMS:
        where = "response_format" if "messages" in data else "text"
        raise wrong(f"the format of an answer must be one of {', '.join(_FORMS)}", where)
    if isinstance(limit, int) and limit < 1:
        raise wrong("an answer needs at least one token", "max_tokens")
    try:
        made = msgspec.convert(
            {name: one for name, one in told.items() if one is not None}, InferenceOverride
        )
    except msgspec.ValidationError as error:
        raise wrong(misfit(str(error)), place_of(str(error)) or None) from error
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
        description = str(function.get("description") or "")
        made.append(ToolDescriptor(id=name, name=name, description=description, parameters=parameters))
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
            "an Idempotency-Key must have 1 to 200 ASCII characters without spaces", code="invalid_header"
        )
    return told


def _flag(data: Mapping[str, Json], name: str, *, default: bool) -> bool:
    told = data.get(name)
    if told is not None and not isinstance(told, bool):
        raise wrong(f"`{name}` must be true or false", name)
    return default if told is None else told


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
    """Return what a response shows again of its request."""
    return {name: data[name] for name in _ECHOED if data.get(name) is not None}
