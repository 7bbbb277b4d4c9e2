"""Keeps the inbound messages of all chats."""

from collections.abc import Callable, Collection, Iterable

from typing_extensions import override

from postroom.contracts.chat import (
    MAX_INBOUND,
    InboundDraft,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    IntakeLog,
    Received,
    chat_lock,
)
from postroom.contracts.errors import InvalidRecord, UnknownMessage
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.transactions import Store, Transaction
from postroom.stores.chats.rows import page, plain, refuse_unfit


class StoredIntakeLog(IntakeLog):
    """The messages of all chats in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    @override
    def storage_identity(self) -> str | None:
        return self._store.identity

    @override
    async def receive(self, draft: InboundDraft, *, now: int | None = None) -> Received:
        receive, lock = self.receiving(draft, now=now), chat_lock(draft.key)

        def change(tx: Transaction) -> Received:
            tx.lock(lock)
            return receive(tx)

        return await self._store.write(change, key=lock)

    @override
    def receiving(
        self, draft: InboundDraft, *, thread_id: str | None = None, now: int | None = None
    ) -> Callable[[Transaction], Received]:
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

        def receive(tx: Transaction) -> Received:
            made = tx.chats.insert_inbound(asked, _at(tx, now), thread_id=thread_id)
            if made is not None:
                return Received(message=made, is_new=True)
            known = tx.chats.inbound(key)
            assert known is not None  # noqa: S101 - its key was taken
            return Received(message=known, is_new=False)

        return receive

    @override
    async def move(
        self, inbound_ids: Collection[int], move: InboundMove, *, now: int | None = None
    ) -> tuple[InboundMessage, ...]:
        refuse_unfit(move.thread_id, move.reason)
        asked = frozenset(inbound_ids)

        # None leaves its chat, and the first of the chats is what the change is known by.
        named = await self._store.read(lambda tx: tx.chats.inbound_by_id(asked))
        chats = {chat_lock(message.key) for message in named}

        def change(tx: Transaction) -> tuple[InboundMessage, ...]:
            tx.lock(*chats)
            found = tx.chats.inbound_by_id(asked)
            if unknown := asked - {message.inbound_id for message in found}:
                raise UnknownMessage(f"no message {min(unknown)}", value=min(unknown))
            at = _at(tx, now)
            moved = tuple(message.moved(move, now=at) for message in found)
            tx.chats.move_inbound(asked, move, at)
            return moved

        return await self._store.write(change, key=min(chats, default=""))

    @override
    async def edit(self, key: InboundKey, body: dict[str, Json], *, now: int | None = None) -> InboundMessage:
        asked = plain(body)

        def change(tx: Transaction) -> InboundMessage:
            tx.lock(chat_lock(key))
            message = tx.chats.inbound(key)
            if message is None:
                raise UnknownMessage(
                    f"no message {key.message_id!r} was received in this chat", value=key.message_id
                )
            edited = message.edited(asked, now=_at(tx, now))
            if edited is not message:
                tx.chats.put_body(edited)
            return edited

        return await self._store.write(change, key=chat_lock(key))

    @override
    async def forget_answer(self, key: InboundKey) -> None:
        def change(tx: Transaction) -> None:
            tx.lock(chat_lock(key))
            message = tx.chats.inbound(key)
            if message is None:
                raise UnknownMessage(
                    f"no message {key.message_id!r} was received in this chat", value=key.message_id
                )
            metadata = {**message.body.get("metadata", {}), "forgotten": True}
            tx.chats.put_body(replace(message, body={**message.body, "metadata": metadata}))

        await self._store.write(change, key=chat_lock(key))

    @override
    async def find(self, key: InboundKey) -> InboundMessage | None:
        return await self._store.read(lambda tx: tx.chats.inbound(key))

    @override
    async def messages(self, inbound_ids: Collection[int]) -> tuple[InboundMessage, ...]:
        asked = not_too_many(inbound_ids)
        return await self._store.read(lambda tx: tuple(tx.chats.inbound_by_id(asked, readable=True)))

    @override
    async def open_messages(
        self,
        *,
        status: InboundStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_INBOUND,
    ) -> tuple[InboundMessage, ...]:
        def look(tx: Transaction) -> Iterable[InboundMessage]:
            return tx.chats.open_inbound(
                status=status, session_key=session_key, after=after, limit=page(limit)
            )

        return tuple(await self._store.read(look))

    @override
    async def newest(self, platform: str, *, limit: int = MAX_INBOUND) -> tuple[InboundMessage, ...]:
        return tuple(await self._store.read(lambda tx: tx.chats.newest_inbound(platform, limit=page(limit))))

    @override
    async def counts(self) -> dict[InboundStatus, int]:
        return await self._store.read(lambda tx: tx.chats.count_inbound())

    @override
    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        return await self._store.write(
            lambda tx: tx.chats.purge_inbound(older_than=older_than, limit=max(limit, 0))
        )


def _at(tx: Transaction, now: int | None) -> int:
    return tx.now() if now is None else now


def not_too_many(inbound_ids: Collection[int]) -> frozenset[int]:
    """Return these ids, each once.

    Raises:
        InvalidRecord: there are more than `MAX_INBOUND`.
    """
    asked = frozenset(inbound_ids)
    if len(asked) > MAX_INBOUND:
        raise InvalidRecord(
            f"{len(asked)} messages were asked for, {MAX_INBOUND} are the most", value=len(asked)
        )
    return asked
