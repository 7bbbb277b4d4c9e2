"""The demo's Git repository: a small shop with one bug, the agents' tasks, and the tests of the tasks."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ConfigError

BASKET: Final = "basket.py"
_BUG: Final = "    return sum(prices[1:])"
_TOTAL: Final = "    return sum(prices)"
_CODE: Final = f'''"""What a basket costs."""


def total(prices):
    """Return the sum of the prices, in cents."""
{_BUG}
'''
_DISCOUNT: Final = '''"""What a customer saves."""


def discounted(price, percent):
    """Return a price, in cents, less this percentage."""
    return {}
'''
_RECEIPT: Final = '''"""What a customer sees."""

from basket import total
from discount import discounted


def receipt(prices, percent):
    """Return the line at the end of a receipt."""
    return f"To pay: {discounted(total(prices), percent) / 100:.2f}"
'''
_README: Final = """# Shop

`receipt([250, 120, 30], 10)` returns `To pay: 3.60`.
"""
_TEST: Final = '''"""How the shop must work."""

import unittest


class Total(unittest.TestCase):
    def test_every_price_counts(self):
        from basket import total

        self.assertEqual(total([250, 120, 30]), 400)


class Negative(unittest.TestCase):
    def test_a_negative_price_is_refused(self):
        from basket import total

        with self.assertRaises(ValueError):
            total([250, -120])


class Discount(unittest.TestCase):
    def test_ten_percent_are_taken_off(self):
        from discount import discounted

        self.assertEqual(discounted(400, 10), 360)


class Receipt(unittest.TestCase):
    def test_a_receipt_shows_the_price_to_pay(self):
        from receipt import receipt

        self.assertEqual(receipt([250, 120, 30], 10), "To pay: 3.60")


if __name__ == "__main__":
    unittest.main()
'''
_AUTHOR: Final = ("-c", "user.name=postroom demo", "-c", "user.email=demo@postroom.invalid")
_PATIENCE: Final = 60


@dataclass(frozen=True, slots=True)
class Work:
    """One task of the demo.

    Attributes:
        before: The numbers of the tasks that must be done first, counted from 1.
        test: The class of the tests that must pass. It is empty if no test checks the work.
        versions: The contents of the file after each attempt. Only the last version passes the test.
    """

    title: str
    path: str = ""
    before: tuple[int, ...] = ()
    test: str = ""
    versions: tuple[str, ...] = ()

    @property
    def check(self) -> str:
        """The command that tests the file of the task, or "" if the task has no test."""
        return f"python -m unittest test_shop.{self.test}" if self.test else ""


_SUMMED: Final = _CODE.replace(_BUG, _TOTAL)
_REFUSING: Final = _SUMMED.replace(
    _TOTAL, f'    if min(prices, default=0) < 0:\n        raise ValueError("a price is negative")\n{_TOTAL}'
)
COUNT: Final = Work("Count every price", BASKET, test="Total", versions=(_SUMMED,))
REFUSE: Final = Work("Refuse a negative price", BASKET, test="Negative", versions=(_REFUSING,))
SAVE: Final = Work(
    "Take off a discount",
    "discount.py",
    test="Discount",
    versions=(_DISCOUNT.format("price - percent"), _DISCOUNT.format("price * (100 - percent) // 100")),
)
PRINT: Final = Work("Print a receipt", "receipt.py", (1, 3), "Receipt", (_RECEIPT,))
DESCRIBE: Final = Work("Describe the shop", "README.md", (4,), versions=(_README,))
COMMIT: Final = Work("Commit the shop", before=(2, 5))
WORKS: Final = (COUNT, REFUSE, SAVE, PRINT, DESCRIBE, COMMIT)
"""The six tasks, in the order in which the demo adds them."""


def make(folder: Path) -> None:
    """Create a new folder with the Git repository of the demo.

    Raises:
        ConfigError: Git is missing, or the folder is not writable.
    """
    try:
        folder.mkdir(parents=True)
        (folder / BASKET).write_text(_CODE, encoding="utf-8")
        (folder / "test_shop.py").write_text(_TEST, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot create {folder}: {error.strerror}", value=str(folder)) from error
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, *_AUTHOR, "commit", "--quiet", "--message", "A basket, with a bug")


def write(folder: Path, work: Work) -> bool:
    """Write the next version of the task's file, and return whether the task's test succeeds."""
    path = folder / work.path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    tried = work.versions.index(text) + 1 if text in work.versions else 0
    path.write_text(work.versions[min(tried, len(work.versions) - 1)], encoding="utf-8")
    if not work.test:
        return True
    words = [sys.executable, "-B", *work.check.split()[1:], "--quiet"]
    done = subprocess.run(  # noqa: S603 - our own words
        words, cwd=folder, capture_output=True, timeout=_PATIENCE, check=False
    )
    return done.returncode == 0


def commit(folder: Path, words: str) -> str:
    """Commit all changed files, and return the short id of the newest commit."""
    if git(folder, "status", "--porcelain"):
        git(folder, "add", ".")
        git(folder, *_AUTHOR, "commit", "--quiet", "--message", words)
    return git(folder, "rev-parse", "--short", "HEAD").strip()


def git(folder: Path, *words: str) -> str:
    """Run Git in a folder, and return the output.

    Raises:
        ConfigError: Git is missing, or has failed.
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
