"""How one connection is served: uvicorn's way, mended where a client is slow, broken or one of too many.

What a client owes, and how long it is waited for:

    accepted ──▶ the head of a request, 30 s in all ──▶ its body, 30 s for each next piece ──▶ nothing
       │                        ▲                                                                │
       └─ one of too many: cut  └──────────── uvicorn waits for the next request ◀── the answer ─┘
"""

import asyncio
from contextlib import suppress
from functools import cache
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE: Final = 30.0
"""Seconds."""
WANTED: Final = 4096
"""Files and sockets that a process should be allowed to have; usual defaults are 256 and 1024."""
RESERVED: Final = 192
"""Of them for everything else: the database, Git, and a burst of connections before they are counted."""
ACCEPTED_AT_ONCE: Final = 50
"""What asyncio accepts in one go; about three such bursts may be open before they are counted."""
QUEUE: Final = 1024
"""Connections that wait in the system to be accepted; a crowd of agents may come at once."""
_UNANSWERED: Final = (h11.IDLE, h11.SEND_RESPONSE)


@cache
def room() -> int:
    """Return how many connections this process may hold, once the system was asked for more.

    Beyond what the system allows nothing could be opened any more, and asyncio would log each failure to
    accept with a traceback, tens of thousands a second.
    """
    try:
        import resource
    except ImportError:  # Windows, where sockets do not count as files
        return WANTED - RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < best:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = WANTED if soft == resource.RLIM_INFINITY else min(WANTED, soft)
    return max(allowed - RESERVED, allowed // 4)


class Connection(H11Protocol):
    """One HTTP/1.1 connection."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for a request, or cut the connection when there are too many of them."""
        super().connection_made(transport)
        if len(self.connections) > room():
            transport.abort()
        else:
            self._wait_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait for what is still owed."""
        super().data_received(data)
        self._wait_for_the_rest()

    def on_response_complete(self) -> None:
        """Go on to the next request; one that came behind the other may be here in part."""
        super().on_response_complete()
        if self._is_serving():
            self._wait_for_the_rest()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP and close; whoever works at the request learns that its caller is gone.

        Uvicorn lets the application answer too: the answer fails inside h11, and each such request would
        write two tracebacks into the log.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in _UNANSWERED:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_the_rest(self) -> None:
        """Wait for a body from now on, for a head as long as it was waited for already."""
        if self._is_serving():
            self._wait_no_more()
        if not self._is_serving() or self.cycle.more_body:
            self._wait_on()

    def _wait_on(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(PATIENCE, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
