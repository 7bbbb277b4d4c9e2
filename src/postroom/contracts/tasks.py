"""Tasks: the work of a project that agents claim, each under a lease with an epoch.

    waiting ─▶ ready ─▶ claimed ─▶ done
                 ▲         ├─────▶ review ─▶ done        if a person checks it
                 ├─────────┤                             given back, or its lease ended
                 └──────── └─────▶ blocked

A task waits while it depends on tasks that are not done. Each claim gets the next epoch, and each write of a
holder proves its epoch, so a holder that lost its lease changes nothing.
"""

from typing import Final, Literal, get_args

from postroom.contracts.choices import Importance
from postroom.contracts.records import Record

TaskState = Literal["ready", "claimed", "review", "blocked", "waiting", "done", "cancelled"]
TASK_STATES: Final[tuple[TaskState, ...]] = get_args(TaskState)
"""The states in the order of a list: tasks to claim come first."""
OPEN_STATES: Final = TASK_STATES[:5]
ENDED_STATES: Final = TASK_STATES[5:]
PRIORITIES: Final[tuple[Importance, ...]] = ("urgent", "high", "normal", "low")
"""The priorities, the first to claim first; a row stores the position."""

ANYBODY: Final = ""
ROLE: Final = "role:"
AGENT: Final = "agent:"
"""Prefixes of the stored assignee: `role:<word>`, `agent:<id>`, or empty for anybody."""
TASK_THREAD: Final = "task-"
"""The beginning of the name of a task's thread; its number follows."""
BY_PERSON: Final = "person"
"""The acceptance of a task that a person checks; any other text is a command, and empty asks for nothing."""


class Task(Record, frozen=True, kw_only=True):
    """One task of a project."""

    id: int
    project_id: int
    title: str
    text: str
    paths: tuple[str, ...]
    """The patterns of the files that the work touches."""
    priority: Importance
    assignee: str
    acceptance: str
    state: TaskState
    open_dependencies: int
    """Number of tasks that it depends on and that are not done."""
    author_id: int
    holder_id: int | None
    """The agent that holds the claim; of a task that is done or in review, the agent that did it."""
    epoch: int
    """Number of claims so far."""
    lease_ms: int
    """How long a claim lasts without activity of its holder."""
    lease_ends_at: int | None
    claimed_at: int | None
    reason: str
    """Why the task is blocked, was released, rejected or cancelled."""
    commit: str
    output: str
    """The output of the acceptance command."""
    result: str
    """The message of the agent that did it."""
    created_at: int
    changed_at: int
    changed_by: int | None
    """The agent that caused the last change of the state; None if the lease ended."""

    @property
    def thread_id(self) -> str:
        """The thread of its messages."""
        return f"{TASK_THREAD}{self.id}"

    @property
    def place(self) -> str:
        """The place in which its files are reserved."""
        return f"task {self.id}"
