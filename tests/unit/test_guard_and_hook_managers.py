"""The Git guard and programs that manage hooks: the real pre-commit, in each order of installation and removal."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from machine import PATIENCE
from postroom.cli import guard, guard_hooks
from postroom.contracts.errors import StateError
from table_rows import each_row
from unit.test_guard import git, plain_git, repo, repos, states, write

__all__ = ["plain_git", "repo", "repos"]

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
    state = "installed" if has_guard else "foreign" if has_pre_commit else "absent"
    assert {one.state for one in guard_hooks.read_hooks(repo)} == {state}
    write(repo, "more")
    git(repo, "add", ".")
    blocked = {"POSTROOM_AGENT": "Ada", "POSTROOM_GUARD": "block"}
    git(repo, "commit", "-m", "second", code=int(has_guard), **blocked)


@each_row("has_other", [False, True])
def test_the_guard_is_not_called_absent_after_pre_commit_overwrote_it(
    repos: Callable[[], Path], pre_commit: Path, capsys: pytest.CaptureFixture[str], has_other: bool
) -> None:
    """Another program's hook that the guard keeps is the only trace that `--overwrite` leaves."""
    repo = repos()
    write(repo, ".pre-commit-config.yaml", text=CONFIGURATION)
    git(repo, "add", ".")
    hook = repo / ".git" / "hooks" / "pre-commit"
    if has_other:
        hook.write_text("#!/bin/sh\necho before >&2\n")
        hook.chmod(0o755)
    guard_hooks.install(repo)
    take("P", repo, pre_commit)
    subprocess.run([pre_commit, "install", "--overwrite"], cwd=repo, check=True, capture_output=True)
    assert states(repo)["pre-commit"] == ("overwritten" if has_other else "foreign", has_other)
    guard.status(repo)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("pre-commit"))
    assert "calls the hook that was there before" not in row
    assert "written by pre-commit" in row
    guard_hooks.install(repo)
    assert states(repo)["pre-commit"] == ("installed", has_other)
    told = git(repo, "commit", "-m", "first", POSTROOM_AGENT="Ada").stderr
    assert ("before" in told, "reservations were not checked" in told, "Passed" in told) == (
        has_other,
        True,
        True,
    )


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


CLIENTS = Path(__file__).parents[2] / ".clients" / "node_modules" / ".bin"
LINES = {name: f'postroom guard check {name} "$@"' for name in ("pre-commit", "pre-push")}
LEFTHOOK_LINE = "postroom: {{run: 'postroom guard check {name} {{0}}', use_stdin: true}}"


class Husky:
    """husky 9: it points core.hooksPath at its folder, whose files call those of `.husky`."""

    def install(self, repo: Path) -> None:
        if program := real("husky"):
            subprocess.run([program], cwd=repo, check=True, capture_output=True, timeout=PATIENCE)
            return
        for name in LINES:
            write(
                repo,
                f".husky/_/{name}",
                text=f'#!/bin/sh\n[ ! -f ".husky/{name}" ] || sh -e ".husky/{name}" "$@"\n',
            )
            (repo / ".husky" / "_" / name).chmod(0o755)
        write(repo, ".husky/_/h")
        git(repo, "config", "core.hooksPath", ".husky/_")

    def uninstall(self, repo: Path) -> None:
        git(repo, "config", "--unset", "core.hooksPath")

    def add_line(self, repo: Path) -> None:
        for name, line in LINES.items():
            write(repo, f".husky/{name}", text=f"echo theirs >&2\n{line}\n")


class Lefthook:
    """lefthook: it renames hooks that are there to `.old`, and brings them back at its end."""

    def install(self, repo: Path) -> None:
        if not (repo / "lefthook.yml").exists():
            write(repo, "lefthook.yml", text=self._configuration(""))
        if program := real("lefthook"):
            subprocess.run([program, "install"], cwd=repo, check=True, capture_output=True, timeout=PATIENCE)
            return
        for name in LINES:
            hook = repo / ".git" / "hooks" / name
            if hook.exists():
                hook.rename(hook.with_name(f"{name}.old"))
            calls = f"if grep -q 'guard check {name}' lefthook.yml; then {LINES[name]} || exit 1; fi"
            hook.write_text(f'#!/bin/sh\n[ "$LEFTHOOK" = 0 ] && exit 0\n{calls}\n')
            hook.chmod(0o755)

    def uninstall(self, repo: Path) -> None:
        if program := real("lefthook"):
            subprocess.run(
                [program, "uninstall"], cwd=repo, check=True, capture_output=True, timeout=PATIENCE
            )
            return
        for name in LINES:
            hook = repo / ".git" / "hooks" / name
            hook.unlink()
            if (old := hook.with_name(f"{name}.old")).exists():
                old.rename(hook)

    def add_line(self, repo: Path) -> None:
        write(repo, "lefthook.yml", text=self._configuration(f"    {LEFTHOOK_LINE}\n"))

    def _configuration(self, line: str) -> str:
        other = "    ok: {run: 'true'}\n"
        return "".join(f"{name}:\n  commands:\n{other}{line.format(name=name)}" for name in LINES)


def real(name: str) -> str | None:
    """Return the program if it is installed; without it, its files are made as it makes them."""
    return shutil.which(name, path=f"{CLIENTS}{os.pathsep}{os.environ['PATH']}")


MANAGERS = {"husky": Husky(), "lefthook": Lefthook()}
"""Real ones: `npm install --prefix .clients --no-save husky lefthook`."""


@pytest.mark.long
@pytest.mark.parametrize("name", MANAGERS)
@each_row("order", ["MG", "GM", "GMg", "GMm", "GMgm", "MAG", "GMAg", "MAmG", "GgMA", "MmG", "GMAm"])
def test_the_state_of_the_guard_beside_a_manager_is_whether_it_runs(
    repos: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, name: str, order: str
) -> None:
    """M installs husky or lefthook and m removes it, A adds the line; G installs the guard and g removes it."""
    repo = repos()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    before = "#!/bin/sh\necho before >&2\n"
    (repo / ".git" / "hooks").mkdir(exist_ok=True)
    (repo / ".git" / "hooks" / "pre-commit").write_text(before)
    (repo / ".git" / "hooks" / "pre-commit").chmod(0o755)
    manager, is_managed, has_line = MANAGERS[name], False, False
    for step in order:
        if step in "Mm":
            is_managed = step == "M"
            (manager.install if is_managed else manager.uninstall)(repo)
        elif step == "A":
            manager.add_line(repo)
            has_line = True
        elif step == "G" and is_managed and not has_line:
            with pytest.raises(StateError) as refused:
                guard_hooks.install(repo)
            for hook, line in LINES.items():
                told = LEFTHOOK_LINE.format(name=hook) if name == "lefthook" else line
                assert f"`{told}`" in refused.value.remedy
        elif step == "g" and is_managed and has_line:
            with pytest.raises(StateError, match=f"the configuration of {name} still calls"):
                guard_hooks.remove(repo)
        else:
            (guard_hooks.install if step == "G" else guard_hooks.remove)(repo)
    write(repo, "more")
    git(repo, "add", "more")
    told = git(repo, "commit", "-m", "second", POSTROOM_AGENT="Ada").stderr
    runs = "reservations were not checked" in told  # no server runs
    found = guard_hooks.read_hooks(repo)
    assert {one.state == "installed" for one in found} == {runs}, told
    assert {one.manager for one in found} == {name if is_managed else ""}
    if is_managed and not runs:
        had_guard = order.rfind("G", 0, order.rfind("M")) > order.rfind("g")
        assert {one.state for one in found} == {"overwritten" if had_guard else "foreign"}
    assert ("before" in told) is not is_managed, told
    if is_managed:
        assert runs is has_line
        manager.uninstall(repo)
    if "g" in order:
        assert (repo / ".git" / "hooks" / "pre-commit").read_text() == before
        assert not (repo / ".git" / "hooks" / "pre-push").exists()
