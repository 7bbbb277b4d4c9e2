"""The form by which a person writes to agents of a project or answers a message, as the person they are.

Where nobody is named yet, the page asks for a name first; `postroom people` names more.

What cannot be sent comes back as it was typed, with the reason beside it. The form has a key: sent twice by a
double click, it is one message.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, get_args

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.choices import Importance
from postroom.contracts.errors import (
    IdempotencyConflict,
    InvalidArgument,
    InvalidRecipients,
    PostroomError,
    StoreError,
    TooLarge,
    UnknownMessage,
    UnknownReservation,
)
from postroom.contracts.mail import Agent, Message, Project, Recipient
from postroom.services.login_codes import typed_in
from postroom.services.people import Draft, DraftFile
from postroom.stores.mail.access import MailReads
from postroom.web import links, reading
from postroom.web.forms import Form, PageContext, read_form, remember_name, remembered_name, see
from postroom.web.serving import NUMBER, Endpoint, number, status_of

OFFERED = 200
"""Agents that the form names; others are written into its second field."""
FORM_ROOM = 64 * 1024
"""Bytes of a form beside the text of its message."""
ENDED_FOR: Final = "somebody else holds the same file; ended on the pages"
_PERCENT = 3
"""Bytes that a form may need for one of the text's."""
_IMPORTANCE: Final[dict[str, Importance]] = {one: one for one in get_args(Importance)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What stands in the form."""

    name: str = ""
    to: tuple[str, ...] = ()
    others: str = ""
    subject: str = ""
    body: str = ""
    importance: str = "normal"
    ack: bool = False
    to_all: bool = False
    key: str = ""
    files: tuple[str, ...] = ()
    """The names of the files that came with it."""


class MessagePages:
    """Shows the form and sends what comes with it."""

    def __init__(self, working: PageContext) -> None:
        self._with = working

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints by their addresses."""
        return (
            ("/p/{slug}/write", self.write),
            ("/p/{slug}/m/{message_id}/mark", self.mark),
            ("/p/{slug}/reservations/decide", self.decide),
        )

    async def write(self, request: Request) -> Response:
        """Show the form, with an agent chosen or a message to be answered; send what it holds."""
        project = await self._with.project(request)
        if request.method == "POST":
            return await self._sent(request, project)
        chosen = request.query_params.get("to", "")[:400]
        typed = Typed(
            name=remembered_name(request), to=(chosen,) if chosen else (), key=secrets.token_urlsafe(18)
        )
        answers = number(request, "reply")
        if not await self._with.services.messages.people():
            return await self._who(request, project, typed, answers)
        return await self._form(request, project, typed, answers)

    async def mark(self, request: Request) -> Response:
        """Note that a person has read a message, or acknowledge it, and show it again."""
        project = await self._with.project(request)
        given = request.path_params["message_id"]
        if not NUMBER.fullmatch(given):
            raise UnknownMessage(f"{given[:40]!r} is no message's number", value=given[:40])
        _, shown = await self._with.mail.read(lambda reads: reading.message(reads, project.slug, int(given)))
        if request.method == "POST":
            room = self._with.services
            form = await read_form(request, room.visitors)
            if form.text("do") not in ("read", "ack"):
                raise InvalidArgument("a message is read or acknowledged", value=form.text("do")[:40])
            await room.messages.mark(
                form.text("name"), shown.message.id, acknowledge=form.text("do") == "ack"
            )
            if thread_id := form.text("thread"):
                behind = shown.message.id - 1
                return see(f"{links.thread(project.slug, thread_id, after=behind)}#m-{shown.message.id}")
        return see(links.message(project.slug, shown.message.id))

    async def decide(self, request: Request) -> Response:
        """End a reservation for a person, or let those that overlap be shared; show the control room."""
        project = await self._with.project(request)
        if request.method != "POST":
            return see(links.reservations(project.slug))
        room = self._with.services
        form = await read_form(request, room.visitors)
        chosen = [_reservation(one) for one in form.all("reservation")]
        match form.text("do"):
            case "end" if len(chosen) == 1:
                name = form.text("name")
                await room.messages.end_reservation(
                    project.slug, name, chosen[0], reason=form.text("why").strip() or ENDED_FOR
                )
            case "share" if chosen:
                await room.messages.share_reservations(project.slug, chosen)
            case other:
                raise InvalidArgument(
                    "a reservation is ended, or those that overlap are shared",
                    value=other[:40],
                    remedy="press a button",
                )
        return see(links.project(project.slug, done=form.text("do")))

    async def _sent(self, request: Request, project: Project) -> Response:
        room = self._with.services
        limit = _PERCENT * room.messages.limits.body_bytes + FORM_ROOM
        limits = room.messages.limits
        form = await read_form(request, room.visitors, limit=limit, files_limit=limits.files_bytes)
        request.state.typed = typed_in(form.fields)  # a page of a failure shows it
        typed, answers = _typed(form), _answered(form)
        if form.text("do") == "name":
            return await self._named(request, project, typed, answers)
        try:
            if form.is_cut:
                raise TooLarge(
                    f"the files have over {limits.files_bytes} bytes together",
                    value=limits.files_bytes,
                    remedy="send them with several messages",
                )
            posted = await room.messages.send(project.slug, _draft(typed, answers, form.files))
        except StoreError:
            raise
        except IdempotencyConflict:
            renewed = replace(typed, key=secrets.token_urlsafe(18))
            return await self._form(request, project, renewed, answers, _sent_before())
        except PostroomError as refusal:
            return await self._form(request, project, typed, answers, refusal)
        thread_id = form.text("thread")
        answer = see(
            f"{links.thread(posted.slug, thread_id, newest=True, sent=posted.message)}#m-{posted.message}"
            if thread_id and posted.slug == project.slug
            else links.message(posted.slug, posted.message, sent=True)
        )
        remember_name(request, answer, typed.name.strip())
        return answer

    async def _named(self, request: Request, project: Project, typed: Typed, answers: int | None) -> Response:
        """Name the person, then give them the form that they came for."""
        try:
            name = await self._with.services.messages.name(typed.name.strip())
        except StoreError:
            raise
        except PostroomError as refusal:
            return await self._who(request, project, typed, answers, refusal)
        answer = see(links.write(project.slug, to=next(iter(typed.to), None), reply=answers))
        remember_name(request, answer, name)
        return answer

    async def _who(
        self,
        request: Request,
        project: Project,
        typed: Typed,
        answers: int | None,
        refusal: PostroomError | None = None,
    ) -> Response:
        status = HTTPStatus.OK if refusal is None else status_of(refusal)
        return await self._with.html(
            request,
            "who",
            status,
            project=project,
            typed=typed,
            answers=answers,
            refusal=refusal,
            reasons=[],
        )

    async def _form(
        self,
        request: Request,
        project: Project,
        typed: Typed,
        answers: int | None,
        refusal: PostroomError | None = None,
    ) -> Response:
        agents, original, readers = await self._with.mail.read(lambda reads: _around(reads, project, answers))
        return await self._with.html(
            request,
            "write",
            status_of(refusal) if refusal is not None else HTTPStatus.OK,
            project=project,
            typed=typed,
            people=await self._with.services.messages.people(),
            agents=agents[:OFFERED],
            has_more_agents=len(agents) > OFFERED,
            unlisted=[name for name in typed.to if name not in {one.name for one in agents[:OFFERED]}],
            original=original,
            readers=readers,
            limits=self._with.services.messages.limits,
            levels=list(_IMPORTANCE),
            refusal=refusal,
            reasons=_reasons(refusal),
        )


def _sent_before() -> PostroomError:
    return IdempotencyConflict(
        "this form was sent before with other words, and that message stands",
        remedy="press Send once more to send these words as a message of its own",
    )


def _reservation(given: str) -> int:
    if not NUMBER.fullmatch(given):
        raise UnknownReservation(f"{given[:40]!r} is no reservation's number", value=given[:40])
    return int(given)


def _typed(form: Form) -> Typed:
    return Typed(
        name=form.text("name"),
        to=tuple(dict.fromkeys(form.all("to"))),
        others=form.text("others"),
        subject=form.text("subject"),
        body=form.text("body"),
        importance=form.text("importance") or "normal",
        ack=form.text("ack") == "1",
        to_all=form.text("to_all") == "1",
        key=form.text("key"),
        files=tuple(one.name for one in form.files),
    )


def _answered(form: Form) -> int | None:
    given = form.text("reply")
    if given and not NUMBER.fullmatch(given):
        raise UnknownMessage(f"{given[:40]!r} is no message's number", value=given[:40])
    return int(given) if given else None


def _draft(typed: Typed, answers: int | None, files: tuple[DraftFile, ...]) -> Draft:
    others = (one.strip() for one in typed.others.replace("\n", ",").split(","))
    importance = _IMPORTANCE.get(typed.importance)
    if importance is None:
        raise InvalidArgument(
            f"no message is of importance {typed.importance[:40]!r}", value=typed.importance[:40]
        )
    return Draft(
        name=typed.name,
        body=typed.body,
        key=typed.key,
        to=tuple(dict.fromkeys((*typed.to, *(one for one in others if one)))),
        subject=typed.subject.strip(),
        importance=importance,
        ack_required=typed.ack,
        answers=answers,
        to_all=typed.to_all,
        files=files,
    )


def _around(
    reads: MailReads, project: Project, answers: int | None
) -> tuple[Sequence[Agent], Message | None, Sequence[Recipient]]:
    """Return whom one may write to and one more, and for an answer the message with its open readers."""
    agents = reads.agents(project.id, include_retired=False, limit=OFFERED + 1)
    if answers is None:
        return agents, None, ()
    _, shown = reading.message(reads, project.slug, answers)
    return agents, shown.message, shown.recipients


def _reasons(refusal: PostroomError | None) -> list[tuple[str, str]]:
    """Return why each recipient is refused, where several are."""
    told = refusal.details.get("recipients") if isinstance(refusal, InvalidRecipients) else None
    if not isinstance(told, list):
        return []
    return [(str(one.get("message", "")), str(one.get("remedy", ""))) for one in told]
