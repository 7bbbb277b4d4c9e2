"""Operations on received messages: read the inbox, read and mark messages, and check their delivery."""

from collections.abc import Sequence
from typing import TypedDict

from postroom.contracts.chat import CHAT_KIND
from postroom.contracts.clock import TIMES, iso, past_of
from postroom.contracts.errors import (
    CursorAhead,
    CursorExpired,
    InvalidArgument,
    StoreCorrupt,
    UnknownMessage,
)
from postroom.contracts.mail import (
    URGENT,
    Agent,
    Attachment,
    InboxEntry,
    Message,
    Project,
    is_content_of,
)
from postroom.contracts.records import replace
from postroom.mail.commands import (
    AcknowledgeMessage,
    DeliveryStatus,
    FetchInbox,
    FetchInboxEvents,
    GetAttachment,
    GetMessage,
    MarkMessageRead,
)
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.identity import acting, acting_active, visible_message
from postroom.mail.outgoing import wake_key
from postroom.mail.projects import PEOPLE_SLUG, format_address
from postroom.mail.views import (
    NOT_TAKEN,
    AttachmentPart,
    InboxView,
    MessageView,
    attachment_part,
    attachment_resource,
    delivery_state,
    fit,
    fit_bodies,
    inbox_view,
    maybe_iso,
    message_view,
    visible_hidden,
)
from postroom.mail.waking import open_questions

_MAX_ON_THEIR_WAY = 500
"""Maximum number of the oldest messages waiting for chats that are searched for a message."""


class InboxEvents(TypedDict):
    """A page of an inbox in order of arrival.

    Pass `next` as `after` of the next call.
    """

    events: list[InboxView]
    next: int
    newest: int
    oldest: int


class MarkView(TypedDict):
    """Whether and when a message was marked as read."""

    message_id: int
    read: bool
    read_at: str | None


class Acknowledgement(MarkView):
    """Whether and when a message was read and acknowledged."""

    acknowledged: bool
    acknowledged_at: str | None


class AckView(TypedDict, total=False):
    """The acknowledgement of a message.

    For a call with several messages, `messages` lists all acknowledgements in the given order.
    """

    message_id: int
    read: bool
    read_at: str | None
    acknowledged: bool
    acknowledged_at: str | None
    messages: list[Acknowledgement]


class RecipientStatus(TypedDict):
    """The delivery state of a message for one recipient."""

    name: str
    kind: str
    state: str
    announced_at: str | None
    announced_by: str | None
    run_id: str | None
    delivered_at: str | None
    failure: str | None
    waits: str | None
    """The reason why the message waits for its recipient's next run, if a question holds that run back."""
    read_at: str | None
    acked_at: str | None


class DeliveryView(TypedDict):
    """The delivery state of a message for each recipient."""

    message_id: int
    subject: str
    recalled_at: str | None
    recipients: list[RecipientStatus]


def inbox_views(
    context: ReadContext, project: Project, reader: Agent, entries: Sequence[InboxEntry], *, bodies: bool
) -> list[InboxView]:
    """Return inbox entries as a recipient sees them, in order, up to the size limit of a result."""
    messages = [entry.message for entry in entries]
    views = shown_messages(context, project, messages, viewer=reader, bodies=bodies)
    return fit(list(map(inbox_view, entries, views)))


def shown_messages(
    context: ReadContext,
    project: Project,
    messages: Sequence[Message],
    *,
    viewer: Agent | None = None,
    bodies: bool = True,
) -> list[MessageView]:
    """Return messages with recipients and attachments, as agents of a project see the messages."""
    ids = [message.id for message in messages]
    recipients = context.tx.recipients(ids) if ids else {}
    attachments = context.tx.attachments(ids) if ids else {}
    slugs = {project.id: project.slug}
    for message in messages:
        if message.project_id not in slugs:
            home = context.tx.project_by_id(message.project_id)
            slugs[message.project_id] = home.slug if home else "?"
    views = [
        message_view(
            message,
            recipients[message.id],
            attachments[message.id],
            viewer=viewer,
            home_slug=project.slug,
            sender_slug=slugs[message.project_id],
            bodies=bodies,
        )
        for message in messages
    ]
    if viewer is not None:
        for message, view in zip(messages, views, strict=True):
            for shown, attachment in zip(view["attachments"], attachments[message.id], strict=True):
                shown["resource"] = attachment_resource(project.slug, viewer, message.id, attachment)
    return views


def fetch_inbox(context: ReadContext, asked: FetchInbox) -> list[InboxView]:
    """Return messages in an agent's inbox without marking the messages as read.

    Raises:
        InvalidArgument: Both `after` and `before` were given.
        UnknownMessage: The agent has not received the message with the given id.
        CursorAhead: `after` is greater than the number of the newest entry.
    """
    since = None
    if asked.since is not None:
        try:
            since = past_of(asked.since, context.now)
        except (ValueError, OverflowError) as error:
            raise InvalidArgument(
                f"{asked.since!r} is not a past time", value=asked.since, remedy=f"use a time such as {TIMES}"
            ) from error
    project, reader = acting(context, asked.project_key, asked.agent_name)
    if asked.message_id is not None:
        message, recipients = visible_message(context, project, reader, asked.message_id)
        received = next((recipient for recipient in recipients if recipient.agent_id == reader.id), None)
        if received is None:
            raise _not_received_error(reader, message.id)
        views = shown_messages(context, project, [message], viewer=reader)
        fit_bodies(views, offset=asked.offset)
        return [inbox_view(received, views[0])]
    if asked.after is not None and asked.before is not None:
        raise InvalidArgument(
            "fetch_inbox accepts either after or before",
            value=asked.before,
            remedy="use `after` for newer messages, or `before` for older messages",
        )
    _refuse_cursor_ahead(reader, asked.after or 0)
    entries = context.tx.inbox(
        reader.id,
        limit=asked.limit,
        after=asked.after,
        before=asked.before,
        since=since,
        unread_only=asked.unread_only,
        importance=URGENT if asked.urgent_only else (),
    )
    return inbox_views(context, project, reader, entries, bodies=asked.include_bodies)


def fetch_inbox_events(context: ReadContext, asked: FetchInboxEvents) -> InboxEvents:
    """Return the messages after a cursor in order of arrival, including recalled messages.

    Raises:
        CursorExpired: Entries after the cursor were deleted.
        CursorAhead: The cursor is greater than the number of the newest entry.
    """
    project, reader = acting(context, asked.project_key, asked.agent_name)
    bounds = {"oldest": reader.inbox_floor, "newest": reader.inbox_seq}
    if asked.after < reader.inbox_floor:
        raise CursorExpired(
            f"entries up to number {reader.inbox_floor} were deleted",
            value=asked.after,
            remedy=f"continue after {reader.inbox_floor}; fetch_inbox returns older unread messages",
            details=bounds,
        )
    _refuse_cursor_ahead(reader, asked.after)
    entries = context.tx.inbox_events(reader.id, after=asked.after, limit=asked.limit)
    views = inbox_views(context, project, reader, entries, bodies=False)
    return {
        "events": views,
        "next": views[-1]["seq"] if views else asked.after,
        "newest": reader.inbox_seq,
        "oldest": reader.inbox_floor,
    }


def _refuse_cursor_ahead(reader: Agent, after: int) -> None:
    if after > reader.inbox_seq:
        raise CursorAhead(
            f"the newest entry has the number {reader.inbox_seq}",
            value=after,
            remedy=f"continue after {reader.inbox_seq}: the database was restored or replaced",
            details={"oldest": reader.inbox_floor, "newest": reader.inbox_seq},
        )


def get_message(context: ReadContext, asked: GetMessage) -> MessageView:
    """Return a message.

    The body starts at `offset`, and is cut to the size limit of a result.
    """
    project, agent = acting(context, asked.project_key, asked.agent_name)
    message, _ = visible_message(context, project, agent, asked.message_id)
    views = shown_messages(context, project, [message], viewer=agent)
    fit_bodies(views, offset=asked.offset)
    return views[0]


def get_attachment(context: ReadContext, asked: GetAttachment) -> AttachmentPart:
    """Return a part of an attachment, from `offset` up to the size limit of a result.

    Raises:
        UnknownMessage: The agent cannot see a message with this id, or the message has no such file.
    """
    attachment, content = attached_file(context, asked)
    return attachment_part(attachment, content, offset=asked.offset)


def attached_file(context: ReadContext, asked: GetAttachment) -> tuple[Attachment, bytes]:
    """Return an attachment with the content of the file or of the preview.

    Raises:
        InvalidArgument: Several files of the message match.
        UnknownMessage: The agent cannot see a message with this id, or the message has no such file.
        StoreCorrupt: The store has lost the bytes of the file.
    """
    project, agent = acting(context, asked.project_key, asked.agent_name)
    message, _ = visible_message(context, project, agent, asked.message_id)
    attachment = _attachment(message.id, context.tx.attachments([message.id])[message.id], asked)
    sha256 = asked.sha256 or attachment.sha256
    content = context.tx.blob(sha256)
    if content is None or not is_content_of(sha256, content):
        state = "is missing from the store" if content is None else "changed on the disk"
        raise StoreCorrupt(
            f"the content of {attachment.name!r} {state}",
            value=sha256,
            remedy="run `postroom doctor` on the server",
        )
    if sha256 == attachment.preview_sha256:
        preview = f"{attachment.name}.preview.webp"
        attachment = replace(attachment, sha256=sha256, name=preview, media_type="image/webp")
    return attachment, content


def _attachment(message_id: int, attachments: Sequence[Attachment], asked: GetAttachment) -> Attachment:
    """Return the attachment with the requested digest or name, or the message's only attachment.

    Raises:
        InvalidArgument: Several attachments match.
        UnknownMessage: No attachment matches.
    """
    fitting = [
        attachment
        for attachment in attachments
        if asked.sha256 in (None, attachment.sha256, attachment.preview_sha256)
        and asked.name in (None, attachment.name)
    ]
    if fitting and (asked.sha256 or len({attachment.sha256 for attachment in fitting}) == 1):
        return fitting[0]
    value = asked.sha256 or asked.name
    if fitting:
        digests = "; ".join(f"{attachment.name}: {attachment.sha256}" for attachment in fitting[:10])
        raise InvalidArgument(
            f"{len(fitting)} files of message {message_id} match, but only one can be read at a time",
            value=value,
            remedy=f"pass `sha256`: {digests}",
        )
    known_value = ", ".join(f"{attachment.name!r}" for attachment in attachments[:10])
    raise UnknownMessage(
        f"message {message_id} has no file with this name or sha256"
        if attachments
        else f"message {message_id} has no files",
        value=value,
        remedy=f"pass the `name` of one of its files: {known_value}" if attachments else None,
    )


def mark_message_read(context: WriteContext, asked: MarkMessageRead) -> MarkView:
    """Mark a message as read by the recipient.

    A repeated call does not change the time of the mark.
    """
    _, agent = acting_active(context, asked.project_key, asked.agent_name, may_be_retired=True)
    read_at = context.tx.mark_read(asked.message_id, agent.id, context.now)
    if read_at is None:
        raise _not_received_error(agent, asked.message_id)
    return {"message_id": asked.message_id, "read": True, "read_at": iso(read_at)}


def acknowledge_message(context: WriteContext, asked: AcknowledgeMessage) -> AckView:
    """Acknowledge messages on behalf of the recipient.

    A repeated call does not change the time of the acknowledgement.

    Raises:
        InvalidArgument: Both or neither of `message_id` and `message_ids` were given.
        UnknownMessage: A message was not sent to the agent. No message was acknowledged.
    """
    _, agent = acting_active(context, asked.project_key, asked.agent_name, may_be_retired=True)
    ids = asked.message_ids or ([] if asked.message_id is None else [asked.message_id])
    if not ids or (asked.message_ids and asked.message_id is not None):
        raise InvalidArgument(
            "acknowledge_message accepts either `message_id` or `message_ids`",
            value=asked.message_id,
            remedy="pass `message_id` for one message, or `message_ids` for several",
        )
    done: list[Acknowledgement] = []
    for message_id in ids:
        acked_at = context.tx.mark_acked(message_id, agent.id, context.now)
        read_at = context.tx.mark_read(message_id, agent.id, context.now)
        if acked_at is None or read_at is None:
            raise _not_received_error(agent, message_id)
        done.append(
            {
                "message_id": message_id,
                "acknowledged": True,
                "acknowledged_at": iso(acked_at),
                "read": True,
                "read_at": iso(read_at),
            }
        )
    if asked.message_ids:
        return {"messages": done}
    [item] = done
    return {
        "message_id": item["message_id"],
        "acknowledged": item["acknowledged"],
        "acknowledged_at": item["acknowledged_at"],
        "read": item["read"],
        "read_at": item["read_at"],
    }


def _not_received_error(agent: Agent, message_id: int) -> UnknownMessage:
    return UnknownMessage(f"message {message_id} was not sent to {agent.name}", value=message_id)


def delivery_status(context: ReadContext, asked: DeliveryStatus) -> DeliveryView:
    """Return the delivery state of a message for each recipient."""
    project, agent = acting(context, asked.project_key, asked.agent_name)
    message, recipients = visible_message(context, project, agent, asked.message_id)
    hidden = {recipient.agent_id for recipient in visible_hidden(message, recipients, agent)}
    shown = [recipient for recipient in recipients if recipient.kind != "bcc" or recipient.agent_id in hidden]
    message_runs = context.tx.message_runs([message.id])[message.id]
    states = {
        recipient.agent_id: delivery_state(message, recipient, message_runs.get(recipient.agent_id))
        for recipient in shown
    }
    untouched = [recipient for recipient in shown if states[recipient.agent_id] in NOT_TAKEN]
    woken = context.tx.with_runner([recipient.agent_id for recipient in untouched]) if untouched else {}
    is_held = [recipient for recipient in untouched if recipient.agent_id in woken]
    agents = context.tx.agents_by_id([recipient.agent_id for recipient in is_held]) if is_held else {}
    # Find out why the chat of each person does not show the message yet: quiet hours, or the last error.
    people = [
        recipient
        for recipient in untouched
        if recipient.project_slug == PEOPLE_SLUG and recipient.announced_at is None
    ]
    keys = {wake_key(message.id, person.agent_id): person.agent_id for person in people}
    rows = context.tx.outbox.open(CHAT_KIND, limit=_MAX_ON_THEIR_WAY) if keys else ()
    value = ((keys.get(str(row.payload.get("mail_key"))), row.last_error) for row in rows)
    on_its_way = {agent_id: why for agent_id, why in value if agent_id is not None and why is not None}
    held = open_questions.held(context.tx, message, is_held, agents)[0] | on_its_way
    statuses = list[RecipientStatus]()
    for one in shown:
        message_run = message_runs.get(one.agent_id)
        statuses.append(
            {
                "name": format_address(one.name, one.project_slug, project.slug),
                "kind": one.kind,
                "state": states[one.agent_id],
                "announced_at": maybe_iso(one.announced_at),
                "announced_by": one.announced_by,
                "run_id": message_run.run_id if message_run else None,
                "delivered_at": maybe_iso(message_run.delivered_at if message_run else None),
                "failure": (message_run.failure or None) if message_run else None,
                "waits": held.get(one.agent_id),
                "read_at": maybe_iso(one.read_at),
                "acked_at": maybe_iso(one.acked_at),
            }
        )
    return {
        "message_id": message.id,
        "subject": message.subject,
        "recalled_at": maybe_iso(message.recalled_at),
        "recipients": statuses,
    }
