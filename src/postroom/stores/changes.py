"""Notifies listeners in this process, from any thread, that data about a topic may have changed.

A lost notification only causes a delay, because each listener also checks at intervals.
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
"""The topic under which listeners are notified that a dispatch may be claimable."""
MAIL: Final = "mail"
"""The topic under which listeners are notified that mail was written."""
WAKES: Final = "wakes"
"""The topic under which listeners are notified that a message must start a run of its recipient."""
TASKS: Final = "tasks"
"""The topic under which listeners are notified that a task, or a further task, can be claimed."""


def commands_to(consumer_id: str) -> str:
    """Return the topic of the commands for the active runs of a mailbox."""
    return f"commands:{consumer_id}"


_MAX_LENGTH: Final = 100


def short_topic(topic: str) -> str:
    """Return the topic, or a hash of the topic if it is long or not printable ASCII."""
    if len(topic) <= _MAX_LENGTH and topic.isascii() and topic.isprintable():
        return topic
    return f"#{blake2b(topic.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


class TopicListener:
    """Listens for notifications of one topic.

    Several event loops may call `wait` one after another.
    """

    def __init__(self, forget: "Callable[[TopicListener], None]") -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._told = False
        self._waiting: set[asyncio.Future[None]] = set()

    def come(self) -> None:
        """Wake all waiters, or make the next call of `wait` return at once."""
        with self._lock:
            self._told = True
            woken, self._waiting = self._waiting, set()
        for future in woken:
            _wake(future)

    async def wait(self, at_most: timedelta) -> bool:
        """Wait until the topic is notified; return False if `at_most` passes without a notification.

        A notification that arrived since the previous call ends the wait at once.
        """
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
        """Stop listening to the topic; a second call has no effect."""
        self._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ChangeNotifier:
    """Notifies listeners in this process that the data of a topic has changed."""

    performer: EffectPerformer | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[TopicListener, None]] = {}
        """The listeners of each topic, in the order of subscription, in which they are also woken."""

    def listen(self, topic: str) -> TopicListener:
        """Return a new listener for `WORK`, `MAIL`, `WAKES`, `TASKS`, or the key of an event scope."""
        short = short_topic(topic)
        listener = TopicListener(lambda one: self._forget(short, one))
        with self._lock:
            self._listeners.setdefault(short, {})[listener] = None
        return listener

    def tell(self, topics: Iterable[str]) -> None:
        """Notify the listeners of `topics` that data has changed."""
        if not self._listeners:
            return
        topic_listeners = list[TopicListener]()
        with self._lock:
            for topic in topics:
                topic_listeners += self._listeners.get(short_topic(topic), ())
        for listener in topic_listeners:
            listener.come()

    def tell_all(self) -> None:
        """Notify the listeners of all topics."""
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
    try:
        is_here = loop is asyncio.get_running_loop()
    except RuntimeError:
        is_here = False
    if is_here:
        _finish(future)
        return
    try:
        loop.call_soon_threadsafe(_finish, future)
    except RuntimeError:  # the loop is closed, so nothing waits on it
        return


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class SharedChanges(NamedTuple):
    """The notifier of this process, and a function that notifies other processes."""

    changes: ChangeNotifier
    share: Callable[[Collection[str]], None]
    """Sends topics to the other processes, but not to this process."""
