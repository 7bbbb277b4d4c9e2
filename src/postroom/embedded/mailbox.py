"""The front door of the library: open a mailbox, enqueue work, wait for it."""

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from postroom.concurrency import SystemTimer
from postroom.contracts.activation import BusyPolicy, DeliveryOptions, RunActivation, RunHints
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ConfigError, DuplicateRecord, InvalidArgument, RunNotOpen, UnknownRun
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.live import LiveChannels
from postroom.contracts.records import replace
from postroom.contracts.run_ports import RunStores
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.embedded.effects import Ends
from postroom.embedded.handle import RunEvent, RunHandle
from postroom.embedded.running import Function, FunctionExecutor
from postroom.embedded.values import instant_of, message_of
from postroom.stores.live import LocalLiveChannels
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.store import Stores

MEMORY: Final = "memory"


class Mailbox:
    """Durable work for conversations: one run a thread at a time, in order, on one machine or many."""

    def __init__(self, queue: Queue, stores: RunStores) -> None:
        self.admin = queue
        """What operators and adapters need."""
        self.stores = stores

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        work: Function | RunDispatchExecutor,
        *,
        config: MailboxConfig | None = None,
        schema: str = "postroom",
    ) -> AsyncIterator["Mailbox"]:
        """Open `sqlite:///runs.db`, `postgresql://…` or `memory`, go on with what was left, and take work.

        `work` is a coroutine function of a `Run`, or an executor. At the end runs at work are given
        `config.drain_grace`, and what has not ended goes back to the queue. On PostgreSQL everything is in
        one `schema`, which is made when it is missing.

        Raises:
            ConfigError: the address is none.
            StoreError: the database cannot be opened.
        """
        async with AsyncExitStack() as opened:
            stores = await asyncio.to_thread(_opened, url, schema)
            opened.push_async_callback(asyncio.to_thread, stores.close)
            runs = stores.runs
            executor, live = work, None
            if isinstance(executor, RunDispatchExecutor):
                live = _live(stores, opened)
            else:
                executor = FunctionExecutor(executor, runs, SystemTimer())
            queue = Queue(
                executor,
                runs,
                live=live,
                effects=Ends(),
                config=dataclasses.replace(config or MailboxConfig(), is_exclusive=stores.is_exclusive),
            )
            await opened.enter_async_context(queue)
            yield cls(queue, runs)

    async def enqueue(  # noqa: PLR0913 - what can be chosen, by name
        self,
        thread: str,
        content: object,
        *,
        key: str | None = None,
        agent: str | None = None,
        tenant: str = "",
        priority: int = 128,
        delay: timedelta | None = None,
        deadline: datetime | None = None,
        attempts: int | None = None,
        retry_delay: timedelta | None = None,
        max_retry_delay: timedelta | None = None,
        when_busy: BusyPolicy = BusyPolicy.QUEUE,
    ) -> RunHandle:
        """Accept work for a conversation; it is durable when this returns. Runs of a thread take turns.

        `content` is text, or anything that msgspec encodes. With `key` the same call again returns the run
        of the first. `priority` 0 is served first, 255 last. A run that fails is tried again for some ten
        minutes, or as often as `attempts` says; `retry_delay` is doubled each time, up to `max_retry_delay`.

        Raises:
            InvalidArgument, InvalidSubmission: it cannot be stored, or an option is out of range.
            SubmissionRejected, QueueFull: the thread takes no more.
            MailboxClosed: the mailbox is closing.
        """
        run_id = None if key is None else _id_of(thread, key)
        message = message_of(content, id=run_id or uuid4().hex)
        delivery = DeliveryOptions(
            priority=priority,
            delay_ms=0 if delay is None else milliseconds(delay),
            deadline_at=None if deadline is None else instant_of(deadline, "the deadline"),
            max_attempts=attempts,
            retry_delay_ms=None if retry_delay is None else milliseconds(retry_delay),
            max_retry_delay_ms=None if max_retry_delay is None else milliseconds(max_retry_delay),
            tenant=tenant,
        )
        request = replace(
            RunActivation.new(thread, [message], agent_id=agent),
            delivery=delivery,
            hints=RunHints(run_id=run_id),
        )
        if run_id is not None and await self.stores.threads.load_run(run_id) is not None:
            return RunHandle(self, thread, run_id)
        try:
            accepted = await self.admin.submit_background(request, strategy=when_busy)
        except (DuplicateRecord, RunNotOpen):
            if run_id is None:
                raise
            return RunHandle(self, thread, run_id)  # another was faster
        return RunHandle(self, accepted.thread_id, accepted.run_id)

    async def stream(
        self, thread: str, content: object, *, key: str | None = None
    ) -> AsyncIterator[RunEvent]:
        """Enqueue work and yield what its run tells, until it is over; see `RunHandle.events`."""
        handle = await self.enqueue(thread, content, key=key)
        async for event in handle.events():
            yield event

    async def handle(self, run_id: str) -> RunHandle:
        """Return the handle of a run that any process has enqueued.

        Raises:
            UnknownRun: there is none with this id.
        """
        run = await self.stores.threads.load_run(run_id)
        if run is None:
            raise UnknownRun(f"there is no run {run_id!r}", value=run_id)
        return RunHandle(self, run.thread_id, run_id)

    async def cancel(self, id: str) -> bool:
        """End the run with this id, or what a thread with this id has at work; False when there is none."""
        return await self.admin.cancel(id)


def _opened(url: str, schema: str) -> Stores:
    """Open the database that an address names. Blocks."""
    if url == MEMORY:
        return SqliteStore.in_memory()
    parts = urlsplit(url)
    if url.startswith("sqlite:///") and len(parts.path) > 1:
        return SqliteStore.open(Path(parts.path[1:]))
    if parts.scheme in ("postgresql", "postgres"):
        import postroom.stores.postgres.live  # noqa: F401 - it reads files, which this thread may
        from postroom.stores.postgres.store import PostgresStore

        return PostgresStore.open(url, schema=schema)
    raise ConfigError(
        "the address of the database is none",
        value=url.partition("@")[2] or url,
        remedy="sqlite:///runs.db, sqlite:////var/lib/runs.db, postgresql://… or memory",
    )


def _live(stores: Stores, opened: AsyncExitStack) -> LiveChannels:
    """Return what carries commands to runs at work, in all processes that share the database."""
    if stores.is_exclusive:
        return LocalLiveChannels()
    from postroom.stores.postgres.live import PostgresLiveChannels

    channels = PostgresLiveChannels(stores.store)
    opened.push_async_callback(channels.close)
    return channels


def _id_of(thread: str, key: str) -> str:
    if not key.strip():
        raise InvalidArgument("a key must not be blank")
    return "key-" + hashlib.sha256(f"{thread}\0{key}".encode()).hexdigest()[:32]
