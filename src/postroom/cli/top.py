"""`postroom top`: a live screen with active runs, tasks, waiting messages and open questions."""

import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import perform
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir
from postroom.cli.runs import explain
from postroom.cli.span import since
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ServerUnavailable
from postroom.contracts.quoting import without_escapes

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

app = typer.Typer(rich_markup_mode=None)

_PAUSE_SECONDS: Final = 1.0
_FEW: Final = 8
"""Maximum number of rows that a list shows. The other rows are only counted."""
_SHOWN_EVENTS: Final = 5
"""Maximum number of ended runs that are shown."""


@app.command(epilog=examples("top", "top --once", "top --json"))
def top(
    once: Annotated[bool, typer.Option("--once", help="Print the overview once and exit.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show runs, tasks, waiting messages and questions live. q or Ctrl-C quits.

    Without a terminal, or with --json, print the overview once.
    """
    server = Server.find(data_dir=data_dir)
    if as_json or once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        fields = look(server)
        show.answer(fields, as_json=as_json, text=lambda: show.rendered(drawn(fields)))
        return
    from rich.live import Live
    from rich.text import Text

    with _keys() as pressed, Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown: RenderableType = drawn(look(server), lines=live.console.height)
            except ServerUnavailable as error:  # the server may start again, so keep the screen
                shown = Text(
                    f"{show.line(error.message)}\nPress q to quit. The screen updates when the server is "
                    "back."
                )
            live.update(shown, refresh=True)
            if pressed():
                return


def look(server: Server) -> dict[str, Any]:
    """Return the data for the overview: the server, questions, runs, tasks and waiting messages."""
    answer = perform(server, "list_runs")
    runs = show.items(answer.get("runs"))
    for run in runs:
        if run["state"] == "at work":
            output = perform(server, "show_run", run=run["run_id"])
            run["last_line"] = next(
                (
                    text.strip()
                    for text in reversed(without_escapes(str(output["output"])).splitlines())
                    if text.strip()
                ),
                "",
            )
    return {
        "server": perform(server, "show_status"),
        "questions": show.items(perform(server, "list_questions", limit=500).get("questions")),
        "runs": runs,
        "waiting": show.items(answer.get("waiting")),
        "tasks": show.items(perform(server, "list_open_tasks").get("tasks")),
    }


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
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


def drawn(found: Mapping[str, Any], *, lines: int | None = None) -> "Group":
    """Return the overview as wide as the terminal, with at most `lines` lines."""
    from rich.console import Console, Group
    from rich.text import Text

    now = SystemClock().now()
    states = {state: [run for run in found["runs"] if run["state"] == state] for state in _STATES}
    ended = [run for run in found["runs"] if run["state"] in ("done", "cancelled")][:_SHOWN_EVENTS]
    lists = [
        (
            "QUESTIONS",
            "magenta",
            [
                (
                    question["number"],
                    since(question["waiting_since"], now),
                    "",
                    show.agent(question),
                    question["question"],
                )
                for question in found["questions"]
            ],
        ),
        ("ACTIVE", "green", [_run(item, now, item.get("last_line", "")) for item in states["at work"]]),
        ("QUEUED", "yellow", [_run(item, now, explain(item)) for item in states["queued"]]),
        ("TASKS", "blue", [_task(task, now) for task in found["tasks"]]),
        (
            "WAITING MESSAGES",
            "yellow",
            [
                (
                    f"message {item['message']}",
                    since(item["since_at"], now),
                    "",
                    f"{item['agent']}: {item['why']}",
                    "",
                )
                for item in found["waiting"]
            ],
        ),
        ("FAILED", "red", [_run(item, now, item["why"]) for item in states["failed"]]),
        (
            "LATELY",
            "cyan",
            [_run(item, now, "", f"  {show.state_word(item['state']):<9}") for item in ended],
        ),
    ]
    console = Console()
    head = _head(found, states)
    shown = [_List(name, colour, _rows(rows, console.width)) for name, colour, rows in lists if rows]
    if lines is not None:
        _fit(shown, lines - len(head.wrap(console, console.width)))
    parts: list[RenderableType] = [head]
    for item in shown:
        parts += [Text(f"{item.gap}{item.name} ({len(item.rows)})", style=item.colour), item.drawn()]
    if len(parts) == 1:
        parts.append(Text("\nNo runs, no tasks, no waiting messages, no questions."))
    return Group(*parts)


@dataclass(slots=True)
class _List:
    name: str
    colour: str
    rows: Sequence[Sequence[str]]
    few: int = _FEW
    gap: str = "\n"
    """The blank lines between this list and the list above."""

    def shown(self) -> list[str]:
        lines = [text for row in self.rows[: self.few] for text in row]
        left_out = len(self.rows) - self.few
        return [*lines, f"  and {left_out} more"] if left_out > 0 else lines

    def height(self) -> int:
        return len(self.gap) + 1 + len(self.shown())

    def drawn(self) -> "RenderableType":
        from rich.text import Text

        return Text("\n".join(self.shown()), no_wrap=True, overflow="ellipsis")


def _fit(lists: Sequence[_List], room: int) -> None:
    for item in lists:
        item.few = min(_FEW, len(item.rows))
    while sum(item.height() for item in lists) > room:
        longest = max(lists, key=lambda one: one.few, default=None)
        if longest is None:
            return
        if longest.few > 1:
            longest.few -= 1
        elif tall := next((item for item in reversed(lists) if len(item.rows[0]) > 1), None):
            tall.rows = [row[:1] for row in tall.rows]
        elif set_off := next((item for item in reversed(lists) if item.gap), None):
            set_off.gap = ""
        else:
            return


_STATES: Final = ("at work", "queued", "asks", "failed")


def _head(found: Mapping[str, Any], states: Mapping[str, Sequence[object]]) -> "Text":
    from rich.text import Text

    server = found["server"]
    counts = ", ".join(f"{len(runs)} {show.state_word(state)}" for state, runs in states.items())
    unread = server["records"].get("unread", 0)
    return Text(
        f"postroom {show.line(server['version'])}  {show.line(server['url'])}\nruns: {counts}; "
        f"{unread} messages unread; q quits",
    )


Row = tuple[str, str, str, str, str]
"""The cells of a row: id, time, result, agent or subject, and a text with its own line."""


def _run(run: Mapping[str, Any], now: int, text: str, state: str = "") -> Row:
    moment = run["finished_at"] or run["started_at"] or run["created_at"]
    return run["run_id"], since(moment, now), state, show.agent(run), text


def _task(one: Mapping[str, Any], now: int) -> Row:
    whose = one["holder"] or one["assignee"] or "anybody"
    return f"task {one['id']}", since(one["changed_ts"], now), f"  {one['state']:<7}", whose, one["title"]


def _rows(rows: Sequence[Row], room: int) -> list[list[str]]:
    from rich.cells import cell_len

    width, results = max(len(name) for name, *_ in rows), []
    for name, moment, state, what, detail in rows:
        head, text = f"{show.line(name):<{width}} {moment:>4}{state}", show.line(what)
        beside, below = f"{head}  {text}", f"    {text}"
        fits_below = cell_len(beside) > room >= cell_len(below)
        lines = [head.rstrip(), below] if fits_below else [beside]
        results.append([*lines, f"    {show.moment(detail)}"] if detail else lines)
    return results
