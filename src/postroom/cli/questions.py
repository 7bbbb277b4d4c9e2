"""`postroom questions`: what agents wait to be told before they go on."""

from typing import Annotated

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.options import AsJson
from postroom.contracts.errors import InvalidArgument

app = typer.Typer(help="See and answer what agents ask.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List what agents ask, what waits longest first."""
    found = Server.find().admin("GET", "/admin/questions")
    rows = [
        (one["number"], one["question"], one["thread_id"], one["waiting_since"])
        for one in show.items(found.get("questions"))
    ]
    show.answer(
        found,
        as_json=as_json,
        text=lambda: show.table(("NUMBER", "QUESTION", "THREAD", "SINCE"), rows, none="nobody asks anything"),
    )


@app.command()
def answer(
    number: Annotated[str, typer.Argument(metavar="NUMBER", help="The question's number.")],
    word: Annotated[str, typer.Argument(metavar="yes|no", help="The answer.")],
    why: Annotated[str, typer.Option(help="What the agent is told with it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Answer a question. The first answer counts, from wherever it comes."""
    if word not in ("yes", "no"):
        raise InvalidArgument(f"{word!r} is no answer", value=word, remedy="say yes or no")
    asked = {"number": number, "answer": word, "why": why}
    found = Server.find().admin("POST", "/admin/questions", asked)
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(number)} is answered with {word}")
