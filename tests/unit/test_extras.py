"""The command that adds an extra fits the way in which postroom was installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.extras import install_command
from table_rows import each_row

ROOT = Path(__file__).resolve().parents[2]


@each_row(
    "source, command",
    [
        (None, f"run `{sys.executable} -m pip install 'postroom[otel]'`"),
        (
            {"url": "file:///src/my%20clone", "dir_info": {"editable": True}},
            "run `make extra NAMES=otel` in /src/my clone",
        ),
        (
            {"url": "file:///src/postroom", "dir_info": {}},
            f"run `{sys.executable} -m pip install 'postroom[otel] @ file:///src/postroom'`",
        ),
        (
            {"url": "https://example.org/postroom.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            f"run `{sys.executable} -m pip install 'postroom[otel] @ git+https://example.org/postroom.git'`",
        ),
    ],
)
def test_an_extra_is_installed_from_the_source_of_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, object] | None, command: str
) -> None:
    top = tmp_path / str(len(list(tmp_path.iterdir())))
    about = top / "postroom-9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: postroom\nVersion: 9\n")
    if source is not None:
        (about / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.syspath_prepend(str(top))
    assert install_command("otel") == command


def test_an_environment_without_pip_is_given_the_command_of_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    assert install_command("otel") == f"run `uv pip install --python {sys.executable} 'postroom[otel]'`"


def make_extra(names: str) -> subprocess.CompletedProcess[str]:
    """Run the program of `make extra`, with an installer that installs nothing."""
    command = [sys.executable, ".ci/extra", names, "true"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@each_row(
    "names, what, example",
    [
        ("opnai", "there is no extra 'opnai'", "NAMES=openai`"),
        ("slack,opnai", "there is no extra 'opnai'", "NAMES=slack,openai`"),
        ("opnai,;rm -rf", "there is no extra 'opnai'", "NAMES=openai`"),
        ("", "NAMES is empty", "NAMES=openai`"),
    ],
)
def test_make_extra_refuses_a_name_that_is_no_extra_and_lists_the_extras(
    names: str, what: str, example: str
) -> None:
    refused = make_extra(names)
    assert refused.returncode == 2
    assert f"{what}; the extras: all, discord, matrix (adds nothing), openai, " in refused.stderr
    assert example in refused.stderr


def test_make_extra_says_that_it_added_nothing() -> None:
    done = make_extra("matrix, slack")
    assert done.stdout == "Added nothing: the packages of matrix, slack are already installed.\n"
