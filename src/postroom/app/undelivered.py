"""Lists, retries and discards undelivered chat messages, even if no chats are configured."""

from collections.abc import Mapping, Sequence
from typing import Final

from postroom.contracts.chat import CHAT_KIND
from postroom.contracts.clock import iso
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.outbox import OutboxMessage
from postroom.gateway.platforms.base import UNKNOWN_ACCOUNT, BasePlatformAdapter
from postroom.gateway.replies import ReplyKind, has_waiting_caller, target_name
from postroom.gateway.session import SessionSource
from postroom.gateway.sessions import find_chat
from postroom.services.administration import DiscardedEffect, StoredEffect, UndeliveredList, UndeliveredView
from postroom.services.cut_ids import whole_id
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction

MAX_DEAD: Final = 500


class UndeliveredService:
    """Lists, retries and discards the dead letters of chats."""

    def __init__(self, stores: RunStores, adapters: Sequence[BasePlatformAdapter] = ()) -> None:
        self._kept, self._outbox = stores.store, stores.outbox
        self._speakers = adapters

    async def dead(self) -> UndeliveredList:
        """Return up to 500 dead letters of chats."""
        return {"undelivered": await self._kept.read(_list_waiting)}

    async def revive(self, outbox_id: str) -> StoredEffect:
        """Retry the dead letter whose id starts with `outbox_id`."""
        named = await self._find_dead_letter(outbox_id)
        if named.payload.get("kind") == ReplyKind.UPDATE:
            raise InvalidArgument(
                "this dead letter is a raw update from a chat platform, which cannot be retried",
                value=outbox_id[:200],
                remedy="ask the sender to send the message again, then discard this dead letter",
            )
        target = named.target
        if has_waiting_caller(target):
            raise InvalidArgument(
                "the client, which uses the OpenAI protocol, has already received an error, so nobody "
                "would read a new answer",
                value=target,
                remedy="read the answer with `postroom gateway dead --json`, then discard it",
            )
        if not any(_may_speak(speaker, target) for speaker in self._speakers):
            raise InvalidArgument(
                f"no channel of this server serves {target}, so the message would not be sent",
                value=target,
                remedy="add the bot to gateway.toml, restart the server and retry; or discard the message",
            )
        row = await self._outbox.revive(named.outbox_id)
        if row is None:
            raise _not_dead(outbox_id)
        return {"outbox_id": row.outbox_id, "status": row.status.value}

    async def discard(self, outbox_id: str) -> DiscardedEffect:
        """Discard the dead letter whose id starts with `outbox_id`."""
        named = await self._find_dead_letter(outbox_id)
        if not await self._outbox.discard(named.outbox_id):
            raise _not_dead(outbox_id)
        return {"outbox_id": named.outbox_id, "discarded": True}

    async def _find_dead_letter(self, outbox_id: str) -> OutboxMessage:
        """Return the dead letter whose id starts with `outbox_id`.

        Raises:
            InvalidArgument: There is no such dead letter, or several ids have this prefix.
        """
        rows = {
            outbox_message.outbox_id: outbox_message
            for outbox_message in await self._outbox.dead_letters(kind=CHAT_KIND, limit=MAX_DEAD)
        }
        meant = whole_id(outbox_id, rows, what="dead letters", remedy="see `postroom gateway dead`")
        if meant is None:
            raise _not_dead(outbox_id)
        return rows[meant]


def _may_speak(adapter: BasePlatformAdapter, target: str) -> bool:
    platform, account = adapter.platform.value, adapter.account
    if account == UNKNOWN_ACCOUNT:
        return target.startswith(target_name(platform, ""))
    return target in (target_name(platform, account), target_name(platform, UNKNOWN_ACCOUNT))


def _not_dead(outbox_id: str) -> InvalidArgument:
    return InvalidArgument(
        "there is no dead letter of a chat with this id",
        value=outbox_id[:200],
        remedy="take the id from `postroom gateway dead`",
    )


def _list_waiting(tx: Transaction) -> list[UndeliveredView]:
    return [
        _describe_row(tx, row) for row in tx.outbox.dead_letters(kind=CHAT_KIND, after="", limit=MAX_DEAD)
    ]


def _describe_row(tx: Transaction, row: OutboxMessage) -> UndeliveredView:
    payload = row.payload
    source = payload.get("source")
    ids, thread_id = payload.get("inbound_ids") or (), payload.get("thread_id")
    try:
        if isinstance(source, Mapping):
            chat: SessionSource | None = SessionSource.from_dict(dict(source))
        else:
            chat = find_chat(tx, str(thread_id), [item for item in ids if isinstance(item, int)])
    except (KeyError, TypeError, ValueError):  # the row may be a dead letter because it cannot be read
        chat = None
    return {
        "outbox_id": row.outbox_id,
        "target": row.target,
        "kind": payload.get("kind"),
        "chat_id": None if chat is None else chat.chat_id,
        "chat": None if chat is None else chat.address.name,
        "who": None if chat is None else chat.description,
        "thread_id": thread_id,
        "text": payload.get("text"),
        "error": row.last_error,
        "created_at": iso(row.created_at),
    }
