"""Whole rows from elsewhere, given as a table's columns, put back as records with their ids."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postroom.contracts.errors import StateError, StoreError
from postroom.contracts.mail import Agent, Attachment, Message, Project, Reservation
from postroom.stores.memory.tables import Enclosure, K, Letter, R, Table, Tables


def restore(tables: Tables, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Store whole rows by table.

    Raises:
        StateError: there is no such table or column.
        StoreError: a column is missing.
    """
    if unknown := rows.keys() - _PUT.keys():
        raise StateError(f"{sorted(unknown)} can not be rebuilt", value=sorted(unknown))
    for table, put in _PUT.items():
        for row in rows.get(table, ()):
            columns = _Columns(table, row)
            put(tables, columns)
            columns.done()


class _Columns:
    """The columns of one row, each to be taken once."""

    def __init__(self, table: str, row: Mapping[str, Any]) -> None:
        self._table = table
        self._left = dict(row)

    def need(self, name: str) -> Any:
        if name not in self._left:
            raise StoreError(f"the store refused: {self._table} needs the column {name}", value=name)
        return self._left.pop(name)

    def may(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def done(self) -> None:
        if self._left:
            raise StateError(f"{self._table} has no column {sorted(self._left)}", value=sorted(self._left))


def _referred(table: Table[K, R], key: K) -> R:
    """Return the row that another one refers to."""
    row = table.get(key)
    if row is None:
        raise StoreError(f"the store refused: a row refers to {key!r}, which is not there", value=key)
    return row


def _put_project(tables: Tables, row: _Columns) -> None:
    project = Project(
        id=row.need("id"),
        slug=row.need("slug"),
        human_key=row.need("human_key"),
        created_at=row.need("created_at"),
        spelling=row.may("spelling", ""),
        git_identity=row.may("git_identity", ""),
        owner=row.may("owner", ""),
    )
    tables.projects.insert(project.id, project)
    tables.numbers_reach("projects", project.id)


def _put_agent(tables: Tables, row: _Columns) -> None:
    row.need("name_key")  # here the name itself is compared, folded
    agent = Agent(
        id=row.need("id"),
        project_id=row.need("project_id"),
        name=row.need("name"),
        program=row.need("program"),
        model=row.need("model"),
        task_description=row.may("task_description", ""),
        created_at=row.need("created_at"),
        last_active_at=row.need("last_active_at"),
        contact_policy=row.may("contact_policy", "open"),
        retired_at=row.may("retired_at"),
        token_hash=row.may("token_hash"),
        inbox_seq=row.may("inbox_seq", 0),
        inbox_floor=row.may("inbox_floor", 0),
    )
    tables.agents.insert(agent.id, agent)
    tables.numbers_reach("agents", agent.id)


def _put_message(tables: Tables, row: _Columns) -> None:
    message_id = row.need("id")
    message = Message(
        id=message_id,
        project_id=row.need("project_id"),
        sender_id=row.need("sender_id"),
        sender_name=row.may("sender_name", ""),
        thread_id=row.may("thread_id") or f"msg-{message_id}",
        subject=row.need("subject"),
        body_md=row.need("body_md"),
        importance=row.may("importance", "normal"),
        ack_required=bool(row.may("ack_required", False)),
        created_at=row.need("created_ts"),
        topic=row.may("topic", ""),
        broadcast=bool(row.may("broadcast", False)),
        reply_to=row.may("reply_to"),
        recalled_at=row.may("recalled_at"),
    )
    tables.messages.insert(message.id, message)
    tables.numbers_reach("messages", message.id)


def _put_letter(tables: Tables, row: _Columns) -> None:
    letter = Letter(
        message_id=row.need("message_id"),
        agent_id=row.need("agent_id"),
        kind=row.need("kind"),
        seq=row.need("seq"),
        position=row.may("position", 0),
        read_at=row.may("read_at"),
        acked_at=row.may("acked_at"),
        announced_at=row.may("announced_at"),
        announced_by=row.may("announced_by"),
    )
    _referred(tables.messages, letter.message_id)
    _referred(tables.agents, letter.agent_id)
    tables.letters.insert((letter.agent_id, letter.seq), letter)


def _put_blob(tables: Tables, row: _Columns) -> None:
    tables.blobs.insert(row.need("sha256"), row.need("content"))


def _put_attachment(tables: Tables, row: _Columns) -> None:
    attachment = Attachment(
        sha256=row.need("sha256"),
        name=row.need("name"),
        media_type=row.need("media_type"),
        size=row.need("size"),
        preview_sha256=row.may("preview_sha256"),
    )
    enclosure = Enclosure(
        message_id=row.need("message_id"), position=row.need("position"), attachment=attachment
    )
    _referred(tables.messages, enclosure.message_id)
    _referred(tables.blobs, attachment.sha256)
    tables.enclosures.insert((enclosure.message_id, enclosure.position), enclosure)


def _put_reservation(tables: Tables, row: _Columns) -> None:
    holder = _referred(tables.agents, row.need("agent_id"))
    reservation = Reservation(
        id=row.need("id"),
        project_id=row.need("project_id"),
        agent_id=holder.id,
        holder=holder.name,
        pattern=row.need("pattern"),
        prefix=row.need("prefix"),
        exclusive=bool(row.need("exclusive")),
        reason=row.may("reason", ""),
        created_at=row.need("created_at"),
        expires_at=row.need("expires_at"),
        ttl=row.need("ttl"),
        released_at=row.may("released_at"),
        released_by=row.may("released_by", ""),
        release_reason=row.may("release_reason", ""),
    )
    tables.reservations.insert(reservation.id, reservation)
    tables.numbers_reach("reservations", reservation.id)


_PUT: dict[str, Callable[[Tables, _Columns], None]] = {
    "projects": _put_project,
    "agents": _put_agent,
    "messages": _put_message,
    "recipients": _put_letter,
    "blobs": _put_blob,
    "attachments": _put_attachment,
    "file_reservations": _put_reservation,
}
"""The tables that an archive holds, those that others refer to first."""
