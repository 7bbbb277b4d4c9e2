"""Promises of the chat page's store: conversations, and the entries that each of them shows."""

from typing import Any

from conformance.promises.chat_given import BLANK, HALF
from conformance.promises.given import refused
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.web_chats import WebEntry
from postroom.stores.chats.stores import ChatStores


def _entry(position: int, *, of: str = "c", person: str = "ada", **body: Any) -> WebEntry:
    """Return an entry, named after its position and conversation."""
    return WebEntry(
        person=person,
        conversation_id=of,
        entry_id=f"{of}-{position}",
        position=position,
        body={"text": f"text {position}", **body},
    )


async def test_what_cannot_name_an_entry_or_be_its_text_is_refused(chats: ChatStores) -> None:
    chats = chats.web_chats
    await chats.open("ada", "c", title="one")
    for blank in (*BLANK, HALF):
        with refused(InvalidRecord):
            await chats.open("ada", blank, title="two")
        with refused(InvalidRecord):
            await chats.open("ada", "d", title=blank)
        with refused(InvalidRecord):
            await chats.put([_entry(1), _entry(2, of=blank)])
        with refused(InvalidRecord):
            await chats.put([_entry(1, person=blank)])
        with refused(InvalidRecord):
            await chats.rename("ada", "c", blank)
    with refused(InvalidRecord):
        await chats.put([_entry(1, text=HALF)])
    assert [one.title for one in await chats.conversations("ada")] == ["one"]
    assert await chats.entries("ada", "c") == ()
