"""Backups that share pages: each gives its database back, damage is told, a kill harms none of those before."""

import io
import json
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom.contracts.errors import StateError, StoreCorrupt
from postroom.stores.sqlite import page_backups
from postroom.stores.sqlite.page_backups import About, Listed
from postroom.stores.sqlite.page_packs import Pack

PATIENCE = 120
PAGE, PAGES = 4096, 500
DICE = random.Random(65)


def a_copy(path: Path) -> Path:
    """Write something like a database whose pages do not compress."""
    content = bytearray(DICE.randbytes(PAGE * PAGES))
    content[:18] = b"SQLite format 3\0" + PAGE.to_bytes(2, "big")
    path.write_bytes(content)
    return path


def change(copy: Path, pages: int) -> None:
    """Write other content into some pages, and add one."""
    content = bytearray(copy.read_bytes())
    for _ in range(pages):
        at = PAGE * DICE.randrange(1, len(content) // PAGE)
        content[at : at + PAGE] = DICE.randbytes(PAGE)
    copy.write_bytes(content + DICE.randbytes(PAGE))


def backed_up(copy: Path, folder: Path, day: int) -> Listed:
    with page_backups.folder_lock(folder):
        return page_backups.add(copy, folder / f"day-{day}.backup", About(day, 33, "id"))


def held(found: Listed) -> bytes:
    target = io.BytesIO()
    page_backups.assemble(found.path, target)
    return target.getvalue()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def spoil(path: Path, at: int = 1000) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_ten_backups_of_a_database_that_changes_by_two_per_cent_a_day_take_less_than_one_and_a_half_times_it(
    tmp_path: Path,
) -> None:
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    days: list[tuple[Listed, bytes]] = []
    for day in range(10):
        days.append((backed_up(copy, folder, day), copy.read_bytes()))
        change(copy, PAGES // 50)
    assert size_of(folder) < 1.5 * copy.stat().st_size
    assert all(held(found) == content for found, content in days)
    assert [one.path for one in page_backups.listed(folder)] == [one.path for one, _ in days]


def test_what_no_backup_needs_is_freed_and_the_others_stay_whole(tmp_path: Path) -> None:
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    first = backed_up(copy, folder, 0)
    change(copy, PAGES // 3)
    second, content = backed_up(copy, folder, 1), copy.read_bytes()
    first.path.unlink()
    before = size_of(folder)
    with page_backups.folder_lock(folder):
        freed = page_backups.sweep(folder)
        assert freed > 0.2 * PAGE * PAGES
        assert page_backups.sweep(folder) == 0, "what was left out once is not left out again"
    assert (before - size_of(folder), held(second)) == (freed, content)
    change(copy, 3)
    third = backed_up(copy, folder, 2)
    assert (third.added < 30 * PAGE, held(third)) == (True, copy.read_bytes())
    second.path.unlink()
    third.path.unlink()
    with page_backups.folder_lock(folder):
        page_backups.sweep(folder)
    assert list((folder / "packs").iterdir()) == []


def test_a_backup_needs_no_more_packs_than_can_be_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_backups, "MOST_PACKS", 3)
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    for day in range(8):
        found = backed_up(copy, folder, day)
        assert len({one.pack for one in page_backups.records(found)}) <= 3
        assert held(found) == copy.read_bytes()
        change(copy, 2)


@pytest.mark.parametrize("victim", ["pack", "list"])
def test_damage_is_told_and_the_next_backup_shares_nothing_with_it(tmp_path: Path, victim: str) -> None:
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    first = backed_up(copy, folder, 0)
    spoil(next((folder / "packs").iterdir()) if victim == "pack" else first.path)
    with pytest.raises(StoreCorrupt):
        page_backups.assemble(first.path)
    change(copy, 2)
    second = backed_up(copy, folder, 1)
    assert held(second) == copy.read_bytes()
    if victim == "list":  # nobody knows what it needs: nothing is removed
        spoil(second.path, at=3)
        with page_backups.folder_lock(folder), pytest.raises(StoreCorrupt):
            page_backups.sweep(folder)
        assert len(list((folder / "packs").iterdir())) == 2


def test_a_hundred_flips_and_cuts_are_found(tmp_path: Path) -> None:
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    first = backed_up(copy, folder, 0)
    for path in (first.path, *(folder / "packs").iterdir()):
        whole = path.read_bytes()
        for number in range(50):
            content = bytearray(whole)
            if number % 2:
                content[DICE.randrange(len(content))] ^= 1 << DICE.randrange(8)
            else:
                del content[DICE.randrange(len(content)) :]
            path.write_bytes(content)
            try:
                assert held(first) == copy.read_bytes(), number
            except StoreCorrupt:
                continue
        path.write_bytes(whole)
    assert held(first) == copy.read_bytes()


@pytest.mark.long
def test_killed_at_any_step_it_leaves_the_backups_before_whole(tmp_path: Path) -> None:
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    with page_backups.folder_lock(folder):
        page_backups.add(copy, folder / "first.backup", About(1, 1, "id"))
    change(copy, PAGES // 3)
    program = [sys.executable, str(Path(__file__).with_name("backing_up_process.py"))]
    done = subprocess.run(
        [*program, str(copy), str(folder)], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["steps"] > 20
    assert told["left"] == [".lock", "first.backup", "packs", "second.backup"]
    assert [Pack.open(one).pages > 0 for one in (folder / "packs").iterdir()] == [True, True]


def test_two_processes_do_not_work_in_one_folder_at_once(tmp_path: Path) -> None:
    with (
        page_backups.folder_lock(tmp_path),
        pytest.raises(StateError),
        page_backups.folder_lock(tmp_path),
    ):
        pass


def test_a_real_database_comes_back_as_it_was_with_what_is_said_of_it(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(copy)) as rows:
        rows.execute("CREATE TABLE schema_migrations (version INTEGER)")
        rows.execute("INSERT INTO schema_migrations VALUES (33)")
        rows.commit()
    assert page_backups.about(copy, 5) == About(5, 33, "")
    found = backed_up(copy, tmp_path / "backups", 1)
    assert (found.size, held(found)) == (copy.stat().st_size, copy.read_bytes())


@pytest.mark.parametrize("entry", ["link", "folder"])
def test_what_cannot_be_read_keeps_everything_and_a_folder_is_no_backup(tmp_path: Path, entry: str) -> None:
    """Nobody knows which pages a link needs that leads to nothing; it is noticed before anything is removed."""
    folder, copy = tmp_path / "backups", a_copy(tmp_path / "copy")
    first = backed_up(copy, folder, 1)
    change(copy, 5)
    second = backed_up(copy, folder, 2)
    odd = folder / "odd.backup"
    if entry == "folder":
        odd.mkdir()
        page_backups.sweep(folder, [first.path])
        assert not first.path.exists()
    else:
        odd.symlink_to(tmp_path / "gone")
        with pytest.raises(StoreCorrupt, match=r"odd.backup cannot be read, so nothing was removed"):
            page_backups.sweep(folder, [first.path])
        assert first.path.exists()
    assert held(second)


def test_a_damaged_pack_keeps_no_other_from_being_freed_and_what_no_backup_needs_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_backups, "MOST_DEAD", 0)
    copy, folder = a_copy(tmp_path / "copy"), tmp_path / "backups"
    days = []
    for day in range(3):
        days.append(backed_up(copy, folder, day))
        change(copy, 20)
    packs = sorted((folder / "packs").iterdir())
    for pack in (packs[0], packs[2]):
        pack.write_bytes(pack.read_bytes()[:-8] + b"\xff" * 8)
    stray = folder / "packs" / "copied from elsewhere.pack"
    stray.write_bytes(b"")
    with page_backups.folder_lock(folder):
        page_backups.sweep(folder, [days[0].path, days[2].path])
    assert sorted((folder / "packs").iterdir()) == [packs[0], packs[1], stray], "the first is kept as it is"
    assert [one.path for one in page_backups.listed(folder)] == [days[1].path]
    assert held(backed_up(copy, folder, 4)) == copy.read_bytes()
