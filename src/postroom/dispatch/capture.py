"""The selection of an execution's events to store, and their kinds.

Stored events are staged in a buffer and written together with the run's next checkpoint: a step and its
events become durable together, or not at all. The live stream never waits for the stored one.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from postroom.concurrency import retried
from postroom.contracts import agent_events as live
from postroom.contracts.clock import Ids, Timer
from postroom.contracts.dispatch import Claim, RunDispatch
from postroom.contracts.events import (
    AppendOptions,
    CanonicalEventDraft,
    EventScope,
    EventVisibility,
    RuntimeEventDurability,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import CommitCoordinator, Committed, ThreadCommit
from postroom.contracts.runs import TerminationKind
from postroom.contracts.tools import ToolCallOutcome, ToolCallResumeMode

WRITER = "runtime"


class Fidelity(StrEnum):
    """The kind of fact in an event; observations are the first to be left out."""

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
    "run_retrying": ("RunRetrying", Fidelity.OBSERVED),
    "tool_call_start": ("ToolCallStarted", Fidelity.OBSERVED),
    "step_start": ("StepStarted", Fidelity.OBSERVED),
    "step_end": ("StepEnded", Fidelity.OBSERVED),
    "text_delta": ("TextDeltaObserved", Fidelity.OBSERVED),
    "reasoning_delta": ("ReasoningDeltaObserved", Fidelity.OBSERVED),
    "tool_call_delta": ("ToolCallDeltaObserved", Fidelity.OBSERVED),
    "tool_call_stream_delta": ("ToolCallStreamDeltaObserved", Fidelity.OBSERVED),
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
    """Return the stored forms of an event; a suspended call that asks for permission has two."""
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


class CapturingSink:
    """Stages the stored events of one execution, each with a unique key, and passes every event on."""

    def __init__(
        self,
        inner: live.EventSink,
        buffer: list[CanonicalEventDraft],
        capture: "Capture",
        dispatch: RunDispatch,
        *,
        resumed: bool,
    ) -> None:
        self._inner = inner
        self._buffer = buffer
        self._capture = capture
        self._dispatch = dispatch
        self._resumed = resumed
        self._count = 0

    async def emit(self, event: live.AgentEvent) -> None:
        """Stage an event if it is stored, and pass it on."""
        self.keep(event)
        await self._inner.emit(event)

    def keep(self, event: live.AgentEvent) -> None:
        """Stage an event if it is stored; it is published later."""
        kept = kept_as(event, resumed=self._resumed)
        if isinstance(event, live.RunStart):
            self._resumed = True  # a second start within one execution continues the same run
        for kind, fidelity in kept:
            if self._capture.everything or fidelity is not Fidelity.OBSERVED:
                self._buffer.append(self._draft(kind, fidelity, event))

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
            origin=self._capture.origin,
            visibility=EventVisibility.PUBLIC,
            options=AppendOptions(writer_id=WRITER, idempotency_key=key),
        )


class Capture:
    """The rules for stored events of executions, and their origin."""

    def __init__(self, durability: RuntimeEventDurability, origin: str) -> None:
        self.everything = durability is RuntimeEventDurability.FULL_FIDELITY
        self.origin = origin

    def sink(
        self,
        inner: live.EventSink,
        buffer: list[CanonicalEventDraft],
        dispatch: RunDispatch,
        *,
        resumed: bool,
    ) -> CapturingSink:
        """Return a sink that stages the events of this execution."""
        return CapturingSink(inner, buffer, self, dispatch, resumed=resumed)


@dataclass(slots=True, eq=False)
class RunCoordinator:
    """The coordinator of an execution: each commit proves the claim and contains the staged events."""

    inner: CommitCoordinator
    claim: Claim | None
    staged: list[CanonicalEventDraft]
    """Events that wait for a commit, until they are durable."""
    new_id: Ids
    timer: Timer

    @property
    def storage_identity(self) -> str | None:
        """The identity of its storage."""
        return self.inner.storage_identity

    def owned(self, commit: ThreadCommit) -> ThreadCommit:
        """Return the commit with the proof of the claim, the events that wait, and an id for each message."""
        return replace(
            commit,
            claim=commit.claim or self.claim,
            events=(*commit.events, *self.staged),
            messages=tuple(one if one.id else one.with_id(self.new_id()) for one in commit.messages),
        )

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write the commit together with the staged events; after a failure they stay staged.

        While the store is unavailable, the commit is repeated until the execution is stopped.

        Raises:
            StaleClaim: Another worker has the run, or nobody has.
            PostroomError: The coordinator refused the commit.
        """
        count, owned = len(self.staged), self.owned(commit)
        committed = await retried(lambda: self.inner.commit(owned, now=now), self.timer)
        del self.staged[:count]
        return committed
