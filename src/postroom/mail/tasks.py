"""Operations on tasks: list, claim, add, update and finish.

A claim is a lease with an epoch. The change that stores a claim also reserves the files of the task. Each
activity of the holder renews the claim and the reservations. Each write by a holder states the epoch of its
claim. If the claim has been lost, the write is refused.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict

from postroom.contracts.clock import iso
from postroom.contracts.errors import (
    AgentRetired,
    InvalidArgument,
    NotPermitted,
    TaskCircle,
    TaskNotHeld,
    TaskNotReady,
    UnknownTask,
)
from postroom.contracts.mail import Agent, Project
from postroom.contracts.messages import CONTROL
from postroom.contracts.quoting import quoted
from postroom.contracts.records import replace
from postroom.contracts.tasks import (
    AGENT,
    ANYBODY,
    BY_PERSON,
    ENDED_STATES,
    OPEN_STATES,
    ROLE,
    Task,
    TaskDecision,
    TaskState,
    place_in_message,
)
from postroom.mail.commands import AddTask, ClaimTask, DoneTask, ListTasks, UpdateTask
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.identity import acting_active, find_agent
from postroom.mail.names import shown
from postroom.mail.projects import find_project, format_address
from postroom.mail.reservations import (
    checked_ttl,
    find_holder,
    normal_paths,
    release_reserved_in,
    reserve_all,
)
from postroom.mail.sending import Addressee, NewMessage, post, refusals, store_message
from postroom.mail.views import maybe_iso
from postroom.stores.mail.access import RecordReads, task_place

AT_ONCE: Final = 50
MAX_LOOKED_AT: Final = 500
"""Maximum number of ready tasks that a claim examines.

If other agents hold files of each of these tasks, the claim finds no task.
"""
_MAX_OUTPUT_LENGTH: Final = 2_000
"""Maximum number of characters of an acceptance command's output that a message shows.

`list_tasks` shows the complete output.
"""
MAX_REASON_LENGTH: Final = 2_000
"""Maximum number of characters of a reason."""
_DEMANDS: Final = ("title", "text", "assignee", "acceptance", "depends_on")
"""The fields of a task that only its author may change."""
_NOBODY_IN_PARTICULAR: Final = frozenset({"anybody", "anyone", "any agent"})
"""The words for tasks that every agent may claim, unless an agent has such a name."""
_ROLE: Final = re.compile(r"role:[ ]*([A-Za-z0-9][A-Za-z0-9._-]{0,63})")
_CURSOR: Final = re.compile(r"([a-z]+)\.(\d{1,16})\.(\d{1,16})")
_START: Final = (-1, 0)
_NEWEST: Final = (2**62, 0)


class TaskView(TypedDict):
    """A task of a project.

    `depends_on` lists the unfinished tasks that must be done before the task.
    """

    id: int
    title: str
    state: str
    priority: str
    assignee: str
    holder: str | None
    epoch: int
    lease_ends_ts: str | None
    paths: list[str]
    depends_on: list[int]
    reason: str
    author: str
    changed_ts: str
    changed_by: str | None
    text: NotRequired[str]
    acceptance: NotRequired[str]
    thread_id: NotRequired[str]
    commit: NotRequired[str]
    output: NotRequired[str]
    message: NotRequired[str]


class TasksView(TypedDict):
    """A page of tasks, in the order in which agents should claim tasks.

    `next` is the cursor of the next page, or null on the last page.
    """

    tasks: list[TaskView]
    next: str | None


class ClaimAnswer(TypedDict):
    """The claimed task, or null with the reason why no task was claimed.

    `held` lists all tasks that the agent holds now.
    """

    task: TaskView | None
    held: list[int]
    reason: str


class DoneAnswer(TypedDict):
    """A finished task, the tasks that became ready, and the message to the author.

    `reason` is present if a repeated call gave different evidence, which was not stored.
    """

    task: TaskView
    ready: list[int]
    message_id: int | None
    reason: NotRequired[str]


def list_tasks(context: ReadContext, asked: ListTasks) -> TasksView:
    """Return one task with all texts, the tasks in one state, or all open tasks.

    Raises:
        UnknownTask: The project has no task with this id.
    """
    project = find_project(context.projects, asked.project_key)
    if asked.task_id is not None:
        task = find_task(context, project, asked.task_id)
        return {"tasks": views(context.tx, project, [task], now=context.now, whole=True), "next": None}
    tasks = tasks_page(context.tx, project, asked.state, after=asked.after, limit=asked.limit + 1)
    page, cursor = tasks[: asked.limit], None
    if len(tasks) > asked.limit:
        last = page[-1]
        place = (last.changed_at, last.id) if last.state in ENDED_STATES else task_place(last)
        cursor = "{}.{}.{}".format(last.state, *place)
    return {"tasks": views(context.tx, project, page, now=context.now), "next": cursor}


def tasks_page(
    tx: RecordReads, project: Project, state: TaskState | None, *, limit: int, after: str = ""
) -> list[Task]:
    """Return a page of the tasks in one state, or of all open tasks, ordered for claiming.

    Raises:
        InvalidArgument: `after` is not the cursor of such a list.
    """
    states: Sequence[TaskState] = OPEN_STATES if state is None else (state,)
    cursor = _CURSOR.fullmatch(after)
    if after and (cursor is None or cursor[1] not in states):
        raise InvalidArgument(
            f"{shown(after)} is not the `next` value of this list",
            value=after,
            remedy="pass the `next` value of the previous page",
        )
    first, tasks = states.index(cursor[1]) if cursor else 0, list[Task]()
    for number, listed_state in enumerate(states[first:]):
        left, start = limit - len(tasks), (int(cursor[2]), int(cursor[3])) if cursor and not number else None
        if left and listed_state in ENDED_STATES:
            tasks += tx.ended_tasks(project.id, listed_state, before=start or _NEWEST, limit=left)
        elif left:
            tasks += tx.tasks_in(project.id, listed_state, after=start or _START, limit=left)
    return tasks


def find_task(context: ReadContext, project: Project, task_id: int) -> Task:
    """Return a task of the project.

    Raises:
        UnknownTask: The project has no task with this id.
    """
    task = context.tx.task(task_id)
    if task is None or task.project_id != project.id:
        raise UnknownTask(f"project {project.slug} has no task {task_id}", value=task_id)
    return task


def views(
    tx: RecordReads, project: Project, tasks: Sequence[Task], *, now: int, whole: bool = False
) -> list[TaskView]:
    """Return tasks in the form that callers receive.

    With `whole`, the texts and the evidence of the tasks are included.
    """
    if not tasks:
        return []
    assigned = {int(task.assignee.removeprefix(AGENT)) for task in tasks if task.assignee.startswith(AGENT)}
    named = {who for task in tasks for who in (task.author_id, task.holder_id, task.changed_by) if who}
    agents = tx.agents_by_id(sorted(assigned | named))
    names = _names(tx, project, agents)
    retired = {f"{AGENT}{number}" for number in assigned if agents[number].retired_at is not None}
    before = tx.dependencies([task.id for task in tasks])
    return [_view(task, names, retired, before[task.id], now=now, whole=whole) for task in tasks]


def _names(tx: RecordReads, project: Project, agents: Mapping[int, Agent]) -> dict[int, str]:
    homes = {number: tx.project_by_id(number) for number in {agent.project_id for agent in agents.values()}}
    return {
        agent.id: format_address(
            agent.name, home.slug if (home := homes[agent.project_id]) else "?", project.slug
        )
        for agent in agents.values()
    }


def _view(
    task: Task,
    names: dict[int, str],
    retired: Container[str],
    before: dict[int, TaskState],
    *,
    now: int,
    whole: bool,
) -> TaskView:
    is_over = task.lease_ends_at is not None and task.lease_ends_at <= now
    assignee = task.assignee
    reason = f"its lease ended at {maybe_iso(task.lease_ends_at)}" if is_over else task.reason
    if assignee.startswith(AGENT):
        assignee = names.get(int(assignee.removeprefix(AGENT)), "?")
    if task.assignee in retired and task.state in ("ready", "waiting", "blocked"):
        reason = "; ".join(filter(None, (reason, f"{assignee} is retired, so nobody can claim the task")))
    if task.assignee.startswith(ROLE) and task.state == "ready":
        role = assignee.removeprefix(ROLE)
        reason = "; ".join(filter(None, (reason, f"only an agent that states the role {role} can claim it")))
    view: TaskView = {
        "id": task.id,
        "title": task.title,
        "state": "ready" if is_over else task.state,
        "priority": task.priority,
        "assignee": assignee,
        "holder": None if is_over or task.holder_id is None else names.get(task.holder_id),
        "epoch": task.epoch,
        "lease_ends_ts": None if is_over else maybe_iso(task.lease_ends_at),
        "paths": list(task.paths),
        "depends_on": [other for other, state in before.items() if state != "done"],
        "reason": reason,
        "author": names.get(task.author_id, "?"),
        "changed_ts": iso(task.changed_at),
        "changed_by": None if is_over else names.get(task.changed_by or 0),
    }
    if whole:
        view |= {
            "text": task.text,
            "acceptance": task.acceptance,
            "thread_id": task.thread_id,
            "commit": task.commit,
            "output": task.output,
            "message": task.result,
        }
    return view


def claim_task(context: WriteContext, asked: ClaimTask) -> ClaimAnswer:
    """Claim the first ready task whose files are free, and reserve the files of the task.

    With a task id, only that task can be claimed. A dry run changes nothing.

    Raises:
        TaskNotReady: The given task is not ready, is assigned to others, or names files that others hold.
    """
    lease_ms = checked_ttl(context, asked.ttl_seconds)
    roles = [_checked_role(role) for role in asked.roles]
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    end_leases(context, project)
    held = context.tx.tasks_held(agent.id)
    own = [path for task in held for path in task.paths]
    mine = (f"{AGENT}{agent.id}", *dict.fromkeys(roles), ANYBODY)
    answer: ClaimAnswer = {"task": None, "held": [reservation.id for reservation in held], "reason": ""}
    if asked.task_id is not None:
        task: Task | None = find_task(context, project, asked.task_id)
        _refuse_unready(context, project, agent, task, mine, own)  # type: ignore[arg-type]
    else:
        task, answer["reason"] = next_ready(context, project, agent, mine, own)
    if task is not None and not asked.dry_run:
        task = take(context, project, agent, task, lease_ms=lease_ms, place=context.caller.run_id or "")
        answer["held"] = [*answer["held"], task.id]
    if task is not None:
        [answer["task"]] = views(context.tx, project, [task], now=context.now, whole=True)
    return answer


def take(
    context: WriteContext, project: Project, agent: Agent, task: Task, *, lease_ms: int, place: str
) -> Task:
    """Claim a ready task for an agent, and reserve the task's files.

    The claim ends when the run in `place` ends.
    """
    claimed = context.tx.claim_task(task, agent.id, lease_ms=lease_ms, run_id=place, now=context.now)
    if claimed.paths:
        reserve_all(
            context,
            project,
            agent,
            claimed.paths,
            ttl_seconds=lease_ms // 1000,
            reason=f"task {claimed.id}: {claimed.title}",
            place=claimed.place,
        )
    return claimed


def next_ready(
    context: WriteContext, project: Project, agent: Agent, mine: Sequence[str], own: Sequence[str]
) -> tuple[Task | None, str]:
    """Return the first ready task whose assignee is in `mine` and whose files are free.

    If no task fits, return None and the reason.
    """
    after, looked_at, holders = _START, 0, dict[str, None]()
    while looked_at < MAX_LOOKED_AT:
        page = context.tx.ready_tasks(project.id, mine, after=after, limit=AT_ONCE)
        for task in page:
            holder = find_holder(context, project, agent, task.paths, own=own) if task.paths else ""
            if not holder:
                return task, ""
            holders[holder] = None
        looked_at += len(page)
        if len(page) < AT_ONCE:
            break
        after = task_place(page[-1])
    if not looked_at:
        return None, "no task is ready for you"
    number = f"the first {looked_at}" if looked_at >= MAX_LOOKED_AT else str(looked_at)
    return None, f"{', '.join(list(holders)[:10])} reserved files of {number} ready tasks"


def _refuse_unready(
    context: WriteContext, project: Project, agent: Agent, task: Task, mine: Sequence[str], own: Sequence[str]
) -> None:
    if task.state != "ready":
        is_holder = task.state == "claimed" and task.holder_id == agent.id
        raise TaskNotReady(
            f"task {task.id} {story(context, project, task)}",
            value=task.id,
            remedy=f"you hold it with epoch {task.epoch}: continue the work, and finish it with done_task; "
            f"if another session of {agent.name} claimed it, claim another task"
            if is_holder
            else None,
            details=_details(task),
        )
    if task.assignee not in mine:
        [view] = views(context.tx, project, [task], now=context.now)
        number = int(task.assignee.removeprefix(AGENT)) if task.assignee.startswith(AGENT) else 0
        is_retired = number and context.tx.agents_by_id([number])[number].retired_at is not None
        raise TaskNotReady(
            f"task {task.id} is for {view['assignee']}" + (", who is retired" if is_retired else ""),
            value=task.id,
            remedy=f"its author {view['author']} can assign it to another agent with update_task; or claim "
            "another task with claim_task"
            if is_retired
            else None,
        )
    if holder := find_holder(context, project, agent, task.paths, own=own):
        raise TaskNotReady(
            f"{holder} reserved files of task {task.id}",
            value=task.id,
            remedy=f"write to {holder}, or claim another task with claim_task",
        )


def add_task(context: WriteContext, asked: AddTask) -> TaskView:
    """Store a task.

    If the task is ready and assigned to an agent, notify the agent.

    Raises:
        UnknownTask, UnknownAgent, InvalidPattern: A dependency, the assignee or a path is not valid.
        AgentRetired: The assignee is retired.
    """
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    depends_on = list(dict.fromkeys(asked.depends_on))
    count = _open_among(context, project, depends_on)
    task = Task(
        id=0,
        project_id=project.id,
        title=_checked_title(asked.title),
        text=asked.text,
        paths=normal_paths(context, project, asked.paths),
        priority=asked.priority,
        assignee=_checked_assignee(context, project, asked.assignee),
        acceptance=asked.acceptance.strip(),
        state="waiting" if count else "ready",
        open_dependencies=count,
        author_id=agent.id,
        holder_id=None,
        epoch=0,
        lease_ms=0,
        lease_ends_at=None,
        claimed_at=None,
        reason="",
        commit="",
        output="",
        result="",
        created_at=context.now,
        changed_at=context.now,
        changed_by=agent.id,
    )
    task = context.tx.insert_task(task, depends_on)
    _tell_assignees(context, project, agent, [task])
    [view] = views(context.tx, project, [task], now=context.now, whole=True)
    return view


def update_task(context: WriteContext, asked: UpdateTask) -> TaskView:
    """Change the fields of a task, or release, block, unblock or cancel the task.

    Raises:
        NotPermitted: Another agent added the task, and the command changes a field that only the author may
            change. Or the command cancels or blocks a task that the caller neither added nor holds.
        TaskNotHeld: The task is claimed, and the caller does not hold it under this epoch.
        TaskNotReady: The task has ended, or its fields cannot change while it is claimed.
        TaskCircle: A new dependency of the task depends on the task itself.
        AgentRetired: The new assignee is retired.
    """
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    end_leases(context, project)
    task = find_task(context, project, asked.task_id)
    if task.state in ENDED_STATES or (task.state == "review" and asked.state != "cancelled"):
        raise TaskNotReady(
            f"task {task.id} {story(context, project, task)}",
            value=task.id,
            remedy="add another task with add_task",
            details=_details(task),
        )
    if task.state == "claimed" and asked.state in ("ready", "blocked"):
        _check_holder(context, project, agent, task, asked.epoch)
    edited = _edit(context, project, agent, task, asked)
    if asked.state == "cancelled":
        _refuse_others(context, project, agent, edited, "cancel")
        edited = _cancelled(context, project, agent, edited, asked.reason)
    elif asked.state == "blocked" and not (asked.depends_on and edited.open_dependencies):
        if not asked.reason.strip():
            raise InvalidArgument(
                "a blocked task needs a reason",
                value=asked.reason,
                remedy="pass `reason`, or list the tasks that must be done first in `depends_on`",
            )
        _refuse_others(context, project, agent, edited, "block")
        edited = _leave_task(context, edited, "blocked", by=agent.id, reason=asked.reason)
        _tell(context, project, task, agent, f"Blocked: {task.title}", asked.reason)
    elif asked.state is not None or edited.state in ("ready", "waiting"):
        state: TaskState = "waiting" if edited.open_dependencies else "ready"
        if edited.state != state:
            edited = _leave_task(context, edited, state, by=agent.id, reason=asked.reason)
            _tell_assignees(context, project, agent, [edited])
    [view] = views(context.tx, project, [edited], now=context.now, whole=True)
    return view


def _edit(context: WriteContext, project: Project, agent: Agent, task: Task, asked: UpdateTask) -> Task:
    demands = [name for name in _DEMANDS if getattr(asked, name) is not None]
    if task.state == "claimed" and asked.state == "blocked" and "depends_on" in demands:
        demands.remove("depends_on")
    if demands and agent.id != task.author_id:
        [view] = views(context.tx, project, [task], now=context.now)
        raise NotPermitted(
            f"{agent.name} cannot change the {' and '.join(demands)} of task {task.id}: only "
            f"{view['author']}, who added it, can; nothing was changed",
            value=task.id,
            remedy=f"write to {view['author']} in the thread {task.thread_id}",
            details={"author": view["author"], "fields": demands},
        )
    changes: dict[str, object] = {}
    if asked.title is not None:
        changes["title"] = _checked_title(asked.title)
    if asked.text is not None:
        changes["text"] = asked.text
    if asked.priority is not None:
        changes["priority"] = asked.priority
    if asked.paths is not None:
        changes["paths"] = normal_paths(context, project, asked.paths)
    if asked.assignee is not None:
        changes["assignee"] = _checked_assignee(context, project, asked.assignee)
    if asked.acceptance is not None:
        changes["acceptance"] = asked.acceptance.strip()
    fixed = {"paths", "assignee", "acceptance"} & changes.keys()
    if task.state == "claimed" and (fixed or (asked.depends_on is not None and asked.state != "blocked")):
        raise TaskNotReady(
            f"task {task.id} {story(context, project, task)}: only its title, text and priority can change",
            value=task.id,
            remedy="ask the task's holder to give it back with update_task (state `ready`), then change it",
            details=_details(task),
        )
    fields = [name for name, value in changes.items() if value != getattr(task, name)]
    depends_on = None if asked.depends_on is None else list(dict.fromkeys(asked.depends_on))
    if depends_on is not None:
        changes["open_dependencies"] = _open_among(context, project, depends_on)
        _refuse_circle(context, task, depends_on)
        if context.tx.dependencies([task.id])[task.id].keys() != set(depends_on):
            fields.append("depends_on")
    if not fields:
        return task
    edited: Task = replace(task, **changes)
    context.tx.edit_task(edited, depends_on, fields=fields, by=agent.id, now=context.now)
    told = [name for name in fields if name in demands]
    if told and task.state == "claimed" and task.holder_id != agent.id:
        text = (
            f"{agent.name} changed the {' and '.join(told)} of task {task.id}. "
            f"Read it with list_tasks (`task_id` {task.id}) before you continue."
        )
        _tell(context, project, edited, agent, f"Changed: {edited.title}", text, only=task.holder_id)
    return edited


def _refuse_circle(context: WriteContext, task: Task, depends_on: Sequence[int]) -> None:
    """Raise TaskCircle if one of the dependencies depends on `task`, directly or indirectly."""
    came_from: dict[int, int] = dict.fromkeys(depends_on, task.id)
    layer = list(came_from)
    while layer and task.id not in layer:
        dependencies = context.tx.dependencies(layer)
        layer = []
        for task_id, before in dependencies.items():
            for other, state in before.items():
                if state not in ENDED_STATES and other not in came_from:
                    came_from[other] = task_id
                    layer.append(other)
    if task.id in came_from:
        circle, task_id = [task.id], came_from[task.id]
        while task_id != task.id:
            circle.insert(0, task_id)
            task_id = came_from[task_id]
        circle.insert(0, task.id)
        raise TaskCircle(
            f"the tasks would wait for each other: {' waits for '.join(map(str, circle))}",
            value=task.id,
            details={"circle": circle},
        )


def _refuse_others(
    context: WriteContext, project: Project, agent: Agent, task: Task, verb: Literal["block", "cancel"]
) -> None:
    """Raise NotPermitted unless the agent added the task or holds the task."""
    if agent.id == task.author_id or (task.state == "claimed" and task.holder_id == agent.id):
        return
    [view] = views(context.tx, project, [task], now=context.now)
    holder = f", and {view['holder']} holds it" if task.state == "claimed" else ""
    other_way = (
        f"a person: `postroom tasks decide {task.id} cancel --by NAME`"
        if verb == "cancel"
        else "claim the task, which its holder can block"
    )
    raise NotPermitted(
        f"{agent.name} cannot {verb} task {task.id}: {view['author']} added it{holder}",
        value=task.id,
        remedy=f"ask {view['author']}, or {other_way}",
    )


def _cancelled(
    context: WriteContext, project: Project, by: Agent, task: Task, reason: str, home: Project | None = None
) -> Task:
    cancelled = _leave_task(context, task, "cancelled", by=by.id, reason=reason)
    waiting = [dependent.id for dependent in context.tx.dependents(task.id) if dependent.state == "waiting"]
    note = f"\n\nTasks that wait for it: {', '.join(map(str, waiting))}." if waiting else ""
    text = f"{by.name} cancelled task {task.id}. {reason}{note}".strip()
    _tell(context, project, task, by, f"Cancelled: {task.title}", text, also=[task.holder_id], home=home)
    return cancelled


def done_task(context: WriteContext, asked: DoneTask) -> DoneAnswer:
    """Finish a task, store the evidence, and release the files of the task.

    Notify the author, and the assignees of tasks that become ready. If a person must accept the task, the new
    state is `review` instead of `done`. The agent that finished the task may repeat the call.

    Raises:
        TaskNotHeld: The caller does not hold the task under this epoch.
        InvalidArgument: The acceptance of the task is a command, and the output of the command is missing.
    """
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    end_leases(context, project)
    task = find_task(context, project, asked.task_id)
    if task.state in ("done", "review") and (task.holder_id, task.epoch) == (agent.id, asked.epoch):
        [view] = views(context.tx, project, [task], now=context.now, whole=True)
        answer: DoneAnswer = {"task": view, "ready": [], "message_id": None}
        if (asked.commit, asked.output, asked.message) != (task.commit, task.output, task.result):
            evidence = {"commit": task.commit, "output": task.output, "message": task.result}
            parts = [
                f"{name} {quoted(value, longest=80)}" for name, value in evidence.items() if value.strip()
            ]
            proof = f"with {', '.join(parts)}" if parts else "without evidence"
            answer["reason"] = (
                f"task {task.id} {story(context, project, task)} {proof}; the evidence of this call was not "
                "stored"
            )
        return answer  # the response of the first call may have been lost
    _check_holder(context, project, agent, task, asked.epoch)
    is_checked = task.acceptance == BY_PERSON
    if task.acceptance and not is_checked and not asked.output.strip():
        raise InvalidArgument(
            f"task {task.id} must pass the command `{task.acceptance}`, but `output` is empty",
            value=task.id,
            remedy="run the command: if it succeeds, pass its output; if not, continue the work or block "
            "the task",
        )
    context.tx.note_result(task.id, commit=asked.commit, output=asked.output, result=asked.message)
    state: TaskState = "review" if is_checked else "done"
    finished = _leave_task(context, task, state, by=agent.id, holder_id=agent.id)
    ready = [] if is_checked else _free_dependents(context, finished, agent)
    what = "Check" if is_checked else "Done"
    text = _evidence(asked, ready)
    message_id = _tell(context, project, task, agent, f"{what}: {task.title}", text)
    _tell_assignees(context, project, agent, ready)
    [view] = views(context.tx, project, [finished], now=context.now, whole=True)
    return {"task": view, "ready": [task.id for task in ready], "message_id": message_id}


def _evidence(asked: DoneTask, ready: Sequence[Task]) -> str:
    parts = [asked.message.strip()] if asked.message.strip() else []
    if asked.commit:
        parts.append(f"Commit: `{asked.commit}`")
    if asked.output.strip():
        end = asked.output[-_MAX_OUTPUT_LENGTH:]
        fence = "`" * (max((len(fence) for fence in re.findall(r"`{3,}", end)), default=2) + 1)
        parts.append(f"{fence}\n{end}\n{fence}")
    if ready:
        parts.append("Ready now: " + ", ".join(f"{task.id} ({task.title})" for task in ready[:20]))
    return "\n\n".join(parts) or "No message."


def decide_task(  # noqa: PLR0913 - the terms of a decision
    context: WriteContext,
    project: Project,
    task_id: int,
    *,
    home: Project,
    by: Agent,
    answer: TaskDecision,
    why: str,
) -> Task:
    """Accept or reject a finished task, or cancel an open task, for a person of the project `home`.

    Notify the agent that finished or claimed the task.

    Raises:
        UnknownTask, TaskNotReady: The project has no such task, or the state of the task does not allow the
            decision.
        InvalidArgument: The answer rejects the task, but there is no reason.
    """
    end_leases(context, project)
    task, accepts = find_task(context, project, task_id), answer == "yes"
    if task.state in ENDED_STATES or (task.state != "review" and answer != "cancel"):
        raise TaskNotReady(
            f"task {task.id} {story(context, project, task)}",
            value=task.id,
            remedy="only a task in review can be accepted or rejected, and only an open task can be "
            "cancelled",
            details=_details(task),
        )
    if answer == "cancel":
        return _cancelled(context, project, by, task, why.strip(), home)
    if not accepts and not why.strip():
        raise InvalidArgument("a rejection needs a reason", value=why, remedy="state what is missing")
    state: TaskState = "done" if accepts else "ready"
    decided = context.tx.move_task(
        task, state, by=by.id, now=context.now, reason=why, holder_id=task.holder_id if accepts else None
    )
    ready = _free_dependents(context, decided, by) if accepts else []
    what = "Accepted" if accepts else "Rejected"
    note = "" if accepts else f"\n\nTask {task.id} is ready again: claim it with claim_task to continue."
    _tell(
        context,
        project,
        task,
        by,
        f"{what}: {task.title}",
        (why.strip() or "No comment.") + note,
        also=[task.holder_id],
        home=home,
    )
    _tell_assignees(context, project, by, ready, home=home)
    return decided


def end_leases(context: WriteContext, project: Project) -> None:
    """End claims with expired leases, so that the tasks become ready again.

    Each call ends a limited number of claims.
    """
    for task in context.tx.leases_ended(project.id, context.now):
        give_back(context, task, by=None, reason=f"its lease ended at {maybe_iso(task.lease_ends_at)}")


def give_back(context: WriteContext, task: Task, *, by: int | None, reason: str) -> None:
    """Release the claim on a task, so that any agent can claim the task.

    `by` is None if the lease has expired.
    """
    _leave_task(context, task, "ready", by=by, reason=reason)


def block_unfinished(
    context: WriteContext, project: Project, agent: Agent, message_id: int, why: str
) -> None:
    """Block a task that an agent received in a message, but did not finish in the message's run."""
    for task in context.tx.tasks_claimed_in(place_in_message(message_id)):
        _leave_task(context, task, "blocked", by=agent.id, reason=why)
        _tell(context, project, task, agent, f"Blocked: {task.title}", why)


def tell_authors(context: WriteContext, project: Project, retired: Agent) -> None:
    """Notify the authors of unclaimed tasks that are assigned to a retired agent."""
    for titles in context.tx.unclaimed_tasks(project.id, f"{AGENT}{retired.id}").values():
        lines = [f"- {task_id} ({title})" for task_id, title in list(titles.items())[:AT_ONCE]]
        lines += [f"- {len(titles) - AT_ONCE} more"] if len(titles) > AT_ONCE else []
        text = (
            f"{retired.name} was retired, so nobody can claim these tasks for {retired.name}:\n\n"
            + "\n".join(lines)
            + "\n\nAssign each of them to others with update_task, or cancel it."
        )
        first = find_task(context, project, min(titles))
        _tell(context, project, first, retired, f"{retired.name} was retired", text)


def _leave_task(
    context: WriteContext,
    task: Task,
    state: TaskState,
    *,
    by: int | None,
    reason: str = "",
    holder_id: int | None = None,
) -> Task:
    if task.state == "claimed":
        release_reserved_in(context, task.place, reason=f"task {task.id}: {reason or state}")
    return context.tx.move_task(task, state, by=by, now=context.now, reason=reason, holder_id=holder_id)


def _free_dependents(context: WriteContext, task: Task, by: Agent) -> list[Task]:
    freed = [
        dependent
        for dependent in context.tx.dependents(task.id)
        if dependent.state == "waiting" and dependent.open_dependencies == 1
    ]
    context.tx.count_down(task.id)
    return [context.tx.move_task(dependent, "ready", by=by.id, now=context.now) for dependent in freed]


def _check_holder(
    context: WriteContext, project: Project, agent: Agent, task: Task, epoch: int | None
) -> None:
    """Raise an error unless the agent holds the task with the given epoch.

    Raises:
        InvalidArgument: The epoch is missing.
        TaskNotHeld: The epoch does not belong to the agent's claim, the task was claimed again, or its state
            changed. The error states who changed it, and when.
    """
    is_holder = task.state == "claimed" and task.holder_id == agent.id
    if is_holder and epoch is None:
        raise InvalidArgument(
            f"the epoch of your claim on task {task.id} is missing",
            remedy="pass the `epoch` that claim_task returned",
        )
    if is_holder and epoch == task.epoch:
        return
    remedy: str | None = None
    if is_holder and epoch is not None:
        remedy = f"repeat the call with epoch {task.epoch}"
        if epoch < task.epoch:
            remedy = (
                f"epoch {epoch} has ended: {remedy} only if you claimed the task again; if another "
                f"session of {agent.name} claimed it, stop working on the task"
            )
        raise TaskNotHeld(
            f"{agent.name} holds task {task.id} with epoch {task.epoch}, but the call passes epoch "
            f"{epoch}; nothing was changed",
            value=task.id,
            remedy=remedy,
            details={**_details(task), "given_epoch": epoch},
        )
    if task.state == "ready":
        remedy = (
            f"call claim_task with `task_id` {task.id} to continue, if nobody changed its files meanwhile"
        )
    elif task.state == "claimed" and epoch is None and agent.id == task.author_id:
        remedy = "ask its holder to block it or give it back; or cancel it with update_task"
    raise TaskNotHeld(
        f"task {task.id} {story(context, project, task)}; nothing was changed",
        value=task.id,
        remedy=remedy,
        details={**_details(task), "given_epoch": epoch},
    )


def story(context: ReadContext, project: Project, task: Task) -> str:
    """Return a sentence about the state of a task, and about the agent that changed the state."""
    agents = context.tx.agents_by_id([who for who in (task.holder_id, task.changed_by) if who is not None])
    names = _names(context.tx, project, agents)
    by, since = names.get(task.changed_by or 0, "nobody"), iso(task.changed_at)
    match task.state:
        case "claimed":
            holder = names.get(task.holder_id or 0, "?")
            until = maybe_iso(task.lease_ends_at)
            return f"is claimed by {holder} since {since} until {until} (epoch {task.epoch})"
        case "ready":
            because = f": {task.reason}" if task.reason else ""
            return f"is ready since {since}{because}{f' ({by})' if because and task.changed_by else ''}"
        case "review":
            return f"waits for a person's check since {by} finished it at {since}"
        case "waiting":
            return f"waits for {task.open_dependencies} tasks that are not done"
        case "blocked":
            return f"was blocked by {by} at {since}: {task.reason}"
        case "done":
            holder = names.get(task.holder_id or 0, by)
            return f"was done by {holder} at {since}{'' if by == holder else f', and accepted by {by}'}"
    return f"was cancelled by {by} at {since}" + (f": {task.reason}" if task.reason else "")


def _details(task: Task) -> dict[str, object]:
    return {"state": task.state, "epoch": task.epoch, "since": iso(task.changed_at)}


def _open_among(context: WriteContext, project: Project, task_ids: Iterable[int]) -> int:
    """Return the number of tasks in `task_ids` that are not done.

    Raises:
        UnknownTask: The project has no task with one of these ids.
        TaskNotReady: One of the tasks was cancelled.
    """
    count = 0
    for task_id in task_ids:
        task = find_task(context, project, task_id)
        if task.state == "cancelled":
            raise TaskNotReady(
                f"task {task_id} {story(context, project, task)}, so no task can depend on it",
                value=task_id,
                remedy="leave it out of `depends_on`",
            )
        count += task.state != "done"
    return count


def _checked_title(title: str) -> str:
    title = title.strip()
    if not title or CONTROL.search(title):
        raise InvalidArgument(
            "the title is empty, or contains line breaks or control characters",
            value=title,
            remedy="use one line of text",
        )
    return title


def _checked_role(role: str) -> str:
    match = _ROLE.fullmatch(role if role.startswith(ROLE) else f"{ROLE}{role}")
    if match is None:
        raise InvalidArgument(
            f"{shown(role)} is not a valid role", value=role, remedy="use one word, such as role:reviewer"
        )
    return f"{ROLE}{match[1].casefold()}"


def _checked_assignee(context: WriteContext, project: Project, assignee: str) -> str:
    """Return the stored form of an assignee.

    Raises:
        UnknownAgent: The assignee is the name of an agent that the project does not have.
        AgentRetired: The assignee is a retired agent, which cannot claim tasks.
    """
    word = assignee.strip()
    if not word or (word.casefold() in _NOBODY_IN_PARTICULAR and not context.tx.agent(project.id, word)):
        return ANYBODY
    if assignee.startswith(ROLE):
        return _checked_role(assignee)
    agent = find_agent(context.tx, project, assignee.strip())
    if agent.retired_at is not None:
        raise AgentRetired(
            f"{agent.name} is retired",
            value=agent.name,
            remedy="call unretire_agent, or assign the task to another agent",
        )
    return f"{AGENT}{agent.id}"


def _tell_assignees(
    context: WriteContext, project: Project, by: Agent, tasks: Sequence[Task], *, home: Project | None = None
) -> None:
    for task in tasks:
        if (
            task.state != "ready"
            or task.assignee in ("", f"{AGENT}{by.id}")
            or not task.assignee.startswith(AGENT)
        ):
            continue
        reader = int(task.assignee.removeprefix(AGENT))
        if reader in context.tx.claiming_agents(after=reader - 1, limit=1):
            continue
        text = f"{task.text}\n\nTask {task.id} is ready for you: take it with claim_task.".strip()
        _tell(context, project, task, by, f"Ready: {task.title}", text, only=reader, home=home)


def _tell(  # noqa: PLR0913 - the parts of a message
    context: WriteContext,
    project: Project,
    task: Task,
    by: Agent,
    subject: str,
    text: str,
    *,
    also: Sequence[int | None] = (),
    only: int | None = None,
    home: Project | None = None,
) -> int:
    named = [only] if only is not None else [task.author_id, *also]
    agents = context.tx.agents_by_id(
        [agent_id for agent_id in dict.fromkeys(named) if agent_id is not None and agent_id != by.id]
    )
    addressees = [
        Addressee(project=theirs, agent=agent, kind="to")
        for agent in agents.values()
        if (theirs := context.tx.project_by_id(agent.project_id)) is not None
    ]
    sender = home or project
    reach = context.tx.reach(by.id, [addressee.agent.id for addressee in addressees])
    closed = refusals(context, sender, by, addressees, reach=reach)
    new = NewMessage(
        project=sender,
        sender=by,
        addressees=[addressee for addressee in addressees if addressee.agent.id not in closed],
        subject=subject[: context.rules.max_subject_chars],
        body_md=text,
        thread_id=task.thread_id,
    )
    if new.addressees:
        return int(post(context, new, bad=[], skipped=[])["deliveries"][0]["payload"]["id"])
    return store_message(context, new, reach)[0].id
