"""Converts records to rows and JSON text and back, and reports unreadable rows as corrupt.

The answer of a run is stored once, in the row of the run. Messages, events and dispatches that contain the
answer are stored without its text. Their column `answer_of` contains the id of the run, and each query for
these rows reads the text from the row of the run:

    runs.body holds the text ◀─ answer_of ─ message, events, dispatch

Rows refer only to ended runs, because the answer of an ended run cannot change. Rows that older releases
wrote contain the text itself.
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
    """The fields of an ended run that determine its place in a conversation."""

    started_at: int | None = None
    finished_at: int | None = None
    input: RunMessageInput | None = None
    termination: TerminationReason | None = None
    activation: "_Activation | None" = None


class _RunAnswer(Record, frozen=True, kw_only=True):
    """The answer of a run."""

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
"""The beginnings of msgspec's error messages for unknown enum values and union tags."""
_ESCAPE = "\x1a"
"""The escape character in free text, which precedes the codes for U+0000 and for the character itself."""


def record(kind: type[T], row: Sequence[Any]) -> T:
    """Create a record from the first columns of a row, which have the order of the record's fields."""
    names, truths = _fields(kind)  # type: ignore[arg-type] # a class is hashable
    values = dict(zip(names, row, strict=False))
    for name in truths:
        values[name] = bool(values[name])
    return kind(**values)


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of all fields of a record class, and the names of its boolean fields."""
    types: dict[str, Any] = kind.__annotations__
    return tuple(types), tuple(name for name, kept_as in types.items() if kept_as is bool)


def encode(value: object) -> str:
    """Return a record or plain data as JSON text.

    Raises:
        InvalidRecord: A text contains a lone surrogate, which cannot be stored.
    """
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"text with an unpaired surrogate character cannot be stored: {error}") from error


def decode(kind: type[T], text: str | bytes, *, where: str) -> T:
    """Decode JSON text to a record; error messages name the row as `where`.

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
    """Return the answer in the JSON body of a run, or "" if the run was deleted.

    Raises:
        StoreCorrupt: The body cannot be read.
    """
    return decode(_RunAnswer, run_body, where="the run of the answer").final_output or ""


def with_answer(run: RunRecord | None) -> RunRecord | None:
    """Return the run if it has ended with an answer, or None."""
    return run if run is not None and run.status is RunStatus.DONE and run.final_output else None


def is_answer(message: Message, run: RunRecord) -> bool:
    """Return whether a message contains exactly the answer of a run."""
    return message.role is Role.ASSISTANT and message.content == (ContentBlock(text=run.final_output or ""),)


def without_answer(payload: Mapping[str, Json], run: RunRecord) -> dict[str, Json] | None:
    """Return the payload of an event without the answer of a run, or None if the payload lacks the answer."""
    if payload.get("text") == run.final_output:
        return {**payload, "text": None}
    result = payload.get("result")
    if isinstance(result, Mapping) and result.get("response") == run.final_output:
        return {**payload, "result": {**result, "response": None}}
    return None


def message_with(message: Message, text: str) -> Message:
    """Return a copy of a message with `text` as its content."""
    return replace(message, content=(ContentBlock(text=text),))


def payload_with(payload: Mapping[str, Json], text: str) -> dict[str, Json]:
    """Return the payload of an event with the answer that `without_answer` removed."""
    if "text" in payload:
        return {**payload, "text": text}
    return {**payload, "result": {**payload["result"], "response": text}}


def decode_json(text: str | bytes, *, where: str) -> Json:
    """Decode JSON text to plain data.

    Raises:
        StoreCorrupt: The text is not JSON.
    """
    try:
        return _JSON.decode(text)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{where} cannot be read: {error}", value=where) from error


def escape_nul(text: str | None) -> str | None:
    """Replace U+0000 in free text by an escape sequence, because PostgreSQL rejects the character."""
    if text is None or ("\0" not in text and _ESCAPE not in text):
        return text
    return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")


def unescape_nul(text: str | None) -> str | None:
    """Reverse the escape sequences of `escape_nul`."""
    if text is None or _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)


def unreadable(kind: str, row_id: str, reason: Exception) -> StoreCorrupt:
    """Return the error for a row that cannot be read; the details of the error contain the row's id."""
    # A KeyError means a status that this release does not know.
    is_newer = isinstance(reason, RecordTooNew | KeyError)
    return (RecordTooNew if is_newer else StoreCorrupt)(
        f"{kind} {row_id!r} cannot be read: {reason}",
        value=row_id,
        details={"kind": kind, "id": row_id, "reason": str(reason)},
    )
