"""Runs, which are requests with their outcomes, and threads, the conversations to which the runs belong.

    created ──▶ running ──▶ done
       │          │  ▲       ▲ ▲
       │          ▼  │       │ │
       │         waiting ────┘ │
       └───────────────────────┘      a status may also stay unchanged; done is final

The status of a run changes only along these arrows; it does not depend on the dispatch state `Acked`.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from json import dumps
from typing import Final

from postroom.contracts.activation import RunActivationSnapshot
from postroom.contracts.clock import iso
from postroom.contracts.errors import (
    ContentFiltered,
    ContextOverflow,
    InvalidRecord,
    RequestRefused,
    StaleDecision,
)
from postroom.contracts.limits import BUDGET_TOOL
from postroom.contracts.messages import Json, Message, SeqRange
from postroom.contracts.questions import (
    ASKED_AGAIN,
    MAX_TEXT_LENGTH,
    NOBODY,
    SILENT,
    UNSEEN,
    YES_OR_NO,
    Asked,
    answered_where,
    form_in_words,
)
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.records import Record, field, replace
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume, ToolCallResumeMode

AGENT_THREAD: Final = "agent:"
"""The beginning of the names of threads of agents' runs."""
LANE: Final = "#"
"""The separator before the number of a lane; it cannot occur in an agent's name."""
ASKING: Final = "#asks-"
"""The mark in the names of threads for questions outside runs. Such a thread has one open question."""


def agent_of(thread_id: str) -> tuple[str, str] | None:
    """Return the slug and name of the agent that owns a thread, or None if no agent owns the thread."""
    if not thread_id.startswith(AGENT_THREAD):
        return None
    slug, slash, name = thread_id.removeprefix(AGENT_THREAD).partition("/")
    name = name.partition(LANE)[0]
    return (slug, name) if slash and slug and name else None


class RunStatus(StrEnum):
    """The state of a run: created, running, waiting or done."""

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
    """The kind of reason for which a run ends or is suspended."""

    NATURAL_END = "natural_end"
    BEHAVIOR_REQUESTED = "behavior_requested"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    ERROR = "error"


CUT_OFF = "max_tokens"
CANCELLED_BY: Final = "cancelled by "
"""The beginning of the reason of a run that a person has cancelled; the person's name follows."""


class TerminationReason(Record, frozen=True, kw_only=True):
    """The reason why a run ended or was suspended.

    `value` is a stop code or a text, and `detail` is an error code. For a finished agent, `value` is None, or
    `CUT_OFF` if the answer reached the token limit.
    """

    type: TerminationKind
    value: str | None = None
    detail: str | None = None

    @classmethod
    def natural_end(cls) -> "TerminationReason":
        """Return the termination reason of a run whose agent has finished."""
        return cls(type=TerminationKind.NATURAL_END)

    @classmethod
    def cut_off(cls) -> "TerminationReason":
        """Return the termination reason of a run whose answer reached the model's token limit."""
        return cls(type=TerminationKind.NATURAL_END, value=CUT_OFF)

    @classmethod
    def cancelled(cls, why: str | None = None) -> "TerminationReason":
        """Return the termination reason of a cancelled run; `why` says why the run was cancelled."""
        return cls(type=TerminationKind.CANCELLED, value=why)

    @classmethod
    def suspended(cls) -> "TerminationReason":
        """Return the termination reason of a run that waits for a decision."""
        return cls(type=TerminationKind.SUSPENDED)

    @classmethod
    def error(cls, text: str, code: str | None = None) -> "TerminationReason":
        """Return the termination reason of a failed run; `code` is the error code."""
        return cls(type=TerminationKind.ERROR, value=text, detail=code)

    @property
    def how(self) -> str:
        """The way in which a run ended, as a verb phrase such as "failed" or "was cancelled by kim"."""
        if self.type is TerminationKind.CANCELLED and (self.value or "").startswith(CANCELLED_BY):
            return f"was {self.value}"
        return {TerminationKind.CANCELLED: "was cancelled", TerminationKind.ERROR: "failed"}.get(
            self.type, "ended"
        )

    @property
    def run_status(self) -> RunStatus:
        """The run status that follows from the termination reason."""
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
    """The action after a question's timeout."""

    WAIT = "wait"
    CANCEL = "cancel"
    NO = "no"
    GO_ON = "go_on"
    """The run continues without an answer."""


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
        """The text of the question, as people see the question."""
        is_kind = not self.reason or self.reason in list(WaitingReason)
        what = f"The agent wants to use {self.tool_name or 'a tool'}" if is_kind else self.reason
        if not self.arguments or (self.resume_mode.is_a_question and not is_kind):
            return what
        text = (
            self.arguments if isinstance(self.arguments, str) else dumps(self.arguments, ensure_ascii=False)
        )
        return f"{what}: {text if len(text) <= 600 else f'{text[:599]}…'}"

    @property
    def ends_at(self) -> int | None:
        """The time when the run stops waiting for an answer, or None for an unlimited wait."""
        return self.expires_at if self.on_timeout in (OnTimeout.CANCEL, OnTimeout.NO) else None

    def is_over(self, now: int) -> bool:
        """Return whether the question has timed out."""
        return self.ends_at is not None and self.ends_at <= now

    def goes_on(self, now: int) -> bool:
        """Return whether the question has timed out and the run has continued without an answer."""
        is_late = self.expires_at is not None and self.expires_at <= now
        return is_late and self.on_timeout is OnTimeout.GO_ON


class RunWaitingState(Record, frozen=True, kw_only=True):
    """The event that a run waits for, and the open questions of the run."""

    reason: WaitingReason
    tickets: tuple[RunWaitingTicket, ...] = ()
    since_dispatch_id: str | None = None
    message: str | None = None


def asked_again(name: str, number: str) -> str:
    """Return the reason for closing a question that the agent has asked again in another form."""
    return f"{name} has asked this again as question {number}"


class AnsweredTicket(Record, frozen=True, kw_only=True):
    """A question of a run, and the decision that resumed the run.

    If nobody answered, the decision names "nobody" as the author.
    """

    ticket: RunWaitingTicket
    decision: ToolCallResume

    @property
    def is_answer(self) -> bool:
        """Whether the decision contains an answer, from a person or by default after a timeout."""
        return self.decision.by != NOBODY or self.decision.result is not None

    @property
    def is_unseen(self) -> bool:
        """Whether the question was closed before anybody saw the question."""
        return self.decision.decision_id.startswith(f"{UNSEEN}/")

    @property
    def is_left(self) -> bool:
        """Whether the end of the run closed the question."""
        return not self.is_answer and self.decision.decision_id.startswith(("ended/", f"{SILENT}/"))

    @property
    def asked_again_as(self) -> str | None:
        """The number of the question that replaced the question in its run; None if none did."""
        again, _, number = self.decision.decision_id.rpartition("/")
        return number if again == f"{ASKED_AGAIN}/{self.ticket.ticket_id}" else None

    @classmethod
    def asked_again(cls, ticket: RunWaitingTicket, name: str, number: str, *, now: int) -> "AnsweredTicket":
        """Return a question as closed, because the agent `name` asked it again as question `number`."""
        decision = ToolCallResume(
            decision_id=f"{ASKED_AGAIN}/{ticket.ticket_id}/{number}",
            action=ResumeDecisionAction.CANCEL,
            reason=asked_again(name, number),
            updated_at=now,
            by=NOBODY,
        )
        return cls(ticket=ticket, decision=decision)

    @classmethod
    def closed(
        cls, ticket: RunWaitingTicket, end: TerminationReason, *, now: int, is_outside: bool = False
    ) -> "AnsweredTicket":
        """Return a question as cancelled after the end of the run that asked the question."""
        is_over = ticket.is_over(now)
        has_reason = end.type is TerminationKind.CANCELLED and end.how == "was cancelled"
        why = end.value if has_reason else None
        why = "no answer came in time" if is_over else why
        how = "the question was closed" if is_outside else f"the run {end.how}"
        decision = ToolCallResume(
            decision_id=f"{SILENT if is_over else 'ended'}/{ticket.ticket_id}",
            action=ResumeDecisionAction.CANCEL,
            reason=f"{why}, so {how}" if why else f"the run {end.how}",
            updated_at=now,
            by=NOBODY,
        )
        return cls(ticket=ticket, decision=decision)

    def too_late(self, end: TerminationReason, *, now: int) -> "AnsweredTicket":
        """Return the question as closed, because the run ended before the agent got the answer."""
        closed = AnsweredTicket.closed(self.ticket, end, now=now)
        if self.decision.by == NOBODY:
            return closed
        word = {True: "yes", False: "no"}.get(self.decision.approved)  # type: ignore[arg-type]
        words = form_in_words(self.decision.reason or "")
        words = quoted(words, longest=2 * MAX_TEXT_LENGTH) if words else ""
        who = f"{one_line(self.decision.by) or 'somebody'} {answered_where(self.decision)}".strip()
        answer = ": ".join(filter(None, (who, word, words)))
        why = f"the run {end.how} before the agent got the answer of {answer}"
        return replace(closed, decision=replace(closed.decision, reason=why))


class RunMessageInput(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The messages with which a run starts."""

    thread_id: str
    range: SeqRange | None = None
    trigger_message_ids: tuple[str, ...] = ()


class PersistedState(Record, frozen=True, kw_only=True):
    """The state that an executor stores between the steps of a run."""

    revision: int = 0
    extensions: dict[str, Json] = field(default_factory=dict)


class Usage(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The resources that a run used, as reported by the executor.

    `cost_micros` is in millionths of a US dollar.
    """

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
        """Return the difference to `other` for each amount, but at least 0."""
        return Usage(
            input_tokens=max(self.input_tokens - other.input_tokens, 0),
            output_tokens=max(self.output_tokens - other.output_tokens, 0),
            cost_micros=max(self.cost_micros - other.cost_micros, 0),
            wall_ms=max(self.wall_ms - other.wall_ms, 0),
        )


class RunRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A run with its request and result.

    All times are in milliseconds since 1970.
    """

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
        """Raise an error if fields of the run contradict each other.

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
        """Whether later runs of the thread must wait until the run has read the answers to its questions."""
        return self.waiting is not None and bool(self.waiting.tickets)

    @property
    def open_tickets(self) -> tuple[RunWaitingTicket, ...]:
        """The unanswered questions of the run."""
        # A retry may ask a question of a lost turn again under its number.
        tickets = [answered.ticket for answered in self.answered if not answered.is_unseen]
        return tuple(
            ticket for ticket in (self.waiting.tickets if self.waiting else ()) if ticket not in tickets
        )

    def refuse_late(self, ticket: RunWaitingTicket, decision: ToolCallResume, *, now: int) -> None:
        """Raise an error if the run no longer waits for a person's answer to one of its questions.

        The run waits for no answer at all if the timeout of another open question cancels the run. The
        answer with which a timeout ends a question is never late.

        Raises:
            StaleDecision: A question has timed out.
        """
        ends = [one for one in self.open_tickets if one.on_timeout is OnTimeout.CANCEL]
        over = [one for one in (ticket, *ends) if one.is_over(now) or one.goes_on(now)]
        if over and not decision.decision_id.startswith(f"{SILENT}/"):
            raise StaleDecision(
                f"question {over[0].ticket_id} timed out at {iso(over[0].expires_at or now)}, and its run no "
                f"longer waits for an answer",
                value=ticket.tool_call_id,
                details={"expires_at": over[0].expires_at},
            )

    @property
    def is_background_task_waiting(self) -> bool:
        """Whether the run waits for background tasks."""
        return self.waiting is not None and self.waiting.reason is WaitingReason.BACKGROUND_TASKS

    def begun(self, dispatch_id: str, session_id: str, *, now: int) -> "RunRecord":
        """Return a copy of the run after the start of the first execution."""
        return replace(
            self,
            status=RunStatus.RUNNING,
            dispatch_id=dispatch_id,
            session_id=session_id,
            started_at=now,
            updated_at=max(now, self.updated_at),
        )

    def _closing(
        self, termination: TerminationReason, *, now: int, has_read: bool, unread_ids: Collection[str]
    ) -> tuple[AnsweredTicket, ...]:
        """Return the answered questions of an ending run, and close the unanswered questions."""
        tickets = self.waiting.tickets if self.waiting and not has_read else ()
        unread = [
            ticket for ticket in tickets if ticket.tool_name != BUDGET_TOOL
        ]  # the server reads that answer
        answered = [
            one.too_late(termination, now=now)
            if one.is_answer and (one.ticket in unread or one.decision.decision_id in unread_ids)
            else one
            for one in self.answered
        ]
        closed = [
            AnsweredTicket.closed(ticket, termination, now=now, is_outside=ASKING in self.thread_id)
            for ticket in self.open_tickets
        ]
        return (*answered, *closed)

    def ended(
        self,
        termination: TerminationReason,
        *,
        now: int,
        dispatch_id: str | None = None,
        has_read: bool = True,
        unread_ids: Collection[str] = (),
    ) -> "RunRecord":
        """Return a copy of the run as ended.

        `has_read` is true if the run has read the answers to its questions. `unread_ids` are the ids of
        decisions that arrived while the run was executed, and that the run has not read.
        """
        text = termination.value if termination.type is TerminationKind.ERROR else None
        return replace(
            self,
            status=RunStatus.DONE,
            answered=self.answered
            if self.waiting is None
            else self._closing(termination, now=now, has_read=has_read, unread_ids=unread_ids),
            termination=termination,
            error=text or self.error,
            waiting=None,
            dispatch_id=dispatch_id or self.dispatch_id,
            finished_at=now,
            updated_at=max(now, self.updated_at),
        )


class Thread(Record, frozen=True, kw_only=True):
    """A conversation, with the ids of the open, active and latest runs."""

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
        """Raise an error if the thread's fields are invalid.

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
        """Return a copy of the thread after `run` was stored, with updated run ids.

        If `run` is older than the newest known run, the ids do not change.
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
    """Return whether later runs ignore the messages of a run with the given termination reason."""
    return termination is not None and termination.detail in _REFUSALS


class Summary(Record, frozen=True, kw_only=True):
    """A text that replaces the older messages of a conversation for the model.

    Each summary includes the previous summary.
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
    """A summary to store, with the ids of the messages that the summary adds to the previous summary."""

    summary: Summary
    covers: tuple[str, ...] = ()
    """The ids of the messages that are summarized."""
    hides: tuple[str, ...] = ()
    """The ids of messages that are left out; a later run sees them only if it starts with them again."""


class Turn(Record, frozen=True, kw_only=True):
    """A run with the ids of its messages, used to order a conversation."""

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
        """Return the turn of a run."""
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
    """The messages of a thread that a run sees: the newest summary, and the messages after that summary."""

    messages: tuple[Message, ...]
    summary: Summary | None = None
    hidden: tuple[str, ...] = ()
    """The ids of messages after the summary that are hidden; a run sees them only if it starts with them
    again.
    """
    turns: tuple[Turn, ...] = ()
    """The runs to which these messages belong, and all open runs."""

    def since(self, kept: frozenset[str], run_id: str) -> int:
        """Return the creation time of the oldest run whose messages are in `kept`."""
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
    """Return the committed messages of a thread as a given run sees them.

    Runs are ordered by their start, and the given run comes last. Runs that are open, were rolled back, or
    had rejected input are omitted.
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
