"""Finds the branches that were merged into the main branch of a repository since an earlier commit.

The functions ask Git, and read nothing from the network. The functions block, because they run Git and read
files.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.mail.git_identity import ask_git

_HEADS: Final = "refs/heads/"
_DEFAULT: Final = "refs/remotes/origin/HEAD"
_MOST: Final = 1_000
"""Maximum number of commits, or of moves of the main branch, that a call examines."""
_MADE_HERE: Final = ("commit", "revert", "cherry-pick", "am", "rebase")
"""The first words of Git's reflog entries for commits that were made on the branch itself."""
_MERGES: Final = (
    re.compile(r"^Merge (?:remote-tracking )?branch(?:es)? (?P<names>'[^']+'(?:(?:, | and )'[^']+')*)"),
    re.compile(r"^Merge pull request #\d+ from [^/\s]+/(?P<name>\S+)"),
)
_FAST_FORWARD: Final = re.compile(r"^(?:merge|pull) (?:\S+ )*?(?P<name>\S+): Fast-forward$")


@dataclass(frozen=True, slots=True, kw_only=True)
class MainBranch:
    """The main branch of a repository, and the newest commit of the branch."""

    name: str
    commit: str


def read_main_branch(folder: str) -> MainBranch | None:
    """Return the main branch of a repository, or None if the folder has no repository or no commit.

    The main branch is the default branch of `origin`, or else `main`, `master`, or the checked-out branch.
    """
    git = shutil.which("git")
    if git is None or not Path(folder).is_dir():
        return None
    form = "--format=%(refname) %(symref) %(objectname)"
    output = ask_git(git, folder, "for-each-ref", form, "refs/heads", _DEFAULT)
    rows = {
        ref: (commit, target) for ref, target, commit in (line.split(" ") for line in output.splitlines())
    }
    declared = rows.get(_DEFAULT, ("", ""))[1].replace("refs/remotes/origin/", _HEADS)
    usual = next((name for name in (declared, f"{_HEADS}main", f"{_HEADS}master") if name in rows), "")
    ref = usual or (ask_git(git, folder, "symbolic-ref", "HEAD") if rows else "")
    return MainBranch(name=ref.removeprefix(_HEADS), commit=rows[ref][0]) if ref in rows else None


def merged_since(folder: str, main: MainBranch, before: str) -> list[str]:
    """Return the names of the branches that were merged into the main branch after the commit `before`.

    Squash merges and rebases are not found, because Git does not record them as merges.
    """
    git = shutil.which("git")
    if git is None or before == main.commit:
        return []
    new = f"{before}..{main.commit}"
    ours = set(ask_git(git, folder, "rev-list", "--first-parent", f"-{_MOST}", new).split())
    moves = list(_moves(git, folder, main, before))
    # After a fast-forward, all commits of the branch are in the main branch, so only Git's record names it.
    own = (
        {commit for commit, note in moves if note.startswith(_MADE_HERE) or ": Merge made by" in note}
        if moves
        else ours
    )
    listed = ask_git(
        git,
        folder,
        "for-each-ref",
        f"--merged={main.commit}",
        f"--no-merged={before}",
        "--sort=committerdate",
        "--format=%(refname) %(objectname)",
        "refs/heads",
        "refs/remotes",
    )
    names = dict[str, None]()
    for line in listed.splitlines():
        ref, commit = line.split(" ", 1)
        if commit not in own:
            names[ref.removeprefix(_HEADS) if ref.startswith(_HEADS) else ref.split("/", 3)[-1]] = None
    subjects = ask_git(git, folder, "log", "--first-parent", "--merges", f"-{_MOST}", "--format=%s", new)
    for subject in reversed(subjects.splitlines()):
        by_git, by_forge = (pattern.match(subject) for pattern in _MERGES)
        if by_git:
            for name in re.findall(r"'([^']+)'", by_git["names"]):
                names[name.removeprefix("origin/")] = None
        elif by_forge:
            names[by_forge["name"]] = None
    for _, note in reversed(moves):
        if match := _FAST_FORWARD.match(note):
            names[match["name"].removeprefix("origin/")] = None
    return [  # without commit ids
        name for name in names if name not in (main.name, "HEAD") and not re.fullmatch(r"[0-9a-f]{40}", name)
    ]


def _moves(git: str, folder: str, main: MainBranch, before: str) -> Iterator[tuple[str, str]]:
    record = f"logs/{_HEADS}{main.name}"
    place = ask_git(git, folder, "rev-parse", "--path-format=absolute", "--git-path", record)
    try:
        with Path(place).open(encoding="utf-8", errors="replace") as stream:
            lines = stream.readlines()[-_MOST:] if place else []
    except OSError:  # Git keeps no record, for example in a bare repository
        return
    for line in reversed(lines):
        ids, _, note = line.rstrip("\n").partition("\t")
        _, commit, *_ = [*ids.split(" "), "", ""]
        if commit == before:
            return
        yield commit, note
