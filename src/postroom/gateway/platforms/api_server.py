"""The OpenAI protocol, in which clients call an agent as `/v1/chat/completions` or `/v1/responses`.

    POST ──▶ stored ──▶ waits for its turn in the session ──▶ the answer, piece by piece ──▶ end

Each request must send the configured `api_key`, which has at least 16 characters, as its bearer token.

The header `X-Postroom-Session` names a session, or the body does so with `conversation` or
`previous_response_id`. The field `user` names a person, not a session. In a session, the server stores the
conversation, so it reads only the user's last message and the tool results from `messages` or `input`.
Without a session, each request contains its whole conversation. Every caller with the key may write in every
session. Instructions, tools and settings are passed to agents that are models. Other agents refuse `tools`,
`tool_choice` and `response_format` with an error that names the field.

`Idempotency-Key` identifies the message. A request with the same key gets the same answer, or waits for it,
and no message is processed twice. A request that failed or was cancelled has no answer, so its repetition
starts a new run.

Without a key, a request with the header of a retry (`x-stainless-retry-count`) repeats the newest equal
request of the last hour. An equal request with the same history is also a repetition, if the caller of the
earlier request got no answer. Equal text alone does not make a repetition: in a session, a request without
history is a new message. Each answer and each timeout (504) contains the key with which the request can be
repeated. Requests and answers that are not in memory are read from the store. So the same rules apply after a
restart, for as long as inbound messages are kept.

If the caller disconnects, its run is cancelled, unless the request set `background`, or the run also answers
another caller who is still waiting.
"""

import asyncio
import base64
import binascii
import hashlib
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive

from postroom.concurrency import retried
from postroom.contracts import errors
from postroom.contracts.activation import InferenceOverride
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, ServerUnavailable, StoreError, TooLarge
from postroom.contracts.inference import CallerRequest
from postroom.contracts.messages import ContentBlock, Json, Message, Role, ToolCall
from postroom.contracts.records import replace
from postroom.contracts.signing import same_secret
from postroom.contracts.tools import ToolDescriptor
from postroom.gateway.capabilities import NO_LIMIT, ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.drafts import grows_from, settled
from postroom.gateway.events import Attachment, Card, MessageEvent, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms.base import AdapterState, KnownMessage, Metadata
from postroom.gateway.platforms.http_adapter import (
    HttpAdapter,
    Refused,
    json_response,
    parse_object,
    read_body,
    require_json,
)
from postroom.gateway.platforms.options import secret_remedy
from postroom.gateway.platforms.safe_text import clean
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger
from postroom.sse import SseResponse

_LOG = get_logger(__name__)


# Pure functions for the names of sessions, messages and responses in the OpenAI protocol.


KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")
SESSION: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_RESPONSE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,1400}")


def encode_response_id(chat_id: str, message_id: str) -> str:
    """Return a response id that encodes a message and its session."""
    names = [message_id] if chat_id == own_session(message_id) else [message_id, chat_id]
    data = "\0".join(names).encode()
    return f"resp_{base64.urlsafe_b64encode(data).decode().rstrip('=')}"


def read_response_id(response_id: str) -> tuple[str, str] | None:
    """Return the session and the message that a response id encodes, or None for an invalid id."""
    text = response_id.removeprefix("resp_")
    if text == response_id or not _RESPONSE_ID.fullmatch(text):
        return None
    try:
        names = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    message_id, _, chat_id = names.partition("\0")
    chat_id = chat_id or own_session(message_id)
    is_one = KEY.fullmatch(message_id) and SESSION.fullmatch(chat_id)
    return (
        (chat_id, message_id) if is_one and encode_response_id(chat_id, message_id) == response_id else None
    )


def own_session(key: str) -> str:
    """Return the name of the session for a request that names no session.

    Requests with an equal key get an equal session name.
    """
    return f"once-{digest(key)}"


def digest(*parts: str) -> str:
    """Return a stable hash of the texts, with 48 characters."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:48]


# Pure functions that parse the conversation in a request of the OpenAI protocol.


MAX_PART_LENGTH: Final = 64 * 1024
"""Maximum bytes of one text part."""
MAX_PARTS: Final = 1_000
MAX_MESSAGES: Final = 2_000
MAX_IMAGES: Final = 8
_IMAGE: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")
_TEXT_PARTS: Final = frozenset({"text", "input_text"})
_FILE: Final = re.compile(r"data:([\w.+-]{1,64}/[\w.+-]{1,100});base64,([A-Za-z0-9+/]*={0,2})", re.ASCII)
_FILE_PARTS: Final = frozenset({"file", "input_file"})
_IMAGE_PARTS: Final = frozenset({"image_url", "input_image"})


def wrong(message: str, param: str | None = None, code: str = "invalid_value") -> Refused:
    """Return the error for an invalid request."""
    return Refused(400, code, message, param=param)


def read_conversation(messages: Json, param: str, image_bytes: int) -> dict[str, Any]:
    """Parse a list of messages, and return the fields of `Asked`."""
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise wrong(f"`{param}` must be a list of messages", param)
    if len(messages) > MAX_MESSAGES:
        raise wrong(f"`{param}` has more than {MAX_MESSAGES} messages", param)
    values = [_message(item, f"{param}[{index}]", image_bytes) for index, item in enumerate(messages)]
    dialogue = [message for message in values if message is not None and message.role is not Role.SYSTEM]
    if not dialogue or dialogue[-1].role is Role.ASSISTANT:
        raise wrong(f"the last message in `{param}` must be a user message or a tool result", param)
    last = dialogue[-1]
    is_result = last.role is Role.TOOL
    results: list[Message] = []
    for message in reversed(dialogue):
        if message.role is Role.ASSISTANT:
            break
        if message.role is Role.TOOL:
            results.insert(0, message)
    media = [
        Attachment(
            kind=MessageType.PHOTO if block.type == "image" else MessageType.DOCUMENT,
            ref=block.data["url"],
            mime=block.data["mime"],
            size=block.data["size"],
            name=block.data["name"],
        )
        for block in (() if is_result else last.content[1:])
    ]
    # Merge successive tool calls, which the Responses API lists separately, into one message.
    earlier: list[Message] = []
    for message in dialogue if is_result else dialogue[:-1]:
        before = earlier[-1] if earlier else None
        only_calls = message.role is Role.ASSISTANT and message.tool_calls and not message.content
        if before is not None and before.role is Role.ASSISTANT and only_calls:
            earlier[-1] = replace(before, tool_calls=(*before.tool_calls, *message.tool_calls))
        else:
            earlier.append(message)
    return {
        "text": "" if is_result else last.text(),
        "media": tuple(media),
        "earlier": tuple(earlier),
        "results": tuple(results),
        "instructions": "\n\n".join(
            message.text() for message in values if message is not None and message.role is Role.SYSTEM
        ),
    }


def check_results(told: Sequence[Message]) -> None:
    """Check that each tool result belongs to a tool call in an earlier message of the request.

    Do not call this function for a request in a session, because the stored history may contain the call.
    """
    called = {call.id for message in told for call in message.tool_calls}
    for message in told:
        if message.role is Role.TOOL and message.tool_call_id not in called:
            raise wrong(
                f"no message calls the tool whose result has the id {str(message.tool_call_id)[:100]!r}",
                "messages",
            )


def _message(one: Mapping[str, Json], where: str, image_bytes: int) -> Message | None:
    """Parse one entry of a conversation."""
    role, kind = one.get("role"), one.get("type")
    if role in ("system", "developer", "user"):
        text, media = _content(one.get("content"), f"{where}.content", image_bytes)
        files = (
            ContentBlock(
                type="image" if file.kind is MessageType.PHOTO else "document",
                data={"url": file.ref, "mime": file.mime, "size": file.size, "name": file.name},
            )
            for file in media
        )
        name = Role.USER if role == "user" else Role.SYSTEM
        return Message(role=name, content=(ContentBlock(text=text), *files))
    if role == "assistant" or kind == "function_call":
        calls, content = one.get("tool_calls") or (), one.get("content")
        if one.get("type") == "function_call":
            calls = [{"id": one.get("call_id"), "function": one}]
        if isinstance(content, list):
            kinds = ("text", "output_text", "refusal")
            parts = [item for item in content if isinstance(item, Mapping) and item.get("type") in kinds]
            content = "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
        if not isinstance(content, str | None) or not isinstance(calls, Sequence):
            raise wrong("an assistant message needs text or tool calls", where)
        return Message.assistant(clean(content or ""), tool_calls=[_call(call, where) for call in calls])
    if role == "tool" or kind == "function_call_output":
        call_id = one.get("tool_call_id") or one.get("call_id")
        content = one.get("content") if "content" in one else one.get("output")
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
        if not isinstance(call_id, str) or not call_id or not isinstance(content, str):
            raise wrong("a tool result needs the id of its call and a text", where)
        return Message.tool(call_id, clean(content))
    if kind == "reasoning":
        return None
    raise wrong("the role of a message must be system, user, assistant or tool", where)


def _call(told: Json, where: str) -> ToolCall:
    function = told.get("function") if isinstance(told, Mapping) else None
    call_id = told.get("id") if isinstance(told, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call_id, str) or not call_id:
        raise wrong("a tool call needs an id and a function", where)
    arguments = function.get("arguments")
    try:
        decoded: Json = msgspec.json.decode(arguments) if isinstance(arguments, str) and arguments else {}
    except msgspec.MsgspecError:
        decoded = arguments
    return ToolCall(id=call_id, name=str(function.get("name") or ""), arguments=decoded)


def _content(content: Json, param: str, image_bytes: int) -> tuple[str, tuple[Attachment, ...]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise wrong(f"the content of a message must be text or a list of at most {MAX_PARTS} parts", param)
    texts: list[str] = []
    media: list[Attachment] = []
    for index, part in enumerate(parts):
        where = f"{param}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _TEXT_PARTS:
            told = part.get("text")
            if not isinstance(told, str):
                raise wrong("a part of the type text has no text", where)
            if len(told.encode("utf-8", "surrogatepass")) > MAX_PART_LENGTH:
                raise wrong(
                    f"a part of the type text exceeds {MAX_PART_LENGTH} bytes",
                    where,
                    "string_above_max_length",
                )
            texts.append(told)
        elif kind in _IMAGE_PARTS:
            media.append(_image(part.get("image_url"), where, image_bytes))
        elif kind in _FILE_PARTS:
            media.append(_file(part, where, image_bytes))
        else:
            raise wrong("a part must be text, an image or a file; other types are not supported", where)
    if len(media) > MAX_IMAGES:
        raise wrong(f"a message has more than {MAX_IMAGES} images and files", param)
    text = clean("\n".join(texts))
    if not text.strip() and not media:
        raise wrong("a message is empty", param)
    return text, tuple(media)


def _image(told: Json, where: str, limit: int) -> Attachment:
    url = told.get("url") if isinstance(told, Mapping) else told
    if not isinstance(url, str) or not url.startswith("data:"):
        raise wrong("an image must be sent as a data: URL, because the server downloads nothing", where)
    if len(url) > limit * 4 // 3 + 64:
        raise wrong(f"an image exceeds {limit} bytes", where, "image_too_large")
    content, mime = decode_data_url(url) if _IMAGE.fullmatch(url) else (None, None)
    if content is None or len(content) > limit:
        raise wrong(f"an image must be PNG, JPEG, GIF or WebP in base64, of at most {limit} bytes", where)
    return Attachment(kind=MessageType.PHOTO, ref=url, mime=mime, size=len(content))


def _file(part: Mapping[str, Json], where: str, limit: int) -> Attachment:
    """Return the file in a part of the type `file` or `input_file`."""
    fields = part.get("file") if part.get("type") == "file" else part
    url = fields.get("file_data") if isinstance(fields, Mapping) else None
    if not isinstance(url, str) or not url.startswith("data:"):
        raise wrong(
            "a file must be sent in file_data as a data: URL, because the server downloads nothing", where
        )
    if len(url) > limit * 4 // 3 + 200:
        raise wrong(f"a file exceeds {limit} bytes", where, "file_too_large")
    content, mime = decode_data_url(url)
    if content is None or len(content) > limit:
        raise wrong(f"a file must be in base64, of at most {limit} bytes", where)
    name = fields.get("filename") if isinstance(fields, Mapping) else None
    name = name if isinstance(name, str) else None
    return Attachment(kind=MessageType.DOCUMENT, ref=url, mime=mime, name=name, size=len(content))


def decode_data_url(ref: str) -> tuple[bytes | None, str | None]:
    """Return the content and the media type of a data URL, or two None values for an invalid URL."""
    match = _FILE.fullmatch(ref)
    if match is None:
        return None, None
    try:
        return base64.b64decode(match[2], validate=True), match[1]
    except binascii.Error:
        return None, None


# Pure functions for the content of requests and the form of answers.
#
# Without a session, a request contains its whole conversation. In a session, the server stores the
# conversation, and only the last message of the request and its tool results are new. Tools and settings are
# passed to the model.


UNSUPPORTED: Final = "unsupported_parameter"
MAX_TOOLS: Final = 128
_FORMS: Final = ("text", "json_object", "json_schema")
MAX_SESSION_LENGTH: Final = 200
_SHOWN: Final = 60
"""Maximum number of characters of an invalid value that the error message quotes."""
_TOOL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LARGEST: Final = 2**31 - 1
_MAX_SEED_LENGTH: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """The type of a request field."""

    words: str
    fits: Callable[[Json], bool]
    code: str = "invalid_value"
    """The error code for an invalid value."""


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
    "n": _Kind(
        "1, because the server returns one choice", lambda one: one == 1 and not isinstance(one, bool)
    ),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "max_tokens": _integer(1, _LARGEST),
    "max_completion_tokens": _integer(1, _LARGEST),
    "max_output_tokens": _integer(1, _LARGEST),
    "seed": _integer(-_MAX_SEED_LENGTH, _MAX_SEED_LENGTH),
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
"""The type of each field whose value is only validated here."""
_PASSED_ON: Final = (
    *("tool_choice", "response_format", "parallel_tool_calls", "stop", "seed", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "verbosity"),
)
"""The fields that are passed unchanged to the endpoint of the model."""
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
"""Fields that are accepted, but have no effect on the answer. The response echoes some such fields."""
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
    """The parsed content of a request."""

    text: str
    """The user's last message, or an empty text if the last entry is a tool result."""
    media: tuple[Attachment, ...] = ()
    earlier: tuple[Message, ...] = ()
    """The earlier messages of the conversation, as the request contains them."""
    results: tuple[Message, ...] = ()
    """The tool results in `earlier` that answer the tool calls of the last answer."""
    instructions: str = ""
    tools: tuple[ToolDescriptor, ...] = ()
    overrides: InferenceOverride | None = None
    stream: bool = False
    include_usage: bool = False
    session: str | None = None
    """The session that the body names."""
    previous: str | None = None
    """The id of the previous response that this request continues."""
    store: bool = True
    background: bool = False
    """Whether the run continues if the caller disconnects."""
    shown: Mapping[str, Json] = field(default_factory=dict)
    """The request fields that the response echoes."""

    @property
    def fingerprint(self) -> str:
        """Return a hash of the request's content.

        Requests with an equal idempotency key must have equal fingerprints.
        """
        values = (
            *(self.text, self.media, self.earlier, self.instructions, self.tools),
            *(self.overrides, self.previous),
            *((True,) if self.background else ()),  # a False would change earlier fingerprints
        )
        return hashlib.sha256(msgspec.json.encode(values)).hexdigest()

    def caller(self, *, in_session: bool) -> CallerRequest:
        """Return the parts of the request that are stored with the message for the run.

        For a request in a session, only new tool results are stored, because the session contains the
        conversation.
        """
        return CallerRequest(
            instructions=self.instructions,
            context=self.results if in_session else self.earlier,
            tools=self.tools,
            overrides=self.overrides,
        )


def read_chat(data: Mapping[str, Json], *, model: str, image_bytes: int) -> Asked:
    """Parse a chat completion request.

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
    """Parse a request to the Responses API.

    Raises:
        Refused: The request is invalid, or asks for an unsupported feature.
    """
    _check(data, model, _OF_RESPONSES, _NOT_IN_RESPONSES)
    items, instructions = data.get("input"), data.get("instructions")
    messages = [{"role": "user", "content": items}] if isinstance(items, str) else items
    fields = read_conversation(messages, "input", image_bytes)
    fields["instructions"] = "\n\n".join(filter(None, (instructions, fields["instructions"])))
    previous = data.get("previous_response_id")
    conversation = _conversation(data)
    if previous is not None and conversation is not None:
        raise wrong("give either `previous_response_id` or `conversation`", "conversation")
    effort = (data.get("reasoning") or {}).get("effort")
    _check_value(effort, "reasoning.effort", _TEXT)
    # The settings of a Responses request become those of a chat completion.
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
        schema = {name: item for name, item in form.items() if name != "type"}
        more["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif isinstance(form, Mapping) and form.get("type") != "text":
        more["response_format"] = dict(form)
    tools = _tools(data.get("tools"), lambda one: one)
    _check_choice(more, tools)
    store, background = data.get("store") is not False, bool(data.get("background"))
    if background and not store:
        raise wrong(
            "`background` requires `store`, because the client fetches the answer by its id", "background"
        )
    return Asked(
        **fields,
        tools=tools,
        overrides=_overrides({**data, "reasoning_effort": effort}, data.get("max_output_tokens"), more),
        stream=bool(data.get("stream")),
        session=conversation,
        previous=previous,
        store=store,
        background=background,
        shown=pick_echoed_fields(data),
    )


def _check(data: Mapping[str, Json], model: str, known: frozenset[str], absent: Mapping[str, str]) -> None:
    """Check that a request contains only supported fields."""
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
        text = f"there is no model {named[:100]!r}; use {model!r}"
        raise Refused(404, "model_not_found", text, param="model")


def _check_value(value: Json, name: str, kind: _Kind) -> None:
    """Check the type of a field's value."""
    if value is not None and not kind.fits(value):
        given_text = json.dumps(value, ensure_ascii=False)
        shown = given_text if len(given_text) <= _SHOWN else f"{given_text[:_SHOWN]}…"
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
    if not isinstance(told, list) or len(told) > MAX_TOOLS:
        raise wrong(f"`tools` must be a list of at most {MAX_TOOLS} tools", "tools")
    made: list[ToolDescriptor] = []
    for index, item in enumerate(told):
        where = f"tools[{index}]"
        if not isinstance(item, Mapping) or item.get("type") != "function":
            raise wrong("only tools of the type `function` are supported", where, UNSUPPORTED)
        function = function_of(item)
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
    """Check that `tool_choice` names one of the tools."""
    choice = more.get("tool_choice")
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in [tool.name for tool in tools]:
        raise wrong(f"`tool_choice` names {str(name)[:100]!r}, which is not in `tools`", "tool_choice")


def session_name(told: Json, param: str | None) -> str | None:
    """Return the session name of a request, or None if the request names no session.

    Raises:
        Refused: The value is invalid.
    """
    if told is None or told == "":
        return None
    if not isinstance(told, str) or not SESSION.fullmatch(told):
        raise wrong(f"the name of a session must be one line of 1 to {MAX_SESSION_LENGTH} characters", param)
    return told


def idempotency_key(told: str | None) -> str | None:
    """Return the idempotency key of a request, or None if the request has no key.

    Raises:
        Refused: The value is invalid.
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
    conversation = data.get("conversation")
    if isinstance(conversation, Mapping):
        conversation = conversation.get("id")
    return session_name(conversation, "conversation")


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


def pick_echoed_fields(data: Mapping[str, Json]) -> dict[str, Json]:
    """Return the request fields that the response echoes."""
    return {name: data[name] for name in _ECHOED if data.get(name) is not None}


# Pure functions for the form of answers in the OpenAI protocol.


def error_body(refusal: Refused) -> dict[str, Any]:
    """Return the body of an error response in OpenAI's format."""
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
"""The HTTP status and code of each error class. Other classes use those of their nearest base class."""
_KINDS: Final = {kind.code: kind for kind in errors.all_errors()}


def build_failure(error: str, code: str | None = None) -> Refused:
    """Return the error for a request whose run failed or was never started."""
    kind = _KINDS.get(code or "", errors.PostroomError)
    status, text = next(_FAILURES[parent] for parent in kind.__mro__ if parent in _FAILURES)
    named = re.search(r"`(\w+)`", error) if text == "unsupported_parameter" else None
    refused = Refused(status, text, error, param=named[1] if named else None)
    if text != "busy":  # the server has retried the run, so the SDK must not retry
        refused.headers["x-should-retry"] = "false"
    return refused


def describe_model(model: str, created: int) -> dict[str, Any]:
    """Return the description of the only model that the server offers."""
    return {"id": model, "object": "model", "created": created, "owned_by": "postroom"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer, with its tool calls and the number of tokens."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: tuple[int, int] = (0, 0)
    is_cut: bool = False
    """Whether a limit of the model or of the run cut the answer off."""
    is_cancelled: bool = False
    """Whether the caller cancelled the request. If so, the text is the partial answer."""
    failure: Refused | None = None
    """The reason why there is no answer."""
    reasoning: str = ""
    """The model's reasoning, which is not part of the text."""

    @property
    def is_partial(self) -> bool:
        """Whether the text may be incomplete."""
        return self.is_cut or self.is_cancelled

    @classmethod
    def of(cls, text: str, details: Mapping[str, Any]) -> "Answer":
        """Create an answer from a text and the details in `Metadata`."""
        calls = msgspec.convert(details.get("tool_calls", ()), tuple[ToolCall, ...])
        read, written = details.get("usage", (0, 0))
        error = details.get("error")
        return cls(
            text=details.get("text", "" if calls else text),
            is_cut=bool(details.get("is_cut")),
            calls=calls,
            usage=(read, written),
            failure=None if error is None else build_failure(error, details.get("code")),
            reasoning=details.get("reasoning", ""),
        )


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """Creates the JSON objects of one chat completion."""

    completion_id: str
    model: str
    created: int

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the complete answer as a chat completion."""
        content = answer.text if answer.text or not answer.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = self._calls(answer.calls)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": _chat_usage(answer)}

    def piece(self, delta: Mapping[str, Any], *, finish: str | None = None) -> dict[str, Any]:
        """Return one chunk of a streamed answer."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def end(self, answer: Answer, *, include_usage: bool) -> list[dict[str, Any]]:
        """Return the last chunks of a streamed answer.

        If `include_usage` is true, a separate last chunk contains the number of tokens.
        """
        calls = [{"index": index, **item} for index, item in enumerate(self._calls(answer.calls))]
        pieces = [self.piece({"tool_calls": calls})] if calls else []
        last, usage = self.piece({}, finish=_finish(answer)), _chat_usage(answer)
        if include_usage:
            alone = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}
            return [*pieces, {**last, "usage": None}, alone]
        return [*pieces, {**last, "usage": usage}]

    def _calls(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        return [
            {
                "id": tool_call.id,
                "type": "function",
                "function": {"name": tool_call.name, "arguments": _arguments(tool_call)},
            }
            for tool_call in calls
        ]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "length" if answer.is_cut else "stop"


def _chat_usage(answer: Answer) -> dict[str, int]:
    read, written = answer.usage
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """Creates the JSON objects of one response."""

    response_id: str
    chat_id: str
    model: str
    created: int
    asked: Mapping[str, Json] = field(default_factory=dict)
    """The request fields that the response echoes. See `pick_echoed_fields`."""

    @property
    def is_background(self) -> bool:
        """Whether the run continues after the caller has disconnected."""
        return bool(self.asked.get("background"))

    @property
    def item_id(self) -> str:
        """The id of the only message in the response."""
        return f"msg_{digest(self.response_id)}"

    def part(self, text: str) -> dict[str, Any]:
        """Return the content part that contains the text of the message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, parts: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
        """Return the message item of the response."""
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": list(parts),
        }

    def reasoning(self, text: str, status: str = "completed") -> dict[str, Any]:
        """Return the item for the model's reasoning.

        The item has no text until the status is `completed`.
        """
        return {
            "id": f"rs_{digest(self.response_id)}",
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}] if status == "completed" else [],
        }

    def call(self, call: ToolCall, status: str = "completed") -> dict[str, Any]:
        """Return the item for a tool that the caller must call."""
        return {
            "id": f"fc_{digest(self.response_id, call.id)}",
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": _arguments(call) if status == "completed" else "",
        }

    def output(self, answer: Answer) -> list[dict[str, Any]]:
        """Return the output items of a complete answer."""
        says = answer.text or not answer.calls
        status = "incomplete" if answer.is_cut else "completed"
        thoughts = [self.reasoning(answer.reasoning)] if answer.reasoning else []
        items = [self.item([self.part(answer.text)], status)] if says else []
        return [*thoughts, *items, *(self.call(call) for call in answer.calls)]

    def whole(
        self, answer: Answer | None = None, *, unanswered: str = "in_progress", so_far: str = ""
    ) -> dict[str, Any]:
        """Return the response object in the current state.

        If `answer` is None, the response has the status `unanswered` and the text `so_far`.
        """
        failure = None if answer is None else answer.failure
        is_done = answer is not None and failure is None
        named = self.asked.get("conversation")
        status = "completed" if is_done else unanswered if failure is None else "failed"
        is_cut = answer is not None and answer.is_cut and is_done
        if answer is not None and is_done and answer.is_partial:
            status = "cancelled" if answer.is_cancelled else "incomplete"
        so_far_said = [self.item([self.part(so_far)], "in_progress")] if so_far else []
        usage: dict[str, Any] | None = None
        if answer is not None and is_done:
            read, written = answer.usage
            usage = {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + written,
            }
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
            "output": self.output(answer) if answer is not None and is_done else so_far_said,
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
            "tools": [
                {"description": None, "parameters": None, "strict": None, **item}
                for item in self.asked.get("tools") or ()
            ],
            "top_logprobs": 0,
            "top_p": self.asked.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "metadata": self.asked.get("metadata") or {},
        }


# Exchanges: the messages of the API with their known answers and their waiting callers, in memory.
#
#     opened ──▶ drafts grow, parts arrive ──▶ final ──▶ forgotten, the oldest first, when there are too many
#
# While a caller reads an answer as a stream, the answer only grows, because sent text cannot be withdrawn.


SIGN_OF_LIFE: Final = ": waiting\n\n"


MAX_WAITING: Final = 1_000
MAX_EXCHANGES: Final = 2_000
MAX_CHARACTERS: Final = 20_000_000
_BETWEEN: Final = "\n\n"
_HUNG_UP: Final = "hung_up"
_NOTHING: Final[Mapping[str, Any]] = {}


class Exchange:
    """A message, and the part of the answer that has been received."""

    def __init__(self, chat_id: str, message_id: str) -> None:
        self.chat_id = chat_id
        self.message_id = message_id
        self.fingerprint: str | None = None
        """The fingerprint of the message, or None if this process did not receive it."""
        self.answer: Answer | None = None
        """The complete answer, or None as long as the answer is incomplete."""
        self.since = 0
        """When the message was first received, or 0 if this process does not know the time."""
        self.is_collected = False
        """Whether a caller has received the answer, or the id with which the answer can be fetched."""
        self.is_background = False
        """Whether the run continues when no caller waits."""
        self.is_cancelled = False
        """Whether the caller disconnected or cancelled the request before there was an answer."""
        self.has_begun_again = False
        """Whether an attempt failed in the middle of the answer, and a later attempt wrote it again."""
        self.reasoning = ""
        """The part of the model's reasoning that has been received so far."""
        self.waits: set[Wait] = set()
        self.asked = ""
        """All text up to the agent's last question, which is not part of the answer."""
        self._parts: list[tuple[str, str]] = []
        self.restored = ""
        """The questions that were restored from the store, and that their delivery may repeat."""

    @property
    def is_final(self) -> bool:
        """Whether the answer is complete."""
        return self.answer is not None

    @property
    def has_failed(self) -> bool:
        """Whether no answer will arrive, because the request was cancelled or rejected, or the run failed."""
        return self.is_cancelled or (self.answer is not None and self.answer.failure is not None)

    @property
    def text(self) -> str:
        """The part of the answer that has been received so far."""
        return _BETWEEN.join(text for _, text in self._parts if text)

    @property
    def size(self) -> int:
        """The number of characters of the exchange in memory."""
        return len(self.asked) + len(self.reasoning) + sum(len(text) for _, text in self._parts)

    @property
    def sure(self) -> str:
        """The text that can no longer change: the agent's questions and the final part of the answer."""
        text = self.answer.text if self.answer is not None else settled(self.text)
        return _BETWEEN.join(filter(None, (self.asked, text)))

    def holds(self, part_id: str) -> bool:
        """Return whether a part of the answer has the id `part_id`."""
        return any(known_value == part_id for known_value, _ in self._parts)

    def add(self, part_id: str, text: str, *, final: bool, details: Mapping[str, Any] = _NOTHING) -> None:
        """Add a part to the answer, or extend the last part.

        Parts that arrive after the final part are ignored.
        """
        if self.is_final or (not final and self._is_restored(text)):
            return
        if self._parts and grows_from(self._parts[-1][1], text):
            self._parts.pop()
        self._parts.append((part_id, text))
        self._record_details(final, details)

    def replace(self, part_id: str, text: str, *, final: bool, details: Mapping[str, Any] = _NOTHING) -> None:
        """Replace the text of a part of the answer."""
        if not self.is_final:
            self._parts = [
                (known_value, text if known_value == part_id else old) for known_value, old in self._parts
            ]
            self._record_details(final, details)

    def _is_restored(self, text: str) -> bool:
        """Return whether the text belongs to questions that were restored before their delivery."""
        if text and f"{_BETWEEN}{text}" in f"{_BETWEEN}{self.restored}":
            return True
        self.restored = ""
        return False

    def ask(self, text: str) -> None:
        """Append a question to the received text. The answer begins after the question."""
        if self.is_final or self.asked.endswith(text) or self._is_restored(text):
            return
        if self._parts and grows_from(self._parts[-1][1], text):
            self._parts.pop()
        self.asked = _BETWEEN.join(filter(None, (self.asked, self.text, text)))
        self._parts.clear()
        self._record_details(False, _NOTHING)

    @property
    def so_far(self) -> str:
        """The agent's questions, and the part of the answer that has been received so far."""
        return _BETWEEN.join(filter(None, (self.asked, self.text)))

    def cancel(self, text: str | None = None) -> None:
        """End the exchange as cancelled, with the text that has been received.

        If `text` is given, `text` becomes the answer, even in place of a final answer. If `text` is None, a
        final answer does not change.
        """
        if self.answer is None or text is not None:
            self.is_cancelled = True
            text = self.so_far if text is None else text
            self.asked, self.answer = "", Answer(text=text, is_cancelled=True)
            for wait in self.waits:
                wait.wake()

    def _record_details(self, final: bool, details: Mapping[str, Any]) -> None:
        self.reasoning = details.get("reasoning") or self.reasoning
        if final:
            self.answer = Answer.of(self.text, {**details, "reasoning": self.reasoning})
        for wait in self.waits:
            wait.wake()


class Wait:
    """A request that waits for the answer to a message."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.thought = ""
        """The new reasoning that belongs to the newest delta."""
        self._ended: Refused | None = None
        self._beats = False
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Let the waiting request check the exchange for changes."""
        self._news.set()

    def beat(self) -> None:
        """Request a heartbeat."""
        self._beats = True
        self.wake()

    def end(self, refusal: Refused) -> None:
        """End the wait with an error for the caller."""
        self._ended = refusal
        self.wake()

    async def end_with(self, receive: Receive) -> None:
        """End the wait when the caller disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end(Refused(503, _HUNG_UP, "the caller closed the connection"))

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller disconnected before an answer or an error arrived."""
        is_refused = self._ended is not None and self._ended.code != _HUNG_UP
        return not self.exchange.is_final and not is_refused

    async def answer(self) -> Answer:
        """Wait for the final answer, and return the answer.

        Raises:
            Refused: The wait was ended, or there will be no answer.
        """
        while self.exchange.answer is None:
            await self._next()
        return self.collected()

    def collected(self) -> Answer:
        """Return the complete answer, and record that the caller has received the answer.

        Raises:
            Refused: There is no answer.
        """
        answer = self.exchange.answer or Answer(text="")
        self.exchange.is_collected = True
        if answer.failure is not None:
            raise answer.failure
        return answer

    async def deltas(self) -> AsyncGenerator[str]:
        """Yield the answer in pieces as the text arrives.

        An empty piece means new reasoning or a heartbeat.

        Raises:
            Refused: The wait was ended, or there will be no answer.
        """
        text = reasoned = ""
        while True:
            final, sure = self.exchange.is_final, self.exchange.sure
            if final and self.exchange.has_begun_again and not _goes_on(text, sure):
                # The caller received the beginning of an answer that was discarded.
                answer = self.exchange.answer
                if answer is not None and answer.failure is not None:
                    raise answer.failure
                key = self.exchange.message_id
                message = (
                    "the model's answer ended early, after a part of it was sent, and the next attempt "
                    "differs from that part. Discard the part and ask again with Idempotency-Key: "
                    f"{key} for the whole answer"
                )
                raise Refused(502, "model_broke_off", message)
            if final:
                self.collected()
            new = sure[len(text) :] if sure.startswith(text) else ""
            if final and not _goes_on(text, sure):
                new = f"{_BETWEEN}{sure}"  # the answer neither begins nor ends with the sent text
            reasoning = self.exchange.reasoning
            self.thought = reasoning[len(reasoned) :] if reasoning.startswith(reasoned) else ""
            if new or self.thought:
                text, reasoned = sure if new else text, reasoned + self.thought
                yield new
                self.thought = ""
            if final:
                return
            await self._next()
            if self._beats:
                self._beats = False
                yield ""

    async def _next(self) -> None:
        if self._ended is not None:
            raise self._ended
        await self._news.wait()
        self._news.clear()


def _goes_on(told: str, sure: str) -> bool:
    """Return whether the final text agrees with the text that was already sent."""
    return sure.startswith(told) or told.endswith(sure)


def refuse_other_content(earlier: str | None, fingerprint: str) -> None:
    """Check that an idempotency key was not used for a request with different content.

    `earlier` is the fingerprint of the earlier request, or None if the fingerprint is unknown.

    Raises:
        Refused: The fingerprints differ.
    """
    if earlier not in (None, fingerprint):
        raise Refused(
            409, "idempotency_conflict", "this Idempotency-Key was already used with another message"
        )


class Exchanges:
    """The exchanges in memory, and the requests that wait for answers."""

    def __init__(self) -> None:
        self._exchanges: OrderedDict[tuple[str, str], Exchange] = OrderedDict()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return self._waiting

    def ask(self, chat_id: str, message_id: str, fingerprint: str) -> Wait:
        """Begin to wait for the answer to a message.

        Raises:
            Refused: The message id was used for other content, or too many requests wait.
        """
        known_exchange = self._exchanges.get((chat_id, message_id))
        if known_exchange is not None:
            refuse_other_content(known_exchange.fingerprint, fingerprint)
        if self._waiting >= MAX_WAITING:
            raise Refused(
                429, "too_many_waiting", f"{MAX_WAITING} requests are already waiting", retry_after=5
            )
        exchange = known_exchange or self._open_stream(chat_id, message_id)
        exchange.fingerprint = fingerprint
        wait = Wait(exchange)
        exchange.waits.add(wait)
        self._waiting += 1
        return wait

    def leave(self, wait: Wait) -> None:
        """End a wait for an answer. A second call has no effect."""
        if wait in wait.exchange.waits:
            wait.exchange.waits.discard(wait)
            self._waiting -= 1

    def forget(self, exchange: Exchange) -> None:
        """Remove an exchange whose message was not stored, unless another caller waits for the answer."""
        if not exchange.waits and not exchange.size:
            self._exchanges.pop((exchange.chat_id, exchange.message_id), None)

    def answered(
        self,
        chat_id: str,
        message_ids: Iterable[str],
        part_id: str,
        text: str,
        *,
        final: bool,
        details: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """Add a part of an answer to the exchanges of the answered messages."""
        for message_id in message_ids:
            exchange = self._exchanges.get((chat_id, message_id)) or self._open_stream(chat_id, message_id)
            exchange.add(part_id, text, final=final, details=details)

    def asked(self, chat_id: str, message_ids: Iterable[str], text: str) -> None:
        """Show a question to the callers who wait for answers to the messages `message_ids`."""
        for message_id in message_ids:
            exchange = self._exchanges.get((chat_id, message_id)) or self._open_stream(chat_id, message_id)
            exchange.ask(text)

    def recall(self, chat_id: str, message_id: str, asked: str) -> None:
        """Restore the questions of an exchange that another process has already shown."""
        exchange = self._exchanges.get((chat_id, message_id))
        if asked and not (exchange and (exchange.asked or exchange.is_final)):
            exchange = exchange or self._open_stream(chat_id, message_id)
            exchange.asked = exchange.restored = asked

    def edited(
        self,
        chat_id: str,
        message_ids: Iterable[str],
        part_id: str,
        text: str,
        *,
        final: bool,
        details: Mapping[str, Any] = _NOTHING,
    ) -> bool:
        """Replace the text of a part of an answer, and return whether the part is known."""
        exchanges = [
            exchange
            for exchange in self._exchanges.values()
            if exchange.chat_id == chat_id and exchange.holds(part_id)
        ]
        for exchange in exchanges:
            exchange.replace(part_id, text, final=final, details=details)
        if exchanges:
            shown = {exchange.message_id for exchange in exchanges}
            others = [value for value in message_ids if value not in shown]
            self.answered(chat_id, others, part_id, text, final=final, details=details)
        return bool(exchanges)

    def begin_again(self, chat_id: str, part_id: str) -> None:
        """Record that another attempt of the run rewrites a part of an answer."""
        for exchange in self._exchanges.values():
            if exchange.chat_id == chat_id and exchange.holds(part_id):
                exchange.has_begun_again = True

    def find(self, chat_id: str, message_id: str) -> Exchange | None:
        """Return the exchange of a message, or None if the exchange is unknown."""
        return self._exchanges.get((chat_id, message_id))

    def beat(self) -> None:
        """Request a heartbeat for all waiting callers."""
        for exchange in self._exchanges.values():
            for wait in exchange.waits:
                wait.beat()

    def end(self, refusal: Refused) -> None:
        """End all waits."""
        for exchange in self._exchanges.values():
            for wait in exchange.waits:
                wait.end(refusal)

    def _open_stream(self, chat_id: str, message_id: str) -> Exchange:
        characters = sum(exchange.size for exchange in self._exchanges.values())
        for key, exchange in list(self._exchanges.items()):
            if len(self._exchanges) <= MAX_EXCHANGES and characters <= MAX_CHARACTERS:
                break
            if not exchange.waits:
                del self._exchanges[key]
                characters -= exchange.size
        exchange = self._exchanges[chat_id, message_id] = Exchange(chat_id, message_id)
        return exchange


def data_event(data: Mapping[str, Any]) -> str:
    """Return a server-sent event with JSON data."""
    return f"data: {json.dumps(data)}\n\n"


class _ResponseEvents:
    """Creates the numbered events of one response.

    In a background response, each character of a delta takes one event number.
    """

    def __init__(self, shape: ResponseShape, after: int = -1) -> None:
        """Create the events whose numbers are greater than `after`."""
        self.text = self.reasoning = ""
        self._shape = shape
        self._has_message = False
        self._count = 0
        self._after = after

    def event(self, kind: str, **told: Any) -> str:
        """Return an event of the stream, or a heartbeat if the reader has already received the event."""
        number, self._count = self._count, self._count + 1
        if number <= self._after:
            return SIGN_OF_LIFE
        return f"event: {kind}\n{data_event({'type': kind, **told, 'sequence_number': number})}"

    @property
    def _index(self) -> int:
        """The index of the message among the items of the response."""
        return int(bool(self.reasoning))

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._shape.item_id, "output_index": self._index, "content_index": 0}

    def thought(self, delta: str) -> Iterator[str]:
        """Yield the events for new reasoning."""
        # Reasoning is not stored: after a restart, the numbers of a background response would differ.
        if not delta or self._has_message or self._shape.is_background:
            return
        item = self._shape.reasoning("", "in_progress")
        if not self.reasoning:
            yield self.event("response.output_item.added", output_index=0, item=item)
        self.reasoning += delta
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield self.event("response.reasoning_text.delta", **place, delta=delta)

    def _thought_whole(self) -> Iterator[str]:
        """Yield the events that end the reasoning."""
        if self.reasoning:
            item = self._shape.reasoning(self.reasoning)
            place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            yield self.event("response.reasoning_text.done", **place, text=self.reasoning)
            yield self.event("response.output_item.done", output_index=0, item=item)

    def stream_text(self, delta: str) -> Iterator[str]:
        """Yield the events for new text of the answer."""
        shape = self._shape
        if not self._has_message:
            yield from self._thought_whole()
            self._has_message = True
            item = shape.item([], "in_progress")
            yield self.event("response.output_item.added", output_index=self._index, item=item)
            yield self.event("response.content_part.added", **self._place, part=shape.part(""))
        self.text += delta
        if delta:
            unread = delta[max(self._after + 1 - self._count, 0) :]
            self._count += len(delta) - 1 if self._shape.is_background else 0
            yield self.event("response.output_text.delta", **self._place, delta=unread, logprobs=[])

    def stream_end(self, answer: Answer) -> Iterator[str]:
        """Yield the events that complete the answer, including its tool calls."""
        if not self._has_message and not answer.calls:
            yield from self.stream_text("")
        if not self._has_message:
            yield from self._thought_whole()
        shape, part = self._shape, self._shape.part(self.text)
        if self._has_message:
            yield self.event("response.output_text.done", **self._place, text=self.text, logprobs=[])
            yield self.event("response.content_part.done", **self._place, part=part)
            item = shape.item([part], "incomplete" if answer.is_partial else "completed")
            yield self.event("response.output_item.done", output_index=self._index, item=item)
        for index, call in enumerate(answer.calls, start=self._index + int(self._has_message)):
            whole, began = shape.call(call), shape.call(call, "in_progress")
            place = {"output_index": index, "item_id": whole["id"]}
            arguments = whole["arguments"]
            yield self.event("response.output_item.added", output_index=index, item=began)
            yield self.event("response.function_call_arguments.delta", **place, delta=arguments)
            kind = "response.function_call_arguments.done"
            yield self.event(kind, **place, name=call.name, arguments=arguments)
            yield self.event("response.output_item.done", output_index=index, item=whole)
        kind = "response.incomplete" if answer.is_partial else "response.completed"
        final = replace(answer, text=self.text, reasoning=self.reasoning)
        yield self.event(kind, response=shape.whole(final))


async def response_events(wait: Wait, shape: ResponseShape, after: int = -1) -> AsyncGenerator[str]:
    """Yield the events of a response whose numbers are greater than `after`.

    The last event of a failed response is `response.failed`. If no answer arrives in time, the last event is
    `error`.
    """
    events = _ResponseEvents(shape, after)
    yield events.event("response.created", response=shape.whole())
    yield events.event("response.in_progress", response=shape.whole())
    try:
        async with aclosing(wait.deltas()) as deltas:
            async for delta in deltas:
                for value in events.thought(wait.thought):
                    yield value
                for value in events.stream_text(delta) if delta else (SIGN_OF_LIFE,):
                    yield value
    except Refused as refusal:
        answer = wait.exchange.answer
        if answer is not None:
            yield events.event("response.failed", response=shape.whole(replace(answer, failure=refusal)))
        else:
            yield events.event("error", **error_body(refusal)["error"])
        return
    for value in events.stream_end(wait.collected()):
        yield value


# Repeated requests. They are recognised by key, header or position in the conversation.


_LOOK_EVERY_MS: Final = 1_000
"""The interval at which the store is checked for an answer from another server."""
RETRIED_WITHIN_MS: Final = 3_600_000
"""The time after which an equal request is a new request. Clients wait ten minutes or more."""
_NEWEST: Final = 6
"""The number of newest equal requests among which the repeated request is searched."""
_MAX_COUNTS: Final = 2_000
_MAX_FAILED: Final = 20


class Repeats:
    """Finds the earlier request that a new request repeats."""

    def __init__(
        self,
        exchanges: Exchanges,
        look_up: Callable[[str, str], Awaitable[KnownMessage | None]],
        clock: Clock,
    ) -> None:
        self._exchanges = exchanges
        self._look_up = look_up
        self._clock = clock
        self._began = clock.now()
        self._counts: OrderedDict[tuple[str | None, str, int], int] = OrderedDict()
        """A lower bound of the number of equal requests, keyed by session, digest and hour."""

    async def is_known(self, exchange: Exchange, fingerprint: str) -> bool:
        """Return whether a message already has an answer in memory or in the store.

        Raises:
            Refused: The message had other content.
        """
        if exchange.is_final:
            return True
        if exchange.since:
            return False
        known_message = await self._look_up(exchange.chat_id, exchange.message_id)
        exchange.since = self._clock.now() if known_message is None else known_message.received_at
        if known_message is None:
            return False
        refuse_other_content(known_message.event.metadata.get("fingerprint"), fingerprint)
        return _copy_answer(exchange, known_message)

    async def follow(self, exchange: Exchange, timer: Timer) -> None:
        """Poll the store until another server has stored the answer."""
        while not exchange.is_final:
            await timer.sleep(_LOOK_EVERY_MS)
            try:
                _copy_answer(exchange, await self._look_up(exchange.chat_id, exchange.message_id))
            except StoreError as error:
                _LOG.warning("answer.not_looked_for", reason=error.describe())

    async def derive_idempotency_key(
        self, session: str | None, told: str, *, is_again: bool, has_history: bool = False
    ) -> str:
        """Return an idempotency key for a request without a key.

        If `is_again` is true, the request gets the key of an equal request in the last hour. If `is_again` is
        false, the request gets the key of an equal request whose caller received no answer. If no equal
        request is found, the key is new. Failed and cancelled requests are ignored.
        """
        now = self._clock.now()
        hour = now // RETRIED_WITHIN_MS
        before, here = await self._count(session, told, hour - 1), await self._count(session, told, hour)
        earlier = [f"auto-{told}-{hour}-{number}" for number in reversed(range(max(here - _NEWEST, 0), here))]
        earlier += [
            f"auto-{told}-{hour - 1}-{number}" for number in reversed(range(max(before - _NEWEST, 0), before))
        ]
        has_position = session is None or has_history
        latest = ""
        for key in earlier[:_NEWEST] if is_again or has_position else ():
            place = session or own_session(key), key
            exchange = self._exchanges.find(*place)
            known_message = await self._look_up(*place) if exchange is None or not exchange.since else None
            since = exchange.since if exchange is not None and exchange.since else now
            since = known_message.received_at if known_message is not None else since
            earlier_one = known_message or exchange
            if (earlier_one is not None and earlier_one.has_failed) or now - since >= RETRIED_WITHIN_MS:
                continue
            # Find out whether the caller of a request got no answer and no longer waits. This is unknown for
            # a request that this process did not receive. Then assume that the caller got an answer if
            # `is_again`, if the request is newer than this process, or if it is a background request.
            if exchange is None or exchange.fingerprint is None:  # this process did not receive the request
                is_background = known_message is not None and "background" in known_message.event.metadata
                was_missed = not is_again and since < self._began and not is_background
            else:
                was_missed = not exchange.is_collected and (is_again or not exchange.waits)
            if was_missed:
                return key
            latest = latest or key
        if is_again and latest:
            return latest
        while True:
            key = f"auto-{told}-{hour}-{here}"
            if self._exchanges.find(session or own_session(key), key) is None:
                return key
            here += 1  # another equal request has arrived in the meantime

    async def _count(self, session: str | None, told: str, hour: int) -> int:
        """Return the number of equal requests within an hour."""
        counted = self._counts.pop((session, told, hour), 0)

        async def is_known(number: int) -> bool:
            key = f"auto-{told}-{hour}-{number}"
            place = session or own_session(key), key
            return self._exchanges.find(*place) is not None or await self._look_up(*place) is not None

        step, beyond = 1, counted
        while await is_known(beyond):
            counted, beyond, step = beyond + 1, beyond + step, step * 2
        while counted < beyond:
            middle = (counted + beyond) // 2
            counted, beyond = (middle + 1, beyond) if await is_known(middle) else (counted, middle)
        self._counts[session, told, hour] = counted
        while len(self._counts) > _MAX_COUNTS:
            self._counts.popitem(last=False)
        return counted

    async def key_in_use(self, session: str | None, key: str, fingerprint: str) -> str:
        """Return the key, or a derived key if the earlier request with the key failed or was cancelled.

        Raises:
            Refused: The request with the key had other content, or twenty such requests failed.
        """
        for number in range(_MAX_FAILED):
            name = f"again-{number}-{digest(key)}" if number else key
            place = session or own_session(name), name
            exchange = self._exchanges.find(*place)
            known_message = await self._look_up(*place) if exchange is None else None
            if not (
                exchange.has_failed if exchange is not None else known_message and known_message.has_failed
            ):
                return name
            earlier = exchange.fingerprint if exchange is not None else None
            refuse_other_content(
                earlier if known_message is None else known_message.event.metadata.get("fingerprint"),
                fingerprint,
            )
        text = f"{_MAX_FAILED} requests with this Idempotency-Key failed or were cancelled: send a new key"
        raise Refused(409, "idempotency_conflict", text)


def _copy_answer(exchange: Exchange, known: KnownMessage | None) -> bool:
    """Copy a stored answer into an exchange, and return whether the exchange has an answer."""
    if known is not None and known.is_cancelled:
        exchange.cancel()
    elif known is not None and known.answer is not None:
        exchange.add("kept", known.answer, final=True, details=known.details)
    return exchange.is_final


LARGEST_BODY: Final = 10_000_000
MIN_KEY_LENGTH: Final = 16
SESSION_HEADER: Final = "X-Postroom-Session"
KEY_HEADER: Final = "Idempotency-Key"


class ApiServerOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.api_server]`."""

    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 590
    """How long a request waits for its answer, in seconds. OpenAI's SDK waits 600 s."""
    model: Annotated[str, Meta(min_length=1, extra={"write": "a text that is not empty"})] = "postroom"
    """The name of the only model in the list of models."""
    max_image_bytes: Annotated[int, Meta(ge=1, le=5_000_000)] = 1_000_000
    """The maximum size of an image."""

    def __post_init__(self) -> None:
        if not self.model.isprintable():
            raise ValueError("`model` must be one line of text")


class ApiServerAdapter(HttpAdapter):
    """Answers HTTP requests in the format of OpenAI's API.

    Raises:
        ConfigError: The key is missing or too short, or a setting is unknown or invalid.
    """

    platform: ClassVar = Platform.API_SERVER
    options: ClassVar = ApiServerOptions
    at_root: ClassVar = True
    largest_body: ClassVar = LARGEST_BODY
    beats = True
    capabilities: ClassVar = ChannelCapabilities(
        limit=NO_LIMIT,
        streams=True,
        min_edit_interval_ms=0,
        holds_requests=True,
        reasoning=True,
        dedupes=True,  # a repeated request with the same key gets the same answer
    )

    def __init__(
        self, config: ApiServerOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = options = config
        key = config.api_key or ""
        if len(key) < MIN_KEY_LENGTH:
            raise ConfigError(
                "the API key is missing or too short",
                remedy=secret_remedy("api_key", f"at least {MIN_KEY_LENGTH} random characters"),
            )
        self._model = options.model
        self._created = self._clock.now() // 1000
        self._exchanges = Exchanges()
        self._repeats = Repeats(self._exchanges, self._look_up, self._clock)
        self._while_waiting: dict[Wait, list[asyncio.Task[None]]] = {}

    lease = None  # each server answers its own requests

    def routes(self) -> Sequence[BaseRoute]:
        """Return the HTTP routes of the API. The base URL for clients ends with `/v1`."""
        return (
            Route("/v1/chat/completions", self._serve(self._complete), methods=["POST"]),
            Route("/v1/responses", self._serve(self._respond), methods=["POST"]),
            Route("/v1/responses/{id}", self._serve(self._load_response), methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/cancel", self._serve(self._cancel), methods=["POST"]),
            Route("/v1/models", self._serve(self._list_models), methods=["GET"]),
            Route("/v1/models/{id:path}", self._serve(self._one_model), methods=["GET"]),
        )

    def refuse(self, status: int, code: str, message: str, headers: Mapping[str, str]) -> Response:
        """Return the response to a request that the server refuses.

        For an unknown path, the response lists the known paths.
        """
        if status == HTTPStatus.NOT_FOUND:
            known_values = dict.fromkeys(route.path for route in self.routes() if isinstance(route, Route))
            message = f"{message}; the known paths are {', '.join(known_values)}"
        return super().refuse(status, code, message, headers)

    async def disconnect(self) -> None:
        """Refuse all requests, including requests that wait for an answer.

        Stored messages of waiting requests are answered later.
        """
        self._exchanges.end(
            Refused(503, "stopping", "the server is shutting down; send the request again", retry_after=5)
        )
        await super().disconnect()

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the bytes of an image from a request.

        Raises:
            TooLarge: The image is larger than `max_bytes`.
            ServerUnavailable: The image was not sent through this API.
        """
        content, _ = decode_data_url(attachment.ref)
        if content is None:
            raise ServerUnavailable(
                "the image was not sent with an API request", remedy="send the image again"
            )
        if len(content) > max_bytes:
            raise TooLarge(f"the image is larger than {max_bytes} bytes", value=len(content))
        yield content

    # Incoming requests.

    async def _complete(self, request: Request) -> Response:
        call = await self._read(request, read_chat)
        wait, headers = await self._ask(request, call)
        exchange = wait.exchange
        response_id = encode_response_id(exchange.chat_id, exchange.message_id)
        shape = ChatShape(
            completion_id=f"chatcmpl-{digest(response_id)}",
            model=self._model,
            created=self._clock.now() // 1000,
        )
        if call.stream:
            events = self._chat_events(wait, shape, include_usage=call.include_usage)
            return SseResponse(events, headers, left=lambda: self._over(wait))
        return json_response(shape.whole(await self._answer(request, wait)), headers=headers)

    async def _respond(self, request: Request) -> Response:
        call = await self._read(request, read_response)
        wait, headers = await self._ask(request, call)
        exchange = wait.exchange
        shape = self._response_shape(exchange.chat_id, exchange.message_id, exchange.since, call.shown)
        if call.stream:
            return SseResponse(response_events(wait, shape), headers, left=lambda: self._over(wait))
        if call.background:
            self._leave(wait)
            return json_response(shape.whole(exchange.answer, unanswered="queued"), headers=headers)
        return json_response(shape.whole(await self._answer(request, wait)), headers=headers)

    async def _load_response(self, request: Request) -> Response:
        self._check_key(request)
        response_id = request.path_params["id"]
        value = await self._response(response_id)
        if value is None:
            raise Refused(404, "not_found", "there is no response with this id, or it was deleted")
        chat_id, message_id, known_message = value
        if request.method == "DELETE":
            await self._receiver().forget_answer(self._source(chat_id), message_id)
            return json_response({"id": response_id, "object": "response", "deleted": True})
        shape = self._response_shape(
            chat_id,
            message_id,
            known_message.received_at,
            known_message.event.metadata["response"],
        )
        if request.query_params.get("stream") == "true":
            if not shape.is_background:
                raise wrong("only a response created with `background` can be streamed again", "stream")
            after = request.query_params.get("starting_after", "-1")
            if not re.fullmatch(r"-1|\d{1,9}", after, re.ASCII):
                raise wrong("`starting_after` must be the sequence number of an event", "starting_after")
            # Begin to wait for the answer to an earlier message.
            wait = self._exchanges.ask(
                chat_id, message_id, known_message.event.metadata.get("fingerprint", "")
            )
            try:
                await self._repeats.is_known(wait.exchange, wait.exchange.fingerprint or "")
            except BaseException:
                self._leave(wait)
                raise
            self._begin_waiting(wait)
            return SseResponse(response_events(wait, shape, int(after)), left=lambda: self._leave(wait))
        exchange = self._exchanges.find(chat_id, message_id)
        so_far = "" if exchange is None or not exchange.asked else exchange.sure
        return json_response(
            shape.whole(self._find_answer(chat_id, message_id, known_message), so_far=so_far)
        )

    async def _cancel(self, request: Request) -> Response:
        """Cancel the run of a response and return the response."""
        self._check_key(request)
        value = await self._response(request.path_params["id"])
        if value is None:
            raise Refused(404, "not_found", "there is no response with this id, or it was deleted")
        chat_id, message_id, known_message = value
        shape = self._response_shape(
            chat_id,
            message_id,
            known_message.received_at,
            known_message.event.metadata["response"],
        )
        answer = self._find_answer(chat_id, message_id, known_message)
        # An earlier cancellation may be stored, but may not have reached its run. Complete it.
        is_open = answer is None or known_message.is_cancelled
        if is_open and await self._cancel_run(chat_id, message_id):
            exchange = self._exchanges.find(chat_id, message_id)
            answer = Answer(text="" if exchange is None else exchange.sure, is_cancelled=True)
        return json_response(shape.whole(answer))

    def _find_answer(self, chat_id: str, message_id: str, known: KnownMessage) -> Answer | None:
        """Return the answer to a message, from memory or the store, or None if there is no answer yet."""
        exchange = self._exchanges.find(chat_id, message_id)
        if exchange is not None and exchange.answer is not None:
            return exchange.answer
        if known.is_cancelled:
            return Answer(text="", is_cancelled=True)
        return None if known.answer is None else Answer.of(known.answer, known.details)

    def _response_shape(
        self, chat_id: str, message_id: str, since: int, shown: Mapping[str, Any]
    ) -> ResponseShape:
        response_id = encode_response_id(chat_id, message_id)
        return ResponseShape(response_id, chat_id, self._model, since // 1000, shown)

    async def _response(self, response_id: str) -> tuple[str, str, KnownMessage] | None:
        """Return the session, message id and message of a response, or None for a deleted response."""
        names = read_response_id(response_id)
        known_message = None if names is None else await self._look_up(*names)
        if (
            names is None
            or known_message is None
            or known_message.is_forgotten
            or "response" not in known_message.event.metadata
        ):
            return None
        chat_id, message_id = names
        exchange = self._exchanges.find(chat_id, message_id)
        if (
            known_message.answer is None
            and not known_message.is_cancelled
            and (exchange is None or not exchange.asked)
        ):
            # Another process has shown the questions, because this process is new or one of several servers.
            cards = await self._receiver().cards_of(self._source(chat_id), message_id)
            self._exchanges.recall(chat_id, message_id, _BETWEEN.join(map(_question_text, cards)))
        return *names, known_message

    async def _look_up(self, chat_id: str, message_id: str) -> KnownMessage | None:
        return await self._receiver().look_up(self._source(chat_id), message_id)

    def _source(self, chat_id: str) -> SessionSource:
        return SessionSource(
            platform=self.platform, chat_id=chat_id, user_id="api", user_name="API", chat_type="dm"
        )

    async def _list_models(self, request: Request) -> Response:
        self._check_key(request)
        return json_response({"object": "list", "data": [describe_model(self._model, self._created)]})

    async def _one_model(self, request: Request) -> Response:
        self._check_key(request)
        if request.path_params["id"] != self._model:
            raise Refused(
                404, "model_not_found", f"there is no such model; use {self._model!r}", param="model"
            )
        return json_response(describe_model(self._model, self._created))

    def _check_key(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not same_secret(key.strip(), self.config.api_key or ""):
            raise Refused(
                401,
                "invalid_api_key",
                "Incorrect API key provided, or none: send Authorization: Bearer <key>",
            )
        self._heard()

    async def _read(self, request: Request, reader: Callable[..., Asked]) -> Asked:
        self._check_key(request)
        require_json(request)
        body = await read_body(request, LARGEST_BODY)
        return reader(parse_object(body), model=self._model, image_bytes=self._options.max_image_bytes)

    async def _ask(self, request: Request, asked: Asked) -> tuple[Wait, dict[str, str]]:
        """Store the message of a request, and begin to wait for the answer."""
        if (session := await self._session(request, asked)) is None:
            check_results(asked.earlier)
        key = idempotency_key(request.headers.get(KEY_HEADER))
        if key is None:
            key = await self._repeats.derive_idempotency_key(
                session,
                digest(f"{session}\0{asked.fingerprint}"),
                is_again=request.headers.get("X-Stainless-Retry-Count", "0") not in ("", "0"),
                has_history=bool(asked.earlier) or asked.previous is not None,
            )
        else:
            key = await self._repeats.key_in_use(session, key, asked.fingerprint)
        chat_id = session or own_session(key)
        wait = self._exchanges.ask(chat_id, key, asked.fingerprint)
        try:
            if not await self._repeats.is_known(wait.exchange, asked.fingerprint):
                exchange = wait.exchange
                in_session = session is not None
                metadata: dict[str, Any] = {"fingerprint": asked.fingerprint}
                metadata |= asked.caller(in_session=in_session).as_data()
                if asked.store:
                    metadata["response"] = dict(asked.shown)
                if asked.background:
                    metadata["background"] = True
                event = MessageEvent(
                    text=asked.text,
                    message_type=MessageType.PHOTO if asked.media else MessageType.TEXT,
                    media=asked.media,
                    source=self._source(exchange.chat_id),
                    message_id=exchange.message_id,
                    timestamp=self._clock.now(),
                    metadata=metadata,
                )
                if event.is_command():
                    event.message_type = MessageType.COMMAND
                await self._keep(event)
            wait.exchange.is_background = wait.exchange.is_collected = asked.background
            self._begin_waiting(wait)
        except BaseException:
            self._leave(wait)
            self._exchanges.forget(wait.exchange)
            raise
        return wait, {KEY_HEADER: key} | ({SESSION_HEADER: chat_id} if chat_id.isascii() else {})

    def _begin_waiting(self, wait: Wait) -> None:
        if wait.exchange.is_final:
            self._leave(wait)
            return

        async def expire() -> None:
            await self._timer.sleep(int(self._options.timeout_s * 1000))
            key = wait.exchange.message_id
            message = (
                f"no answer within {self._options.timeout_s:g} seconds. The run continues: send the request "
                f"again with {KEY_HEADER}: {key}"
            )
            wait.end(Refused(504, "timeout", message, param=key))

        self._while_waiting[wait] = [self._tasks.start(expire(), name="deadline")]
        if self.is_shared:
            look = self._tasks.start(self._repeats.follow(wait.exchange, self._timer), name="look")
            self._while_waiting[wait].append(look)

    async def _session(self, request: Request, asked: Asked) -> str | None:
        header = session_name(request.headers.get(SESSION_HEADER), SESSION_HEADER)
        if header is not None and not header.isascii():
            raise wrong(
                f"{SESSION_HEADER} must be ASCII; write other session names in the request body",
                SESSION_HEADER,
            )
        if asked.previous is None:
            return header or asked.session
        value = await self._response(asked.previous)
        if value is None:
            raise wrong(
                "the previous response is unknown or has expired; use a `conversation`, which does not "
                "expire",
                "previous_response_id",
                "previous_response_not_found",
            )
        if header not in (None, value[0]):
            raise wrong(
                f"the previous response does not belong to the session in {SESSION_HEADER}",
                "previous_response_id",
            )
        return value[0]

    # Waiting callers.

    async def _answer(self, request: Request, wait: Wait) -> Answer:
        """Wait for the final answer until the caller disconnects or the time limit passes."""
        left = (
            None
            if wait.exchange.is_final
            else self._tasks.start(wait.end_with(request.receive), name="client")
        )
        try:
            return await wait.answer()
        finally:
            if left is not None:
                left.cancel()
            self._over(wait)

    async def _chat_events(self, wait: Wait, shape: ChatShape, *, include_usage: bool) -> AsyncGenerator[str]:
        yield data_event(shape.piece({"role": "assistant", "content": ""}))
        try:
            async with aclosing(wait.deltas()) as deltas:
                async for delta in deltas:
                    if wait.thought:
                        yield data_event(shape.piece({"reasoning_content": wait.thought}))
                    if delta:
                        yield data_event(shape.piece({"content": delta}))
                    elif not wait.thought:
                        yield SIGN_OF_LIFE
        except Refused as refusal:
            yield data_event(error_body(refusal))
            return
        for piece in shape.end(wait.collected(), include_usage=include_usage):
            yield data_event(piece)
        yield "data: [DONE]\n\n"

    def _leave(self, wait: Wait) -> None:
        for task in self._while_waiting.pop(wait, ()):
            task.cancel()
        self._exchanges.leave(wait)

    def _over(self, wait: Wait) -> None:
        """End the wait of a request, and cancel the run if the caller has disconnected."""
        exchange = wait.exchange
        self._leave(wait)
        is_stopping = self.liveness.state is not AdapterState.CONNECTED  # a shutdown ends requests, too
        if wait.is_abandoned and not (exchange.waits or exchange.is_background or is_stopping):
            exchange.is_cancelled = True
            self._tasks.start(self._abandon(exchange), name="hung up")

    async def _abandon(self, exchange: Exchange) -> None:
        """Cancel the run of an exchange whose caller has disconnected."""

        async def cancel() -> bool:
            return await self._cancel_run(exchange.chat_id, exchange.message_id)

        try:
            exchange.is_cancelled = await retried(cancel, self._timer)
        except (StoreError, Refused) as error:  # Refused: the channel has been disconnected
            _LOG.warning("run.not_cancelled", message_id=exchange.message_id, reason=str(error))

    async def _cancel_run(self, chat_id: str, message_id: str) -> bool:
        """Cancel the run that answers a message, and return whether the run was cancelled."""

        def is_waited_for(other: str) -> bool:
            exchange = self._exchanges.find(chat_id, other)
            return self.is_shared if exchange is None else bool(exchange.waits)

        source, exchange = self._source(chat_id), self._exchanges.find(chat_id, message_id)
        before = "" if exchange is None else exchange.so_far
        is_cancelled = await self._receiver().cancel_answer(source, message_id, is_waited_for)
        exchange = self._exchanges.find(chat_id, message_id)
        if is_cancelled and exchange is not None and not exchange.is_cancelled:
            exchange.cancel(before)
        return is_cancelled

    def _beat(self) -> None:
        self._exchanges.beat()

    def _shape(self, refusal: Refused) -> Response:
        headers = dict(refusal.headers)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if refusal.code == "timeout" and refusal.param:
            headers[KEY_HEADER] = refusal.param
        return json_response(error_body(refusal), refusal.status, headers)

    # Outgoing answers.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Pass a part of an answer to the waiting callers.

        If no caller waits, the answer stays in the stored conversation.
        """
        part_id = f"msg_{secrets.token_hex(12)}"
        answered = _answered_message(metadata, reply_to)
        self._exchanges.answered(
            chat_id, answered, part_id, content, final=_is_final(metadata), details=metadata or {}
        )
        self._said()
        return SendResult.sent(part_id)

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Pass a question and the commands that answer the question to the waiting callers."""
        read = (metadata or {}).get("read")
        if not read:
            return await super().send_card(chat_id, card, metadata)
        self._exchanges.asked(chat_id, [str(item) for item in read], _question_text(card))
        self._said()
        return SendResult.sent(f"msg_{secrets.token_hex(12)}")

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a part of an answer."""
        fields, answered = metadata or {}, _answered_message(metadata, None)
        if fields.get("begins_again"):
            self._exchanges.begin_again(chat_id, message_id)
            return SendResult.sent(message_id)
        final = _is_final(metadata)
        if not self._exchanges.edited(chat_id, answered, message_id, content, final=final, details=fields):
            return SendResult.failed(SendErrorKind.NOT_FOUND, "the draft was deleted")
        self._said()
        return SendResult.sent(message_id)


def _answered_message(metadata: Mapping[str, Any] | None, reply_to: str | None) -> list[str]:
    answers = (metadata or {}).get("answers")
    return [str(item) for item in answers] if answers else [] if reply_to is None else [reply_to]


def _question_text(card: Card) -> str:
    """Return a question, followed by the commands that answer the question."""
    choices = "\n".join(f"{button.label}: /{button.value}" for button in card.buttons)
    return f"{card.text}\n\n{choices}".strip()


def _is_final(metadata: Mapping[str, Any] | None) -> bool:
    return bool((metadata or {}).get("final"))
