"""The demo's temporary repository: a program with one bug, and the test that finds the bug."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ConfigError

PROGRAM: Final = "basket.py"
BUG: Final = "    return sum(prices[1:])"
MENDED: Final = "    return sum(prices)"
_CODE: Final = f'''"""What a basket costs."""


def total(prices):
    """Return the sum of the prices, in cents."""
{BUG}
'''
_TEST: Final = '''"""What a basket must cost."""

import unittest

from basket import total


class Basket(unittest.TestCase):
    def test_every_price_counts(self):
        self.assertEqual(total([250, 120, 30]), 400)


if __name__ == "__main__":
    unittest.main()
'''
_AUTHOR: Final = ("-c", "user.name=postroom demo", "-c", "user.email=demo@postroom.invalid")
_PATIENCE: Final = 60


def make(folder: Path) -> None:
    """Write the repository into a new folder.

    Raises:
        ConfigError: Git is missing, or the folder is not writable.
    """
    try:
        folder.mkdir(parents=True)
        (folder / PROGRAM).write_text(_CODE, encoding="utf-8")
        (folder / "test_basket.py").write_text(_TEST, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot create {folder}: {error.strerror}", value=str(folder)) from error
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, *_AUTHOR, "commit", "--quiet", "--message", "A basket, with a bug")


def fix(folder: Path) -> None:
    """Fix the bug; no effect if it is fixed."""
    path = folder / PROGRAM
    path.write_text(path.read_text(encoding="utf-8").replace(BUG, MENDED), encoding="utf-8")


def test_passes(folder: Path) -> bool:
    """Run the test and return whether it passes."""
    words = [sys.executable, "-B", "-m", "unittest", "--quiet"]
    done = subprocess.run(  # noqa: S603 - our own words
        words, cwd=folder, capture_output=True, timeout=_PATIENCE, check=False
    )
    return done.returncode == 0


def difference(folder: Path) -> str:
    """Return the uncommitted changes."""
    return git(folder, "diff", "--unified=0", "--", PROGRAM)


def commit(folder: Path, words: str) -> str:
    """Commit the changes and return the commit's short name; without changes, that of the last commit."""
    if difference(folder):
        git(folder, *_AUTHOR, "commit", "--quiet", "--message", words, "--", PROGRAM)
    return git(folder, "rev-parse", "--short", "HEAD").strip()


def git(folder: Path, *words: str) -> str:
    """Run Git in a folder and return its output.

    Raises:
        ConfigError: Git is missing, or it failed.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            ["git", "-C", str(folder), *words],  # noqa: S607 - Git is looked for as everywhere
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
    except FileNotFoundError as error:
        raise ConfigError("Git is not installed", remedy="install Git") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"Git failed: {error.stderr.strip()[:300]}", value=words[0]) from error
    return done.stdout
