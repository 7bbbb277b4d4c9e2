"""Answers kept by idempotency key, effects to be performed afterwards, and what is counted."""

from collections.abc import Sequence

from typing_extensions import override

from postroom.contracts.mail import Backlog, OutboxRow, StoredAnswer
from postroom.contracts.store import MailWrites
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part

_COUNTED = ("projects", "agents", "messages", "live_reservations", "outbox", "runners", "unread")


class Effects(Part, MailWrites):
    """Idempotency, the outbox of the archive, and counts."""

    @override
    def answer(self, scope: str, key: str) -> StoredAnswer | None:
        row = self._tx.one("mail.answer", {"scope": scope, "key": key})
        return StoredAnswer(digest=row[0], answer=bytes(row[1])) if row else None

    @override
    def insert_answer(self, scope: str, key: str, digest: str, answer: bytes, now: int) -> None:
        values = {"scope": scope, "key": key, "digest": digest, "answer": answer, "now": now}
        self._tx.run("mail.insert_answer", values)

    @override
    def purge_answers(self, before: int, *, limit: int) -> int:
        return self._tx.changed("mail.purge_answers", {"before": before, "limit": limit})

    @override
    def outbox(self, topic: str, *, limit: int) -> list[OutboxRow]:
        return [rows.outbox_row(row) for row in self._tx.all("mail.outbox", {"topic": topic, "limit": limit})]

    @override
    def backlog(self, topic: str) -> Backlog:
        row = rows.written(self._tx.one("mail.backlog", {"topic": topic}))
        return Backlog(waiting=row[0], oldest_at=row[1])

    @override
    def insert_outbox(self, topic: str, key: str, project_id: int, now: int) -> None:
        values = {"topic": topic, "key": key, "project_id": project_id, "now": now}
        self._tx.run("mail.insert_outbox", values)

    @override
    def finish_outbox(self, row_ids: Sequence[int]) -> None:
        self._tx.run("mail.finish_outbox", {"ids": row_ids})

    @override
    def fail_outbox(self, row_ids: Sequence[int], error: str) -> None:
        self._tx.run("mail.fail_outbox", {"ids": row_ids, "error": error})

    @override
    def counts(self) -> dict[str, int]:
        return dict(zip(_COUNTED, rows.written(self._tx.one("mail.counts")), strict=True))
