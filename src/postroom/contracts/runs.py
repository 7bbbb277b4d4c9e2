"""Runs, which are requests with their outcomes, and threads, the conversations to which the runs belong.

    created ──▶ running ──▶ done
       │          │  ▲       ▲ ▲
       │          ▼  │       │ │
       │         waiting ────┘ │
       └───────────────────────┘      a status may also stay unchanged; done is final

The status of a run changes only along these arrows; it does not depend on the dispatch state `Acked`.
"""

from collections.abc import Sequence
from enum import StrEnum
from json import dumps
from typing import Final

from postroom.contracts.activation import RunActivationSnapshot
from postroom.contracts.errors import (
    ContentFiltered,
    ContextOverflow,
    InvalidRecord,
    RequestRefused,
    StaleDecision,
)
from postroom.contracts.limits import BUDGET_TOOL
from postroom.contracts.messages import Json, Message, SeqRange
from postroom.contracts.questions import MAX_TEXT_LENGTH, NOBODY, YES_OR_NO, Asked, answered_where
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.records import Record, field, replace
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume, ToolCallResumeMode

AGENT_THREAD: Final = "agent:"
"""The beginning of the names of threads of agents' runs."""
LANE: Final = "#"
"""The separator before the number of a lane; it cannot occur in an agent's name."""


def agent_of(thread_id: str) -> tuple[str, str] | None:
    """Return the slug and the name of the agent to which a thread belongs, or None for other threads."""
    if not thread_id.startswith(AGENT_THREAD):
        return None
    slug, slash, name = thread_id.removeprefix(AGENT_THREAD).partition("/")
    name = name.partition(LANE)[0]
    return (slug, name) if slash and slug and name else None


class RunStatus(StrEnum):
    """Whether a run was created, is active, waits or has ended."""

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
"""The statuses to which each status can change.

A run changes from `created` to `waiting` if a budget stops it before its first step.
"""


class TerminationKind(StrEnum):
    """The kinds of reasons for which a run ends or is suspended."""

    NATURAL_END = "natural_end"
    BEHAVIOR_REQUESTED = "behavior_requested"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    ERROR = "error"


CUT_OFF = "max_tokens"


class TerminationReason(Record, frozen=True, kw_only=True):
    """The reason why a run ended: `value` is a stop code, an obstacle or an error, `detail` its code.

    If an agent has finished, `value` is None, or `CUT_OFF` if the answer reached the model's token limit.
    """

    type: TerminationKind
    value: str | None = None
    detail: str | None = None

    @classmethod
    def natural_end(cls) -> "TerminationReason":
        """Return the reason of a run whose agent has finished."""
        return cls(type=TerminationKind.NATURAL_END)

    @classmethod
    def cut_off(cls) -> "TerminationReason":
        """Return the reason of a run whose answer reached the model's token limit."""
        return cls(type=TerminationKind.NATURAL_END, value=CUT_OFF)

    @classmethod
    def cancelled(cls, why: str | None = None) -> "TerminationReason":
        """Return the reason of a run that was cancelled, and why it was."""
        return cls(type=TerminationKind.CANCELLED, value=why)

    @classmethod
    def suspended(cls) -> "TerminationReason":
        """Return the reason of a run that waits for a decision."""
        return cls(type=TerminationKind.SUSPENDED)

    @classmethod
    def error(cls, text: str, code: str | None = None) -> "TerminationReason":
        """Return the reason of a run that failed; `code` is the code of the postroom error."""
        return cls(type=TerminationKind.ERROR, value=text, detail=code)

    @property
    def how(self) -> str:
        """How a run ended, as the predicate of a sentence."""
        return {TerminationKind.CANCELLED: "was cancelled", TerminationKind.ERROR: "failed"}.get(
            self.type, "ended"
        )

    @property
    def run_status(self) -> RunStatus:
        """The status of a run that ended for this reason."""
        return RunStatus.WAITING if self.type is TerminationKind.SUSPENDED else RunStatus.DONE


class WaitingReason(StrEnum):
    """The kind of event that a run waits for."""

    TOOL_PERMISSION = "tool_permission"
    USER_INPUT = "user_input"
    BACKGROUND_TASKS = "background_tasks"
    EXTERNAL_EVENT = "external_event"
    RATE_LIMIT = "rate_limit"
    MANUAL_PAUSE = "manual_pause"


class OnTimeout(StrEnum):
    """The consequence of a question's timeout; a missing answer never counts as a yes."""

    WAIT = "wait"
    CANCEL = "cancel"
    NO = "no"
    GO_ON = "go_on"
    """The run continues without an answer."""


def _shorten(arguments: Json, most: int = 600) -> str:
    text = arguments if isinstance(arguments, str) else dumps(arguments, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class RunWaitingTicket(Record, frozen=True, kw_only=True):
    """An open question of a waiting run."""

    ticket_id: str
    tool_call_id: str
    tool_name: str = ""
    arguments: Json = None
    resume_mode: ToolCallResumeMode = ToolCallResumeMode.REPLAY_TOOL_CALL
    reason: str = ""
    updated_at: int = 0
    expires_at: int | None = None
    """The time until which an answer is accepted, or None if there is no limit."""
    on_timeout: OnTimeout = OnTimeout.WAIT
    asked: Asked = YES_OR_NO
    """The kind of answer that the question accepts, and who may answer."""

    @property
    def question(self) -> str:
        """The text of the question, as people see it."""
        is_kind = not self.reason or self.reason in list(WaitingReason)
        what = f"The agent wants to use {self.tool_name or 'a tool'}" if is_kind else self.reason
        is_whole = not self.arguments or (self.resume_mode.is_a_question and not is_kind)
        return what if is_whole else f"{what}: {_shorten(self.arguments)}"

    @property
    def ends_at(self) -> int | None:
        """The time when the run stops waiting for an answer, or None if it waits without a limit."""
        return self.expires_at if self.on_timeout in (OnTimeout.CANCEL, OnTimeout.NO) else None

    def is_over(self, now: int) -> bool:
        """Return whether the question has timed out, so that the run no longer waits."""
        return self.ends_at is not None and self.ends_at <= now

    def goes_on(self, now: int) -> bool:
        """Return whether the run has continued without an answer, so that it accepts none any longer."""
        is_late = self.expires_at is not None and self.expires_at <= now
        return is_late and self.on_timeout is OnTimeout.GO_ON

    def refuse_late(self, now: int) -> None:
        """Raise an error if the run has already continued without an answer.

        Raises:
            StaleDecision: The run has already continued.
        """
        if self.goes_on(now):
            raise StaleDecision(
                f"question {self.ticket_id!r} timed out, and its run continued without an answer",
                value=self.tool_call_id,
                details={"expires_at": self.expires_at},
            )


class RunWaitingState(Record, frozen=True, kw_only=True):
    """The event that a run waits for, and the run's open questions."""

    reason: WaitingReason
    tickets: tuple[RunWaitingTicket, ...] = ()
    since_dispatch_id: str | None = None
    message: str | None = None


class AnsweredTicket(Record, frozen=True, kw_only=True):
    """A question that a run asked, and the decision that resumed the run.

    If nobody answered, the decision is by "nobody", and says why the question was closed.
    """

    ticket: RunWaitingTicket
    decision: ToolCallResume

    @property
    def is_answer(self) -> bool:
        """Whether the run gets an answer: that of a person or, after a timeout, the default."""
        return self.decision.by != NOBODY or self.decision.result is not None

    @classmethod
    def closed(cls, ticket: RunWaitingTicket, end: TerminationReason, *, now: int) -> "AnsweredTicket":
        """Return a question as cancelled, because its run ended while the question was open."""
        is_over = ticket.is_over(now)
        why = end.value if end.type is TerminationKind.CANCELLED else None
        why = "no answer came in time" if is_over else why
        decision = ToolCallResume(
            decision_id=f"{'silence' if is_over else 'ended'}/{ticket.ticket_id}",
            action=ResumeDecisionAction.CANCEL,
            reason=f"{why}, so the run {end.how}" if why else f"the run {end.how}",
            updated_at=now,
            by=NOBODY,
        )
        return cls(ticket=ticket, decision=decision)

    def too_late(self, end: TerminationReason, *, now: int) -> "AnsweredTicket":
        """Return the question as closed, because its run ended before the agent got the answer."""
        closed = AnsweredTicket.closed(self.ticket, end, now=now)
        if self.decision.by == NOBODY:
            return closed
        word = {True: "yes", False: "no"}.get(self.decision.approved)  # type: ignore[arg-type]
        words = quoted(self.decision.reason, longest=2 * MAX_TEXT_LENGTH) if self.decision.reason else ""
        who = f"{one_line(self.decision.by) or 'somebody'} {answered_where(self.decision)}".strip()
        answer = ": ".join(filter(None, (who, word, words)))
        why = f"the run {end.how} before the agent got the answer of {answer}"
        return replace(closed, decision=replace(closed.decision, reason=why))


class RunMessageInput(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The messages with which a run starts; the triggers are the messages that caused the run."""

    thread_id: str
    range: SeqRange | None = None
    trigger_message_ids: tuple[str, ...] = ()


class PersistedState(Record, frozen=True, kw_only=True):
    """State that an executor stores between steps, in its own format."""

    revision: int = 0
    extensions: dict[str, Json] = field(default_factory=dict)


class Usage(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Resources that a run used, as reported by its executor; `cost_micros` in millionths of a US dollar."""

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
        """Return by how much each amount exceeds that of `other`, or 0 if it does not."""
        return Usage(
            input_tokens=max(self.input_tokens - other.input_tokens, 0),
            output_tokens=max(self.output_tokens - other.output_tokens, 0),
            cost_micros=max(self.cost_micros - other.cost_micros, 0),
            wall_ms=max(self.wall_ms - other.wall_ms, 0),
        )


class RunRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A request on a thread, with its outcome; all times are in milliseconds since the epoch."""

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
    """The answers to the run's questions, in order; stored by the change that resumes the run.

    When a run ends, its open questions are added, with the reason why nobody answered them.
    """
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    updated_at: int = 0
    steps: int = 0
    usage: Usage = Usage()
    state: PersistedState | None = None

    def __post_init__(self) -> None:
        """Raise an error if the fields contradict one another.

        Raises:
            InvalidRecord: An id is blank, or the status contradicts the other fields.
        """
        if not (self.run_id.strip() and self.thread_id.strip() and self.agent_id.strip()):
            raise InvalidRecord("a run's run id, thread id and agent id must not be blank", value=self.run_id)
        waits, is_done = self.status is RunStatus.WAITING, self.status is RunStatus.DONE
        broken = (self.waiting is not None) is not waits or (self.finished_at is not None) is not is_done
        if broken:
            raise InvalidRecord(
                f"a run that is {self.status} has a waiting state or an end time that does not fit this "
                f"status",
                value=self.run_id,
            )

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended yet."""
        return self.status is not RunStatus.DONE

    @property
    def holds_others(self) -> bool:
        """Whether the thread's other runs must wait, because this run asks or was just answered."""
        return self.waiting is not None and bool(self.waiting.tickets)

    @property
    def open_tickets(self) -> tuple[RunWaitingTicket, ...]:
        """The unanswered questions of the run; other events may resume the run, too."""
        tickets = [answered.ticket for answered in self.answered]
        return tuple(
            ticket for ticket in (self.waiting.tickets if self.waiting else ()) if ticket not in tickets
        )

    @property
    def is_background_task_waiting(self) -> bool:
        """Whether the run waits for background tasks that it started."""
        return self.waiting is not None and self.waiting.reason is WaitingReason.BACKGROUND_TASKS

    def begun(self, dispatch_id: str, session_id: str, *, now: int) -> "RunRecord":
        """Return a copy of the run after its first execution has started."""
        return replace(
            self,
            status=RunStatus.RUNNING,
            dispatch_id=dispatch_id,
            session_id=session_id,
            started_at=now,
            updated_at=max(now, self.updated_at),
        )

    def _closing(
        self, termination: TerminationReason, *, now: int, has_read: bool
    ) -> tuple[AnsweredTicket, ...]:
        """Return the answers that the run has read, and its other questions as closed by its end."""
        tickets = self.waiting.tickets if self.waiting and not has_read else ()
        unread = [
            ticket for ticket in tickets if ticket.tool_name != BUDGET_TOOL
        ]  # the server reads that answer
        answered = [
            one.too_late(termination, now=now) if one.is_answer and one.ticket in unread else one
            for one in self.answered
        ]
        closed = [AnsweredTicket.closed(ticket, termination, now=now) for ticket in self.open_tickets]
        return (*answered, *closed)

    def ended(
        self,
        termination: TerminationReason,
        *,
        now: int,
        dispatch_id: str | None = None,
        has_read: bool = True,
    ) -> "RunRecord":
        """Return a copy of the run that has ended for this reason.

        Without `has_read`, the run ends before it has read the answers that let it continue.
        """
        text = termination.value if termination.type is TerminationKind.ERROR else None
        return replace(
            self,
            status=RunStatus.DONE,
            answered=self.answered
            if self.waiting is None
            else self._closing(termination, now=now, has_read=has_read),
            termination=termination,
            error=text or self.error,
            waiting=None,
            dispatch_id=dispatch_id or self.dispatch_id,
            finished_at=now,
            updated_at=max(now, self.updated_at),
        )


class Thread(Record, frozen=True, kw_only=True):
    """A conversation, with the ids of its open, active and latest runs."""

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
    """The last run that was stored with a status other than `created`; a new run inherits its agent and
    state.
    """

    def __post_init__(self) -> None:
        """Raise an error if the thread has no name, or is its own parent.

        Raises:
            InvalidRecord: The thread has no name, or is its own parent.
        """
        if not self.id.strip():
            raise InvalidRecord("a thread's id must not be blank", value=self.id)
        if self.parent_thread_id == self.id:
            raise InvalidRecord("a thread cannot be its own parent", value=self.id)

    def with_messages(self, count: int, *, now: int) -> "Thread":
        """Return a copy of the thread with `count` more messages."""
        if not count:
            return self
        return replace(self, message_count=self.message_count + count, updated_at=max(now, self.updated_at))

    def after(self, run: RunRecord) -> "Thread":
        """Return a copy of the thread after a write of `run`, with updated run ids.

        The ids stay unchanged if the run is older than the newest known run; ids of ended runs are cleared.
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


_REFUSALS = frozenset({ContentFiltered.code, ContextOverflow.code, RequestRefused.code})
"""Codes of errors that the input of a run causes; another run with the same input would fail, too."""


def is_set_aside(termination: TerminationReason | None) -> bool:
    """Return whether later runs ignore the messages of a run that ended for this reason."""
    return termination is not None and termination.detail in _REFUSALS


class Summary(Record, frozen=True, kw_only=True):
    """The text that replaces the older messages of a conversation for the model.

    Each summary includes the one before it.
    """

    number: int
    """The number of the summary on its thread; the first one has the number 1."""
    text: str
    left_out: int = 0
    """Number of messages that are neither shown nor summarized, because the model could not summarize them.
    """
    model: str = ""
    window: int | None = None
    """The size of the model's context in tokens, if the endpoint has reported it."""
    since: int = 0
    """Every run that has ended and was last changed before this time is completely summarized or hidden."""


class SummaryDraft(Record, frozen=True, kw_only=True):
    """A summary to store, with the messages that it summarizes in addition to the previous summary."""

    summary: Summary
    covers: tuple[str, ...] = ()
    """The ids of the messages that are summarized."""
    hides: tuple[str, ...] = ()
    """The ids of messages that are left out; a later run sees them only if it starts with them again."""


class Turn(Record, frozen=True, kw_only=True):
    """A run with its messages, placed in the conversation at its start, or at its end if it never started."""

    run_id: str
    asked: tuple[str, ...] = ()
    """The ids of the messages with which the run started."""
    began: int | None = None
    is_unbegun: bool = False
    """Whether the run ended before it started; such a run is placed after runs that started at the same time.
    """
    created_at: int = 0
    takes_back: tuple[str, ...] = ()
    """The runs that this run rolled back; no later run sees them."""
    is_set_aside: bool = False
    """Whether the model rejected the input of the run."""
    is_to_come: bool = False
    """Whether the run is still queued, waiting or active."""

    @classmethod
    def of(cls, run: RunRecord) -> "Turn":
        """Return the messages and the position of a run."""
        return cls(
            run_id=run.run_id,
            asked=run.input.trigger_message_ids if run.input is not None else (),
            began=run.started_at if run.started_at is not None else run.finished_at,
            is_unbegun=run.started_at is None,
            created_at=run.created_at,
            takes_back=run.activation.options.without_runs if run.activation is not None else (),
            is_set_aside=is_set_aside(run.termination),
            is_to_come=run.is_open and run.activation is not None,
        )


class Conversation(Record, frozen=True, kw_only=True):
    """A thread as one run sees it: the newest valid summary and the messages after it, in order."""

    messages: tuple[Message, ...]
    summary: Summary | None = None
    hidden: tuple[str, ...] = ()
    """The ids of messages after the summary that are hidden; a run sees them only if it starts with them
    again.
    """
    turns: tuple[Turn, ...] = ()
    """The runs to which these messages belong, and all open runs."""

    def since(self, kept: frozenset[str], run_id: str) -> int:
        """Return the creation time of the first run that a summary of all messages but `kept` omits."""
        fields = {_said_by(message) for message in self.messages if message.id in kept}
        return min(
            (
                turn.created_at
                for turn in self.turns
                if turn.is_to_come
                or turn.run_id in fields
                or turn.run_id == run_id
                or not kept.isdisjoint(turn.asked)
            ),
            default=0,
        )


def build_conversation(run_id: str, messages: Sequence[Message], turns: Sequence[Turn]) -> Conversation:
    """Return a thread's committed messages as one of its runs sees them.

    The input and output of another run are omitted if that run has not ended, was rolled back, or had input
    that the model rejected. The remaining runs are ordered by their start, so that each answer follows its
    question, no matter when the question was enqueued. The run itself comes last. A message that belongs to
    no run stays after the message before it.
    """
    places = {message.id: place for place, message in enumerate(messages)}
    ends = {_said_by(message): place for place, message in enumerate(messages)}

    def order(turn: Turn) -> tuple[bool, float, bool, int]:
        end = max(ends.get(turn.run_id, -1), *(places.get(id, -1) for id in turn.asked), -1)
        began = turn.began if turn.began is not None else float("inf")
        return turn.run_id == run_id, began, turn.is_unbegun, end

    place_of: dict[str, int] = {}
    asked_by: dict[str, str] = {}
    for place, turn in enumerate(sorted(turns, key=order)):
        place_of[turn.run_id] = place
        asked_by.update(
            dict.fromkeys(turn.asked, turn.run_id)
        )  # a replayed message belongs to its latest run
    gone = {turn.run_id for turn in turns if turn.is_set_aside} - {run_id}
    gone.update(run for turn in turns for run in turn.takes_back)
    to_come = {turn.run_id for turn in turns if turn.is_to_come} - {run_id}
    seen: list[tuple[int, Message]] = []
    hidden: list[str] = []
    latest = -1
    for message in messages:
        said_by = _said_by(message)
        run_of = said_by if said_by in place_of else asked_by.get(message.id or "")
        if run_of in gone:
            hidden.append(message.id or "")
        elif run_of not in to_come:
            latest = latest if run_of is None else place_of[run_of]
            seen.append((latest, message))
    ordered = tuple(message for _, message in sorted(seen, key=lambda entry: entry[0]))
    return Conversation(messages=ordered, hidden=tuple(hidden), turns=tuple(turns))


def _said_by(message: Message) -> str | None:
    return message.metadata.run_id if message.metadata else None
