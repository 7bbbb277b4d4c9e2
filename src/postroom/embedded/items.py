"""Checks a program's work items, and converts them to requests for the queue."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from types import NoneType
from typing import Any, Final, TypeVar, cast

import msgspec

from postroom.contracts.activation import DeliveryOptions, RunActivation, RunHints
from postroom.contracts.clock import Duration, Ids, given_duration, milliseconds
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.messages import CONTROL, ContentBlock, Json, Message, Role, storable
from postroom.contracts.records import replace

DATA: Final = "data"
"""The type of a message block that contains data instead of text."""

T = TypeVar("T")


def plain(value: object, what: str) -> Json:
    """Return a value as JSON-compatible data.

    `what` is the name of the value in error messages.

    Raises:
        InvalidArgument: The value cannot be stored.
    """
    try:
        _refuse_same_keys(value)
        result = msgspec.to_builtins(value, str_keys=True)
        _refuse_unwritable(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{what} cannot be stored: {error}",
            value=type(value).__name__,
            remedy="pass text, numbers, lists, dictionaries, dataclasses or msgspec structs",
        ) from error
    return result


def _refuse_same_keys(value: object) -> None:
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            names = msgspec.to_builtins(dict.fromkeys(value), str_keys=True)
            if len(names) < len(value):
                raise ValueError("two keys of a dictionary become the same text")
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    else:
        kind = type(value)
        fields: Iterable[str] = getattr(kind, "__struct_fields__", getattr(kind, "__dataclass_fields__", ()))
        parts = (getattr(value, name, None) for name in fields)
    for part in parts:
        _refuse_same_keys(part)


def _refuse_unwritable(value: Json) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, str) and storable(value) != value:
        raise ValueError("a text contains an unpaired surrogate character")
    for item in (
        (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        _refuse_unwritable(item)


def typed(value: Json, type: type[T], what: str) -> T:
    """Convert JSON-compatible data to a value of a type.

    `what` is the name of the value in error messages.

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
    """Raise an error for an argument that is not a type, or not a type of storable values.

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


def to_milliseconds(moment: datetime, what: str) -> int:
    """Convert a datetime to milliseconds since 1970.

    `what` is the name of the datetime in error messages.

    Raises:
        InvalidArgument: The moment has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{what} has no time zone", value=moment.isoformat(), remedy="use a time zone: datetime.now(UTC)"
        )
    return int(moment.timestamp() * 1000)


def refuse_other_text(what: str, text: object) -> None:
    """Raise an error for a value that is not text, or for text that some databases cannot store.

    Raises:
        InvalidArgument: The value is not text that every database can store.
    """
    if not isinstance(text, str):
        raise InvalidArgument(
            f"{what} must be text, not {type(text).__name__}", value=repr(text)[:80], remedy="pass a str"
        )
    if storable(text) != text:
        raise InvalidArgument(
            f"{what} contains an unpaired surrogate character",
            value=storable(text)[:80],
            remedy="decode the text with errors='replace' where you read it",
        )


def refuse_other_id(what: str, id: object) -> None:
    """Raise an error for an id that is not text or contains NUL.

    Raises:
        InvalidArgument: The id is invalid.
    """
    refuse_other_text(what, id)
    if isinstance(id, str) and "\0" in id:
        raise InvalidArgument(
            f"{what} must not contain a zero byte: {id[:80]!r}", value=id[:80], remedy="remove the zero byte"
        )


def build_message(content: object, *, id: str) -> Message:
    """Convert enqueued content (text, a message or data) to a message.

    Raises:
        InvalidArgument: The content cannot be stored.
    """
    if isinstance(content, Message):
        return content if content.id else replace(content, id=id)
    if isinstance(content, str):
        return Message(role=Role.USER, content=(ContentBlock(text=content),), id=id)
    data = plain(content, "the enqueued content")
    return Message(role=Role.USER, content=(ContentBlock(type=DATA, data={"value": data}),), id=id)


def read_data(message: Message) -> Json:
    """Return the data of a message, or the text if the message has no data."""
    for block in message.content:
        if block.type == DATA:
            return block.data["value"]
    return message.text()


def format_text(message: Message) -> str:
    """Return the content of a message as text, with data formatted as JSON."""
    data = read_data(message)
    return data if isinstance(data, str) else msgspec.json.encode(data).decode()


def as_text(value: Any) -> str:
    """Convert the result of a run to the text of the answer.

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


@dataclass(frozen=True, slots=True)
class Item:
    """Work to enqueue on a thread, with the options of `Mailbox.enqueue`."""

    thread: str
    content: object
    key: str | None = field(default=None, kw_only=True)
    agent: str | None = field(default=None, kw_only=True)
    tenant: str = field(default="", kw_only=True)
    limit_key: str = field(default="", kw_only=True)
    priority: int = field(default=128, kw_only=True)
    delay: Duration | None = field(default=None, kw_only=True)
    deadline: datetime | None = field(default=None, kw_only=True)
    attempts: int | None = field(default=None, kw_only=True)
    interruptions: int | None = field(default=None, kw_only=True)
    retry_delay: Duration | None = field(default=None, kw_only=True)
    max_retry_delay: Duration | None = field(default=None, kw_only=True)

    def request(self, new_id: Ids) -> RunActivation:
        """Return the request that enqueues the item.

        Raises:
            InvalidArgument: An option has the wrong type, or cannot be stored.
        """
        for name, kinds, allowed in _TYPES:
            value = getattr(self, name)
            if not isinstance(value, kinds) or value is True or value is False:
                remedy = f"pass {allowed}" if name == "thread" else f"leave out {name} to use its default"
                raise InvalidArgument(
                    f"{name} must be {allowed}, not {type(value).__name__}",
                    value=repr(value)[:80],
                    remedy=remedy,
                )
            if isinstance(value, str) and name != "key" and CONTROL.search(value):  # errors never show keys
                raise InvalidArgument(
                    f"{name} must not contain control characters: {value[:80]!r}",
                    value=value[:80],
                    remedy="remove line breaks, tabs and other control characters",
                )
        if not self.thread.strip():
            raise InvalidArgument(
                "thread must not be blank: it names a conversation",
                value=self.thread,
                remedy="pass a name, for example 'chat-1'",
            )
        spans = dict[str, int | None]()
        for name in ("delay", "retry_delay", "max_retry_delay"):
            option = getattr(self, name)
            spans[name] = None if option is None else milliseconds(given_duration(option, name))
        run_id = None if self.key is None else derive_run_id(self.thread, self.key)
        deadline = self.deadline
        return RunActivation(
            thread_id=self.thread,
            messages=(build_message(self.content, id=run_id or new_id()),),
            agent_id=self.agent,
            delivery=DeliveryOptions(
                priority=self.priority,
                delay_ms=spans["delay"] or 0,
                deadline_at=None if deadline is None else to_milliseconds(deadline, "the deadline"),
                max_attempts=self.attempts,
                max_interruptions=self.interruptions,
                retry_delay_ms=spans["retry_delay"],
                max_retry_delay_ms=spans["max_retry_delay"],
                tenant=self.tenant,
                limit_key=self.limit_key,
            ),
            hints=RunHints(key=self.key, run_id=run_id) if run_id else _NO_HINTS,
        )


def derive_run_id(thread: str, key: str) -> str:
    """Return the run id for a thread and a key.

    Raises:
        InvalidArgument: The key is blank.
    """
    if not key.strip():
        raise InvalidArgument(
            "a key must not be blank", value=key, remedy="pass a text that names the job, or leave out key"
        )
    return "key-" + hashlib.sha256(f"{thread}\0{key}".encode(errors="surrogatepass")).hexdigest()[:32]


_NO_HINTS: Final = RunHints()
_TYPES: Final[tuple[tuple[str, tuple[type[Any], ...], str], ...]] = (
    ("thread", (str,), "text"),
    ("key", (str, NoneType), "text or None"),
    ("agent", (str, NoneType), "text or None"),
    ("tenant", (str,), "text"),
    ("limit_key", (str,), "text"),
    ("priority", (int,), "an integer"),
    ("deadline", (datetime, NoneType), "a datetime or None"),
    ("attempts", (int, NoneType), "an integer or None"),
    ("interruptions", (int, NoneType), "an integer or None"),
)
