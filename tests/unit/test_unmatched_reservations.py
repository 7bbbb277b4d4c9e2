"""The answer of a reservation lists the patterns that match no file of the project's folder."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from mail_room import Room, room_in_memory
from postroom.mail.unmatched import MAX_ENTRIES

room = room_in_memory
NFC, NFD = (
    unicodedata.normalize(form, "caf\N{LATIN SMALL LETTER E WITH ACUTE}.py") for form in ("NFC", "NFD")
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("src/app.py", "src/deep/lamp.py", f"src/{NFD}", "docs/plan.md", ".git/hooks/x.rs"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one boat\n")
    return tmp_path


async def reserved(room: Room, folder: Path, *paths: str) -> dict[str, Any]:
    await room.mail.call("ensure_project", {"human_key": str(folder)})
    who = {"project_key": str(folder), "program": "p", "model": "m", "name": "Ada"}
    await room.mail.call("register_agent", who)
    asked = {"project_key": str(folder), "agent_name": "Ada", "paths": list(paths)}
    found: dict[str, Any] = await room.mail.call("file_reservation_paths", asked)
    return found


async def test_patterns_without_a_file_are_reserved_and_listed(room: Room, folder: Path) -> None:
    wrong = ["scr/**", "src/*.rs", "**/*.rs", "src/new.py", "docs/plan.md/x"]
    right = ["src/app.py", "src", "src/**", "**/lamp.py", f"src/{NFC}", "src/{app,gull}.py", "port:8080"]
    found = await reserved(room, folder, *wrong, *right)
    assert found["unmatched"] == [*wrong, "src/gull.py"]
    assert all(one["held"] for one in found["granted"])
    assert "unmatched" not in await reserved(room, folder, *right[:5])


async def test_a_folder_that_is_not_on_this_machine_is_not_judged(room: Room, tmp_path: Path) -> None:
    assert "unmatched" not in await reserved(room, tmp_path / "elsewhere", "src/**")


async def test_nothing_is_guessed_behind_a_link_or_in_a_large_tree(room: Room, folder: Path) -> None:
    (folder / "everything").symlink_to("/")
    assert "unmatched" not in await reserved(room, folder, "everything/*.rs", "everything/app.py")
    (folder / "everything").unlink()
    for number in range(MAX_ENTRIES):
        (folder / "docs" / str(number)).touch()
    assert "unmatched" not in await reserved(room, folder, "docs/*.rs")


async def test_a_repeated_call_lists_them_again(room: Room, folder: Path) -> None:
    first = await reserved(room, folder, "scr/**")
    asked = {"project_key": str(folder), "agent_name": "Ada", "paths": ["scr/**"], "idempotency_key": "k"}
    assert (await room.mail.call("file_reservation_paths", asked))["unmatched"] == ["scr/**"]
    assert (await room.mail.call("file_reservation_paths", asked))["unmatched"] == first["unmatched"]
