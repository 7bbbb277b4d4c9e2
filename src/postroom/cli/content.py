"""The content of a message that a command sends: its text and its attachments."""

import base64
import itertools
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from postroom.contracts.errors import InvalidArgument, InvalidPath, TooLarge

STDIN: Final = "-"
_WAYS: Final = "the text as an argument, --body-file FILE, or - to read it from stdin"
LARGEST_BODY: Final = 64 * 1024 * 1024
LARGEST_ATTACHMENTS: Final = 512 * 1024 * 1024
"""The highest limit, in bytes, that a server can have. Larger files raise an error before they are read."""


def message_text(argument: str | None, file: str | None, attached: Sequence[Path] = ()) -> str:
    """Return the text of a message from an argument, a file or standard input (`-`).

    Raises:
        InvalidArgument: The message has no text or two texts, the text is not UTF-8, or the text is empty and
            no file is attached.
        InvalidPath: The file cannot be read.
        TooLarge: The text exceeds `LARGEST_BODY`.
    """
    text = _given_text(argument, file)
    if not text.strip() and not attached:
        raise InvalidArgument("the message has no text", value=text, remedy="write a text, or attach a file")
    return text


def _given_text(argument: str | None, file: str | None) -> str:
    if argument is None and file is None:
        raise InvalidArgument("no message text was given", remedy=f"give the text in one way: {_WAYS}")
    if argument is not None and file is not None:
        raise InvalidArgument(
            "the message text was given in two ways", value=file, remedy=f"use only one way: {_WAYS}"
        )
    source = file if file is not None else argument
    if source == STDIN:
        content = sys.stdin.buffer.read(LARGEST_BODY + 1)
    elif file is not None:
        content = _read(Path(file), LARGEST_BODY)
    else:
        return str(argument)
    if len(content) > LARGEST_BODY:
        raise _too_large(str(source), LARGEST_BODY)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"the text in {source!r} is not UTF-8: {error}",
            value=source,
            remedy="send the file with --attach instead",
        ) from error


def attachments(files: Sequence[Path]) -> list[dict[str, str]] | None:
    """Read files, and return their contents in the form of a tool argument; return None without files.

    Raises:
        InvalidPath: A file cannot be read.
        TooLarge: All files together exceed `LARGEST_ATTACHMENTS`.
    """
    items = []
    left = LARGEST_ATTACHMENTS
    for file in files:
        try:
            value = file.stat()
        except OSError as error:
            raise InvalidPath(f"{str(file)!r} cannot be read: {error.strerror}", value=str(file)) from error
        if not stat.S_ISREG(value.st_mode):
            raise InvalidPath(
                f"{str(file)!r} is not a regular file",
                value=str(file),
                remedy="pack the folder into one file",
            )
        if value.st_size > left:
            raise _too_large(str(file), left)
        content = _read(file, left)
        left -= len(content)
        items.append({"name": file.name, "content_base64": base64.b64encode(content).decode("ascii")})
    return items or None


def save_file(folder: Path, name: str, content: bytes) -> Path:
    """Write a file to a folder, and return the path of the file.

    A number is added to the name if the folder contains another file with this name. No copy is written if
    the folder contains a file with the same name and content.

    Raises:
        InvalidPath: The folder cannot be created, or the file cannot be written.
    """
    plain = Path(name.replace("\\", "/")).name.strip(". ") or "attachment"
    path = folder / plain
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(2):
            try:
                with path.open("xb") as file:
                    try:
                        file.write(content)
                        file.flush()
                    except OSError:
                        path.unlink(missing_ok=True)
                        raise
            except FileExistsError:
                if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                    return path
                path = folder / f"{Path(plain).stem} ({number}){Path(plain).suffix}"
            else:
                return path
    except OSError as error:
        raise InvalidPath(f"{str(path)!r} cannot be written: {error.strerror}", value=str(path)) from error
    raise AssertionError("unreachable: the loop has no end")


def _read(file: Path, limit: int) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(limit + 1)
    except OSError as error:
        raise InvalidPath(f"{str(file)!r} cannot be read: {error.strerror}", value=str(file)) from error
    if len(content) > limit:
        raise _too_large(str(file), limit)
    return content


def _too_large(name: str, limit: int) -> TooLarge:
    return TooLarge(
        f"{name!r} exceeds {limit} bytes",
        value=name,
        remedy="send a link to the file, or only part of the file",
    )
