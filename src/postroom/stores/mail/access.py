"""Mail within one open transaction: its reads and its changes, over named statements.

A change is one function over `MailWrites`, run as one transaction: when `write` returns, either all of it is
durable or none of it is stored. The function is synchronous, quick and free of I/O, and may run again after a
failure, so that it must not touch anything except the transaction.

This module makes no decisions about mail. `EventRecorder` writes the changes into the logs of projects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice, starmap
from typing import Any, Protocol, TypeVar, cast

from typing_extensions import override

from postroom.contracts.announcing import Arrival, ClientSession, Nudges
from postroom.contracts.choices import ContactPolicy, ContactStatus, Importance, RecipientKind, SearchOrder
from postroom.contracts.errors import (
    InputError,
    StateError,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    UnknownReservation,
)
from postroom.contracts.events import CanonicalEvent, EventScope
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
    check_value,
)
from postroom.contracts.project_log import EventKind, Happening, LogBounds, ProjectEvent
from postroom.contracts.tokens import KeptToken
from postroom.stores.codec import record
from postroom.stores.events import EventTables
from postroom.stores.mail import check_values, search_index
from postroom.stores.mail.check_values import message_of
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.mail.merging import MergingReads, MergingWrites
from postroom.stores.mail.restoring import TABLES, whole
from postroom.stores.mail.retention import RetentionReads, RetentionWrites, lock_bytes
from postroom.stores.mail.tasks import TaskReads, TaskWrites
from postroom.stores.mail.timeline import TimelineReads
from postroom.stores.mail.waking import WakingReads, WakingWrites
from postroom.stores.outbox import OutboxTables
from postroom.stores.sql_transaction import Look, Row, SqlTransaction, asked

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
    """Reads of projects by name, and of all projects; a caller can be limited to one project."""

    def project(self, key: str) -> Project | None:
        """Return the project with this path, alias or slug."""
        ...

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the projects whose path has this spelling, oldest first."""
        ...

    def projects_of_repository(self, identity: str, *, remote: str = "", root: str = "") -> list[Project]:
        """Return the projects with this identity, remote or first commit; an empty value matches nothing."""
        ...

    def projects_unidentified(self, *, limit: int) -> list[Project]:
        """Return projects whose repository is unknown, the newest first."""
        ...

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return projects by id, after id `after`."""
        ...

    def counts(self, *, unread: bool = True) -> dict[str, int]:
        """Return the number of rows of each kind of record; counting `unread` rows may take long."""
        ...


class ProjectWrites(ProjectReads, Protocol):
    """Changes that create projects and their aliases."""

    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        """Store a project with a new path and slug."""
        ...

    def add_project_alias(self, project_id: int, human_key: str) -> None:
        """Add another spelling of the path as a name of the project."""
        ...


class RecordReads(RetentionReads, TaskReads, TimelineReads, WakingReads):
    """Reads of records by the ids of their projects. Absence is None or an empty list."""

    def __init__(
        self,
        tx: SqlTransaction,
        outbox: OutboxTables,
        log: EventTables,
        *,
        now: Callable[[], int],
        lock: Callable[..., None],
        tell: Callable[..., None],
    ) -> None:
        self._tx = tx
        self._now = now
        self._tell = tell
        self.outbox = outbox
        self._log = log
        self._events = EventRecorder(tx, log, lock)
        self._known: dict[str, Project] = {}
        """Projects that this transaction has read, by the key that named them; they rarely change."""
        self._positions: dict[int, int] = {}
        """The position of the next recipient of each message that this change addresses."""

    def _one(self, kind: type[R], statement: str, /, **values: object) -> R | None:
        row = self._tx.one(statement, values)
        return record(kind, row) if row else None

    def _messages(self, statement: str, /, **values: object) -> list[Message]:
        return [message_of(row) for row in self._tx.all(statement, values)]

    def _all(self, kind: type[R], statement: str, /, **values: object) -> list[R]:
        return [record(kind, row) for row in self._tx.all(statement, values)]

    def now(self) -> int:
        """Return the one instant of this transaction, in ms; it is read after the locks taken so far."""
        return self._now()

    def project_by_id(self, project_id: int) -> Project | None:
        """Return the project with this id."""
        return self._one(Project, "mail.project_by_id", id=project_id)

    def agent(self, project_id: int, name: str) -> Agent | None:
        """Return the agent with this name, compared without regard to case."""
        [rows] = asked(self._tx, [_agent_named(project_id, name)]).values()
        return record(Agent, rows[0]) if rows else None

    def agent_addressed(self, project_key: str, name: str) -> AddressedAgent | None:
        """Return the agent with this name in the project that a path, alias or slug names."""
        look = "mail.agent_addressed", {"key": project_key, "name_key": name.casefold()}
        [rows] = asked(self._tx, [look]).values()
        if not rows:
            return None
        [row] = rows
        agent, project = record(Agent, row), record(Project, row[_OF_AGENTS:])
        self._events.know_agent(agent)
        return AddressedAgent(project=project, agent=agent, runner=row[-1])

    def agents_named(self, project_id: int, names: Sequence[str]) -> list[Agent]:
        """Return the agents with these names, compared without regard to case."""
        keys = sorted(set(map(str.casefold, names)))
        if len(keys) == 1:
            only = self.agent(project_id, keys[0])
            return [] if only is None else [only]
        if len(keys) > _FEW:
            return self._all(Agent, "mail.agents_named", project_id=project_id, name_keys=keys)
        # A look-up each is cheaper than reading a list.
        looks = [_agent_named(project_id, key) for key in keys]
        found = [record(Agent, row) for rows in asked(self._tx, looks).values() for row in rows]
        return sorted(found, key=lambda agent: agent.id)

    def agents_by_id(self, agent_ids: Sequence[int]) -> dict[int, Agent]:
        """Return the agents with these ids; unknown ids are left out."""
        return {one.id: one for one in self._all(Agent, "mail.agents_by_id", ids=agent_ids)}

    def agents(self, project_id: int, *, include_retired: bool, limit: int, after: int = 0) -> list[Agent]:
        """Return a project's agents by id, after id `after`."""
        values = {"project_id": project_id, "after": after, "retired": include_retired, "limit": limit}
        return self._all(Agent, "mail.agents", **values)

    def active_agents(self, project_id: int, *, limit: int) -> list[Agent]:
        """Return active agents of a project, the last active first."""
        return self._all(Agent, "mail.active_agents", project_id=project_id, limit=limit)

    def agent_by_token(self, token_hash: str) -> Agent | None:
        """Return the agent with this token hash."""
        return self._one(Agent, "mail.agent_by_token", token_hash=token_hash)

    def contact(self, from_id: int, to_id: int) -> ContactLink | None:
        """Return the contact of `from_id` with `to_id`."""
        return self._one(ContactLink, "mail.contact", from_id=from_id, to_id=to_id)

    def contacts(self, agent_id: int) -> list[ContactLink]:
        """Return every link from or to an agent, oldest first."""
        return self._all(ContactLink, "mail.contacts", agent_id=agent_id)

    def reach(self, sender_id: int, reader_ids: Sequence[int]) -> dict[int, Reach]:
        """Return the facts that decide whether and how a sender's message reaches agents.

        Skip unknown ids.
        """
        found = self._tx.all("mail.reach", {"sender_id": sender_id, "ids": reader_ids})
        return {row[0]: record(Reach, row) for row in found}

    def message(self, message_id: int) -> Message | None:
        """Return one message."""
        return next(iter(self._messages("mail.message", id=message_id)), None)

    def messages(self, message_ids: Sequence[int]) -> dict[int, Message]:
        """Return the messages with these ids; unknown ids are left out."""
        return {one.id: one for one in self._messages("mail.messages", ids=message_ids)}

    def received(self, agent_id: int, message_ids: Sequence[int]) -> dict[int, Received]:
        """Return the messages among these that an agent received, by message id."""
        look = "mail.received", {"agent_id": agent_id, "ids": tuple(message_ids)}
        [rows] = asked(self._tx, [look]).values()
        found = [record(Received, row) for row in rows]
        for one in found:
            self._events.know_delivery(one.message_id, one.project_id, agent_id, one.kind)
        return {one.message_id: one for one in found}

    def recipients(self, message_ids: Sequence[int]) -> dict[int, list[Recipient]]:
        """Return every recipient of each message, in the order of the addresses."""
        found: dict[int, list[Recipient]] = {message_id: [] for message_id in message_ids}
        for one in self._all(Recipient, "mail.recipients", ids=message_ids):
            found[one.message_id].append(one)
        return found

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
        """Return every entry after a sequence number, recalled ones included, oldest first."""
        values = {"agent_id": agent_id, "after": after, "limit": limit}
        return list(map(_inbox_entry, self._tx.all("mail.inbox_events", values)))

    def unread_count(self, agent_id: int) -> int:
        """Return how many messages of the agent are neither read nor recalled."""
        [[count]] = self._tx.all("mail.unread_count", {"agent_id": agent_id})
        return int(count)

    def thread(self, project_id: int, thread_id: str, *, limit: int, after: int = 0) -> list[Message]:
        """Return a thread's messages in order, after message id `after`."""
        values = {"project_id": project_id, "thread_id": thread_id, "after": after, "limit": limit}
        return self._messages("mail.thread", **values)

    def thread_tail(self, project_id: int, thread_id: str, *, limit: int) -> list[Message]:
        """Return the newest messages of a thread, in order."""
        values = {"project_id": project_id, "thread_id": thread_id, "limit": limit}
        return self._messages("mail.thread_tail", **values)[::-1]

    def thread_size(self, project_id: int, thread_id: str) -> int:
        """Return how many messages a thread holds."""
        [[size]] = self._tx.all("mail.thread_size", {"project_id": project_id, "thread_id": thread_id})
        return int(size)

    def thread_participants(
        self, project_id: int, thread_id: str, *, home_id: int, among: int
    ) -> list[ThreadParticipant]:
        """Count the senders and recipients of a project's newest `among` messages on a thread, by id.

        Recalled messages, hidden copies, and messages that did not reach the project `home_id` do not count.
        """
        values = {"project_id": project_id, "thread_id": thread_id, "home_id": home_id, "among": among}
        return self._all(ThreadParticipant, "mail.thread_participants", **values)

    def threads(self, project_id: int, *, limit: int, before: int | None = None) -> list[ThreadHead]:
        """Return threads by their newest message, newest first, below message id `before`."""
        return self._all(ThreadHead, "mail.threads", project_id=project_id, limit=limit, before=before)

    def tallies(self, project_ids: Sequence[int], *, most: int) -> list[ProjectTally]:
        """Return the counts of projects, by id, up to `most`."""
        return self._all(ProjectTally, "mail.tallies", project_ids=project_ids, most=most)

    def wanted_threads(
        self, project_id: int, wanted: ThreadFilter, *, limit: int, among: int, before: int | None = None
    ) -> tuple[list[ThreadHead], int | None]:
        """Return the threads that match, among the newest `among` threads below message id `before`.

        They come newest first, with the message id below which to continue; None at the end.
        """
        window: dict[str, object] = {"project_id": project_id, "before": before}
        found = self._all(
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
        if len(found) > limit:
            return found[:limit], found[limit - 1].last_id
        row = self._tx.one("mail.threads_looked_at", {**window, "among": among - 1})
        return found, int(row[0]) if row else None

    def project_messages(self, project_id: int, *, limit: int, after: int = 0) -> list[Message]:
        """Return a project's messages by id, after id `after`."""
        return self._messages("mail.project_messages", project_id=project_id, after=after, limit=limit)

    def newest_messages(self, project_id: int, *, limit: int) -> list[Message]:
        """Return the last messages of a project, by id."""
        return self._messages("mail.newest_messages", project_id=project_id, limit=limit)[::-1]

    def damaged_messages(self, *, after: int, limit: int) -> tuple[list[int], int | None]:
        """Compare the texts of the `limit` messages after message id `after` with their check values.

        Return the ids of damaged messages, and the last id that was compared; None if there was none.
        """
        return check_values.damaged_messages(self._tx, after=after, limit=limit)

    def sent_messages(self, agent_id: int, *, limit: int, before: int | None = None) -> list[Message]:
        """Return the messages of an agent except recalled ones, newest first, with ids below `before`."""
        return self._messages("mail.sent_messages", agent_id=agent_id, before=before, limit=limit)

    def search(
        self, project_id: int, query: Query, *, order: SearchOrder, limit: int, cursor: int = 0
    ) -> list[SearchHit]:
        """Return matching messages except recalled ones; await the store's `settle` before.

        `newest`: by id descending, below the id `cursor` (0: from the top). `best`: of the newest
        `BEST_AMONG` matches, by rank, then newest; `cursor` is the number to skip.
        """
        return search_index.find(self._tx, project_id, query, order, limit=limit, cursor=cursor)

    def partly_searched(self, project_id: int, query: Query, *, limit: int) -> list[int]:
        """Return the newest messages that a search may have missed: only part of their text is indexed.

        The index has the first 16,000 characters of scripts without spaces, so queries in other scripts miss
        none.
        """
        return search_index.partly_searched(self._tx, project_id, query, limit=limit)

    def attachments(self, message_ids: Sequence[int]) -> dict[int, list[Attachment]]:
        """Return the attachments of each message, in order."""
        found: dict[int, list[Attachment]] = {message_id: [] for message_id in message_ids}
        for row in self._tx.all("mail.attachments", {"ids": message_ids}):
            found[row[0]].append(record(Attachment, row[1:]))
        return found

    def blob(self, sha256: str) -> bytes | None:
        """Return stored bytes by their SHA-256."""
        row = self._tx.one("mail.blob", {"sha256": sha256})
        return bytes(row[0]) if row else None

    def unannounced(self, agent_id: int, *, limit: int) -> list[Arrival]:
        """Return messages of the agent that are not read, recalled or announced, oldest first."""
        return self._all(Arrival, "mail.unannounced", agent_id=agent_id, limit=limit)

    def directed_unread(self, agent_id: int, *, limit: int) -> list[tuple[int, int]]:
        """Return id and seq of the unread messages that name the agent with `to`, the newest first.

        Broadcasts, recalled messages and messages that an open run works on are left out.
        """
        found = self._tx.all("mail.directed_unread", {"agent_id": agent_id, "limit": limit})
        return [(int(message_id), int(seq)) for message_id, seq in found]

    def client_session(self, client: str, session_id: str) -> ClientSession | None:
        """Return the stored session of this client."""
        return self._one(ClientSession, "mail.client_session", client=client, session_id=session_id)

    def sessions_seen(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return the last time at which a client's session acted as each of these agents.

        Agents without a session are omitted.
        """
        return {row[0]: row[1] for row in self._tx.all("mail.sessions_seen", {"ids": agent_ids})}

    def nudges(self, agent_id: int) -> Nudges:
        """Return the record of what hooks did in the agent's turns."""
        return self._one(Nudges, "mail.nudges", agent_id=agent_id) or Nudges()

    def reservation(self, reservation_id: int) -> Reservation | None:
        """Return one reservation, active or not."""
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
        """Return active reservations by id.

        With `near`, only those whose prefix is a whole-segment prefix of it, or the reverse: only their
        patterns can overlap a pattern with that prefix.
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
        """Return ids and patterns of active reservations, unordered, except those of the agent `but`.

        `near` is as in `live_reservations`; if it is empty, every pattern may overlap.
        """
        values = _near(project_id, now, near) | {"but": but, "exclusive_only": exclusive_only}
        found = self._tx.all("mail.live_patterns_near" if near else "mail.live_patterns", values)
        return [(row[0], row[1]) for row in found]

    def reservations_by_id(self, reservation_ids: Sequence[int]) -> list[Reservation]:
        """Return the reservations with these ids, by id, active or not; unknown ids are omitted."""
        return self._all(Reservation, "mail.reservations_by_id", ids=reservation_ids)

    def reservations(self, project_id: int, *, limit: int, after: int = 0) -> list[Reservation]:
        """Return every reservation of a project by id, active or not, after id `after`."""
        return self._all(Reservation, "mail.reservations", project_id=project_id, after=after, limit=limit)

    def newest_reservations(self, project_id: int, *, limit: int) -> list[Reservation]:
        """Return the last reservations of a project by id, active or not."""
        return self._all(Reservation, "mail.newest_reservations", project_id=project_id, limit=limit)[::-1]

    def reserved_in(self, place: str, *, now: int) -> list[Reservation]:
        """Return the active reservations that were made in a run or session, by id."""
        return self._all(Reservation, "mail.reserved_in", reserved_in=place, now=now)

    def token(self, token_id: str) -> KeptToken | None:
        """Return the token with this id."""
        row = self._tx.one("mail.token", {"id": token_id})
        return _token(row) if row else None

    def tokens_named(self, name: str) -> list[KeptToken]:
        """Return every token that has or had this name, oldest first."""
        return list(map(_token, self._tx.all("mail.tokens_named", {"name": name})))

    def tokens(self, *, limit: int, after: str = "") -> list[KeptToken]:
        """Return tokens by id, after id `after`."""
        return list(map(_token, self._tx.all("mail.tokens", {"after": after, "limit": limit})))

    def is_session_ended(self, hashed: str) -> bool:
        """Return whether a session of the pages, identified by its hash, was logged out."""
        return self._tx.one("mail.ended_session", {"hash": hashed}) is not None

    def traces(self, names: Sequence[str]) -> dict[str, str]:
        """Return the stored traces by name; names without a trace are omitted."""
        return {row[0]: row[1] for row in self._tx.all("mail.traces", {"names": names})}

    def project_events(
        self, project_id: int, *, after: int, limit: int, kinds: Sequence[EventKind] = ()
    ) -> list[ProjectEvent]:
        """Return entries after a sequence number, oldest first; `kinds` narrows the list."""
        scope = EventScope.project(project_id).key
        found = self._log.of_scope(scope, after=after, limit=limit, kinds=kinds)
        return [_entry(project_id, seq, event) for seq, event in found]

    def log_bounds(self, project_id: int) -> LogBounds:
        """Return the range of a project's log."""
        oldest, newest = self._log.bounds(EventScope.project(project_id).key)
        return LogBounds(oldest=oldest - 1, newest=newest)

    def newest_entry(self, project_id: int) -> int:
        """Return the number of the newest entry of a project's log; 0 while the log is empty."""
        return self._log.newest(EventScope.project(project_id).key)

    def messages_of(self, agent_id: int, message_ids: Sequence[int]) -> tuple[set[int], set[int]]:
        """Return which of these messages the agent wrote, and which it received."""
        values = {"agent_id": agent_id, "ids": message_ids}
        written, received = self._tx.ask(
            ("project_log.messages_written", values), ("project_log.messages_received", values)
        )
        return {row[0] for row in written}, {row[0] for row in received}

    def answer(self, scope: str, key: str) -> StoredAnswer | None:
        """Return the first answer given under an idempotency key."""
        row = self._tx.one("mail.answer", {"scope": scope, "key": key})
        return StoredAnswer(digest=row[0], answer=bytes(row[1])) if row else None


class MailReads(RecordReads, MergingReads, ProjectReads):
    """Reads within one consistent view."""

    @override
    def project(self, key: str) -> Project | None:
        if key not in self._known and (found := self._one(Project, "mail.project_named", key=key)):
            self._known[key] = found
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
        [found] = self._tx.all("mail.counts")
        counted = dict(zip(_COUNTED, found, strict=True))
        return counted | {"unread": self._tx.all("mail.count_unread")[0][0]} if unread else counted


class RecordWrites(RecordReads, RetentionWrites, TaskWrites, WakingWrites):
    """Changes of records by the ids of their projects.

    Each change writes its events for agents, messages, reservations, tasks, contacts and runs to the log of
    the project (`contracts.project_log`), unless nothing changes.
    """

    def _update(self, statement: str, values: Mapping[str, object], kind: type[InputError]) -> None:
        """Change the row `values["id"]`; raise an error of this kind if it does not exist."""
        if not self._tx.changed(statement, values):
            raise _unknown(kind, values["id"])

    def lock_projects(self, project_ids: Iterable[int], expected: Iterable[tuple[int, str]] = ()) -> None:
        """Lock these projects; must be the first lock, for all projects at once.

        `expected` are agents that are read next, by project and name: PostgreSQL reads them in the same round
        trip.
        """
        named = tuple(sorted(set(project_ids)))
        self._events.lock(named)
        # another change may have merged a project before this lock; the same trip checks it
        if self._tx.dialect == "postgres":
            looks = [
                ("mail.projects_there", {"ids": named}),
                *starmap(_agent_named, islice(expected, 1 + _FEW)),
            ]
            there = {row[0] for row in asked(self._tx, looks)["mail.projects_there", named]}
            if not {*named} - {0} <= there:
                self._known.clear()

    def set_git_identity(self, project_id: int, git_identity: str) -> None:
        """Store the remote and root commit that identify the project's folder."""
        self._known.clear()
        values = {"id": project_id, "git_identity": git_identity}
        self._update("mail.set_git_identity", values, UnknownProject)

    def set_project_folder(self, project_id: int, human_key: str, *, spelling: str) -> None:
        """Give the project another folder, which no project has; the former one stays as an alias."""
        self._known.clear()
        self._tx.run("mail.keep_former_folder", {"id": project_id})
        values = {"id": project_id, "human_key": human_key, "spelling": spelling}
        self._update("mail.set_project_folder", values, UnknownProject)

    def insert_agent(
        self, project_id: int, *, name: str, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Store an agent with a new name in the project."""
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
        """Replace an agent's description of itself, and update its last activity."""
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
        """Retire an agent at an instant, or unretire it with None."""
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("mail.set_agent_retired", {"id": agent_id, "retired_at": retired_at}, UnknownAgent)
        self._events.agent_retired(before, retired_at, now)
        if retired_at is None:
            self.wake_later()  # messages may have waited for the agent

    def set_agent_token(self, agent_id: int, token_hash: str | None) -> None:
        """Replace an agent's token; None revokes it."""
        self._update("mail.set_agent_token", {"id": agent_id, "token_hash": token_hash}, UnknownAgent)

    def set_contact_policy(self, agent_id: int, policy: ContactPolicy, *, now: int) -> None:
        """Set whose mail an agent accepts."""
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("mail.set_contact_policy", {"id": agent_id, "policy": policy}, UnknownAgent)
        self._events.policy_set(before, policy, now)

    def touch_agent(self, agent_id: int, now: int) -> None:
        """Update an agent's last activity, and extend its reservations and claims by their own length.

        A reservation or claim that has expired stays expired.
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
        """Store or replace the contact of `from_id` with `to_id`."""
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
        """Store a message; without a thread it starts a thread named after its id (`msg-<id>`)."""
        self._events.lock([project_id])  # within a project, ids grow in the order in which they are seen
        # The id is taken beforehand: a thread that is filled in afterwards is written to its index twice.
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
        if self._tx.dialect == "postgres":  # SQLite's writer does it after it has answered
            search_index.add(self._tx, message)
        self._positions[message_id] = 0
        self._events.sent(message)
        return message

    def insert_recipient(self, message_id: int, agent: Agent, kind: RecipientKind) -> None:
        """Add a message to an inbox, with its next sequence number."""
        if (position := self._positions.get(message_id)) is None:
            [[position]] = self._tx.all("mail.recipients_named", {"message_id": message_id})
        self._positions[message_id] = position + 1
        values = {"message_id": message_id, "agent_id": agent.id, "kind": kind, "position": position}
        self._tx.run("mail.insert_recipient", values)
        self._events.reached(message_id, agent, kind)

    def mark_read(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the read mark unless it is set; return it, or None if the agent is not a recipient."""
        values = {"message_id": message_id, "agent_id": agent_id, "now": now}
        if row := self._tx.one("mail.mark_read", values):
            self._events.delivery("delivery.read", message_id, agent_id, row[0], now)
            return now
        row = self._tx.one("mail.read_mark", values)
        return int(row[0]) if row else None

    def mark_acked(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the acknowledgement and the read mark unless set; return it, or None for no recipient."""
        self.mark_read(message_id, agent_id, now)
        values = {"message_id": message_id, "agent_id": agent_id, "now": now}
        if row := self._tx.one("mail.mark_acked", values):
            self._events.delivery("delivery.acknowledged", message_id, agent_id, row[0], now)
            return now
        row = self._tx.one("mail.acked_mark", values)
        return int(row[0]) if row else None

    def mark_recalled(self, message_id: int, now: int) -> None:
        """Recall a message: delete its text here and from search, and keep the entry."""
        stored = self.attachments([message_id])[message_id]
        message = self.message(message_id)
        if message is None:
            raise _unknown(UnknownMessage, message_id)
        if message.recalled_at is None:
            self._events.recalled(message, now)
        self._tx.run("mail.mark_recalled", {"id": message_id, "now": now})
        if self._tx.dialect == "postgres":  # on SQLite a trigger does it
            self._tx.run("mail.forget_words", {"ids": [message_id]})
        if stored:
            self.drop_attachments([message_id])

    def insert_blob(self, sha256: str, content: bytes) -> None:
        """Store bytes under their SHA-256, unless they are stored already."""
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
        """Record that these messages were announced to the agent; return the number of new records.

        The first record stays. `by` names the announcer: hook, watch, runner. Messages that the agent did not
        receive are ignored.
        """
        # One by one: with a list of ids SQLite would scan the whole inbox.
        new = 0
        for message_id in message_ids:
            self._events.lock_concerned(message_id, agent_id)
            values = {"message_id": message_id, "agent_id": agent_id, "now": now, "by": by}
            if row := self._tx.one("mail.mark_announced", values):
                self._events.delivery("delivery.announced", message_id, agent_id, row[0], now, by)
                new += 1
        return new

    def bind_client_session(self, client: str, session_id: str, agent_id: int, now: int) -> None:
        """Record that a session acts as an agent, in place of an earlier record."""
        values = {"client": client, "session_id": session_id, "agent_id": agent_id, "now": now}
        self._tx.run("mail.bind_client_session", values)

    def end_client_session(self, client: str, session_id: str) -> None:
        """Delete a session; an unknown session is ignored."""
        self._tx.run("mail.end_client_session", {"client": client, "session_id": session_id})

    def purge_client_sessions(self, before: int, *, limit: int) -> int:
        """Delete sessions that were bound before an instant, the oldest first; return their number."""
        return self._tx.changed("mail.purge_client_sessions", {"before": before, "limit": limit})

    def set_nudges(self, agent_id: int, nudges: Nudges) -> None:
        """Store the record of what hooks did in an agent's turns."""
        values = {"agent_id": agent_id, "held_seq": nudges.held_seq, "notified_at": nudges.notified_at}
        self._tx.run("mail.set_nudges", values)

    def insert_reservation(  # noqa: PLR0913 - one column an argument
        self, agent: Agent, *, pattern: str, prefix: str, exclusive: bool, reason: str, ttl: int, now: int
    ) -> Reservation:
        """Store an active reservation of `ttl` milliseconds."""
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
        made = self._stored(reservation_id)
        self._events.reserved("reservation.made", made, now)
        return made

    def note_reserved_in(self, reservation_id: int, agent_id: int, place: str) -> None:
        """Record the run or session in which an agent made a reservation, unless it was renewed since."""
        values = {"id": reservation_id, "agent_id": agent_id, "reserved_in": place}
        self._tx.run("mail.note_reserved_in", values)

    def extend_reservation(
        self, reservation_id: int, *, expires_at: int, ttl: int, exclusive: bool, reason: str, now: int
    ) -> Reservation:
        """Set another end of a reservation and replace its terms."""
        values = {
            "id": reservation_id,
            "expires_at": expires_at,
            "ttl": ttl,
            "exclusive": exclusive,
            "reason": reason,
        }
        self._tx.run("mail.extend_reservation", values)
        extended = self._stored(reservation_id)
        self._events.reserved("reservation.renewed", extended, now)
        return extended

    def release_reservation(self, reservation_id: int, *, now: int, by: str, reason: str) -> Reservation:
        """End an active reservation."""
        values = {"id": reservation_id, "now": now, "by": by, "reason": reason}
        is_new = self._tx.changed("mail.release_reservation", values) > 0
        released = self._stored(reservation_id)
        if is_new:
            self._events.released(released, now, by)
        return released

    def expire_reservations(self, project_id: int, now: int) -> list[Reservation]:
        """End reservations that have expired and return them, oldest first, a limited number per call."""
        over = self._all(Reservation, "mail.expired_reservations", project_id=project_id, now=now)
        self._tx.run_many("mail.expire_reservation", [{"id": one.id} for one in over])
        for one in over:
            self._events.expired(one, now)
        return over

    def _stored(self, reservation_id: int) -> Reservation:
        found = self.reservation(reservation_id)
        if found is None:
            raise _unknown(UnknownReservation, reservation_id)
        return found

    def put_token(self, token: KeptToken) -> None:
        """Store a token, or replace the token with its id.

        Raises:
            StoreError: The name or the hash is in use, or the project does not exist.
        """
        values = {name: getattr(token, name) for name in _OF_TOKENS}
        self._tx.run("mail.put_token", {**values, "scopes": " ".join(sorted(token.scopes))})

    def put_login_code(self, hashed: str, *, ends_at: int, most: int) -> None:
        """Store the hash of a login code for one use.

        Beyond `most` codes, those that end first are deleted.
        """
        self._tx.run("mail.put_login_code", {"hash": hashed, "ends_at": ends_at})
        self._tx.run("mail.drop_login_codes", {"most": most})

    def take_login_code(self, hashed: str) -> int | None:
        """Remove a code and return the time of its end, past or future; None if it does not exist."""
        row = self._tx.one("mail.take_login_code", {"hash": hashed})
        return row[0] if row else None

    def end_session(self, hashed: str, *, ends_at: int) -> None:
        """Record that a session of the pages was logged out, until its regular end."""
        self._tx.run("mail.drop_ended_sessions", {"now": self.now()})
        self._tx.run("mail.end_session", {"hash": hashed, "ends_at": ends_at})

    def note_token_uses(self, uses: Mapping[str, int]) -> None:
        """Record by id when tokens were last used; an earlier instant and an unknown id change nothing."""
        rows = [{"id": token_id, "used_at": used_at} for token_id, used_at in sorted(uses.items())]
        self._tx.run_many("mail.note_token_use", rows)

    def put_trace(self, name: str, traceparent: str) -> None:
        """Store or replace a place in a trace.

        Raises:
            StoreError: The text does not have the length of a traceparent.
        """
        self._tx.run("mail.put_trace", {"name": name, "traceparent": traceparent})

    def drop_traces(self, names: Sequence[str]) -> None:
        """Delete the traces with these names."""
        self._tx.run("mail.drop_traces", {"names": names})

    def trim_log(self, project_id: int, *, keep: int, limit: int) -> int:
        """Delete the oldest entries beyond the newest `keep` (1 or more), at most `limit`.

        Return their number.

        The numbering continues, and `oldest` shows the first remaining entry.
        """
        self._events.lock([project_id])
        return self._log.trim(EventScope.project(project_id).key, keep=keep, limit=limit)

    def insert_answer(self, scope: str, key: str, digest: str, answer: bytes, now: int) -> None:
        """Store the first answer given under an idempotency key."""
        values = {"scope": scope, "key": key, "digest": digest, "answer": answer, "now": now}
        self._tx.run("mail.insert_answer", values)

    def purge_answers(self, before: int, *, limit: int) -> int:
        """Delete answers older than an instant; return their number."""
        return self._tx.changed("mail.purge_answers", {"before": before, "limit": limit})


class MailWrites(RecordWrites, MailReads, MergingWrites, ProjectWrites):
    """Reads and changes within one transaction; one object per transaction."""

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
        """Store whole rows by table with their ids, to rebuild a store from an archive.

        `logs` gives, by slug, the number after which the log of a project continues; its next entry reports
        the project.

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
                remedy="use the release of postroom that wrote the archive, or a newer one",
            )
        for table in TABLES:
            self._tx.run_many(f"mail.restore_{table}", [whole(table, one) for one in rows.get(table, ())])
        search_index.fill(self._tx)
        for slug, newest in (logs or {}).items():
            if made := self.project(slug):
                self._events.project_made(made.id, made.created_at)
                self._number_log_behind(made.id, newest)

    def _number_log_behind(self, project_id: int, newest: int) -> None:
        scope = EventScope.project(project_id).key
        self._tx.run("merging.move_log", {"scope": scope, "into": scope, "by": newest})
        self._tx.run("merging.number_log", {"scope": scope})


def _agent_named(project_id: int, name: str) -> Look:
    return "mail.agent_named", {"project_id": project_id, "name_key": name.casefold()}


def _unknown(kind: type[InputError], row_id: object) -> InputError:
    """Return the error for a missing row."""
    return kind(f"no record has the id {row_id}", value=row_id)


def _inbox_entry(row: Row) -> InboxEntry:
    """Map a message's columns followed by its recipient's."""
    kind, seq, read_at, acked_at = row[-4:]
    return InboxEntry(message=message_of(row), kind=kind, seq=seq, read_at=read_at, acked_at=acked_at)


def _near(project_id: int, now: int, near: str | None) -> dict[str, object]:
    """Return parameters to find reservations whose prefix is an ancestor of `near` or below it."""
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
    found = dict(zip(_OF_TOKENS, row, strict=True))
    return KeptToken(**{**found, "scopes": frozenset(found["scopes"].split(" "))})


def _entry(project_id: int, seq: int, event: CanonicalEvent) -> ProjectEvent:
    told = event.payload
    happening = Happening(
        kind=cast("EventKind", event.event_kind),
        at=event.created_at,
        agent_id=told["agent_id"],
        message_id=told["message_id"],
        reservation_id=told["reservation_id"],
        run_id=told["run_id"],
        detail=told["detail"],
    )
    return ProjectEvent(project_id=project_id, seq=seq, happening=happening)
