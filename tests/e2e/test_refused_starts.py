"""A refused start gives the reason in words, with a code and a remedy, in the form of the log."""

import json
from pathlib import Path

import pytest

from e2e.running import postroom
from table_rows import each_row

pytestmark = pytest.mark.long
CONFIGURATION = 78


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder whose database is a folder."""
    made = tmp_path / "data"
    (made / "postroom.db").mkdir(parents=True)
    return made


def test_a_refused_start_tells_its_code(folder: Path) -> None:
    done = postroom(folder, "up", "--port", "0")
    assert (done.returncode, done.stdout) == (CONFIGURATION, "")
    said, remedy, code = done.stderr.splitlines()
    assert said == f"{folder / 'postroom.db'} is a folder instead of a database"
    assert remedy.startswith("remedy: move it away")
    assert code == "code: store_read_only"


def test_a_refused_start_is_one_line_of_a_log_in_json(folder: Path) -> None:
    done = postroom(folder, "up", "--port", "0", "--log-format", "json")
    assert done.returncode == CONFIGURATION
    [told] = map(json.loads, done.stderr.splitlines())
    assert (told["event"], told["level"], told["code"]) == ("serve.not_started", "error", "store_read_only")
    assert "is a folder" in told["reason"]
    assert "move it away" in told["remedy"]


def test_a_setting_that_is_wrong_has_a_code_too(tmp_path: Path) -> None:
    done = postroom(tmp_path / "data", "up", "--port", "0", "--host", "")
    assert done.returncode == CONFIGURATION
    assert done.stderr.splitlines()[-1] == "code: config_error"


def test_doctor_says_of_a_folder_what_the_start_says(folder: Path) -> None:
    done = postroom(folder, "doctor")
    assert done.returncode == 1
    assert "is a folder instead of a database" in done.stdout
    assert "restore" not in done.stdout


def test_a_folder_in_the_place_of_the_lock_is_named_and_not_the_rights_of_a_database(tmp_path: Path) -> None:
    lock = tmp_path / "data" / "postroom.db.lock"
    lock.mkdir(parents=True)
    done = postroom(tmp_path / "data", "up", "--port", "0")
    assert done.returncode == CONFIGURATION
    assert done.stderr.splitlines() == [
        f"{lock} is a folder instead of a lock",
        "remedy: move it away",
        "code: store_read_only",
    ]


@each_row(
    "text, reason",
    [
        ("", "it is not valid JSON"),
        ("[]", "a field is missing or has the wrong type"),
        ("{}", "a field is missing"),
    ],
)
def test_a_mark_that_does_not_read_is_told_without_names_of_python(
    tmp_path: Path, text: str, reason: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "store.json").write_text(text)
    done = postroom(folder, "up", "--port", "0")
    assert (done.returncode, reason in done.stderr, "Error" in done.stderr) == (CONFIGURATION, True, False)
