"""The parts of a gateway, put together: the one place in this room that knows them all."""

import asyncio
from collections import OrderedDict
from datetime import timedelta

import structlog

from postroom.contracts.chat import CHAT_KIND, ChatStores, InboundMessage, InboundMove, InboundStatus
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import IllegalTransition, PostroomError
from postroom.contracts.outbox import OutboxStore
from postroom.contracts.people import ChatDelivery
from postroom.contracts.run_queue import RunQueue
from postroom.contracts.run_stores import ThreadStore
from postroom.gateway.commands import Commands
from postroom.gateway.config import GatewayConfig
from postroom.gateway.delivery import Delivery
from postroom.gateway.events import MessageEvent
from postroom.gateway.handover import Handover
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.notices import Notices
from postroom.gateway.people import People
from postroom.gateway.questions import Questions
from postroom.gateway.streaming import StreamingPresenter
from postroom.relay import Relay

_LOG = structlog.get_logger(__name__)
_ACKNOWLEDGED_EVERY_MS = 30_000
_LEAST_FLUSH = timedelta(seconds=1)
_MOST_SESSIONS = 10_000


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


class Services:
    """What a gateway works with, made over these ports."""

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        config: GatewayConfig,
        *,
        stores: ChatStores,
        outbox: OutboxStore,
        threads: ThreadStore,
        run_queue: RunQueue,
        presenter: StreamingPresenter,
        relay: Relay,
        clock: Clock,
        timer: Timer,
        metrics: GatewayMetrics | None = None,
        mail: ChatDelivery | None = None,
    ) -> None:
        self.config = config
        self.stores = stores
        self.outbox = outbox
        self.run_queue = run_queue
        self.presenter = presenter
        self.relay = relay
        self.clock = clock
        self.timer = timer
        self.metrics = metrics or GatewayMetrics()
        self.sessions = presenter.sessions
        self.handover = Handover(run_queue, stores.intake_log, config)
        self.people = People(stores.people, config, clock)
        self.notices = Notices(outbox)
        questions = Questions(run_queue, threads, self.notices, clock)
        self.commands = Commands(
            config, self.sessions, self.handover, self.people, questions, run_queue, threads, mail
        )
        self.delivery = relay.handlers[CHAT_KIND] = Delivery(
            stores, presenter, config.delivery, clock=clock, metrics=self.metrics, mail=mail
        )
        self.acknowledgements = Acknowledgements(clock)

    async def wind_down(self) -> None:
        """Let runs end within the time for that, then deliver what is due."""
        await self.run_queue.drain(self.config.drain)
        try:
            async with asyncio.timeout(max(self.config.drain, _LEAST_FLUSH).total_seconds()):
                await self.relay.idle(CHAT_KIND)
        except TimeoutError:
            _LOG.warning("gateway.not_all_delivered", reason="the time for it ended; the rest is kept")
        except PostroomError as error:
            _LOG.warning("gateway.not_all_delivered", reason=error.describe())
        finally:
            self.delivery.speak_for(())

    async def follow_edit(self, event: MessageEvent, inbound: InboundMessage) -> None:
        """Give an edited message its new words on its thread; one on its way gets them on arrival."""
        if inbound.status is not InboundStatus.HANDED_OVER or inbound.thread_id is None:
            return
        if not await self.handover.edited(event, inbound.thread_id):
            _LOG.info("message.edited_too_late", inbound_id=inbound.inbound_id)

    async def follow_deletion(self, inbound: InboundMessage) -> None:
        """Take a deleted message back from its thread, if no run has read it."""
        thread_id = inbound.thread_id if inbound.status is InboundStatus.HANDED_OVER else None
        if thread_id is not None and not await self.handover.taken_back(thread_id, inbound.thread_message_id):
            return
        try:
            await self.stores.intake_log.move(
                [inbound.inbound_id], InboundMove(status=InboundStatus.RETRACTED)
            )
        except IllegalTransition:
            _LOG.info("message.deleted_too_late", inbound_id=inbound.inbound_id)

    async def notify(self, event: MessageEvent, text: str, *, key: str, is_answer: bool = True) -> None:
        """Tell the sender of an inbound message something, once a `key`.

        Raises:
            StoreError: it could not be kept.
        """
        if event.source is not None:
            answers = event.message_id if is_answer else None
            await self.notices.tell(event.source, text, key=key, answers=answers)
