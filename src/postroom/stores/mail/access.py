"""The port behind which mail is stored.

A change is one function over `MailWrites`, run as one transaction: all of it is durable when `write`
returns, or none of it is there. The function is synchronous, quick, free of I/O and may be run again
after a failure, so that it must not touch anything but the transaction. That keeps every rule of the
mail room in one place and gives every store the same atomicity.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from postroom.contracts.announcing import AnnouncingReads, AnnouncingWrites
from postroom.contracts.choices import ContactPolicy, ContactStatus, Importance, RecipientKind, SearchOrder
from postroom.contracts.mail import (
    AddressedAgent,
    Agent,
    Attachment,
    ContactLink,
    InboxEntry,
    LivePattern,
    Message,
    Project,
    ProjectTally,
    Query,
    Reach,
    Received,
    Recipient,
    Reservation,
    SearchHit,
    StoredAnswer,
    ThreadFilter,
    ThreadHead,
    ThreadParticipant,
)
from postroom.contracts.merging import MergingReads, MergingWrites
from postroom.contracts.project_log import ProjectLogReads, ProjectLogWrites
from postroom.contracts.retention import RetentionReads, RetentionWrites
from postroom.contracts.timeline import TimelineReads
from postroom.contracts.tokens import TokenReads, TokenWrites
from postroom.contracts.tracing import TraceReads, TraceWrites
from postroom.contracts.waking import WakingReads, WakingWrites
from postroom.stores.outbox import OutboxTables


class ProjectReads(Protocol):
    """Look-ups of projects by name, and what tells of every project: a caller may be held to one of them."""

    def project(self, key: str) -> Project | None:
        """Return the project with this path, alias or slug."""
        ...

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the projects whose path has this spelling, oldest first."""
        ...

    def projects_of_repository(self, identity: str, *, remote: str = "", root: str = "") -> list[Project]:
        """Return the projects with this identity, remote or first commit; what is empty matches nothing."""
        ...

    def projects_unidentified(self, *, limit: int) -> list[Project]:
        """Return projects whose repository is not known, the newest first."""
        ...

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return projects by id, those after `after`."""
        ...

    def counts(self, *, unread: bool = True) -> dict[str, int]:
        """Return how many rows each kind of record has; to count what is `unread` may take long."""
        ...


class ProjectWrites(ProjectReads, Protocol):
    """New projects, and new names for them."""

    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        """Store a project whose path and slug nobody has."""
        ...

    def add_project_alias(self, project_id: int, human_key: str) -> None:
        """Let another spelling of the path name the project."""
        ...


if TYPE_CHECKING:
    pass

T = TypeVar("T")


class RecordReads(
    AnnouncingReads,
    ProjectLogReads,
    RetentionReads,
    TimelineReads,
    TokenReads,
    TraceReads,
    WakingReads,
    Protocol,
):
    """Look-ups of what belongs to a project, by ids."""

    def now(self) -> int:
        """Return the one instant of this transaction, in ms; it is read behind what was locked so far."""
        ...

    outbox: OutboxTables
    """Effects outside the database."""

    def project_by_id(self, project_id: int) -> Project | None:
        """Return the project with this id."""
        ...

    def agent(self, project_id: int, name: str) -> Agent | None:
        """Return the agent with this name, compared without regard to case."""
        ...

    def agent_addressed(self, project_key: str, name: str) -> AddressedAgent | None:
        """Return the agent with this name in the project that a path, alias or slug names."""
        ...

    def agents_named(self, project_id: int, names: Sequence[str]) -> list[Agent]:
        """Return those agents whose names are among `names`, compared without regard to case."""
        ...

    def agents_by_id(self, agent_ids: Sequence[int]) -> dict[int, Agent]:
        """Return the agents with these ids; unknown ids are left out."""
        ...

    def agents(self, project_id: int, *, include_retired: bool, limit: int, after: int = 0) -> list[Agent]:
        """Return a project's agents by id, those after `after`."""
        ...

    def active_agents(self, project_id: int, *, limit: int) -> list[Agent]:
        """Return agents of a project that are not retired, those active last first."""
        ...

    def agent_by_token(self, token_hash: str) -> Agent | None:
        """Return the agent that this token's hash belongs to."""
        ...

    def message(self, message_id: int) -> Message | None:
        """Return one message."""
        ...

    def messages(self, message_ids: Sequence[int]) -> dict[int, Message]:
        """Return the messages with these ids; unknown ids are left out."""
        ...

    def received(self, agent_id: int, message_ids: Sequence[int]) -> dict[int, Received]:
        """Return those of these messages that an agent received, by message id."""
        ...

    def recipients(self, message_ids: Sequence[int]) -> dict[int, list[Recipient]]:
        """Return every recipient of each message, in the order in which they were named."""
        ...

    def inbox(  # noqa: PLR0913 - what narrows the list
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
        """Return an agent's messages, recalled ones left out.

        With `after` they are those with a greater sequence number, oldest first; without it the newest
        first, and with `before` those with a smaller one. `since` keeps messages sent at or after an instant.
        """
        ...

    def inbox_events(self, agent_id: int, *, after: int, limit: int) -> list[InboxEntry]:
        """Return every entry after a sequence number, recalled ones included, oldest first."""
        ...

    def unread_count(self, agent_id: int) -> int:
        """Return how many messages of the agent are neither read nor recalled."""
        ...

    def thread(self, project_id: int, thread_id: str, *, limit: int, after: int = 0) -> list[Message]:
        """Return a thread's messages in order, those after message id `after`."""
        ...

    def thread_tail(self, project_id: int, thread_id: str, *, limit: int) -> list[Message]:
        """Return the newest messages of a thread, in order."""
        ...

    def thread_size(self, project_id: int, thread_id: str) -> int:
        """Return how many messages a thread holds."""
        ...

    def thread_participants(
        self, project_id: int, thread_id: str, *, home_id: int, among: int
    ) -> list[ThreadParticipant]:
        """Count who wrote and who got the newest `among` messages that a project wrote on a thread, by id.

        Recalled ones do not count, nor hidden copies, nor what did not come to the project `home_id`.
        """
        ...

    def threads(self, project_id: int, *, limit: int, before: int | None = None) -> list[ThreadHead]:
        """Return threads by their newest message, newest first, those older than message id `before`."""
        ...

    def tallies(self, project_ids: Sequence[int], *, most: int) -> list[ProjectTally]:
        """Return how much there is in projects, by id, counted up to `most`."""
        ...

    def wanted_threads(
        self, project_id: int, wanted: ThreadFilter, *, limit: int, among: int, before: int | None = None
    ) -> tuple[list[ThreadHead], int | None]:
        """Return those of the newest `among` threads older than message id `before` that are wanted.

        They come newest first; with them the message id below which to look on, None where nothing is left.
        """
        ...

    def project_messages(self, project_id: int, *, limit: int, after: int = 0) -> list[Message]:
        """Return a project's messages by id, those after `after`."""
        ...

    def newest_messages(self, project_id: int, *, limit: int) -> list[Message]:
        """Return the last messages of a project, by id."""
        ...

    def damaged_messages(self, *, after: int, limit: int) -> tuple[list[int], int | None]:
        """Compare the texts of the `limit` messages after message id `after` with their check values.

        Return the ids of those that differ, and the last id that was compared; None if there was none.
        """
        ...

    def sent_messages(self, agent_id: int, *, limit: int, before: int | None = None) -> list[Message]:
        """Return what an agent sent, recalled messages left out, newest first, with ids below `before`."""
        ...

    def search(
        self, project_id: int, query: Query, *, order: SearchOrder, limit: int, cursor: int = 0
    ) -> list[SearchHit]:
        """Return messages that match, recalled ones left out; await the store's `settle` before.

        `newest`: by id descending, `cursor` is the id to go below (0: from the top). `best`: of the newest
        `BEST_AMONG` that match, by rank, then newest; `cursor` is how many to leave out.
        """
        ...

    def partly_searched(self, project_id: int, query: Query, *, limit: int) -> list[int]:
        """Return the newest messages that a search may have missed: the index has a part of their text.

        It has the first 16,000 characters of scripts without spaces, so other queries miss none.
        """
        ...

    def attachments(self, message_ids: Sequence[int]) -> dict[int, list[Attachment]]:
        """Return the attachments of each message, in order."""
        ...

    def blob(self, sha256: str) -> bytes | None:
        """Return stored bytes by their SHA-256."""
        ...

    def reservation(self, reservation_id: int) -> Reservation | None:
        """Return one reservation, live or not."""
        ...

    def reserved_in(self, place: str, *, now: int) -> list[Reservation]:
        """Return the live reservations that were made in a run or session, by id."""
        ...

    def live_reservations(
        self,
        project_id: int,
        *,
        now: int,
        near: str | None = None,
        agent_id: int | None = None,
        limit: int | None = None,
    ) -> list[Reservation]:
        """Return live reservations by id.

        `near` keeps those whose prefix is a whole-segment prefix of it, or that it is a whole-segment
        prefix of: the only ones whose pattern can overlap one with that prefix.
        """
        ...

    def live_patterns(
        self, project_id: int, *, now: int, near: str, but: int, exclusive_only: bool
    ) -> list[LivePattern]:
        """Return ids and patterns of live reservations, in no order, those of the agent `but` left out.

        `near` means what it means to `live_reservations`; empty, every one may overlap.
        """
        ...

    def reservations_by_id(self, reservation_ids: Sequence[int]) -> list[Reservation]:
        """Return the reservations with these ids, by id, live or not; unknown ids are left out."""
        ...

    def reservations(self, project_id: int, *, limit: int, after: int = 0) -> list[Reservation]:
        """Return every reservation of a project by id, live or not, those after `after`."""
        ...

    def newest_reservations(self, project_id: int, *, limit: int) -> list[Reservation]:
        """Return the last reservations of a project by id, live or not."""
        ...

    def contact(self, from_id: int, to_id: int) -> ContactLink | None:
        """Return what `from_id` has asked of `to_id`."""
        ...

    def contacts(self, agent_id: int) -> list[ContactLink]:
        """Return every link from or to an agent, oldest first."""
        ...

    def reach(self, sender_id: int, reader_ids: Sequence[int]) -> dict[int, Reach]:
        """Return what decides whether and how a sender's message reaches agents; unknown ids are left out."""
        ...

    def answer(self, scope: str, key: str) -> StoredAnswer | None:
        """Return the first answer given under an idempotency key."""
        ...


class MailReads(RecordReads, ProjectReads, MergingReads, Protocol):
    """Look-ups within one consistent view. Absence is None or an empty list."""


class RecordWrites(
    RecordReads,
    AnnouncingWrites,
    ProjectLogWrites,
    RetentionWrites,
    TokenWrites,
    TraceWrites,
    WakingWrites,
    Protocol,
):
    """ChangeNotifier of what belongs to a project.

    Whatever happens to a project, its agents, messages, reservations, contacts and runs is told in its log by
    the change itself (`contracts.project_log`); what changes nothing is not told.
    """

    def lock_projects(self, project_ids: Iterable[int], expected: Iterable[tuple[int, str]] = ()) -> None:
        """Keep other changes of these projects out; first, and all at once.

        `expected` are agents that are looked at next, by project and name: they take no wait of their own.
        """
        ...

    def set_git_identity(self, project_id: int, git_identity: str) -> None:
        """Record the remote and root commit by which the project's folder is known."""
        ...

    def set_project_folder(self, project_id: int, human_key: str, *, spelling: str) -> None:
        """Give the project another folder, which is no other's; the former one stays a name of it."""
        ...

    def insert_agent(
        self, project_id: int, *, name: str, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Store an agent whose name nobody has in the project."""
        ...

    def update_agent(
        self, agent_id: int, *, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Replace what an agent says of itself, and note its activity."""
        ...

    def set_agent_retired(self, agent_id: int, retired_at: int | None, *, now: int) -> None:
        """Retire an agent at an instant, or bring it back with None."""
        ...

    def set_agent_token(self, agent_id: int, token_hash: str | None) -> None:
        """Replace an agent's token; None revokes it."""
        ...

    def set_contact_policy(self, agent_id: int, policy: ContactPolicy, *, now: int) -> None:
        """Say whose mail an agent takes."""
        ...

    def touch_agent(self, agent_id: int, now: int) -> None:
        """Note an agent's activity and extend its live reservations by their own length."""
        ...

    def insert_message(  # noqa: PLR0913 - one column an argument
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
        """Store a message; without a thread it begins one named after its id (`msg-<id>`)."""
        ...

    def insert_recipient(self, message_id: int, agent: Agent, kind: RecipientKind) -> None:
        """Put a message into an inbox, at its next sequence number."""
        ...

    def mark_read(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the read mark unless it is set; return it, or None when the agent is no recipient."""
        ...

    def mark_acked(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the acknowledgement (and the read mark) unless set; return it, or None for no recipient."""
        ...

    def mark_recalled(self, message_id: int, now: int) -> None:
        """Recall a message: its text is erased here and from search; the entry stays."""
        ...

    def insert_blob(self, sha256: str, content: bytes) -> None:
        """Store bytes under their SHA-256; harmless when they are there."""
        ...

    def insert_attachment(self, message_id: int, attachment: Attachment) -> None:
        """Attach stored bytes to a message."""
        ...

    def insert_reservation(  # noqa: PLR0913 - one column an argument
        self, agent: Agent, *, pattern: str, prefix: str, exclusive: bool, reason: str, ttl: int, now: int
    ) -> Reservation:
        """Store a live reservation of `ttl` milliseconds."""
        ...

    def note_reserved_in(self, reservation_id: int, agent_id: int, place: str) -> None:
        """Note in which run or session an agent has made a reservation; not of one that was renewed since."""
        ...

    def extend_reservation(
        self, reservation_id: int, *, expires_at: int, ttl: int, exclusive: bool, reason: str, now: int
    ) -> Reservation:
        """Move the end of a reservation and replace its terms."""
        ...

    def release_reservation(self, reservation_id: int, *, now: int, by: str, reason: str) -> Reservation:
        """End a reservation that is live."""
        ...

    def expire_reservations(self, project_id: int, now: int) -> list[Reservation]:
        """End those whose time is over and return them, oldest first, a bounded number a call."""
        ...

    def put_contact(
        self, from_id: int, to_id: int, *, status: ContactStatus, reason: str, now: int
    ) -> ContactLink:
        """Store or replace what `from_id` asks of, or is granted by, `to_id`."""
        ...

    def insert_answer(self, scope: str, key: str, digest: str, answer: bytes, now: int) -> None:
        """Keep the first answer given under an idempotency key."""
        ...

    def purge_answers(self, before: int, *, limit: int) -> int:
        """Forget answers older than an instant; return how many."""
        ...

    def restore_rows(
        self, rows: Mapping[str, Sequence[Mapping[str, object]]], logs: Mapping[str, int] | None = None
    ) -> None:
        """Store whole rows by table with their ids, for rebuilding from an archive.

        `logs` says, by slug, behind which entry the log of a project goes on: the next one tells of the
        project.

        Raises:
            StateError: the store already holds some.
        """
        ...


class MailWrites(RecordWrites, MailReads, ProjectWrites, MergingWrites, Protocol):
    """Look-ups and changes within one transaction."""
