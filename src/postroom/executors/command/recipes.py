"""Recipes for known programs: the command, how to resume a session, how to read the output.

`docs/clients.md` names the tested releases. For a release that differs, `argv` in the runner replaces the
command here.

A reader takes text, answer, session and usage from the output of its program. Every reader ignores unknown
lines. If no line has the answer, the plain text is the answer.

Some programs take messages while they work, and report which ones they have taken:

    prompt ─▶ works ─▶ gets a message ─▶ takes it: it belongs to the run ─▶ answer ─▶ no more messages ─▶ ends
                              └─▶ never takes it: it waits, and starts the next run

A message belongs to the run when the program reports that its model gets it, and not before. If the program
ends after the message was only written to it, the message is still in the mailbox.
"""

import asyncio
import codecs
import json
import os
import re
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any, Final, Protocol

from postroom.concurrency import Tasks
from postroom.contracts import runners
from postroom.contracts.errors import CommandBusy, PostroomError, StaleClaim
from postroom.contracts.messages import Boundary, storable
from postroom.contracts.runners import Recipe, Runner
from postroom.contracts.runs import Usage
from postroom.executors.processes.output import LEAST_LINE_BYTES, Lines, StdinWriter, Stream, Tail
from postroom.executors.processes.process_runner import GEMINI_VARIABLES, Work
from postroom.log import get_logger
from postroom.ports import PendingBoundary
from postroom.version import __version__


@dataclass(slots=True)
class Said:
    """The content of the output that was read up to now."""

    answer: str | None = None
    error: str | None = None
    session: str | None = None
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False
    """Whether the model has output or called something."""
    is_ended: bool = False
    """Whether the program reported its end; without an answer before it, there is none."""
    must_end: bool = False
    """Whether the program always reports its end unless it is cut off."""
    earlier: str = ""
    """The answers of earlier turns; messages that arrived after them get separate answers."""
    last: str = ""
    """The last thing that happened, in the program's terms."""
    starts_anew: bool = False
    """Whether the next text starts another answer."""


LineReader = Callable[[Said, Mapping[str, Any]], str]
"""Processes a line of one program, a JSON object, and returns the text to stream."""


def object_in(line: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of a line, or None."""
    stripped = line.strip()
    if not stripped.startswith(b"{"):
        return None
    try:
        read = json.loads(stripped.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def claude(said: Said, line: Mapping[str, Any]) -> str:
    """Read `claude -p --output-format stream-json --verbose`: the line of type `result` has the answer."""
    kind = line.get("type")
    if kind == "user" and line.get("isReplay") is True and said.is_ended:
        said.earlier, said.is_ended = (
            _behind(said.answer),
            False,
        )  # a new turn for messages that came too late for this one
    if kind == "system":
        said.session = _text(line, "session_id") or said.session
    if kind == "assistant":
        said.is_begun = True
        content = _table(line, "message").get("content")
        blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
        return "".join(_text(one, "text") or "" for one in blocks if one.get("type") == "text")
    if kind == "result":
        said.is_ended = True
        result = _text(line, "result")
        failed = line.get("is_error") is True or str(line.get("subtype", "")).startswith("error")
        said.error = (result or _listed(line, "errors") or str(line.get("subtype"))) if failed else None
        said.answer = None if failed else f"{said.earlier}{result or ''}"
        said.session = _text(line, "session_id") or said.session
        used = _table(line, "usage")
        cached = _number(used, "cache_creation_input_tokens") + _number(used, "cache_read_input_tokens")
        said.usage = Usage(
            input_tokens=int(_number(used, "input_tokens") + cached),
            output_tokens=int(_number(used, "output_tokens")),
            cost_micros=round(_number(line, "total_cost_usd") * 1_000_000),
        )
    return ""


def codex(said: Said, line: Mapping[str, Any]) -> str:
    """Read `codex exec --json`: the last completed item with an agent's message is the answer."""
    if "method" in line:
        return codex_server(said, line)
    kind = line.get("type")
    if kind == "thread.started":
        said.session = _text(line, "thread_id") or said.session
    if kind in ("turn.failed", "error"):
        said.error = _text(_table(line, "error"), "message") or _text(line, "message") or kind
    if kind == "turn.completed":
        said.is_ended = True
        used = _table(line, "usage")
        said.usage += Usage(
            input_tokens=int(_number(used, "input_tokens")), output_tokens=int(_number(used, "output_tokens"))
        )
        said.error = None  # what it told before was overcome
    if kind == "item.completed":
        said.is_begun = True
        item = _table(line, "item")
        if (item.get("type") or item.get("item_type")) in ("agent_message", "assistant_message"):
            said.answer = _text(item, "text") or said.answer
            return _text(item, "text") or ""
    return ""


def codex_server(said: Said, line: Mapping[str, Any]) -> str:
    """Read `codex app-server`: as `codex exec`, in notifications.

    A user message right after an agent's message gets its own answer: both are kept.
    """
    params = _table(line, "params")
    if line["method"] == "turn/completed":
        turn = _table(params, "turn")
        said.is_ended, said.error = True, None
        if turn.get("status") != "completed":
            said.error = _text(_table(turn, "error"), "message") or f"the turn ended: {turn.get('status')}"
    if line["method"] == "thread/tokenUsage/updated":
        used = _table(_table(params, "tokenUsage"), "last")
        said.usage += Usage(
            input_tokens=int(_number(used, "inputTokens")), output_tokens=int(_number(used, "outputTokens"))
        )
    if line["method"] != "item/completed":
        return ""
    item, former = _table(params, "item"), said.last
    said.last = _text(item, "type") or ""
    if said.last == "userMessage" and former == "agentMessage":
        said.earlier = _behind(said.answer)
    if said.last != "userMessage":
        said.is_begun = True
    if said.last != "agentMessage":
        return ""
    text = _text(item, "text") or ""
    said.answer = f"{said.earlier}{text}"
    return text


def _behind(answer: str | None) -> str:
    """Return an answer as the prefix of another one."""
    return f"{answer}\n\n" if answer else ""


def gemini(said: Said, line: Mapping[str, Any]) -> str:
    """Read `gemini --output-format json`: one object in total; its `response` is the answer."""
    answer = _text(line, "response")
    error = line.get("error")
    if answer is None and error is None:
        return ""
    said.is_begun, said.is_ended = answer is not None, True
    said.answer = answer
    said.error = _text(error, "message") or str(error) if isinstance(error, dict) else None
    said.session = _text(line, "session_id") or _text(line, "sessionId") or said.session
    for model in _table(_table(line, "stats"), "models").values():
        tokens = _table(model, "tokens") if isinstance(model, dict) else {}
        said.usage += Usage(
            input_tokens=int(_number(tokens, "prompt")), output_tokens=int(_number(tokens, "candidates"))
        )
    return answer or ""


def opencode(said: Said, line: Mapping[str, Any]) -> str:
    """Read `opencode run --format json`: the texts of the last step with text are the answer.

    A step after the last step of its turn answers messages that arrived during the turn: both answers are
    kept.
    """
    kind, part = line.get("type"), _table(line, "part")
    said.session = _text(line, "sessionID") or _text(part, "sessionID") or said.session
    if kind == "error":
        error = _table(line, "error")
        said.error = _text(_table(error, "data"), "message") or _text(error, "name") or "error"
    if kind == "step_start":
        said.starts_anew = True
        if said.last == "stop":
            said.earlier = _behind(said.answer)
    if kind in ("text", "tool_use"):
        said.is_begun = True
    if kind == "text":
        before = said.earlier if said.starts_anew else said.answer or ""
        said.starts_anew = False
        said.answer = before + (_text(part, "text") or "")
        return _text(part, "text") or ""
    if kind == "step_finish":
        said.is_ended = True
        said.last = _text(part, "reason") or ""
        tokens = _table(part, "tokens")
        said.usage += Usage(
            input_tokens=int(_number(tokens, "input")),
            output_tokens=int(_number(tokens, "output")),
            cost_micros=round(_number(part, "cost") * 1_000_000),
        )
    return ""


def copilot(said: Said, line: Mapping[str, Any]) -> str:
    """Read `copilot -p --output-format json`: the last message of the assistant is the answer."""
    kind, data = line.get("type"), _table(line, "data")
    said.session = _text(line, "sessionId") or _text(data, "sessionId") or said.session
    if kind == "assistant.message":
        said.is_begun = True
        said.answer = _text(data, "content") or said.answer
        return _text(data, "content") or ""
    if kind in ("session.error", "error"):
        said.error = _text(data, "message") or _text(line, "message") or kind
    if kind == "result":
        said.is_ended = True
    return ""


def cline(said: Said, line: Mapping[str, Any]) -> str:
    """Read `cline --json`: the text of the line of type `run_result` is the answer."""
    kind, event = line.get("type"), _table(line, "event")
    if kind == "agent_event" and event.get("type") == "content_end":
        said.is_begun = True
        return (_text(event, "text") or "") if event.get("contentType") == "text" else ""
    if kind == "error":
        said.error = _text(line, "message") or kind
    if kind == "run_result":
        said.is_begun = said.is_ended = True
        said.answer = _text(line, "text")
        reason = _text(line, "finishReason") or ""
        said.error = None if reason == "completed" else said.error or f"its run ended: {reason}"
        used = _table(line, "aggregateUsage")
        said.usage = Usage(
            input_tokens=int(_number(used, "inputTokens")),
            output_tokens=int(_number(used, "outputTokens")),
            cost_micros=round(_number(used, "totalCost") * 1_000_000),
        )
    return ""


def _text(table: object, name: str) -> str | None:
    found = table.get(name) if isinstance(table, Mapping) else None
    return found if isinstance(found, str) and found else None


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _number(table: Mapping[str, Any], name: str) -> float:
    found = table.get(name)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return found if is_number and 0 <= found < 1e15 else 0  # type: ignore[operator,return-value]


def _listed(table: Mapping[str, Any], name: str) -> str | None:
    found = table.get(name)
    return "; ".join(str(one) for one in found) if isinstance(found, list) and found else None


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
        reader=claude,
        expects="a line of type `result`",
        expects_steered="a line of type `result`",
        refusals=("no conversation found", "session not found", "invalid session"),
    ),
    runners.Recipe.CODEX: RecipeRules(
        shape=Shape.LINES,
        command=("codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "workspace-write"),
        resume=("resume", SESSION),
        with_stdin=("-",),
        reader=codex,
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
        reader=gemini,
        expects="an object with a `response`",
        refusals=("error resuming session", "invalid session", "no previous sessions"),
    ),
    runners.Recipe.OPENCODE: RecipeRules(
        shape=Shape.LINES,
        command=("opencode", "run", "--format", "json"),
        resume=("--session", SESSION),
        reader=opencode,
        expects="lines of type `text` and `step_finish`",
        refusals=("session not found", "notfounderror", "invalid session"),
    ),
    runners.Recipe.COPILOT: RecipeRules(
        shape=Shape.LINES,
        command=("copilot", "--output-format", "json", "--allow-all-tools", "--no-auto-update"),
        resume=("--resume", SESSION),
        with_argument=("-p", runners.PROMPT),
        reader=copilot,
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
        reader=cline,
        expects="a line of type `run_result`",
    ),
}


class Reading:
    """Reads the output of one execution by its recipe, in bounded memory."""

    def __init__(self, rules: RecipeRules, *, most: int) -> None:
        self._rules = rules
        self._most = most
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
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
            return self._decoder.decode(chunk)
        if self._rules.shape is Shape.WHOLE:
            return ""
        return "".join(self._read(line) for line in self._lines.add(chunk))

    def end(self) -> str:
        """Return the remaining text to stream at the end of the output."""
        if self._rules.shape is Shape.TEXT:
            return self._decoder.decode(b"", final=True)
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
        found = object_in(line)
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


_LOG = get_logger(__name__)
Say = Callable[[Mapping[str, Any]], None]


class Steering(Protocol):
    """Sends messages to a program while it works. It does no I/O itself: it writes with `say`."""

    is_over: bool
    """Whether the program gets no further messages, because its work is done."""

    def begin(self) -> None:
        """Send the prompt."""
        ...

    def tell(self, text: str) -> str | None:
        """Send a message; return the program's name for it, or None if it takes none now."""
        ...

    def heard(self, line: Mapping[str, Any]) -> str | None:
        """Process a line of output; return the name of a message that the program reports as taken."""
        ...


class ClaudeSteering:
    """Messages for `claude -p` with `CLAUDE_WORDS`, which names the messages that it takes."""

    def __init__(self, say: Say, prompt: str) -> None:
        self._say = say
        self._prompt = prompt
        self.is_over = False

    def begin(self) -> None:
        """Send the prompt."""
        self.tell(self._prompt)

    def tell(self, text: str) -> str | None:
        """Send a message. The program reads it between two steps, or in a separate turn after this one."""
        if self.is_over:
            return None
        name = str(uuid.uuid4())  # a name that it knows from before, it passes over
        content = {"role": "user", "content": text}
        self._say({"type": "user", "uuid": name, "message": content})
        return name

    def heard(self, line: Mapping[str, Any]) -> str | None:
        """Process a line. After the result of a turn, only messages sent before it are still taken."""
        if line.get("type") == "result":
            self.is_over = True
        is_replay = line.get("type") == "user" and line.get("isReplay") is True
        return str(line.get("uuid")) if is_replay else None


class CodexSteering:
    """Messages for `codex app-server`: JSON-RPC with one thread and one turn, which takes more messages."""

    def __init__(self, say: Say, prompt: str, said: Said, *, cwd: str, session: str | None) -> None:
        self._say = say
        self._prompt = prompt
        self._said = said
        self._place = {"cwd": cwd, "approvalPolicy": "never", "sandbox": "workspace-write"}
        self._session = session
        self._asked: list[str] = []
        self._turn: str | None = None
        self.is_over = False

    def begin(self) -> None:
        """Send the first request; the others follow from the answers."""
        self._said.must_end = True
        us = {"name": "postroom", "title": "postroom", "version": __version__}
        self._ask("initialize", {"clientInfo": us})

    def tell(self, text: str) -> str | None:
        """Send a message into the turn; return None before the turn has started and after it has ended."""
        if self.is_over or self._turn is None:
            return None
        return self._told("turn/steer", text, expectedTurnId=self._turn)

    def heard(self, line: Mapping[str, Any]) -> str | None:
        """Process a line: an answer, a question, or an event of the turn."""
        if "method" not in line:
            self._answered(line)
            return None
        if "id" in line:
            refusal = {"code": -32601, "message": "no person can answer here"}
            self._say({"id": line["id"], "error": refusal})
            return None
        params = table(line, "params")
        if line["method"] == "turn/started":
            self._turn = text_of(table(params, "turn"), "id")
        if line["method"] == "turn/completed":
            self.is_over = True
        item = table(params, "item")
        is_taken = line["method"] == "item/started" and item.get("type") == "userMessage"
        return text_of(item, "clientId") if is_taken else None

    def _answered(self, line: Mapping[str, Any]) -> None:
        number = line.get("id")
        is_ours = isinstance(number, int) and 0 <= number < len(self._asked)
        asked = self._asked[number] if is_ours else ""  # type: ignore[index]
        if "error" in line:
            if asked not in ("", "turn/steer"):  # what comes too late for the turn waits for the next run
                why = text_of(table(line, "error"), "message") or "no reason was given"
                self._said.error = f"{asked}: {why}"
                self.is_over = True
        elif asked == "initialize":
            self._say({"method": "initialized", "params": {}})
            if self._session is None:
                self._ask("thread/start", self._place)
            else:
                self._ask("thread/resume", {**self._place, "threadId": self._session})
        elif asked in ("thread/start", "thread/resume"):
            self._session = self._said.session = text_of(table(table(line, "result"), "thread"), "id")
            self._told("turn/start", self._prompt)

    def _told(self, method: str, text: str, **more: str) -> str:
        name = str(uuid.uuid4())
        told = {"threadId": self._session, "input": [{"type": "text", "text": text}]}
        self._ask(method, {**told, "clientUserMessageId": name, **more})
        return name

    def _ask(self, method: str, params: Mapping[str, Any]) -> None:
        self._say({"id": len(self._asked), "method": method, "params": params})
        self._asked.append(method)


class OpencodeSteering:
    """Messages for our plugin in `opencode run`, which reports those that the model got."""

    def __init__(self, say: Say, said: Said) -> None:
        self._say = say
        self._said = said
        self.is_over = False

    def begin(self) -> None:
        """Do nothing: it has read its prompt."""

    def tell(self, text: str) -> str | None:
        """Add a message to the session for the next step of its turn; return None before it has started."""
        if self._said.session is None:
            return None
        name = str(uuid.uuid4())
        self._say({"session": self._said.session, "name": name, "text": text})
        return name

    def heard(self, line: Mapping[str, Any]) -> str | None:
        """Process a line; the turn ends with the program, which takes messages until then."""
        return text_of(line, "name") if line.get("type") == "postroom.taken" else None


def steered_words(runner: Runner, words: Sequence[str], connecting: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of a program that takes messages while it works.

    `words` is the command without such messages. A custom command is unchanged.
    """
    if runner.recipe is Recipe.CODEX:
        return (*(runner.argv or ("codex", "app-server")), *connecting)
    return tuple(words) if runner.argv or runner.recipe is Recipe.OPENCODE else (*words, *CLAUDE_WORDS)


_LONGEST_FOLDER: Final = 60
"""The longest path in bytes of a temporary folder for a socket: systems allow about 100 in total."""
CLAUDE_WORDS: Final = ("--input-format", "stream-json", "--replay-user-messages")


class SteeredTalk:
    """The conversation with a program that gets its prompt, and messages during its run."""

    def __init__(
        self, work: Work, reading: Reading, stream: Stream, *, prompt: str, session: str | None
    ) -> None:
        """Keep the parts; `session` is a session to resume."""
        self._work = work
        self._reading = reading
        self._stream = stream
        self._writer: StdinWriter | None = None
        self._is_deaf = False
        self._tasks = Tasks("steering")
        self._told: dict[str, str] = {}
        """The sent but not yet taken messages, by the program's names for them."""
        self._passed: set[str] = set()
        self._taken: list[str] = []
        if work.runner.recipe is Recipe.CODEX:
            cwd = work.runner.cwd
            self._steering: Steering = CodexSteering(
                self._say, prompt, reading.said, cwd=cwd, session=session
            )
        elif work.runner.recipe is Recipe.OPENCODE:
            self._steering = OpencodeSteering(self._say, reading.said)
        else:
            self._steering = ClaudeSteering(self._say, prompt)
        reading.heard = self._heard

    @asynccontextmanager
    async def plugin_socket(self) -> AsyncIterator[str]:
        """Wait for the program's plugin on a socket; yield its path, which only our user can open.

        Raises:
            CommandBusy: The system has no room for it now.
        """
        try:
            folder, listening = await asyncio.to_thread(_listening)
        except OSError as error:
            raise CommandBusy(f"no socket for messages during a run: {error.strerror or error}") from error
        server = await asyncio.get_running_loop().create_unix_server(self._plugin_came, sock=listening)
        try:
            yield listening.getsockname()
        finally:
            server.close()
            await asyncio.to_thread(folder.cleanup)

    def _plugin_came(self) -> StdinWriter:
        """Accept the first connection; programs that this one starts may connect too, and get nothing."""
        came = StdinWriter(self._fall_silent)
        self._writer = self._writer or came
        return came

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Send the prompt, and start to watch for messages."""
        if stdin is not None:
            self._writer = await StdinWriter.on(stdin, self._fall_silent)
        self._steering.begin()
        pending = self._work.control.pending
        if pending is not None:
            self._work.active.listens = True
            self._tasks.start(self._pass_on(pending), name="messages")

    async def take(self, chunk: bytes) -> None:
        """Read a piece of output.

        Messages that the program has taken become the run's before more is read.
        """
        await self._stream.pass_on(self._reading.take(chunk))
        if self._taken:
            taken, self._taken = self._taken, []
            await self._note(taken)
        if self._steering.is_over:
            self._finish()
        self._work.active.arrivals.set()  # between two steps is when to look: a hint may have been elsewhere

    async def part(self, gone: asyncio.Event) -> None:
        """Send nothing more."""
        self._finish()

    async def end(self) -> None:
        """Stream the rest, and release the program."""
        self._work.active.listens = False
        await self._tasks.close()
        if self._writer is not None:
            await self._writer.drop()
        await self._stream.pass_on(self._reading.end())

    def _finish(self) -> None:
        self._work.active.listens = False
        if self._writer is not None:
            self._writer.finish()

    def _fall_silent(self) -> None:
        """Send nothing more to a program that does not read."""
        self._is_deaf = True

    def _say(self, line: Mapping[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(line).encode() + b"\n")

    def _heard(self, line: Mapping[str, Any]) -> None:
        name = self._steering.heard(line)
        message_id = self._told.pop(name, None) if name is not None else None
        if message_id is not None:
            self._taken.append(message_id)

    async def _pass_on(self, pending: PendingBoundary) -> None:
        arrivals = self._work.active.arrivals
        while not (self._steering.is_over or self._is_deaf):
            arrivals.clear()
            try:
                for message in await pending.waiting(Boundary.NEXT_STEP):
                    self._tell(message.id or "", storable(message.text()))
            except PostroomError as error:  # they keep waiting, and the next round looks again
                _LOG.warning("command.not_steered", run_id=self._run_id, reason=error.describe())
            await arrivals.wait()

    def _tell(self, message_id: str, text: str) -> None:
        if self._writer is None or message_id in self._passed or not text.strip():
            return
        name = self._steering.tell(text)
        if name is not None:
            self._told[name] = message_id
            self._passed.add(message_id)

    async def _note(self, taken: Sequence[str]) -> None:
        """Make messages the run's; on failure they also start the next run, and none is lost."""
        pending = self._work.control.pending
        if pending is None:
            return
        try:
            await pending.freeze(Boundary.NEXT_STEP, only=frozenset(taken))
        except StaleClaim:
            self._work.active.cancel()
        except PostroomError as error:
            _LOG.warning("command.taken_not_noted", run_id=self._run_id, reason=error.describe())

    @property
    def _run_id(self) -> str:
        return self._work.active.identity.run_id


def _listening() -> "tuple[TemporaryDirectory[str], socket.socket]":
    """Return a socket in a private folder with a short path: socket paths are limited."""
    is_deep = len(os.fsencode(gettempdir())) > _LONGEST_FOLDER
    folder = TemporaryDirectory(prefix="postroom-", dir="/tmp" if is_deep else None)  # noqa: S108 - as above
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(f"{folder.name}/plugin")
    except OSError:
        listening.close()
        folder.cleanup()
        raise
    return folder, listening


def table(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table in a line; an empty one if it is not a table."""
    found = line.get(name)
    return found if isinstance(found, dict) else {}


def text_of(line: Mapping[str, Any], name: str) -> str | None:
    """Return a text in a line, if it is one."""
    found = line.get(name)
    return found if isinstance(found, str) and found else None
