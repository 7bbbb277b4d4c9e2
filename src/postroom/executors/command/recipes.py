"""What is known of each program: its command, how it goes on with a session, how its output is read.

`docs/clients.md` names the releases that were run with them. What another release does otherwise is put right
in its runner: `argv` there takes the place of the command here.
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
    """How the output is cut into what is read: plain text, a JSON object a line, or one for the whole."""

    TEXT = "text"
    LINES = "lines"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRules:
    """One program. The words stand behind the runner's command, in this order: resume, stdin or argument."""

    shape: Shape = Shape.TEXT
    command: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    with_stdin: tuple[str, ...] = ()
    with_argument: tuple[str, ...] = (runners.PROMPT,)
    one_word_is_command: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """What its environment holds beside what every program's does."""
    reader: LineReader | None = None
    expects: str = ""
    """What its output is known by."""
    expects_steered: str = ""
    """The same, where it takes messages while it works."""
    refusals: tuple[str, ...] = ()
    """Words, in small letters, by which the program says that it does not know the session."""


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
        with_stdin=(runners.PROMPT,),  # it reads an input only behind a prompt
        one_word_is_command=True,
        # Its hub would work with the variables of the session that began it, and not end with the run.
        variables={"CLINE_SESSION_BACKEND_MODE": "local"},
        reader=readers.cline,
        expects="a line of type `run_result`",
    ),
}


class Reading:
    """Reads one execution's output by its recipe; what it keeps is bounded."""

    def __init__(self, rules: RecipeRules, *, most: int) -> None:
        self._rules = rules
        self._most = most
        self._decoder = Decoder()
        self._lines = Lines(most)
        self.raw = Tail(most if rules.shape is not Shape.WHOLE else max(most, LEAST_LINE_BYTES))
        self._text = Tail(most)
        self.said = Said()
        self.heard: Callable[[Mapping[str, Any]], None] | None = None
        """Who else hears each line that is an object."""
        self._unknown: dict[str, None] = {}

    def take(self, chunk: bytes) -> str:
        """Return the text in a piece of output that is streamed."""
        self.raw.add(chunk)
        if self._rules.shape is Shape.TEXT:
            return self._decoder.text(chunk)
        if self._rules.shape is Shape.WHOLE:
            return ""
        return "".join(self._read(line) for line in self._lines.add(chunk))

    def end(self) -> str:
        """Return what is streamed when the output is over."""
        if self._rules.shape is Shape.TEXT:
            return self._decoder.text(b"", final=True)
        if self._rules.shape is Shape.LINES:
            return "".join(self._read(line) for line in self._lines.end())
        return next((text for one in _objects(self.raw.bytes()) if (text := self._read(one))), "")

    def answer(self) -> str:
        """Return the answer: what the program says it is, else its text, else its output as it came."""
        if self.said.answer is not None:
            told = Tail(self._most)
            told.add(storable(self.said.answer).encode())
            return told.text()
        if self._text.total or self.said.is_ended:
            return self._text.text()
        return self.raw.text()

    def kinds_not_known(self) -> str | None:
        """Return the types of the lines that came where no line said anything that is known here."""
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
    """Yield what may be the one JSON object in an output that has other lines before it."""
    end = output.rfind(b"}") + 1
    begins = [at.start() for at in islice(re.finditer(rb"^\{", output, re.MULTILINE), _MOST_TRIES)]
    yield from (output[begin:end] for begin in begins)


def refuses_session(rules: RecipeRules, reading: Reading, words: str) -> bool:
    """Say whether an execution failed because the program does not know the session it was to go on with."""
    told = f"{words}\n{reading.said.error or ''}".lower()
    return not reading.said.is_begun and any(refusal in told for refusal in rules.refusals)
