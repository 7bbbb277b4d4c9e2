"""The table of all operations for callers. The table generates tools, documents, tests and commands."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from postroom.contracts.operations import Operation, Option, Who
from postroom.contracts.tokens import ADMIN, Scope
from postroom.mail import (
    agents,
    catching_up,
    commands,
    contacts,
    event_log,
    inbox,
    notes,
    reservations,
    sending,
    subscriptions,
    tasks,
    threads,
)
from postroom.mail.commands import Command
from postroom.mail.context import OperationContext
from postroom.mail.waking import asking

READ: Final[frozenset[Scope]] = frozenset({"mail:read"})
"""The scope to read all mail. Every operation that changes anything requires another scope, too."""
SEND: Final[frozenset[Scope]] = frozenset({"mail:send"})
"""The scope to write, reply, mark messages, request contacts, and register agents and projects."""
RESERVE: Final[frozenset[Scope]] = frozenset({"reserve"})
RUN: Final[frozenset[Scope]] = frozenset({"run"})
"""The scope to act as a run that the server has started."""


_HERE: Final = {"project_key": Option(kind="project")}
_AGENT: Final = {**_HERE, "agent_name": Option(metavar="NAME", complete="agents", help="The agent.")}

_ACTING: Final = {
    **_HERE,
    "agent_name": Option(kind="acting"),
    "idempotency_key": Option(kind="key"),
}


def _looks(
    needs: frozenset[Scope],
    command: type[Command],
    run: Callable[[OperationContext[Any, Any], Any], Any],
    **more: Any,
) -> Operation:
    return Operation(name=run.__name__, command=command, run=run, changes=False, needs=needs, **more)


def _changes(
    needs: frozenset[Scope],
    command: type[Command],
    run: Callable[[OperationContext[Any, Any], Any], Any],
    **more: Any,
) -> Operation:
    return Operation(
        name=run.__name__, command=command, run=run, changes=True, needs=needs, who=Who.CALLERS, **more
    )


MAIL_OPERATIONS: tuple[Operation, ...] = (
    _looks(READ, commands.HealthCheck, agents.health_check),
    _changes(SEND, commands.EnsureProject, agents.ensure_project, repeatable=True, is_of_one_project=True),
    _changes(READ | SEND | RESERVE, commands.StartSession, agents.start_session, is_of_one_project=True),
    _changes(SEND, commands.RegisterAgent, agents.register_agent, is_of_one_project=True),
    _changes(SEND, commands.CreateAgentIdentity, agents.create_agent_identity, is_of_one_project=True),
    _looks(READ, commands.ShowProject, threads.show_project, settled=True, is_of_one_project=True),
    _looks(
        READ,
        commands.Whois,
        agents.whois,
        is_of_one_project=True,
        line="agents show AGENT_NAME",
        line_help="Show an agent, its unread messages and reservations, and how a message reaches the agent.",
        options=_AGENT,
    ),
    _looks(
        READ,
        commands.ListAgents,
        agents.list_agents,
        is_of_one_project=True,
        line="agents list",
        line_help="List the agents of a project.",
        options={
            **_HERE,
            "include_retired": Option(name="--retired", help="Include retired agents."),
            "limit": Option(metavar="N", help="The maximum number of agents."),
            "after": Option(
                metavar="N", help="Start after the previous page: N is the `next` value of that page."
            ),
        },
    ),
    _changes(
        ADMIN,
        commands.RetireAgent,
        agents.retire_agent,
        destructive=True,
        repeatable=True,
        is_of_one_project=True,
        line="agents retire AGENT_NAME",
        line_help="Retire an agent. A retired agent sends and receives no messages. Its reservations and "
        "questions end.",
        options=_AGENT,
    ),
    _changes(
        ADMIN,
        commands.UnretireAgent,
        agents.unretire_agent,
        repeatable=True,
        is_of_one_project=True,
        line="agents unretire AGENT_NAME",
        options=_AGENT,
    ),
    Operation(
        name="rotate_agent_token",
        command=commands.RotateAgentToken,
        run=agents.rotated_elsewhere,
        changes=True,
        needs=ADMIN,
        who=Who.CALLERS,
        destructive=True,
        is_of_one_project=True,
    ),
    _changes(SEND, commands.SendMessage, sending.send_message, is_of_one_project=True),
    _changes(SEND, commands.ReplyMessage, sending.reply_message, is_of_one_project=True),
    _changes(
        SEND,
        commands.RecallMessage,
        sending.recall_message,
        destructive=True,
        repeatable=True,
        is_of_one_project=True,
    ),
    _looks(READ, commands.FetchInbox, inbox.fetch_inbox, is_of_one_project=True),
    _looks(READ, commands.FetchInboxEvents, inbox.fetch_inbox_events, is_of_one_project=True),
    _looks(READ, commands.GetMessage, inbox.get_message, is_of_one_project=True),
    _looks(READ, commands.GetAttachment, inbox.get_attachment, is_of_one_project=True),
    _looks(READ, commands.DeliveryStatus, inbox.delivery_status, is_of_one_project=True),
    _changes(
        SEND, commands.MarkMessageRead, inbox.mark_message_read, repeatable=True, is_of_one_project=True
    ),
    _changes(
        SEND, commands.AcknowledgeMessage, inbox.acknowledge_message, repeatable=True, is_of_one_project=True
    ),
    _looks(
        READ,
        commands.SearchMessages,
        threads.search_messages,
        settled=True,
        is_of_one_project=True,
        line="mail search QUERY",
        line_help="Search the messages of a project.",
        options={
            **_HERE,
            "query": Option(help='Words, "phrases", prefix*, AND OR NOT, subject:word.'),
            "limit": Option(metavar="N", help="Maximum number of messages to show."),
            "order": Option(help="Sort by newest or by best match."),
            "cursor": Option(
                metavar="N", help="Start after the previous page: N is the `next` value of that page."
            ),
        },
    ),
    _looks(READ, commands.FetchThread, threads.fetch_thread, is_of_one_project=True),
    _looks(READ, commands.SummarizeThread, threads.summarize_thread, is_of_one_project=True),
    _changes(RUN, commands.AskPerson, asking.ask_person, repeatable=True, is_of_one_project=True),
    _changes(
        SEND,
        commands.RequestContact,
        contacts.request_contact,
        repeatable=True,
        is_of_one_project=True,
        line="agents request-contact TO",
        line_help="Ask an agent to accept another agent's messages. Repeating a request has no effect.",
        options={
            **_HERE,
            "agent_name": Option(kind="acting"),
            "to": Option(
                metavar="NAME", help="The agent to ask. For an agent of another project: name@project."
            ),
            "reason": Option(metavar="TEXT", help="The reason for the request."),
        },
    ),
    _changes(
        SEND,
        commands.RespondContact,
        contacts.respond_contact,
        repeatable=True,
        is_of_one_project=True,
    ),
    _looks(READ, commands.ListContacts, contacts.list_contacts, is_of_one_project=True),
    _changes(
        SEND, commands.SetContactPolicy, agents.set_contact_policy, repeatable=True, is_of_one_project=True
    ),
    _changes(RESERVE, commands.ReservePaths, reservations.file_reservation_paths, is_of_one_project=True),
    _looks(RESERVE, commands.CheckReservations, reservations.check_file_reservations, is_of_one_project=True),
    _changes(
        RESERVE,
        commands.ReleaseReservations,
        reservations.release_file_reservations,
        repeatable=True,
        is_of_one_project=True,
    ),
    _changes(
        RESERVE, commands.RenewReservations, reservations.renew_file_reservations, is_of_one_project=True
    ),
    _changes(
        RESERVE,
        commands.ForceReleaseReservation,
        reservations.force_release_file_reservation,
        destructive=True,
        repeatable=True,
        is_of_one_project=True,
    ),
    _looks(
        RESERVE,
        commands.ListReservations,
        reservations.list_file_reservations,
        is_of_one_project=True,
        line="reservations list",
        line_help="List the active reservations of a project.",
        options={
            **_HERE,
            "agent_name": Option(name="--as", metavar="NAME", help="Only reservations of this agent."),
            "limit": Option(metavar="N", help="Maximum number of reservations to show."),
        },
    ),
    _looks(
        READ,
        commands.ListTasks,
        tasks.list_tasks,
        is_of_one_project=True,
        line="tasks list",
        line_help="List a project's open tasks in the order of claiming, or show one task with its text.",
        options={
            **_HERE,
            "state": Option(help="Only tasks in this state."),
            "task_id": Option(
                name="--id", metavar="ID", help="Show only this task, with its text and evidence."
            ),
            "limit": Option(metavar="N", help="Maximum number of tasks to show."),
            "after": Option(
                metavar="CURSOR",
                help="Start after the previous page: CURSOR is the `next` value of that page.",
            ),
        },
    ),
    _changes(
        READ | SEND | RESERVE,
        commands.ClaimTask,
        tasks.claim_task,
        is_of_one_project=True,
        line="tasks claim TASK_ID",
        line_help="Claim the next ready task whose files are free, and reserve the files.",
        options={
            **_ACTING,
            "task_id": Option(name="--id", help="The task's number. Default: the next ready task."),
            "roles": Option(name="--role", metavar="ROLE", help="A role of the agent, such as reviewer."),
            "ttl_seconds": Option(
                kind="ttl", help="Time without activity after which the agent loses the task."
            ),
            "dry_run": Option(help="Show the task without claiming it."),
        },
    ),
    _changes(
        SEND,
        commands.AddTask,
        tasks.add_task,
        is_of_one_project=True,
        line="tasks add TITLE",
        line_help="Add a task that agents can claim.",
        options={
            **_ACTING,
            "title": Option(help="The title, in one line."),
            "text": Option(metavar="TEXT", help="The work to do, in Markdown."),
            "paths": Option(
                name="--path", metavar="PATH", help="A file or pattern that the work touches. Repeatable."
            ),
            "depends_on": Option(
                name="--after", metavar="ID", help="A task that must be done first. Repeatable."
            ),
            "priority": Option(help="The priority. Tasks with a higher priority are claimed first."),
            "assignee": Option(name="--to", metavar="NAME", help="An agent, or role:NAME. Default: anybody."),
            "acceptance": Option(
                name="--check",
                metavar="COMMAND",
                help="A command that must succeed to finish the task, or `person` to let a person decide.",
            ),
        },
    ),
    _changes(
        READ | SEND,
        commands.UpdateTask,
        tasks.update_task,
        is_of_one_project=True,
        line="tasks update TASK_ID",
        line_help="Change, give back, block or cancel a task.",
        options={
            **_ACTING,
            "task_id": Option(help="The task's number."),
            "epoch": Option(
                metavar="N", help="The claim's epoch, needed to give back or block a claimed task."
            ),
            "state": Option(help="The new state: ready gives back or unblocks the task."),
            "reason": Option(metavar="TEXT", help="The reason."),
            "title": Option(metavar="TEXT", help="The new title."),
            "text": Option(metavar="TEXT", help="The new text."),
            "paths": Option(
                name="--path",
                metavar="PATH",
                help="A file or pattern. Repeatable: the files given replace the old list.",
            ),
            "depends_on": Option(
                name="--after",
                metavar="ID",
                help="A task that must be done first. Repeatable: the tasks given replace the old list.",
            ),
            "priority": Option(help="The new priority."),
            "assignee": Option(name="--to", metavar="NAME", help="An agent, or role:NAME."),
            "acceptance": Option(
                name="--check",
                metavar="COMMAND",
                help="A command that must succeed to finish the task, or `person` to let a person decide.",
            ),
        },
    ),
    _changes(
        READ | SEND,
        commands.DoneTask,
        tasks.done_task,
        is_of_one_project=True,
        line="tasks done TASK_ID",
        line_help="Finish a task that the agent holds.",
        options={
            **_ACTING,
            "task_id": Option(help="The task's number."),
            "epoch": Option(metavar="N", help="The claim's epoch."),
            "commit": Option(metavar="COMMIT", help="The commit that contains the work."),
            "output": Option(metavar="TEXT", help="The output of the acceptance command."),
            "message": Option(metavar="TEXT", help="A message to the task's author, in Markdown."),
        },
    ),
    _changes(
        SEND,
        commands.AddNote,
        notes.add_note,
        is_of_one_project=True,
        line="notes add SUBJECT TEXT",
        line_help="Add a fact that agents receive when they work on the note's files or task.",
        options={
            **_ACTING,
            "subject": Option(help="The subject of the note, in one line."),
            "text": Option(help="The fact."),
            "paths": Option(
                name="--path", metavar="PATH", help="A file or pattern that the note is about. Repeatable."
            ),
            "task_id": Option(name="--task", metavar="ID", help="The task that the note is about."),
            "commit": Option(metavar="COMMIT", help="The commit for which the note is true."),
            "replaces": Option(
                metavar="ID", help="A note that is no longer true, which this note replaces. Repeatable."
            ),
            "days": Option(metavar="N", help="Days until the note expires."),
        },
    ),
    _looks(
        READ,
        commands.FindNotes,
        notes.find_notes,
        is_of_one_project=True,
        line="notes list QUERY",
        line_help="List the notes of a project, newest first.",
        options={
            **_HERE,
            "query": Option(help="Only notes with these words."),
            "paths": Option(name="--path", metavar="PATH", help="Only notes about this file or pattern."),
            "note_id": Option(name="--id", metavar="ID", help="Only this note, active or not."),
            "limit": Option(metavar="N", help="Maximum number of notes to show."),
        },
    ),
    _changes(
        SEND,
        commands.EndNote,
        notes.end_note,
        is_of_one_project=True,
        line="notes end NOTE_ID",
        line_help="End a note that is no longer true.",
        options={**_ACTING, "note_id": Option(help="The note's number.")},
    ),
    _changes(
        SEND,
        commands.Subscribe,
        subscriptions.subscribe,
        is_of_one_project=True,
        line="subscriptions add KIND ABOUT",
        line_help="Send an agent a message when an agent is idle, a task is ready, files change or a "
        "branch is merged.",
        options={
            **_ACTING,
            "kind": Option(help="What to watch: one of these kinds."),
            "about": Option(help="The agent, task or files to watch; without it, every task."),
            "once": Option(help="End the subscription after its first message."),
        },
    ),
    _looks(
        READ,
        commands.ListSubscriptions,
        subscriptions.list_subscriptions,
        is_of_one_project=True,
        line="subscriptions list",
        line_help="List the subscriptions of an agent.",
        options={**_HERE, "agent_name": Option(kind="acting")},
    ),
    _changes(
        SEND,
        commands.EndSubscription,
        subscriptions.end_subscription,
        is_of_one_project=True,
        line="subscriptions end SUBSCRIPTION_ID",
        line_help="End a subscription.",
        options={**_ACTING, "subscription_id": Option(help="The subscription's number.")},
    ),
    _looks(READ, commands.FetchEvents, event_log.fetch_events, is_of_one_project=True),
    _looks(
        READ,
        commands.CatchUp,
        catching_up.catch_up,
        is_of_one_project=True,
        line="catch-up",
        line_help="Summarise what happened recently in a project.",
        options={
            **_HERE,
            "after": Option(
                metavar="N",
                help="Start after this event number, for example the `next` value of an earlier summary.",
            ),
            "hours": Option(metavar="N", help="The hours to look back if --after is not used."),
        },
    ),
)

OPERATIONS = {operation.name: operation for operation in MAIL_OPERATIONS}
WHOLE_ATTACHMENT: Final = replace(OPERATIONS["get_attachment"], run=inbox.attached_file)
"""`get_attachment` for callers that accept bytes, which returns the whole file."""
