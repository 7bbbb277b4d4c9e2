"""The check values of messages, so that text that was damaged on the disk is not shown as the original."""

from typing import Final

from msgspec import structs

from postroom.contracts.mail import Message, is_damaged
from postroom.log import get_logger
from postroom.stores.codec import record
from postroom.stores.sql_transaction import Row, SqlTransaction

_LOG = get_logger(__name__)
_SUBJECT: Final = "[damaged message]"
_BODY: Final = (
    "[postroom: the text of this message changed on the disk after it was stored, and is not shown. "
    "The operator finds it in the archive or in a backup: `postroom doctor` lists damaged messages.]"
)


def damaged_messages(tx: SqlTransaction, *, after: int, limit: int) -> tuple[list[int], int | None]:
    """Return which of the next `limit` messages after the id `after` differ from their check values.

    Also return the last checked id, or None after the last message.
    """
    rows = tx.all("mail.messages_to_check", {"after": after, "limit": limit})
    damaged = [message.id for message in (record(Message, row) for row in rows) if is_damaged(message)]
    return damaged, rows[-1][0] if rows else None


def message_of(row: Row) -> Message:
    """Create a message from the first columns of a row; damaged text is replaced by a note."""
    message = record(Message, row)
    if not is_damaged(message):
        return message
    _LOG.error("store.message_damaged", message_id=message.id)
    return structs.replace(message, subject=_SUBJECT, body_md=_BODY, topic="")
