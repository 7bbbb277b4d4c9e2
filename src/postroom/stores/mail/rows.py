"""One mapper a record: a row's columns in the order in which every statement of `sql/mail.sql` names them."""

from collections.abc import Mapping

from postroom.contracts.announcing import Arrival
from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.mail import (
    Agent,
    Attachment,
    ContactLink,
    InboxEntry,
    Message,
    Project,
    Recipient,
    Reservation,
    SearchHit,
    ThreadHead,
)
from postroom.contracts.waking import KeptRunner
from postroom.stores.sql_transaction import Row

MESSAGE_COLUMNS = 14


def written(row: Row | None) -> Row:
    """Return the row of a statement that always gives one.

    Raises:
        StoreCorrupt: it gave none.
    """
    if row is None:
        raise StoreCorrupt("a statement that always answers gave no row")
    return row


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


def of_message(message: Message) -> Mapping[str, object]:
    """Return the parameters with which a message is stored."""
    return {
        "id": message.id,
        "project_id": message.project_id,
        "sender_id": message.sender_id,
        "sender_name": message.sender_name,
        "thread_id": message.thread_id,
        "subject": message.subject,
        "body_md": message.body_md,
        "importance": message.importance,
        "ack_required": message.ack_required,
        "now": message.created_at,
        "topic": message.topic,
        "broadcast": message.broadcast,
        "reply_to": message.reply_to,
    }


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


def arrival(row: Row) -> Arrival:
    """Map what a notice may say of a message in an inbox."""
    return Arrival(
        message_id=row[0],
        seq=row[1],
        kind=row[2],
        sender_id=row[3],
        sender_name=row[4],
        importance=row[5],
        broadcast=bool(row[6]),
        created_at=row[7],
    )


def runner(row: Row) -> KeptRunner:
    """Map a row of `runners`."""
    return KeptRunner(agent_id=row[0], runner=row[1], declared_by=row[2], updated_at=row[3])
