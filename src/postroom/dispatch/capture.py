"""Which of an execution's events are kept, and as what.

Kept events are staged in a buffer and written together with the run's next checkpoint: a step and what it
tells of become durable at once, or not at all. The live stream never waits for that.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec

from postroom.contracts import agent_events as live
from postroom.contracts.dispatch import Claim, RunDispatch
from postroom.contracts.events import (
    AppendOptions,
    CanonicalEventDraft,
    EventScope,
    EventVisibility,
    RuntimeEventDurability,
)
from postroom.contracts.run_stores import CommitCoordinator, Committed, ThreadCommit
from postroom.contracts.runs import RunRecord, TerminationKind
from postroom.contracts.tools import ToolCallOutcome, ToolCallResumeMode

WRITER = "runtime"


class Fidelity(StrEnum):
    """What kind of fact an event is; observations are the first to be left out."""

    OBSERVED = "observed_runtime_event"
    COMMITTED = "committed_runtime_event"
    DOMAIN = "domain_event"
    CONTROL = "control_event"


Kept = tuple[str, Fidelity]

_BY_TYPE: dict[str, Kept] = {
    "tool_call_ready": ("ToolCallReady", Fidelity.COMMITTED),
    "tool_call_resumed": ("ToolCallResumed", Fidelity.CONTROL),
    "tool_call_cancel": ("ToolCallCancelled", Fidelity.DOMAIN),
    "stream_reset": ("StreamReset", Fidelity.COMMITTED),
    "inference_complete": ("InferenceComplete", Fidelity.COMMITTED),
    "error": ("ErrorRecorded", Fidelity.COMMITTED),
    "run_retrying": ("RunRetrying", Fidelity.OBSERVED),
    "tool_call_start": ("ToolCallStarted", Fidelity.OBSERVED),
    "step_start": ("StepStarted", Fidelity.OBSERVED),
    "step_end": ("StepEnded", Fidelity.OBSERVED),
    "text_delta": ("TextDeltaObserved", Fidelity.OBSERVED),
    "reasoning_delta": ("ReasoningDeltaObserved", Fidelity.OBSERVED),
    "reasoning_encrypted_value": ("ReasoningEncryptedValueObserved", Fidelity.OBSERVED),
    "tool_call_delta": ("ToolCallDeltaObserved", Fidelity.OBSERVED),
    "tool_call_stream_delta": ("ToolCallStreamDeltaObserved", Fidelity.OBSERVED),
    "messages_snapshot": ("MessagesSnapshotObserved", Fidelity.OBSERVED),
    "activity_snapshot": ("ActivitySnapshotObserved", Fidelity.OBSERVED),
    "activity_delta": ("ActivityDeltaObserved", Fidelity.OBSERVED),
    "state_snapshot": ("StateSnapshotObserved", Fidelity.OBSERVED),
    "state_delta": ("StateDeltaObserved", Fidelity.OBSERVED),
}
_FINISHES = {
    TerminationKind.NATURAL_END: "RunFinished",
    TerminationKind.BEHAVIOR_REQUESTED: "RunFinished",
    TerminationKind.SUSPENDED: "RunSuspended",
    TerminationKind.CANCELLED: "RunCancelled",
    TerminationKind.ERROR: "RunErrored",
    TerminationKind.STOPPED: "RunTerminated",
    TerminationKind.BLOCKED: "RunTerminated",
}


def kept_as(event: live.AgentEvent, *, resumed: bool) -> tuple[Kept, ...]:
    """Return as what an event is kept; a suspended call that asks for permission is kept twice."""
    if isinstance(event, live.RunStart):
        return (("RunResumed" if resumed else "RunStarted", Fidelity.COMMITTED),)
    if isinstance(event, live.RunFinish):
        return ((_FINISHES[event.termination.type], Fidelity.COMMITTED),)
    if isinstance(event, live.ToolCallDone):
        return _tool_call_done(event)
    return (_BY_TYPE[event.event_type],)


def _tool_call_done(event: live.ToolCallDone) -> tuple[Kept, ...]:
    if event.outcome is ToolCallOutcome.SUSPENDED:
        suspended: Kept = ("ToolCallSuspended", Fidelity.DOMAIN)
        if event.result.resume_mode is ToolCallResumeMode.REPLAY_TOOL_CALL and event.result.suspension:
            return (suspended, ("ToolPermissionRequested", Fidelity.DOMAIN))
        return (suspended,)
    metadata = event.result.metadata
    if event.outcome is ToolCallOutcome.FAILED and metadata.get("rejected"):
        return (("ToolCallRejected", Fidelity.COMMITTED),)
    if event.outcome is ToolCallOutcome.FAILED and metadata.get("timed_out") is True:
        return (("ToolCallTimedOut", Fidelity.COMMITTED),)
    return (("ToolCallDone", Fidelity.COMMITTED),)


class EventBuffer:
    """Events of one execution that wait for its next checkpoint."""

    def __init__(self) -> None:
        self._drafts: list[CanonicalEventDraft] = []

    def __len__(self) -> int:
        return len(self._drafts)

    def stage(self, draft: CanonicalEventDraft) -> None:
        """Add an event."""
        self._drafts.append(draft)

    def waiting(self) -> tuple[CanonicalEventDraft, ...]:
        """Return what waits; it waits on until it is written."""
        return tuple(self._drafts)

    def written(self, count: int) -> None:
        """Drop the first `count` events: they are durable."""
        del self._drafts[:count]


class CapturingSink:
    """Stages events to keep and passes every event on."""

    def __init__(
        self,
        inner: live.EventSink,
        buffer: EventBuffer,
        draft_of: Callable[[live.AgentEvent], tuple[CanonicalEventDraft, ...]],
    ) -> None:
        self._inner = inner
        self._buffer = buffer
        self._draft_of = draft_of

    async def emit(self, event: live.AgentEvent) -> None:
        """Stage an event where it is to be kept, and pass it on."""
        self.keep(event)
        await self._inner.emit(event)

    def keep(self, event: live.AgentEvent) -> None:
        """Stage an event where it is to be kept; it is told later."""
        for draft in self._draft_of(event):
            self._buffer.stage(draft)


class Capture:
    """Makes the kept form of an execution's events, in order."""

    def __init__(self, durability: RuntimeEventDurability, origin: str) -> None:
        self._durability = durability
        self._origin = origin

    def sink(
        self, inner: live.EventSink, buffer: EventBuffer, dispatch: RunDispatch, *, resumed: bool
    ) -> CapturingSink:
        """Return a sink that stages what this execution tells."""
        drafts = _Drafts(self._durability, self._origin, dispatch, resumed=resumed)
        return CapturingSink(inner, buffer, drafts.of)


class _Drafts:
    """Counts an execution's kept events, so that each has a key of its own."""

    def __init__(
        self, durability: RuntimeEventDurability, origin: str, dispatch: RunDispatch, *, resumed: bool
    ) -> None:
        self._everything = durability is RuntimeEventDurability.FULL_FIDELITY
        self._origin = origin
        self._dispatch = dispatch
        self._resumed = resumed
        self._count = 0

    def of(self, event: live.AgentEvent) -> tuple[CanonicalEventDraft, ...]:
        kept = kept_as(event, resumed=self._resumed)
        if isinstance(event, live.RunStart):
            self._resumed = True  # a second start within one execution goes on with the same run
        return tuple(
            self._draft(kind, fidelity, event)
            for kind, fidelity in kept
            if self._everything or fidelity is not Fidelity.OBSERVED
        )

    def _draft(self, kind: str, fidelity: Fidelity, event: live.AgentEvent) -> CanonicalEventDraft:
        dispatch = self._dispatch
        self._count += 1
        payload: dict[str, Any] = msgspec.to_builtins(event)
        key = f"{kind}/{dispatch.dispatch_id}/{dispatch.attempt_count}/{self._count}"
        return CanonicalEventDraft(
            scopes=(EventScope.thread(dispatch.thread_id), EventScope.run(dispatch.run_id)),
            event_kind=kind,
            payload=payload | {"event_type": event.event_type, "fidelity": fidelity.value},
            correlation_id=dispatch.dispatch_id,
            origin=self._origin,
            visibility=EventVisibility.PUBLIC,
            options=AppendOptions(writer_id=WRITER, idempotency_key=key),
        )


class RunCoordinator:
    """What an execution writes with: each commit proves the claim and takes the staged events along."""

    def __init__(
        self,
        inner: CommitCoordinator,
        claim: Claim | None,
        buffer: EventBuffer,
        run: RunRecord | None = None,
    ) -> None:
        self._inner = inner
        self._claim = claim
        self._buffer = buffer
        self.run = run
        """The run as it was written last; while the claim is held nobody else writes it."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._inner.storage_identity

    @property
    def has_waiting_events(self) -> bool:
        """Whether events wait for a commit."""
        return len(self._buffer) > 0

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write it together with the events that wait; after a failure they wait on.

        Raises:
            StaleClaim: the run is not the worker's any more; and what the coordinator raises.
        """
        waiting = self._buffer.waiting()
        whole = replace(commit, claim=commit.claim or self._claim, events=(*commit.events, *waiting))
        committed = await self._inner.commit(whole, now=now)
        self._buffer.written(len(waiting))
        self.run = commit.run or self.run
        return committed
