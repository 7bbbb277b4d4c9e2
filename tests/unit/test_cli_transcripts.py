"""Each command sends, prints and ends as `cli_transcripts.txt` says; a new command is a new paragraph there.

`$` the command, `<` a tool or an address and what the server answers, `>` what was sent last (for a tool without the
project, which is the folder), `=` what `--json` prints if it is not the answer, `?` the exit code if it is not 0,
`|` a line on standard output, `!` a line on standard error. `"@SENT"` is that sample.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cli_samples
from cli_room import Done, Run, arguments
from fake_postroom import FakePostroom
from postroom.cli import remedies
from postroom.contracts import errors
from postroom.mail.commands import read_command
from postroom.mail.operations import OPERATIONS
from rest_room import arguments_of


@dataclass
class Transcript:
    """A command, and what it is answered, sends and prints."""

    words: str
    answers: dict[str, Any] = field(default_factory=dict)
    sent: Any = None
    document: Any = None
    code: int = 0
    out: str = ""
    err: str = ""

    def as_json(self) -> list[str]:
        before, mark, after = self.words.partition(" -- ")
        return [*shlex.split(before), "--json", *(["--", *shlex.split(after)] if mark else [])]


def sample(value: Any) -> Any:
    """Return a value of the file with its samples in place."""
    if isinstance(value, dict):
        return {name: sample(one) for name, one in value.items()}
    if isinstance(value, list):
        return [sample(one) for one in value]
    is_named = isinstance(value, str) and value.startswith("@")
    return getattr(cli_samples, value[1:]) if is_named else value


def transcripts() -> Iterator[Transcript]:
    text = Path(__file__).with_name("cli_transcripts.txt").read_text(encoding="utf-8")
    for paragraph in text.strip().split("\n\n"):
        head, *lines = paragraph.split("\n")
        made = Transcript(head.removeprefix("$ "))
        for line in lines:
            kind, rest = line[0], line[2:]
            match kind:
                case "<":
                    name, _, answer = rest.partition(" /" if rest.split()[0].isupper() else " ")
                    if name.isupper():
                        path, _, answer = answer.partition(" ")
                        name = f"{name} /{path}"
                    made.answers[name] = made.document = sample(json.loads(answer))
                case ">":
                    made.sent = json.loads(rest)
                case "=":
                    made.document = sample(json.loads(rest))
                case "?":
                    made.code = int(rest)
                case "|":
                    made.out += f"{rest}\n"
                case "!":
                    made.err += f"{rest}\n"
        yield made


def tell(fake: FakePostroom, answers: dict[str, Any]) -> None:
    """Make the server give this answer, and no other."""
    fake.tools.clear()
    fake.admin.clear()
    for name, answer in answers.items():
        method, _, path = name.partition(" ")
        if path:
            fake.admin[method, path] = lambda _, answer=answer: answer
        else:
            fake.tools[name] = lambda _, answer=answer: answer


def sent_to(fake: FakePostroom, here: Path) -> Any:
    body = fake.seen[-1].body
    if body and "params" in body:
        given = dict(arguments(fake))
        assert given.pop("project_key") == str(here)
        return given
    return body and {name: "{here}" if text == str(here) else text for name, text in body.items()}


def test_each_command_sends_and_prints_what_its_transcript_says(
    run: Run, fake: FakePostroom, folder: Path
) -> None:
    wrong: list[tuple[object, ...]] = []
    for one in transcripts():
        tell(fake, one.answers)
        done = run(*shlex.split(one.words))
        sent, document = sent_to(fake, folder), run(*one.as_json())
        if (done, sent) != (Done(one.code, one.out, one.err), one.sent):
            wrong.append((one, done, sent))
        sent = sent_to(fake, folder)
        if (document.code, document.document, sent) != (one.code, one.document, one.sent):
            wrong.append((one, document, sent))
    assert wrong == []


def test_a_refusal_has_one_form_in_every_command(run: Run, fake: FakePostroom) -> None:
    refusal = errors.UnknownAgent("no agent 'Ada'", value="Ada", details={"nearest": []}).as_dict()
    remedy = remedies.as_commands(str(refusal["remedy"]))
    for one in transcripts():
        if any(" " in name for name in one.answers):
            continue  # an address, and no tool
        tell(fake, {name: {"error": refusal} for name in one.answers})
        as_json = run(*one.as_json())
        assert (as_json.code, as_json.err) == (2, ""), one.words
        assert as_json.document == {"error": {**refusal, "remedy": remedy}}, one.words
        shown = run(*shlex.split(one.words))
        assert shown == Done(2, "", f"no agent 'Ada'\nremedy: {remedy}\n"), one.words


def test_a_missing_token_of_an_agent_is_remedied_by_the_variable_that_commands_read(
    run: Run, fake: FakePostroom
) -> None:
    refusal = errors.TokenRequired("this server requires the token of Ada", value="Ada").as_dict()
    tell(fake, {"send_message": {"error": refusal}})
    done = run("mail", "send", "--as", "Ada", "--to", "Ben", "-s", "Lights", "On?")
    assert "remedy: set POSTROOM_AGENT_TOKEN to the agent's token" in done.err


OF_TOOLS = re.compile(
    rf"\$\.|\b({'|'.join(OPERATIONS)})\b|arguments are|`\w+`|\b[a-z]+_(?:id|key|md|name|seconds)\b"
)
"""Words that only readers of tools know."""


def refusals(tool: str, name: str) -> errors.PostroomError | None:
    """Return one error with a tool's full explanation of the values that one argument cannot have."""
    good, kind = {"project_key": "/p", **arguments_of(tool)}, OPERATIONS[tool].command
    good = {name: value for name, value in good.items() if name in kind.__struct_fields__}
    said: list[errors.PostroomError] = []
    for value in ({"a": [1]}, 1.5, -1, 10**9, "\0", "", "x" * 10_000, None):
        try:
            read_command(kind, {**good, name: value})
        except errors.PostroomError as error:
            said.append(error)
    message, remedy = ("\n".join(getattr(one, part) for one in said) for part in ("message", "remedy"))
    return errors.InvalidArgument(message, remedy=remedy) if said else None


def test_an_error_names_options_and_commands_and_nothing_of_the_tools(run: Run, fake: FakePostroom) -> None:
    wrong, tried = [], set[tuple[str, str]]()
    for one in transcripts():
        if one.code or not one.answers or any(" " in name for name in one.answers):
            continue
        tell(fake, one.answers)
        run(*shlex.split(one.words))
        calls = [seen.body["params"] for seen in fake.seen if seen.body and "params" in seen.body]
        tool, fields = calls[-1]["name"], calls[-1]["arguments"]
        for name in fields:
            if (tool, name) in tried or (error := refusals(tool, name)) is None:
                continue
            tried.add((tool, name))
            fake.tools[tool] = lambda _, error=error: {"error": error.as_dict()}
            done = run(*shlex.split(one.words))
            if done.code != 2 or OF_TOOLS.search(done.err):
                wrong.append((one.words, name, done))
    assert wrong == []
    assert {
        ("send_message", "to"),
        ("file_reservation_paths", "ttl_seconds"),
        ("whois", "agent_name"),
    } <= tried
    assert len(tried) > 40


def test_an_error_says_what_to_type(run: Run, fake: FakePostroom) -> None:
    """Each row: a command, the arguments that its tool refuses, and the error."""
    for words, tool, given, said in (
        (
            "reservations reserve a --as Ada --ttl 9999d",
            "file_reservation_paths",
            {"ttl_seconds": 9999 * 86_400},
            "--ttl must be at most 365d\nremedy: run `postroom reservations reserve --help` to see the options\n",
        ),
        (
            "mail send --as Ada --to Ben -s S --thread 'a b' T",
            "send_message",
            {"thread_id": "a b"},
            "--thread must be 1 to 128 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit\n"
            "remedy: run `postroom mail send --help` to see the options\n",
        ),
        (
            "mail inbox --as Ada --limit 5",
            "fetch_inbox",
            {"limit": 0},
            "--limit must be a whole number of at least 1\n",
        ),
    ):
        good = {**arguments_of(tool), **given}
        try:
            read_command(OPERATIONS[tool].command, good)
        except errors.InvalidArgument as error:
            fake.tools[tool] = lambda _, error=error: {"error": error.as_dict()}
        assert run(*shlex.split(words)).err.startswith(said), words


def test_each_recipient_that_is_refused_is_told_on_a_line_of_its_own(run: Run, fake: FakePostroom) -> None:
    reasons = [errors.UnknownAgent(f"no agent {name}", value=name).as_dict() for name in ("Zoe", "Max")]
    refusal = errors.InvalidRecipients(
        "nothing was sent", remedy="see `details`", details={"recipients": reasons}
    )
    fake.tools["send_message"] = lambda _: {"error": refusal.as_dict()}
    words = ("mail", "send", "--as", "Ada", "--to", "Zoe", "--to", "Max", "-s", "S", "T")
    remedy = remedies.as_commands(errors.UnknownAgent.default_remedy)
    assert run(*words).err == f"nothing was sent\n  no agent Zoe: {remedy}\n  no agent Max: {remedy}\n"
    told = run(*words, "--json").document["error"]["details"]["recipients"]
    assert [one["remedy"] for one in told] == [remedy, remedy]
