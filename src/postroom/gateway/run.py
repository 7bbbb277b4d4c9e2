"""The runner: what becomes of each message of each chat. One message of a session is handed over at a time.

    stranger ─▶ a pairing code, or nothing          command ─▶ done at once, never prompt text, never queued
    message ─▶ admitted in one step without an await ─▶ handed over, the session's others after it, in order

What is busy is decided by the mailbox for all processes; the guard here decides who of this one speaks. It is
what `_running_agents` and the adapters' `_pending_messages` show.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from postroom.concurrency import Tasks
from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat import ChatSession, InboundDraft, InboundMove, InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import IllegalTransition, PostroomError, StoreError
from postroom.gateway import status, wording
from postroom.gateway.admission import AGENT_PENDING, SessionGuard
from postroom.gateway.commands import ANSWERS_QUESTIONS, Answer, Command, Commands, help_text, resolve_command
from postroom.gateway.config import GatewayConfig, is_person, short_name
from postroom.gateway.events import ButtonPress, Card, MessageEvent
from postroom.gateway.handover import NOTHING_ELSE, Admission, AdmissionKind, Handover
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.notices import Notices, notice_key
from postroom.gateway.people import People
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.reminders import span_in_words
from postroom.gateway.session import ANSWER_ONLY, Platform, SessionSource, build_session_key
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import StreamingPresenter
from postroom.gateway.to_people import ToPeople
from postroom.log import get_logger
from postroom.stores.chats.stores import ChatStores
from postroom.stores.transaction import Joined

_LOG = get_logger(__name__)
_AGENT_PENDING_SENTINEL = AGENT_PENDING
_PATIENCE_MS = (5, 10, 20, 50, 100, 200, 400, 800)
_ACKNOWLEDGED_EVERY_MS = 30_000
_MOST_SESSIONS = 10_000
_PAUSES_MS = (50, 200, 500, 1_000, 2_000, 4_000)
SHUTTING_DOWN = "Gateway shutting down"


class Acknowledgements:
    """Keeps a busy session from being told of each message: one in half a minute says enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: OrderedDict[str, int] = OrderedDict()

    def is_due(self, key: str) -> bool:
        """Say whether something may be said now; then it counts as said."""
        now = self._clock.now()
        before = self._told.get(key)
        if before is not None and 0 <= now - before < _ACKNOWLEDGED_EVERY_MS:
            return False
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > _MOST_SESSIONS:
            self._told.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a runner works with."""

    stores: ChatStores
    sessions: Sessions
    people: People
    handover: Handover
    notices: Notices
    commands: Commands
    presenter: StreamingPresenter
    wind_down: Callable[[], Awaitable[None]]
    """Lets runs and answers have their time."""
    timer: Timer
    tasks: Tasks
    """In which messages are handed over in the background."""
    metrics: GatewayMetrics
    acknowledgements: Acknowledgements
    to_people: ToPeople


class GatewayRunner:
    """Takes events of all platforms and has each become a command, a refusal, or work for an agent.

    Names with an underscore are what others look at and set: `_running_agents`, `_handle_message` and their
    like are views of the guard, also on a runner that was made without `__init__`.
    """

    config: GatewayConfig
    adapters: Mapping[Platform, BasePlatformAdapter]
    _services: Services | None = None
    _running = False
    _exit_reason: str | None = None

    def __init__(self, config: GatewayConfig, services: Services) -> None:
        self.config = config
        self.adapters = {}
        self._services = services
        self._guard = services.presenter.guard
        self._pending_messages: dict[str, str] = {}
        self._pending_approvals: dict[str, object] = {}
        self._voice_mode: dict[str, str] = {}
        self._shutdown_event = asyncio.Event()
        self._stopping: asyncio.Future[None] | None = None

    # What others look at.

    @property
    def services(self) -> Services:
        """What it works with; a runner that was made without `__init__` has nothing."""
        if self._services is None:
            raise PostroomError("this runner was made without its services")
        return self._services

    @property
    def guard(self) -> SessionGuard:
        """Which sessions are being handed over for."""
        found = self.__dict__.get("_guard")
        if not isinstance(found, SessionGuard):
            found = self.__dict__["_guard"] = SessionGuard()
        return found

    @property
    def _running_agents(self) -> dict[str, object]:
        return self.guard.running

    @_running_agents.setter
    def _running_agents(self, shown: dict[str, object]) -> None:
        self.guard.running = shown

    # A message.

    async def handle(self, event: MessageEvent) -> None:
        """Take a message that was kept: what is to be said at once is said, and one that is done is closed.

        Raises:
            StoreError: it is not done; the message still waits.
        """
        text, source = await self._handle_message(event), event.source
        if source is None or event.inbound_id is None:
            return
        if text is not None:
            await self.services.notices.answer(event, text, key=notice_key("said", event.inbound_id))
        if event.is_command() and not event.handed_over and self._knows(source):
            reason = text.text if isinstance(text, Card) else text
            await self._close(event, InboundStatus.DONE, reason=reason)

    async def begin(self, event: MessageEvent, draft: InboundDraft) -> bool:
        """Keep a message and hand it over, in one change; only where nothing is at work in its session.

        False: nothing was written that another try would not find.
        """
        source, key, guard, tasks = event.source, draft.session_key, self.guard, self.services.tasks
        if source is None or event.is_command() or not self._is_user_authorized(source):
            return False
        if event.is_empty or "automatic" in event.metadata:
            return False
        if is_person(source.agent):
            return False
        if key in guard.running or key in guard.waiting or not guard.admit(key, event):
            return False
        try:
            return await self._hand_over(event, source, key, draft)
        except PostroomError as error:
            _LOG.info("message.not_begun_at_once", reason=error.describe())
            return False
        finally:
            if guard.head(key) is None or tasks.closed:
                guard.abandon(key)
            else:
                tasks.start(self._go_on(key), name=f"messages of {key}")

    async def _handle_message(self, event: MessageEvent) -> Answer:
        """Take a message and return what is to be said to it at once, if anything is."""
        source = event.source
        if source is None:
            return None
        key = self._session_key_for_source(source)
        if "automatic" in event.metadata and not (
            event.metadata.get("may_be_a_person") and self._is_user_authorized(source)
        ):
            reason = f"a machine sent it: {event.metadata['automatic']}"
            await self._close(event, InboundStatus.REJECTED, reason=reason)
            return None
        if event.is_command() and self._knows(source):
            return await self._obey(event, source, key)
        if not self._is_user_authorized(source):
            return await self._refuse(event, source)
        if event.is_empty:
            text = wording.nothing_to_read(event.unread)
            self.services.metrics.message("refused")
            await self.services.notices.refuse(event, text, key=notice_key("rejected", event.inbound_id))
            await self._close(event, InboundStatus.REJECTED, reason=text)
            return None
        if not self.guard.admit(key, event):
            self._show_next(key, source)
            return None
        try:
            return await self._handle_message_with_agent(event, source, key)
        finally:
            await self._go_on(key)

    async def _go_on(self, key: str) -> None:
        """Hand over those that came meanwhile, in order; end the handing over in the step that finds none."""
        guard = self.guard
        try:
            while (event := guard.next(key)) is not None:
                source = event.source
                if source is None:
                    continue
                self._show_next(key, source)
                try:
                    await self._handle_message_with_agent(event, source, key)
                except PostroomError as error:
                    _LOG.warning("message.left_waiting", inbound_id=event.inbound_id, reason=error.describe())
        finally:
            guard.abandon(key)

    async def _handle_message_with_agent(
        self, event: MessageEvent, source: SessionSource, key: str
    ) -> str | None:
        """Hand a message over to the agents; their answer comes by the outbox.

        While the store is out of order it is tried again, for the messages behind it must not overtake it.
        """
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
        self, event: MessageEvent, source: SessionSource, key: str, draft: InboundDraft | None = None
    ) -> bool:
        """Hand a message over; with a draft it is kept by that, and False says that it could not be both."""
        services = self.services
        if key in self.guard.stop_wishes:
            await services.notices.answer(event, wording.STOPPED, key=notice_key("stopped", event.inbound_id))
            await self._close(event, InboundStatus.DONE, reason=wording.STOPPED)
            return True
        session, began_anew = await services.sessions.current(key, source)
        if began_anew and services.sessions.reset_policy(session, source).notify:
            await services.notices.tell(source, wording.BEGAN_ANEW, key=f"anew/{session.thread_id}")
        if is_person(source.agent):
            session, _ = await services.sessions.of(key, source)
            await self._pass_on(event, source, session, key)
            return True
        activity = services.sessions.activity(session, source)
        also = NOTHING_ELSE if activity is None else Joined(locks=activity.locks, change=activity.change)
        mode = BusyPolicy(event.metadata["busy"]) if "busy" in event.metadata else None
        if draft is not None:
            admission = await services.handover.begin(event, draft, session, mode=mode, also=also)
            if admission is None:
                return False
        else:
            if services.stores.is_shared:
                await self._wait_for_earlier(event, key)
            admission = await services.handover.hand_over(event, session, mode=mode, also=also)
        if activity is not None:
            services.sessions.note(activity)
        services.metrics.message(admission.kind.value)
        if admission.kind is not AdmissionKind.REJECTED:
            services.presenter.show_typing(source)
            services.presenter.seen.show(event)
        await self._acknowledge(event, source, key, admission)
        if key in self.guard.stop_wishes and admission.kind is AdmissionKind.STARTED:
            await services.handover.stop(session.thread_id)
        return True

    async def _pass_on(
        self, event: MessageEvent, source: SessionSource, session: ChatSession, key: str
    ) -> None:
        """Give a message to the person who answers: it is closed when they have it, or it was refused."""
        services, person = self.services, short_name(source.agent or "")
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
            text = wording.files_not_passed_on(person) if event.media else wording.passed_on(person)
            told = notice_key("ack", event.inbound_id)
            await services.notices.answer(event, text, key=told, is_answer=False)
        await self._close(event, InboundStatus.DONE)

    async def _wait_for_earlier(self, event: MessageEvent, key: str) -> None:
        """Let what other processes took before be handed over first; one that died is not waited for long."""
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
            told = wording.not_read(event.unread)
            await services.notices.answer(event, told, key=unread, is_answer=False)
        if text is None:
            return
        if admission.kind is AdmissionKind.REJECTED:
            may_wait = text == wording.BUSY and source.platform not in ANSWER_ONLY
            if not may_wait or services.acknowledgements.is_due(f"refused {key}"):
                await services.notices.refuse(event, text, key=notice_key("rejected", event.inbound_id))
            await self._close(event, InboundStatus.REJECTED, reason=text)
        elif source.platform not in ANSWER_ONLY and services.acknowledgements.is_due(key):
            key = notice_key("ack", event.inbound_id)
            await services.notices.answer(event, text, key=key, is_answer=False)

    async def _close(self, event: MessageEvent, to: InboundStatus, *, reason: str | None = None) -> None:
        if event.inbound_id is None:
            return
        try:
            await self.services.stores.intake_log.move(
                [event.inbound_id], InboundMove(status=to, reason=reason)
            )
        except IllegalTransition as error:
            _LOG.info("message.closed_before", inbound_id=event.inbound_id, reason=error.message)

    def _show_next(self, key: str, source: SessionSource) -> None:
        """Show at the adapter which event of the session is next: the same object."""
        adapter = self.adapters.get(source.platform)
        if adapter is None:
            return
        head = self.guard.head(key)
        if head is None:
            adapter._pending_messages.pop(key, None)  # noqa: SLF001 - the view is a part of the contract
        else:
            adapter._pending_messages[key] = head  # noqa: SLF001 - as above

    # Who, and where.

    def _is_user_authorized(self, source: SessionSource) -> bool:
        return self._services is not None and self._services.people.may_write(source)

    def _session_key_for_source(self, source: SessionSource) -> str:
        config = self.config
        return build_session_key(source, config.group_sessions_per_user, config.thread_sessions_per_user)

    def _knows(self, source: SessionSource) -> bool:
        """Say whether somebody may at least look: which commands are for them, each command says."""
        if self._is_user_authorized(source):
            return True
        return self._services is not None and self._services.people.may(source, PersonRole.VIEWER)

    async def _refuse(self, event: MessageEvent, source: SessionSource) -> str | None:
        """Refuse a message whose sender may not write: a stranger may be given a code."""
        services = self.services
        services.metrics.message("refused")
        if self._knows(source):
            key = notice_key("rejected", event.inbound_id)
            await services.notices.answer(event, wording.ONLY_LOOKS, key=key)
            await self._close(event, InboundStatus.REJECTED, reason=wording.ONLY_LOOKS)
            return None
        code = await services.people.code_for(source)
        if code is not None:
            lifetime = span_in_words(timedelta(milliseconds=self.config.pairing.code_ms))
            text = wording.pairing(source.platform.value, code, lifetime)
            await services.notices.answer(event, text, key=notice_key("pair", event.inbound_id))
        await self._close(event, InboundStatus.REJECTED, reason="its sender may not write")
        return None

    # Commands.

    async def _obey(self, event: MessageEvent, source: SessionSource, key: str) -> Answer:
        """Do what a command says. It never waits for a run and never becomes what an agent reads."""
        name = event.get_command() or ""
        command = resolve_command(name)
        if command is None:
            return wording.unknown_command(name)
        if not self._may_use(command, source):
            return wording.NOT_ALLOWED
        if (refusal := command.refusal(name, event.get_command_args())) is not None:
            return refusal
        if command.name == "stop" and self.guard.wish_stop(key):
            return wording.STARTING_UP
        if command.name == "help":
            return await self._handle_help_command(event)
        return await self.services.commands.obey(command, event, source, key)

    def _may_use(self, command: Command, source: SessionSource) -> bool:
        return self._services is None or self._services.commands.may_use(command, source)

    async def _handle_help_command(self, event: MessageEvent) -> str:
        return help_text(
            lambda command: event.source is None or self._may_use(command, event.source),
            event.get_command_args(),
        )

    async def pressed(self, press: ButtonPress) -> str:
        """Take a pressed button: it is the command that its value names, said by whoever pressed it."""
        event = MessageEvent(text=f"/{press.value}", source=press.source)
        if not self._knows(press.source):
            return wording.NOT_ALLOWED
        said = await self._obey(event, press.source, self._session_key_for_source(press.source))
        note = said.text if isinstance(said, Card) else said or ""
        is_choice = press.message_id is not None and event.get_command() not in ANSWERS_QUESTIONS
        if is_choice and note not in ("", wording.NOT_ALLOWED):
            await self.services.notices.show_chosen(press, note)
        return note

    # Its end.

    async def stop(self) -> None:
        """End it, once: nothing new is taken, runs and answers get their time, agents are told.

        Nothing that was accepted is lost: what did not end in time is taken up at the next start.
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
        for agent in self.guard.agents():
            interrupt = getattr(agent, "interrupt", None)
            if interrupt is not None:
                interrupt(SHUTTING_DOWN)
        for adapter in self.adapters.values():
            try:
                await adapter.disconnect()
            except Exception as error:  # whatever one channel does, the others are disconnected as well
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
