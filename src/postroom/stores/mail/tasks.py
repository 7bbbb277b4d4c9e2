"""Tasks of a project: their rows, their dependencies, and their events."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from postroom.contracts.errors import UnknownTask
from postroom.contracts.project_log import EventKind
from postroom.contracts.tasks import PRIORITIES, Task, TaskState
from postroom.stores.changes import WAKES
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.sql_transaction import Row, SqlTransaction

_COLUMNS: Final = Task.__struct_fields__
_EVENTS: Final[Mapping[TaskState, EventKind]] = {
    "blocked": "task.blocked",
    "review": "task.review",
    "done": "task.done",
    "cancelled": "task.cancelled",
}
"""The events of states that a task enters; `ready` and `waiting` have several."""


class TaskReads:
    """Reads tasks of a project by state, holder and dependency."""

    _tx: SqlTransaction

    def task(self, task_id: int) -> Task | None:
        """Return one task."""
        return next(iter(self._tasks("tasks.task", id=task_id)), None)

    def ready_tasks(
        self, project_id: int, assignees: Iterable[str], *, after: tuple[int, int], limit: int
    ) -> list[Task]:
        """Return tasks to claim that have one of these assignees, by priority and id, after such a pair."""
        looks = [
            (
                "tasks.ready",
                {
                    "project_id": project_id,
                    "assignee": assignee,
                    "priority": after[0],
                    "after": after[1],
                    "limit": limit,
                },
            )
            for assignee in assignees
        ]
        found = [_task(row) for rows in self._tx.ask(*looks) for row in rows]
        return sorted(found, key=place_of)[:limit]

    def tasks_in(
        self, project_id: int, state: TaskState, *, after: tuple[int, int], limit: int
    ) -> list[Task]:
        """Return open tasks of a state by priority and id, after such a pair."""
        values = {"priority": after[0], "after": after[1], "limit": limit}
        return self._tasks("tasks.listed", project_id=project_id, state=state, **values)

    def ended_tasks(
        self, project_id: int, state: TaskState, *, before: tuple[int, int], limit: int
    ) -> list[Task]:
        """Return done or cancelled tasks, newest first, before a pair of the time of their end and id."""
        values = {"changed_at": before[0], "before": before[1], "limit": limit}
        return self._tasks("tasks.ended", project_id=project_id, state=state, **values)

    def tasks_held(self, agent_id: int) -> list[Task]:
        """Return the tasks that an agent holds, by id, also those whose lease has ended meanwhile."""
        return self._tasks("tasks.held", agent_id=agent_id)

    def tasks_claimed_in(self, run_id: str) -> list[Task]:
        """Return the tasks that were claimed in a run and are still held, by id."""
        return self._tasks("tasks.in_run", run_id=run_id)

    def dependencies(self, task_ids: Sequence[int]) -> dict[int, dict[int, TaskState]]:
        """Return the tasks that each of these depends on, with their states; every task has an entry."""
        found: dict[int, dict[int, TaskState]] = {task_id: {} for task_id in task_ids}
        for task_id, depends_on, state in self._tx.all("tasks.dependencies", {"ids": task_ids}):
            found[task_id][depends_on] = state
        return found

    def dependents(self, task_id: int) -> list[Task]:
        """Return the tasks that depend on a task, by id."""
        return self._tasks("tasks.dependents", id=task_id)

    def claiming_agents(self, *, after: int = 0, limit: int) -> list[int]:
        """Return the agents with a runner for which the server claims tasks, by id, after id `after`."""
        return [row[0] for row in self._tx.all("tasks.claiming_agents", {"after": after, "limit": limit})]

    def leases_ended(self, project_id: int, now: int) -> list[Task]:
        """Return claims whose lease has ended, the first to end first, a limited number per call."""
        return self._tasks("tasks.leases_ended", project_id=project_id, now=now)

    def _tasks(self, statement: str, /, **values: object) -> list[Task]:
        return [_task(row) for row in self._tx.all(statement, values)]


class TaskWrites(TaskReads):
    """Changes of tasks; each writes its events to the log of the project."""

    _events: EventRecorder
    _tell: Callable[..., None]

    def insert_task(self, task: Task, depends_on: Sequence[int]) -> Task:
        """Store a new task with its dependencies; return it with its id."""
        self._events.lock([task.project_id])
        values = {"project_id": task.project_id, "author_id": task.author_id, "now": task.created_at}
        [[task_id]] = self._tx.all("tasks.insert_task", {**values, **_texts(task), "state": task.state})
        made = msgspec.structs.replace(task, id=task_id)
        self._depend(task_id, depends_on)
        self._events.of_task("task.added", made, made.author_id, made.created_at)
        if made.state == "ready":
            self._events.of_task("task.ready", made, None, made.created_at)
            self._tell(WAKES)
        return made

    def edit_task(self, task: Task, depends_on: Sequence[int] | None, *, by: int, now: int) -> None:
        """Store the texts and terms of a task, and its dependencies unless they are None."""
        self._tx.run("tasks.edit_task", {**_texts(task), "id": task.id})
        if depends_on is not None:
            self._tx.run("tasks.drop_dependencies", {"task_id": task.id})
            self._depend(task.id, depends_on)
        self._events.of_task("task.changed", task, by, now)

    def claim_task(self, task: Task, agent_id: int, *, lease_ms: int, run_id: str, now: int) -> Task:
        """Give a ready task to an agent under the next epoch, with a lease from now."""
        values = {"id": task.id, "holder_id": agent_id, "lease_ms": lease_ms, "lease_ends_at": now + lease_ms}
        self._tx.run("tasks.claim_task", {**values, "run_id": run_id, "now": now})
        claimed = self._stored_task(task.id)
        self._events.of_task("task.claimed", claimed, agent_id, now)
        return claimed

    def move_task(
        self,
        task: Task,
        state: TaskState,
        *,
        by: int | None,
        now: int,
        reason: str = "",
        holder_id: int | None = None,
    ) -> Task:
        """Give a task another state, and end its claim; `holder_id` stays as the agent that did it.

        Without `by`, its lease has ended.
        """
        values = {"id": task.id, "state": state, "holder_id": holder_id, "reason": reason}
        self._tx.run("tasks.move_task", {**values, "by": by, "now": now})
        if task.state == "claimed" and state in ("ready", "waiting"):
            kind: EventKind = "task.lease_ended" if by is None else "task.released"
            self._events.of_task(kind, task, task.holder_id, now)
        if state in _EVENTS:
            self._events.of_task(_EVENTS[state], task, by, now)
        elif state == "ready":
            self._events.of_task("task.ready", task, None, now)
        if task.state == "claimed" or state == "ready":
            self._tell(WAKES)  # there may be a task for a runner, or a runner for a task
        return self._stored_task(task.id)

    def note_result(self, task_id: int, *, commit: str, output: str, result: str) -> None:
        """Store the evidence of a task's work."""
        values = {"id": task_id, "commit": commit, "output": output, "result": result}
        self._tx.run("tasks.note_result", values)

    def count_down(self, task_id: int) -> None:
        """Record for each dependent of a task that one of its dependencies is done."""
        self._tx.run("tasks.count_down", {"id": task_id})

    def _depend(self, task_id: int, depends_on: Sequence[int]) -> None:
        rows = [{"task_id": task_id, "depends_on": other} for other in depends_on]
        self._tx.run_many("tasks.insert_dependency", rows)

    def _stored_task(self, task_id: int) -> Task:
        found = self.task(task_id)
        if found is None:
            raise UnknownTask(f"no record has the id {task_id}", value=task_id)
        return found


def place_of(task: Task) -> tuple[int, int]:
    """Return the place of an open task in lists: its priority's position, then its id."""
    return PRIORITIES.index(task.priority), task.id


def _texts(task: Task) -> dict[str, object]:
    return {
        "title": task.title,
        "text": task.text,
        "paths": msgspec.json.encode(task.paths).decode(),
        "priority": PRIORITIES.index(task.priority),
        "assignee": task.assignee,
        "acceptance": task.acceptance,
        "open_dependencies": task.open_dependencies,
    }


def _task(row: Row) -> Task:
    values = dict(zip(_COLUMNS, row, strict=True))
    paths = tuple(msgspec.json.decode(values.pop("paths")))
    return Task(**{**values, "paths": paths, "priority": PRIORITIES[values["priority"]]})
