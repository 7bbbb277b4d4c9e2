"""The runner: processes the messages of each chat, one at a time.

    accept ─▶ stored ─▶ queue of the chat's worker ─▶ its turn:
        stranger ─▶ a pairing code, or nothing      command ─▶ performed; an agent reads the text of some
        message ─▶ handed over to its session's thread; the mailbox knows whether the thread is busy

Each chat has one worker, which processes the stored messages of the chat in order. A message that arrives
while its chat is idle is stored and handed over in one transaction. Every message in a queue is stored, so no
message is lost if the process dies. A message that cannot be handed over is removed from the queue, and is
read from the store again later.

`/stop` is performed at once. `/agent`, `/link` and `/unlink` change the session of the messages after them,
so these messages are stored only after the command has been performed. Every other message is stored at once,
so that its platform does not wait.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakValueDictionary

from postroom.concurrency import Tasks
from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat import InboundMessage, InboundMove, InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import (
    AlreadyConsumed,
    IllegalTransition,
    PostroomError,
    StoreError,
    UnknownMessage,
)
from postroom.gateway import status, wording
from postroom.gateway.commands import BY_NAME, Answer, Command, Commands, help_text
from postroom.gateway.config import GatewayConfig, is_person, short_name
from postroom.gateway.events import ButtonPress, Card, MessageEvent
from postroom.gateway.handover import Admission, AdmissionKind, Handover, NotHandedOver
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.notices import Notices, notice_key
from postroom.gateway.people import People
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.reminders import span_in_words
from postroom.gateway.session import ANSWER_ONLY, Platform, SessionSource, build_session_key, inbound_key
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import StreamingPresenter
from postroom.gateway.to_people import ToPeople
from postroom.log import get_logger
from postroom.stores.chats.intake_log import IntakeLog
from postroom.stores.chats.stores import ChatStores

_LOG = get_logger(__name__)
_AGENT_PENDING_SENTINEL = object()
"""The value in `_running_agents` for a session whose message is being handled."""
_PATIENCE_MS = (5, 10, 20, 50, 100, 200, 400, 800)
_ACKNOWLEDGED_EVERY_MS = 30_000
_MAX_SESSIONS = 10_000
_PAUSES_MS = (50, 200, 500, 1_000, 2_000, 4_000)
SHUTTING_DOWN = "Gateway shutting down"


_ALBUM_MS = 1_000
"""How long a worker waits for the next file of an album. Each file arrives as a separate message."""


class ChatWorker:
    """Processes the messages of one chat in order.

    `queue` contains the messages that are not handed over yet.
    """

    def __init__(self) -> None:
        self.queue: deque[MessageEvent] = deque()
        """Stored messages in order. An active worker handles the first message."""
        self.is_active = False
        """Whether a message is being handled now."""
        self.accepting = asyncio.Lock()
        """A lock under which messages are stored, so that they keep their order of arrival."""
        self.decided = asyncio.Event()
        """An event that is set while no command in the queue changes the session of later messages."""
        self.decided.set()

    @property
    def is_idle(self) -> bool:
        """Whether the worker has no message to process."""
        return not (self.queue or self.is_active)

    def has(self, inbound_id: int) -> bool:
        """Return whether the queue contains the message with this id."""
        return any(event.inbound_id == inbound_id for event in self.queue)

    def put(self, event: MessageEvent) -> None:
        """Append a stored message to the queue."""
        self.queue.append(event)
        if _decides_session(event):
            self.decided.clear()

    def end_turn(self) -> None:
        """Remove the first message from the queue."""
        self.queue.popleft()
        if not any(map(_decides_session, self.queue)):
            self.decided.set()

    def stop(self) -> None:
        """Stop the worker and empty the queue.

        The messages stay in the store.
        """
        self.is_active = False
        self.queue.clear()
        self.decided.set()

    async def whole_album(self, timer: Timer) -> list[MessageEvent]:
        """Wait until the album of the first message is complete, and return the messages of the album.

        Only the first message of the album stays in the queue.
        """
        first, events = self.queue[0], list[MessageEvent]()
        sent = get_album_id(first), first.source and first.source.user_id
        while True:
            parts = [
                event
                for event in self.queue
                if (get_album_id(event), event.source and event.source.user_id) == sent
            ]
            if len(parts) == len(events):
                break
            events = parts
            await timer.sleep(_ALBUM_MS)
        events.sort(key=lambda event: event.inbound_id or 0)
        for part in events:
            self.queue.remove(part)
        self.queue.appendleft(events[0])
        return events


class ChatWorkers:
    """The workers of all chats.

    A worker exists only while a message of the worker's chat is being processed.
    """

    def __init__(self) -> None:
        self.by_chat: WeakValueDictionary[tuple[object, ...], ChatWorker] = WeakValueDictionary()
        self.stop_requested: set[str] = set()
        """The sessions whose current message must not start a run, because the person sent `/stop`."""

    def of(self, source: SessionSource) -> ChatWorker:
        """Return the worker of a chat, and create the worker if necessary."""
        chat = (source.platform, source.account, source.chat_id or source.user_id)
        worker = self.by_chat.get(chat)
        if worker is None:
            worker = self.by_chat[chat] = ChatWorker()
        return worker


def _decides_session(event: MessageEvent) -> bool:
    command = BY_NAME.get(event.get_command())
    return command is not None and command.decides_session


def get_album_id(event: MessageEvent) -> str | None:
    """Return the id of the album that contains a message, or None."""
    album_id = event.metadata.get("media_group_id")
    return album_id if isinstance(album_id, str) and event.media else None


async def merge_album(log: IntakeLog, first: MessageEvent, others: Sequence[MessageEvent]) -> None:
    """Merge the files and texts of an album into the first message, and close the remaining messages.

    A repeated call has no further effect.

    Raises:
        StoreError: The change could not be stored.
    """
    source = first.source
    if not others or source is None:
        return
    album = first.metadata.get("album", [])
    new = [event for event in others if event.message_id not in album]
    texts = dict.fromkeys(event.text for event in (first, *new) if event.text.strip())
    # All messages of an album reply to the same message. The files of that message are added only once.
    own = (event.media[: len(event.media) - event.metadata.get("answered_files", 0)] for event in new)
    first.media += tuple(file for files in own for file in files)
    first.forwarded = tuple(dict.fromkeys(words for event in (first, *new) for words in event.forwarded))
    first.unread = tuple(dict.fromkeys(part for event in (first, *new) for part in event.unread))
    first.text = "\n".join(texts)
    first.metadata["album"] = [*album, *(event.message_id for event in new)]
    try:
        kept_message = await log.edit(inbound_key(source, first.message_id), first.to_body())
    except (AlreadyConsumed, UnknownMessage):
        return  # the message has been deleted, or another process has merged the album
    first.revision = kept_message.revision
    done = InboundMove(status=InboundStatus.DONE, reason=f"one with message {first.inbound_id}")
    for event in others:
        try:
            await log.move([event.inbound_id or 0], done)
        except IllegalTransition:
            continue  # the message has been deleted, or another process has closed it


class Acknowledgements:
    """A limit of one notice every 30 seconds for each busy session."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: OrderedDict[str, int] = OrderedDict()

    def is_due(self, key: str) -> bool:
        """Return whether a notice may be sent now, and record the notice as sent."""
        now = self._clock.now()
        before = self._told.get(key)
        if before is not None and 0 <= now - before < _ACKNOWLEDGED_EVERY_MS:
            return False
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > _MAX_SESSIONS:
            self._told.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that a runner uses."""

    stores: ChatStores
    sessions: Sessions
    people: People
    handover: Handover
    notices: Notices
    commands: Commands
    presenter: StreamingPresenter
    wind_down: Callable[[], Awaitable[None]]
    """Wait until active runs have ended and their answers have been delivered."""
    timer: Timer
    tasks: Tasks
    """The background tasks that hand messages over."""
    metrics: GatewayMetrics
    acknowledgements: Acknowledgements
    to_people: ToPeople


class GatewayRunner:
    """Processes the messages of all platforms.

    Each message is executed as a command, refused, or handed over to an agent.
    """

    # Other programs also call methods whose names begin with an underscore, and create runners without
    # `__init__`.

    config: GatewayConfig
    adapters: Mapping[Platform, BasePlatformAdapter]
    _services: Services | None = None
    _running = False
    _exit_reason: str | None = None

    def __init__(self, config: GatewayConfig, services: Services) -> None:
        self.config = config
        self.adapters = {}
        self._services = services
        self._running_agents: dict[str, object] = {}
        self._pending_messages: dict[str, str] = {}
        self._pending_approvals: dict[str, object] = {}
        self._voice_mode: dict[str, str] = {}
        self._shutdown_event = asyncio.Event()
        self._stopping: asyncio.Future[None] | None = None

    @property
    def services(self) -> Services:
        """The services that the runner uses."""
        if self._services is None:
            raise PostroomError("this runner was created without its services")
        return self._services

    @property
    def workers(self) -> ChatWorkers:
        """The workers of all chats."""
        _workers = self.__dict__.get("_workers")
        if not isinstance(_workers, ChatWorkers):
            _workers = self.__dict__["_workers"] = ChatWorkers()
        return _workers

    async def _handle_message(self, event: MessageEvent) -> Answer:
        """Process a message for a program that calls the runner directly."""
        source = event.source
        if source is None:
            return None
        key = self._session_key_for_source(source)
        if event.is_command() and self._knows(source):
            return await self._obey(event, source, key)
        worker = self.workers.of(source)
        if not worker.is_idle:
            worker.put(event)
            self.adapters[source.platform]._pending_messages.setdefault(key, event)  # noqa: SLF001 - as callers read it
            return None
        worker.is_active = True
        try:
            await self._take_turn(event)
        finally:
            worker.is_active = False
            await self.drain(worker)
        return None

    # Processing the queues.

    def go_on(self, worker: ChatWorker) -> None:
        """Start the task that processes the queue of a chat, unless the task is already running."""
        tasks = self.services.tasks
        if worker.queue and not worker.is_active and not tasks.closed:
            tasks.start(self.drain(worker), name=f"messages up to {worker.queue[-1].inbound_id}")

    async def drain(self, worker: ChatWorker) -> None:
        """Process the messages in the queue of a chat until the queue is empty.

        A message that fails stays in the store and is retried later.
        """
        if worker.is_active:
            return
        worker.is_active = True
        try:
            while worker.queue:
                event = worker.queue[0]
                try:
                    if get_album_id(event) is not None:
                        event, *others = await worker.whole_album(self.services.timer)
                        await merge_album(self.services.stores.intake_log, event, others)
                    await self._take_turn(event)
                except PostroomError as error:
                    _LOG.warning("message.left_waiting", inbound_id=event.inbound_id, reason=error.describe())
                except Exception:  # a message that causes any error does not stop later messages
                    _LOG.exception("message.left_waiting", inbound_id=event.inbound_id)
                worker.end_turn()
        finally:
            worker.stop()

    async def begin(self, event: MessageEvent, draft: InboundMessage, worker: ChatWorker) -> bool:
        """Store a message and hand it over in one transaction, if the chat and the session are idle.

        Return False if the message must be stored before the handover.
        """
        source, key, services = event.source, draft.session_key, self.services
        if event.is_command() or event.is_empty or get_album_id(event) or "automatic" in event.metadata:
            return False
        if event.reply_to_message_id is not None:  # the message may answer a question
            return False
        if source is None or not worker.is_idle or key in services.presenter.runs:
            return False
        if is_person(source.agent) or not self._is_user_authorized(source):
            return False
        worker.is_active = True
        self._running_agents[key] = _AGENT_PENDING_SENTINEL
        try:
            await self._hand_over(event, source, key, draft)
        except NotHandedOver:
            return False
        except PostroomError as error:
            _LOG.info("message.not_begun_at_once", reason=error.describe())
            return False
        else:
            return True
        finally:
            self._end_turn(key)
            worker.is_active = False
            self.go_on(worker)

    async def _take_turn(self, event: MessageEvent) -> None:
        """Execute a stored message as a command, refuse it, or hand it over to an agent.

        Raises:
            StoreError: The message still waits in the store.
        """
        source = event.source
        if source is None:
            return
        key, may_write = self._session_key_for_source(source), self._is_user_authorized(source)
        if event.reply_to_message_id is not None and not event.is_command():
            await self.services.commands.read_as_answer(event, source, key)
        if "automatic" in event.metadata and not (event.metadata.get("may_be_a_person") and may_write):
            reason = f"a program sent this message automatically: {event.metadata['automatic']}"
            await self._close(event, InboundStatus.REJECTED, reason=reason)
        elif event.is_command() and self._knows(source):
            reply = await self._obey(event, source, key)
            if reply is not None:
                await self.services.notices.answer(event, reply, key=notice_key("said", event.inbound_id))
            if not event.handed_over:
                answer = reply.text if isinstance(reply, Card) else reply
                await self._close(event, InboundStatus.DONE, reason=answer)
        elif not may_write:
            # Refuse a message whose sender may not write. The notice to a stranger can contain a pairing
            # code.
            services = self.services
            services.metrics.message("refused")
            if self._knows(source):
                key = notice_key("rejected", event.inbound_id)
                await services.notices.answer(event, wording.ONLY_LOOKS, key=key)
                await self._close(event, InboundStatus.REJECTED, reason=wording.ONLY_LOOKS)
                return
            code = await services.people.code_for(source)
            if code is not None:
                lifetime = span_in_words(timedelta(milliseconds=self.config.pairing.code_ms))
                text = wording.pairing(source.platform.value, code, lifetime)
                await services.notices.answer(event, text, key=notice_key("pair", event.inbound_id))
            await self._close(event, InboundStatus.REJECTED, reason="the sender may not write in this chat")
        elif event.is_empty:
            text = wording.nothing_to_read(event.unread)
            self.services.metrics.message("refused")
            await self.services.notices.refuse(event, text, key=notice_key("rejected", event.inbound_id))
            await self._close(event, InboundStatus.REJECTED, reason=text)
        else:
            if source.platform in self.adapters:
                self.adapters[source.platform]._pending_messages.pop(key, None)  # noqa: SLF001 - see _handle_message
            self._running_agents[key] = _AGENT_PENDING_SENTINEL
            try:
                await self._handle_message_with_agent(event, source, key)
            finally:
                self._end_turn(key)

    def _end_turn(self, key: str) -> None:
        self._running_agents.pop(key, None)
        self.workers.stop_requested.discard(key)

    async def _handle_message_with_agent(
        self, event: MessageEvent, source: SessionSource, key: str
    ) -> str | None:
        """Hand a message over to an agent, and retry after a temporary failure of the store."""
        for pause_ms in _PAUSES_MS:
            try:
                await self._hand_over(event, source, key)
            except StoreError as error:
                if not error.retryable:
                    raise
                await self.services.timer.sleep(pause_ms)
            else:
                return None
        await self._hand_over(event, source, key)
        return None

    async def _hand_over(
        self, event: MessageEvent, source: SessionSource, key: str, draft: InboundMessage | None = None
    ) -> None:
        """Hand a message over to the agent of its session.

        Raises:
            NotHandedOver: The draft must be stored before it is handed over.
        """
        services = self.services
        if key in self.workers.stop_requested:
            if draft is not None:
                raise NotHandedOver
            await services.notices.answer(event, wording.STOPPED, key=notice_key("stopped", event.inbound_id))
            await self._close(event, InboundStatus.DONE, reason=wording.STOPPED)
            return
        session, began_anew = await services.sessions.current(key, source)
        if began_anew and services.sessions.reset_policy(session, source).notify:
            await services.notices.tell(source, wording.BEGAN_ANEW, key=f"anew/{session.thread_id}")
        if is_person(source.agent):  # this person answers in place of an agent
            session, _ = await services.sessions.of(key, source)
            if services.stores.is_shared:
                await self._wait_for_earlier(event, key)
            refusal = await services.to_people.pass_on(event, source, session)
            event.handed_over = True
            if refusal is not None:
                services.metrics.message("rejected")
                await services.notices.refuse(event, refusal, key=notice_key("rejected", event.inbound_id))
                await self._close(event, InboundStatus.REJECTED, reason=refusal)
                return
            services.metrics.message("passed_on")
            if event.media or services.acknowledgements.is_due(key):
                person, notice = short_name(source.agent or ""), notice_key("ack", event.inbound_id)
                text = wording.files_not_passed_on(person) if event.media else wording.passed_on(person)
                await services.notices.answer(event, text, key=notice, is_answer=False)
            await self._close(event, InboundStatus.DONE)
            return
        activity = services.sessions.activity(session, source)
        mode = BusyPolicy(event.metadata["busy"]) if "busy" in event.metadata else None
        if draft is None and services.stores.is_shared:
            await self._wait_for_earlier(event, key)
        admission = await services.handover.hand_over(
            event, session, draft=draft, mode=mode, activity=activity
        )
        if activity is not None:
            services.sessions.note(activity)
        services.metrics.message(admission.kind.value)
        if admission.kind is not AdmissionKind.REJECTED:
            if admission.kind is not AdmissionKind.STARTED:  # the run itself shows that somebody is typing
                services.presenter.show_typing(source)
            services.presenter.seen.show(event)
        await self._acknowledge(event, source, key, admission)
        if key in self.workers.stop_requested and admission.kind is AdmissionKind.STARTED:
            await services.handover.cancel(session.thread_id)

    async def _wait_for_earlier(self, event: MessageEvent, key: str) -> None:
        """Wait up to about 1.5 seconds for other processes to hand over earlier messages."""
        services = self.services
        for pause_ms in _PATIENCE_MS:
            waiting = await services.stores.intake_log.open_messages(
                status=InboundStatus.WAITING, session_key=key, limit=1
            )
            if not waiting or waiting[0].inbound_id >= (event.inbound_id or 0):
                return
            await services.timer.sleep(pause_ms)

    async def _acknowledge(
        self, event: MessageEvent, source: SessionSource, key: str, admission: Admission
    ) -> None:
        services, text = self.services, admission.text
        is_taken = admission.kind is not AdmissionKind.REJECTED
        if event.unread and is_taken and source.platform not in ANSWER_ONLY:
            unread = notice_key("unread", event.inbound_id)
            notice = wording.not_read(event.unread)
            await services.notices.answer(event, notice, key=unread, is_answer=False)
        if text is None:
            return
        if admission.kind is AdmissionKind.REJECTED:
            may_wait = text == wording.BUSY and source.platform not in ANSWER_ONLY
            if not may_wait or services.acknowledgements.is_due(f"refused {key}"):
                await services.notices.refuse(event, text, key=notice_key("rejected", event.inbound_id))
            await self._close(event, InboundStatus.REJECTED, reason=text)
        elif source.platform not in ANSWER_ONLY and services.acknowledgements.is_due(key):
            key = notice_key("ack", event.inbound_id)
            await services.notices.waits(event, source, text, key=key)

    async def _close(self, event: MessageEvent, to: InboundStatus, *, reason: str | None = None) -> None:
        if event.inbound_id is None:
            return
        try:
            await self.services.stores.intake_log.move(
                [event.inbound_id], InboundMove(status=to, reason=reason)
            )
        except IllegalTransition as error:
            _LOG.info("message.closed_before", inbound_id=event.inbound_id, reason=error.message)

    # Senders and sessions.

    def _is_user_authorized(self, source: SessionSource) -> bool:
        return self._services is not None and self._services.people.may_write(source)

    def _session_key_for_source(self, source: SessionSource) -> str:
        config = self.config
        return build_session_key(source, config.group_sessions_per_user, config.thread_sessions_per_user)

    def _knows(self, source: SessionSource) -> bool:
        """Return whether a person has at least the role of a viewer in the chat."""
        if self._is_user_authorized(source):
            return True
        return self._services is not None and self._services.people.may(source, PersonRole.VIEWER)

    # Commands.

    async def _obey(self, event: MessageEvent, source: SessionSource, key: str) -> Answer:
        """Execute a command without waiting for active runs."""
        name = event.get_command() or ""
        command = BY_NAME.get(name)
        if command is None:
            return wording.unknown_command(name)
        if not self._may_use(command, source):
            return wording.NOT_ALLOWED
        if (refusal := command.refusal(name, event.get_command_args())) is not None:
            return refusal
        is_starting = self._running_agents.get(key) is _AGENT_PENDING_SENTINEL
        if (
            not command.has_turn
            and is_starting
            and not (self._services is not None and key in self._services.presenter.runs)
        ):
            self.workers.stop_requested.add(key)
            return wording.STARTING_UP
        if command.name == "help" and self._services is None:
            return help_text(
                lambda command: event.source is None or self._may_use(command, event.source),
                event.get_command_args(),
            )
        return await self.services.commands.obey(command, event, source, key)

    def _may_use(self, command: Command, source: SessionSource) -> bool:
        return self._services is None or self._services.commands.may_use(command, source)

    async def pressed(self, press: ButtonPress) -> str:
        """Execute the command of a pressed button as if the person had sent the command."""
        event = MessageEvent(text=f"/{press.value}", source=press.source)
        if not self._knows(press.source):
            return wording.NOT_ALLOWED
        answer = await self._obey(event, press.source, self._session_key_for_source(press.source))
        note = answer.text if isinstance(answer, Card) else answer or ""
        command = BY_NAME.get(event.get_command())
        is_answer = command is not None and command.answers_question
        if press.message_id is not None and not is_answer and note not in ("", wording.NOT_ALLOWED):
            await self.services.notices.show_chosen(press, note)
        return note

    # Stopping.

    async def stop(self) -> None:
        """Stop the runner. A repeated call waits until the first call has finished.

        Active runs get time to finish, and are interrupted when the time is over. Unfinished work continues
        at the next start.
        """
        running = self.__dict__.get("_stopping")
        if running is not None:
            await asyncio.shield(running)
            return
        done = self._stopping = asyncio.get_running_loop().create_future()
        try:
            await self._stop()
        finally:
            done.set_result(None)

    async def _stop(self) -> None:
        self._running = False
        if self._services is not None:
            await self._services.wind_down()
        agents = list(self._running_agents.values())
        if self._services is not None:
            agents += self._services.presenter.runs.values()
        for agent in agents:
            interrupt = getattr(agent, "interrupt", None)
            if interrupt is not None:
                interrupt(SHUTTING_DOWN)
        for adapter in self.adapters.values():
            try:
                await adapter.disconnect()
            except Exception as error:  # disconnect the other channels after any error
                _LOG.exception("channel.not_disconnected", reason=type(error).__name__)
        self.adapters = {}
        for shown in (self._running_agents, self._pending_messages, self._pending_approvals):
            shown.clear()
        farewell = self.__dict__.get("_shutdown_all_gateway_honcho")
        if farewell is not None:
            farewell()
        self._shutdown_event.set()
        folder = self.config.state_dir
        await asyncio.to_thread(status.remove_pid_file, folder)
        await asyncio.to_thread(
            status.write_runtime_status, folder, gateway_state="stopped", exit_reason=self._exit_reason
        )
