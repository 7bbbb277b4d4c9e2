"""Files of chats: what came with a message, or was left by a run, and the ports that keep and hand them out.

A file's bytes are pieces of at most `PIECE_BYTES`, each a blob under its own hash; a file of one piece is the
same blob as an attachment of mail with these bytes. Nobody holds more than one piece in memory.
"""

import codecs
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from postroom.contracts.messages import Message
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.records import Record

BYTES_LOCK = "bytes of files"
"""Locked by changes that store or remove bytes: a piece may be of several files."""
PIECE_BYTES = 512 * 1024
"""The most of a file that is in memory at once."""
MOST_LEFT = 20
"""Files of one run that are sent."""


class ChatFile(Record, frozen=True, kw_only=True):
    """A file of a thread: the one at a position of a message, or of what a run has left (by the run's id).

    Without `sha256` it could not be had, and `missing` says why; with both, a model cannot be shown it.
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
        return f"{quoted(self.name, longest=_NAME_LENGTH)} ({one_line(self.media_type)}, {self.size:,} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledFile:
    """Bytes in a private file of ours on the disk, with their hash and their size."""

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """A file's bytes, as often as they are wanted."""

    size: int
    sha256: str
    pieces: Callable[[], AsyncIterator[bytes]]
    """Yields them from the first on, a piece at a time."""

    async def whole(self) -> bytes:
        """Return all of them, for who cannot take pieces."""
        return b"".join([piece async for piece in self.pieces()])


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

    @property
    def can_send(self) -> bool:
        """Whether the run's chat takes files."""
        ...

    async def leave_text(self, name: str, text: str) -> ChatFile:
        """Take a file of text as `leave` does, in the place of one of the same name that the run has left.

        Done again, as after a crash, it leaves one file.

        Raises:
            InvalidArgument: nothing of the name can be kept, or there is no text.
            TooLarge: the text is larger than files may be, or the run has left `MOST_LEFT` others.
        """
        ...


_NAME_LENGTH = 100
_OFFICE = "application/vnd.openxmlformats-officedocument"
_ENDINGS = {
    "jpg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
    "svg": "image/svg+xml",
    "ogg": "audio/ogg",
    "mp3": "audio/mpeg",
    "m4a": "audio/mp4",
    "wav": "audio/wav",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "pdf": "application/pdf",
    "zip": "application/zip",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "py": "text/x-python",
    "json": "application/json",
    "xml": "application/xml",
    "toml": "application/toml",
    "sh": "application/x-sh",
}
"""The same on every machine: what a system says of endings differs."""
_DEFAULT_NAMES = {"image": "picture", "audio": "sound", "video": "video", "text": "text"}


def plain_name(name: str | None) -> str:
    """Return what is left of a name without folders and what is invisible; it may be nothing."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return "".join(one for one in last if one.isprintable() and one != "\ufffd").strip(". ")


def safe_name(name: str | None, media_type: str, position: int) -> str:
    """Return a name that is no path and holds nothing invisible, whatever the sender wrote."""
    plain = plain_name(name)
    if not plain:
        ending = next((f".{one}" for one, kind in _ENDINGS.items() if kind == media_type), "")
        return f"{_DEFAULT_NAMES.get(media_type.partition('/')[0], 'file')}-{position}{ending}"
    stem, dot, ending = plain.rpartition(".")
    if dot and len(ending) <= 10:
        return f"{stem[: _NAME_LENGTH - len(ending) - 1]}.{ending}"
    return plain[:_NAME_LENGTH]


_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"%PDF-", "application/pdf"),
    (b"\x1f\x8b", "application/gzip"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"MZ", "application/vnd.microsoft.portable-executable"),
    (b"\x7fELF", "application/x-executable"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_FTYP = {b"M4A ": "audio/mp4", b"heic": "image/heic", b"heix": "image/heic", b"avif": "image/avif"}
_TEXTS = ("application/json", "application/xml", "application/toml", "application/x-sh")
SNIFFED_BYTES = 4_096
"""How much of a file is looked at to tell its type."""


def media_type_of(head: bytes, name: str | None, *, is_sound: bool = False) -> str:
    """Return a file's type as its first bytes tell it; the name decides only between kinds of text and zip.

    Nothing is unpacked. `is_sound` says that a container which holds pictures and sound came as sound.
    """
    by_name = _ENDINGS.get((name or "").rpartition(".")[2].lower(), "")
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "application/octet-stream")
    if head[4:8] == b"ftyp":
        found = _FTYP.get(head[8:12], "video/mp4")
        return "audio/mp4" if is_sound and found == "video/mp4" else found
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return by_name if by_name.startswith(_OFFICE) else "application/zip"
    for magic, media_type in _MAGIC:
        if head.startswith(magic) and not (magic == b"BM" and is_text(head)):
            return "audio/webm" if is_sound and media_type == "video/webm" else media_type
    if not is_text(head):
        return "application/octet-stream"
    words = head[:1_024].lower()
    if b"<svg" in words:
        return "image/svg+xml"
    if b"<!doctype html" in words or b"<html" in words:
        return "text/html"
    return by_name if by_name.startswith("text/") or by_name in _TEXTS else "text/plain"


def is_text(head: bytes) -> bool:
    """Say whether bytes are text in UTF-8, of which the last character may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(one in "\t\n\r\f\x1b" or one >= " " for one in text)


def is_readable_text(media_type: str) -> bool:
    """Say whether a file of this type is text that can be shown as it is."""
    return media_type.startswith("text/") or media_type in _TEXTS or media_type == "image/svg+xml"
