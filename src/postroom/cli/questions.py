"""`postroom questions`: the open questions of agents."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import call, shows
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir, completed
from postroom.contracts.errors import InvalidArgument, StaleDecision
from postroom.services.cut_ids import whole_id

app = typer.Typer(
    help="List and answer the questions of agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("questions list", "questions answer", "questions answer 4f2a yes --why 'after lunch'"),
)


_WORDS: Final = ("yes", "no", "skip")
_LISTED: Final = "list the questions: `postroom questions list`"


@shows(app, "list_questions")
def _(found: dict[str, Any]) -> str:
    rows = [
        (one["number"], one["question"], show.agent(one), one["waiting_since"])
        for one in show.items(found.get("questions"))
    ]
    return show.table(("NUMBER", "QUESTION", "AGENT", "SINCE"), rows, none="No open questions.")


@app.command()
def answer(
    number: Annotated[
        str | None,
        typer.Argument(
            metavar="NUMBER",
            help="The question's number, or its first digits.",
            autocompletion=completed("questions"),
        ),
    ] = None,
    word: Annotated[str | None, typer.Argument(metavar="yes|no", help="The answer.")] = None,
    why: Annotated[str, typer.Option(help="A comment for the agent.")] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question. The first answer counts, whether it comes from a page, a command or a chat.

    At a terminal the command asks for missing values; without a number it asks each open question in turn.
    """
    if word is None and not as_json and sys.stdin.isatty():
        _ask_in_turn(data_dir, number, why)
        return
    if number is None or word not in ("yes", "no"):
        to_what = "" if number is None else f" to question {number}"
        said = f"no answer{to_what} was given" if word is None else f"{word!r} is not an answer"
        raise InvalidArgument(said, value=word, remedy="give the question's number, and yes or no")
    found = call("answer_question", data_dir=data_dir, number=number, answer=word, why=why)
    show.answer(found, as_json=as_json, text=lambda: _answered(found["number"], word))


def _ask_in_turn(data_dir: Path | None, number: str | None, why: str) -> None:
    """Show open questions to the person at the terminal in turn, and send the answers."""
    found = show.items(call("list_questions", data_dir=data_dir).get("questions"))
    if number is not None:
        numbers = {one["number"]: one for one in found}
        meant = whole_id(number.lower(), numbers, what="questions", remedy=_LISTED)
        if meant is None:
            raise InvalidArgument(f"no open question {number}", value=number, remedy=_LISTED)
        found = [numbers[meant]]
    if not found:
        show.print_line("No open questions.")
    for place, one in enumerate(found, start=1):
        number, since = show.line(one["number"]), show.line(one["waiting_since"])
        head = f"{place} of {len(found)}: {number}, since {since}, from {show.line(show.agent(one))}"
        show.print_line(f"\n{head}\n\n{show.plain(one['question'])}\n")
        word = _word()
        if word not in ("yes", "no"):
            continue
        told = why or typer.prompt("Comment for the agent", default="", show_default=False)
        try:
            call("answer_question", data_dir=data_dir, number=one["number"], answer=word, why=told)
            show.print_line(_answered(one["number"], word))
        except StaleDecision as error:  # another person was faster; the next question is still open
            show.failure(error, as_json=False)


def _word() -> str:
    while True:
        given = str(typer.prompt("yes, no or skip (y, n, s)", default="skip")).strip().lower()
        for word in _WORDS:
            if given in (word, word[0]):
                return word
        show.print_line(f"{given!r} is not an answer.")


def _answered(number: object, word: str) -> str:
    return f"Answered {show.line(number)} with {word}."
