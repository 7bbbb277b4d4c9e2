"""Keeps the inbound lines of all chats."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from typing_extensions import override

from postroom.contracts.chat import (
    MAX_LINES,
    InboundJournal,
    InboundLine,
    LineDraft,
    LineKey,
    LineMove,
    LineStatus,
    Received,
)
from postroom.contracts.errors import InvalidRecord, UnknownMessage
from postroom.contracts.messages import Json
from postroom.contracts.transactions import Store, Transaction
from postroom.stores.chats.rows import page, plain, refuse_unfit


class StoredLines(InboundJournal):
    """The lines of all chats in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    @override
    def storage_identity(self) -> str | None:
        return self._store.identity

    @override
    async def receive(self, draft: LineDraft, *, now: int | None = None) -> Received:
        key = draft.key
        refuse_unfit(
            draft.sender_id,
            platform=key.platform,
            account=key.account,
            chat_id=key.chat_id,
            message_id=key.message_id,
            session_key=draft.session_key,
        )
        asked = replace(draft, body=plain(draft.body))

        def change(tx: Transaction) -> Received:
            tx.lock(_chat(key))
            if known := tx.chats.line(key):
                return Received(line=known, is_new=False)
            return Received(line=tx.chats.insert_line(asked, _at(tx, now)), is_new=True)

        return await self._store.write(change, key=_chat(key))

    @override
    async def move(
        self, line_ids: Collection[int], move: LineMove, *, now: int | None = None
    ) -> tuple[InboundLine, ...]:
        refuse_unfit(move.thread_id, move.reason)
        asked = frozenset(line_ids)

        def change(tx: Transaction) -> tuple[InboundLine, ...]:
            tx.lock(*{_chat(line.key) for line in tx.chats.lines(asked)})
            found = tx.chats.lines(asked)
            if unknown := asked - {line.line_id for line in found}:
                raise UnknownMessage(f"no line {min(unknown)}", value=min(unknown))
            at = _at(tx, now)
            moved = tuple(line.moved(move, now=at) for line in found)
            tx.chats.move_lines(asked, move, at)
            return moved

        return await self._store.write(change)

    @override
    async def edit(self, key: LineKey, body: dict[str, Json], *, now: int | None = None) -> InboundLine:
        asked = plain(body)

        def change(tx: Transaction) -> InboundLine:
            tx.lock(_chat(key))
            line = tx.chats.line(key)
            if line is None:
                raise UnknownMessage(
                    f"no line {key.message_id!r} was received in this chat", value=key.message_id
                )
            edited = line.edited(asked, now=_at(tx, now))
            if edited is not line:
                tx.chats.put_body(edited)
            return edited

        return await self._store.write(change, key=_chat(key))

    @override
    async def find(self, key: LineKey) -> InboundLine | None:
        return await self._store.read(lambda tx: tx.chats.line(key))

    @override
    async def lines(self, line_ids: Collection[int]) -> tuple[InboundLine, ...]:
        asked = frozenset(line_ids)
        if len(asked) > MAX_LINES:
            raise InvalidRecord(
                f"{len(asked)} lines were asked for, {MAX_LINES} are the most", value=len(asked)
            )
        return await self._store.read(lambda tx: tuple(tx.chats.lines(asked, readable=True)))

    @override
    async def open_lines(
        self,
        *,
        status: LineStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_LINES,
    ) -> tuple[InboundLine, ...]:
        def look(tx: Transaction) -> Iterable[InboundLine]:
            return tx.chats.open_lines(status=status, session_key=session_key, after=after, limit=page(limit))

        return tuple(await self._store.read(look))

    @override
    async def newest(self, platform: str, *, limit: int = MAX_LINES) -> tuple[InboundLine, ...]:
        return tuple(await self._store.read(lambda tx: tx.chats.newest_lines(platform, limit=page(limit))))

    @override
    async def counts(self) -> dict[LineStatus, int]:
        return await self._store.read(lambda tx: tx.chats.count_lines())

    @override
    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        return await self._store.write(
            lambda tx: tx.chats.purge_lines(older_than=older_than, limit=max(limit, 0))
        )


def _chat(key: LineKey) -> str:
    """Return the name of the lock, in one chat, of whatever becomes of its lines."""
    return f"chat:{key.platform}/{key.account}/{key.chat_id}"


def _at(tx: Transaction, now: int | None) -> int:
    return tx.now() if now is None else now
