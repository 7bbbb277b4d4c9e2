"""A piece of work from a program, and its request to the queue."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, Final
from uuid import uuid4

from postroom.contracts.activation import DeliveryOptions, RunActivation, RunHints
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import InvalidArgument
from postroom.embedded.values import instant_of, message_of, refuse_control_characters


@dataclass(frozen=True, slots=True)
class Item:
    """Work for a conversation; the options are those of `Mailbox.enqueue`."""

    thread: str
    content: object
    key: str | None = field(default=None, kw_only=True)
    agent: str | None = field(default=None, kw_only=True)
    tenant: str = field(default="", kw_only=True)
    limit_key: str = field(default="", kw_only=True)
    priority: int = field(default=128, kw_only=True)
    delay: timedelta | None = field(default=None, kw_only=True)
    deadline: datetime | None = field(default=None, kw_only=True)
    attempts: int | None = field(default=None, kw_only=True)
    interruptions: int | None = field(default=None, kw_only=True)
    retry_delay: timedelta | None = field(default=None, kw_only=True)
    max_retry_delay: timedelta | None = field(default=None, kw_only=True)

    def request(self) -> RunActivation:
        """Return the request to the queue; with a key, the request for the run that the key names.

        Raises:
            InvalidArgument: An option has another type, or cannot be stored.
        """
        for name, kinds, allowed in _TYPES:
            value = getattr(self, name)
            if not isinstance(value, kinds) or value is True or value is False:
                remedy = f"pass {allowed}" if name == "thread" else f"leave out {name} to use its default"
                raise InvalidArgument(
                    f"{name} must be {allowed}, not {type(value).__name__}",
                    value=repr(value)[:80],
                    remedy=remedy,
                )
            if isinstance(value, str) and name != "key":  # a key is made from data, and never shown
                refuse_control_characters(name, value)
        if not self.thread.strip():
            raise InvalidArgument(
                "thread must not be blank: it names a conversation",
                value=self.thread,
                remedy="pass a name, for example 'chat-1'",
            )
        run_id = None if self.key is None else run_id_of(self.thread, self.key)
        deadline = self.deadline
        return RunActivation(
            thread_id=self.thread,
            messages=(message_of(self.content, id=run_id or uuid4().hex),),
            agent_id=self.agent,
            delivery=DeliveryOptions(
                priority=self.priority,
                delay_ms=_ms(self.delay) or 0,
                deadline_at=None if deadline is None else instant_of(deadline, "the deadline"),
                max_attempts=self.attempts,
                max_interruptions=self.interruptions,
                retry_delay_ms=_ms(self.retry_delay),
                max_retry_delay_ms=_ms(self.max_retry_delay),
                tenant=self.tenant,
                limit_key=self.limit_key,
            ),
            hints=RunHints(key=self.key, run_id=run_id) if run_id else _NO_HINTS,
        )


def run_id_of(thread: str, key: str) -> str:
    """Return the id of the run that a key names on a thread.

    Raises:
        InvalidArgument: The key is blank.
    """
    if not key.strip():
        raise InvalidArgument(
            "a key must not be blank", value=key, remedy="pass a text that names the job, or leave out key"
        )
    return "key-" + hashlib.sha256(f"{thread}\0{key}".encode(errors="surrogatepass")).hexdigest()[:32]


def _ms(duration: timedelta | None) -> int | None:
    return None if duration is None else milliseconds(duration)


_NO_HINTS: Final = RunHints()
_TYPES: Final[tuple[tuple[str, tuple[type[Any], ...], str], ...]] = (
    ("thread", (str,), "text"),
    ("key", (str, NoneType), "text or None"),
    ("agent", (str, NoneType), "text or None"),
    ("tenant", (str,), "text"),
    ("limit_key", (str,), "text"),
    ("priority", (int,), "an integer"),
    ("delay", (timedelta, NoneType), "a timedelta or None"),
    ("deadline", (datetime, NoneType), "a datetime or None"),
    ("attempts", (int, NoneType), "an integer or None"),
    ("interruptions", (int, NoneType), "an integer or None"),
    ("retry_delay", (timedelta, NoneType), "a timedelta or None"),
    ("max_retry_delay", (timedelta, NoneType), "a timedelta or None"),
)
