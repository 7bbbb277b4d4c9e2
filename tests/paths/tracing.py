"""Count what a path passes: functions and files of postroom, SQL statements, and types of records.

Counts do not depend on the speed of the machine. A profile function sees each call in every thread.
"""

import ast
import dataclasses
import sqlite3
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import msgspec

import postroom

HOME = f"{Path(postroom.__file__).resolve().parent}/"
KIT = f"{HOME}testing/"
"""The kit for tests is on no path: its watch over the garbage collector is called at any time."""
ASKS_POSTGRES = frozenset({"PostgresTransaction._asked_for", "PostgresTransaction.run"})


class Figures(msgspec.Struct, frozen=True):
    """The counts of one path.

    Attributes:
        functions: Different functions that were entered.
        files: Modules in which these functions stand.
        statements: Statements that SQLite was given, with BEGIN and COMMIT; on PostgreSQL those of its transactions.
        records: Names of the record types that the entered functions construct by name.
        entered: The functions as `file:name`, in the order of the first call.
    """

    functions: int
    files: int
    statements: int
    records: list[str]
    entered: list[str]


class Trace:
    """Counts calls and statements while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._calls: Counter[tuple[str, str, int]] = Counter()
        self._sqlite = self._postgres = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what happens in the block, in every thread."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def install(self) -> None:
        """Watch every thread and every connection to SQLite from now on."""
        connect = sqlite3.connect

        def traced(*words: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*words, **options)
            connection.set_trace_callback(self._statement)
            return connection

        sqlite3.connect = traced  # type: ignore[assignment]
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def figures(self) -> Figures:
        """Return the counts."""
        functions = dict.fromkeys((file, name) for file, name, _ in self._calls)
        return Figures(
            functions=len(functions),
            files=len({file for file, _ in functions}),
            statements=self._sqlite or self._postgres,
            records=self._records(),
            entered=[f"{file}:{name}" for file, name in functions],
        )

    def _statement(self, text: str) -> None:
        self._sqlite += self._is_on and not text.startswith("--")

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if (
            self._is_on
            and event == "call"
            and code.co_filename.startswith(HOME)
            and not code.co_filename.startswith(KIT)
        ):
            self._calls[code.co_filename.removeprefix(HOME), code.co_qualname, code.co_firstlineno] += 1
            self._postgres += code.co_qualname in ASKS_POSTGRES

    def _records(self) -> list[str]:
        modules = {
            module.__file__: module
            for name, module in list(sys.modules.items())
            if name.startswith("postroom")
        }
        known = {id(found) for module in modules.values() for found in _record_types(module)}
        lines = defaultdict[str, set[int]](set)
        for file, _, line in self._calls:
            lines[f"{HOME}{file}"].add(line)
        made = {
            called
            for file, first_lines in lines.items()
            for called in _called_names(Path(file), first_lines)
            if id(vars(modules[file]).get(called)) in known
        }
        return sorted(made)


def _record_types(module: ModuleType) -> Iterator[type]:
    for found in list(vars(module).values()):
        if isinstance(found, type) and found.__module__.startswith("postroom"):
            is_named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
            if issubclass(found, msgspec.Struct) or dataclasses.is_dataclass(found) or is_named_tuple:
                yield found


def _called_names(file: Path, first_lines: set[int]) -> Iterator[str]:
    """Yield the names that the functions which begin at these lines call, as `Name(...)` or `Name.method(...)`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        if not first_lines & {node.lineno, *(found.lineno for found in decorators)}:
            continue
        for call in ast.walk(node):
            target = call.func if isinstance(call, ast.Call) else None
            if isinstance(target, ast.Attribute):
                target = target.value
            if isinstance(target, ast.Name):
                yield target.id
