"""What is kept of agents that postroom runs itself, and of the messages that woke them.

stored ─▶ announced ─▶ delivered (a run has the message) ─▶ handled: read, and answered
                                                         └─▶ failed, with the reason
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from postroom.contracts.runs import OnTimeout

QUESTION_NUMBER: Final = re.compile(r"[0-9a-f]{6}")


def question_number(*told: object) -> str:
    """Return six characters by which everybody calls a question; `told` sets it apart from others."""
    return sha256("\0".join(map(str, told)).encode()).hexdigest()[:6]


RunnerSource = Literal["operator", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRunner:
    """How an agent is run when mail comes for it."""

    agent_id: int
    runner: str
    """What it is, as JSON; `contracts.runners.Runner` reads it."""
    declared_by: RunnerSource
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """What a run makes, or made, of a message that woke its reader. The newest run's is kept."""

    message_id: int
    agent_id: int
    run_id: str
    delivered_at: int
    ended_at: int | None = None
    failure: str = ""
    """Why it was not done, when it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """What a run at work asks a person; it waits for the answer when it has ended its turn."""

    id: str
    """Its number, as people see it."""
    text: str
    timeout_ms: int | None = None
    """How long it waits for its answer, in milliseconds; None for ever."""
    on_timeout: OnTimeout = OnTimeout.WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChange:
    """What came of giving an agent a runner, or of taking it away."""

    had_one: bool
    waking: int = 0
    """Messages that were there before, unread, and now start it."""
