"""The parts of a gateway, put together: the one place in this room that knows them all."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from secrets import token_hex

import structlog

from postroom.contracts.chat import ChatStores, InboundLine, LineMove, LineStatus
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import IllegalTransition, PostroomError
from postroom.contracts.outbox import OutboxStore
from postroom.contracts.people import ChatDelivery
from postroom.contracts.run_queue import RunQueue
from postroom.contracts.run_stores import ThreadStore
from postroom.gateway.asking import Asking
from postroom.gateway.command_handlers import Commands
from postroom.gateway.config import GatewayConfig, Platform
from postroom.gateway.delivery import Delivery
from postroom.gateway.events import MessageEvent
from postroom.gateway.handover import Handover
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.notices import Notices
from postroom.gateway.people import People
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.sessions import Sessions
from postroom.gateway.streaming import StreamingPresenter

_LOG = structlog.get_logger(__name__)
_SAID_EVERY_MS = 30_000
_LEAST_FLUSH = timedelta(seconds=1)
_MOST_SESSIONS = 10_000


class Acknowledgements:
    """Keeps a busy session from being told of each line: one in half a minute says enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: OrderedDict[str, int] = OrderedDict()

    def is_due(self, key: str) -> bool:
        """Say whether something may be said now; then it counts as said."""
        now = self._clock.now()
        before = self._said.get(key)
        if before is not None and 0 <= now - before < _SAID_EVERY_MS:
            return False
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > _MOST_SESSIONS:
            self._said.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a runner works with."""

    config: GatewayConfig
    stores: ChatStores
    outbox: OutboxStore
    run_queue: RunQueue
    presence: StreamingPresenter
    sessions: Sessions
    handover: Handover
    people: People
    notices: Notices
    delivery: Delivery
    commands: Commands
    metrics: GatewayMetrics
    acknowledgements: Acknowledgements
    clock: Clock
    timer: Timer
    before_drain: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What ends the taking in of lines."""

    async def wind_down(self, adapters: Mapping[Platform, BasePlatformAdapter]) -> None:
        """Take nothing new, let turns end within the time for that, then deliver what is due."""
        for close in self.before_drain:
            await close()
        await self.run_queue.drain(self.config.drain)
        try:
            async with asyncio.timeout(max(self.config.drain, _LEAST_FLUSH).total_seconds()):
                for adapter in adapters.values():
                    while await self.delivery.round(adapter):
                        continue
                await self.delivery.idle()
        except TimeoutError:
            _LOG.warning("gateway.not_all_delivered", reason="the time for it ended; the rest is kept")
        except PostroomError as error:
            _LOG.warning("gateway.not_all_delivered", reason=error.describe())

    async def changed(self, event: MessageEvent, line: InboundLine) -> None:
        """Give the message of an edited line its new words; one on its way gets them when it has arrived."""
        if line.status is not LineStatus.HANDED_OVER or line.thread_id is None or event.source is None:
            return
        if not await self.handover.edited(event, line.thread_id):
            _LOG.info("line.edited_too_late", line_id=line.line_id)

    async def withdrawn(self, line: InboundLine) -> None:
        """Take back the message of a deleted line, if no run has read it."""
        thread_id = line.thread_id if line.status is LineStatus.HANDED_OVER else None
        if thread_id is not None and not await self.handover.taken_back(thread_id, line.message_id):
            return
        try:
            await self.stores.journal.move([line.line_id], LineMove(status=LineStatus.RETRACTED))
        except IllegalTransition:
            _LOG.info("line.deleted_too_late", line_id=line.line_id)


def services(  # noqa: PLR0913 - every port by name
    config: GatewayConfig,
    *,
    stores: ChatStores,
    outbox: OutboxStore,
    threads: ThreadStore,
    run_queue: RunQueue,
    presence: StreamingPresenter,
    clock: Clock,
    timer: Timer,
    metrics: GatewayMetrics | None = None,
    boxes: ChatDelivery | None = None,
    new_id: Callable[[], str] | None = None,
) -> Services:
    """Put the parts of a gateway together over these ports."""
    metrics = metrics or GatewayMetrics()
    sessions = Sessions(stores.sessions, config, clock, new_id or (lambda: token_hex(16)))
    handover = Handover(run_queue, stores.journal, config)
    people = People(stores.people, config, clock)
    notices = Notices(outbox)
    asking = Asking(run_queue, threads, notices, clock)
    commands = Commands(config, sessions, handover, people, asking, run_queue, threads, boxes)
    delivery = Delivery(
        outbox, stores, sessions, presence, config.delivery, clock=clock, metrics=metrics, boxes=boxes
    )
    presence.address = sessions.address
    presence.hidden = sessions.hidden
    return Services(
        config=config,
        stores=stores,
        outbox=outbox,
        run_queue=run_queue,
        presence=presence,
        sessions=sessions,
        handover=handover,
        people=people,
        notices=notices,
        delivery=delivery,
        commands=commands,
        metrics=metrics,
        acknowledgements=Acknowledgements(clock),
        clock=clock,
        timer=timer,
    )
