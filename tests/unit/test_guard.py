"""The Git guard: hooks that work next to others and can be removed, and files that are found under every name."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fake_postroom import FakePostroom, Raw
from machine import PATIENCE
from postroom.cli import guard_check, guard_hooks
from postroom.cli.main import main
from postroom.contracts.errors import InvalidPath, StateError
from table_rows import each_row

ODD = ["a b.py", "qu\"o'te.py", "Füße/中文.md", "new\nline", "-dash", "t\tab"]
IDENTITY = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "n")
IDENTITY |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "e@x")
IDENTITY |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture(autouse=True)
def plain_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("GIT_", "POSTROOM_")):
            monkeypatch.delenv(name)
    for name, value in {**IDENTITY, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "none")}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repos(tmp_path: Path) -> Callable[[], Path]:
    """Return what makes a repository with one commit, each time another."""
    numbers = count()

    def made() -> Path:
        folder = tmp_path / f"{next(numbers)}" / "a repo"
        folder.mkdir(parents=True)
        git(folder, "init", "-q", "-b", "main")
        git(folder, "commit", "-q", "--allow-empty", "-m", "first")
        return folder

    return made


@pytest.fixture
def repo(repos: Callable[[], Path]) -> Path:
    return repos()


def git(folder: Path, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == code, done
    return done


def write(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def states(folder: Path) -> dict[str, tuple[str, bool]]:
    return {one.name: (one.state, one.chained) for one in guard_hooks.read_hooks(folder)}


PLAIN = {"pre-commit": ("installed", False), "pre-push": ("installed", False)}
NONE = {"pre-commit": ("absent", False), "pre-push": ("absent", False)}


def test_hooks_come_and_go(repo: Path) -> None:
    folder = repo / ".git" / "hooks"
    before = sorted(folder.iterdir())
    assert states(repo) == NONE
    guard_hooks.install(repo)
    assert states(repo) == PLAIN
    assert os.access(folder / "pre-commit", os.X_OK)
    guard_hooks.install(repo)
    assert states(repo) == PLAIN
    guard_hooks.remove(repo)
    guard_hooks.remove(repo)
    assert states(repo) == NONE
    assert sorted(folder.iterdir()) == before


@each_row("mode", [0o755, 0o700, 0o644])
def test_a_hook_that_was_there_comes_back_byte_for_byte(repos: Callable[[], Path], mode: int) -> None:
    repo = repos()
    hook = repo / ".git" / "hooks" / "pre-commit"
    content = b"#!/bin/sh\r\n\xff\x00exit 0"
    hook.write_bytes(content)
    hook.chmod(mode)
    assert states(repo)["pre-commit"] == ("foreign", False)
    guard_hooks.install(repo)
    guard_hooks.install(repo)
    assert states(repo)["pre-commit"] == ("installed", True)
    guard_hooks.remove(repo)
    assert (hook.read_bytes(), hook.stat().st_mode & 0o777) == (content, mode)
    assert states(repo)["pre-commit"] == ("foreign", False)


def test_a_hook_that_is_a_link_comes_back_as_one(repo: Path, tmp_path: Path) -> None:
    target = tmp_path / "shared"
    target.write_text("#!/bin/sh\nexit 0\n")
    hook = repo / ".git" / "hooks" / "pre-push"
    hook.symlink_to(target)
    guard_hooks.install(repo)
    assert target.read_text() == "#!/bin/sh\nexit 0\n"
    guard_hooks.remove(repo)
    assert hook.readlink() == target


@each_row("code", [0, 1, 7])
def test_a_hook_that_was_there_is_called_first_and_decides_too(repos: Callable[[], Path], code: int) -> None:
    repo = repos()
    hook = repo / ".git" / "hooks" / "pre-commit"
    hook.write_text(f'#!/bin/sh\necho "called as $0 with $#" >&2\nexit {code}\n')
    hook.chmod(0o755)
    guard_hooks.install(repo)
    write(repo, "a")
    git(repo, "add", ".")
    done = git(repo, "commit", "-m", "x", code=1 if code else 0, POSTROOM_GUARD="off")
    assert "called as" in done.stderr
    direct = subprocess.run(
        [str(hook)], cwd=repo, env={**os.environ, "POSTROOM_GUARD": "off"}, timeout=PATIENCE
    )
    assert direct.returncode == code


def test_a_hook_that_is_not_executable_is_not_called(repo: Path) -> None:
    (repo / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    commit(repo, None, 0, POSTROOM_GUARD="off")


def test_a_push_is_told_to_both_hooks(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.git"
    git(tmp_path, "init", "-q", "--bare", str(other))
    git(repo, "remote", "add", "origin", str(other))
    hook = repo / ".git" / "hooks" / "pre-push"
    hook.write_text('#!/bin/sh\ncat > "$PWD/../told"; echo "$1" >> "$PWD/../told"\n')
    hook.chmod(0o755)
    guard_hooks.install(repo)
    git(repo, "push", "-q", "origin", "main", "main:other", POSTROOM_GUARD="off")
    told = (repo.parent / "told").read_text().splitlines()
    assert [line.split(" ")[2] for line in told[:-1]] == ["refs/heads/main", "refs/heads/other"]
    assert told[-1] == "origin"


def test_what_another_program_wrote_over_is_left_alone(repo: Path) -> None:
    hook = repo / ".git" / "hooks" / "pre-commit"
    hook.write_text("first")
    guard_hooks.install(repo)
    hook.write_text("second")
    assert states(repo)["pre-commit"] == ("overwritten", True)
    for change in (guard_hooks.install, guard_hooks.remove):
        with pytest.raises(StateError, match="overwrote"):
            change(repo)
    assert (hook.read_text(), hook.with_name("pre-commit.before-postroom").read_text()) == ("second", "first")
    assert states(repo)["pre-push"] == ("installed", False)


def test_a_deleted_hook_of_ours_is_put_back_and_what_was_kept_stays(repo: Path) -> None:
    hook = repo / ".git" / "hooks" / "pre-commit"
    hook.write_text("first")
    guard_hooks.install(repo)
    hook.unlink()
    guard_hooks.install(repo)
    assert states(repo)["pre-commit"] == ("installed", True)
    hook.unlink()
    guard_hooks.remove(repo)
    assert hook.read_text() == "first"


def test_worktrees_share_their_hooks(repo: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(repo, "worktree", "add", "-q", str(tree))
    guard_hooks.install(tree)
    assert states(repo) == PLAIN
    assert (repo / ".git" / "hooks" / "pre-commit").exists()


def test_the_configured_folder_of_hooks_is_used(repo: Path) -> None:
    git(repo, "config", "core.hooksPath", ".githooks")
    guard_hooks.install(repo)
    assert (repo / ".githooks" / "pre-commit").exists()
    assert not (repo / ".git" / "hooks" / "pre-commit").exists()
    guard_hooks.remove(repo)
    assert list((repo / ".githooks").iterdir()) == []


def test_hooks_that_others_share_or_make_are_refused(repos: Callable[[], Path], tmp_path: Path) -> None:
    shared, repo = tmp_path / "everywhere", repos()
    git(repo, "config", "core.hooksPath", str(shared))
    with pytest.raises(InvalidPath, match="outside this repository"):
        guard_hooks.install(repo)
    assert not shared.exists()
    repo = repos()
    write(repo, ".husky/_/h")
    git(repo, "config", "core.hooksPath", ".husky/_")
    with pytest.raises(StateError, match="husky"):
        guard_hooks.install(repo)
    with pytest.raises(InvalidPath, match="not inside a Git working tree"):
        guard_hooks.install(tmp_path)
    with pytest.raises(InvalidPath):
        guard_hooks.read_hooks(tmp_path / "missing")


def test_the_commands_say_what_they_did(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "install", "--repo", str(repo), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hooks"][0] == {"name": "pre-commit", "state": "installed", "chained": False, "manager": ""}
    assert main(["guard", "status", "--repo", str(repo)]) == 0
    assert "installed" in capsys.readouterr().out
    assert main(["guard", "remove", "--repo", str(repo)]) == 0
    assert main(["guard", "install", "--repo", str(repo.parent)]) == 2
    assert main(["guard", "check", "post-merge"]) == 2


def test_every_changed_file_is_seen_under_each_name(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repo, "gone", "moved", "mode", "same", *ODD)
    git(repo, "add", ".")
    monkeypatch.chdir(repo)
    assert set(guard_check.list_staged_files()) == {"gone", "moved", "mode", "same", *ODD}
    git(repo, "commit", "-q", "-m", "x")
    git(repo, "rm", "-q", "gone")
    git(repo, "mv", "moved", "there")
    (repo / "mode").chmod(0o755)
    git(repo, "add", "mode")
    write(repo, "same", text="not added")
    assert set(guard_check.list_staged_files()) == {"gone", "moved", "there", "mode"}


def test_what_a_user_has_configured_hides_no_file(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("diff.relative", "diff.renames", "diff.noprefix", "color.ui=always", "core.quotePath"):
        name, _, value = setting.partition("=")
        git(repo, "config", name, value or "true")
    write(repo, "in/a", "b", text="moved later" * 20)
    git(repo, "add", ".")
    monkeypatch.chdir(repo / "in")
    assert set(guard_check.list_staged_files()) == {"in/a", "b"}
    git(repo, "commit", "-q", "-m", "x")
    git(repo, "mv", "b", "in/c")
    git(repo, "commit", "-q", "-m", "y")
    line = f"refs/heads/main {head(repo)} refs/heads/main {ZERO}\n"
    assert set(guard_check.list_pushed_files(line, ["origin"])) == {"in/a", "b", "in/c"}


def test_the_first_commit_is_seen_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "a")
    git(tmp_path, "add", ".")
    monkeypatch.chdir(tmp_path)
    assert list(guard_check.list_staged_files()) == ["a"]


@pytest.fixture
def shared(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a remote that has its first commit."""
    git(tmp_path, "init", "-q", "--bare", str(tmp_path / "origin.git"))
    git(repo, "remote", "add", "origin", str(tmp_path / "origin.git"))
    git(repo, "push", "-q", "origin", "main")
    monkeypatch.chdir(repo)
    return repo


def head(repo: Path, name: str = "HEAD") -> str:
    return git(repo, "rev-parse", name).stdout.strip()


ZERO = "0" * 40


def test_the_files_of_every_new_commit_of_a_push_are_seen(shared: Path) -> None:
    known = head(shared)
    for name in ODD:
        write(shared, name)
        git(shared, "add", ".")
        git(shared, "commit", "-q", "-m", "x")
    git(shared, "mv", "a b.py", "c.py")
    git(shared, "commit", "-q", "-m", "x")
    line = f"refs/heads/main {head(shared)} refs/heads/main {known}\n"
    assert set(guard_check.list_pushed_files(line, ["origin", "url"])) == {*ODD, "c.py"}
    line = f"refs/heads/new {head(shared)} refs/heads/new {ZERO}\n"
    assert set(guard_check.list_pushed_files(line, ["origin", "url"])) == {*ODD, "c.py"}
    unknown = f"refs/heads/main {head(shared)} refs/heads/main {'1' * 40}\n"
    assert set(guard_check.list_pushed_files(unknown, ["https://x", "https://x"])) == {*ODD, "c.py"}
    git(shared, "push", "-q", "origin", "main")
    assert list(guard_check.list_pushed_files(line, ["origin", "url"])) == []


def test_a_deleted_branch_and_an_empty_push_touch_nothing(shared: Path) -> None:
    assert list(guard_check.list_pushed_files("", ["origin"])) == []
    assert (
        list(guard_check.list_pushed_files(f"(delete) {ZERO} refs/heads/x {head(shared)}\n", ["origin"]))
        == []
    )


def test_a_merge_counts_for_what_it_adds(shared: Path) -> None:
    git(shared, "checkout", "-q", "-b", "side")
    write(shared, "side", "both", text="side")
    git(shared, "add", ".")
    git(shared, "commit", "-q", "-m", "x")
    git(shared, "push", "-q", "origin", "side")
    git(shared, "checkout", "-q", "main")
    write(shared, "both", text="main")
    git(shared, "add", ".")
    git(shared, "commit", "-q", "-m", "x")
    git(shared, "merge", "side", code=1)
    write(shared, "both", text="neither")
    git(shared, "add", ".")
    git(shared, "commit", "-q", "-m", "merged")
    line = f"refs/heads/main {head(shared)} refs/heads/main {head(shared, 'main~1')}\n"
    assert list(guard_check.list_pushed_files(line, ["origin"])) == ["both"]


COMMIT = ("POST", "/hooks/git/pre-commit")


def commit(repo: Path, fake_port: int | None, code: int, **more: str) -> str:
    """Commit a file with the guard in place and return what Git says on standard error."""
    guard_hooks.install(repo)
    write(repo, "a")
    git(repo, "add", ".")
    url = (
        {} if fake_port is None else {"POSTROOM_URL": f"http://127.0.0.1:{fake_port}", "POSTROOM_TOKEN": "t"}
    )
    return git(repo, "commit", "-q", "-m", "x", code=code, **url, **more).stderr


@each_row(
    "answer, guard, code",
    [
        ({"outcome": "allow", "text": "", "mode": "warn"}, "", 0),
        ({"outcome": "deny", "text": "HELD", "mode": "warn"}, "", 1),
        ({"outcome": "error", "text": "SAID", "mode": "warn"}, "", 0),
        ({"outcome": "error", "text": "SAID", "mode": "block"}, "", 1),
        ({"outcome": "unknown", "text": "SAID", "mode": "warn"}, "", 0),
        ({"outcome": "unknown", "text": "SAID", "mode": "block"}, "", 1),
        *((Raw(500, b'{"code": "store_error"}'), "", 0), (Raw(500, b'{"code": "store_error"}'), "block", 1)),
        *((Raw(200, b"garbage"), "", 0), (Raw(200, b"garbage"), "block", 1), (Raw(200, b"[]"), "warn", 0)),
    ],
)
def test_a_commit_is_held_as_the_answer_says(
    repos: Callable[[], Path], answer: Any, guard: str, code: int
) -> None:
    repo = repos()
    with FakePostroom(admin={COMMIT: lambda _: answer}) as fake:
        said = commit(repo, fake.port, code, POSTROOM_AGENT="Ben", POSTROOM_GUARD=guard)
    expected = answer["text"] if isinstance(answer, dict) else "reservations were not checked"
    assert expected in said
    assert "--no-verify" not in said, "a model that commits reads it, and the way round is for people"
    assert "POSTROOM_GUARD" not in said
    assert "Traceback" not in said
    top = git(repo, "rev-parse", "--show-toplevel").stdout.strip()
    body = {"cwd": top, "agent": "Ben", "guard": guard, "paths": ["a"]}
    assert [one.body for one in fake.seen] == [body]


@each_row("guard, code", [("", 0), ("warn", 0), ("block", 1)])
def test_a_server_that_is_away_means_what_is_set(repos: Callable[[], Path], guard: str, code: int) -> None:
    repo = repos()
    said = commit(repo, None, code, POSTROOM_GUARD=guard)
    assert said.count("postroom:") == 1
    assert "does not answer" in said


def test_a_guard_that_is_off_asks_nobody(repo: Path) -> None:
    with FakePostroom() as fake:
        assert commit(repo, fake.port, 0, POSTROOM_GUARD="off") == ""
    assert fake.seen == []


def test_the_agent_may_be_configured_in_git(repo: Path) -> None:
    git(repo, "config", "postroom.agent", "Cyd")
    allow = {"outcome": "allow", "text": "", "mode": "warn"}
    with FakePostroom(admin={COMMIT: lambda _: allow}) as fake:
        commit(repo, fake.port, 0)
    assert fake.seen[0].body["agent"] == "Cyd"


def test_a_commit_of_many_files_is_asked_about_in_parts(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo)
    monkeypatch.setattr(guard_check, "ASKED_AT_ONCE", 2)
    write(repo, *"abcde")
    git(repo, "add", ".")
    answers = iter(
        [{"outcome": "allow", "text": "", "mode": ""}, {"outcome": "deny", "text": "x", "mode": ""}]
    )
    with FakePostroom(admin={COMMIT: lambda _: next(answers)}) as fake:
        monkeypatch.setenv("POSTROOM_URL", f"http://127.0.0.1:{fake.port}")
        monkeypatch.setenv("POSTROOM_TOKEN", "t")
        assert main(["guard", "check", "pre-commit"]) == 1
    assert [one.body["paths"] for one in fake.seen] == [["a", "b"], ["c", "d"]]


def test_a_file_of_the_repository_does_not_take_the_place_of_a_module(repo: Path) -> None:
    write(repo, "json.py", "subprocess.py", "postroom/__init__.py", text="raise SystemExit(3)")
    assert "does not answer" in commit(repo, None, 0)


def test_a_python_that_is_gone_is_told(repo: Path) -> None:
    guard_hooks.install(repo)
    hook = repo / ".git" / "hooks" / "pre-commit"
    hook.write_text(hook.read_text().replace(sys.executable, "/nowhere/python"))
    write(repo, "a")
    git(repo, "add", ".")
    assert "guard install" in git(repo, "commit", "-q", "-m", "x").stderr
    git(repo, "commit", "-q", "--allow-empty", "-m", "y", code=1, POSTROOM_GUARD="block")
