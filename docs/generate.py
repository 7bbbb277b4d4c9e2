"""Writes `docs/reference/` from the code itself: `make docs`, or `python docs/generate.py [FOLDER]`.

Each page is made of what the program reads at run time: the table of operations and the types of their
answers, the settings, the tree of commands, the tree of errors, the routes, the metrics registry. The few
words that the code does not hold (what a route is for, say) stand in `from_code/` under the name of what they
describe, so that a new one without words stops the run. A test fails when a page differs from what is made.
Without FOLDER it also writes `src/postroom/cli/operations.json`, the table of operations for commands.
"""

import sys
from pathlib import Path
from typing import Final

from from_code import (
    command_table,
    commands,
    errors,
    http,
    library,
    metrics,
    permissions,
    rest,
    settings,
    tools,
)

FOLDER: Final = Path(__file__).resolve().parent / "reference"
NOTE: Final = "<!-- Made by docs/generate.py from the code. Do not edit: run `make docs`. -->"
PAGES: Final = {
    "commands.md": commands.page,
    "errors.md": errors.page,
    "http.md": http.page,
    "library.md": library.page,
    "metrics.md": metrics.page,
    "permissions.md": permissions.page,
    "rest.md": rest.page,
    "settings.md": settings.page,
    "tools.md": tools.page,
}


def write(folder: Path) -> None:
    """Write every page into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(f"{NOTE}\n\n{page().strip()}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    if any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit("docs/generate.py takes no options: give at most a folder")
    if len(sys.argv) == 1:
        command_table.FILE.write_text(command_table.text(), encoding="utf-8", newline="\n")
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
