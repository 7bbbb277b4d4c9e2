"""The request to start a run, and the part of the request that is stored so that the run can be restarted.

`RunActivation` is the request in memory, and `RunActivationSnapshot` is stored with the run. The snapshot
contains the ids of messages but not their bodies, because the thread stores the bodies.
"""

from collections.abc import Sequence
from enum import StrEnum

from postroom.contracts.errors import InvalidActivation
from postroom.contracts.messages import Json, Message, SeqRange
from postroom.contracts.records import Record, field, replace
from postroom.contracts.tools import ToolCallResume, ToolDescriptor


class RunMode(StrEnum):
    """The way in which a run was requested."""

    FOREGROUND = "foreground"
    SCHEDULED = "scheduled"
    RESUME = "resume"
    INTERNAL_WAKE = "internal_wake"


class AdapterKind(StrEnum):
    """The protocol through which a run was requested."""

    INTERNAL = "internal"
    ACP = "acp"
    AI_SDK = "ai_sdk"
    AG_UI = "ag_ui"
    A2A = "a2a"
    MCP = "mcp"


class RunOrigin(StrEnum):
    """The kind of caller that requested a run."""

    USER = "user"
    MCP = "mcp"
    SUBAGENT = "subagent"
    INTERNAL = "internal"


class RunRequestOrigin(StrEnum):
    """The kind of caller that requested a run, in the spelling of external programs."""

    USER = "User"
    MCP = "Mcp"
    A2A = "A2A"
    INTERNAL = "Internal"

    @classmethod
    def of(cls, origin: RunOrigin) -> "RunRequestOrigin":
        """Return the external spelling of a caller kind."""
        return _OUTSIDE[origin]

    @property
    def inside(self) -> RunOrigin:
        """The matching `RunOrigin`."""
        return next(origin for origin, word in _OUTSIDE.items() if word is self)


_OUTSIDE = {
    RunOrigin.USER: RunRequestOrigin.USER,
    RunOrigin.MCP: RunRequestOrigin.MCP,
    RunOrigin.SUBAGENT: RunRequestOrigin.A2A,
    RunOrigin.INTERNAL: RunRequestOrigin.INTERNAL,
}


class BusyPolicy(StrEnum):
    """The rule for new input on a busy thread.

    interrupt: the active run stops and queued runs are superseded. queue: the input waits its turn. steer:
    the active run reads the input at its next step; if the run cannot, the input waits its turn. collect: the
    input joins a queued run that is due and has the same agent and options; without such a run it waits its
    turn. reject: the input is refused. rollback: like interrupt, and the new run does not see the output of
    the interrupted run.
    """

    INTERRUPT = "interrupt"
    QUEUE = "queue"
    STEER = "steer"
    COLLECT = "collect"
    REJECT = "reject"
    ROLLBACK = "rollback"


Strategy = BusyPolicy
"""The former name of `BusyPolicy`, which existing programs still import."""


class Recovery(StrEnum):
    """Whether an execution is the first one, resumes a checkpoint, or starts from the beginning."""

    START = "start"
    RESUME = "resume"
    RESTART = "restart"


class InferenceOverride(Record, frozen=True, kw_only=True):
    """The model settings of one submission, which override the settings of the agent."""

    upstream_model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    more: dict[str, Json] = field(default_factory=dict)
    """Additional fields of the request to the endpoint, such as `response_format`; they are sent unchanged.
    """


class RunOptions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Options for the execution of a run."""

    overrides: InferenceOverride | None = None
    frontend_tools: tuple[ToolDescriptor, ...] = ()
    without_runs: tuple[str, ...] = ()
    """The runs that were rolled back, whose input and output the new run does not see."""


class RunTraceContext(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a run, which is used for tracing only."""

    parent_run_id: str | None = None
    parent_thread_id: str | None = None
    origin: RunOrigin = RunOrigin.USER
    adapter: AdapterKind = AdapterKind.INTERNAL
    run_mode: RunMode = RunMode.FOREGROUND
    dispatch_id: str | None = None
    session_id: str | None = None
    transport_request_id: str | None = None
    correlation_id: str | None = None


_RESUMED = RunTraceContext(run_mode=RunMode.RESUME)


class DeliveryOptions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The queue options of one submission.

    All durations and times are in milliseconds. Priority 0 is served first, and priority 255 last. A dispatch
    that has not started at `deadline_at` becomes a dead letter. Retry options with the value None use the
    mailbox's settings. `max_interruptions` is the number of executions that a shutdown or crash may
    interrupt. Retry delays start at `retry_delay_ms` and double up to `max_retry_delay_ms`.
    """

    priority: int = 128
    delay_ms: int = 0
    deadline_at: int | None = None
    max_attempts: int | None = None
    max_interruptions: int | None = None
    retry_delay_ms: int | None = None
    max_retry_delay_ms: int | None = None
    dedupe_key: str | None = None
    tenant: str = ""
    limit_key: str = ""
    """The key, for example a provider, by which limits count the run in addition to its tenant."""


class RunHints(Record, frozen=True, kw_only=True):
    """The ids that were chosen before a run is submitted."""

    key: str | None = None
    """The caller's key for this job; `run_id` is derived from the key, and error messages contain the key."""
    run_id: str | None = None
    dispatch_id: str | None = None
    resolution_id: str | None = None


class RunActivationSnapshot(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The stored part of a run request, without message bodies and in-process objects."""

    thread_id: str
    agent_id: str | None = None
    continue_run_id: str | None = None
    range: SeqRange | None = None
    trigger_message_ids: tuple[str, ...] = ()
    options: RunOptions = RunOptions()
    trace: RunTraceContext = RunTraceContext()
    delivery: DeliveryOptions = DeliveryOptions()
    seeded_decisions: tuple[tuple[str, ToolCallResume], ...] = ()

    def __post_init__(self) -> None:
        """Raise an error if an id in the request is blank.

        Raises:
            InvalidActivation: The id of the thread or of a decided call is blank.
        """
        named = [self.thread_id]
        if self.seeded_decisions:
            named += [call for call, _ in self.seeded_decisions]
        for name in named:
            if not name.strip():
                raise InvalidActivation(
                    "the run's request needs a thread id, and each decision in it needs a tool call id"
                )


class RunActivation(Record, frozen=True, kw_only=True):
    """A request for a run, which a caller passes to the mailbox and the mailbox passes to an executor.

    `attempt` counts attempts from 1. `recovery` says whether the execution is the first one, resumes a
    checkpoint, or starts from the beginning. `control` is never stored.
    """

    thread_id: str
    messages: tuple[Message, ...] = ()
    committed_message_ids: tuple[str, ...] = ()
    """The ids of earlier committed messages that the run must also answer."""
    agent_id: str | None = None
    continue_run_id: str | None = None
    decisions: tuple[tuple[str, ToolCallResume], ...] = ()
    options: RunOptions = RunOptions()
    trace: RunTraceContext = RunTraceContext()
    delivery: DeliveryOptions = DeliveryOptions()
    hints: RunHints = RunHints()
    attempt: int = 1
    """The number of this attempt: the number of the run's failed attempts plus 1."""
    interruptions: int = 0
    """The number of the run's executions that ended early because a server stopped or crashed, or a lease was
    lost.
    """
    recovery: Recovery = Recovery.START
    control: Json = None

    @classmethod
    def new(
        cls,
        thread_id: str,
        messages: Sequence[Message | str],
        *,
        agent_id: str | None = None,
        continue_run_id: str | None = None,
        decisions: Sequence[tuple[str, ToolCallResume]] = (),
    ) -> "RunActivation":
        """Return a request to run an agent on a thread.

        A string in `messages` becomes a message from a person.
        """
        return cls(
            thread_id=thread_id,
            messages=tuple(
                Message.user(message) if isinstance(message, str) else message for message in messages
            ),
            agent_id=agent_id,
            continue_run_id=continue_run_id,
            decisions=tuple(decisions),
            trace=RunTraceContext() if continue_run_id is None else _RESUMED,
        )

    @property
    def run_id(self) -> str | None:
        """The id of the run, or None if no id has been chosen yet."""
        return self.continue_run_id or self.hints.run_id

    def continuing(self, run_id: str) -> "RunActivation":
        """Return a copy of the request that continues a run."""
        return replace(self, continue_run_id=run_id, trace=replace(self.trace, run_mode=RunMode.RESUME))

    def traced(self, **changes: Json) -> "RunActivation":
        """Return a copy of the request with the given fields of `trace` replaced."""
        return replace(self, trace=replace(self.trace, **changes))

    def hinted(self, **changes: str | None) -> "RunActivation":
        """Return a copy of the request with the given fields of `hints` replaced."""
        return replace(self, hints=replace(self.hints, **changes))

    def delivered(self, **changes: Json) -> "RunActivation":
        """Return a copy of the request with the given fields of `delivery` replaced."""
        return replace(self, delivery=replace(self.delivery, **changes))

    def snapshot(
        self, *, trigger_message_ids: Sequence[str], covered: SeqRange | None
    ) -> RunActivationSnapshot:
        """Return the part of the request that is stored.

        The messages of the request must already be committed.
        """
        return RunActivationSnapshot(
            thread_id=self.thread_id,
            agent_id=self.agent_id,
            continue_run_id=self.continue_run_id,
            range=covered,
            trigger_message_ids=tuple(trigger_message_ids),
            options=self.options,
            trace=self.trace,
            delivery=self.delivery,
            seeded_decisions=self.decisions,
        )
