"""The page of a message, with its text and its files. A person can mark the message as read there."""

import asyncio
import re
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, StoreCorrupt, UnknownMessage
from postroom.contracts.mail import Attachment, Project, is_content_of
from postroom.contracts.work import Waiting
from postroom.mail import conversation
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction
from postroom.web import files, links
from postroom.web.forms import read_form
from postroom.web.reading import ShownMessage, how_seen, known_project, read_bodies, read_slugs
from postroom.web.reading import message as message_of
from postroom.web.serving import NUMBER, number, see
from postroom.web.site import Site, WorkingSite

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


async def message(site: Site, request: Request) -> Response:
    """Show one message."""
    message_id, services, is_sent = _message_number(request), site.services, number(request, "sent") == 1

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        card = message_of(tx.mail, project, message_id)
        held: list[Waiting] = []
        if services is not None:
            readers = {
                (recipient.project_slug, recipient.name)
                for recipient in card.recipients
                if recipient.read_at is None
            }
            held = [
                waiting
                for slug in sorted({slug for slug, _ in readers})
                for waiting in services.runs.waiting(tx, slug)
                if waiting.message == message_id and (waiting.project, waiting.agent) in readers
            ]
        # The thread of a message from another project is shown in this project if a person wrote the message,
        # or if an agent of this project has also written in the thread. Otherwise, the sender's shows it.
        thread_slug, shown_message = project.slug, card.message
        if shown_message.project_id != project.id:
            talk = conversation.Conversation(tx.mail, tx.mail, project, shown_message.thread_id)
            if [one.id for one in talk.messages(limit=1, after=message_id - 1)] != [message_id]:
                thread_slug = read_slugs(tx.mail, [shown_message.project_id])[shown_message.project_id]
        return {
            "shown": card,
            "thread_slug": thread_slug,
            "seen": how_seen(tx.mail, card) if is_sent else (),
            "held": held,
            "texts": read_bodies(tx.mail, project, [card]),
        }

    shown = await site.read(request, look)
    bodies = await site.markdown.render(*shown.values["texts"])
    return await site.draw(request, "message", shown, bodies=bodies)


def _message_number(request: Request) -> int:
    given_message_id = request.path_params["message_id"]
    if not NUMBER.fullmatch(given_message_id):
        raise UnknownMessage(
            f"{given_message_id[:40]!r} is not a message number", value=given_message_id[:40]
        )
    return int(given_message_id)


async def _found(site: Site, request: Request) -> ShownMessage:
    slug, message_id = request.path_params["slug"], _message_number(request)
    return await site.store.read(lambda tx: message_of(tx.mail, known_project(tx.mail, slug), message_id))


async def source(site: Site, request: Request) -> Response:
    """Return the original text of a message as a download."""
    message = (await _found(site, request)).message
    if message.recalled_at is not None:
        raise UnknownMessage("this message was recalled; its text was deleted", remedy="")
    text = message.body_md.encode("utf-8", "replace")
    return files.download(text, f"message-{message.id}.md", etag=f"message-{message.id}")


class MarkForm(msgspec.Struct):
    """The mark of a person on a message, and the page that contains the form: a thread, or `home`."""

    do: str = ""
    name: str = ""
    thread: str = ""
    back: str = ""


async def mark(site: WorkingSite, request: Request) -> Response:
    """Record that a person has read or acknowledged a message, and show the message again."""
    slug, message_id = request.path_params["slug"], (await _found(site, request)).message.id
    if request.method == "POST":
        form = await read_form(request, site.services.visitors, MarkForm)
        if form.do not in ("read", "ack"):
            raise InvalidArgument(
                "this action does not exist: a message can only be marked as read or acknowledged",
                value=form.do[:40],
                remedy="use a button on the page",
            )
        await site.services.messages.mark(form.name, message_id, acknowledge=form.do == "ack")
        if form.back == "home":
            return see("/")
        if form.thread:
            return see(f"{links.page(slug, 't', form.thread, after=message_id - 1)}#m-{message_id}")
    return see(links.page(slug, "m", message_id))


async def attachment(site: Site, request: Request) -> Response:
    """Return an attachment as a download with the file name from the message."""
    sha256, matching, content = await _file(site, request)
    if content is None:
        return files.unchanged(etag=sha256)
    wanted, names = request.query_params.get("name", ""), [attachment.name for attachment in matching]
    return files.download(content, wanted if wanted in names else names[0], etag=sha256)


async def preview(site: Site, request: Request) -> Response:
    """Return an attached image that a page can display."""
    sha256, _, content = await _file(site, request)
    if content is None:
        return files.unchanged(etag=sha256)
    media_type = files.picture_type(content)
    if media_type is None:
        raise UnknownMessage("this attachment cannot be shown as an image", value=sha256)
    return files.picture(content, media_type, etag=sha256)


async def _file(site: Site, request: Request) -> tuple[str, list[Attachment], bytes | None]:
    """Return the requested hash, the attachments with this hash, and the content of the attachments."""
    sha256, message_id = request.path_params["sha256"], number(request, "message")
    if not _SHA256.fullmatch(sha256) or message_id is None:
        raise UnknownMessage(
            "the address does not name a message with this file", remedy="open the file from its message"
        )
    is_known = request.headers.get("if-none-match") == f'"{sha256}"'

    def look(tx: Transaction) -> tuple[list[Attachment], bytes | None]:
        matching = attached(tx.mail, message_id, sha256)
        return matching, None if is_known else tx.mail.blob(sha256)

    matching, content = await site.store.read(look)
    if content is None and not is_known:
        raise UnknownMessage("the content of this attachment is missing from the store", value=sha256)
    if content is not None and not await asyncio.to_thread(is_content_of, sha256, content):
        raise StoreCorrupt(
            "this attachment's content was changed on the disk",
            value=sha256,
            remedy="run `postroom doctor` on the server",
        )
    return sha256, matching, content


def attached(reads: MailReads, message_id: int, sha256: str) -> list[Attachment]:
    """Return the attachments of a message whose content or preview has this SHA-256.

    Raises:
        UnknownMessage: No attachment has this SHA-256, or the message has been recalled.
    """
    message = reads.message(message_id)
    stored = reads.attachments([message_id]).get(message_id, [])
    matching = [
        attachment for attachment in stored if sha256 in (attachment.sha256, attachment.preview_sha256)
    ]
    if message is None or message.recalled_at is not None or not matching:
        raise UnknownMessage(
            f"message {message_id} does not have this file",
            value=message_id,
            remedy="open the file from its message",
        )
    return matching
