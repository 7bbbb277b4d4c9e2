"""Reads and writes mail by named SQL statements within one transaction.

A change is a function that gets a `MailWrites` object and is executed as one transaction: when `write`
returns, all of its writes are durable; if it fails, none is stored. The function must be synchronous and
quick, and must do no I/O. The function may be called again after a failure, so it must not change anything
outside the transaction.

This module makes no decisions about mail. `EventRecorder` writes the changes to the logs of projects.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import msgspec
from typing_extensions import override

from postroom.contracts import progress
from postroom.contracts.choices import ContactPolicy, ContactStatus, Importance, RecipientKind, SearchOrder
from postroom.contracts.dispatch import Claim
from postroom.contracts.errors import (
    InputError,
    StateError,
    StoreCorrupt,
    StoreError,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    UnknownReservation,
    UnknownTask,
)
from postroom.contracts.events import EventScope
from postroom.contracts.files import BYTES_LOCK
from postroom.contracts.mail import (
    HIDDEN,
    OF_CONTACT,
    OTHER,
    AddressedAgent,
    AgedMessage,
    Agent,
    Attachment,
    Attempt,
    AttemptGroup,
    ContactLink,
    Detail,
    EndedAttempt,
    EventKind,
    Happening,
    InboxEntry,
    LivePattern,
    LogBounds,
    Message,
    OldMessages,
    Outcome,
    Project,
    ProjectEvent,
    ProjectSize,
    ProjectTally,
    Query,
    Reach,
    Received,
    Recipient,
    Reservation,
    SearchHit,
    Span,
    StoredAnswer,
    ThreadFilter,
    ThreadHead,
    ThreadParticipant,
    Written,
    check_value,
)
from postroom.contracts.notes import MAX_ACTIVE, Note
from postroom.contracts.people import ChatAddress
from postroom.contracts.questions import Asked
from postroom.contracts.records import replace
from postroom.contracts.runs import OnTimeout, RunRecord, Usage
from postroom.contracts.subscriptions import Subscription, Watched
from postroom.contracts.tasks import PRIORITIES, Task, TaskState
from postroom.contracts.tokens import KeptToken
from postroom.contracts.waking import (
    Arrival,
    AskedQuestion,
    ClientSession,
    FileView,
    KeptRunner,
    MessageRun,
    Nudges,
    RunnerSource,
)
from postroom.stores.changes import MAIL, TASKS, WAKES
from postroom.stores.codec import decode_json, record, unreadable
from postroom.stores.events import EventTables
from postroom.stores.mail import check_values, search_index
from postroom.stores.mail.check_values import message_of
from postroom.stores.outbox import OutboxTables
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import put_place
from postroom.stores.runs.threads import Threads
from postroom.stores.sql_transaction import Look, Row, SqlTransaction, asked, refuse_stale

if TYPE_CHECKING:
    from postroom.stores.store import Transaction


@dataclass(slots=True, eq=False)
class EventRecorder:
    """Writes the log entries of one transaction."""

    _tx: SqlTransaction
    _log: EventTables
    _lock: Callable[..., None]
    _locked: set[int] = field(default_factory=set)
    _sent: dict[int, tuple[Happening, set[int]]] = field(default_factory=dict)
    """The messages that this change stored, each with the projects in whose logs it is recorded."""
    _concerned: dict[tuple[int | None, int | None, int | None], list[int]] = field(default_factory=dict)
    _homes: dict[tuple[str, int | None], int] = field(default_factory=dict)
    """The projects of the messages and agents that this change has read or written, keyed by id."""
    _kinds: dict[tuple[int, int], RecipientKind] = field(default_factory=dict)
    """The kinds of the deliveries that this change has read or written, keyed by message and agent."""

    def know_agent(self, agent: Agent) -> None:
        """Remember the project of an agent for the rest of the transaction."""
        self._homes["agent", agent.id] = agent.project_id

    def know_delivery(self, message_id: int, project_id: int, agent_id: int, kind: RecipientKind) -> None:
        """Remember the project of a message and the kind of a delivery for the rest of the transaction."""
        self._homes["message", message_id] = project_id
        self._kinds[message_id, agent_id] = kind

    def kind_of(self, message_id: int, agent_id: int) -> RecipientKind | None:
        """Return the kind of a delivery, or None if the agent did not receive the message."""
        if (message_id, agent_id) not in self._kinds:
            row = self._tx.one("mail.recipient_kind", {"message_id": message_id, "agent_id": agent_id})
            if row is None:
                return None
            self._kinds[message_id, agent_id] = row[0]
        return self._kinds[message_id, agent_id]

    def lock(self, project_ids: Iterable[int]) -> None:
        """Lock projects, so that no other transaction can add entries to their logs."""
        if missing := set(project_ids) - self._locked:
            self._locked |= missing
            self._lock(*map("project:{}".format, sorted(missing)))

    def project_made(self, project_id: int, now: int) -> None:
        """Record that a project was created."""
        self._record([project_id], Happening(kind="project.made", at=now))

    def project_merged(self, project_id: int, former: str, now: int) -> None:
        """Record that a project with the slug `former` was merged into the project `project_id`."""
        self._record([project_id], Happening(kind="project.merged", at=now, detail={"former": former}))

    def agent_registered(self, agent: Agent) -> None:
        """Record that an agent was registered."""
        happening = Happening(kind="agent.registered", at=agent.created_at, agent_id=agent.id)
        self._record([agent.project_id], happening)

    def agent_retired(self, before: Agent | None, retired_at: int | None, now: int) -> None:
        """Record that an agent was retired or became active again; an unchanged state is not recorded."""
        if before is not None and (before.retired_at is None) != (retired_at is None):
            self.of_agent("agent.unretired" if retired_at is None else "agent.retired", before.id, now)

    def policy_set(self, before: Agent | None, policy: ContactPolicy, now: int) -> None:
        """Record the new contact policy of an agent; an unchanged policy is not recorded."""
        if before is not None and before.contact_policy != policy:
            self.of_agent("agent.policy_set", before.id, now)

    def of_agent(self, kind: EventKind, agent_id: int, now: int) -> None:
        """Record an event about an agent in the log of the agent's project."""
        self._record_in_projects(Happening(kind=kind, at=now, agent_id=agent_id))

    def sent(self, message: Message) -> None:
        """Record a message in the log of its project."""
        happening = Happening(
            kind="message.sent",
            at=message.created_at,
            agent_id=message.sender_id,
            message_id=message.id,
            detail={"thread_id": message.thread_id, "importance": message.importance},
        )
        self._sent[message.id] = (happening, {message.project_id})
        self._homes["message", message.id] = message.project_id
        self._record([message.project_id], happening)

    def reached(self, message_id: int, reader: Agent, kind: RecipientKind) -> None:
        """Record a new message in the log of a recipient's project.

        The transaction must have stored the message. Recipients of blind copies must come last.
        """
        self.know_agent(reader)
        self._kinds[message_id, reader.id] = kind
        happening, agent_ids = self._sent.get(message_id, (None, set[int]()))
        if happening is not None and reader.project_id not in agent_ids:
            agent_ids.add(reader.project_id)
            self._record([reader.project_id], _hidden(happening, is_hidden=kind == "bcc"))

    def recalled(self, message: Message, now: int) -> None:
        """Record the recall of a message in all logs that contain the message."""
        happening = Happening(
            kind="message.recalled", at=now, agent_id=message.sender_id, message_id=message.id
        )
        reached = self._tx.all("project_log.projects_reached", {"message_id": message.id})
        self.lock([message.project_id, *(row[0] for row in reached)])
        self._record([message.project_id], happening)
        for project_id, is_hidden in reached:
            if project_id != message.project_id:
                self._record([project_id], _hidden(happening, is_hidden=bool(is_hidden)))

    def lock_readers(self, project_id: int, message_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Lock a project and the projects of the recipients of its messages.

        Return pairs of a message id and the id of another project that received the message. Blind copies are
        skipped.
        """
        reached = self._tx.all("project_log.projects_reached_by", {"ids": message_ids})
        self.lock([project_id, *(row[1] for row in reached)])
        return [(row[0], row[1]) for row in reached if row[1] != project_id and not row[2]]

    def deleted(
        self, project_id: int, message_ids: Sequence[int], elsewhere: Sequence[tuple[int, int]], now: int
    ) -> None:
        """Record the deletion of messages, by one entry in each log that contains some of the messages."""
        by_project = {project_id: list(message_ids)}
        for message_id, other in elsewhere:
            if message_id in by_project[project_id]:
                by_project.setdefault(other, []).append(message_id)
        for concerned, ids in sorted(by_project.items()):
            detail: Detail = {"messages": len(ids), "ids": " ".join(map(str, ids))}
            self._record([concerned], Happening(kind="message.deleted", at=now, detail=detail))

    def delivery(  # noqa: PLR0913 - the fields of one step, by name
        self,
        kind: EventKind,
        message_id: int,
        agent_id: int,
        reader: RecipientKind,
        now: int,
        *,
        by: str = "",
        run_id: str | None = None,
    ) -> None:
        """Record a step of a delivery in the logs of the message's project and of the recipient's project."""
        happening = Happening(
            kind=kind,
            at=now,
            agent_id=agent_id,
            message_id=message_id,
            run_id=run_id,
            detail={"by": by} if by else {},
        )
        self._record_in_projects(_hidden(happening, is_hidden=reader == "bcc"))

    def reserved(self, kind: EventKind, reservation: Reservation, now: int) -> None:
        """Record that a reservation was made or renewed."""
        detail: Detail = {"path": reservation.pattern, "exclusive": reservation.exclusive}
        self._of_reservation(kind, reservation, now, detail)

    def expired(self, reservation: Reservation, now: int) -> None:
        """Record that a reservation has expired."""
        self._of_reservation("reservation.expired", reservation, now, {"path": reservation.pattern})

    def released(self, reservation: Reservation, now: int, by: str) -> None:
        """Record that a reservation was released, by its holder or by another agent."""
        taken = by.casefold() != reservation.holder.casefold()
        detail = {"path": reservation.pattern, **({"by": by} if taken else {})}
        kind: EventKind = "reservation.taken" if taken else "reservation.released"
        self._of_reservation(kind, reservation, now, detail)

    def of_task(
        self, kind: EventKind, task: Task, agent_id: int | None, now: int, fields: Sequence[str] = ()
    ) -> None:
        """Record an event about a task; `fields` are the names of the attributes that have changed."""
        detail: Detail = {"task_id": task.id, "epoch": task.epoch}
        if fields:
            detail = {**detail, "fields": " ".join(fields)}
        self._record([task.project_id], Happening(kind=kind, at=now, agent_id=agent_id, detail=detail))

    def of_file(self, project_id: int, agent_id: int, path: str, now: int) -> None:
        """Record that an agent changed a file of a project."""
        happening = Happening(kind="file.changed", at=now, agent_id=agent_id, detail={"path": path})
        self._record([project_id], happening)

    def of_branch(self, kind: EventKind, project_id: int, detail: Detail, now: int) -> None:
        """Record an event about a branch of a project's repository."""
        self._record([project_id], Happening(kind=kind, at=now, detail=detail))

    def of_note(self, kind: EventKind, note: Note, agent_id: int, now: int) -> None:
        """Record that an agent added or ended a note."""
        happening = Happening(kind=kind, at=now, agent_id=agent_id, detail={"note_id": note.id})
        self._record([note.project_id], happening)

    def contact(self, before: ContactLink | None, link: ContactLink, now: int) -> None:
        """Record a changed contact, together with the agent that caused the change.

        The requesting agent causes a request, and the requested agent causes the decision.
        """
        if before is not None and before.status == link.status:
            return
        asks = link.status == "pending"
        who, other = (link.from_id, link.to_id) if asks else (link.to_id, link.from_id)
        happening = Happening(kind=OF_CONTACT[link.status], at=now, agent_id=who, detail={OTHER: other})
        self._record_in_projects(happening, other_id=other)

    def of_run(
        self, kind: EventKind, run_id: str, agent_id: int, now: int, **detail: str | int | bool
    ) -> None:
        """Record an event about a run of an agent."""
        happening = Happening(kind=kind, at=now, agent_id=agent_id, run_id=run_id, detail=detail)
        self._record_in_projects(happening)

    def of_question(self, kind: EventKind, run_id: str, agent_id: int, question_id: str, now: int) -> None:
        """Record the end of a question of a run; a repeated call adds no entry."""
        happening = Happening(
            kind=kind, at=now, agent_id=agent_id, run_id=run_id, detail={"question_id": question_id}
        )
        self._record_in_projects(happening, key=f"{kind.removeprefix('question.')}/{run_id}/{question_id}")

    def _of_reservation(self, kind: EventKind, reservation: Reservation, now: int, detail: Detail) -> None:
        happening = Happening(
            kind=kind,
            at=now,
            agent_id=reservation.agent_id,
            reservation_id=reservation.id,
            detail=detail,
        )
        self._record([reservation.project_id], happening)

    def _record_in_projects(
        self, happening: Happening, *, other_id: int | None = None, key: str | None = None
    ) -> None:
        """Write an entry to the log of each project of the message and the agents."""
        self._record(
            self.find_projects(happening.message_id, happening.agent_id, other_id), happening, key=key
        )

    def find_projects(
        self, message_id: int | None, agent_id: int | None, other_id: int | None = None
    ) -> list[int]:
        """Return the projects of a message and of agents, in whose logs events are recorded."""
        key = message_id, agent_id, other_id
        if key not in self._concerned:
            named = ("message", message_id), ("agent", agent_id), ("agent", other_id)
            homes = set(map(self._homes.get, filter(itemgetter(1), named)))
            if None in homes:
                values = {"message_id": message_id, "agent_id": agent_id, "other_id": other_id}
                homes = {row[0] for row in self._tx.all("project_log.projects_concerned", values)}
            self._concerned[key] = sorted(filter(None, homes))
        return self._concerned[key]

    def _record(self, project_ids: Sequence[int], happening: Happening, *, key: str | None = None) -> None:
        self.lock(project_ids)
        values = {
            "agent_id": happening.agent_id,
            "message_id": happening.message_id,
            "reservation_id": happening.reservation_id,
            "run_id": happening.run_id,
            "detail": dict(happening.detail),
        }
        for project_id in project_ids:  # `mail.event_log` decides who sees the entry
            self._log.note(
                f"project:{project_id}", happening.kind, values, origin="mail", at=happening.at, key=key
            )


def _hidden(happening: Happening, *, is_hidden: bool) -> Happening:
    return replace(happening, detail={**happening.detail, HIDDEN: True}) if is_hidden else happening


_LATEST = 20
"""The number of a thread's newest runs that are searched for the run that a message started."""
MAX_ERROR_LENGTH = 2_000
"""Maximum number of characters of an error that an attempt stores; its run and dispatch store the whole text.
"""
_END_EVENTS: Mapping[Outcome, EventKind] = {
    "done": "run.ended",
    "waiting": "run.waiting",
    "failed": "run.failed",
    "cancelled": "run.failed",
    "cut_off": "run.cut_off",
}
_COLUMNS = tuple(field.name for field in fields(MessageRun))


class WakingReads:
    """Reads runners, active runs and their questions, and the runs that received messages."""

    _tx: SqlTransaction

    def runner(self, agent_id: int) -> KeptRunner | None:
        """Return the stored runner of an agent, or None if the agent has no runner."""
        row = self._tx.one("mail.runner", {"agent_id": agent_id})
        return record(KeptRunner, row) if row else None

    def runners(self, *, limit: int, after: int = 0) -> list[KeptRunner]:
        """Return up to `limit` runners, ordered by agent id, from the first agent id after `after`."""
        found_rows = self._tx.all("mail.runners", {"after": after, "limit": limit})
        return [record(KeptRunner, row) for row in found_rows]

    def with_runner(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return when the runner or the chat address of each agent was set.

        Agents without a runner and without a chat address are omitted.
        """
        return dict(map(tuple, self._tx.all("mail.with_runner", {"ids": agent_ids})))

    def working_on(self, agent_ids: Sequence[int], project_id: int, thread_id: str) -> set[int]:
        """Return which of the given agents have an active run with a message of a mail thread."""
        values = {"ids": agent_ids, "project_id": project_id, "thread_id": thread_id}
        return {row[0] for row in self._tx.all("mail.working_on", values)}

    def waiting_runs(self, thread_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Return the runs with the status "waiting" on the given threads, keyed by thread."""
        runs = map(rows.run, self._tx.all("mail.waiting_runs", {"thread_ids": thread_ids}))
        return {run.thread_id: run for run in runs}

    def open_runs(self, thread_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Return the runs on the given threads that have not ended, keyed by thread."""
        runs = map(rows.run, self._tx.all("mail.open_runs", {"thread_ids": thread_ids}))
        return {run.thread_id: run for run in runs}

    def message_runs(self, message_ids: Sequence[int]) -> dict[int, dict[int, MessageRun]]:
        """Return the states of messages in the runs that received them, keyed by message and recipient."""
        runs: dict[int, dict[int, MessageRun]] = {message_id: {} for message_id in message_ids}
        for row in self._tx.all("mail.message_runs", {"ids": message_ids}):
            run = MessageRun(**dict(zip(_COLUMNS, row, strict=True)))
            runs[run.message_id][run.agent_id] = run
        return runs

    def unwoken(self, *, after: tuple[int, int], limit: int) -> list[tuple[int, int]]:
        """Return up to `limit` pairs of a message and a recipient for whom no run has started yet.

        Only pairs greater than `after` are returned. Each recipient is active and has a runner or a chat. The
        message was not read, recalled or announced, and no run has received the message.
        """
        values = {"message_id": after[0], "agent_id": after[1], "limit": limit}
        return [(row[0], row[1]) for row in self._tx.all("mail.unwoken", values)]

    def unwoken_count(self, agent_id: int) -> int:
        """Return the number of messages that would start runs if an agent had a runner."""
        row = self._tx.one("mail.unwoken_count", {"agent_id": agent_id})
        return row[0] if row else 0

    def questions(self, run_id: str) -> list[AskedQuestion]:
        """Return the questions that an active run asked by `ask`, in order, including replaced questions."""
        return [
            AskedQuestion(
                id=row[0],
                text=row[1],
                timeout_ms=row[2],
                on_timeout=OnTimeout(row[3]),
                asked=msgspec.json.decode(row[4], type=Asked),
                asked_at=row[5],
            )
            for row in self._tx.all("mail.questions", {"run_id": run_id})
        ]

    def run_of(self, run_id: str) -> RunRecord | None:
        """Return the run with this id, or None."""
        row = self._tx.one("threads.run", {"run_id": run_id})
        return None if row is None else rows.run(row)

    def run_begun_by(self, thread_ids: Sequence[str], message_id: str) -> RunRecord | None:
        """Return the run that a message started on one of the given threads, or None.

        Only the newest 20 runs of each thread are searched.
        """
        for name in thread_ids:
            for row in self._tx.all("threads.latest_runs", {"thread_id": name, "limit": _LATEST}):
                run = rows.run(row)
                if run.input is not None and message_id in run.input.trigger_message_ids:
                    return run
        return None

    def snoozed(self, run_ids: Sequence[str], now: int) -> dict[tuple[str, str], int]:
        """Return when the snoozes of questions of the given runs end, keyed by run id and call id."""
        rows_found = self._tx.all("mail.snoozed", {"run_ids": run_ids, "now": now})
        return {(run_id, question_id): until for run_id, question_id, until in rows_found}

    def all_snoozed(self, now: int, limit: int) -> list[tuple[str, str, int]]:
        """Return the run id, the call id and the end of each snoozed question, earliest end first.

        The runs of the questions may have ended.
        """
        return [tuple(row) for row in self._tx.all("mail.snoozed_until", {"now": now, "limit": limit})]

    def answering_run(self, message_id: int) -> str | None:
        """Return the id of the run whose result a message reports, or None."""
        row = self._tx.one("mail.answering_run", {"message_id": message_id})
        return row[0] if row else None

    def answers_among(self, run_id: str, message_ids: Sequence[int]) -> set[int]:
        """Return which of the given messages report the end of a run."""
        parameters = {"run_id": run_id, "message_ids": message_ids}
        return {row[0] for row in self._tx.all("mail.answers_among", parameters)}

    def report_of(self, run_id: str, at: int) -> tuple[int, int] | None:
        """Return the id and the time of the first message since the time `at` that reports a run, or None."""
        row = self._tx.one("mail.report_of", {"run_id": run_id, "at": at})
        return (row[0], row[1]) if row else None

    def asking_among(self, message_ids: Sequence[int]) -> int | None:
        """Return the newest of the given messages that shows open questions of a run, or None."""
        row = self._tx.one("mail.asking_among", {"message_ids": message_ids})
        return row[0] if row else None

    def newest_report(self, run_id: str) -> int | None:
        """Return the id of the newest message that reports a run, or None."""
        row = self._tx.one("mail.newest_report", {"run_id": run_id})
        return row[0] if row else None

    def chat_address(self, agent_id: int) -> ChatAddress | None:
        """Return the chat address of a person, or None."""
        row = self._tx.one("mail.chat_address", {"agent_id": agent_id})
        return ChatAddress(platform=row[0], chat_id=row[1]) if row else None

    def reached_at(self, address: ChatAddress) -> list[int]:
        """Return the agent ids of the people with a chat address."""
        values = {"platform": address.platform, "chat_id": address.chat_id}
        return [row[0] for row in self._tx.all("mail.reached_at", values)]


class WakingWrites(WakingReads):
    """Writes runners, active runs and their questions, and the runs that received messages."""

    _events: EventRecorder
    _threads: Threads
    _tell: Callable[..., None]

    def wake_later(self) -> None:
        """Notify the waker after the commit that a message may have to start a run."""
        self._tell(WAKES)

    def put_place(self, thread_id: str, place: str) -> None:
        """Store the place where the runs of a thread must execute, or "" for any place."""
        put_place(self._tx, thread_id, place)

    def put_runs_at_once(self, agent_id: int, runs_at_once: int) -> None:
        """Set how many runs of an agent may execute at once, each on a different mail thread."""
        self._tx.run("mail.put_runs_at_once", {"agent_id": agent_id, "runs_at_once": runs_at_once})

    def put_runner(
        self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int, claims_tasks: bool = False
    ) -> None:
        """Set the runner of an agent; with `claims_tasks`, the server claims tasks for the agent."""
        values = {"agent_id": agent_id, "runner": runner, "declared_by": declared_by, "now": now}
        self._tx.run("mail.put_runner", {**values, "claims_tasks": claims_tasks})
        self._events.of_agent("agent.runner_set", agent_id, now)
        self._tell(WAKES, TASKS)

    def drop_runner(self, agent_id: int, *, now: int) -> bool:
        """Remove the runner of an agent; return False if the agent had none."""
        existed = self._tx.changed("mail.drop_runner", {"agent_id": agent_id}) > 0
        if existed:
            self._events.of_agent("agent.runner_dropped", agent_id, now)
        return existed

    def put_chat_address(self, agent_id: int, address: ChatAddress, *, now: int) -> None:
        """Set the chat address of a person, which replaces the former address."""
        values = {"agent_id": agent_id, "platform": address.platform, "chat_id": address.chat_id, "now": now}
        self._tx.run("mail.put_chat_address", values)
        self._events.of_agent("agent.runner_set", agent_id, now)
        self.wake_later()

    def drop_chat_address(self, agent_id: int, *, now: int) -> bool:
        """Remove the chat address of a person; return False if the person had none."""
        existed = self._tx.changed("mail.drop_chat_address", {"agent_id": agent_id}) > 0
        if existed:
            self._events.of_agent("agent.runner_dropped", agent_id, now)
        return existed

    def put_message_run(self, message_run: MessageRun) -> None:
        """Store the state of a message in a run.

        Raises:
            StoreError: The agent is not a recipient of the message.
        """
        values = {name: getattr(message_run, name) for name in _COLUMNS}
        kind = self._events.kind_of(message_run.message_id, message_run.agent_id)
        if kind is None:
            raise StoreError(
                f"agent {message_run.agent_id} did not receive message {message_run.message_id}",
                value=message_run.message_id,
            )
        self._tx.run("mail.put_message_run", values)
        happened: EventKind = "delivery.handled"
        if message_run.ended_at is None:
            happened = "delivery.delivered"
        elif message_run.failure:
            happened = "delivery.failed"
        at = message_run.delivered_at if message_run.ended_at is None else message_run.ended_at
        message_id, agent_id = message_run.message_id, message_run.agent_id
        self._events.delivery(happened, message_id, agent_id, kind, at, run_id=message_run.run_id)

    def refuse_stale(self, claim: Claim | None) -> None:
        """Check that an execution still has its claim, like `sql_transaction.refuse_stale`."""
        refuse_stale(self._tx, claim)

    def begin_run(
        self,
        run_id: str,
        agent_id: int,
        now: int,
        *,
        answered: Sequence[str] = (),
        is_question: bool = False,
    ) -> Sequence[AskedQuestion]:
        """Record that a run of an agent is active, and return the questions of an interrupted attempt.

        The returned questions are deleted. `answered` contains the questions whose answers the run now gets.
        With
        `is_question`, the run represents a question that the agent asked outside a run, and no start is
        logged.
        """
        values = {"run_id": run_id, "agent_id": agent_id, "now": now}
        lost: Sequence[AskedQuestion] = ()
        if not self._tx.changed(
            "mail.begin_run", values
        ):  # the run's lease or server was lost during its execution
            lost = self.questions(run_id)
            former = self._tx.one("mail.end_run", {"run_id": run_id, "has_asked": True})
            if not is_question:
                self._events.of_run("run.cut_off", run_id, agent_id if former is None else former[0], now)
            self._end_attempt(run_id, "cut_off", now)
            self._tx.run("mail.begin_run", values)
        self._tx.run("timeline.end_wait", values)
        for question_id in answered:
            self._events.of_question("question.answered", run_id, agent_id, question_id, now)
        if not is_question:
            self._tx.run("timeline.begin_attempt", values)
            self._events.of_run("run.began", run_id, agent_id, now)
        return lost

    def ask(
        self, run_id: str, agent_id: int, question: AskedQuestion, now: int, *, is_open: bool = False
    ) -> bool:
        """Store a question of an active run; return False if the agent has no active run with this id.

        A second call with the same question has no effect. `is_open` states that an earlier turn of the run
        has asked the question.
        """
        values = {
            "run_id": run_id,
            "agent_id": agent_id,
            "question_id": question.id,
            "text": question.text,
            "asked_at": question.asked_at,
            "timeout_ms": question.timeout_ms,
            "on_timeout": question.on_timeout.value,
            "asked": msgspec.json.encode(question.asked).decode(),
        }
        if self._tx.changed("mail.ask", values) and not is_open:
            self._events.of_run("question.asked", run_id, agent_id, now, question_id=question.id)
        return self._tx.one("mail.is_active", values) is not None

    def ask_outside(self, run_id: str, agent_id: int, question_id: str, now: int) -> None:
        """Record a question that an agent has asked outside a run; the run `run_id` waits for the answer."""
        self._events.of_run("question.asked", run_id, agent_id, now, question_id=question_id)

    def snooze(self, run_id: str, question_id: str, *, until: int, by: str, now: int) -> None:
        """Snooze an open question until the time `until`; a time in the past ends the snooze."""
        values = {"run_id": run_id, "question_id": question_id, "until": until, "snoozed_by": by}
        self._tx.run("mail.drop_snoozed", {"now": now})
        self._tx.run("mail.unsnooze", values)
        if until > now:
            self._tx.run("mail.snooze", values)

    def end_run(  # noqa: PLR0913 - the facts about an end
        self,
        run_id: str,
        outcome: Outcome = "done",
        *,
        now: int,
        error: str = "",
        asked_at: Mapping[str, int] | None = None,
        usage: Usage | None = None,
        inactive: int | None = None,
        is_question: bool = False,
    ) -> tuple[int, bool, Sequence[AskedQuestion]] | None:
        """Record that a run is no longer active, and delete its questions; return None for an inactive run.

        The result contains:

        - the id of the agent
        - whether a task that was claimed in the run is still claimed
        - the questions that the run asked, including replaced questions

        Args:
            run_id: The run.
            outcome: How the run ended, or that it waits.
            now: The time of the end.
            error: The error of a failed attempt.
            asked_at: The times of the questions of a waiting run, keyed by call id.
            usage: The usage of the whole run, if the run ends.
            inactive: The agent for whom to record the end even if the run is not active.
            is_question: The value that was passed to `begin_run`.
        """
        asked = self.questions(run_id) if asked_at else []
        ended_run = self._tx.one("mail.end_run", {"run_id": run_id, "has_asked": bool(asked)})
        if ended_run is None and not asked and (asked := self.questions(run_id)):
            ended_run = self._tx.one("mail.end_run", {"run_id": run_id, "has_asked": True})
        if ended_run is not None:
            agent_id, began_at, holds_tasks = ended_run
        elif inactive is not None:
            agent_id, began_at, holds_tasks = inactive, now, False
        else:
            return None
        for question_id, at in (asked_at or {}).items():
            if at >= began_at and question_id not in [question.id for question in asked]:
                self._events.of_run("question.asked", run_id, agent_id, now, question_id=question_id)
        detail: dict[str, int | bool] = {"cancelled": True} if outcome == "cancelled" else {}
        if usage is not None and (tokens := usage.input_tokens + usage.output_tokens):
            detail["tokens"] = tokens
        if usage is not None and usage.cost_micros:
            detail["cost_micros"] = usage.cost_micros
        if not is_question:
            self._events.of_run(_END_EVENTS[outcome], run_id, agent_id, now, **detail)
        self._end_attempt(run_id, outcome, now, error)
        return agent_id, bool(holds_tasks), asked

    def put_questions(self, run: RunRecord) -> None:
        """Store a run whose questions were answered or closed."""
        self._threads.put_run(run)
        self._threads.put_questions(run)

    def drop_attempts(self, run_ids: Sequence[str]) -> None:
        """Delete the attempts of deleted runs."""
        self._tx.run("timeline.drop_attempts", {"run_ids": run_ids})

    def withdraw_questions(
        self, run_id: str, agent_id: int, question_ids: Sequence[str], *, now: int
    ) -> None:
        """Record that questions of a waiting run were closed without an answer."""
        self.note_withdrawn(run_id, agent_id, question_ids, now=now)
        self._tx.run("timeline.end_wait", {"run_id": run_id, "now": now})

    def note_withdrawn(self, run_id: str, agent_id: int, question_ids: Sequence[str], *, now: int) -> None:
        """Write log entries about questions that were closed without an answer; repeated calls add none."""
        for question_id in question_ids:
            self._events.of_question("question.withdrawn", run_id, agent_id, question_id, now)

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a message reports the end of a run; an existing record stays unchanged."""
        self._tx.run("mail.note_answer", {"message_id": message_id, "run_id": run_id})

    def _end_attempt(self, run_id: str, outcome: Outcome, now: int, error: str = "") -> None:
        values = {"run_id": run_id, "outcome": outcome, "now": now, "error": error[:MAX_ERROR_LENGTH]}
        self._tx.run("timeline.end_attempt", values)


class TimelineReads:
    """Reads attempts, messages and reservations by time."""

    _tx: SqlTransaction

    def attempts_of_runs(self, run_ids: Sequence[str]) -> list[Attempt]:
        """Return the attempts of runs, in order.

        A run from a release that did not record attempts has a single entry.
        """
        return self._attempts("attempts_of_runs", run_ids=run_ids)

    def attempt_count(self, agent_ids: Sequence[int], span: Span) -> tuple[int, int]:
        """Return the number of attempts that started in a time span, and the number of their agents."""
        count, agents = self._tx.all("timeline.attempt_count", {"agent_ids": agent_ids, **_span(span)})[0]
        return count, agents

    def attempt_groups(self, agent_ids: Sequence[int], span: Span, *, step: int) -> list[AttemptGroup]:
        """Return groups of attempts that started in a time span, and succeeded or were cancelled.

        Attempts of one agent that started within `step` milliseconds form a group. Groups are ordered by
        agent and time.
        """
        values = {"agent_ids": agent_ids, **_span(span), "step": max(step, 1)}
        return [record(AttemptGroup, row) for row in self._tx.all("timeline.attempt_groups", values)]

    def attempts_alone(self, agent_ids: Sequence[int], span: Span, *, limit: int) -> list[Attempt]:
        """Return the newest attempts that started in a time span and are active, waiting or failed."""
        return self._attempts("attempts_alone", agent_ids=agent_ids, **_span(span), limit=limit)[::-1]

    def attempts_since(
        self, project_ids: Sequence[int], since: int, *, began_since: int, limit: int
    ) -> list[EndedAttempt]:
        """Return the newest `limit` attempts of agents of projects that ended at or after the time `since`.

        Attempts that started before the time `began_since` are omitted.
        """
        values = {"project_ids": project_ids, "since": since, "begin": began_since, "limit": limit}
        return [EndedAttempt(*row) for row in self._tx.all("timeline.attempts_since", values)]

    def messages_since(self, project_ids: Sequence[int], since: int) -> dict[int, int]:
        """Return the number of messages since a time, keyed by project; zeros are omitted."""
        values = {"project_ids": project_ids, "since": since}
        return {row[0]: row[1] for row in self._tx.all("timeline.messages_since", values)}

    def attempts_before(self, agent_ids: Sequence[int], begin: int) -> list[Attempt]:
        """Return the last attempt of each agent that started before the time `begin`."""
        return self._attempts("attempts_before", agent_ids=agent_ids, begin=begin)

    def written(
        self, project_id: int, span: Span, *, limit: int, thread_id: str = "", agent_id: int | None = None
    ) -> list[Written]:
        """Return the newest `limit` messages of a project in a time span, in order.

        With `thread_id`, only messages of this thread are returned. With `agent_id`, only messages from or to
        this agent are returned.
        """
        values = {"project_id": project_id, **_span(span), "limit": limit}
        messages = self._list_written("written", values)
        # the index by time has found the complete span; otherwise, the indexes below are better
        if len(messages) < limit:
            # Filter messages by thread, and by sender or recipient.
            found = messages
            if agent_id is not None:
                rows = self._tx.all(
                    "timeline.openly_to", {"agent_id": agent_id, "ids": [message.id for message in found]}
                )
                to = {row[0] for row in rows}
                found = [message for message in found if message.sender_id == agent_id or message.id in to]
            messages = [message for message in found if thread_id in ("", message.thread_id)]
        elif agent_id is not None:
            mine = values | {"agent_id": agent_id}
            both = (*self._list_written("written_by", mine), *self._list_written("written_to", mine))
            messages = [
                message
                for message in {message.id: message for message in both}.values()
                if thread_id in ("", message.thread_id)
            ]
        elif thread_id:
            messages = self._list_written("written_on_thread", values | {"thread_id": thread_id})
        return sorted(messages, key=lambda one: (one.created_at, one.id))[-limit:]

    def written_into(self, project_id: int, span: Span, *, to: int, limit: int) -> list[Written]:
        """Return the newest `limit` messages from a project to agents of the project `to`, in order.

        Blind copies are omitted.
        """
        values = {"project_id": project_id, **_span(span), "to": to, "limit": limit}
        return self._list_written("written_into", values)[::-1]

    def written_count(self, project_id: int, span: Span, *, most: int, to: int | None = None) -> int:
        """Return the number of messages of a project in a time span, at most `most`.

        With `to`, only messages to the project `to` are counted.
        """
        values = {"project_id": project_id, **_span(span), "most": most}
        if to is None:
            return int(self._tx.all("timeline.written_count", values)[0][0])
        return int(self._tx.all("timeline.written_into_count", values | {"to": to})[0][0])

    def took_part(self, project_id: int, span: Span, *, newest: int) -> list[int]:
        """Return the ids of the senders and visible recipients of the newest messages of a project."""
        values = {"project_id": project_id, **_span(span), "newest": newest}
        return [row[0] for row in self._tx.all("timeline.took_part", values)]

    def written_counts(self, project_id: int, span: Span, *, parts: int, most: int) -> list[int]:
        """Return the number of messages in each of `parts` equal parts of a time span, up to `most`."""
        values = {"project_id": project_id, **_span(span), "parts": parts, "most": most}
        return [row[1] for row in self._tx.all("timeline.written_counts", values)]

    def reservations_in(self, project_id: int, span: Span, *, since: int, limit: int) -> list[Reservation]:
        """Return the newest `limit` reservations that were active in a time span, in order.

        Only reservations that were made after the time `since` are returned.
        """
        values = {"project_id": project_id, **_span(span), "since": since, "limit": limit}
        return [record(Reservation, row) for row in self._tx.all("timeline.reservations_in", values)][::-1]

    def begin_of(self, project_id: int) -> int | None:
        """Return the time of a project's first message, or None if it has no messages."""
        row = self._tx.one("timeline.begin_of", {"project_id": project_id})
        return row[0] if row else None

    def _attempts(self, statement: str, /, **values: object) -> list[Attempt]:
        return [record(Attempt, row) for row in self._tx.all(f"timeline.{statement}", values)]

    def _list_written(self, statement: str, values: dict[str, object]) -> list[Written]:
        return [record(Written, row) for row in self._tx.all(f"timeline.{statement}", values)]


def _span(span: Span) -> dict[str, object]:
    return {"begin": span.begin, "end": span.end}


_DELETING = (
    "mail.delete_message_runs",
    "mail.delete_answers",
    "mail.delete_recipients",
    "mail.delete_messages",
)
"""The statements that delete messages, in order; rows that refer to a message are deleted first."""
_NEWEST = 2**63 - 1


def lock_bytes(tx: SqlTransaction) -> None:
    """Lock the contents of all files until the transaction ends.

    Projects must be locked before this call.
    """
    # A new message may share the bytes of a message that is being deleted.
    tx.lock(BYTES_LOCK)
    tx.wait_for_locks()


class RetentionReads:
    """Reads messages that may be deleted."""

    _tx: SqlTransaction

    def aged_messages(self, project_id: int, *, after: int, limit: int) -> list[AgedMessage]:
        """Return the facts about messages of a project that decide whether a message may be deleted.

        At most `limit` messages after the id `after` are returned, ordered by id.
        """
        values = {"project_id": project_id, "after": after, "limit": limit}
        return [record(AgedMessage, row) for row in self._tx.all("mail.aged_messages", values)]

    def aged_messages_of(self, project_id: int, ids: Sequence[int]) -> list[AgedMessage]:
        """Return the facts about the given messages that decide whether a message may be deleted."""
        values = {"project_id": project_id, "ids": ids}
        return [record(AgedMessage, row) for row in self._tx.all("mail.aged_messages_of", values)]

    def old_messages(
        self, project_id: int, sought: OldMessages, *, after: int, limit: int
    ) -> tuple[list[int], int | None]:
        """Return which of the next `limit` messages of a project after the id `after` can be deleted.

        Also return the last checked id, or None after the last message.
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
        """Return which of the given hashes belong to attachments of messages of a project."""
        found_rows = self._tx.all("mail.attached_in", {"project_id": project_id, "hashes": hashes})
        return {sha256 for row in found_rows for sha256 in row if sha256 is not None} & set(hashes)


class RetentionWrites(RetentionReads):
    """Deletes messages."""

    _events: EventRecorder

    def lock_readers(self, project_id: int, message_ids: Sequence[int]) -> None:
        """Lock a project and the projects of the recipients of its messages.

        A transaction must take these locks before any other lock.
        """
        self._events.lock_readers(project_id, message_ids)

    def delete_messages(self, project_id: int, message_ids: Sequence[int], *, now: int) -> list[int]:
        """Delete messages of a project with all their records; return the ids of the deleted messages.

        The caller must have called `lock_readers`. The log of each affected project gets one entry about the
        deletion. Numbers in inboxes are never reused. The contents of attachments are deleted unless another
        message or a file refers to them.
        """
        elsewhere = self._events.lock_readers(project_id, message_ids)
        values = {"project_id": project_id, "ids": message_ids}
        ids = [row[0] for row in self._tx.all("mail.of_project", values)]
        if self._tx.dialect == "sqlite":  # messages that are not indexed yet are kept
            left = self._tx.one("mail.index_left")
            ids = [number for number in ids if left is None or number < left[0]]
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
        """Remove the attachments of messages, and delete contents to which nothing else refers."""
        if stored := self._tx.all("mail.attachments", {"ids": message_ids}):
            lock_bytes(self._tx)
            hashes = {row[1] for row in stored} | {row[5] for row in stored}
            self._tx.run("mail.drop_attachments", {"ids": message_ids})
            self._tx.run("mail.drop_orphan_blobs", {"hashes": sorted(hashes - {None})})


_NEEDED: Final = None
"""Marks a column without a default; a row must have a value for it."""
TABLES: Final[Mapping[str, Mapping[str, object]]] = {
    "projects": {
        **dict.fromkeys(("id", "slug", "human_key", "created_at"), _NEEDED),
        **dict.fromkeys(("spelling", "git_identity", "owner"), ""),
    },
    "project_aliases": dict.fromkeys(("human_key", "project_id"), _NEEDED),
    "agents": {
        **dict.fromkeys(("id", "project_id", "name", "name_key", "program", "model"), _NEEDED),
        **dict.fromkeys(("created_at", "last_active_at", "retired_at", "token_hash"), _NEEDED),
        **{"task_description": "", "contact_policy": "open", "inbox_seq": 0, "inbox_floor": 0},
    },
    "messages": {
        **dict.fromkeys(("id", "project_id", "sender_id", "subject", "body_md", "created_ts"), _NEEDED),
        **dict.fromkeys(("reply_to", "recalled_at", "check_value"), _NEEDED),
        **{"importance": "normal", "ack_required": 0, "broadcast": 0},
        **dict.fromkeys(("sender_name", "thread_id", "topic"), ""),
    },
    "recipients": {
        **dict.fromkeys(("message_id", "agent_id", "kind", "seq", "read_at", "acked_at"), _NEEDED),
        **{"position": 0, "announced_at": _NEEDED, "announced_by": _NEEDED},
    },
    "blobs": dict.fromkeys(("sha256", "content"), _NEEDED),
    "attachments": dict.fromkeys(
        ("message_id", "position", "sha256", "name", "media_type", "size", "preview_sha256"), _NEEDED
    ),
    "file_reservations": {
        **dict.fromkeys(("id", "project_id", "agent_id", "pattern", "prefix", "exclusive"), _NEEDED),
        **dict.fromkeys(("created_at", "expires_at", "ttl", "released_at"), _NEEDED),
        **dict.fromkeys(("reason", "released_by", "release_reason"), ""),
    },
}
"""The tables of an archive, referenced tables first, with their columns and defaults."""


def whole(table: str, record: Mapping[str, object]) -> Mapping[str, object]:
    """Return a row with a value for each column of its table."""
    columns = TABLES[table]
    if unknown := record.keys() - columns.keys():
        raise StateError(
            f"{table} has no column {sorted(unknown)}",
            value=sorted(unknown),
            remedy="use the release of postroom that wrote the archive, or a newer release",
        )
    if table == "messages" and record.get("recalled_at") is None:
        texts = (str(record.get(name, "")) for name in ("subject", "body_md", "topic"))
        record = {**record, "check_value": check_value(cast("int", record["id"]), *texts)}
    return {**columns, **record}


_TASK_COLUMNS: Final = Task.__struct_fields__
_STATE_EVENTS: Final[Mapping[TaskState, EventKind]] = {
    "blocked": "task.blocked",
    "review": "task.review",
    "done": "task.done",
    "cancelled": "task.cancelled",
}
"""The event for each state that a task can enter; `ready` and `waiting` have several events."""


class TaskReads:
    """Reads the tasks of a project by state, holder and dependency."""

    _tx: SqlTransaction

    def task(self, task_id: int) -> Task | None:
        """Return the task with this id, or None."""
        return next(iter(self._tasks("tasks.task", id=task_id)), None)

    def tasks_by_id(self, task_ids: Sequence[int]) -> dict[int, Task]:
        """Return the tasks with these ids, keyed by id; unknown ids are omitted."""
        return {task.id: task for task in self._tasks("tasks.some", ids=task_ids)} if task_ids else {}

    def ready_tasks(
        self, project_id: int, assignees: Iterable[str], *, after: tuple[int, int], limit: int
    ) -> list[Task]:
        """Return up to `limit` claimable tasks of the given assignees, ordered by priority and id.

        Only tasks after the pair `after` of a priority and an id are returned.
        """
        looks = [
            (
                "tasks.ready",
                {
                    "project_id": project_id,
                    "assignee": assignee,
                    "priority": after[0],
                    "after": after[1],
                    "limit": limit,
                },
            )
            for assignee in assignees
        ]
        tasks = [_task(row) for rows in self._tx.ask(*looks) for row in rows]
        return sorted(tasks, key=task_place)[:limit]

    def tasks_in(
        self, project_id: int, state: TaskState, *, after: tuple[int, int], limit: int
    ) -> list[Task]:
        """Return up to `limit` open tasks in a state, ordered by priority and id.

        Only tasks after the pair `after` of a priority and an id are returned.
        """
        values = {"priority": after[0], "after": after[1], "limit": limit}
        return self._tasks("tasks.listed", project_id=project_id, state=state, **values)

    def ended_tasks(
        self, project_id: int, state: TaskState, *, before: tuple[int, int], limit: int
    ) -> list[Task]:
        """Return up to `limit` tasks that are done or cancelled, newest first.

        Only tasks before the pair `before` of an end time and an id are returned.
        """
        values = {"changed_at": before[0], "before": before[1], "limit": limit}
        return self._tasks("tasks.ended", project_id=project_id, state=state, **values)

    def tasks_held(self, agent_id: int) -> list[Task]:
        """Return the tasks that an agent holds, including tasks with an expired lease."""
        return self._tasks("tasks.held", agent_id=agent_id)

    def unclaimed_tasks(self, project_id: int, assignee: str) -> dict[int, dict[int, str]]:
        """Return the titles of an assignee's ready, waiting and blocked tasks, by author and task id."""
        titles = defaultdict[int, dict[int, str]](dict)
        values = {"project_id": project_id, "assignee": assignee}
        for author_id, task_id, title in self._tx.all("tasks.unclaimed_of", values):
            titles[author_id][task_id] = title
        return titles

    def is_renewal_due(self, agent_id: int, now: int) -> bool:
        """Return whether a quarter of a lease has passed since an agent's claim was last renewed."""
        return self._tx.one("tasks.is_renewal_due", {"agent_id": agent_id, "now": now}) is not None

    def count_reviews(self, project_id: int, *, limit: int) -> int:
        """Return the number of tasks that wait for a person's check, at most `limit`."""
        [count] = self._tx.one("tasks.count_reviews", {"project_id": project_id, "limit": limit}) or (0,)
        return count

    def tasks_claimed_in(self, run_id: str) -> list[Task]:
        """Return the tasks that were claimed in a run and are still claimed, ordered by id."""
        return self._tasks("tasks.in_run", run_id=run_id)

    def dependencies(self, task_ids: Sequence[int]) -> dict[int, dict[int, TaskState]]:
        """Return the tasks on which each of the given tasks depends, with their states."""
        dependencies: dict[int, dict[int, TaskState]] = {task_id: {} for task_id in task_ids}
        for task_id, depends_on, state in self._tx.all("tasks.dependencies", {"ids": task_ids}):
            dependencies[task_id][depends_on] = state
        return dependencies

    def dependents(self, task_id: int) -> list[Task]:
        """Return the tasks that depend on a task, ordered by id."""
        return self._tasks("tasks.dependents", id=task_id)

    def claiming_agents(self, *, after: int = 0, limit: int) -> list[int]:
        """Return the ids of agents for whom the server claims tasks, from the first id after `after`."""
        return [row[0] for row in self._tx.all("tasks.claiming_agents", {"after": after, "limit": limit})]

    def leases_ended(self, project_id: int, now: int) -> list[Task]:
        """Return some of the tasks with an expired lease, earliest expiry first."""
        return self._tasks("tasks.leases_ended", project_id=project_id, now=now)

    def _tasks(self, statement: str, /, **values: object) -> list[Task]:
        return [_task(row) for row in self._tx.all(statement, values)]


class TaskWrites(TaskReads):
    """Changes tasks, and writes events about tasks to the log of the project."""

    _events: EventRecorder
    _tell: Callable[..., None]

    def insert_task(self, task: Task, depends_on: Sequence[int]) -> Task:
        """Store a new task with its dependencies; return the task with its id."""
        self._events.lock([task.project_id])
        values = {"project_id": task.project_id, "author_id": task.author_id, "now": task.created_at}
        [[task_id]] = self._tx.all("tasks.insert_task", {**values, **_texts(task), "state": task.state})
        made = msgspec.structs.replace(task, id=task_id)
        self._depend(task_id, depends_on)
        self._events.of_task("task.added", made, made.author_id, made.created_at)
        if made.state == "ready":
            self._events.of_task("task.ready", made, made.author_id, made.created_at)
            self._tell(TASKS)
        return made

    def edit_task(
        self, task: Task, depends_on: Sequence[int] | None, *, fields: Sequence[str], by: int, now: int
    ) -> None:
        """Store the changed texts and attributes of a task.

        The dependencies are also stored, unless `depends_on` is None. The log entry contains the names
        `fields` of the changed attributes.
        """
        self._tx.run("tasks.edit_task", {**_texts(task), "id": task.id})
        if depends_on is not None:
            self._tx.run("tasks.drop_dependencies", {"task_id": task.id})
            self._depend(task.id, depends_on)
        self._events.of_task("task.changed", task, by, now, fields)

    def claim_task(self, task: Task, agent_id: int, *, lease_ms: int, run_id: str, now: int) -> Task:
        """Assign a ready task to an agent under the next epoch; the lease starts now."""
        values = {"id": task.id, "holder_id": agent_id, "lease_ms": lease_ms, "lease_ends_at": now + lease_ms}
        self._tx.run("tasks.claim_task", {**values, "run_id": run_id, "now": now})
        claimed = self._stored_task(task.id)
        self._events.of_task("task.claimed", claimed, agent_id, now)
        return claimed

    def move_task(
        self,
        task: Task,
        state: TaskState,
        *,
        by: int | None,
        now: int,
        reason: str = "",
        holder_id: int | None = None,
    ) -> Task:
        """Change the state of a task and end its claim; `holder_id` is the agent that did the work.

        If `by` is None, the claim ends because its lease has expired.
        """
        values = {"id": task.id, "state": state, "holder_id": holder_id, "reason": reason}
        self._tx.run("tasks.move_task", {**values, "by": by, "now": now})
        if task.state == "claimed" and state in ("ready", "waiting"):
            kind: EventKind = "task.lease_ended" if by is None else "task.released"
            self._events.of_task(kind, task, task.holder_id, now)
        if state in _STATE_EVENTS:
            self._events.of_task(_STATE_EVENTS[state], task, by, now)
        elif state == "ready":
            self._events.of_task("task.ready", task, by, now)
        if task.state == "claimed" or state == "ready":
            self._tell(TASKS)  # a runner may be able to claim a task now
        return self._stored_task(task.id)

    def note_result(self, task_id: int, *, commit: str, output: str, result: str) -> None:
        """Store the result of a task: the commit, the output of the command and the agent's report."""
        values = {"id": task_id, "commit": commit, "output": output, "result": result}
        self._tx.run("tasks.note_result", values)

    def count_down(self, task_id: int) -> None:
        """Reduce the number of open dependencies of each task that depends on a task."""
        self._tx.run("tasks.count_down", {"id": task_id})

    def _depend(self, task_id: int, depends_on: Sequence[int]) -> None:
        rows = [{"task_id": task_id, "depends_on": other} for other in depends_on]
        self._tx.run_many("tasks.insert_dependency", rows)

    def _stored_task(self, task_id: int) -> Task:
        task = self.task(task_id)
        if task is None:
            raise UnknownTask(f"no record has the id {task_id}", value=task_id)
        return task


def task_place(task: Task) -> tuple[int, int]:
    """Return the sort key of an open task: the rank of its priority, and its id."""
    return PRIORITIES.index(task.priority), task.id


def _texts(task: Task) -> dict[str, object]:
    return {
        "title": task.title,
        "text": task.text,
        "paths": msgspec.json.encode(task.paths).decode(),
        "priority": PRIORITIES.index(task.priority),
        "assignee": task.assignee,
        "acceptance": task.acceptance,
        "open_dependencies": task.open_dependencies,
    }


def _task(row: Row) -> Task:
    values = dict(zip(_TASK_COLUMNS, row, strict=True))
    paths = tuple(msgspec.json.decode(values.pop("paths")))
    return Task(**{**values, "paths": paths, "priority": PRIORITIES[values["priority"]]})


class NoteReads:
    """Reads the notes of a project, and the notes that a session or run was shown."""

    _tx: SqlTransaction

    def note(self, note_id: int) -> Note | None:
        """Return the note with this id, or None."""
        row = self._tx.one("notes.note", {"id": note_id})
        return None if row is None else _note(row)

    def notes_by_id(self, note_ids: Sequence[int]) -> dict[int, Note]:
        """Return the notes with these ids, keyed by id; unknown ids are omitted."""
        rows = self._tx.all("notes.some", {"ids": note_ids}) if note_ids else ()
        return {note.id: note for note in map(_note, rows)}

    def active_notes(self, project_id: int, *, now: int) -> list[Note]:
        """Return the active notes of a project, newest first."""
        values = {"project_id": project_id, "now": now, "limit": MAX_ACTIVE}
        return [_note(row) for row in self._tx.all("notes.active", values)]

    def given_notes(self, place: str) -> dict[int, int]:
        """Return when each note was shown to a session or run, keyed by note id."""
        return {row[0]: row[1] for row in self._tx.all("notes.given", {"place": place})}


class NoteWrites(NoteReads):
    """Changes notes, and writes events about notes to the log of the project."""

    _events: EventRecorder

    def insert_note(self, note: Note) -> Note:
        """Store a new note, and end the notes that the new note replaces; return the note with its id."""
        self._events.lock([note.project_id])
        texts = {name: msgspec.json.encode(getattr(note, name)).decode() for name in ("paths", "replaces")}
        values = {name: getattr(note, name) for name in Note.__struct_fields__}
        [[note_id]] = self._tx.all("notes.insert_note", {**values, **texts})
        for old in note.replaces:
            self._tx.run("notes.end_note", {"id": old, "ends_at": note.created_at, "replaced_by": note_id})
        made = msgspec.structs.replace(note, id=note_id)
        self._events.of_note("note.added", made, note.author_id, note.created_at)
        return made

    def end_note(self, note: Note, *, by: int, now: int) -> None:
        """End a note."""
        self._tx.run("notes.end_note", {"id": note.id, "ends_at": now, "replaced_by": None})
        self._events.of_note("note.ended", note, by, now)

    def prolong_note(self, note_id: int, ends_at: int) -> None:
        """Set the end of an active note to the later time `ends_at`."""
        self._tx.run("notes.end_note", {"id": note_id, "ends_at": ends_at, "replaced_by": None})

    def give_notes(self, place: str, note_ids: Sequence[int], *, now: int) -> None:
        """Record that the session or run `place` was shown the given notes."""
        self._tx.run_many(
            "notes.give", [{"place": place, "note_id": note_id, "now": now} for note_id in note_ids]
        )

    def forget_given(self, place: str) -> None:
        """Delete the record of the notes that a session was shown."""
        self._tx.run("notes.forget_given", {"place": place})

    def purge_given(self, before: int, *, limit: int) -> None:
        """Delete up to `limit` records of notes that were shown before a time, oldest first."""
        self._tx.run("notes.purge_given", {"before": before, "limit": limit})


def _note(row: Row) -> Note:
    values = dict(zip(Note.__struct_fields__, row, strict=True))
    lists = {name: msgspec.json.decode(values[name], type=tuple) for name in ("paths", "replaces")}
    return Note(**{**values, **lists})


class SubscriptionReads:
    """Reads subscriptions."""

    _tx: SqlTransaction

    def subscription(self, subscription_id: int) -> Subscription | None:
        """Return the subscription with this id, or None."""
        row = self._tx.one("subscriptions.subscription", {"id": subscription_id})
        return None if row is None else record(Subscription, row)

    def subscriptions(self, *, after: int, limit: int) -> list[tuple[Subscription, int]]:
        """Return up to `limit` subscriptions, ordered by id, each with the newest entry number of its log."""
        rows = self._tx.all("subscriptions.page", {"after": after, "limit": limit})
        return [(record(Subscription, row), row[-1]) for row in rows]

    def subscriptions_of(self, agent_id: int) -> list[Subscription]:
        """Return the subscriptions of an agent, ordered by id."""
        rows = self._tx.all("subscriptions.of_agent", {"agent_id": agent_id})
        return [record(Subscription, row) for row in rows]

    def subscriptions_in(self, project_id: int, kind: Watched) -> list[Subscription]:
        """Return the subscriptions of a kind in a project, ordered by id."""
        rows = self._tx.all("subscriptions.in_project", {"project_id": project_id, "kind": kind})
        return [record(Subscription, row) for row in rows]

    def is_working(self, thread_ids: Sequence[str]) -> bool:
        """Return whether any of the given threads has a queued, active or waiting run."""
        return self._tx.one("subscriptions.is_working", {"thread_ids": thread_ids}) is not None


class SubscriptionWrites(SubscriptionReads):
    """Changes subscriptions, and writes the events that are logged only for subscribers."""

    _events: EventRecorder
    _tell: Callable[..., None]

    def insert_subscription(self, subscription: Subscription) -> Subscription:
        """Store a new subscription, and return the subscription with its id."""
        values = msgspec.structs.asdict(subscription)
        [[number]] = self._tx.all("subscriptions.insert_subscription", values)
        self._tell(TASKS)
        return msgspec.structs.replace(subscription, id=number)

    def move_cursor(self, subscription_id: int, cursor: int) -> None:
        """Store the number of the last log entry that was checked for a subscription."""
        self._tx.run("subscriptions.move_cursor", {"id": subscription_id, "cursor": cursor})

    def drop_subscription(self, subscription_id: int) -> None:
        """Delete a subscription."""
        self._tx.run("subscriptions.drop_subscription", {"id": subscription_id})
        self._tx.run("subscriptions.clear_dropped")

    def note_idle(self, agent_id: int, now: int) -> None:
        """Record that the turn of an agent has ended in the agent's client."""
        self._events.of_agent("agent.idle", agent_id, now)
        self._tell(TASKS)

    def note_branches(
        self, project_id: int, merged: Sequence[str], *, into: str, commit: str, now: int
    ) -> None:
        """Record the current commit of a project's main branch, and the branches that were merged into it."""
        detail: Detail = {"into": into, "commit": commit}
        for name in merged:
            self._events.of_branch("branch.merged", project_id, {"branch": name, **detail}, now)
        self._events.of_branch("branch.moved", project_id, detail, now)
        self._tell(TASKS)

    def note_changed_file(self, project_id: int, agent_id: int, path: str, now: int) -> None:
        """Record that an agent changed a file of a project."""
        self._events.of_file(project_id, agent_id, path, now)
        self._tell(TASKS)


_MOVED: Final = ("agents", "messages", "reservations", "tasks", "notes", "tokens", "aliases")
_ON_THE_WAY: Final = "merging"
"""The temporary scope of a log while its entries are renumbered."""


class MergingReads:
    """Reads the facts that decide whether two projects can be merged."""

    _tx: SqlTransaction

    def project_size(self, project_id: int) -> ProjectSize:
        """Return how many records of each kind a project has."""
        [row] = self._tx.all("merging.size", {"project_id": project_id})
        return record(ProjectSize, row)

    def shared_agents(self, project_id: int, other_id: int) -> list[str]:
        """Return the names of agents that exist in both projects; case is ignored."""
        values = {"project_id": project_id, "other_id": other_id}
        return [row[0] for row in self._tx.all("merging.shared_agents", values)]

    def shared_threads(self, project_id: int, other_id: int) -> list[str]:
        """Return the ids of threads that exist in both projects."""
        values = {"project_id": project_id, "other_id": other_id}
        return [row[0] for row in self._tx.all("merging.shared_threads", values)]

    def has_threads_of_runs(self, prefix: str) -> bool:
        """Return whether the id of any thread with runs begins with `prefix`."""
        values = {"first": prefix, "behind": prefix[:-1] + chr(ord(prefix[-1]) + 1)}
        return self._tx.one("merging.run_thread_between", values) is not None

    def archived_records(self, project_id: int) -> dict[int, list[str]]:
        """Return the records of a project in archive files, keyed by the project of the file.

        A record has the form `<kind>:<id>`. The result includes messages from other projects to agents of the
        project.
        """
        records: dict[int, list[str]] = {}
        for kind in ("agent", "message", "reservation"):
            for home, number in self._tx.all(f"merging.archived_{kind}", {"project_id": project_id}):
                records.setdefault(home, []).append(f"{kind}:{number}")
        return records


class MergingWrites(MergingReads):
    """Merges two projects."""

    _log: EventTables
    _events: EventRecorder

    def merge_projects(
        self, source: Project, target: Project, *, renames: Mapping[int, str], now: int
    ) -> None:
        """Move all records of the source project to the target project.

        The ids of the records stay unchanged. The names of the source become aliases of the target. A thread
        that exists in both projects becomes one thread. The shorter log is appended to the longer log. A
        reader that continues from a number of either log misses no entry, but may read entries twice.

        `renames` contains new names for agents of the source, keyed by agent id. Log entries keep the former
        names.
        """
        self._events.lock([source.id, target.id])
        for agent_id, name in renames.items():  # before the words of the messages are moved
            values = {"agent_id": agent_id, "name": name, "name_key": name.casefold()}
            self._tx.run("merging.rename_agent", values)
            self._tx.run("merging.rename_sender", values)
        both = {"source": source.id, "target": target.id}
        search_index.move(self._tx, source.id, target.id)
        self._tx.run("merging.join_threads", both)
        self._tx.run("merging.drop_threads", both)
        for done, kind in enumerate(_MOVED):
            progress.tell(f"moving {kind}: steps", done, len(_MOVED))
            self._tx.run(f"merging.move_{kind}", both)
        progress.tell("joining the logs of both projects")
        self._tx.run("merging.drop_project", both)
        for name in (source.human_key, source.slug):
            self._tx.run("mail.add_project_alias", {"human_key": name, "project_id": target.id})
        self._join_logs(f"project:{source.id}", f"project:{target.id}")
        newest = self._log.newest(f"project:{target.id}")  # entries of the other log are not new events
        self._tx.run("merging.move_subscriptions", {**both, "newest": newest})
        self._events.project_merged(target.id, source.slug, now)

    def _join_logs(self, source: str, target: str) -> None:
        """Append the log with the smaller newest number to the other log."""
        (source_oldest, source_newest), (oldest, newest) = self._log.bounds(source), self._log.bounds(target)
        if source_newest > newest:
            self._move_log(target, _ON_THE_WAY, source_newest - oldest + 1)
            self._move_log(source, target, 0)
        else:
            self._move_log(source, _ON_THE_WAY, newest - source_oldest + 1)
        self._move_log(_ON_THE_WAY, target, 0)
        self._tx.run("merging.number_log", {"scope": target})

    def _move_log(self, scope: str, into: str, by: int) -> None:
        self._tx.run("merging.move_log", {"scope": scope, "into": into, "by": by})


R = TypeVar("R")
T = TypeVar("T")

_FEW = 4
_NO_LIMIT = 2**62
_INBOX = {
    # unread only, newest first
    (False, True): "mail.inbox_newest",
    (False, False): "mail.inbox_after",
    (True, True): "mail.inbox_unread_newest",
    (True, False): "mail.inbox_unread_after",
}
_COUNTED = ("projects", "agents", "messages", "live_reservations", "outbox", "runners")
_OF_AGENTS = len(Agent.__struct_fields__)
_OF_TOKENS = tuple(field.name for field in fields(KeptToken))


class ProjectReads(Protocol):
    """Reads projects; a caller can be limited to one project."""

    def project(self, key: str) -> Project | None:
        """Return the project with this path, alias or slug, or None."""
        ...

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the projects whose normalized path is `spelling`, oldest first."""
        ...

    def projects_of_repository(self, identity: str, *, remote: str = "", root: str = "") -> list[Project]:
        """Return the projects with a repository's identity, remote or first commit; "" matches no project."""
        ...

    def projects_unidentified(self, *, limit: int) -> list[Project]:
        """Return up to `limit` projects whose repository is unknown, newest first."""
        ...

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return up to `limit` projects, ordered by id, from the first id after `after`."""
        ...

    def counts(self, *, unread: bool = True) -> dict[str, int]:
        """Return the number of records of each kind; with `unread`, unread messages are also counted."""
        ...


class ProjectWrites(ProjectReads, Protocol):
    """Creates projects and their aliases."""

    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        """Store a project with a new path and a new slug."""
        ...

    def add_project_alias(self, project_id: int, human_key: str) -> None:
        """Add a path as an alias of a project."""
        ...


class RecordReads(RetentionReads, TaskReads, NoteReads, SubscriptionReads, TimelineReads, WakingReads):
    """Reads records of mail by the ids of their projects.

    A missing record is None, or is omitted from a list.
    """

    def __init__(self, tx: "Transaction") -> None:
        tx.tell(MAIL)
        self._tx = tx.sql
        self.now = tx.now
        """Returns the time of this transaction in ms, which is read once, after the first locks were taken.
        """
        self._tell: Callable[..., None] = tx.tell
        self.outbox: OutboxTables = tx.outbox
        self._log: EventTables = tx.events
        self._events: EventRecorder = EventRecorder(tx.sql, tx.events, tx.lock)
        self._threads: Threads = Threads(tx)
        self._known: dict[str, Project] = {}
        """Projects that this transaction has read, keyed by the path, alias or slug that was used."""
        self._positions: dict[int, int] = {}
        """The position of the next recipient of each message to which this change adds recipients."""

    def _one(self, kind: type[R], statement: str, /, **values: object) -> R | None:
        row = self._tx.one(statement, values)
        return record(kind, row) if row else None

    def _messages(self, statement: str, /, **values: object) -> list[Message]:
        return [message_of(row) for row in self._tx.all(statement, values)]

    def _all(self, kind: type[R], statement: str, /, **values: object) -> list[R]:
        return [record(kind, row) for row in self._tx.all(statement, values)]

    def project_by_id(self, project_id: int) -> Project | None:
        """Return the project with this id, or None."""
        return self._one(Project, "mail.project_by_id", id=project_id)

    def agent(self, project_id: int, name: str) -> Agent | None:
        """Return the agent with this name, or None; case is ignored."""
        [rows] = asked(self._tx, [_agent_key(project_id, name)]).values()
        return record(Agent, rows[0]) if rows else None

    def agent_addressed(self, project_key: str, name: str) -> AddressedAgent | None:
        """Return the agent with this name in the project with this path, alias or slug, or None."""
        look = "mail.agent_addressed", {"key": project_key, "name_key": name.casefold()}
        [rows] = asked(self._tx, [look]).values()
        if not rows:
            return None
        [row] = rows
        agent, project = record(Agent, row), record(Project, row[_OF_AGENTS:])
        self._events.know_agent(agent)
        return AddressedAgent(project=project, agent=agent, runner=row[-2], has_notes=bool(row[-1]))

    def agents_named(self, project_id: int, names: Sequence[str]) -> list[Agent]:
        """Return the agents with these names; case is ignored."""
        keys = sorted(set(map(str.casefold, names)))
        if len(keys) == 1:
            only = self.agent(project_id, keys[0])
            return [] if only is None else [only]
        if len(keys) > _FEW:
            return self._all(Agent, "mail.agents_named", project_id=project_id, name_keys=keys)
        # One query for each name is cheaper than one query with a list.
        looks = [_agent_key(project_id, key) for key in keys]
        agents = [record(Agent, row) for rows in asked(self._tx, looks).values() for row in rows]
        return sorted(agents, key=lambda agent: agent.id)

    def agents_by_id(self, agent_ids: Sequence[int]) -> dict[int, Agent]:
        """Return the agents with these ids, keyed by id; unknown ids are omitted."""
        return {agent.id: agent for agent in self._all(Agent, "mail.agents_by_id", ids=agent_ids)}

    def agents(self, project_id: int, *, include_retired: bool, limit: int, after: int = 0) -> list[Agent]:
        """Return up to `limit` agents of a project, ordered by id, from the first id after `after`."""
        values = {"project_id": project_id, "after": after, "retired": include_retired, "limit": limit}
        return self._all(Agent, "mail.agents", **values)

    def member_names(self, project_id: int, *, include_retired: bool, limit: int) -> dict[int, str]:
        """Return the names of up to `limit` agents of a project, keyed by agent id, oldest first."""
        values = {"project_id": project_id, "retired": include_retired, "limit": limit}
        rows: list[Any] = self._tx.all("mail.member_names", values)
        return dict(rows)

    def active_agents(self, project_id: int, *, limit: int) -> list[Agent]:
        """Return up to `limit` agents of a project that are not retired, last active first."""
        return self._all(Agent, "mail.active_agents", project_id=project_id, limit=limit)

    def agent_by_token(self, token_hash: str) -> Agent | None:
        """Return the agent with a token hash, or None."""
        return self._one(Agent, "mail.agent_by_token", token_hash=token_hash)

    def contact(self, from_id: int, to_id: int) -> ContactLink | None:
        """Return the contact of the agent `from_id` with the agent `to_id`, or None."""
        return self._one(ContactLink, "mail.contact", from_id=from_id, to_id=to_id)

    def contacts(self, agent_id: int) -> list[ContactLink]:
        """Return all contacts from or to an agent, oldest first."""
        return self._all(ContactLink, "mail.contacts", agent_id=agent_id)

    def reach(self, sender_id: int, reader_ids: Sequence[int]) -> dict[int, Reach]:
        """Return whether and how a message from the sender can reach each of the given agents.

        Unknown ids are omitted.
        """
        found_rows = self._tx.all("mail.reach", {"sender_id": sender_id, "ids": reader_ids})
        return {row[0]: record(Reach, row) for row in found_rows}

    def message(self, message_id: int) -> Message | None:
        """Return the message with this id, or None."""
        return next(iter(self._messages("mail.message", id=message_id)), None)

    def messages(self, message_ids: Sequence[int]) -> dict[int, Message]:
        """Return the messages with these ids, keyed by id; unknown ids are omitted."""
        return {message.id: message for message in self._messages("mail.messages", ids=message_ids)}

    def received(self, agent_id: int, message_ids: Sequence[int]) -> dict[int, Received]:
        """Return the deliveries of messages to an agent, keyed by message id."""
        look = "mail.received", {"agent_id": agent_id, "ids": tuple(message_ids)}
        [rows] = asked(self._tx, [look]).values()
        deliveries = [record(Received, row) for row in rows]
        for delivery in deliveries:
            self._events.know_delivery(delivery.message_id, delivery.project_id, agent_id, delivery.kind)
        return {delivery.message_id: delivery for delivery in deliveries}

    def recipients(self, message_ids: Sequence[int]) -> dict[int, list[Recipient]]:
        """Return the recipients of each message, in the order of the addresses."""
        recipients: dict[int, list[Recipient]] = {message_id: [] for message_id in message_ids}
        for recipient in self._all(Recipient, "mail.recipients", ids=message_ids):
            recipients[recipient.message_id].append(recipient)
        return recipients

    def inbox(  # noqa: PLR0913 - the filters of the list
        self,
        agent_id: int,
        *,
        limit: int,
        after: int | None = None,
        before: int | None = None,
        since: int | None = None,
        unread_only: bool = False,
        importance: Sequence[Importance] = (),
    ) -> list[InboxEntry]:
        """Return up to `limit` messages in an agent's inbox; recalled messages are omitted.

        With `after`, messages with a greater number are returned, oldest first. Without `after`, the newest
        messages come first, and `before` selects messages with a smaller number. `since` selects messages
        that were sent at the time `since` or later.
        """
        values = {
            "agent_id": agent_id,
            "limit": limit,
            "after": after,
            "before": before,
            "since": since,
            "importance": importance,
            "any_importance": not importance,
        }
        return list(map(_inbox_entry, self._tx.all(_INBOX[unread_only, after is None], values)))

    def inbox_events(self, agent_id: int, *, after: int, limit: int) -> list[InboxEntry]:
        """Return up to `limit` entries of an agent's inbox after a number, oldest first.

        Recalled messages are included.
        """
        values = {"agent_id": agent_id, "after": after, "limit": limit}
        return list(map(_inbox_entry, self._tx.all("mail.inbox_events", values)))

    def unread_count(self, agent_id: int) -> int:
        """Return the number of an agent's messages that are neither read nor recalled."""
        [[count]] = self._tx.all("mail.unread_count", {"agent_id": agent_id})
        return int(count)

    def thread(self, project_id: int, thread_id: str, *, limit: int, after: int = 0) -> list[Message]:
        """Return up to `limit` messages of a thread in order, from the first message id after `after`."""
        values = {"project_id": project_id, "thread_id": thread_id, "after": after, "limit": limit}
        return self._messages("mail.thread", **values)

    def thread_tail(self, project_id: int, thread_id: str, *, limit: int) -> list[Message]:
        """Return the newest `limit` messages of a thread in order."""
        values = {"project_id": project_id, "thread_id": thread_id, "limit": limit}
        return self._messages("mail.thread_tail", **values)[::-1]

    def thread_size(self, project_id: int, thread_id: str) -> int:
        """Return the number of messages in a thread."""
        [[size]] = self._tx.all("mail.thread_size", {"project_id": project_id, "thread_id": thread_id})
        return int(size)

    def thread_participants(
        self, project_id: int, thread_id: str, *, home_id: int, among: int
    ) -> list[ThreadParticipant]:
        """Return the senders and recipients of the newest `among` messages of a thread, ordered by id.

        Recalled messages, blind copies, and messages that were not delivered in the project `home_id` are
        skipped.
        """
        values = {"project_id": project_id, "thread_id": thread_id, "home_id": home_id, "among": among}
        return self._all(ThreadParticipant, "mail.thread_participants", **values)

    def threads(self, project_id: int, *, limit: int, before: int | None = None) -> list[ThreadHead]:
        """Return up to `limit` threads, newest message first.

        Only threads whose newest message has an id less than `before` are returned.
        """
        return self._all(ThreadHead, "mail.threads", project_id=project_id, limit=limit, before=before)

    def tallies(self, project_ids: Sequence[int], *, most: int) -> list[ProjectTally]:
        """Return the tallies of projects: the numbers of agents and threads, and the last message's time.

        Each number is at most `most`.
        """
        return self._all(ProjectTally, "mail.tallies", project_ids=project_ids, most=most)

    def wanted_threads(
        self, project_id: int, wanted: ThreadFilter, *, limit: int, among: int, before: int | None = None
    ) -> tuple[list[ThreadHead], int | None]:
        """Return up to `limit` threads that match a filter, newest message first.

        The newest `among` threads before the message id `before` are searched. Also return the message id at
        which to continue, or None if all threads were searched.
        """
        window: dict[str, object] = {"project_id": project_id, "before": before}
        threads = self._all(
            ThreadHead,
            "mail.threads_wanted",
            **window,
            among=among,
            people_id=wanted.people_id,
            agent_id=wanted.agent_id,
            person_id=wanted.person_id,
            unread=wanted.seen == "unread",
            unacknowledged=wanted.seen == "unacknowledged",
            any_importance=not wanted.importance,
            importance=wanted.importance,
            limit=limit + 1,
        )
        if len(threads) > limit:
            return threads[:limit], threads[limit - 1].last_id
        row = self._tx.one("mail.threads_looked_at", {**window, "among": among - 1})
        return threads, int(row[0]) if row else None

    def project_messages(self, project_id: int, *, limit: int, after: int = 0) -> list[Message]:
        """Return up to `limit` messages of a project, ordered by id, from the first id after `after`."""
        return self._messages("mail.project_messages", project_id=project_id, after=after, limit=limit)

    def newest_messages(self, project_id: int, *, limit: int) -> list[Message]:
        """Return the newest `limit` messages of a project, ordered by id."""
        return self._messages("mail.newest_messages", project_id=project_id, limit=limit)[::-1]

    def damaged_messages(self, *, after: int, limit: int) -> tuple[list[int], int | None]:
        """Return which of the next `limit` messages after the id `after` differ from their check values.

        Also return the last checked id, or None after the last message.
        """
        return check_values.damaged_messages(self._tx, after=after, limit=limit)

    def sent_messages(self, agent_id: int, *, limit: int, before: int | None = None) -> list[Message]:
        """Return up to `limit` messages of an agent with ids less than `before`, newest first.

        Recalled messages are omitted.
        """
        return self._messages("mail.sent_messages", agent_id=agent_id, before=before, limit=limit)

    def search(
        self, project_id: int, query: Query, *, order: SearchOrder, limit: int, cursor: int = 0
    ) -> list[SearchHit]:
        """Return up to `limit` messages that match a query; recalled messages are omitted.

        The caller must have called `settle` of the store. With the order `newest`, the newest messages are
        returned first, and only messages with an id less than `cursor`. If `cursor` is 0, all ids are
        searched. With the order `best`, the newest `BEST_AMONG` matches are ordered by rank, and `cursor` is
        the number of results to skip.
        """
        return search_index.find(self._tx, project_id, query, order, limit=limit, cursor=cursor)

    def partly_searched(self, project_id: int, query: Query, *, limit: int) -> list[int]:
        """Return the ids of messages that a search may have missed, because their index is incomplete.

        Only text in scripts without spaces is affected, after the first 16,000 characters of a message.
        """
        return search_index.partly_searched(self._tx, project_id, query, limit=limit)

    def attachments(self, message_ids: Sequence[int]) -> dict[int, list[Attachment]]:
        """Return the attachments of each message, in order."""
        attachments: dict[int, list[Attachment]] = {message_id: [] for message_id in message_ids}
        for row in self._tx.all("mail.attachments", {"ids": message_ids}):
            attachments[row[0]].append(record(Attachment, row[1:]))
        return attachments

    def blob(self, sha256: str) -> bytes | None:
        """Return the content with this SHA-256, or None."""
        row = self._tx.one("mail.blob", {"sha256": sha256})
        return bytes(row[0]) if row else None

    def unannounced(self, agent_id: int, *, limit: int) -> list[Arrival]:
        """Return an agent's messages that are neither read, recalled nor announced, oldest first."""
        return self._all(Arrival, "mail.unannounced", agent_id=agent_id, limit=limit)

    def directed_unread(self, agent_id: int, *, limit: int) -> list[tuple[int, int]]:
        """Return the ids and inbox numbers of unread messages that have an agent in `to`, newest first.

        Broadcasts, recalled messages, and messages in an open run are omitted.
        """
        found_rows = self._tx.all("mail.directed_unread", {"agent_id": agent_id, "limit": limit})
        return [(int(message_id), int(seq)) for message_id, seq in found_rows]

    def client_session(self, client: str, session_id: str) -> ClientSession | None:
        """Return the stored session of a client, or None."""
        return self._one(ClientSession, "mail.client_session", client=client, session_id=session_id)

    def sessions_seen(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return when a client session last acted as each agent, in milliseconds since the epoch.

        Agents without a session are omitted.
        """
        return {row[0]: row[1] for row in self._tx.all("mail.sessions_seen", {"ids": agent_ids})}

    def nudges(self, agent_id: int) -> Nudges:
        """Return the record of what hooks have done in the turns of an agent."""
        return self._one(Nudges, "mail.nudges", agent_id=agent_id) or Nudges()

    def file_views(self, files: Sequence[str], *, viewer_id: int) -> list[FileView]:
        """Return a session's views of files, and the views of all sessions that wrote the files."""
        return self._all(FileView, "mail.file_views", files=files, viewer_id=viewer_id)

    def due_file_views(self, viewer_id: int, *, limit: int) -> list[FileView]:
        """Return up to `limit` views of changed files about which a session must be notified."""
        return self._all(FileView, "mail.due_file_views", viewer_id=viewer_id, limit=limit)

    def reservation(self, reservation_id: int) -> Reservation | None:
        """Return the reservation with this id, active or not, or None."""
        return self._one(Reservation, "mail.reservation", id=reservation_id)

    def live_reservations(
        self,
        project_id: int,
        *,
        now: int,
        near: str | None = None,
        agent_id: int | None = None,
        limit: int | None = None,
    ) -> list[Reservation]:
        """Return the active reservations of a project, ordered by id.

        With `near`, only reservations that can overlap a pattern with the prefix `near` are returned. With
        `agent_id`, only reservations of this agent are returned.
        """
        values = _near(project_id, now, near)
        values |= {"limit": _NO_LIMIT if limit is None else limit, "agent_id": agent_id}
        if agent_id is not None:
            return self._all(Reservation, "mail.reservations_held", **values)
        statement = "mail.live_reservations_near" if near else "mail.live_reservations"
        return self._all(Reservation, statement, **values)

    def live_patterns(
        self, project_id: int, *, now: int, near: str, but: int, exclusive_only: bool
    ) -> list[LivePattern]:
        """Return the ids and patterns of active reservations, without those of the agent `but`.

        Only patterns that can overlap a pattern with the prefix `near` are returned; "" selects all patterns.
        """
        values = _near(project_id, now, near) | {"but": but, "exclusive_only": exclusive_only}
        found_rows = self._tx.all("mail.live_patterns_near" if near else "mail.live_patterns", values)
        return [(row[0], row[1]) for row in found_rows]

    def reservations_by_id(self, reservation_ids: Sequence[int]) -> list[Reservation]:
        """Return the reservations with these ids, active or not; unknown ids are omitted."""
        return self._all(Reservation, "mail.reservations_by_id", ids=reservation_ids)

    def reservations(self, project_id: int, *, limit: int, after: int = 0) -> list[Reservation]:
        """Return up to `limit` reservations of a project with ids greater than `after`, ordered by id."""
        return self._all(Reservation, "mail.reservations", project_id=project_id, after=after, limit=limit)

    def newest_reservations(self, project_id: int, *, limit: int) -> list[Reservation]:
        """Return the newest `limit` reservations of a project, active or not, ordered by id."""
        return self._all(Reservation, "mail.newest_reservations", project_id=project_id, limit=limit)[::-1]

    def reserved_in(self, place: str, *, now: int) -> list[Reservation]:
        """Return the active reservations that a run or session has made, ordered by id."""
        return self._all(Reservation, "mail.reserved_in", reserved_in=place, now=now)

    def token(self, token_id: str) -> KeptToken | None:
        """Return the token with this id, or None."""
        row = self._tx.one("mail.token", {"id": token_id})
        return _token(row) if row else None

    def tokens_named(self, name: str) -> list[KeptToken]:
        """Return all tokens that have or had this name, oldest first."""
        return list(map(_token, self._tx.all("mail.tokens_named", {"name": name})))

    def tokens(self, *, limit: int, after: str = "") -> list[KeptToken]:
        """Return up to `limit` tokens, ordered by id, from the first id after `after`."""
        return list(map(_token, self._tx.all("mail.tokens", {"after": after, "limit": limit})))

    def is_session_ended(self, hashed: str) -> bool:
        """Return whether a person has logged out of the web session with this hash."""
        return self._tx.one("mail.ended_session", {"hash": hashed}) is not None

    def traces(self, names: Sequence[str]) -> dict[str, str]:
        """Return the stored traces with these names, keyed by name; names without a trace are omitted."""
        return {row[0]: row[1] for row in self._tx.all("mail.traces", {"names": names})}

    def project_events(
        self, project_id: int, *, after: int, limit: int, kinds: Sequence[EventKind] = ()
    ) -> list[ProjectEvent]:
        """Return up to `limit` entries of a project's log after a number, oldest first.

        Without `kinds`, entries of all kinds are returned.
        """
        scope = EventScope.project(project_id).key
        values = {"scope": scope, "after": after, "limit": limit, "kinds": kinds, "any_kind": not kinds}
        return [_entry(project_id, *row) for row in self._tx.all("project_log.entries", values)]

    def log_bounds(self, project_id: int) -> LogBounds:
        """Return the range of entry numbers in the log of a project."""
        oldest, newest = self._log.bounds(EventScope.project(project_id).key)
        return LogBounds(oldest=oldest - 1, newest=newest)

    def newest_entry(self, project_id: int) -> int:
        """Return the number of the newest entry in a project's log, or 0 if the log is empty."""
        return self._log.newest(EventScope.project(project_id).key)

    def messages_of(self, agent_id: int, message_ids: Sequence[int]) -> tuple[set[int], set[int]]:
        """Return which of the given messages an agent sent, and which of the messages the agent received."""
        values = {"agent_id": agent_id, "ids": message_ids}
        written, received = self._tx.ask(
            ("project_log.messages_written", values), ("project_log.messages_received", values)
        )
        return {row[0] for row in written}, {row[0] for row in received}

    def answer(self, scope: str, key: str) -> StoredAnswer | None:
        """Return the stored result of the first call with an idempotency key, or None."""
        row = self._tx.one("mail.answer", {"scope": scope, "key": key})
        return StoredAnswer(digest=row[0], answer=bytes(row[1])) if row else None


class MailReads(RecordReads, MergingReads, ProjectReads):
    """Reads all records of mail, in one consistent view."""

    @override
    def project(self, key: str) -> Project | None:
        if key not in self._known and (project := self._one(Project, "mail.project_named", key=key)):
            self._known[key] = project
        return self._known.get(key)

    @override
    def projects_spelled(self, spelling: str) -> list[Project]:
        return self._all(Project, "mail.projects_spelled", spelling=spelling)

    @override
    def projects_of_repository(self, identity: str, *, remote: str = "", root: str = "") -> list[Project]:
        values = {"identity": identity, "remote": remote, "root": root}
        return self._all(Project, "mail.projects_of_repository", **values)

    @override
    def projects_unidentified(self, *, limit: int) -> list[Project]:
        return self._all(Project, "mail.projects_unidentified", limit=limit)

    @override
    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        return self._all(Project, "mail.projects", after=after, limit=limit)

    @override
    def counts(self, *, unread: bool = True) -> dict[str, int]:
        [counts] = self._tx.all("mail.counts")
        counted = dict(zip(_COUNTED, counts, strict=True))
        return counted | {"unread": self._tx.all("mail.count_unread")[0][0]} if unread else counted


class RecordWrites(RecordReads, RetentionWrites, TaskWrites, NoteWrites, SubscriptionWrites, WakingWrites):
    """Changes the records of mail, which are found by the ids of their projects.

    Each change writes its events to the log of the project (`contracts.project_log`).
    """

    def _update(self, statement: str, values: Mapping[str, object], kind: type[InputError]) -> None:
        """Update the row with the id `values["id"]`, or raise an error if the row does not exist."""
        if not self._tx.changed(statement, values):
            raise _unknown(kind, values["id"])

    def lock_projects(self, project_ids: Iterable[int], expected: Iterable[tuple[int, str]] = ()) -> None:
        """Lock projects; this must be the first lock of a transaction.

        `expected` contains project ids and names of agents to read in the same round trip.
        """
        named = tuple(sorted(set(project_ids)))
        self._events.lock(named)
        # another change may have merged a project before this lock; the same round trip checks this
        if self._tx.dialect == "postgres":
            looks = [
                ("mail.projects_there", {"ids": named}),
                *starmap(_agent_key, islice(expected, 1 + _FEW)),
            ]
            there = {row[0] for row in asked(self._tx, looks)["mail.projects_there", named]}
            if not {*named} - {0} <= there:
                self._known.clear()

    def set_git_identity(self, project_id: int, git_identity: str) -> None:
        """Store the remote and the root commit of a project's repository."""
        self._known.clear()
        values = {"id": project_id, "git_identity": git_identity}
        self._update("mail.set_git_identity", values, UnknownProject)

    def set_project_folder(self, project_id: int, human_key: str, *, spelling: str) -> None:
        """Set the folder of a project, which no other project may have.

        The former folder becomes an alias.
        """
        self._known.clear()
        self._tx.run("mail.keep_former_folder", {"id": project_id})
        values = {"id": project_id, "human_key": human_key, "spelling": spelling}
        self._update("mail.set_project_folder", values, UnknownProject)

    def insert_agent(
        self, project_id: int, *, name: str, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Store a new agent, whose name must not be in use in the project."""
        values = {
            "project_id": project_id,
            "name": name,
            "name_key": name.casefold(),
            "program": program,
            "model": model,
            "task_description": task_description,
            "now": now,
        }
        [made] = self._all(Agent, "mail.insert_agent", **values)
        self._events.agent_registered(made)
        return made

    def update_agent(
        self, agent_id: int, *, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Replace the description that an agent gave of itself, and update the agent's last activity."""
        values = {
            "id": agent_id,
            "program": program,
            "model": model,
            "task_description": task_description,
            "now": now,
        }
        if self._tx.one("mail.agent_differs", values):
            self._events.of_agent("agent.changed", agent_id, now)
        updated = self._one(Agent, "mail.update_agent", **values)
        if updated is None:
            raise _unknown(UnknownAgent, agent_id)
        return updated

    def set_agent_retired(self, agent_id: int, retired_at: int | None, *, now: int) -> None:
        """Retire an agent at a time, or make the agent active again if `retired_at` is None."""
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("mail.set_agent_retired", {"id": agent_id, "retired_at": retired_at}, UnknownAgent)
        self._events.agent_retired(before, retired_at, now)
        if retired_at is None:
            self.wake_later()  # messages may have waited for the agent

    def set_agent_token(self, agent_id: int, token_hash: str | None) -> None:
        """Replace the hash of an agent's token, or revoke the token if the hash is None."""
        self._update("mail.set_agent_token", {"id": agent_id, "token_hash": token_hash}, UnknownAgent)

    def set_contact_policy(self, agent_id: int, policy: ContactPolicy, *, now: int) -> None:
        """Set the policy that decides from whom an agent accepts mail."""
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("mail.set_contact_policy", {"id": agent_id, "policy": policy}, UnknownAgent)
        self._events.policy_set(before, policy, now)

    def touch_agent(self, agent_id: int, now: int) -> None:
        """Update the last activity of an agent, and extend the agent's reservations and claims of tasks.

        Each reservation or claim is extended by its own length. Expired reservations and claims stay expired.
        """
        values = {"id": agent_id, "now": now}
        touched = self._tx.one("mail.touch_agent", values)
        if touched is None:
            raise _unknown(UnknownAgent, agent_id)
        self._tx.run("mail.touch_reservations", values)
        if touched[0]:
            self._tx.run("tasks.touch_tasks", values)

    def put_contact(
        self, from_id: int, to_id: int, *, status: ContactStatus, reason: str, now: int
    ) -> ContactLink:
        """Store the contact of the agent `from_id` with the agent `to_id`."""
        values = {
            "from_id": from_id,
            "to_id": to_id,
            "status": status,
            "reason": reason,
            "now": now,
            "decided_at": None if status == "pending" else now,
        }
        before = self.contact(from_id, to_id)
        [link] = self._all(ContactLink, "mail.put_contact", **values)
        self._events.contact(before, link, now)
        return link

    def insert_message(  # noqa: PLR0913 - an argument for each column
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
        """Store a new message; without `thread_id`, the message starts the thread `msg-<id>`."""
        self._events.lock([project_id])  # within a project, ids grow in the order in which they are seen
        # The id is taken before the insert, because setting the thread later would write the index twice.
        [[message_id]] = self._tx.all("mail.next_message")
        values: dict[str, Any] = {
            "id": message_id,
            "project_id": project_id,
            "sender_id": sender.id,
            "sender_name": sender.name,
            "thread_id": thread_id or f"msg-{message_id}",
            "subject": subject,
            "body_md": body_md,
            "importance": importance,
            "ack_required": ack_required,
            "created_at": now,
            "topic": topic,
            "broadcast": broadcast,
            "reply_to": reply_to,
            "check_value": check_value(message_id, subject, body_md, topic),
        }
        self._tx.run("mail.insert_message", values)
        message = Message(**values)
        if self._tx.dialect == "postgres":  # SQLite's writer does this after it has returned the results
            search_index.add(self._tx, message)
        self._positions[message_id] = 0
        self._events.sent(message)
        return message

    def insert_recipient(self, message_id: int, agent: Agent, kind: RecipientKind) -> None:
        """Add a message to the inbox of an agent under the next number."""
        if (position := self._positions.get(message_id)) is None:
            [[position]] = self._tx.all("mail.recipients_named", {"message_id": message_id})
        self._positions[message_id] = position + 1
        values = {"message_id": message_id, "agent_id": agent.id, "kind": kind, "position": position}
        self._tx.run("mail.insert_recipient", values)
        self._events.reached(message_id, agent, kind)

    def mark_read(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Mark a message as read.

        Return the time of the first mark, or None if the agent is not a recipient.
        """
        values = {"message_id": message_id, "agent_id": agent_id, "now": now}
        if row := self._tx.one("mail.mark_read", values):
            self._events.delivery("delivery.read", message_id, agent_id, row[0], now)
            return now
        row = self._tx.one("mail.read_mark", values)
        return int(row[0]) if row else None

    def mark_acked(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Mark a message as acknowledged and read.

        Return the time of the first acknowledgement, or None if the agent is not a recipient.
        """
        self.mark_read(message_id, agent_id, now)
        values = {"message_id": message_id, "agent_id": agent_id, "now": now}
        if row := self._tx.one("mail.mark_acked", values):
            self._events.delivery("delivery.acknowledged", message_id, agent_id, row[0], now)
            return now
        row = self._tx.one("mail.acked_mark", values)
        return int(row[0]) if row else None

    def mark_recalled(self, message_id: int, now: int) -> None:
        """Recall a message: delete its text and its attachments, but keep its row."""
        stored = self.attachments([message_id])[message_id]
        message = self.message(message_id)
        if message is None:
            raise _unknown(UnknownMessage, message_id)
        if message.recalled_at is None:
            self._events.recalled(message, now)
        self._tx.run("mail.mark_recalled", {"id": message_id, "now": now})
        if self._tx.dialect == "postgres":  # SQLite does this by a trigger
            self._tx.run("mail.forget_words", {"ids": [message_id]})
        if stored:
            self.drop_attachments([message_id])

    def insert_blob(self, sha256: str, content: bytes) -> None:
        """Store bytes under their SHA-256."""
        lock_bytes(self._tx)
        self._tx.run("mail.insert_blob", {"sha256": sha256, "content": content})

    def insert_attachment(self, message_id: int, attachment: Attachment) -> None:
        """Attach stored bytes to a message."""
        values = {
            "message_id": message_id,
            "sha256": attachment.sha256,
            "name": attachment.name,
            "media_type": attachment.media_type,
            "size": attachment.size,
            "preview_sha256": attachment.preview_sha256,
        }
        self._tx.run("mail.insert_attachment", values)

    def mark_announced(self, agent_id: int, message_ids: Sequence[int], *, by: str, now: int) -> int:
        """Record that messages were announced to an agent; return the number of newly announced messages.

        `by` names the announcer: hook, watch or runner. Messages that the agent did not receive are ignored.
        """
        # Mark the messages one by one, because with a list of ids SQLite would scan the whole inbox.
        new = 0
        for message_id in message_ids:
            # take the lock before the row of the delivery is written
            self._events.lock(self._events.find_projects(message_id, agent_id))
            values = {"message_id": message_id, "agent_id": agent_id, "now": now, "by": by}
            if row := self._tx.one("mail.mark_announced", values):
                self._events.delivery("delivery.announced", message_id, agent_id, row[0], now, by=by)
                new += 1
        return new

    def bind_client_session(self, client: str, session_id: str, agent_id: int, now: int) -> None:
        """Record that a session of a client acts as an agent."""
        values = {"client": client, "session_id": session_id, "agent_id": agent_id, "now": now}
        self._tx.run("mail.bind_client_session", values)

    def end_client_session(self, client: str, session_id: str) -> None:
        """Delete a session of a client; an unknown session is ignored."""
        self._tx.run("mail.end_client_session", {"client": client, "session_id": session_id})

    def purge_client_sessions(self, before: int, *, limit: int) -> int:
        """Delete up to `limit` client sessions that were stored before a time; return the number deleted."""
        return self._tx.changed("mail.purge_client_sessions", {"before": before, "limit": limit})

    def set_nudges(self, agent_id: int, nudges: Nudges) -> None:
        """Store the record of what hooks have done in the turns of an agent."""
        values = {"agent_id": agent_id, "held_seq": nudges.held_seq, "notified_at": nudges.notified_at}
        self._tx.run("mail.set_nudges", values)

    def put_file_view(self, view: FileView) -> None:
        """Store a session's view of a file, which replaces the session's earlier view of the file."""
        self._tx.run(
            "mail.put_file_view", {field.name: getattr(view, field.name) for field in fields(FileView)}
        )

    def note_file_change(self, file: str, blob: str, *, viewer_id: int, now: int, since: int) -> None:
        """Record that a session wrote a new version of a file.

        The change is recorded for other sessions that have used the file after the time `since`.
        """
        values = {"file": file, "blob": blob, "viewer_id": viewer_id, "now": now, "since": since}
        self._tx.run("mail.note_file_change", values)

    def mark_file_views_told(self, viewer_id: int) -> None:
        """Record that a session was notified of all changed files."""
        self._tx.run("mail.mark_file_views_told", {"viewer_id": viewer_id})

    def purge_file_views(self, before: int, *, limit: int) -> int:
        """Delete up to `limit` views of files that were last used before a time; return their number."""
        return self._tx.changed("mail.purge_file_views", {"before": before, "limit": limit})

    def insert_reservation(  # noqa: PLR0913 - an argument for each column
        self, agent: Agent, *, pattern: str, prefix: str, exclusive: bool, reason: str, ttl: int, now: int
    ) -> Reservation:
        """Store a new reservation, which lasts `ttl` milliseconds."""
        values = {
            "project_id": agent.project_id,
            "agent_id": agent.id,
            "pattern": pattern,
            "prefix": prefix,
            "exclusive": exclusive,
            "reason": reason,
            "now": now,
            "expires_at": now + ttl,
            "ttl": ttl,
        }
        [[reservation_id]] = self._tx.all("mail.insert_reservation", values)
        made = self._load_stored(reservation_id)
        self._events.reserved("reservation.made", made, now)
        return made

    def note_reserved_in(self, reservation_id: int, agent_id: int, place: str) -> None:
        """Record the run or session that made a reservation, unless the reservation was renewed since."""
        values = {"id": reservation_id, "agent_id": agent_id, "reserved_in": place}
        self._tx.run("mail.note_reserved_in", values)

    def extend_reservation(
        self, reservation_id: int, *, expires_at: int, ttl: int, exclusive: bool, reason: str, now: int
    ) -> Reservation:
        """Set a new end of a reservation, and replace its attributes."""
        values = {
            "id": reservation_id,
            "expires_at": expires_at,
            "ttl": ttl,
            "exclusive": exclusive,
            "reason": reason,
        }
        self._tx.run("mail.extend_reservation", values)
        extended = self._load_stored(reservation_id)
        self._events.reserved("reservation.renewed", extended, now)
        return extended

    def release_reservation(self, reservation_id: int, *, now: int, by: str, reason: str) -> Reservation:
        """End an active reservation."""
        values = {"id": reservation_id, "now": now, "by": by, "reason": reason}
        is_new = self._tx.changed("mail.release_reservation", values) > 0
        released = self._load_stored(reservation_id)
        if is_new:
            self._events.released(released, now, by)
        return released

    def expire_reservations(self, project_id: int, now: int) -> list[Reservation]:
        """End some of the reservations of a project that have expired, and return them, oldest first."""
        over = self._all(Reservation, "mail.expired_reservations", project_id=project_id, now=now)
        self._tx.run_many("mail.expire_reservation", [{"id": reservation.id} for reservation in over])
        for expired in over:
            self._events.expired(expired, now)
        return over

    def _load_stored(self, reservation_id: int) -> Reservation:
        reservation = self.reservation(reservation_id)
        if reservation is None:
            raise _unknown(UnknownReservation, reservation_id)
        return reservation

    def put_token(self, token: KeptToken) -> None:
        """Store a new or changed token.

        Raises:
            StoreError: The name or the hash is in use, or the project does not exist.
        """
        values = {name: getattr(token, name) for name in _OF_TOKENS}
        self._tx.run("mail.put_token", {**values, "scopes": " ".join(sorted(token.scopes))})

    def put_login_code(self, hashed: str, *, ends_at: int, most: int) -> None:
        """Store the hash of a login code, which can be used once.

        If more than `most` codes exist, the codes that expire first are deleted.
        """
        self._tx.run("mail.put_login_code", {"hash": hashed, "ends_at": ends_at})
        self._tx.run("mail.drop_login_codes", {"most": most})

    def take_login_code(self, hashed: str) -> int | None:
        """Delete a login code, and return the time when the code expires, or None for an unknown code."""
        row = self._tx.one("mail.take_login_code", {"hash": hashed})
        return row[0] if row else None

    def end_session(self, hashed: str, *, ends_at: int) -> None:
        """Record that a person logged out of a web session; the record is kept until `ends_at`."""
        self._tx.run("mail.drop_ended_sessions", {"now": self.now()})
        self._tx.run("mail.end_session", {"hash": hashed, "ends_at": ends_at})

    def drop_push_of_session(self, form_token: str) -> None:
        """Delete the Web Push subscriptions that were made in a web session."""
        self._tx.run("push.drop_session", {"form_token": form_token})

    def note_token_uses(self, uses: Mapping[str, int]) -> None:
        """Record when tokens were last used, keyed by token id; unknown ids and earlier times are ignored."""
        rows = [{"id": token_id, "used_at": used_at} for token_id, used_at in sorted(uses.items())]
        self._tx.run_many("mail.note_token_use", rows)

    def put_trace(self, name: str, traceparent: str) -> None:
        """Store the position in a trace under a name.

        Raises:
            StoreError: The text does not have the length of a traceparent.
        """
        self._tx.run("mail.put_trace", {"name": name, "traceparent": traceparent})

    def drop_traces(self, names: Sequence[str]) -> None:
        """Delete the stored traces that have these names."""
        self._tx.run("mail.drop_traces", {"names": names})

    def trim_log(self, project_id: int, *, keep: int, limit: int) -> int:
        """Delete up to `limit` of the oldest entries in a project's log; return the number deleted.

        The newest `keep` entries are kept, at least 1.
        """
        self._events.lock([project_id])
        return self._log.trim(EventScope.project(project_id).key, keep=keep, limit=limit)

    def insert_answer(self, scope: str, key: str, digest: str, answer: bytes, now: int) -> None:
        """Store the result of the first call with an idempotency key."""
        values = {"scope": scope, "key": key, "digest": digest, "answer": answer, "now": now}
        self._tx.run("mail.insert_answer", values)

    def purge_answers(self, before: int, *, limit: int) -> int:
        """Delete up to `limit` stored results of calls from before a time; return the number deleted."""
        return self._tx.changed("mail.purge_answers", {"before": before, "limit": limit})


class MailWrites(RecordWrites, MailReads, MergingWrites, ProjectWrites):
    """Reads and changes mail in one transaction."""

    @override
    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        values = {
            "slug": slug,
            "human_key": human_key,
            "spelling": spelling,
            "git_identity": git_identity,
            "owner": owner,
            "now": now,
        }
        [made] = self._all(Project, "mail.insert_project", **values)
        self._events.project_made(made.id, now)
        return made

    @override
    def add_project_alias(self, project_id: int, human_key: str) -> None:
        self._tx.run("mail.add_project_alias", {"human_key": human_key, "project_id": project_id})

    def restore_rows(
        self, rows: Mapping[str, Sequence[Mapping[str, object]]], logs: Mapping[str, int] | None = None
    ) -> None:
        """Store complete rows with their ids, keyed by table, to rebuild a store from an archive.

        `logs` contains the last used number of each project's log, keyed by slug.

        Raises:
            StateError: The store already contains rows.
        """
        if self._tx.one("mail.any_project"):
            raise StateError(
                "the database already contains mail", remedy="rebuild into a new, empty database"
            )
        if unknown := rows.keys() - TABLES.keys():
            raise StateError(
                f"{sorted(unknown)} cannot be rebuilt",
                value=sorted(unknown),
                remedy="use the release of postroom that wrote the archive, or a newer release",
            )
        for table in TABLES:
            self._tx.run_many(f"mail.restore_{table}", [whole(table, row) for row in rows.get(table, ())])
        search_index.fill(self._tx)
        for slug, newest in (logs or {}).items():
            if made := self.project(slug):
                self._events.project_made(made.id, made.created_at)
                scope = EventScope.project(made.id).key
                self._tx.run("merging.move_log", {"scope": scope, "into": scope, "by": newest})
                self._tx.run("merging.number_log", {"scope": scope})


def _agent_key(project_id: int, name: str) -> Look:
    return "mail.agent_named", {"project_id": project_id, "name_key": name.casefold()}


def _unknown(kind: type[InputError], row_id: object) -> InputError:
    return kind(f"no record has the id {row_id}", value=row_id)


def _inbox_entry(row: Row) -> InboxEntry:
    kind, seq, read_at, acked_at = row[-4:]
    return InboxEntry(message=message_of(row), kind=kind, seq=seq, read_at=read_at, acked_at=acked_at)


def _near(project_id: int, now: int, near: str | None) -> dict[str, object]:
    """Return the parameters that select reservations with an ancestor or a descendant of `near`."""
    parts = near.split("/") if near else []
    ancestors = ["", *("/".join(parts[: count + 1]) for count in range(len(parts)))]
    return {
        "project_id": project_id,
        "now": now,
        "anywhere": not near,
        "ancestors": ancestors if near else [],
        "below": f"{near}/",
        "beyond": f"{near}0",  # "0" follows "/" in every encoding
    }


def _token(row: Row) -> KeptToken:
    values = dict(zip(_OF_TOKENS, row, strict=True))
    return KeptToken(**{**values, "scopes": frozenset(values["scopes"].split(" "))})


def _entry(project_id: int, seq: int, kind: str, at: int, payload: str, event_id: str) -> ProjectEvent:
    """Create an event from a row of the statement `project_log.entries`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    try:
        fields = decode_json(payload, where="payload")
    except StoreCorrupt as error:
        raise unreadable("event", event_id, error) from error
    happening = Happening(
        kind=cast("EventKind", kind),
        at=at,
        agent_id=fields["agent_id"],
        message_id=fields["message_id"],
        reservation_id=fields["reservation_id"],
        run_id=fields["run_id"],
        detail=fields["detail"],
    )
    return ProjectEvent(project_id=project_id, seq=seq, happening=happening)
