"""Stores the committed and pending messages of threads, as a transaction reads and writes them.

The position of a pending message is its number among the messages that are pending now. A change of a
thread's messages requires the thread's lock.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from postroom.contracts.errors import (
    AlreadyConsumed,
    DuplicateRecord,
    InvalidRecord,
    QueueFull,
    UnknownMessage,
    VersionConflict,
)
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Message,
    MessageRecord,
    PendingMessage,
    PendingVersion,
    refuse_broken_delta,
    select_pending,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MessageQuery
from postroom.contracts.runs import RunRecord, Summary, SummaryDraft
from postroom.stores.codec import decode, encode
from postroom.stores.runs import rows
from postroom.stores.sql_transaction import Look, Row, Tables, Values

_NEWEST: Final = 2**62
_BEFORE_ALL: Final = -1
_FIRST_PAGE: Final = 16
_LAST_PAGE: Final = 1_024
"""Number of pending messages that the first read returns, and the maximum for later reads."""


class Messages(Tables):
    """The rows of committed and pending messages."""

    def all(self, thread_id: str) -> tuple[Message, ...]:
        """Return all committed messages of a thread in order."""
        result = self._sql.all("threads.all_messages", {"thread_id": thread_id})
        return tuple(rows.message(row).message for row in result)

    def unsummarized(self, thread_id: str, after: int | None) -> tuple[Message, ...]:
        """Return the messages of a thread that no summary covers, in order.

        With `after`, summaries with a number greater than `after` are ignored.
        """
        if after is None:
            result = self._sql.all("threads.unsummarized", {"thread_id": thread_id})
        else:
            parameters = {"thread_id": thread_id, "number": after}
            result = self._sql.all("threads.unsummarized_after", parameters)
        return tuple(rows.message(row).message for row in result)

    def passed_over(
        self, thread_id: str, message_ids: Sequence[str], own: Sequence[str]
    ) -> tuple[Message, ...]:
        """Return the messages of `message_ids` that a summary omitted, and the messages `own`, in order."""
        parameters = {"thread_id": thread_id, "message_ids": tuple(message_ids), "own": tuple(own)}
        result = self._sql.all("threads.passed_over", parameters)
        return tuple(rows.message(row).message for row in result)

    def summary(self, thread_id: str, below: int | None = None) -> Summary | None:
        """Return the newest summary of a thread, or the newest summary with a number less than `below`."""
        parameters = {"thread_id": thread_id, "below": _NEWEST if below is None else below}
        row = self._sql.one("threads.summary", parameters)
        return None if row is None else decode(Summary, row[0], where=f"a summary of thread {thread_id!r}")

    def find_first_summary(
        self, thread_id: str, run_ids: Sequence[str], message_ids: Sequence[str]
    ) -> int | None:
        """Return the number of the first summary that covers one of the messages or runs, or None."""
        parameters = {"thread_id": thread_id, "run_ids": tuple(run_ids), "message_ids": tuple(message_ids)}
        items = [row[0] for row in self._sql.all("threads.summaries_of", parameters)]
        return min((number for number in items if number is not None), default=None)

    def put_summary(self, thread_id: str, draft: SummaryDraft) -> None:
        """Store a summary, and mark the messages that the summary covers.

        The new summary replaces all stored summaries with an equal or higher number.
        """
        summary, thread = draft.summary, {"thread_id": thread_id}
        numbered: Values = {**thread, "number": summary.number}
        self._sql.run("threads.unmark_messages", numbered)
        self._sql.run("threads.drop_later_summaries", numbered)
        self._sql.run("threads.mark_messages", {**numbered, "message_ids": draft.covers})
        self._sql.run("threads.mark_messages", {**thread, "number": 0, "message_ids": draft.hides})
        values = {"since": summary.since, "created_at": self._now(), "body": encode(summary)}
        self._sql.run("threads.put_summary", {**numbered, **values})

    def named(self, thread_id: str, message_ids: Sequence[str]) -> tuple[MessageRecord, ...]:
        """Return the committed messages with these ids, in the order of the thread."""
        parameters = {"thread_id": thread_id, "message_ids": message_ids}
        return tuple(map(rows.message, self._sql.all("threads.named_messages", parameters)))

    def list(self, thread_id: str, query: MessageQuery, limit: int) -> tuple[MessageRecord, ...]:
        """Return up to `limit` committed messages of a thread, ordered by `seq`."""
        parameters = {
            "thread_id": thread_id,
            "visibility": query.visibility and query.visibility.value,
            "after": query.after,
            "before": _NEWEST if query.before is None else query.before,
            "limit": limit,
        }
        of_run = ""
        if query.run_id is not None:
            of_run, parameters["run_id"] = "_of_run", query.run_id
        newest = "_newest" if query.newest_first else ""
        return tuple(map(rows.message, self._sql.all(f"threads.messages{of_run}{newest}", parameters)))

    def delete(self, thread_id: str) -> int:
        """Delete the committed messages of a thread, and return the number deleted.

        New messages continue the numbering.
        """
        self._sql.run("threads.drop_summaries", {"thread_ids": [thread_id]})
        return self._sql.changed("threads.drop_messages", {"thread_ids": [thread_id]})

    def waiting(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return the pending messages of a thread in order."""
        return waiting(self._sql.all("threads.pending", {"thread_id": thread_id}))

    def count_waiting(self, thread_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of pending messages per thread; threads without pending messages are omitted."""
        return dict(map(tuple, self._sql.all("threads.count_waiting", {"thread_ids": thread_ids})))

    def append_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        """Append pending messages to a thread, and return them with their positions.

        The caller must create the thread if it does not exist.

        Raises:
            InvalidRecord: A message could not be committed as it is.
            DuplicateRecord: A message with the same id is pending or committed.
        """
        [[before]] = self._sql.all("threads.count_pending", {"thread_id": thread_id})
        added = self.put_waiting(thread_id, messages, mode, None)
        return tuple(replace(entry, position=before + entry.position) for entry in added)

    def put_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, at_most: int | None
    ) -> tuple[PendingMessage, ...]:
        """Append pending messages to a thread, and return them with positions that start at 1.

        Raises:
            InvalidRecord, DuplicateRecord: As for `append_waiting`.
            QueueFull: More than `at_most` messages would be pending on the thread.
        """
        refuse_broken_delta(messages)
        now, thread, ids = self._now(), {"thread_id": thread_id}, [message.id for message in messages]
        looks: list[Look] = [
            ("threads.pending_versions", {**thread, "pending_ids": ids}),
            ("threads.committed", {**thread, "message_ids": ids}),
            ("threads.last_place", thread),
        ]
        if at_most is not None:
            at_least = max(at_most - len(messages) + 1, 1)
            looks.append(("threads.full_threads", {"thread_ids": [thread_id], "at_least": at_least}))
        twice, committed, [[place]], *full = self._sql.ask(*looks)
        for item in (*twice, *committed):
            raise DuplicateRecord(f"message {item[0]!r} is already in the thread", value=item[0])
        if at_most is not None and (any(full) or len(messages) > at_most):
            raise thread_full(thread_id, at_most)
        added = tuple(
            PendingMessage(
                thread_id=thread_id,
                message=message,
                position=position,
                mode=mode,
                created_at=now,
                updated_at=now,
            )
            for position, message in enumerate(messages, start=1)
        )
        self._insert(added, range(place + 1, place + 1 + len(added)))
        return added

    def leading(
        self,
        thread_id: str,
        boundary: Boundary,
        run_id: str | None,
        *,
        group: str | None = None,
        resumed: RunRecord | None = None,
    ) -> tuple[PendingMessage, ...]:
        """Return the pending messages that `select_pending` examines to choose the next messages of a run.

        `select_pending` may not choose the last of these messages. With `resumed`, messages that cannot
        resume this waiting run are omitted.
        """
        seen: list[PendingMessage] = []

        def entries() -> Iterator[PendingMessage]:
            place, limit, position = _BEFORE_ALL, _FIRST_PAGE, 0
            while True:
                parameters = {"thread_id": thread_id, "place": place, "limit": limit}
                result = self._sql.all("threads.pending_behind", parameters)
                for row in result:
                    position += 1
                    entry = rows.pending(row, position)
                    if resumed is None or entry.mode.may_resume(
                        resumed.run_id, asks=bool(resumed.open_tickets)
                    ):
                        seen.append(entry)
                        yield entry
                if len(result) < limit:
                    return
                place, limit = result[-1][1], min(4 * limit, _LAST_PAGE)

        select_pending(entries(), boundary, run_id, group=group)
        return tuple(seen)

    def waiting_named(self, thread_id: str, pending_id: str) -> PendingMessage | None:
        """Return the pending message with this id, or None."""
        row = self._sql.one("threads.pending_named", {"thread_id": thread_id, "pending_id": pending_id})
        return None if row is None else rows.pending(row[:-1], row[-1])

    def given_to(self, thread_id: str, message_id: str) -> RunRecord | None:
        """Return the run that received a committed message as input, or None."""
        row = self._sql.one("threads.given_to", {"thread_id": thread_id, "message_id": message_id})
        if row is None:
            return None
        if row[0] is not None:
            items = self._sql.one("threads.run", {"run_id": row[0]})
            return None if items is None else rows.run(items)
        # An earlier release stored the message without its run, so every run of the thread is read.
        for body in self._sql.all("threads.turns", {"thread_id": thread_id, "since": 0}):
            run = rows.run((body[0], body[3]))
            if run.input is not None and message_id in run.input.trigger_message_ids:
                return run
        return None

    def among_waiting(self, thread_id: str, message_ids: Sequence[str]) -> tuple[str, ...]:
        """Return which of the messages `message_ids` are pending on a thread."""
        parameters = {"thread_id": thread_id, "pending_ids": tuple(message_ids)}
        return tuple(row[0] for row in self._sql.all("threads.pending_versions", parameters))

    def full(self, thread_ids: Collection[str], at_most: int) -> frozenset[str]:
        """Return which of the given threads have at least `at_most` pending messages."""
        parameters = {"thread_ids": sorted(thread_ids), "at_least": at_most}
        return frozenset(row[0] for row in self._sql.all("threads.full_threads", parameters))

    def edit_waiting(self, thread_id: str, message: Message, expected_revision: int | None) -> PendingMessage:
        """Replace the pending message with the id of `message`, as `ThreadStore.edit_pending` describes."""
        before = self._require_version(thread_id, message.id or "", expected_revision)
        refuse_broken_delta([message])
        now = self._now()
        after = replace(before, message=message, revision=before.revision + 1, updated_at=now)
        values = {"body": encode(message), "revision": after.revision, "now": now}
        self._sql.run(
            "threads.edit_pending", {**values, "thread_id": thread_id, "pending_id": after.pending_id}
        )
        return after

    def retract_waiting(
        self, thread_id: str, pending_id: str, expected_revision: int | None
    ) -> PendingMessage:
        """Withdraw a pending message, as `ThreadStore.retract_pending` describes."""
        taken = self._require_version(thread_id, pending_id, expected_revision)
        self.take(thread_id, [taken.version])
        return taken

    def reorder_waiting(
        self, thread_id: str, order: Sequence[str], expected: Sequence[PendingVersion] | None
    ) -> tuple[PendingMessage, ...]:
        """Change the order of a thread's pending messages, as `ThreadStore.reorder_pending` describes."""
        found_rows = self._sql.all("threads.pending", {"thread_id": thread_id})
        there = waiting(found_rows)
        if expected is not None and [pending.version for pending in there] != list(expected):
            raise VersionConflict("the waiting messages have changed", value=thread_id)
        by_id = {pending.pending_id: pending for pending in there}
        if sorted(order) != sorted(by_id):
            raise InvalidRecord(
                "the new order must list each waiting message exactly once", value=list(order)
            )
        self.take(thread_id, [pending.version for pending in there])
        ordered = tuple(replace(by_id[name], position=at) for at, name in enumerate(order, start=1))
        self._insert(ordered, [row[1] for row in found_rows])
        return ordered

    def refer(self, thread_id: str, message: Message, answer: RunRecord) -> None:
        """Replace the text of a committed message by a reference to the run that gave this answer."""
        values = {"thread_id": thread_id, "message_id": message.id, "answer_of": answer.run_id}
        self._sql.run("threads.refer_to_answer", {**values, "body": encode(replace(message, content=()))})

    def take(self, thread_id: str, versions: Sequence[PendingVersion]) -> None:
        """Delete pending messages of a thread."""
        ids = [pending_version.pending_id for pending_version in versions]
        self._sql.run("threads.take_pending", {"thread_id": thread_id, "pending_ids": ids})

    def threads_with_waiting(self, limit: int, after: str) -> tuple[str, ...]:
        """Return threads with pending messages, ordered by id, from the first id after `after`."""
        found_rows = self._sql.all("threads.threads_with_pending", {"after": after, "limit": limit})
        return tuple(row[0] for row in found_rows)

    def threads_left_over(self, limit: int, after: str) -> tuple[str, ...]:
        """Return up to `limit` idle threads with a pending message for a run, ordered by id."""
        found_rows = self._sql.all("threads.threads_left_over", {"after": after, "limit": limit})
        return tuple(row[0] for row in found_rows)

    def _insert(self, entries: Sequence[PendingMessage], places: Sequence[int]) -> None:
        values: list[Values] = [
            {
                "thread_id": pending.thread_id,
                "place": place,
                "pending_id": pending.pending_id,
                "revision": pending.revision,
                "created_at": pending.created_at,
                "updated_at": pending.updated_at,
                "mode": encode(pending.mode),
                "body": encode(pending.message),
            }
            for place, pending in zip(places, entries, strict=True)
        ]
        self._sql.run_many("threads.insert_pending", values)

    def _require_version(
        self, thread_id: str, pending_id: str, expected_revision: int | None
    ) -> PendingMessage:
        there, committed = self._sql.ask(
            ("threads.pending_named", {"thread_id": thread_id, "pending_id": pending_id}),
            ("threads.committed", {"thread_id": thread_id, "message_ids": [pending_id]}),
        )
        pending = rows.pending(there[0][:-1], there[0][-1]) if there else None
        if pending is None and committed:
            raise AlreadyConsumed(f"message {pending_id!r} has already been consumed", value=pending_id)
        if pending is None:
            raise UnknownMessage(f"no pending message {pending_id!r}", value=pending_id)
        if expected_revision not in (None, pending.revision):
            raise VersionConflict(
                f"pending message {pending_id!r} is at revision {pending.revision}, not {expected_revision}",
                value=pending_id,
            )
        return pending


def waiting(found: Sequence[Row]) -> tuple[PendingMessage, ...]:
    """Create the pending messages of a thread from their rows."""
    return tuple(rows.pending(row, position) for position, row in enumerate(found, start=1))


def thread_full(thread_id: str, at_most: int) -> QueueFull:
    """Return the error for a thread that has too many pending messages."""
    return QueueFull(
        f"thread {thread_id!r} already has {at_most} waiting messages, the maximum",
        value=thread_id,
        remedy="send the message again after the runs of the thread have read some messages",
        details={"max_pending": at_most},
    )


def refuse_changed(found: Sequence[Row], versions: Sequence[PendingVersion]) -> None:
    """Check that messages are still pending and unchanged; `found` contains the stored ids and revisions.

    Raises:
        VersionConflict: A message has changed, or is no longer pending.
    """
    there = {tuple(row) for row in found}
    for pending_version in versions:
        if (pending_version.pending_id, pending_version.revision) not in there:
            raise VersionConflict(
                f"pending message {pending_version.pending_id!r} has no revision {pending_version.revision}",
                value=pending_version.pending_id,
            )
