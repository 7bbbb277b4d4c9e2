"""The page of a project's tasks, on which a person decides about tasks."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, PostroomError, TaskNotReady
from postroom.contracts.mail import Project
from postroom.contracts.tasks import ENDED_STATES, TaskDecision
from postroom.mail.tasks import tasks_page, views
from postroom.services.statuses import status_of
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import Number, PlacedForm, read_form
from postroom.web.serving import number, remember_name, see
from postroom.web.site import Site, WorkingSite

OPEN: Final = 200
ENDED: Final = 30
_DECISIONS: Final[Mapping[str, tuple[TaskDecision, str]]] = {
    "accept": ("yes", "accepted"),
    "reject": ("no", "rejected"),
    "cancel": ("cancel", "cancelled"),
}
"""The decision that each button makes, and its outcome."""


async def tasks(
    site: Site, request: Request, typed: "TaskForm | None" = None, refusal: PostroomError | None = None
) -> Response:
    """Show the open tasks and the most recently ended tasks of a project, or one task with its texts.

    If a decision was refused, `typed` is its form, and `refusal` the reason.
    """
    task_id = number(request, "task") if typed is None else typed.task
    after = request.query_params.get("after", "")[:64]

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        now = site.clock.now()
        one = None if task_id is None else tx.mail.task(task_id)
        tasks = tasks_page(tx.mail, project, None, after=after, limit=OPEN + 1)
        ended = [task for state in ENDED_STATES for task in tasks_page(tx.mail, project, state, limit=ENDED)]
        ended.sort(key=lambda task: (task.changed_at, task.id), reverse=True)
        chosen = [] if one is None or one.project_id != project.id else [one]
        return {
            "asked": task_id,
            "chosen": list(zip(chosen, views(tx.mail, project, chosen, now=now, whole=True), strict=True)),
            "rows": list(zip(tasks[:OPEN], views(tx.mail, project, tasks[:OPEN], now=now), strict=True)),
            "is_cut": len(tasks) > OPEN,
            "ended": list(zip(ended[:ENDED], views(tx.mail, project, ended[:ENDED], now=now), strict=True)),
            "done": request.query_params.get("done", ""),
        }

    status = HTTPStatus.OK if refusal is None else status_of(refusal)
    shown = await site.read(request, look)
    return await site.draw(request, "tasks", shown, status, typed=typed, refusal=refusal)


class TaskForm(PlacedForm):
    """The decision of a person about a task."""

    do: str = ""
    name: str = ""
    why: str = ""
    task: Number = 0
    back: str = ""


async def decide_task(site: WorkingSite, request: Request) -> Response:
    """Accept, reject or cancel a task for a person, and show the tasks."""
    project = await site.project(request)
    if request.method == "POST":
        services = site.services
        form = await read_form(request, services.visitors, TaskForm)
        if form.do not in _DECISIONS:
            raise InvalidArgument(
                "this action does not exist: a task can only be accepted, rejected or cancelled",
                value=form.do[:40],
                remedy="use a button on the page",
            )
        decision, outcome = _DECISIONS[form.do]
        try:
            await services.runs.decide_task(project.slug, form.task, form.name, answer=decision, why=form.why)
        except (InvalidArgument, TaskNotReady) as error:
            return await tasks(site, request, form, error)
        told = (
            form.home(done=outcome)
            if form.back == "home"
            else links.page(project.slug, "tasks", done=outcome)
        )
        answer = site.done(request, told)
        remember_name(request, answer, form.name.strip())
        return answer
    return see(links.page(project.slug, "tasks"))
