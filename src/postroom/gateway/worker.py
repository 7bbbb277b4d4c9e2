"""The order of messages in a chat: one worker for each chat gives each stored message its turn.

    accept ─▶ stored ─▶ queue of the chat's worker ─▶ its turn: command performed, or message handed over

The store has every message of a queue, so that a process that dies loses none. A message that cannot be
handed over leaves the queue and is found in the store later. `/stop` has no turn: it is performed at once.

`/agent`, `/link` and `/unlink` decide the session of later messages in the queue. Such a message is stored
only after the command was performed. Every other message is stored at once, so that its platform does not
wait.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from weakref import WeakValueDictionary

from postroom.contracts.chat import InboundMove, InboundStatus
from postroom.contracts.clock import Timer
from postroom.contracts.errors import AlreadyConsumed, IllegalTransition, UnknownMessage
from postroom.gateway.events import MessageEvent
from postroom.gateway.session import SessionSource, inbound_key
from postroom.stores.chats.intake_log import IntakeLog

AT_ONCE = "stop"
"""The command that waits for nothing."""
_DECIDE_THE_SESSION = ("agent", "link", "unlink")
_ALBUM_MS = 1_000
"""How long the worker waits for the next file of an album: platforms send each file as its own message."""


class ChatWorker:
    """The messages of one chat that this process has and that are not handed over yet."""

    def __init__(self) -> None:
        self.queue: deque[MessageEvent] = deque()
        """Stored messages in order; while the worker is active, the first has its turn."""
        self.is_active = False
        """Whether the message is being handled now."""
        self.accepting = asyncio.Lock()
        """Held while a message is stored, so that messages keep the order in which they came."""
        self.decided = asyncio.Event()
        """Set while no command of the queue decides the session of later messages."""
        self.decided.set()

    @property
    def is_idle(self) -> bool:
        """Whether no message waits and none is being handled."""
        return not (self.queue or self.is_active)

    def has(self, inbound_id: int) -> bool:
        """Return whether a message is in the queue."""
        return any(event.inbound_id == inbound_id for event in self.queue)

    def put(self, event: MessageEvent) -> None:
        """Append a stored message to the queue."""
        self.queue.append(event)
        if event.get_command() in _DECIDE_THE_SESSION:
            self.decided.clear()

    def end_turn(self) -> None:
        """Remove the first message from the queue."""
        self.queue.popleft()
        if not any(event.get_command() in _DECIDE_THE_SESSION for event in self.queue):
            self.decided.set()

    def stop(self) -> None:
        """End the work; the messages of the queue are in the store, and are found there."""
        self.is_active = False
        self.queue.clear()
        self.decided.set()

    async def whole_album(self, timer: Timer) -> list[MessageEvent]:
        """Return the first message's album once it is complete; its first message keeps its turn."""
        first, found = self.queue[0], list[MessageEvent]()
        sent = album_of(first), first.source and first.source.user_id
        while True:
            parts = [one for one in self.queue if (album_of(one), one.source and one.source.user_id) == sent]
            if len(parts) == len(found):
                break
            found = parts
            await timer.sleep(_ALBUM_MS)
        found.sort(key=lambda event: event.inbound_id or 0)
        for part in found:
            self.queue.remove(part)
        self.queue.appendleft(found[0])
        return found


class ChatWorkers:
    """The workers of all chats; a worker exists as long as a message of its chat is on its way."""

    def __init__(self) -> None:
        self.by_chat: WeakValueDictionary[tuple[object, ...], ChatWorker] = WeakValueDictionary()
        self.stop_requested: set[str] = set()
        """Sessions whose present message must not begin a run."""

    def of(self, source: SessionSource) -> ChatWorker:
        """Return the worker of a chat."""
        chat = (source.platform, source.account, source.chat_id or source.user_id)
        found = self.by_chat.get(chat)
        if found is None:
            found = self.by_chat[chat] = ChatWorker()
        return found


def album_of(event: MessageEvent) -> str | None:
    """Return the id of the album that a message is a part of; None for every other message."""
    album_id = event.metadata.get("media_group_id")
    return album_id if isinstance(album_id, str) and event.media else None


async def merge_album(log: IntakeLog, first: MessageEvent, others: Sequence[MessageEvent]) -> None:
    """Give the first message of an album the files and words of the others, and close the others.

    After a crash in between, a repetition gives the first message nothing that it has already.

    Raises:
        StoreError: The change could not be stored.
    """
    source = first.source
    if not others or source is None:
        return
    given = first.metadata.get("album", [])
    new = [event for event in others if event.message_id not in given]
    texts = dict.fromkeys(event.text for event in (first, *new) if event.text.strip())
    # Each message of an album answers the same message: its files are given once, with the first.
    own = (event.media[: len(event.media) - event.metadata.get("answered_files", 0)] for event in new)
    first.media += tuple(file for files in own for file in files)
    first.forwarded = tuple(dict.fromkeys(words for event in (first, *new) for words in event.forwarded))
    first.unread = tuple(dict.fromkeys(part for event in (first, *new) for part in event.unread))
    first.text = "\n".join(texts)
    first.metadata["album"] = [*given, *(event.message_id for event in new)]
    try:
        kept = await log.edit(inbound_key(source, first.message_id), first.to_body())
    except (AlreadyConsumed, UnknownMessage):
        return  # it was deleted meanwhile, or another process was faster
    first.revision = kept.revision
    done = InboundMove(status=InboundStatus.DONE, reason=f"one with message {first.inbound_id}")
    for event in others:
        try:
            await log.move([event.inbound_id or 0], done)
        except IllegalTransition:
            continue  # as above
