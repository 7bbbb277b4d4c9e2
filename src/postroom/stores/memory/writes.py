"""The changes of the mail port over tables in memory. Decides nothing: rules live in the mail room."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from postroom.contracts.errors import (
    InputError,
    StateError,
    StoreError,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    UnknownReservation,
)
from postroom.contracts.mail import (
    Agent,
    Attachment,
    ContactLink,
    ContactPolicy,
    ContactStatus,
    Importance,
    Message,
    Project,
    RecipientKind,
    Reservation,
)
from postroom.stores.memory.announcing import MemoryAnnouncingWrites
from postroom.stores.memory.effects import MemoryEffectWrites
from postroom.stores.memory.reads import MemoryReads
from postroom.stores.memory.restore import restore
from postroom.stores.memory.tables import Enclosure, Letter, R, Tables
from postroom.stores.memory.tokens import MemoryTokenWrites
from postroom.stores.memory.traces import MemoryTraceWrites
from postroom.stores.memory.waking import MemoryWakingWrites
from postroom.stores.telling import EventRecorder

_EXPIRED_AT_ONCE = 100


class MemoryWrites(
    MemoryReads,
    MemoryAnnouncingWrites,
    MemoryTokenWrites,
    MemoryTraceWrites,
    MemoryWakingWrites,
    MemoryEffectWrites,
):
    """Look-ups and changes within one transaction."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        EventRecorder.__init__(self)

    def lock_projects(self, project_ids: Iterable[int]) -> None:
        """Keep nobody out: one change runs at a time."""

    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        """Store a project whose path and slug nobody has."""
        projects = self._tables.projects
        _insist(projects.one("slug", slug) is None, "a project with this slug is there", slug)
        _insist(projects.one("path", human_key) is None, "a project with this path is there", human_key)
        project = Project(
            id=self._tables.next_number("projects"),
            slug=slug,
            human_key=human_key,
            created_at=now,
            spelling=spelling,
            git_identity=git_identity,
            owner=owner,
        )
        projects.insert(project.id, project)
        self._tell_made(project.id, now)
        return project

    def add_project_alias(self, project_id: int, human_key: str) -> None:
        """Let another spelling of the path name the project."""
        if human_key not in self._tables.aliases:
            self._insist_on_project(project_id)
            self._tables.aliases.put(human_key, project_id)

    def set_git_identity(self, project_id: int, git_identity: str) -> None:
        """Record the remote and root commit by which the project's folder is known."""
        project = _there(self.project_by_id(project_id), UnknownProject, project_id)
        self._tables.projects.put(project_id, replace(project, git_identity=git_identity))

    def insert_agent(
        self, project_id: int, *, name: str, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Store an agent whose name nobody has in the project."""
        self._insist_on_project(project_id)
        _insist(self.agent(project_id, name) is None, "an agent with this name is there", name)
        agent = Agent(
            id=self._tables.next_number("agents"),
            project_id=project_id,
            name=name,
            program=program,
            model=model,
            task_description=task_description,
            created_at=now,
            last_active_at=now,
        )
        self._tables.agents.insert(agent.id, agent)
        self._tell_registered(agent)
        return agent

    def update_agent(
        self, agent_id: int, *, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Replace what an agent says of itself, and note its activity."""
        agent = self._agent(agent_id)
        says = replace(agent, program=program, model=model, task_description=task_description)
        if says != agent:
            self._tell_of_agent("agent.changed", agent_id, now)
        return self._put_agent(replace(says, last_active_at=max(agent.last_active_at, now)))

    def set_agent_retired(self, agent_id: int, retired_at: int | None, *, now: int) -> None:
        """Retire an agent at an instant, or bring it back with None."""
        before = self._agent(agent_id)
        self._put_agent(replace(before, retired_at=retired_at))
        self._tell_retired(before, retired_at, now)

    def set_agent_token(self, agent_id: int, token_hash: str | None) -> None:
        """Replace an agent's token; None revokes it."""
        agent = self._agent(agent_id)
        bearer = self.agent_by_token(token_hash) if token_hash is not None else None
        _insist(bearer is None or bearer.id == agent_id, "another agent has this token", agent_id)
        self._put_agent(replace(agent, token_hash=token_hash))

    def set_contact_policy(self, agent_id: int, policy: ContactPolicy, *, now: int) -> None:
        """Say whose mail an agent takes."""
        _insist(policy in get_args(ContactPolicy), "there is no such contact policy", policy)
        before = self._agent(agent_id)
        self._put_agent(replace(before, contact_policy=policy))
        self._tell_policy(before, policy, now)

    def touch_agent(self, agent_id: int, now: int) -> None:
        """Note an agent's activity and extend its live reservations by their own length."""
        agent = self._agent(agent_id)
        self._put_agent(replace(agent, last_active_at=max(agent.last_active_at, now)))
        for held in self._tables.reservations.where("held_by", agent_id):
            if held.released_at is None and held.expires_at > now:
                self._put_reservation(replace(held, expires_at=max(held.expires_at, now + held.ttl)))

    def insert_message(  # noqa: PLR0913 - the port's own list of columns
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
        """Store a message; without a thread it begins one named after its id."""
        _insist(importance in get_args(Importance), "there is no such importance", importance)
        message_id = self._tables.next_number("messages")
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
        self._tables.messages.insert(message_id, message)
        self._tell_sent(message)
        return message

    def insert_recipient(self, message_id: int, agent: Agent, kind: RecipientKind) -> int:
        """Store a recipient and return the letter's sequence number in that inbox."""
        stored = self._agent(agent.id)
        _insist(message_id in self._tables.messages, "there is no such message", message_id)
        _insist(kind in get_args(RecipientKind), "there is no such kind of recipient", kind)
        _insist(self._copy(message_id, agent.id) is None, "the agent is named already", agent.name)
        letter = Letter(
            message_id=message_id,
            agent_id=agent.id,
            kind=kind,
            seq=stored.inbox_seq + 1,
            position=len(self._tables.letters.where("message", message_id)),
        )
        self._put_agent(replace(stored, inbox_seq=letter.seq))
        self._tables.letters.insert((agent.id, letter.seq), letter)
        self._tell_reached(message_id, agent, kind)
        return letter.seq

    def mark_read(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the read mark unless it is set; return it, or None when the agent is no recipient."""
        letter = self._copy(message_id, agent_id)
        if letter is None:
            return None
        if letter.read_at is None:
            self._tell_delivery("delivery.read", message_id, agent_id, letter.kind, now)
        return self._put_letter(replace(letter, read_at=_first_of(letter.read_at, now))).read_at

    def mark_acked(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the acknowledgement (and the read mark) unless set; return it, or None for no recipient."""
        self.mark_read(message_id, agent_id, now)
        letter = self._copy(message_id, agent_id)
        if letter is None:
            return None
        if letter.acked_at is None:
            self._tell_delivery("delivery.acknowledged", message_id, agent_id, letter.kind, now)
        return self._put_letter(replace(letter, acked_at=_first_of(letter.acked_at, now))).acked_at

    def mark_recalled(self, message_id: int, now: int) -> None:
        """Recall a message: its text is erased here and from search; the entry stays."""
        message = _there(self.message(message_id), UnknownMessage, message_id)
        if message.recalled_at is None:
            self._tell_recalled(message, now)
        recalled_at = _first_of(message.recalled_at, now)
        erased = replace(message, recalled_at=recalled_at, subject="", body_md="", topic="")
        self._tables.messages.put(message_id, erased)
        for enclosure in self._tables.enclosures.where("message", message_id):
            self._tables.enclosures.drop((message_id, enclosure.position))
            self._drop_if_orphan(enclosure.attachment.sha256)
            self._drop_if_orphan(enclosure.attachment.preview_sha256)

    def insert_blob(self, sha256: str, content: bytes) -> None:
        """Store bytes under their SHA-256; harmless when they are there."""
        if sha256 not in self._tables.blobs:
            self._tables.blobs.put(sha256, bytes(content))

    def insert_attachment(self, message_id: int, attachment: Attachment) -> None:
        """Attach stored bytes to a message."""
        _insist(message_id in self._tables.messages, "there is no such message", message_id)
        for sha256 in (attachment.sha256, attachment.preview_sha256):
            _insist(sha256 is None or sha256 in self._tables.blobs, "these bytes are not stored", sha256)
        position = len(self._tables.enclosures.where("message", message_id))
        row = Enclosure(message_id=message_id, position=position, attachment=attachment)
        self._tables.enclosures.insert((message_id, position), row)

    def insert_reservation(  # noqa: PLR0913 - the port's own list of columns
        self, agent: Agent, *, pattern: str, prefix: str, exclusive: bool, reason: str, ttl: int, now: int
    ) -> Reservation:
        """Store a live reservation of `ttl` milliseconds."""
        self._insist_on_agent(agent.id)
        _insist(ttl > 0, "a reservation has a length", ttl)
        reservation = Reservation(
            id=self._tables.next_number("reservations"),
            project_id=agent.project_id,
            agent_id=agent.id,
            holder=agent.name,
            pattern=pattern,
            prefix=prefix,
            exclusive=exclusive,
            reason=reason,
            created_at=now,
            expires_at=now + ttl,
            ttl=ttl,
        )
        self._tables.reservations.insert(reservation.id, reservation)
        self._tell_reserved("reservation.made", reservation, now)
        return reservation

    def extend_reservation(
        self, reservation_id: int, *, expires_at: int, ttl: int, exclusive: bool, reason: str, now: int
    ) -> Reservation:
        """Move the end of a reservation and replace its terms."""
        held = self._reservation(reservation_id)
        _insist(ttl > 0, "a reservation has a length", ttl)
        terms = replace(held, expires_at=expires_at, ttl=ttl, exclusive=exclusive, reason=reason)
        self._tell_reserved("reservation.renewed", terms, now)
        return self._put_reservation(terms)

    def release_reservation(self, reservation_id: int, *, now: int, by: str, reason: str) -> Reservation:
        """End a reservation that is live."""
        held = self._reservation(reservation_id)
        if held.released_at is not None:
            return held
        self._tell_released(held, now, by)
        return self._put_reservation(replace(held, released_at=now, released_by=by, release_reason=reason))

    def expire_reservations(self, project_id: int, now: int) -> list[Reservation]:
        """End those whose time is over and return them, oldest first, at most a hundred a call."""
        unreleased = self._tables.reservations.where("open_in", project_id)
        over = sorted(
            (row for row in unreleased if row.expires_at <= now), key=lambda row: (row.expires_at, row.id)
        )
        for row in over[:_EXPIRED_AT_ONCE]:
            self._tell_expired(row, now)
        return [
            self._put_reservation(replace(row, released_at=row.expires_at, release_reason="expired"))
            for row in over[:_EXPIRED_AT_ONCE]
        ]

    def put_contact(
        self, from_id: int, to_id: int, *, status: ContactStatus, reason: str, now: int
    ) -> ContactLink:
        """Store or replace what `from_id` asks of, or is granted by, `to_id`."""
        self._insist_on_agent(from_id)
        self._insist_on_agent(to_id)
        _insist(status in get_args(ContactStatus), "there is no such status", status)
        before = self.contact(from_id, to_id)
        link = ContactLink(
            from_id=from_id,
            to_id=to_id,
            status=status,
            reason=reason,
            created_at=before.created_at if before else now,
            decided_at=None if status == "pending" else now,
        )
        self._tell_contact(before, link, now)
        return self._tables.contacts.put((from_id, to_id), link)

    def restore_rows(self, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        """Store whole rows by table with their ids, for rebuilding from an archive."""
        if len(self._tables.projects):
            raise StateError("the store already holds mail", remedy="rebuild into a new, empty store")
        restore(self._tables, rows)

    def _agent(self, agent_id: int) -> Agent:
        return _there(self._tables.agents.get(agent_id), UnknownAgent, agent_id)

    def _reservation(self, reservation_id: int) -> Reservation:
        return _there(self.reservation(reservation_id), UnknownReservation, reservation_id)

    def _copy(self, message_id: int, agent_id: int) -> Letter | None:
        return self._tables.letters.one("copy", (message_id, agent_id))

    def _put_agent(self, agent: Agent) -> Agent:
        return self._tables.agents.put(agent.id, agent)

    def _put_letter(self, letter: Letter) -> Letter:
        return self._tables.letters.put((letter.agent_id, letter.seq), letter)

    def _put_reservation(self, reservation: Reservation) -> Reservation:
        return self._tables.reservations.put(reservation.id, reservation)

    def _drop_if_orphan(self, sha256: str | None) -> None:
        enclosures = self._tables.enclosures
        if sha256 and not enclosures.where("blob", sha256) and not enclosures.where("preview", sha256):
            self._tables.blobs.drop(sha256)

    def _insist_on_project(self, project_id: int) -> None:
        _insist(project_id in self._tables.projects, "there is no such project", project_id)

    def _insist_on_agent(self, agent_id: int) -> None:
        _insist(agent_id in self._tables.agents, "there is no such agent", agent_id)


def _insist(fits: bool, otherwise: str, value: object) -> None:
    if not fits:
        raise StoreError(f"the store refused: {otherwise}", value=value)


def _there(row: R | None, kind: type[InputError], row_id: int) -> R:
    if row is None:
        raise kind(f"nothing has the id {row_id}", value=row_id)
    return row


def _first_of(mark: int | None, now: int) -> int:
    return now if mark is None else mark
