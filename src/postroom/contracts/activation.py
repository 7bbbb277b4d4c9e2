"""What is asked for when a run is started, and the part of it that is kept so that it can be started again.

`RunActivation` is the request in memory; `RunActivationSnapshot` is stored with the run. The snapshot holds
ids of messages and no bodies: those are in the thread.
"""

from collections.abc import Sequence
from enum import StrEnum

from postroom.contracts.errors import InvalidActivation
from postroom.contracts.messages import Json, Message, SeqRange
from postroom.contracts.records import Record, field, replace
from postroom.contracts.tools import ToolCallResume, ToolDescriptor


class RunMode(StrEnum):
    """How a run was asked for."""

    FOREGROUND = "foreground"
    SCHEDULED = "scheduled"
    RESUME = "resume"
    INTERNAL_WAKE = "internal_wake"


class AdapterKind(StrEnum):
    """Which protocol a run came in by."""

    INTERNAL = "internal"
    ACP = "acp"
    AI_SDK = "ai_sdk"
    AG_UI = "ag_ui"
    A2A = "a2a"
    MCP = "mcp"


class RunOrigin(StrEnum):
    """Who asked."""

    USER = "user"
    MCP = "mcp"
    SUBAGENT = "subagent"
    INTERNAL = "internal"


class RunRequestOrigin(StrEnum):
    """Who asked, in the words of those who call from outside."""

    USER = "User"
    MCP = "Mcp"
    A2A = "A2A"
    INTERNAL = "Internal"

    @classmethod
    def of(cls, origin: RunOrigin) -> "RunRequestOrigin":
        """Return the outside's word for an origin."""
        return _OUTSIDE[origin]

    @property
    def inside(self) -> RunOrigin:
        """Postroom's word for it."""
        return next(origin for origin, word in _OUTSIDE.items() if word is self)


_OUTSIDE = {
    RunOrigin.USER: RunRequestOrigin.USER,
    RunOrigin.MCP: RunRequestOrigin.MCP,
    RunOrigin.SUBAGENT: RunRequestOrigin.A2A,
    RunOrigin.INTERNAL: RunRequestOrigin.INTERNAL,
}


class BusyPolicy(StrEnum):
    """What is done with input for a thread that is busy: of the library, of mail and of chats.

    interrupt: the active run gives way and what was queued is superseded. queue: it waits its turn.
    steer: the active run reads it at its next step, else it waits its turn. collect: it joins a queued run
    that is due and has the same agent and options, else it waits its turn. reject: it is refused. rollback:
    like interrupt, and what the interrupted run said is not shown to the new one.
    """

    INTERRUPT = "interrupt"
    QUEUE = "queue"
    STEER = "steer"
    COLLECT = "collect"
    REJECT = "reject"
    ROLLBACK = "rollback"


Strategy = BusyPolicy
"""Its former name, by which programs import it."""


class Recovery(StrEnum):
    """How an execution begins: for the first time, from the last checkpoint, or from the beginning again."""

    START = "start"
    RESUME = "resume"
    RESTART = "restart"


class InferenceOverride(Record, frozen=True, kw_only=True):
    """What a submission asks of the model other than its agent does."""

    upstream_model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    more: dict[str, Json] = field(default_factory=dict)
    """Other fields of the endpoint's own request, such as `response_format` or `tool_choice`, as they are."""


class RunOptions(Record, frozen=True, kw_only=True):
    """How the run is to be executed."""

    overrides: InferenceOverride | None = None
    frontend_tools: tuple[ToolDescriptor, ...] = ()
    without_runs: tuple[str, ...] = ()
    """Runs that were rolled back: what they were asked and what they said is not shown to this one."""


class RunTraceContext(Record, frozen=True, kw_only=True):
    """Where the run comes from; no decision hangs on it."""

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


class DeliveryOptions(Record, frozen=True, kw_only=True):
    """How the dispatch of a run is queued; durations in milliseconds, instants since the epoch.

    `priority` 0 is served first, 255 last. A dispatch that has not begun at `deadline_at` becomes a
    dead letter. How it is tried again where these are None, the mailbox says; with `max_attempts` it is tried
    so often and no more, whatever the failures are. `max_interruptions` is how many executions the end of a
    server may cut off; the next interruption makes a dead letter. The first delay is up to `retry_delay_ms`,
    doubled each time up to `max_retry_delay_ms`.
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
    """What the run counts for besides its tenant, where limits are set for each key: a provider, say."""


class RunHints(Record, frozen=True, kw_only=True):
    """Ids that the caller, or the preparation, has decided on."""

    key: str | None = None
    """The caller's name for this job, which `run_id` was made from; a refusal names it."""
    run_id: str | None = None
    dispatch_id: str | None = None
    resolution_id: str | None = None


class RunActivationSnapshot(Record, frozen=True, kw_only=True):
    """What is kept of a request: everything but the bodies of messages, and what lives in one process."""

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
        """Refuse blank ids.

        Raises:
            InvalidActivation: the thread's or a decided call's id is blank.
        """
        named = [self.thread_id]
        if self.seeded_decisions:
            named += [call for call, _ in self.seeded_decisions]
        for name in named:
            if not name.strip():
                raise InvalidActivation(
                    "an activation needs a thread id, and each of its decisions needs a call id"
                )


class RunActivation(Record, frozen=True, kw_only=True):
    """The request handed to the mailbox, and by it to the executor.

    For the executor `trace.dispatch_id` and `trace.session_id` are set, `hints.run_id` or `continue_run_id`
    names the run, `attempt` counts attempts from 1 and `recovery` says how this one begins. `control` is
    what lives in this process alone; it is never stored.
    """

    thread_id: str
    messages: tuple[Message, ...] = ()
    committed_message_ids: tuple[str, ...] = ()
    """Messages of the thread, committed before, that cause the run as well."""
    agent_id: str | None = None
    continue_run_id: str | None = None
    decisions: tuple[tuple[str, ToolCallResume], ...] = ()
    options: RunOptions = RunOptions()
    trace: RunTraceContext = RunTraceContext()
    delivery: DeliveryOptions = DeliveryOptions()
    hints: RunHints = RunHints()
    attempt: int = 1
    """The number of this attempt: 1 more than the attempts of the run that have failed."""
    interruptions: int = 0
    """How many executions of the run the end of a server, or a lost lease, has cut off."""
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
        """Return a request to run an agent on a thread; a string is what a person said."""
        return cls(
            thread_id=thread_id,
            messages=tuple(Message.user(one) if isinstance(one, str) else one for one in messages),
            agent_id=agent_id,
            continue_run_id=continue_run_id,
            decisions=tuple(decisions),
            trace=RunTraceContext() if continue_run_id is None else _RESUMED,
        )

    @property
    def run_id(self) -> str | None:
        """The run it is about, as far as that is decided."""
        return self.continue_run_id or self.hints.run_id

    def continuing(self, run_id: str) -> "RunActivation":
        """Return the request to go on with a run."""
        return replace(self, continue_run_id=run_id, trace=replace(self.trace, run_mode=RunMode.RESUME))

    def traced(self, **changes: Json) -> "RunActivation":
        """Return the request with other facts about where it comes from."""
        return replace(self, trace=replace(self.trace, **changes))

    def hinted(self, **changes: str | None) -> "RunActivation":
        """Return the request with other ids decided on."""
        return replace(self, hints=replace(self.hints, **changes))

    def delivered(self, **changes: Json) -> "RunActivation":
        """Return the request with other delivery options."""
        return replace(self, delivery=replace(self.delivery, **changes))

    def snapshot(
        self, *, trigger_message_ids: Sequence[str], covered: SeqRange | None
    ) -> RunActivationSnapshot:
        """Return what is kept of the request when its messages have been committed."""
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
