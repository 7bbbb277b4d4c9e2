"""Tasks: the work of a project, which agents claim under a lease with an epoch.

    waiting ─▶ ready ─▶ claimed ─▶ done
                 ▲         ├─────▶ review ─▶ done        if a person checks it
                 ├─────────┤                             given back, or its lease ended
                 └──────── └─────▶ blocked

A task waits while it depends on tasks that are not done. Each claim gets the next epoch number, and every
write of the holder must carry this number. Therefore a holder whose lease has ended cannot change the task.
"""

from typing import Final, Literal, get_args

from postroom.contracts.choices import Importance
from postroom.contracts.records import Record

TaskState = Literal["ready", "claimed", "review", "blocked", "waiting", "done", "cancelled"]
TaskDecision = Literal["yes", "no", "cancel"]
"""The decision of a person: accept or reject a finished task, or cancel an open one."""
TASK_STATES: Final[tuple[TaskState, ...]] = get_args(TaskState)
"""The states in the order of lists, which show claimable tasks first."""
OPEN_STATES: Final = TASK_STATES[:5]
ENDED_STATES: Final = TASK_STATES[5:]
PRIORITIES: Final[tuple[Importance, ...]] = ("urgent", "high", "normal", "low")
"""The priorities, most urgent first; a stored task contains the index."""

ANYBODY: Final = ""
ROLE: Final = "role:"
AGENT: Final = "agent:"
"""The prefix of a stored assignee that is an agent: `agent:<id>`. The other form is `role:<word>`, and an
empty assignee means anybody.
"""
TASK_THREAD: Final = "task-"
"""Prefix of the name of a task's thread; the task's number follows."""
BY_PERSON: Final = "person"
"""The acceptance of a task that a person must check.

Any other text is a command that checks the task; if the text is empty, no check is needed.
"""


class Task(Record, frozen=True, kw_only=True):
    """A task of a project."""

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
    """Number of unfinished tasks on which the task depends."""
    author_id: int
    holder_id: int | None
    """The agent that claimed the task or, if the task is done or in review, did the work."""
    epoch: int
    """Number of claims of the task so far."""
    lease_ms: int
    """The time, in milliseconds, that a claim lasts without activity of its holder."""
    lease_ends_at: int | None
    claimed_at: int | None
    reason: str
    """The reason why the task is blocked, or was released, rejected or cancelled."""
    commit: str
    output: str
    """The output of the command that checked the task."""
    result: str
    """The agent's message about its work."""
    created_at: int
    changed_at: int
    changed_by: int | None
    """The agent that last changed the state, or None if the lease expired."""

    @property
    def thread_id(self) -> str:
        """The id of the thread with the messages about the task."""
        return f"{TASK_THREAD}{self.id}"

    @property
    def place(self) -> str:
        """The value of `place` in the reservations of the task's files."""
        return f"task {self.id}"


def place_in_message(message_id: int) -> str:
    """Return the value of `place` for a task that is claimed by the run of a message."""
    return f"message {message_id}"
