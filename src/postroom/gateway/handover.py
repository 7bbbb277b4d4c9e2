"""Hands a line over to the agents: it becomes a message that waits on its session's thread.

    line ─▶ its session's thread ─▶ a pending message, read as the busy policy says ─▶ the line is handed over
                                     │ too many wait, or none may
                                     └─▶ taken back, the line is rejected, its sender is told why

The message is named by the line, so all of this can be done again after a crash: what is there already is
passed over.
"""

from postroom.contracts.chat import (
    LINE_MESSAGE,
    ChatSession,
    InboundJournal,
    LineMove,
    LineStatus,
    line_id_of,
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
from postroom.gateway import wording
from postroom.gateway.admission import Admission, AdmissionKind
from postroom.gateway.config import BusyMode, GatewayConfig
from postroom.gateway.events import MessageEvent, MessageType
from postroom.gateway.session import SessionSource

_BLOCKS = {
    MessageType.PHOTO: "image",
    MessageType.STICKER: "image",
    MessageType.VIDEO: "video",
    MessageType.AUDIO: "audio",
    MessageType.VOICE: "audio",
}
_KINDS = {
    BusyMode.QUEUE: AdmissionKind.QUEUED,
    BusyMode.COLLECT: AdmissionKind.COLLECTED,
    BusyMode.STEER: AdmissionKind.STEERED,
    BusyMode.INTERRUPT: AdmissionKind.QUEUED,
    BusyMode.REJECT: AdmissionKind.REJECTED,
}


class Handover:
    """Hands lines over, one session's in order."""

    def __init__(self, run_queue: RunQueue, journal: InboundJournal, config: GatewayConfig) -> None:
        self._run_queue = run_queue
        self._journal = journal
        self._config = config

    async def hand_over(
        self, event: MessageEvent, session: ChatSession, *, mode: BusyMode | None = None
    ) -> Admission:
        """Hand a line over and say what became of it.

        Raises:
            StoreError: it could not be kept; the line still waits and is handed over later.
        """
        line_id, source = event.line_id, event.source
        if line_id is None or source is None:
            raise UnknownMessage("a line is handed over only when it was kept", value=event.message_id)
        mode = mode or self.busy_mode(session, source)
        message = message_of(event, shared=self._is_shared(source))
        started = await self._run_queue.deliver(session.thread_id, [message], delivery_of(mode, source))
        admission = Admission(AdmissionKind.STARTED)
        if started is None:
            admission = await self._place_of(message, session.thread_id, mode)
        if admission.kind is AdmissionKind.REJECTED:
            return admission
        event.handed_over = True
        await self._moved(event, line_id, session.thread_id)
        if mode is BusyMode.INTERRUPT and started is None:
            await self.stop(session.thread_id, begun=True)
        return admission

    async def _moved(self, event: MessageEvent, line_id: int, thread_id: str) -> None:
        """Note that a line was handed over; its message follows what became of it in the chat meanwhile."""
        handed = LineMove(status=LineStatus.HANDED_OVER, thread_id=thread_id)
        try:
            [line] = await self._journal.move([line_id], handed)
        except IllegalTransition:
            await self.taken_back(thread_id, f"{LINE_MESSAGE}{line_id}")  # or another process was faster
            return
        if line.revision > event.revision:
            await self.edited(MessageEvent.from_body(line.body, line_id=line_id), thread_id)

    def busy_mode(self, session: ChatSession, source: SessionSource) -> BusyMode:
        """Return what the session does when it is busy: its own choice, else its chat's, and so on."""
        chosen = session.settings.get("busy")
        return BusyMode(chosen) if chosen else self._config.get_busy_mode(source.platform, source.chat_id)

    async def state(self, thread_id: str) -> ThreadState:
        """Return how busy a conversation is."""
        active = await self.active(thread_id)
        return ThreadState(active=active, waiting=len(await self._run_queue.pending(thread_id)))

    async def active(self, thread_id: str) -> RunDispatch | None:
        """Return what is at work in a conversation, or about to be."""
        statuses = (RunDispatchStatus.CLAIMED, RunDispatchStatus.QUEUED)
        rows = await self._run_queue.list_dispatches(thread_id, statuses, limit=10)
        return next(
            (row for row in rows if row.status is RunDispatchStatus.CLAIMED), rows[0] if rows else None
        )

    async def stop(self, thread_id: str, *, begun: bool = False) -> bool:
        """End what is at work in a conversation; what waits is kept. False when nothing was at work.

        With `begun` only what has begun is ended, and not what is only about to.
        """
        active = await self.active(thread_id)
        if active is None or (begun and active.status is not RunDispatchStatus.CLAIMED):
            return False
        return await self._run_queue.cancel(active.run_id)

    async def dropped(self, thread_id: str) -> tuple[Message, ...]:
        """Take back all that waits in a conversation, and return it; its lines count as taken back."""
        waiting = await self._run_queue.pending(thread_id)
        gone = [one.message for one in waiting if await self.taken_back(thread_id, one.pending_id)]
        lines = [line for line in (line_id_of(one.id or "") for one in gone) if line is not None]
        if lines:
            move = LineMove(status=LineStatus.RETRACTED, reason="dropped by command")
            await self._journal.move(lines, move)
        return tuple(gone)

    async def edited(self, event: MessageEvent, thread_id: str) -> bool:
        """Give a message that no run has read yet other words; False when it was read."""
        if event.line_id is None or event.source is None:
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

    async def _place_of(self, message: Message, thread_id: str, mode: BusyMode) -> Admission:
        """Say where a message stands that did not begin at once; one too many is taken back."""
        waiting = await self._run_queue.pending(thread_id)
        ids = [entry.pending_id for entry in waiting]
        if message.id not in ids:
            return Admission(AdmissionKind.STARTED)  # it was read meanwhile, or before a crash
        refusal = None
        if mode is BusyMode.REJECT:
            refusal = wording.busy()
        elif len(ids) > self._config.busy.max_waiting:
            refusal = wording.queue_full(self._config.busy.max_waiting)
        if refusal is not None and await self.taken_back(thread_id, message.id or ""):
            return Admission(AdmissionKind.REJECTED, reason=refusal)
        return Admission(
            AdmissionKind.STARTED if mode is BusyMode.REJECT else _KINDS[mode], ahead=ids.index(message.id)
        )

    def _is_shared(self, source: SessionSource) -> bool:
        """Say whether several people speak in the session, so that each must be named."""
        if source.chat_type == "dm":
            return False
        per_user = self._config.group_sessions_per_user
        return not (per_user and (self._config.thread_sessions_per_user or source.thread_id is None))


def delivery_of(mode: BusyMode, source: SessionSource) -> DeliveryMode:
    """Return when a line's message is read; those of different senders are never read as one."""
    sender = source.user_id or ""
    match mode:
        case BusyMode.COLLECT:
            return DeliveryMode(group=sender, starts_run=True)
        case BusyMode.STEER:
            return DeliveryMode(boundary=Boundary.NEXT_STEP, group=sender, starts_run=True)
        case _:
            return DeliveryMode(granularity=Granularity.ONE, starts_run=True)


def message_of(event: MessageEvent, *, shared: bool) -> Message:
    """Return a line as a message of its thread: what was said, by whom, when, and its files."""
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
    text = ContentBlock(text=storable(words), data={key: one for key, one in data.items() if one is not None})
    files = (
        ContentBlock(
            type=_BLOCKS.get(one.kind, "document"),
            data={"ref": one.ref, "mime": one.mime, "name": one.name, "size": one.size},
        )
        for one in event.media
    )
    return Message(role=Role.USER, content=(text, *files), id=f"{LINE_MESSAGE}{event.line_id}")
