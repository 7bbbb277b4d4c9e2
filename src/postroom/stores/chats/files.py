"""Keeps the files of chats: what is known of each, and their bytes in pieces."""

import asyncio
from collections.abc import AsyncIterator, Collection
from hashlib import sha256 as digest
from pathlib import Path

from typing_extensions import override

from postroom.contracts.errors import UnknownMessage
from postroom.contracts.files import BYTES_LOCK, PIECE_BYTES, ChatFile, FileStore, SpooledFile
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.transactions import Store, Transaction


class StoredFiles(FileStore):
    """The files of chats in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    async def files(self, thread_id: str, message_ids: Collection[str]) -> tuple[ChatFile, ...]:
        asked = sorted(set(message_ids))
        return tuple(await self._store.read(lambda tx: tx.chats.files(thread_id, asked)))

    @override
    async def put_bytes(self, spooled: SpooledFile) -> None:
        whole = max(1, -(-spooled.size // PIECE_BYTES))
        if await self._store.read(lambda tx: tx.chats.count_pieces(spooled.sha256)) == whole:
            kept = await self._store.write(
                lambda tx: tx.chats.keep_pieces(spooled.sha256, now=tx.now()), key=spooled.sha256
            )
            if kept == whole:  # they were not removed meanwhile
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

    @override
    async def purge(self, before: int, *, limit: int = 100) -> int:
        def change(tx: Transaction) -> int:
            tx.lock(BYTES_LOCK)
            return tx.chats.drop_unused_bytes(before, limit=limit)

        return await self._store.write(change, key=BYTES_LOCK)

    @override
    async def put(self, file: ChatFile, *, notices: tuple[OutboxDraft, ...] = ()) -> None:
        def change(tx: Transaction) -> None:
            tx.lock(file.thread_id, *(lock for notice in notices for lock in notice.locks))
            tx.chats.put_file(file)
            if notices:
                tx.outbox.enqueue(notices)

        await self._store.write(change, key=file.thread_id)

    @override
    async def content(self, sha256: str) -> AsyncIterator[bytes]:
        whole = await self._store.read(lambda tx: tx.chats.count_pieces(sha256))
        for position in range(max(1, whole)):
            content = await self._piece(sha256, position)
            if content is None:
                raise UnknownMessage("the bytes of this file are not in the store", value=sha256)
            yield content

    async def _piece(self, sha256: str, position: int) -> bytes | None:
        return await self._store.read(lambda tx: tx.chats.piece(sha256, position))


def _read(path: Path, position: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position * PIECE_BYTES)
        return file.read(PIECE_BYTES)
