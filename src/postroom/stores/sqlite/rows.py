"""One mapper a record: a row's columns in the order in which every statement of `sql/mail.sql` names them."""

from typing import Any

from postroom.contracts.mail import (
    Agent,
    Attachment,
    ContactLink,
    InboxEntry,
    Message,
    OutboxRow,
    Project,
    Recipient,
    Reservation,
    SearchHit,
    ThreadHead,
)

Row = tuple[Any, ...]
MESSAGE_COLUMNS = 14


def project(row: Row) -> Project:
    """Map a row of `projects`."""
    return Project(
        id=row[0],
        slug=row[1],
        human_key=row[2],
        created_at=row[3],
        spelling=row[4],
        git_identity=row[5],
        owner=row[6],
    )


def agent(row: Row) -> Agent:
    """Map a row of `agents`."""
    return Agent(
        id=row[0],
        project_id=row[1],
        name=row[2],
        program=row[3],
        model=row[4],
        task_description=row[5],
        created_at=row[6],
        last_active_at=row[7],
        contact_policy=row[8],
        retired_at=row[9],
        token_hash=row[10],
        inbox_seq=row[11],
        inbox_floor=row[12],
    )


def message(row: Row) -> Message:
    """Map the first columns of a row that begins with those of `messages`."""
    return Message(
        id=row[0],
        project_id=row[1],
        sender_id=row[2],
        sender_name=row[3],
        thread_id=row[4],
        subject=row[5],
        body_md=row[6],
        importance=row[7],
        ack_required=bool(row[8]),
        created_at=row[9],
        topic=row[10],
        broadcast=bool(row[11]),
        reply_to=row[12],
        recalled_at=row[13],
    )


def inbox_entry(row: Row) -> InboxEntry:
    """Map a message's columns followed by its recipient's."""
    kind, seq, read_at, acked_at = row[MESSAGE_COLUMNS:]
    return InboxEntry(message=message(row), kind=kind, seq=seq, read_at=read_at, acked_at=acked_at)


def search_hit(row: Row) -> SearchHit:
    """Map a message's columns followed by snippet and rank."""
    return SearchHit(message=message(row), snippet=row[MESSAGE_COLUMNS], rank=row[MESSAGE_COLUMNS + 1])


def recipient(row: Row) -> Recipient:
    """Map a row of `recipients` joined with the agent's name and project."""
    return Recipient(
        message_id=row[0],
        agent_id=row[1],
        name=row[2],
        project_slug=row[3],
        kind=row[4],
        seq=row[5],
        read_at=row[6],
        acked_at=row[7],
        announced_at=row[8],
        announced_by=row[9],
    )


def attachment(row: Row) -> Attachment:
    """Map a row of `attachments` after its message id."""
    return Attachment(sha256=row[1], name=row[2], media_type=row[3], size=row[4], preview_sha256=row[5])


def reservation(row: Row) -> Reservation:
    """Map a row of `file_reservations` joined with the holder's name."""
    return Reservation(
        id=row[0],
        project_id=row[1],
        agent_id=row[2],
        holder=row[3],
        pattern=row[4],
        prefix=row[5],
        exclusive=bool(row[6]),
        reason=row[7],
        created_at=row[8],
        expires_at=row[9],
        ttl=row[10],
        released_at=row[11],
        released_by=row[12],
        release_reason=row[13],
    )


def contact(row: Row) -> ContactLink:
    """Map a row of `contacts`."""
    return ContactLink(
        from_id=row[0], to_id=row[1], status=row[2], reason=row[3], created_at=row[4], decided_at=row[5]
    )


def thread_head(row: Row) -> ThreadHead:
    """Map a row of `threads` joined with its first and newest message."""
    return ThreadHead(
        thread_id=row[0],
        subject=row[1],
        messages=row[2],
        first_id=row[3],
        last_id=row[4],
        last_at=row[5],
        last_sender=row[6],
    )


def outbox_row(row: Row) -> OutboxRow:
    """Map a row of `outbox`."""
    return OutboxRow(
        id=row[0],
        topic=row[1],
        key=row[2],
        project_id=row[3],
        created_at=row[4],
        attempts=row[5],
        last_error=row[6],
    )
