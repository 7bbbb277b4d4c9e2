"""Converts records from and to rows and JSON text; an unreadable row is reported as corrupt.

The answer of a run is stored once, in the row of the run. The message, the events and the dispatch that tell
the same answer are stored without the text. Their column `answer_of` names the run, and each look at them
takes the text from the row of that run:

    runs.body holds the text ◀─ answer_of ─ message, events, dispatch

Rows refer only to a run that has ended, because its answer never changes. Rows that older releases wrote hold
the text themselves.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import InvalidActivation, InvalidRecord, RecordTooNew, StoreCorrupt
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.messages import ContentBlock, DeliveryMode, Json, Message, Role
from postroom.contracts.records import Record, replace
from postroom.contracts.runs import RunMessageInput, RunRecord, RunStatus, Summary, TerminationReason, Thread

T = TypeVar("T")


class EndedRun(Record, frozen=True, kw_only=True):
    """The fields of an ended run that the order of a conversation needs; the rest of its body is skipped."""

    started_at: int | None = None
    finished_at: int | None = None
    input: RunMessageInput | None = None
    termination: TerminationReason | None = None
    activation: "_Activation | None" = None


class _RunAnswer(Record, frozen=True, kw_only=True):
    """The answer of a run; the rest of its body is skipped."""

    final_output: str | None = None


class _Options(Record, frozen=True, kw_only=True):
    without_runs: tuple[str, ...] = ()


class _Activation(Record, frozen=True, kw_only=True):
    options: _Options = _Options()


_ENCODER = msgspec.json.Encoder()
_JSON = msgspec.json.Decoder()
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        DeliveryMode,
        EndedRun,
        LiveRunCommand,
        Message,
        _RunAnswer,
        RunDispatch,
        RunRecord,
        Summary,
        TerminationReason,
        Thread,
    )
}
_NEW_VALUE = ("Invalid enum value", "Invalid value")
"""Prefixes of msgspec's errors about an unknown enum value or union tag."""
_ESCAPE = "\x1a"
"""Escape character in free text, before the code for U+0000 and for itself."""


def record(kind: type[T], row: Sequence[Any]) -> T:
    """Return the record from the first columns of a row, in the order of the class's fields."""
    names, truths = _fields(kind)  # type: ignore[arg-type] # a class is hashable
    values = dict(zip(names, row, strict=False))
    for name in truths:
        values[name] = bool(values[name])
    return kind(**values)


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a record, and its boolean fields, which are 0 or 1 in a row."""
    types: dict[str, Any] = kind.__annotations__
    return tuple(types), tuple(name for name, kept_as in types.items() if kept_as is bool)


def encode(value: object) -> str:
    """Return a record, or plain JSON data, as JSON text.

    Raises:
        InvalidRecord: A text contains half a character, which cannot be stored.
    """
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"text with half of a character cannot be stored: {error}") from error


def decode(kind: type[T], text: str | bytes, *, where: str) -> T:
    """Read a record back; `where` names the row for the error.

    Raises:
        RecordTooNew: The text contains a value that only a newer release knows.
        StoreCorrupt: The text is not a valid record.
    """
    try:
        value: T = _DECODERS[kind].decode(text)
    except msgspec.ValidationError as error:
        kind_of_failure = RecordTooNew if str(error).startswith(_NEW_VALUE) else StoreCorrupt
        raise kind_of_failure(f"{where} cannot be read: {error}", value=where) from error
    except (msgspec.DecodeError, InvalidRecord, InvalidActivation) as error:
        raise StoreCorrupt(f"{where} cannot be read: {error}", value=where) from error
    return value


def answer_in(run_body: str | bytes) -> str:
    """Return the answer in the body of a run; "" for a deleted run, whose body is "{}".

    Raises:
        StoreCorrupt: The body cannot be read.
    """
    return decode(_RunAnswer, run_body, where="the run of the answer").final_output or ""


def with_answer(run: RunRecord | None) -> RunRecord | None:
    """Return a run whose answer rows may refer to; None if the run has not ended, or has said nothing."""
    return run if run is not None and run.status is RunStatus.DONE and run.final_output else None


def is_answer(message: Message, run: RunRecord) -> bool:
    """Return whether a message is the answer of a run and nothing else."""
    return message.role is Role.ASSISTANT and message.content == (ContentBlock(text=run.final_output or ""),)


def without_answer(payload: Mapping[str, Json], run: RunRecord) -> dict[str, Json] | None:
    """Return the payload of an event without the answer of a run; None if the payload does not hold it."""
    if payload.get("text") == run.final_output:
        return {**payload, "text": None}
    result = payload.get("result")
    if isinstance(result, Mapping) and result.get("response") == run.final_output:
        return {**payload, "result": {**result, "response": None}}
    return None


def message_with(message: Message, text: str) -> Message:
    """Return a message with the answer that was omitted in its row."""
    return replace(message, content=(ContentBlock(text=text),))


def payload_with(payload: Mapping[str, Json], text: str) -> dict[str, Json]:
    """Return the payload that `without_answer` made, with the answer."""
    if "text" in payload:
        return {**payload, "text": text}
    return {**payload, "result": {**payload["result"], "response": text}}


def decode_json(text: str | bytes, *, where: str) -> Json:
    """Read plain JSON data back.

    Raises:
        StoreCorrupt: The text is not JSON.
    """
    try:
        return _JSON.decode(text)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{where} cannot be read: {error}", value=where) from error


def kept(text: str | None) -> str | None:
    """Return free text in a form for every engine: U+0000, which PostgreSQL refuses, is escaped."""
    if text is None or ("\0" not in text and _ESCAPE not in text):
        return text
    return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")


def told(text: str | None) -> str | None:
    """Return free text with the escapes of `kept` undone."""
    if text is None or _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)


def unreadable(kind: str, row_id: str, reason: Exception) -> StoreCorrupt:
    """Return the failure of an unreadable row; its details name the row for the caller that sets it aside."""
    is_newer = isinstance(reason, RecordTooNew | KeyError)  # a KeyError: a status that this release lacks
    return (RecordTooNew if is_newer else StoreCorrupt)(
        f"{kind} {row_id!r} cannot be read: {reason}",
        value=row_id,
        details={"kind": kind, "id": row_id, "reason": str(reason)},
    )
