"""Who listens to which topic, and the telling of it: within the process, from any thread.

Losing a hint costs latency and never correctness: whoever waits for one looks again after a while by itself.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from hashlib import blake2b
from types import TracebackType
from typing import Final, NamedTuple, Self

from postroom.contracts.outbox import EffectPerformer

WORK: Final = "work"
"""The topic on which hints come that something may be claimable."""
MAIL: Final = "mail"
"""The topic on which hints come that something was written to mail."""
WAKES: Final = "wakes"
"""The topic on which hints come that a message has yet to wake a reader."""


def commands_to(consumer_id: str) -> str:
    """Return the topic on which a mailbox hears that something is asked of a run that it has at work."""
    return f"commands:{consumer_id}"


_LONGEST: Final = 100


def short_topic(topic: str) -> str:
    """Return a topic as it goes by everywhere: one that is long or strange by its digest."""
    if len(topic) <= _LONGEST and topic.isascii() and topic.isprintable():
        return topic
    return f"#{blake2b(topic.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


class TopicListener:
    """Hears one topic; may be waited on from one event loop after another."""

    def __init__(self, forget: "Callable[[TopicListener], None]") -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._told = False
        self._waiting: set[asyncio.Future[None]] = set()

    def come(self) -> None:
        """Wake whoever waits; the next one to wait need not."""
        with self._lock:
            self._told = True
            woken, self._waiting = self._waiting, set()
        for future in woken:
            _wake(future)

    async def wait(self, at_most: timedelta) -> bool:
        """Return True once the topic was told since the last call, False when the time is up."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._told:
                self._told = False
                return True
            self._waiting.add(future)
        try:
            async with asyncio.timeout(at_most.total_seconds()):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        self._told = False
        return True

    def close(self) -> None:
        """Hear nothing more; harmless when done twice."""
        self._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ChangeNotifier:
    """Tells listeners of this process."""

    performer: EffectPerformer | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[TopicListener, None]] = {}
        """By topic, in the order in which they began to listen: they are told in this order."""

    def listen(self, topic: str) -> TopicListener:
        """Hear a topic from now on: `WORK`, `MAIL`, `WAKES`, or the key of an event scope."""
        short = short_topic(topic)
        listener = TopicListener(lambda one: self._forget(short, one))
        with self._lock:
            self._listeners.setdefault(short, {})[listener] = None
        return listener

    def tell(self, topics: Iterable[str]) -> None:
        """Wake those who listen to these topics."""
        if not self._listeners:
            return
        told = list[TopicListener]()
        with self._lock:
            for topic in topics:
                told += self._listeners.get(short_topic(topic), ())
        for listener in told:
            listener.come()

    def tell_all(self) -> None:
        """Wake every listener: hints from other processes may have been lost."""
        with self._lock:
            topics = list(self._listeners)
        self.tell(topics)

    def _forget(self, topic: str, listener: TopicListener) -> None:
        with self._lock:
            there = self._listeners.get(topic, {})
            there.pop(listener, None)
            if not there:
                self._listeners.pop(topic, None)


def _wake(future: "asyncio.Future[None]") -> None:
    loop = future.get_loop()
    if loop is _running_loop():
        _finish(future)
        return
    try:
        loop.call_soon_threadsafe(_finish, future)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class SharedChanges(NamedTuple):
    """Passes hints between the servers of one database: what they tell, and how they are told."""

    changes: ChangeNotifier
    share: Callable[[Collection[str]], None]
    """Tells the others of topics, and nobody here."""
