"""Decides which messages are deleted, and deletes them in small transactions.

A rule that puts messages on hold takes precedence over all other rules. If no such rule matches, the first
matching rule applies. Messages that match no rule are kept. Messages of active runs are kept, too. Messages
that a recipient has not read or acknowledged yet are kept unless the rule excludes this.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import UnknownProject
from postroom.contracts.mail import AgedMessage, KeepRule, OldMessages
from postroom.contracts.tracing import message_trace
from postroom.mail.outgoing import deletion_to_archive
from postroom.stores.mail.access import MailReads, MailWrites, ProjectReads

Verdict = Literal["goes", "young", "held", "unread", "at_work", "no_rule"]
STEP: Final = 10
"""The number of messages that one transaction deletes.

Such a transaction takes a few milliseconds, during which the server answers no caller.
"""


@dataclass(frozen=True, slots=True)
class ProjectRules:
    """The retention rules that apply to one project, in order."""

    rules: Sequence[KeepRule]

    def verdict(self, message: AgedMessage, now: int) -> Verdict:
        """Return whether a message must be deleted, or the reason why the message is kept."""
        fitting = [
            rule
            for rule in self.rules
            if rule.topic in (None, message.topic) and rule.thread in (None, message.thread_id)
        ]
        if not fitting:
            return "no_rule"
        if any(rule.holds for rule in fitting):
            return "held"
        rule = fitting[0]
        if rule.keep is None or message.created_at > now - milliseconds(rule.keep):
            return "young"
        if message.is_at_work:
            return "at_work"
        return "unread" if message.is_awaited and rule.unread_stays else "goes"

    def sought(self, now: int) -> OldMessages | None:
        """Return a filter for messages that may be deleted, or None if the rules delete no messages."""
        deleting = [(rule, rule.keep) for rule in self.rules if rule.keep is not None]
        if not deleting:
            return None
        return OldMessages(
            before=now - min(milliseconds(keep) for _, keep in deleting),
            threads=[rule.thread for rule, _ in deleting if rule.thread is not None],
            topics=[rule.topic for rule, _ in deleting if rule.topic is not None],
            is_any=any(rule.thread is None and rule.topic is None for rule, _ in deleting),
            with_awaited=not all(rule.unread_stays for rule, _ in deleting),
        )


def rules_of_projects(
    projects: ProjectReads, rules: Sequence[KeepRule], ids: Iterable[int]
) -> dict[int, ProjectRules]:
    """Return the retention rules of each given project, keyed by project id.

    Raises:
        UnknownProject: A rule that puts messages on hold names a project that does not exist. Messages could
            be deleted by mistake.
    """
    about = [(rule, _rule_project_id(projects, rule)) for rule in rules]
    return {
        number: ProjectRules([rule for rule, project in about if project in (0, number)]) for number in ids
    }


def delete_some(tx: MailWrites, *, project_id: int, ids: Sequence[int], rules: ProjectRules) -> int:
    """Delete the messages in `ids` that the rules no longer keep; return the number of deleted messages.

    Messages that a run received in the meantime are kept.
    """
    tx.lock_readers(project_id, ids)
    now = tx.now()
    going = _going(tx, project_id, ids, rules)
    messages, attached = tx.messages(going), tx.attachments(going)
    gone = tx.delete_messages(project_id, going, now=now)
    if gone:
        tx.drop_traces([message_trace(number) for number in gone])
        deletion_to_archive(tx, [messages[number] for number in gone], attached)
    return len(gone)


def select_messages_to_delete(
    tx: MailReads, *, project_id: int, rules: ProjectRules, after: int, limit: int
) -> tuple[list[int], int | None]:
    """Return the ids of a page of messages to delete, and the cursor of the next page."""
    sought = rules.sought(tx.now())
    if sought is None:
        return [], None
    numbers, end = tx.old_messages(project_id, sought, after=after, limit=limit)
    return _going(tx, project_id, numbers, rules) if numbers else [], end


def judge_messages(
    tx: MailReads, *, project_id: int, rules: ProjectRules, after: int, limit: int
) -> tuple[list[Verdict], int | None]:
    """Return the retention decision for each message of a page, and the cursor of the next page."""
    now = tx.now()
    page = tx.aged_messages(project_id, after=after, limit=limit)
    return [rules.verdict(message, now) for message in page], page[-1].id if len(page) == limit else None


def _going(tx: MailReads, project_id: int, ids: Sequence[int], rules: ProjectRules) -> list[int]:
    now = tx.now()
    return [
        message.id
        for message in tx.aged_messages_of(project_id, ids)
        if rules.verdict(message, now) == "goes"
    ]


def _rule_project_id(projects: ProjectReads, rule: KeepRule) -> int | None:
    """Return the id of the project that a rule names, 0 for all projects, or None for an unknown project."""
    if rule.project is None:
        return 0
    project = projects.project(rule.project)
    if project is None and rule.holds:
        raise UnknownProject(
            f"[[keep]] names {rule.project!r}, which is not a project: nothing is deleted until this "
            "is corrected",
            value=rule.project,
            remedy="use the project's path or slug from `postroom projects list`",
        )
    return None if project is None else project.id
