"""Answers kept by idempotency key, and what is counted."""

from typing_extensions import override

from postroom.contracts.mail import StoredAnswer
from postroom.contracts.outbox import OutboxTables
from postroom.contracts.store import MailWrites
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part

_COUNTED = ("projects", "agents", "messages", "live_reservations", "outbox", "runners", "unread")


class Effects(Part, MailWrites):
    """Idempotency, and counts."""

    _outbox: OutboxTables

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

    @property
    @override
    def outbox(self) -> OutboxTables:
        return self._outbox

    @override
    def counts(self) -> dict[str, int]:
        return dict(zip(_COUNTED, rows.written(self._tx.one("mail.counts")), strict=True))
