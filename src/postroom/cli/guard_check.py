"""The check that the Git hooks run. The server decides whether the files may be committed or pushed.

This program uses only the standard library, because it runs at every commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from shutil import which

from postroom.cli.hook_wire import Unreachable, ask, hook_environment, read_endpoint
from postroom.contracts.clients import MODES, unchecked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOOKS = ("pre-commit", "pre-push")
MAY_PASS = 0
HELD = 1
USAGE = 2
BUDGET = 5.0
"""The time limit in seconds for one request to the server."""
GIT_PATIENCE = 60
"""The time limit in seconds for one call of Git."""
ASKED_AT_ONCE = 5_000
MAX_COMMITS = 2_000
"""Maximum number of commits of a push that are checked, beginning with the newest."""

_NAMES = ("-z", "--name-only", "--no-renames", "--no-relative")
"""The options with which Git lists every file, and both names of a renamed file, in any configuration."""


def run_check(hook: str, arguments: Sequence[str], *, sent: str | None = None) -> int:
    """Return 0 if Git may continue, or print the reason on standard error and return 1.

    `sent` is the input from Git, or None to read standard input.
    """
    if hook not in HOOKS:
        print(
            f"postroom: {hook!r} is not a hook that postroom checks; use {' or '.join(HOOKS)}",
            file=sys.stderr,
        )
        return USAGE
    environment = hook_environment()
    mode = environment.get("POSTROOM_GUARD", "").lower()
    mode = mode if mode in MODES else ""
    if mode == "off":
        return MAY_PASS
    try:
        # Read the outcome, the text and the mode from the response.
        if hook == "pre-commit":
            paths = list(list_staged_files())
        else:
            paths = list(list_pushed_files(sys.stdin.read() if sent is None else sent, arguments))
        top = _git("rev-parse", "--show-toplevel").decode("utf-8", "replace").rstrip("\r\n")
        agent = (
            environment.get("POSTROOM_AGENT")
            or _ask_git("config", "--get", "postroom.agent").stdout.decode("utf-8", "replace").strip()
        )
        call = {"cwd": top, "agent": agent[:400], "guard": mode}
        endpoint = read_endpoint(environment) if paths else None
        answer = ("allow", "", mode)
        for start in range(0, len(paths), ASKED_AT_ONCE):
            body = json.dumps({**call, "paths": paths[start : start + ASKED_AT_ONCE]}).encode()
            status, reply = ask(endpoint, f"/hooks/git/{hook}", body, budget=BUDGET)
            document = json.loads(reply)
            if status == 200:
                answer = str(document["outcome"]), str(document["text"]), str(document["mode"])
            else:
                answer = "error", unchecked(f"the server answered with HTTP status {status}"), ""
            if answer[0] != "allow":
                break
        outcome, text, meaning = answer
    except Unreachable:
        outcome, text, meaning = "error", unchecked("the server does not answer"), mode
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        outcome, text, meaning = "error", unchecked(f"the call failed with {type(error).__name__}"), mode
    if text:
        print(text, file=sys.stderr)
    held = outcome == "deny" or (outcome in ("error", "unknown") and (meaning or mode) == "block")
    return HELD if held else MAY_PASS


def list_staged_files() -> Iterator[str]:
    """Yield the files with staged changes; a renamed file is yielded with the old and the new name."""
    return _names(_git("diff", "--cached", *_NAMES, "--no-ext-diff", "--ignore-submodules=none"))


def list_pushed_files(sent: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the files that the pushed commits change.

    A merge commit counts only with the changes that the merge itself makes.
    """
    commits: dict[str, None] = {}
    for line in sent.splitlines():
        _, local, _, remote = (*line.split(" "), "", "", "", "")[:4]
        if not local.strip("0"):
            continue  # the push deletes a branch, so no file changes
        known_values = (
            [f"^{remote}"]
            if remote.strip("0") and _ask_git("cat-file", "-e", f"{remote}^{{commit}}").returncode == 0
            else []
        )
        # The Git option that excludes the commits that the remote already has. If the remote has no name, Git
        # passes its address instead.
        name = arguments[0] if arguments else ""
        configured = _git("remote").decode("utf-8", "replace").split()
        new = _git(
            "rev-list",
            f"--max-count={MAX_COMMITS}",
            local,
            *known_values,
            "--not",
            f"--remotes={name}" if name in configured else "--remotes",
        )
        commits.update(dict.fromkeys(new.decode("ascii").split()))
    listed = "".join(f"{commit}\n" for commit in commits).encode()
    options = ("--stdin", "-r", "-c", "--no-commit-id", "--root")
    return _names(_git("diff-tree", *options, *_NAMES, given=listed) if commits else b"")


def _names(found: bytes) -> Iterator[str]:
    names = (name.decode("utf-8", "replace") for name in found.split(b"\0") if name)
    return iter(dict.fromkeys(names))


def _git(*words: str, given: bytes = b"") -> bytes:
    done = _ask_git(*words, given=given)
    done.check_returncode()
    return done.stdout


def _ask_git(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run Git in the environment of the hook.

    Raises:
        FileNotFoundError: Git is not installed.
    """
    git = which("git")
    if git is None:
        raise FileNotFoundError("git")
    return subprocess.run(  # noqa: S603 - fixed words, and names that Git itself gave
        [git, *words], input=given, capture_output=True, timeout=GIT_PATIENCE, check=False
    )
