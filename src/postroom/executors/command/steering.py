"""Talks to programs that accept messages while they work, and report which messages they have read.

    prompt ─▶ works ─▶ gets a message ─▶ reads it: it belongs to the run ─▶ answer ─▶ no more messages ─▶ ends
                              └─▶ never reads it: it waits, and starts the next run

A message belongs to the run only after the program has reported that the model gets the message. If the
program ends before that, the message is still in the mailbox.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any, Final

from postroom.concurrency import Tasks
from postroom.contracts.errors import CommandBusy, PostroomError, StaleClaim
from postroom.contracts.messages import Boundary, storable
from postroom.executors.clients.client import Steering
from postroom.executors.command.reading import Reading
from postroom.executors.processes.output import StdinWriter, Stream
from postroom.executors.processes.process_runner import Work
from postroom.log import get_logger
from postroom.ports import PendingBoundary

_LOG = get_logger(__name__)
_MAX_FOLDER_LENGTH: Final = 60
"""Maximum length in bytes of the temporary folder's path for a socket; systems allow about 100 for the whole
path.
"""


class SteeredTalk:
    """A conversation with a program that receives messages while the program is working."""

    def __init__(
        self,
        steering: type[Steering],
        work: Work,
        reading: Reading,
        stream: Stream,
        *,
        prompt: str,
        session: str | None,
    ) -> None:
        self._work = work
        work.active.listens = work.control.pending is not None
        self._reading = reading
        self._stream = stream
        self._writer: StdinWriter | None = None
        self._is_deaf = False
        self._tasks = Tasks("steering")
        self._told: dict[str, str] = {}
        """Messages that were sent, but not yet reported as read, keyed by the program's names for them."""
        self._passed: set[str] = set()
        self._taken: list[str] = []
        self._steering = steering(
            self._say, reading.said, prompt=prompt, cwd=work.runner.cwd, session=session
        )
        reading.heard = self._on_message

    @asynccontextmanager
    async def plugin_socket(self) -> AsyncIterator[str]:
        """Listen on a private Unix socket for the plugin of the program, and yield the path of the socket.

        Raises:
            CommandBusy: The system has no resources for the socket now.
        """
        try:
            folder, listening = await asyncio.to_thread(_listening)
        except OSError as error:
            raise CommandBusy(
                f"the socket for messages during a run could not be opened: {error.strerror or error}"
            ) from error
        server = await asyncio.get_running_loop().create_unix_server(self._plugin_came, sock=listening)
        try:
            yield listening.getsockname()
        finally:
            server.close()
            await asyncio.to_thread(folder.cleanup)

    def _plugin_came(self) -> StdinWriter:
        came = StdinWriter(self._fall_silent)
        self._writer = self._writer or came
        return came

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Send the prompt to the program, and start to send new messages."""
        if stdin is not None:
            self._writer = await StdinWriter.on(stdin, self._fall_silent)
        self._steering.begin()
        pending = self._work.control.pending
        if pending is not None:
            self._tasks.start(self._pass_on(pending), name="messages")

    async def take(self, chunk: bytes) -> None:
        """Process a piece of output, and assign the messages that the program has read to the run."""
        await self._stream.pass_on(self._reading.take(chunk))
        if self._taken:
            taken, self._taken = self._taken, []
            # Assign messages to the run. If this fails, they also start the next run, so that none is lost.
            pending = self._work.control.pending
            if pending is not None:
                try:
                    await pending.freeze(Boundary.NEXT_STEP, only=frozenset(taken))
                except StaleClaim:
                    self._work.active.cancel()
                except PostroomError as error:
                    _LOG.warning("command.taken_not_noted", run_id=self._run_id, reason=error.describe())
        if self._steering.is_over:
            self._finish()
        # look for pending messages between two steps, because a notification may be lost
        self._work.active.arrivals.set()

    async def part(self, gone: asyncio.Event) -> None:
        """Stop sending messages to the program."""
        self._finish()

    async def end(self) -> None:
        """Stream the rest of the output, and close the program's input."""
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
        self._is_deaf = True

    def _say(self, line: Mapping[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(line).encode() + b"\n")

    def _on_message(self, line: Mapping[str, Any]) -> None:
        name = self._steering.process_line(line)
        message_id = self._told.pop(name, None) if name is not None else None
        if message_id is not None:
            self._taken.append(message_id)

    async def _pass_on(self, pending: PendingBoundary) -> None:
        arrivals = self._work.active.arrivals
        while not (self._steering.is_over or self._is_deaf):
            arrivals.clear()
            try:
                for message in await pending.waiting(Boundary.NEXT_STEP):
                    message_id = message.id or ""
                    text = storable(message.text())
                    if not (self._writer is None or message_id in self._passed or not text.strip()):
                        name = self._steering.tell(text)
                        if name is not None:
                            self._told[name] = message_id
                            self._passed.add(message_id)
            except PostroomError as error:  # the messages stay pending; the next round tries again
                _LOG.warning("command.not_steered", run_id=self._run_id, reason=error.describe())
            await arrivals.wait()

    @property
    def _run_id(self) -> str:
        return self._work.active.identity.run_id


def _listening() -> "tuple[TemporaryDirectory[str], socket.socket]":
    is_deep = len(os.fsencode(gettempdir())) > _MAX_FOLDER_LENGTH
    folder = TemporaryDirectory(prefix="postroom-", dir="/tmp" if is_deep else None)  # noqa: S108 - as above
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(f"{folder.name}/plugin")
    except OSError:
        listening.close()
        folder.cleanup()
        raise
    return folder, listening
