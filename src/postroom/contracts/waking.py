"""What is kept of agents that postroom runs itself, and of the messages that woke them.

stored ─▶ announced ─▶ delivered (a run has the message) ─▶ handled: read, and answered
                                                         └─▶ failed, with the reason
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, Protocol

from postroom.contracts.people import ChatAddress
from postroom.contracts.runs import OnTimeout, RunRecord

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


class WakingReads(Protocol):
    """Look-ups about runners and what they made of messages."""

    def runner(self, agent_id: int) -> KeptRunner | None:
        """Return how an agent is run; None when it is not run by postroom."""
        ...

    def runners(self, *, limit: int, after: int = 0) -> list[KeptRunner]:
        """Return runners by agent id, those after `after`."""
        ...

    def with_runner(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return which of these agents have a runner or a chat address, and when it was declared."""
        ...

    def chat_address(self, agent_id: int) -> ChatAddress | None:
        """Return the chat in which a person is reached."""
        ...

    def reached_at(self, address: ChatAddress) -> list[int]:
        """Return the people who are reached in this chat, by id."""
        ...

    def working_on(self, agent_ids: Sequence[int], project_id: int, thread_id: str) -> set[int]:
        """Return which of these agents have a run at work that has a message of this thread in its hands."""
        ...

    def waiting_runs(self, thread_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Return the open runs of these threads that wait and are not at work again, by thread."""
        ...

    def message_runs(self, message_ids: Sequence[int]) -> dict[int, dict[int, MessageRun]]:
        """Return what runs made of each message, by recipient; every message is there."""
        ...

    def unwoken(self, *, after: tuple[int, int], limit: int) -> list[tuple[int, int]]:
        """Return messages and readers whom they have yet to wake, in order, those after `after`.

        Readers are active and have a runner or a chat; the message is not read, recalled, announced, and was
        in no run's hands.
        """
        ...

    def unwoken_count(self, agent_id: int) -> int:
        """Return how many messages `unwoken` would tell for an agent if it had a runner."""
        ...

    def questions(self, run_id: str) -> list[AskedQuestion]:
        """Return what a run at work has asked by `ask`, in the order of asking."""
        ...

    def has_asked(self, run_id: str, question_id: str) -> bool:
        """Return whether a question of a run stands: asked in this attempt, open, or answered.

        An attempt that is cut off or fails loses what it has asked.
        """
        ...

    def answering_run(self, message_id: int) -> str | None:
        """Return the run whose end a message tells; None for one that somebody wrote."""
        ...

    def tells_last(self, message_id: int) -> bool:
        """Say whether a message tells of a run, and no later message does."""
        ...


class WakingWrites(WakingReads, Protocol):
    """Changes of them."""

    def put_place(self, thread_id: str, place: str) -> None:
        """Say where runs of a thread may execute, '' for anywhere."""
        ...

    def put_runs_at_once(self, agent_id: int, runs_at_once: int) -> None:
        """Say how many runs of an agent may execute at once, each of another mail thread."""
        ...

    def put_runner(self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int) -> None:
        """Say, or say anew, how an agent is run."""
        ...

    def drop_runner(self, agent_id: int, *, now: int) -> bool:
        """Have an agent run no more; False when it was not."""
        ...

    def put_chat_address(self, agent_id: int, address: ChatAddress, *, now: int) -> None:
        """Have a person reached in this chat, and in no other."""
        ...

    def drop_chat_address(self, agent_id: int, *, now: int) -> bool:
        """Have a person reached in no chat; False when they were in none."""
        ...

    def put_message_run(self, message_run: MessageRun) -> None:
        """Store or replace what a run makes of a message.

        Raises:
            StoreError: the agent is no recipient of the message.
        """
        ...

    def begin_run(self, run_id: str, agent_id: int, now: int, *, answered: Sequence[str] = ()) -> None:
        """Record that a run of an agent is at work; begun again, it has no questions.

        One that is at work already was cut off before, with its server or its lease. `answered` are the
        questions whose answers it goes on with.
        """
        ...

    def ask(self, run_id: str, agent_id: int, question: AskedQuestion, now: int) -> bool:
        """Keep a question of a run at work; the same one again changes nothing.

        False when the agent has no such run at work.
        """
        ...

    def end_run(
        self,
        run_id: str,
        *,
        now: int,
        failed: bool = False,
        cancelled: bool = False,
        error: str = "",
        waits_for: Mapping[str, int] | None = None,
    ) -> None:
        """Record that a run is not at work any more; nothing when it is not.

        One that was `cancelled` has not done its work, either; `error` is kept with the attempt.
        `waits_for` is given where it waits: its questions, each with the instant at which it was asked. Those
        that it has asked since it began, and not by `ask`, are told with it.
        """
        ...

    def drop_attempts(self, run_ids: Sequence[str]) -> None:
        """Forget the attempts of runs that are gone."""
        ...

    def withdraw_questions(
        self, run_id: str, agent_id: int, question_ids: Sequence[str], *, now: int
    ) -> None:
        """Tell that a run that waited was ended, and that nobody can answer its questions any more."""
        ...

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a message tells the end of a run; the first record stands."""
        ...
