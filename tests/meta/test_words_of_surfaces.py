"""Errors of mail speak the language of their reader: tools for MCP, addresses and fields for HTTP, commands for the shell."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.cli.remedies import COMMANDS, FOR_AGENTS, at_the_command_line
from postroom.contracts import errors
from postroom.contracts.errors import InputError, all_errors
from postroom.http_api.words import over_http
from postroom.mail.operations import OPERATIONS

MAIL = Path(errors.__file__).parents[1] / "mail"
ELSEWHERE = ("archive", "merging.py", "retention.py", "tokens.py", "waking")
"""The parts of mail that only operators use, at the command line."""
ARGUMENTS = {name for one in OPERATIONS.values() for name in one.command.__struct_fields__}
PLAIN = sorted((name for name in ARGUMENTS if "_" not in name), key=len, reverse=True)
UNQUOTED = re.compile(rf"\b(?:set|use|give|omit|leave out|without) ({'|'.join(PLAIN)})\b(?! of)")
TOOL = re.compile(rf"(?<![\w/])(?<!the tool `)({'|'.join(OPERATIONS)})\b")
OPERATORS = re.compile(r"operator|person|people")
NOT_AT_THE_SHELL = {
    "before": "`postroom mail inbox` reads backwards by itself",
    "message_ids": "`postroom mail ack` takes the message that is given",
}
"""Arguments without an option, and how the command does without it."""


def _text(node: ast.AST | None) -> str:
    """Return the text of an expression; a value in it is 3."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(one) if isinstance(one, ast.Constant) else "3" for one in values)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{_text(body)}\n{_text(orelse)}"
    return ""


def _remedies() -> Iterator[str]:
    """Yield each remedy of mail, and those that errors have by default."""
    for path in sorted(MAIL.rglob("*.py")):
        if path.relative_to(MAIL).parts[0] in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.keyword) and node.arg == "remedy"
            assigned = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "remedy"
            if named or assigned:
                yield from filter(None, _text(node.value).split("\n"))  # type: ignore[attr-defined]
    for kind in all_errors():
        if issubclass(kind, errors.InputError | errors.StateError) and kind.default_remedy:
            yield kind.default_remedy


REMEDIES = sorted(set(_remedies()))
assert len(REMEDIES) > 100


@pytest.mark.parametrize("remedy", REMEDIES)
def test_a_remedy_of_mail_is_in_the_words_of_the_surface_that_shows_it(remedy: str) -> None:
    assert not UNQUOTED.search(remedy), "an argument stands in backticks, so that it can be translated"
    named = {name for name in re.findall(r"`?(\w+)`?", remedy) if name in ARGUMENTS and f"`{name}`" in remedy}
    for tool, operation in OPERATIONS.items():
        if not named <= set(operation.command.__struct_fields__):
            continue
        assert not TOOL.search(re.sub(r"`(?:GET|POST) /\S+`", "", over_http(remedy, operation)))
        if tool in FOR_AGENTS:
            continue
        said = at_the_command_line(InputError("x", remedy=remedy), COMMANDS[tool].split())["remedy"]
        assert not TOOL.search(said), said
        assert "to true" not in said, said
        left = {name for name in named if f"`{name}`" in said} - NOT_AT_THE_SHELL.keys()
        assert left == set(), (tool, said)


def test_a_client_is_not_told_to_run_a_command_that_is_its_operators() -> None:
    mails = [one for one in REMEDIES if "`postroom " in one and not OPERATORS.search(one)]
    by_default = {kind.default_remedy for kind in all_errors()}
    assert [one for one in mails if one not in by_default] == []
