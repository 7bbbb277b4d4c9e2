"""A server's data is private to its user: tightened for its own files, refused for others'."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.app import privacy
from postroom.app.config import Settings
from postroom.app.privacy import keep_private, told_of_folders
from postroom.contracts.errors import ConfigError
from postroom.mail.archive.repository import ArchiveRepository
from postroom.stores.sqlite import SqliteStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A data folder as an older release and a service manager left it, the archive elsewhere."""
    made = Settings(data_dir=tmp_path / "data", storage_root=tmp_path / "elsewhere")
    for folder in (made.data_dir, made.storage_root, made.data_dir / "backups"):
        folder.mkdir()
        folder.chmod(0o755)
    made.database.touch()
    made.database.chmod(0o644)
    return made


def test_what_is_ours_is_tightened_and_doctor_says_what_was_open(settings: Settings) -> None:
    told = told_of_folders(settings)
    assert told.state == "failed"
    assert f"{settings.storage_root} (mode 0755)" in told.detail
    keep_private(settings)
    assert {mode(path) for path in (settings.data_dir, settings.storage_root)} == {0o700}
    assert (mode(settings.data_dir / "backups"), mode(settings.database)) == (0o700, 0o600)
    assert told_of_folders(settings).state == "ok"


@pytest.mark.parametrize("which", ["storage_root", "database"])
def test_what_belongs_to_another_user_and_is_open_is_refused(
    which: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_private(settings)
    path = getattr(settings, which)
    path.chmod(0o755)
    own = os.geteuid()
    monkeypatch.setattr(privacy.os, "geteuid", lambda: own + 1)
    with pytest.raises(ConfigError, match="belongs to user") as refused:
        keep_private(settings)
    assert (refused.value.value, mode(path)) == (str(path), 0o755)


def test_a_data_folder_of_another_user_may_be_read_but_not_written_by_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_private(settings)
    own = os.geteuid()
    settings.data_dir.chmod(0o755)
    monkeypatch.setattr(privacy.os, "geteuid", lambda: own + 1)
    keep_private(settings)
    settings.data_dir.chmod(0o777)
    with pytest.raises(ConfigError):
        keep_private(settings)


def test_a_pipe_or_device_in_the_place_of_a_database_keeps_its_rights(settings: Settings) -> None:
    settings.database.unlink()
    os.mkfifo(settings.database, 0o600)
    settings.database.chmod(0o666)
    keep_private(settings)
    assert mode(settings.database) == 0o666
    assert "postroom.db" not in told_of_folders(settings).detail


@pytest.fixture
def open_mask() -> Iterator[None]:
    """Make new files public, as some service managers do."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_mask")
def test_what_a_server_makes_is_private_whatever_mask_it_was_started_with(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "data" / "postroom.db")
    archive = ArchiveRepository.open(
        tmp_path / "data" / "archive", author_name="Postroom", author_email="postroom@example.invalid"
    )
    archive.write({"a.md": b"a"}, subject="a", now=1)
    made = {path: mode(path) for path in (tmp_path / "data").rglob("*")}
    store.close()
    assert {path.name for path in made} >= {"postroom.db.owner.json", "postroom.lock"}
    assert [path for path, its in made.items() if its & 0o077] == []
