"""The shape of the code: how much there is, and how much of it one run and one message go through.

It measures whichever `postroom` is imported, so that two trees can be compared:
`PYTHONPATH=<other checkout>/src python -m benchmarks shape`.
"""

import ast
import asyncio
import io
import resource
import sqlite3
import sys
import tempfile
import threading
import tokenize
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import postroom
from benchmarks.figures import Table

HOME = Path(postroom.__file__).resolve().parent
SOURCES = HOME.parent
MAX_FUNCTION_LINES = 40
FEW_LINES = 100
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_CHANGES = ("INSERT", "UPDATE", "DELETE")
_AROUND = ("BEGIN", "ROLLBACK", "SAVEPOINT", "RELEASE")


# What is written.


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def code_lines(path: Path) -> int:
    """Count the lines of a module that hold code: no blank line, no comment, no docstring."""
    texts: set[int] = set()
    for node in ast.walk(_tree(path)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def sql_lines(text: str) -> int:
    """Count the lines of a file of statements that are neither blank nor a comment."""
    return sum(bool(line.strip()) and not line.strip().startswith("--") for line in text.splitlines())


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _written(paths: Iterable[Path]) -> int:
    return sum(map(code_lines, paths))


def long_functions() -> tuple[int, int]:
    """Return how many functions have more than forty lines, and how many there are."""
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in _modules(SOURCES)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return sum(length > MAX_FUNCTION_LINES for length in lengths), len(lengths)


# How deep imports go within a room.


def import_depth(room: Path) -> int:
    """Return the most modules of a room that stand in one chain, each of which imports the next."""
    names = {_module_name(path): path for path in _modules(room)}
    graph = {name: _imported(path, names) - {name} for name, path in names.items()}
    known: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            return 0  # a circle counts once
        if name not in known:
            below = [depth(one, (*above, name)) for one in sorted(graph[name])]
            known[name] = 1 + max(below, default=0)
        return known[name]

    return max((depth(name, ()) for name in sorted(graph)), default=0)


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, names: dict[str, Path]) -> set[str]:
    """Return the modules among `names` that a module loads when it is loaded."""
    found: set[str] = set()
    waiting: list[ast.AST] = [_tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node):
            continue
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{one.name}" for one in node.names} & set(names)
            found |= whole or {node.module}
        waiting.extend(ast.iter_child_nodes(node))
    return found & set(names)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


# What is gone through.


@dataclass
class Trace:
    """What of ours was called, and what was asked of SQLite, while it was looked at."""

    functions: set[tuple[str, str, int]] = field(default_factory=set)
    """Every piece of code that was called, those without a name among them."""
    calls: int = 0
    statements: int = 0
    """Without those that begin and end transactions; what triggers do is a part of what woke them."""
    commits: int = 0
    """Of transactions that write."""
    is_on: bool = False

    def called(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call, as `sys.setprofile` tells it."""
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(str(HOME)):
            self.calls += 1
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    def watch(self, connection: sqlite3.Connection) -> None:
        """Note what is asked over a connection."""
        before, writes = "", False

        def asked(statement: str) -> None:
            nonlocal before, writes
            word = statement.split(None, 1)[0].rstrip(";").upper()
            if word == "BEGIN":
                writes = "IMMEDIATE" in statement.upper()
            is_trigger = statement == before and word in _CHANGES
            before = statement
            if not self.is_on or is_trigger:
                return
            if word in ("COMMIT", "END"):
                self.commits += writes
            elif word not in _AROUND:
                self.statements += 1

        connection.set_trace_callback(asked)

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {file for file, _, _ in self.functions}

    def within(self, room: str) -> set[str]:
        """Return those of the files that are in a room."""
        return {file for file in self.files if Path(file).is_relative_to(HOME / room)}


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace what is opened and begun from here on, in every thread; it is noted while `is_on`."""
    trace, connect = Trace(), sqlite3.connect

    def watched(*args: Any, **more: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*args, **more)
        trace.watch(made)
        return made

    sqlite3.connect = watched  # type: ignore[assignment]
    threading.setprofile(trace.called)
    sys.setprofile(trace.called)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        sqlite3.connect = connect


async def _looked_at(trace: Trace, warm: Callable[[], Awaitable[object]]) -> None:
    """Do it a few times, so that what is cached is, and then once while it is looked at."""
    for _ in range(5):
        await warm()
    trace.is_on = True
    try:
        await warm()
    finally:
        trace.is_on = False


def one_run() -> tuple[Trace, float]:
    """Trace one run through a mailbox on SQLite; return with it the CPU that a run takes, in seconds."""
    from benchmarks.dispatch_mailbox import Nothing, on_sqlite
    from postroom.contracts.activation import RunActivation
    from postroom.dispatch.mailbox import Mailbox

    async def runs(trace: Trace, then: int) -> float:
        async with on_sqlite() as stores:
            mailbox = Mailbox(Nothing(), stores)

            async def one() -> None:
                await mailbox.submit_background(RunActivation.new("echo", ["go"]))
                await mailbox.settled()

            await _looked_at(trace, one)
            began = _cpu()
            for _ in range(then):
                await one()
            taken = _cpu() - began
            await mailbox.aclose()
        return taken / max(then, 1)

    with traced() as trace:
        asyncio.run(runs(trace, 0))
    return trace, asyncio.run(runs(Trace(), 200))


def one_message() -> Trace:
    """Trace one `send_message` from one agent to another, below the protocols."""
    from postroom.app import wiring
    from postroom.app.config import load_settings

    # The first build calls it an application.
    application = wiring.Application if hasattr(wiring, "Application") else wiring.House
    names = {"project_key": "/shape"}
    message = {**names, "sender_name": "Ada", "to": ["Ben"], "subject": "The build", "body_md": "It failed."}

    async def send(trace: Trace, folder: str) -> None:
        given = {"data_dir": folder, "archive_enabled": False}
        opened = application.open(load_settings(environment={}, overrides=given))
        try:
            await opened.mail.call("ensure_project", {"human_key": "/shape"})
            for name in ("Ada", "Ben"):
                agent = {**names, "program": "bench", "model": "none", "name": name}
                await opened.mail.call("register_agent", agent)
            await _looked_at(trace, lambda: opened.mail.call("send_message", dict(message)))
        finally:
            opened.close()

    with traced() as trace, tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        asyncio.run(send(trace, folder))
    return trace


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# The table.


def main() -> None:
    """Print the table."""
    table = Table("Shape")
    _add_sizes(table)
    long, functions = long_functions()
    table.add(
        f"functions of more than {MAX_FUNCTION_LINES} lines",
        f"{long} of {functions:,} ({long / functions:.1%})",
    )
    for room in sorted(path for path in HOME.iterdir() if (path / "__init__.py").exists()):
        depth = import_depth(room)
        if depth > 1:
            table.add(f"longest chain of imports within {room.name}/", str(depth), aim="about 7")
    _add_paths(table)


def _add_sizes(table: Table) -> None:
    testing = _modules(HOME / "testing")
    product = [path for path in _modules(SOURCES) if path not in testing]
    told = f"{_written(product):,} lines of code in {len(product)} modules"
    table.add("product, without testing/", told, aim="a quarter less")
    table.add("testing/", f"{_written(testing):,} lines of code in {len(testing)} modules")
    sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in product]
    table.add(
        f"product modules of fewer than {FEW_LINES} lines", str(sum(size < FEW_LINES for size in sizes))
    )
    sql = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.sql"))]
    stores = _modules(HOME / "stores")
    raw = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in stores)
    table.add(
        "stores",
        f"{_written(stores):,} lines of code in {len(stores)} modules, {sum(map(sql_lines, sql)):,} of SQL;"
        f" with blanks and comments {raw:,} and {sum(len(text.splitlines()) for text in sql):,}",
        aim="at most half of the first build",
    )


def _add_paths(table: Table) -> None:
    run, cpu = one_run()
    folder = len(run.within("dispatch"))
    table.add(
        "one echo run, submit to acknowledgement, on SQLite",
        f"{len(run.functions)} functions in {len(run.files)} files ({folder} in dispatch/),"
        f" {run.calls} calls",
        aim="120 in 20",
    )
    table.add("its CPU, one after another", f"{cpu * 1000:.2f} ms")
    table.add("its statements", str(run.statements))
    table.add("its commits", str(run.commits), aim="2")
    sent = one_message()
    table.add(
        "one send_message, below the protocols",
        f"{len(sent.functions)} functions in {len(sent.files)} files, {sent.calls} calls",
        aim="70 in 18",
    )
    table.add("its statements", str(sent.statements))
    table.add("its commits", str(sent.commits), aim="1")


if __name__ == "__main__":
    main()
