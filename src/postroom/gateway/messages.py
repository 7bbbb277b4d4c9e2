"""Messages of the mail room that are said in chats: rows of the outbox like everything else that is said."""

from collections.abc import Callable, Sequence

from postroom.contracts.outbox import OutboxStore
from postroom.contracts.people import ChatPlace
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.replies import Reply, ReplyKind, thread_name
from postroom.gateway.session import SessionSource


class MessageCarrier:
    """Has messages said by the bots of this gateway."""

    def __init__(
        self, outbox: OutboxStore, adapters: Sequence[BasePlatformAdapter], wake: Callable[[], None]
    ) -> None:
        self._outbox = outbox
        self._adapters = {one.platform.value: one for one in adapters}
        self._wake = wake

    def reaches(self, place: ChatPlace) -> bool:
        """Say whether there is a channel to this chat."""
        return place.platform in self._adapters

    async def carry(self, key: str, place: ChatPlace, text: str) -> None:
        """Take a message for a chat: it is said, or told to be lost. Taken twice, it is said once.

        Raises:
            StoreError: it could not be taken; take it again.
        """
        adapter = self._adapters[place.platform]
        source = SessionSource(platform=adapter.platform, chat_id=place.chat_id, account=adapter.account)
        reply = Reply(
            kind=ReplyKind.NOTICE,
            thread_id=thread_name(place.platform, adapter.account, "notice"),
            text=text,
            place=source.to_dict(),
            message=key,
        )
        # The key of an earlier version: what it took and did not note is not said again.
        await self._outbox.enqueue(reply.draft(f"letter/{key}"))
        self._wake()
