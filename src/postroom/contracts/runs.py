"""Runs and threads: a run is one intent with its outcome, a thread the conversation it belongs to.

    created ──▶ running ──▶ done
       │          │  ▲       ▲ ▲
       │          ▼  │       │ │
       │         waiting ────┘ │
       └───────────────────────┘      a status may also stay unchanged; done is final

A run moves only along these arrows. `Acked` on a dispatch is independent of them.
"""

from enum import StrEnum
from json import dumps

from postroom.contracts.activation import RunActivationSnapshot
from postroom.contracts.errors import IllegalTransition, InvalidRecord, StaleDecision
from postroom.contracts.messages import Json, SeqRange
from postroom.contracts.records import Record, field, replace
from postroom.contracts.tools import ToolCallResume, ToolCallResumeMode


class RunStatus(StrEnum):
    """The state of a run."""

    CREATED = "created"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"


LEGAL_MOVES = {
    RunStatus.CREATED: {RunStatus.CREATED, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.DONE},
    RunStatus.RUNNING: {RunStatus.RUNNING, RunStatus.WAITING, RunStatus.DONE},
    RunStatus.WAITING: {RunStatus.WAITING, RunStatus.RUNNING, RunStatus.DONE},
    RunStatus.DONE: {RunStatus.DONE},
}
"""A run goes from `created` to `waiting` if a budget stops it before its first step."""


class TerminationKind(StrEnum):
    """Why a run ended or is suspended."""

    NATURAL_END = "natural_end"
    BEHAVIOR_REQUESTED = "behavior_requested"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    ERROR = "error"


CUT_OFF = "max_tokens"


class TerminationReason(Record, frozen=True, kw_only=True):
    """Why a run ended; `value` is the code of the stop, the obstacle, or an error's text, `detail` its code.

    The `value` of a natural end is None, or `CUT_OFF` if the model's limit of tokens cut the answer off.
    """

    type: TerminationKind
    value: str | None = None
    detail: str | None = None

    @classmethod
    def natural_end(cls) -> "TerminationReason":
        """Return the reason for an agent that finished."""
        return cls(type=TerminationKind.NATURAL_END)

    @classmethod
    def cut_off(cls) -> "TerminationReason":
        """Return the reason for an agent that finished with an answer cut off by the model's token limit."""
        return cls(type=TerminationKind.NATURAL_END, value=CUT_OFF)

    @classmethod
    def cancelled(cls) -> "TerminationReason":
        """Return the reason for a run that was cancelled."""
        return cls(type=TerminationKind.CANCELLED)

    @classmethod
    def suspended(cls) -> "TerminationReason":
        """Return the reason for a run that waits for a decision."""
        return cls(type=TerminationKind.SUSPENDED)

    @classmethod
    def error(cls, text: str, code: str | None = None) -> "TerminationReason":
        """Return the reason for a run that failed; the code is that of a postroom error."""
        return cls(type=TerminationKind.ERROR, value=text, detail=code)

    @property
    def run_status(self) -> RunStatus:
        """The status of a run with this reason."""
        return RunStatus.WAITING if self.type is TerminationKind.SUSPENDED else RunStatus.DONE


class WaitingReason(StrEnum):
    """The event that a run waits for."""

    TOOL_PERMISSION = "tool_permission"
    USER_INPUT = "user_input"
    BACKGROUND_TASKS = "background_tasks"
    EXTERNAL_EVENT = "external_event"
    RATE_LIMIT = "rate_limit"
    MANUAL_PAUSE = "manual_pause"


class OnTimeout(StrEnum):
    """The effect of a timeout of a question; a missing answer never means yes."""

    WAIT = "wait"
    CANCEL = "cancel"
    NO = "no"
    GO_ON = "go_on"
    """The run continues by itself and learns that nobody answered."""


def _shortened(arguments: Json, most: int = 600) -> str:
    text = arguments if isinstance(arguments, str) else dumps(arguments, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class RunWaitingTicket(Record, frozen=True, kw_only=True):
    """One open question of a waiting run."""

    ticket_id: str
    tool_call_id: str
    tool_name: str = ""
    arguments: Json = None
    resume_mode: ToolCallResumeMode = ToolCallResumeMode.REPLAY_TOOL_CALL
    reason: str = ""
    updated_at: int = 0
    expires_at: int | None = None
    """The end of its time for an answer; None for no end."""
    on_timeout: OnTimeout = OnTimeout.WAIT

    @property
    def question(self) -> str:
        """The question for a person as one text."""
        is_kind = not self.reason or self.reason in list(WaitingReason)
        what = f"The agent wants to use {self.tool_name or 'a tool'}" if is_kind else self.reason
        is_whole = not self.arguments or (self.resume_mode.is_a_question and not is_kind)
        return what if is_whole else f"{what}: {_shortened(self.arguments)}"

    def is_over(self, now: int) -> bool:
        """Return whether its timeout has passed and ends the wait."""
        ends = self.on_timeout in (OnTimeout.CANCEL, OnTimeout.NO)
        return ends and self.expires_at is not None and self.expires_at <= now

    def goes_on(self, now: int) -> bool:
        """Return whether its run continues without an answer, so that answers are no longer accepted."""
        is_late = self.expires_at is not None and self.expires_at <= now
        return is_late and self.on_timeout is OnTimeout.GO_ON

    def refuse_late(self, now: int) -> None:
        """Refuse an answer if the run goes on without one by now.

        Raises:
            StaleDecision: as said.
        """
        if self.goes_on(now):
            raise StaleDecision(
                f"question {self.ticket_id!r} timed out, and its run continued without an answer",
                value=self.tool_call_id,
                details={"expires_at": self.expires_at},
            )


class RunWaitingState(Record, frozen=True, kw_only=True):
    """The event that a run waits for, and its open questions."""

    reason: WaitingReason
    tickets: tuple[RunWaitingTicket, ...] = ()
    since_dispatch_id: str | None = None
    message: str | None = None


class AnsweredTicket(Record, frozen=True, kw_only=True):
    """A question that a run had, and the decision that resumed it."""

    ticket: RunWaitingTicket
    decision: ToolCallResume


class RunMessageInput(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The messages of a run's start; triggers are those that caused it."""

    thread_id: str
    range: SeqRange | None = None
    trigger_message_ids: tuple[str, ...] = ()


class PersistedState(Record, frozen=True, kw_only=True):
    """State that an executor keeps between steps; opaque to other code."""

    revision: int = 0
    extensions: dict[str, Json] = field(default_factory=dict)


class Usage(Record, frozen=True, kw_only=True):
    """The resources that a run used, as its executor reported; `cost_micros` in millionths of a US dollar."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    wall_ms: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_micros=self.cost_micros + other.cost_micros,
            wall_ms=self.wall_ms + other.wall_ms,
        )

    def beyond(self, other: "Usage") -> "Usage":
        """Return how much each amount exceeds that of `other`; at least 0."""
        return Usage(
            input_tokens=max(self.input_tokens - other.input_tokens, 0),
            output_tokens=max(self.output_tokens - other.output_tokens, 0),
            cost_micros=max(self.cost_micros - other.cost_micros, 0),
            wall_ms=max(self.wall_ms - other.wall_ms, 0),
        )


class RunRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One user intent on a thread. All instants are milliseconds since the epoch."""

    run_id: str
    thread_id: str
    agent_id: str = "default"
    status: RunStatus = RunStatus.RUNNING
    parent_run_id: str | None = None
    resolution_id: str | None = None
    activation: RunActivationSnapshot | None = None
    input: RunMessageInput | None = None
    output_message_ids: tuple[str, ...] = ()
    termination: TerminationReason | None = None
    final_output: str | None = None
    error: str | None = None
    dispatch_id: str | None = None
    session_id: str | None = None
    transport_request_id: str | None = None
    waiting: RunWaitingState | None = None
    answered: tuple[AnsweredTicket, ...] = ()
    """The answers to its questions, in their order; stored with the change that resumes it."""
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    updated_at: int = 0
    steps: int = 0
    usage: Usage = Usage()
    state: PersistedState | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid combination of fields.

        Raises:
            InvalidRecord: An id is blank, or the status does not fit the other fields.
        """
        if not (self.run_id.strip() and self.thread_id.strip() and self.agent_id.strip()):
            raise InvalidRecord("a run needs a run id, a thread id and an agent id", value=self.run_id)
        waits, is_done = self.status is RunStatus.WAITING, self.status is RunStatus.DONE
        broken = (self.waiting is not None) is not waits or (self.finished_at is not None) is not is_done
        if broken:
            raise InvalidRecord(
                f"a run that is {self.status} cannot have this combination of waiting state and finish",
                value=self.run_id,
            )

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended."""
        return self.status is not RunStatus.DONE

    @property
    def holds_others(self) -> bool:
        """Whether the thread's other runs wait for its end: it asks a question, or has just got an answer."""
        return self.waiting is not None and bool(self.waiting.tickets)

    @property
    def open_tickets(self) -> tuple[RunWaitingTicket, ...]:
        """The unanswered questions that it waits for; another event may resume it too."""
        told = [one.ticket for one in self.answered]
        return tuple(one for one in (self.waiting.tickets if self.waiting else ()) if one not in told)

    @property
    def is_background_task_waiting(self) -> bool:
        """Whether it waits for work that it started itself."""
        return self.waiting is not None and self.waiting.reason is WaitingReason.BACKGROUND_TASKS

    def refuse_illegal_move(self, before: "RunRecord | None") -> None:
        """Refuse to follow `before` if the state machine has no such arrow.

        Raises:
            IllegalTransition: A run that is done would run again, or the run would change its thread.
        """
        if before is None:
            return
        if before.thread_id != self.thread_id:
            raise IllegalTransition("a run cannot change its thread", value=self.run_id)
        if self.status not in LEGAL_MOVES[before.status]:
            raise IllegalTransition(
                f"a run that is {before.status} cannot become {self.status}", value=self.run_id
            )

    def begun(self, dispatch_id: str, session_id: str, *, now: int) -> "RunRecord":
        """Return the run at the start of its first execution."""
        return replace(
            self,
            status=RunStatus.RUNNING,
            dispatch_id=dispatch_id,
            session_id=session_id,
            started_at=now,
            updated_at=max(now, self.updated_at),
        )

    def ended(
        self, termination: TerminationReason, *, now: int, dispatch_id: str | None = None
    ) -> "RunRecord":
        """Return the run ended for this reason."""
        text = termination.value if termination.type is TerminationKind.ERROR else None
        return replace(
            self,
            status=RunStatus.DONE,
            termination=termination,
            error=text or self.error,
            waiting=None,
            dispatch_id=dispatch_id or self.dispatch_id,
            finished_at=now,
            updated_at=max(now, self.updated_at),
        )


class Thread(Record, frozen=True, kw_only=True):
    """A conversation and the runs it points to."""

    id: str
    title: str | None = None
    resource_id: str | None = None
    parent_thread_id: str | None = None
    custom: dict[str, Json] = field(default_factory=dict)
    active_run_id: str | None = None
    open_run_id: str | None = None
    latest_run_id: str | None = None
    latest_run_updated_at: int | None = None
    message_count: int = 0
    created_at: int = 0
    updated_at: int = 0
    latest_started_run_id: str | None = None
    """The run that was last written after its start; a new run inherits its agent and state."""

    def __post_init__(self) -> None:
        """Refuse a thread without a name or with itself as its parent.

        Raises:
            InvalidRecord: The thread has no name, or is its own parent.
        """
        if not self.id.strip():
            raise InvalidRecord("a thread needs an id", value=self.id)
        if self.parent_thread_id == self.id:
            raise InvalidRecord("a thread cannot be its own parent", value=self.id)

    def with_messages(self, count: int, *, now: int) -> "Thread":
        """Return the thread with `count` more messages."""
        if not count:
            return self
        return replace(self, message_count=self.message_count + count, updated_at=max(now, self.updated_at))

    def after(self, run: RunRecord) -> "Thread":
        """Return the thread with its pointers updated after a write of `run`.

        A run older than the newest known run changes no pointer; pointers to a run that is done are cleared.
        """
        done = run.status is RunStatus.DONE
        has_started = run.status is not RunStatus.CREATED
        cleared = replace(
            self,
            latest_started_run_id=run.run_id if has_started else self.latest_started_run_id,
            active_run_id=None if done and self.active_run_id == run.run_id else self.active_run_id,
            open_run_id=None if done and self.open_run_id == run.run_id else self.open_run_id,
        )
        if self.latest_run_updated_at is not None and run.updated_at < self.latest_run_updated_at:
            return cleared
        active = run.run_id if run.status is RunStatus.RUNNING else cleared.active_run_id
        if run.status is not RunStatus.RUNNING and active == run.run_id:
            active = None
        return replace(
            cleared,
            active_run_id=active,
            open_run_id=cleared.open_run_id if done else run.run_id,
            latest_run_id=run.run_id,
            latest_run_updated_at=run.updated_at,
            updated_at=max(run.updated_at, self.updated_at),
        )
