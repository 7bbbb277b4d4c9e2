"""The OpenAPI document: whole, made of what the tools are made of, the same each time, and kept by answers."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.contracts.operations import Operation, Who
from postroom.http_api.errors import Problem
from postroom.http_api.rest.document import document
from postroom.http_api.rest.routes import rest_paths
from postroom.http_api.rest.schemas import (
    ALWAYS,
    MAIL,
    ONLY_OF_CHANGES,
    VALUES,
    build_example,
    codes_by_status,
)
from postroom.mail.commands import read_command
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from postroom.mcp_server.schema import input_schema
from rest_room import Edge, all_names

DOCUMENT = document(session_cookie="postroom_x", administration=ADMINISTRATION)


def closed() -> dict[str, Any]:
    """Return the document with every answer closed: in a test a key that is not told of is a fault."""
    found = copy.deepcopy(DOCUMENT)
    for schema in found["components"]["schemas"].values():
        if schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
    return found


def validator(schema: dict[str, Any], whole: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": whole["components"]})


def described(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][f"/v1/{operation.name}"]["post" if operation.changes else "get"]
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_the_document_is_served_as_it_is_made() -> None:
    edge = Edge()  # of mail alone
    first, again = [await edge.send("GET", "/v1/openapi.json") for _ in range(2)]
    assert first.content == again.content
    assert first.headers["content-type"] == "application/json"
    assert first.json() == document(session_cookie=edge.sessions.cookie_name)
    edge.close()


def test_it_names_every_address_and_no_other() -> None:
    assert set(DOCUMENT["paths"]) == {*rest_paths(), *(row.path for row in ADMINISTRATION)}
    ids = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert sorted(ids) == sorted(["openapi", *all_names(), "events", *(row.name for row in ADMINISTRATION)])
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_reference_leads_somewhere_and_everything_is_referred_to() -> None:
    named = set(references(DOCUMENT))
    parts = DOCUMENT["components"]
    there = {
        f"#/components/{kind}/{name}" for kind in parts if kind != "securitySchemes" for name in parts[kind]
    }
    assert named == there
    used = {
        name
        for path in DOCUMENT["paths"].values()
        for one in path.values()
        for who in one["security"]
        for name in who
    }
    assert used == set(parts["securitySchemes"])


def test_every_schema_is_one_of_json_schema_2020_12() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_an_operation_takes_what_its_tool_takes(subtests: pytest.Subtests) -> None:
    for operation in MAIL_OPERATIONS:
        with subtests.test(operation=operation):
            tool = input_schema(operation.command)
            if operation.changes:
                body = described(operation)["requestBody"]["content"]["application/json"]["schema"]
                schema = DOCUMENT["components"]["schemas"][body["$ref"].rpartition("/")[2]]
                names, required = set(schema["properties"]), schema["required"]
                assert schema["additionalProperties"] is False
            else:
                fields = described(operation)["parameters"]
                names, required = (
                    {one["name"] for one in fields},
                    [one["name"] for one in fields if one["required"]],
                )
                assert '"null"' not in json.dumps(fields)
            assert (names, required) == (set(tool["properties"]), tool.get("required", []))


def test_an_operation_tells_every_status_and_who_may(subtests: pytest.Subtests) -> None:
    for operation in MAIL_OPERATIONS:
        with subtests.test(operation=operation):
            told = described(operation)
            statuses = {int(status) for status in told["responses"]}
            every = set(codes_by_status(MAIL))
            assert statuses == {200} | (every if operation.changes else every - ONLY_OF_CHANGES)
            assert statuses > ALWAYS
            assert ({"session": []} in told["security"]) is not operation.changes


def test_administration_has_its_callers_its_body_and_a_typed_answer(subtests: pytest.Subtests) -> None:
    for row in ADMINISTRATION:
        with subtests.test(operation=row.name):
            told = DOCUMENT["paths"][row.path][row.method.lower()]
            assert ({"token": ["admin"]} in told["security"]) is (row.who is not Who.OPERATOR)
            assert {"operator": []} in told["security"]
            answer = told["responses"][str(row.status)]["content"]["application/json"]["schema"]
            assert (
                answer == {"type": "object"}
                if row.name == "reconnect_channel"
                else answer.keys()
                & {
                    "$ref",
                    "properties",
                    "additionalProperties",
                }
            )
            if row.changes:
                body = told["requestBody"]["content"]["application/json"]
                validator(body["schema"], DOCUMENT).validate(body["example"])
                msgspec.convert(body["example"], row.command)


def test_a_key_is_told_of_where_it_may_be_given() -> None:
    with_key = {one.name for one in MAIL_OPERATIONS if "IdempotencyKey" in json.dumps(described(one))}
    assert with_key == {one.name for one in MAIL_OPERATIONS if one.changes} - {"rotate_agent_token"}


def test_an_example_is_a_call_that_can_be_read(subtests: pytest.Subtests) -> None:
    for operation in MAIL_OPERATIONS:
        with subtests.test(operation=operation):
            example = build_example(operation.command)
            read_command(operation.command, example)
            _, parts = msgspec.json.schema_components(
                [operation.command], ref_template="#/components/schemas/{name}"
            )
            Draft202012Validator(
                {**parts[operation.command.__name__], "components": {"schemas": parts}}
            ).validate(example)
            if operation.changes:
                assert (
                    described(operation)["requestBody"]["content"]["application/json"]["example"] == example
                )
            else:
                assert {
                    one["name"]: one["example"]
                    for one in described(operation)["parameters"]
                    if "example" in one
                } == example


def test_no_example_is_left_over() -> None:
    commands = [row.command for row in ALL_OPERATIONS if row.service is None or row.changes]
    fields = (field for command in commands for field in msgspec.structs.fields(command))
    assert set(VALUES) == {field.name for field in fields if field.required}


async def test_an_answer_is_what_the_document_says_and_no_more(subtests: pytest.Subtests) -> None:
    for name in all_names():
        with subtests.test(name=name):
            edge = Edge()
            await edge.furnish()
            reply = await edge.ask(name)
            ((media_type, content),) = described(OPERATIONS[name])["responses"]["200"]["content"].items()
            assert reply.headers["content-type"] == media_type
            told = reply.text if media_type == "application/octet-stream" else reply.json()
            validator(content["schema"], closed()).validate(told)
            assert reply.headers["x-request-id"]
            edge.close()


def test_a_refusal_is_what_the_document_says_and_no_more() -> None:
    problem = json.loads(Problem(status=404, code="x", detail="d").response("r").body)
    validator({"$ref": "#/components/schemas/Problem"}, closed()).validate(problem)
    assert set(problem) == set(DOCUMENT["components"]["schemas"]["Problem"]["properties"])
