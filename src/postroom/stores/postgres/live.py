"""Live commands between processes: a row for each listener, and notifications to its process.

The row of a listener expires unless its process renews it, so the listeners of a dead process disappear. The
tables are unlogged. If a crash of the database server empties them, senders store their commands instead, and
listeners register again.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from importlib import resources
from typing import Final
from uuid import uuid4

import msgspec

from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import Timer
from postroom.contracts.errors import ConfigError, InvalidRecord, StoreError
from postroom.contracts.live import (
    LiveCommandEntry,
    LiveDeliveryOutcome,
    LiveReceipt,
    LiveRunCommand,
    LiveRunTarget,
)
from postroom.log import get_logger
from postroom.stores.codec import encode
from postroom.stores.live import Subscription
from postroom.stores.postgres.sql_transaction import PostgresTransaction
from postroom.stores.sql_transaction import Row, SqlTransaction, Statement
from postroom.stores.store import SqlStore

_LOG = get_logger(__name__)
_HEADING: Final = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_DECODER = msgspec.json.Decoder(LiveRunCommand)

LISTENED_FOR = timedelta(seconds=15)
"""The time after which a listener expires unless its process renews it."""
LOOK_AFTER = timedelta(seconds=1)
"""The interval at which both sides check for changes, because a notification may be lost."""
_RENEWED_AFTER = timedelta(seconds=5)
_FORGOTTEN_AFTER = timedelta(minutes=1)


def _statements(name: str) -> dict[str, Statement]:
    """Return the statements of an SQL file, keyed by heading."""
    folder = resources.files("postroom.stores.postgres").joinpath("sql")
    pieces = _HEADING.split(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8"))[1:]
    return {
        heading: Statement(
            name=f"{name}.{heading}",
            text=text.strip().replace("{now}", _NOW),
            parameters=(),
            lists=frozenset(),
        )
        for heading, text in zip(pieces[::2], pieces[1::2], strict=True)
    }


_SQL: Final = _statements("live")


class PostgresLiveChannels:
    """Delivers commands to the runs of all processes that share a schema, until `close` is called.

    A command that no listener accepts within `accept_within_ms` milliseconds is withdrawn.
    """

    def __init__(self, store: SqlStore, *, timer: Timer | None = None, accept_within_ms: int = 5_000) -> None:
        self._engine = store.engine
        self._changes = store.changes
        self._timer: Timer = timer or SystemTimer()
        self._accept_within_ms = accept_within_ms
        self._process_id = uuid4().hex
        self._tasks = Tasks("live channels")
        self._timers = Tasks("live timers")
        self._serving = False
        self._called = self._changes.listen(_process(self._process_id))
        self._listening: dict[str, Subscription] = {}
        self._gone: set[str] = set()
        self._settled: dict[int, bool] = {}
        self._in_hand: dict[int, LiveReceipt] = {}
        self._renew_at = 0.0

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> LiveDeliveryOutcome:
        """Pass a command to all listeners of a run.

        The outcome is DELIVERED if at least one listener accepts the command.
        """
        delivery_id, body = uuid4().hex, encode(command)
        with self._changes.listen(_delivery(delivery_id)) as settled:
            sent = await self._write("send", delivery_id, body, *_names(target), self._accept_within_ms)
            if not sent:
                return LiveDeliveryOutcome.NO_SUBSCRIBER
            self._call(sent)
            late = self._timers.start(self._timer.sleep(self._accept_within_ms), name="give up")
            late.add_done_callback(lambda _: settled.come())
            try:
                while not late.done():
                    rows = await self._read("receipts", delivery_id)
                    if not any(row[0] in ("sent", "taken") for row in rows):
                        break
                    await settled.wait(LOOK_AFTER)
            finally:
                late.cancel()
                ended = await self._write("withdraw", delivery_id)
        self._call([row[1:] for row in ended if row[0] == "taken"])
        accepted = any(row[0] == "accepted" for row in ended)
        return LiveDeliveryOutcome.DELIVERED if accepted else LiveDeliveryOutcome.NO_SUBSCRIBER

    async def open(self, target: LiveRunTarget) -> Subscription:
        """Start to listen for the commands to a target; an earlier listener of the target is closed."""
        subscription = Subscription(uuid4().hex, target, self._forget)
        await self._write("register", subscription.key, self._process_id, *_names(target), _ms(LISTENED_FOR))
        for former in [
            subscription for subscription in self._listening.values() if subscription.target == target
        ]:
            former.close()  # a listener in another process learns this when it is renewed
        self._listening[subscription.key] = subscription
        if not self._serving:
            self._serving = True
            self._tasks.start(self._serve(), name="serve")
        return subscription

    async def close(self) -> None:
        """End all subscriptions and delete their rows; a second call has no effect."""
        for subscription in tuple(self._listening.values()):
            subscription.close()
        if not self._tasks.closed:
            await self._tasks.close()
            await self._timers.close()
            await self._settle()
            await self._remove()
            self._called.close()

    def _call(self, processes: Iterable[Row]) -> None:
        self._tell({_process(row[0]) for row in processes})

    def _tell(self, topics: set[str]) -> None:
        self._changes.tell(topics)
        self._engine.share(topics)

    async def _write(self, statement: str, *values: object) -> list[Row]:
        return await self._engine.write(lambda sql: _rows(sql, statement, values))

    async def _read(self, statement: str, *values: object) -> list[Row]:
        return await self._engine.read(lambda sql: _rows(sql, statement, values))

    async def _serve(self) -> None:
        """Receive commands, write receipts and renew listeners while there is anything to do."""
        while self._listening or self._gone or self._settled:
            try:
                await self._settle()
                await self._remove()
                await self._take()  # also receives what was sent just before a listener was removed
                # Drop commands whose senders no longer wait.
                self._in_hand = {
                    place: live_receipt
                    for place, live_receipt in self._in_hand.items()
                    if not live_receipt.settled
                }
                if self._in_hand:
                    rows = await self._read("waited_for", list(self._in_hand))
                    for place in self._in_hand.keys() - {row[0] for row in rows}:
                        self._in_hand[place].drop()
                await self._renew()
            except (StoreError, ConfigError) as error:
                _LOG.warning("live.interrupted", reason=str(error))
            await self._called.wait(LOOK_AFTER)
        self._serving = False

    async def _take(self) -> None:
        for row in await self._write("take", self._process_id):
            subscription = self._listening.get(row[1])
            command: LiveRunCommand | None = None
            try:
                command = _DECODER.decode(row[2])
            except (msgspec.DecodeError, InvalidRecord) as error:
                _LOG.error("live.command_unread", place=row[0], reason=str(error))
            if subscription is None or command is None:
                self._settled[row[0]] = False
                self._called.come()
                continue
            receipt = self._in_hand[row[0]] = LiveReceipt(settle=self._settler(row[0]))
            subscription.put(LiveCommandEntry(command=command, receipt=receipt))

    async def _settle(self) -> None:
        if not self._settled:
            return
        settled = dict(self._settled)
        rows = await self._write("settle", list(settled), list(settled.values()))
        for place in settled:
            del self._settled[place]
        self._tell({_delivery(delivery_id) for (delivery_id,) in rows})

    async def _remove(self) -> None:
        if gone := list(self._gone):
            await self._write("remove", gone)
            self._gone.difference_update(gone)

    async def _renew(self) -> None:
        """Renew the listeners of this process, close replaced listeners, and delete expired rows."""
        now = asyncio.get_running_loop().time()
        if now < self._renew_at or not self._listening:
            return
        listening = list(self._listening.values())
        names = zip(*(_names(subscription.target) for subscription in listening), strict=True)
        renewed = await self._write(
            "renew",
            self._process_id,
            [subscription.key for subscription in listening],
            *map(list, names),
            _ms(LISTENED_FOR),
        )
        for listener_id, replaced in renewed:
            subscription = self._listening.get(listener_id)
            if subscription is None:
                self._gone.add(listener_id)  # the listener was closed while it was renewed
            elif replaced:
                subscription.close()
        await self._write("clear_listeners", _ms(_FORGOTTEN_AFTER))
        await self._write("clear_commands", _ms(_FORGOTTEN_AFTER))
        self._renew_at = now + _RENEWED_AFTER.total_seconds()

    def _settler(self, place: int) -> Callable[[bool], None]:
        def settle(accepted: bool) -> None:
            self._settled[place] = accepted
            self._called.come()

        return settle

    def _forget(self, subscription: Subscription) -> None:
        self._listening.pop(subscription.key, None)
        self._gone.add(subscription.key)
        self._called.come()


def _rows(sql: SqlTransaction, statement: str, values: Sequence[object]) -> list[Row]:
    assert isinstance(sql, PostgresTransaction)  # noqa: S101 - only this engine has the tables
    return sql.rows(_SQL[statement], values)


def _process(process_id: str) -> str:
    return f"live:{process_id}"


def _delivery(delivery_id: str) -> str:
    return f"delivery:{delivery_id}"


def _names(target: LiveRunTarget) -> tuple[str | None, ...]:
    return target.thread_id, target.run_id, target.dispatch_id


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
