"""Stores threads, runs, the state of executors, and spending, within a transaction."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, Literal

from postroom.contracts.errors import DuplicateRecord, InvalidRecord, UnknownThread
from postroom.contracts.limits import Spending
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE, RunCursor, RunQuery, ThreadQuery
from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingTicket, Thread, Turn
from postroom.contracts.waking import number_of
from postroom.stores.codec import decode_json
from postroom.stores.runs import rows
from postroom.stores.runs.rows import beyond
from postroom.stores.sql_transaction import Look, Row, Tables

FAMILIES: Final = "threads"
"""The lock for changes of a thread's parent."""

_BATCH: Final = 50
_SPENT: Final = ("scope", "runs", "wall_ms", "tokens", "cost_micros")


class Threads(Tables):
    """The rows of threads and runs."""

    def load(self, thread_id: str) -> Thread | None:
        """Return the thread with this id, or None."""
        result = self._asked([("threads.thread", {"thread_id": thread_id})])["threads.thread", thread_id]
        return rows.thread(result[0]) if result else None

    def made(self, thread_id: str) -> Thread:
        """Return the thread with this id, which is created if it does not exist."""
        thread = self.load(thread_id)
        if thread is None:
            thread = new_thread(thread_id, self._now())
            self.put(thread)
        return thread

    def save(self, thread: Thread) -> None:
        """Store a thread; its `message_count` is ignored.

        Raises:
            UnknownThread, InvalidRecord: As for `ThreadStore.save_thread`.
        """
        parent = thread.parent_thread_id
        before, above = self._sql.ask(
            ("threads.thread", {"thread_id": thread.id}), ("threads.above", {"thread_id": parent})
        )
        if parent is not None and not above:
            raise no_parent(parent)
        if any(row[0] == thread.id for row in above):
            raise own_ancestor(thread.id)
        self.put(replace(thread, message_count=rows.thread(before[0]).message_count if before else 0))

    def put(self, thread: Thread) -> None:
        """Store a new or existing thread."""
        self._sql.run("threads.put_thread", rows.thread_values(thread))

    def move(self, thread: Thread) -> None:
        """Update the run ids, the message count and the times of an existing thread."""
        self._sql.run("threads.move_thread", rows.thread_values(thread))

    def below(self, thread_id: str) -> list[str]:
        """Return the ids of all descendants of a thread."""
        return [row[0] for row in self._sql.all("threads.below", {"thread_id": thread_id})]

    def idle(self, before: int, *, limit: int, among: Sequence[str] | None = None) -> list[str]:
        """Return up to `limit` threads without activity since the time `before`.

        The returned threads have no open run, no pending message and no child thread, and belong to no chat.
        Without `among`, all threads are searched.
        """
        parameters = {"before": before, "limit": limit, "among": among or (), "is_any": among is None}
        return [row[0] for row in self._sql.all("threads.idle", parameters)]

    def list_run_ids(self, thread_ids: Sequence[str]) -> list[str]:
        """Return the ids of all runs of the given threads."""
        return [row[0] for row in self._sql.all("threads.runs_of_threads", {"thread_ids": thread_ids})]

    def delete(self, thread_id: str, children: Literal["detach", "reject", "cascade"]) -> bool:
        """Delete a thread with its messages and runs; return False if the thread does not exist.

        Raises:
            InvalidRecord: The thread has children, and `children` is "reject".
        """
        parameters = {"thread_id": thread_id}
        threads, below = self._sql.ask(("threads.thread", parameters), ("threads.below", parameters))
        if not threads:
            return False
        if below and children == "reject":
            raise InvalidRecord(f"thread {thread_id!r} has child threads", value=thread_id)
        gone = [thread_id, *(row[0] for row in below if children == "cascade")]
        self._sql.run("threads.detach_children", parameters)
        for part in ("messages", "summaries", "pending", "runs", "state", "threads"):
            self._sql.run(f"threads.drop_{part}", {"thread_ids": gone})
        self._sql.run_many(
            "threads.forget_thread", [{"thread_id": item, "below": f"{item}/"} for item in gone]
        )
        self._sql.run("threads.forget_runs")
        return True

    def list(self, query: ThreadQuery, limit: int) -> tuple[Thread, ...]:
        """Return up to `limit` threads that match a query, ordered by id."""
        bounds = _bounds(query.id_prefix, query.after, limit)
        statement = "threads"
        if query.parent_thread_id is not None:
            statement = "threads_of_parent" if query.parent_thread_id else "threads_without_parent"
            bounds.update(parent_thread_id=query.parent_thread_id, resource_id=query.resource_id)
        elif query.resource_id is not None:
            statement = "threads_of_resource"
            bounds["resource_id"] = query.resource_id
        return tuple(map(rows.thread, self._sql.all(f"threads.{statement}", bounds)))

    def create_run(self, run: RunRecord) -> None:
        """Store a new run and update its thread, which is created if it does not exist.

        Raises:
            DuplicateRecord: A run with this id exists.
        """
        there, threads = self._sql.ask(
            ("threads.run", {"run_id": run.run_id}), ("threads.thread", {"thread_id": run.thread_id})
        )
        if there:
            raise DuplicateRecord(f"run {run.run_id!r} already exists", value=run.run_id)
        thread = rows.thread(threads[0]) if threads else new_thread(run.thread_id, self._now())
        self.put(thread.after(run))
        self._sql.run("threads.add_run", rows.run_values(run))
        if run.holds_others:
            self.put_questions(run)

    def put_run(self, run: RunRecord) -> None:
        """Replace a stored run that asks no question."""
        self._sql.run("threads.put_run", rows.run_values(run))

    def put_questions(self, run: RunRecord) -> None:
        """Index the open and answered questions of a run by their numbers."""
        answers: list[tuple[RunWaitingTicket, int | None]] = [
            (answered.ticket, answered.decision.updated_at) for answered in run.answered
        ]
        answers += [(ticket, None) for ticket in run.open_tickets]
        # A question that nobody saw in a failed attempt may be asked again with its number.
        numbered = {number_of(run.run_id, ticket): (ticket, at) for ticket, at in answers}
        asked = {"run_id": run.run_id, "home": _home_of(run)}
        self._sql.run("threads.drop_questions", {"run_id": run.run_id})
        self._sql.run_many(
            "threads.add_question",
            [
                {
                    **asked,
                    "number": number,
                    "call_id": ticket.tool_call_id,
                    "asked_at": ticket.updated_at,
                    "answered_at": answered_at,
                    "ends_at": ticket.ends_at if answered_at is None else None,
                }
                for number, (ticket, answered_at) in numbered.items()
            ],
        )

    def unnumbered(self, limit: int) -> tuple[RunRecord, ...]:
        """Return up to `limit` waiting runs whose questions are not indexed yet."""
        return tuple(map(rows.run, self._sql.all("threads.unnumbered", {"limit": limit})))

    def mark_numbered(self, run: RunRecord) -> None:
        """Record that the questions of a run are indexed, unless the stored run has changed."""
        self._sql.run("threads.mark_numbered", {"run_id": run.run_id, "updated_at": run.updated_at})

    def numbered(self, prefix: str, since: int, limit: int) -> tuple[RunRecord, ...]:
        """Return runs with a question whose number begins with `prefix`.

        Only questions that are open, or were answered at or after the time `since`, are searched.
        """
        bounds = {"low": prefix, "beyond": beyond(prefix), "since": since, "limit": limit}
        return self._asking(("threads.numbered", bounds))

    def asked_in(self, home: str, limit: int) -> tuple[RunRecord, ...]:
        """Return runs with open questions of a project or of chats, longest wait first.

        `home` is the part of a thread's id before the first slash.
        """
        runs = self._asking(("threads.asked_in", {"home": home, "limit": limit}))
        return tuple(run for run in runs if run.status is RunStatus.WAITING and _home_of(run) == home)

    def overdue(self, now: int, after: tuple[int, str], limit: int) -> tuple[tuple[int, RunRecord], ...]:
        """Return runs with questions that have timed out, each with the time of the timeout.

        At most `limit` runs after the position `after` are returned.
        """
        parameters = {"now": now, "ends_at": after[0], "run_id": after[1], "limit": limit}
        return tuple((row[2], rows.run(row[:2])) for row in self._sql.all("threads.overdue", parameters))

    def count_asked(self, homes: Sequence[str], limit: int) -> tuple[int, ...]:
        """Return the number of open questions of each project in `homes`, at most `limit` each.

        Snoozed questions are not counted. The entry "" in `homes` stands for all questions.
        """
        bounds = {"now": self._now(), "limit": limit}
        looks = [
            # No name of a home contains a space, so these bounds exclude longer names.
            ("threads.count_asked", {"low": home, "beyond": f"{home} " if home else beyond(""), **bounds})
            for home in homes
        ]
        return tuple(int(row[0]) for [row] in (self._sql.ask(*looks) if looks else []))

    def answered_in(self, home: str, limit: int) -> tuple[RunRecord, ...]:
        """Return the runs of a project or of chats with the newest answers."""
        return _each_once(self._sql.all("threads.answered_in", {"home": home, "limit": limit}))

    def _asking(self, look: Look) -> tuple[RunRecord, ...]:
        """Return the runs that a query finds, and the runs whose questions are not indexed yet."""
        return _each_once(chain(*self._sql.ask(("threads.unnumbered", {"limit": MAX_PAGE}), look)))

    def load_run(self, run_id: str) -> RunRecord | None:
        """Return the run with this id, or None."""
        result = self._asked([("threads.run", {"run_id": run_id})])["threads.run", run_id]
        return rows.run(result[0]) if result else None

    def latest_runs(self, thread_id: str, limit: int) -> tuple[RunRecord, ...]:
        """Return the newest runs of a thread, ordered by `updated_at`, then by `created_at`."""
        result = self._sql.all("threads.latest_runs", {"thread_id": thread_id, "limit": limit})
        return tuple(map(rows.run, result))

    def newest_runs(self, thread_ids: Sequence[str], before: RunCursor) -> Iterator[RunRecord]:
        """Yield the runs of some threads after the position `before`, last changed first."""
        parameters = {**before._asdict(), "limit": _BATCH}
        looks = [("threads.run_places", {"thread_id": name, **parameters}) for name in thread_ids]
        first = self._sql.ask(*looks) if looks else []
        merged = heapq.merge(*map(self._places, thread_ids, first), reverse=True)
        while batch := [place.run_id for place in islice(merged, _BATCH)]:
            bodies = {row[0]: row for row in self._sql.all("threads.runs_named", {"run_ids": batch})}
            yield from (rows.run(bodies[run_id]) for run_id in batch)

    def runs_beside(self, run_id: str) -> tuple[str, str]:
        """Return the ids of the runs before and after a run on its thread, by last change; "" means none."""
        before, after = self._sql.one("threads.runs_beside", {"run_id": run_id}) or ("", "")
        return before, after

    def _places(self, thread_id: str, found: Sequence[Row]) -> Iterator[RunCursor]:
        """Yield the positions of the runs of a thread, beginning with those in the rows `found`."""
        while found:
            places = [RunCursor(*row) for row in found]
            yield from places
            parameters = {"thread_id": thread_id, **places[-1]._asdict(), "limit": _BATCH}
            found = self._sql.all("threads.run_places", parameters) if len(found) == _BATCH else ()

    def list_runs(self, query: RunQuery, limit: int) -> tuple[RunRecord, ...]:
        """Return up to `limit` runs that match a query, ordered by id."""
        statuses = set(query.statuses) or set(RunStatus)
        parameters = _bounds(query.id_prefix, query.after, limit)
        parameters["statuses"] = sorted(statuses)
        of_thread = ""
        if query.thread_id is not None:
            of_thread, parameters["thread_id"] = "_of_thread", query.thread_id
        elif query.thread_prefix:
            of_thread = "_below"
            parameters |= {"thread_low": query.thread_prefix, "thread_beyond": beyond(query.thread_prefix)}
        open_ones = "" if RunStatus.DONE in statuses else "open_"
        if statuses == {RunStatus.WAITING} and not of_thread:
            open_ones = "waiting_"
        return tuple(map(rows.run, self._sql.all(f"threads.{open_ones}runs{of_thread}", parameters)))

    def asking_below(self, thread_prefix: str, limit: int) -> tuple[RunRecord, ...]:
        """Return up to `limit` runs with open questions, on threads whose ids begin with `thread_prefix`."""
        bounds = {"low": thread_prefix, "beyond": beyond(thread_prefix), "limit": limit}
        return tuple(map(rows.run, self._sql.all("threads.asking_below", bounds)))

    def asked_last(self, limit: int) -> tuple[RunRecord, ...]:
        """Return up to `limit` waiting runs, last changed first."""
        return tuple(map(rows.run, self._sql.all("threads.asked_last", {"limit": limit})))

    def asked_since(self, at: int, run_id: str, limit: int) -> tuple[RunRecord, ...]:
        """Return up to `limit` waiting runs after a position, in the order of their last change."""
        parameters = {"updated_at": at, "run_id": run_id, "limit": limit}
        return tuple(map(rows.run, self._sql.all("threads.asked_since", parameters)))

    def undelivered(self, limit: int, after: str) -> tuple[RunRecord, ...]:
        """Return up to `limit` prepared or waiting runs without an open dispatch, ordered by id."""
        result = self._sql.all("threads.undelivered", {"after": after, "limit": limit})
        return tuple(map(rows.run, result))

    def waiting_without_questions(self, limit: int, after: str) -> tuple[RunRecord, ...]:
        """Return up to `limit` waiting runs without questions, ordered by id.

        Only threads without an open dispatch are searched.
        """
        result = self._sql.all("threads.waiting_without_questions", {"after": after, "limit": limit})
        return tuple(map(rows.run, result))

    def count_open(self, thread_prefix: str) -> int:
        """Return the number of open runs on threads whose ids begin with `thread_prefix`."""
        parameters = {"low": thread_prefix, "beyond": beyond(thread_prefix)}
        [counted] = self._sql.all("threads.count_open", parameters)
        return int(counted[0])

    def turns(self, thread_id: str, since: int = 0) -> Sequence[Turn]:
        """Return the runs of a thread, unordered, with the fields that determine the order of a conversation.

        Runs that ended and were last written before the time `since` are omitted.
        """
        result = self._sql.all("threads.turns", {"thread_id": thread_id, "since": since})
        return [rows.turn(row) for row in result]

    def turns_named(self, run_ids: Sequence[str]) -> Sequence[Turn]:
        """Return the turns of the runs with these ids, unordered."""
        result = self._sql.all("threads.turns_named", {"run_ids": tuple(run_ids)})
        return [rows.turn(row) for row in result]

    def state(self, thread_id: str) -> dict[str, Json] | None:
        """Return the state that executors have stored for a thread, or None."""
        row = self._sql.one("threads.state", {"thread_id": thread_id})
        return decode_json(row[0], where=f"the state of thread {thread_id!r}") if row else None

    def put_state(self, thread_id: str, body: str) -> None:
        """Replace the state that executors have stored for a thread."""
        self._sql.run("threads.put_state", {"thread_id": thread_id, "body": body})

    def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return the spending of each scope."""
        spent = self._sql.spent
        # Each scope is read only once.
        looks = [("threads.spending", {"scopes": (scope,)}) for scope in scopes if scope not in spent]
        spent.update((row[0], _spending(row)) for rows in self._asked(looks).values() for row in rows)
        return {scope: spent.setdefault(scope, Spending(scope=scope)) for scope in scopes}

    def spend(self, spends: Sequence[Spending]) -> None:
        """Add amounts to the spending of scopes."""
        ordered = sorted(spends, key=lambda one: one.scope)
        values = [
            {name: getattr(spending, name) for name in _SPENT} | {"window_end": spending.until or 0}
            for spending in ordered
        ]
        self._sql.run_many("threads.spend", values)
        for spending in ordered:
            if (before := self._sql.spent.get(spending.scope)) is not None:
                self._sql.spent[spending.scope] = before.plus(spending)

    def put_asker(self, scope: str, until: int | None, run_id: str, *, is_refused: bool = False) -> None:
        """Store which run asks a person about the limit of a scope; "" means no run.

        The caller must hold the lock of the limits.
        """
        values = {"scope": scope, "window_end": until or 0, "asked_by": run_id, "is_refused": int(is_refused)}
        self._sql.run("threads.put_asker", values)
        self._sql.spent.pop(scope, None)

    def asked(self) -> tuple[Spending, ...]:
        """Return the spending of the scopes about which a run asks a person.

        Scopes without a window come first. Scopes with a window are ordered by the end of the window.
        """
        return tuple(_spending(row) for row in self._sql.all("threads.asked"))

    def forget_spending(self, older_than: int) -> None:
        """Delete the spending of windows that ended before the time `older_than`."""
        self._sql.run("threads.forget_spending", {"older_than": older_than})


def _spending(row: Row) -> Spending:
    spent = dict(zip(_SPENT, row[:5], strict=True))
    return Spending(**spent, until=row[5] or None, asked_by=row[6], is_refused=bool(row[7]))


def new_thread(thread_id: str, now: int, parent_thread_id: str | None = None) -> Thread:
    """Return a new thread without messages."""
    return Thread(id=thread_id, parent_thread_id=parent_thread_id, created_at=now, updated_at=now)


def own_ancestor(thread_id: str) -> InvalidRecord:
    """Return the error for a thread that would become its own ancestor."""
    return InvalidRecord(f"thread {thread_id!r} would be its own ancestor", value=thread_id)


def no_parent(thread_id: str) -> UnknownThread:
    """Return the error for a thread whose parent does not exist."""
    return UnknownThread(f"the parent thread {thread_id!r} does not exist", value=thread_id)


def _home_of(run: RunRecord) -> str:
    return run.thread_id.partition("/")[0]


def _each_once(found: Iterable[Row]) -> tuple[RunRecord, ...]:
    return tuple(map(rows.run, {row[0]: row for row in found}.values()))


def _bounds(prefix: str, after: str, limit: int) -> dict[str, Any]:
    return {"low": max(prefix, after), "beyond": beyond(prefix), "after": after, "limit": limit}
