"""First answers under idempotency keys, and effects that wait, over tables in memory."""

from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.mail import OutboxRow, StoredAnswer
from postroom.stores.memory.tables import KeptAnswer, Tables


class MemoryEffectWrites:
    """Changes of the tables, undone when the transaction is."""

    _tables: Tables

    def insert_answer(self, scope: str, key: str, digest: str, answer: bytes, now: int) -> None:
        """Keep the first answer given under an idempotency key."""
        kept = KeptAnswer(
            scope=scope,
            key=key,
            stored=StoredAnswer(digest=digest, answer=bytes(answer)),
            created_at=now,
            number=self._tables.next_number("answers"),
        )
        self._tables.effects.answers.insert((scope, key), kept)

    def purge_answers(self, before: int, *, limit: int) -> int:
        """Forget answers older than an instant; return how many."""
        old = [kept for kept in self._tables.effects.answers if kept.created_at < before]
        gone = sorted(old, key=lambda kept: (kept.created_at, kept.number))[:limit]
        for kept in gone:
            self._tables.effects.answers.drop((kept.scope, kept.key))
        return len(gone)

    def insert_outbox(self, topic: str, key: str, project_id: int, now: int) -> None:
        """Store an effect to be performed after this transaction."""
        row_id = self._tables.next_number("outbox")
        row = OutboxRow(id=row_id, topic=topic, key=key, project_id=project_id, created_at=now)
        self._tables.effects.outbox.insert(row_id, row)

    def finish_outbox(self, row_ids: Sequence[int]) -> None:
        """Remove rows whose effects were performed; harmless when they are gone."""
        for row_id in row_ids:
            self._tables.effects.outbox.drop(row_id)

    def fail_outbox(self, row_ids: Sequence[int], error: str) -> None:
        """Count one failed attempt on each row and keep the reason."""
        for row_id in set(row_ids):
            if row := self._tables.effects.outbox.get(row_id):
                self._tables.effects.outbox.put(
                    row_id, replace(row, attempts=row.attempts + 1, last_error=error)
                )
