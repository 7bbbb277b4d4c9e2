"""Marks a message as seen until its answer is there, on platforms that have reactions.

It stands beside typing: what fails here fails nothing else, and nothing waits for it. Marks are remembered in
memory alone; one that a restart leaves behind stays.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from postroom.concurrency import Tasks
from postroom.contracts.clock import Timer
from postroom.gateway.events import MessageEvent, SendErrorKind
from postroom.gateway.pacing import KEPT_MS
from postroom.gateway.platforms.base import TOO_OFTEN, BasePlatformAdapter, send_metadata
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

_LOG = get_logger(__name__)
_MOST_MARKS = 1_000
_TURNS = 12
"""How often a mark that is to go away asks for its turn: for a minute."""
_REFUSED = (SendErrorKind.FORBIDDEN, SendErrorKind.BAD_FORMAT)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A mark that a chat shows."""

    adapter: BasePlatformAdapter
    source: SessionSource
    message_id: str
    reaction_id: str


class SeenMarks:
    """The marks of this process. A chat that refuses one gets no other until the next start."""

    def __init__(self, adapters: Mapping[Platform, BasePlatformAdapter], timer: Timer) -> None:
        self._adapters = adapters
        self._timer = timer
        self._tasks = Tasks("seen marks")
        self._marks: OrderedDict[int, asyncio.Task[_Mark | None]] = OrderedDict()
        self._refusing: OrderedDict[tuple[Platform, str], None] = OrderedDict()

    def show(self, event: MessageEvent) -> None:
        """Mark a message that is kept and will be answered; it is tried once."""
        source, inbound_id, message_id = event.source, event.inbound_id, event.message_id
        if source is None or inbound_id is None or message_id is None or inbound_id in self._marks:
            return
        adapter = self._adapters.get(source.platform)
        if adapter is None or self._tasks.closed or not self._wanted(adapter, source):
            return
        self._marks[inbound_id] = self._tasks.start(self._mark(adapter, source, message_id), name="mark")
        if len(self._marks) > _MOST_MARKS:
            self._marks.popitem(last=False)

    def clear(self, inbound_ids: Iterable[int]) -> None:
        """Take the marks of these messages away: they have their answer, or will get none."""
        for inbound_id in inbound_ids:
            marking = self._marks.pop(inbound_id, None)
            if marking is not None and not self._tasks.closed:
                self._tasks.start(self._take_away(marking), name="take a mark away")

    async def close(self) -> None:
        """End what is on its way; marks that are shown stay."""
        await self._tasks.close()

    def _wanted(self, adapter: BasePlatformAdapter, source: SessionSource) -> bool:
        """Say whether a message there is marked: without a setting, where typing tells nobody whose it is."""
        setting = adapter.config.reactions
        is_on = source.chat_type != "dm" if setting is None else setting
        can = adapter.capabilities.reactions and adapter.may_react
        return is_on and can and (source.platform, source.chat_id) not in self._refusing

    async def _mark(
        self, adapter: BasePlatformAdapter, source: SessionSource, message_id: str
    ) -> _Mark | None:
        result = await adapter.react(source.chat_id, message_id, send_metadata(source))
        if result.success:
            return _Mark(adapter, source, message_id, result.message_id or message_id)
        if result.error_kind in _REFUSED:
            self._note_refusal(source, result.error or "")
        return None

    def _note_refusal(self, source: SessionSource, why: str) -> None:
        chat = (source.platform, source.chat_id)
        if chat not in self._refusing:
            _LOG.warning("reactions.off", platform=source.platform.value, chat_id=source.chat_id, reason=why)
        self._refusing[chat] = None
        if len(self._refusing) > _MOST_MARKS:
            self._refusing.popitem(last=False)

    async def _take_away(self, marking: "asyncio.Task[_Mark | None]") -> None:
        """Take a mark away when it is its turn; what the platform says to that changes nothing."""
        await asyncio.wait({marking})
        mark = None if marking.cancelled() or marking.exception() else marking.result()
        if mark is None:
            return
        source, metadata = mark.source, send_metadata(mark.source)
        for _ in range(_TURNS):
            result = await mark.adapter.react(
                source.chat_id, mark.message_id, metadata, takes_back=mark.reaction_id
            )
            if result.error != TOO_OFTEN:
                return
            await self._timer.sleep(result.retry_after_ms or KEPT_MS)
