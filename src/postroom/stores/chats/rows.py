"""Converts database rows to records of chats, and reports unreadable rows and invalid values."""

from typing import Any

from postroom.contracts.chat import (
    MAX_INBOUND,
    ChatSession,
    InboundKey,
    InboundMessage,
    InboundStatus,
    SessionThread,
)
from postroom.contracts.chat_links import LinkedChat
from postroom.contracts.chat_people import PairingRequest, Person, PersonRole
from postroom.contracts.errors import InvalidRecord, StoreCorrupt
from postroom.contracts.messages import Json
from postroom.contracts.web_chats import WebConversation, WebEntry
from postroom.stores.codec import decode_json, encode, escape_nul, unescape_nul, unreadable
from postroom.stores.sql_transaction import Row


def page(limit: int) -> int:
    """Return the number of rows to read: `limit`, but from 0 to `MAX_INBOUND`."""
    return max(0, min(limit, MAX_INBOUND))


def inbound(row: Row) -> InboundMessage:
    """Create an inbound message from a row of the table `inbound_messages`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    try:
        return InboundMessage(
            inbound_id=row[0],
            key=InboundKey(platform=row[1], account=row[2], chat_id=row[3], message_id=row[4]),
            session_key=row[5],
            sender_id=row[6],
            body=_fields(row[7], "body"),
            status=InboundStatus(row[8]),
            received_at=row[9],
            updated_at=row[10],
            revision=row[11],
            thread_id=row[12],
            reason=unescape_nul(row[13]),
        )
    except (ValueError, StoreCorrupt) as error:
        raise unreadable("inbound", str(row[0]), error) from error


def session(row: Row) -> ChatSession:
    """Create a session from a row of the table `chat_sessions`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    try:
        return ChatSession(
            session_key=row[0],
            thread_id=row[1],
            source=_fields(row[2], "source"),
            title=unescape_nul(row[3]),
            settings=_fields(row[4], "settings"),
            created_at=row[5],
            updated_at=row[6],
            active_at=row[7],
            revision=row[8],
        )
    except StoreCorrupt as error:
        raise unreadable("session", row[0], error) from error


def thread(row: Row) -> SessionThread:
    """Create the thread of a session from a row of the table `chat_conversations`."""
    thread_id, session_key, title, created_at, active_at = row
    return SessionThread(
        thread_id=thread_id,
        session_key=session_key,
        title=unescape_nul(title),
        created_at=created_at,
        active_at=active_at,
    )


def person(row: Row) -> Person:
    """Create a person from a row of the table `chat_people`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    platform, user_id, role, name, added_at = row
    try:
        known_role = PersonRole(role)
    except ValueError as error:
        raise unreadable("person", f"{platform} {user_id}", error) from error
    return Person(
        platform=platform, user_id=user_id, role=known_role, name=unescape_nul(name), added_at=added_at
    )


def request(row: Row) -> PairingRequest:
    """Create a request for access from a row of the table `chat_requests`."""
    platform, user_id, code_hash, name, asked_at, expires_at = row
    return PairingRequest(
        platform=platform,
        user_id=user_id,
        code_hash=code_hash,
        name=unescape_nul(name),
        asked_at=asked_at,
        expires_at=expires_at,
    )


def linked_chat(row: Row) -> LinkedChat:
    """Create a linked chat from a row of the table `linked_chats`."""
    platform, chat_id, person, shares, code_hash, code_until, failures, locked_until = row
    return LinkedChat(
        platform=platform,
        chat_id=chat_id,
        person=person,
        shares=bool(shares),
        code_hash=code_hash,
        code_until=code_until,
        failures=failures,
        locked_until=locked_until,
    )


def web_conversation(row: Row) -> WebConversation:
    """Create a conversation of the chat page from a row of the table `web_conversations`."""
    person, conversation_id, title, created_at, active_at = row
    return WebConversation(
        person=person,
        conversation_id=conversation_id,
        title=unescape_nul(title) or "",
        created_at=created_at,
        active_at=active_at,
    )


def web_entry(row: Row) -> WebEntry:
    """Create an entry of the chat page from a row of the table `web_entries`.

    Raises:
        StoreCorrupt: The body in the row is not a JSON object.
    """
    person, conversation_id, entry_id, position, body = row
    return WebEntry(
        person=person,
        conversation_id=conversation_id,
        entry_id=entry_id,
        position=position,
        body=_fields(body, "body"),
    )


def of_session(session: ChatSession) -> dict[str, object]:
    """Return the columns of a session, keyed by name."""
    return {
        "session_key": session.session_key,
        "thread_id": session.thread_id,
        "source": encode(session.source),
        "title": escape_nul(session.title),
        "settings": encode(session.settings),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "active_at": session.active_at,
        "revision": session.revision,
    }


def plain(fields: dict[str, Json]) -> dict[str, Json]:
    """Return a deep copy of `fields` in the form in which the store returns them.

    Raises:
        InvalidRecord: A text contains a lone surrogate, which cannot be stored.
    """
    return _fields(encode(fields), "body")


def refuse_unfit(*optional: str | None, **needed: str) -> None:
    """Check that no required text is blank, and that no text contains a lone surrogate.

    Raises:
        InvalidRecord: A text is blank, or contains a lone surrogate.
    """
    for name, text in needed.items():
        if not text.strip():
            raise InvalidRecord(f"{name} is blank", value=text)
    try:
        "".join(filter(None, (*optional, *needed.values()))).encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"the database cannot store this text: {error}") from error


def _fields(text: str, where: str) -> dict[str, Any]:
    value = decode_json(text, where=where)
    if not isinstance(value, dict):
        raise StoreCorrupt(f"{where} is not an object", value=where)
    return value
