"""Sends notifications between processes with LISTEN and NOTIFY, over a separate connection and thread.

Notifications are sent in batches after the commit, over a connection that does not wait for the disk. NOTIFY
within the transactions themselves would allow only one transaction of the database to commit at a time.

Each batch is a separate transaction. A process that is alone sends no notifications, which saves a third of
the transactions of a busy process. Each listening process announces itself and holds a shared session lock,
by which other processes detect it.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from postroom.contracts.clock import elapsed_ms, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.log import get_logger
from postroom.stores.changes import ChangeNotifier, short_topic
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended
from postroom.stores.postgres.sql_transaction import lock_number

_LOG = get_logger(__name__)

LOOK_AGAIN_AFTER: Final = timedelta(seconds=5)
"""The time without traffic after which a connection is checked."""
CONNECTS_AGAIN_AFTER: Final = timedelta(seconds=1)
"""Maximum pause between two attempts to reconnect."""
TOGETHER_WITHIN: Final = timedelta(milliseconds=10)
"""Minimum time between two batches of notifications."""
LOOKS_EVERY: Final = timedelta(seconds=10)
"""The interval at which clocks are compared, and the schema is checked for compatibility with this release.
"""
_SEND: Final = "SELECT pg_notify($1::text, word) FROM unnest($2::text[]) AS word"
_BEGUN: Final = "*"
"""A process sends this when it starts to listen or to send, so that all listeners check for changes."""
_LISTENS: Final = "SELECT pg_advisory_lock_shared($1::bigint)"
_OTHERS: Final = """
SELECT EXISTS (SELECT 1 FROM pg_locks
                WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND classid = ($1::bigint >> 32 & 4294967295)::oid
                  AND objid = ($1::bigint & 4294967295)::oid)
"""


class Notifications:
    """Exchanges notifications with the other processes that use a schema."""

    def __init__(
        self, address: Address, changes: ChangeNotifier, look_around: Callable[[Connection], None]
    ) -> None:
        """Start the exchange; `look_around` is called about every 10 seconds with the connection."""
        self._address = replace(address.direct, settings={"synchronous_commit": "off"})
        self._changes = changes
        self._look_around, self._looked_at = look_around, 0
        self.channel = f"postroom_{blake2b(address.schema.encode(), digest_size=8).hexdigest()}"
        self._key = lock_number(f"postroom listens {address.schema}")
        self.is_listening = threading.Event()
        """Whether this process receives notifications from other processes now."""
        self.is_alone = threading.Event()
        """Whether no other process listens, so that nothing is sent."""
        self._owed: set[str] = set()
        self._gate = threading.Lock()
        self._closing = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="postroom-hints", daemon=True)
        self._thread.start()

    def share(self, topics: Collection[str]) -> None:
        """Notify other processes in the background that the data of `topics` has changed."""
        if topics and self.is_listening.is_set() and not self.is_alone.is_set():
            with self._gate:
                is_first = not self._owed
                self._owed.update(short_topic(topic) for topic in topics)
            if is_first:
                self._ring()

    def close(self) -> None:
        """Stop sending and receiving; a second call has no effect.

        Unsent notifications may be lost.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._ring()
            self._thread.join()
            self._waker.close()
            self._woken.close()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the thread is already woken
            self._waker.send(b"!")

    def _serve(self) -> None:
        pause = TOGETHER_WITHIN
        while not self._closing.is_set():
            try:
                self._listen()
                pause = TOGETHER_WITHIN
            except (PostroomError, ConnectionLost, Contended) as error:
                if self.is_listening.is_set():
                    pause = TOGETHER_WITHIN
                    _LOG.warning("store.hints_lost", reason=str(error))
            self.is_listening.clear()
            self._changes.tell_all()  # notifications from others are lost until the next connection
            self._closing.wait(pause.total_seconds())
            pause = min(pause * 2, CONNECTS_AGAIN_AFTER)

    def _listen(self) -> None:
        connection = Connection(self._address)
        try:
            connection.send(_LISTENS, (self._key,))
            connection.listen(self.channel)
            self._send_to_others()
            self.is_listening.set()
            self._ring()
            self._changes.tell_all()  # notifications may have been sent while this process did not listen
            with selectors.DefaultSelector() as selector:
                selector.register(connection.fileno, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                while not self._closing.is_set():
                    selector.select(LOOK_AGAIN_AFTER.total_seconds())
                    self._pass_on(connection)
                    if elapsed_ms() - self._looked_at > milliseconds(LOOKS_EVERY):
                        self._look_around(connection)
                        self._look_for_others(connection)
                        self._looked_at = elapsed_ms()
        finally:
            connection.close()

    def _pass_on(self, connection: Connection) -> None:
        """Receive notifications, and send the queued ones."""
        # An empty batch is also sent, to detect a lost connection.
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1_024)
        self._hear(connection)
        with self._gate:
            owed, self._owed = sorted(self._owed), set()
        connection.send(_SEND, (self.channel, owed))
        connection.wait()
        self._hear(connection)
        self._closing.wait(TOGETHER_WITHIN.total_seconds())

    def _hear(self, connection: Connection) -> None:
        words = [word for word, process in connection.heard() if process != connection.pid]
        if words and self.is_alone.is_set():
            self._send_to_others()
        if _BEGUN in words:
            self._changes.tell_all()
        self._changes.tell(words)

    def _look_for_others(self, connection: Connection) -> None:
        """Check whether another process listens."""
        answer = connection.send(_OTHERS, (self._key,))
        connection.wait()
        if not answer.rows[0][0]:
            self.is_alone.set()
            self._hear(connection)  # another process may have started meanwhile
        elif self.is_alone.is_set():
            self._send_to_others()

    def _send_to_others(self) -> None:
        """Start to send notifications, and let listeners in other processes check for earlier changes."""
        self.is_alone.clear()
        with self._gate:
            self._owed.add(_BEGUN)
