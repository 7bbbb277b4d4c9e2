"""Records of agents that postroom runs, and of the messages that woke them.

stored ─▶ announced ─▶ delivered (a run has the message) ─▶ handled: read, and answered
                                                         └─▶ failed, with the reason

Announcements of messages to their recipients, and the records that hooks, watchers and runners keep.

A message is announced to a recipient once, by the first announcer. An announced message can still be unread.
An announcer reads `unannounced` and marks the messages in the same transaction.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from postroom.contracts.choices import Importance, RecipientKind
from postroom.contracts.runs import OnTimeout

QUESTION_NUMBER: Final = re.compile(r"[0-9a-f]{6}")


def question_number(*told: object) -> str:
    """Return the six-character number of a question; `told` distinguishes it from others."""
    return sha256("\0".join(map(str, told)).encode()).hexdigest()[:6]


RunnerSource = Literal["operator", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRunner:
    """The stored runner of an agent."""

    agent_id: int
    runner: str
    """The runner as JSON, which `contracts.runners.Runner` reads."""
    declared_by: RunnerSource
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """The state of a message in a run that it woke. Only the newest run's record is kept."""

    message_id: int
    agent_id: int
    run_id: str
    delivered_at: int
    ended_at: int | None = None
    failure: str = ""
    """Why the run failed to process it; empty if it did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question of an active run to a person; the run waits for the answer after its turn."""

    id: str
    """Its number, as people see it."""
    text: str
    timeout_ms: int | None = None
    """The time for an answer in milliseconds; None for no limit."""
    on_timeout: OnTimeout = OnTimeout.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChange:
    """The result of giving an agent a runner or removing it."""

    had_one: bool
    waking: int = 0
    """Number of older unread messages that now start it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message in one inbox, with the fields that a notice may show: neither subject nor text."""

    message_id: int
    seq: int
    kind: RecipientKind
    sender_id: int
    sender_name: str
    importance: Importance
    broadcast: bool
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSession:
    """A session of a client program, and the agent that it acts as."""

    client: str
    session_id: str
    agent_id: int
    bound_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudges:
    """The record of what hooks did in an agent's turns; an agent without a stored record has this default."""

    held_seq: int = 0
    """Messages up to this seq do not hold the end of a turn: they held one before, or were fetched."""
    notified_at: int = 0
    """The last time a hook added a line in the middle of a turn; 0 for never."""
