"""The files of a run for its program: a private folder with those that came, and one for those it leaves."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import PostroomError, StoreError
from postroom.contracts.files import ChatFile, RunFiles
from postroom.contracts.messages import ContentBlock, Message
from postroom.contracts.records import replace
from postroom.log import get_logger

_LOG = get_logger(__name__)
OUTBOX: Final = "POSTROOM_OUTBOX"
"""The variable that names the folder for files to send."""
MOST_LEFT: Final = 20
"""Files of one run that are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRoom:
    """What a program is told of files."""

    activation: RunActivation
    """The request, with the files named in its messages."""
    variables: dict[str, str]
    received: tuple[tuple[ChatFile, Path], ...] = ()
    outbox: Path | None = None
    files: RunFiles | None = None

    async def send(self) -> None:
        """Take what the program has left, by name; links and folders are not followed.

        Raises:
            StoreError: it could not be kept.
        """
        if self.files is None or self.outbox is None:
            return
        for position, path in enumerate(await asyncio.to_thread(_left, self.outbox)):
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
    """Make the folder of a run, for its owner alone, and remove it behind the block.

    Raises:
        ServerUnavailable: a file could not be fetched now.
    """
    if files is None:
        yield FileRoom(activation=activation, variables={})
        return
    inbox, outbox = folder / "in", folder / "out"
    await asyncio.to_thread(_made, folder, inbox, outbox)
    try:
        received: list[tuple[ChatFile, Path]] = []
        messages = [await _told(one, files, inbox, outbox, received) for one in activation.messages]
        yield FileRoom(
            activation=replace(activation, messages=tuple(messages)),
            variables={OUTBOX: str(outbox)},
            received=tuple(received),
            outbox=outbox,
            files=files,
        )
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _told(
    message: Message,
    files: RunFiles,
    inbox: Path,
    outbox: Path,
    received: list[tuple[ChatFile, Path]],
) -> Message:
    """Return a message that names its files, which are in the folder by then."""
    found = await files.of(message)
    if not found:
        return message
    lines = ["Files that came with this message:"]
    for file in found:
        if file.missing is not None:
            lines.append(f"- {file.described}: not here, {file.missing}")
            continue
        path = inbox / f"{len(received) + 1}-{file.name}"
        await _copied(file, files, path)
        received.append((file, path))
        lines.append(f"- {path} ({file.media_type}, {file.size:,} bytes)")
        if file.transcript is not None:
            lines.append(f"  What is said in it: {file.transcript}")
    lines.append(f"Files that you write into {outbox} are sent with your answer.")
    space = "\n\n" if message.text().strip() else ""
    return replace(message, content=(*message.content, ContentBlock(text=space + "\n".join(lines))))


async def _copied(file: ChatFile, files: RunFiles, path: Path) -> None:
    with await asyncio.to_thread(path.open, "xb", 0) as copy:
        async for piece in files.content(file):
            await asyncio.to_thread(copy.write, piece)


def _made(folder: Path, inbox: Path, outbox: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what a former execution of the run has left
    for one in (folder, inbox, outbox):
        one.mkdir(mode=0o700, parents=True)


def _left(outbox: Path) -> Sequence[Path]:
    found = sorted(one for one in outbox.iterdir() if one.is_file() and not one.is_symlink())
    if len(found) > MOST_LEFT:
        _LOG.warning("run.files_not_taken", more=len(found) - MOST_LEFT)
    return found[:MOST_LEFT]
