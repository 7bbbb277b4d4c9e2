"""Storage of chat files: one record for each file, and its bytes in pieces."""

import asyncio
from collections.abc import AsyncIterator, Collection
from hashlib import sha256 as digest
from pathlib import Path

from postroom.contracts.dispatch import Claim
from postroom.contracts.errors import UnknownMessage
from postroom.contracts.files import BYTES_LOCK, PIECE_BYTES, ChatFile, SpooledFile
from postroom.contracts.outbox import OutboxDraft
from postroom.stores.sql_transaction import refuse_stale
from postroom.stores.store import SqlStore, Transaction


class FileStore:
    """The files of all chats."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def files(self, thread_id: str, message_ids: Collection[str]) -> tuple[ChatFile, ...]:
        """Return the files of messages or runs on a thread, ordered by message and position."""
        ids = sorted(set(message_ids))
        return tuple(await self._store.read(lambda tx: tx.chats.files(thread_id, ids)))

    async def put_bytes(self, spooled: SpooledFile) -> None:
        """Store the content of a file under its SHA-256; pieces that are already stored are skipped.

        An interrupted call can be repeated.
        """
        whole = max(1, -(-spooled.size // PIECE_BYTES))
        if await self._store.read(lambda tx: tx.chats.count_pieces(spooled.sha256)) == whole:
            is_kept = await self._store.write(
                lambda tx: tx.chats.keep_pieces(spooled.sha256, now=tx.now()), key=spooled.sha256
            )
            if is_kept == whole:  # a purge has not removed them meanwhile
                return
        for position in range(whole):
            piece = await asyncio.to_thread(_read, spooled.path, position)
            await self._put_piece(spooled.sha256, position, piece)

    async def _put_piece(self, sha256: str, position: int, content: bytes) -> None:
        piece = digest(content).hexdigest()

        def change(tx: Transaction) -> None:
            tx.lock(BYTES_LOCK)
            tx.chats.put_piece(sha256, position, piece, content, now=tx.now())

        await self._store.write(change, key=sha256)

    async def purge(self, before: int, *, limit: int = 100) -> int:
        """Delete the contents of up to `limit` unreferenced files; return the number of deleted files.

        `before` must be earlier than the arrival of the oldest open message, whose files may lack a record.
        """

        def change(tx: Transaction) -> int:
            tx.lock(BYTES_LOCK)
            return tx.chats.drop_unused_bytes(before, limit=limit)

        return await self._store.write(change, key=BYTES_LOCK)

    async def put(
        self, file: ChatFile, *, notices: tuple[OutboxDraft, ...] = (), claim: Claim | None = None
    ) -> None:
        """Store the record of a message's file, and the effects `notices`, in one transaction.

        Raises:
            StaleClaim: The execution lost its claim, so it may no longer write.
        """

        def change(tx: Transaction) -> None:
            tx.lock(file.thread_id, *(lock for notice in notices for lock in notice.locks))
            refuse_stale(tx.sql, claim)
            tx.chats.put_file(file)
            if notices:
                tx.outbox.enqueue(notices)

        await self._store.write(change, key=file.thread_id)

    async def content(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield the content of a file, which is found by its SHA-256, in pieces.

        Raises:
            UnknownMessage: No bytes are stored under this hash.
        """
        whole = await self._store.read(lambda tx: tx.chats.count_pieces(sha256))
        for position in range(max(1, whole)):
            content = await self._piece(sha256, position)
            if content is None:
                raise UnknownMessage("this file's content is missing from the store", value=sha256)
            yield content

    async def _piece(self, sha256: str, position: int) -> bytes | None:
        return await self._store.read(lambda tx: tx.chats.piece(sha256, position))


def _read(path: Path, position: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position * PIECE_BYTES)
        return file.read(PIECE_BYTES)
