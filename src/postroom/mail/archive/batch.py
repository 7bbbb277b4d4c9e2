"""Collects the files of records in their present form, in one consistent view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.contracts.mail import Message, Project, is_content_of, is_damaged
from postroom.mail.archive import layout
from postroom.stores.mail.access import MailReads


@dataclass(slots=True, kw_only=True)
class Batch:
    """The contents of one commit: files by path, and the messages in it."""

    project: Project
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    recalled: list[tuple[Message, bytes]] = field(default_factory=list)
    """Messages whose text was deleted: their file has a name made from the former subject."""
    deleted: list[tuple[int, int]] = field(default_factory=list)
    """Deleted messages, each with its time of sending, which determines the file's folder."""
    removed: list[str] = field(default_factory=list)
    """Other files to remove."""
    newest_entry: int = 0
    """The newest entry of the project's log in that view."""

    @property
    def subject(self) -> str:
        """The commit's subject line."""
        if not self.messages:
            gone = len(self.deleted)
            return f"mail: {gone} deleted" if gone else "mail: agents and reservations"
        noun = "message" if len(self.messages) == 1 else "messages"
        return f"mail: {len(self.messages)} {noun}, {self.messages[0].subject}"

    @property
    def trailers(self) -> list[tuple[str, str]]:
        """The ids of the messages, one per line."""
        return [("Message-Id", str(message.id)) for message in self.messages]


def gather(tx: MailReads, project: Project, records: Sequence[str]) -> Batch:
    """Return the files of records, named `<kind>:<id>`; deleted records have none."""
    batch = Batch(project=project)
    batch.files[layout.PROJECT_FILE] = layout.project_file(project)
    wanted: dict[str, list[int]] = {"agent": [], "message": [], "reservation": []}
    for record in records:
        kind, _, number = record.partition(":")
        wanted[kind].append(int(number))
    if wanted["agent"]:
        for agent in tx.agents_by_id(wanted["agent"]).values():
            batch.files[layout.agent_path(agent.name)] = layout.agent_file(agent)
    for reservation_id in dict.fromkeys(wanted["reservation"]):
        if reservation := tx.reservation(reservation_id):
            batch.files[layout.reservation_path(reservation.id)] = layout.reservation_file(reservation)
    _gather_messages(tx, batch, sorted(set(wanted["message"])))
    return batch


def _gather_messages(tx: MailReads, batch: Batch, ids: Sequence[int]) -> None:
    if not ids:
        return
    messages, recipients, attachments = tx.messages(ids), tx.recipients(ids), tx.attachments(ids)
    for message in messages.values():
        content = layout.message_file(message, batch.project, recipients[message.id], attachments[message.id])
        if message.recalled_at is not None:
            batch.recalled.append((message, content))
            continue
        if is_damaged(message):  # the archive may still have the text that was sent
            continue
        batch.messages.append(message)
        batch.files[layout.message_path(message)] = content
        for one in attachments[message.id]:
            for sha256 in filter(None, (one.sha256, one.preview_sha256)):
                if (blob := tx.blob(sha256)) is not None and is_content_of(sha256, blob):
                    batch.files[layout.attachment_path(sha256)] = blob
    _gather_threads(tx, batch, [message.thread_id for message in messages.values()])


def gather_deletions(tx: MailReads, batch: Batch, deletions: Sequence[Mapping[str, Any]]) -> None:
    """Add deletions to a batch, except contents to which another message refers now."""
    project_id = batch.project.id
    for deletion in deletions:
        batch.deleted += [(number, sent_at) for number, sent_at in deletion["messages"]]
        _gather_threads(tx, batch, deletion["threads"])
        kept = tx.attached_in(project_id, deletion["contents"])
        batch.removed += [layout.attachment_path(one) for one in deletion["contents"] if one not in kept]


def _gather_threads(tx: MailReads, batch: Batch, thread_ids: Sequence[str]) -> None:
    for thread_id in dict.fromkeys(thread_ids):
        newest = tx.thread_tail(batch.project.id, thread_id, limit=layout.DIGEST_MESSAGES)
        if not newest:
            batch.removed.append(layout.thread_path(thread_id))
            continue
        left_out = 0
        if len(newest) == layout.DIGEST_MESSAGES:
            left_out = tx.thread_size(batch.project.id, thread_id) - len(newest)
        batch.files[layout.thread_path(thread_id)] = layout.thread_file(thread_id, newest, left_out)
