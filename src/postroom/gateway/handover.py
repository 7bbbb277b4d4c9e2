"""Hands an inbound message over to the agents: it becomes a message that waits on its session's thread.

    inbound message ─▶ its session's thread ─▶ a pending message, read as the policy says ─▶ handed over
                                                │ too many wait, or none may
                                                └─▶ taken back and rejected; its sender is told why

The pending message is named by the inbound one, so all of this can be done again after a crash: what is there
already is passed over.
"""

from dataclasses import dataclass
from enum import StrEnum

import structlog

from postroom.contracts.chat import (
    INBOUND_ID,
    ChatSession,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    IntakeLog,
    chat_lock,
    inbound_id_of,
)
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import AlreadyConsumed, IllegalTransition, UnknownMessage
from postroom.contracts.messages import (
    Boundary,
    ContentBlock,
    DeliveryMode,
    Granularity,
    Message,
    Role,
    storable,
)
from postroom.contracts.run_queue import RunQueue, ThreadState
from postroom.contracts.transactions import Joined, Transaction
from postroom.gateway import wording
from postroom.gateway.config import BusyMode, GatewayConfig
from postroom.gateway.events import MessageEvent, MessageType
from postroom.gateway.session import SessionSource

_LOG = structlog.get_logger(__name__)
_BLOCKS = {
    MessageType.PHOTO: "image",
    MessageType.STICKER: "image",
    MessageType.VIDEO: "video",
    MessageType.AUDIO: "audio",
    MessageType.VOICE: "audio",
}


class AdmissionKind(StrEnum):
    """What became of a message when it was let in."""

    STARTED = "started"
    QUEUED = "queued"
    STEERED = "steered"
    COLLECTED = "collected"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a message, and what its sender is told of that; None when its answer says enough."""

    kind: AdmissionKind
    text: str | None = None


class Handover:
    """Hands inbound messages over, one session's in order."""

    def __init__(self, run_queue: RunQueue, intake_log: IntakeLog, config: GatewayConfig) -> None:
        self._run_queue = run_queue
        self._intake_log = intake_log
        self._config = config

    async def hand_over(
        self, event: MessageEvent, session: ChatSession, *, mode: BusyMode | None = None
    ) -> Admission:
        """Hand a message over and say what became of it.

        Raises:
            StoreError: it could not be kept; the message still waits and is handed over later.
        """
        inbound_id, source = event.inbound_id, event.source
        if inbound_id is None or source is None:
            raise UnknownMessage("a message is handed over only when it was kept", value=event.message_id)
        mode = mode or self.busy_mode(session, source)
        message = message_of(event, shared=self._is_shared(source))
        noted: list[InboundMessage] = []
        joined = self._noting(event, inbound_id, session.thread_id, noted)
        try:
            started = await self._run_queue.deliver(
                session.thread_id, [message], delivery_of(mode, source), joined=joined
            )
        except IllegalTransition:  # it was taken back in the chat, or another process was faster
            event.handed_over = True
            return Admission(AdmissionKind.STARTED)
        admission = Admission(AdmissionKind.STARTED)
        if started is None:
            admission = await self._position(message, session.thread_id, mode)
        if admission.kind is AdmissionKind.REJECTED:
            return admission
        event.handed_over = True
        if noted:
            await self._follow(event, noted[0], session.thread_id)
        else:
            await self._note(event, inbound_id, session.thread_id)
        if mode is BusyMode.INTERRUPT and started is None:
            await self.stop(session.thread_id, begun=True)
        return admission

    def _noting(
        self, event: MessageEvent, inbound_id: int, thread_id: str, noted: list[InboundMessage]
    ) -> Joined:
        """Return what notes, in the transaction that begins a run on a message, that it was handed over."""
        handed = InboundMove(status=InboundStatus.HANDED_OVER, thread_id=thread_id)

        def note(tx: Transaction) -> None:
            noted[:] = [
                inbound.moved(handed, now=tx.now()) for inbound in tx.chats.inbound_by_id([inbound_id])
            ]
            tx.chats.move_inbound([inbound_id], handed, tx.now())

        source = event.source
        locks = () if source is None else (chat_lock(inbound_key(source, event.message_id)),)
        return Joined(locks=locks, change=note)

    async def _note(self, event: MessageEvent, inbound_id: int, thread_id: str) -> None:
        """Note that a message was handed over; on its thread it follows what the chat did to it meanwhile."""
        handed = InboundMove(status=InboundStatus.HANDED_OVER, thread_id=thread_id)
        try:
            [inbound] = await self._intake_log.move([inbound_id], handed)
        except IllegalTransition:
            await self.taken_back(thread_id, f"{INBOUND_ID}{inbound_id}")  # or another process was faster
            return
        await self._follow(event, inbound, thread_id)

    async def _follow(self, event: MessageEvent, inbound: InboundMessage, thread_id: str) -> None:
        if inbound.revision > event.revision:
            latest = MessageEvent.from_body(inbound.body, inbound_id=inbound.inbound_id)
            await self.edited(latest, thread_id)

    def busy_mode(self, session: ChatSession, source: SessionSource) -> BusyMode:
        """Return what the session does when it is busy: its own choice, else its chat's, and so on."""
        chosen = session.settings.get("busy")
        return BusyMode(chosen) if chosen else self._config.get_busy_mode(source.platform, source.chat_id)

    async def state(self, thread_id: str) -> ThreadState:
        """Return how busy a thread is."""
        active = await self.active(thread_id)
        return ThreadState(active=active, waiting=len(await self._run_queue.pending(thread_id)))

    async def active(self, thread_id: str) -> RunDispatch | None:
        """Return what is at work on a thread, or about to be."""
        statuses = (RunDispatchStatus.CLAIMED, RunDispatchStatus.QUEUED)
        rows = await self._run_queue.list_dispatches(thread_id, statuses, limit=10)
        return next(
            (row for row in rows if row.status is RunDispatchStatus.CLAIMED), rows[0] if rows else None
        )

    async def stop(self, thread_id: str, *, begun: bool = False) -> bool:
        """End what is at work on a thread; what waits is kept. False when nothing was at work.

        With `begun` only what has begun is ended, and not what is only about to.
        """
        active = await self.active(thread_id)
        if active is None or (begun and active.status is not RunDispatchStatus.CLAIMED):
            return False
        return await self._run_queue.cancel(active.run_id)

    async def dropped(self, thread_id: str) -> tuple[Message, ...]:
        """Take back all that waits on a thread, and return it; its inbound messages count as taken back."""
        waiting = await self._run_queue.pending(thread_id)
        gone = [entry.message for entry in waiting if await self.taken_back(thread_id, entry.pending_id)]
        found = (inbound_id_of(message.id or "") for message in gone)
        inbound_ids = [inbound_id for inbound_id in found if inbound_id is not None]
        if inbound_ids:
            move = InboundMove(status=InboundStatus.RETRACTED, reason="dropped by command")
            await self._intake_log.move(inbound_ids, move)
        return tuple(gone)

    async def follow_edit(self, event: MessageEvent, inbound: InboundMessage) -> None:
        """Give an edited message its new words on its thread; one on its way gets them on arrival."""
        if inbound.status is not InboundStatus.HANDED_OVER or inbound.thread_id is None:
            return
        if not await self.edited(event, inbound.thread_id):
            _LOG.info("message.edited_too_late", inbound_id=inbound.inbound_id)

    async def follow_deletion(self, inbound: InboundMessage) -> None:
        """Take a deleted message back from its thread, if no run has read it."""
        thread_id = inbound.thread_id if inbound.status is InboundStatus.HANDED_OVER else None
        if thread_id is not None and not await self.taken_back(thread_id, inbound.thread_message_id):
            return
        try:
            await self._intake_log.move([inbound.inbound_id], InboundMove(status=InboundStatus.RETRACTED))
        except IllegalTransition:
            _LOG.info("message.deleted_too_late", inbound_id=inbound.inbound_id)

    async def edited(self, event: MessageEvent, thread_id: str) -> bool:
        """Give a message that no run has read yet other words; False when it was read."""
        if event.inbound_id is None or event.source is None:
            return False
        message = message_of(event, shared=self._is_shared(event.source))
        try:
            await self._run_queue.edit_pending(thread_id, message)
        except (AlreadyConsumed, UnknownMessage):
            return False
        return True

    async def taken_back(self, thread_id: str, message_id: str) -> bool:
        """Take back a message; False when a run has read it."""
        try:
            await self._run_queue.retract_pending(thread_id, message_id)
        except (AlreadyConsumed, UnknownMessage):
            return False
        return True

    async def _position(self, message: Message, thread_id: str, mode: BusyMode) -> Admission:
        """Say where a message stands that did not begin at once; one too many is taken back."""
        waiting = await self._run_queue.pending(thread_id)
        ids = [entry.pending_id for entry in waiting]
        if message.id not in ids:
            return Admission(AdmissionKind.STARTED)  # it was read meanwhile, or before a crash
        refusal = None
        if mode is BusyMode.REJECT:
            refusal = wording.BUSY
        elif len(ids) > self._config.busy.max_waiting:
            refusal = wording.queue_full(self._config.busy.max_waiting)
        if refusal is not None and await self.taken_back(thread_id, message.id or ""):
            return Admission(AdmissionKind.REJECTED, refusal)
        match mode:
            case BusyMode.REJECT:
                return Admission(AdmissionKind.STARTED)
            case BusyMode.COLLECT:
                return Admission(AdmissionKind.COLLECTED, wording.READ_TOGETHER)
            case BusyMode.STEER:
                return Admission(AdmissionKind.STEERED, wording.READ_AT_NEXT_STEP)
            case _:
                return Admission(AdmissionKind.QUEUED, wording.queued(ids.index(message.id)))

    def _is_shared(self, source: SessionSource) -> bool:
        """Say whether several people speak in the session, so that each must be named."""
        if source.chat_type == "dm":
            return False
        per_user = self._config.group_sessions_per_user
        return not (per_user and (self._config.thread_sessions_per_user or source.thread_id is None))


def inbound_key(source: SessionSource, message_id: str | None) -> InboundKey:
    """Return how the platform names a message, for ever."""
    return InboundKey(
        platform=source.platform.value,
        account=source.account,
        chat_id=source.chat_id or source.user_id or "",
        message_id=message_id or "",
    )


def delivery_of(mode: BusyMode, source: SessionSource) -> DeliveryMode:
    """Return when a message is read; those of different senders are never read as one."""
    sender = source.user_id or ""
    match mode:
        case BusyMode.COLLECT:
            return DeliveryMode(group=sender, starts_run=True)
        case BusyMode.STEER:
            return DeliveryMode(boundary=Boundary.NEXT_STEP, group=sender, starts_run=True)
        case _:
            return DeliveryMode(granularity=Granularity.ONE, starts_run=True)


def message_of(event: MessageEvent, *, shared: bool) -> Message:
    """Return an inbound message as one of its thread: what was said, by whom, when, and its files."""
    source = event.source
    data = {
        "platform": source.platform.value if source else "",
        "sender": source.user_id if source else None,
        "sender_name": source.user_name if source else None,
        "message_id": event.message_id,
        "reply_to": event.reply_to_text,
        "time": event.timestamp,
    }
    name = (source.user_name or source.user_id) if source else None
    words = f"[{name}] {event.text}" if shared and name else event.text
    text = ContentBlock(
        text=storable(words), data={key: value for key, value in data.items() if value is not None}
    )
    files = (
        ContentBlock(
            type=_BLOCKS.get(file.kind, "document"),
            data={"ref": file.ref, "mime": file.mime, "name": file.name, "size": file.size},
        )
        for file in event.media
    )
    return Message(role=Role.USER, content=(text, *files), id=f"{INBOUND_ID}{event.inbound_id}")
