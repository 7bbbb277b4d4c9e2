"""Records of agents that postroom runs, and of the messages that started their runs.

stored ─▶ announced ─▶ delivered (a run has the message) ─▶ handled: read, and answered
                                                         └─▶ failed, with the reason

Hooks, watchers and runners announce messages. The first announcer announces a message to a recipient, and no
other announces it again. An announced message may still be unread. An announcer reads `unannounced` and marks
the messages as announced in the same transaction.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from postroom.contracts.choices import Importance, RecipientKind
from postroom.contracts.messages import DeliveryMode, Message
from postroom.contracts.questions import YES_OR_NO, Asked
from postroom.contracts.runs import OnTimeout, RunRecord, RunWaitingTicket
from postroom.contracts.tools import ToolCallResume


class ChangeUndone(Exception):
    """Raised to roll back a transaction on purpose."""


class ThreadsNeeded(ChangeUndone):
    """Raised if a transaction needs locks on more threads.

    The caller repeats the transaction with the locks.
    """

    def __init__(self, thread_ids: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(thread_ids)))
        self.thread_ids = thread_ids


@dataclass(frozen=True, slots=True)
class Accept:
    """Adds messages to run threads within a transaction, and starts runs on idle threads."""

    thread_ids: frozenset[str]
    """The threads that the change has locked."""
    put: Callable[[str, Message, DeliveryMode, Sequence[tuple[str, ToolCallResume]]], bool]
    is_full: Callable[[str], bool]
    """Returns whether a thread has reached its limit of waiting messages, and refuses further ones."""
    cancel: Callable[[RunRecord, str], None]
    """Cancels a run that waits for a person, for a reason."""

    def __call__(
        self,
        thread_id: str,
        message: Message,
        mode: DeliveryMode,
        decisions: Sequence[tuple[str, ToolCallResume]] = (),
    ) -> bool:
        """Add a message and decisions to a thread, and return whether a run starts.

        A known message id is ignored.

        Raises:
            ThreadsNeeded: The change has not locked the thread.
            QueueFull: The message is new, and the thread has reached its limit of waiting messages.
        """
        if thread_id not in self.thread_ids:
            raise ThreadsNeeded(frozenset({thread_id}))
        return self.put(thread_id, message, mode, decisions)

    def cancel_all(self, waiting: Mapping[str, RunRecord], reason: str) -> None:
        """Cancel runs that wait for a person. `reason` is stored with the runs' questions.

        Raises:
            ThreadsNeeded: The change has not locked the threads.
        """
        if not self.thread_ids.issuperset(waiting):
            raise ThreadsNeeded(frozenset(waiting))
        for run in waiting.values():
            self.cancel(run, reason)


NOWHERE = Accept(frozenset(), lambda *_: False, lambda _: False, lambda *_: None)
"""Locks no threads; a change that adds a message must run again with its threads locked."""


QUESTION_NUMBER: Final = re.compile(r"[0-9a-f]{6}")


def question_number(*told: object) -> str:
    """Return the six-character number of a question, which depends only on the arguments."""
    return sha256("\0".join(map(str, told)).encode()).hexdigest()[:6]


def number_of(run_id: str, ticket: RunWaitingTicket) -> str:
    """Return the six-character number of a question."""
    if ticket.ticket_id == ticket.tool_call_id and QUESTION_NUMBER.fullmatch(ticket.ticket_id):
        return ticket.ticket_id
    return question_number(run_id, ticket.ticket_id, ticket.tool_call_id, ticket.updated_at)


RunnerSource = Literal["operator", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRunner:
    """The stored runner of an agent."""

    agent_id: int
    runner: str
    """The runner as JSON, which `contracts.runners.read_runner` parses."""
    declared_by: RunnerSource
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """The state of a message in the latest run that received the message."""

    message_id: int
    agent_id: int
    run_id: str
    delivered_at: int
    ended_at: int | None = None
    failure: str = ""
    """The reason why the run failed to process the message; empty if the run did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question that an active run asks a person."""

    id: str
    """The number of the question, as people see it."""
    text: str
    timeout_ms: int | None = None
    """The time for which an answer is accepted, in milliseconds, or None if there is no limit."""
    on_timeout: OnTimeout = OnTimeout.WAIT
    asked: Asked = YES_OR_NO
    """The kind of answer that the question accepts, and who may answer."""
    asked_at: int = 0
    """The time when the agent asked; of two questions of a run, the later one has the later time."""


def not_replaced(questions: Iterable[AskedQuestion]) -> list[AskedQuestion]:
    """Return the last question of each distinct text in a turn."""
    return list({question.text: question for question in questions}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChange:
    """The result of setting or removing an agent's runner."""

    had_one: bool
    waking: int = 0
    """Number of older unread messages that now start a run."""
    questions: Sequence[str] = ()
    """The numbers of the open questions of the agent, whose runner was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A new message in an inbox, without subject and text."""

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
    """A session of a client program, and the agent that the session acts as."""

    client: str
    session_id: str
    agent_id: int
    bound_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudges:
    """The latest actions of hooks in an agent's turns."""

    held_seq: int = 0
    """Messages up to this number no longer delay the end of a turn, because they delayed one before or were
    fetched.
    """
    notified_at: int = 0
    """The time when a hook last added a line during a turn, or 0 if none ever did."""


_SESSION_BITS: Final = 31


def viewer(agent_id: int, session: str) -> int:
    """Return a number for an agent's session, under which file views are stored.

    `session` consists of the client and the session id.
    """
    number = int.from_bytes(sha256(session.encode()).digest()[:4]) >> 1 if session else 0
    return agent_id << _SESSION_BITS | number


def agent_of_viewer(viewer_id: int) -> int:
    """Return the id of the agent in a number from `viewer`."""
    return viewer_id >> _SESSION_BITS


def is_sibling(viewer_id: int, other_id: int | None) -> bool:
    """Return whether two numbers from `viewer` belong to the same agent."""
    return other_id is not None and agent_of_viewer(viewer_id) == agent_of_viewer(other_id)


GONE: Final = "gone"
HUGE: Final = "huge"
UNKNOWN: Final = "?"
"""Stands for a version that changed while an agent was reading it.

In front of a version, `?` means that the agent has read only a part of this version.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """The versions of a file that an agent's session knows.

    A version is a Git blob hash, `gone` for a missing file, or `huge` for an unhashed file.
    """

    file: str
    """The machine, and the absolute path without symbolic links."""
    viewer_id: int
    """The session and its agent, as `viewer` encodes them."""
    seen_blob: str = ""
    """The last version that the session read completely; empty if it never read the file, and `?` if the
    version is unknown. If the session has read only a part of the file, `?` and the version.
    """
    written_blob: str = ""
    """The version that the session last wrote; empty if it has not written the file."""
    written_at: int = 0
    changed_blob: str = ""
    """The newest version that was noticed although the session did not know it; empty if there was none."""
    changed_by: int | None = None
    """The viewer that wrote this version, or None if no hook reported who wrote it."""
    changed_at: int = 0
    notice: int = 0
    """The session knows the newest version (0), must still be notified (1), or was notified (2)."""
    used_at: int = 0
    """The time of the session's last use of the file, from which the expiry of this record is computed."""

    @property
    def known_blob(self) -> str:
        """The version that the session last read, or "" if no version is known."""
        return self.seen_blob.removeprefix(UNKNOWN)

    @property
    def is_part(self) -> bool:
        """Whether the session has read only a part of the known version."""
        return self.seen_blob.startswith(UNKNOWN)
