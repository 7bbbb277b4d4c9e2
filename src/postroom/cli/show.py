"""Prints the results of commands: one JSON document with `--json`, and otherwise lines or tables.

Texts from agents may contain escape sequences that a terminal would execute, so every text passes through
`plain`.
"""

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroom.cli.exit_codes import READER_GONE
from postroom.cli.remedies import at_the_command_line
from postroom.contracts.errors import PostroomError
from postroom.contracts.progress import Lines, amount, watched
from postroom.contracts.quoting import one_line, readable

if TYPE_CHECKING:
    from rich.console import RenderableType

RULE = "-" * 40
"""The line that separates two printed messages."""
_NAMES = {
    "ADDRESS",
    "AGENT",
    "CHANNEL",
    "CHAT",
    "CLIENT",
    "DONE BY",
    "FROM",
    "NAME",
    "PROJECT",
    "SERVER",
    "SETTING",
    "TO",
    "USER",
    "WORK",
}
_WHOLE = _NAMES | {
    "ID",
    "STATE",
    "SCOPES",
    "NUMBER",
    "PATH",
    "FOLDER",
    "VALUE",
    "QUESTION",
    "KIND",
    "REASON",
    "WHY",
}
"""The columns that are never truncated: people copy them, or they identify rows or state reasons.

If a row is too long, the terminal shows them below the row.
"""
_NARROW = 16
"""The minimum width of a column, in characters. A time to the minute fits into such a column."""
_STYLES = {
    "active": "green",
    "queued": "yellow",
    "waits": "yellow",
    "waiting": "magenta",
    "failed": "red",
    "unread": "cyan",
    "urgent": "red",
    "high": "red",
}
"""The styles of words that are alone in a cell, on a terminal with colours."""
_COLOURS = re.compile(r"(\x1b\[(?:0|3[1-6])m)")
"""Matches the escape sequences that Rich writes for these styles."""
_WORD = re.compile(r"\s*\S+")
"""Matches a word and the spaces before it."""
_MOMENT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
"""Matches a time. A terminal shows times in local time and to the minute."""


def plain(text: object) -> str:
    """Return a text in which control characters are visible."""
    return readable(str(text))


def line(text: object) -> str:
    """Return a text as one line; line breaks are replaced."""
    return one_line(str(text))


def agent(one: Mapping[str, Any]) -> str:
    """Return the agent of a run or question, together with the agent's project or chat."""
    where = f"@{one['project']}" if one["project"] else f" in {one.get('chat') or 'a chat'}"
    return f"{one['agent']}{where}"


def answer(document: Mapping[str, object], *, as_json: bool, text: Callable[[], str]) -> None:
    """Print the result of a command as JSON, or as the text that the function `text` returns."""
    if as_json:
        print_line(json.dumps(document, indent=2, default=str))
    elif shown := text():
        parts = _COLOURS.split(shown) if sys.stdout.isatty() else [shown]
        print_line("".join(part if _COLOURS.fullmatch(part) else plain(part) for part in parts))


def failure(error: PostroomError, *, as_json: bool, given: Sequence[str] = ()) -> None:
    """Print the error of a command as JSON on stdout, or as text on stderr.

    `given` are the arguments of the command. If stdout cannot be written, the error is printed on stderr.
    """
    fields = at_the_command_line(error, given)
    if as_json:
        with suppress(OSError):
            print_line(json.dumps({"error": fields}, indent=2, default=str))
            return
    print(plain(fields["message"]), file=sys.stderr)
    reasons = items(fields["details"].get("recipients"))
    for reason in reasons:
        print(f"  {line(reason['message'])}: {line(reason['remedy'])}".removesuffix(": "), file=sys.stderr)
    if fields["remedy"] and not reasons:
        print(f"remedy: {plain(fields['remedy'])}", file=sys.stderr)


def tell_more(page: Mapping[str, object], option: str) -> None:
    """Print on stderr how to get the next page of a list; do nothing after the last page."""
    if page.get("next") is not None:
        print(f"more results: add {option} {page['next']}", file=sys.stderr)


@contextmanager
def progress(*, as_json: bool) -> Iterator[None]:
    """Return a context manager that shows the progress of a call on stderr.

    The progress is shown as a bar on a terminal, and as lines in a pipe. If `as_json` is True, no progress is
    shown.
    """
    if as_json:
        yield
    elif not sys.stderr.isatty():
        with watched(Lines(_print_aside, time.monotonic)):
            yield
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        doing, far = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[far]"))
        columns = (SpinnerColumn("line"), doing, BarColumn(bar_width=8), far, TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
            task = drawn.add_task("", visible=False, far="")

            def told(doing: str, done: int = 0, total: int = 0) -> None:
                far, of = amount(done, total), total or None
                drawn.update(task, description=line(doing), completed=done, total=of, far=far, visible=True)

            with watched(told):
                yield


def _print_aside(text: str) -> None:
    print(line(text), file=sys.stderr, flush=True)


def outline(found: object, depth: int = 0) -> str:
    """Return nested data as indented lines."""
    indent = "  " * depth
    pairs = (
        found.items()
        if isinstance(found, Mapping)
        else (("-", item) for item in (found if isinstance(found, list | tuple) else [found]))
    )
    lines = []
    for name, value in pairs:
        label = f"{indent}{line(name)}" + ("" if name == "-" else ":")
        if isinstance(value, Mapping | list) and value:
            lines += [label, outline(value, depth + 1)]
        else:
            if isinstance(value, bool):
                word = "yes" if value else "no"
            else:
                word = line("-" if value in (None, "", [], {}) else value)
            lines.append(f"{label} {word}")
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, none: str) -> str:
    """Return rows as a table on a terminal, or as lines with tabs in a pipe.

    Without rows, the text `none` is returned on a terminal, and printed on stderr in a pipe.
    """
    cells = [[line("" if cell is None else cell) for cell in row] for row in rows]
    if not cells:
        if sys.stdout.isatty():
            return none
        print(none, file=sys.stderr)
        return ""
    if not sys.stdout.isatty():
        return "\n".join("\t".join(row) for row in [list(heads), *cells])
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console

    room = Console().width
    cells = [[_MOMENT.sub(_local_minute, cell) for cell in row] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if _with_gaps(widths) <= room:
        return _grid(heads, cells)
    narrow = [
        width if head in _WHOLE else min(width, _NARROW) for head, width in zip(heads, widths, strict=True)
    ]
    fitting = next(
        count for count in range(len(heads), 0, -1) if count == 1 or _with_gaps(narrow[:count]) <= room
    )
    least = narrow[:fitting]
    shared = [min(width, max(few, room)) for width, few in zip(widths[:fitting], least, strict=True)]
    while _with_gaps(shared) > room and (wide := [at for at, few in enumerate(least) if shared[at] > few]):
        shared[max(wide, key=shared.__getitem__)] -= 1  # the widest columns shrink first
    shown = [
        [
            cell if cell_len(cell) <= width else set_cell_size(cell, width - 1).rstrip() + "…"
            for cell, width in zip(row[:fitting], shared, strict=True)
        ]
        for row in cells
    ]
    drawn = _grid(heads[:fitting], shown, at_least=_with_gaps(shared) + 2)
    if fitting == len(heads):
        return drawn
    top, *lines = drawn.splitlines()
    texts = [top]  # the cells that do not fit on the screen stand on the lines below
    for text, row in zip(lines, cells, strict=True):
        below = [""]
        for cell in filter(None, row[fitting:]):
            beside = f"{below[-1]}  {cell}"
            if cell_len(beside) <= room or cell_len(cell) > room - 2:
                below[-1] = beside
            else:  # a cell that fits on a line is not broken
                below.append(f"  {cell}")
        texts += [text, *(folded(one, "  ") for one in below if one)]
    return "\n".join(texts)


def folded(text: str, indent: str) -> str:
    """Return a line of a list; on a terminal, a line that is too long is broken between words.

    `indent` stands before each part except the first. A path or another long word in ASCII is not broken, so
    that people can copy it. Other long words are broken, because some scripts have no spaces.
    """
    if not sys.stdout.isatty():
        return text
    from rich.cells import cell_len, chop_cells
    from rich.console import Console

    width = max(Console().width, len(indent) + _NARROW)
    parts = [""]
    for word in _WORD.findall(text):
        for piece in [word] if word.isascii() else chop_cells(word, width - len(indent)):
            if not parts[-1] or cell_len(parts[-1] + piece) <= width:
                parts[-1] += piece
            else:
                parts.append(indent + piece.lstrip())
    return "\n".join(parts)


def moment(text: object) -> str:
    """Return a time for a line of output; on a terminal, the time is local."""
    return _MOMENT.sub(_local_minute, line(text)) if sys.stdout.isatty() else line(text)


def _local_minute(moment: re.Match[str]) -> str:
    return f"{datetime.fromisoformat(moment[0]).astimezone():%Y-%m-%d %H:%M}"


def _with_gaps(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def rendered(found: "RenderableType", *, at_least: int = 0) -> str:
    """Return the text that Rich renders with the width and the colors of this terminal.

    A terminal with fewer than `at_least` characters wraps the lines.
    """
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, at_least)
    with console.capture() as captured:
        console.print(found)
    return "\n".join(text.rstrip() for text in captured.get().rstrip("\n").split("\n"))


def _grid(heads: Sequence[str], cells: Sequence[Sequence[str]], *, at_least: int = 0) -> str:
    from rich.table import Table
    from rich.text import Text

    one_line = at_least > 0
    drawn = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for head, *column in zip(heads, *cells, strict=True):
        whole = head in _WHOLE or max(map(len, column)) <= _NARROW
        drawn.add_column(
            head, no_wrap=whole or one_line, overflow="fold" if whole or not one_line else "ellipsis"
        )
    for row in cells:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell.partition(",")[0], "")) for cell in row))
    return rendered(drawn, at_least=at_least)


def accept_any_text() -> None:
    """Make stdout and stderr escape characters that the encoding of the terminal lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def state_word(state: str) -> str:
    """Return the word that people see for a run's state."""
    from postroom.contracts.work import SHOWN_STATES  # commands that need no server must not load this

    return SHOWN_STATES.get(state, state)


def print_line(text: str) -> None:
    """Print a line immediately; exit if no program reads the output."""
    write(f"{text}\n")


def write(text: str) -> None:
    """Print a text immediately; exit if no program reads the output."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError as error:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())  # otherwise, the interpreter's flush at exit fails
        os.close(sink)
        raise SystemExit(READER_GONE) from error


def discarded(ids: Sequence[str]) -> str:
    """Return a text that says which dead letters were discarded."""
    return "\n".join(f"Discarded {line(value)}." for value in ids) or "Nothing to discard."


def items(found: object) -> list[dict[str, Any]]:
    """Return a list of objects from the server after checking the type.

    Raises:
        PostroomError: The server sent data of another type.
    """
    if found is None:
        return []
    if isinstance(found, list) and all(isinstance(item, dict) for item in found):
        return found
    raise _surprise(found)


def fields(found: object) -> dict[str, Any]:
    """Return an object from the server after checking the type.

    Raises:
        PostroomError: The server sent data of another type.
    """
    if isinstance(found, dict):
        return found
    raise _surprise(found)


def _surprise(found: object) -> PostroomError:
    return PostroomError(
        f"the server answered with an unexpected {type(found).__name__}",
        remedy="check that the server and this command have the same version: `postroom version`",
    )
