"""Storage of the inbound messages of all chats."""

from collections.abc import Collection, Iterable

from postroom.contracts.chat import (
    MAX_INBOUND,
    InboundKey,
    InboundMessage,
    InboundMove,
    InboundStatus,
    Received,
    chat_lock,
    parse_inbound_id,
)
from postroom.contracts.errors import InvalidRecord, UnknownMessage
from postroom.contracts.messages import Json, Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import thread_lock
from postroom.stores.chats.rows import page, plain, refuse_unfit
from postroom.stores.store import SqlStore, Transaction


class IntakeLog:
    """The inbound messages of all chats."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def receive(self, draft: InboundMessage, *, now: int | None = None) -> Received:
        """Store a new message as waiting, or return the stored message if its key is already stored.

        The message is durable when the call returns. A repeated call is safe.

        Raises:
            InvalidRecord: A part of the key, or the session key, is blank.
        """
        message, lock = checked_draft(draft), chat_lock(draft.key)

        def change(tx: Transaction) -> Received:
            tx.lock(lock)
            made = tx.chats.insert_inbound(message, tx.now() if now is None else now)
            if made is not None:
                return Received(message=made, is_new=True)
            known_message = tx.chats.inbound(message.key)
            assert known_message is not None  # noqa: S101 - another message has its key
            return Received(message=known_message, is_new=False)

        return await self._store.write(change, key=lock)

    async def move(
        self, inbound_ids: Collection[int], move: InboundMove, *, now: int | None = None
    ) -> tuple[InboundMessage, ...]:
        """Change the status of inbound messages, all or none; return the messages ordered by id.

        A message that already has the status stays unchanged, so a call can be repeated.

        Raises:
            UnknownMessage: No message has one of these ids.
            IllegalTransition: `INBOUND_MOVES` does not allow one of the changes.
        """
        refuse_unfit(move.thread_id, move.reason)
        requested_ids = frozenset(inbound_ids)

        # A message never changes its chat, and the key of the change is the first of the chats.
        named = await self._store.read(lambda tx: tx.chats.inbound_by_id(requested_ids))
        chats = {chat_lock(message.key) for message in named}

        def change(tx: Transaction) -> tuple[InboundMessage, ...]:
            tx.lock(*chats)
            messages = tx.chats.inbound_by_id(requested_ids)
            if unknown := requested_ids - {message.inbound_id for message in messages}:
                raise UnknownMessage(f"no message {min(unknown)}", value=min(unknown))
            at = tx.now() if now is None else now
            moved = tuple(message.moved(move, now=at) for message in messages)
            tx.chats.move_inbound(requested_ids, move, at)
            return moved

        return await self._store.write(change, key=min(chats, default=""))

    async def withdraw(
        self, thread_id: str, move: InboundMove, *, message_id: str | None = None
    ) -> tuple[Message, ...]:
        """Remove pending messages from a thread, and change the status of their inbound messages.

        Without `message_id`, all pending messages are removed. Messages that a run has read are not removed.
        The removed messages are returned in order.
        """

        def withdrawn(tx: Transaction) -> tuple[Message, ...]:
            tx.lock(thread_lock(thread_id))
            pending = tx.runs.messages.waiting(thread_id)
            taken = [pending for pending in pending if message_id in (None, pending.pending_id)]
            tx.runs.messages.take(thread_id, [pending.version for pending in taken])
            ids = {parse_inbound_id(pending.message.id or "") for pending in taken} - {None}
            messages = tx.chats.inbound_by_id([number for number in ids if number is not None])
            tx.lock(*{chat_lock(message.key) for message in messages})
            tx.chats.move_inbound([message.inbound_id for message in messages], move, tx.now())
            return tuple(pending.message for pending in taken)

        return await self._store.write(withdrawn, key=thread_id)

    async def edit(self, key: InboundKey, body: dict[str, Json], *, now: int | None = None) -> InboundMessage:
        """Replace the body of an open message and increase its revision; an equal body changes nothing.

        Raises:
            UnknownMessage: The message was never received.
            AlreadyConsumed: The message is no longer open.
        """
        plain_body = plain(body)

        def change(tx: Transaction) -> InboundMessage:
            tx.lock(chat_lock(key))
            message = tx.chats.inbound(key)
            if message is None:
                raise UnknownMessage(
                    f"this chat has received no message {key.message_id!r}", value=key.message_id
                )
            edited = message.edited(plain_body, now=tx.now() if now is None else now)
            if edited is not message:
                tx.chats.put_body(edited)
            return edited

        return await self._store.write(change, key=chat_lock(key))

    async def forget_answer(self, key: InboundKey) -> None:
        """Record that the answer to an inbound message is no longer shown.

        Raises:
            UnknownMessage: The message was never received.
        """

        def change(tx: Transaction) -> None:
            tx.lock(chat_lock(key))
            message = tx.chats.inbound(key)
            if message is None:
                raise UnknownMessage(
                    f"this chat has received no message {key.message_id!r}", value=key.message_id
                )
            metadata = {**message.body.get("metadata", {}), "forgotten": True}
            tx.chats.put_body(replace(message, body={**message.body, "metadata": metadata}))

        await self._store.write(change, key=chat_lock(key))

    async def find(self, key: InboundKey) -> InboundMessage | None:
        """Return the inbound message with this key, or None."""
        return await self._store.read(lambda tx: tx.chats.inbound(key))

    async def messages(self, inbound_ids: Collection[int]) -> tuple[InboundMessage, ...]:
        """Return the inbound messages with these ids, ordered by id; at most `MAX_INBOUND` ids are allowed.

        Raises:
            InvalidRecord: There are too many ids.
        """
        requested_ids = not_too_many(inbound_ids)
        return await self._store.read(lambda tx: tuple(tx.chats.inbound_by_id(requested_ids, readable=True)))

    async def open_messages(
        self,
        *,
        status: InboundStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_INBOUND,
    ) -> tuple[InboundMessage, ...]:
        """Return up to `limit` open messages with an id greater than `after`, ordered by id.

        Without `status`, messages with any open status are returned. Without `session_key`, messages of all
        sessions are returned.
        """

        def look(tx: Transaction) -> Iterable[InboundMessage]:
            return tx.chats.open_inbound(
                status=status, session_key=session_key, after=after, limit=page(limit)
            )

        return tuple(await self._store.read(look))

    async def newest(self, platform: str, *, limit: int = MAX_INBOUND) -> tuple[InboundMessage, ...]:
        """Return up to `limit` messages of a platform with any status, newest first."""
        return tuple(await self._store.read(lambda tx: tx.chats.newest_inbound(platform, limit=page(limit))))

    async def counts(self) -> dict[InboundStatus, int]:
        """Return the number of messages per status, without zeros."""
        return await self._store.read(lambda tx: tx.chats.count_inbound())

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Delete up to `limit` messages that are not open; return the number deleted.

        Only messages that were last changed before `older_than` are deleted. If the platform sends a deleted
        message again, the message counts as new.
        """
        return await self._store.write(
            lambda tx: tx.chats.purge_inbound(older_than=older_than, limit=max(limit, 0))
        )


def checked_draft(draft: InboundMessage) -> InboundMessage:
    """Return a message that is not stored yet, with a copy of its body in plain JSON.

    Raises:
        InvalidRecord: A part of the key, or the session key, is blank.
    """
    key = draft.key
    refuse_unfit(
        draft.sender_id,
        platform=key.platform,
        account=key.account,
        chat_id=key.chat_id,
        message_id=key.message_id,
        session_key=draft.session_key,
    )
    return replace(draft, body=plain(draft.body))


def not_too_many(inbound_ids: Collection[int]) -> frozenset[int]:
    """Return the ids of inbound messages without duplicates.

    Raises:
        InvalidRecord: There are more than `MAX_INBOUND` ids.
    """
    requested_ids = frozenset(inbound_ids)
    if len(requested_ids) > MAX_INBOUND:
        raise InvalidRecord(
            f"{len(requested_ids)} messages were requested, but the maximum is {MAX_INBOUND}",
            value=len(requested_ids),
        )
    return requested_ids
