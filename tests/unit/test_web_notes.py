"""The page of notes: a list with a search, and one note with the note that replaced it."""

from typing import Any

from unit.test_web_work import room, stores
from waking_room import PROJECT
from work_room import SLUG, WorkRoom

__all__ = ["room", "stores"]

PAGE = f"/p/{SLUG}/notes"


async def add(room: WorkRoom, subject: str, text: str, **more: Any) -> None:
    note = {"project_key": PROJECT, "agent_name": "Ada", "subject": subject, "text": text, **more}
    await room.mail.call("add_note", note)


async def test_a_person_sees_finds_and_follows_the_notes(room: WorkRoom) -> None:
    browser = room.browser()
    assert "No notes" in (await browser.get(PAGE)).text
    await add(room, "Test <b>command</b>", "Run make quick.", paths=["src/**"], commit="4f2a")
    await add(room, "Lamp", "It is red.")
    page = (await browser.get(PAGE)).text
    texts = ("Lamp", "Test &lt;b&gt;command&lt;/b&gt;", "Run make quick.", "src/**", "4f2a")
    assert [text for text in texts if text not in page] == []
    assert page.index("Lamp") < page.index("Run make quick.")
    found = (await browser.get(f"{PAGE}?q=MAKE")).text
    assert ("Run make quick." in found, "It is red." in found) == (True, False)
    assert "No note contains these words." in (await browser.get(f"{PAGE}?q=nowhere")).text
    await add(room, "Test <b>command</b>", "Run make all.", paths=["src/**"], replaces=[1])
    assert "Run make quick." not in (await browser.get(PAGE)).text
    old = (await browser.get(f"{PAGE}?note=1")).text
    assert ("Run make quick." in old, "replaced by 3" in old) == (True, True)
    assert "This project has no note 9." in (await browser.get(f"{PAGE}?note=9")).text
