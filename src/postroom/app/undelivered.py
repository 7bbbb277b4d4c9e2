"""What no chat took: listed, tried again, discarded. Also where chats are not configured any more."""

from collections.abc import Mapping
from typing import Final

from postroom.contracts.chat import CHAT_KIND
from postroom.contracts.clock import iso
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.outbox import OutboxMessage
from postroom.contracts.run_ports import OutboxStore

MOST_DEAD: Final = 500


class UndeliveredService:
    """The dead letters of chats."""

    def __init__(self, outbox: OutboxStore) -> None:
        self._outbox = outbox

    async def dead(self) -> Mapping[str, object]:
        """Return what could not be delivered, up to 500 rows."""
        rows = await self._outbox.dead_letters(kind=CHAT_KIND, limit=MOST_DEAD)
        return {"undelivered": [_undelivered(row) for row in rows]}

    async def revive(self, outbox_id: str) -> Mapping[str, object]:
        """Have it tried again; the beginning of its id will do where no other begins so."""
        rows = await self._outbox.dead_letters(kind=CHAT_KIND, limit=MOST_DEAD)
        named = [one.outbox_id for one in rows if outbox_id and one.outbox_id.startswith(outbox_id)]
        row = await self._outbox.revive(named[0] if len(named) == 1 else outbox_id)
        if row is None:
            raise _not_dead(outbox_id)
        return {"outbox_id": row.outbox_id, "status": row.status.value}

    async def discard(self, outbox_id: str) -> Mapping[str, object]:
        """Have it delivered by nobody."""
        if not await self._outbox.discard(outbox_id):
            raise _not_dead(outbox_id)
        return {"outbox_id": outbox_id, "discarded": True}


def _not_dead(outbox_id: str) -> InvalidArgument:
    return InvalidArgument(
        "this is not among what could not be delivered",
        value=outbox_id[:200],
        remedy="take the id from `postroom gateway dead`",
    )


def _undelivered(row: OutboxMessage) -> dict[str, object]:
    source = row.payload.get("source", row.payload.get("place"))  # as earlier versions named it
    return {
        "outbox_id": row.outbox_id,
        "target": row.target,
        "kind": row.payload.get("kind"),
        "chat_id": source.get("chat_id") if isinstance(source, Mapping) else None,
        "thread_id": row.payload.get("thread_id"),
        "text": row.payload.get("text"),
        "error": row.last_error,
        "created_at": iso(row.created_at),
    }
