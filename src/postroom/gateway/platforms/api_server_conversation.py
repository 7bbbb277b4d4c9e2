"""The conversation that a request of the OpenAI protocol tells, read. Pure functions."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from postroom.contracts.messages import ContentBlock, Json, Message, Role, ToolCall
from postroom.contracts.records import replace
from postroom.gateway.events import Attachment, MessageType
from postroom.gateway.platforms.refused import Refused
from postroom.gateway.platforms.safe_text import clean

LONGEST_PART: Final = 64 * 1024
"""Bytes of one part of text."""
MOST_PARTS: Final = 1_000
MOST_MESSAGES: Final = 2_000
MOST_IMAGES: Final = 8
_IMAGE: Final = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})")
_TEXT_PARTS: Final = frozenset({"text", "input_text"})
_FILE: Final = re.compile(r"data:([\w.+-]{1,64}/[\w.+-]{1,100});base64,([A-Za-z0-9+/]*={0,2})", re.ASCII)
_FILE_PARTS: Final = frozenset({"file", "input_file"})
_IMAGE_PARTS: Final = frozenset({"image_url", "input_image"})


def wrong(message: str, param: str | None = None, code: str = "invalid_value") -> Refused:
    """Return the refusal of a request that is wrong as it stands."""
    return Refused(400, code, message, param=param)


def read_conversation(messages: Json, param: str, image_bytes: int) -> dict[str, Any]:
    """Return the content of a list of messages, as the fields of `Asked`."""
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise wrong(f"`{param}` must be a list of messages", param)
    if len(messages) > MOST_MESSAGES:
        raise wrong(f"`{param}` has more than {MOST_MESSAGES} messages", param)
    told = [_message(one, f"{param}[{index}]", image_bytes) for index, one in enumerate(messages)]
    said = [one for one in told if one is not None and one.role is not Role.SYSTEM]
    if not said or said[-1].role is Role.ASSISTANT:
        raise wrong(f"`{param}` must end with a message of the user or the result of a tool", param)
    last = said[-1]
    is_result = last.role is Role.TOOL
    results: list[Message] = []
    for message in reversed(said):
        if message.role is Role.ASSISTANT:
            break
        if message.role is Role.TOOL:
            results.insert(0, message)
    return {
        "text": "" if is_result else last.text(),
        "media": () if is_result else tuple(_attachment(block) for block in last.content[1:]),
        "earlier": _joined(said if is_result else said[:-1]),
        "results": tuple(results),
        "instructions": "\n\n".join(
            one.text() for one in told if one is not None and one.role is Role.SYSTEM
        ),
    }


def check_results(told: Sequence[Message]) -> None:
    """Refuse the result of a tool that no earlier message has called; in a session the calls may be ours."""
    called = {call.id for message in told for call in message.tool_calls}
    for message in told:
        if message.role is Role.TOOL and message.tool_call_id not in called:
            raise wrong(
                f"no message calls the tool of the result {str(message.tool_call_id)[:100]!r}", "messages"
            )


def _message(one: Mapping[str, Json], where: str, image_bytes: int) -> Message | None:
    """Return one entry of a conversation; None for a skipped entry, such as a model's reasoning."""
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
        return _of_assistant(one, where)
    if role == "tool" or kind == "function_call_output":
        return _of_tool(one, where)
    if kind == "reasoning":
        return None
    raise wrong("the role of a message must be system, user, assistant or tool", where)


def _attachment(block: ContentBlock) -> Attachment:
    told = block.data
    kind = MessageType.PHOTO if block.type == "image" else MessageType.DOCUMENT
    return Attachment(kind=kind, ref=told["url"], mime=told["mime"], size=told["size"], name=told["name"])


def _joined(said: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation with successive calls, as in responses, joined into one message."""
    joined: list[Message] = []
    for message in said:
        before = joined[-1] if joined else None
        only_calls = message.role is Role.ASSISTANT and message.tool_calls and not message.content
        if before is not None and before.role is Role.ASSISTANT and only_calls:
            joined[-1] = replace(before, tool_calls=(*before.tool_calls, *message.tool_calls))
        else:
            joined.append(message)
    return tuple(joined)


def _of_assistant(one: Mapping[str, Json], where: str) -> Message:
    told, content = one.get("tool_calls") or (), one.get("content")
    if one.get("type") == "function_call":
        told = [{"id": one.get("call_id"), "function": one}]
    if isinstance(content, list):
        kinds = ("text", "output_text", "refusal")
        parts = [one for one in content if isinstance(one, Mapping) and one.get("type") in kinds]
        content = "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)
    if not isinstance(content, str | None) or not isinstance(told, Sequence):
        raise wrong("a message of the assistant needs text or calls", where)
    return Message.assistant(clean(content or ""), tool_calls=[_call(call, where) for call in told])


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


def _of_tool(one: Mapping[str, Json], where: str) -> Message:
    call_id = one.get("tool_call_id") or one.get("call_id")
    content = one.get("content") if "content" in one else one.get("output")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    if not isinstance(call_id, str) or not call_id or not isinstance(content, str):
        raise wrong("the result of a tool needs its call and text", where)
    return Message.tool(call_id, clean(content))


def _content(content: Json, param: str, image_bytes: int) -> tuple[str, tuple[Attachment, ...]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or len(parts) > MOST_PARTS:
        raise wrong(f"the content must be text or a list of at most {MOST_PARTS} parts", param)
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
            raise wrong("only parts of text, images and files are supported", where)
    if len(media) > MOST_IMAGES:
        raise wrong(f"there are more than {MOST_IMAGES} images and files", param)
    text = clean("\n".join(texts))
    if not text.strip() and not media:
        raise wrong("a message is empty", param)
    return text, tuple(media)


def _text(told: Json, where: str) -> str:
    if not isinstance(told, str):
        raise wrong("a text part has no text", where)
    if len(told.encode("utf-8", "surrogatepass")) > LONGEST_PART:
        raise wrong(f"a text part exceeds {LONGEST_PART} bytes", where, "string_above_max_length")
    return told


def _image(told: Json, where: str, limit: int) -> Attachment:
    url = told.get("url") if isinstance(told, Mapping) else told
    if not isinstance(url, str) or not url.startswith("data:"):
        raise wrong("an image must be sent as a data: URL; nothing is downloaded", where)
    if len(url) > limit * 4 // 3 + 64:
        raise wrong(f"an image exceeds {limit} bytes", where, "image_too_large")
    content, mime = decoded(url) if _IMAGE.fullmatch(url) else (None, None)
    if content is None or len(content) > limit:
        raise wrong(f"an image must be PNG, JPEG, GIF or WebP in base64, at most {limit} bytes", where)
    return Attachment(kind=MessageType.PHOTO, ref=url, mime=mime, size=len(content))


def _file(part: Mapping[str, Json], where: str, limit: int) -> Attachment:
    """Return a file that came along: `file` of chat completions, or `input_file` of responses."""
    told = part.get("file") if part.get("type") == "file" else part
    url = told.get("file_data") if isinstance(told, Mapping) else None
    if not isinstance(url, str) or not url.startswith("data:"):
        raise wrong("a file must be sent in file_data as a data: URL; nothing is downloaded", where)
    if len(url) > limit * 4 // 3 + 200:
        raise wrong(f"a file exceeds {limit} bytes", where, "file_too_large")
    content, mime = decoded(url)
    if content is None or len(content) > limit:
        raise wrong(f"a file must be in base64, at most {limit} bytes", where)
    name = told.get("filename") if isinstance(told, Mapping) else None
    name = name if isinstance(name, str) else None
    return Attachment(kind=MessageType.DOCUMENT, ref=url, mime=mime, name=name, size=len(content))


def decoded(ref: str) -> tuple[bytes | None, str | None]:
    """Return the bytes and the type of a data URL; None for both if it is not one."""
    found = _FILE.fullmatch(ref)
    if found is None:
        return None, None
    try:
        return base64.b64decode(found[2], validate=True), found[1]
    except binascii.Error:
        return None, None
