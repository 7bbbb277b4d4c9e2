"""Finds reservation patterns that match no file in the project's folder, and are often misspelled."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from postroom.mail.globs import Pattern, folded, matches, parse_pattern

MAX_ENTRIES: Final = 5_000
"""Maximum number of files and folders that a call examines."""


def unmatched(root: str, patterns: Sequence[str], *, case_sensitive: bool) -> list[str]:
    """Return the patterns that certainly match no file or folder below `root`.

    The search stops after `MAX_ENTRIES` entries, and does not follow symbolic links. If `root` is not on this
    machine, the result is empty.
    """
    if not Path(root).is_dir():
        return []
    left = iter(range(MAX_ENTRIES))
    found = [parse_pattern(text, case_sensitive=case_sensitive) for text in patterns]
    return [
        one.text for one in found if not one.is_resource and not _may_match(root, one, case_sensitive, left)
    ]


def _may_match(root: str, pattern: Pattern, case_sensitive: bool, left: Iterator[int]) -> bool:
    first_names = pattern.prefix.split("/") if pattern.prefix else []
    folders = [(root, "")]
    while folders:
        folder, above = folders.pop()
        depth = above.count("/")
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if next(left, None) is None:
                        return True
                    name = unicodedata.normalize("NFC", entry.name)
                    if depth < len(first_names):
                        if first_names[depth] != (name if case_sensitive else folded(name)):
                            continue
                    elif name == ".git":
                        continue
                    is_folder = entry.is_dir()
                    if matches(pattern, above + name) or (is_folder and entry.is_symlink()):
                        return True
                    if is_folder:
                        folders.append((entry.path, f"{above}{name}/"))
        except OSError:
            return True
    return False
