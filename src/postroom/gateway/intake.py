"""Takes lines in: kept first, then handed over in order, each once.

adapter ─▶ accept: kept in the journal ─▶ the adapter tells its platform ─▶ (in the background) the runner
start ─▶ lines that a crash left waiting: in order, before anything new ─▶ the runner
now and then ─▶ lines of processes that died ─▶ the runner
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from postroom.concurrency import Tasks
from postroom.contracts.chat import (
    ChatStores,
    InboundLine,
    LineDraft,
    LineKey,
    LineMove,
    LineStatus,
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
from postroom.gateway import wording
from postroom.gateway.config import GatewayConfig
from postroom.gateway.events import ButtonPress, MessageEvent
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.people import People
from postroom.gateway.session import SessionSource, build_session_key

_LOG = structlog.get_logger(__name__)
MOST_TEXT = 1_000_000
"""Characters of one line."""
_LEFT_BEHIND_MS = 60_000
"""After which a line that still waits counts as left by a process that died."""

Handle = Callable[[MessageEvent], Awaitable[None]]


class Intake:
    """Where adapters hand lines over to."""

    def __init__(  # noqa: PLR0913 - its collaborators by name
        self,
        stores: ChatStores,
        people: People,
        config: GatewayConfig,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        handle: Handle,
        changed: Callable[[MessageEvent, InboundLine], Awaitable[None]],
        withdrawn: Callable[[InboundLine], Awaitable[None]],
        told: Callable[[MessageEvent, str], Awaitable[None]],
        pressed: Callable[[ButtonPress], Awaitable[str]],
    ) -> None:
        self._stores = stores
        self._people = people
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._handle = handle
        self._changed = changed
        self._withdrawn = withdrawn
        self._told = told
        self._pressed = pressed
        self._in_hand: set[int] = set()
        self._open = asyncio.Event()
        self.tasks = Tasks("chat intake")

    # What adapters call.

    async def accept(self, event: MessageEvent) -> None:
        """Keep a line; durable when it returns. One that is known already is passed over.

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
        received = await self._stores.journal.receive(self._draft(event, source))
        line = received.line
        if not received.is_new and (line.status is not LineStatus.WAITING or line.line_id in self._in_hand):
            self._metrics.line("duplicate")
            return
        self._metrics.line("accepted" if received.is_new else "duplicate")
        if received.is_new:
            event.line_id = line.line_id
            self._begin(event)
        else:
            await self._taken_up(line)

    async def edited(self, event: MessageEvent) -> None:
        """Give a line other words, as long as no run has read it.

        Raises:
            StoreError: it could not be looked up.
        """
        source = self._checked(event)
        await self._people.learn(source)
        if not self._people.may_write(source):
            return
        try:
            line = await self._stores.journal.edit(_key(source, event.message_id), event.to_body())
        except (AlreadyConsumed, UnknownMessage):
            return
        event.line_id = line.line_id
        await self._changed(event, line)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        """Take a line back, as long as no run has read it.

        Raises:
            StoreError: it could not be looked up.
        """
        line = await self._stores.journal.find(_key(source, message_id))
        if line is not None and line.status.is_open:
            await self._withdrawn(line)

    async def pressed(self, press: ButtonPress) -> str:
        """Take a pressed button and return a note for whoever pressed it."""
        await self._people.learn(press.source)
        return await self._pressed(press)

    # What was left behind.

    async def recover(self) -> int:
        """Hand over what a crash left waiting, in order; then let new lines in. Return how many that were."""
        taken = await self._take_up(older_than=None)
        self._open.set()
        return taken

    async def sweep(self) -> int:
        """Hand over what processes that died have left waiting; return how many lines."""
        return await self._take_up(older_than=self._clock.now() - _LEFT_BEHIND_MS)

    async def close(self) -> None:
        """Let nothing more in, and end what is being handed over: it is kept. Who waits is refused."""
        await self.tasks.close()
        self._open.set()

    def _refuse_ended(self) -> None:
        if self.tasks.closed:
            raise StoreUnavailable("the gateway is ending; send it again")

    async def _take_up(self, *, older_than: int | None) -> int:
        taken, after = 0, 0
        while page := await self._stores.journal.open_lines(status=LineStatus.WAITING, after=after):
            after = page[-1].line_id
            for line in page:
                late = older_than is None or line.updated_at < older_than
                if late and line.line_id not in self._in_hand:
                    taken += await self._taken_up(line)
        return taken

    async def _taken_up(self, line: InboundLine) -> bool:
        try:
            event = MessageEvent.from_body(line.body, line_id=line.line_id, revision=line.revision)
        except (KeyError, TypeError, ValueError) as error:
            await self._rejected(line.line_id, f"it cannot be read: {type(error).__name__}")
            return False
        most = self._config.max_line_age
        if self._clock.now() - line.received_at > milliseconds(most):
            notice = wording.too_old(int(most.total_seconds() // 60))
            await self._told(event, notice)
            await self._rejected(line.line_id, notice)
            return False
        if event.source is not None:
            await self._people.learn(event.source)
        self._begin(event)
        return True

    async def _rejected(self, line_id: int, why: str) -> None:
        try:
            await self._stores.journal.move([line_id], LineMove(status=LineStatus.REJECTED, reason=why))
        except IllegalTransition:
            return  # another process was faster
        self._metrics.line("rejected")

    def _begin(self, event: MessageEvent) -> None:
        """Hand a line over in the background. Those of one session are begun in the order of the calls."""
        line_id = event.line_id or 0
        if self.tasks.closed:
            return  # it is kept, and found at the next start
        self._in_hand.add(line_id)
        self.tasks.start(self._handled(event, line_id), name=f"line {line_id}")

    async def _handled(self, event: MessageEvent, line_id: int) -> None:
        try:
            await self._handle(event)
        except PostroomError as error:
            _LOG.warning("line.left_waiting", line_id=line_id, reason=error.describe())
        finally:
            self._in_hand.discard(line_id)

    def _checked(self, event: MessageEvent) -> SessionSource:
        source = event.source
        if source is None or not event.message_id or not (source.chat_id or source.user_id):
            raise InvalidRecord("a line needs a source, a chat and an id of its own", value=event.message_id)
        if event.metadata.get("verified") is False:  # whoever it says it is from may not have sent it
            source = event.source = replace(source, user_id=None, user_id_alt=None)
        if len(event.text) > MOST_TEXT:
            raise TooLarge(f"a line of {len(event.text)} characters", value=len(event.text))
        size = sum(one.size or 0 for one in event.media)
        if size > self._config.max_media_bytes:
            raise TooLarge(f"files of {size} bytes; {self._config.max_media_bytes} are the most", value=size)
        return source

    def _draft(self, event: MessageEvent, source: SessionSource) -> LineDraft:
        return LineDraft(
            key=_key(source, event.message_id),
            session_key=build_session_key(
                source, self._config.group_sessions_per_user, self._config.thread_sessions_per_user
            ),
            sender_id=source.user_id,
            body=event.to_body(),
        )


def _key(source: SessionSource, message_id: str | None) -> LineKey:
    return LineKey(
        platform=source.platform.value,
        account=source.account,
        chat_id=source.chat_id or source.user_id or "",
        message_id=message_id or "",
    )
