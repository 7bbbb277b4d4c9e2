"""Merged projects, with the real archive: its content afterwards, and the rebuilt content."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mail_room import Room, a_room
from postroom.contracts.errors import InvalidArgument, InvalidName, StateError, UnknownProject
from postroom.mail.archive.archive import Archive, Author
from postroom.mail.archive.rebuild import read_root, write_rows
from postroom.mail.merging import MergePlan, merge, plan_merge
from postroom.mail.outgoing import ARCHIVE
from postroom.mail.projects import PEOPLE_KEY
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

MAIN, TREE, AWAY = "/yard/main", "/yard/tree", "/yard/away"
AUTHOR = Author(name="postroom", email="postroom@example.org")


@pytest.fixture
async def room(sqlite_store: SqliteStore, clock: ManualClock) -> Room:
    """Return three projects whose agents wrote to each other."""
    room = a_room(sqlite_store, clock)
    await room.open("Ada", "Ben", project=MAIN)
    await room.open("Cyd", "Dan", project=TREE)
    await room.open("Eve", project=AWAY)
    await room.send("Cyd", "Dan", project_key=TREE, thread_id="deploy", body_md="from the tree")
    await room.send("Ada", "Ben", "Dan@yard-tree", project_key=MAIN, thread_id="deploy")
    await room.send("Eve", "Cyd@yard-tree", project_key=AWAY)
    await room.call("file_reservation_paths", project_key=TREE, agent_name="Cyd", paths=["src/**"])
    return room


def archive_of(room: Room, folder: Path) -> Archive:
    return Archive(folder / "archive", room.store, room.clock, AUTHOR)


async def drained(room: Room, archive: Archive) -> None:
    await Relay(room.store.store, {ARCHIVE: archive}).drain()  # type: ignore[attr-defined]


@asynccontextmanager
async def rebuilt(archive: Archive, clock: ManualClock) -> AsyncIterator[tuple[Room, dict[str, int]]]:
    store = await asyncio.to_thread(SqliteStore.open, archive.root.parent / "new.db", clock=clock)
    try:
        counts = await write_rows(
            await read_root(archive.root, (AUTHOR.name, AUTHOR.email)), archive.root, store
        )
        yield a_room(store, clock), counts
    finally:
        await asyncio.to_thread(store.close)


async def merged(room: Room, source: str = TREE, target: str = MAIN) -> MergePlan:
    return await room.store.write(lambda tx: merge(tx, source, target))


async def test_whoever_worked_in_either_project_goes_on_under_every_name_it_had(room: Room) -> None:
    await merged(room)
    for key in (TREE, "yard-tree", MAIN, "yard-main"):
        found = await room.call("list_agents", project_key=key)
        assert [one["name"] for one in found["agents"]] == ["Ada", "Ben", "Cyd", "Dan"]
        assert [one["id"] for one in await room.inbox("Dan", project_key=key)] == [2, 1]
        again = await room.call("start_session", project_key=key, program="shell", model="none", name="Cyd")
        assert again["agent"]["id"] == 3
    number = await room.send("Eve", "Cyd@yard-tree", "Ada@yard-main", project_key=AWAY)
    assert [one["id"] for one in await room.inbox("Cyd", project_key=TREE)] == [number, 3]
    thread = await room.call("summarize_thread", project_key=MAIN, thread_id="deploy")
    assert thread["messages"] == 2
    made = await room.call("ensure_project", human_key="/yard-tree")
    assert made["slug"] not in ("yard-tree", "yard-main"), "a slug that names a project is not given away"


@pytest.mark.parametrize("is_caught_up", [True, False], ids=["archive up to date", "archive behind"])
async def test_the_archive_catches_up_and_a_database_is_rebuilt_from_it(
    room: Room, tmp_path: Path, clock: ManualClock, *, is_caught_up: bool
) -> None:
    archive = archive_of(room, tmp_path)
    if is_caught_up:
        await drained(room, archive)
    await merged(room)
    main = await room.store.read(lambda tx: tx.project(MAIN))
    assert await archive.differing(main) == [], "what is on its way is no damage"
    await drained(room, archive)
    for key in (MAIN, AWAY):
        project = await room.store.read(lambda tx, key=key: tx.project(key))
        assert await archive.differing(project) == [], key
    former = await asyncio.to_thread(lambda: archive.repository("yard-tree").paths())
    assert former == ["project.json"]
    async with rebuilt(archive, clock) as (again, counts):
        assert (counts["projects"], counts["messages"], counts["agents"]) == (2, 3, 5)
        for key in (TREE, "yard-tree", MAIN):
            assert [one["id"] for one in await again.inbox("Dan", project_key=key)] == [2, 1]


async def test_one_that_was_merged_may_be_merged_again_before_the_archive_knows(
    room: Room, tmp_path: Path, clock: ManualClock
) -> None:
    archive = archive_of(room, tmp_path)
    await drained(room, archive)
    await merged(room, TREE, MAIN)
    await merged(room, MAIN, AWAY)
    await drained(room, archive)
    for slug in ("yard-tree", "yard-main"):
        repository = await asyncio.to_thread(archive.repository, slug)
        told = json.loads(await asyncio.to_thread(repository.read, "project.json") or b"")
        assert told["slug"] == slug
        assert await asyncio.to_thread(repository.paths) == ["project.json"]
    async with rebuilt(archive, clock) as (again, _):
        for key in (TREE, "yard-tree", MAIN, "yard-main", AWAY):
            found = await again.call("list_agents", project_key=key)
            assert len(found["agents"]) == 5, key


async def test_agents_of_equal_names_are_merged_under_new_names(
    room: Room, tmp_path: Path, clock: ManualClock
) -> None:
    await room.open("ADA", "Ben", project=TREE)
    await room.send("ADA", "Dan", project_key=TREE, body_md="from the other Ada")
    archive = archive_of(room, tmp_path)
    await drained(room, archive)
    with pytest.raises(StateError, match=r"--rename ADA=ADA-2.*--rename-equal"):
        await merged(room)
    refused = {"ADA": "Ben"}, {"ADA": "Cyd"}, {"ADA": "Nova", "Ben": "nova"}, {"Nobody": "Nova"}
    for renames in refused:
        with pytest.raises(StateError):
            await room.store.write(lambda tx, renames=renames: merge(tx, TREE, MAIN, renames=renames))
    with pytest.raises(InvalidName, match="reserved"):
        await room.store.write(lambda tx: merge(tx, TREE, MAIN, renames={"ADA": "System."}))
    assert len(await room.store.read(lambda tx: tx.projects(limit=9))) == 3, "nothing was changed"
    plan = await room.store.write(
        lambda tx: merge(tx, TREE, MAIN, renames={"ada": "Nova"}, rename_equal=True)
    )
    assert {agent.name: name for agent, name in plan.renames} == {"ADA": "Nova", "Ben": "Ben-2"}
    await drained(room, archive)
    project = await room.store.read(lambda tx: tx.project(MAIN))
    assert await archive.differing(project) == []
    async with rebuilt(archive, clock) as (again, _):
        for here in (room, again):
            found = await here.call("list_agents", project_key=TREE)
            assert [one["name"] for one in found["agents"]] == ["Ada", "Ben", "Cyd", "Dan", "Nova", "Ben-2"]
            [newest, *_] = await here.inbox("Dan", project_key=MAIN)
            assert newest["from"] == "Nova"
            hits = await here.call("search_messages", project_key=MAIN, query="nova")
            assert [hit["subject"] for hit in hits["hits"]] == [newest["subject"]]


async def test_what_clashes_is_named_and_nothing_is_changed(room: Room) -> None:
    await room.open("ADA", project=TREE)
    await room.call("ensure_project", human_key=PEOPLE_KEY)

    async def refused(source: str, target: str, kind: type[Exception], text: str) -> None:
        before = await room.store.read(lambda tx: (tx.projects(limit=9), tx.tokens(limit=9)))
        with pytest.raises(kind, match=text):
            await merged(room, source, target)
        assert await room.store.read(lambda tx: (tx.projects(limit=9), tx.tokens(limit=9))) == before

    await refused(TREE, MAIN, StateError, "both projects have an agent 'ADA'")
    await refused(
        PEOPLE_KEY, MAIN, StateError, "the project that holds the mailboxes of people cannot be merged"
    )
    await refused(MAIN, "yard-main", InvalidArgument, "the same project")
    await refused("nowhere", MAIN, UnknownProject, "no project is named 'nowhere'")
    await refused("/yard/tree\nignore all", MAIN, Exception, "control characters")
    plan = await room.store.read(lambda tx: plan_merge(tx, TREE, MAIN))
    assert (plan.size.agents, plan.size.messages, plan.threads) == (3, 1, ("deploy",))
    assert len(plan.refusals) == 1
