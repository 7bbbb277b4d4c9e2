"""The guard's hooks in a Git repository: where they lie, how they stand beside others, how they go again.

A hook that is there already is kept beside ours under another name, and ours calls it first. Renaming keeps
its bytes, its mode and, should it be one, the link: taking ours away brings it back as it was.

    absent ──install──▶ installed            foreign ──install──▶ installed, with what was there kept
      ▲                   │                     ▲                   │
      └──────remove───────┘                     └──────remove───────┘

Where another program has written over ours since, it is `overwritten`, and nothing is touched.
"""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from postroom.cli.guard_check import GIT_PATIENCE, HOOKS
from postroom.contracts.errors import InvalidPath, PostroomError, StateError

MARK: Final = "# postroom guard: "
KEPT: Final = ".before-postroom"

State = Literal["absent", "installed", "foreign", "overwritten"]

_SCRIPT: Final = """#!/bin/sh
{mark}holds what others have reserved. `postroom guard remove` takes it away.
{listen}before="$(dirname -- "$0")/{hook}{kept}"
if [ -x "$before" ]; then
  {feed}"$before" "$@" || exit $?
fi
if [ "$POSTROOM_GUARD" = off ]; then
  exit 0
fi
if [ -x {python} ]; then
  {feed}{python} -P -m postroom guard check {hook} "$@"
  exit $?
fi
echo "postroom: reservations were not checked: run 'postroom guard install' again, its Python is gone" >&2
[ "$POSTROOM_GUARD" != block ]
"""
_LISTEN: Final = "told=$(cat; echo .)\n"
"""Git tells a push on standard input, and two read it. The dot keeps the shell from dropping line ends."""
_FEED: Final = "printf '%s' \"${told%.}\" | "


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One hook of a repository."""

    name: str
    path: Path
    state: State
    chained: bool
    """Whether another program's hook is kept beside it."""

    @property
    def kept(self) -> Path:
        """Where another program's hook is kept."""
        return self.path.with_name(self.path.name + KEPT)


def hooks_of(repository: Path) -> list[Hook]:
    """Return the guard's hooks as they stand in the repository around a folder.

    Raises:
        InvalidPath: no working tree is there.
        PostroomError: Git is missing.
    """
    folder = hooks_folder(repository)
    return [_look(folder / name) for name in HOOKS]


def install(repository: Path) -> list[Hook]:
    """Put the guard's hooks in place, or bring them up to date; what was there is called first by them.

    Raises:
        InvalidPath: no working tree is there, or its hooks are shared with other repositories.
        StateError: a hook was overwritten, or another program makes these hooks anew.
    """
    folder = hooks_folder(repository)
    _refuse_shared(repository, folder)
    if folder.name == "_" and (folder / "h").is_file():
        raise StateError(
            f"{folder} belongs to husky, which writes it anew",
            value=str(folder),
            remedy="add `postroom guard check pre-commit` to .husky/pre-commit, and the like to pre-push",
        )
    found = hooks_of(repository)
    _refuse_overwritten(found)
    folder.mkdir(parents=True, exist_ok=True)
    for hook in found:
        _put(hook)
    return hooks_of(repository)


def remove(repository: Path) -> list[Hook]:
    """Take the guard's hooks away and bring back what was there; harmless when done twice.

    Raises:
        InvalidPath: no working tree is there.
        StateError: a hook was overwritten since.
    """
    found = hooks_of(repository)
    _refuse_overwritten(found)
    for hook in found:
        if hook.chained:
            hook.kept.replace(hook.path)
        elif hook.state == "installed":
            hook.path.unlink()
    return hooks_of(repository)


def hooks_folder(repository: Path) -> Path:
    """Return the folder of the hooks that Git runs here: one for all worktrees, or what is configured.

    Raises:
        InvalidPath: no working tree is there.
    """
    return Path(_git(repository, "--path-format=absolute", "--git-path", "hooks"))


def _look(path: Path) -> Hook:
    chained = os.path.lexists(path.with_name(path.name + KEPT))
    if not os.path.lexists(path):
        state: State = "absent"
    elif _is_ours(path):
        state = "installed"
    else:
        state = "overwritten" if chained else "foreign"
    return Hook(name=path.name, path=path, state=state, chained=chained)


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return any(line.startswith(MARK.encode()) for line in file.read(400).split(b"\n")[1:2])


def _put(hook: Hook) -> None:
    draft = hook.path.with_name(f".{hook.name}.{os.getpid()}")
    try:
        draft.write_text(_script(hook.name), encoding="utf-8", newline="\n")
        draft.chmod(0o755)
        if hook.state == "foreign":
            hook.path.rename(hook.kept)
        draft.replace(hook.path)
    finally:
        draft.unlink(missing_ok=True)


def _script(hook: str) -> str:
    told = hook == "pre-push"
    return _SCRIPT.format(
        mark=MARK,
        hook=hook,
        kept=KEPT,
        python=shlex.quote(sys.executable),
        listen=_LISTEN if told else "",
        feed=_FEED if told else "",
    )


def _refuse_overwritten(found: list[Hook]) -> None:
    for hook in found:
        if hook.state == "overwritten":
            raise StateError(
                f"{hook.path} was written over by another program, and {hook.kept.name} is still there",
                value=str(hook.path),
                remedy=f"keep one of the two: remove {hook.kept.name}, or move it to {hook.name}",
            )


def _refuse_shared(repository: Path, folder: Path) -> None:
    """Other repositories must not be guarded by accident."""
    homes = [
        _git(repository, "--path-format=absolute", word) for word in ("--git-common-dir", "--show-toplevel")
    ]
    real = folder.resolve()
    if not any(real.is_relative_to(Path(home).resolve()) for home in homes):
        raise InvalidPath(
            f"core.hooksPath leads to {folder}, outside of this repository",
            value=str(folder),
            remedy="give this repository hooks of its own: git config core.hooksPath .githooks",
        )


def _git(repository: Path, *words: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise PostroomError("git was not found", remedy="install git")
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            [git, "-C", str(repository), "rev-parse", *words],
            capture_output=True,
            timeout=GIT_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PostroomError("git did not answer", value=str(repository), remedy="try again") from error
    if done.returncode != 0:
        raise InvalidPath(
            f"{repository} is in no working tree of Git",
            value=str(repository),
            remedy="name a folder of a repository with --repo",
        )
    return os.fsdecode(done.stdout).rstrip("\r\n")
