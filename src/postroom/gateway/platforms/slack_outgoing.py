"""What we say, as Slack takes it, and what became of it as the gateway reads it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID, uuid5

from postroom.contracts.messages import storable
from postroom.gateway.events import Button, Card, SendErrorKind, SendResult
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.slack_refusals import Answer
from postroom.gateway.platforms.slack_text import to_mrkdwn
from postroom.gateway.platforms.slack_wire import is_ts

QUICKLY: Final = 4_000
"""Characters that are converted at once; longer texts are on a thread."""
Given = TypeVar("Given")
Made = TypeVar("Made")
_KEYS: Final = UUID("6f8b6a0e-3f0e-4c55-9a54-2f1d8a1b7c10")


def in_thread(thread_id: object) -> dict[str, str]:
    """Return how a message is put into a thread; a command's id, which is no message's, names none."""
    return {"thread_ts": str(thread_id)} if is_ts(thread_id) else {}


def deduped(told: Metadata) -> dict[str, str]:
    """Return by what Slack knows a message again, the same for the same key for ever."""
    key = told.get("dedupe_key")
    return {"client_msg_id": str(uuid5(_KEYS, key))} if isinstance(key, str) and key else {}


def storable_card(card: Card) -> Card:
    """Return the card in text that can be sent."""
    return Card(
        text=storable(card.text),
        buttons=tuple(Button(label=storable(one.label), value=one.value) for one in card.buttons),
    )


async def off_loop(work: Callable[[Given], Made], given: Given, length: int) -> Made:
    """Do pure work on a text so long; on a thread where it takes some milliseconds."""
    return work(given) if length <= QUICKLY else await asyncio.to_thread(work, given)


async def converted(content: str) -> str:
    """Return Markdown in Slack's dialect."""
    return await off_loop(to_mrkdwn, storable(content), len(content))


def result_of(answer: Answer, *, nothing_done: bool = False) -> SendResult:
    """Return what became of it; where nobody sees anything yet, a lost answer is harmless."""
    refusal = answer.refusal
    if refusal is None:
        return SendResult.sent(answer.word("ts") or None)
    if nothing_done and refusal.kind is SendErrorKind.UNKNOWN:
        return replace(refusal, kind=SendErrorKind.TRANSIENT).as_result()
    return refusal.as_result()
