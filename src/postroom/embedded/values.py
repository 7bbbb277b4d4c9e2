"""Storing and reading of enqueued values: text unchanged, anything else as plain JSON data."""

from collections.abc import Iterable
from datetime import datetime
from math import isfinite
from typing import Any, Final, TypeVar, cast

import msgspec

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.messages import CONTROL, ContentBlock, Json, Message, Role, storable
from postroom.contracts.records import replace

DATA: Final = "data"
"""The type of a block with a value other than text."""

T = TypeVar("T")


def plain(value: object, what: str) -> Json:
    """Return a value as plain JSON data; `what` names it in the error.

    Raises:
        InvalidArgument: The value cannot be stored.
    """
    try:
        _refuse_same_keys(value)
        found = msgspec.to_builtins(value, str_keys=True)
        _refuse_unwritable(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} cannot be stored: {error}",
            value=type(value).__name__,
            remedy="pass text, numbers, lists, dictionaries, dataclasses or msgspec structs",
        ) from error
    return found


def _refuse_same_keys(value: object) -> None:
    """Refuse keys of a dictionary that are equal as text: only one of their values would be kept."""
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            names = msgspec.to_builtins(dict.fromkeys(value), str_keys=True)
            if len(names) < len(value):
                raise ValueError("two keys of a dictionary are the same text")
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    else:
        kind = type(value)
        fields: Iterable[str] = getattr(kind, "__struct_fields__", getattr(kind, "__dataclass_fields__", ()))
        parts = (getattr(value, name, None) for name in fields)
    for one in parts:
        _refuse_same_keys(one)


def _refuse_unwritable(value: Json) -> None:
    """Refuse numbers that JSON lacks, which would be read as null, and half of a character."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, str) and storable(value) != value:
        raise ValueError("a text contains half of a character")
    for one in (
        (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        _refuse_unwritable(one)


def typed(value: Json, type: type[T], what: str) -> T:
    """Return plain data as a value of a type; `what` names it in the error.

    Raises:
        InvalidArgument: The data is not a value of that type.
    """
    try:
        return msgspec.convert(value, type)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(
            f"{what} is not of type {getattr(type, '__name__', type)}: {error}",
            value=repr(value)[:80],
            remedy="pass the type of the stored value, or correct the value",
        ) from error


def refuse_other_type(what: str, type: object) -> None:
    """Refuse an argument that is not a type of storable values.

    Raises:
        InvalidArgument: The argument is not a type, or contains a name that is not defined.
    """
    try:
        msgspec.json.Decoder(type)
    except (TypeError, NameError) as error:
        raise InvalidArgument(
            f"the values of {what} must be valid JSON: {error}",
            value=repr(type)[:80],
            remedy="pass a class, for example str, int, a dataclass or a msgspec struct",
        ) from error


def instant_of(moment: datetime, what: str) -> int:
    """Return a moment in milliseconds since the epoch; `what` names it in the error.

    Raises:
        InvalidArgument: The moment has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{what} has no time zone", value=moment.isoformat(), remedy="use a time zone: datetime.now(UTC)"
        )
    return int(moment.timestamp() * 1000)


def refuse_other_text(what: str, text: object) -> None:
    """Refuse a value that is not text, or text that not every database can store.

    Raises:
        InvalidArgument: The value is not such text.
    """
    if not isinstance(text, str):
        raise InvalidArgument(
            f"{what} must be text, not {type(text).__name__}", value=repr(text)[:80], remedy="pass a str"
        )
    if storable(text) != text:
        raise InvalidArgument(
            f"{what} contains half of a character",
            value=storable(text)[:80],
            remedy="decode the text with errors='replace' where you read it",
        )


def refuse_other_id(what: str, id: object) -> None:
    """Refuse an id that no database can contain: not text, or text with NUL.

    Raises:
        InvalidArgument: The id is invalid.
    """
    refuse_other_text(what, id)
    if isinstance(id, str) and "\0" in id:
        raise InvalidArgument(
            f"{what} must not contain a zero byte: {id[:80]!r}", value=id[:80], remedy="remove the zero byte"
        )


def refuse_control_characters(what: str, name: str) -> None:
    """Refuse a new name that a terminal or a line of a log cannot show.

    Raises:
        InvalidArgument: The name contains a line break, a tab, a zero byte or another control character.
    """
    if CONTROL.search(name):
        raise InvalidArgument(
            f"{what} must not contain control characters: {name[:80]!r}",
            value=name[:80],
            remedy="remove line breaks, tabs and other control characters",
        )


def message_of(content: object, *, id: str) -> Message:
    """Return enqueued content as a message: from text, a message, or data.

    Raises:
        InvalidArgument: The content cannot be stored.
    """
    if isinstance(content, Message):
        return content if content.id else replace(content, id=id)
    if isinstance(content, str):
        return Message(role=Role.USER, content=(ContentBlock(text=content),), id=id)
    data = plain(content, "the enqueued content")
    return Message(role=Role.USER, content=(ContentBlock(type=DATA, data={"value": data}),), id=id)


def data_of(message: Message) -> Json:
    """Return the content of a message: its data, or its text."""
    for block in message.content:
        if block.type == DATA:
            return block.data["value"]
    return message.text()


def text_of(message: Message) -> str:
    """Return the content of a message as text; data as JSON."""
    data = data_of(message)
    return data if isinstance(data, str) else msgspec.json.encode(data).decode()


def as_text(value: Any) -> str:
    """Return the result of a run as the text of its answer.

    Raises:
        InvalidArgument: The result cannot be stored.
    """
    if type(value) is str and storable(value) == value:
        return value
    if isinstance(value, str):
        return cast("str", plain(value, "the result of the run"))
    if value is None:
        return ""
    return msgspec.json.encode(plain(value, "the result of the run")).decode()
