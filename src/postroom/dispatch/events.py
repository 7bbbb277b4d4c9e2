"""Writes the mailbox's own events to the event log.

A publisher, if there is one, receives the events. If the publisher uses the same storage as the runs, each
event is written in the commit that it describes. With a different storage, publishing may fail, which is
logged and does not stop a run. Events about committed messages that could not be published are queued for
repair. Event keys are derived only from ids, so a repeated event has the key of the stored event.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import InternalError, InvalidRecord, PostroomError
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope
from postroom.contracts.messages import Json, Message, MessageRecord, Role, Visibility
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery, RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import REPAIR_QUEUE_LIMIT
from postroom.dispatch.metrics import MailboxMetrics
from postroom.log import get_logger
from postroom.stores.runs.ports import EventStore, ThreadStore

_LOG = get_logger(__name__)
WRITER = "mailbox"


class ServerEventPublisher(Protocol):
    """Stores the mailbox's events in the log."""

    @property
    def storage_identity(self) -> str | None:
        """The identity of the storage, or None if the publisher cannot write within the mailbox's commits."""
        ...

    async def publish(self, draft: CanonicalEventDraft) -> None:
        """Store an event.

        An event with a known key is ignored.
        """
        ...


class StoreEventPublisher:
    """Publishes events directly to an event store."""

    def __init__(self, events: EventStore, *, storage_identity: str | None = None) -> None:
        self._events = events
        self.storage_identity = storage_identity

    async def publish(self, draft: CanonicalEventDraft) -> None:
        """Append an event to the store.

        Raises:
            StoreError, StateError: The store could not append the event.
        """
        await self._events.append(draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRepairTask:
    """Committed messages of a run that may be missing in the event log."""

    thread_id: str
    run_id: str
    first_seq: int
    last_seq: int


class ServerEvents:
    """Creates the mailbox's events, and publishes the events if a publisher exists."""

    def __init__(
        self,
        publisher: ServerEventPublisher | None,
        origin: str,
        *,
        place: str | None,
        metrics: MailboxMetrics,
    ) -> None:
        if publisher is not None and not origin.strip():
            raise InvalidRecord("the origin for server events must not be blank", value=origin)
        self._publisher = publisher
        self._origin = origin
        self._metrics = metrics
        self.is_on = publisher is not None
        """Whether there is a publisher."""
        self.in_commits = publisher is not None and place is not None and publisher.storage_identity == place
        """Whether events are written in the commit that they describe."""
        self.repairs: deque[CheckpointRepairTask] = deque()

    async def publish(self, *drafts: CanonicalEventDraft) -> bool:
        """Publish events in order; return False after a failure, which is logged."""
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
        """Publish a change of a dispatch."""
        if self.is_on:
            await self.publish(self.of_dispatch(kind, dispatch, **payload))

    async def waiting_cancelled(self, run: RunRecord) -> None:
        """Publish that a run was cancelled while it waited for a person."""
        if self.is_on:
            key = f"RunCancelled/{run.run_id}/waiting"
            await self.publish(
                self._draft("RunCancelled", run.thread_id, run.run_id, key, run.dispatch_id, {})
            )

    async def messages_committed(
        self, thread_id: str, run_id: str, messages: Sequence[Message], *, first_seq: int
    ) -> None:
        """Publish committed messages, unless the commit has already published the messages."""
        if not self.is_on or self.in_commits or not messages:
            return
        task = CheckpointRepairTask(
            thread_id=thread_id, run_id=run_id, first_seq=first_seq, last_seq=first_seq + len(messages) - 1
        )
        if not await self.publish(*self.of_messages(task, messages)):
            self.repair_later(task)

    def of_commit(
        self, thread_id: str, run_id: str, messages: Sequence[Message], *, first_seq: int
    ) -> tuple[CanonicalEventDraft, ...]:
        """Return the events to store in the commit of messages; empty if events are published later."""
        if not self.in_commits or not messages:
            return ()
        last_seq = first_seq + len(messages) - 1
        task = CheckpointRepairTask(
            thread_id=thread_id, run_id=run_id, first_seq=first_seq, last_seq=last_seq
        )
        return self.of_messages(task, messages)

    def repair_later(self, task: CheckpointRepairTask) -> None:
        """Queue the repair of missing events."""
        if len(self.repairs) >= REPAIR_QUEUE_LIMIT:
            self._metrics.happened("checkpoint_repair_queue", "dropped")
            return
        self.repairs.append(task)

    async def decision_received(
        self, thread_id: str, run_id: str, call_id: str, resume: ToolCallResume, *, path: str
    ) -> None:
        """Publish a decision about a tool call."""
        if not self.is_on:
            return
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
            key = f"{kind}/{run_id}/{call_id}/{resume.decision_id}"
            await self.publish(self._draft(kind, thread_id, run_id, key, resume.decision_id, payload | more))

    def of_dispatch(self, kind: str, dispatch: RunDispatch, **payload: Json) -> CanonicalEventDraft:
        """Return the event about a change of a dispatch."""
        facts = {
            "thread_id": dispatch.thread_id,
            "run_id": dispatch.run_id,
            "dispatch_id": dispatch.dispatch_id,
            "dispatch_epoch": dispatch.dispatch_epoch,
            "attempt_count": dispatch.attempt_count,
            "interruption_count": dispatch.interruption_count,
            "status": dispatch.status.label,
            "available_at": dispatch.available_at or dispatch.updated_at,
            "created_at": dispatch.created_at,
            "updated_at": dispatch.updated_at,
        }
        key = f"{kind}/{dispatch.dispatch_id}/{dispatch.attempt_count}"
        if dispatch.interruption_count:
            key += f"/{dispatch.interruption_count}"
        return self._draft(
            kind, dispatch.thread_id, dispatch.run_id, key, dispatch.dispatch_id, facts | payload
        )

    def of_messages(
        self, task: CheckpointRepairTask, messages: Sequence[Message]
    ) -> tuple[CanonicalEventDraft, ...]:
        """Return the events about committed messages.

        Raises:
            InternalError: The number of messages differs from the number of positions.
        """
        thread_id, run_id, first_seq, last_seq = task.thread_id, task.run_id, task.first_seq, task.last_seq
        if len(messages) != last_seq - first_seq + 1:
            raise InternalError(
                f"{len(messages)} messages cannot have the numbers {first_seq} to {last_seq} of "
                f"thread {thread_id!r}"
            )
        if not messages:
            return ()
        drafts = [
            self._of_message(task, message, seq) for seq, message in enumerate(messages, start=first_seq)
        ]
        key = f"ThreadMessagesCheckpointed/{thread_id}/{run_id}/{first_seq}-{last_seq}"
        payload: dict[str, Json] = {
            "thread_id": thread_id,
            "run_id": run_id,
            "message_seq_start": first_seq,
            "message_seq_end": last_seq,
            "message_count": len(messages),
            "message_ids": [message.id for message in messages],
        }
        return (
            *drafts,
            self._draft("ThreadMessagesCheckpointed", thread_id, run_id, key, run_id, payload),
        )

    def _of_message(self, task: CheckpointRepairTask, message: Message, seq: int) -> CanonicalEventDraft:
        thread_id, run_id = task.thread_id, task.run_id
        payload: dict[str, Json] = {
            "thread_id": thread_id,
            "run_id": run_id,
            "message_id": message.id,
            "message_seq": seq,
            "role": message.role.value,
            "content_blocks": len(message.content),
            "message_kind": message_kind(message),
        }
        key = f"MessageCommitted/{thread_id}/{run_id}/{message.id}"
        return self._draft("MessageCommitted", thread_id, run_id, key, run_id, payload)

    def _draft(
        self,
        kind: str,
        thread_id: str,
        run_id: str,
        key: str,
        correlation_id: str | None,
        payload: dict[str, Json],
    ) -> CanonicalEventDraft:
        return CanonicalEventDraft(
            scopes=(EventScope.thread(thread_id), EventScope.run(run_id)),
            event_kind=kind,
            payload=payload,
            correlation_id=correlation_id,
            origin=self._origin,
            options=AppendOptions(writer_id=WRITER, idempotency_key=key),
        )


def decision_facts(call_id: str, resume: ToolCallResume) -> dict[str, Json]:
    """Return the fields of an event that describe the decision about a tool call."""
    return {
        "tool_call_id": call_id,
        "decision_id": resume.decision_id,
        "action": resume.action.value,
        "result": resume.result,
        "resume_updated_at": resume.updated_at,
    }


def message_kind(message: Message) -> str:
    """Return the name of a message's kind in events."""
    if message.role in (Role.ASSISTANT, Role.TOOL):
        return "assistant_output" if message.role is Role.ASSISTANT else "tool_result"
    text = "system" if message.role is Role.SYSTEM else "user_input"
    if message.visibility is Visibility.ALL:
        return text
    return f"internal_{text}"


class CheckpointRepair:
    """Publishes committed messages that may be missing in the event log."""

    def __init__(self, events: ServerEvents, threads: ThreadStore) -> None:
        self._events = events
        self._threads = threads

    async def record(
        self, thread_id: str, run_id: str, messages: Sequence[Message], first_seq: int, last_seq: int
    ) -> None:
        """Publish the messages that were committed under the numbers `first_seq` to `last_seq`.

        Raises:
            InternalError: The number of messages does not match; nothing was published.
        """
        task = CheckpointRepairTask(
            thread_id=thread_id, run_id=run_id, first_seq=first_seq, last_seq=last_seq
        )
        await self._events.publish(*self._events.of_messages(task, messages))

    async def repair_all(self, statuses: tuple[RunStatus, ...] = ()) -> int:
        """Publish the input of all runs with the given statuses; return the number of messages.

        A run whose input cannot be published is logged and skipped.
        """
        covered, after = 0, ""
        while runs := await self._threads.list_runs(RunQuery(after=after, statuses=statuses)):
            for run in runs:
                covered += await self._repair_run(run)
            after = runs[-1].run_id
        return covered

    async def drain(self) -> None:
        """Perform the queued repairs."""
        for _ in range(len(self._events.repairs)):
            task = self._events.repairs.popleft()
            query = MessageQuery(
                after=task.first_seq - 1,
                before=task.last_seq + 1,
                limit=min(task.last_seq - task.first_seq + 1, MAX_PAGE),
            )
            try:
                records = await self._threads.list_message_records(task.thread_id, query)
                messages = [record.message for record in records]
                is_done = await self._events.publish(*self._events.of_messages(task, messages))
            except PostroomError as error:
                _LOG.info("events.repair_waits", thread_id=task.thread_id, reason=error.describe())
                is_done = False
            if not is_done:
                self._events.repair_later(task)

    async def _repair_run(self, run: RunRecord) -> int:
        ids = run.input.trigger_message_ids if run.input else ()
        if not ids:
            return 0
        records = await self._threads.load_message_records(run.thread_id, ids)
        try:
            for first_seq, messages in _stretches(records):
                last_seq = first_seq + len(messages) - 1
                await self.record(run.thread_id, run.run_id, messages, first_seq, last_seq)
        except InternalError as error:
            _LOG.warning("events.not_repaired", run_id=run.run_id, reason=error.describe())
            return 0
        return len(records)


def _stretches(records: Sequence[MessageRecord]) -> list[tuple[int, list[Message]]]:
    results: list[tuple[int, list[Message]]] = []
    for record in records:
        if results and record.seq == results[-1][0] + len(results[-1][1]):
            results[-1][1].append(record.message)
        else:
            results.append((record.seq, [record.message]))
    return results
