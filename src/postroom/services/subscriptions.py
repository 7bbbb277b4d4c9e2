"""Which resources a change touches, and the fan-out of that news to clients that listen.

News is a hint: a client that misses one finds the message in its inbox all the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio.lowlevel

from postroom.contracts.tokens import Grant
from postroom.log import get_logger

if TYPE_CHECKING:
    from mcp.server.subscriptions import ServerEvent

_LOG = get_logger(__name__)
_LISTENER: ContextVar[Grant | None] = ContextVar("listener", default=None)
"""By which named token the stream came that is being opened."""


class Subscriptions:
    """The listening clients of this process."""

    def __init__(self, *, holds: Callable[[Grant], bool] | None = None) -> None:
        """`holds` says whether a named token is still good: one that is not is told nothing more."""
        self._holds = holds or (lambda _: True)
        self._listeners: dict[object, tuple[Callable[[ServerEvent], None], Grant | None]] = {}

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    async def publish(self, event: "ServerEvent") -> None:
        """Tell every listener; one that fails does not keep the news from the others."""
        for listener, grant in list(self._listeners.values()):
            if grant is not None and not self._holds(grant):
                continue
            try:
                listener(event)
            except Exception:  # the edge around one listener (style: three places); logged, the rest go on
                _LOG.exception("subscription.listener_failed")
        await anyio.lowlevel.checkpoint()

    def subscribe(self, listener: Callable[["ServerEvent"], None]) -> Callable[[], None]:
        """Add a listener and return what removes it; removing twice is harmless."""
        ticket = object()
        self._listeners[ticket] = listener, _LISTENER.get()
        return lambda: self._listeners.pop(ticket, None) and None

    @staticmethod
    @contextmanager
    def heard_by(grant: Grant | None) -> Iterator[None]:
        """Have what subscribes inside listen by this token."""
        before = _LISTENER.set(grant)
        try:
            yield
        finally:
            _LISTENER.reset(before)

    async def announce(self, uris: Sequence[str]) -> None:
        """Tell listeners that these resources changed."""
        from mcp.server.subscriptions import ResourceUpdated  # loaded already where anybody listens

        for uri in uris:
            await self.publish(ResourceUpdated(uri=uri))


def touched(operation: str, answer: Any, slug: str) -> list[str]:
    """Return the resources that an operation's answer says were changed, within the project `slug`."""
    match operation:
        case "send_message" | "reply_message":
            return _messages(answer, slug)
        case (
            "register_agent"
            | "create_agent_identity"
            | "retire_agent"
            | "unretire_agent"
            | "set_contact_policy"
        ):
            return [f"mail://agents/{slug}"]
        case "ensure_project":
            return [f"mail://project/{slug}"]
        case "force_release_file_reservation":
            return [f"mail://reservations/{slug}", f"mail://inbox/{slug}/{quote(answer['agent'])}"]
        case "file_reservation_paths" | "release_file_reservations" | "renew_file_reservations":
            return [f"mail://reservations/{slug}"]
        case "start_session":
            return [f"mail://agents/{slug}", f"mail://reservations/{slug}"]
        case _:
            return []


def _messages(answer: Any, slug: str) -> list[str]:
    uris = [
        f"mail://inbox/{delivery['project']}/{quote(name)}"
        for delivery in answer["deliveries"]
        for name in delivery["recipients"]
    ]
    thread = answer["deliveries"][0]["payload"]["thread_id"]
    return [*uris, f"mail://thread/{slug}/{quote(thread, safe=':')}"]
