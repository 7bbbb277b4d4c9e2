"""Files of chats: what came with a message, or was left by a run, and the ports that keep and hand them out.

A file's bytes are pieces of at most `PIECE_BYTES`, each a blob under its own hash; a file of one piece is the
same blob as an attachment of mail with these bytes. Nobody holds more than one piece in memory.
"""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import Record

PIECE_BYTES = 512 * 1024
"""The most of a file that is in memory at once."""


class ChatFile(Record, frozen=True, kw_only=True):
    """A file of a thread: the one at a position of a message, or of what a run has left (by the run's id).

    Without `sha256` it could not be had, and `missing` says why; with both, the agent does not take it.
    """

    thread_id: str
    message_id: str
    position: int
    name: str
    media_type: str
    """As its bytes tell it, whatever its sender said."""
    size: int
    sha256: str | None = None
    missing: str | None = None
    transcript: str | None = None
    """What is said in it, where it is speech and somebody wrote it down."""

    @property
    def described(self) -> str:
        """Name it for a person or an agent, in one line."""
        return f"{self.name} ({self.media_type}, {self.size:,} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledFile:
    """Bytes in a private file of ours on the disk, with their hash and their size."""

    path: Path
    sha256: str
    size: int


class FileStore(Protocol):
    """The files of chats, beside the messages they came with."""

    async def files(self, thread_id: str, message_ids: Collection[str]) -> tuple[ChatFile, ...]:
        """Return the files of these messages, or runs, of a thread, by message and position."""
        ...

    async def put_bytes(self, spooled: SpooledFile) -> None:
        """Store bytes once under their hash, piece by piece; what is there already is not written again.

        Safe to repeat when it was cut off.
        """
        ...

    async def put(self, file: ChatFile, *, notices: tuple[OutboxDraft, ...] = ()) -> None:
        """Store a file of a message, or what is known of it now, with what is to be said of it."""
        ...

    def content(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield the bytes under a hash, a piece at a time.

        Raises:
            UnknownMessage: there are none.
        """
        ...


class RunFiles(Protocol):
    """The files of one run of a chat, for its executor."""

    async def of(self, message: Message) -> tuple[ChatFile, ...]:
        """Return the files of a message of the run's thread, fetched and stored if they were not.

        One that cannot be had says why in `missing`; its sender is told too.

        Raises:
            ServerUnavailable: one could not be fetched now; the run is to be tried again.
        """
        ...

    async def not_taken(self, file: ChatFile, why: str) -> ChatFile:
        """Note that the agent cannot read a file, have its sender told, and return it as it is known now."""
        ...

    def content(self, file: ChatFile) -> AsyncIterator[bytes]:
        """Yield a file's bytes, a piece at a time."""
        ...

    async def leave(self, path: Path, position: int) -> ChatFile:
        """Take a file that the run has left; it is sent to the chat behind the run's answer."""
        ...
