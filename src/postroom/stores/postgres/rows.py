"""One mapper a record: a row's columns in the order of its table."""

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidRecord, StoreCorrupt
from postroom.contracts.events import CanonicalEvent, EventVisibility
from postroom.contracts.messages import DeliveryMode, Message, MessageRecord, PendingMessage
from postroom.contracts.outbox import OutboxMessage, OutboxStatus
from postroom.contracts.runs import RunRecord, RunStatus, TerminationReason, Thread
from postroom.stores.codec import decode, decode_json, encode
from postroom.stores.postgres.driver import Row

_STATUSES = {status.value: status for status in RunDispatchStatus}
_RUN_STATUSES: dict[str | None, RunStatus | None] = {None: None, **{one.value: one for one in RunStatus}}
_ESCAPE = "\x1a"


def kept(text: str | None) -> str | None:
    """Return free text as PostgreSQL can keep it, which takes every character but U+0000."""
    if text is None or ("\0" not in text and _ESCAPE not in text):
        return text
    return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")


def told(text: str | None) -> str | None:
    """Return free text as it was before `kept`."""
    if text is None or _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)


def dispatch(row: Row) -> RunDispatch:
    """Map a row of `run_dispatches`.

    Raises:
        StoreCorrupt: the row is no dispatch.
    """
    where, termination = f"dispatch {row[0]!r}", row[21]
    try:
        return RunDispatch(
            dispatch_id=row[0],
            thread_id=row[1],
            run_id=row[2],
            created_at=row[3],
            available_at=row[4],
            updated_at=row[5],
            status=_STATUSES[row[6]],
            priority=row[7],
            dedupe_key=row[8],
            dispatch_epoch=row[9],
            attempt_count=row[10],
            max_attempts=row[11],
            deadline_at=row[12],
            tenant=row[13],
            last_error=told(row[14]),
            claim_token=row[15],
            claimed_by=row[16],
            claimed_at=row[17],
            lease_until=row[18],
            dispatch_instance_id=row[19],
            run_status=_RUN_STATUSES[row[20]],
            termination=None if termination is None else decode(TerminationReason, termination, where=where),
            run_response=told(row[22]),
            run_error=told(row[23]),
            completed_at=row[24],
            reconciled=row[25],
        )
    except (InvalidRecord, KeyError) as error:
        raise StoreCorrupt(f"{where} does not read back: {error}", value=row[0]) from error


def thread(row: Row) -> Thread:
    """Map a row of `run_threads`.

    Raises:
        StoreCorrupt: the row is no thread.
    """
    where = f"thread {row[0]!r}"
    try:
        return Thread(
            id=row[0],
            title=told(row[1]),
            resource_id=row[2],
            parent_thread_id=row[3],
            custom=decode_json(row[4], where=where),
            active_run_id=row[5],
            open_run_id=row[6],
            latest_run_id=row[7],
            latest_run_updated_at=row[8],
            message_count=row[9],
            created_at=row[10],
            updated_at=row[11],
        )
    except InvalidRecord as error:
        raise StoreCorrupt(f"{where} does not read back: {error}", value=row[0]) from error


def run(row: Row) -> RunRecord:
    """Map a run's id and body.

    Raises:
        StoreCorrupt: the body is no run.
    """
    return decode(RunRecord, row[1], where=f"run {row[0]!r}")


def message(row: Row) -> MessageRecord:
    """Map thread, number, instant and body of a row of `run_messages`.

    Raises:
        StoreCorrupt: the body is no message.
    """
    where = f"message {row[1]} of thread {row[0]!r}"
    said = decode(Message, row[3], where=where)
    return MessageRecord(thread_id=row[0], seq=row[1], message=said, created_at=row[2])


def pending(row: Row, position: int) -> PendingMessage:
    """Map a row of `pending_messages` at its position.

    Raises:
        StoreCorrupt: the body is no message, or the mode none.
    """
    where = f"pending message {row[2]!r} of thread {row[0]!r}"
    return PendingMessage(
        thread_id=row[0],
        position=position,
        revision=row[3],
        mode=decode(DeliveryMode, row[4], where=where),
        message=decode(Message, row[5], where=where),
        created_at=row[6],
        updated_at=row[7],
    )


def event(row: Row) -> CanonicalEvent:
    """Map a row of `run_events`.

    Raises:
        StoreCorrupt: the payload is no JSON.
    """
    where = f"event {row[0]!r}"
    return CanonicalEvent(
        event_id=row[0],
        event_kind=row[1],
        payload=decode_json(row[2], where=where),
        sequences=decode_json(row[3], where=where),
        created_at=row[4],
        causation_id=row[5],
        correlation_id=row[6],
        origin=row[7],
        visibility=EventVisibility(row[8]),
        schema_version=row[9],
    )


def effect(row: Row) -> OutboxMessage:
    """Map a row of `run_outbox` without its place.

    Raises:
        StoreCorrupt: the payload is no JSON.
    """
    return OutboxMessage(
        outbox_id=row[0],
        lane=row[1],
        target=row[2],
        payload=decode_json(row[3], where=f"effect {row[0]!r}"),
        status=OutboxStatus(row[4]),
        available_at=row[5],
        created_at=row[6],
        dedupe_key=row[7],
        attempt_count=row[8],
        max_attempts=row[9],
        claim_token=row[10],
        lease_until=row[11],
        last_error=told(row[12]),
        order_key=told(row[13]),
    )


def body(value: object) -> str:
    """Return a record as the JSON text that is stored.

    Raises:
        InvalidRecord: it holds half a character, which no text may.
    """
    try:
        return encode(value)
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"PostgreSQL cannot hold a text: {error}") from error
