"""Notes on both engines: rows, order, ends, deliveries, and many contradicting notes that are added at the same time."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from mail_room import HARBOR, SHORE, Room, a_room
from postroom.contracts.errors import NoteContradicts
from postroom.services.hooks import Hooks
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing import ManualClock


@pytest.fixture
def room(mail_store: MailStore, clock: ManualClock) -> Room:
    return a_room(mail_store, clock)


@on_both
async def test_of_many_that_note_different_facts_at_once_one_succeeds(room: Room) -> None:
    await room.open()
    refused = list[NoteContradicts]()

    async def notes(number: int) -> None:
        try:
            await room.call("add_note", agent_name="Ada", subject="Lamp", text=f"It has colour {number}.")
        except NoteContradicts as error:
            refused.append(error)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(notes(number))
    assert len(refused) == 7
    assert len((await room.call("find_notes"))["notes"]) == 1


@on_both
async def test_notes_are_kept_given_merged_and_ended_alike(room: Room, clock: ManualClock) -> None:
    await room.open("Ada", "Ben")
    await room.open("Eve", project=SHORE)
    for subject, days in (("Grüße", 1), ("灯", 3)):
        await room.call("add_note", agent_name="Ada", subject=subject, text="an\u00a0Bö\n\t'\"", days=days)
    await room.call("add_note", agent_name="Eve", project_key=SHORE, subject="Shore", text="t")

    async def told(session: str) -> str:
        asked = {"cwd": HARBOR, "agent": "Ben", "session_id": session}
        return (await Hooks(room.mail).answer("claude", "SessionStart", asked))["text"]

    first = await told("a")
    assert ("Grüße" in first, "灯" in first, "Shore" in first) == (True, True, False)
    assert [await told("a"), await told("a")] == ["", ""]
    clock.advance(timedelta(days=2))
    assert "Grüße" not in await told("b")

    def merge(tx: MailWrites) -> None:
        shore, harbor = tx.project(SHORE), tx.project(HARBOR)
        assert shore is not None
        assert harbor is not None
        tx.lock_projects([shore.id, harbor.id])
        tx.merge_projects(shore, harbor, renames={}, now=tx.now())

    await room.store.write(merge)
    found = (await room.call("find_notes"))["notes"]
    assert [(one["subject"], one["author"]) for one in found] == [("Shore", "Eve"), ("灯", "Ada")]
    clock.advance(timedelta(days=31))
    assert [one["subject"] for one in (await room.call("find_notes"))["notes"]] == ["Shore"]
    assert ["Shore" in await told("c"), "Shore" in await told("c")] == [True, False]
    clock.advance(timedelta(days=31))
    assert ["Shore" in await told("d"), "Shore" in await told("c")] == [True, True], "forgotten after 30 days"
