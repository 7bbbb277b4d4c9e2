"""A running gateway: connects channels, delivers messages, recovers lost work, and stops gracefully.

start: unfinished messages are handed over, then channels are connected, then messages are accepted in the
meantime: the relay delivers. Lost messages, old messages and failed channels are handled stop: no new
messages are accepted, runs and answers get time to end, channels are disconnected
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from postroom.concurrency import Tasks
from postroom.contracts.chat import CHAT_KIND, InboundStatus
from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.errors import CredentialRefused, PostroomError, StoreError
from postroom.contracts.messages import Json
from postroom.contracts.work import FailedRuns
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway import status
from postroom.gateway.chat_settings import ChatSettings
from postroom.gateway.commands import COMMANDS, Commands
from postroom.gateway.config import GatewayConfig
from postroom.gateway.delivery import Delivery
from postroom.gateway.handover import Handover
from postroom.gateway.intake import Intake
from postroom.gateway.links import Links
from postroom.gateway.metrics import GatewayMetrics, InboundCounts
from postroom.gateway.notices import Notices
from postroom.gateway.people import People
from postroom.gateway.platforms.base import UNKNOWN_ACCOUNT, AdapterState, BasePlatformAdapter, pause_ms
from postroom.gateway.reminders import Reminders
from postroom.gateway.replies import is_chat, target_name
from postroom.gateway.run import Acknowledgements, GatewayRunner, Services
from postroom.gateway.session import Platform, SessionSource
from postroom.gateway.status import ScopedLocks
from postroom.gateway.streaming import StreamingPresenter
from postroom.gateway.to_people import ToPeople
from postroom.gateway.voices import VOICE_KIND, Speak, Voices
from postroom.leases import Leases
from postroom.log import get_logger
from postroom.ports import ChatDelivery
from postroom.relay import Relay
from postroom.stores.chats.stores import ChatStores
from postroom.stores.runs.ports import OutboxStore, ThreadStore
from postroom.stores.store import SqlStore, Transaction

_LOG = get_logger(__name__)
_SWEEP_EVERY_MS = 15_000
_PURGE_EVERY_MS = 3_600_000
_WATCH_EVERY_MS = 1_000
_MIN_FLUSH = timedelta(seconds=1)


class Gateway:
    """Connects chat platforms with agents.

    `async with Gateway(...)` starts the gateway, and stops the gateway at the end of the block.
    """

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        config: GatewayConfig,
        *,
        stores: ChatStores,
        outbox: OutboxStore,
        threads: ThreadStore,
        run_queue: Mailbox,
        presenter: StreamingPresenter,
        relay: Relay,
        clock: Clock,
        timer: Timer,
        metrics: GatewayMetrics | None = None,
        mail: ChatDelivery | None = None,
        failed: Callable[[Transaction], Sequence[FailedRuns]] | None = None,
        store: SqlStore | None = None,
        leases: Leases | None = None,
        speak: Speak | None = None,
    ) -> None:
        """Create the gateway without starting it.

        `failed` returns the failed runs that `/inbox` lists. If `store` is None, people cannot schedule
        messages, and `/inbox` lists no failed runs. With `leases`, the server that holds a channel's
        lease connects the channel. With `speak`, chats that have turned on speech also get spoken answers.
        """
        self.config, self.stores, self.outbox = config, stores, outbox
        self._run_queue, self._presenter, self._relay = run_queue, presenter, relay
        self._clock, self._timer, self._mail = clock, timer, mail
        self._metrics = metrics = metrics or GatewayMetrics()
        self._adapters = presenter.adapters
        self._tasks = Tasks("gateway")
        self._connecting = asyncio.Lock()
        self._writing_status = asyncio.Lock()
        self._ends_at = 0.0
        """The time, on the event loop's clock, until which `stop` waits for answers to be delivered."""
        self._flushing: asyncio.Timeout | None = None
        """The timeout of the wait for answers, while `stop` waits."""
        self._leases = leases
        self._locks = ScopedLocks(config.state_dir if leases is None else None)
        self.people = People(stores.people, stores.links, config, clock)
        self.delivery = relay.handlers[CHAT_KIND] = Delivery(
            stores, presenter, config, clock=clock, metrics=metrics, mail=mail
        )
        self._voices: Voices | None = None
        if speak is not None:
            voices = self._voices = Voices(self.delivery, stores, presenter.sessions, config, clock, speak)
            relay.handlers[VOICE_KIND], self.delivery.voice_of = voices, voices.build_draft
        handover = Handover(run_queue, stores, config, presenter.seen.clear, self._place_of_runs)
        notices = self._notices = Notices(outbox)
        self._reminders = None if store is None else Reminders(store, run_queue, self._find_place)
        links = Links(
            stores.links, config, self.people, presenter.sessions, notices, adapters=presenter.adapters
        )
        commands = Commands(
            config,
            presenter.sessions,
            handover,
            self.people,
            notices,
            run_queue,
            threads,
            clock,
            links,
            ChatSettings(config, self.people, presenter.sessions),
            mail,
            self._reminders,
            failed=None if store is None or failed is None else partial(store.read, failed),
        )
        services = Services(
            stores=self.stores,
            sessions=self._presenter.sessions,
            people=self.people,
            handover=handover,
            notices=notices,
            commands=commands,
            presenter=self._presenter,
            wind_down=self._wind_down,
            timer=self._timer,
            tasks=Tasks("chat intake"),
            metrics=self._metrics,
            acknowledgements=Acknowledgements(self._clock),
            to_people=ToPeople(self.stores.intake_log, self._mail),
        )
        self.runner = GatewayRunner(config, services)
        self.intake = Intake(config, self.runner, services, clock)

    @property
    def adapters(self) -> Mapping[Platform, BasePlatformAdapter]:
        """The adapters that are connected or will reconnect, keyed by platform."""
        return self.runner.adapters

    # Starting and stopping.

    async def start(self) -> None:
        """Hand over unfinished messages, connect every channel and start the delivery.

        A channel that cannot be reached is connected later.

        Raises:
            ConfigError, MissingExtra: A channel lacks a setting or a package.
            StoreError: Unfinished messages could not be read.
        """
        await self._write_status("starting")
        try:
            for adapter in self._adapters.values():
                identity = adapter.lock_identity()
                if identity is not None:
                    await asyncio.to_thread(self._locks.acquire, adapter.platform.value, identity)
            self.runner.adapters = dict(self._adapters)
            if self._leases is not None:
                self._leases.want(*self._lease_names())
                await self._leases.renew()
            for adapter in self._adapters.values():
                adapter.set_message_handler(self.intake)
                adapter.files = self.stores.files
                adapter.web_chats = self.stores.web_chats
                adapter.commands = [(command.name, command.help) for command in COMMANDS]
                adapter.keep_dead = partial(self._notices.keep_dead, adapter.platform)
                adapter.is_ours = partial(self._is_ours, adapter)
                adapter.is_shared = self._leases is not None
                await self._connect(adapter)
            await self.intake.recover()
        except BaseException:
            await self.stop()
            raise
        self._speak()
        for adapter in self._adapters.values():
            await self._take_over(adapter)
        self.runner._running = True  # noqa: SLF001 - the name is a part of the contract
        for adapter in self._adapters.values():
            self._tasks.start(self._watch(adapter), name=f"watch {adapter.platform.value}")
        self._tasks.start(self._sweep(), name="sweep")
        if self._reminders is not None:
            self._tasks.start(self._reminders.kept.serve(), name="reminders")
        await asyncio.to_thread(status.write_pid_file, self.config.state_dir)
        await self._write_status("running")

    async def stop(self) -> None:
        """Stop the gateway without closing the mailbox.

        A second call of `stop` has no effect.
        """
        await self.intake.close()
        await self.runner.stop()
        if self._voices is not None:
            await self._voices.close()
        await self._tasks.close()
        await self._presenter.close()
        if self._leases is not None:
            await self._leases.give_back(*self._lease_names())
        await asyncio.to_thread(self._locks.release_all)

    async def __aenter__(self) -> Self:
        """Start the gateway."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the gateway."""
        await self.stop()

    # The gateway's state.

    async def counts(self) -> InboundCounts:
        """Return the number of accepted messages in each state, without purged messages."""
        counts = await self.stores.intake_log.counts()
        waiting, handed = counts.get(InboundStatus.WAITING, 0), counts.get(InboundStatus.HANDED_OVER, 0)
        running = min(handed, len(self._presenter.runs))
        ended = (InboundStatus.DONE, InboundStatus.FAILED, InboundStatus.RETRACTED)
        return InboundCounts(
            accepted=sum(counts.values()),
            finished=sum(counts.get(status, 0) for status in ended),
            queued=waiting + handed - running,
            running=running,
            rejected=counts.get(InboundStatus.REJECTED, 0),
        )

    def liveness(self) -> dict[str, dict[str, Json]]:
        """Return the state of each channel, for health pages and the status file."""
        return {platform.value: adapter.liveness.shown() for platform, adapter in self._adapters.items()}

    async def reconnect(self, adapter: BasePlatformAdapter) -> None:
        """Reconnect a channel, whatever the state of the channel.

        The adapter's `liveness` shows the result.
        """
        await self._connect(adapter, is_reconnect=True)
        await self._write_status("running")

    def wake(self) -> None:
        """Notify the relay that new messages may be ready for delivery."""
        self._relay.hint()

    # Regular work.

    async def _watch(self, adapter: BasePlatformAdapter) -> None:
        """Reconnect a channel after a temporary failure, and whenever the channel's lease has moved."""
        failures = 0
        while True:
            await self._timer.sleep(_WATCH_EVERY_MS)
            liveness = adapter.liveness
            try:
                if self._is_ours(adapter) is (liveness.state is AdapterState.ELSEWHERE):
                    await self.reconnect(adapter)
                self._metrics.channel(adapter.platform.value, is_up=liveness.state is AdapterState.CONNECTED)
                if liveness.state is not AdapterState.FAILED or not liveness.retryable:
                    failures = 0
                    continue
                failures += 1
                await self._timer.sleep(pause_ms(failures))
                if liveness.state is AdapterState.FAILED:
                    await self.reconnect(adapter)
            except StoreError as error:
                _LOG.warning(
                    "channel.not_connected", platform=adapter.platform.value, reason=error.describe()
                )

    async def _sweep(self) -> None:
        """Regularly hand over messages that crashed processes left, and delete expired records."""
        purge_at = 0
        while True:
            await self._timer.sleep(_SWEEP_EVERY_MS)
            try:
                await self.intake.sweep()
                counts = await self.stores.intake_log.counts()
                self._metrics.show_open(
                    counts.get(InboundStatus.WAITING, 0), counts.get(InboundStatus.HANDED_OVER, 0)
                )
                now = self._clock.now()
                if now >= purge_at:
                    purge_at = now + _PURGE_EVERY_MS
                    await self.stores.intake_log.purge(
                        older_than=now - milliseconds(self.config.keep_messages)
                    )
            except PostroomError as error:
                _LOG.warning("gateway.sweep_failed", reason=error.describe())

    # Helpers.

    def _is_ours(self, adapter: BasePlatformAdapter) -> bool:
        """Return whether this server may connect a channel."""
        return self._leases is None or adapter.lease is None or self._leases.holds(adapter.lease)

    async def _take_over(self, adapter: BasePlatformAdapter) -> None:
        """Deliver the messages that a dead server was sending through a channel."""
        if self._leases is not None and adapter.lease is not None and self._is_ours(adapter):
            for account in {adapter.account, UNKNOWN_ACCOUNT}:
                for kind in (CHAT_KIND, VOICE_KIND):
                    await self._relay.take_over(kind, target_name(adapter.platform.value, account))

    def _place_of_runs(self, source: SessionSource) -> str:
        """Return the lease that a server must hold to execute a chat's runs, or "" for any server."""
        adapter = self._adapters.get(source.platform)
        return "" if self._leases is None or adapter is None else adapter.lease or ""

    def _lease_names(self) -> list[str]:
        return [adapter.lease for adapter in self._adapters.values() if adapter.lease is not None]

    def _speak(self) -> None:
        adapters = self._adapters.values()
        self.delivery.speak_for(
            [adapter for adapter in adapters if adapter.liveness.state is not AdapterState.ELSEWHERE]
        )
        self._relay.hint()

    async def _find_place(self, source: SessionSource) -> tuple[str, Json] | None:
        """Return the thread that gets a scheduled message, and the model and instructions of the chat."""
        source = await self.people.learn(source)
        if not self.people.may_write(source):
            return None
        session, _ = await self._presenter.sessions.of(self.config.session_key(source), source)
        return session.thread_id, self.runner.services.handover.asked(session, source)

    async def hurry(self) -> None:
        """Make `stop` end sooner, without waiting for active runs."""
        self._ends_at = asyncio.get_running_loop().time()
        if self._flushing is not None:
            self._flushing.reschedule(self._ends_at + _MIN_FLUSH.total_seconds())
        await self._run_queue.drain(timedelta(0))

    async def _wind_down(self) -> None:
        """Wait for active chat runs and the delivery of their answers."""
        loop = asyncio.get_running_loop()
        self._ends_at = loop.time() + self.config.drain.total_seconds()
        await self._run_queue.drain(self.config.drain, waits_for=is_chat)
        try:
            ends_at = max(self._ends_at, loop.time() + _MIN_FLUSH.total_seconds())
            async with asyncio.timeout_at(ends_at) as self._flushing:
                await self._relay.idle(CHAT_KIND)
        except TimeoutError:
            _LOG.warning(
                "gateway.not_all_delivered",
                reason="the time for the last deliveries ended; the other answers stay stored",
            )
        except PostroomError as error:
            _LOG.warning("gateway.not_all_delivered", reason=error.describe())
        finally:
            self.delivery.speak_for(())

    async def _connect(self, adapter: BasePlatformAdapter, *, is_reconnect: bool = False) -> None:
        async with self._connecting:
            if self._is_ours(adapter):
                # Tell the adapter the newest stored message of each chat.
                seen: set[tuple[str, str | None]] = set()
                for message in await self.stores.intake_log.newest(adapter.platform.value):
                    address = message.body.get("source")
                    source = SessionSource.from_dict(address) if address else None
                    if source is not None and (source.chat_id, source.thread_id) not in seen:
                        seen.add((source.chat_id, source.thread_id))
                        adapter.remember(source, message.key.message_id)
                await self._connect_adapter(adapter, is_reconnect=is_reconnect)
            elif adapter.liveness.state is not AdapterState.ELSEWHERE:
                await adapter.disconnect()
                adapter.liveness.state = AdapterState.ELSEWHERE
            if is_reconnect:
                self._speak()
                await self._take_over(adapter)

    async def _connect_adapter(self, adapter: BasePlatformAdapter, *, is_reconnect: bool) -> None:
        liveness = adapter.liveness
        liveness.state = AdapterState.CONNECTING
        try:
            await adapter.connect(is_reconnect=is_reconnect)
        except PostroomError as error:
            liveness.state = AdapterState.FAILED
            liveness.error_code, liveness.error = error.code, error.message
            liveness.retryable = error.retryable or (
                is_reconnect and not isinstance(error, CredentialRefused)
            )
            if not error.retryable and not is_reconnect:
                raise
            _LOG.warning("channel.not_connected", platform=adapter.platform.value, reason=error.describe())
            return
        except Exception as error:  # adapters must not raise this; the other channels continue
            liveness.state, liveness.retryable = AdapterState.FAILED, True
            liveness.error_code, liveness.error = "internal_error", type(error).__name__
            _LOG.exception("channel.not_connected", platform=adapter.platform.value)
            return
        if liveness.state is AdapterState.CONNECTING:
            liveness.state = AdapterState.CONNECTED
        liveness.error_code = liveness.error = None

    async def _write_status(self, word: str) -> None:
        async with self._writing_status:  # one write at a time, so that the newest status is written last
            await asyncio.to_thread(
                status.write_runtime_status,
                self.config.state_dir,
                gateway_state=word,
                platforms=self.liveness(),
                now=self._clock.now(),
            )
