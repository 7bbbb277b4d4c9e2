"""A store whose calls a test makes without an event loop, each as a separate change or read."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from conformance.promises.given import never_made, put_message
from postroom.contracts.mail import Agent, Message
from postroom.stores.mail.access import MailReads
from postroom.stores.mail.store import MailStore
from store_kinds import KINDS, POOLED

on_both = pytest.mark.parametrize("engine", KINDS)
"""For what locks, types, ordering, collation, isolation or the search index of an engine decide."""
on_each = pytest.mark.parametrize("engine", [*KINDS, POOLED])
"""For what also a pooler in between could break."""


class Box:
    """The mail of a store: `box.inbox(...)` is one look, `box.mark_read(...)` one change."""

    def __init__(self, store: MailStore, loop: asyncio.AbstractEventLoop) -> None:
        self.store, self._loop = store, loop

    def _waited(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    def change(self, change: Callable[[Any], Any]) -> Any:
        return self._waited(self.store.write(change))

    def put(self, sender: Agent, readers: Sequence[Agent], **details: Any) -> Message:
        """Store a message with its recipients, in one change."""
        return self.change(lambda tx: put_message(tx, sender, readers, **details))

    def undo(self, change: Callable[[Any], Any]) -> None:
        self._waited(never_made(self.store, change))

    def settle(self) -> None:
        self._waited(self.store.settle())

    def __getattr__(self, name: str) -> Any:
        if name == "outbox":
            return _Outbox(self)
        ask = self.store.read if hasattr(MailReads, name) else self.store.write
        return lambda *values, **named: self._waited(ask(lambda tx: getattr(tx, name)(*values, **named)))


class _Outbox:
    def __init__(self, box: Box) -> None:
        self._box = box

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self._box.change(
            lambda tx: getattr(tx.outbox, name)(*values, **named)
        )


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop on a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
