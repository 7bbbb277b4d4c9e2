"""Converts rows to records, with one function for each kind of record; columns are in statement order."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from postroom.contracts.dispatch import OPEN, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidRecord, StoreCorrupt
from postroom.contracts.messages import DeliveryMode, Message, MessageRecord, PendingMessage
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadState
from postroom.contracts.runs import RunRecord, RunStatus, TerminationReason, Thread, Turn, is_set_aside
from postroom.stores.codec import (
    EndedRun,
    answer_in,
    decode,
    decode_json,
    encode,
    escape_nul,
    is_answer,
    message_with,
    unescape_nul,
    unreadable,
    with_answer,
)
from postroom.stores.sql_transaction import Row, Values

_DISPATCH_STATUS = {status.value: status for status in RunDispatchStatus}
_RUN_STATUS: dict[str | None, RunStatus | None] = {
    None: None,
    **{status.value: status for status in RunStatus},
}
_NAMES = RunDispatch.__struct_fields__
_STATUS, _RESULT, _TERMINATION, _RECONCILED = map(
    _NAMES.index, ("status", "run_status", "termination", "reconciled")
)
_BOUNDLESS: Final = "\U0010ffff" * 64
"""A text that sorts after every id, because no id contains the last character of Unicode so often."""
_LAST_BEFORE_SURROGATES, _FIRST_AFTER_SURROGATES, _LAST = 0xD7FF, 0xE000, 0x10FFFF
_FREE = tuple(map(_NAMES.index, ("last_error", "run_response", "run_error")))
_RESPONSE, _ANSWER = _NAMES.index("run_response"), len(_NAMES)
"""The positions of a dispatch's response, and of the run that contains the response instead."""


def dispatch(row: Row) -> RunDispatch:
    """Create a dispatch from a row of the table `run_dispatches`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    values = list(row)
    try:
        values[_STATUS] = _DISPATCH_STATUS[row[_STATUS]]
        values[_RESULT] = _RUN_STATUS[row[_RESULT]]
        values[_RECONCILED] = row[_RECONCILED] == 1
        if row[_TERMINATION] is not None:
            values[_TERMINATION] = _termination(row[_TERMINATION])
        for place in _FREE:
            values[place] = unescape_nul(row[place])
        if row[_ANSWER] is not None:
            values[_RESPONSE] = answer_in(row[_ANSWER]) or None
        return RunDispatch(**dict(zip(_NAMES, values, strict=False)))
    except (InvalidRecord, KeyError, StoreCorrupt) as error:
        raise unreadable("dispatch", row[0], error) from error


@lru_cache(maxsize=256)
def _termination(text: str) -> TerminationReason:
    """Decode the reason why a run ended."""
    return decode(TerminationReason, text, where="termination")


def dispatch_values(record: RunDispatch, answer: RunRecord | None = None) -> Values:
    """Return the columns of a dispatch, keyed by name.

    If the dispatch contains the answer of the run `answer`, the run must already be stored.
    """
    refers = answer is not None and record.run_response == answer.final_output
    return {
        "dispatch_id": record.dispatch_id,
        "thread_id": record.thread_id,
        "run_id": record.run_id,
        "created_at": record.created_at,
        "available_at": record.available_at,
        "updated_at": record.updated_at,
        "status": record.status.value,
        "priority": record.priority,
        "dedupe_key": record.dedupe_key,
        "dispatch_epoch": record.dispatch_epoch,
        "attempt_count": record.attempt_count,
        "max_attempts": record.max_attempts,
        "deadline_at": record.deadline_at,
        "tenant": record.tenant,
        "last_error": escape_nul(record.last_error),
        "claim_token": record.claim_token,
        "claimed_by": record.claimed_by,
        "claimed_at": record.claimed_at,
        "lease_until": record.lease_until,
        "dispatch_instance_id": record.dispatch_instance_id,
        "run_status": record.run_status and record.run_status.value,
        "termination": None if record.termination is None else encode(record.termination),
        "run_response": None if refers else escape_nul(record.run_response),
        "answer_of": answer.run_id if answer is not None and refers else None,
        "run_error": escape_nul(record.run_error),
        "completed_at": record.completed_at,
        "reconciled": record.reconciled,
        "limit_key": record.limit_key,
        "interruption_count": record.interruption_count,
        "max_interruptions": record.max_interruptions,
        "is_open": record.status in OPEN,
    }


def run_values(record: RunRecord) -> Values:
    """Return the columns of a run, keyed by name."""
    return {
        "run_id": record.run_id,
        "thread_id": record.thread_id,
        "status": record.status.value,
        "holds_others": int(record.holds_others),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "body": encode(record),
    }


def message_values(
    thread_id: str, messages: Sequence[Message], first_seq: int, now: int, run: RunRecord | None = None
) -> list[Values]:
    """Return the columns of new messages of a thread, keyed by name.

    `run` is the run that has received or written the messages.
    """
    given_values = () if run is None or run.input is None else run.input.trigger_message_ids
    answer, values = with_answer(run), list[Values]()
    for seq, message in enumerate(messages, start=first_seq):
        refers = answer is not None and is_answer(message, answer)
        values.append(
            {
                "thread_id": thread_id,
                "seq": seq,
                "message_id": message.id,
                "run_id": message.metadata.run_id if message.metadata else None,
                "visibility": message.visibility.value,
                "created_at": now,
                "body": encode(replace(message, content=()) if refers else message),
                "given_to": run.run_id if run is not None and message.id in given_values else None,
                "answer_of": answer.run_id if answer is not None and refers else None,
            }
        )
    return values


def thread_values(record: Thread) -> Values:
    """Return the columns of a thread, keyed by name."""
    return {
        "thread_id": record.id,
        "title": escape_nul(record.title),
        "resource_id": record.resource_id,
        "parent_thread_id": record.parent_thread_id,
        "custom": encode(record.custom),
        "active_run_id": record.active_run_id,
        "open_run_id": record.open_run_id,
        "latest_run_id": record.latest_run_id,
        "latest_run_updated_at": record.latest_run_updated_at,
        "message_count": record.message_count,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "latest_started_run_id": record.latest_started_run_id,
    }


def thread(row: Row) -> Thread:
    """Create a thread from a row of the table `run_threads`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    try:
        return Thread(
            id=row[0],
            title=unescape_nul(row[1]),
            resource_id=row[2],
            parent_thread_id=row[3],
            custom=decode_json(row[4], where="custom"),
            active_run_id=row[5],
            open_run_id=row[6],
            latest_run_id=row[7],
            latest_run_updated_at=row[8],
            message_count=row[9],
            created_at=row[10],
            updated_at=row[11],
            latest_started_run_id=row[12],
        )
    except (InvalidRecord, StoreCorrupt) as error:
        raise unreadable("thread", row[0], error) from error


def thread_state(row: Row) -> ThreadState:
    """Create the state of a thread from the row of the statement `dispatches.thread_state`.

    Raises:
        StoreCorrupt: The thread, a run or the dispatch in the row cannot be read.
    """
    runs: dict[str | None, RunRecord | None] = {None: None}
    for place in (13, 26, 28, 30):  # this is often the same run
        if row[place] not in runs:
            runs[row[place]] = run(row[place : place + 2])
    return ThreadState(
        thread=None if row[0] is None else thread(row),
        run=runs[row[13]],
        claimed=row[15],
        epoch=row[16],
        queued=row[17],
        waiting=row[18],
        held_by=row[19],
        has_parent=row[20] is not None,
        taken=tuple([(rule, held) for rule, held in enumerate(row[21:24]) if held is not None])
        if any(row[21:24])
        else (),
        known_message=row[24],
        has_commands=row[25] > 0,
        open_run=runs[row[26]],
        latest_run=runs[row[28]],
        latest_started_run=runs[row[30]],
        owned=None if row[32] is None else dispatch(row[32:]),
    )


def run(row: Row) -> RunRecord:
    """Create a run from the columns `run_id` and `body` of the table `runs`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    run_id, body = row
    try:
        return decode(RunRecord, body, where="body")
    except StoreCorrupt as error:
        raise unreadable("run", run_id, error) from error


def turn(row: Row) -> Turn:
    """Create a turn from the columns `run_id`, `status`, `created_at` and `body` of the table `runs`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    run_id, status, created_at, body = row
    if status != RunStatus.DONE:
        return Turn.of(run((run_id, body)))
    try:
        ended = decode(EndedRun, body, where="body")
    except StoreCorrupt as error:
        raise unreadable("run", run_id, error) from error
    return Turn(
        run_id=run_id,
        asked=ended.input.trigger_message_ids if ended.input is not None else (),
        began=ended.started_at if ended.started_at is not None else ended.finished_at,
        is_unbegun=ended.started_at is None,
        created_at=created_at,
        is_set_aside=is_set_aside(ended.termination),
        takes_back=ended.activation.options.without_runs if ended.activation is not None else (),
    )


def message(row: Row) -> MessageRecord:
    """Create a message from a row of the table `run_messages`, with the text of a run's answer.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    thread_id, seq, created_at, body, run_body = row
    try:
        message = decode(Message, body, where="body")
        if run_body is not None:
            message = message_with(message, answer_in(run_body))
    except StoreCorrupt as error:
        raise unreadable("message", f"{thread_id}/{seq}", error) from error
    return MessageRecord(thread_id=thread_id, seq=seq, message=message, created_at=created_at)


def pending(row: Row, position: int) -> PendingMessage:
    """Create a pending message from a row of the table `pending_messages` and the position on its thread.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    thread_id, _, pending_id, revision, created_at, updated_at, mode, body = row
    try:
        return PendingMessage(
            thread_id=thread_id,
            message=decode(Message, body, where="body"),
            position=position,
            revision=revision,
            mode=decode(DeliveryMode, mode, where="mode"),
            created_at=created_at,
            updated_at=updated_at,
        )
    except StoreCorrupt as error:
        raise unreadable("pending", f"{thread_id}/{pending_id}", error) from error


def beyond(prefix: str) -> str:
    """Return the first text that sorts after all texts that begin with `prefix`."""
    for end in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[end])
        if point < _LAST:
            following = _FIRST_AFTER_SURROGATES if point == _LAST_BEFORE_SURROGATES else point + 1
            return prefix[:end] + chr(following)
    return _BOUNDLESS
