"""Links a person's direct chats: `/link` in one chat returns a code. `/link CODE` in another chat links both.

    linked chats ─▶ one conversation for each agent, answered in the chat of each message
                 ─▶ messages of agents to the person go to the chat that is chosen with `/here`

A link grants no rights: in each chat, the person keeps the role that they have there.
"""

from collections.abc import Mapping
from secrets import token_hex

from postroom.contracts.chat_links import LinkedChat, LinkOutcome
from postroom.contracts.people import ChatAddress
from postroom.gateway import wording
from postroom.gateway.config import GatewayConfig
from postroom.gateway.notices import Notices
from postroom.gateway.people import People, hash_code, new_code
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.session import Platform, SessionSource
from postroom.gateway.sessions import Sessions
from postroom.stores.chats.links import ChatLinks

_SCOPE = "link"
"""A text that is part of the hash of each link code.

The hashes of pairing codes contain the name of the platform instead.
"""
_APART, _TOGETHER = "apart", "together"


class Links:
    """Links and unlinks the direct chats of a person."""

    def __init__(
        self,
        store: ChatLinks,
        config: GatewayConfig,
        people: People,
        sessions: Sessions,
        notices: Notices,
        adapters: Mapping[Platform, BasePlatformAdapter],
    ) -> None:
        self._store, self._adapters = store, adapters
        self._config = config
        self._people, self._sessions, self._notices = people, sessions, notices

    async def link(self, source: SessionSource, word: str) -> str:
        """Execute `/link` with the argument `word`, and return the reply.

        Raises:
            StoreError: The links could not be read or stored.
        """
        if source.chat_type != "dm" or source.thread_id is not None or source.platform is Platform.WEBHOOK:
            return wording.LINKED_WHERE
        address = source.address
        if not word:
            code = new_code()
            await self._store.offer(address, hash_code(_SCOPE, code), self._config.pairing)
            others = [
                linked_chat.address.name
                for linked_chat in await self._others(await self._store.find(address))
            ]
            minutes = self._config.pairing.code_ms // 60_000
            return wording.link_code(code, minutes, others)
        if word.casefold() in (_APART, _TOGETHER):
            shares = word.casefold() == _TOGETHER
            if not await self._store.share(address, shares=shares):
                return wording.NOT_LINKED
            self._people.forget_links()
            return wording.TOGETHER if shares else wording.APART
        outcome, giver = await self._store.redeem(
            address, hash_code(_SCOPE, word.upper()), self._config.pairing, person=token_hex(16)
        )
        if outcome is not LinkOutcome.LINKED or giver is None:
            return wording.NOT_LINKED_BECAUSE[outcome]
        await self._sessions.join(giver.address, giver.person or "")
        self._people.forget_links()
        # Tell the chat in which the code was created, so that a person who was tricked into giving the code
        # away learns that it was used.
        adapter = self._adapters.get(Platform(giver.platform))
        if adapter is not None:  # the chat's channel is configured
            place = SessionSource(platform=adapter.platform, chat_id=giver.chat_id, account=adapter.account)
            key = f"linked/{giver.address.name}/{token_hex(8)}"
            await self._notices.tell(place, wording.linked_by(address.name), key=key)
        return wording.linked(giver.address.name)

    async def unlink(self, source: SessionSource) -> str:
        """Execute `/unlink` in a chat, and return the reply.

        Raises:
            StoreError: The links could not be stored.
        """
        left = await self._store.leave(source.address)
        self._people.forget_links()
        return wording.NOT_LINKED if left is None else wording.UNLINKED

    async def chats(self, source: SessionSource) -> list[ChatAddress]:
        """Return the addresses of a chat and of all chats that are linked with the chat.

        Raises:
            StoreError: The links could not be read.
        """
        here = source.address
        return [
            here,
            *(linked_chat.address for linked_chat in await self._others(await self._store.find(here))),
        ]

    async def _others(self, chat: LinkedChat | None) -> list[LinkedChat]:
        if chat is None or chat.person is None:
            return []
        return [
            linked_chat
            for linked_chat in await self._store.list_chats(chat.person)
            if linked_chat.address != chat.address
        ]
