"""The mail room over REST: the same answers as over MCP, who may, and how every other request is refused."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError

from mail_room import HARBOR, THE_PLAN, everything
from postroom.contracts import errors
from postroom.http_api.rest.routes import rest_paths
from postroom.http_api.rest.schemas import MAIL, codes_by_status
from postroom.mail.context import Rules, token_hash
from postroom.mail.operations import OPERATIONS
from rest_room import LIMIT, OPERATOR, Edge, all_names, arguments_of, opened
from table_rows import each_row

SOURCE = Path(__file__).resolve().parents[2] / "src" / "postroom"
MESSAGE = arguments_of("send_message")


@pytest.fixture
def edge() -> Iterator[Edge]:
    yield from opened()


@pytest.fixture
def verified() -> Iterator[Edge]:
    yield from opened(rules=Rules(verified=True))


def assert_problem(reply: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    problem: dict[str, Any] = reply.json()
    assert (reply.status_code, problem["code"], problem["status"]) == (status, code, status)
    assert reply.headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == reply.headers["x-request-id"]
    assert problem["remedy"]
    return problem


async def stored(edge: Edge) -> dict[str, Any]:
    """Return all stored data, of the outbox without ids and times, which differ between stores."""
    found: dict[str, Any] = await everything(edge.store)
    waiting = [(row.kind, row.target, row.payload) for row in found["outbox"]]
    return {**found, "outbox": waiting, "backlog": found["backlog"].waiting}


async def test_each_operation_answers_what_the_tool_answers(subtests: pytest.Subtests) -> None:
    for name in all_names():
        with subtests.test(name=name):
            over_rest, over_mcp = Edge(), Edge()
            await over_rest.furnish()
            await over_mcp.furnish()
            reply = await over_rest.ask(name)
            result = await over_mcp.mcp.call_tool(name, arguments_of(name))
            assert reply.status_code == 200, reply.text
            assert not result.is_error
            if name == "get_attachment":  # over REST it answers the bytes
                assert reply.content == b"the plan" == result.structured_content["text"].encode()  # type: ignore[index]
                continue
            assert reply.headers["content-type"] == "application/json"
            assert reply.json() == json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
            assert await stored(over_rest) == await stored(over_mcp)
            over_rest.close()
            over_mcp.close()


@each_row("name", all_names())
async def test_each_operation_refuses_what_the_tool_refuses(edge: Edge, name: str) -> None:
    arguments = {**arguments_of(name), "nonsense": "x"}
    told = assert_problem(await edge.ask(name, arguments), 400, "invalid_argument")
    refused = (await edge.mcp.call_tool(name, arguments)).structured_content["error"]  # type: ignore[index]
    assert {key: told[key] for key in ("code", "value", "retryable", "details")} == {
        key: refused[key] for key in ("code", "value", "retryable", "details")
    }
    fields = "fields" if OPERATIONS[name].changes else "parameters"
    assert told["remedy"] == refused["remedy"].replace("the arguments are", f"the {fields} are")
    assert told["detail"] == refused["message"]
    assert "nonsense" in told["detail"]


@each_row("name", all_names())
async def test_a_method_that_is_not_the_operations_is_refused_with_the_ones_that_are(
    edge: Edge, name: str
) -> None:
    allowed = {"POST", "OPTIONS"} if OPERATIONS[name].changes else {"GET", "HEAD", "OPTIONS"}
    told = await edge.send("OPTIONS", f"/v1/{name}")
    assert (told.status_code, told.content) == (204, b"")
    assert set(told.headers["allow"].split(", ")) == allowed
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - allowed:
        reply = await edge.send(method, f"/v1/{name}")
        assert_problem(reply, 405, "method_not_allowed")
        assert set(reply.headers["allow"].split(", ")) == allowed


async def test_a_look_may_be_asked_for_its_head_alone_and_for_several_of_a_list(edge: Edge) -> None:
    await edge.furnish()
    reply = await edge.send("HEAD", "/v1/health_check")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    for paths in (["p"], ["p", "q", "p & q"]):
        asked = {"project_key": HARBOR, "agent_name": "Ada", "paths": paths}
        reply = await edge.ask("check_file_reservations", asked)
        assert reply.status_code == 200
        assert [one["path"] for one in reply.json()["conflicts"]] == [one for one in paths if one in "pq"]


@each_row(
    "query, said",
    [
        (f"project_key={HARBOR}&agent_name=Ada&agent_name=Ben&message_id=1", "more than once"),
        (f"project_key={HARBOR}&agent_name=Ada&message_id=x", "`message_id` must be a whole number"),
        (f"project_key={HARBOR}&agent_name=Ada", "message_id"),
        (f"project_key={HARBOR}&agent_name=%FF&message_id=1", "malformed"),
        (f"project_key={HARBOR}&agent_name=%00&message_id=1", "zero byte"),
        (f"project_key={HARBOR}&agent_name=Ada&message_id=1&a[]=1", "a[]"),
        ("&".join("a" for _ in range(2_001)), "malformed"),
    ],
)
async def test_a_query_that_does_not_fit_is_refused(edge: Edge, query: str, said: str) -> None:
    reply = await edge.send("GET", f"/v1/get_message?{query}")
    assert said in assert_problem(reply, 400, "invalid_argument")["detail"]


@each_row(
    "body, said",
    [
        *((b"", "not valid JSON"), (b"{", "not valid JSON"), (b"[]", "not a JSON object")),
        *((b"null", "not a JSON object"), (b'"text"', "not a JSON object"), (b"\xff\xfe", "not valid JSON")),
        *((b'{"subject": "\xff"}', "not valid JSON"), (b'{"subject": "\\ud800"}', "not valid JSON")),
        *((b"[" * 50_000, "nested too deeply"), (b"{}", "project_key"), (b'{"human_kee": 5}', "human_kee")),
    ],
)
async def test_a_body_that_does_not_fit_is_refused(edge: Edge, body: bytes, said: str) -> None:
    before = await everything(edge.store)
    reply = await edge.send(
        "POST", "/v1/send_message", content=body, headers={**OPERATOR, "Content-Type": "application/json"}
    )
    problem = assert_problem(reply, 400, "invalid_argument")
    assert said in f"{problem['detail']} {problem['remedy']}"
    assert await everything(edge.store) == before


async def test_a_body_must_be_said_to_be_json(edge: Edge) -> None:
    await edge.furnish()
    content = json.dumps(MESSAGE).encode()
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        headers = {**OPERATOR, "Content-Type": kind}
        reply = await edge.send("POST", "/v1/send_message", content=content, headers=headers)
        assert reply.status_code == 200, kind
    forms = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
    for kind in (*forms, "application/jsonx", "", None):
        headers = {**OPERATOR, **({} if kind is None else {"Content-Type": kind})}
        reply = await edge.send("POST", "/v1/send_message", content=content, headers=headers)
        assert_problem(reply, 415, "unsupported_media_type")
        assert reply.headers["accept-post"] == "application/json"


async def test_a_body_that_is_too_large_is_cut_off(edge: Edge) -> None:
    await edge.furnish()
    assert_problem(await edge.ask("send_message", {**MESSAGE, "body_md": "x" * LIMIT}), 413, "too_large")
    assert len(await edge.room.inbox("Ben")) == 2


async def test_a_key_is_given_in_the_header_or_in_the_body_and_is_the_same_over_mcp(edge: Edge) -> None:
    await edge.furnish()
    head = {"Idempotency-Key": "k-1"}
    with_key = {**MESSAGE, "idempotency_key": "k-1"}
    first = await edge.ask("send_message", headers=head)
    again = await edge.ask("send_message", with_key)
    both = await edge.ask("send_message", with_key, headers=head)
    null = await edge.ask("send_message", {**MESSAGE, "idempotency_key": None}, headers=head)
    assert first.json() == again.json() == both.json() == null.json()
    assert (await edge.mcp.call_tool("send_message", with_key)).structured_content == first.json()
    assert len(await edge.room.inbox("Ben")) == 3
    other = await edge.ask("send_message", {**MESSAGE, "subject": "t"}, headers=head)
    assert_problem(other, 409, "idempotency_conflict")


async def test_two_keys_or_one_that_is_none_or_where_none_is_taken_are_refused(edge: Edge) -> None:
    await edge.furnish()
    before = await everything(edge.store)
    for arguments in ({**MESSAGE, "idempotency_key": "k-2"}, {**MESSAGE, "idempotency_key": 5}):
        reply = await edge.ask("send_message", arguments, headers={"Idempotency-Key": "k-1"})
        assert_problem(reply, 400, "invalid_argument")
    twice = httpx2.Headers([*OPERATOR.items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "a")])
    reply = await edge.send("POST", "/v1/send_message", json=MESSAGE, headers=twice)
    assert "2 times" in assert_problem(reply, 400, "malformed_request")["detail"]
    for key in ("", "x" * 201):
        reply = await edge.ask("send_message", headers={"Idempotency-Key": key})
        assert_problem(reply, 400, "invalid_argument")
    reply = await edge.ask("rotate_agent_token", headers={"Idempotency-Key": "k"})
    assert "idempotency_key" in assert_problem(reply, 400, "invalid_argument")["detail"]
    assert await everything(edge.store) == before


async def test_the_operator_acts_as_an_agent_with_its_token_where_names_are_verified(verified: Edge) -> None:
    await verified.ask("ensure_project", {"human_key": HARBOR})
    for name in ("Ada", "Ben"):
        made = await verified.ask("register_agent", {**arguments_of("register_agent"), "name": name})
        assert made.status_code == 200, made.text
    assert_problem(await verified.ask("send_message"), 401, "token_required")
    token = await verified.token_of("Ada")
    beside = {"Postroom-Agent-Token": token}
    assert (await verified.ask("send_message", headers=beside)).status_code == 200
    assert (
        await verified.ask("send_message", headers={"Authorization": f"Bearer {token}"})
    ).status_code == 200
    assert_problem(
        await verified.ask("send_message", headers={"Postroom-Agent-Token": "pra_no"}), 401, "wrong_token"
    )
    assert_problem(
        await verified.ask("register_agent", headers={"Authorization": f"Bearer {token}"}),
        401,
        "token_required",
    )


async def test_without_the_door_everybody_is_refused(edge: Edge) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=edge.bare), base_url="http://x", headers=OPERATOR
    ) as client:
        for path in sorted(rest_paths()):
            method = "POST" if path.removeprefix("/v1/") in OPERATIONS and _changes(path) else "GET"
            assert (await client.request(method, path, json={})).status_code == 403


def _changes(path: str) -> bool:
    return OPERATIONS[path.removeprefix("/v1/")].changes


async def test_calls_are_counted_and_told_to_who_listens(edge: Edge) -> None:
    await edge.furnish()
    heard: list[str] = []
    edge.news.subscribe(lambda event: heard.append(event.uri) if isinstance(event, ResourceUpdated) else None)
    await edge.ask("send_message")
    await edge.ask("fetch_inbox")
    await edge.ask("send_message", {**MESSAGE, "to": ["Nobody"]})
    assert heard == ["mail://inbox/projects-harbor/Ben", "mail://thread/projects-harbor/msg-3"]
    assert edge.counted == [("send_message", "ok"), ("fetch_inbox", "ok"), ("send_message", "unknown_agent")]


def test_every_refusal_of_the_mail_room_is_told() -> None:
    leaves = {kind.__name__: kind for kind in errors.all_errors()}
    named = {
        alias.name
        for path in [
            *(SOURCE / "mail").glob("*.py"),
            SOURCE / "mail" / "waking" / "asking.py",
            SOURCE / "contracts" / "operations.py",
        ]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "postroom.contracts.errors"
        for alias in node.names
    }
    assert len(named) > 20
    others = {"InputError", "PostroomError", "InvalidRunner", "UnknownToken"}  # caught, or the operator's
    assert {name for name in named & leaves.keys() if leaves[name] not in MAIL} == others
    stored = {errors.InternalError, *(kind for kind in MAIL if issubclass(kind, errors.StoreError))}
    assert {kind.__name__ for kind in MAIL if kind not in stored} <= named
    assert 409 in codes_by_status()


async def test_a_file_is_read_by_whoever_may_read_the_message_with_it_on_every_surface(
    verified: Edge, subtests: pytest.Subtests
) -> None:
    edge, away = verified, "/projects/away"
    edge.mail.rules = Rules()
    await edge.furnish()
    await edge.room.open("Guest", "Nadia", project=away)
    file = {"name": "plan.txt", "content_base64": "dGhlIHBsYW4="}
    number = await edge.room.send("Ada", "Ben", "Guest@projects-away", attachments=[file])
    edge.mail.rules = Rules(verified=True)
    read = {"sender": ("Ada", HARBOR), "recipient": ("Ben", HARBOR), "colleague": ("Cyd", HARBOR)}
    read |= {"recipient elsewhere": ("Guest", away), "agent elsewhere": ("Nadia", away)}
    for who, (name, project) in read.items():
        token = f"pra_{name}" + "a" * 40
        await edge.mail.issue_token(project, name, token_hash(token))
        asked = {"project_key": project, "agent_name": name, "message_id": number}
        head = {"Authorization": f"Bearer {token}"}
        body = await edge.ask("get_message", asked, headers=head)
        whole = await edge.ask("get_attachment", {**asked, "sha256": THE_PLAN}, headers=head)
        edge.mail.rules = Rules()
        async with Client(edge.mcp) as client:
            part = await client.call_tool(
                "get_attachment", {**asked, "sha256": THE_PLAN}, raise_on_error=False
            )
            address = f"mail://attachment/{project.strip('/').replace('/', '-')}/{name}/{number}/{THE_PLAN}"
            try:
                resource = bool(await client.read_resource(address))
            except MCPError:
                resource = False
        edge.mail.rules = Rules(verified=True)
        with subtests.test(who):
            verdicts = (body.status_code == 200, whole.status_code == 200, not part.is_error, resource)
            assert verdicts == (who != "agent elsewhere",) * 4, whole.text
