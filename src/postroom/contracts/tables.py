"""The part of a transaction that chats stand on, a short list of statements; it decides nothing itself."""

from collections.abc import Collection
from typing import Protocol

from postroom.contracts.chat import (
    ChatSession,
    InboundDraft,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    SessionThread,
)
from postroom.contracts.chat_links import LinkedChat
from postroom.contracts.chat_people import PairingRequest, Person
from postroom.contracts.files import ChatFile
from postroom.contracts.people import ChatAddress
from postroom.contracts.web_chats import WebConversation, WebEntry


class ChatTables(Protocol):
    """What the chat gateway keeps: inbound messages, sessions and people.

    A row that does not read back raises StoreCorrupt. Listings leave out what was set aside for that.
    """

    def inbound(self, key: InboundKey) -> InboundMessage | None:
        """Return the inbound message with this key."""
        ...

    def inbound_by_id(self, inbound_ids: Collection[int], *, readable: bool = False) -> list[InboundMessage]:
        """Return those of these inbound messages that exist, by id; the readable ones, or all."""
        ...

    def answered(
        self, inbound_ids: Collection[int], thread_id: str, run_id: str | None
    ) -> tuple[tuple[InboundMessage, ...], tuple[ChatFile, ...]]:
        """Return in one look the readable ones of these inbound messages, by id, and the files of a run."""
        ...

    def open_inbound(
        self, *, status: InboundStatus | None, session_key: str | None, after: int, limit: int
    ) -> list[InboundMessage]:
        """Return open messages by id, of one status and one session where that is asked."""
        ...

    def newest_inbound(self, platform: str, *, limit: int) -> list[InboundMessage]:
        """Return the messages of a platform that were received last, the newest first."""
        ...

    def count_inbound(self) -> dict[InboundStatus, int]:
        """Count all messages by status."""
        ...

    def insert_inbound(
        self, draft: InboundDraft, now: int, *, thread_id: str | None = None
    ) -> InboundMessage | None:
        """Store a message, which waits; with a thread it is handed over to that. None: its key is known.

        Its body is plain data.
        """
        ...

    def move_inbound(self, inbound_ids: Collection[int], move: InboundMove, now: int) -> None:
        """Store what becomes of these messages, save of those that may not become that."""
        ...

    def put_body(self, message: InboundMessage) -> None:
        """Store the body and the revision of a message."""
        ...

    def purge_inbound(self, *, older_than: int, limit: int) -> int:
        """Remove messages that are not open, those changed longest ago first; return how many."""
        ...

    def session(self, session_key: str) -> ChatSession | None:
        """Return one session."""
        ...

    def sessions(self, *, after: str, limit: int) -> list[ChatSession]:
        """Return sessions by key."""
        ...

    def put_session(self, session: ChatSession) -> None:
        """Store a session, or replace the one with its key."""
        ...

    def rename_session(self, session_key: str, session: ChatSession) -> None:
        """Store a session that had another key; its threads and its open messages follow."""
        ...

    def thread(self, thread_id: str) -> SessionThread | None:
        """Return this thread of a session."""
        ...

    def threads(self, session_key: str, *, title: str | None, limit: int) -> list[SessionThread]:
        """Return a session's threads, the last active first; those of one title when it is given."""
        ...

    def put_thread(self, thread: SessionThread) -> None:
        """Store a thread of a session, or its new title and activity."""
        ...

    def person(self, platform: str, user_id: str) -> Person | None:
        """Return somebody who was let in."""
        ...

    def people(self, *, platform: str | None, after: tuple[str, str], limit: int) -> list[Person]:
        """Return those who were let in, by platform and id."""
        ...

    def put_person(self, person: Person) -> Person:
        """Store a person, or a known one's new role and name; return what is stored."""
        ...

    def drop_person(self, platform: str, user_id: str) -> bool:
        """Remove a person; False when there was none."""
        ...

    def requests(self, *, platform: str | None, now: int, limit: int) -> list[PairingRequest]:
        """Return the requests that are open at an instant, the oldest first."""
        ...

    def request_of(self, platform: str, user_id: str) -> PairingRequest | None:
        """Return a person's request, whether it is open or has ended."""
        ...

    def request_with_code(self, platform: str, code_hash: str, now: int) -> PairingRequest | None:
        """Return the oldest open request with this hash."""
        ...

    def put_request(self, request: PairingRequest) -> None:
        """Store a request in place of a former one of the same person."""
        ...

    def drop_request(self, platform: str, user_id: str) -> None:
        """Remove a person's request."""
        ...

    def drop_ended_requests(self, platform: str, *, now: int, asked_until: int) -> None:
        """Remove requests that have ended and were made so long ago that their people may ask again."""
        ...

    def drop_requests(self, platform: str) -> int:
        """Remove all requests of a platform; return how many."""
        ...

    def pairing_failures(self, platform: str) -> tuple[int, int]:
        """Return the wrong codes on a platform since a right one, and until when it is locked."""
        ...

    def put_pairing_failures(self, platform: str, *, failures: int, locked_until: int) -> None:
        """Store them, and until when it is locked."""
        ...

    def linked_chat(self, address: ChatAddress) -> LinkedChat | None:
        """Return what is known of a direct chat."""
        ...

    def linked_chat_with_code(self, code_hash: str, now: int) -> LinkedChat | None:
        """Return the chat in which a code was given that holds at an instant."""
        ...

    def linked_chats_of(self, person: str) -> list[LinkedChat]:
        """Return a person's chats by platform and id."""
        ...

    def put_linked_chat(self, chat: LinkedChat) -> None:
        """Store what is known of a direct chat."""
        ...

    def web_conversations(self, person: str, *, before: int | None, limit: int) -> list[WebConversation]:
        """Return a person's conversations on the chat page, the last active first."""
        ...

    def web_conversation(self, person: str, conversation_id: str) -> WebConversation | None:
        """Return one conversation of the chat page."""
        ...

    def put_web_conversation(self, conversation: WebConversation) -> None:
        """Store a conversation of the chat page, or its new title and newest position."""
        ...

    def drop_web_conversation(self, person: str, conversation_id: str) -> bool:
        """Delete a conversation of the chat page and its entries; return whether there was one."""
        ...

    def web_entries(
        self, person: str, conversation_id: str, *, before: int | None, limit: int
    ) -> list[WebEntry]:
        """Return the newest entries of a conversation, the newest first."""
        ...

    def web_entry(self, person: str, entry_id: str) -> WebEntry | None:
        """Return one entry of the chat page."""
        ...

    def put_web_entry(self, entry: WebEntry) -> None:
        """Store an entry of the chat page, or the new body of a known one."""
        ...

    def files(self, thread_id: str, message_ids: Collection[str]) -> list[ChatFile]:
        """Return the files of these messages of a thread, by message and position."""
        ...

    def put_file(self, file: ChatFile) -> None:
        """Store a file of a message, or what is known of it now."""
        ...

    def count_pieces(self, sha256: str) -> int:
        """Count the pieces that are stored of the bytes under a hash."""
        ...

    def piece(self, sha256: str, position: int) -> bytes | None:
        """Return one piece of the bytes under a hash, counted from 0; an attachment of mail is one."""
        ...

    def put_piece(self, sha256: str, position: int, piece: str, content: bytes, *, now: int) -> None:
        """Store one piece under its own hash, if it is not there; `BYTES_LOCK` is locked."""
        ...

    def keep_pieces(self, sha256: str, *, now: int) -> int:
        """Note that the bytes under a hash are wanted now; return how many pieces there are of them."""
        ...

    def drop_files(self, thread_ids: Collection[str]) -> None:
        """Forget all files of threads; their bytes go with `drop_unused_bytes`."""
        ...

    def drop_unused_bytes(self, before: int, *, limit: int) -> int:
        """Remove bytes that no file has and nobody has stored since an instant; `BYTES_LOCK` is locked.

        Return of how many files, at most `limit`. Bytes are stored before their file is: those of an upload
        wait as long as its message does, so `before` is longer ago than that. What an attachment of mail, or
        a file with a piece in common, still has is kept.
        """
        ...
