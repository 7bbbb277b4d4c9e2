"""An empty installation in which commands run, a server that answers as a test tells it, and what they printed."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_postroom import FakePostroom
from postroom.cli.main import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty project folder; the installation next to it, `data`, is empty too."""
    for name in os.environ:
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return project


@pytest.fixture
def bare(folder: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command without a server."""

    def run(*words: str) -> Done:
        code = main(words)
        printed = capfd.readouterr()
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture
def run(fake: FakePostroom, bare: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the fake server."""
    monkeypatch.setenv("POSTROOM_URL", fake.url)
    return bare


def arguments(fake: FakePostroom, at: int = -1) -> dict[str, Any]:
    """Return the arguments of a tool call that arrived."""
    return fake.seen[at].body["params"]["arguments"]
