"""Mail messages that are said in chats: rows of the outbox like everything else that is said."""

from collections.abc import Sequence

from postroom.contracts.outbox import OutboxTables
from postroom.contracts.people import ChatAddress
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.replies import Reply, ReplyKind, thread_name
from postroom.gateway.session import SessionSource


class MailOutbox:
    """Has mail messages said by the bots of this gateway."""

    def __init__(self, adapters: Sequence[BasePlatformAdapter]) -> None:
        self._adapters = {adapter.platform.value: adapter for adapter in adapters}

    def reaches(self, address: ChatAddress) -> bool:
        """Say whether there is a channel to this chat."""
        return address.platform in self._adapters

    def enqueue(self, outbox: OutboxTables, key: str, address: ChatAddress, text: str) -> None:
        """Take a message for a chat, in an open change: it is delivered, or reported as lost.

        Taken twice, it is delivered once.

        Raises:
            IdempotencyConflict: another text was taken under its key.
        """
        adapter = self._adapters[address.platform]
        source = SessionSource(platform=adapter.platform, chat_id=address.chat_id, account=adapter.account)
        reply = Reply(
            kind=ReplyKind.NOTICE,
            thread_id=thread_name(address.platform, adapter.account, "notice"),
            text=text,
            source=source.to_dict(),
            mail_key=key,
        )
        # The key of an earlier version: what it took and did not note is not delivered again.
        outbox.enqueue((reply.draft(f"letter/{key}"),))
