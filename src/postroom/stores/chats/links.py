"""Storage of the links between a person's direct chats."""

from dataclasses import replace

from postroom.contracts.chat_links import LinkedChat, LinkOutcome
from postroom.contracts.chat_people import PairingRules
from postroom.contracts.people import ChatAddress
from postroom.stores.chats.rows import refuse_unfit
from postroom.stores.store import SqlStore, Transaction

_LOCK = "linked_chats"
"""The lock for all links. Without it, two codes at the same time could link three chats to two persons."""


class ChatLinks:
    """The links between the direct chats of each person."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def find(self, address: ChatAddress) -> LinkedChat | None:
        """Return the record of a direct chat, or None."""
        return await self._store.read(lambda tx: tx.chats.linked_chat(address))

    async def offer(
        self, address: ChatAddress, code_hash: str, rules: PairingRules, *, now: int | None = None
    ) -> None:
        """Store the hash of a chat's new link code, which is valid for `rules.code_ms`.

        The new code replaces an earlier code of the chat.

        Raises:
            InvalidRecord: The chat or the hash is blank.
        """
        refuse_unfit(platform=address.platform, chat_id=address.chat_id, code_hash=code_hash)

        def change(tx: Transaction) -> None:
            tx.lock(_LOCK)
            at = tx.now() if now is None else now
            chat = _find_or_create(tx, address)
            tx.chats.put_linked_chat(replace(chat, code_hash=code_hash, code_until=at + rules.code_ms))

        await self._store.write(change, key=_LOCK)

    async def redeem(
        self,
        address: ChatAddress,
        code_hash: str,
        rules: PairingRules,
        *,
        person: str,
        now: int | None = None,
    ) -> tuple[LinkOutcome, LinkedChat | None]:
        """Link a chat with the chat in which a code was issued; return the outcome and the other chat.

        If neither chat has a person yet, `person` becomes the person's id. A code can be used once. After
        `rules.most_wrong` wrong codes, the chat is locked for `rules.locked_ms`. A correct code resets the
        number of wrong codes.
        """
        refuse_unfit(platform=address.platform, chat_id=address.chat_id, code_hash=code_hash, person=person)

        def change(tx: Transaction) -> tuple[LinkOutcome, LinkedChat | None]:
            tx.lock(_LOCK)
            at = tx.now() if now is None else now
            chat, giver = _find_or_create(tx, address), tx.chats.linked_chat_with_code(code_hash, at)
            outcome = _outcome(chat, giver, at)
            if outcome is LinkOutcome.UNKNOWN:
                if chat.failures + 1 >= rules.most_wrong:
                    wrong = replace(chat, failures=0, locked_until=at + rules.locked_ms)
                else:
                    wrong = replace(chat, failures=chat.failures + 1)
                tx.chats.put_linked_chat(wrong)
            elif outcome is LinkOutcome.LINKED and giver is not None:
                whose = giver.person or chat.person or person
                giver = replace(giver, person=whose, code_hash=None)
                tx.chats.put_linked_chat(giver)
                tx.chats.put_linked_chat(replace(chat, person=whose, shares=True, failures=0))
            return outcome, giver if outcome is LinkOutcome.LINKED else None

        return await self._store.write(change, key=_LOCK)

    async def share(self, address: ChatAddress, *, shares: bool) -> bool:
        """Set whether a chat shares the person's conversation; return False if the chat is not linked."""

        def change(tx: Transaction) -> bool:
            tx.lock(_LOCK)
            chat = _find_or_create(tx, address)
            if chat.person is not None and chat.shares is not shares:
                tx.chats.put_linked_chat(replace(chat, shares=shares))
            return chat.person is not None

        return await self._store.write(change, key=_LOCK)

    async def leave(self, address: ChatAddress) -> LinkedChat | None:
        """Delete the link and the code of a chat; return the former record, or None if there was no link."""

        def change(tx: Transaction) -> LinkedChat | None:
            tx.lock(_LOCK)
            chat = _find_or_create(tx, address)
            if chat.person is None:
                return None
            tx.chats.put_linked_chat(replace(chat, person=None, code_hash=None))  # the lock is kept
            return chat

        return await self._store.write(change, key=_LOCK)

    async def list_chats(self, person: str) -> tuple[LinkedChat, ...]:
        """Return up to 200 chats of a person, ordered by platform and id."""
        return tuple(await self._store.read(lambda tx: tx.chats.linked_chats_of(person)))


def _find_or_create(tx: Transaction, address: ChatAddress) -> LinkedChat:
    fresh = LinkedChat(platform=address.platform, chat_id=address.chat_id)
    return tx.chats.linked_chat(address) or fresh


def _outcome(chat: LinkedChat, giver: LinkedChat | None, now: int) -> LinkOutcome:
    if now < chat.locked_until:
        return LinkOutcome.LOCKED
    if giver is None:
        return LinkOutcome.UNKNOWN
    if giver.address == chat.address:
        return LinkOutcome.OWN
    if chat.person is None or giver.person is None:
        return LinkOutcome.LINKED
    return LinkOutcome.TOGETHER if chat.person == giver.person else LinkOutcome.OTHER
