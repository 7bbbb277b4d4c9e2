"""`postroom people`: whom agents may write to as `human:NAME`, and in which chat their messages come."""

from typing import Annotated

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(
    help="Say which people agents may write to.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("people add Kim", "people add Kim --chat telegram/123456", "people list"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The person, as agents write: human:NAME.")]


@app.command()
def add(
    name: Name,
    chat: Annotated[
        str | None,
        typer.Option(metavar="PLATFORM/ID", help="The chat in which messages come, such as telegram/123456."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let agents write to a person.

    Call it again with another chat, or none, to change that. Without a chat the messages are read on the
    pages.
    """
    found = Server.find(data_dir=data_dir).admin("PUT", "/admin/people", {"name": name, "chat": chat})
    show.answer(found, as_json=as_json, text=lambda: "\n".join(_added(found)))


@app.command("list")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List whom agents may write to."""
    found = Server.find(data_dir=data_dir).admin("GET", "/admin/people")
    rows = [
        (one["address"], one["chat"] or "-", _word(one["reached"]), str(one["unread"]))
        for one in show.items(found.get("people"))
    ]
    head = ("ADDRESS", "CHAT", "CONNECTED", "UNREAD")
    show.answer(
        found,
        as_json=as_json,
        text=lambda: show.table(head, rows, none="no person is added yet: `postroom people add`"),
    )


@app.command()
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let nobody write to a person any more. What was written is kept."""
    found = Server.find(data_dir=data_dir).admin("DELETE", "/admin/people", {"name": name})
    said = [f"{show.line(name)} {'is written to no more' if found.get('removed') else 'was not written to'}"]
    if found.get("answers"):
        said.append(
            "chats still go to them by a rule of gateway.toml, and are told that nobody answers: change it"
        )
    show.answer(found, as_json=as_json, text=lambda: "\n".join(said))


def _added(found: dict[str, object]) -> list[str]:
    chat = found.get("chat")
    where = f"in {show.line(str(chat))}" if chat else "on the pages, in no chat"
    said = [f"{show.line(str(found.get('address')))} gets messages {where}"]
    if found.get("reached") is False:
        said.append("there is no channel to that chat here: connect it in gateway.toml, or messages are lost")
    return said


def _word(reached: object) -> str:
    return "-" if reached is None else "yes" if reached else "no"
