"""The names of sessions, messages and responses in the OpenAI protocol. Pure functions."""

import base64
import binascii
import hashlib
import re
from typing import Final

KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")
SESSION: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_RESPONSE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,1400}")


def response_id_of(chat_id: str, message_id: str) -> str:
    """Return the id of the response to a message. It says which message that is, so that no list is kept."""
    names = [message_id] if chat_id == own_session(message_id) else [message_id, chat_id]
    told = "\0".join(names).encode()
    return f"resp_{base64.urlsafe_b64encode(told).decode().rstrip('=')}"


def read_response_id(response_id: str) -> tuple[str, str] | None:
    """Return the session and the message of a response id; None if it is not valid."""
    told = response_id.removeprefix("resp_")
    if told == response_id or not _RESPONSE_ID.fullmatch(told):
        return None
    try:
        names = base64.urlsafe_b64decode(told + "=" * (-len(told) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    message_id, _, chat_id = names.partition("\0")
    chat_id = chat_id or own_session(message_id)
    is_one = KEY.fullmatch(message_id) and SESSION.fullmatch(chat_id)
    return (chat_id, message_id) if is_one and response_id_of(chat_id, message_id) == response_id else None


def own_session(key: str) -> str:
    """Return the session of a request that names none: its own, the same in each repetition."""
    return f"once-{digest(key)}"


def digest(*parts: str) -> str:
    """Return 48 characters that identify these texts, the same each time."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:48]
