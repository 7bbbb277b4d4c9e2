"""Deletes messages with all their records."""

from collections.abc import Sequence

from postroom.contracts.files import BYTES_LOCK
from postroom.contracts.retention import AgedMessage, OldMessages
from postroom.stores.codec import record
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.sql_transaction import SqlTransaction

_DELETING = (
    "mail.delete_message_runs",
    "mail.delete_answers",
    "mail.delete_recipients",
    "mail.delete_messages",
)
"""The statements in their order: rows that refer to the messages come first."""
_NEWEST = 2**63 - 1


def lock_bytes(tx: SqlTransaction) -> None:
    """Lock out other changes that store or remove bytes until the end of this one.

    A new message may share the bytes of a message that is deleted. Lock projects before.
    """
    tx.lock(BYTES_LOCK)
    tx.wait_for_locks()


class RetentionReads:
    """Reads old messages."""

    _tx: SqlTransaction

    def aged_messages(self, project_id: int, *, after: int, limit: int) -> list[AgedMessage]:
        """Return the facts that decide about a project's messages, by id, after id `after`."""
        values = {"project_id": project_id, "after": after, "limit": limit}
        return [record(AgedMessage, row) for row in self._tx.all("mail.aged_messages", values)]

    def aged_messages_of(self, project_id: int, ids: Sequence[int]) -> list[AgedMessage]:
        """Return the facts that decide about these messages of a project, by id."""
        values = {"project_id": project_id, "ids": ids}
        return [record(AgedMessage, row) for row in self._tx.all("mail.aged_messages_of", values)]

    def old_messages(
        self, project_id: int, sought: OldMessages, *, after: int, limit: int
    ) -> tuple[list[int], int | None]:
        """Check the next `limit` messages of a project after id `after`.

        Return those that can be deleted, by id.

        Also return the id of the last checked message; None at the end.
        """
        place = {"project_id": project_id, "after": after}
        ends = self._tx.all("mail.end_of_page", {**place, "passed": limit - 1})
        end: int | None = ends[0][0] if ends else None
        values = {
            **place,
            "upto": _NEWEST if end is None else end,
            "before": sought.before,
            "is_any": int(sought.is_any),
            "threads": sought.threads,
            "topics": sought.topics,
            "with_awaited": int(sought.with_awaited),
        }
        return [row[0] for row in self._tx.all("mail.old_messages", values)], end

    def attached_in(self, project_id: int, hashes: Sequence[str]) -> set[str]:
        """Return which of these contents are attached to a message of a project."""
        found = self._tx.all("mail.attached_in", {"project_id": project_id, "hashes": hashes})
        return {sha256 for row in found for sha256 in row if sha256 is not None} & set(hashes)


class RetentionWrites(RetentionReads):
    """Deletes messages."""

    _events: EventRecorder

    def lock_readers(self, project_id: int, message_ids: Sequence[int]) -> None:
        """Lock a project and the projects of its messages' recipients.

        Must be the first lock, all at once.
        """
        self._events.lock_readers(project_id, message_ids)

    def delete_messages(self, project_id: int, message_ids: Sequence[int], *, now: int) -> list[int]:
        """Delete messages of a project with all their records; return the ids that existed.

        The caller has locked their recipients. Inboxes record the number up to which an entry is gone, and
        the logs of the projects record the deletion in one entry each. Numbers are never reused. Attachments
        are deleted with the last message or file that refers to them.
        """
        elsewhere = self._events.lock_readers(project_id, message_ids)
        ids = self._deletable(project_id, message_ids)
        if not ids:
            return []
        threads = self._tx.all("mail.threads_losing", {"ids": ids})
        inboxes = self._tx.all("mail.inboxes_losing", {"ids": ids})
        self._tx.run_many("mail.raise_floor", [{"agent_id": row[0], "seq": row[1]} for row in inboxes])
        self._tx.run("mail.forget_words", {"ids": ids})
        self.drop_attachments(ids)
        for statement in _DELETING:
            self._tx.run(statement, {"ids": ids})
        for thread_id, gone in threads:
            values = {"project_id": project_id, "thread_id": thread_id, "gone": gone}
            self._tx.run("mail.shorten_thread", values)
            self._tx.run("mail.drop_empty_thread", values)
        self._events.deleted(project_id, ids, elsewhere, now)
        return ids

    def drop_attachments(self, message_ids: Sequence[int]) -> None:
        """Remove attachments from messages, and their contents if nothing else refers to them."""
        if stored := self._tx.all("mail.attachments", {"ids": message_ids}):
            lock_bytes(self._tx)
            hashes = {row[1] for row in stored} | {row[5] for row in stored}
            self._tx.run("mail.drop_attachments", {"ids": message_ids})
            self._tx.run("mail.drop_orphan_blobs", {"hashes": sorted(hashes - {None})})

    def _deletable(self, project_id: int, message_ids: Sequence[int]) -> list[int]:
        """Return the existing messages among these.

        On SQLite, whose index is updated later, only indexed ones.
        """
        values = {"project_id": project_id, "ids": message_ids}
        found = [row[0] for row in self._tx.all("mail.of_project", values)]
        if self._tx.dialect == "sqlite":
            left = self._tx.one("mail.index_left")
            found = [number for number in found if left is None or number < left[0]]
        return found
