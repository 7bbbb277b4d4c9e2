"""The entry point of the library: a program opens a mailbox, enqueues work and awaits the results."""

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from postroom.concurrency import SystemTimer, Tasks, in_thread
from postroom.contracts.activation import BusyPolicy, RunActivation, RunHints
from postroom.contracts.addresses import is_postgres_address, refuse_malformed_address
from postroom.contracts.clock import Clock, Duration, Timer
from postroom.contracts.errors import (
    ConfigError,
    DuplicateRecord,
    IdempotencyConflict,
    InputError,
    InvalidArgument,
    RunNotOpen,
)
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import storable
from postroom.contracts.records import replace
from postroom.dispatch.config import MailboxConfig, MailboxLifecycleConfig, StartupRecoveryConfig
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.dispatch.sinks import OutputKept
from postroom.dispatch.submission import refuse_other_content
from postroom.embedded.effects import Ends, Watch
from postroom.embedded.handle import RunEvent, RunHandle, unknown_run
from postroom.embedded.items import Item, refuse_other_id
from postroom.embedded.operators import DeadLetters, Pending, Questions
from postroom.embedded.running import Function, FunctionExecutor, Run, is_awaited, refuse_no_parameter
from postroom.embedded.schedules import RunSchedules
from postroom.stores.live import LocalLiveChannels
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.store import refuse_forked
from postroom.stores.stores import Stores

MEMORY: Final = "memory"
_REPAIRED_LATER: Final = MailboxLifecycleConfig(
    startup_recovery=StartupRecoveryConfig(max_attempts=10_000, retry_delay=timedelta(seconds=1))
)
"""Recovery settings that retry in the background, even during a long database outage, until the runs of a
former process are recovered.
"""
_BOUNDS_OF_A_THREAD: Final = ("max_queued_per_thread", "max_pending_per_thread")
_MINIMUMS: Final = {
    "max_concurrent_runs": 1,
    "max_concurrent_runs_per_tenant": 1,
    "lease_ms": 1_000,
} | dict.fromkeys(_BOUNDS_OF_A_THREAD, 1)
"""The minimum values of settings; a mailbox with lower values could not accept or execute work.

`lease_ms` has a minimum, because a run is stopped if the renewal takes longer than a third of its lease.
"""
_AT_ONCE: Final = 100
"""Number of items that are checked, in a few milliseconds, before other tasks of the event loop can run."""


class Mailbox:
    """A durable queue for conversations.

    The runs of each thread execute one at a time, in order.
    """

    def __init__(
        self, queue: Queue, stores: RunStores, ends: Ends | None = None, *, is_exclusive: bool = False
    ) -> None:
        """Create a mailbox on an existing queue.

        `ends` announces ended runs to handles. `is_exclusive` is true if no other process executes runs from
        the stores.
        """
        self.is_exclusive = is_exclusive
        self.process = os.getpid()
        """The id of the process that may use this mailbox. A forked child process must not use it."""
        self._ends = ends
        self.admin = queue
        """The underlying queue, with all the functions that adapters need."""
        self.stores = stores
        self.pending = Pending(self)
        """The messages of threads that no run has read yet."""
        self.questions = Questions(self)
        """The open questions of all runs."""
        self.dead_letters = DeadLetters(self)
        """The failed runs that an operator must replay or discard."""
        self.schedules = RunSchedules(queue, stores, lambda thread, run: RunHandle(self, thread, run))
        """The schedules, which enqueue work repeatedly."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        work: Function | RunDispatchExecutor | None,
        *,
        config: MailboxConfig | None = None,
        schema: str = "postroom",
    ) -> AsyncIterator["Mailbox"]:
        """Open a database, resume unfinished work, and accept new work.

        `url` is `sqlite:///runs.db`, `postgresql://…` or `memory`. `work` is a coroutine function of a `Run`,
        or an executor. If `work` is None, the process enqueues and follows work, but executes no runs. On
        exit, active runs have `config.drain_grace` to end before they return to the queue. On PostgreSQL, all
        data is stored in `schema`, which is created if it is missing.

        Raises:
            ConfigError: An argument is invalid, the folder of the database does not exist, or no run could
                execute with `config`. The database is unchanged, and no file was created.
            StoreError: The database cannot be opened.
        """
        if work is not None and not isinstance(work, RunDispatchExecutor):
            if not is_awaited(work):
                raise ConfigError(
                    "`work` must be a coroutine function, an executor, or None",
                    value=repr(work)[:80],
                    remedy="write `async def`, or use postroom.sync for plain functions",
                )
            refuse_no_parameter(work)
        _refuse_other_config(config, is_worker=work is not None)
        async with AsyncExitStack() as opened:
            stores = await open_stores(opened, url, schema)
            # a function cannot read further messages during its run
            steers = work is None or isinstance(work, RunDispatchExecutor)
            live = live_channels(stores, opened) if steers else None
            ends = Ends()
            queue = queue_over(stores, work, live, config=config, ends=ends)
            opened.push_async_callback(queue.aclose)
            queue.start_lifecycle(_REPAIRED_LATER)
            opened.callback(ends.close)
            mailbox = cls(queue, stores.runs, ends, is_exclusive=stores.is_exclusive)
            tasks = Tasks("embedded mailbox")
            opened.push_async_callback(tasks.close)
            tasks.start(mailbox.schedules.kept.serve(), name="schedules")
            yield mailbox

    async def enqueue(  # noqa: PLR0913 - the options, by name
        self,
        thread: str,
        content: object,
        *,
        key: str | None = None,
        agent: str | None = None,
        tenant: str = "",
        limit_key: str = "",
        priority: int = 128,
        delay: Duration | None = None,
        deadline: datetime | None = None,
        attempts: int | None = None,
        interruptions: int | None = None,
        retry_delay: Duration | None = None,
        max_retry_delay: Duration | None = None,
        when_busy: BusyPolicy = BusyPolicy.QUEUE,
    ) -> RunHandle:
        """Enqueue work for a conversation.

        The work is durable when the call returns.

        The runs of a thread execute one at a time.

        With `key`, a repeated call with the same content returns the run of the first call. With `key`, a
        repeated call with equal content returns the run of the first call. Limits and budgets count the run
        by `agent`, `tenant` and `limit_key`. `priority` ranges from 0, which is served first, to 255. A
        failed run is retried for about ten minutes, or up to `attempts` attempts. The delay between attempts
        starts at `retry_delay` and doubles up to `max_retry_delay`. A server shutdown during a run counts as
        an interruption, not as a failure. A run survives 20 interruptions, or the number in `interruptions`.

        Raises:
            InvalidArgument, InvalidSubmission: The work cannot be stored, an option is out of range, or the
                deadline has passed. Nothing was written, and the active run continues.
            IdempotencyConflict: A run of the thread has this key but different content; nothing was written.
            SubmissionRejected, QueueFull: The thread does not accept more work now.
            MailboxClosed: The mailbox is closing.
        """
        request = Item(
            thread,
            content,
            key=key,
            agent=agent,
            tenant=tenant,
            limit_key=limit_key,
            priority=priority,
            delay=delay,
            deadline=deadline,
            attempts=attempts,
            interruptions=interruptions,
            retry_delay=retry_delay,
            max_retry_delay=max_retry_delay,
        ).request(self.admin.new_id)
        try:
            when_busy = BusyPolicy(when_busy)
        except ValueError as error:
            raise InvalidArgument(
                f"when_busy must be one of {', '.join(BusyPolicy)}, not {when_busy!r:.80}",
                value=repr(when_busy)[:80],
                remedy="leave out when_busy to let the run wait for its turn",
            ) from error
        id, joins = request.run_id, when_busy in (BusyPolicy.COLLECT, BusyPolicy.STEER)
        if joins:
            request = replace(request, hints=RunHints(key=key))  # the message may join another run
        ends = None if joins else self._ends
        watch = None if ends is None else ends.watch(request.messages[0].id or "")
        if id is not None:
            once = self._enqueued_once(request, id, when_busy, watch, joins=joins)
            # This task continues even if the caller is cancelled.
            return await self.admin.complete(once, name="an enqueue")
        accepted = await self.admin.submit_background(request, strategy=when_busy)
        return RunHandle(self, accepted.thread_id, accepted.run_id, watch, is_new=True)

    async def _enqueued_once(
        self, request: RunActivation, id: str, when_busy: BusyPolicy, watch: Watch | None, *, joins: bool
    ) -> RunHandle:
        if (known_value := await self._run_with(request, id, joins=joins)) is not None:
            return RunHandle(self, request.thread_id, known_value, watch)
        try:
            accepted = await self.admin.submit_background(request, strategy=when_busy)
        except (DuplicateRecord, RunNotOpen):
            if (known_value := await self._run_with(request, id, joins=joins)) is None:
                raise
            return RunHandle(self, request.thread_id, known_value, watch)  # another caller was faster
        return RunHandle(self, accepted.thread_id, accepted.run_id, watch, is_new=True)

    async def enqueue_many(
        self, items: Iterable[Item], *, progress: Callable[[int, int], None] | None = None
    ) -> list[RunHandle]:
        """Enqueue many items in commits of up to 500 items; return the handles in the order of the items.

        All items are validated before the first commit. Each commit is stored completely or not at all. After
        each commit, `progress` is called with the number of stored items and the total. If the call fails,
        earlier commits remain. If each item has a `key`, the call can be repeated without creating
        duplicates.

        Raises:
            InvalidArgument: `items` is not iterable, or `progress` is not callable; nothing was written.
            InvalidArgument, InvalidSubmission: An item cannot be stored; the text begins with its index.
                Nothing was written.
            IdempotencyConflict: Two items have the same thread and key but different content; nothing was
                written. Or a stored run has the same thread and key but different content; earlier commits
                remain.
            QueueFull: The thread of an item does not accept more work; items of earlier commits stay
                stored.
            MailboxClosed: The mailbox is closing.
        """
        refuse_forked(self.process)
        if not isinstance(items, Iterable):
            raise InvalidArgument(
                f"items must be an iterable of Item, not {type(items).__name__}",
                value=repr(items)[:80],
                remedy="pass a list: [Item(thread, content)]",
            )
        if progress is not None and not callable(progress):
            raise InvalidArgument(
                f"progress must be a function of two numbers or None, not {type(progress).__name__}",
                value=repr(progress)[:80],
                remedy="pass a function such as print, or leave out progress",
            )
        requests, named = list[RunActivation](), dict[str, RunActivation]()
        for index, item in enumerate(items):
            if index % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # let other tasks run
            try:
                if not isinstance(item, Item):
                    raise InvalidArgument(
                        f"the value must be an Item, not {type(item).__name__}",
                        value=repr(item)[:80],
                        remedy="pass Item(thread, content)",
                    )
                request = item.request(self.admin.new_id)
                if request.run_id is not None:
                    first = named.setdefault(request.run_id, request)
                    refuse_other_content(request, request.run_id, first.messages)
            except (InputError, IdempotencyConflict) as error:
                raise error.met_at(f"item {index}") from error
            requests.append(request)
        ends = self._ends
        ids = [request.messages[0].id or "" for request in requests]
        watches = [None if ends is None else ends.watch(id) for id in ids]
        accepted = await self.admin.submit_many(requests, progress=progress)
        return [
            RunHandle(self, thread_id, run_id, watch, is_new=is_new)
            for (thread_id, run_id, is_new), watch in zip(accepted, watches, strict=True)
        ]

    async def _run_with(self, request: RunActivation, id: str, *, joins: bool) -> str | None:
        """Return the id of the run that has the message as input, or None.

        Raises:
            IdempotencyConflict: The run was enqueued with this key but different content.
        """
        threads, thread = self.stores.threads, request.thread_id
        if not joins:
            run = await threads.load_run(id)
            if run is None:
                return None
            ids = run.activation.trigger_message_ids if run.activation is not None else ()
            records = await threads.load_message_records(run.thread_id, ids)
            refuse_other_content(request, id, [record.message for record in records])
            return id
        waiting, records, run = await self.stores.store.read(
            lambda tx: (
                tx.runs.messages.waiting_named(thread, id),
                tx.runs.messages.named(thread, [id]),
                tx.runs.messages.given_to(thread, id),
            )
        )
        if waiting is not None:
            run_id = waiting.mode.target_run_id
            if waiting.revision == 1:  # a message that a person has edited is not compared
                refuse_other_content(request, run_id or "", [waiting.message])
            return run_id
        if run is None:
            return None
        refuse_other_content(request, run.run_id, [records[0].message])
        return run.run_id

    async def stream(
        self,
        thread: str,
        content: object,
        *,
        key: str | None = None,
        tenant: str = "",
        limit_key: str = "",
    ) -> AsyncIterator[RunEvent]:
        """Enqueue work, and yield the events of the run until the run ends."""
        handle = await self.enqueue(thread, content, key=key, tenant=tenant, limit_key=limit_key)
        async for event in handle.events():
            yield event

    async def handle(self, run_id: str) -> RunHandle:
        """Return the handle of a run that any process enqueued.

        Raises:
            UnknownRun: No run has this id.
        """
        refuse_other_id("the id of a run", run_id)
        run = await self.stores.threads.load_run(run_id)
        if run is None:
            raise unknown_run(run_id)
        return RunHandle(self, run.thread_id, run_id)

    async def cancel(self, id: str) -> bool:
        """Cancel a run, or the active run of a thread; return False if no such run is open.

        `id` is a run id or a thread id.
        """
        refuse_other_id("the id of a run or a thread", id)
        return await self.admin.cancel(id)


async def _nothing(run: Run) -> None:
    """A placeholder for the work function in a process that executes no runs."""


def _refuse_other_config(config: object, *, is_worker: bool) -> None:
    if config is None:
        return
    if not isinstance(config, MailboxConfig):
        raise ConfigError(
            f"config must be a MailboxConfig or None, not {type(config).__name__}",
            value=repr(config)[:80],
            remedy="write MailboxConfig(...)",
        )
    for name, least in _MINIMUMS.items():
        value = getattr(config, name)
        if value is None or value >= least or not (is_worker or name in _BOUNDS_OF_A_THREAD):
            continue
        remedy = f"leave out {name} to use its default"
        if name == "max_concurrent_runs":
            remedy = "pass None as `work` in a process that executes no runs"
        raise ConfigError(f"{name} must be at least {least}, not {value}", value=str(value), remedy=remedy)


def queue_over(  # noqa: PLR0913 - its parts, by name
    stores: Stores,
    work: Function | RunDispatchExecutor | None,
    live: LiveChannels | None,
    *,
    config: MailboxConfig | None = None,
    timer: Timer | None = None,
    steps: Timer | None = None,
    ends: Ends | None = None,
) -> Queue:
    """Return a queue on open stores, without starting the background work.

    `timer` provides the time for the queue, and `steps` the time for active work.
    """
    runs, executor, steps = stores.runs, work, steps or SystemTimer()
    config = dataclasses.replace(config or MailboxConfig(), is_exclusive=stores.is_exclusive)
    if work is None:
        config = dataclasses.replace(config, max_concurrent_runs=0)
    if not isinstance(executor, RunDispatchExecutor):
        executor = FunctionExecutor(executor or _nothing, runs, steps)
    return Queue(
        OutputKept(executor, runs.events, steps),
        runs,
        live=live,
        effects=ends or Ends(),
        timer=timer,
        config=config,
    )


async def open_stores(opened: AsyncExitStack, url: str, schema: str, clock: Clock | None = None) -> Stores:
    """Open the database at a URL, and return the stores.

    Closing `opened` closes the database.

    Raises:
        ConfigError, StoreError: As `opened_stores`.
    """
    held = ExitStack()
    opened.push_async_callback(in_thread, held.close)

    def open_here() -> Stores:
        return held.enter_context(closing(opened_stores(url, schema, clock)))

    return await in_thread(open_here)


def opened_stores(url: str, schema: str, clock: Clock | None = None) -> Stores:
    """Open the database at a URL, and return the stores.

    Blocks.

    Raises:
        ConfigError: The address or the schema is invalid, or the folder of the file does not exist.
        StoreError: The database cannot be opened.
    """
    if not isinstance(schema, str):
        raise ConfigError(
            f"schema must be text, not {type(schema).__name__}: {schema!r:.80}",
            value=repr(schema)[:80],
            remedy="leave out schema to use 'postroom'",
        )
    if url == MEMORY:
        return SqliteStore.in_memory(clock)
    # Splits an address with its line breaks, which `urlsplit` would remove.
    if not isinstance(url, str) or any(value < " " or "\ud800" <= value <= "\udfff" for value in url):
        raise _no_address(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _no_address(url) from error
    is_file = url.startswith("sqlite:///") and len(parts.path) > 1 and parts.path != "/:memory:"
    if is_file and not parts.query and not parts.fragment:
        path = Path(parts.path[1:])
        folder = path.resolve().parent
        try:
            folder.stat()
        except FileNotFoundError as error:
            raise ConfigError(
                f"the folder {folder} of the database does not exist",
                value=str(folder),
                remedy="create the folder, or correct the URL",
            ) from error
        except OSError:
            pass  # the store reports any other problem with the folder
        return SqliteStore.open(path, clock=clock, purpose="program")
    if is_postgres_address(url):
        try:
            refuse_malformed_address(url)
        except ValueError as error:
            raise ConfigError("the PostgreSQL URL is malformed", remedy=str(error)) from error
        from postroom.stores.postgres.store import PostgresStore

        store = PostgresStore.open(url, schema=schema, clock=clock)
        import postroom.stores.postgres.live  # noqa: F401 - it needs the driver, and this thread may block

        return store
    raise _no_address(url)


def _no_address(url: object) -> ConfigError:
    shown = repr(url)
    if isinstance(url, str):  # The part before the last @ may contain a password.
        _, at, host = storable(url).rpartition("@")
        shown = f"…@{host}" if at else repr(host)
    return ConfigError(
        f"{shown:.80} is not a valid database URL",
        value=shown[:80],
        remedy="use sqlite:///runs.db, sqlite:////var/lib/runs.db, postgresql://… or memory",
    )


def live_channels(stores: Stores, opened: AsyncExitStack) -> LiveChannels:
    """Return the channels that carry commands to active runs in all processes of the database."""
    if stores.is_exclusive:
        return LocalLiveChannels()
    from postroom.stores.postgres.live import PostgresLiveChannels

    channels = PostgresLiveChannels(stores.store)
    opened.push_async_callback(channels.close)
    return channels
