"""How commands speak: one JSON document with `--json`, else plain lines; tables only for a person's screen.

What agents wrote may hold escape sequences, which a terminal would obey: every text goes through `plain`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from postroom.cli.exit_codes import READER_GONE
from postroom.contracts.errors import PostroomError

_KEPT = {ord("\n"): "\n", ord("\t"): "\t"}
_VISIBLE = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0)]} | _KEPT
_VISIBLE |= {code: f"\\u{code:04x}" for code in [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]}
"""Control characters, and those that turn the direction of the text round."""


class ReaderGone(Exception):  # noqa: N818 - not an error: the reader of the output had enough
    """The other end of stdout was closed."""


def plain(text: object) -> str:
    """Return text with what a terminal would obey made visible."""
    return str(text).translate(_VISIBLE)


def line(text: object) -> str:
    """Return text as a part of one line."""
    return plain(text).replace("\n", " ").replace("\t", " ")


def answer(document: Mapping[str, object], *, as_json: bool, text: Callable[[], str]) -> None:
    """Print what a command found out: the document, or `text` for people."""
    if as_json:
        _print(json.dumps(document, indent=2, default=str))
    elif shown := text():
        _print(shown)


def failure(error: PostroomError, *, as_json: bool) -> None:
    """Print why a command failed: on stdout as JSON, or on stderr with what to do."""
    if as_json:
        _print(json.dumps({"error": error.as_dict()}, indent=2, default=str))
        return
    print(plain(error.message), file=sys.stderr)
    if error.remedy:
        print(f"remedy: {plain(error.remedy)}", file=sys.stderr)


def note(text: str) -> None:
    """Say on stderr how long work goes on, when a person is watching."""
    if sys.stderr.isatty():
        print(plain(text), file=sys.stderr, flush=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, none: str) -> str:
    """Return rows as a table on a terminal, and with tabs between the cells in a pipe; `none` when there are none."""
    cells = [[line("" if cell is None else cell) for cell in row] for row in rows]
    if not cells:
        return none if sys.stdout.isatty() else ""
    if not sys.stdout.isatty():
        return "\n".join("\t".join(row) for row in [list(heads), *cells])
    return _drawn(heads, cells)


def _drawn(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        drawn.add_column(head, overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n")


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        abandon_stdout()


def abandon_stdout() -> NoReturn:
    """Let nothing more be written to a stdout that nobody reads.

    Raises:
        ReaderGone: always.
    """
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
    raise ReaderGone(READER_GONE)
