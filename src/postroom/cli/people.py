"""`postroom people`: the people with an address `human:NAME`, and the chats for their messages."""

from typing import Annotated

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(
    help="Manage the people whom agents may write to.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("people add Kim", "people add Kim --chat telegram/123456", "people list"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The person, as agents write it: human:NAME.")]


@app.command()
def add(
    name: Name,
    chat: Annotated[
        str | None,
        typer.Option(metavar="PLATFORM/ID", help="The chat for the messages, such as telegram/123456."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let agents write to a person.

    Repeat the command to change the chat. Without a chat the person reads messages on the pages.
    """
    found = Server.find(data_dir=data_dir).admin("PUT", "/admin/people", {"name": name, "chat": chat})
    show.answer(found, as_json=as_json, text=lambda: "\n".join(_added(found)))


@app.command("list")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the people whom agents may write to."""
    found = Server.find(data_dir=data_dir).admin("GET", "/admin/people")
    rows = [
        (one["address"], one["chat"] or "-", _word(one["reached"]), str(one["unread"]))
        for one in show.items(found.get("people"))
    ]
    head = ("ADDRESS", "CHAT", "CONNECTED", "UNREAD")
    show.answer(
        found,
        as_json=as_json,
        text=lambda: show.table(head, rows, none="No people. Add a person with `postroom people add`."),
    )


@app.command()
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop agents from writing to a person. Stored messages stay."""
    found = Server.find(data_dir=data_dir).admin("DELETE", "/admin/people", {"name": name})
    done = "Removed" if found.get("removed") else "Not listed:"
    said = [f"{done} {show.line(name)}."]
    if found.get("answers"):
        said.append(
            "a rule of gateway.toml still routes chats to this person; their senders now get an "
            "error: change the rule"
        )
    show.answer(found, as_json=as_json, text=lambda: "\n".join(said))


def _added(found: dict[str, object]) -> list[str]:
    chat = found.get("chat")
    where = f"in {show.line(str(chat))}" if chat else "on the pages only"
    said = [f"{show.line(str(found.get('address')))} gets messages {where}"]
    if found.get("reached") is False:
        said.append("that chat has no channel: add the channel to gateway.toml, or messages are lost")
    return said


def _word(reached: object) -> str:
    return "-" if reached is None else "yes" if reached else "no"
