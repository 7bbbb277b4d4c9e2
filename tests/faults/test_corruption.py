"""Random damage to the files of a data folder: found, or harmless; never silent, and no crash without a sentence."""

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from application_room import place
from postroom.contracts.errors import PostroomError
from postroom.testing import ManualClock

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

PROJECT = "/projects/lighthouse"
MESSAGES = 12
CASES = 200
_CLOCK = ManualClock()


def open_place(folder: Path):  # type: ignore[no-untyped-def] - a context manager of the room
    return place(folder, _CLOCK)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose messages are all in the archive."""
    folder = tmp_path_factory.mktemp("sound") / "data"

    async def fill(here) -> None:  # type: ignore[no-untyped-def]
        application = here.application
        await application.mail.call("ensure_project", {"human_key": PROJECT})
        for name in ("Ada", "Ben"):
            who = {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
            await application.mail.call("register_agent", who)
        for number in range(MESSAGES):
            message = {"subject": f"Lamp {number}", "body_md": f"The lamp {number} is lit. " * 40}
            await application.mail.call(
                "send_message", {"project_key": PROJECT, "sender_name": "Ada", "to": ["Ben"], **message}
            )
        (project,) = await application.store.read(lambda tx: tx.projects(limit=2))
        await application.archive.rebuild(project)
        await application.store.store.engine.write(lambda sql: sql.connection.execute("DELETE FROM outbox"))

    with open_place(folder) as here:
        asyncio.run(fill(here))
    return folder


def damage(folder: Path, dice: random.Random) -> str:
    """Flip a bit, truncate a file or replace it; return a description."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    heavy = [folder / "postroom.db"] * len(files)  # half of it strikes the database
    path = dice.choice(files + heavy)
    content = bytearray(path.read_bytes())
    how = dice.choice(("flip", "flip", "cut", "swap"))
    if how == "flip":
        at = dice.randrange(len(content))
        content[at] ^= 1 << dice.randrange(8)
    elif how == "cut":
        del content[dice.randrange(len(content)) :]
    else:
        content = bytearray(dice.choice(files).read_bytes())
    path.chmod(0o600)
    path.write_bytes(content)
    return f"{how} of {path.relative_to(folder)}"


async def said(here) -> list[object]:  # type: ignore[no-untyped-def]
    """Return what the mail says: every message with who sent it to whom, and the agents."""
    store = here.application.store

    def look(tx):  # type: ignore[no-untyped-def]
        (project,) = tx.projects(limit=2)
        messages = tx.project_messages(project.id, limit=100)
        readers = tx.recipients([one.id for one in messages])
        agents = tx.agents(project.id, include_retired=True, limit=9)
        return [
            (project.slug, project.human_key),
            [
                (one.id, one.subject, one.body_md, one.sender_name, one.thread_id, one.created_at)
                for one in messages
            ],
            {number: [(one.name, one.kind) for one in readers[number]] for number in readers},
            [(one.name, one.program, one.model) for one in agents],
        ]

    return await store.read(look)


def outcome(folder: Path, expected: list[object]) -> str:
    """Open the damaged database as a server does, and return the result."""
    try:
        with open_place(folder) as here:
            found = asyncio.run(here.operator.doctor(full=True))
            if any(one["state"] == "failed" for one in found["checks"] if one["name"] != "disk"):
                return "found"
            return "harmless" if asyncio.run(said(here)) == expected else "silent"
    except PostroomError as error:
        return "refused" if error.message else "silent"


def test_two_hundred_flips_cuts_and_swaps_are_found_or_harmless(sound: Path, tmp_path: Path) -> None:
    with open_place(sound) as here:
        expected = asyncio.run(said(here))
        assert (asyncio.run(here.operator.doctor(full=True)))["ok"] is True
    dice = random.Random(15)
    seen: Counter[str] = Counter()
    silent: list[str] = []
    for number in range(CASES):
        folder = tmp_path / f"{number}"
        shutil.copytree(sound, folder)
        done = damage(folder, dice)
        came = outcome(folder, expected)
        seen[came] += 1
        if came == "silent":
            silent.append(f"{number}: {done}")
        shutil.rmtree(folder)
    assert silent == []
    assert min(seen["found"], seen["refused"], seen["harmless"]) > 0, seen
