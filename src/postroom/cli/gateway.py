"""`postroom gateway`: start chats, show their state, admit people, send messages, handle dead letters."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroom.cli import loading, show
from postroom.cli.call import call, perform, shows
from postroom.cli.client import Server
from postroom.cli.help_text import command_group
from postroom.cli.options import AsJson, DataDir, LogFormat, LogLevel
from postroom.contracts.errors import (
    ConfigError,
    InvalidArgument,
    ServerUnavailable,
    UnknownAgent,
    UnknownProject,
)

if TYPE_CHECKING:
    from postroom.app.config import Settings
    from postroom.app.gateway_answering import Missing, Named
    from postroom.app.gateway_config import GatewayFile

app = command_group(
    "Manage chats: channels, people, and undelivered messages.",
    "gateway status",
    "gateway reconnect telegram",
    "gateway config check",
)
config = typer.Typer(help="Check gateway.toml.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config, name="config")

Platform = Annotated[str, typer.Argument(metavar="PLATFORM", help="The channel, such as telegram.")]


@config.callback()
def group() -> None:
    """Check gateway.toml."""


@app.command()
def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Port.")] = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Start the server like `postroom up`. Exit code 78 if there is no gateway.toml."""
    from postroom.app.config import load_settings

    settings = load_settings(
        overrides={
            "host": host,
            "port": port,
            "data_dir": data_dir,
            "log_level": log_level,
            "log_format": log_format,
        }
    )
    if not settings.gateway_file.exists():
        raise _no_file(settings.gateway_file)
    raise typer.Exit(loading.server()(settings))


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the state of the chats: channels, messages, queues and undelivered messages."""
    answer = show.fields(call("show_health", data_dir=data_dir).get("gateway"))
    show.answer(answer, as_json=as_json, text=lambda: _status(answer))


@shows(app, "reconnect_channel")
def _(found: dict[str, Any]) -> str:
    why = f": {found['error']}" if found.get("error") else ""
    return show.line(f"{found['platform']} is {found['state']}{why}")


@shows(app, "pair_person")
def _(found: dict[str, Any]) -> str:
    person = show.fields(found.get("person"))
    name = person.get("name") or f"{person['platform']}/{person['user_id']}"
    return f"Admitted {show.line(name)} as {show.line(person['role'])}."


@app.command()
def people(
    remove: Annotated[
        str | None,
        typer.Option(metavar="PLATFORM/USER", help="Remove a person who was admitted with a pairing code."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the people who may write, and the people who ask for access. A removal can take 30 seconds."""
    if remove is not None:
        platform, _, user = remove.partition("/")
        if not user:
            raise InvalidArgument(
                "the person must be PLATFORM/USER", value=remove, remedy="for example telegram/4711"
            )
        gone = call("remove_chat_person", data_dir=data_dir, platform=platform, user_id=user)
        show.answer(gone, as_json=as_json, text=lambda: f"Removed {show.line(remove)}.")
        return
    answer = call("list_chat_people", data_dir=data_dir)
    rows = [
        (item["platform"], item["user_id"], item["role"], item["name"] or "", item["from"])
        for item in show.items(answer.get("people"))
    ]
    rows += [
        (item["platform"], item["user_id"], "asks", item["name"] or "", f"until {item['expires_at']}")
        for item in show.items(answer.get("asking"))
    ]
    columns = ("PLATFORM", "USER", "ROLE", "NAME", "FROM")
    text = show.table(columns, rows, none="No admitted people.")
    show.answer(answer, as_json=as_json, text=lambda: text)


@app.command()
def send(  # noqa: PLR0913 - the options of the command
    platform: Platform,
    chat: Annotated[
        str,
        typer.Argument(metavar="CHAT", help="The chat's id on the platform, or `home` for the home channel."),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text of the message.")],
    thread: Annotated[str | None, typer.Option(metavar="ID", help="The id of a thread in the chat.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Idempotency key: calls with the same key send the message only once.",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a chat or to the home channel.

    The message is stored first, and then delivered like an answer.
    """
    chat_id = None if chat == "home" else chat
    answer = call(
        "send_to_chat",
        data_dir=data_dir,
        platform=platform,
        chat_id=chat_id,
        text=text,
        thread_id=thread,
        key=key,
    )
    show.answer(answer, as_json=as_json, text=lambda: f"Stored as {show.line(answer['outbox_id'])}.")


@app.command()
def dead(
    revive: Annotated[str | None, typer.Option(metavar="ID", help="Retry this message.")] = None,
    discard: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Discard this message permanently; `all` discards all of them."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the chats' dead letters: undelivered messages, and why they failed. An ID may be shortened."""
    if revive is not None and discard is not None:
        raise InvalidArgument(
            "--revive and --discard cannot be combined", remedy="use either --revive or --discard, not both"
        )
    if discard is not None:
        listed = show.items(call("list_undelivered", data_dir=data_dir).get("undelivered"))
        ids = [item["outbox_id"] for item in listed] if discard == "all" else [discard]
        answers = [call("discard_undelivered", data_dir=data_dir, outbox_id=item) for item in ids]
        gone = [str(item["outbox_id"]) for item in answers]
        show.answer({"discarded": gone}, as_json=as_json, text=lambda: show.discarded(gone))
        return
    if revive is not None:
        answer = call("retry_undelivered", data_dir=data_dir, outbox_id=revive)
        show.answer(answer, as_json=as_json, text=lambda: f"Retrying {show.line(answer['outbox_id'])}.")
        return
    answer = call("list_undelivered", data_dir=data_dir)
    rows = [
        (
            item["outbox_id"],
            item.get("chat") or item["target"],
            item.get("who") or "-",
            item["created_at"],
            item["error"],
        )
        for item in show.items(answer.get("undelivered"))
    ]
    show.answer(
        answer,
        as_json=as_json,
        text=lambda: show.table(("ID", "CHAT", "FROM", "SINCE", "WHY"), rows, none="No dead letters."),
    )


@app.command()
def routes(
    why: Annotated[
        str | None,
        typer.Option(metavar="PLATFORM/CHAT", help="Explain which agent answers in this chat, and why."),
    ] = None,
    sender: Annotated[str, typer.Option(metavar="ID", help="With --why: the id of the sender.")] = "",
    text: Annotated[str, typer.Option(metavar="TEXT", help="With --why: the message's text.")] = "",
    kind: Annotated[
        Literal["dm", "group", "channel", "thread"],
        typer.Option(
            "--type",
            case_sensitive=False,
            help="With --why: the kind of chat.",
        ),
    ] = "dm",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List which agent answers which messages. The first matching rule decides."""
    from postroom.gateway.config import DEFAULT_AGENT
    from postroom.gateway.events import MessageEvent
    from postroom.gateway.routes import decide, listed
    from postroom.gateway.session import SessionSource

    rules = _read(data_dir)[1].gateway.routes
    if why is None:
        items = listed(rules)
        rows = [(number, item["agent"], item["answers"]) for number, item in enumerate(items, start=1)]
        table = show.table(("RULE", "AGENT", "ANSWERS"), rows, none="No rules.")
        show.answer({"routes": items}, as_json=as_json, text=lambda: table)
        return
    platform, _, chat = why.partition("/")
    place = {"platform": platform, "chat_id": chat, "chat_type": kind, "user_id": sender}
    try:
        source = SessionSource.from_dict(place)
    except ValueError as error:
        raise InvalidArgument(
            "unknown platform", value=platform, remedy="use the form telegram/-100200"
        ) from error
    decided = decide(rules, MessageEvent(text=text, source=source))
    answer = {} if decided is None else {"agent": decided.agent or DEFAULT_AGENT, "why": decided.why}
    show.answer(answer, as_json=as_json, text=lambda: f"{answer['agent']}: {answer['why']}")


def _read(data_dir: Path | None) -> "tuple[Settings, GatewayFile]":
    from postroom.app.config import load_settings
    from postroom.app.gateway_config import load_gateway

    settings = load_settings(overrides={"data_dir": data_dir})
    gateway_file = load_gateway(settings)
    if gateway_file is None:
        raise _no_file(settings.gateway_file)
    return settings, gateway_file


@config.command("check")
def check(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check gateway.toml, its secrets and the libraries of its channels, and list the channels.

    The exit code is 78 if something is wrong or missing. If a server is running, the command also checks that
    the named agents and people exist.
    """
    settings, gateway_file = _read(data_dir)
    from postroom.app.gateway_answering import answering
    from postroom.app.gateway_wiring import examine, outline

    examine(gateway_file, settings)
    fields, named = outline(gateway_file), answering(gateway_file)
    faults: dict[str, Missing] = {}
    if named:
        try:
            server = Server.find(data_dir=data_dir)
            found = {item.whom: _find_fault(server, item) for item in named.values()}
            faults = {whom: fault for whom, fault in found.items() if fault is not None}
        except ServerUnavailable:
            names = ", ".join(named)
            fields["not_checked"] = f"no server is running, so these names were not checked: {names}"
    if faults:
        what = "; ".join(fault.what for fault in faults.values())
        remedies = dict.fromkeys(fault.remedy for fault in faults.values())
        raise ConfigError(what, value=", ".join(faults), remedy="; ".join(remedies))
    show.answer(fields, as_json=as_json, text=lambda: show.outline(fields))


def _find_fault(server: Server, named: "Named") -> "Missing | None":
    from postroom.gateway.config import PERSON, is_person

    if is_person(named.whom):
        people = show.items(perform(server, "list_people").get("people"))
        wanted = named.whom.removeprefix(PERSON).casefold()
        is_there = any(person["name"].casefold() == wanted and not person["visitor"] for person in people)
        return None if is_there else named.gone
    name, _, project = named.whom.partition("@")
    try:
        server.call_tool("whois", {"project_key": project, "agent_name": name})
    except (UnknownAgent, UnknownProject):
        run = show.items(perform(server, "list_runners").get("runners"))
        others = [
            f"{item['agent']}@{item['project']}"
            for item in run
            if item["agent"].casefold() == name.casefold()
        ]
        return named.gone_but(others)
    answer = perform(server, "list_runners", project=project)
    is_run = any(item["agent"].casefold() == name.casefold() for item in show.items(answer.get("runners")))
    return None if is_run else named.not_run


def _no_file(file: Path) -> ConfigError:
    return ConfigError(
        f"{file} does not exist, so this server has no chats",
        value=str(file),
        remedy="create the file; docs/gateway.md begins with a ten-line example",
    )


def _status(found: Mapping[str, Any]) -> str:
    if found.get("state") == "off":
        return "off: the server found no gateway.toml when it started"
    messages = show.fields(found["messages"] if "messages" in found else found["lines"])
    rows = [
        (
            name,
            item["state"],
            item.get("since") or "-",
            item["inbound_at"] or "-",
            item["outbound_at"] or "-",
            item["error"] or "",
        )
        for name, item in show.fields(found["channels"]).items()
    ]
    counted = ", ".join(f"{messages[name]} {name}" for name in ("finished", "queued", "running", "rejected"))
    wrong = "" if messages["adds_up"] else " (the numbers do not add up)"
    again = []
    if retried := found.get("retried"):
        when = f"is at {retried['until']}" if retried["until"] else "is active"
        runs = "1 run" if retried["runs"] == 1 else f"{retried['runs']} runs, newest failure"
        again = [
            show.folded(show.moment(f"retried after a failure: {runs}; its next attempt {when}"), "  "),
            show.folded(f"  {show.line(retried['agent'])}: {show.line(retried['error'])}", "    "),
        ]
    return "\n".join(
        [
            f"gateway: {show.line(found['state'])}",
            show.table(("CHANNEL", "STATE", "SINCE", "RECEIVED", "SENT", "WHY"), rows, none="No channels."),
            f"messages: {messages['accepted']} accepted = {counted}{wrong}",
            f"undelivered: {show.line(found['undelivered'])}",
            *again,
            *(f"{show.line(item['what'])}: {show.line(item['remedy'])}" for item in found.get("missing", ())),
            *([f"held for quiet hours: {show.line(found['held'])}"] if found.get("held") else ()),
        ]
    )
