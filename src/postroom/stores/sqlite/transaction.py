"""The mail port over one connection inside one transaction. Decides nothing: rules live in the mail room."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

from postroom.contracts.errors import (
    InputError,
    StateError,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    UnknownReservation,
)
from postroom.contracts.mail import (
    BEST_AMONG,
    Agent,
    Attachment,
    Backlog,
    ContactLink,
    ContactPolicy,
    ContactStatus,
    Importance,
    InboxEntry,
    LivePattern,
    Message,
    OutboxRow,
    Project,
    Query,
    Recipient,
    RecipientKind,
    Reservation,
    SearchHit,
    SearchOrder,
    StoredAnswer,
    ThreadHead,
)
from postroom.stores.sqlite import rows
from postroom.stores.sqlite.announcing import SqliteAnnouncingReads, SqliteAnnouncingWrites
from postroom.stores.sqlite.match import fts5
from postroom.stores.sqlite.project_log import SqliteLogReads
from postroom.stores.sqlite.statements import STATEMENTS as SQL
from postroom.stores.sqlite.tokens import SqliteTokenReads, SqliteTokenWrites
from postroom.stores.sqlite.traces import SqliteTraceReads, SqliteTraceWrites
from postroom.stores.sqlite.waking import SqliteWakingReads, SqliteWakingWrites
from postroom.stores.telling import EventRecorder

_NO_LIMIT = -1
FEW = 4
_NEWEST = 2**62

_INBOX = {
    # unread only, newest first
    (False, True): "inbox_newest",
    (False, False): "inbox_after",
    (True, True): "inbox_unread_newest",
    (True, False): "inbox_unread_after",
}
_SEARCH: dict[SearchOrder, str] = {"newest": "search_newest", "best": "search_best"}


class SqliteReads(
    SqliteAnnouncingReads, SqliteTokenReads, SqliteTraceReads, SqliteWakingReads, SqliteLogReads
):
    """Look-ups over one connection."""

    def project(self, key: str) -> Project | None:
        """Return the project with this path, alias or slug."""
        for by in ("project_by_path", "project_by_slug", "project_by_alias"):
            if row := self._execute(SQL[by], (key,)).fetchone():
                return rows.project(row)
        return None

    def project_by_id(self, project_id: int) -> Project | None:
        """Return the project with this id."""
        row = self._execute(SQL["project_by_id"], (project_id,)).fetchone()
        return rows.project(row) if row else None

    def projects_spelled(self, spelling: str) -> list[Project]:
        """Return the projects whose path has this spelling, oldest first."""
        return [rows.project(row) for row in self._execute(SQL["projects_spelled"], (spelling,))]

    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        """Return projects by id, those after `after`."""
        return [rows.project(row) for row in self._execute(SQL["projects"], (after, limit))]

    def agent(self, project_id: int, name: str) -> Agent | None:
        """Return the agent with this name, compared without regard to case."""
        row = self._execute(SQL["agent_named"], (project_id, name.casefold())).fetchone()
        return rows.agent(row) if row else None

    def agents_named(self, project_id: int, names: Sequence[str]) -> list[Agent]:
        """Return those agents whose names are among `names`, compared without regard to case."""
        if len(names) <= FEW:  # a look-up each is cheaper than reading a list
            found = {agent.id: agent for name in names if (agent := self.agent(project_id, name))}
            return sorted(found.values(), key=lambda agent: agent.id)
        keys = json.dumps([name.casefold() for name in names])
        return [rows.agent(row) for row in self._execute(SQL["agents_named"], (project_id, keys))]

    def agents_by_id(self, agent_ids: Sequence[int]) -> dict[int, Agent]:
        """Return the agents with these ids; unknown ids are left out."""
        found = self._execute(SQL["agents_by_id"], (_array(agent_ids),))
        return {row[0]: rows.agent(row) for row in found}

    def agents(self, project_id: int, *, include_retired: bool, limit: int, after: int = 0) -> list[Agent]:
        """Return a project's agents by id, those after `after`."""
        values = {"project_id": project_id, "after": after, "retired": include_retired, "limit": limit}
        return [rows.agent(row) for row in self._execute(SQL["agents"], values)]

    def agent_by_token(self, token_hash: str) -> Agent | None:
        """Return the agent that this token's hash belongs to."""
        row = self._execute(SQL["agent_by_token"], (token_hash,)).fetchone()
        return rows.agent(row) if row else None

    def message(self, message_id: int) -> Message | None:
        """Return one message."""
        row = self._execute(SQL["message"], (message_id,)).fetchone()
        return rows.message(row) if row else None

    def messages(self, message_ids: Sequence[int]) -> dict[int, Message]:
        """Return the messages with these ids; unknown ids are left out."""
        found = self._execute(SQL["messages"], (_array(message_ids),))
        return {row[0]: rows.message(row) for row in found}

    def recipients(self, message_ids: Sequence[int]) -> dict[int, list[Recipient]]:
        """Return every recipient of each message, in the order in which they were named."""
        found: dict[int, list[Recipient]] = {message_id: [] for message_id in message_ids}
        for row in self._execute(SQL["recipients"], (_array(message_ids),)):
            found[row[0]].append(rows.recipient(row))
        return found

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
        statement = _INBOX[unread_only, after is None]
        values = {
            "agent_id": agent_id,
            "limit": limit,
            "after": after,
            "since": since,
            "importance": _array(importance) if importance else None,
        }
        return [rows.inbox_entry(row) for row in self._execute(SQL[statement], values)]

    def inbox_events(self, agent_id: int, *, after: int, limit: int) -> list[InboxEntry]:
        """Return every entry after a sequence number, recalled ones included, oldest first."""
        values = {"agent_id": agent_id, "after": after, "limit": limit}
        return [rows.inbox_entry(row) for row in self._execute(SQL["inbox_events"], values)]

    def unread_count(self, agent_id: int) -> int:
        """Return how many letters of the agent are neither read nor recalled."""
        return int(self._execute(SQL["unread_count"], (agent_id,)).fetchone()[0])

    def thread(self, project_id: int, thread_id: str, *, limit: int, after: int = 0) -> list[Message]:
        """Return a thread's messages in order, those after message id `after`."""
        found = self._execute(SQL["thread"], (project_id, thread_id, after, limit))
        return [rows.message(row) for row in found]

    def thread_tail(self, project_id: int, thread_id: str, *, limit: int) -> list[Message]:
        """Return the newest messages of a thread, in order."""
        found = self._execute(SQL["thread_tail"], (project_id, thread_id, limit)).fetchall()
        return [rows.message(row) for row in reversed(found)]

    def thread_size(self, project_id: int, thread_id: str) -> int:
        """Return how many messages a thread holds."""
        row = self._execute(SQL["thread_size"], (project_id, thread_id)).fetchone()
        return int(row[0]) if row else 0

    def threads(self, project_id: int, *, limit: int, before: int | None = None) -> list[ThreadHead]:
        """Return threads by their newest message, newest first."""
        values = {"project_id": project_id, "limit": limit, "before": before}
        return [rows.thread_head(row) for row in self._execute(SQL["threads"], values)]

    def project_messages(self, project_id: int, *, limit: int, after: int = 0) -> list[Message]:
        """Return a project's messages by id, those after `after`."""
        return [
            rows.message(row) for row in self._execute(SQL["project_messages"], (project_id, after, limit))
        ]

    def search(
        self, project_id: int, query: Query, *, order: SearchOrder, limit: int, cursor: int = 0
    ) -> list[SearchHit]:
        """Return messages that match, recalled ones left out."""
        values = {
            "project_id": project_id,
            "match": fts5(query),
            "limit": limit,
            "below": cursor or _NEWEST,
            "offset": cursor,
            "among": BEST_AMONG,
        }
        return [rows.search_hit(row) for row in self._execute(SQL[_SEARCH[order]], values)]

    def attachments(self, message_ids: Sequence[int]) -> dict[int, list[Attachment]]:
        """Return the attachments of each message, in order."""
        found: dict[int, list[Attachment]] = {message_id: [] for message_id in message_ids}
        for row in self._execute(SQL["attachments"], (_array(message_ids),)):
            found[row[0]].append(rows.attachment(row))
        return found

    def blob(self, sha256: str) -> bytes | None:
        """Return stored bytes by their SHA-256."""
        row = self._execute(SQL["blob"], (sha256,)).fetchone()
        return bytes(row[0]) if row else None

    def reservation(self, reservation_id: int) -> Reservation | None:
        """Return one reservation, live or not."""
        row = self._execute(SQL["reservation"], (reservation_id,)).fetchone()
        return rows.reservation(row) if row else None

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
        values = _near(project_id, now, near)
        values |= {"limit": _NO_LIMIT if limit is None else limit, "agent_id": agent_id}
        if agent_id is not None:
            statement = "reservations_held"
        else:
            statement = "live_reservations_near" if near else "live_reservations"
        return [rows.reservation(row) for row in self._execute(SQL[statement], values)]

    def live_patterns(
        self, project_id: int, *, now: int, near: str, but: int, exclusive_only: bool
    ) -> list[LivePattern]:
        """Return ids and patterns of live reservations, in no order, those of the agent `but` left out."""
        values = _near(project_id, now, near) | {"but": but, "exclusive_only": exclusive_only}
        return self._execute(SQL["live_patterns_near" if near else "live_patterns"], values).fetchall()

    def reservations_by_id(self, reservation_ids: Sequence[int]) -> list[Reservation]:
        """Return the reservations with these ids, by id, live or not; unknown ids are left out."""
        found = self._execute(SQL["reservations_by_id"], (_array(reservation_ids),))
        return [rows.reservation(row) for row in found]

    def reservations(self, project_id: int, *, limit: int, after: int = 0) -> list[Reservation]:
        """Return every reservation of a project by id, live or not, those after `after`."""
        return [
            rows.reservation(row) for row in self._execute(SQL["reservations"], (project_id, after, limit))
        ]

    def contact(self, from_id: int, to_id: int) -> ContactLink | None:
        """Return what `from_id` has asked of `to_id`."""
        row = self._execute(SQL["contact"], (from_id, to_id)).fetchone()
        return rows.contact(row) if row else None

    def contacts(self, agent_id: int) -> list[ContactLink]:
        """Return every link from or to an agent, oldest first."""
        return [rows.contact(row) for row in self._execute(SQL["contacts"], (agent_id,))]

    def answer(self, scope: str, key: str) -> StoredAnswer | None:
        """Return the first answer given under an idempotency key."""
        row = self._execute(SQL["answer"], (scope, key)).fetchone()
        return StoredAnswer(digest=row[0], answer=bytes(row[1])) if row else None

    def outbox(self, topic: str, *, limit: int) -> list[OutboxRow]:
        """Return the rows of a topic that wait, oldest first."""
        return [rows.outbox_row(row) for row in self._execute(SQL["outbox"], (topic, limit))]

    def backlog(self, topic: str) -> Backlog:
        """Return how many rows of a topic wait, and since when."""
        row = self._execute(SQL["backlog"], (topic,)).fetchone()
        return Backlog(waiting=row[0], oldest_at=row[1])

    def counts(self) -> dict[str, int]:
        """Return how many rows each kind of record has."""
        names = ("projects", "agents", "messages", "live_reservations", "outbox", "runners", "unread")
        return dict(zip(names, self._execute(SQL["counts"]).fetchone(), strict=True))


class SqliteWrites(
    SqliteReads, SqliteAnnouncingWrites, SqliteTokenWrites, SqliteTraceWrites, SqliteWakingWrites
):
    """Look-ups and changes over the writer's connection; one object a change."""

    def __init__(self, connection: sqlite3.Connection, outbox_ids: Iterator[int]) -> None:
        super().__init__(connection)
        EventRecorder.__init__(self)
        self._outbox_ids = outbox_ids
        self._positions: dict[int, int] = {}
        """The place of the next recipient of each message that this change addresses."""

    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        """Store a project whose path and slug nobody has."""
        values = (slug, human_key, now, spelling, git_identity, owner)
        made = rows.project(self._execute(SQL["insert_project"], values).fetchone())
        self._tell_made(made.id, now)
        return made

    def add_project_alias(self, project_id: int, human_key: str) -> None:
        """Let another spelling of the path name the project."""
        self._execute(SQL["add_project_alias"], (human_key, project_id))

    def set_git_identity(self, project_id: int, git_identity: str) -> None:
        """Record the remote and root commit by which the project's folder is known."""
        self._update("set_git_identity", (git_identity, project_id), UnknownProject, project_id)

    def insert_agent(
        self, project_id: int, *, name: str, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Store an agent whose name nobody has in the project."""
        values = {
            "project_id": project_id,
            "name": name,
            "name_key": name.casefold(),
            "program": program,
            "model": model,
            "task_description": task_description,
            "now": now,
        }
        made = rows.agent(self._execute(SQL["insert_agent"], values).fetchone())
        self._tell_registered(made)
        return made

    def update_agent(
        self, agent_id: int, *, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        """Replace what an agent says of itself, and note its activity."""
        values = {
            "id": agent_id,
            "program": program,
            "model": model,
            "task_description": task_description,
            "now": now,
        }
        if self._execute(SQL["agent_differs"], values).fetchone():
            self._tell_of_agent("agent.changed", agent_id, now)
        row = self._execute(SQL["update_agent"], values).fetchone()
        if row is None:
            raise _unknown(UnknownAgent, agent_id)
        return rows.agent(row)

    def set_agent_retired(self, agent_id: int, retired_at: int | None, *, now: int) -> None:
        """Retire an agent at an instant, or bring it back with None."""
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("set_agent_retired", (retired_at, agent_id), UnknownAgent, agent_id)
        self._tell_retired(before, retired_at, now)

    def set_agent_token(self, agent_id: int, token_hash: str | None) -> None:
        """Replace an agent's token; None revokes it."""
        self._update("set_agent_token", (token_hash, agent_id), UnknownAgent, agent_id)

    def set_contact_policy(self, agent_id: int, policy: ContactPolicy, *, now: int) -> None:
        """Say whose mail an agent takes."""
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("set_contact_policy", (policy, agent_id), UnknownAgent, agent_id)
        self._tell_policy(before, policy, now)

    def touch_agent(self, agent_id: int, now: int) -> None:
        """Note an agent's activity and extend its live reservations by their own length."""
        values = {"id": agent_id, "now": now}
        self._update("touch_agent", values, UnknownAgent, agent_id)
        self._execute(SQL["touch_reservations"], values)

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
        # The id is taken beforehand: a thread that is filled in afterwards is written to its index twice.
        message_id = int(self._execute(SQL["newest_message"]).fetchone()[0]) + 1
        thread_id = thread_id or f"msg-{message_id}"
        values = (
            message_id,
            project_id,
            sender.id,
            sender.name,
            thread_id,
            subject,
            body_md,
            importance,
            ack_required,
            now,
            topic,
            broadcast,
            reply_to,
        )
        self._execute(SQL["insert_message"], values)
        message = Message(
            id=message_id,
            project_id=project_id,
            sender_id=sender.id,
            sender_name=sender.name,
            thread_id=thread_id,
            subject=subject,
            body_md=body_md,
            importance=importance,
            ack_required=ack_required,
            created_at=now,
            topic=topic,
            broadcast=broadcast,
            reply_to=reply_to,
        )
        self._tell_sent(message)
        return message

    def insert_recipient(self, message_id: int, agent: Agent, kind: RecipientKind) -> int:
        """Store a recipient and return the letter's sequence number in that inbox."""
        row = self._execute(SQL["next_inbox_seq"], (agent.id,)).fetchone()
        if row is None:
            raise _unknown(UnknownAgent, agent.id)
        position = self._next_position(message_id)
        self._execute(SQL["insert_recipient"], (message_id, agent.id, kind, row[0], position))
        self._tell_reached(message_id, agent, kind)
        return int(row[0])

    def mark_read(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the read mark unless it is set; return it, or None when the agent is no recipient."""
        if row := self._execute(SQL["mark_read"], (message_id, agent_id, now)).fetchone():
            self._tell_delivery("delivery.read", message_id, agent_id, row[0], now)
            return now
        row = self._execute(SQL["read_mark"], (message_id, agent_id)).fetchone()
        return int(row[0]) if row else None

    def mark_acked(self, message_id: int, agent_id: int, now: int) -> int | None:
        """Set the acknowledgement (and the read mark) unless set; return it, or None for no recipient."""
        self.mark_read(message_id, agent_id, now)
        if row := self._execute(SQL["mark_acked"], (message_id, agent_id, now)).fetchone():
            self._tell_delivery("delivery.acknowledged", message_id, agent_id, row[0], now)
            return now
        row = self._execute(SQL["acked_mark"], (message_id, agent_id)).fetchone()
        return int(row[0]) if row else None

    def mark_recalled(self, message_id: int, now: int) -> None:
        """Recall a message: its text is erased here and from search; the entry stays."""
        stored = self.attachments([message_id])[message_id]
        message = self.message(message_id)
        if message is not None and message.recalled_at is None:
            self._tell_recalled(message, now)
        self._update("mark_recalled", (message_id, now), UnknownMessage, message_id)
        self._execute(SQL["drop_attachments"], (message_id,))
        blobs = {one.sha256 for one in stored} | {one.preview_sha256 for one in stored if one.preview_sha256}
        self._execute(SQL["drop_orphan_blobs"], (_array(sorted(blobs)),))

    def insert_blob(self, sha256: str, content: bytes) -> None:
        """Store bytes under their SHA-256; harmless when they are there."""
        self._execute(SQL["insert_blob"], (sha256, content))

    def insert_attachment(self, message_id: int, attachment: Attachment) -> None:
        """Attach stored bytes to a message."""
        values = (
            message_id,
            attachment.sha256,
            attachment.name,
            attachment.media_type,
            attachment.size,
            attachment.preview_sha256,
        )
        self._execute(SQL["insert_attachment"], values)

    def insert_reservation(  # noqa: PLR0913 - the port's own list of columns
        self, agent: Agent, *, pattern: str, prefix: str, exclusive: bool, reason: str, ttl: int, now: int
    ) -> Reservation:
        """Store a live reservation of `ttl` milliseconds."""
        values = (agent.project_id, agent.id, pattern, prefix, exclusive, reason, now, now + ttl, ttl)
        made = self._execute(SQL["insert_reservation"], values).lastrowid
        assert made is not None  # noqa: S101 - an INSERT that did not raise has an id
        reservation = Reservation(
            id=made,
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
        self._tell_reserved("reservation.made", reservation, now)
        return reservation

    def extend_reservation(
        self, reservation_id: int, *, expires_at: int, ttl: int, exclusive: bool, reason: str, now: int
    ) -> Reservation:
        """Move the end of a reservation and replace its terms."""
        self._execute(SQL["extend_reservation"], (expires_at, ttl, exclusive, reason, reservation_id))
        extended = self._reservation_again(reservation_id)
        self._tell_reserved("reservation.renewed", extended, now)
        return extended

    def release_reservation(self, reservation_id: int, *, now: int, by: str, reason: str) -> Reservation:
        """End a reservation that is live."""
        is_new = self._execute(SQL["release_reservation"], (now, by, reason, reservation_id)).rowcount > 0
        released = self._reservation_again(reservation_id)
        if is_new:
            self._tell_released(released, now, by)
        return released

    def expire_reservations(self, project_id: int, now: int) -> list[Reservation]:
        """End those whose time is over and return them, oldest first, at most a hundred a call."""
        found = self._execute(SQL["expired_reservations"], (project_id, now)).fetchall()
        for row in found:
            self._execute(SQL["expire_reservation"], (row[0],))
        over = [rows.reservation(row) for row in found]
        for one in over:
            self._tell_expired(one, now)
        return over

    def put_contact(
        self, from_id: int, to_id: int, *, status: ContactStatus, reason: str, now: int
    ) -> ContactLink:
        """Store or replace what `from_id` asks of, or is granted by, `to_id`."""
        values = {"from_id": from_id, "to_id": to_id, "status": status, "reason": reason, "now": now}
        before = self.contact(from_id, to_id)
        link = rows.contact(self._execute(SQL["put_contact"], values).fetchone())
        self._tell_contact(before, link, now)
        return link

    def insert_answer(self, scope: str, key: str, digest: str, answer: bytes, now: int) -> None:
        """Keep the first answer given under an idempotency key."""
        self._execute(SQL["insert_answer"], (scope, key, digest, answer, now))

    def purge_answers(self, before: int, *, limit: int) -> int:
        """Forget answers older than an instant; return how many."""
        return self._execute(SQL["purge_answers"], (before, limit)).rowcount

    def insert_outbox(self, topic: str, key: str, project_id: int, now: int) -> None:
        """Store an effect to be performed after this transaction."""
        self._execute(SQL["insert_outbox"], (next(self._outbox_ids), topic, key, project_id, now))

    def finish_outbox(self, row_ids: Sequence[int]) -> None:
        """Remove rows whose effects were performed; harmless when they are gone."""
        self._execute(SQL["finish_outbox"], (_array(row_ids),))

    def fail_outbox(self, row_ids: Sequence[int], error: str) -> None:
        """Count one failed attempt on each row and keep the reason."""
        self._execute(SQL["fail_outbox"], (error, _array(row_ids)))

    def restore_rows(self, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        """Store whole rows by table with their ids, for rebuilding from an archive."""
        if self._execute(SQL["any_project"]).fetchone():
            raise StateError("the database already holds mail", remedy="rebuild into a new, empty database")
        if unknown := rows.keys() - set(_REBUILT):
            raise StateError(f"{sorted(unknown)} can not be rebuilt", value=sorted(unknown))
        for table in _REBUILT:
            for record in rows.get(table, ()):
                self._restore_row(table, record)

    def _restore_row(self, table: str, record: Mapping[str, object]) -> None:
        known = {column[1] for column in self._execute(f"PRAGMA table_info ({table})")}
        if unknown := record.keys() - known:
            raise StateError(f"{table} has no column {sorted(unknown)}", value=sorted(unknown))
        names = ", ".join(record)
        marks = ", ".join("?" * len(record))
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - both were checked above
        self._execute(statement, tuple(record.values()))

    def _update(
        self,
        statement: str,
        values: Sequence[object] | Mapping[str, object],
        kind: type[InputError],
        row_id: int,
    ) -> None:
        if self._execute(SQL[statement], values).rowcount == 0:
            raise _unknown(kind, row_id)

    def _next_position(self, message_id: int) -> int:
        if message_id not in self._positions:
            named = self._execute(SQL["recipients_named"], (message_id,)).fetchone()
            self._positions[message_id] = named[0]
        self._positions[message_id] += 1
        return self._positions[message_id] - 1

    def _reservation_again(self, reservation_id: int) -> Reservation:
        found = self.reservation(reservation_id)
        if found is None:
            raise _unknown(UnknownReservation, reservation_id)
        return found


_REBUILT = ("projects", "agents", "messages", "recipients", "blobs", "attachments", "file_reservations")
"""The tables that an archive holds, those that others refer to first."""


def _unknown(kind: type[InputError], row_id: int) -> InputError:
    return kind(f"nothing has the id {row_id}", value=row_id)


def _array(values: Iterable[object]) -> str:
    return json.dumps(list(values))


def _near(project_id: int, now: int, near: str | None) -> dict[str, object]:
    """Return the parameters that find reservations whose prefix lies on the way to `near`, or below it."""
    return {
        "project_id": project_id,
        "now": now,
        "ancestors": _array(_whole_segment_prefixes(near)) if near else None,
        "below": f"{near}/",
        "beyond": f"{near}0",  # "0" follows "/" in every encoding
    }


def _whole_segment_prefixes(prefix: str) -> list[str]:
    parts = prefix.split("/")
    return ["", *("/".join(parts[: count + 1]) for count in range(len(parts)))]
