"""Returns the identity, the prompt and the files of a run, for its executor."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import InvalidActivation, InvalidArgument, PostroomError, StoreError
from postroom.contracts.files import MAX_LEFT, ChatFile, RunFiles
from postroom.contracts.inference import CallerRequest
from postroom.contracts.messages import Boundary, ContentBlock, Message, storable
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.records import replace
from postroom.log import get_logger
from postroom.ports import PendingBoundary, RunControl


def build_prompt(activation: RunActivation) -> str:
    """Return the prompt of a run: the texts of the messages, separated by blank lines.

    Text from the calling program is placed before the message of the calling program.

    Raises:
        InvalidActivation: The messages contain no text.
        InvalidArgument: The caller requests something that only models can do.
    """
    texts = [text for message in activation.messages for text in _told(message) if text.strip()]
    if not texts:
        raise InvalidActivation(
            f"run {activation.run_id!r} contains no text for the agent", value=activation.run_id
        )
    return storable("\n\n".join(texts))


def _told(message: Message) -> tuple[str, ...]:
    request = CallerRequest.of(message)
    more = request.overrides.more if request.overrides else {}
    for name in ("tools", "tool_choice", "response_format"):
        if request.tools if name == "tools" else name in more:
            raise InvalidArgument(
                f"`{name}` requires an agent that is a model, but this agent is a program",
                value=name,
                remedy=f"remove {name}",
            )
    context = (f"{message.role}: {message.text()}" for message in request.context if message.text())
    earlier = "\n\n".join(context)
    return (
        request.instructions,
        f"Earlier in this conversation:\n\n{earlier}" if earlier else "",
        message.text(),
    )


_LOG = get_logger(__name__)
OUTBOX: Final = "POSTROOM_OUTBOX"
"""The environment variable with the path of the folder for files to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRoom:
    """The received files of a run, and the outbox folder for files that the run sends."""

    activation: RunActivation
    """The request of the run; its messages contain the names of their files."""
    variables: dict[str, str]
    received: tuple[tuple[ChatFile, Path], ...] = ()
    outbox: Path | None = None
    files: RunFiles | None = None

    async def send(self) -> None:
        """Store the files in the outbox of the run, ordered by name.

        Symbolic links and folders are ignored.

        Raises:
            StoreError: A file could not be stored.
        """
        if self.files is None or self.outbox is None:
            return
        for position, path in enumerate(await asyncio.to_thread(_list_outbox, self.outbox)):
            try:
                await self.files.leave(path, position)
            except StoreError:
                raise
            except (PostroomError, OSError) as error:
                _LOG.warning("run.file_not_taken", run_id=self.activation.run_id, reason=str(error))


@asynccontextmanager
async def file_room(
    activation: RunActivation, files: RunFiles | None, folder: Path
) -> AsyncIterator[FileRoom]:
    """Create the private folder for the files of a run, and remove the folder when the block ends.

    Raises:
        ServerUnavailable: A file could not be fetched now.
    """
    if files is None:
        yield FileRoom(activation=activation, variables={})
        return
    copies = _Copies(files, folder / "in", folder / "out")
    await asyncio.to_thread(_make_folders, folder, copies.inbox, copies.outbox)
    try:
        messages = [await copies.told(message) for message in activation.messages]
        control = activation.control
        if isinstance(control, RunControl) and control.pending is not None:
            control = replace(control, pending=_PendingWithFiles(control.pending, copies))
        yield FileRoom(
            activation=replace(activation, messages=tuple(messages), control=control),
            variables={OUTBOX: str(copies.outbox)},
            received=tuple(copies.received),
            outbox=copies.outbox,
            files=files,
        )
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class _Copies:
    def __init__(self, files: RunFiles, inbox: Path, outbox: Path) -> None:
        self.inbox, self.outbox = inbox, outbox
        self.received: list[tuple[ChatFile, Path]] = []
        self._files = files
        self._told: dict[str, Message] = {}

    async def told(self, message: Message) -> Message:
        cached = self._told.get(message.id or "")
        if cached is not None:
            return cached
        files = await self._files.of(message)
        if not files:
            return message
        lines = ["Files that came with this message:"]
        for file in files:
            if file.sha256 is None:
                lines.append(f"- {file.described}: missing, {one_line(file.missing or '')}")
                continue
            path = self.inbox / f"{len(self.received) + 1}-{file.name}"
            with await asyncio.to_thread(path.open, "xb", 0) as copy:
                async for piece in self._files.content(file):
                    await asyncio.to_thread(copy.write, piece)
            self.received.append((file, path))
            lines.append(f"- {one_line(str(path))} ({one_line(file.media_type)}, {file.size:,} bytes)")
            if file.transcript is not None:
                lines.append(f"  Transcript: {_limit_text(file.transcript)}")
        lines.append(f"Files that you write to {self.outbox} are sent with your answer.")
        text = self._told[message.id or ""] = _saying(message, lines)
        return text


class _PendingWithFiles:
    def __init__(self, within: PendingBoundary, copies: _Copies) -> None:
        self._within = within
        self._copies = copies

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        waiting = await self._within.waiting(boundary, group=group)
        return tuple([await self._copies.told(message) for message in waiting])

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        return await self._within.freeze(boundary, group=group, only=only)

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        await self._within.stage(boundary, messages)


async def without_files(activation: RunActivation) -> RunActivation:
    """Return the request with a note in place of each file, for an agent that receives no files."""
    control = activation.control
    if not isinstance(control, RunControl) or control.files is None:
        return activation
    messages: list[Message] = []
    for message in activation.messages:
        lines: list[str] = []
        for file in await control.files.of(message):
            result = file
            if file.missing is None and file.transcript is None:
                result = await control.files.not_taken(file, "agents on another server get no files")
            why = one_line(result.missing or "")
            text = why if result.transcript is None else f"its transcript: {_limit_text(result.transcript)}"
            lines.append(f"[The file {result.described} is missing: {text}]")
        messages.append(_saying(message, lines) if lines else message)
    return replace(activation, messages=tuple(messages))


def _limit_text(words: str) -> str:
    return quoted(words, longest=len(words) + 1)


def _saying(message: Message, lines: Sequence[str]) -> Message:
    space = "\n\n" if message.text().strip() else ""
    return replace(message, content=(*message.content, ContentBlock(text=space + "\n".join(lines))))


def _make_folders(folder: Path, inbox: Path, outbox: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # remove files from an earlier execution of the run
    for directory in (folder, inbox, outbox):
        directory.mkdir(mode=0o700, parents=True)


def _list_outbox(outbox: Path) -> Sequence[Path]:
    paths = sorted(path for path in outbox.iterdir() if path.is_file() and not path.is_symlink())
    if len(paths) > MAX_LEFT:
        _LOG.warning("run.files_not_taken", more=len(paths) - MAX_LEFT)
    return paths[:MAX_LEFT]
