"""Programs that take messages while they work, and report which ones they have taken.

    prompt ─▶ works ─▶ gets a message ─▶ takes it: it belongs to the run ─▶ answer ─▶ no more messages ─▶ ends
                              └─▶ never takes it: it waits, and starts the next run

A message belongs to the run when the program reports that its model gets it, and not before. If the program
ends after the message was only written to it, the message is still in the mailbox.
"""

import asyncio
import json
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any, Final, Protocol

from postroom.concurrency import Tasks
from postroom.contracts.errors import CommandBusy, PostroomError, StaleClaim
from postroom.contracts.messages import Boundary, storable
from postroom.contracts.runners import Recipe, Runner
from postroom.executors.command.readers import Said
from postroom.executors.command.recipes import Reading
from postroom.executors.processes.output import Stream
from postroom.executors.processes.pipes import StdinWriter
from postroom.executors.processes.process_runner import Work
from postroom.log import get_logger
from postroom.ports import PendingBoundary
from postroom.version import __version__

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
