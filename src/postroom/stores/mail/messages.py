"""Messages, who received them, their threads and attachments."""

from collections.abc import Sequence

from typing_extensions import override

from postroom.contracts.errors import UnknownAgent, UnknownMessage
from postroom.contracts.mail import (
    Agent,
    Attachment,
    Importance,
    InboxEntry,
    Message,
    Query,
    Recipient,
    RecipientKind,
    SearchHit,
    SearchOrder,
    ThreadHead,
)
from postroom.contracts.store import MailWrites
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part, unknown
from postroom.stores.mail.search_index import INDEXES

_INBOX = {
    # unread only, newest first
    (False, True): "mail.inbox_newest",
    (False, False): "mail.inbox_after",
    (True, True): "mail.inbox_unread_newest",
    (True, False): "mail.inbox_unread_after",
}


class Messages(Part, MailWrites):
    """Messages, inboxes, threads and attachments."""

    _positions: dict[int, int]
    """The place of the next recipient of each message that this change addresses."""

    @override
    def message(self, message_id: int) -> Message | None:
        row = self._tx.one("mail.message", {"id": message_id})
        return rows.message(row) if row else None

    @override
    def messages(self, message_ids: Sequence[int]) -> dict[int, Message]:
        return {row[0]: rows.message(row) for row in self._tx.all("mail.messages", {"ids": message_ids})}

    @override
    def recipients(self, message_ids: Sequence[int]) -> dict[int, list[Recipient]]:
        found: dict[int, list[Recipient]] = {message_id: [] for message_id in message_ids}
        for row in self._tx.all("mail.recipients", {"ids": message_ids}):
            found[row[0]].append(rows.recipient(row))
        return found

    @override
    def inbox(
        self,
        agent_id: int,
        *,
        limit: int,
        after: int | None = None,
        since: int | None = None,
        unread_only: bool = False,
        importance: Sequence[Importance] = (),
    ) -> list[InboxEntry]:
        values = {
            "agent_id": agent_id,
            "limit": limit,
            "after": after,
            "since": since,
            "importance": importance,
            "any_importance": not importance,
        }
        found = self._tx.all(_INBOX[unread_only, after is None], values)
        return [rows.inbox_entry(row) for row in found]

    @override
    def inbox_events(self, agent_id: int, *, after: int, limit: int) -> list[InboxEntry]:
        values = {"agent_id": agent_id, "after": after, "limit": limit}
        return [rows.inbox_entry(row) for row in self._tx.all("mail.inbox_events", values)]

    @override
    def unread_count(self, agent_id: int) -> int:
        return int(rows.written(self._tx.one("mail.unread_count", {"agent_id": agent_id}))[0])

    @override
    def thread(self, project_id: int, thread_id: str, *, limit: int, after: int = 0) -> list[Message]:
        values = {"project_id": project_id, "thread_id": thread_id, "after": after, "limit": limit}
        return [rows.message(row) for row in self._tx.all("mail.thread", values)]

    @override
    def thread_tail(self, project_id: int, thread_id: str, *, limit: int) -> list[Message]:
        values = {"project_id": project_id, "thread_id": thread_id, "limit": limit}
        return [rows.message(row) for row in reversed(self._tx.all("mail.thread_tail", values))]

    @override
    def thread_size(self, project_id: int, thread_id: str) -> int:
        values = {"project_id": project_id, "thread_id": thread_id}
        return int(rows.written(self._tx.one("mail.thread_size", values))[0])

    @override
    def threads(self, project_id: int, *, limit: int, before: int | None = None) -> list[ThreadHead]:
        values = {"project_id": project_id, "limit": limit, "before": before}
        return [rows.thread_head(row) for row in self._tx.all("mail.threads", values)]

    @override
    def project_messages(self, project_id: int, *, limit: int, after: int = 0) -> list[Message]:
        values = {"project_id": project_id, "after": after, "limit": limit}
        return [rows.message(row) for row in self._tx.all("mail.project_messages", values)]

    @override
    def insert_message(
        self,
        *,
        project_id: int,
        sender: Agent,
        thread_id: str | None,
        subject: str,
        body_md: str,
        importance: Importance,
        ack_required: bool,
        topic: str,
        broadcast: bool,
        reply_to: int | None,
        now: int,
    ) -> Message:
        self._events.lock([project_id])  # within a project, ids grow in the order in which they are seen
        # The id is taken beforehand: a thread that is filled in afterwards is written to its index twice.
        message_id = int(rows.written(self._tx.one("mail.next_message"))[0])
        message = Message(
            id=message_id,
            project_id=project_id,
            sender_id=sender.id,
            sender_name=sender.name,
            thread_id=thread_id or f"msg-{message_id}",
            subject=subject,
            body_md=body_md,
            importance=importance,
            ack_required=ack_required,
            created_at=now,
            topic=topic,
            broadcast=broadcast,
            reply_to=reply_to,
        )
        self._tx.run("mail.insert_message", rows.of_message(message))
        INDEXES[self._tx.dialect].add(self._tx, message)
        self._positions[message_id] = 0
        self._events.sent(message)
        return message

    @override
    def insert_recipient(self, message_id: int, agent: Agent, kind: RecipientKind) -> int:
        row = self._tx.one("mail.next_inbox_seq", {"agent_id": agent.id})
        if row is None:
            raise unknown(UnknownAgent, agent.id)
        position = self._positions.get(message_id)
        if position is None:
            position = rows.written(self._tx.one("mail.recipients_named", {"message_id": message_id}))[0]
        self._positions[message_id] = position + 1
        values = {
            "message_id": message_id,
            "agent_id": agent.id,
            "kind": kind,
            "seq": row[0],
            "position": position,
        }
        self._tx.run("mail.insert_recipient", values)
        self._events.reached(message_id, agent, kind)
        return int(row[0])

    @override
    def mark_read(self, message_id: int, agent_id: int, now: int) -> int | None:
        values = {"message_id": message_id, "agent_id": agent_id, "now": now}
        if row := self._tx.one("mail.mark_read", values):
            self._events.delivery("delivery.read", message_id, agent_id, row[0], now)
            return now
        row = self._tx.one("mail.read_mark", values)
        return int(row[0]) if row else None

    @override
    def mark_acked(self, message_id: int, agent_id: int, now: int) -> int | None:
        self.mark_read(message_id, agent_id, now)
        values = {"message_id": message_id, "agent_id": agent_id, "now": now}
        if row := self._tx.one("mail.mark_acked", values):
            self._events.delivery("delivery.acknowledged", message_id, agent_id, row[0], now)
            return now
        row = self._tx.one("mail.acked_mark", values)
        return int(row[0]) if row else None

    @override
    def mark_recalled(self, message_id: int, now: int) -> None:
        stored = self.attachments([message_id])[message_id]
        message = self.message(message_id)
        if message is None:
            raise unknown(UnknownMessage, message_id)
        if message.recalled_at is None:
            self._events.recalled(message, now)
        self._tx.run("mail.mark_recalled", {"id": message_id, "now": now})
        INDEXES[self._tx.dialect].remove(self._tx, message_id)
        if stored:
            hashes = {one.sha256 for one in stored} | {one.preview_sha256 for one in stored}
            self._tx.run("mail.drop_attachments", {"message_id": message_id})
            self._tx.run("mail.drop_orphan_blobs", {"hashes": sorted(hashes - {None})})

    @override
    def search(
        self, project_id: int, query: Query, *, order: SearchOrder, limit: int, cursor: int = 0
    ) -> list[SearchHit]:
        index = INDEXES[self._tx.dialect]
        return index.find(self._tx, project_id, query, order, limit=limit, cursor=cursor)

    @override
    def attachments(self, message_ids: Sequence[int]) -> dict[int, list[Attachment]]:
        found: dict[int, list[Attachment]] = {message_id: [] for message_id in message_ids}
        for row in self._tx.all("mail.attachments", {"ids": message_ids}):
            found[row[0]].append(rows.attachment(row))
        return found

    @override
    def blob(self, sha256: str) -> bytes | None:
        row = self._tx.one("mail.blob", {"sha256": sha256})
        return bytes(row[0]) if row else None

    @override
    def insert_blob(self, sha256: str, content: bytes) -> None:
        self._tx.run("mail.insert_blob", {"sha256": sha256, "content": content})

    @override
    def insert_attachment(self, message_id: int, attachment: Attachment) -> None:
        values = {
            "message_id": message_id,
            "sha256": attachment.sha256,
            "name": attachment.name,
            "media_type": attachment.media_type,
            "size": attachment.size,
            "preview_sha256": attachment.preview_sha256,
        }
        self._tx.run("mail.insert_attachment", values)
