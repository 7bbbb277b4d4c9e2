"""The look-ups of the mail port over tables in memory."""

from collections.abc import Iterable, Sequence
from itertools import islice

from postroom.contracts.mail import (
    BEST_AMONG,
    Agent,
    Attachment,
    Backlog,
    ContactLink,
    Importance,
    InboxEntry,
    LivePattern,
    Message,
    OutboxRow,
    Project,
    Query,
    Recipient,
    Reservation,
    SearchHit,
    SearchOrder,
    StoredAnswer,
    ThreadHead,
)
from postroom.stores.memory.announcing import MemoryAnnouncingReads
from postroom.stores.memory.project_log import MemoryLogReads
from postroom.stores.memory.search import hit
from postroom.stores.memory.tables import Letter, R
from postroom.stores.memory.tokens import MemoryTokenReads
from postroom.stores.memory.traces import MemoryTraceReads
from postroom.stores.memory.waking import MemoryWakingReads


class MemoryReads(
    MemoryAnnouncingReads, MemoryTokenReads, MemoryTraceReads, MemoryWakingReads, MemoryLogReads
):
    """Look-ups over the tables as they are."""

    def project(self, key: str) -> Project | None:
        """Return the project with this path, alias or slug."""
        projects = self._tables.projects
        alias = self._tables.aliases.get(key)
        return (
            projects.one("path", key) or projects.one("slug", key) or (projects.get(alias) if alias else None)
        )

    def project_by_id(self, project_id: int) -> Project | None:
        """Return the project with this id."""
        return self._tables.projects.get(project_id)

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the projects whose path has this spelling, oldest first."""
        return self._tables.projects.where("spelling", spelling)

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return projects by id, those after `after`."""
        return _first(limit, (row for row in self._tables.projects if row.id > after))

    def agent(self, project_id: int, name: str) -> Agent | None:
        """Return the agent with this name, compared without regard to case."""
        return self._tables.agents.one("name", (project_id, name.casefold()))

    def agents_named(self, project_id: int, names: Sequence[str]) -> list[Agent]:
        """Return those agents whose names are among `names`, compared without regard to case."""
        found = {agent.id: agent for name in names if (agent := self.agent(project_id, name))}
        return [found[agent_id] for agent_id in sorted(found)]

    def agents_by_id(self, agent_ids: Sequence[int]) -> dict[int, Agent]:
        """Return the agents with these ids; unknown ids are left out."""
        return {found.id: found for agent_id in agent_ids if (found := self._tables.agents.get(agent_id))}

    def agents(self, project_id: int, *, include_retired: bool, limit: int, after: int = 0) -> list[Agent]:
        """Return a project's agents by id, those after `after`."""
        found = (row for row in self._tables.agents.where("project", project_id) if row.id > after)
        return _first(limit, (row for row in found if include_retired or row.retired_at is None))

    def agent_by_token(self, token_hash: str) -> Agent | None:
        """Return the agent that this token's hash belongs to."""
        return self._tables.agents.one("token", token_hash)

    def message(self, message_id: int) -> Message | None:
        """Return one message."""
        return self._tables.messages.get(message_id)

    def messages(self, message_ids: Sequence[int]) -> dict[int, Message]:
        """Return the messages with these ids; unknown ids are left out."""
        return {found.id: found for message_id in message_ids if (found := self.message(message_id))}

    def recipients(self, message_ids: Sequence[int]) -> dict[int, list[Recipient]]:
        """Return every recipient of each message, in the order in which they were named."""
        return {message_id: self._recipients_of(message_id) for message_id in message_ids}

    def inbox(
        self,
        agent_id: int,
        *,
        limit: int,
        after: int | None = None,
        since: int | None = None,
        unread_only: bool = False,
        importance: Sequence[Importance] = (),
    ) -> list[InboxEntry]:
        """Return an agent's letters, recalled ones left out."""
        entries = [
            entry
            for entry in self._entries(agent_id)
            if entry.message.recalled_at is None
            and (since is None or entry.message.created_at >= since)
            and not (unread_only and entry.read_at is not None)
            and (not importance or entry.message.importance in importance)
        ]
        if after is None:
            return _first(limit, reversed(entries))
        return _first(limit, (entry for entry in entries if entry.seq > after))

    def inbox_events(self, agent_id: int, *, after: int, limit: int) -> list[InboxEntry]:
        """Return every entry after a sequence number, recalled ones included, oldest first."""
        return _first(limit, (entry for entry in self._entries(agent_id) if entry.seq > after))

    def unread_count(self, agent_id: int) -> int:
        """Return how many letters of the agent are neither read nor recalled."""
        entries = self._entries(agent_id)
        return sum(entry.read_at is None and entry.message.recalled_at is None for entry in entries)

    def thread(self, project_id: int, thread_id: str, *, limit: int, after: int = 0) -> list[Message]:
        """Return a thread's messages in order, those after message id `after`."""
        return _first(limit, (row for row in self._thread(project_id, thread_id) if row.id > after))

    def thread_tail(self, project_id: int, thread_id: str, *, limit: int) -> list[Message]:
        """Return the newest messages of a thread, in order."""
        return _first(limit, reversed(self._thread(project_id, thread_id)))[::-1]

    def thread_size(self, project_id: int, thread_id: str) -> int:
        """Return how many messages a thread holds."""
        return len(self._thread(project_id, thread_id))

    def threads(self, project_id: int, *, limit: int, before: int | None = None) -> list[ThreadHead]:
        """Return threads by their newest message, newest first."""
        names = {row.thread_id for row in self._tables.messages.where("project", project_id)}
        heads = sorted((self._head(project_id, name) for name in names), key=lambda head: -head.last_id)
        return _first(limit, (head for head in heads if before is None or head.last_id < before))

    def project_messages(self, project_id: int, *, limit: int, after: int = 0) -> list[Message]:
        """Return a project's messages by id, those after `after`."""
        return _first(limit, (row for row in self._in_project(project_id) if row.id > after))

    def search(
        self, project_id: int, query: Query, *, order: SearchOrder, limit: int, cursor: int = 0
    ) -> list[SearchHit]:
        """Return messages that match, recalled ones left out."""
        present = [row for row in self._in_project(project_id) if row.recalled_at is None]
        hits = [found for row in reversed(present) if (found := hit(row, query))]
        if order == "newest":
            return _first(limit, (found for found in hits if not cursor or found.message.id < cursor))
        return _first(limit, sorted(hits[:BEST_AMONG], key=lambda found: found.rank)[cursor:])

    def attachments(self, message_ids: Sequence[int]) -> dict[int, list[Attachment]]:
        """Return the attachments of each message, in order."""
        enclosures = self._tables.enclosures
        return {one: [row.attachment for row in enclosures.where("message", one)] for one in message_ids}

    def blob(self, sha256: str) -> bytes | None:
        """Return stored bytes by their SHA-256."""
        return self._tables.blobs.get(sha256)

    def reservation(self, reservation_id: int) -> Reservation | None:
        """Return one reservation, live or not."""
        return self._tables.reservations.get(reservation_id)

    def live_reservations(
        self,
        project_id: int,
        *,
        now: int,
        near: str | None = None,
        agent_id: int | None = None,
        limit: int | None = None,
    ) -> list[Reservation]:
        """Return live reservations by id; `near` keeps those that may overlap a pattern with that prefix."""
        found = (
            row
            for row in self._tables.reservations.where("open_in", project_id)
            if row.expires_at > now
            and (agent_id is None or row.agent_id == agent_id)
            and (near is None or _begins(near, row.prefix) or _begins(row.prefix, near))
        )
        return list(found if limit is None else islice(found, limit))

    def live_patterns(
        self, project_id: int, *, now: int, near: str, but: int, exclusive_only: bool
    ) -> list[LivePattern]:
        """Return ids and patterns of live reservations, in no order, those of the agent `but` left out."""
        found = self.live_reservations(project_id, now=now, near=near or None)
        return [
            (one.id, one.pattern)
            for one in found
            if one.agent_id != but and (one.exclusive or not exclusive_only)
        ]

    def reservations_by_id(self, reservation_ids: Sequence[int]) -> list[Reservation]:
        """Return the reservations with these ids, by id, live or not; unknown ids are left out."""
        found = (self.reservation(one) for one in sorted(set(reservation_ids)))
        return [one for one in found if one is not None]

    def reservations(self, project_id: int, *, limit: int, after: int = 0) -> list[Reservation]:
        """Return every reservation of a project by id, live or not, those after `after`."""
        found = self._tables.reservations.where("project", project_id)
        return _first(limit, (row for row in found if row.id > after))

    def contact(self, from_id: int, to_id: int) -> ContactLink | None:
        """Return what `from_id` has asked of `to_id`."""
        return self._tables.contacts.get((from_id, to_id))

    def contacts(self, agent_id: int) -> list[ContactLink]:
        """Return every link from or to an agent, oldest first."""
        contacts = self._tables.contacts
        found = {*contacts.where("outgoing", agent_id), *contacts.where("incoming", agent_id)}
        return sorted(found, key=lambda link: (link.created_at, link.from_id, link.to_id))

    def answer(self, scope: str, key: str) -> StoredAnswer | None:
        """Return the first answer given under an idempotency key."""
        kept = self._tables.effects.answers.get((scope, key))
        return kept.stored if kept else None

    def outbox(self, topic: str, *, limit: int) -> list[OutboxRow]:
        """Return the rows of a topic that wait, oldest first."""
        return _first(limit, self._tables.effects.outbox.where("topic", topic))

    def backlog(self, topic: str) -> Backlog:
        """Return how many rows of a topic wait, and since when."""
        waiting = self._tables.effects.outbox.where("topic", topic)
        return Backlog(waiting=len(waiting), oldest_at=waiting[0].created_at if waiting else None)

    def counts(self) -> dict[str, int]:
        """Return how many rows each kind of record has."""
        tables = self._tables
        return {
            "projects": len(tables.projects),
            "agents": len(tables.agents),
            "messages": len(tables.messages),
            "live_reservations": sum(row.released_at is None for row in tables.reservations),
            "outbox": len(tables.effects.outbox),
            "runners": len(tables.waking.runners),
            "unread": sum(self.unread_count(agent.id) for agent in tables.agents),
        }

    def _in_project(self, project_id: int) -> list[Message]:
        return self._tables.messages.where("project", project_id)

    def _thread(self, project_id: int, thread_id: str) -> list[Message]:
        return self._tables.messages.where("thread", (project_id, thread_id))

    def _head(self, project_id: int, thread_id: str) -> ThreadHead:
        messages = self._thread(project_id, thread_id)
        first, last = messages[0], messages[-1]
        return ThreadHead(
            thread_id=thread_id,
            subject=first.subject,
            messages=len(messages),
            first_id=first.id,
            last_id=last.id,
            last_at=last.created_at,
            last_sender=last.sender_name,
        )

    def _entries(self, agent_id: int) -> list[InboxEntry]:
        """Return an inbox by sequence number."""
        return [
            InboxEntry(
                message=self._tables.messages.row(letter.message_id),
                kind=letter.kind,
                seq=letter.seq,
                read_at=letter.read_at,
                acked_at=letter.acked_at,
            )
            for letter in self._tables.letters.where("inbox", agent_id)
        ]

    def _recipients_of(self, message_id: int) -> list[Recipient]:
        letters = self._tables.letters.where("message", message_id)
        return [
            self._recipient(letter)
            for letter in sorted(letters, key=lambda one: (one.position, one.agent_id))
        ]

    def _recipient(self, letter: Letter) -> Recipient:
        agent = self._tables.agents.row(letter.agent_id)
        return Recipient(
            message_id=letter.message_id,
            agent_id=letter.agent_id,
            name=agent.name,
            project_slug=self._tables.projects.row(agent.project_id).slug,
            kind=letter.kind,
            seq=letter.seq,
            read_at=letter.read_at,
            acked_at=letter.acked_at,
            announced_at=letter.announced_at,
            announced_by=letter.announced_by,
        )


def _first(limit: int, found: Iterable[R]) -> list[R]:
    return list(islice(found, limit))


def _begins(path: str, prefix: str) -> bool:
    """Return whether `prefix` is a whole-segment prefix of `path`."""
    return prefix in ("", path) or path.startswith(f"{prefix}/")
