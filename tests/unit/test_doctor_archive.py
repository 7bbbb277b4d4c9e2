"""The report of `postroom doctor` on archives: late, ahead, and damaged."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from application_room import Place, place
from postroom.app.archive_check import ArchiveCheck
from postroom.contracts.mail import KeepRule, Project
from postroom.mail.archive.archive import Archive, Author
from postroom.mail.archive.repository import ArchiveRepository
from postroom.mail.outgoing import ARCHIVE
from postroom.mail.retention import ProjectRules, delete_some
from postroom.relay import Relay
from postroom.testing import ManualClock

PROJECT = "/projects/shop"
Meanwhile = Callable[[], Awaitable[object]]


@pytest.fixture
def here(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    with place(tmp_path / "data", clock) as found:
        yield found


async def _archived(here: Place) -> Path:
    """Send two messages in the archive, have them archived, and return the repository."""
    application = here.application
    await application.mail.call("ensure_project", {"human_key": PROJECT})
    for name in ("Ada", "Ben"):
        await application.mail.call(
            "register_agent", {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
        )
    for subject in ("first", "second"):
        await _send(here, subject)
    project = await _project(here)
    await application.archive.rebuild(project)
    return application.archive.root / f"{project.slug}.git"


async def _send(here: Place, subject: str) -> None:
    asked = {"sender_name": "Ada", "to": ["Ben"], "subject": subject, "body_md": "The lamp is lit."}
    await here.application.mail.call("send_message", {"project_key": PROJECT, **asked})


async def _told(here: Place, *, full: bool = False) -> tuple[str, str]:
    found = await here.operator.doctor(full=full)
    (told,) = [one for one in found["checks"] if one["name"].startswith("archive ")]
    return told["state"], told["detail"]


async def test_a_flipped_bit_in_a_message_is_found_by_a_full_look(here: Place) -> None:
    repository = await _archived(here)
    assert (await _told(here, full=True))[0] == "ok"

    def flip(sql: Any) -> None:
        sql.connection.execute("UPDATE messages SET body_md = replace(body_md, 'lit', 'mit') WHERE id = 2")

    await here.application.store.store.engine.write(flip)
    await here.application.store.store.engine.write(lambda sql: sql.connection.execute("DELETE FROM outbox"))
    told = {one["name"]: one for one in (await here.operator.doctor(full=True))["checks"]}
    damaged = told["messages"]
    assert (damaged["state"], damaged["detail"]) == (
        "failed",
        "the texts of 1 messages changed on the disk: 2",
    )
    await here.application.archive.rebuild(await _project(here))
    kept = ["git", "-C", str(repository), "grep", "-l", "The lamp is lit.", "main", "--", "messages"]
    found = await asyncio.to_thread(subprocess.run, kept, capture_output=True, text=True, check=True)
    assert "2-second.md" in found.stdout, "the archive keeps the text that was sent"


async def test_a_lock_that_a_git_left_behind_is_told_at_the_first_look(here: Place) -> None:
    repository = await _archived(here)
    await asyncio.to_thread((repository / "refs" / "heads" / "main.lock").touch)
    told = await here.finding(f"archive {repository.stem}")
    assert (told["state"], "main.lock" in told["detail"]) == ("failed", True)


async def _project(here: Place) -> Project:
    (project,) = await here.application.store.read(lambda tx: tx.projects(limit=2))
    return project


async def _write_archive(here: Place) -> None:
    application = here.application
    author = Author(name="postroom", email="postroom@example.org")
    archive = Archive(application.archive.root, application.store, here.clock, author)
    await Relay(application.store.store, {ARCHIVE: archive}).drain()
    assert await here.application.store.read(lambda tx: tx.outbox.open(ARCHIVE, limit=9)) == ()


async def _delete(here: Place, *ids: int) -> None:
    """Delete messages as a `keep` rule does; the archive is to follow."""
    rules = ProjectRules([KeepRule(keep=timedelta(days=1), unread_stays=False)])
    project = await _project(here)
    await here.application.store.settle()
    here.clock.advance(timedelta(days=2))
    gone = await here.application.store.write(
        lambda tx: delete_some(tx, project_id=project.id, ids=ids, rules=rules)
    )
    assert gone == len(ids)


def _between(here: Place, monkeypatch: pytest.MonkeyPatch, *happening: Meanwhile) -> None:
    """Make changes each time after the doctor read the database and before it reads the archive."""
    archive, loop = here.application.archive, asyncio.get_running_loop()
    opened, left = archive.repository, list(happening)

    def repository(slug: str) -> ArchiveRepository:
        if left:
            happens = left.pop(0)

            async def happened() -> None:
                await happens()

            asyncio.run_coroutine_threadsafe(happened(), loop).result()
        return opened(slug)

    monkeypatch.setattr(archive, "repository", repository)


@pytest.mark.parametrize("full", [False, True])
async def test_messages_that_a_rule_deleted_and_the_archive_still_has_are_on_their_way_out(
    here: Place, *, full: bool
) -> None:
    """This is the state during a deletion, and after a kill between the database's commit and the archive's."""
    await _archived(here)
    await _write_archive(here)
    await _delete(here, 1)
    assert await _told(here, full=full) == (
        "ok",
        "1 messages in the archive, 0 still to be written, 1 still to be deleted",
    )
    await _write_archive(here)
    assert await _told(here, full=full) == ("ok", "1 messages in the archive, 0 still to be written")


async def test_messages_that_went_from_both_while_the_archive_was_looked_at_are_not_missing(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _archived(here)
    await _write_archive(here)

    async def both() -> None:
        await _delete(here, 2)
        await _write_archive(here)

    _between(here, monkeypatch, both)
    assert await _told(here) == ("ok", "1 messages in the archive, 0 still to be written")


async def test_messages_that_came_to_both_while_the_archive_was_looked_at_are_in_the_database(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _archived(here)
    await _write_archive(here)

    async def come() -> None:
        await _send(here, "third")
        await _write_archive(here)

    _between(here, monkeypatch, come)
    assert await _told(here) == ("ok", "3 messages in the archive, 0 still to be written")


async def test_messages_that_came_and_went_while_the_archive_was_looked_at_are_no_failure(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither read of the database sees them: the archive is read again."""
    await _archived(here)
    await _write_archive(here)
    check = ArchiveCheck(here.application.store, here.application.archive, here.application.clock, full=False)
    looked = here.application.store.read

    async def come() -> None:
        await _send(here, "third")
        await _write_archive(here)
        monkeypatch.setattr(here.application.store, "read", gone_before_it_is_read)

    async def gone_before_it_is_read(look: Any) -> Any:
        monkeypatch.setattr(here.application.store, "read", looked)
        await _delete(here, 3)
        await _write_archive(here)
        return await looked(look)

    project = await _project(here)
    _between(here, monkeypatch, come)
    found = await check.of(project)
    assert (found.state, check.repairs) == ("ok", [])


async def test_a_message_that_the_database_lost_is_told_beside_a_deletion(here: Place) -> None:
    await _archived(here)
    await _write_archive(here)
    await _delete(here, 1)

    slug = (await _project(here)).slug
    repository = await asyncio.to_thread(here.application.archive.repository, slug)
    lost = {"messages/2023/11/99-lost.md": b"The database was put back to what it was before this came."}
    await asyncio.to_thread(repository.write, lost, subject="mail: lost", now=here.clock.now())
    state, detail = await _told(here)
    assert (state, detail.partition(":")[0]) == (
        "failed",
        "1 messages of the archive are missing from the database, which is older than the archive",
    )
