"""What the pages on which people work have in common: the store, the services, and how a page is made."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from postroom.contracts.clock import Clock
from postroom.contracts.mail import Project
from postroom.contracts.store import MailStore
from postroom.services.messages import MessageService
from postroom.services.questions import QuestionService
from postroom.services.work import WorkService
from postroom.web import reading
from postroom.web.forms import Visitors, remembered_name, token_for
from postroom.web.serving import html


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServices:
    """Everything that the pages need so that people can work on them."""

    visitors: Visitors
    questions: QuestionService
    messages: MessageService
    runs: WorkService


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What the endpoints work with."""

    mail: MailStore
    clock: Clock
    services: PageServices

    async def project(self, request: Request) -> Project:
        """Return the project of an address.

        Raises:
            UnknownProject: there is none.
        """
        slug = request.path_params["slug"]
        return await self.mail.read(lambda reads: reading.known_project(reads, slug))

    def html(self, request: Request, template: str, status: int = 200, **values: object) -> Response:
        """Return a page with forms for the session that asks for it."""
        shared = {
            "now": self.clock.now(),
            "works": True,
            "form_token": token_for(request, self.services.visitors),
            "me": remembered_name(request),
        }
        return html(template, {**shared, **values}, status)


def see(address: str) -> Response:
    """Send a browser to a page after its form was taken, so that to load that again sends nothing."""
    return RedirectResponse(address, status_code=303)
