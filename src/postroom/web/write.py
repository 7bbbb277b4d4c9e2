"""The form with which a person writes to the agents of a project, or answers a message.

If there is no person yet, the page first asks for a name. `postroom people` adds more people.

If a message is rejected, the form shows the text as it was typed, with the reason. The form contains a key,
so that a double click sends only one message.
"""

import re
import secrets
from functools import partial
from http import HTTPStatus
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.choices import Importance
from postroom.contracts.errors import (
    AgentRetired,
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    InvalidRecipients,
    PostroomError,
    StoreError,
    TooLarge,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
)
from postroom.contracts.mail import Project
from postroom.log import get_logger
from postroom.services.people import Draft, DraftFile
from postroom.services.statuses import status_of
from postroom.stores.store import Transaction
from postroom.web import links, reading
from postroom.web.forms import Number, read_form
from postroom.web.runs import known_run
from postroom.web.serving import number, remedy_at_pages, remember_name, remembered_name, see
from postroom.web.site import WorkingSite

_LOG = get_logger(__name__)
OFFERED = 200
"""Maximum number of agents that the form lists. Other names can be typed into the second field."""
FORM_ROOM = 64 * 1024
"""Maximum number of bytes of a form without the text of the message."""
_PERCENT = 3
"""Maximum number of form bytes for each byte of text."""
_REMEDIES: Final = {
    AgentRetired.code: "choose another agent",
    InvalidRecipients.code: "choose at least one agent",
    UnknownAgent.code: "choose an agent from the list, or correct the name under Others",
    UnknownMessage.code: "open the message that you want to answer, and press Reply",
    UnknownProject.code: "correct the project's name after the @",
}
_LABELS: Final = {"body_md": "the message", "subject": "the subject", "to": "the list of recipients"}
"""The label in the form for each argument of the tool that sends messages."""
_FIELD: Final = re.compile(r"`(\w+)[^`]*`")
_IMPORTANCE: Final[dict[str, Importance]] = {level: level for level in get_args(Importance)}


class MessageForm(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a submitted form."""

    name: str = ""
    to: list[str] = []
    others: str = ""
    subject: str = ""
    body: str = ""
    importance: str = "normal"
    ack: bool = False
    to_all: bool = False
    key: str = ""
    reply: Number | None = None
    """The message that this message answers."""
    again: str = ""
    """The dead letter that this message retries, and that is discarded when the message has been sent."""
    thread: str = ""
    """The thread on whose page the person wrote the answer."""
    do: str = ""
    files: tuple[DraftFile, ...] = ()
    is_cut: bool = False
    """Whether the files exceeded their limit, so that the files and all later fields are missing."""


async def write(site: WorkingSite, request: Request) -> Response:
    """Show the form for a new message or an answer, or send the message of a submitted form."""
    if request.method == "POST":
        return await _send(site, request)
    chosen = request.query_params.get("to", "")[:400]
    typed = MessageForm(
        name=remembered_name(request),
        to=[chosen] if chosen else [],
        key=secrets.token_urlsafe(18),
        reply=number(request, "reply"),
    )
    if again := request.query_params.get("again", "")[:400]:
        typed = await site.store.read(partial(_retry_form, site, request.path_params["slug"], again, typed))
    return await _form(site, request, typed)


def _retry_form(
    site: WorkingSite, slug: str, run_id: str, typed: MessageForm, tx: Transaction
) -> MessageForm:
    """Return a form that repeats the message of a dead letter, with space for a note.

    Raises:
        UnknownRun: The project has no such run.
    """
    project = reading.known_project(tx.mail, slug)
    work = known_run(site.services, tx, project, run_id)
    messages = reading.subjects_of(tx.mail, project, [work])
    first = messages.get(work.messages[0]) if work.messages else None
    if first is None or first.recalled_at is not None:
        return typed
    quoted = "\n".join(f"> {line}".rstrip() for line in first.body_md.splitlines())
    body = f"\n\nThis repeats message #{first.id} of {first.sender_name}, whose run failed:\n\n{quoted}"
    return msgspec.structs.replace(typed, subject=first.subject, body=body, again=work.run_id)


async def _send(site: WorkingSite, request: Request) -> Response:
    project, room = await site.project(request), site.services
    limits = room.messages.limits
    limit = _PERCENT * limits.body_bytes + FORM_ROOM
    typed = await read_form(request, room.visitors, MessageForm, limit=limit, files_limit=limits.files_bytes)
    try:
        if typed.do == "name":
            name = await room.messages.name(typed.name.strip())
            to = next(iter(typed.to), None)
            answer = see(links.page(project.slug, "write", to=to, reply=typed.reply))
            remember_name(request, answer, name)
            return answer
        if typed.is_cut:
            raise TooLarge(
                f"the files together exceed {limits.files_bytes} bytes",
                value=limits.files_bytes,
                remedy="send the files in several messages",
            )
        posted = await room.messages.send(project.slug, _draft(typed))
        if typed.again:
            # Discard a dead letter whose message was sent again, if it still exists.
            await site.store.read(lambda tx: known_run(site.services, tx, project, typed.again))
            try:
                await site.services.runs.discard(typed.again)
            except IllegalTransition as error:
                _LOG.info("write.retried_before", run_id=typed.again, reason=error.message)
    except StoreError:
        raise
    except IdempotencyConflict:
        renewed = msgspec.structs.replace(typed, key=secrets.token_urlsafe(18))
        sent_before = IdempotencyConflict(
            "this form was already sent with other text, and that message was sent",
            remedy="press Send again to send this text as a new message",
        )
        return await _form(site, request, renewed, sent_before)
    except PostroomError as refusal:
        return await _form(site, request, typed, refusal)
    address = links.page(posted.slug, "m", posted.message, sent=True)
    if typed.thread and posted.slug == project.slug:
        address = links.page(posted.slug, "t", typed.thread, newest=True, sent=posted.message)
        address += f"#m-{posted.message}"
    answer = site.done(request, address)
    remember_name(request, answer, typed.name.strip())
    return answer


async def _form(
    site: WorkingSite, request: Request, typed: MessageForm, refusal: PostroomError | None = None
) -> Response:
    """Return the form for a message, or the form that asks for a person's name."""
    messages, is_name, answers = site.services.messages, typed.do == "name", typed.reply

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        agents = tx.mail.agents(project.id, include_retired=False, limit=OFFERED + 1)
        listed = {agent.name for agent in agents[:OFFERED]}
        original = None if answers is None or is_name else reading.message(tx.mail, project, answers)
        # List the reason for each rejected recipient, if there are several.
        problems = refusal.details.get("recipients") if isinstance(refusal, InvalidRecipients) else None
        if not isinstance(problems, list):
            reasons = []
        else:
            reasons = [
                (problem["message"], remedy_at_pages(problem["remedy"], problem["code"], _REMEDIES))
                for problem in problems
            ]
        told = None  # the error and its remedy in the terms of the form
        if refusal is not None:
            message = _FIELD.sub(lambda met: _LABELS.get(met[1], met[0]), refusal.message)
            told = {"message": message, "remedy": remedy_at_pages(refusal.remedy, refusal.code, _REMEDIES)}
        return {
            "typed": typed,
            "answers": answers,
            "people": messages.people(tx.mail),
            "agents": agents[:OFFERED],
            "has_more_agents": len(agents) > OFFERED,
            "unlisted": [name for name in dict.fromkeys(typed.to) if name not in listed],
            "original": None if original is None else original.message,
            "readers": () if original is None else original.recipients,
            "limits": messages.limits,
            "levels": list(_IMPORTANCE),
            "refusal": told,
            "reasons": reasons,
        }

    shown = await site.read(request, look)
    asks_name = is_name or (not shown.values["people"] and refusal is None)
    status = HTTPStatus.OK if refusal is None else status_of(refusal)
    return await site.draw(request, "who" if asks_name else "write", shown, status)


def _draft(typed: MessageForm) -> Draft:
    others = (name.strip() for name in typed.others.replace("\n", ",").split(","))
    importance = _IMPORTANCE.get(typed.importance)
    if importance is None:
        raise InvalidArgument(
            f"{typed.importance[:40]!r} is not an importance",
            value=typed.importance[:40],
            remedy="choose one from the list",
        )
    return Draft(
        name=typed.name,
        body=typed.body,
        key=typed.key,
        to=tuple(dict.fromkeys((*typed.to, *(name for name in others if name)))),
        subject=typed.subject.strip(),
        importance=importance,
        ack_required=typed.ack,
        answers=typed.reply,
        to_all=typed.to_all,
        files=typed.files,
    )
