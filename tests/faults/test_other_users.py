"""Files and folders of another user: a command names the owner and the remedy, and says that a restart does not help."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroom.stores.sqlite import SqliteStore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")

HERE = Path(__file__).parent
OURS, THEIRS = 5001, 5002
PATIENCE = 120
CONFIGURATION = 78

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder of the user who runs the commands, with a database; not below pytest's, which others close."""
    with tempfile.TemporaryDirectory(prefix="postroom-users-") as name:
        yield _made(Path(name))


def _made(above: Path) -> Path:
    above.chmod(0o755)
    made = above / "data"
    made.mkdir(mode=0o700)
    SqliteStore.open(made / "postroom.db").close()
    for one in (made, *made.iterdir()):
        os.chown(one, OURS, OURS)
    return made


@pytest.fixture
def run(data: Path) -> Run:
    """Run a command as the user of the data folder."""

    def command(*words: str, user: int = OURS, umask: str = "077", **more: str) -> Ran:
        return subprocess.run(
            [sys.executable, str(HERE / "unprivileged_command.py"), str(user), umask, *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=data.parent,
            env={
                "HOME": str(data.parent),
                "PATH": os.environ["PATH"],
                "POSTROOM_DATA_DIR": str(data),
                **more,
            },
        )

    return command


def checks(told: Ran) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in json.loads(told.stdout)["checks"]}


@pytest.mark.parametrize(
    "words", [("backup", "list"), ("backup",), ("backup", "prune", "--keep", "1"), ("up", "--port", "0")]
)
def test_a_folder_of_backups_of_another_user_is_told_and_not_taken_for_an_empty_one(
    words: tuple[str, ...], data: Path, run: Run
) -> None:
    folder = data / "backups"
    folder.mkdir(mode=0o700)
    os.chown(folder, THEIRS, THEIRS)
    told = run(*words)
    assert told.returncode == CONFIGURATION, told
    assert (
        f"{folder} cannot be {'written' if words == ('backup',) else 'read'}: it belongs to user {THEIRS}"
        in told.stderr
    )
    assert f"chown -R {OURS} {folder}" in told.stderr
    found = checks(run("doctor", "--json"))["backups"]
    assert (found["state"], "there is no backup" in found["detail"]) == ("failed", False)
    assert f"chown -R {OURS} {folder}" in found["remedy"]


def test_one_backup_of_another_user_hides_no_other(data: Path, run: Run) -> None:
    assert run("backup").returncode == 0
    theirs = data / "backups" / "postroom-2001-01-01T000000000Z.db"
    theirs.touch(mode=0o600)
    os.chown(theirs, THEIRS, THEIRS)
    ran = run("backup", "list", "--json")
    assert ran.stdout, ran.stderr
    told = json.loads(ran.stdout)["backups"]
    assert len(told) == 2
    assert [one["name"] for one in told if f"belongs to user {THEIRS}" in one["fault"]] == [theirs.name]


@pytest.mark.parametrize("name", ["kept.db", "kept.copy"])
def test_a_backup_that_may_not_be_read_is_told_like_other_files_with_whose_it_is(
    name: str, data: Path, run: Run
) -> None:
    theirs = data / name
    theirs.touch(mode=0o600)
    os.chown(theirs, THEIRS, THEIRS)
    told = run("restore", str(theirs), "--to", str(data / "to.db"))
    assert told.returncode == CONFIGURATION, told
    assert f"{theirs} cannot be read: it belongs to user {THEIRS}, but this is user {OURS}" in told.stderr
    assert f"chown {OURS} {theirs}" in told.stderr


@pytest.mark.parametrize("words", [("doctor",), ("support-bundle", "--output", "../bundle.tar.gz")])
def test_what_root_looks_at_is_left_to_its_user(words: tuple[str, ...], data: Path, run: Run) -> None:
    (data / "postroom.db.lock").unlink(missing_ok=True)
    run(*words, user=0)
    assert [one.name for one in data.iterdir() if one.stat().st_uid != OURS] == []
    assert run("backup").returncode == 0, "its user can take the lock"


def shared_by(data: Path) -> Path:
    """Make others create files in the data folder, and read the database of its user."""
    data.chmod(0o777)
    (data / "postroom.db").chmod(0o644)
    for one in data.glob("postroom.db.*"):
        one.unlink()
    return data / "postroom.db"


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--json"),
        ("backup",),
        ("support-bundle", "--output", "data/bundle.tar.gz"),
        ("up", "--port", "0"),
    ],
)
def test_who_may_only_read_a_database_leaves_nothing_beside_it(
    words: tuple[str, ...], data: Path, run: Run
) -> None:
    """SQLite makes the log and what connections share with the rights of the database: the owner was kept out."""
    database = shared_by(data)
    told = run(*words, user=THEIRS, umask="022")
    assert told.returncode == {"doctor": 1, "support-bundle": 0}.get(words[0], CONFIGURATION), told
    assert list(data.glob("postroom.db?*")) == []
    other = "not to the server's" if words[0] == "up" else "but this is"
    if words[0] != "support-bundle":
        assert f"belongs to user {OURS}, {other} user {THEIRS}" in told.stdout + told.stderr
    assert run("backup").returncode == 0
    assert database.stat().st_uid == OURS


def test_files_beside_a_database_that_belong_to_another_user_are_named_with_what_mends_them(
    data: Path, run: Run
) -> None:
    for end in ("-wal", "-shm"):
        beside = data / f"postroom.db{end}"
        beside.touch(mode=0o644)
        os.chown(beside, THEIRS, THEIRS)
    told = run("up", "--port", "0")
    assert told.returncode == CONFIGURATION, told
    for end in ("-wal", "-shm"):
        assert f"`chown {OURS} {data}/postroom.db{end}` as root" in told.stderr


def test_a_token_file_of_another_user_is_told_with_its_owner_and_what_mends_it(data: Path, run: Run) -> None:
    token = data / "token"
    token.write_text("prm_" + "x" * 43)
    token.chmod(0o600)
    os.chown(token, THEIRS, THEIRS)
    told = run("up", "--port", "0")
    assert told.returncode == CONFIGURATION, told
    assert f"belongs to user {THEIRS}, but this is user {OURS}" in told.stderr
    assert f"`chown {OURS} {token}` as root, or run this command as user {THEIRS}" in told.stderr


@pytest.mark.parametrize(
    ("words", "by"),
    [
        (("status",), "option"),
        (("up", "--port", "0"), "option"),
        (("doctor",), "environment"),
        (("config", "show"), "environment"),
        (("backup", "create"), "environment"),
    ],
)
def test_a_data_folder_of_another_user_is_a_fault_of_configuration_however_it_is_named(
    words: tuple[str, ...], by: str, data: Path, run: Run
) -> None:
    given = (*words, "--data-dir", str(data)) if by == "option" else words
    elsewhere = {"POSTROOM_DATA_DIR": str(data.parent)} if by == "option" else {}
    told = run(*given, user=THEIRS, **elsewhere)
    assert told.returncode == CONFIGURATION, told
    assert f"the data folder {data} cannot be read: it belongs to user {OURS}" in told.stderr
    assert f"`chown -R {THEIRS} {data}` as root, or run this command as user {OURS}" in told.stderr
