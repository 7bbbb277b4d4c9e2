"""A folder a case: the client's files before, after setup, and what is left when setup is taken out.

cases/<client>/<case>/before   the home before; without it the home is empty
                      after    the home after `postroom setup`
                      edited   the file after a person has edited it, if a person did
                      left     the home after `postroom setup remove`; without it in its state before
"""

from pathlib import Path

import pytest

from clients_room import Room, files_of
from postroom.app.clients.table import CLIENTS

CASES = Path(__file__).parent / "cases"
ALL = sorted(path for client in CASES.iterdir() for path in client.iterdir())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    (tmp_path / "home").mkdir()
    return Room(tmp_path / "home")


def set_up(room: Room, case: Path) -> None:
    with_hooks = any(b"postroom hook" in content for _, content in files_of(case / "after"))
    room.set_up(case.parent.name, "http" if case.name == "http" else None, hooks=with_hooks)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_files_before_after_setup_and_after_remove(case: Path, room: Room) -> None:
    room.fill(case / "before")
    before = room.tree()
    set_up(room, case)
    assert dict(files_of(room.home)).items() >= dict(files_of(case / "after")).items()
    assert {name for name, _ in files_of(case / "after")} == {
        name for name, content in room.tree(backups=False).items() if content is not None
    }
    once = room.tree()
    set_up(room, case)
    assert room.tree() == once
    if not (case / "edited").exists():
        room.take_out(case.parent.name)
        assert room.tree() == before


@pytest.mark.parametrize(
    "case",
    [one for one in ALL if (one / "edited").exists()],
    ids=lambda case: f"{case.parent.name}-{case.name}",
)
def test_what_a_person_changed_in_between_stays(case: Path, room: Room) -> None:
    room.fill(case / "before")
    set_up(room, case)
    for name, content in files_of(case / "edited"):
        (room.home / name).write_bytes(content)
    room.take_out(case.parent.name)
    left = {name: content for name, content in room.tree(backups=False).items() if content is not None}
    assert left == dict(files_of(case / "left"))


def test_every_client_has_cases_and_no_case_is_without_a_client() -> None:
    names = {one.name for one in CLIENTS}
    assert {path.name for path in CASES.iterdir()} == names
    assert {path.parent.name for path in ALL if (path / "after").exists()} == names
    assert len(ALL) > 40


def test_no_case_holds_a_path_of_a_machine_or_a_token() -> None:
    for path in CASES.rglob("*"):
        if path.is_file() and "after" in path.parts:
            text = path.read_text(encoding="utf-8")
            assert "prm_" not in text
            assert ".venv" not in text
            assert "/bin/" not in text
