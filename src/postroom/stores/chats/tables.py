"""Reads and writes inbound messages, sessions and people by named statements within a transaction."""

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from msgspec import structs

from postroom.contracts.chat import (
    INBOUND_MOVES,
    ChatSession,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    SessionThread,
)
from postroom.contracts.chat_links import LinkedChat
from postroom.contracts.chat_people import MAX_PEOPLE, PairingRequest, Person
from postroom.contracts.files import ChatFile
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import replace
from postroom.contracts.web_chats import WebConversation, WebEntry
from postroom.stores.chats import rows
from postroom.stores.codec import encode, escape_nul, record

if TYPE_CHECKING:
    from postroom.stores.store import Transaction

_NEWEST: Final = 2**63 - 1
"""The largest possible row id."""


class ChatTables:
    """The chat tables within one transaction."""

    def __init__(self, tx: "Transaction") -> None:
        self._tx = tx.sql

    def inbound(self, key: InboundKey) -> InboundMessage | None:
        """Return the inbound message with this key, or None."""
        row = self._tx.one("chats.inbound", structs.asdict(key))
        return rows.inbound(row) if row else None

    def inbound_by_id(self, inbound_ids: Collection[int], *, readable: bool = False) -> list[InboundMessage]:
        """Return the inbound messages with these ids, ordered by id; unknown ids are skipped.

        With `readable`, unreadable messages are skipped.
        """
        statement = "chats.readable_inbound" if readable else "chats.inbound_by_id"
        return [rows.inbound(row) for row in self._tx.all(statement, {"ids": _possible(inbound_ids)})]

    def answered(
        self, inbound_ids: Collection[int], thread_id: str, run_id: str | None
    ) -> tuple[tuple[InboundMessage, ...], tuple[ChatFile, ...]]:
        """Return the readable inbound messages with these ids, and the files of a run."""
        message_ids = [] if run_id is None else [run_id]
        answer, files = self._tx.ask(
            ("chats.readable_inbound", {"ids": _possible(inbound_ids)}),
            ("chats.files", {"thread_id": thread_id, "message_ids": message_ids}),
        )
        return tuple(map(rows.inbound, answer)), tuple(record(ChatFile, row) for row in files)

    def open_inbound(
        self, *, status: InboundStatus | None, session_key: str | None, after: int, limit: int
    ) -> list[InboundMessage]:
        """Return up to `limit` open inbound messages with an id greater than `after`, ordered by id.

        Without `status`, messages with any open status are returned. Without `session_key`, messages of all
        sessions are returned.
        """
        values = {
            "status": status and status.value,
            "session_key": session_key,
            "after": max(0, min(after, _NEWEST)),
            "limit": limit,
        }
        statement = "chats.open_inbound" if session_key is None else "chats.open_inbound_of_session"
        return [rows.inbound(row) for row in self._tx.all(statement, values)]

    def newest_inbound(self, platform: str, *, limit: int) -> list[InboundMessage]:
        """Return up to `limit` inbound messages of a platform, newest first."""
        result = self._tx.all("chats.newest", {"platform": platform, "limit": limit})
        return [rows.inbound(row) for row in result]

    def count_inbound(self) -> dict[InboundStatus, int]:
        """Return the number of inbound messages per status."""
        return {InboundStatus(status): number for status, number in self._tx.all("chats.counts")}

    def insert_inbound(
        self, draft: InboundMessage, now: int, *, thread_id: str | None = None
    ) -> InboundMessage | None:
        """Store a message as waiting, or as handed over if a thread is given.

        Return None if a message with this key is already stored. The body must be plain JSON data.
        """
        status = InboundStatus.WAITING if thread_id is None else InboundStatus.HANDED_OVER
        values = {
            **structs.asdict(draft.key),
            "session_key": draft.session_key,
            "sender_id": draft.sender_id,
            "body": encode(draft.body),
            "status": status.value,
            "thread_id": thread_id,
            "now": now,
        }
        row = self._tx.one("chats.receive", values)
        if row is None:
            return None
        return replace(
            draft, inbound_id=row[0], status=status, received_at=now, updated_at=now, thread_id=thread_id
        )

    def move_inbound(self, inbound_ids: Collection[int], move: InboundMove, now: int) -> None:
        """Change the status of inbound messages; messages that cannot have the status stay unchanged."""
        values = {
            "ids": _possible(inbound_ids),
            "status": move.status.value,
            "before": [before for before, after in INBOUND_MOVES.items() if move.status in after],
            "is_open": move.status.is_open,
            "thread_id": move.thread_id,
            "reason": escape_nul(move.reason),
            "now": now,
        }
        self._tx.run("chats.move", values)

    def put_body(self, message: InboundMessage) -> None:
        """Store the body and the revision of an inbound message."""
        values = {
            "inbound_id": message.inbound_id,
            "body": encode(message.body),
            "revision": message.revision,
            "now": message.updated_at,
        }
        self._tx.run("chats.edit", values)

    def purge_inbound(self, *, older_than: int, limit: int) -> int:
        """Delete up to `limit` inbound messages that are not open; return the number deleted."""
        gone = self._tx.all("chats.purge", {"older_than": older_than, "limit": limit})
        self._tx.run("chats.forget_purged", {"ids": [str(row[0]) for row in gone]})
        return len(gone)

    def session(self, session_key: str) -> ChatSession | None:
        """Return the session with this key, or None."""
        row = self._tx.one("chats.session", {"session_key": session_key})
        return rows.session(row) if row else None

    def sessions(self, *, after: str, limit: int) -> list[ChatSession]:
        """Return up to `limit` sessions, ordered by key, from the first key after `after`."""
        return [rows.session(row) for row in self._tx.all("chats.sessions", {"after": after, "limit": limit})]

    def put_session(self, session: ChatSession) -> None:
        """Store a new or changed session."""
        self._tx.run("chats.put_session", rows.of_session(session))

    def rename_session(self, session_key: str, session: ChatSession) -> None:
        """Move a session, its threads and its open messages to the key of `session`."""
        keys = {"session_key": session_key, "new_key": session.session_key}
        self._tx.run("chats.take_session_away", {"session_key": session_key})
        self.put_session(session)
        self._tx.run("chats.rename_threads", keys)
        self._tx.run("chats.rename_inbound", keys)

    def thread(self, thread_id: str) -> SessionThread | None:
        """Return the thread with this id, or None if no session has ever used the thread."""
        row = self._tx.one("chats.thread", {"thread_id": thread_id})
        return rows.thread(row) if row else None

    def threads(self, session_key: str, *, title: str | None, limit: int) -> list[SessionThread]:
        """Return up to `limit` threads of a session, last active first; `title` selects threads by title."""
        statement = "chats.threads" if title is None else "chats.threads_titled"
        values = {"session_key": session_key, "title": escape_nul(title), "limit": limit}
        return [rows.thread(row) for row in self._tx.all(statement, values)]

    def put_thread(self, thread: SessionThread) -> None:
        """Store a new or changed thread of a session."""
        values = {**asdict(thread), "title": escape_nul(thread.title)}
        self._tx.run("chats.put_thread", values)

    def person(self, platform: str, user_id: str) -> Person | None:
        """Return the person with this platform and id, or None if the person has no access."""
        row = self._tx.one("chats.person", {"platform": platform, "user_id": user_id})
        return rows.person(row) if row else None

    def people(self, *, platform: str | None, after: tuple[str, str], limit: int) -> list[Person]:
        """Return up to `limit` people who have access, ordered by platform and id, after a position."""
        statement = "chats.people" if platform is None else "chats.people_of_platform"
        values = {"platform": platform, "after_platform": after[0], "after_id": after[1], "limit": limit}
        return [rows.person(row) for row in self._tx.all(statement, values)]

    def put_person(self, person: Person) -> Person:
        """Store a new person, or a new role and name of a known person; return the stored record."""
        values = {**asdict(person), "role": person.role.value, "name": escape_nul(person.name)}
        [row] = self._tx.all("chats.let_in", values)
        return rows.person(row)

    def drop_person(self, platform: str, user_id: str) -> bool:
        """Take a person's access away; return False if the person had no access."""
        return self._tx.changed("chats.shut_out", {"platform": platform, "user_id": user_id}) > 0

    def requests(self, *, platform: str | None, now: int, limit: int) -> list[PairingRequest]:
        """Return up to `limit` requests for access that are open at the time `now`, oldest first."""
        result = self._tx.all("chats.requests", {"platform": platform, "now": now, "limit": limit})
        return [rows.request(row) for row in result]

    def request_of(self, platform: str, user_id: str) -> PairingRequest | None:
        """Return the open or expired request of a person for access, or None."""
        row = self._tx.one("chats.request_of", {"platform": platform, "user_id": user_id})
        return rows.request(row) if row else None

    def request_with_code(self, platform: str, code_hash: str, now: int) -> PairingRequest | None:
        """Return the oldest open request for access with a code hash, or None."""
        values = {"platform": platform, "code_hash": code_hash, "now": now}
        row = self._tx.one("chats.request_with_code", values)
        return rows.request(row) if row else None

    def put_request(self, request: PairingRequest) -> None:
        """Store a request for access, which replaces an earlier request of the person."""
        self._tx.run("chats.put_request", {**asdict(request), "name": escape_nul(request.name)})

    def drop_request(self, platform: str, user_id: str) -> None:
        """Delete a person's request for access."""
        self._tx.run("chats.forget_request", {"platform": platform, "user_id": user_id})

    def drop_ended_requests(self, platform: str, *, now: int, asked_until: int) -> None:
        """Delete expired requests for access from people who may ask again."""
        values = {"platform": platform, "now": now, "asked_until": asked_until}
        self._tx.run("chats.drop_ended_requests", values)

    def drop_requests(self, platform: str) -> int:
        """Delete all requests for access on a platform; return the number deleted."""
        return self._tx.changed("chats.forget_requests", {"platform": platform})

    def pairing_failures(self, platform: str) -> tuple[int, int]:
        """Return the number of wrong codes on a platform, and when the lock of the platform ends."""
        row = self._tx.one("chats.pairing_failures", {"platform": platform})
        return (row[0], row[1]) if row else (0, 0)

    def put_pairing_failures(self, platform: str, *, failures: int, locked_until: int) -> None:
        """Store the number of wrong codes on a platform, and when the lock of the platform ends."""
        values = {"platform": platform, "failures": failures, "locked_until": locked_until}
        self._tx.run("chats.put_pairing_failures", values)

    def linked_chat(self, address: ChatAddress) -> LinkedChat | None:
        """Return the record of a direct chat, or None."""
        row = self._tx.one("chats.linked_chat", asdict(address))
        return rows.linked_chat(row) if row else None

    def linked_chat_with_code(self, code_hash: str, now: int) -> LinkedChat | None:
        """Return the chat in which a code was issued, or None if the code is invalid at the time `now`."""
        row = self._tx.one("chats.linked_chat_with_code", {"code_hash": code_hash, "now": now})
        return rows.linked_chat(row) if row else None

    def linked_chats_of(self, person: str) -> list[LinkedChat]:
        """Return up to 200 chats of a person, ordered by platform and id."""
        result = self._tx.all("chats.linked_chats_of", {"person": person, "limit": MAX_PEOPLE})
        return [rows.linked_chat(row) for row in result]

    def put_linked_chat(self, chat: LinkedChat) -> None:
        """Store the record of a direct chat."""
        self._tx.run("chats.put_linked_chat", {**asdict(chat), "shares": int(chat.shares)})

    def web_conversations(self, person: str, *, before: int | None, limit: int) -> list[WebConversation]:
        """Return up to `limit` conversations of a person on the chat page, last active first.

        Only conversations that were last active before the time `before` are returned.
        """
        values = {"person": person, "before": _NEWEST if before is None else before, "limit": limit}
        return [rows.web_conversation(row) for row in self._tx.all("chats.web_conversations", values)]

    def web_conversation(self, person: str, conversation_id: str) -> WebConversation | None:
        """Return a conversation of the chat page, or None."""
        values = {"person": person, "conversation_id": conversation_id}
        row = self._tx.one("chats.web_conversation", values)
        return rows.web_conversation(row) if row else None

    def put_web_conversation(self, conversation: WebConversation) -> None:
        """Store a new or changed conversation of the chat page."""
        values = {**structs.asdict(conversation), "title": escape_nul(conversation.title)}
        self._tx.run("chats.put_web_conversation", values)

    def drop_web_conversation(self, person: str, conversation_id: str) -> bool:
        """Delete a conversation of the chat page; return False if the conversation does not exist."""
        values = {"person": person, "conversation_id": conversation_id}
        self._tx.run("chats.drop_web_entries", values)
        return self._tx.changed("chats.drop_web_conversation", values) > 0

    def web_entries(
        self, person: str, conversation_id: str, *, before: int | None, limit: int
    ) -> list[WebEntry]:
        """Return up to `limit` entries of a conversation before the position `before`, newest first."""
        values = {
            "person": person,
            "conversation_id": conversation_id,
            "before": _NEWEST if before is None else before,
            "limit": limit,
        }
        return [rows.web_entry(row) for row in self._tx.all("chats.web_entries", values)]

    def web_entry(self, person: str, entry_id: str) -> WebEntry | None:
        """Return an entry of the chat page, or None."""
        row = self._tx.one("chats.web_entry", {"person": person, "entry_id": entry_id})
        return rows.web_entry(row) if row else None

    def put_web_entry(self, entry: WebEntry) -> None:
        """Store a new or changed entry of the chat page."""
        self._tx.run("chats.put_web_entry", {**structs.asdict(entry), "body": encode(entry.body)})

    def files(self, thread_id: str, message_ids: Collection[str]) -> list[ChatFile]:
        """Return the files of messages on a thread, ordered by message and position."""
        values = {"thread_id": thread_id, "message_ids": list(message_ids)}
        return [record(ChatFile, row) for row in self._tx.all("chats.files", values)]

    def put_file(self, file: ChatFile) -> None:
        """Store the record of a message's file."""
        self._tx.run("chats.put_file", structs.asdict(file))

    def count_pieces(self, sha256: str) -> int:
        """Return the number of stored pieces of a file, which is found by its SHA-256."""
        return int(self._tx.all("chats.count_pieces", {"sha256": sha256})[0][0])

    def piece(self, sha256: str, position: int) -> bytes | None:
        """Return the piece of a file at a position, counted from 0, or None."""
        row = self._tx.one("chats.piece", {"sha256": sha256, "position": position})
        return bytes(row[0]) if row else None

    def put_piece(self, sha256: str, position: int, piece: str, content: bytes, *, now: int) -> None:
        """Store a piece of a file, unless the piece is already stored.

        The caller must hold `BYTES_LOCK`.
        """
        values = {"sha256": sha256, "position": position, "piece": piece, "now": now}
        self._tx.run("mail.insert_blob", {"sha256": piece, "content": content})
        self._tx.run("chats.put_piece", values)

    def keep_pieces(self, sha256: str, *, now: int) -> int:
        """Set the storage time of the pieces of a file to `now`; return the number of pieces."""
        return self._tx.changed("chats.keep_pieces", {"sha256": sha256, "now": now})

    def drop_files(self, thread_ids: Collection[str]) -> None:
        """Delete the file records of threads, but not the contents of the files."""
        self._tx.run("chats.drop_files", {"thread_ids": list(thread_ids)})

    def drop_unused_bytes(self, before: int, *, limit: int) -> int:
        """Delete the contents of up to `limit` files without a record; return the number of deleted files.

        Only contents that were stored before the time `before` are deleted. `before` must be earlier than the
        arrival of the oldest open message, whose files may lack a record. Contents that a mail attachment or
        another file shares are kept. The caller must hold `BYTES_LOCK`.
        """
        unused = self._tx.all("chats.unused_pieces", {"before": before, "limit": limit})
        hashes, pieces = sorted({row[0] for row in unused}), sorted({row[1] for row in unused})
        if hashes:
            self._tx.run("chats.drop_pieces", {"hashes": hashes, "before": before})
            self._tx.run("mail.drop_orphan_blobs", {"hashes": pieces})
        return len(hashes)


def _possible(inbound_ids: Collection[int]) -> list[int]:
    """Return the ids that an inbound message can have."""
    return [number for number in inbound_ids if 0 < number <= _NEWEST]
