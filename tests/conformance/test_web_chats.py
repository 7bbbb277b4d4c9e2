"""Promises of the chat page's store: conversations, and the entries that each of them shows."""

from typing import Any

from conformance.promises.chat_given import BLANK, HALF
from conformance.promises.given import refused
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.web_chats import WebEntry
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock


def _entry(position: int, *, of: str = "c", person: str = "ada", **body: Any) -> WebEntry:
    """Return an entry, named after its position and conversation."""
    return WebEntry(
        person=person,
        conversation_id=of,
        entry_id=f"{of}-{position}",
        position=position,
        body={"text": f"text {position}", **body},
    )


async def _shown(chats: ChatStores, *entries: WebEntry) -> None:
    """Store entries in conversations, which are opened if they do not exist."""
    for one in entries:
        await chats.web_chats.open(one.person, one.conversation_id, title=f"title of {one.conversation_id}")
        assert await chats.web_chats.put([one])


async def test_entries_are_listed_from_the_newest_in_pages(chats: ChatStores) -> None:
    await _shown(chats, *(_entry(number) for number in range(1, 6)))
    await _shown(chats, _entry(9, of="d"), _entry(8, of="d", text="é \0 🎉"), _entry(1, person="ben"))
    first = await chats.web_chats.entries("ada", "c", limit=2)
    assert [one.position for one in first] == [5, 4]
    older = await chats.web_chats.entries("ada", "c", before=4, limit=9)
    assert [one.position for one in older] == [3, 2, 1]
    assert await chats.web_chats.entries("ada", "c", limit=0) == ()
    assert await chats.web_chats.entries("ada", "none") == ()
    assert await chats.web_chats.entry("ada", "d-8") == _entry(8, of="d", text="é \0 🎉")
    assert await chats.web_chats.entry("ben", "d-8") is None


async def test_a_known_entry_takes_a_new_body_in_its_position(chats: ChatStores) -> None:
    await _shown(chats, _entry(1), _entry(2))
    changed = WebEntry(
        person="ada", conversation_id="c", entry_id="c-1", position=7, body={"text": "other words"}
    )
    for _ in range(2):
        assert await chats.web_chats.put([changed, _entry(2)])
    shown = await chats.web_chats.entries("ada", "c")
    assert [(one.position, one.body["text"]) for one in shown] == [(2, "text 2"), (1, "other words")]


async def test_conversations_are_listed_by_their_newest_entry(chats: ChatStores, clock: ManualClock) -> None:
    now = clock.now()
    await _shown(chats, _entry(now + 1, of="a"), _entry(now + 2, of="b"), _entry(now + 4, of="a"))
    await chats.web_chats.open("ada", "empty", title="nothing yet")
    assert await chats.web_chats.rename("ada", "b", "by hand \0")
    assert not await chats.web_chats.rename("ada", "none", "by hand")
    listed = await chats.web_chats.conversations("ada")
    assert [(one.conversation_id, one.title, one.active_at - now) for one in listed] == [
        ("a", "title of a", 4),
        ("b", "by hand \0", 2),
        ("empty", "nothing yet", 0),
    ]
    assert {one.created_at for one in listed} == {now}
    assert await chats.web_chats.conversations("ada", before=now + 4, limit=1) == listed[1:2]
    assert await chats.web_chats.conversations("ben") == ()
    assert await chats.web_chats.conversation("ada", "b") == listed[1]
    assert await chats.web_chats.conversation("ben", "b") is None


async def test_a_deleted_conversation_has_no_entries_and_takes_no_late_answer(chats: ChatStores) -> None:
    await _shown(chats, _entry(1), _entry(2), _entry(3, of="d"))
    assert await chats.web_chats.delete("ada", "c")
    assert not await chats.web_chats.delete("ada", "c")
    assert not await chats.web_chats.put([_entry(4)])
    assert await chats.web_chats.entries("ada", "c") == ()
    assert await chats.web_chats.entry("ada", "c-1") is None
    assert [one.conversation_id for one in await chats.web_chats.conversations("ada")] == ["d"]
    await _shown(chats, _entry(5))
    assert [one.position for one in await chats.web_chats.entries("ada", "c")] == [5]


async def test_a_session_stays_ended_until_it_would_end_by_itself(
    chats: ChatStores, clock: ManualClock
) -> None:
    chats, ends_at = chats.web_chats, clock.now() + 1_000
    assert not await chats.is_session_ended("of ada")
    for _ in range(2):
        await chats.end_session("of ada", ends_at=ends_at)
    assert await chats.is_session_ended("of ada")
    assert not await chats.is_session_ended("of ben")


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
