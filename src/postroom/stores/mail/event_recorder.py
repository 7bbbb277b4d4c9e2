"""Records the effects of one change of mail in the logs of projects, within its transaction."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from postroom.contracts.choices import ContactPolicy, RecipientKind
from postroom.contracts.mail import Agent, ContactLink, Message, Reservation
from postroom.contracts.project_log import HIDDEN, OF_CONTACT, OTHER, Detail, EventKind, Happening
from postroom.contracts.tasks import Task
from postroom.contracts.waking import MessageRun
from postroom.stores.events import EventTables
from postroom.stores.sql_transaction import SqlTransaction


@dataclass(slots=True, eq=False)
class EventRecorder:
    """Writes the entries of one change, each with the next number of its log. One object per change."""

    _tx: SqlTransaction
    _log: EventTables
    _lock: Callable[..., None]
    _locked: set[int] = field(default_factory=set)
    _sent: dict[int, tuple[Happening, set[int]]] = field(default_factory=dict)
    """The messages of this change, and the projects whose logs contain each."""
    _concerned: dict[tuple[int | None, int | None, int | None], list[int]] = field(default_factory=dict)
    _homes: dict[tuple[str, int | None], int] = field(default_factory=dict)
    """The projects of messages and agents that this change has read or written."""
    _kinds: dict[tuple[int, int], RecipientKind] = field(default_factory=dict)
    """The kinds of the deliveries that this change has read or written, by message and agent."""

    def know_agent(self, agent: Agent) -> None:
        """Remember the project of an agent until the change ends."""
        self._homes["agent", agent.id] = agent.project_id

    def know_delivery(self, message_id: int, project_id: int, agent_id: int, kind: RecipientKind) -> None:
        """Remember the project of a message, and the kind of its delivery, until the change ends."""
        self._homes["message", message_id] = project_id
        self._kinds[message_id, agent_id] = kind

    def kind_of(self, message_id: int, agent_id: int) -> RecipientKind | None:
        """Return the kind of a delivery; None if the agent did not receive the message."""
        if (message_id, agent_id) not in self._kinds:
            row = self._tx.one("mail.recipient_kind", {"message_id": message_id, "agent_id": agent_id})
            if row is None:
                return None
            self._kinds[message_id, agent_id] = row[0]
        return self._kinds[message_id, agent_id]

    def lock(self, project_ids: Iterable[int]) -> None:
        """Lock these projects, so that only this change numbers their logs."""
        if missing := set(project_ids) - self._locked:
            self._locked |= missing
            self._lock(*map("project:{}".format, sorted(missing)))

    def lock_concerned(self, message_id: int, agent_id: int) -> None:
        """Lock the projects whose logs will contain a delivery, before its row is written."""
        self.lock(self._projects_concerned(message_id, agent_id, None))

    def project_made(self, project_id: int, now: int) -> None:
        """Record the creation of a project."""
        self._record([project_id], Happening(kind="project.made", at=now))

    def project_merged(self, project_id: int, former: str, now: int) -> None:
        """Record the merge of another project, with its former slug, into this one."""
        self._record([project_id], Happening(kind="project.merged", at=now, detail={"former": former}))

    def agent_registered(self, agent: Agent) -> None:
        """Record the registration of an agent."""
        happening = Happening(kind="agent.registered", at=agent.created_at, agent_id=agent.id)
        self._record([agent.project_id], happening)

    def agent_retired(self, before: Agent | None, retired_at: int | None, now: int) -> None:
        """Record that an agent was retired or unretired, unless nothing changed."""
        if before is not None and (before.retired_at is None) != (retired_at is None):
            self.of_agent("agent.unretired" if retired_at is None else "agent.retired", before.id, now)

    def policy_set(self, before: Agent | None, policy: ContactPolicy, now: int) -> None:
        """Record a new contact policy of an agent, unless nothing changed."""
        if before is not None and before.contact_policy != policy:
            self.of_agent("agent.policy_set", before.id, now)

    def of_agent(self, kind: EventKind, agent_id: int, now: int) -> None:
        """Record an event of an agent in the log of its project."""
        self._record_where_concerned(Happening(kind=kind, at=now, agent_id=agent_id))

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
        """Record a message of this change in the log of a recipient's project.

        Hidden recipients come last.
        """
        self.know_agent(reader)
        self._kinds[message_id, reader.id] = kind
        happening, told = self._sent.get(message_id, (None, set[int]()))
        if happening is not None and reader.project_id not in told:
            told.add(reader.project_id)
            self._record([reader.project_id], _hidden(happening, is_hidden=kind == "bcc"))

    def recalled(self, message: Message, now: int) -> None:
        """Record the recall of a message in the logs that contain it."""
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
        """Lock a project and the projects of its messages' recipients.

        Return the messages that other projects know of, each with the project; hidden copies do not count.
        """
        reached = self._tx.all("project_log.projects_reached_by", {"ids": message_ids})
        self.lock([project_id, *(row[1] for row in reached)])
        return [(row[0], row[1]) for row in reached if row[1] != project_id and not row[2]]

    def deleted(
        self, project_id: int, message_ids: Sequence[int], elsewhere: Sequence[tuple[int, int]], now: int
    ) -> None:
        """Record the deletion of messages, in one entry of each log that contains them."""
        told = {project_id: list(message_ids)}
        for message_id, other in elsewhere:
            if message_id in told[project_id]:
                told.setdefault(other, []).append(message_id)
        for concerned, ids in sorted(told.items()):
            detail: Detail = {"messages": len(ids), "ids": " ".join(map(str, ids))}
            self._record([concerned], Happening(kind="message.deleted", at=now, detail=detail))

    def delivery(
        self, kind: EventKind, message_id: int, agent_id: int, reader: RecipientKind, now: int, by: str = ""
    ) -> None:
        """Record one step of a delivery, in the logs of the message's project and the recipient's."""
        happening = Happening(
            kind=kind, at=now, agent_id=agent_id, message_id=message_id, detail={"by": by} if by else {}
        )
        self._record_where_concerned(_hidden(happening, is_hidden=reader == "bcc"))

    def of_message_run(self, message_run: MessageRun, reader: RecipientKind) -> None:
        """Record the state of a message in a run."""
        kind: EventKind = "delivery.handled"
        if message_run.ended_at is None:
            kind = "delivery.delivered"
        elif message_run.failure:
            kind = "delivery.failed"
        happening = Happening(
            kind=kind,
            at=message_run.delivered_at if message_run.ended_at is None else message_run.ended_at,
            agent_id=message_run.agent_id,
            message_id=message_run.message_id,
            run_id=message_run.run_id,
        )
        self._record_where_concerned(_hidden(happening, is_hidden=reader == "bcc"))

    def reserved(self, kind: EventKind, reservation: Reservation, now: int) -> None:
        """Record that a reservation was made or renewed."""
        detail: Detail = {"path": reservation.pattern, "exclusive": reservation.exclusive}
        self._of_reservation(kind, reservation, now, detail)

    def expired(self, reservation: Reservation, now: int) -> None:
        """Record that a reservation has expired, when a change notices it."""
        self._of_reservation("reservation.expired", reservation, now, {"path": reservation.pattern})

    def released(self, reservation: Reservation, now: int, by: str) -> None:
        """Record that its holder released a reservation, or another agent took it."""
        taken = by.casefold() != reservation.holder.casefold()
        detail = {"path": reservation.pattern, **({"by": by} if taken else {})}
        kind: EventKind = "reservation.taken" if taken else "reservation.released"
        self._of_reservation(kind, reservation, now, detail)

    def of_task(self, kind: EventKind, task: Task, agent_id: int | None, now: int) -> None:
        """Record an event of a task with its epoch; without an agent, nobody caused it."""
        detail: Detail = {"task_id": task.id, "epoch": task.epoch}
        self._record([task.project_id], Happening(kind=kind, at=now, agent_id=agent_id, detail=detail))

    def contact(self, before: ContactLink | None, link: ContactLink, now: int) -> None:
        """Record a contact with its actor.

        The requesting agent for a request, the other one for a decision.
        """
        if before is not None and before.status == link.status:
            return
        asks = link.status == "pending"
        who, other = (link.from_id, link.to_id) if asks else (link.to_id, link.from_id)
        happening = Happening(kind=OF_CONTACT[link.status], at=now, agent_id=who, detail={OTHER: other})
        self._record_where_concerned(happening, other_id=other)

    def of_run(self, kind: EventKind, run_id: str, agent_id: int, now: int, question_id: str = "") -> None:
        """Record an event of an agent's run."""
        detail = {"question_id": question_id} if question_id else {}
        happening = Happening(kind=kind, at=now, agent_id=agent_id, run_id=run_id, detail=detail)
        self._record_where_concerned(happening)

    def run_began(self, run_id: str, agent_id: int, now: int, answered: Sequence[str]) -> None:
        """Record the start of a run, with the answers to these questions."""
        for question_id in answered:
            self.of_run("question.answered", run_id, agent_id, now, question_id)
        self.of_run("run.began", run_id, agent_id, now)

    def _of_reservation(self, kind: EventKind, reservation: Reservation, now: int, detail: Detail) -> None:
        happening = Happening(
            kind=kind,
            at=now,
            agent_id=reservation.agent_id,
            reservation_id=reservation.id,
            detail=detail,
        )
        self._record([reservation.project_id], happening)

    def _record_where_concerned(self, happening: Happening, *, other_id: int | None = None) -> None:
        """Write an entry once for each project of the message, of the agent and of the other agent."""
        self._record(self._projects_concerned(happening.message_id, happening.agent_id, other_id), happening)

    def _projects_concerned(
        self, message_id: int | None, agent_id: int | None, other_id: int | None
    ) -> list[int]:
        asked = message_id, agent_id, other_id
        if asked not in self._concerned:
            named = [
                pair for pair in zip(("message", "agent", "agent"), asked, strict=True) if pair[1] is not None
            ]
            homes = {self._homes[pair] for pair in named if pair in self._homes}
            if any(pair not in self._homes for pair in named):
                values = dict(zip(("message_id", "agent_id", "other_id"), asked, strict=True))
                homes = {row[0] for row in self._tx.all("project_log.projects_concerned", values)}
            self._concerned[asked] = sorted(homes)
        return self._concerned[asked]

    def _record(self, project_ids: Sequence[int], happening: Happening) -> None:
        self.lock(project_ids)
        told = {
            "agent_id": happening.agent_id,
            "message_id": happening.message_id,
            "reservation_id": happening.reservation_id,
            "run_id": happening.run_id,
            "detail": dict(happening.detail),
        }
        for project_id in project_ids:  # who sees it is decided by `mail.event_log`
            self._log.note(f"project:{project_id}", happening.kind, told, origin="mail", at=happening.at)


def _hidden(happening: Happening, *, is_hidden: bool) -> Happening:
    return replace(happening, detail={**happening.detail, HIDDEN: True}) if is_hidden else happening
