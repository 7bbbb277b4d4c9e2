"""`postroom mail`: the messages of the agent that `--as` names."""

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli import content, show
from postroom.cli.call import shows
from postroom.cli.client import Server
from postroom.cli.content import save_file
from postroom.cli.help_text import command_group
from postroom.cli.options import HERE, Acting, AsJson, Key, Project, completed, project_key
from postroom.contracts.choices import Importance
from postroom.contracts.errors import InvalidArgument, UnknownMessage, UnknownThread
from postroom.contracts.numbers import read_number

app = command_group(
    "Send, read and find messages.",
    "mail send --as Ada --to Ben -s Lights 'On the north pier?'",
    "mail inbox --as Ben --unread",
    "mail read latest --as Ben",
    "mail reply 1 --as Ben Yes.",
    "mail thread msg-1",
    "mail save 1 --as Ben --to ~/inbox",
)

Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", help="The message in Markdown; - reads it from stdin.")
]
BodyFile = Annotated[
    str | None, typer.Option("--body-file", metavar="FILE", help="Read the text from a file, or - for stdin.")
]
Files = Annotated[
    list[Path] | None, typer.Option("--attach", metavar="FILE", help="Attach a file. Repeatable.")
]


def _number(text: str) -> int:
    if text == "latest":
        return 0
    number = read_number(text, "message")
    if not number:
        raise typer.BadParameter(f"{text!r} is not a message number; use a number of at least 1, or latest")
    return number


MessageId = Annotated[
    int,
    typer.Argument(
        metavar="ID",
        parser=_number,
        help="The message number, or latest for the newest message in the inbox.",
        autocompletion=completed("messages"),
    ),
]
_PAST_THE_BODY = 2**53
"""An offset beyond the end of every body, with which a message is returned without its body."""
Limit = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of messages to show.")]


@app.command()
def send(  # noqa: PLR0913 - the options of the command
    acting: Acting,
    subject: Annotated[str, typer.Option("--subject", "-s", help="The subject.")],
    text: Text = None,
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A recipient. Repeatable.", autocompletion=completed("agents")),
    ] = None,
    cc: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A recipient of a copy (cc). Repeatable.")
    ] = None,
    bcc: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A recipient of a blind copy (bcc). Repeatable.")
    ] = None,
    body_file: BodyFile = None,
    attach: Files = None,
    importance: Annotated[Importance, typer.Option(case_sensitive=False, help="The importance.")] = "normal",
    ack_required: Annotated[bool, typer.Option("--ack-required", help="Ask for an acknowledgement.")] = False,
    thread: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The thread of the message.", autocompletion=completed("threads")),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="A topic, for use in searches.")] = None,
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="Send the message to every active agent.")
    ] = False,
    project: Project = HERE,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Send one message. If a recipient is invalid, nothing is sent."""
    _post(
        "send_message",
        {
            "project_key": project_key(project),
            "sender_name": acting,
            "to": to or [],
            "subject": subject,
            "body_md": content.message_text(text, body_file, attach or ()),
            "cc": cc or None,
            "bcc": bcc or None,
            "importance": importance,
            "ack_required": ack_required,
            "thread_id": thread,
            "topic": topic,
            "broadcast": broadcast or None,
            "attachments": content.attachments(attach or []),
            "idempotency_key": idempotency_key,
        },
        as_json=as_json,
    )


@app.command()
def reply(  # noqa: PLR0913 - the options of the command
    message_id: MessageId,
    acting: Acting,
    text: Text = None,
    body_file: BodyFile = None,
    attach: Files = None,
    reply_all: Annotated[
        bool,
        typer.Option(
            "--all", help="Reply to all recipients; a reply to a blind copy goes only to its sender."
        ),
    ] = False,
    importance: Annotated[Importance, typer.Option(case_sensitive=False, help="The importance.")] = "normal",
    ack_required: Annotated[bool, typer.Option("--ack-required", help="Ask for an acknowledgement.")] = False,
    project: Project = HERE,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Reply to a message on its thread."""
    message_id = message_id or _latest(project, acting)
    _post(
        "reply_message",
        {
            "project_key": project_key(project),
            "sender_name": acting,
            "message_id": message_id,
            "body_md": content.message_text(text, body_file, attach or ()),
            "reply_all": reply_all,
            "importance": importance,
            "ack_required": ack_required,
            "attachments": content.attachments(attach or []),
            "idempotency_key": idempotency_key,
        },
        as_json=as_json,
    )


@app.command()
def inbox(  # noqa: PLR0913 - the options of the command
    acting: Acting,
    limit: Limit = 20,
    unread: Annotated[bool, typer.Option("--unread", help="Only unread messages.")] = False,
    urgent: Annotated[bool, typer.Option("--urgent", help="Only high and urgent messages.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="Only messages after this time: a date such as 2026-11-21, or 2h for two hours ago.",
        ),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(min=0, metavar="SEQ", help="Only messages after the inbox number SEQ, oldest first."),
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Include the messages' text.")] = False,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """List the messages in an inbox, without marking them as read."""
    server = Server.find()
    arguments: dict[str, object] = {
        "project_key": project_key(project),
        "agent_name": acting,
        "include_bodies": bodies,
        "unread_only": unread,
        "urgent_only": urgent,
        "since": since,
        "after": after,
    }
    messages: list[dict[str, Any]] = []
    while True:  # the size of an answer is limited; its last message shows whether there are more
        messages += show.items(server.call_tool("fetch_inbox", {**arguments, "limit": limit - len(messages)}))
        if not messages or not messages[-1].pop("more", False):
            break
        arguments["before" if after is None else "after"] = messages[-1]["seq"]
    show.answer(
        {"messages": messages}, as_json=as_json, text=lambda: _print_messages(messages, bodies=bodies)
    )


@app.command()
def read(
    message_id: MessageId,
    acting: Acting,
    peek: Annotated[bool, typer.Option("--peek", help="Do not mark the message as read.")] = False,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """Show a message. A message that was sent to this agent is marked as read."""
    server = Server.find()
    message_id = message_id or _latest(project, acting)
    named = {"project_key": project_key(project), "agent_name": acting, "message_id": message_id}
    message = show.fields(server.call_tool("get_message", named))
    body = str(message.get("body_md") or "")
    while (offset := message.get("next_offset")) is not None:
        message = show.fields(server.call_tool("get_message", {**named, "offset": offset}))
        body += str(message.get("body_md") or "")
    if body:
        message["body_md"] = body
    marked = None
    readers = [*message.get("to", []), *message.get("cc", []), *message.get("bcc", [])]
    if not peek and acting.casefold() in (str(name).casefold() for name in readers):
        marked = server.call_tool("mark_message_read", named)
    show.answer({"message": message, "marked": marked}, as_json=as_json, text=lambda: _message(message))


@app.command()
def save(
    message_id: MessageId,
    acting: Acting,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Save only this file. Repeatable."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="The folder to save the files in.")
    ] = Path(),
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """Save a message's files. If a file name is taken, a number is added to it."""
    server = Server.find()
    message_id = message_id or _latest(project, acting)
    named = {"project_key": project_key(project), "agent_name": acting, "message_id": message_id}
    message = show.fields(server.call_tool("get_message", {**named, "offset": _PAST_THE_BODY}))
    attached = show.items(message.get("attachments"))
    known_values = [str(item["name"]) for item in attached]
    for name in names or ():
        if name not in known_values:
            raise InvalidArgument(
                f"message {message_id} has no file named {name!r}",
                value=name,
                remedy=f"the message's files: {', '.join(known_values) or 'none'}",
            )
    saved: list[dict[str, object]] = []
    for item in attached:
        if names and item["name"] not in names:
            continue
        content = server.download("/v1/get_attachment", {**named, "sha256": item["sha256"]})
        path = save_file(folder, str(item["name"]), content)
        saved.append(
            {"name": item["name"], "path": str(path), "size": len(content), "sha256": item["sha256"]}
        )
    show.answer(
        {"saved": saved},
        as_json=as_json,
        text=lambda: (
            "\n".join(f"Saved {show.line(item['path'])} ({item['size']} bytes)." for item in saved)
            or f"Message {message_id} has no files."
        ),
    )


@app.command()
def ack(
    message_id: MessageId,
    acting: Acting,
    project: Project = HERE,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge a message, which also marks it as read. Only the first acknowledgement counts."""
    message_id = message_id or _latest(project, acting)
    tool = Server.find().call_tool(
        "acknowledge_message",
        {
            "project_key": project_key(project),
            "agent_name": acting,
            "message_id": message_id,
            "idempotency_key": idempotency_key,
        },
    )
    answered = show.fields(tool)
    show.answer(
        answered,
        as_json=as_json,
        text=lambda: (
            f"message {message_id} was acknowledged at {show.moment(answered.get('acknowledged_at'))}"
        ),
    )


@shows(app, "search_messages")
def _(found: dict[str, Any]) -> str:
    from postroom.mail.query import parse_query

    show.tell_more(found, "--cursor")
    rows = [
        (item["id"], item["from"], item["subject"], item["snippet"], item["created_ts"])
        for item in show.items(found.get("hits"))
    ]
    none = "No matches."
    if parse_query(str(found.get("query"))) is None:
        none = "The query contains no word, so nothing was searched."
    drawn = show.table(("ID", "FROM", "SUBJECT", "MATCH", "AT"), rows, none=none)
    if partly := found.get("partly_searched"):
        drawn += f"\nonly the beginning of these long messages was searched: {', '.join(map(str, partly))}"
    return drawn


@app.command()
def thread(
    thread_id: Annotated[
        str, typer.Argument(metavar="ID", help="The thread.", autocompletion=completed("threads"))
    ],
    summary: Annotated[bool, typer.Option("--summary", help="Print only the summary.")] = False,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """Print a thread's summary and messages, oldest first, without marking them as read."""
    server = Server.find()
    named = {"project_key": project_key(project), "thread_id": thread_id}
    try:
        answer = show.fields(server.call_tool("summarize_thread", named))
    except UnknownThread:
        if not (number := thread_id.removeprefix("#")).isdecimal():
            raise
        # The number of a message, as the inbox shows it, means the thread that the message started.
        named["thread_id"] = f"msg-{number}"
        answer = show.fields(server.call_tool("summarize_thread", named))
    messages = list[dict[str, Any]]()
    after: int | None = None if summary else 0
    while after is not None:
        page = show.fields(server.call_tool("fetch_thread", {**named, "after": after}))
        messages += show.items(page.get("messages"))
        after = page["next"]
    people = ", ".join(
        f"{show.line(item['name'])} ({item['messages']})" for item in show.items(answer["participants"])
    )
    # Show the number of messages in a thread, and the times of its first and last message.
    first, last = show.moment(answer["first_ts"]), show.moment(answer["last_ts"])
    if answer["messages"] == 1:
        description = f"1 message, sent at {first}"
    else:
        description = f"{answer['messages']} messages from {first} to {last}"
    lines = [
        f"{show.line(answer['subject'])}",
        f"{description}, by {people}",
    ]
    lines += [
        f"open question from {show.line(item['asked_by'])} in message {item['message_id']}: "
        f"{show.line(item['text'])}"
        for item in show.items(answer.get("open_questions"))
    ]
    lines += [
        f"not acknowledged by {', '.join(map(show.line, item['waiting_for']))}: message {item['message_id']}"
        for item in show.items(answer.get("unacknowledged"))
    ]
    lines += [
        f"{show.line(item['agent'])} holds {show.line(item['path'])} until {show.moment(item['expires_ts'])}"
        for item in show.items(answer.get("reservations"))
    ]
    texts = ["\n".join(lines), *map(_message, messages)]
    document = answer if summary else {**answer, "conversation": messages}
    show.answer(document, as_json=as_json, text=lambda: f"\n\n{show.RULE}\n".join(texts))


def _latest(project: str, acting: str) -> int:
    """Return the number of the newest message in an agent's inbox.

    Raises:
        UnknownMessage: The inbox is empty.
    """
    named = {"project_key": project_key(project), "agent_name": acting, "limit": 1}
    newest = show.items(Server.find().call_tool("fetch_inbox", {**named, "include_bodies": False}))
    if not newest:
        raise UnknownMessage(f"the inbox of {acting} is empty", remedy="pass a message number")
    return int(newest[0]["id"])


def _post(tool: str, asked: Mapping[str, object], *, as_json: bool) -> None:
    answered = show.fields(Server.find().call_tool(tool, asked))
    show.answer(answered, as_json=as_json, text=lambda: _receipt(tool, answered))


def _receipt(tool: str, answered: Mapping[str, Any]) -> str:
    lines = []
    for delivery in show.items(answered.get("deliveries")):
        message = show.fields(delivery.get("payload"))
        readers = zip_longest(delivery.get("recipients") or [], delivery.get("seen") or [])
        names = ", ".join(
            f"{show.line(name)} ({show.line(seen)})" if seen else show.line(name) for name, seen in readers
        )
        lines.append(
            f"message {message.get('id')} on thread {show.line(message.get('thread_id'))} went to {names}"
        )
    if skipped := answered.get("skipped"):
        why = (
            "these agents accept no messages from this sender"
            if tool == "send_message"
            else "a reply to a blind copy goes only to its sender"
        )
        lines.append(f"left out, because {why}: {', '.join(show.line(name) for name in skipped)}")
    return "\n".join(lines)


def _print_messages(messages: list[dict[str, Any]], *, bodies: bool) -> str:
    if bodies and messages:
        return f"\n\n{show.RULE}\n".join(_message(message) for message in messages)
    rows = []
    for message in messages:
        state = "read" if message.get("read_at") else "unread"
        if message.get("acked_at"):
            state = "acknowledged"
        elif message.get("ack_required"):
            state += ", ack required"
        sent = (message["id"], message["from"], message["subject"], message["importance"])
        rows.append((*sent, state, message["created_ts"]))
    return show.table(("ID", "FROM", "SUBJECT", "IMPORTANCE", "STATE", "AT"), rows, none="No messages.")


def _message(message: Mapping[str, Any]) -> str:
    heads = [
        ("Message", message.get("id")),
        ("From", message.get("from")),
        ("To", ", ".join(message.get("to") or [])),
        ("Cc", ", ".join(message.get("cc") or [])),
        ("Bcc", ", ".join(message.get("bcc") or [])),
        ("Date", show.moment(message["created_ts"])),
        ("Thread", message.get("thread_id")),
        ("Topic", message.get("topic")),
        ("Importance", message.get("importance")),
        ("Recalled", show.moment(message.get("recalled_at") or "")),
        (
            "Files",
            ", ".join(
                f"{item['name']} ({item['size']} bytes)" for item in show.items(message.get("attachments"))
            ),
        ),
        ("Subject", message.get("subject")),
    ]
    top = "\n".join(f"{name}: {show.line(value)}" for name, value in heads if value not in (None, ""))
    text = f"{top}\n\n{show.plain(message.get('body_md') or '')}"
    if left := message.get("characters_left"):
        text += f"\n... {left:,} more characters: postroom mail read {message.get('id')}"
    return text
