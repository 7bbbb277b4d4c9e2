"""Runs of agents and their questions as people see them: on the pages, at the command line, as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from postroom.contracts.clock import iso
from postroom.contracts.run_stores import BEFORE_ALL_RUNS, RunCursor

WorkState = Literal["at work", "queued", "asks", "done", "cancelled", "failed"]
"""`failed` was given up, or ended with an error; `asks` waits for a person."""
SHOWN_STATES: Final[Mapping[str, str]] = {
    "at work": "active",
    "queued": "queued",
    "asks": "waiting",
    "done": "succeeded",
    "cancelled": "cancelled",
    "failed": "failed",
}
"""The word that people read for each state; JSON and addresses of pages have the state itself."""
RunFilter = WorkState | Literal["", "ended"]
"""The state that runs are looked for by; `ended` is done, cancelled or failed, "" is any."""
_INSTANTS = ("_at", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that a run waits on, with the agent that asks."""

    number: str
    text: str
    run_id: str
    thread_id: str
    asked_at: int
    project: str = ""
    """The slug of the agent's project; empty in a chat."""
    agent: str = ""
    chat: str = ""
    """The chat in which the agent asks; empty for a run on mail."""
    who: str = ""
    """The person to whom the agent speaks there, as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """A question that has its answer: who gave it, where and when. `approved` None is neither yes nor no."""

    number: str
    text: str
    run_id: str
    approved: bool | None
    why: str
    by: str
    where: str
    answered_at: int
    project: str = ""
    agent: str = ""
    can_take_back: bool = False
    """Whether the person may still take the answer back: the agent does not have it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run of an agent: how it stands, what began it, and what may be done about it."""

    run_id: str
    project: str
    """Its slug; "" in a chat."""
    agent: str
    state: WorkState
    messages: tuple[int, ...]
    """The messages that began it."""
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    attempts: int = 0
    """The number of its attempts: those that failed, and the active or last one."""
    interruptions: int = 0
    """How many executions the end of a server or a lost lease has cut off; no attempt counts them."""
    dispatch_id: str | None = None
    why: str = ""
    """Why it is not executing; or why it ended, when it did not end well."""
    gate: str = ""
    """What of its way to a worker keeps it, by the word of the queue; "" unless it is queued."""
    until: int | None = None
    """The instant after which that ends, where it is known."""
    questions: int = 0
    """How many questions it waits on, or has had answered."""
    parent_run_id: str | None = None
    """The run that it tries again."""
    chat: str = ""
    """The platform and the bot to which it answers; "" for a run on mail."""
    cost_micros: int = 0
    """The cost in millionths of a US dollar, if its runner reports it."""
    can_cancel: bool = False
    can_replay: bool = False
    """Whether it is a dead letter that may be tried again; one whose caller waits no more may not."""
    can_discard: bool = False
    """Whether it is a dead letter."""
    can_hasten: bool = False
    """Whether it is to be tried again at an instant, and may be tried before."""

    @property
    def failed_attempts(self) -> int:
        """How many of its attempts have failed."""
        return self.attempts if self.state in ("queued", "failed") else max(self.attempts - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSearch:
    """Which runs of a project's agents are looked for; an empty field asks for any."""

    state: RunFilter = ""
    agent: str = ""
    text: str = ""
    """Words that all occur in the agent's name, the run's id, its subjects, its answer or its error."""
    before: RunCursor = BEFORE_ALL_RUNS
    """The place after which the runs come."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Some runs, the last changed first; `next` is the place of the last run, None if no run is left."""

    works: Sequence[Work]
    next: RunCursor | None = None
    is_full: bool = True
    """Whether the page is full or the list at its end; else older runs were not looked at yet."""


@dataclass(frozen=True, slots=True)
class ChatWork:
    """A run of a chat: what it was asked, in which chat, and by whom, as far as that is still known."""

    work: Work
    asked: str
    chat: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """How much of a project's work is open, waits for a person, or was given up."""

    open_runs: int = 0
    questions: int = 0
    given_up: int = 0

    @property
    def for_people(self) -> int:
        """How many questions and failed runs wait for a person."""
        return self.questions + self.given_up


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run that waits to begin, or to be tried again."""

    run_id: str
    agent: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """How the queue of a project is beside what its log tells: which runs wait, and which were given up."""

    queued: tuple[QueuedRun, ...] = ()
    given_up: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that waits for its reader's next run, and why it waits."""

    message: int
    project: str
    agent: str
    since_at: int
    why: str
    behind_run_id: str | None = None
    """The run that its reader is at work on, or that waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a run has put out so far, as far as it was kept; `is_cut` when its beginning is not there."""

    text: str
    is_cut: bool = False
    is_kept_whole: bool = True
    """Whether an attempt put out no more than is kept: of more the beginning is there, and a note."""
    after: int = 0
    """The number in the run's log from which one may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFact:
    """One thing about the server that people look at, in a few words."""

    name: str
    state: Literal["ok", "failed", "unknown"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A live reservation."""

    id: int
    holder: str
    pattern: str
    exclusive: bool
    reason: str
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationConflict:
    """Two live reservations of different agents that overlap, one of them exclusive."""

    first: Held
    """It was made first."""
    second: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedMessage:
    """A message that some of its readers have not read, or not acknowledged where it asks for that."""

    id: int
    subject: str
    sender: str
    ack_required: bool
    created_at: int
    missing: tuple[str, ...]
    readers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Who waits for whom: each wrote to the next, who has an open run on it."""

    names: tuple[str, ...]
    run_id: str
    """The run at the end of the chain."""
    state: WorkState
    messages: tuple[int, ...]
    """The message that each wrote to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An attempt of an agent's run within the last hour."""

    run_id: str
    began_at: int
    ended_at: int | None
    outcome: str
    """How it ended; "" while it is at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What goes on in a project now, seen in one consistent view of the store."""

    works: Sequence[Work] = ()
    """Open runs, at most 2,000: those at work first, then those that ask, then the queue."""
    open_in_all: int = 0
    """How many runs are open."""
    questions: Sequence[OpenQuestion] = ()
    """The longest open first."""
    given_up: Sequence[Work] = ()
    """The last given up first."""
    given_up_in_all: int = 0
    """How many dead letters there are, counted up to 500; `given_up` has the newest of them."""
    waiting: Sequence[Waiting] = ()
    """Messages that wait for the next run of their reader."""
    last_lines: Mapping[str, str] = field(default_factory=dict)
    """The last lines that an open run, or one given up, has put out, by run id."""
    heard_at: Mapping[str, int] = field(default_factory=dict)
    """When the newest event of such a run came, by run id."""
    conflicts: Sequence[ReservationConflict] = ()
    holds: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    """What each agent holds, by its name in small letters."""
    waits: Sequence[Waits] = ()
    owed: Sequence[OwedMessage] = ()
    """The newest first."""
    owed_in_all: int = 0
    """How many such messages there are among the newest; `owed` has the newest of them."""
    last_hour: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)
    """By the names of agents in small letters."""
    health: Sequence[HealthFact] = ()
    """How the server is: what is wrong first."""


def told(record: OpenQuestion | GivenAnswer | Work | Waiting | Floor) -> dict[str, object]:
    """Return a record as plain JSON data, its instants as ISO 8601."""
    return {name: _plain(name, value) for name, value in asdict(record).items()}


def _plain(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(name if name.endswith(_INSTANTS) else key, one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain("", one) for one in value]
    return iso(value) if isinstance(value, int) and name.endswith(_INSTANTS) else value
