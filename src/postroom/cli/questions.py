"""`postroom questions`: the open questions of agents."""

import os
import pwd
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import call, shows
from postroom.cli.help_text import command_group
from postroom.cli.options import AsJson, DataDir, completed, seconds
from postroom.contracts.errors import InvalidArgument, NotPermitted, StaleDecision, TooLarge
from postroom.contracts.plain_answers import MAX_NAME_LENGTH, check_person_name, plain_yes_no, unanswered
from postroom.contracts.quoting import exact
from postroom.services.cut_ids import whole_id

app = command_group(
    "List and answer the questions of agents.",
    "questions list",
    "questions answer",
    "questions answer 4f2a yes --why 'after lunch'",
    "questions answer 4f2a EUR",
    "questions snooze 4f2a 2h",
    "questions show 4f2a",
)


_LISTED: Final = "list the questions: `postroom questions list`"
_SKIP: Final = "skip"


@shows(app, "list_questions")
def _(found: dict[str, Any]) -> str:
    show.tell_more(found, "--after")
    rows = [
        (
            question["number"],
            question["question"],
            _takes(question),
            show.agent(question),
            since(question),
        )
        for question in show.items(found.get("questions"))
    ]
    return show.table(("NUMBER", "QUESTION", "TAKES", "AGENT", "SINCE"), rows, none="No open questions.")


@shows(app, "show_question")
def _(found: dict[str, Any]) -> str:
    lines = [
        f"{show.line(found['number'])}, asked by {show.line(show.agent(found))} on {found['asked_at']}",
        f"\n{_indented(found['question'])}\n",
    ]
    if found["action"]:
        lines.append(f"A yes permits exactly this:\n  {_indented(exact(found['action']))}\n")
    for place in show.items(found.get("shown")):
        at = f" since {place['at']}" if place["at"] else ""
        lines.append(f"Shown {show.line(place['where'])}{at}.")
    if found["state"] == "open":
        return "\n".join([*lines, "Open: nobody has answered."])
    word = {True: "yes", False: "no"}.get(found["approved"], "")
    answer = ": ".join(filter(None, (word, _indented(found["answer"]))))
    if found["state"] == "closed":
        return "\n".join([*lines, f"Closed on {found['answered_at']}: {answer}"])
    if found["answered_by"] == "nobody":
        means = unanswered(found["approved"], f" until {found['answered_at']}")
        return "\n".join([*lines, f"{means}: {_indented(found['answer'])}"])
    by = " ".join(filter(None, (show.line(found["answered_by"]) or "somebody", found["where"])))
    return "\n".join([*lines, f"Answered by {by} on {found['answered_at']}: {answer}"])


def _indented(text: object) -> str:
    return show.plain(text).replace("\n", "\n  ")


def since(one: dict[str, Any]) -> str:
    """Return when a question was asked, or the time until which the question is snoozed."""
    return f"snoozed until {one['snoozed_until']}" if one["snoozed_until"] else str(one["waiting_since"])


def _takes(one: dict[str, Any]) -> str:
    match one["takes"]:
        case "choice":
            taken = " | ".join(one["choices"])
        case "text":
            taken = "TEXT"
        case "form":
            taken = " ".join(f"{name}=..." for name in one["form"]["properties"])
        case "file":
            taken = "a file, attached to a reply" + (
                f" to message {one['reply_to']}" if one["reply_to"] else ""
            )
        case _:
            taken = "yes | no | TEXT" if one["in_words"] else "yes | no"
    if one["action"]:
        taken += f" to exactly this: {exact(one['action'], is_one_line=True)}"
    who = "".join(f", from {name.removeprefix('human:')}" for name in one["to"])
    return taken + who + "".join(f", not from {name.removeprefix('human:')}" for name in one["not_by"])


_NUMBER: Final = typer.Argument(
    metavar="NUMBER",
    help="The number of the question, or its first digits.",
    autocompletion=completed("questions"),
)
Number = Annotated[str, _NUMBER]
By = Annotated[str | None, typer.Option("--by", help="Your name, for the record. Default: your login name.")]


@app.command()
def answer(
    number: Annotated[str | None, _NUMBER] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="ANSWER", help="yes or no, a choice, a text, or FIELD=VALUE for each field."),
    ] = None,
    why: Annotated[str, typer.Option(help="A comment that the agent receives with the answer.")] = "",
    by: By = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question. The first answer counts, whether it comes from a page, a command or a chat.

    In a terminal the command prompts for missing values; without a number it goes through all open questions.
    """
    if not words and not as_json and sys.stdin.isatty():
        _ask_in_turn(data_dir, number, why, by)
        return
    if number is None or not words:
        to_what = "" if number is None else f" to question {number}"
        raise InvalidArgument(
            f"no answer{to_what} was given", value=None, remedy="pass the question's number and the answer"
        )
    text = "\n".join(words) if len(words) > 1 and all("=" in word for word in words) else " ".join(words)
    result = call("answer_question", data_dir=data_dir, number=number, answer=text, why=why, by=_name(by))
    show.answer(result, as_json=as_json, text=lambda: _print_answered(result))


@app.command()
def snooze(
    number: Number,
    span: Annotated[
        str, typer.Argument(metavar="SPAN", help="A duration, for example 10m, 2h or 1d. 0 ends the snooze.")
    ],
    by: By = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Snooze a question for everybody. The question stays open and unanswered."""
    put_off = 0.0 if span == "0" else seconds(span)
    result = call("snooze_question", data_dir=data_dir, number=number, seconds=put_off, by=_name(by))
    until = result["snoozed_until"]
    line = f"{number} is snoozed until {until}." if until else f"{number} is no longer snoozed."
    show.answer(result, as_json=as_json, text=lambda: show.line(line))


def every(data_dir: Path | None) -> list[dict[str, Any]]:
    """Return all open questions."""
    questions, after = list[dict[str, Any]](), ""
    while True:
        page = call("list_questions", data_dir=data_dir, limit=500, after=after)
        questions += show.items(page.get("questions"))
        if not page.get("next"):
            return questions
        after = page["next"]


def _name(given: str | None) -> str | None:
    """Return the given name, or the login name of the user of this terminal.

    Raises:
        InvalidArgument: The given name is blank or too long, or contains hidden characters.
    """
    if given is not None:
        if not 0 < len(given.strip()) <= MAX_NAME_LENGTH:
            is_long = f"is longer than {MAX_NAME_LENGTH} characters"
            raise InvalidArgument(
                f"the name in --by {is_long if given.strip() else 'is blank'}",
                value=given[:MAX_NAME_LENGTH],
                remedy="pass your name; or leave out --by to use your login name",
            )
        return check_person_name(given)
    try:
        return pwd.getpwuid(os.getuid()).pw_name[:MAX_NAME_LENGTH]
    except KeyError:  # the account can have no name, for example in a container
        return None


def _ask_in_turn(data_dir: Path | None, number: str | None, why: str, by: str | None) -> None:
    by, questions = _name(by), every(data_dir)
    if number is not None:
        numbers = {question["number"]: question for question in questions}
        meant = whole_id(number.lower(), numbers, what="questions", remedy=_LISTED)
        if meant is None:
            raise InvalidArgument(f"no open question {number}", value=number, remedy=_LISTED)
        questions = [numbers[meant]]
    if not questions:
        show.print_line("No open questions.")
    for place, open_question in enumerate(questions, start=1):
        number, since = show.line(open_question["number"]), show.line(open_question["waiting_since"])
        asker = show.line(show.agent(open_question))
        head = f"{place} of {len(questions)}: {number}, since {since}, from {asker}"
        show.print_line(f"\n{head}\n\n{show.plain(open_question['question'])}\n")
        if open_question["action"]:
            action = _indented(exact(open_question["action"]))
            show.print_line(f"A yes permits exactly this:\n  {action}\n")
        answer = _prompt_answer(open_question)
        if answer is None:
            continue
        comment = why or typer.prompt("Comment for the agent", default="", show_default=False)
        arguments = {"number": open_question["number"], "answer": answer, "why": comment, "by": by}
        try:
            show.print_line(_print_answered(call("answer_question", data_dir=data_dir, **arguments)))
        except (StaleDecision, NotPermitted, InvalidArgument, TooLarge) as error:
            show.failure(error, as_json=False)  # another person was faster: continue with the next question


def _prompt_answer(one: dict[str, Any]) -> str | dict[str, str] | None:
    if one["takes"] == "yes_no" and not one["in_words"]:
        while True:
            text = str(typer.prompt("yes, no or skip (y, n, s)", default=_SKIP)).strip().lower()
            if plain_yes_no(text) is not None:
                return text
            for word in ("yes", "no", _SKIP):
                if text in (word, word[0]):
                    return None if word == _SKIP else word
            show.print_line(f"{text!r} is not an answer.")
    if one["takes"] == "form":
        fields = one["form"]["properties"]
        filled = {name: str(typer.prompt(name, default="", show_default=False)) for name in fields}
        return filled if any(filled.values()) else None
    for place, choice in enumerate(one["choices"], start=1):
        show.print_line(f"{place}. {show.line(choice)}")
    answer = "yes, no or an answer in words" if one["in_words"] else "Answer"
    text = str(typer.prompt(f"{answer}, or nothing to skip", default="", show_default=False)).strip()
    if one["in_words"]:
        text = {"y": "yes", "n": "no"}.get(text.lower(), text)
    return text or None


def _print_answered(found: dict[str, Any]) -> str:
    return f"Answered {show.line(found['number'])} with {show.line(found['answer'])}."
