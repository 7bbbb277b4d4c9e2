"""Which projects a command is about: its change keeps other changes of them out before it looks."""

from contextlib import suppress
from functools import partial

import msgspec

from postroom.contracts.errors import InvalidPath
from postroom.contracts.store import MailReads, MailWrites
from postroom.mail.commands import Command, RecallMessage, ReplyMessage
from postroom.mail.identity import is_persons
from postroom.mail.projects import PEOPLE_KEY, checked_path

_TO_BE_MADE = 0
"""Stands for every project that nobody has made yet."""


def home_of(command: Command) -> str:
    """Return the project where a command is given, as it is named there."""
    named: str = getattr(command, "project_key", "") or getattr(command, "human_key", "")
    return named


def lock_projects_of(tx: MailWrites, command: Command) -> None:
    """Keep other changes of the projects out that a command may change, before it looks at anything."""
    named = projects_of(tx, command)
    tx.lock_projects(named)
    if _TO_BE_MADE in named:  # somebody may have made it before this one had the lock
        tx.lock_projects(projects_of(tx, command))


def projects_of(tx: MailReads, command: Command) -> set[int]:
    """Return the ids of the projects whose logs, agents or messages a command may change."""
    keys, fields = {home_of(command)}, msgspec.structs.asdict(command)
    for name in ("to", "cc", "bcc", "requester"):
        named = fields.get(name) or ()
        for address in [named] if isinstance(named, str) else named:
            if is_persons(address):
                keys.add(PEOPLE_KEY)
            elif "@" in address:
                keys.add(address.partition("@")[2])
    found = set(map(partial(_project_id, tx), keys))
    message_id = fields.get("message_id")
    return found | _projects_of_message(tx, command, message_id) if isinstance(message_id, int) else found


def _project_id(tx: MailReads, key: str) -> int:
    found = tx.project(key)
    if found is None:
        with suppress(InvalidPath):  # then nobody has it
            found = tx.project(checked_path(key))
    return _TO_BE_MADE if found is None else found.id


def _projects_of_message(tx: MailReads, command: Command, message_id: int) -> set[int]:
    """Return the projects of the message that a command is about; an answer goes to its readers as well."""
    message = tx.message(message_id)
    if message is None:
        return set()
    if not isinstance(command, ReplyMessage | RecallMessage):
        return {message.project_id}
    readers = [one.agent_id for one in tx.recipients([message.id])[message.id]]
    agents = tx.agents_by_id([message.sender_id, *readers]).values()
    return {message.project_id} | {one.project_id for one in agents}
