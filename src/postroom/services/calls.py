"""Performs operations for every interface: validates and executes calls, notifies listeners, and counts.

A notification is only a hint, because a client that misses it still finds the message in its inbox.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio.lowlevel

from postroom.concurrency import Tasks
from postroom.contracts.errors import InvalidArgument, PostroomError, ToolNotListed
from postroom.contracts.operations import Operation
from postroom.contracts.tokens import Grant
from postroom.log import get_logger
from postroom.mail.commands import ReplyMessage, read_command
from postroom.mail.context import Caller
from postroom.mail.names import nearest, shown
from postroom.mail.operations import OPERATIONS, WHOLE_ATTACHMENT
from postroom.mail.service import Mail, named_in
from postroom.stores.changes import SharedChanges

if TYPE_CHECKING:
    from mcp.server.subscriptions import ServerEvent

_LOG = get_logger(__name__)
_LISTENER: ContextVar[tuple[Grant | None, Sequence[str]]] = ContextVar("listener", default=(None, ()))
"""The named token of a stream that is being opened, and the resources to which the stream listens."""
_HEARD_AGAIN: Final = timedelta(hours=1)


def _topic(uri: str) -> str:
    return f"resource:{uri}"


class Subscriptions:
    """The clients of the process that listen for changes of resources."""

    def __init__(
        self, *, holds: Callable[[Grant], bool] | None = None, shared: SharedChanges | None = None
    ) -> None:
        """Create the collection of listeners.

        `holds` returns whether a named token is still valid. Listeners with an invalid token are not
        notified.
        """
        self._holds = holds or (lambda _: True)
        self._shared = shared
        self._listeners: dict[object, tuple[Callable[[ServerEvent], None], Grant | None]] = {}
        self._tasks = Tasks("news of other servers")

    @property
    def heard(self) -> bool:
        """Whether any client may be subscribed, in any process."""
        return bool(self._listeners) or self._shared is not None

    async def publish(self, event: "ServerEvent") -> None:
        """Notify every listener.

        If one listener fails, the remaining listeners are still notified.
        """
        for ticket in list(self._listeners):
            self._tell(ticket, event)
        await anyio.lowlevel.checkpoint()

    def _tell(self, ticket: object, event: "ServerEvent") -> None:
        listener, grant = self._listeners.get(ticket, (None, None))
        if listener is None or (grant is not None and not self._holds(grant)):
            return
        try:
            listener(event)
        except Exception:  # a failing listener is logged; the others are still notified
            _LOG.exception("subscription.listener_failed")

    def subscribe(self, listener: Callable[["ServerEvent"], None]) -> Callable[[], None]:
        """Add a listener, and return a function that removes the listener."""
        ticket = object()
        grant, uris = _LISTENER.get()
        self._listeners[ticket] = listener, grant
        tasks = [self._tasks.start(self._hear(ticket, uri), name=uri) for uri in uris if self._shared]

        def unsubscribe() -> None:
            self._listeners.pop(ticket, None)
            for task in tasks:
                task.cancel()

        return unsubscribe

    async def _hear(self, ticket: object, uri: str) -> None:
        from mcp.server.subscriptions import ResourceUpdated  # loaded already if anybody listens

        assert self._shared is not None  # noqa: S101 - a subscriber has sent a request
        with self._shared.changes.listen(_topic(uri)) as news:
            while ticket in self._listeners:
                if await news.wait(_HEARD_AGAIN):
                    self._tell(ticket, ResourceUpdated(uri=uri))

    @staticmethod
    @contextmanager
    def heard_by(grant: Grant | None, uris: Sequence[str] = ()) -> Iterator[None]:
        """Make streams opened within the context listen to the resources `uris` with the token `grant`."""
        before = _LISTENER.set((grant, uris))
        try:
            yield
        finally:
            _LISTENER.reset(before)

    async def announce(self, uris: Sequence[str]) -> None:
        """Notify listeners that resources have changed."""
        if self._shared is not None:
            self._shared.share([*map(_topic, uris)])
        if not self._listeners:
            return
        from mcp.server.subscriptions import ResourceUpdated  # loaded already if anybody listens

        for uri in uris:
            await self.publish(ResourceUpdated(uri=uri))


def touched(operation: str, answer: Any, slug: str) -> list[str]:
    """Return the resources of the project `slug` that an operation has changed."""
    match operation:
        case "send_message" | "reply_message":
            uris = [
                f"mail://inbox/{delivery['project']}/{quote(name)}"
                for delivery in answer["deliveries"]
                for name in delivery["recipients"]
            ]
            thread = answer["deliveries"][0]["payload"]["thread_id"]
            return [*uris, f"mail://thread/{slug}/{quote(thread, safe=':')}"]
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


Observe = Callable[[str, str, float], None]
"""A function that records a call: its operation, its result and its duration in seconds."""


class Calls:
    """Performs the operations that an interface offers."""

    def __init__(
        self,
        mail: Mail,
        operations: Sequence[Operation],
        *,
        news: Subscriptions | None = None,
        observe: Observe | None = None,
        mcp_path: str = "/mcp",
    ) -> None:
        """Create the calls of an interface.

        `mcp_path` is the path of the MCP endpoint.
        """
        self._mail = mail
        self._operations = {operation.name: operation for operation in operations}
        self._news = news or Subscriptions()
        self._full_address = f"{mcp_path}/full"
        self._observe: Observe = observe or (lambda _name, _outcome, _seconds: None)

    async def perform(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        caller: Caller,
        follows: str | None = None,
        is_file_taken: bool = False,
    ) -> Any:
        """Perform an operation by name with JSON arguments, and return the JSON result.

        `follows` is the caller's `traceparent`, for tracing only. With `is_file_taken`, `get_attachment`
        returns the record and the content of the whole file.

        Raises:
            PostroomError: The operation failed, or it is not offered here; nothing was changed.
        """
        began = time.perf_counter()
        known_value, outcome = "unknown", "internal_error"
        try:
            operation = self._operation(name)
            known_value = operation.name
            if is_file_taken and operation.name == WHOLE_ATTACHMENT.name:
                operation = WHOLE_ATTACHMENT
            # The traceparent of the message to which this call replies.
            answers: str | None
            message = str(arguments.get("message_id"))
            if (
                not self._mail.tracing.is_on
                or operation.command is not ReplyMessage
                or not message.isdecimal()
            ):
                answers = None
            else:
                answers = await self._mail.read_trace(message)
            with self._mail.tracing.executing(known_value, follows=follows, answers=answers) as span:
                caller = replace(caller, trace=span.traceparent)
                operation.check(caller.grant)
                command = read_command(operation.command, arguments, operation.name)
                answer = await self._mail.perform(operation, command, caller=caller)
                if operation.changes and caller.grant is not None and caller.grant.run_id is None:
                    project, agent = named_in(command)
                    _LOG.info(
                        "mail.changed_with_token",
                        by=caller.grant.name,
                        operation=operation.name,
                        project=project,
                        agent=agent,
                    )
                if operation.changes and self._news.heard:
                    key = getattr(command, "project_key", None) or getattr(command, "human_key", "")
                    slug = await self._mail.slug(str(key))
                    await self._news.announce(touched(operation.name, answer, slug))
            outcome = "ok"
        except PostroomError as error:
            outcome = error.code
            raise
        finally:
            self._observe(known_value, outcome, time.perf_counter() - began)
        return answer

    def _operation(self, name: str) -> Operation:
        if operation := self._operations.get(name):
            return operation
        if name in OPERATIONS:
            raise ToolNotListed(
                f"this address does not offer the tool {name}; {self._full_address} offers it",
                value=name,
                remedy=(
                    f"connect to {self._full_address}: `postroom setup CLIENT --tools full` configures a "
                    f"client for that address"
                ),
                details={"address": self._full_address},
            )
        close = nearest(name, self._operations)
        raise InvalidArgument(
            f"there is no tool {shown(name)}" + (f"; similar names: {', '.join(close)}" if close else ""),
            value=name[:200],
            remedy="call tools/list, and use a name from the list",
        )
