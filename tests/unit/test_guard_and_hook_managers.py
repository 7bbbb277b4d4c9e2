"""The Git guard beside programs that manage hooks: the real pre-commit, in each order of installing and removing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.cli import guard_hooks
from postroom.contracts.errors import StateError
from unit.test_guard import git, plain_git, repo, states, write

__all__ = ["plain_git", "repo"]

CONFIGURATION = """\
repos:
- repo: local
  hooks: [{id: ok, name: ok, language: system, entry: "true", pass_filenames: false}]
"""
ORDERS = [
    *("".join(order) for order in itertools.permutations("PGpg")),
    *("PGP", "GPG", "PGPG", "GPGP", "PGPgP", "GPgG", "PGPpg"),
]
"""P installs pre-commit and p removes it; G installs the guard and g removes it."""


@pytest.fixture
def pre_commit() -> Path:
    """Return the program that `make dev` installs."""
    program = Path(sys.executable).with_name("pre-commit")
    if not program.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("pre-commit is not installed: run `make dev`")
    return program


def take(step: str, repo: Path, pre_commit: Path) -> None:
    if step in "Gg":
        (guard_hooks.install if step == "G" else guard_hooks.remove)(repo)
        return
    word = "install" if step == "P" else "uninstall"
    for hook in ("pre-commit", "pre-push"):
        subprocess.run(
            [pre_commit, word, "--hook-type", hook], cwd=repo, check=True, capture_output=True, timeout=60
        )


@pytest.mark.long
@pytest.mark.parametrize("order", ORDERS)
def test_commits_go_on_in_each_order_and_what_is_installed_runs(
    tmp_path: Path, pre_commit: Path, order: str
) -> None:
    repo = tmp_path / order
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    write(repo, ".pre-commit-config.yaml", text=CONFIGURATION)
    git(repo, "add", ".")
    for step in order:
        take(step, repo, pre_commit)
    has_guard = order.rfind("G") > order.rfind("g")
    has_pre_commit = order.rfind("P") > order.rfind("p")
    told = git(repo, "commit", "-m", "first", POSTROOM_AGENT="Ada").stderr
    assert ("reservations were not checked" in told) is has_guard, told  # no server runs
    assert ("Passed" in told) is has_pre_commit, told
    state = "installed" if has_guard else "absent"
    assert {one.state for one in guard_hooks.hooks_of(repo)} == {state}
    write(repo, "more")
    git(repo, "add", ".")
    blocked = {"POSTROOM_AGENT": "Ada", "POSTROOM_GUARD": "block"}
    git(repo, "commit", "-m", "second", code=int(has_guard), **blocked)


def test_what_an_earlier_release_put_around_pre_commit_is_undone(repo: Path, pre_commit: Path) -> None:
    write(repo, ".pre-commit-config.yaml", text=CONFIGURATION)
    git(repo, "add", ".")
    take("P", repo, pre_commit)
    folder = repo / ".git" / "hooks"
    own, kept = folder / "pre-commit", folder / "pre-commit.before-postroom"
    generated = own.read_bytes()
    own.rename(kept)
    guard_hooks.install(repo)  # finds no hook in its place, and calls the one that is kept
    assert states(repo)["pre-commit"] == ("installed", True)
    take("P", repo, pre_commit)  # each calls the other now: no commit is possible
    git(repo, "commit", "-m", "first", POSTROOM_AGENT="Ada", code=1)
    guard_hooks.install(repo)
    assert "Passed" in git(repo, "commit", "-m", "first", POSTROOM_AGENT="Ada").stderr
    assert not kept.exists()
    guard_hooks.remove(repo)
    assert own.read_bytes() == generated
    assert not (folder / "pre-commit.legacy").exists()


def test_a_hook_that_pre_commit_calls_already_is_called_by_ours_and_comes_back(
    repo: Path, pre_commit: Path
) -> None:
    write(repo, ".pre-commit-config.yaml", text=CONFIGURATION)
    git(repo, "add", ".")
    folder = repo / ".git" / "hooks"
    first = "#!/bin/sh\necho first >&2\n"
    (folder / "pre-commit").write_text(first)
    (folder / "pre-commit").chmod(0o755)
    take("P", repo, pre_commit)
    guard_hooks.install(repo)
    told = git(repo, "commit", "-m", "first", POSTROOM_AGENT="Ada").stderr
    assert told.index("first") < told.index("reservations were not checked") < told.index("Passed")
    guard_hooks.remove(repo)
    assert (folder / "pre-commit.legacy").read_text() == first


def test_hooks_of_lefthook_are_left_alone_and_the_lines_for_its_configuration_are_told(repo: Path) -> None:
    folder = repo / ".git" / "hooks"
    folder.mkdir(exist_ok=True)
    (folder / "pre-commit").write_text('#!/bin/sh\nif [ "$LEFTHOOK" = "0" ]; then exit 0; fi\n')
    before = sorted(folder.iterdir())
    with pytest.raises(StateError) as refused:
        guard_hooks.install(repo)
    assert "lefthook.yml" in refused.value.remedy
    assert "postroom guard check pre-commit" in refused.value.remedy
    assert sorted(folder.iterdir()) == before
