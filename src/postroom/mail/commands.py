"""Commands: the typed, documented arguments of operations, which all interfaces parse in the same way."""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from postroom.contracts.choices import ContactPolicy, Importance, SearchOrder
from postroom.contracts.clock import parse_duration
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import EVENT_KINDS, EventKind
from postroom.contracts.misfits import misfit, place_of
from postroom.contracts.notes import MAX_SUBJECT, MAX_TEXT
from postroom.contracts.numbers import NUMBER, NUMBERS, without_kind
from postroom.contracts.subscriptions import Watched
from postroom.contracts.tasks import BY_PERSON, TaskState
from postroom.mail.names import nearest

_END = r"$(?!\n)"
"""Matches the end of a text, without the line break that `$` alone allows in Python. Schemas support it."""

ProjectKey = Annotated[str, Meta(description="absolute path or slug", min_length=1, max_length=4096)]
AgentName = Annotated[str, Meta(description="your name", min_length=1, max_length=200)]
OtherAgent = Annotated[
    str,
    Meta(description="name, name@project, human:name or chat:platform/id", min_length=1, max_length=400),
]
MessageId = Annotated[int, Meta(ge=1, le=2**53)]
ShortText = Annotated[str, Meta(max_length=4096)]
Word = Annotated[str, Meta(max_length=200)]
Names = Annotated[list[Annotated[str, Meta(max_length=400)]], Meta(max_length=10_000)]
Paths = Annotated[list[Annotated[str, Meta(max_length=4096)]], Meta(max_length=1_000)]
Ids = Annotated[list[MessageId], Meta(max_length=1_000)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
_THREAD_ID = rf"^[A-Za-z0-9][A-Za-z0-9._:-]{{0,127}}{_END}"
_TOPIC = rf"^([A-Za-z0-9][A-Za-z0-9._/-]{{0,63}})?{_END}"
_SHA256 = rf"^[0-9a-f]{{64}}{_END}"
ThreadId = Annotated[str, Meta(pattern=_THREAD_ID, description="letters, digits, . _ : -")]
Topic = Annotated[str, Meta(pattern=_TOPIC)]
Seconds = Annotated[int, Meta(ge=1, le=31_536_000)]
Cursor = Annotated[int, Meta(ge=0, le=2**53)]
Offset = Annotated[int, Meta(ge=0, le=2**53, description="`next_offset` of the previous part")]
Key = Annotated[str, Meta(min_length=1, max_length=200)]
Kinds = Annotated[list[EventKind], Meta(max_length=len(EVENT_KINDS))]
TaskTitle = Annotated[str, Meta(min_length=1, max_length=200)]
TaskText = Annotated[str, Meta(max_length=20_000)]
Assignee = Annotated[str, Meta(max_length=200, description="an agent, role:NAME, or empty for anybody")]
Acceptance = Annotated[str, Meta(max_length=2000, description="a command that must succeed, or `person`")]
Epoch = Annotated[int, Meta(ge=1, le=2**53, description="from claim_task")]
When = Annotated[str, Meta(max_length=64, description="ISO 8601 time, or a span before now: 2h")]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all commands: frozen, with named fields only, and without unknown fields."""


class Change(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that changes something and may be repeated under its key."""

    idempotency_key: Key | None = None


class EnsureProject(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create the project of a folder, or return the existing project.

    start_session does this too.
    """

    human_key: Annotated[str, Meta(description="absolute path of the project's folder")]
    git_identity: Annotated[str, Meta(max_length=1000, description="<remote>#<root commit>, if known")] = ""


class RegisterAgent(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Register an agent, or update the agent of that name. Default: a generated name.

    To start your own work use start_session, which does this and more.
    """

    project_key: ProjectKey
    program: Word
    model: Word
    name: (
        Annotated[str, Meta(max_length=4096, description="kept exactly; default: a generated name")] | None
    ) = None
    task_description: ShortText = ""


class CreateAgentIdentity(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a new agent with a generated name.

    To start your own work use start_session.
    """

    project_key: ProjectKey
    program: Word
    model: Word
    task_description: ShortText = ""


class StartSession(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Call this first: it registers you, reserves the files you will edit, and lists your unread messages.

    Use the same name each time; without a name a new agent is created. Then read the messages with
    fetch_inbox.
    """

    project_key: ProjectKey
    program: Word
    model: Word
    name: Annotated[str, Meta(max_length=4096, description="yours, kept exactly")] | None = None
    task_description: ShortText = ""
    reserve_paths: Annotated[Paths, Meta(description="relative to the project")] = []
    ttl_seconds: Seconds | None = None
    inbox_limit: Annotated[int, Meta(ge=0, le=100)] = 10


class ShowProject(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show a project: its agents, newest threads and active reservations.

    Use it to see the current work before you plan.
    """

    project_key: ProjectKey


class Whois(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show an agent's identity, task and reservations.

    Use it before you write to an agent you do not know.
    """

    project_key: ProjectKey
    agent_name: OtherAgent


class ListAgents(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the project's agents and their tasks.

    Use it to find recipients.
    """

    project_key: ProjectKey
    include_retired: bool = False
    limit: Limit = 200
    after: Cursor = 0


class RetireAgent(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retire an agent: it neither sends nor receives, and its reservations end.

    Use it for an agent that will not return; unretire_agent undoes it.
    """

    project_key: ProjectKey
    agent_name: AgentName


class UnretireAgent(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a retired agent active again."""

    project_key: ProjectKey
    agent_name: AgentName


class RotateAgentToken(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replace the agent's token; the new token is written to a file on the server, never returned.

    Use it if someone else may know the old token.
    """

    project_key: ProjectKey
    agent_name: AgentName


class AttachmentIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file to attach: a path inside the project's folder, or a name with its content."""

    path: Annotated[str, Meta(max_length=4096)] | None = None
    name: Annotated[str, Meta(max_length=255)] | None = None
    content_base64: str | None = None


class SendMessage(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Send a message to agents or people; if a recipient is invalid, nothing is sent.

    Use it to ask, tell or hand over; to answer a message use reply_message. list_agents lists the names.
    Answers come to your inbox.
    """

    project_key: ProjectKey
    sender_name: AgentName
    to: Annotated[
        Names,
        Meta(description="name, name@project, human:name, chat:platform/id, thread:id (your partners in it)"),
    ] = []
    subject: str
    body_md: Annotated[str, Meta(description="Markdown")]
    cc: Names = []
    bcc: Names = []
    thread_id: ThreadId | None = None
    importance: Importance = "normal"
    ack_required: bool = False
    topic: Topic = ""
    broadcast: Annotated[bool, Meta(description="to every active agent of the project")] = False
    attachments: Annotated[list[AttachmentIn], Meta(max_length=100)] = []


class ReplyMessage(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reply to a message on its thread: to its sender, or with reply_all to all its recipients.

    If you are in its bcc, only the sender gets the reply, and `skipped` lists the others.
    Then call acknowledge_message for the message that you answered.
    """

    project_key: ProjectKey
    sender_name: AgentName
    message_id: MessageId
    body_md: Annotated[str, Meta(description="Markdown")]
    reply_all: bool = False
    importance: Importance = "normal"
    ack_required: bool = False
    attachments: Annotated[list[AttachmentIn], Meta(max_length=100)] = []


class FetchInbox(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read your messages, newest first; with `after`, oldest first; with `message_id`, that message.

    Use it at the start, between steps and before you end (unread_only). It marks nothing as read: reply
    with reply_message, then call acknowledge_message. If `truncated`, continue with message_id and offset.
    Read files as MCP `resource`.
    """

    project_key: ProjectKey
    agent_name: AgentName
    limit: Limit = 20
    include_bodies: bool = True
    unread_only: bool = False
    urgent_only: Annotated[bool, Meta(description="high and urgent only")] = False
    since: When | None = None
    after: Annotated[int, Meta(ge=0, le=2**53, description="seq of the last message seen")] | None = None
    before: (
        Annotated[int, Meta(ge=0, le=2**53, description="seq of the last message, if it says `more`")] | None
    ) = None
    message_id: MessageId | None = None
    offset: Offset = 0


class FetchInboxEvents(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Follow an inbox with a cursor that survives restarts; each message comes once, in order.

    For programs that watch; to read your messages use fetch_inbox.
    """

    project_key: ProjectKey
    agent_name: AgentName
    after: Cursor = 0
    limit: Limit = 100


class FetchEvents(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Follow the events of a project with a cursor that survives restarts: each entry once, in order.

    For programs that watch or report.
    """

    project_key: ProjectKey
    after: Cursor = 0
    limit: Limit = 100
    kinds: Annotated[Kinds, Meta(description="default: all")] = []


class CatchUp(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Summarise what happened in a project: threads, questions, runs, reservations and money spent.

    Use it after a pause or after your context was compacted. Pass `next` as `after` of the next call.
    """

    project_key: ProjectKey
    after: Annotated[int, Meta(ge=0, le=2**53, description="the `next` of the call before")] | None = None
    hours: Annotated[int, Meta(ge=1, le=24 * 31, description="how far back to look without `after`")] = 24


class FollowEvents(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wait for events of a project. This has its own HTTP path and is not a tool."""

    project_key: ProjectKey
    after: Annotated[int, Meta(ge=0, le=2**53, description="omit to begin at the newest entry")] | None = None
    wait: Annotated[int, Meta(ge=0, le=60, description="seconds to wait for an event")] = 0
    limit: Limit = 100
    kinds: Annotated[Kinds, Meta(description="default: all")] = []


class GetMessage(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Return one message; if `truncated`, call again with `next_offset` as offset.

    Use it for an id from search_messages or from a list without bodies.
    """

    project_key: ProjectKey
    agent_name: AgentName
    message_id: MessageId
    offset: Offset = 0


class GetAttachment(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read a message's file: text as `text`, other files as `content_base64`.

    Pass its name or its sha256; the only file of a message needs neither. If `truncated`, call again with
    `next_offset` as offset.
    """

    project_key: ProjectKey
    agent_name: AgentName
    message_id: MessageId
    name: Annotated[str, Meta(min_length=1, max_length=255, description="the file's name")] | None = None
    sha256: Annotated[str, Meta(pattern=_SHA256, description="from the message's attachments")] | None = None
    offset: Offset = 0


class DeliveryStatus(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show for each recipient whether a message is stored, announced, read or acknowledged, and since when.

    Use it if no answer comes; do not send the message again.
    """

    project_key: ProjectKey
    agent_name: AgentName
    message_id: MessageId


class MarkMessageRead(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mark a message as read; only the first mark counts.

    If `ack_required` is true, use acknowledge_message.
    """

    project_key: ProjectKey
    agent_name: AgentName
    message_id: MessageId


class AcknowledgeMessage(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Acknowledge messages, which also marks them as read; only the first acknowledgement counts.

    Do it after you have acted on a message or answered it: until then it counts as unread.
    Give message_id, or several ids at once.
    """

    project_key: ProjectKey
    agent_name: AgentName
    message_id: MessageId | None = None
    message_ids: Ids | None = None


class RecallMessage(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recall your own message that nobody has read; its text is deleted.

    If someone has read it, correct it with reply_message.
    """

    project_key: ProjectKey
    sender_name: AgentName
    message_id: MessageId


class SearchMessages(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Search messages: words, "phrases", prefix*, AND OR NOT, field:word (subject, body, sender, topic).

    Use it before you ask: the answer may exist.
    """

    project_key: ProjectKey
    query: Annotated[str, Meta(max_length=1000)]
    limit: Annotated[int, Meta(ge=1, le=200)] = 20
    order: SearchOrder = "newest"
    cursor: Cursor = 0


class FetchThread(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read the messages of a thread, oldest first, including messages from other projects.

    To get more, pass `next` as `after`. It marks nothing as read.
    """

    project_key: ProjectKey
    thread_id: Annotated[str, Meta(min_length=1, max_length=128)]
    after: Annotated[int, Meta(ge=0, le=2**53, description="id of the last message seen")] = 0
    limit: Limit = 50


class SummarizeThread(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show a thread's participants, open questions, missing acknowledgements and reservations.

    Use it before you answer in a long thread.
    """

    project_key: ProjectKey
    thread_id: Annotated[str, Meta(min_length=1, max_length=128)]


class AskPerson(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask a person: yes or no, or choices, text, form or file.

    Use it before a step that only a person may decide. In a run that the server has started, then end your
    turn: the run resumes with the answer. Otherwise the answer comes here or by mail.
    """

    project_key: ProjectKey
    agent_name: AgentName
    question: Annotated[str, Meta(min_length=1, max_length=2000)]
    run_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=512,
                description="POSTROOM_RUN of your program; default: the run whose token calls",
            ),
        ]
        | None
    ) = None
    timeout_seconds: (
        Annotated[int, Meta(ge=1, le=31_536_000, description="requires on_timeout; default: no timeout")]
        | None
    ) = None
    on_timeout: Annotated[
        Literal["wait", "cancel", "no", "default"],
        Meta(description="cancel the run, answer no, or answer default"),
    ] = "wait"
    choices: Annotated[list[str], Meta(description="the person picks one")] = []
    text: Annotated[bool, Meta(description="the person writes a text")] = False
    file: Annotated[bool, Meta(description="the person replies with an attached file")] = False
    form: Annotated[dict[str, Any], Meta(description="flat JSON schema, as in MCP elicitation")] | None = None
    to: Annotated[
        list[str], Meta(max_length=10, description="human:NAME, operator or starter; default: anyone")
    ] = []
    not_by: Annotated[list[str], Meta(max_length=10, description="who may not answer, as in to")] = []
    action: Annotated[str, Meta(max_length=4000, description="exactly the action that a yes permits")] = ""
    default: Annotated[str, Meta(max_length=2000, description="a choice or text; no word of approval")] = ""


class RequestContact(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask an agent to accept your messages.

    Use it if sending failed with contact_required.
    """

    project_key: ProjectKey
    agent_name: AgentName
    to: OtherAgent
    reason: ShortText = ""


class RespondContact(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accept or reject another agent's request_contact."""

    project_key: ProjectKey
    agent_name: AgentName
    requester: OtherAgent
    accept: bool
    reason: ShortText = ""


class ListContacts(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List an agent's contact requests, sent and received.

    Answer pending requests with respond_contact.
    """

    project_key: ProjectKey
    agent_name: AgentName


class SetContactPolicy(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set whose messages an agent accepts: open, same_owner, approval (contacts only) or closed (none)."""

    project_key: ProjectKey
    agent_name: AgentName
    policy: ContactPolicy


class ReservePaths(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reserve files or globs before you edit them; repeat it for the same path to renew it.

    It is granted even if others hold the same: if `held` is false, do not edit, but write to the
    holder in `conflicts` or work elsewhere. `enforced_by` names the hooks that refuse edits of others.
    """

    project_key: ProjectKey
    agent_name: AgentName
    paths: Annotated[
        list[Annotated[str, Meta(max_length=4096)]],
        Meta(
            min_length=1,
            max_length=1000,
            description="relative to the project: src/app.py, a folder src/, a glob src/**/*.py, port:8080",
        ),
    ]
    ttl_seconds: Seconds | None = None
    exclusive: bool = True
    reason: ShortText = ""
    mode: Annotated[
        Literal["grant", "refuse"], Meta(description="refuse: reserve nothing if another agent holds a path")
    ] = "grant"


class CheckReservations(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List reservations that conflict with these paths, and reserve nothing.

    Use it to plan; before you edit, use file_reservation_paths.
    """

    project_key: ProjectKey
    agent_name: AgentName
    paths: Annotated[list[Annotated[str, Meta(max_length=4096)]], Meta(min_length=1, max_length=1000)]
    exclusive: bool = True


class ReleaseReservations(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Release your reservations: those with the given ids or covered by the given paths, or all.

    src/** covers src/app.py. `not_found` lists paths and ids that name none. Do it as soon as you have
    finished editing, so that others can continue.
    """

    project_key: ProjectKey
    agent_name: AgentName
    paths: Paths | None = None
    ids: Ids | None = None


class RenewReservations(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Renew your reservations for `ttl_seconds` from now, chosen as in release_file_reservations, or all.

    Use it if your work takes longer than they last.
    """

    project_key: ProjectKey
    agent_name: AgentName
    ttl_seconds: Seconds | None = None
    paths: Paths | None = None
    ids: Ids | None = None


class ForceReleaseReservation(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End another agent's reservation; the holder gets the reason as a message.

    Write to the holder first; use it only if no answer comes or the holder agrees.
    """

    project_key: ProjectKey
    agent_name: AgentName
    reservation_id: MessageId
    reason: Annotated[str, Meta(min_length=1, max_length=2000)]


class ListReservations(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the active reservations of a project.

    Use it to see who works where.
    """

    project_key: ProjectKey
    agent_name: Annotated[str, Meta(max_length=200, description="only of this agent")] | None = None
    limit: Limit = 500


class ListTasks(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the project's open tasks, those to claim first; with `task_id`, show that task with its text.

    Use it to plan; to begin work use claim_task.
    """

    project_key: ProjectKey
    state: TaskState | None = None
    task_id: MessageId | None = None
    limit: Limit = 50
    after: Annotated[str, Meta(max_length=64, description="`next` of the last answer")] = ""


class ClaimTask(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take the next ready task whose files nobody holds; its files are reserved for you.

    Keep its `epoch` for done_task. Your calls as this agent renew the claim; else it
    ends after `ttl_seconds`.
    """

    project_key: ProjectKey
    agent_name: AgentName
    task_id: MessageId | None = None
    roles: Annotated[Names, Meta(description="roles you fill, such as reviewer")] = []
    ttl_seconds: Seconds | None = None
    dry_run: bool = False


class AddTask(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add a task for others or yourself; agents take it with claim_task.

    The task is ready when all tasks in `depends_on` are done.
    """

    project_key: ProjectKey
    agent_name: AgentName
    title: TaskTitle
    text: TaskText = ""
    paths: Annotated[Paths, Meta(description="files that the work touches")] = []
    depends_on: Annotated[Ids, Meta(description="task ids")] = []
    priority: Importance = "normal"
    assignee: Assignee = ""
    acceptance: Acceptance = ""


class UpdateTask(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change a task, give it back (ready), block it with a reason or `depends_on`, or cancel it.

    Only its author may change what it demands; only author or holder may block or cancel it. To give back
    or block yours, send its `epoch`.
    """

    project_key: ProjectKey
    agent_name: AgentName
    task_id: MessageId
    epoch: Epoch | None = None
    state: Literal["ready", "blocked", "cancelled"] | None = None
    reason: Annotated[str, Meta(max_length=2000)] = ""
    title: TaskTitle | None = None
    text: TaskText | None = None
    paths: Paths | None = None
    depends_on: Ids | None = None
    priority: Importance | None = None
    assignee: Assignee | None = None
    acceptance: Acceptance | None = None


class DoneTask(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish a task that you hold, with evidence; its author is told, and tasks that wait for it are ready.

    If its acceptance is a command, run it first and send its output.
    """

    project_key: ProjectKey
    agent_name: AgentName
    task_id: MessageId
    epoch: Epoch
    commit: Word = ""
    output: Annotated[str, Meta(max_length=20_000)] = ""
    message: Annotated[str, Meta(max_length=20_000, description="Markdown")] = ""


class AddNote(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Record a fact under its topic; other agents receive it when they work on its files or task.

    If it contradicts an older note, the error shows that note.
    """

    project_key: ProjectKey
    agent_name: AgentName
    subject: Annotated[str, Meta(min_length=1, max_length=MAX_SUBJECT)]
    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    paths: Paths = []
    task_id: MessageId | None = None
    commit: Word = ""
    replaces: Annotated[Ids, Meta(description="notes no longer true")] = []
    days: Annotated[int, Meta(ge=1, le=3650)] | None = None


class FindNotes(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find notes of the project by words or files.

    Use it before you change files.
    """

    project_key: ProjectKey
    query: Annotated[str, Meta(max_length=500)] = ""
    paths: Paths = []
    note_id: MessageId | None = None
    limit: Limit = 20


class EndNote(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a note that is no longer true.

    If another fact replaces it, use add_note with `replaces`.
    """

    project_key: ProjectKey
    agent_name: AgentName
    note_id: MessageId


class Subscribe(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Get a message when an agent is idle, a task is ready, a file changes, or a branch is merged.

    Use it instead of polling.
    """

    project_key: ProjectKey
    agent_name: AgentName
    kind: Watched
    about: Annotated[
        str, Meta(max_length=4096, description="agent name, task id, file pattern or branch")
    ] = ""
    once: Annotated[bool, Meta(description="end with the first message")] = False


class ListSubscriptions(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List your subscriptions.

    Use it to find the id of one to end.
    """

    project_key: ProjectKey
    agent_name: AgentName


class EndSubscription(Change, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a subscription.

    Its messages stay.
    """

    project_key: ProjectKey
    agent_name: AgentName
    subscription_id: MessageId


class HealthCheck(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check that the server works, with a read of the database.

    Use it if other tools fail.
    """


C = TypeVar("C", bound=Command)
_BROKEN_TEXT = "text that is not valid Unicode"
_MAX_SHOWN = 200
_IN_WORDS = {
    _THREAD_ID: "1 to 128 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit",
    _SHA256: "64 hexadecimal digits in lower case",
    _TOPIC: "up to 64 letters, digits, '.', '_', '/' or '-', beginning with a letter or digit",
}
_WRAPPERS = frozenset(
    {
        "args",
        "arguments",
        "input",
        "kwargs",
        "parameters",
        "params",
        "payload",
        "properties",
        "request",
        "tool_args",
        "tool_input",
    }
)
"""The names of an object that some models wrap around all arguments."""
_TOOL_KEYS = frozenset({"function", "name", "tool", "tool_name"})
"""The names, next to that object, under which a model repeats the name of the tool."""
_MAX_WRAPPERS = 2
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|\s+")
_NULLS = frozenset({"null", "none", "nil", "undefined"})
_SELECTIONS = frozenset({"paths", "ids", "kinds", "agent_name"})
"""The arguments that select a part. A command without them applies to everything."""
_NAME_KEYS = frozenset({"name", "names", "agent", "agents", "agent_name", "to", "recipient", "recipients"})
_WRAPPED_NAME = re.compile(r"(?:\*{1,3}([^*]+)\*{1,3}|\(([^()]+)\)|\[([^\[\]]+)\])")
"""Matches names in Markdown's stars or in brackets: `**Ben**`, `(Ben)`, `[Ben, Cyd]`."""
_VALUE_KEYS = frozenset({"content", "id", "path", "text", "value"})
_LIST_KEYS = frozenset({"element", "elements", "item", "items"})
"""The names under which a client puts a list that its model wrote in XML."""
_SCHEMA_TYPES = frozenset({"array", "boolean", "integer", "number", "object", "string"})
_MAX_COVERS = 3
"""Maximum number of meaningless wrappers that are removed from a value."""
_FENCED = re.compile(r"\A```\w{0,16}[ \t]*\n(.*?)\n?[ \t]*```\Z", re.DOTALL)
_ITEMS = re.compile(r"(?:\s*<(item|element)>[^<>]*</\1>)+\s*")
_ITEM = re.compile(r"<(?:item|element)>([^<>]*)</")
_LINE_OF_LIST = re.compile(r"\s*\[.*\],?\s*")
_GEMMA_QUOTE = '<|"|>'
_TYPOGRAPHIC = {"\u201c": "\u201d", "\u201e": "\u201c", "\u2018": "\u2019", "\xab": "\xbb"}
"""The closing quotation mark of each opening one."""
_TRAILING_TAGS = re.compile(r"\s*</(\w+)>\s*(?:</(?:\w+:)?invoke>\s*)\Z")
_SWALLOWED = re.compile(r"</\w+>\s*<(?:\w+:)?parameter name=\"(\w+)\">")
"""Matches the end of an argument and the beginning of the next one in a call that a model wrote in XML."""
_BETWEEN_NAMES = re.compile(r"[,;|\n]|\\n")
_BETWEEN_CHOICES = (re.compile(r"\n|\\n"), re.compile(r"\s*[;|]\s*|\s+/\s+"), re.compile(r"\s*,\s*"))
"""The marks between the choices in one text. A mark may occur within a choice if one before it is used."""
_PERSON = re.compile(r"(?:by )?(?:an? |the |any )?(?:person|human)", re.IGNORECASE)
_AND = re.compile(r"\s+(?:and|&|\+)\s+", re.IGNORECASE)
_BEGINS_WITH_AND = re.compile(r"\A(?:and|&)\s+", re.IGNORECASE)
_DATA_URL = re.compile(r"\s*data:[^,]{0,200};base64,", re.IGNORECASE)
_BEGINS_WITH_SHA256 = re.compile(r"\Asha-?256[:=-]\s*", re.IGNORECASE)
_OTHER_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("agent_name", "sender_name"),
    "agent_name": ("name", "sender_name"),
    "attachment": ("name",),
    "attachment_name": ("name",),
    "body": ("body_md",),
    "checksum": ("sha256",),
    "content": ("body_md",),
    "digest": ("sha256",),
    "file_name": ("name",),
    "file_path": ("path", "paths"),
    "file_paths": ("paths",),
    "filename": ("name",),
    "files": ("attachments", "paths"),
    "from": ("sender_name",),
    "hash": ("sha256",),
    "human_key": ("project_key",),
    "id": ("message_id", "reservation_id", "ids"),
    "max_results": ("limit",),
    "message": ("body_md",),
    "message_body": ("body_md",),
    "msg_id": ("message_id",),
    "options": ("choices",),
    "path": ("paths",),
    "priority": ("importance",),
    "project": ("project_key",),
    "project_id": ("project_key",),
    "project_key": ("human_key",),
    "project_name": ("project_key",),
    "project_path": ("project_key",),
    "project_slug": ("project_key",),
    "q": ("query",),
    "recipient": ("to",),
    "recipients": ("to",),
    "reservation_ids": ("ids",),
    "reservation_paths": ("reserve_paths",),
    "sender": ("sender_name",),
    "text": ("body_md",),
    "thread": ("thread_id",),
    "title": ("subject",),
    "ttl": ("ttl_seconds",),
}
"""The words that models write in place of argument names. The first name that a tool has is used."""
_BEGINS_WITH_KIND = re.compile(r"\A(?:agent|name)(?::\s*|\s+)(?=[^\s/:]+\Z)", re.IGNORECASE)
_BEGINS_WITH_TO = re.compile(r"\Ato(?::\s*|\s+)", re.IGNORECASE)
_MAILBOX = re.compile(r"[\"']?([^\s<>\"']+)[\"']?\s*<\s*([^<>]*?)\s*>")
"""Matches a name with an e-mail address after it."""
_KINDS_OF_IDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("task_id", "depends_on"), "task"),
    **dict.fromkeys(("note_id", "replaces"), "note"),
}
"""The arguments in which a model may write the kind before each id: `task-1, task-2`."""
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?:messages?|results?|entries|items?)\Z")
_UNITS: Final[Mapping[str, timedelta]] = {
    **dict.fromkeys(("seconds", "wait"), timedelta(seconds=1)),
    "hours": timedelta(hours=1),
    "days": timedelta(days=1),
}
"""The units of arguments that take a span of time, keyed by the last word of the argument's name."""
_TRUTHS = dict.fromkeys(("yes", "on", "y", "t"), True) | dict.fromkeys(("no", "off", "n", "f"), False)
_OPENING = ("[", "{", "(")
_NO_COMMA = re.compile(r"""["']\s+["']""")
_BULLET = re.compile(r"\A(?:[-*•]|\d{1,3}[.)])\s+")
_MAX_LITERAL_LENGTH = 8_000
"""Maximum characters of a text that is parsed as a Python literal."""
_DEEPEST = 8
"""Maximum depth of lists and objects that is examined. No command has more than three levels."""


def read_command(kind: type[C], arguments: dict[str, Any], tool: str = "") -> C:
    """Return the command that plain arguments mean, even if a model has written them in another form.

    `tool` is the name of the tool, which some models repeat around the arguments.

    Raises:
        InvalidArgument: An argument is missing, unknown, of another type, out of range or not valid text.
    """
    _refuse_broken_text(arguments)
    values = _named_arguments(kind, arguments, tool)
    arguments = _clean_arguments(kind, values)
    if arguments is not values:
        _refuse_broken_text(arguments)
    command: C | None = None
    try:
        command = msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError:
        arguments = _normalize_arguments(kind, arguments)
    try:
        command = command or msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError as error:
        where = place_of(str(error))
        # Replace patterns in the reason by their descriptions.
        reason = str(error)
        for pattern, words in _IN_WORDS.items():
            reason = reason.replace(f"Expected `str` matching regex {pattern!r}", f"Expected `{words}`")
        raise InvalidArgument(
            misfit(reason)[:_MAX_SHOWN],
            value=_value_at(arguments, where) if where else None,
            remedy=_remedy(kind, str(error), arguments),
        ) from error
    if _SELECTIONS & values.keys():
        _refuse_lost_selection(command, values)
    return command


def _remedy(kind: type[Command], said: str, given: Mapping[str, Any]) -> str:
    """Return the remedy: the choices of an argument, the most similar name, or all arguments."""
    named = next(iter(re.findall(r"\w+", place_of(said))), "")
    field = next((field for field in msgspec.structs.fields(kind) if field.name == named), None)
    choices = (
        [] if field is None else [member for member in kinds_in(field.type) if get_origin(member) is Literal]
    )
    if choices:
        return f"`{named}` must be one of: {', '.join(dict.fromkeys(map(str, get_args(choices[0]))))}"
    if named == "message_id" and "message_ids" in kind.__struct_fields__:
        return "give one id as message_id, or several as message_ids: [12, 13]"
    if named.endswith("_id") and isinstance(given.get(named), list):
        return f"give one {named}, and make one call for each of the others"
    if named == "sha256":
        return "give sha256 from the message's attachments, or the file's `name`"
    at_fault: type[msgspec.Struct] = AttachmentIn if named == "attachments" else kind
    unknown = re.search(r"unknown field `(.*?)`", said)
    close = nearest(unknown[1], at_fault.__struct_fields__, count=1) if unknown else []
    hint = f"did you mean {close[0]}? " if close else ""
    fields = msgspec.structs.fields(at_fault)
    required = [field.name for field in fields if field.required]
    signature = required + [f"{field.name}?" for field in fields if not field.required]
    every = ", ".join(signature) or "none"
    return f"{hint}the {'fields of an attachment' if at_fault is not kind else 'arguments'} are: {every}"


def _refuse_lost_selection(command: Command, given: Mapping[str, Any]) -> None:
    """Refuse a selection that contains only nulls: a command without a selection applies to everything.

    Raises:
        InvalidArgument: A selection is the text `none`, a list of nulls or a similar value.
    """
    defaults = {field.name: field.default for field in msgspec.structs.fields(command)}
    for name in _SELECTIONS & given.keys() & defaults.keys():
        value = given[name]
        if value is None or value == [] or (isinstance(value, str) and value.strip() in ("", "[]")):
            continue
        is_null_text = isinstance(value, str) and _plain_text(value) is None and name != "agent_name"
        if is_null_text or getattr(command, name) in (defaults[name], None):
            raise InvalidArgument(
                f"{name} is empty and selects nothing",
                value=_presentable(value),
                remedy=f"list the {name} you mean"
                + ("" if name in _required_fields(type(command)) else f"; omit {name} for all"),
            )


def _named_arguments(kind: type[Command], arguments: dict[str, Any], tool: str) -> dict[str, Any]:
    """Return the arguments without a wrapping object, with the right names: `projectKey` is `project_key`.

    Raises:
        InvalidArgument: An argument is given under two names with different values, or belongs to another
            tool.
    """
    fields = kind.__struct_fields__
    for _ in range(_MAX_WRAPPERS):
        if arguments.keys() <= set(fields) or (inner := _wrapped_arguments(fields, arguments, tool)) is None:
            break
        _refuse_broken_text(inner)
        arguments = inner
    arguments = _without_markup(fields, arguments)
    if arguments.keys() <= set(fields):
        return arguments
    named = dict[str, Any]()
    for name, value in arguments.items():
        plain = name.replace("\\", "").strip(" \t\r\n\"'`:")
        field_name = name if name in fields else _CAMEL.sub("_", plain).replace("-", "_").lower()
        field_name = field_name if field_name in fields or field_name in _OTHER_WORDS else name
        if field_name in named and named[field_name] != value:
            raise InvalidArgument(
                f"{field_name} is given twice, with different values", remedy=f"pass {field_name} only once"
            )
        named[field_name] = value
    return _with_known_names(named, kind)


def _wrapped_arguments(
    fields: tuple[str, ...], arguments: dict[str, Any], tool: str
) -> dict[str, Any] | None:
    """Return the object with all arguments, or None if no other object wraps it.

    Raises:
        InvalidArgument: The outer object names another tool.
    """
    wrappers = [name for name in arguments if name not in fields and name.lower() in _WRAPPERS]
    if len(wrappers) != 1:
        return None
    others = {name: value for name, value in arguments.items() if name != wrappers[0]}
    others = {} if others in ({"type": "object"}, {"type": "function"}) else others
    if not others.keys() <= _TOOL_KEYS or not all(isinstance(value, str) for value in others.values()):
        return None
    value = _uncover(arguments[wrappers[0]])
    inner = next(_json_forms(value), None) if isinstance(value, str) else value
    if not isinstance(inner, dict):
        return None
    for named in others.values():
        if tool and not re.fullmatch(rf"(?:.*[_./:-])?{tool}", named):
            raise InvalidArgument(
                f"the call is for {tool}, but its arguments belong to the tool {named[:_MAX_SHOWN]!r}",
                value=named[:_MAX_SHOWN],
                remedy=f"call {named[:_MAX_SHOWN]}, or pass the arguments of {tool}",
            )
    return inner


def _without_markup(fields: tuple[str, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without the tags with which a model ended its call.

    Raises:
        InvalidArgument: A text also contains the next argument, which would be lost otherwise.
    """
    cleaned = arguments
    for name, value in arguments.items():
        if not isinstance(value, str) or "</" not in value:
            continue
        swallowed = next((name for name in _SWALLOWED.findall(value) if name in fields), None)
        if swallowed is not None:
            raise InvalidArgument(
                f"the text of `{name}` also contains the argument `{swallowed}`, which would be lost",
                value=value[-_MAX_SHOWN:],
                remedy=f"repeat the call with `{name}` and `{swallowed}` as two arguments",
            )
        tags = _TRAILING_TAGS.search(value)
        if tags is not None and tags[1] in (*fields, "parameter"):
            cleaned = {**cleaned, name: value[: tags.start()]}
    return cleaned


def _clean_arguments(kind: type[Command], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with names, thread ids and times in their intended form."""
    cleaned = arguments
    for name in _CLEANED.keys() & arguments.keys() & set(kind.__struct_fields__):
        value = arguments[name]
        clean = _CLEANED[name](value if name in _EXACT else _uncover(value))
        if name == "to" and isinstance(clean, str) and _takes_several(kind) and clean.lower() not in _NULLS:
            clean = [clean]
        if clean is value or (clean is None and name in _required_fields(kind)):
            continue
        cleaned = dict(cleaned) if cleaned is arguments else cleaned
        cleaned[name] = clean
    several = "message_ids"  # the place of several ids in `message_id`, if the tool has both
    if "message_id" not in cleaned or several not in kind.__struct_fields__ or cleaned.get(several):
        return cleaned
    ids = _uncover(cleaned["message_id"])
    text = ids.strip() if isinstance(ids, str) else ""
    if text[:1] in _OPENING:
        ids = next(_json_forms(text), ids)
    if not (isinstance(ids, list) and len(ids) > 1) and not NUMBERS.fullmatch(text):
        return cleaned
    return {name: value for name, value in cleaned.items() if name != "message_id"} | {several: ids}


@cache
def _takes_several(kind: type[Command]) -> bool:
    """Return whether `to` of a command is a list of names."""
    return any(_fits(["Ada"], field.type) for field in msgspec.structs.fields(kind) if field.name == "to")


@cache
def _required_fields(kind: type[Command]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.required)


def _plain_text(value: object) -> object:
    """Return a text without surrounding spaces and quotes, or None for a text that means null."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1].strip()
    return None if text.lower() in _NULLS else text if text and text != value else value


def _plain_name(value: object) -> object:
    """Return the name in a value that a model has written, such as `@Ada` or `{"name": "Ada"}`."""
    if isinstance(value, dict) and len(value) == 1:
        [(key, inner)] = value.items()
        value = inner if key in _NAME_KEYS and isinstance(inner, str) else value
    value = _BEGINS_WITH_KIND.sub("", _unwrap(value)) if isinstance(value, str) else value
    text = _plain_text(value)
    if text is None and value is not None:
        return value  # an agent may be called Nil
    return text[1:] if isinstance(text, str) and text[:1] == "@" and len(text) > 1 else text


def _plain_names(value: object) -> object:
    """Return names as a list."""
    if isinstance(value, str) and value.strip()[:1] in _OPENING:
        value = next(_json_forms(value.strip()), value)
    if isinstance(value, dict):
        value = _uncover(value) if value else []
    if isinstance(value, dict) and len(value) == 1:
        [(key, inner)] = value.items()
        value = inner if key in _NAME_KEYS and isinstance(inner, list | str) else value
    if isinstance(value, str):
        if value.strip().lower() in _NULLS:
            return None
        text = _unwrap(value)
        value = [value] if text[:1] in ("[", "{") else _listed_names(text)
    elif isinstance(value, dict) or _is_number(value):
        value = [value]
    if not isinstance(value, list):
        return value
    flat = [part for item in value for part in (item if isinstance(item, list) else [item])]
    flat = [str(item) if _is_number(item) else item for item in flat if item is not None]
    names = list[object]()
    for entry in flat:
        is_listed = isinstance(entry, str) and entry.strip()[:1] not in ("[", "{")
        names += (_listed_names(str(entry)) if is_listed else []) or [entry]
    return [_one_name(_plain_name(name)) for name in names]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53


def _unwrap(text: str) -> str:
    text = _BULLET.sub("", text.strip(), count=1) if "\n" not in text.strip() else text.strip()
    match = _WRAPPED_NAME.fullmatch(text)
    return text if match is None else next(filter(None, match.groups())).strip()


def _listed_names(text: str) -> list[str]:
    """Return the names in a text such as `Ben, Cy and Dan`."""
    names = list[str]()
    for part in _BETWEEN_NAMES.split(text):
        name = _BEGINS_WITH_AND.sub("", _unwrap(part), count=1) if names else _unwrap(part)
        names += [name] if "/" in name else _AND.split(name)
    return [name for name in names if name]


def _one_name(name: object) -> object:
    """Return a name without the e-mail address after it.

    Raises:
        InvalidArgument: The name may mean an agent of this project or of another project, or contains several
            names.
    """
    if not isinstance(name, str) or "/" in name or ":" in name:
        return name
    if match := _MAILBOX.fullmatch(name):
        label, address = match.groups()
        if address.casefold() == label.casefold() or "." in address.partition("@")[2]:  # no slug has a dot
            return label
        raise InvalidArgument(
            f"{name[:_MAX_SHOWN]!r} is ambiguous: it may mean either of two agents",
            value=name[:_MAX_SHOWN],
            remedy=(
                f"use {label[:64]!r} for the agent of this project, or {address[:64]!r} for the agent of "
                "another project"
            ),
        )
    if " " in name.strip():
        raise InvalidArgument(
            f"{name[:_MAX_SHOWN]!r} is not a name: names contain no spaces",
            value=name[:_MAX_SHOWN],
            remedy='pass a list with one name per entry, such as ["Ben", "Cyd"]',
        )
    return name


def _one_or_more_names(value: object) -> object:
    """Return `to`, which is a name for request_contact, and a list of names for send_message."""
    names = _plain_names(_BEGINS_WITH_TO.sub("", value.strip(), count=1) if isinstance(value, str) else value)
    return names[0] if isinstance(names, list) and len(names) == 1 else names


def _plain_acceptance(value: object) -> object:
    """Return the acceptance of a task: `person` or none, in any of their spellings, or the command."""
    word = _unwrap(value).strip(" \t\r\n\"'`.").lower() if isinstance(value, str) else ""
    if word in _NULLS:
        return "" if word == "none" else None
    return BY_PERSON if _PERSON.fullmatch(word) else value


def _unless_blank(value: object) -> object:
    """Return a value, or None for a text that is blank or means null."""
    return None if isinstance(value, str) and value.strip().lower() in ("", *_NULLS) else value


def _plain_choices(value: object) -> object:
    """Return choices in one text as a list, if no other reading is possible."""
    given = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = _unwrap(given) if isinstance(given, str) else ""
    if isinstance(given, str) and given.strip()[:1] in _OPENING and any(_json_forms(given.strip())):
        return value
    mark = next((mark for mark in _BETWEEN_CHOICES if mark.search(text)), None)
    if mark is None or text[:1] in ("[", "{") or len({found.strip() for found in mark.findall(text)}) > 1:
        return value
    choices = [part.strip() for part in mark.split(text) if part.strip()]
    if mark is _BETWEEN_CHOICES[-1] and (re.search(r"\d,\d", text) or any(" " in part for part in choices)):
        return value
    if all(map(_BULLET.match, choices)):
        choices = [_BULLET.sub("", choice, count=1) for choice in choices]
    return [str(_plain_text(choice) or choice) for choice in choices] if len(choices) > 1 else value


def _plain_digest(value: object) -> object:
    """Return a digest such as `sha256:AB...` in lower case, without the name of its algorithm."""
    text = _plain_text(value)
    return (_BEGINS_WITH_SHA256.sub("", text, count=1).lower() or text) if isinstance(text, str) else text


def _plain_files(value: object) -> object:
    """Return attachments with `filename` as `name`."""
    if isinstance(value, str) and value.strip()[:1] in _OPENING:
        value = next(_json_forms(value.strip()), value)
    if isinstance(value, dict):
        value = [value] if value else []
    if not isinstance(value, list):
        return value
    items = [
        next(_json_forms(item), item) if isinstance(item, str) and item[:1] == "{" else item for item in value
    ]
    return [_plain_file(item) if isinstance(item, dict) else item for item in items]


def _plain_file(given: dict[str, Any]) -> dict[str, Any]:
    """Return an attachment with the right field names, and with its content in standard base64."""
    file = {
        name: str(value) if _is_number(value) else value
        for name, value in _with_known_names(given, AttachmentIn).items()
    }
    text = file.get("content_base64")
    if not isinstance(text, str):
        return file
    if match := _DATA_URL.match(text):
        text = text[match.end() :]
    if ("-" in text or "_" in text) and "+" not in text and "/" not in text:
        text = "".join(text.split()).replace("-", "+").replace("_", "/")
        text += "=" * (-len(text) % 4)  # base64 for URLs often has no padding
    return {**file, "content_base64": text}


def _with_known_names(given: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return arguments with the right names instead of other words: `body` becomes `body_md`.

    Raises:
        InvalidArgument: Both names are given, with different values.
    """
    fields = set(kind.__struct_fields__)
    named = dict[str, Any]()
    for name, value in given.items():
        meant = (word for word in _OTHER_WORDS.get(name, ()) if word in fields)
        field_name = name if name in fields else next(meant, name)
        if field_name in named and named[field_name] != value:
            raise InvalidArgument(
                f"{field_name} is given twice, with different values", remedy=f"pass {field_name} only once"
            )
        named[field_name] = value
    return named


def _plain_moment(value: object) -> object:
    """Return a time as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _plain_text(value)


def _normalize_arguments(kind: type[Command], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with each invalid value replaced by its valid form.

    Raises:
        InvalidArgument: JSON text in an argument contains invalid Unicode, or is nested too deeply.
    """
    normal = dict(arguments)
    for field in msgspec.structs.fields(kind):
        if field.name not in normal or _fits(normal[field.name], field.type):
            continue
        value = _uncover(normal[field.name])
        if not field.required and isinstance(value, str) and value.strip().lower() in _NULLS:
            value = None
        for form in chain([value], _other_forms(value, field.type, field.name)):
            if _fits(form, field.type):
                normal[field.name] = form
                break
        else:
            # An empty key is a mistake of the caller: without a key, a repeated call would be performed
            # twice.
            is_empty = value == "" and field.name != "idempotency_key"
            if not field.required and (value is None or is_empty):
                del normal[field.name]
            elif isinstance(value, str) and re.fullmatch(r"\s*\d[\d\s,;]*", value) and _fits([1], field.type):
                # The error then names the number that is no id, and not the type of the argument.
                normal[field.name] = [int(digits) for digits in re.findall(r"\d+", value)]
    _refuse_broken_text(normal)
    return normal


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _other_forms(value: object, kind: Any, name: str) -> Iterator[object]:
    """Yield the other values that a model may have meant, most likely first."""
    if isinstance(value, str):
        text = value.strip()
        for form in _json_forms(text if text[:1] in _OPENING else ""):
            if isinstance(form, list) and 0 < len(form) == form.count(None):
                return
            yield form
            yield from _forms_of_list(form, kind, name) if isinstance(form, list) else ()
        for form in _forms_of_text(text, kind, name):
            yield form
            yield [form]
        if ids := _several_ids(text, name):
            yield ids
        yield [value] if text else []
        yield [{"path": text}]
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value) if abs(value) <= 2**53 else value
        yield [value]
        yield [str(value)] if abs(value) <= 2**53 else [value]
    elif isinstance(value, dict):
        yield [value]
        if len(value) == 1 and value.keys() <= _VALUE_KEYS:
            [inner] = value.values()
            yield inner
            yield [inner]
            yield from _forms_of_text(inner, kind, name) if isinstance(inner, str) else ()
    elif isinstance(value, list):
        yield from _forms_of_list(value, kind, name)


def _forms_of_list(value: list[object], kind: Any, name: str) -> Iterator[object]:
    """Yield the other forms of a list: the only item, the list without nulls, the list of intended items."""
    items = [item for item in value if item is not None]
    if value and not items:
        return
    if len(value) == 1:
        yield _uncover(value[0])
        yield from _forms_of_text(value[0], kind, name) if isinstance(value[0], str) else ()
    yield items
    yield [
        next(_json_forms(item), item) if isinstance(item, str) and item[:1] == "{" else item for item in items
    ]
    read = [next(_forms_of_text(item, kind, name), item) if isinstance(item, str) else item for item in items]
    yield read
    ids = [_several_ids(item, name) if isinstance(item, str) else [] for item in read]
    yield [one for item, several in zip(read, ids, strict=True) for one in several or [item]]
    if not name.endswith("paths"):  # among paths, a number is more likely to be the id of a reservation
        yield [str(item) if _is_number(item) else item for item in items]
    yield [{"path": item} if isinstance(item, str) else item for item in items]


def _forms_of_text(text: str, kind: Any, name: str) -> Iterator[object]:
    """Yield the choice, truth value, number or time span that a text means.

    Raises:
        InvalidArgument: The text for an id contains a comma: `1,234` may be one id or two.
    """
    word, kinds = str(_plain_text(text) or text).strip().rstrip(",;").lower(), kinds_in(kind)
    if word in _NULLS and type(None) in kinds:
        yield None
    if any(get_origin(kind) is Literal for kind in kinds):
        yield word
        yield re.sub(r"[ -]+", "_", word)
    if bool in kinds:
        yield _TRUTHS.get(word, word)
    if name.endswith("limit"):
        word = _BEFORE_A_UNIT.sub("", word)
    word = without_kind(word, _KINDS_OF_IDS.get(name, ""))
    if int in kinds and (number := NUMBER.fullmatch(word.replace("_", "") if word[:1].isdigit() else word)):
        if "," in number[1] and (name.endswith(("_id", "ids")) or name in _KINDS_OF_IDS):
            parts, digits = number[1].split(","), number[1].replace(",", "")
            raise InvalidArgument(
                f"{name} {text[:_MAX_SHOWN]!r} may mean one id or several ids",
                value=text[:_MAX_SHOWN],
                remedy=f"write {digits} for one id"
                if any(part.startswith("0") for part in parts)
                else f"write [{', '.join(parts)}] for several ids, or {digits} for one",
            )
        yield int(number[1].replace(",", ""))
    unit = _UNITS.get(name.rpartition("_")[2])
    if unit is not None and (span := parse_duration(word)) is not None:
        yield span // unit if unit == timedelta(seconds=1) or not span % unit else text


def _several_ids(text: str, name: str) -> list[object]:
    """Return the ids in the text of an argument that contains several: `task-1, task-2`; otherwise no ids."""
    ids = without_kind(text.strip(), _KINDS_OF_IDS.get(name, "")).rstrip(",; ")
    return [int(digits) for digits in re.findall(r"\d+", ids)] if NUMBERS.fullmatch(ids) else []


@cache
def kinds_in(kind: Any) -> frozenset[Any]:
    """Return the plain types in a type, such as the members of a union and the items of a list."""
    parts: list[Any] = [part for part in get_args(kind) if part is type(None) or not isinstance(part, Meta)]
    if get_origin(kind) is Literal or not parts:
        return frozenset({kind})
    return frozenset(member for part in parts for member in kinds_in(part))


def _json_forms(text: str) -> Iterator[object]:
    """Yield the value of JSON text, or of a Python list, tuple or set, such as `['a', 'b']`."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        if _NO_COMMA.search(text):
            return  # Python joins two texts without a comma between them
        try:
            value = _plain_json(ast.literal_eval(text)) if len(text) <= _MAX_LITERAL_LENGTH else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return
        if not isinstance(value, list | dict):
            return
    yield value
    if isinstance(value, dict):
        yield [value]


def _uncover(value: object) -> object:
    """Return a value without meaningless wrappers: a code fence, JSON in a text, or `{"item": ...}`."""
    for _ in range(_MAX_COVERS):
        inner = _without_cover(value)
        if inner is value:
            break
        value = inner
    return value


def _without_cover(value: object) -> object:
    if isinstance(value, dict):
        keys = list(value)
        if len(keys) == 1 and keys[0] in _LIST_KEYS:
            [inner] = value.values()
            return inner if isinstance(inner, list) else [inner]
        if keys and keys == [str(number) for number in range(len(keys))]:
            return list(value.values())
        if value.keys() == {"type", "value"} and value["type"] in _SCHEMA_TYPES:
            return value["value"]
        return value["text"] if value.keys() == {"type", "text"} and value["type"] == "text" else value
    if not isinstance(value, str):
        return value
    text = value.strip()
    first, last, inside = text[:1], text[-1:], text[1:-1]
    if match := _FENCED.match(text):
        return match[1]
    if inside and _TYPOGRAPHIC.get(first) == last:
        return inside
    if text.startswith(_GEMMA_QUOTE) and text.endswith(_GEMMA_QUOTE) and text.count(_GEMMA_QUOTE) == 2:
        return text.strip(_GEMMA_QUOTE)
    if first == last == '"' and ("\\" in inside or inside[:1] in _OPENING):
        inner = next(_json_forms(text), value) if inside else value
        return inner if isinstance(inner, str) else value
    if _ITEMS.fullmatch(text):
        return _ITEM.findall(text)
    lines = text.splitlines()  # several lists, each of which is on a separate line
    if len(lines) < 2 or not all(map(_LINE_OF_LIST.fullmatch, lines)):
        return value
    lists = [next(_json_forms(line.strip().rstrip(",")), None) for line in lines]
    items = [item for items in lists for item in (items if isinstance(items, list) else [None])]
    return items if items and all(isinstance(item, str) for item in items) else value


def _plain_json(literal: object, depth: int = 0) -> object:
    """Return a Python literal as JSON.

    Raises:
        ValueError: The literal contains a value that JSON cannot express, or is nested too deeply.
    """
    if depth > _DEEPEST:
        raise ValueError("too deep")
    if isinstance(literal, set):
        literal = sorted(literal, key=str)
    if isinstance(literal, list | tuple):
        return [_plain_json(item, depth + 1) for item in literal]
    if isinstance(literal, dict):
        return {str(key): _plain_json(item, depth + 1) for key, item in literal.items()}
    if literal is None or isinstance(literal, str | int | float):
        return literal
    raise ValueError("not JSON")


def _plain_paths(value: object) -> object:
    """Return paths as a list, also from the text of a list."""
    if isinstance(value, str) and value.strip().lower() not in _NULLS:
        text = value.strip()
        if "\n" in text and text[:1] not in _OPENING:
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            is_marked = all(map(_BULLET.match, lines))
            return [_BULLET.sub("", line, count=1) if is_marked else line for line in lines]
        value = [value] if _path_list(text) else value
    if not isinstance(value, list):
        return value
    return [path for item in value for path in (_path_list(item) or [item])]


def _path_list(item: object) -> list[object] | None:
    """Return the texts of a list that is written as text, or None if it is not a list of texts."""
    text = item.strip() if isinstance(item, str) else ""
    paths = next(_json_forms(text), None) if text[:1] in _OPENING else None
    is_of_texts = isinstance(paths, list) and any(isinstance(path, str) for path in paths)
    return [path for path in paths if path is not None] if is_of_texts and isinstance(paths, list) else None


def _refuse_broken_text(value: object, where: str = "", depth: int = 0) -> None:
    """Refuse lone surrogates, which UTF-8 cannot store, and NUL, which ends a text in many programs."""
    if isinstance(value, str):
        try:
            value.encode()
            is_broken = "\x00" in value
        except UnicodeEncodeError:
            is_broken = True
        if is_broken:
            shown = value[:_MAX_SHOWN].encode("ascii", "backslashreplace").decode()
            raise InvalidArgument(
                f"{where or 'an argument'} contains {_BROKEN_TEXT} or a zero byte",
                value=shown,
                remedy="send valid UTF-8 text",
            )
    elif depth == _DEEPEST and isinstance(value, dict | list):
        raise InvalidArgument(
            f"the arguments are nested deeper than {_DEEPEST} levels",
            value=_DEEPEST,
            remedy="send plain values: texts, numbers, and lists of them",
        )
    elif isinstance(value, dict):
        for key, inner in value.items():
            _refuse_broken_text(key, f"a name in {where or 'the arguments'}", depth + 1)
            _refuse_broken_text(inner, where or f"`{str(key)[:_MAX_SHOWN]}`", depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _refuse_broken_text(inner, where, depth + 1)


def _value_at(arguments: object, where: str) -> object:
    """Return the value at a place such as `to[2]`, short enough for an error, or None without a value."""
    value = arguments
    for step in where.replace("[", ".").replace("]", "").split("."):
        if not step:
            continue
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return _presentable(value)


def _presentable(value: object) -> object:
    """Return a short form of a value that every reader of JSON accepts."""
    if isinstance(value, str):
        return value[:_MAX_SHOWN]
    if isinstance(value, int) and abs(value) > 2**53:
        bits = value.bit_length()
        return str(value) if bits <= _MAX_SHOWN else f"an integer of {bits} bits"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, int | float | bool | None) else type(value).__name__


_EXACT: Final = frozenset({"acceptance", "action"})
"""The texts of which a code fence around them is a part: an action is exactly what a yes permits."""
_CLEANED: Final[Mapping[str, Callable[[object], object]]] = {
    "project_key": _plain_text,
    "human_key": _plain_text,
    "thread_id": _plain_text,
    "topic": _plain_text,
    "run_id": _plain_text,
    "sha256": _plain_digest,
    "name": _plain_text,
    "acceptance": _plain_acceptance,
    "action": _unless_blank,
    "choices": _plain_choices,
    "agent_name": _plain_name,
    "sender_name": _plain_name,
    "requester": _plain_name,
    "assignee": _plain_name,
    "to": _one_or_more_names,
    "cc": _plain_names,
    "bcc": _plain_names,
    "since": _plain_moment,
    "paths": _plain_paths,
    "reserve_paths": _plain_paths,
    "attachments": _plain_files,
}
"""The functions that clean arguments before their type is checked, keyed by argument."""
