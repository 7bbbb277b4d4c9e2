"""Tasks: the work of a project that agents claim, each under a lease with an epoch.

    waiting ─▶ ready ─▶ claimed ─▶ done
                 ▲         ├─────▶ review ─▶ done        if a person checks it
                 ├─────────┤                             given back, or its lease ended
                 └──────── └─────▶ blocked

A task waits while it depends on tasks that are not done. Each claim gets the next epoch number, and each
write by a holder is checked against it. Therefore a holder that has lost its lease cannot change anything.
"""

from typing import Final, Literal, get_args

from postroom.contracts.choices import Importance
from postroom.contracts.records import Record

TaskState = Literal["ready", "claimed", "review", "blocked", "waiting", "done", "cancelled"]
TaskDecision = Literal["yes", "no", "cancel"]
"""A person's decision: accept or reject a finished task, or cancel an open task."""
TASK_STATES: Final[tuple[TaskState, ...]] = get_args(TaskState)
"""The states in the order in which lists show them: claimable tasks come first."""
OPEN_STATES: Final = TASK_STATES[:5]
ENDED_STATES: Final = TASK_STATES[5:]
PRIORITIES: Final[tuple[Importance, ...]] = ("urgent", "high", "normal", "low")
"""The priorities, most urgent first; a row stores the index."""

ANYBODY: Final = ""
ROLE: Final = "role:"
AGENT: Final = "agent:"
"""Prefixes of stored assignees: `role:<word>` and `agent:<id>`; an empty assignee means anybody."""
TASK_THREAD: Final = "task-"
"""Prefix of the name of a task's thread; the task's number follows."""
BY_PERSON: Final = "person"
"""The acceptance of a task that a person checks.

Any other text is a command; if it is empty, no check is required.
"""


class Task(Record, frozen=True, kw_only=True):
    """One task of a project."""

    id: int
    project_id: int
    title: str
    text: str
    paths: tuple[str, ...]
    """The patterns of the files that the work will change."""
    priority: Importance
    assignee: str
    acceptance: str
    state: TaskState
    open_dependencies: int
    """Number of tasks that it depends on and that are not done yet."""
    author_id: int
    holder_id: int | None
    """The agent that holds the claim or, if the task is done or in review, the agent that did the work."""
    epoch: int
    """Number of claims so far."""
    lease_ms: int
    """The time for which a claim lasts without any activity of its holder, in milliseconds."""
    lease_ends_at: int | None
    claimed_at: int | None
    reason: str
    """The reason why the task is blocked, or was released, rejected or cancelled."""
    commit: str
    output: str
    """The output of the acceptance command."""
    result: str
    """The message in which the agent reports its work."""
    created_at: int
    changed_at: int
    changed_by: int | None
    """The agent that caused the last change of state; None if the lease expired."""

    @property
    def thread_id(self) -> str:
        """The thread that contains its messages."""
        return f"{TASK_THREAD}{self.id}"

    @property
    def place(self) -> str:
        """The `place` value with which its files are reserved."""
        return f"task {self.id}"


def place_in_message(message_id: int) -> str:
    """Return the `place` of a claim that belongs to the run that this message starts."""
    return f"message {message_id}"
