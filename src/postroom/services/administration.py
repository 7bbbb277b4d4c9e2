"""The responses of administration routes, as in the OpenAPI document; times are ISO 8601 texts."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from postroom.contracts.messages import Json
from postroom.contracts.questions import QuestionKind
from postroom.contracts.work import Waiting, Work
from postroom.mail.tasks import TaskView


class ProgressView(TypedDict):
    """The progress of long-running work.

    `doing` is empty if no work is active.
    """

    doing: str
    done: int
    total: int


class BacklogView(TypedDict):
    """The number of waiting effects, and the time of the oldest one."""

    waiting: int
    oldest_at: str | None


class OutboxView(TypedDict):
    """The number of waiting effects and dead letters of one kind."""

    waiting: int
    dead: int


class StatusView(TypedDict):
    """The status of the server."""

    version: str
    pid: int
    url: str
    started_at: str
    database: str
    archive: str | None
    environment: str
    identity: Literal["verified", "asserted"]
    profile: str
    records: dict[str, int]
    archive_backlog: BacklogView
    outbox: dict[str, OutboxView]


class ServerView(TypedDict):
    """A running server of the database."""

    name: str
    is_this: bool
    address: Json
    host: Json
    pid: Json
    version: Json
    places: Json
    since: str


class LeaseView(TypedDict):
    """A task that only one server performs at a time."""

    work: str
    is_held: bool
    server: str
    since: str
    until: str
    changes_of_hands: int


class ClusterView(TypedDict):
    """The servers that share the database, and the tasks that only one server performs."""

    servers: list[ServerView]
    work: list[LeaseView]


class ProjectPath(TypedDict):
    """The slug and the folder of a project."""

    slug: str
    human_key: str


class CheckView(TypedDict):
    """The result of one check of the installation."""

    name: str
    state: str
    detail: str
    remedy: str


class ChecksView(TypedDict):
    """The results of all checks of the installation.

    `ok` is true if all checks passed.
    """

    ok: bool
    checks: list[CheckView]


class RepairView(TypedDict):
    """A repair of the installation, and its state."""

    name: str
    does: str
    state: Literal["planned", "done", "failed"]
    detail: str


class RepairsView(ChecksView):
    """The repairs of the installation, and the results of the checks after the repairs."""

    dry_run: bool
    repairs: list[RepairView]


class BackupView(TypedDict):
    """A backup that was written."""

    path: str
    bytes: int


class LinkView(TypedDict):
    """A URL with which a person can log in once."""

    url: str


class PatternView(TypedDict):
    """A reservation of an agent."""

    agent: str
    pattern: str


MergeView = TypedDict(
    "MergeView",
    {
        "dry_run": bool,
        "from": ProjectPath,
        "into": ProjectPath,
        "agents": int,
        "messages": int,
        "reservations": int,
        "tokens": int,
        "renamed": dict[str, str],
        "threads_joined": list[str],
        "conflicts": list[list[PatternView]],
        "refusals": list[str],
    },
)
"""The records that a merge of two projects moves, and the reasons that prevent the merge."""


class PrunedProject(TypedDict):
    """The number of messages of a project that no retention rule keeps, by rule."""

    project: str
    counts: dict[str, int]


class PruneView(TypedDict):
    """The number of messages that no retention rule keeps, by project."""

    dry_run: bool
    rules: int
    projects: list[PrunedProject]


class ServerHealth(TypedDict):
    """Whether the server is ready, with the checks of each part and the state of the gateway."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, dict[str, Json]]
    gateway: dict[str, Json]


class NamedPerson(TypedDict):
    """A person to whom agents may write.

    `reached` is true if a channel reaches the person's chat.
    """

    name: str
    address: str
    chat: str | None
    reached: bool | None


class PersonView(NamedPerson):
    """A person with the number of unread messages."""

    unread: int
    visitor: bool


class RemovedPerson(TypedDict):
    """Whether a person was removed.

    `answers` is true if a rule still assigns chats to the person.
    """

    removed: bool
    answers: bool


class RunnerView(TypedDict):
    """The runner of an agent."""

    agent: str
    project: str
    declared_by: str
    runner: Mapping[str, Json]


class StoredRunner(TypedDict):
    """A stored runner.

    `waking` is the number of unread messages for which runs start.
    """

    agent: str
    replaced: bool
    waking: int
    runner: Mapping[str, Json]


class RemovedRunner(TypedDict):
    """Whether an agent had a runner, and the numbers of the agent's open questions, which stay open."""

    removed: bool
    open_questions: Sequence[str]


class RunsView(TypedDict):
    """A list of runs, and the messages that wait for a run."""

    runs: Sequence[Work]
    waiting: Sequence[Waiting]


class OpenTaskView(TaskView):
    """An open task of a project."""

    project: str


class DecidedTaskView(TypedDict):
    """A task about which a person decided."""

    task: int
    state: str


class DeadLetterView(TypedDict):
    """A dead letter with the run and the reason of the failure."""

    agent: str
    project: str
    chat: str
    dispatch_id: str
    run_id: str
    thread_id: str
    attempts: int
    interruptions: int
    since: str
    error: str | None


class WaitingQuestion(TypedDict):
    """An open question of an agent."""

    number: str
    question: str
    agent: str
    project: str
    chat: str
    who: str
    thread_id: str
    run_id: str
    waiting_since: str
    takes: QuestionKind
    """The kind of answer."""
    in_words: bool
    """Whether a yes-or-no question can also be answered in words, which permit nothing."""
    choices: list[str]
    form: dict[str, Any] | None
    """The JSON schema of the fields of a form."""
    to: list[str]
    """The addresses of those who may answer; empty for everybody who may answer questions."""
    not_by: list[str]
    action: str
    """Exactly the action that a yes permits."""
    action_shown: str
    """The action with the code of each character that could hide a difference, for people."""
    digest: str
    """The digest of that action."""
    expires_at: str | None
    snoozed_until: str | None
    reply_to: int | None
    """The message that asks; a reply to it with a file answers a question that takes a file."""


class QuestionsView(TypedDict):
    """A page of open questions."""

    questions: list[WaitingQuestion]
    next: str | None
    """The place after which the list continues; null at its end."""


class ShownAt(TypedDict):
    """A place at which a question was shown, and the time of the first display.

    The time is null if unknown.
    """

    where: str
    at: str | None


class QuestionRecord(TypedDict):
    """The record of a question: the asking agent, the places of display, and the answer."""

    number: str
    state: Literal["open", "answered", "closed"]
    """A closed question has no answer: its run ended, or its agent asked it again in another form."""
    question: str
    agent: str
    project: str
    chat: str
    """The chat in which the question was asked; empty for a question of a project's agent."""
    run_id: str
    asked_at: str
    takes: QuestionKind
    choices: list[str]
    to: list[str]
    """The addresses of those who may answer; empty for everybody who may answer questions."""
    not_by: list[str]
    action: str
    digest: str
    expires_at: str | None
    shown: list[ShownAt]
    """The places at which the question was shown, in order of time."""
    approved: bool | None
    """None if the answer is neither yes nor no, and for an open question."""
    answer: str
    """The answer in words, or the comment on a yes or no; for a closed question, the reason why."""
    answered_by: str
    where: str
    """The surface on which the question was answered; empty for an open question."""
    answered_at: str | None
    can_take_back: bool
    """Whether the answer can still be withdrawn."""


class SnoozedQuestion(TypedDict):
    """A question with the end of the snooze, or null without a snooze."""

    number: str
    snoozed_until: str | None


class AnsweredQuestion(TypedDict):
    """A question that was answered."""

    number: str
    answer: str
    """The answer in words."""


ScheduleView = TypedDict(
    "ScheduleView",
    {
        "name": str,
        "state": Literal["active", "paused"],
        "project": str,
        "from": str,
        "to": list[str],
        "subject": str,
        "body": str,
        "catch_up": bool,
        "cron": str | None,
        "every_seconds": float | None,
        "zone": str,
        "missed": str,
        "overlap": str,
        "jitter_seconds": float,
        "next_at": str | None,
        "sent": int,
        "passed_over": int,
        "last_at": str | None,
        "last_message": int | None,
        "last_error": str | None,
    },
)
"""A schedule: its message, its times, and the result at its last time."""

ChatPersonView = TypedDict(
    "ChatPersonView",
    {
        "platform": str,
        "user_id": str,
        "role": str,
        "name": str | None,
        "from": Literal["file", "paired", "secret"],
        "added_at": str | None,
    },
)
"""A person who may write to a bot, and where the permission comes from."""


class PairedPerson(TypedDict):
    """A person who was admitted with a pairing code."""

    person: ChatPersonView


class AskingPerson(TypedDict):
    """A person who asks for permission to write to a bot."""

    platform: str
    user_id: str
    name: str | None
    asked_at: str
    expires_at: str


class ChatPeopleView(TypedDict):
    """The people who may write to a bot, and the people who ask for permission."""

    people: list[ChatPersonView]
    asking: list[AskingPerson]


class RemovedChatPerson(TypedDict):
    """A person whose permission to write to a bot was removed."""

    platform: str
    user_id: str
    removed: bool


class StoredEffect(TypedDict):
    """A message to a chat that is stored for delivery."""

    outbox_id: str
    status: str


class DiscardedEffect(TypedDict):
    """A message to a chat that was discarded."""

    outbox_id: str
    discarded: bool


class UndeliveredView(TypedDict):
    """A message that could not be delivered to a chat.

    Fields of an unknown chat are null.
    """

    outbox_id: str
    target: str
    kind: Json
    chat_id: str | None
    chat: str | None
    who: str | None
    thread_id: Json
    text: Json
    error: str | None
    created_at: str


class UndeliveredList(TypedDict):
    """The messages that could not be delivered to chats."""

    undelivered: list[UndeliveredView]
