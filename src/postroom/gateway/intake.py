"""Receives messages: stores each message, then handles it once, in the order of its chat.

adapter ─▶ accept: stored in the intake log ─▶ the adapter tells its platform ─▶ (in the background) its turn
start ─▶ messages that a crash left waiting: in order, before anything new ─▶ their turns
every 15 seconds ─▶ messages of processes that died ─▶ their turns
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256

from postroom.contracts.chat import (
    MAX_INBOUND,
    InboundMessage,
    InboundMove,
    InboundStatus,
)
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import (
    AlreadyConsumed,
    IllegalTransition,
    InvalidRecord,
    StoreUnavailable,
    SubmissionRejected,
    TooLarge,
    UnknownMessage,
)
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus
from postroom.gateway import wording
from postroom.gateway.commands import BY_NAME, may_be_changed_into
from postroom.gateway.config import GatewayConfig, reachable, short_name
from postroom.gateway.events import ButtonPress, Card, MessageEvent
from postroom.gateway.group_talk import GroupTalk
from postroom.gateway.handover import CHANGED_INTO_COMMAND
from postroom.gateway.notices import notice_key
from postroom.gateway.platforms.base import KnownMessage, Metadata
from postroom.gateway.replies import answer_of, cards_of, list_inbound_ids
from postroom.gateway.routes import decide
from postroom.gateway.run import ChatWorker, GatewayRunner, Services, get_album_id
from postroom.gateway.session import SessionSource, inbound_key
from postroom.log import get_logger

_LOG = get_logger(__name__)
MAX_TEXT_SIZE = 1_000_000
"""Maximum characters of one message."""
_FORGOTTEN = "forgotten_answers"
"""The session setting in which earlier releases listed the messages whose answers must not be shown."""
_CANCELLED = "the caller cancelled the request"
"""The reason stored with a message whose caller closed the connection or cancelled the request."""
_CANCEL = InboundMove(status=InboundStatus.RETRACTED, reason=_CANCELLED)
_LEFT_BEHIND_MS = 60_000
"""The age at which a waiting message is assumed to be left over by a process that died."""
_MAX_ALBUMS = 1_000
_MAX_THREADS = 10_000


class Intake:
    """Receives the messages of all adapters."""

    def __init__(
        self,
        config: GatewayConfig,
        runner: GatewayRunner,
        services: Services,
        clock: Clock,
    ) -> None:
        self._config = config
        self._runner = runner
        self._stores = services.stores
        self._log = services.stores.intake_log
        self._people = services.people
        self._sessions = services.sessions
        self._group_talk = GroupTalk(config.group_context)
        self._handover = services.handover
        self._notices = services.notices
        self._metrics = services.metrics
        self._clock = clock
        self._albums_for_us: OrderedDict[tuple[str, SessionSource], SessionSource] = OrderedDict()
        """The newest albums, keyed by id and sender.

        Only the first message of an album mentions the bot. The mention applies to the whole album.
        """
        self._threads_answered: OrderedDict[tuple[str, ...], bool] = OrderedDict()
        """Whether the bot answers in a platform's thread, for the newest threads."""
        self._open = asyncio.Event()
        self.tasks = services.tasks

    # Called by adapters.

    async def accept(self, event: MessageEvent) -> None:
        """Store a message, and queue the message for the worker of its chat.

        A message that is already stored is ignored.

        Raises:
            StoreError: The message could not be stored.
            InputError: The message can never be stored.
        """
        source = self._check_source(event)
        worker = self._runner.workers.of(source)
        command = BY_NAME.get(event.get_command())
        if command is not None and not command.has_turn:
            await self._store_arrival(event, source, ChatWorker())
            return
        async with worker.accepting:
            await worker.decided.wait()
            await self._store_arrival(event, source, worker)

    async def _store_arrival(self, event: MessageEvent, source: SessionSource, worker: ChatWorker) -> None:
        """Store a message that is addressed to the bot, and pass it to the chat's worker."""
        await self._open.wait()
        if self.tasks.closed:
            raise StoreUnavailable("the gateway is shutting down; send the message again")
        known_source = (
            None if get_album_id(event) is None else self._albums_for_us.get(_sent_album(event, source))
        )
        root = event.metadata.get("thread_root")
        if not event.addressed and root is not None and not source.is_bot:
            # The message may continue a thread in which the bot answers without a mention.
            place = (source.platform.value, source.account, source.chat_id, root)
            if place not in self._threads_answered:
                first = await self._log.find(inbound_key(source, root))
                unanswered = (InboundStatus.REJECTED, InboundStatus.RETRACTED)
                is_ours = first is not None and first.status not in unanswered
                if not is_ours:
                    is_ours = await self._sessions.load(self._config.session_key(source)) is not None
                self._note_thread(event, source, is_answered=is_ours)
            event.addressed = self._threads_answered[place]
        if not (event.addressed or known_source or self._config.routes or self._config.group_context):
            return  # people are talking to each other, not to the bot
        source = await self._people.learn(source)
        routed = known_source or await self._route(event, source)
        if routed is None:
            return
        source = event.source = routed
        if get_album_id(event) is not None:
            self._note_album(event, source)
        if "thread_root" in event.metadata and event.addressed and self._people.may_write(source):
            self._note_thread(event, source, is_answered=True)
        session_key = self._config.session_key(source)
        if self._config.group_context and not event.is_command():
            event.metadata = self._group_talk.unread(source, session_key) | event.metadata
        draft = InboundMessage(
            key=inbound_key(source, event.message_id),
            session_key=session_key,
            sender_id=source.user_id,
            body=event.to_body(),
        )
        if await self._runner.begin(event, draft, worker):
            self._metrics.message("accepted")
            return
        received = await self._log.receive(draft)
        self._metrics.message("accepted" if received.is_new else "duplicate")
        event.inbound_id = received.message.inbound_id
        if received.is_new:
            worker.put(event)
            self._runner.go_on(worker)
        elif received.message.status is InboundStatus.WAITING:
            await self._resume(received.message)

    def _note_thread(self, event: MessageEvent, source: SessionSource, *, is_answered: bool) -> None:
        root = event.metadata.get("thread_root")
        if root is not None:
            place = (source.platform.value, source.account, source.chat_id, root)
            self._threads_answered[place] = is_answered
            self._threads_answered.move_to_end(place)
            while len(self._threads_answered) > _MAX_THREADS:
                self._threads_answered.popitem(last=False)

    async def _route(self, event: MessageEvent, source: SessionSource) -> SessionSource | None:
        """Return the message's source with the agent that answers, or None if no agent answers."""
        chosen = await self._sessions.chosen_agent(source) if event.addressed else None
        if chosen is not None and chosen not in reachable(self._config.routes, source):
            await self._sessions.choose_agent(source, None)
            key = f"gone/{chosen}/{self._clock.now()}"
            await self._notices.tell(source, wording.agent_gone(short_name(chosen)), key=key)
            chosen = None
        decision = decide(self._config.routes, event, chosen)
        if decision is not None:
            return replace(source, agent=decision.agent)
        if self._people.may(source, PersonRole.VIEWER):
            passed_on = (
                f"(forwards {forwarded.author or 'somebody'}: {forwarded.text})"
                for forwarded in event.forwarded
            )
            self._group_talk.heard(source, event.message_id, " ".join((event.text, *passed_on)))
        return None

    async def edited(self, event: MessageEvent) -> None:
        """Apply a sender's edit to a message that no run has read.

        If a run has already read the message, the sender gets a notice.

        Raises:
            StoreError: The message could not be read.
        """
        source = self._check_source(event)
        await self._people.learn(source)
        if not self._people.may_write(source):
            return
        key = inbound_key(source, event.message_id)
        known_message = await self._log.find(key)
        if known_message is None:
            return
        event.inbound_id = known_message.inbound_id
        text, before = event.text, MessageEvent.from_body(known_message.body)
        if not may_be_changed_into(before, event):
            # Withdraw a message that an edit has turned into a command, without performing the command.
            if text == before.text:
                return
            in_time = known_message.status.is_open and await self._handover.follow_deletion(
                known_message, reason=CHANGED_INTO_COMMAND
            )
            command = text.split(maxsplit=1)[0]
            done = wording.edited_into(command) if in_time else _too_late(known_message)
            await self._tell_of_edit(event, text, done)
            return
        if not event.media and not event.forwarded and not event.get_command_args().strip():
            return  # the edit removed all text and files, but did not delete the message
        # An edit changes neither the agent that answers nor the earlier messages of the group in `metadata`.
        was = before.source or source
        event.source = replace(source, agent=was.agent, person=was.person)
        event.metadata = {**known_message.body.get("metadata", {}), **event.metadata}
        if get_album_id(event) is not None:
            # an edit contains one file, but the stored message contains those of the whole album
            event.media = before.media
        try:
            kept_message = await self._log.edit(key, event.to_body())
            event.text = event.get_command_args()
            in_time = await self._handover.follow_edit(event, kept_message)
        except UnknownMessage:
            return
        except AlreadyConsumed:
            in_time = False
        # Platforms report an edit even if only a preview or a reaction was added.
        if not in_time and (before.text != text or known_message.reason == CHANGED_INTO_COMMAND):
            await self._tell_of_edit(event, text, _too_late(known_message))

    async def _tell_of_edit(self, event: MessageEvent, told: str, text: str) -> None:
        """Tell the sender the result of an edit, once for each edited text."""
        words = sha256(told.encode("utf-8", "replace")).hexdigest()[:16]
        key = f"{notice_key('edited', event.inbound_id)}/{words}"
        await self._notices.answer(event, text, key=key, is_answer=False)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        """Withdraw a message that the sender deleted, if no run has read the message.

        Raises:
            StoreError: The message could not be read.
        """
        message = await self._log.find(inbound_key(source, message_id))
        if message is not None and message.status.is_open:
            await self._handover.follow_deletion(message)

    async def moved(self, source: SessionSource, chat_id: str) -> None:
        """Move the sessions of a group to the group's new chat id.

        Raises:
            StoreError: The change could not be stored.
        """
        moved = await self._sessions.follow(source.platform, source.account, source.chat_id, chat_id)
        _LOG.info("chat.moved", platform=source.platform.value, sessions=moved)

    async def pressed(self, press: ButtonPress) -> str:
        """Handle a pressed button and return a note for the person who pressed it."""
        source = await self._people.learn(press.source)
        return await self._runner.pressed(replace(press, source=source))

    async def look_up(self, source: SessionSource, message_id: str) -> KnownMessage | None:
        """Return a stored message and its answer, or None for an unknown message.

        Raises:
            StoreError: The message could not be read.
        """
        message = await self._log.find(inbound_key(source, message_id))
        if message is None:
            return None
        answer: str | None = None
        details: Metadata = {}
        if message.status in (InboundStatus.REJECTED, InboundStatus.RETRACTED):
            answer = message.reason or message.status.value
            details = {"error": answer, "code": SubmissionRejected.code}
        elif not message.status.is_open:
            run, reasoning = await self._stores.run_that_read(message)
            if run is not None:
                ended = answer_of(run)
                answer, details = ended.text, {**ended.details, "reasoning": reasoning}
            else:
                answer = message.reason or wording.ANSWER_NOT_STORED
                is_answer = message.status is InboundStatus.DONE and message.reason is not None
                details = {} if is_answer else {"error": answer}
        session = await self._sessions.load(message.session_key)
        is_listed = session is not None and message_id in session.settings.get(_FORGOTTEN, ())
        return KnownMessage(
            event=MessageEvent.from_body(message.body, inbound_id=message.inbound_id),
            received_at=message.received_at,
            answer=answer,
            details=details,
            is_forgotten=message.body.get("metadata", {}).get("forgotten", False) or is_listed,
            is_cancelled=_has_cancellation(message),
        )

    async def cards_of(self, source: SessionSource, message_id: str) -> Sequence[Card]:
        """Return the cards of the last questions that the run of an unanswered message asked.

        The first card also contains the agent's text before the questions.

        Raises:
            StoreError: The run could not be read.
        """
        message = await self._log.find(inbound_key(source, message_id))
        run = None if message is None else (await self._stores.run_that_read(message))[0]
        return [] if run is None or run.status is RunStatus.DONE else cards_of(run)

    async def forget_answer(self, source: SessionSource, message_id: str) -> None:
        """Hide the answer to a message from callers that look it up by the message.

        The history of the conversation still contains the answer.

        Raises:
            StoreError: The change could not be stored.
            UnknownMessage: The message was never received.
        """
        await self._log.forget_answer(inbound_key(source, message_id))

    async def cancel_answer(
        self, source: SessionSource, message_id: str, is_waited_for: Callable[[str], bool]
    ) -> bool:
        """Cancel the run that answers a message, or withdraw a message that no run has read.

        A run continues if it also answers a background request or a message for which `is_waited_for` returns
        True. Return False if the run continues, or if the message is already answered.

        Raises:
            StoreError: The cancellation could not be stored.
        """
        key = inbound_key(source, message_id)
        message = await self._log.find(key)
        if message is not None and message.status is InboundStatus.WAITING:
            await self._record_cancellation(message)
            message = await self._log.find(key)
            if message is not None and message.thread_id is None:
                return message.status is InboundStatus.RETRACTED
        elif message is None or not (message.status.is_open or _has_cancellation(message)):
            return False
        if message is None or message.thread_id is None:
            return False
        name = message.thread_message_id
        if await self._log.withdraw(message.thread_id, _CANCEL, message_id=name):
            return True
        run, _ = await self._stores.run_that_read(message)
        if run is None or run.status is RunStatus.DONE:
            return _has_cancellation(message)
        read, _ = await self._stores.answered(list_inbound_ids(run)[:MAX_INBOUND], run.thread_id, None)
        for other in read:
            is_background = other.body.get("metadata", {}).get("background", False)
            if other.key.message_id != message_id and (is_background or is_waited_for(other.key.message_id)):
                return False
        await self._record_cancellation(message)
        return await self._handover.cancel(run.run_id)

    async def _record_cancellation(self, message: InboundMessage) -> None:
        """Record that the caller cancelled a message that has no answer yet."""
        with suppress(IllegalTransition):
            await self._log.move([message.inbound_id], _CANCEL)

    # Messages that were left behind.

    async def recover(self) -> int:
        """Hand over the unfinished messages of earlier processes in order, and begin to accept new messages.

        Return the number of unfinished messages.
        """
        taken = await self._resume_waiting(older_than=None)
        self._open.set()
        return taken

    async def sweep(self) -> int:
        """Hand over the messages that dead processes left, and return the number of messages."""
        return await self._resume_waiting(older_than=self._clock.now() - _LEFT_BEHIND_MS)

    async def close(self) -> None:
        """Stop the workers, and accept no more messages.

        Callers that still wait in `accept` get an error.
        """
        await self.tasks.close()
        for worker in list(self._runner.workers.by_chat.values()):
            worker.stop()
        self._open.set()

    async def _resume_waiting(self, *, older_than: int | None) -> int:
        taken, after = 0, 0
        while page := await self._log.open_messages(status=InboundStatus.WAITING, after=after):
            after = page[-1].inbound_id
            for message in page:
                if older_than is None or message.updated_at < older_than:
                    taken += await self._resume(message)
        return taken

    async def _resume(self, message: InboundMessage) -> bool:
        """Add a stored message to the queue of its chat, and return whether the queue contains it."""
        try:
            event = MessageEvent.from_body(
                message.body, inbound_id=message.inbound_id, revision=message.revision
            )
        except (KeyError, TypeError, ValueError) as error:
            await self._reject(
                message.inbound_id, f"the stored message cannot be read: {type(error).__name__}"
            )
            return False
        if event.source is None:
            return False
        worker, most = self._runner.workers.of(event.source), self._config.max_message_age
        if self._clock.now() - message.received_at > milliseconds(most):
            notice = wording.too_old(int(most.total_seconds() // 60))
            await self._notices.refuse(event, notice, key=notice_key("told", message.inbound_id))
            await self._reject(message.inbound_id, notice)
            return False
        await worker.decided.wait()
        event.source = await self._people.learn(event.source)
        if get_album_id(event) is not None:
            self._note_album(event, event.source)
        if worker.has(message.inbound_id):
            return False
        worker.put(event)
        self._runner.go_on(worker)
        return True

    async def _reject(self, inbound_id: int, why: str) -> None:
        try:
            await self._log.move([inbound_id], InboundMove(status=InboundStatus.REJECTED, reason=why))
        except IllegalTransition:
            return  # another process handed the message over first
        self._metrics.message("rejected")

    def _note_album(self, event: MessageEvent, source: SessionSource) -> None:
        """Remember that an album of files is addressed to the bot."""
        self._albums_for_us[_sent_album(event, source)] = source
        while len(self._albums_for_us) > _MAX_ALBUMS:
            self._albums_for_us.popitem(last=False)

    def _check_source(self, event: MessageEvent) -> SessionSource:
        source = event.source
        if source is None or not event.message_id or not (source.chat_id or source.user_id):
            raise InvalidRecord("a message needs a source, a chat and a unique id", value=event.message_id)
        if event.metadata.get("verified") is False:  # the address of the sender may be forged
            source = event.source = replace(source, user_id=None)
        if len(event.text) > MAX_TEXT_SIZE:
            raise TooLarge(f"the message has {len(event.text)} characters", value=len(event.text))
        return source


def _has_cancellation(message: InboundMessage) -> bool:
    """Return whether the caller has cancelled a message."""
    return message.status is InboundStatus.RETRACTED and message.reason == _CANCELLED


def _too_late(known: InboundMessage) -> str:
    """Return the notice that an edit came too late."""
    unread = known.status in (InboundStatus.RETRACTED, InboundStatus.REJECTED)
    return wording.EDITED_UNREAD if unread else wording.EDITED_TOO_LATE


def _sent_album(event: MessageEvent, source: SessionSource) -> tuple[str, SessionSource]:
    """Return the key that identifies the album of a message."""
    return get_album_id(event) or "", replace(source, agent=None, person=None)
