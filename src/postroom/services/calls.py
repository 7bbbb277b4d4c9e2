"""One call of an operation, the same for every edge: arguments read, done, told to who listens, counted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from postroom.contracts.errors import InvalidArgument, PostroomError
from postroom.mail.commands import Command, ReplyMessage, read_command
from postroom.mail.context import Caller
from postroom.mail.names import nearest, shown
from postroom.mail.operations import Operation
from postroom.mail.service import Mail
from postroom.services.subscriptions import Subscriptions, touched

Observe = Callable[[str, str, float], None]
"""Counts one call: which operation, how it ended, how many seconds it took."""


class Calls:
    """Performs the operations that an edge offers, over one `Mail`."""

    def __init__(
        self,
        mail: Mail,
        operations: Sequence[Operation],
        *,
        news: Subscriptions | None = None,
        observe: Observe | None = None,
    ) -> None:
        self._mail = mail
        self._operations = {operation.name: operation for operation in operations}
        self._news = news or Subscriptions()
        self._observe: Observe = observe or (lambda _name, _outcome, _seconds: None)

    async def perform(
        self, name: str, arguments: dict[str, Any], *, caller: Caller, follows: str | None = None
    ) -> Any:
        """Perform the operation of this name on plain arguments and return its plain answer.

        `follows` is the traceparent that the caller sent along; no decision hangs on it.

        Raises:
            PostroomError: it was refused, or there is none of this name here; nothing changed.
        """
        began = time.perf_counter()
        known, outcome = "unknown", "internal_error"
        try:
            operation = self._operation(name)
            known = operation.name
            answers = await self._answered_trace(operation, arguments)
            with self._mail.tracing.executing(known, follows=follows, answers=answers) as span:
                caller = replace(caller, trace=span.traceparent)
                answer = await self._performed(operation, arguments, caller)
            outcome = "ok"
        except PostroomError as error:
            outcome = error.code
            raise
        finally:
            self._observe(known, outcome, time.perf_counter() - began)
        return answer

    async def _performed(self, operation: Operation, arguments: dict[str, Any], caller: Caller) -> Any:
        operation.check(caller.grant)
        command = read_command(operation.command, arguments)
        answer = await self._mail.perform(operation, command, caller=caller)
        await self._announce(operation, command, answer)
        return answer

    async def _answered_trace(self, operation: Operation, arguments: dict[str, Any]) -> str | None:
        """Return where in a trace the message was written that a call is to answer."""
        message = str(arguments.get("message_id"))
        if not self._mail.tracing.is_on or operation.command is not ReplyMessage or not message.isdecimal():
            return None
        return await self._mail.trace_of(message)

    def _operation(self, name: str) -> Operation:
        operation = self._operations.get(name)
        if operation is None:
            close = nearest(name, self._operations)
            raise InvalidArgument(
                f"no tool is named {shown(name)}"
                + (f"; the nearest are {', '.join(close)}" if close else ""),
                value=name[:200],
                remedy="call tools/list; some tools are offered by the full profile only",
            )
        return operation

    async def _announce(self, operation: Operation, command: Command, answer: Any) -> None:
        if not (operation.changes and self._news.heard):
            return
        key = getattr(command, "project_key", None) or getattr(command, "human_key", "")
        slug = await self._mail.slug(str(key))
        await self._news.announce(touched(operation.name, answer, slug))
