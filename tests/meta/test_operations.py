"""Each row of the table of operations fits its function, and no operation is declared a second time."""

import inspect
import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from from_code import command_table

from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.contracts.operations import Operation
from table_rows import each_row

SOURCE = Path(__file__).resolve().parents[2] / "src" / "postroom"
OF_ROUTES = {"command", "request"}
"""Parameters that are not fields: the whole command, and the HTTP request."""


@each_row("operation", ADMINISTRATION)
def test_a_function_takes_the_fields_of_its_command(operation: Operation) -> None:
    assert operation.service is not None
    _, *parameters = inspect.signature(operation.run).parameters.values()
    needed = {one.name for one in parameters if one.default is one.empty} - OF_ROUTES
    fields = set(operation.command.__struct_fields__)
    assert needed <= fields
    if "command" not in {one.name for one in parameters}:
        assert fields <= {one.name for one in parameters}
    taken, given = typing.get_type_hints(operation.run), typing.get_type_hints(operation.command)
    for name in fields & taken.keys():
        assert plain(given[name]) <= plain(taken[name]), name


def plain(kind: Any) -> set[Any]:
    """Return the types that a value may have, the choices of a text as a text."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {type(one) for one in parts}
    if origin in (typing.Union, UnionType):
        return {inner for one in parts for inner in plain(one)}
    return {dict if origin is Mapping else origin or kind}


def test_names_and_addresses_are_each_given_once() -> None:
    for of in (lambda one: one.name, lambda one: (one.method, one.path)):
        given = [of(one) for one in ALL_OPERATIONS]
        assert len(given) == len(set(given))
    lines = [one.words for one in ALL_OPERATIONS if one.line]
    assert len(lines) == len(set(lines))


def test_commands_know_the_operations_as_the_table_has_them() -> None:
    assert command_table.FILE.read_text(encoding="utf-8") == command_table.text(), "run `make docs`"


def test_an_address_of_administration_is_written_in_the_table_alone() -> None:
    """`progress` is asked by the client of every long operation, and a page of another server is passed on."""
    paths = {one.path for one in ADMINISTRATION}
    found: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for path in re.findall(r'"(?:[A-Z]+ )?(/[a-z/-]+)[?"]', file.read_text(encoding="utf-8")):
            if path in paths:
                found.setdefault(str(file.relative_to(SOURCE)), []).append(path)
    assert found.keys() <= {"app/operations.py", "cli/client.py"}, found
    assert set(found["app/operations.py"]) == paths


def names(value: Any) -> set[str]:
    return set(re.findall(r'(?:call|perform|shows)\(\s*(?:\w+(?:\.\w+)?, )?"(\w+)"', value))


def test_every_operation_of_administration_has_a_command_or_a_page() -> None:
    used = {name for file in (SOURCE / "cli").rglob("*.py") for name in names(file.read_text("utf-8"))}
    used |= {"create_token", "rotate_token", "show_progress"}  # named by a variable, and asked by the client
    assert {one.name for one in ADMINISTRATION} == used & {one.name for one in ADMINISTRATION}
    known = json.loads(command_table.FILE.read_text(encoding="utf-8"))
    assert {one.name for one in ADMINISTRATION} <= known.keys()
