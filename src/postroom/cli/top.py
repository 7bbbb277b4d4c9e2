"""`postroom top`: who works, what waits and who is asked, on one screen that changes as it does."""

import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir
from postroom.cli.span import since
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ServerUnavailable
from postroom.contracts.quoting import without_escapes

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

app = typer.Typer(rich_markup_mode=None)

_PAUSE_SECONDS: Final = 1.0
_FEW: Final = 8
"""Rows of each list that are shown; the rest is counted."""
_LATEST: Final = 5
"""Runs that ended which are shown."""


@app.command(epilog=examples("top", "top --once", "top --json"))
def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """See who works, what waits and what is asked, live. q or Ctrl-C ends it.

    Without a terminal, and with --json, it is printed once.
    """
    server = Server.find(data_dir=data_dir)
    if as_json or once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        found = look(server)
        show.answer(found, as_json=as_json, text=lambda: show.rendered(drawn(found)))
        return
    _live(server)


def look(server: Server) -> dict[str, Any]:
    """Return what the screen shows: the server, questions, runs, and messages that wait for a run."""
    found = server.admin("GET", "/admin/runs")
    runs = show.items(found.get("runs"))
    for run in runs:
        if run["state"] == "at work":
            asked = server.admin("GET", f"/admin/runs/one?run={run['run_id']}")
            run["last_line"] = _last_line(str(asked["output"]))
    return {
        "server": server.admin("GET", "/admin/status"),
        "questions": show.items(server.admin("GET", "/admin/questions").get("questions")),
        "runs": runs,
        "waiting": show.items(found.get("waiting")),
    }


def _last_line(output: str) -> str:
    return next((text.strip() for text in reversed(without_escapes(output).splitlines()) if text.strip()), "")


def _live(server: Server) -> None:
    from rich.live import Live
    from rich.text import Text

    with _keys() as pressed, Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown: RenderableType = drawn(look(server))
            except ServerUnavailable as error:  # it may be started again: the screen goes on
                shown = Text(f"{show.line(error.message)}\nq ends this; it goes on when the server is back")
            live.update(shown, refresh=True)
            if pressed():
                return


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """Yield what waits a moment and says whether q was pressed; the terminal is as before at the end."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed() -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], _PAUSE_SECONDS)
        return bool(readable) and sys.stdin.read(1) in ("q", "Q", "")

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def drawn(found: Mapping[str, Any]) -> "Group":
    """Return the screen: each list under its head, and nothing wider than the terminal."""
    from rich.console import Group
    from rich.text import Text

    now = SystemClock().now()
    states = {state: [run for run in found["runs"] if run["state"] == state] for state in _STATES}
    ended = [run for run in found["runs"] if run["state"] in ("done", "cancelled")][:_LATEST]
    lists = [
        ("QUESTIONS", "magenta", [_question(one, now) for one in found["questions"]]),
        ("AT WORK", "green", [_run(one, now, one.get("last_line", "")) for one in states["at work"]]),
        ("QUEUED", "yellow", [_run(one, now, one["why"]) for one in states["queued"]]),
        ("MAIL THAT WAITS FOR ITS READER", "yellow", [_mail(one, now) for one in found["waiting"]]),
        ("FAILED", "red", [_run(one, now, one["why"]) for one in states["failed"]]),
        ("LATELY", "cyan", [_ended(one, now) for one in ended]),
    ]
    parts: list[RenderableType] = [_head(found, states)]
    for head, colour, rows in lists:
        if rows:
            parts += [Text(f"\n{head} ({len(rows)})", style=colour), _rows(rows[:_FEW])]
        if len(rows) > _FEW:
            parts.append(Text(f"  and {len(rows) - _FEW} more"))
    if len(parts) == 1:
        parts.append(Text("\nNobody works, waits or asks."))
    return Group(*parts)


_STATES: Final = ("at work", "queued", "asks", "failed")


def _head(found: Mapping[str, Any], states: Mapping[str, Sequence[object]]) -> "RenderableType":
    from rich.text import Text

    server = found["server"]
    counts = ", ".join(f"{len(runs)} {state}" for state, runs in states.items())
    unread = server["records"].get("unread", 0)
    return Text(
        f"postroom {show.line(server['version'])}  {show.line(server['url'])}\n"
        f"runs: {counts}; {unread} messages unread; q ends",
    )


Row = tuple[str, str, str, str, str]
"""An id, since when, how it ended, whose or what it is, and what it says, which has a line of its own."""


def _question(one: Mapping[str, Any], now: int) -> Row:
    return one["number"], since(one["waiting_since"], now), "", one["question"], ""


def _run(run: Mapping[str, Any], now: int, text: str) -> Row:
    moment = run["finished_at"] or run["started_at"] or run["created_at"]
    return run["run_id"], since(moment, now), "", f"{run['agent']}@{run['project']}", text


def _ended(run: Mapping[str, Any], now: int) -> Row:
    run_id, moment, _, whose, _ = _run(run, now, "")
    return run_id, moment, f"  {run['state']:<9}", whose, ""


def _mail(one: Mapping[str, Any], now: int) -> Row:
    return f"message {one['message']}", since(one["since_at"], now), "", f"{one['agent']}: {one['why']}", ""


def _rows(rows: Sequence[Row]) -> "RenderableType":
    """Return a line for each row, whose id is whole whatever the width; what it says ends at the edge.

    Whose or what it is has a line below where it is whole there and would not be in the row.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    room, width, lines = Console().width, max(len(name) for name, *_ in rows), []
    for name, moment, state, what, said in rows:
        head, text = f"{show.line(name):<{width}} {moment:>4}{state}", show.line(what)
        beside, below = f"{head}  {text}", f"    {text}"
        fits_below = cell_len(beside) > room >= cell_len(below)
        lines += [head.rstrip(), below] if fits_below else [beside]
        lines += [f"    {show.line(said)}"] if said else []
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
