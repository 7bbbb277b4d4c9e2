"""Compares records with their files in the archive, by Git's hashes."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from postroom.mail.archive import layout
from postroom.mail.archive.batch import Batch
from postroom.mail.archive.repository import ArchiveRepository


def differing_files(batch: Batch, blobs: Mapping[str, str], repository: ArchiveRepository) -> list[str]:
    """Return the paths of a batch's files that the archive lacks or has with other contents.

    A file in the layout of an older release is equal if its fields are. Digests of threads are skipped,
    because they are made from the messages. `blobs` are the hashes in the archive. Blocks.

    Raises:
        ArchiveUnavailable: A file cannot be read.
    """
    return [
        path
        for path, content in _expected(batch, blobs)
        if not _is_same(path, content, blobs.get(path), repository)
    ]


def _expected(batch: Batch, blobs: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    yield from ((path, content) for path, content in batch.files.items() if not path.startswith("threads/"))
    for message, content in batch.recalled:
        folder = f"{layout.message_folder(message.created_at)}/{message.id}-"
        yield next((path for path in blobs if path.startswith(folder)), folder), content


def _is_same(path: str, content: bytes, blob: str | None, repository: ArchiveRepository) -> bool:
    if blob is None:
        return False
    kind = "sha1" if len(blob) == 40 else "sha256"
    if hashlib.new(kind, b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest() == blob:
        return True
    found = repository.read(path)
    return found is not None and not path.startswith("attachments/") and _tell_the_same(path, content, found)


def _tell_the_same(path: str, content: bytes, found: bytes) -> bool:
    try:
        ours, theirs = _told(path, content), _told(path, found)
    except ValueError:
        return False
    if path.startswith("reservations/") and theirs.get("expires_at", "") <= ours["expires_at"]:
        del ours["expires_at"]  # every call of its agent extends it, and the archive is not told of each
    return all(theirs[name] == value for name, value in ours.items() if name in theirs)


def _told(path: str, content: bytes) -> dict[str, Any]:
    if not path.endswith(".md"):
        return dict(json.loads(content))
    head, body = layout.read_message_file(content)
    return {**head, "": body}
