"""Groups for operators: each command takes `--data-dir` and works with the server whose note is there."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from fake_postroom import FakePostroom
from postroom.app.places import ServerNote, write_server_note
from postroom.cli.commands import tree
from postroom.cli.main import main

GROUPS = ("agents", "schedules", "questions", "tokens", "people", "runs", "projects")


@pytest.mark.parametrize("group", GROUPS)
def test_each_command_of_an_operator_takes_a_data_folder(group: str) -> None:
    commands = get_command(tree(group)).commands[group].commands  # type: ignore[attr-defined]
    assert commands
    lacking = [name for name, one in commands.items() if "data_dir" not in {each.name for each in one.params}]
    assert lacking == []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePostroom]:
    """A server whose note is in a folder that the environment does not name."""
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "nobody"))
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    with FakePostroom() as running:
        note = ServerNote(url=running.url, pid=1, version="1", started_at=int(time.time() * 1000))
        write_server_note(tmp_path / "data", note)
        running.admin["GET", "/admin/schedules"] = lambda _: {"schedules": []}
        running.admin["GET", "/admin/questions"] = lambda _: {"questions": []}
        running.admin["DELETE", "/admin/runners"] = lambda _: {"removed": True}
        yield running


@pytest.mark.parametrize(
    "words", [("schedules", "list"), ("questions", "list"), ("agents", "unset-runner", "Bo")]
)
def test_the_server_of_that_folder_is_asked_and_no_other_afterwards(
    words: tuple[str, ...], fake: FakePostroom, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*words, "--data-dir", str(tmp_path / "data"))) == 0
    assert len(fake.seen) == 1
    assert main(words) == 75
    assert "no server runs" in capsys.readouterr().err
