"""The page of a project's schedules, on which a person pauses, resumes and sends them."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import Project
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.forms import read_form
from postroom.web.serving import number
from postroom.web.site import WorkingSite


class ScheduleForm(msgspec.Struct):
    """A person's action on a schedule: pause, resume or send now."""

    do: str = ""
    name: str = ""


async def schedules(site: WorkingSite, request: Request) -> Response:
    """Show the schedules of a project, or accept an action on a schedule."""
    service = site.services.schedules
    if request.method == "POST":
        slug, sent = (await site.project(request)).slug, None
        form = await read_form(request, site.services.visitors, ScheduleForm)
        await service.named(form.name, slug)
        match form.do:
            case "pause":
                await service.pause(form.name)
            case "resume":
                await service.resume(form.name)
            case "trigger":
                sent = await service.trigger(form.name)
            case other:
                raise InvalidArgument(
                    "this action does not exist: a schedule can only be paused, resumed or sent now",
                    value=other[:40],
                    remedy="use a button on the page",
                )
        return site.done(request, links.page(slug, "schedules", done=form.name, sent=sent))

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        return {
            "schedules": service.of_project(tx, project.slug),
            "done": request.query_params.get("done", ""),
            "sent": number(request, "sent"),
        }

    return await site.draw(request, "schedules", await site.read(request, look))
