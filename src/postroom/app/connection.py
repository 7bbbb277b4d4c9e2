"""How one connection is served: uvicorn's way, mended where a client breaks off what it began to say."""

from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_UNANSWERED: Final = (h11.IDLE, h11.SEND_RESPONSE)


class Connection(H11Protocol):
    """One HTTP/1.1 connection.

    When the rest of a request turns out to be no HTTP, uvicorn refuses it, but lets the application answer it
    too: the answer fails inside h11, and each such request would write two tracebacks into the log.
    """

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP and close; whoever works at the request learns that its caller is gone."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in _UNANSWERED:
            super().send_400_response(msg)
        else:
            self.transport.close()
