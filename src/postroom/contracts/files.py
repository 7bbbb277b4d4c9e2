"""Files in chats, which a person sends with a message or a run sends, and the ports that store and read them.

A file is stored in pieces of at most `PIECE_BYTES`, and each piece is a blob under its own hash. A file of
one piece shares its blob with a mail attachment that has the same bytes. Code never has more than one piece
in memory.
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
"""The lock for changes that store or delete bytes; it is needed because several files may share a piece."""
PIECE_BYTES = 512 * 1024
"""Maximum number of bytes of a file that are in memory at once."""
MAX_LEFT = 20
"""Maximum number of files that one run can send."""


class ChatFile(Record, frozen=True, kw_only=True):
    """A file in a message or in the output of a run.

    If `sha256` is empty, the file could not be fetched, and `missing` states the reason. If `sha256` and
    `missing` are both set, the file is stored, but a model cannot read it.
    """

    thread_id: str
    message_id: str
    position: int
    name: str
    media_type: str
    """The file type that was detected from the bytes; the type that the sender declared is not used."""
    size: int
    sha256: str | None = None
    missing: str | None = None
    transcript: str | None = None
    """The transcript of the file's speech, if there is one."""

    @property
    def described(self) -> str:
        """Return a one-line description of the file."""
        return f"{quoted(self.name, longest=_NAME_LENGTH)} ({one_line(self.media_type)}, {self.size:,} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledFile:
    """A private temporary file, with the hash and size of the content."""

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """The content of a file, which can be read repeatedly."""

    size: int
    sha256: str
    pieces: Callable[[], AsyncIterator[bytes]]
    """Yields the bytes from the start, piece by piece."""

    async def whole(self) -> bytes:
        """Return the whole content of the file at once."""
        return b"".join([piece async for piece in self.pieces()])


class RunFiles(Protocol):
    """The files of one chat run."""

    async def of(self, message: Message) -> tuple[ChatFile, ...]:
        """Return the files of a message, after fetching missing files from the chat platform.

        If a file cannot be fetched, `missing` states the reason, and the sender is notified.

        Raises:
            ServerUnavailable: A file cannot be fetched now; the run must be retried.
        """
        ...

    async def not_taken(self, file: ChatFile, why: str) -> ChatFile:
        """Record that the agent cannot read a file, notify the sender, and return the updated file."""
        ...

    def content(self, file: ChatFile) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces."""
        ...

    async def leave(self, path: Path, position: int) -> ChatFile:
        """Store a file that the run sends to the chat.

        The chat receives the file after the run's answer.
        """
        ...

    @property
    def can_send(self) -> bool:
        """Whether the run's chat accepts files."""
        ...

    async def leave_text(self, name: str, text: str) -> ChatFile:
        """Store a text file that the run sends to the chat.

        A repeated call with the same name replaces the file.

        Raises:
            InvalidArgument: The name has no usable character, or the text is empty.
            TooLarge: The text exceeds the size limit of files, or the run has already stored `MAX_LEFT`
                other files.
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
"""Media types by file name extension. The table is fixed, because operating systems differ."""
_DEFAULT_NAMES = {"image": "picture", "audio": "sound", "video": "video", "text": "text"}


def plain_name(name: str | None) -> str:
    """Return a file name without directories and invisible characters.

    The result may be empty.
    """
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return "".join(value for value in last if value.isprintable() and value != "\ufffd").strip(". ")


def safe_name(name: str | None, media_type: str, position: int) -> str:
    """Return a usable file name for any name that a sender wrote."""
    plain = plain_name(name)
    if not plain:
        ending = next((f".{value}" for value, kind in _ENDINGS.items() if kind == media_type), "")
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
"""Number of bytes that are read to detect a file's type."""


def detect_media_type(head: bytes, name: str | None, *, is_sound: bool = False) -> str:
    """Return the media type that the first bytes of a file indicate.

    The file name only decides between types of text, and between types of zip files. `is_sound` is true if
    the sender declared the file as audio.
    """
    by_name = _ENDINGS.get((name or "").rpartition(".")[2].lower(), "")
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "application/octet-stream")
    if head[4:8] == b"ftyp":
        value = _FTYP.get(head[8:12], "video/mp4")
        return "audio/mp4" if is_sound and value == "video/mp4" else value
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
    """Return whether the first bytes of a file are UTF-8 text.

    The last character may be incomplete.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(value in "\t\n\r\f\x1b" or value >= " " for value in text)


def is_readable_text(media_type: str) -> bool:
    """Return whether a file with the given media type is text that can be shown."""
    return media_type.startswith("text/") or media_type in _TEXTS or media_type == "image/svg+xml"
