"""What changes of mail tell the logs of projects: one rule for every store, called by the change itself.

The two who write, `_record` and `_record_of_agents`, are each store's own; so is the look at whom a letter
reached.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.mail import Agent, ContactLink, ContactPolicy, Message, RecipientKind, Reservation
from postroom.contracts.project_log import HIDDEN, OF_CONTACT, OTHER, Detail, EventKind, Happening
from postroom.contracts.waking import Handling


class EventRecorder(ABC):
    """Tells the logs what one change does, within its transaction; one object a change."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Happening, set[int]]] = {}
        """The letters of this change, and the projects whose logs tell of each."""

    @abstractmethod
    def _record(self, project_id: int, happening: Happening) -> None:
        """Write an entry into a project's log, with its next number."""

    @abstractmethod
    def _record_of_agents(self, happening: Happening, *, other_id: int | None = None) -> None:
        """Write it once for each project of the letter, of the agent and of the other agent."""

    @abstractmethod
    def _projects_reached(self, message_id: int) -> Sequence[tuple[int, bool]]:
        """Return the projects of a letter's readers, and whether a project has hidden readers only."""

    def _tell_made(self, project_id: int, now: int) -> None:
        self._record(project_id, Happening(kind="project.made", at=now))

    def _tell_registered(self, agent: Agent) -> None:
        happening = Happening(kind="agent.registered", at=agent.created_at, agent_id=agent.id)
        self._record(agent.project_id, happening)

    def _tell_retired(self, before: Agent | None, retired_at: int | None, now: int) -> None:
        if before is not None and (before.retired_at is None) != (retired_at is None):
            self._tell_of_agent("agent.unretired" if retired_at is None else "agent.retired", before.id, now)

    def _tell_policy(self, before: Agent | None, policy: ContactPolicy, now: int) -> None:
        if before is not None and before.contact_policy != policy:
            self._tell_of_agent("agent.policy_set", before.id, now)

    def _tell_of_agent(self, kind: EventKind, agent_id: int, now: int) -> None:
        self._record_of_agents(Happening(kind=kind, at=now, agent_id=agent_id))

    def _tell_sent(self, message: Message) -> None:
        happening = Happening(
            kind="message.sent",
            at=message.created_at,
            agent_id=message.sender_id,
            message_id=message.id,
            detail={"thread_id": message.thread_id, "importance": message.importance},
        )
        self._sent[message.id] = (happening, {message.project_id})
        self._record(message.project_id, happening)

    def _tell_reached(self, message_id: int, reader: Agent, kind: RecipientKind) -> None:
        """Tell of a letter of this change in the log of a reader's project; hidden readers come last."""
        happening, told = self._sent.get(message_id, (None, set[int]()))
        if happening is not None and reader.project_id not in told:
            told.add(reader.project_id)
            self._record(reader.project_id, _hidden(happening, is_hidden=kind == "bcc"))

    def _tell_recalled(self, message: Message, now: int) -> None:
        happening = Happening(
            kind="message.recalled", at=now, agent_id=message.sender_id, message_id=message.id
        )
        self._record(message.project_id, happening)
        for project_id, is_hidden in self._projects_reached(message.id):
            if project_id != message.project_id:
                self._record(project_id, _hidden(happening, is_hidden=is_hidden))

    def _tell_delivery(
        self, kind: EventKind, message_id: int, agent_id: int, reader: RecipientKind, now: int, by: str = ""
    ) -> None:
        happening = Happening(
            kind=kind,
            at=now,
            agent_id=agent_id,
            message_id=message_id,
            detail={"by": by} if by else {},
        )
        self._record_of_agents(_hidden(happening, is_hidden=reader == "bcc"))

    def _tell_handling(self, handling: Handling, reader: RecipientKind) -> None:
        kind: EventKind = "delivery.handled"
        if handling.ended_at is None:
            kind = "delivery.injected"
        elif handling.failure:
            kind = "delivery.failed"
        happening = Happening(
            kind=kind,
            at=handling.injected_at if handling.ended_at is None else handling.ended_at,
            agent_id=handling.agent_id,
            message_id=handling.message_id,
            run_id=handling.run_id,
        )
        self._record_of_agents(_hidden(happening, is_hidden=reader == "bcc"))

    def _tell_reserved(self, kind: EventKind, one: Reservation, now: int) -> None:
        self._tell_of_reservation(kind, one, now, {"path": one.pattern, "exclusive": one.exclusive})

    def _tell_expired(self, one: Reservation, now: int) -> None:
        self._tell_of_reservation("reservation.expired", one, now, {"path": one.pattern})

    def _tell_released(self, one: Reservation, now: int, by: str) -> None:
        taken = by.casefold() != one.holder.casefold()
        detail = {"path": one.pattern, **({"by": by} if taken else {})}
        self._tell_of_reservation("reservation.taken" if taken else "reservation.released", one, now, detail)

    def _tell_of_reservation(self, kind: EventKind, one: Reservation, now: int, detail: Detail) -> None:
        happening = Happening(kind=kind, at=now, agent_id=one.agent_id, reservation_id=one.id, detail=detail)
        self._record(one.project_id, happening)

    def _tell_contact(self, before: ContactLink | None, link: ContactLink, now: int) -> None:
        """Tell who did something: who asks when it is asked, who was asked when it is decided."""
        if before is not None and before.status == link.status:
            return
        asks = link.status == "pending"
        who, other = (link.from_id, link.to_id) if asks else (link.to_id, link.from_id)
        happening = Happening(kind=OF_CONTACT[link.status], at=now, agent_id=who, detail={OTHER: other})
        self._record_of_agents(happening, other_id=other)

    def _tell_run(self, kind: EventKind, run_id: str, agent_id: int, now: int, question_id: str = "") -> None:
        detail = {"question_id": question_id} if question_id else {}
        self._record_of_agents(Happening(kind=kind, at=now, agent_id=agent_id, run_id=run_id, detail=detail))

    def _tell_cut_off(self, run_id: str, agent_id: int, now: int) -> None:
        """Tell that a run lost its lease, or its server, while it was at work: it is begun anew."""
        self._tell_run("run.cut_off", run_id, agent_id, now)

    def _tell_begun(self, run_id: str, agent_id: int, now: int, answered: Sequence[str]) -> None:
        for question_id in answered:
            self._tell_run("pause.answered", run_id, agent_id, now, question_id)
        self._tell_run("run.began", run_id, agent_id, now)

    def _tell_ended(
        self,
        run_id: str,
        agent_id: int,
        now: int,
        waits_for: Sequence[str] | None,
        *,
        asks: bool,
        failed: bool,
    ) -> None:
        for question_id in waits_for or ():
            self._tell_run("pause.asked", run_id, agent_id, now, question_id)
        ended: EventKind = "run.paused" if asks or waits_for is not None else "run.ended"
        self._tell_run("run.failed" if failed else ended, run_id, agent_id, now)


def _hidden(happening: Happening, *, is_hidden: bool) -> Happening:
    return replace(happening, detail={**happening.detail, HIDDEN: True}) if is_hidden else happening
