"""A corpus of arguments as models write them: each is read as a person reads it, or refused, for every tool with it.

The kinds are those of public reports about clients and models; every row was newly written. A row of `fields` gives one
argument another form, for the tools that it names or for every tool with it. A row of `shapes` changes all arguments: `$`
stands for them.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from fastmcp import Client

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import EVENT_KINDS
from postroom.contracts.operations import Operation
from postroom.mail.commands import Command, read_command
from postroom.mail.operations import MAIL_OPERATIONS
from rest_room import Edge, arguments_of
from table_rows import each_row

CORPUS: Final = json.loads(Path(__file__).with_name("arguments_of_models.json").read_text())
SPELLINGS: Final[dict[str, Callable[[str], str]]] = {
    "$": lambda name: name,
    "$camelCase": lambda name: re.sub(r"_(\w)", lambda found: found[1].upper(), name),
    "$PascalCase": lambda name: "".join(word.capitalize() for word in name.split("_")),
    **{"$kebab-case": lambda name: name.replace("_", "-"), "$UPPER_CASE": str.upper},
    "$Title Case": lambda name: name.replace("_", " ").title(),
    **{"$ spaced ": lambda name: f" {name} ", "$esc\\_aped": lambda name: name.replace("_", "\\_")},
    **{'$"quoted"': lambda name: f'"{name}"', "$colon:": lambda name: f"{name}:"},
}


def shaped(template: Any, arguments: dict[str, Any], tool: str) -> Any:
    """Return a template with the arguments in the place of its `$`, and the tool's name in that of `$tool`."""
    if isinstance(template, dict):
        made: dict[str, Any] = {}
        for name, value in template.items():
            made |= arguments if name == "$" else {name: shaped(value, arguments, tool)}
        return made
    if isinstance(template, list):
        return [shaped(one, arguments, tool) for one in template]
    if template == "$json":
        return json.dumps(arguments)
    if template == "$broken":
        return json.dumps(arguments)[:-1]
    if template == "$fenced":
        return f"```json\n{json.dumps(arguments)}\n```"
    if isinstance(template, str) and "$tool" in template:
        return template.replace("$tool", tool)
    if template in SPELLINGS:
        return {SPELLINGS[template](name): value for name, value in arguments.items()}
    return template


def tools_with(field: str) -> list[Operation]:
    return [one for one in MAIL_OPERATIONS if field in one.command.__struct_fields__]


def read(operation: Operation, arguments: dict[str, Any]) -> Command:
    return read_command(operation.command, arguments, operation.name)


def expected_of(row: dict[str, Any], operation: Operation, good: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a row means for a tool, in the form of the reference."""
    meant = row["reads"]
    if isinstance(meant, dict) and operation.name in meant:
        meant = meant[operation.name]
    rest = {name: value for name, value in good.items() if name != row["field"]}
    is_default = meant == "default" or (meant is None and row["field"] not in _required(operation))
    return rest if is_default else {**rest, row["field"]: meant}


def _required(operation: Operation) -> set[str]:
    return {one.name for one in msgspec.structs.fields(operation.command) if one.required}


def needs_a_value(row: dict[str, Any], operation: Operation) -> bool:
    """Return whether a row means that nothing is given, and the tool cannot do without."""
    return row.get("reads") in (None, "default", []) and row["field"] in _required(operation)


def test_the_corpus_has_two_hundred_rows_and_more() -> None:
    rows = [json.dumps(row) for part in CORPUS.values() for row in part]
    assert len(rows) == len(set(rows)) >= 200
    assert all(tools_with(row["field"]) for row in CORPUS["fields"])


@each_row("operation", MAIL_OPERATIONS)
def test_each_argument_is_read_as_a_person_reads_it_or_refused(operation: Operation) -> None:
    good, wrong = arguments_of(operation.name), []
    for row in CORPUS["fields"]:
        if operation not in tools_with(row["field"]) or operation.name not in row.get(
            "tools", [operation.name]
        ):
            continue
        written = {**good, row["field"]: row["given"]}
        try:
            found: Command | str = read(operation, written)
        except InvalidArgument as error:
            found = "refused" if error.remedy else "refused without a remedy"
        if row["field"] == "since" and row.get(
            "refused"
        ):  # the inbox reads the moment, and a test below asks it
            continue
        if row.get("refused") or needs_a_value(row, operation):
            is_right = found == "refused" or is_optional_null(row, operation)
        else:
            is_right = found == read(operation, expected_of(row, operation, good))
        if not is_right:
            wrong.append((row["kind"], row["field"], row["given"], found))
    assert wrong == []


async def test_a_moment_that_is_not_plain_is_refused_by_the_inbox() -> None:
    edge = Edge()
    await edge.furnish()
    rows = [row for row in CORPUS["fields"] if row["field"] == "since" and row.get("refused")]
    for row in rows:
        arguments = {**arguments_of("fetch_inbox"), "since": row["given"]}
        async with Client(edge.mcp) as client:
            answer = await client.call_tool("fetch_inbox", arguments, raise_on_error=False)
        assert answer.is_error, row
        assert answer.structured_content["error"]["code"] == "invalid_argument", row
    assert len(rows) >= 8
    edge.close()


def is_optional_null(row: dict[str, Any], operation: Operation) -> bool:
    """Return whether a row gives nothing for an argument that the tool does not need."""
    return row["given"] in (None, "") and row["field"] not in _required(operation)


@each_row("operation", MAIL_OPERATIONS)
def test_each_shape_of_all_arguments_is_read_as_a_person_reads_it_or_refused(operation: Operation) -> None:
    good, wrong = arguments_of(operation.name), []
    if not good:
        return
    for row in CORPUS["shapes"]:
        try:
            found: Command | str = read(operation, shaped(row["given"], good, operation.name))
        except InvalidArgument:
            found = "refused"
        if found != ("refused" if row.get("refused") else read(operation, good)):
            wrong.append((row["kind"], found))
    assert wrong == []


def test_one_argument_under_two_names_is_refused_if_the_values_differ() -> None:
    operation = next(one for one in MAIL_OPERATIONS if one.name == "whois")
    good = arguments_of("whois")
    assert read(operation, {**good, "agentName": good["agent_name"]}) == read(operation, good)
    with pytest.raises(InvalidArgument, match="agent_name is given twice, with different values"):
        read(operation, {**good, "agentName": "Zoe"})


@each_row("ids", [[12, 13], "[12, 13]", "12, 13", "(12, 13)", ["12", "#13"], {"item": [12, 13]}])
def test_several_ids_under_the_name_for_one_are_acknowledged_together(ids: object) -> None:
    operation = next(one for one in MAIL_OPERATIONS if one.name == "acknowledge_message")
    good = {"project_key": "/srv/harbour", "agent_name": "Ada"}
    assert read(operation, {**good, "message_id": ids}) == read(operation, {**good, "message_ids": [12, 13]})
    assert read(operation, {**good, "message_id": ids, "message_ids": []}) == read(
        operation, {**good, "message_ids": [12, 13]}
    )


@each_row("ids", ["1,234", "12 or 13", [12, "x"], {"a": 12}])
def test_ids_in_doubt_are_refused_with_the_names_for_one_and_for_several(ids: object) -> None:
    operation = next(one for one in MAIL_OPERATIONS if one.name == "acknowledge_message")
    with pytest.raises(InvalidArgument) as caught:
        read(operation, {"project_key": "/srv/harbour", "agent_name": "Ada", "message_id": ids})
    assert caught.value.remedy


@each_row(
    "tool, other, ours",
    [
        *(("send_message", "body", "body_md"), ("reply_message", "body", "body_md")),
        ("send_message", "Recipients", "to"),
        ("start_session", "reservation_paths", "reserve_paths"),
        *(("check_file_reservations", "path", "paths"), ("check_file_reservations", "files", "paths")),
        *(("fetch_inbox", "agent", "agent_name"), ("fetch_inbox", "maxResults", "limit")),
        *(("file_reservation_paths", "ttl", "ttl_seconds"), ("get_attachment", "filename", "name")),
        *(("get_attachment", "hash", "sha256"), ("get_message", "id", "message_id")),
        *(("release_file_reservations", "id", "ids"), ("register_agent", "agent_name", "name")),
        *(("search_messages", "q", "query"), ("send_message", "from", "sender_name")),
        *(("send_message", "message", "body_md"), ("send_message", "priority", "importance")),
        ("ask_person", "options", "choices"),
        *(("send_message", "title", "subject"), ("send_message", "agent_name", "sender_name")),
        *(("start_session", "human_key", "project_key"), ("ensure_project", "project_key", "human_key")),
    ],
)
def test_another_word_for_an_argument_is_read_unless_ours_is_given_too(
    tool: str, other: str, ours: str
) -> None:
    operation = next(one for one in MAIL_OPERATIONS if one.name == tool)
    some = {"reserve_paths": ["a"], "ttl_seconds": 60, "name": "a.txt", "ids": [1], "importance": "high"}
    some["choices"] = ["EUR", "USD"]
    good = {**arguments_of(tool), ours: arguments_of(tool).get(ours, some.get(ours))}
    rest = {name: value for name, value in good.items() if name != ours}
    assert read(operation, {**rest, other: good[ours]}) == read(operation, good)
    with pytest.raises(InvalidArgument, match=f"{ours} is given twice, with different values"):
        read(operation, {**good, other: "something else"})


@each_row("operation", MAIL_OPERATIONS)
def test_an_unknown_argument_is_refused_with_the_nearest_name(operation: Operation) -> None:
    for name in operation.command.__struct_fields__:
        with pytest.raises(InvalidArgument) as caught:
            read(operation, {**arguments_of(operation.name), f"{name}_x": 1})
        assert caught.value.remedy.startswith(f"did you mean {name}? the arguments are: ")


def test_a_wrong_choice_is_refused_with_the_choices_of_every_argument_that_has_some() -> None:
    seen = set[str]()
    for operation in MAIL_OPERATIONS:
        for name, kind in get_type_hints(operation.command).items():
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            choices = EVENT_KINDS if name == "kinds" else choices
            if not choices:
                continue
            for wrong in ("medium", 5, ["medium"], {"a": 1}):
                with pytest.raises(InvalidArgument) as caught:
                    read(operation, {**arguments_of(operation.name), name: wrong})
                assert caught.value.remedy == f"`{name}` must be one of: {', '.join(choices)}", (
                    operation,
                    wrong,
                )
            seen.add(name)
    assert seen >= {"importance", "policy", "order", "kinds", "on_timeout"}
