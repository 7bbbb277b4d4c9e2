"""How commands speak: one JSON document with `--json`, else plain lines; tables only for a person's screen.

What agents wrote may hold escape sequences, which a terminal would obey: every text goes through `plain`.
"""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroom.cli.exit_codes import READER_GONE
from postroom.contracts.errors import PostroomError
from postroom.contracts.quoting import one_line, readable

if TYPE_CHECKING:
    from rich.console import Console

_COPIED = {"ID", "NUMBER"}
"""Columns that people copy from: never broken over lines."""
_SHORTENED = {"AGENT", "THREAD", "TO"}
"""Columns that end in an ellipsis where the screen is too narrow; `--json` has them whole."""
_TEXTS = {"WHY", "REASON"}
"""Last columns that go below their row where the screen is too narrow."""
_NARROW = 16
"""Characters that a column keeps: those of a moment to the minute."""
_MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*(?:Z|[+-]\d\d:\d\d)")
"""A moment; on a narrow screen it is shown to the minute."""

_COMMANDS = {
    "acknowledge_message": "mail ack",
    "ensure_project": "agents register",
    "fetch_inbox": "mail inbox",
    "list_agents": "agents list",
    "list_file_reservations": "reservations list",
    "register_agent": "agents register",
    "reply_message": "mail reply",
    "search_messages": "mail search",
    "send_message": "mail send",
    "unretire_agent": "agents unretire",
}
"""What a person runs for a tool that a remedy names."""
_TOOL = re.compile(rf"(\bcall )?`?\b({'|'.join(_COMMANDS)})\b`?")


def plain(text: object) -> str:
    """Return text with what a terminal would obey made visible."""
    return readable(str(text))


def line(text: object) -> str:
    """Return text as a part of one line."""
    return one_line(str(text))


def answer(document: Mapping[str, object], *, as_json: bool, text: Callable[[], str]) -> None:
    """Print what a command found out: the document, or `text` for people."""
    if as_json:
        print_line(json.dumps(document, indent=2, default=str))
    elif shown := text():
        print_line(plain(shown))


def failure(error: PostroomError, *, as_json: bool) -> None:
    """Print why a command failed: on stdout as JSON, or on stderr with what to do."""
    if as_json:
        print_line(json.dumps({"error": error.as_dict()}, indent=2, default=str))
        return
    print(plain(error.message), file=sys.stderr)
    if error.remedy:
        print(f"remedy: {plain(as_commands(error.remedy))}", file=sys.stderr)


def as_commands(remedy: str) -> str:
    """Return a remedy with the commands that a person runs in the place of the tools that an agent calls."""
    return _TOOL.sub(lambda met: f"{'run ' if met[1] else ''}`postroom {_COMMANDS[met[2]]}`", remedy)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield what says on stderr how far long work is, on one line, when a person is watching."""
    watched = sys.stderr.isatty()

    def tell(text: str) -> None:
        if watched:
            print(f"\r{line(text)}\x1b[K", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if watched:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def outline(found: object, depth: int = 0) -> str:
    """Return nested data as indented lines, for what no table fits."""
    indent = "  " * depth
    pairs = found.items() if isinstance(found, Mapping) else (("-", one) for one in _sequence(found))
    lines = []
    for name, value in pairs:
        label = f"{indent}{line(name)}" + ("" if name == "-" else ":")
        if isinstance(value, Mapping | list) and value:
            lines += [label, outline(value, depth + 1)]
        else:
            lines.append(f"{label} {_word(value)}")
    return "\n".join(lines)


def _sequence(found: object) -> Sequence[object]:
    return found if isinstance(found, list | tuple) else [found]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return line("-" if value in (None, "", [], {}) else value)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, none: str) -> str:
    """Return rows as a table on a terminal, with tabs between the cells in a pipe; without rows, `none`."""
    cells = [[line("" if cell is None else cell) for cell in row] for row in rows]
    if not cells:
        return none if sys.stdout.isatty() else ""
    if not sys.stdout.isatty():
        return "\n".join("\t".join(row) for row in [list(heads), *cells])
    return _drawn(heads, cells)


def _drawn(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    from rich.cells import cell_len
    from rich.console import Console

    console = Console(highlight=False)
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if _with_gaps(widths) <= console.width:
        return _grid(console, heads, cells)
    cells = [[_MOMENT.sub(r"\1 \2", cell) for cell in row] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    narrow = [min(width, _width_kept(head, width)) for head, width in zip(heads, widths, strict=True)]
    if heads[-1] not in _TEXTS or _with_gaps(narrow) <= console.width:
        return _grid(console, heads, cells)
    top, *rows = _grid(console, heads[:-1], [row[:-1] for row in cells], one_line=True).splitlines()
    below = (f"\n  {row[-1]}" if row[-1] else "" for row in cells)
    return "\n".join([top, *(row + text for row, text in zip(rows, below, strict=True))])


def _with_gaps(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _width_kept(head: str, width: int) -> int:
    return width if head in _COPIED else _NARROW


def _grid(
    console: "Console", heads: Sequence[str], cells: Sequence[Sequence[str]], *, one_line: bool = False
) -> str:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for head, *column in zip(heads, *cells, strict=True):
        whole = head in _COPIED or max(map(len, column)) <= _NARROW
        is_cut = one_line or head in _SHORTENED
        drawn.add_column(head, no_wrap=whole, overflow="ellipsis" if is_cut and not whole else "fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(text.rstrip() for text in captured.get().rstrip("\n").split("\n"))


def accept_any_text() -> None:
    """Let output hold characters that the terminal's encoding lacks; they are shown as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str) -> None:
    """Print a line at once; end when nobody reads any more."""
    try:
        print(text, flush=True)
    except BrokenPipeError as error:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())  # else the interpreter complains when it flushes at its end
        os.close(sink)
        raise SystemExit(READER_GONE) from error


def items(found: object) -> list[dict[str, Any]]:
    """Return the objects of a list that the server answered.

    Raises:
        PostroomError: it answered something else.
    """
    if found is None:
        return []
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        return found
    raise _surprise(found)


def fields(found: object) -> dict[str, Any]:
    """Return an object that the server answered.

    Raises:
        PostroomError: it answered something else.
    """
    if isinstance(found, dict):
        return found
    raise _surprise(found)


def _surprise(found: object) -> PostroomError:
    return PostroomError(
        f"the server answered with {type(found).__name__} where another form was expected",
        remedy="see that the server and this command have one version: `postroom version`",
    )
