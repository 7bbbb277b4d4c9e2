"""The library for programs without asyncio: `postroom.embedded` with blocking functions.

    threads of the program ──▶ calls ──▶ one thread with an event loop: `postroom.embedded.Mailbox`
            a sync run ◀──────── on a thread of its own

Each method waits for its asynchronous counterpart; this module contains no other logic.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, overload

from postroom import embedded
from postroom.concurrency import unreported
from postroom.contracts.clock import Duration
from postroom.contracts.errors import ConfigError, MailboxClosed, MailboxForked, StaleClaim
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.messages import Json
from postroom.dispatch.config import MailboxConfig
from postroom.embedded import Answer, Item, RunEvent, RunState, State
from postroom.embedded.running import is_awaited, refuse_no_parameter
from postroom.stores.store import refuse_forked

__all__ = ["Answer", "Item", "Mailbox", "Run", "RunEvent", "RunHandle", "RunState", "State"]

P = ParamSpec("P")
T = TypeVar("T")

Work = Callable[["Run"], object] | Callable[[embedded.Run], Coroutine[Any, Any, object]]
"""The work of a run: a function with a blocking `Run`, or a coroutine function."""
_END: Final = object()


class _Loop:
    """An event loop in its own thread, which any other thread can call."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def run(self, main: Coroutine[Any, Any, None], ended: Future[None]) -> None:
        """Run the coroutine `main` in a new daemon thread; the future `ended` gets the outcome."""

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            try:
                await main
            finally:
                with self._gate:
                    self._loop = None
                await asyncio.sleep(0)  # calls that were accepted are tasks now, which end with the loop

        def on_thread() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:  # raised in the waiting thread
                ended.set_exception(error)
            else:
                ended.set_result(None)

        self._thread = threading.Thread(target=on_thread, name="postroom-sync", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], jobs: "SimpleQueue[Callable[[], None] | None]") -> T:
        """Run a coroutine on the event loop, and return its result.

        The calling thread blocks, and calls the functions in the queue `jobs` meanwhile.

        Raises:
            MailboxClosed: The loop has ended.
            MailboxForked: This process was forked after the mailbox was opened.
        """
        try:
            refuse_forked(self._process)
        except MailboxForked:
            work.close()
            raise
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking call was made on the event loop itself: use postroom.embedded there"
            )
        with self._gate:
            if self._loop is None:
                work.close()
                raise MailboxClosed("the mailbox is closed")
            waited = asyncio.run_coroutine_threadsafe(work, self._loop)
        waited.add_done_callback(lambda _: jobs.put(None))
        try:
            while (job := jobs.get()) is not None:
                job()
            return waited.result()
        except CancelledError as error:
            raise MailboxClosed("the mailbox is closed") from error
        finally:
            waited.cancel()  # needed if this thread was interrupted

    @property
    def is_here(self) -> bool:
        """Whether the event loop belongs to this process, rather than to a parent process."""
        return os.getpid() == self._process

    def soon(self, function: Callable[[], object]) -> None:
        """Schedule a function on the event loop, unless the loop has ended."""
        with self._gate:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)


class _Twin:
    """A blocking counterpart of an asynchronous object."""

    def __init__(self, loop: _Loop, twin: Any) -> None:
        self._loop = loop
        self._twin = twin

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.call(work, SimpleQueue())

    def _each(self, events: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(events, _END)

        try:
            while (event := self._call(following())) is not _END:
                yield event
        finally:
            with suppress(MailboxClosed):  # it was already closed together with the loop
                self._call(events.aclose())

    def __repr__(self) -> str:
        return repr(self._twin)


def _waiting_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    @wraps(method)
    def call(self: _Twin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method(self._twin, *args, **kwargs))

    return call


def _handle(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, embedded.RunHandle]],
) -> Callable[Concatenate[Any, P], "RunHandle"]:
    @wraps(method)
    def call(self: _Twin, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return RunHandle(self._loop, self._call(method(self._twin, *args, **kwargs)))

    return call


def _iterating_method(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[Concatenate[Any, P], Iterator[RunEvent]]:
    @wraps(method)
    def call(self: _Twin, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[RunEvent]:
        return self._each(method(self._twin, *args, **kwargs))

    return call


class RunHandle(_Twin):
    """A blocking handle to wait for, read, answer and cancel a run, like `postroom.embedded.RunHandle`."""

    _twin: embedded.RunHandle

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._twin.id

    @property
    def thread_id(self) -> str:
        """The id of the run's thread."""
        return self._twin.thread_id

    @overload
    def result(self, *, timeout: Duration | None = None) -> str: ...

    @overload
    def result(self, *, timeout: Duration | None = None, type: type[T]) -> T: ...

    @wraps(embedded.RunHandle.result)
    def result(self, *, timeout: Duration | None = None, type: Any = None) -> Any:
        """Return the answer of the run."""
        return self._call(self._twin.result(timeout=timeout, type=type))

    status = _waiting_method(embedded.RunHandle.status)
    cancel = _waiting_method(embedded.RunHandle.cancel)
    answer = _waiting_method(embedded.RunHandle.answer)
    events = _iterating_method(embedded.RunHandle.events)


class _Operators(_Twin):
    """A blocking counterpart of the part of a mailbox for operators."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._twin, name)

        def call(*args: object, **kwargs: object) -> Any:
            value = self._call(method(*args, **kwargs))
            return RunHandle(self._loop, value) if isinstance(value, embedded.RunHandle) else value

        return wraps(method)(call)

    def __iter__(self) -> Iterator[Any]:
        return self._each(aiter(self._twin))


class Mailbox(_Twin):
    """A durable queue for conversations, which any thread may call, like `postroom.embedded.Mailbox`."""

    _twin: embedded.Mailbox

    @classmethod
    @contextmanager
    def open(
        cls,
        url: str,
        work: Work | RunDispatchExecutor | None,
        *,
        config: MailboxConfig | None = None,
        schema: str = "postroom",
    ) -> Iterator["Mailbox"]:
        """Open a database, resume its unfinished work and accept new work.

        `url` is `sqlite:///runs.db`, `postgresql://…` or `memory`. `work` is a function, a coroutine function
        or an executor. A function gets a `Run`, and is called in a separate thread. If `work` is None, other
        processes execute the work. On exit, active runs have `config.drain_grace` to end. After Ctrl-C, the
        exit does not wait for runs.

        Raises:
            ConfigError: As for `postroom.Mailbox.open`; nothing was created or changed.
            StoreError: The database cannot be opened.
        """
        loop, opened, ended = _Loop(), Future[embedded.Mailbox](), Future[None]()
        closing = asyncio.Event()
        function: Any = work
        if work is not None and not isinstance(work, RunDispatchExecutor):
            function = _as_coroutine(loop, work)

        async def main() -> None:
            try:
                async with embedded.Mailbox.open(url, function, config=config, schema=schema) as mailbox:
                    opened.set_result(mailbox)
                    await closing.wait()
            except BaseException as error:
                if not opened.done():
                    opened.set_exception(error)
                    return
                raise

        loop.run(main(), ended)
        try:
            yield cls(loop, opened.result())
        finally:
            if loop.is_here:
                loop.soon(closing.set)
                ended.result()

    enqueue = _handle(embedded.Mailbox.enqueue)

    @wraps(embedded.Mailbox.enqueue_many)
    def enqueue_many(
        self, items: Iterable[Item], *, progress: Callable[[int, int], None] | None = None
    ) -> list[RunHandle]:
        """Enqueue many items in commits of up to 500."""
        jobs = SimpleQueue[Callable[[], None] | None]()

        def tell(done: int, of: int) -> None:  # called on the loop; passes the call to the caller's thread
            if progress is not None:
                jobs.put(partial(progress, done, of))

        report = tell if callable(progress) else progress  # the asynchronous method rejects anything else
        handles = self._loop.call(self._twin.enqueue_many(items, progress=report), jobs)
        return [RunHandle(self._loop, handle) for handle in handles]

    @property
    def pending(self) -> _Operators:
        """The messages that no run has read yet."""
        return _Operators(self._loop, self._twin.pending)

    @property
    def questions(self) -> _Operators:
        """The open questions of all runs."""
        return _Operators(self._loop, self._twin.questions)

    @property
    def dead_letters(self) -> _Operators:
        """The failed runs that an operator must replay or discard."""
        return _Operators(self._loop, self._twin.dead_letters)

    @property
    def schedules(self) -> _Operators:
        """The schedules, which enqueue work repeatedly."""
        return _Operators(self._loop, self._twin.schedules)

    stream = _iterating_method(embedded.Mailbox.stream)
    handle = _handle(embedded.Mailbox.handle)
    cancel = _waiting_method(embedded.Mailbox.cancel)


class Run(_Twin):
    """A run as its function sees the run, like `postroom.embedded.Run`.

    Steps execute in the thread of the run.
    """

    _twin: embedded.Run

    def __init__(self, loop: _Loop, twin: embedded.Run) -> None:
        super().__init__(loop, twin)
        self.id = twin.id
        self.thread_id = twin.thread_id
        self.agent_id = twin.agent_id
        self.attempt = twin.attempt
        self.interruptions = twin.interruptions
        self.messages = twin.messages
        self.is_stopped = False
        """Whether the run was cancelled or belongs to another worker, so that its next call raises an error.
        """

    @property
    def text(self) -> str:
        """The messages of the run as text."""
        return self._twin.text

    @property
    def data(self) -> Json:
        """The enqueued content as plain data."""
        return self._twin.data

    @wraps(embedded.Run.input)
    def input(self, type: type[T]) -> T:
        """Return the enqueued content as a value of a type."""
        return self._twin.input(type)

    @wraps(embedded.Run.step)
    def step(self, name: str, function: Callable[..., Any], /, *args: object, **options: Any) -> Any:
        """Call a function once for this run, in the run's thread, and return its result."""
        self._check_running()
        jobs = SimpleQueue[Callable[[], None] | None]()

        async def here(*args: object, **kwargs: object) -> object:
            done = asyncio.get_running_loop().create_future()
            jobs.put(partial(_settle, self._loop, done, partial(function, *args, **kwargs)))
            return await done

        is_plain = callable(function) and not inspect.iscoroutinefunction(function)
        called = here if is_plain else function
        return self._loop.call(self._twin.step(name, called, *args, **options), jobs)

    @wraps(embedded.Run.used)
    def used(self, *, input_tokens: int = 0, output_tokens: int = 0, cost_micros: int = 0) -> None:
        """Add to the usage of the run, which budgets count."""
        self._twin.used(input_tokens=input_tokens, output_tokens=output_tokens, cost_micros=cost_micros)

    history = _waiting_method(embedded.Run.history)
    ask = _waiting_method(embedded.Run.ask)
    sleep = _waiting_method(embedded.Run.sleep)
    stream = _waiting_method(embedded.Run.stream)
    log = _waiting_method(embedded.Run.log)  # type: ignore[arg-type] # its facts may have any name

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_running()
        except StaleClaim:
            work.close()
            raise
        return super()._call(work)

    def _check_running(self) -> None:
        if self.is_stopped:
            raise StaleClaim(f"run {self.id} was stopped", value=self.id)


def _as_coroutine(loop: _Loop, work: Any) -> Any:
    """Return the work of a run as a coroutine function."""
    if is_awaited(work):
        return work
    if not callable(work):
        raise ConfigError("`work` must be a function, an executor, or None", value=repr(work)[:80])
    refuse_no_parameter(work)

    async def on_a_thread(twin: embedded.Run) -> object:
        run, done = Run(loop, twin), unreported(asyncio.get_running_loop().create_future())
        call = partial(_settle, loop, done, partial(work, run))
        threading.Thread(target=call, name=f"postroom-run {run.id}", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            run.is_stopped = True
            # a thread cannot be stopped, and no other thread may work on the run meanwhile
            await asyncio.wait({done})
            raise
        finally:
            run.is_stopped = True

    return on_a_thread


def _settle(loop: _Loop, future: "asyncio.Future[object]", call: Callable[[], object]) -> None:
    """Call a function in this thread, and pass the result to a future of the event loop."""
    try:
        settle = partial(future.set_result, call())
    except StopIteration as error:  # a future cannot hold a StopIteration
        settle = partial(future.set_exception, RuntimeError(f"StopIteration was raised: {error}"))
    except BaseException as error:  # this includes the exception that unwinds a waiting run
        settle = partial(future.set_exception, error)
    loop.soon(lambda: None if future.done() else settle())
