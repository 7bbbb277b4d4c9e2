"""The address for notifications in browsers, which a page and its service worker call."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, PostroomError
from postroom.contracts.quoting import sentence
from postroom.services.statuses import status_of
from postroom.web.forms import read_form
from postroom.web.serving import read_cookies, remember_name, remembered_name
from postroom.web.site import WorkingSite


class PushForm(msgspec.Struct):
    """A change of a browser's notifications, or the answer to a question in a notification."""

    do: str = ""
    by: str = ""
    subscription: str = ""
    endpoint: str = ""
    p256dh: str = ""
    auth: str = ""
    project: str = ""
    run: str = ""
    number: str = ""
    where: str = ""
    """The subscription that showed the notification, or "" if a page sent the form."""


async def push(site: WorkingSite, request: Request) -> Response:
    """Return the state of a browser's notifications, or change the state. Responses and errors are JSON."""
    service, cookies = site.services.push, read_cookies(request)
    answer: object = {}
    by = ""  # the name that the browser must remember
    try:
        if request.method == "GET":
            subscription, me = request.query_params.get("subscription", ""), remembered_name(request)
            answer = await service.state(cookies, subscription, me)
        else:
            form = await read_form(request, site.services.visitors, PushForm)
            match form.do:
                case "on":
                    by = form.by.strip()
                    made = await service.subscribe(cookies, form.endpoint, form.p256dh, form.auth, by)
                    answer = {"subscription": made}
                case "page":
                    by = form.by.strip()
                case "off":
                    await service.unsubscribe(form.subscription)
                case "test":
                    await service.test(form.subscription)
                case "yes" | "no":
                    answer = await service.answer(
                        form.project, form.run, form.number, form.do, by=form.by.strip(), where=form.where
                    )
                case _:
                    raise InvalidArgument(
                        "the page sent an unknown action", value=form.do[:40], remedy="reload the page"
                    )
    except PostroomError as error:
        error_json = {"message": sentence(error.message), "remedy": sentence(error.remedy)}
        return _json(error_json, status_of(error))
    remember_name(request, page := _json(answer), by)
    return page


def _json(told: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(told), status, {"Cache-Control": "no-store"}, "application/json")
