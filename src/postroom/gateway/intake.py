"""Takes messages in: kept first, then handed over in order, each once.

adapter ─▶ accept: kept in the intake log ─▶ the adapter tells its platform ─▶ (in the background) the runner
start ─▶ messages that a crash left waiting: in order, before anything new ─▶ the runner
now and then ─▶ messages of processes that died ─▶ the runner
"""

import asyncio
from collections import Counter
from dataclasses import replace

from postroom.contracts.chat import (
    ChatSession,
    InboundDraft,
    InboundMessage,
    InboundMove,
    InboundStatus,
)
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import (
    AlreadyConsumed,
    IllegalTransition,
    InvalidRecord,
    PostroomError,
    StoreUnavailable,
    TooLarge,
    UnknownMessage,
)
from postroom.contracts.run_ports import ThreadStore
from postroom.gateway import wording
from postroom.gateway.config import GatewayConfig
from postroom.gateway.events import ButtonPress, MessageEvent
from postroom.gateway.handover import inbound_key
from postroom.gateway.notices import notice_key
from postroom.gateway.platforms.base import KnownMessage
from postroom.gateway.replies import Reply, ReplyKind, answer_of
from postroom.gateway.run import GatewayRunner, Services
from postroom.gateway.session import SessionSource, build_session_key
from postroom.log import get_logger

_LOG = get_logger(__name__)
MOST_TEXT = 1_000_000
"""Characters of one message."""
_FORGOTTEN = "forgotten_answers"
_LEFT_BEHIND_MS = 60_000
"""After which a message that still waits counts as left by a process that died."""


class Intake:
    """Where adapters hand messages over to."""

    def __init__(
        self,
        config: GatewayConfig,
        runner: GatewayRunner,
        services: Services,
        threads: ThreadStore,
        clock: Clock,
    ) -> None:
        self._config = config
        self._threads = threads
        self._sessions = services.sessions
        self._runner = runner
        self._log = services.stores.intake_log
        self._people = services.people
        self._handover = services.handover
        self._notices = services.notices
        self._metrics = services.metrics
        self._clock = clock
        self._in_hand: set[int] = set()
        self._coming: Counter[str] = Counter()
        """How many messages of each session are between their platform and their thread."""
        self._open = asyncio.Event()
        self.tasks = services.tasks

    # What adapters call.

    async def accept(self, event: MessageEvent) -> None:
        """Keep a message; durable when it returns. One that is known already is passed over.

        Raises:
            StoreError: it could not be kept.
            InputError: it can never be kept.
        """
        source = self._checked(event)
        if not event.addressed:
            return  # said among others, and not to us
        await self._open.wait()
        self._refuse_ended()
        await self._people.learn(source)
        draft = self._draft(event, source)
        is_alone = not self._coming[draft.session_key]  # otherwise it would overtake another
        self._coming[draft.session_key] += 1
        try:
            if is_alone and await self._runner.begin(event, draft):
                self._metrics.message("accepted")
            else:
                await self._keep(event, draft)
        finally:
            self._came(draft.session_key)

    async def _keep(self, event: MessageEvent, draft: InboundDraft) -> None:
        """Keep a message and have it handed over in the background."""
        received = await self._log.receive(draft)
        message = received.message
        if not received.is_new and (
            message.status is not InboundStatus.WAITING or message.inbound_id in self._in_hand
        ):
            self._metrics.message("duplicate")
            return
        self._metrics.message("accepted" if received.is_new else "duplicate")
        if received.is_new:
            event.inbound_id = message.inbound_id
            self._start(event, draft.session_key)
        else:
            await self._resume(message)

    def _came(self, session_key: str) -> None:
        """Note that a message of a session is no longer on its way."""
        self._coming[session_key] -= 1
        if not self._coming[session_key]:
            del self._coming[session_key]

    async def edited(self, event: MessageEvent) -> None:
        """Give a message other words, as long as no run has read it.

        Raises:
            StoreError: it could not be looked up.
        """
        source = self._checked(event)
        await self._people.learn(source)
        if not self._people.may_write(source):
            return
        try:
            message = await self._log.edit(inbound_key(source, event.message_id), event.to_body())
        except (AlreadyConsumed, UnknownMessage):
            return
        event.inbound_id = message.inbound_id
        await self._handover.follow_edit(event, message)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        """Take a message back, as long as no run has read it.

        Raises:
            StoreError: it could not be looked up.
        """
        message = await self._log.find(inbound_key(source, message_id))
        if message is not None and message.status.is_open:
            await self._handover.follow_deletion(message)

    async def pressed(self, press: ButtonPress) -> str:
        """Take a pressed button and return a note for whoever pressed it."""
        await self._people.learn(press.source)
        return await self._runner.pressed(press)

    async def look_up(self, source: SessionSource, message_id: str) -> KnownMessage | None:
        """Return a message that was kept, with its answer when there is one; None when it is not known.

        Raises:
            StoreError: it could not be looked up.
        """
        message = await self._log.find(inbound_key(source, message_id))
        if message is None:
            return None
        answer = None if message.status.is_open else await self._answer_to(message)
        session = await self._sessions.load(message.session_key)
        return KnownMessage(
            event=MessageEvent.from_body(message.body, inbound_id=message.inbound_id),
            received_at=message.received_at,
            answer=None if answer is None else answer.text,
            details={} if answer is None else answer.details,
            is_forgotten=session is not None and message_id in session.settings.get(_FORGOTTEN, ()),
        )

    async def forget_answer(self, source: SessionSource, message_id: str) -> None:
        """Have the answer to a message not be shown any more; the conversation keeps it.

        Raises:
            StoreError: it could not be stored.
            UnknownThread: the message began no session.
        """
        key = self._draft(MessageEvent(message_id=message_id), source).session_key

        def forgotten(session: ChatSession) -> ChatSession:
            ids = [one for one in session.settings.get(_FORGOTTEN, ()) if one != message_id]
            return replace(session, settings={**session.settings, _FORGOTTEN: [*ids, message_id]})

        await self._sessions.changed(key, forgotten)

    async def _answer_to(self, message: InboundMessage) -> Reply:
        """Return what a message that is not open any more was answered."""
        thread_id = message.thread_id or ""
        if message.status in (InboundStatus.REJECTED, InboundStatus.RETRACTED):
            why = message.reason or message.status.value
            return Reply(
                kind=ReplyKind.NOTICE, thread_id=thread_id, text=why, error=f"{wording.REFUSED}: {why}"
            )
        for run in await self._threads.latest_runs(thread_id) if thread_id else ():
            if run.input is not None and message.thread_message_id in run.input.trigger_message_ids:
                return answer_of(run)
        return Reply(kind=ReplyKind.NOTICE, thread_id=thread_id, text=wording.NO_ANSWER)

    # What was left behind.

    async def recover(self) -> int:
        """Hand over what a crash left waiting, in order; then let others in. Return how many that were."""
        taken = await self._resume_waiting(older_than=None)
        self._open.set()
        return taken

    async def sweep(self) -> int:
        """Hand over what processes that died have left waiting; return how many messages."""
        return await self._resume_waiting(older_than=self._clock.now() - _LEFT_BEHIND_MS)

    async def close(self) -> None:
        """Let nothing more in, and end what is being handed over: it is kept. Who waits is refused."""
        await self.tasks.close()
        self._open.set()

    def _refuse_ended(self) -> None:
        if self.tasks.closed:
            raise StoreUnavailable("the gateway is ending; send it again")

    async def _resume_waiting(self, *, older_than: int | None) -> int:
        taken, after = 0, 0
        while page := await self._log.open_messages(status=InboundStatus.WAITING, after=after):
            after = page[-1].inbound_id
            for message in page:
                late = older_than is None or message.updated_at < older_than
                if late and message.inbound_id not in self._in_hand:
                    taken += await self._resume(message)
        return taken

    async def _resume(self, message: InboundMessage) -> bool:
        try:
            event = MessageEvent.from_body(
                message.body, inbound_id=message.inbound_id, revision=message.revision
            )
        except (KeyError, TypeError, ValueError) as error:
            await self._reject(message.inbound_id, f"it cannot be read: {type(error).__name__}")
            return False
        most = self._config.max_message_age
        if self._clock.now() - message.received_at > milliseconds(most):
            notice = wording.too_old(int(most.total_seconds() // 60))
            await self._notices.refuse(event, notice, key=notice_key("told", message.inbound_id))
            await self._reject(message.inbound_id, notice)
            return False
        if event.source is not None:
            await self._people.learn(event.source)
        self._start(event, message.session_key)
        return True

    async def _reject(self, inbound_id: int, why: str) -> None:
        try:
            await self._log.move([inbound_id], InboundMove(status=InboundStatus.REJECTED, reason=why))
        except IllegalTransition:
            return  # another process was faster
        self._metrics.message("rejected")

    def _start(self, event: MessageEvent, session_key: str) -> None:
        """Hand a message over in the background. Those of one session are begun in the order of the calls."""
        inbound_id = event.inbound_id or 0
        if self.tasks.closed:
            return  # it is kept, and found at the next start
        self._in_hand.add(inbound_id)
        self._coming[session_key] += 1
        self.tasks.start(self._run_handler(event, inbound_id, session_key), name=f"message {inbound_id}")

    async def _run_handler(self, event: MessageEvent, inbound_id: int, session_key: str) -> None:
        try:
            await self._runner.handle(event)
        except PostroomError as error:
            _LOG.warning("message.left_waiting", inbound_id=inbound_id, reason=error.describe())
        finally:
            self._in_hand.discard(inbound_id)
            self._came(session_key)

    def _checked(self, event: MessageEvent) -> SessionSource:
        source = event.source
        if source is None or not event.message_id or not (source.chat_id or source.user_id):
            raise InvalidRecord(
                "a message needs a source, a chat and an id of its own", value=event.message_id
            )
        if event.metadata.get("verified") is False:  # whoever it says it is from may not have sent it
            source = event.source = replace(source, user_id=None)
        if len(event.text) > MOST_TEXT:
            raise TooLarge(f"a message of {len(event.text)} characters", value=len(event.text))
        size = sum(file.size or 0 for file in event.media)
        if size > self._config.max_media_bytes:
            raise TooLarge(f"files of {size} bytes; {self._config.max_media_bytes} are the most", value=size)
        return source

    def _draft(self, event: MessageEvent, source: SessionSource) -> InboundDraft:
        return InboundDraft(
            key=inbound_key(source, event.message_id),
            session_key=build_session_key(
                source, self._config.group_sessions_per_user, self._config.thread_sessions_per_user
            ),
            sender_id=source.user_id,
            body=event.to_body(),
        )
