"""Tools take arguments in the forms in which models write them, and describe their answers by a schema."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError

from mail_room import HARBOR, everything
from postroom.mcp_server.server import build_tools
from rest_room import Edge, all_names, arguments_of
from table_rows import each_row


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    edge = Edge()
    await edge.furnish()
    yield edge
    edge.close()


@pytest.fixture
async def client(edge: Edge) -> AsyncIterator[Client[Any]]:
    async with Client(edge.mcp) as client:
        yield client


MESSAGE = {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}
TEXT_FILE = {"name": "a.txt", "content_base64": "YQ=="}

UNDERSTOOD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "send_message",
        {
            **{**MESSAGE, "to": ' ["Ben", "Cyd"]\n', "subject": ["s"], "importance": " High"},
            **{"cc": None, "bcc": "", "broadcast": None, "attachments": json.dumps(TEXT_FILE)},
        },
        {**MESSAGE, "to": ["Ben", "Cyd"], "importance": "high", "attachments": [TEXT_FILE]},
    ),
    *(
        (tool, {"agent_name": "Ben", **written}, {"agent_name": "Ben", **meant})
        for tool, written, meant in (
            ("fetch_inbox", {"since": None, "after": None, "limit": "1"}, {"limit": 1}),
            ("release_file_reservations", {"ids": "[1]", "paths": ""}, {"ids": [1]}),
        )
    ),
]
"""Some forms through tools; `test_corpus_of_arguments` reads all of them."""


@each_row("name, written, meant", UNDERSTOOD)
async def test_an_argument_in_a_form_that_models_write_is_taken_as_it_is_meant(
    name: str, written: dict[str, Any], meant: dict[str, Any]
) -> None:
    answers = []
    for arguments in (written, meant):
        edge = Edge()
        await edge.furnish()
        async with Client(edge.mcp) as client:
            answer = await client.call_tool(name, {"project_key": HARBOR, **arguments}, raise_on_error=False)
        answers.append(answer.structured_content)
        edge.close()
    assert answers[0] == answers[1]
    assert answers[0] is not None
    assert answers[0].get("error", {}).get("code") in (None, "unknown_agent", "not_holder")


@each_row(
    "changes",
    [{"to": '["\\ud800"]'}, {"to": '["Ben", 5'}, {"attachments": "[" * 50_000}, {"idempotency_key": ""}],
)
async def test_an_argument_whose_meaning_is_not_plain_is_refused(
    client: Client[Any], edge: Edge, changes: dict[str, Any]
) -> None:
    before = await everything(edge.store)
    with pytest.raises(ToolError, match=r"invalid_argument|unknown_agent"):
        await client.call_tool("send_message", {"project_key": HARBOR, **MESSAGE, **changes})
    assert await everything(edge.store) == before


@each_row("name", ["release_file_reservations", "renew_file_reservations"])
@each_row("selection", ["paths", "ids"])
async def test_a_selection_of_nulls_neither_releases_nor_renews_all_reservations(
    client: Client[Any], edge: Edge, name: str, selection: str
) -> None:
    held = {"project_key": HARBOR, "agent_name": "Ada"}
    await client.call_tool("file_reservation_paths", {**held, "paths": ["src/a.py"]})
    before = await everything(edge.store)
    with pytest.raises(ToolError, match="invalid_argument"):
        await client.call_tool(name, {**held, selection: "[null]"})
    assert await everything(edge.store) == before


@each_row("name", ["all", "everyone", "Everybody", "*", "@all", ["all"], ["Ben", "everyone"]])
@each_row("field", ["to", "cc"])
async def test_everybody_as_a_recipient_is_refused_with_the_argument_for_it(
    client: Client[Any], edge: Edge, field: str, name: object
) -> None:
    before = await everything(edge.store)
    asked = {"project_key": HARBOR, **MESSAGE, field: name}
    answer = await client.call_tool("send_message", asked, raise_on_error=False)
    assert answer.structured_content is not None
    assert "set `broadcast` to true" in answer.structured_content["error"]["remedy"]
    assert await everything(edge.store) == before


@each_row(
    "text, paths",
    [
        *(("[README.md]", ["README.md"]), ("[README.md, setup.py]", ["README.md", "setup.py"])),
        *(("[src/a.py]", ["src/a.py"]), ("[src]", ["src"]), ("('src/a.py')", ["src/a.py"])),
        *(("{src/a.py}", ["src/a.py"]), ("src/a.py;src/b.py", ["src/a.py", "src/b.py"])),
        *(("src/a.py and src/b.py", ["src/a.py", "src/b.py"]), ("src/ and docs/", ["src/", "docs/"])),
        ("README.md setup.py", ["README.md", "setup.py"]),
    ],
)
@each_row(
    "tool, field",
    [
        ("file_reservation_paths", "paths"),
        ("check_file_reservations", "paths"),
        ("start_session", "reserve_paths"),
    ],
)
async def test_a_text_that_looks_like_several_paths_is_refused_with_the_list_to_send(
    client: Client[Any], edge: Edge, tool: str, field: str, text: str, paths: list[str]
) -> None:
    before = await everything(edge.store)
    answer = await client.call_tool(tool, {**arguments_of(tool), field: text}, raise_on_error=False)
    assert answer.structured_content is not None
    error = answer.structured_content["error"]
    assert error["code"] == "invalid_pattern"
    assert f"send a list: {json.dumps(paths)};" in error["remedy"]
    assert await everything(edge.store) == before


@each_row(
    "path",
    [
        *("[ab].py", "[ab]", "[abc]", "[a-z_]", "[!abc]", "./[README.md]", "a;b.py", "lost and found/x.py"),
        "my file.md",
    ],
)
async def test_a_name_or_a_set_of_characters_is_no_list(client: Client[Any], path: str) -> None:
    asked = {"project_key": HARBOR, "agent_name": "Ada", "paths": path}
    answer = await client.call_tool("file_reservation_paths", asked)
    assert answer.structured_content is not None
    assert [one["path"] for one in answer.structured_content["granted"]] == [path.removeprefix("./")]


@each_row("value", ["1,234", ["1,235"], ["1,235", 3]])
async def test_an_id_with_a_comma_is_refused_with_both_ways_to_write_the_ids(
    client: Client[Any], value: object
) -> None:
    arguments = {"project_key": HARBOR, "agent_name": "Ben", "message_ids": value}
    answer = await client.call_tool("acknowledge_message", arguments, raise_on_error=False)
    assert answer.structured_content is not None
    error = answer.structured_content["error"]
    assert error["code"] == "invalid_argument"
    assert re.fullmatch(r"write \[1, 23\d\] for several ids, or 123\d for one", error["remedy"])


@each_row(
    "value, said, remedy",
    [
        ("0", "`depends_on[0]` must be a whole number of at least 1", "the arguments are: "),
        ("2, 0", "`depends_on[1]` must be a whole number of at least 1", "the arguments are: "),
        ("1,000", "depends_on '1,000' may mean one id or several ids", "write 1000 for one id"),
    ],
)
async def test_a_number_that_is_no_id_is_named_as_such(
    client: Client[Any], value: str, said: str, remedy: str
) -> None:
    arguments = {"project_key": HARBOR, "agent_name": "Ben", "title": "t", "depends_on": value}
    answer = await client.call_tool("add_task", arguments, raise_on_error=False)
    assert answer.structured_content is not None
    error = answer.structured_content["error"]
    assert (error["message"], error["remedy"].startswith(remedy)) == (said, True)


def test_each_choice_of_each_tool_has_a_type() -> None:
    untyped: list[str] = []

    def walk(schema: Any, where: str) -> None:
        if isinstance(schema, list):
            for index, inner in enumerate(schema):
                walk(inner, f"{where}[{index}]")
        elif isinstance(schema, dict):
            if {"enum", "default"} & schema.keys() and not {"type", "anyOf"} & schema.keys():
                untyped.append(where)
            for key, inner in schema.items():
                if key == "properties":  # its keys are names of arguments
                    for name, one in inner.items():
                        walk(one, f"{where}.{name}")
                else:
                    walk(inner, f"{where}.{key}")

    for tool in build_tools("full"):
        walk(tool.input_schema, tool.name)
    assert untyped == []


async def test_each_tool_answers_what_its_output_schema_says() -> None:
    for name in all_names():
        edge = Edge()
        await edge.furnish()
        async with Client(edge.mcp) as client:
            schema = next(tool.output_schema for tool in await client.list_tools() if tool.name == name)
            answer = await client.call_tool(name, arguments_of(name))
        edge.close()
        assert schema is not None
        assert schema["type"] == "object"
        jsonschema.validate(answer.structured_content, schema["anyOf"][0])


async def test_each_refusal_is_one_that_the_output_schema_allows(client: Client[Any]) -> None:
    for tool in await client.list_tools():
        answer = await client.call_tool(tool.name, {"colour": "red"}, raise_on_error=False)
        assert answer.is_error
        assert tool.output_schema is not None
        jsonschema.validate(answer.structured_content, tool.output_schema)
