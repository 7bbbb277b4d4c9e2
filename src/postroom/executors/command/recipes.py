"""Recipes for known programs: the command, how to resume a session, how to read the output.

`docs/clients.md` names the tested releases. For a release that differs, `argv` in the runner replaces the
command here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from postroom.contracts import runners
from postroom.contracts.messages import storable
from postroom.executors.command import readers
from postroom.executors.command.readers import LineReader, Said
from postroom.executors.processes.child_environment import GEMINI_VARIABLES
from postroom.executors.processes.output import LEAST_LINE_BYTES, Decoder, Lines, Tail

SESSION: Final = "{session}"
_MOST_TRIES: Final = 20
_MOST_NAMED: Final = 80


class Shape(StrEnum):
    """The structure of the output: plain text, a JSON object per line, or a single object."""

    TEXT = "text"
    LINES = "lines"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRules:
    """The rules for a program. The arguments follow the command in this order: resume, stdin or argument."""

    shape: Shape = Shape.TEXT
    command: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    with_stdin: tuple[str, ...] = ()
    with_argument: tuple[str, ...] = (runners.PROMPT,)
    one_word_is_command: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment, in addition to those of every program."""
    reader: LineReader | None = None
    expects: str = ""
    """A description of its usual output."""
    expects_steered: str = ""
    """The same for a program that takes messages while it works."""
    refusals: tuple[str, ...] = ()
    """Lower-case phrases with which the program reports an unknown session."""


RECIPES: Final[dict[runners.Recipe, RecipeRules]] = {
    runners.Recipe.SHELL: RecipeRules(),
    runners.Recipe.CLAUDE: RecipeRules(
        shape=Shape.LINES,
        command=(
            *("claude", "-p", "--output-format", "stream-json", "--verbose"),
            *("--permission-mode", "acceptEdits"),
        ),
        resume=("--resume", SESSION),
        reader=readers.claude,
        expects="a line of type `result`",
        expects_steered="a line of type `result`",
        refusals=("no conversation found", "session not found", "invalid session"),
    ),
    runners.Recipe.CODEX: RecipeRules(
        shape=Shape.LINES,
        command=("codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write"),
        resume=("resume", SESSION),
        with_stdin=("-",),
        reader=readers.codex,
        expects="an `item.completed` with an `agent_message`",
        expects_steered="a `turn/completed` of its app-server",
        refusals=("no rollout found", "rollout not found", "missing rollout", "session not found"),
    ),
    runners.Recipe.GEMINI: RecipeRules(
        shape=Shape.WHOLE,
        command=("gemini", "--output-format", "json", "--approval-mode", "auto_edit"),
        resume=("--resume", SESSION),
        with_argument=("--prompt", runners.PROMPT),
        variables=GEMINI_VARIABLES,
        reader=readers.gemini,
        expects="an object with a `response`",
        refusals=("error resuming session", "invalid session", "no previous sessions"),
    ),
    runners.Recipe.OPENCODE: RecipeRules(
        shape=Shape.LINES,
        command=("opencode", "run", "--format", "json"),
        resume=("--session", SESSION),
        reader=readers.opencode,
        expects="lines of type `text` and `step_finish`",
        refusals=("session not found", "notfounderror", "invalid session"),
    ),
    runners.Recipe.COPILOT: RecipeRules(
        shape=Shape.LINES,
        command=("copilot", "--output-format", "json", "--allow-all-tools", "--no-auto-update"),
        resume=("--resume", SESSION),
        with_argument=("-p", runners.PROMPT),
        reader=readers.copilot,
        expects="a line of type `assistant.message`",
        refusals=("session not found", "no session"),
    ),
    runners.Recipe.CLINE: RecipeRules(
        shape=Shape.LINES,
        command=("cline", "--json"),
        with_stdin=(runners.PROMPT,),  # it reads its input only if there is a prompt
        one_word_is_command=True,
        # Its hub would work with the variables of the session that began it, and not end with the run.
        variables={"CLINE_SESSION_BACKEND_MODE": "local"},
        reader=readers.cline,
        expects="a line of type `run_result`",
    ),
}


class Reading:
    """Reads the output of one execution by its recipe, in bounded memory."""

    def __init__(self, rules: RecipeRules, *, most: int) -> None:
        self._rules = rules
        self._most = most
        self._decoder = Decoder()
        self._lines = Lines(most)
        self.raw = Tail(most if rules.shape is not Shape.WHOLE else max(most, LEAST_LINE_BYTES))
        self._text = Tail(most)
        self.said = Said()
        self.heard: Callable[[Mapping[str, Any]], None] | None = None
        """An additional listener for each line that is an object."""
        self._unknown: dict[str, None] = {}

    def take(self, chunk: bytes) -> str:
        """Return the text to stream from a piece of output."""
        self.raw.add(chunk)
        if self._rules.shape is Shape.TEXT:
            return self._decoder.text(chunk)
        if self._rules.shape is Shape.WHOLE:
            return ""
        return "".join(self._read(line) for line in self._lines.add(chunk))

    def end(self) -> str:
        """Return the remaining text to stream at the end of the output."""
        if self._rules.shape is Shape.TEXT:
            return self._decoder.text(b"", final=True)
        if self._rules.shape is Shape.LINES:
            return "".join(self._read(line) for line in self._lines.end())
        return next((text for one in _objects(self.raw.bytes()) if (text := self._read(one))), "")

    def answer(self) -> str:
        """Return the answer: as the program reports it, else its text, else its raw output."""
        if self.said.answer is not None:
            told = Tail(self._most)
            told.add(storable(self.said.answer).encode())
            return told.text()
        if self._text.total or self.said.is_ended:
            return self._text.text()
        return self.raw.text()

    def kinds_not_known(self) -> str | None:
        """Return the types of the lines, if no line has a known type."""
        is_known = self.said.is_begun or self.said.is_ended or self.said.error or self.said.answer
        return None if is_known or not self._unknown else ", ".join(f"`{kind}`" for kind in self._unknown)

    def _read(self, line: bytes) -> str:
        found = readers.object_in(line)
        if found is None or self._rules.reader is None:
            return ""
        before = replace(self.said)
        if self.heard is not None:
            self.heard(found)
        text = self._rules.reader(self.said, found)
        is_reply = self.heard is not None and "id" in found
        if found and not text and not is_reply and self.said == before and len(self._unknown) < _MOST_TRIES:
            self._unknown[str(found.get("type", ", ".join(map(str, found))))[:_MOST_NAMED]] = None
        self._text.add(storable(text).encode())
        return text


def _objects(output: bytes) -> Iterator[bytes]:
    """Yield candidates for the single JSON object in an output with other lines before it."""
    end = output.rfind(b"}") + 1
    begins = [at.start() for at in islice(re.finditer(rb"^\{", output, re.MULTILINE), _MOST_TRIES)]
    yield from (output[begin:end] for begin in begins)


def refuses_session(rules: RecipeRules, reading: Reading, words: str) -> bool:
    """Return whether an execution failed because the program does not know the session to resume."""
    told = f"{words}\n{reading.said.error or ''}".lower()
    return not reading.said.is_begun and any(refusal in told for refusal in rules.refusals)
