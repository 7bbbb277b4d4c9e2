"""The runtime's view of a thread, its state for a run, and the checkpoints that store both.

The model sees each tool call directly before its answer, and does not see a call without an answer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from postroom.contracts.clock import Clock
from postroom.contracts.errors import CommitUnknown, DuplicateRecord, ForeignThread, VersionConflict
from postroom.contracts.inference import CallerRequest
from postroom.contracts.messages import Message, Role, ToolCall, Visibility
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    Conversation,
    PersistedState,
    RunRecord,
    RunStatus,
    RunWaitingTicket,
    Summary,
    SummaryDraft,
    Usage,
)
from postroom.ports import RunControl


@dataclass(slots=True)
class _Turn:
    message: Message
    answers: dict[str, Message] = field(default_factory=dict)


def is_output_of(message: Message, run_id: str) -> bool:
    """Return whether the run's model or tools wrote a message."""
    said_by = message.metadata.run_id if message.metadata else None
    return said_by == run_id and message.role in (Role.ASSISTANT, Role.TOOL)


def without_former_output(messages: Sequence[Message], run_id: str, until: str | None) -> tuple[Message, ...]:
    """Return messages without the output of a run from before a restart of the run.

    `until` is the id of the last message before the restart.
    """
    ids = [message.id for message in messages]
    if until is None or until not in ids:
        return tuple(messages)
    end = ids.index(until) + 1
    kept_messages = (message for message in messages[:end] if not is_output_of(message, run_id))
    return (*kept_messages, *messages[end:])


def as_seen_by_model(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation for the model, with each answer directly after its tool call.

    Tool calls without an answer are omitted.
    """
    turns: list[_Turn] = []
    arguments: dict[str, _Turn] = {}
    for message in messages:
        if message.asks_to_compact:
            continue
        if message.role is Role.TOOL:
            turn = arguments.get(message.tool_call_id or "")
            if turn is not None:
                turn.answers.setdefault(message.tool_call_id or "", message)
            continue
        turn = _Turn(message)
        turns.append(turn)
        arguments.update({call.id: turn for call in message.tool_calls})
    shown: list[Message] = []
    for turn in turns:
        message = turn.message.for_model()
        if not message.tool_calls:
            shown.append(message)
            continue
        answered = tuple(call for call in message.tool_calls if call.id in turn.answers)
        if answered or message.content:
            shown += (replace(message, tool_calls=answered), *(turn.answers[call.id] for call in answered))
    return tuple(shown)


def foreign_result(messages: Sequence[Message]) -> str | None:
    """Return the call id of a tool result that the caller sent and that answers no open call, or None."""
    last_call_ids, newest, brought = set[str](), set[str](), tuple[Message, ...]()
    for message in messages:
        if message.role is Role.ASSISTANT:
            last_call_ids = {call.id for call in message.tool_calls}
        elif message.role is Role.USER and message.visibility is Visibility.ALL:
            newest, brought = last_call_ids, CallerRequest.of(message).context
    if any(message.role is not Role.TOOL for message in brought):
        return None  # the caller sent the conversation, which was checked on arrival
    return next(
        (message.tool_call_id or "" for message in brought if message.tool_call_id not in newest), None
    )


def has_input_after(messages: Sequence[Message], call_id: str) -> bool:
    """Return whether a person wrote a message after the tool call `call_id`."""
    for message in reversed(messages):
        if message.role is Role.USER and message.visibility is Visibility.ALL:
            return True
        if any(call.id == call_id for call in message.tool_calls):
            return False
    return False


def list_open_calls(messages: Sequence[Message], run_id: str) -> tuple[ToolCall, ...]:
    """Return the unanswered tool calls of the run's last step."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.tool_call_id)
        elif is_output_of(message, run_id):
            return tuple(call for call in message.tool_calls if call.id not in answered)
    return ()


def own_answer(messages: Sequence[Message], run_id: str) -> Message | None:
    """Return the run's last message if the message is an answer, or None if later input follows."""
    last = messages[-1] if messages else None
    if last is None or last.role is not Role.ASSISTANT or last.tool_calls:
        return None
    return last if is_output_of(last, run_id) else None


def earlier_answers(messages: Sequence[Message], run_id: str) -> tuple[str, ...]:
    """Return the texts of the run's answers that new input has followed."""
    lines: list[str] = []
    answer = ""
    for message in messages:
        if is_output_of(message, run_id):
            is_answer = message.role is Role.ASSISTANT and not message.tool_calls
            answer = message.text() if is_answer else ""
        elif answer and message.role is Role.USER and message.visibility is Visibility.ALL:
            lines.append(answer)
            answer = ""
    return tuple(lines)


KEY = "postroom.runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundNote:
    """A stored note about a background task of a run."""

    task_id: str
    description: str
    instance: str
    """The id of the `BackgroundTasks` object, and therefore of the process, that ran the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeState:
    """The runtime's data about a run: open questions, the point of restart, and background tasks."""

    run_id: str
    hidden_until: str | None = None
    tickets: tuple[RunWaitingTicket, ...] = ()
    tasks: tuple[BackgroundNote, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the state contains no data to store."""
        return self.hidden_until is None and not self.tickets and not self.tasks


def read_state(record: RunRecord) -> RuntimeState:
    """Return the runtime's data about a run from the run record.

    Data of another run is ignored. The questions of a waiting run come from the tickets in the run record.
    """
    state = RuntimeState(run_id=record.run_id)
    if record.state and KEY in record.state.extensions:
        try:
            kept_state = msgspec.convert(record.state.extensions[KEY], RuntimeState)
        except msgspec.ValidationError:
            pass  # an older or newer release wrote this state
        else:
            state = kept_state if kept_state.run_id == record.run_id else state
    return replace(state, tickets=record.waiting.tickets) if record.waiting else state


def with_state(record: RunRecord, state: RuntimeState) -> RunRecord:
    """Return a copy of a run record with the runtime's data; data of other executors stays unchanged."""
    before = record.state or PersistedState()
    # Encode the state as stores return it, with lists for tuples. Otherwise, every step would change it.
    entry = None if state.is_empty else msgspec.json.decode(msgspec.json.encode(state))
    if before.extensions.get(KEY) == entry:
        return record
    others = {key: value for key, value in before.extensions.items() if key != KEY}
    extensions: dict[str, Any] = others if entry is None else {**others, KEY: entry}
    return replace(record, state=PersistedState(revision=before.revision + 1, extensions=extensions))


def by_call(tickets: Iterable[RunWaitingTicket]) -> dict[str, RunWaitingTicket]:
    """Return tickets, keyed by the id of the tool call."""
    return {ticket.tool_call_id: ticket for ticket in tickets}


MAX_TRIES = 8
Change = Callable[[RunRecord], RunRecord]


class RunLog:
    """The committed and uncommitted messages of a thread that an execution knows."""

    def __init__(self, control: RunControl, fresh: RunRecord, clock: Clock) -> None:
        self._control = control
        self._fresh = fresh
        self._clock = clock
        self._unsent: list[Message] = []
        self._output: list[str] = []
        self.messages: tuple[Message, ...] = ()
        """Committed and uncommitted messages in order.

        Output from before a restart, and messages that the summary covers, are not included.
        """
        self.summary: Summary | None = None
        """The summary that precedes the messages for the model."""
        self.asked: frozenset[str] = frozenset()
        """The ids of the run's input, which is never summarized while the run is active."""
        self._seen = Conversation(messages=())
        self._hidden: tuple[str, ...] = ()
        self.spent = Usage()
        """The usage since the last checkpoint."""
        self.counted = Usage()
        """The usage of this execution up to the last checkpoint, which budgets have already counted."""
        self.steps = 0
        """The number of steps since the last checkpoint."""
        self.record = fresh
        """The last written state of the run."""
        self.state = RuntimeState(run_id=fresh.run_id)
        """The state that the next checkpoint writes."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._fresh.run_id

    async def stored(self) -> RunRecord:
        """Return the stored run record, or the run's state at the start if no record is stored.

        Raises:
            ForeignThread: The run belongs to another thread.
        """
        record = await self._control.threads.load_run(self.run_id)
        if record is not None and record.thread_id != self._fresh.thread_id:
            raise ForeignThread(f"run {self.run_id!r} belongs to another thread", value=record.thread_id)
        return record or self._fresh

    async def load(self, given: Sequence[Message], *, restart: bool) -> None:
        """Read the thread and the run, and append the uncommitted messages `given` to the messages.

        If `restart` is True, earlier output of the run is ignored from now on.

        Raises:
            ForeignThread: The run belongs to another thread.
        """
        self.record = await self.stored()
        self.state = read_state(self.record)
        control, thread_id = self._control, self._fresh.thread_id
        if control.only is None:
            self._seen = await control.threads.recent_conversation(
                thread_id,
                self.run_id,
                hidden_runs=control.hidden_runs,
                hidden_message_ids=control.hidden_message_ids,
            )
        else:
            own = (*control.only, *self.record.output_message_ids)
            records = await control.threads.load_message_records(thread_id, own)
            self._seen = Conversation(messages=tuple(record.message for record in records))
        shows, run_message_input = control.shows, self.record.input
        committed = tuple(message for message in self._seen.messages if shows(message))
        hidden = (message.id or "" for message in self._seen.messages if not shows(message))
        self._hidden = (*self._seen.hidden, *hidden)
        self.summary = self._seen.summary
        ids = (
            *(run_message_input.trigger_message_ids if run_message_input is not None else ()),
            *(message.id for message in given),
        )
        self.asked = frozenset(id for id in ids if id)
        if restart:
            lines = [message.id for message in committed if is_output_of(message, self.run_id)]
            self.state = replace(
                self.state, tickets=(), hidden_until=lines[-1] if lines else self.state.hidden_until
            )
        self.messages = without_former_output(committed, self.run_id, self.state.hidden_until)
        self.keep(given)

    def extend(self, committed: Sequence[Message]) -> None:
        """Add messages that another writer has committed."""
        self.messages += tuple(committed)
        self.asked |= {message.id for message in committed if message.id}

    async def sum_up(self, summary: Summary, older: Sequence[Message]) -> None:
        """Replace older messages with a summary, which is committed if the run sees the whole thread.

        Raises:
            StaleClaim, StoreError: As for `write`. The older messages remain.
        """
        gone = frozenset(message.id or "" for message in older)
        kept_messages = tuple(message for message in self.messages if (message.id or "") not in gone)
        if self._control.only is None:
            since = self._seen.since(frozenset(message.id or "" for message in kept_messages), self.run_id)
            summary = replace(summary, since=since)
            await self.write(running, SummaryDraft(summary=summary, covers=tuple(gone), hides=self._hidden))
        self.summary, self.messages = summary, kept_messages

    def keep(self, messages: Sequence[Message], *, as_output: bool = False) -> None:
        """Add messages to the next checkpoint; messages whose ids are already known are ignored."""
        known_ids = {message.id for message in self.messages}
        new = tuple(message for message in messages if message.id not in known_ids)
        self.messages += new
        self._unsent.extend(new)
        if as_output:
            self._output.extend(message.id for message in new if message.id)

    @property
    def has_new(self) -> bool:
        """Whether there are uncommitted messages."""
        return bool(self._unsent)

    @property
    def has_new_input(self) -> bool:
        """Whether the uncommitted messages contain input for the run."""
        return any(not is_output_of(message, self.run_id) for message in self._unsent)

    def answer(self) -> Message | None:
        """Return the run's last message if the message is an answer, or None if later input follows."""
        return own_answer(self.messages, self.run_id)

    def used(self) -> Usage:
        """Return the token usage of all executions of the run."""
        return self.record.usage + self.spent

    async def write(self, change: Change, summary: SummaryDraft | None = None) -> None:
        """Commit the new messages together with the changed run record and an optional summary.

        The call may be repeated after a lost result; no message is committed twice.

        Raises:
            StaleClaim: The worker has lost the run, so nothing was written.
            VersionConflict: Other processes changed the run between read and write eight times in a row.
            StoreError: The store failed.
        """
        for _ in range(MAX_TRIES - 1):
            try:
                return await self._write_once(change, summary)
            except DuplicateRecord:
                ids = [message.id for message in self._unsent if message.id]
                records = await self._control.threads.load_message_records(self._fresh.thread_id, ids)
                there = {record.message_id for record in records}
                self._unsent = [message for message in self._unsent if message.id not in there]
                if not there:
                    raise
            except (CommitUnknown, VersionConflict):
                continue
        return await self._write_once(change, summary)

    async def _write_once(self, change: Change, summary: SummaryDraft | None) -> None:
        stored = await self.stored()
        now = max(self._clock.now(), stored.updated_at)
        base = replace(
            stored,
            steps=self.record.steps + self.steps,
            usage=self.used(),
            output_message_ids=(*self.record.output_message_ids, *self._output),
            started_at=now if stored.started_at is None else stored.started_at,
            updated_at=now,
        )
        record = with_state(change(base), self.state)
        messages = tuple(self._unsent)
        # The thread may have grown, because others may have added input for the next run.
        answer = self.answer() if record.status is RunStatus.DONE else None
        commit = ThreadCommit(
            thread_id=record.thread_id,
            messages=messages,
            run=record,
            summary=summary,
            answer=answer,
            spends=self._control.spends(self.spent),
        )
        await self._control.coordinator.commit(commit)
        self.record = record
        self.counted += self.spent
        self.spent, self.steps = Usage(), 0
        self._unsent.clear()
        self._output.clear()


def running(record: RunRecord) -> RunRecord:
    """Return a copy of the run record with the status `running`."""
    return replace(record, status=RunStatus.RUNNING, waiting=None, termination=None, finished_at=None)
