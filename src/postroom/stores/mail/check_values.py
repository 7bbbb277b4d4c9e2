"""A check value of each message: text that changed on the disk is not shown as the text that was sent."""

import zlib
from typing import Final

from msgspec import structs

from postroom.contracts.mail import Message
from postroom.log import get_logger
from postroom.stores.codec import record
from postroom.stores.sql_transaction import Row

_LOG = get_logger(__name__)
_SUBJECT: Final = "[damaged message]"
_BODY: Final = (
    "[postroom: the text of this message changed on the disk after it was stored, and is not shown. "
    "The operator finds it in the archive or in a backup: `postroom doctor` lists damaged messages.]"
)


def check_value(message_id: int, subject: str, body_md: str, topic: str) -> int:
    """Return the check value of a message's texts: a CRC-32."""
    return zlib.crc32("\0".join((subject, body_md, topic)).encode(), message_id & 0xFFFFFFFF)


def is_damaged(message: Message) -> bool:
    """Return whether the texts of a message are not those that were written; False if nobody can know."""
    return (
        message.check_value is not None
        and message.recalled_at is None  # an earlier release recalls a message and leaves its check value
        and message.check_value != check_value(message.id, message.subject, message.body_md, message.topic)
    )


def message_of(row: Row) -> Message:
    """Return the message that a row begins with; in place of damaged texts it says that they are damaged."""
    message = record(Message, row)
    if not is_damaged(message):
        return message
    _LOG.error("store.message_damaged", message_id=message.id)
    return structs.replace(message, subject=_SUBJECT, body_md=_BODY, topic="")
