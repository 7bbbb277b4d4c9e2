"""Tells the event log what the mailbox does; publishing is advisory: a failure is logged and stops no run.

Keys are made from ids alone, so that a repeated event is the one that stands already; what could not be told
of committed messages goes onto the repair queue.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import InternalError, InvalidRecord, PostroomError
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope, EventStore
from postroom.contracts.messages import Json, Message, Role, Visibility
from postroom.contracts.runs import RunRecord
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import REPAIR_QUEUE_LIMIT
from postroom.dispatch.metrics import MailboxMetrics

_LOG = structlog.get_logger(__name__)
WRITER = "mailbox"


class ServerEventPublisher(Protocol):
    """Takes events for the log."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place it writes to, when events may be written there together with what they tell of."""
        ...

    async def publish(self, draft: CanonicalEventDraft) -> None:
        """Store an event, once a key."""
        ...


class StoreEventPublisher:
    """Publishes straight into an event store."""

    def __init__(self, events: EventStore, *, storage_identity: str | None = None) -> None:
        self._events = events
        self.storage_identity = storage_identity

    async def publish(self, draft: CanonicalEventDraft) -> None:
        """Append the event.

        Raises:
            StoreError, StateError: the store's own.
        """
        await self._events.append(draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRepairTask:
    """Committed messages of a run of which the log may not know."""

    thread_id: str
    run_id: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How an event is told apart from others of its kind."""

    key: str
    correlation_id: str | None


class Journal:
    """Makes the mailbox's events and hands them to the publisher, when there is one."""

    def __init__(self, publisher: ServerEventPublisher | None, origin: str, metrics: MailboxMetrics) -> None:
        if publisher is not None and not origin.strip():
            raise InvalidRecord("the origin of server events must not be blank", value=origin)
        self._publisher = publisher
        self._origin = origin
        self._metrics = metrics
        self.repairs: deque[CheckpointRepairTask] = deque()

    @property
    def is_on(self) -> bool:
        """Whether anybody listens."""
        return self._publisher is not None

    def shares(self, identity: str | None) -> bool:
        """Whether events may be written in the transaction of that place."""
        publisher = self._publisher
        return publisher is not None and identity is not None and publisher.storage_identity == identity

    async def publish(self, *drafts: CanonicalEventDraft) -> bool:
        """Hand over events in order; False when one failed, which was logged. The rest is not tried then."""
        if self._publisher is None:
            return True
        for draft in drafts:
            try:
                await self._publisher.publish(draft)
            except PostroomError as error:
                _LOG.warning("events.not_published", kind=draft.event_kind, reason=error.describe())
                return False
        return True

    async def dispatch_happened(self, kind: str, dispatch: RunDispatch, **payload: Json) -> None:
        """Tell of one step of a dispatch."""
        if self.is_on:
            await self.publish(self.of_dispatch(kind, dispatch, **payload))

    async def waiting_cancelled(self, run: RunRecord) -> None:
        """Tell that a run that waited for a person was cancelled; no dispatch of it was open."""
        if self.is_on:
            told = Told(key=f"RunCancelled/{run.run_id}/waiting", correlation_id=run.dispatch_id)
            await self.publish(self._draft("RunCancelled", run.thread_id, run.run_id, told, {}))

    def of_dispatch(self, kind: str, dispatch: RunDispatch, **payload: Json) -> CanonicalEventDraft:
        """Return the event of one step of a dispatch."""
        told = Told(
            key=f"{kind}/{dispatch.dispatch_id}/{dispatch.attempt_count}", correlation_id=dispatch.dispatch_id
        )
        return self._draft(kind, dispatch.thread_id, dispatch.run_id, told, _facts(dispatch) | payload)

    def of_messages(
        self, thread_id: str, run_id: str, messages: Sequence[Message], *, first_seq: int, last_seq: int
    ) -> tuple[CanonicalEventDraft, ...]:
        """Return the events of messages that were committed as `first_seq` to `last_seq`.

        Raises:
            InternalError: there are not as many messages as numbers.
        """
        if len(messages) != last_seq - first_seq + 1:
            raise InternalError(
                f"{len(messages)} messages cannot be {first_seq} to {last_seq} of thread {thread_id!r}"
            )
        if not messages:
            return ()
        drafts = [
            self._of_message(thread_id, run_id, message, first_seq + place)
            for place, message in enumerate(messages)
        ]
        told = Told(
            key=f"ThreadMessagesCheckpointed/{thread_id}/{run_id}/{first_seq}-{last_seq}",
            correlation_id=run_id,
        )
        payload: dict[str, Json] = {
            "thread_id": thread_id,
            "run_id": run_id,
            "message_seq_start": first_seq,
            "message_seq_end": last_seq,
            "message_count": len(messages),
            "message_ids": [message.id for message in messages],
        }
        return (*drafts, self._draft("ThreadMessagesCheckpointed", thread_id, run_id, told, payload))

    async def messages_committed(
        self, thread_id: str, run_id: str, messages: Sequence[Message], *, first_seq: int
    ) -> None:
        """Tell of committed messages; what could not be told is told later."""
        if not self.is_on or not messages:
            return
        last_seq = first_seq + len(messages) - 1
        drafts = self.of_messages(thread_id, run_id, messages, first_seq=first_seq, last_seq=last_seq)
        if not await self.publish(*drafts):
            self.repair_later(
                CheckpointRepairTask(
                    thread_id=thread_id, run_id=run_id, first_seq=first_seq, last_seq=last_seq
                )
            )

    def repair_later(self, task: CheckpointRepairTask) -> None:
        """Put a task onto the repair queue; one too many is dropped and counted: the next start finds it."""
        if len(self.repairs) >= REPAIR_QUEUE_LIMIT:
            self._metrics.happened("checkpoint_repair_queue", "dropped")
            return
        self.repairs.append(task)

    async def decision_received(
        self, thread_id: str, run_id: str, call_id: str, resume: ToolCallResume, *, path: str
    ) -> None:
        """Tell of a decision and, where it is a yes or a no, of the permission."""
        if not self.is_on:
            return
        told = f"{run_id}/{call_id}/{resume.decision_id}"
        payload: dict[str, Json] = decision_facts(call_id, resume) | {
            "thread_id": thread_id,
            "run_id": run_id,
            "reason": resume.reason,
            "delivery_path": path,
        }
        kinds: dict[str, dict[str, Json]] = {"MailboxDecisionReceived": {}}
        if resume.approved is not None:
            kinds["ToolPermissionResolved"] = {"approved": resume.approved}
        for kind, more in kinds.items():
            key = Told(key=f"{kind}/{told}", correlation_id=resume.decision_id)
            await self.publish(self._draft(kind, thread_id, run_id, key, payload | more))

    def _of_message(self, thread_id: str, run_id: str, message: Message, seq: int) -> CanonicalEventDraft:
        told = Told(key=f"MessageCommitted/{thread_id}/{run_id}/{message.id}", correlation_id=run_id)
        payload: dict[str, Json] = {
            "thread_id": thread_id,
            "run_id": run_id,
            "message_id": message.id,
            "message_seq": seq,
            "role": message.role.value,
            "content_blocks": len(message.content),
            "message_kind": message_kind(message),
        }
        return self._draft("MessageCommitted", thread_id, run_id, told, payload)

    def _draft(
        self, kind: str, thread_id: str, run_id: str, told: Told, payload: dict[str, Json]
    ) -> CanonicalEventDraft:
        return CanonicalEventDraft(
            scopes=(EventScope.thread(thread_id), EventScope.run(run_id)),
            event_kind=kind,
            payload=payload,
            correlation_id=told.correlation_id,
            origin=self._origin,
            options=AppendOptions(writer_id=WRITER, idempotency_key=told.key),
        )


def _facts(dispatch: RunDispatch) -> dict[str, Json]:
    return {
        "thread_id": dispatch.thread_id,
        "run_id": dispatch.run_id,
        "dispatch_id": dispatch.dispatch_id,
        "dispatch_epoch": dispatch.dispatch_epoch,
        "attempt_count": dispatch.attempt_count,
        "status": dispatch.status.label,
        "available_at": dispatch.available_at,
        "created_at": dispatch.created_at,
        "updated_at": dispatch.updated_at,
    }


def decision_facts(call_id: str, resume: ToolCallResume) -> dict[str, Json]:
    """Return a decision as an event tells it."""
    return {
        "tool_call_id": call_id,
        "decision_id": resume.decision_id,
        "action": resume.action.value,
        "result": resume.result,
        "resume_updated_at": resume.updated_at,
    }


def message_kind(message: Message) -> str:
    """Return what an event calls such a message."""
    if message.role in (Role.ASSISTANT, Role.TOOL):
        return "assistant_output" if message.role is Role.ASSISTANT else "tool_result"
    said = "system" if message.role is Role.SYSTEM else "user_input"
    if message.visibility is Visibility.ALL:
        return said
    return f"internal_{said}"
