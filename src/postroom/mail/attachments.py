"""Reads and checks attachments before a message is stored, and reads no file outside the project's folder.

Attachments are read on a worker thread before the transaction, because files and images may be slow to read,
and malicious.
"""

import base64
import binascii
import hashlib
import io
import mimetypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from postroom.contracts.errors import InputError, InvalidArgument, InvalidPath, TooLarge
from postroom.contracts.mail import Attachment
from postroom.mail.commands import AttachmentIn
from postroom.mail.context import LoadedAttachment, Rules

PREVIEW_PIXELS = 512
PREVIEWED = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
"""The image formats that are decoded. Some decoders of other formats start another program."""
MAX_IMAGE_PIXELS = 40_000_000
"""Maximum number of pixels of a decoded image. A larger image is stored without a preview."""


def load_attachments(asked: Sequence[AttachmentIn], *, root: str, rules: Rules) -> list[LoadedAttachment]:
    """Read the contents of the attachments of a message.

    Raises:
        TooLarge: A file, all files together, or the number of files exceeds its limit.
        InvalidPath: A file is outside the project's folder, is not a regular file, or cannot be read.
        InvalidArgument: Path and content are both missing, or the content is not base64.
    """
    if len(asked) > rules.max_attachments:
        raise TooLarge(
            f"{len(asked)} attachments exceed the limit of {rules.max_attachments}",
            value=len(asked),
            remedy="send the files in several messages",
        )
    loaded = []
    total = 0
    for attachment in asked:
        if attachment.path is not None and attachment.content_base64 is None:
            name = attachment.name or Path(attachment.path).name
            content = _read_inside(Path(root), attachment.path, rules)
        elif attachment.content_base64 is not None and attachment.path is None and attachment.name:
            name, content = attachment.name, _decode(attachment.name, attachment.content_base64, rules)
        else:
            raise InvalidArgument(
                "an attachment needs either `path`, or `name` with `content_base64`",
                value=attachment.path or attachment.name,
                remedy="use exactly one of the two forms",
            )
        total += len(content)
        if total > rules.max_attachments_bytes:
            raise TooLarge(
                f"the attachments together exceed {rules.max_attachments_bytes} bytes",
                value=total,
                remedy="send the files in several messages",
            )
        loaded.append(_load(name, content, rules))
    return loaded


def _decode(name: str, text: str, rules: Rules) -> bytes:
    text = "".join(text.split())  # many encoders insert line breaks
    if len(text) > rules.max_attachment_bytes * 4 // 3 + 4:
        raise _too_large(name, len(text) * 3 // 4, rules)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(
            f"the content of {name!r} is not base64", value=name, remedy="encode it with standard base64"
        ) from error
    if len(content) > rules.max_attachment_bytes:
        raise _too_large(name, len(content), rules)
    return content


def _read_inside(root: Path, asked: str, rules: Rules) -> bytes:
    """Read a file, without following symbolic links that lead out of the project's folder."""
    try:
        real_root = root.resolve(strict=True)
        path = (real_root / asked).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(asked, "is not a file that the server can read") from error
    if not path.is_relative_to(real_root):
        raise _unreadable(asked, "is outside the project's folder")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(asked, "is not a file that the server can read") from error
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)  # a folder cannot be read, and a device or pipe may block forever
        raise _unreadable(asked, "is not a regular file")
    with os.fdopen(handle, "rb") as file:
        if facts.st_size > rules.max_attachment_bytes:
            raise _too_large(asked, facts.st_size, rules)
        content = file.read(rules.max_attachment_bytes + 1)
    if len(content) > rules.max_attachment_bytes:
        raise _too_large(asked, len(content), rules)
    return content


def _unreadable(asked: str, why: str) -> InputError:
    return InvalidPath(
        f"attachment {asked[:200]!r} {why}",
        value=asked[:200],
        remedy="give a regular file inside the project's folder, or send its content as content_base64",
    )


def _too_large(name: str, size: int, rules: Rules) -> TooLarge:
    return TooLarge(
        f"attachment {name[:200]!r} has {size} bytes; the limit is {rules.max_attachment_bytes}",
        value=size,
        remedy="send a smaller file, or send the path at which others find the file",
    )


def _load(name: str, content: bytes, rules: Rules) -> LoadedAttachment:
    plain = "".join(character for character in Path(name.replace("\\", "/")).name if character.isprintable())
    media_type = mimetypes.guess_type(plain)[0] or "application/octet-stream"
    preview = None
    if media_type.startswith("image/") and len(content) > rules.inline_image_max_bytes:
        preview = make_preview(content)
    return LoadedAttachment(
        attachment=Attachment(
            sha256=hashlib.sha256(content).hexdigest(),
            name=plain[:255] if plain.strip(". ") else "attachment",
            media_type=media_type,
            size=len(content),
            preview_sha256=hashlib.sha256(preview).hexdigest() if preview else None,
        ),
        content=content,
        preview=preview,
    )


def make_preview(content: bytes) -> bytes | None:
    """Return a WebP preview of at most 512 x 512 pixels, or None if the content is not an image."""
    from PIL import Image  # imported here, because only mail with images needs it

    try:
        with Image.open(io.BytesIO(content), formats=PREVIEWED) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                return None
            image.thumbnail((PREVIEW_PIXELS, PREVIEW_PIXELS))
            shown = image if image.mode in ("RGB", "RGBA") else image.convert("RGBA")
            out = io.BytesIO()
            shown.save(out, format="WEBP", quality=80)
            return out.getvalue()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Warning):
        # The file is no image, or a damaged one: store it unchanged, without a preview. Warnings are raised
        # only if the interpreter is configured so.
        return None
