"""The OpenAI protocol as values: what a request asks, and the shapes of answers. Pure functions.

The conversation lives with us: of a request's messages only the last one of the user is new. What else a
request says, such as instructions, tools or a temperature, is for models and not used.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, MessageType
from postroom.gateway.platforms.http_adapter import Refused
from postroom.gateway.platforms.safe_text import clean

LONGEST_PART: Final = 64 * 1024
"""Bytes of one part of text."""
MOST_PARTS: Final = 1_000
MOST_IMAGES: Final = 8
LONGEST_SESSION: Final = 200
_SESSION: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")
_RESPONSE_ID: Final = re.compile(r"resp_[0-9a-f]{48}")
_IMAGE: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")
_TEXT_PARTS: Final = frozenset({"text", "input_text"})
_FILE: Final = re.compile(r"data:([\w.+-]{1,64}/[\w.+-]{1,100});base64,([A-Za-z0-9+/]*={0,2})", re.ASCII)
_FILE_PARTS: Final = frozenset({"file", "input_file"})
_IMAGE_PARTS: Final = frozenset({"image_url", "input_image"})
_NO_USAGE: Final = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_NO_RESPONSE_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks."""

    text: str
    media: tuple[Attachment, ...] = ()
    stream: bool = False
    include_usage: bool = False
    session: str | None = None
    """The session that the body names."""
    previous: str | None = None
    """The response that this one continues."""
    store: bool = True
    names_conversation: bool = False
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """What two requests under one key must have in common."""
        told = "\0".join((self.text, *(one.ref for one in self.media)))
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def wrong(message: str, param: str | None = None, code: str = "invalid_value") -> Refused:
    """Return the refusal of a request that is wrong as it stands."""
    return Refused(400, code, message, param=param)


def read_chat(data: Mapping[str, Json], *, image_bytes: int) -> Asked:
    """Return what a chat completion asks.

    Raises:
        Refused: it is none.
    """
    messages = data.get("messages")
    if data.get("n") not in (None, 1):
        raise wrong("only one choice is made: `n` must be 1", "n")
    options = data.get("stream_options")
    text, media = _last_of_user(messages, "messages", image_bytes)
    return Asked(
        text=text,
        media=media,
        stream=_flag(data, "stream", default=False),
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        session=_conversation(data) or session_name(data.get("user"), "user"),
    )


def read_response(data: Mapping[str, Json], *, image_bytes: int) -> Asked:
    """Return what a request for a response asks.

    Raises:
        Refused: it is none.
    """
    told = data.get("input")
    messages = [{"role": "user", "content": told}] if isinstance(told, str) else told
    text, media = _last_of_user(messages, "input", image_bytes)
    previous = data.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise wrong("`previous_response_id` is no text", "previous_response_id")
    conversation = _conversation(data)
    if previous is not None and conversation is not None:
        raise wrong("give `previous_response_id` or `conversation`, not both", "conversation")
    if data.get("background"):
        raise wrong("`background` is not supported; the answer goes on when you hang up", "background")
    metadata = data.get("metadata")
    return Asked(
        text=text,
        media=media,
        stream=_flag(data, "stream", default=False),
        session=conversation or (session_name(data.get("user"), "user") if previous is None else None),
        previous=previous,
        store=_flag(data, "store", default=True),
        names_conversation=conversation is not None,
        metadata=metadata if isinstance(metadata, Mapping) and len(metadata) <= 16 else {},
    )


def session_name(told: Json, param: str | None) -> str | None:
    """Return a session's name, None when none was given.

    Raises:
        Refused: it cannot be one.
    """
    if told is None or told == "":
        return None
    if not isinstance(told, str) or not _SESSION.fullmatch(told):
        raise wrong(f"a session's name is a line of 1 to {LONGEST_SESSION} characters", param)
    return told


def idempotency_key(told: str | None) -> str | None:
    """Return the key that a request came with.

    Raises:
        Refused: it cannot be one.
    """
    if told is None:
        return None
    if not _KEY.fullmatch(told):
        raise wrong(
            "an Idempotency-Key is 1 to 200 characters of ASCII without spaces", code="invalid_header"
        )
    return told


def response_id_of(chat_id: str, message_id: str) -> str:
    """Return the id of the response to a message: the same each time it is asked for."""
    return f"resp_{_digest(chat_id, message_id)}"


def is_response_id(text: str) -> bool:
    """Say whether a text has the form of a response's id."""
    return _RESPONSE_ID.fullmatch(text) is not None


def own_session(key: str) -> str:
    """Return the session of a request that names none: one of its own, the same each time it is repeated."""
    return f"once-{_digest(key)}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:48]


def _flag(data: Mapping[str, Json], name: str, *, default: bool) -> bool:
    told = data.get(name)
    if told is not None and not isinstance(told, bool):
        raise wrong(f"`{name}` is true or false", name)
    return default if told is None else told


def _conversation(data: Mapping[str, Json]) -> str | None:
    told = data.get("conversation")
    if isinstance(told, Mapping):
        told = told.get("id")
    return session_name(told, "conversation")


def _last_of_user(messages: Json, param: str, image_bytes: int) -> tuple[str, tuple[Attachment, ...]]:
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise wrong(f"`{param}` is no list of messages", param)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            return _content(messages[index].get("content"), f"{param}[{index}].content", image_bytes)
    raise wrong(f"`{param}` holds no message of the user", param)


def _content(content: Json, param: str, image_bytes: int) -> tuple[str, tuple[Attachment, ...]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or len(parts) > MOST_PARTS:
        raise wrong(f"the content is neither text nor a list of at most {MOST_PARTS} parts", param)
    texts: list[str] = []
    media: list[Attachment] = []
    for index, part in enumerate(parts):
        where = f"{param}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _TEXT_PARTS:
            texts.append(_text(part.get("text"), where))
        elif kind in _IMAGE_PARTS:
            media.append(_image(part.get("image_url"), where, image_bytes))
        elif kind in _FILE_PARTS:
            media.append(_file(part, where, image_bytes))
        else:
            raise wrong("only parts of text, images and files are understood", where)
    if len(media) > MOST_IMAGES:
        raise wrong(f"there are more than {MOST_IMAGES} images and files", param)
    text = clean("\n".join(texts))
    if not text.strip() and not media:
        raise wrong("there is nothing in the user's last message", param)
    return text, tuple(media)


def _text(told: Json, where: str) -> str:
    if not isinstance(told, str):
        raise wrong("a part of text has no text", where)
    if len(told.encode("utf-8", "surrogatepass")) > LONGEST_PART:
        raise wrong(f"a part of text is longer than {LONGEST_PART} bytes", where, "string_above_max_length")
    return told


def _image(told: Json, where: str, limit: int) -> Attachment:
    url = told.get("url") if isinstance(told, Mapping) else told
    if not isinstance(url, str) or not url.startswith("data:"):
        raise wrong("an image must come along as a data: address; nothing is fetched", where)
    if len(url) > limit * 4 // 3 + 64:
        raise wrong(f"an image is larger than {limit} bytes", where, "image_too_large")
    content, mime = decoded(url) if _IMAGE.fullmatch(url) else (None, None)
    if content is None or len(content) > limit:
        raise wrong(f"an image is no PNG, JPEG, GIF or WebP in base64 of at most {limit} bytes", where)
    return Attachment(kind=MessageType.PHOTO, ref=url, mime=mime, size=len(content))


def _file(part: Mapping[str, Json], where: str, limit: int) -> Attachment:
    """Return a file that came along: `file` of chat completions, or `input_file` of responses."""
    told = part.get("file") if part.get("type") == "file" else part
    url = told.get("file_data") if isinstance(told, Mapping) else None
    if not isinstance(url, str) or not url.startswith("data:"):
        raise wrong("a file must come along in file_data as a data: address; nothing is fetched", where)
    if len(url) > limit * 4 // 3 + 200:
        raise wrong(f"a file is larger than {limit} bytes", where, "file_too_large")
    content, mime = decoded(url)
    if content is None or len(content) > limit:
        raise wrong(f"a file is not in base64 of at most {limit} bytes", where)
    name = told.get("filename") if isinstance(told, Mapping) else None
    name = name if isinstance(name, str) else None
    return Attachment(kind=MessageType.DOCUMENT, ref=url, mime=mime, name=name, size=len(content))


def decoded(ref: str) -> tuple[bytes | None, str | None]:
    """Return the bytes of a file that is its own address, and its type; nothing when it is none."""
    found = _FILE.fullmatch(ref)
    if found is None:
        return None, None
    try:
        return base64.b64decode(found[2], validate=True), found[1]
    except binascii.Error:
        return None, None


# The shapes of answers.


def error_body(refusal: Refused) -> dict[str, Any]:
    """Return a refusal in OpenAI's form."""
    kinds = {401: "invalid_request_error", 409: "idempotency_error", 429: "rate_limit_error"}
    fallback = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = kinds.get(refusal.status, fallback)
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}


def models(model: str, created: int) -> dict[str, Any]:
    """Return the list of the one model that there is."""
    return {
        "object": "list",
        "data": [{"id": model, "object": "model", "created": created, "owned_by": "postroom"}],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """The forms of one chat completion."""

    completion_id: str
    model: str
    created: int

    def whole(self, text: str) -> dict[str, Any]:
        """Return the whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": _NO_USAGE}

    def piece(self, delta: Mapping[str, Any], *, finish: str | None = None) -> dict[str, Any]:
        """Return a piece of it."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def end(self, *, include_usage: bool) -> list[dict[str, Any]]:
        """Return the last pieces; usage comes with the last, or behind it when that was asked for."""
        if include_usage:
            usage = {**self._head("chat.completion.chunk"), "choices": [], "usage": _NO_USAGE}
            return [{**self.piece({}, finish="stop"), "usage": None}, usage]
        return [{**self.piece({}, finish="stop"), "usage": _NO_USAGE}]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseShape:
    """The forms of one response."""

    response_id: str
    chat_id: str
    model: str
    created: int
    previous: str | None = None
    names_conversation: bool = False
    store: bool = True
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def item_id(self) -> str:
        """The id of the one message in it."""
        return f"msg_{self.response_id.removeprefix('resp_')}"

    def part(self, text: str) -> dict[str, Any]:
        """Return the one part of the message."""
        return {"type": "output_text", "text": text, "annotations": []}

    def item(self, parts: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
        """Return the one message."""
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": list(parts),
        }

    def whole(self, status: str, text: str | None = None) -> dict[str, Any]:
        """Return the response as it stands."""
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "model": self.model,
            "output": [] if text is None else [self.item([self.part(text)], "completed")],
            "parallel_tool_calls": True,
            "previous_response_id": self.previous,
            "conversation": {"id": self.chat_id} if self.names_conversation else None,
            "reasoning": {"effort": None, "summary": None},
            "store": self.store,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": _NO_RESPONSE_USAGE if status == "completed" else None,
            "user": None,
            "metadata": dict(self.metadata),
        }
