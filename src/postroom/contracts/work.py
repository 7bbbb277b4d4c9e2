"""Runs of agents and their questions, as people see them on web pages, at the command line and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Final, Literal

from postroom.contracts.clock import iso
from postroom.contracts.questions import YES_OR_NO, Asked
from postroom.contracts.records import Record, as_plain
from postroom.contracts.run_stores import BEFORE_ALL_RUNS, RunCursor

WorkState = Literal["at work", "queued", "asks", "done", "cancelled", "failed"]
"""The state of a run: `failed` means a dead letter or an end with an error, and `asks` means that the run
waits for a person.
"""
SHOWN_STATES: Final[Mapping[str, str]] = {
    "at work": "active",
    "queued": "queued",
    "asks": "waiting",
    "done": "succeeded",
    "cancelled": "cancelled",
    "failed": "failed",
}
"""The word that people see for each state; JSON and URLs contain the state itself."""
RunFilter = WorkState | Literal["", "ended"]
"""The states that a filter for runs accepts; `ended` matches done, cancelled and failed, and "" matches any.
"""
INSTANTS: Final = ("_at", "until")
"""The ends of the names of fields that contain a time, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """An open question of an agent, whose run waits for the answer."""

    number: str
    text: str
    run_id: str
    thread_id: str
    asked_at: int
    place: str
    """The cursor after this question in the list of all questions."""
    project: str = ""
    """The slug of the agent's project; empty if the agent asks in a chat."""
    agent: str = ""
    chat: str = ""
    """The chat in which the agent asks; empty if the agent asks in mail."""
    who: str = ""
    """The person who talks to the agent in that chat; empty if unknown."""
    asked: Asked = YES_OR_NO
    """The kind of answer that the question accepts, and who may answer."""
    expires_at: int | None = None
    """The time until which an answer is accepted, or None if there is no limit."""
    snoozed_until: int | None = None
    """The time until which a person has snoozed the question, or None if nobody has."""
    is_asked_outside: bool = False
    """Whether the agent asked outside its runs."""
    reply_to: int | None = None
    """The message to which a file must be attached as a reply, or None if the question takes no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """A question with the answer that was given.

    `approved` is None for an answer that is neither yes nor no.
    """

    number: str
    text: str
    run_id: str
    approved: bool | None
    why: str
    by: str
    where: str
    answered_at: int
    answer_id: str
    """The text that tells this answer from every other answer to the question, before or after it."""
    project: str = ""
    agent: str = ""
    can_take_back: bool = False
    """Whether the person can still withdraw the answer, because the agent has not received it yet."""
    is_closed: bool = False
    """Whether the agent gets no answer; `why` is then the reason why the question was closed."""
    is_default: bool = False
    """Whether nobody answered in time, so that the agent got the default answer, or a no."""
    is_in_words: bool = False
    """Whether a yes-or-no question was answered in words, which permit nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRuns:
    """The dead letters of one agent that failed with one error."""

    agent: str
    project: str
    chat: str
    """The chat in which the agent answers, in which case `project` is empty; empty for runs on mail."""
    why: str
    run_ids: Sequence[str]
    """The ids of the runs, newest first."""
    newest_at: int
    can_replay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAtWork:
    """An active run, and the last line of the run's output."""

    run_id: str
    project: str
    agent: str
    since_at: int
    heard_at: int | None
    """The time of the run's newest event, or None before the first one."""
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run of an agent, with the run's state, cause and possible actions."""

    run_id: str
    project: str
    """The slug of the project, or "" if the run answers in a chat."""
    agent: str
    state: WorkState
    messages: tuple[int, ...]
    """The messages that started the run."""
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    attempts: int = 0
    """Number of attempts: the failed ones, plus the active or last one."""
    interruptions: int = 0
    """Number of executions that ended early because a server stopped or a lease was lost; not counted as
    attempts.
    """
    dispatch_id: str | None = None
    why: str = ""
    """The reason why the run is not executing or, if it ended without success, why it ended."""
    gate: str = ""
    """The obstacle of a queued run, as a word of the queue, or "" if the run is not queued."""
    until: int | None = None
    """The time when that obstacle ends, if it is known."""
    last_error: str = ""
    """The error of the last failed attempt of a run that is retried, or "" if no attempt has failed."""
    questions: int = 0
    """Number of the run's questions, both open and answered."""
    parent_run_id: str | None = None
    """The run of which this run is a retry."""
    chat: str = ""
    """The platform and the bot of the run's chat, or "" for a run on mail."""
    cost_micros: int = 0
    """The cost in millionths of a US dollar, if the runner reports it."""
    is_asked_outside: bool = False
    """Whether an agent asked a question outside its runs, and this run only waits for the answer."""
    can_cancel: bool = False
    can_replay: bool = False
    """Whether the run is a dead letter that can be replayed; this is impossible if its caller no longer
    waits.
    """
    can_discard: bool = False
    """Whether the run is a dead letter, which can be discarded."""
    can_hasten: bool = False
    """Whether the run waits for a retry, which can be started at once."""

    @property
    def failed_attempts(self) -> int:
        """The number of failed attempts of the run."""
        return self.attempts if self.state in ("queued", "failed") else max(self.attempts - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOutput(Work):
    """A run with the stored output of the run."""

    output: str
    output_is_cut: bool
    """Whether the beginning of the output is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSearch:
    """A filter for the runs of a project.

    An empty field matches every run.
    """

    state: RunFilter = ""
    agent: str = ""
    text: str = ""
    """Words that must all occur in the run's agent name, id, subjects, answer or error."""
    since: int = 0
    """The earliest time of the runs' last change."""
    before: RunCursor = BEFORE_ALL_RUNS
    """The position from which the search continues."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """A page of runs, ordered by latest change.

    `next` is the cursor of the next page, or None on the last page.
    """

    works: Sequence[Work]
    next: RunCursor | None = None
    is_full: bool = True
    """Whether the page is full or is the last one; if not, older runs must still be searched."""


@dataclass(frozen=True, slots=True)
class ChatWork:
    """A run in a chat, with the chat, the input, and the person who wrote the input.

    Fields of deleted data are empty.
    """

    work: Work
    asked: str
    chat: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """The number of open runs, questions to people, and failures in a project."""

    open_runs: int = 0
    questions: int = 0
    failures: int = 0
    """The number of groups of dead letters of the same agent with the same error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run that waits for its start or a retry."""

    run_id: str
    agent: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The waiting runs and the dead letters of a project."""

    queued: tuple[QueuedRun, ...] = ()
    given_up: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that waits for the recipient's next run, and the reason."""

    message: int
    project: str
    agent: str
    since_at: int
    why: str
    behind_run_id: str | None = None
    """The recipient's run that is active, or waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The stored output of a run.

    `is_cut` is true if the beginning of the output is missing.
    """

    text: str
    is_cut: bool = False
    is_kept_whole: bool = True
    """Whether the output of each attempt fits the limit; if not, only its beginning is stored, with a note.
    """
    after: int = 0
    """The number of the log entry from which to read on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFact:
    """A fact about the server's health, in a few words for people."""

    name: str
    state: Literal["ok", "failed", "unknown"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An active reservation of files."""

    id: int
    holder: str
    pattern: str
    exclusive: bool
    reason: str
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationConflict:
    """Two overlapping active reservations of different agents, of which at least one is exclusive."""

    first: Held
    """The older of the two reservations."""
    second: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedMessage:
    """A message that a recipient has not read, or has not acknowledged as requested."""

    id: int
    subject: str
    sender: str
    ack_required: bool
    created_at: int
    missing: tuple[str, ...]
    readers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A chain of agents in which each agent waits for the next agent's answer to a message."""

    names: tuple[str, ...]
    run_id: str
    """The run of the last agent in the chain."""
    state: WorkState
    messages: tuple[int, ...]
    """The message from each agent to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An attempt of an agent's run within the last hour."""

    run_id: str
    began_at: int
    ended_at: int | None
    outcome: str
    """The outcome of the attempt, or "" while the attempt is active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The current state of a project, read in one consistent view."""

    works: Sequence[Work] = ()
    """At most 2,000 open runs: active runs first, then runs that ask, then queued runs."""
    open_in_all: int = 0
    """Total number of open runs."""
    questions: Sequence[OpenQuestion] = ()
    """Open questions, oldest first."""
    failed: Sequence[FailedRuns] = ()
    """The newest failures: dead letters of the same agent with the same error are one."""
    failed_in_all: int = 0
    """Number of all failures."""
    given_up: Sequence[Work] = ()
    """The newest run of each of the failures `failed`."""
    waiting: Sequence[Waiting] = ()
    """Messages that wait for their recipient's next run."""
    last_lines: Mapping[str, str] = field(default_factory=dict)
    """The last lines of output of open runs and dead letters, keyed by run id."""
    heard_at: Mapping[str, int] = field(default_factory=dict)
    """The time of the newest event of each open run and dead letter, keyed by run id."""
    conflicts: Sequence[ReservationConflict] = ()
    holds: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    """The active reservations of each agent, keyed by the agent's name in lower case."""
    waits: Sequence[Waits] = ()
    owed: Sequence[OwedMessage] = ()
    """Messages that are unread or not yet acknowledged as requested, newest first."""
    owed_in_all: int = 0
    """Number of such messages among the newest messages; `owed` contains only the newest ones."""
    last_hour: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)
    """Attempts of the last hour, keyed by the agent's name in lower case."""
    health: Sequence[HealthFact] = ()
    """Facts about the server, problems first."""


def plain(value: object) -> object:
    """Return a result as JSON-compatible data, with times as ISO 8601 texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(name, field) for name, field in asdict(value).items()}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain(name: str, value: object) -> object:
    if isinstance(value, Record):
        return as_plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(name if name.endswith(INSTANTS) else key, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain("", item) for item in value]
    return iso(value) if isinstance(value, int) and name.endswith(INSTANTS) else value
