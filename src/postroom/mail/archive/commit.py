"""The parts of one commit: its permitted paths, its message, and the stream from which Git builds it.

Pure text. Every byte for `git fast-import` is assembled here, so that hostile names and texts are neutralized
here.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence

from postroom.contracts.errors import InvalidArgument, InvalidPath

SUBJECT_LIMIT = 72
SEGMENT_LIMIT = 255
"""Maximum bytes in one name: common file systems cannot check out more."""
PATH_LIMIT = 4096
"""Maximum bytes in one path: newer releases of `git fsck --strict` report more."""
NO_SUBJECT = "(no subject)"

# Names that Git takes for its own, here or when the archive is checked out on macOS or Windows, where case,
# trailing dots and blanks, a stream name after a colon and invisible characters do not count. "gi....~1" is
# how Windows shortens them. All of them are also findings of `git fsck --strict`.
_RESERVED = re.compile(r"\.git(modules)?|gi[^~.]{0,4}~\d+")
_INVISIBLE = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF], None
)
_ESCAPED = re.compile(rb'[\x00-\x1f\x7f"\\]')
_TRAILER_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_IDENTITY = re.compile(r"[^<>\x00-\x1f\x7f]+")


def checked_path(path: str) -> str:
    """Return a path that is safe in the archive's tree and in any checkout of it.

    Raises:
        InvalidPath: The path is empty, absolute, leaves the tree, names a file of Git itself, or is too long.
    """
    if fault := _fault(path):
        raise InvalidPath(
            f"{path!r} cannot be archived: {fault}",
            value=path,
            remedy="give a relative path of plain names, separated by /",
        )
    return path


def checked_identity(name: str, email: str) -> str:
    """Return `Name <email>` in the form for a commit.

    Raises:
        InvalidArgument: A part is blank or contains angle brackets or control characters.
    """
    for text in (name, email):
        if not _IDENTITY.fullmatch(text.strip()):
            raise InvalidArgument(
                f"{text!r} is not allowed in a commit: it is blank or contains <, > or control characters",
                value=text,
            )
    return f"{name.strip()} <{email.strip()}>"


def message(subject: str, body: str, trailers: Sequence[tuple[str, str]]) -> str:
    """Return a commit message: a subject of one short line, the body, the trailers.

    Raises:
        InvalidArgument: A trailer's key is invalid.
    """
    for key, _ in trailers:
        if not _TRAILER_KEY.fullmatch(key):
            raise InvalidArgument(
                f"{key!r} is not a valid trailer key: use letters, digits and hyphens", value=key
            )
    parts = [
        _one_line(subject)[:SUBJECT_LIMIT].rstrip() or NO_SUBJECT,
        _without_controls("\n".join(body.splitlines())).strip(),
        "\n".join(f"{key}: {_one_line(value)}".rstrip() for key, value in trailers),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def file_changes(files: Mapping[str, bytes]) -> bytes:
    """Return the stream's lines that add or replace `files`.

    Raises:
        InvalidPath: A path is not safe, or is both a file and the folder of another file.
    """
    for path in files:
        segments = checked_path(path).split("/")
        for depth in range(1, len(segments)):
            if (folder := "/".join(segments[:depth])) in files:
                raise InvalidPath(f"{folder!r} is both a file and the folder of {path!r}", value=path)
    parts: list[bytes] = []
    for path, content in files.items():
        parts += [b"M 100644 inline ", _quoted(path), b"\n", _data(content)]
    return b"".join(parts)


def file_removals(paths: Sequence[str]) -> bytes:
    """Return the stream's lines that remove files; missing files are ignored.

    Raises:
        InvalidPath: A path is not safe.
    """
    return b"".join(b"D %b\n" % _quoted(checked_path(path)) for path in paths)


def commit_stream(
    *, ref: str, identity: str, now: int, text: str, changes: bytes, parent: str | None
) -> bytes:
    """Return the whole stream for one commit; Git answers it with the commit's id.

    `ref` is a name for this stream only: the reset removes it before Git writes any ref, so that neither a
    failure nor a kill can leave it behind.
    """
    who = f"{identity} {now // 1000} +0000"
    head = f"commit {ref}\nmark :1\nauthor {who}\ncommitter {who}\n".encode()
    origin = f"from {parent}\n".encode() if parent else b""
    tail = f"\nget-mark :1\nreset {ref}\n\ndone\n".encode()
    return b"".join([head, _data(text.encode("utf-8", "replace")), origin, changes, tail])


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _quoted(path: str) -> bytes:
    escaped = _ESCAPED.sub(lambda found: b"\\%03o" % found[0][0], path.encode())
    return b'"%b"' % escaped


def _one_line(text: str) -> str:
    return _without_controls(" ".join(text.split()))


def _without_controls(text: str) -> str:
    """Remove characters that could move a terminal's cursor or end a message early; keep lines and tabs."""
    return "".join(sign for sign in text if sign in "\n\t" or unicodedata.category(sign) != "Cc")


def _fault(path: str) -> str | None:
    """Return the fault of a path, or None."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not text"
    if not path or "\0" in path:
        return "it is empty or contains a zero byte"
    if len(encoded) > PATH_LIMIT:
        return f"it is longer than {PATH_LIMIT} bytes"
    faults = (_segment_fault(segment) for segment in path.split("/"))
    return next((fault for fault in faults if fault), None)


def _segment_fault(segment: str) -> str | None:
    if not segment:
        return "it is absolute, or contains an empty name"
    if len(segment.encode()) > SEGMENT_LIMIT:
        return f"it contains a name longer than {SEGMENT_LIMIT} bytes"
    # Where a backslash separates too, each part counts as a name.
    for name in segment.split("\\"):
        if name in {".", ".."}:
            return "it leaves its folder"
        plain = name.translate(_INVISIBLE).partition(":")[0].rstrip(" .").lower()
        if _RESERVED.fullmatch(plain):
            return f"{name!r} is reserved by Git"
    return None
