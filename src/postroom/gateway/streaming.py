"""Shows active runs in their chats: a typing indicator, and drafts of the answer.

`ChatExecutor` wraps the executor of each process, so every execution is shown, including retries and
recovered runs. A draft is temporary: the final answer is delivered through the outbox, and replaces the
draft.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from postroom.concurrency import Tasks
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import (
    AgentEvent,
    EventSink,
    ReasoningDelta,
    RunRetrying,
    StepEnd,
    StreamReset,
    TextDelta,
)
from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.contracts.executor import AgentRunResult, ExecutorAround, RunDispatchExecutor
from postroom.contracts.files import RunFiles
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.runs import TerminationKind
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.config import StreamingConfig
from postroom.gateway.drafts import Draft, Look, Step
from postroom.gateway.events import MessageEvent, SendErrorKind, SendResult
from postroom.gateway.pacing import KEPT_MS
from postroom.gateway.platforms.base import TOO_OFTEN, BasePlatformAdapter, send_metadata
from postroom.gateway.replies import build_outbox_target, is_chat
from postroom.gateway.session import Platform, SessionSource
from postroom.gateway.sessions import Sessions
from postroom.log import get_logger
from postroom.ports import RunControl

_LOG = get_logger(__name__)
_TYPING_EVERY_MS = 4_000
_DRAFT = "draft"
"""The session setting that stores the newest draft in the chat, and the run of that draft."""
_MAX_SHOWN = 1_000
FilesOf = Callable[[RunActivation], RunFiles]
"""Returns the files of a run."""


@dataclass(slots=True)
class Shown:
    """The part of an undelivered answer that the chat shows."""

    draft: Draft
    message_id: str | None = None
    step: "asyncio.Task[Step] | None" = None
    """The current or last update of the draft.

    The update may last longer than its run, because it cannot be cancelled.
    """
    is_open: bool = False
    """Whether the model is writing an answer that has some text already."""

    async def settled(self) -> None:
        """Wait until no update of the draft is in progress."""
        if self.step is not None:
            await asyncio.wait({self.step})


@dataclass(slots=True, eq=False)
class RunInChat:
    """A run of a chat that executes in this process."""

    run_id: str
    key: str
    """The key of the session in which the run answers."""
    cancel: Callable[[], object]
    answers: tuple[str, ...] = ()
    """The platform's ids of the messages that the run answers."""

    def interrupt(self, reason: str) -> None:
        """Request the end of the run.

        Waiting messages of the session stay queued.
        """
        _LOG.info("run.interrupted", run_id=self.run_id, reason=reason)
        self.cancel()


_MAX_MARKS = 1_000
_TURNS = 12
"""The maximum number of attempts to remove a reaction or a notice.

All attempts together take about a minute.
"""
_REFUSED = (SendErrorKind.FORBIDDEN, SendErrorKind.BAD_FORMAT)


@dataclass(frozen=True, slots=True)
class _SeenReaction:
    adapter: BasePlatformAdapter
    source: SessionSource
    message_id: str
    reaction_id: str


class SeenMarks:
    """Adds "seen" reactions to messages, and removes the reactions later."""

    def __init__(self, adapters: Mapping[Platform, BasePlatformAdapter], timer: Timer) -> None:
        self._adapters = adapters
        self._timer = timer
        self._tasks = Tasks("seen marks")
        self._marks: OrderedDict[int, asyncio.Task[_SeenReaction | None]] = OrderedDict()
        self._refusing: OrderedDict[tuple[Platform, str], None] = OrderedDict()

    def show(self, event: MessageEvent) -> None:
        """Add a reaction to a stored message that will be answered."""
        source, inbound_id, message_id = event.source, event.inbound_id, event.message_id
        if source is None or inbound_id is None or message_id is None or inbound_id in self._marks:
            return
        adapter = self._adapters.get(source.platform)
        if adapter is None or self._tasks.closed or (source.platform, source.chat_id) in self._refusing:
            return
        setting = adapter.config.reactions
        # By default, only groups get reactions: there, a typing indicator does not show whose message is
        # being read.
        is_on = source.chat_type != "dm" if setting is None else setting
        if not (is_on and adapter.capabilities.reactions and adapter.may_react):
            return
        self._marks[inbound_id] = self._tasks.start(self._mark(adapter, source, message_id), name="mark")
        if len(self._marks) > _MAX_MARKS:
            self._marks.popitem(last=False)

    def clear(self, inbound_ids: Iterable[int]) -> None:
        """Remove the reactions from messages that have been answered, or will get no answer."""
        for inbound_id in inbound_ids:
            marking = self._marks.pop(inbound_id, None)
            if marking is not None and not self._tasks.closed:
                self._tasks.start(self._take_away(marking), name="take a mark away")

    async def close(self) -> None:
        """Stop all pending changes of reactions."""
        await self._tasks.close()

    async def _mark(
        self, adapter: BasePlatformAdapter, source: SessionSource, message_id: str
    ) -> _SeenReaction | None:
        result = await adapter.react(source.chat_id, message_id, send_metadata(source))
        if result.success:
            return _SeenReaction(adapter, source, message_id, result.message_id or message_id)
        if result.error_kind in _REFUSED:
            why = result.error or ""
            chat = (source.platform, source.chat_id)
            if chat not in self._refusing:
                _LOG.warning(
                    "reactions.off", platform=source.platform.value, chat_id=source.chat_id, reason=why
                )
            self._refusing[chat] = None
            if len(self._refusing) > _MAX_MARKS:
                self._refusing.popitem(last=False)
        return None

    async def _take_away(self, marking: "asyncio.Task[_SeenReaction | None]") -> None:
        """Remove a reaction as soon as the rate limits allow the call."""
        await asyncio.wait({marking})
        mark = None if marking.cancelled() or marking.exception() else marking.result()
        if mark is None:
            return
        source, metadata = mark.source, send_metadata(mark.source)
        await _in_its_turn(
            lambda: mark.adapter.react(
                source.chat_id, mark.message_id, metadata, takes_back=mark.reaction_id
            ),
            self._timer,
        )


async def _in_its_turn(call: Callable[[], Awaitable[SendResult]], timer: Timer) -> None:
    """Repeat a call for about a minute, until the platform's rate limits allow the call."""
    for _ in range(_TURNS):
        result = await call()
        if result.error != TOO_OFTEN:
            return
        await timer.sleep(result.retry_after_ms or KEPT_MS)


class StreamingPresenter:
    """Shows active runs in their chats.

    A failure to show a run does not affect the run.
    """

    def __init__(
        self,
        config: StreamingConfig,
        sessions: Sessions,
        adapters: Sequence[BasePlatformAdapter],
        clock: Clock,
        timer: Timer,
    ) -> None:
        self.runs: dict[str, RunInChat] = {}
        """The newest run in this process, for each session."""
        self.sessions = sessions
        self.adapters = {adapter.platform: adapter for adapter in adapters}
        self._config = config
        self._clock = clock
        self._timer = timer
        self.drafts: OrderedDict[str, Shown] = OrderedDict()
        """For each run, the part of its undelivered answer that the chat shows."""
        self._tasks = Tasks("chat presenter")
        self.waiting: OrderedDict[tuple[Platform, str, str], str] = OrderedDict()
        """The ids of the notices that say that a message is waiting, keyed by the message."""
        self.seen = SeenMarks(self.adapters, timer)

    def show_typing(self, source: SessionSource) -> None:
        """Show a typing indicator for an accepted message. Failures are ignored."""
        adapter = self.adapters.get(source.platform)
        if adapter is not None and adapter.capabilities.typing and not self._tasks.closed:
            self._tasks.start(adapter.send_typing(source.chat_id, send_metadata(source)), name="typing")

    def has_begun(self, message_id: str) -> bool:
        """Return whether a run in this process has started to process a message."""
        return any(message_id in run.answers for run in self.runs.values())

    def keep_waiting(self, source: SessionSource, message_id: str, notice_id: str) -> None:
        """Remember the id of a notice that is removed when an agent begins to process a message."""
        self.waiting[source.platform, source.chat_id, message_id] = notice_id
        if len(self.waiting) > _MAX_MARKS:
            self.waiting.popitem(last=False)

    def end_waiting(self, source: SessionSource, message_ids: Iterable[str]) -> None:
        """Remove the notices which say that messages are waiting."""
        adapter = self.adapters.get(source.platform)
        for message_id in message_ids:
            notice_id = self.waiting.pop((source.platform, source.chat_id, message_id), None)
            if notice_id is not None and adapter is not None and not self._tasks.closed:
                removing = partial(adapter.delete_message, source.chat_id, notice_id, send_metadata(source))
                self._tasks.start(_in_its_turn(removing, self._timer), name="remove a notice")

    async def close(self) -> None:
        """Stop all pending changes of typing indicators, notices and reactions."""
        await self._tasks.close()
        await self.seen.close()

    def holds_requests(self, thread_id: str) -> bool:
        """Return whether senders on a thread keep a request open until the answer arrives."""
        platform = unquote(build_outbox_target(thread_id).partition("/")[0])
        return any(
            adapter.capabilities.holds_requests and name.value == platform
            for name, adapter in self.adapters.items()
        )

    @asynccontextmanager
    async def shown(
        self, activation: RunActivation, cancel: Callable[[], object]
    ) -> AsyncIterator["asyncio.Queue[AgentEvent | None] | None"]:
        """Show a run in its chat while the `with` block executes the run.

        The chat shows the events that are put into the yielded queue. If the run is not shown, None is
        yielded.
        """
        try:
            address = await self.sessions.find_place(activation.thread_id, activation.messages)
        except PostroomError as error:
            _LOG.warning("run.not_shown", thread_id=activation.thread_id, reason=error.describe())
            address = None
        if address is None:
            yield None
            return
        key, source = address
        run = RunInChat(activation.run_id or "", key, cancel, answered_by(activation))
        adapter = self.adapters.get(source.platform)
        if adapter is not None and not adapter.is_ours():
            adapter = None
        tasks, deltas = Tasks(f"run {run.run_id}"), None
        self.runs[key] = run
        if self.waiting:
            self.end_waiting(source, run.answers)
        try:
            if adapter is not None and adapter.capabilities.typing:
                tasks.start(self._typing(adapter, source, run), name="typing")
            if adapter is not None and self._config.enabled and shows_drafts(adapter.capabilities):
                deltas = asyncio.Queue[AgentEvent | None]()
                tasks.start(self._draw(adapter, source, run, deltas, tasks), name="draft")
            yield deltas
        finally:
            if self.runs.get(key) is run:
                del self.runs[key]
            await tasks.close()

    async def _typing(self, adapter: BasePlatformAdapter, source: SessionSource, run: RunInChat) -> None:
        while True:
            try:
                await adapter.send_typing(source.chat_id, send_metadata(source, answers=list(run.answers)))
            except PostroomError as error:  # the next attempt follows soon
                _LOG.info("typing.not_shown", run_id=run.run_id, reason=error.describe())
            await self._timer.sleep(_TYPING_EVERY_MS)

    async def _draw(
        self,
        adapter: BasePlatformAdapter,
        source: SessionSource,
        run: RunInChat,
        deltas: "asyncio.Queue[AgentEvent | None]",
        tasks: Tasks,
    ) -> None:
        """Update the draft as the answer grows, within the platform's rate limits."""
        shown, label = await self._find_draft(adapter, source.chat_id, run), self.sessions.label(source)
        between, is_begun = "", False
        alarm: asyncio.Task[None] | None = None

        async def look_again(after_ms: int) -> None:
            await self._timer.sleep(after_ms)
            deltas.put_nowait(None)

        while True:
            left = shown.draft.left_ms(self._clock.now())
            if left is not None and (alarm is None or alarm.done()):
                alarm = tasks.start(look_again(left), name="next look")
            event, step = await deltas.get(), None
            if isinstance(event, StreamReset | RunRetrying):
                await self._begin_again(adapter, source.chat_id, shown)
                label, between, is_begun = self.sessions.label(source), "", False
            elif isinstance(event, StepEnd):
                between, shown.is_open = "\n\n" if is_begun else "", False
                shown.draft.think("\n\n")
            elif isinstance(event, TextDelta):
                step = shown.draft.add(label + between + event.delta, now=self._clock.now())
                label, between, is_begun, shown.is_open = "", "", True, True
            else:
                if isinstance(event, ReasoningDelta) and adapter.capabilities.reasoning:
                    shown.draft.think(event.delta)
                step = shown.draft.step(self._clock.now())
            while step is not None:
                self._remember(run.run_id, shown)
                metadata = send_metadata(source, answers=list(run.answers), draft=True)
                if self._tasks.closed:
                    return
                showing = self._take_step(adapter, source.chat_id, run, shown, step, metadata)
                shown.step = self._tasks.start(showing, name="draft")
                step = await asyncio.shield(shown.step)

    async def _begin_again(self, adapter: BasePlatformAdapter, chat_id: str, shown: Shown) -> None:
        """Restart the draft for another attempt of the run."""
        shown.draft.begin_again()
        if shown.is_open and shown.message_id is not None and adapter.capabilities.holds_requests:
            await adapter.edit_message(chat_id, shown.message_id, "", {"begins_again": True, "draft": True})
        shown.is_open = False

    async def _find_draft(self, adapter: BasePlatformAdapter, chat_id: str, run: RunInChat) -> Shown:
        """Return the draft of a run, or the draft of an earlier attempt of the run."""
        shown = self.drafts.get(run.run_id)
        if shown is not None:
            await self._begin_again(adapter, chat_id, shown)
            return shown
        capabilities, interval = adapter.capabilities, milliseconds(self._config.edit_interval)
        if capabilities.streams:  # each edit extends the stream, so edits are not delayed
            interval = 0
        interval = max(interval, capabilities.min_edit_interval_ms)
        shown = Shown(Draft(capabilities, least_new=self._config.buffer_threshold, interval_ms=interval))
        shown.message_id = await self.left_draft(adapter, run.key, run.run_id)
        if shown.message_id is not None:
            shown.draft.stands()
            self._remember(run.run_id, shown)
        return shown

    async def left_draft(
        self, adapter: BasePlatformAdapter, key: str, run_id: str, asked_by: str | None = None
    ) -> str | None:
        """Return the id of the draft that an earlier process showed for a run, or None.

        A draft that became the text of a question is returned only if `asked_by` names the question.
        """
        if not _outlives(adapter.capabilities):
            return None
        try:
            session = await self.sessions.load(key)
        except PostroomError as error:
            _LOG.warning("draft.not_looked_for", run_id=run_id, reason=error.describe())
            return None
        draft = {} if session is None else session.settings.get(_DRAFT, {})
        is_meant = draft.get("run") == run_id and draft.get("asked_by") in (None, asked_by)
        return str(draft["id"]) if is_meant else None

    async def leave_to_question(
        self, adapter: BasePlatformAdapter, key: str, run_id: str, message_id: str, asked_by: str
    ) -> None:
        """Keep the draft of a run as the text of a question.

        The next draft of the run is a new message. `asked_by` is the key of the question's outbox row.

        Raises:
            StoreError: The change could not be stored. The run's answer would replace the question's text.
        """
        if _outlives(adapter.capabilities):
            draft = {"run": run_id, "id": message_id, "asked_by": asked_by}
            await self.sessions.changed(
                key, lambda one: replace(one, settings={**one.settings, _DRAFT: draft})
            )
        self.drafts.pop(run_id, None)

    async def _take_step(
        self,
        adapter: BasePlatformAdapter,
        chat_id: str,
        run: RunInChat,
        shown: Shown,
        step: Look,
        metadata: dict[str, Json],
    ) -> Step:
        if step.reasoning:
            metadata["reasoning"] = step.reasoning
        if shown.message_id is None:
            reply_to = metadata["answers"][-1] if metadata["answers"] else None
            result = await adapter.send(chat_id, step.text, reply_to, metadata)
            shown.message_id = result.message_id
            if result.success and result.message_id is not None and not adapter.capabilities.streams:
                # Store the id of the newest draft, so that the answer replaces it even after a crash.
                draft = {"run": run.run_id, "id": result.message_id}
                try:
                    await self.sessions.changed(
                        run.key, lambda one: replace(one, settings={**one.settings, _DRAFT: draft})
                    )
                except PostroomError as error:
                    _LOG.warning("draft.not_kept", run_id=run.run_id, reason=error.describe())
        else:
            result = await adapter.edit_message(chat_id, shown.message_id, step.text, metadata)
        now = self._clock.now()
        if result.success and shown.message_id is not None:
            return shown.draft.done(now=now)
        wait = result.retry_after_ms if result.error_kind is SendErrorKind.RATE_LIMITED else None
        return shown.draft.failed(now=now, retry_after_ms=wait)

    def _remember(self, run_id: str, shown: Shown) -> None:
        self.drafts[run_id] = shown
        if len(self.drafts) > _MAX_SHOWN:
            self.drafts.popitem(last=False)


def answered_by(activation: RunActivation) -> tuple[str, ...]:
    """Return the platform's ids of the messages that started a run."""
    items = []
    for message in activation.messages:
        message_id = message.content[0].data.get("message_id") if message.content else None
        if message_id is not None:
            items.append(str(message_id))
    return tuple(items)


def _outlives(capabilities: ChannelCapabilities) -> bool:
    """Return whether drafts are messages that stay in the chat if the process ends."""
    return capabilities.edits and not capabilities.streams


def shows_drafts(capabilities: ChannelCapabilities) -> bool:
    """Return whether a channel can show an answer while the agent writes the answer."""
    return capabilities.streams or capabilities.edits


class _DeltaSink:
    """A sink that forwards the events of a run and collects the text of the answer."""

    def __init__(self, sink: EventSink, deltas: "asyncio.Queue[AgentEvent | None] | None") -> None:
        self._sink = sink
        self._deltas = deltas
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return "".join(self._text).strip()

    async def emit(self, event: AgentEvent) -> None:
        """Forward an event without waiting for a reader."""
        if isinstance(event, TextDelta | ReasoningDelta | StreamReset | StepEnd | RunRetrying):
            if isinstance(event, TextDelta):
                self._text.append(event.delta)
            elif isinstance(event, StepEnd):
                self._text.append("\n\n")
            elif not isinstance(event, ReasoningDelta):
                self._text.clear()
            if self._deltas is not None:
                self._deltas.put_nowait(event)
        await self._sink.emit(event)


class ChatExecutor(ExecutorAround):
    """Executes runs through another executor, and shows chat runs in their chats."""

    def __init__(
        self, within: RunDispatchExecutor, presenter: StreamingPresenter, files: FilesOf | None = None
    ) -> None:
        super().__init__(within)
        self._presenter = presenter
        self._files = files

    def waits_for_outages(self, thread_id: str) -> bool:
        """Return whether the failed runs of a thread are retried for minutes, in case of an outage."""
        return not self._presenter.holds_requests(thread_id)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run and return how it ended."""
        if not is_chat(activation.thread_id):
            return await self._within.run(activation, sink)
        if isinstance(control := activation.control, RunControl):
            if self._files is not None:
                control = replace(control, files=self._files(activation))
            if hidden := await self._presenter.sessions.hidden(activation.thread_id):
                arguments = {message_id for read in hidden.values() for message_id in read}
                control = replace(
                    control,
                    hidden_runs=control.hidden_runs | hidden.keys(),
                    hidden_message_ids=control.hidden_message_ids | arguments,
                )
            activation = replace(activation, control=control)
        run_id = activation.run_id or ""
        async with self._presenter.shown(activation, lambda: self._within.cancel(run_id)) as deltas:
            seen = _DeltaSink(sink, deltas)
            result = await self._within.run(activation, seen)
        if result.termination.type is TerminationKind.CANCELLED and not result.response:
            return replace(result, response=seen.text)  # programs do not return their partial answers
        return result
