"""The initial records of promises about chats: messages, sessions and people, with only the relevant fields given."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from postroom.contracts.chat import (
    ChatSession,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
)
from postroom.contracts.chat_people import PairingRequest, PairingRules, Person, PersonRole
from postroom.contracts.errors import PostroomError
from postroom.stores.chats.stores import ChatStores

T = TypeVar("T")

TOGETHER = 32
"""How many callers a promise about concurrency uses."""
ROUNDS = 4
"""How often such a promise is tried: at first a store may still be opening what it works with."""
RULES = PairingRules(code_ms=60_000, ask_again_ms=10_000, most_open=3, most_wrong=3, locked_ms=30_000)
IMPOSSIBLE = (-1, 0, 2**63, 10**30)
"""Ids that no message has; the last two are longer than what stores count with."""
BLANK = ("", " ", "\t\n")
HALF = "half \ud83d"
"""Half a character, as a platform that cuts texts may send it."""


def key(message_id: str = "m1", **parts: str) -> InboundKey:
    """Return a key in the only chat of the only account, if no other is named."""
    named = {"platform": "telegram", "account": "bot", "chat_id": "c", **parts}
    return InboundKey(message_id=message_id, **named)


def draft(message_id: str = "m1", **details: Any) -> InboundMessage:
    """Return a message to receive."""
    parts = {name: details.pop(name) for name in ("platform", "account", "chat_id") if name in details}
    details.setdefault("session_key", "s")
    details.setdefault("body", {"text": f"text of {message_id}"})
    return InboundMessage(key=key(message_id, **parts), **details)


async def received(stores: ChatStores, message_id: str = "m1", **details: Any) -> InboundMessage:
    """Receive a message that is new."""
    found = await stores.intake_log.receive(draft(message_id, **details))
    assert found.is_new, f"{message_id} was there"
    return found.message


async def moved(stores: ChatStores, message: InboundMessage, *statuses: InboundStatus) -> InboundMessage:
    """Move a message from status to status."""
    for status in statuses:
        (message,) = await stores.intake_log.move([message.inbound_id], InboundMove(status=status))
    return message


async def brought_to(stores: ChatStores, message_id: str, status: InboundStatus) -> InboundMessage:
    """Receive a message and move it there on a way that is allowed."""
    message = await received(stores, message_id)
    if status is InboundStatus.WAITING:
        return message
    if status is InboundStatus.FAILED:
        message = await moved(stores, message, InboundStatus.HANDED_OVER)
    return await moved(stores, message, status)


def inbound_ids(messages: Iterable[InboundMessage]) -> list[int]:
    """Return the ids of messages."""
    return [message.inbound_id for message in messages]


def session(session_key: str = "s", thread_id: str | None = None, **details: Any) -> ChatSession:
    """Return a session to open, on a new thread if none is named."""
    return ChatSession(session_key=session_key, thread_id=thread_id or f"chat/{session_key}", **details)


def person(user_id: str = "u1", *, platform: str = "telegram", **details: Any) -> Person:
    """Return a person to admit."""
    details.setdefault("role", PersonRole.MEMBER)
    return Person(platform=platform, user_id=user_id, **details)


def request(user_id: str = "u1", *, platform: str = "telegram", **details: Any) -> PairingRequest:
    """Return a request to be let in, with the hash `hash of <user id>`."""
    details.setdefault("code_hash", f"hash of {user_id}")
    return PairingRequest(platform=platform, user_id=user_id, **details)


async def at_once(
    calls: Sequence[Awaitable[T]], *refusals: type[PostroomError]
) -> tuple[list[T], list[PostroomError]]:
    """Make calls at the same time; return what they answered, and how those were refused that were."""
    answers: list[T] = []
    errors: list[PostroomError] = []

    async def call(one: Awaitable[T]) -> None:
        try:
            answers.append(await one)
        except refusals as error:
            errors.append(error)

    async with asyncio.TaskGroup() as group:
        for one in calls:
            group.create_task(call(one))
    return answers, errors
