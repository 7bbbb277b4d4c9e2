"""The short way of `tools/call` answers as the SDK: the same calls go both ways, and answers are compared."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from mail_room import HARBOR
from postroom.app.operations import ALL_OPERATIONS
from postroom.app.tokens import token_check
from postroom.http_api.guard import Credentials, Guard, GuardRules
from postroom.http_api.permissions import table
from postroom.http_api.routes import application
from postroom.mcp_server.endpoint import McpOverHttp
from postroom.mcp_server.loading import LoadedOnUse
from postroom.mcp_server.profiles import CORE, Addresses
from postroom.mcp_server.short_way import ShortWay
from rest_room import BASE, LIMIT, OPERATOR, TOKEN, Edge, all_names, arguments_of
from table_rows import each_row

NEWEST = "2026-07-28"
OLDER = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MARK = "io.modelcontextprotocol/"
CLIENT = {"name": "raw", "version": "0"}
ENVELOPE = {f"{MARK}protocolVersion": NEWEST, f"{MARK}clientCapabilities": {}, f"{MARK}clientInfo": CLIENT}
JSON = {"Content-Type": "application/json"}
BOTH = {**JSON, "Accept": "application/json, text/event-stream"}
LONG = "x" * 20_000

_taken: list[bool] = []


@dataclass
class Way:
    """A separate mail room, and MCP in front of it on one of the two ways."""

    short: bool
    edge: Edge = field(default_factory=Edge)

    async def open(self, stack: AsyncExitStack, group: asyncio.TaskGroup) -> None:
        await self.edge.furnish()
        mcp = LoadedOnUse(lambda: McpOverHttp(self.edge.mcp, max_request_bytes=LIMIT, short=self.short))
        group.create_task(mcp.run())
        stack.callback(self.edge.close)
        stack.callback(mcp.end)
        door = Guard(
            application([Route("/mcp", mcp)], permissions=table(ALL_OPERATIONS)),
            GuardRules(max_request_bytes=LIMIT),
            Credentials(
                is_operator=token_check(TOKEN),
                sessions=self.edge.sessions,
                is_agent=self.edge.mail.knows_token,
                grant_of=self.edge.tokens.recognise,
            ),
        )
        transport = httpx2.ASGITransport(app=Addresses(door, "/mcp"))
        self.client = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url=BASE, headers=OPERATOR)
        )

    async def post(self, body: bytes, headers: list[tuple[str, str]], path: str) -> httpx2.Response:
        return await self.client.post(path, content=body, headers=headers)


@dataclass
class Ways:
    """Both ways over rooms that hold the same, so that the same call must have the same answer."""

    short: Way
    long: Way

    async def compare(self, body: object, headers: Any, path: str = "/mcp") -> tuple[httpx2.Response, bool]:
        """Post the same both ways, see that the answers are equal; return one, and who gave it."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = list(headers.items()) if isinstance(headers, dict) else headers
        _taken.clear()
        ours = await self.short.post(raw, given, path)
        was_short = _taken == [True]
        theirs = await self.long.post(raw, given, path)
        assert plain(ours) == plain(theirs), (body, headers)
        return ours, was_short


def plain(answer: httpx2.Response) -> dict[str, Any]:
    """Return what of an answer a client can see, but for the id of the request."""
    headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
    headers.pop("content-length", None)  # one writes letters as they are, the other as escapes
    body = answer.json() if answer.content and "json" in headers.get("content-type", "") else answer.content
    if isinstance(body, dict):
        body.pop("request_id", None)
    return {"status": answer.status_code, "headers": headers, "body": body}


@pytest.fixture
async def ways(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ways]:
    answer = ShortWay.answer

    async def noting(self: ShortWay, scope: Scope, message: Any) -> Response | None:
        found = await answer(self, scope, message)
        _taken.append(found is not None)
        return found

    monkeypatch.setattr(ShortWay, "answer", noting)
    both = Ways(Way(short=True), Way(short=False))
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        await both.short.open(stack, group)
        await both.long.open(stack, group)
        yield both


def asked(name: object = "health_check", arguments: object = None, **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {} if arguments is None else arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params, **more}


def at(revision: str | None, document: dict[str, Any], **headers: str) -> tuple[dict[str, Any], Any]:
    """Return a call as a client of a revision sends it."""
    if revision != NEWEST:
        return document, {**BOTH, **({"MCP-Protocol-Version": revision} if revision else {}), **headers}
    params = {**document["params"]}
    params["_meta"] = {**ENVELOPE, **params.get("_meta", {})}
    name = params.get("name")
    routing = {"MCP-Protocol-Version": NEWEST, "Mcp-Method": "tools/call", "Mcp-Name": str(name)}
    return {**document, "params": params}, {**BOTH, **routing, **headers}


@pytest.mark.parametrize("revision", [None, *OLDER, NEWEST])
async def test_every_tool_answers_the_same_both_ways_and_the_short_way_takes_it(
    ways: Ways, revision: str | None
) -> None:
    for name in all_names():
        answer, was_short = await ways.compare(*at(revision, asked(name, arguments_of(name))))
        assert (answer.status_code, was_short) == (200, True), name


@each_row("path", ["/mcp", "/mcp/core", "/mcp/core/", "/mcp/full"])
@each_row("revision", ["2025-11-25", NEWEST])
async def test_each_address_performs_what_it_lists_and_names_the_address_of_the_rest(
    ways: Ways, revision: str, path: str
) -> None:
    _, headers = at(revision, asked())
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    if revision == NEWEST:
        listing["params"] = {"_meta": ENVELOPE}
        headers |= {"Mcp-Method": "tools/list"}
        del headers["Mcp-Name"]
    found, _ = await ways.compare(listing, headers, path)
    listed = [tool["name"] for tool in found.json()["result"]["tools"]]
    assert listed == (list(CORE) if "core" in path else all_names())
    for name in all_names():
        answer, was_short = await ways.compare(*at(revision, asked(name, arguments_of(name))), path)
        assert (answer.status_code, was_short) == (200, True), name
        error = answer.json()["result"]["structuredContent"].get("error", {})
        if name not in listed:
            assert (error["code"], error["value"]) == ("tool_not_listed", name)
            assert error["details"] == {"address": "/mcp/full"}
        else:
            assert error.get("code") != "tool_not_listed"


@each_row("path", ["/mcp/core", "/mcp/full"])
async def test_a_run_is_given_ask_person_beside_the_tools_of_daily_work(ways: Ways, path: str) -> None:
    token = "prr_" + "r" * 43
    for way in (ways.short, ways.long):
        way.edge.tokens.runs.issue(token, agent_id=1, agent="Ada", run_id="r1")
    given = {**BOTH, "Authorization": f"Bearer {token}"}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    found, _ = await ways.compare(listing, given, path)
    listed = [tool["name"] for tool in found.json()["result"]["tools"]]
    assert "ask_person" in listed
    assert "retire_agent" not in listed  # it would need `admin`
    assert path != "/mcp/core" or listed == [*CORE, "ask_person"]
    question = {"project_key": HARBOR, "agent_name": "Ada", "run_id": "r1", "question": "Now?"}
    answer, was_short = await ways.compare(asked("ask_person", question), given, path)
    assert was_short
    assert answer.json()["result"]["structuredContent"]["error"]["code"] == "illegal_transition"


async def test_a_token_of_few_scopes_sees_at_each_address_what_it_may_call(ways: Ways) -> None:
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    proof, _ = await tokens(ways, "mail:read")
    answer = await ways.short.post(json.dumps(listing).encode(), [*BOTH.items(), proof], "/mcp/core")
    listed = {tool["name"] for tool in answer.json()["result"]["tools"]}
    assert listed == {
        "catch_up",
        "delivery_status",
        "fetch_inbox",
        "get_attachment",
        "list_agents",
        "list_tasks",
        "find_notes",
        "search_messages",
    }


REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("wois", {}), ("no_such_tool" * 40, {}), ("", {}), ("whois", {})),
    ("whois", {"project_key": 7, "agent_name": "Ada"}),
    ("whois", {"project_key": HARBOR, "agent_name": "Eve"}),
    ("whois", {"project_key": HARBOR, "agent_name": None}),
    ("whois", {"project_key": HARBOR, "agent_name": "Ada", "extra": [1, {"a": None}]}),
    ("whois", {"project_key": HARBOR, "agent_name": "\x00\u2028\U0001f980"}),
    ("whois", {"project_key": "../up", "agent_name": "Ada"}),
    ("fetch_inbox", {"project_key": HARBOR, "agent_name": "Ben", "limit": 0}),
    ("fetch_inbox", {"project_key": HARBOR, "agent_name": "Ben", "limit": 10**30}),
    ("fetch_inbox", {"project_key": HARBOR, "agent_name": "Ben", "limit": 1.5}),
    ("get_message", {"project_key": HARBOR, "agent_name": "Ada", "message_id": 2**63}),
    ("get_message", {"project_key": HARBOR, "agent_name": "Ada", "message_id": 999}),
    ("send_message", {"project_key": HARBOR, "sender_name": "Ada", "to": "Ben", "subject": LONG}),
    ("send_message", {"project_key": HARBOR, "sender_name": "Ada", "to": [], "subject": "s", "body_md": ""}),
)


@each_row("revision", ["2025-11-25", NEWEST])
async def test_whatever_is_sent_has_the_same_answer_both_ways(ways: Ways, revision: str) -> None:
    for name, arguments in REFUSED:
        answer, was_short = await ways.compare(*at(revision, asked(name, arguments)))
        assert (answer.status_code, was_short) == (200, True), (name, arguments)
        assert answer.json()["result"]["isError"] is True, (name, arguments)
    for document in TAKEN:
        answer, was_short = await ways.compare(*at(revision, document))
        assert (answer.status_code, was_short) == (200, True), document
        assert answer.json()["id"] == document["id"]
    for body in ODD:
        await ways.compare(*odd_at(revision, body))
    _, headers = at(revision, asked())
    for meta in ENVELOPES:
        await ways.compare(asked(params={"name": "health_check", "arguments": {}, "_meta": meta}), headers)


LETTER = {"project_key": HARBOR, "sender_name": "Ada", "to": ["Ben"], "subject": "\u00e9\u2028</b>\U0001f980"}
TAKEN: tuple[dict[str, Any], ...] = (
    asked("send_message", {**LETTER, "body_md": LONG}),
    asked("send_message", {**LETTER, "body_md": "b", "idempotency_key": "k"}),
    asked("fetch_inbox", {"project_key": HARBOR, "agent_name": "Ben"}),
    *(asked(id=named) for named in ("", "a", "\u00e9", LONG, 0, -7, 2**53, -(2**63), 2**64 - 1)),
    asked(params={"name": "health_check"}),
    asked(params={"name": "health_check", "arguments": None}),
    *(
        asked(params={"name": "health_check", "_meta": meta})
        for meta in ({"progressToken": "p"}, {"progressToken": 7}, {"x.example/own": [1, None, {"a": {}}]})
    ),
)


ODD: tuple[object, ...] = (
    *(asked(params=params) for params in (None, {}, {"arguments": {}}, {"name": 7}, {"name": None})),
    *(asked(arguments=arguments) for arguments in ([], [1], "x", 7, True)),
    asked(params={"name": "health_check", "arguments": {}, "extra": 1}),
    asked(params={"name": "health_check", "task": {"ttl": 5}}),
    asked(params={"name": "health_check", "requestState": "x", "inputResponses": {}}),
    *(asked(params={"name": "health_check", "_meta": meta}) for meta in (None, [], 7, "x")),
    asked(params={"name": "health_check", "_meta": {"progressToken": 1.5}}),
    asked(params={"name": "health_check", "_meta": {"progressToken": {}}}),
    asked(params={"name": "health_check", "_meta": {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}}),
    *(asked(extra=1), asked(jsonrpc="1.0")),
    *(asked(id=named) for named in (None, True, 1.5, [], {}, 10**30)),
    *(asked(method=method) for method in ("tools/calls", "TOOLS/CALL", "", 7, None)),
    {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "health_check"}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    *({"jsonrpc": "2.0", "id": 1, "result": {}}, [asked()], [], 7, b"", b"{", b"\xff\xfe", b"[" * 50_000),
    b'{"jsonrpc": "2.0", "id": NaN, "method": "tools/call"}',
    b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping", "method": "tools/call", "params": {"name": "x"}}',
    *({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
)


def odd_at(revision: str, body: object) -> tuple[object, Any]:
    """Return a message as a client of a revision sends it, with its oddity."""
    _, headers = at(revision, asked())
    if revision == NEWEST and isinstance(body, dict) and isinstance(body.get("params"), dict):
        meta = body["params"].get("_meta", {})
        envelope = {**ENVELOPE, **meta} if isinstance(meta, dict) else meta
        body = {**body, "params": {**body["params"], "_meta": envelope}}
        headers["Mcp-Method"] = str(body.get("method"))
    return body, headers


ENVELOPES: tuple[object, ...] = (
    *(None, {}, {f"{MARK}protocolVersion": NEWEST}, {f"{MARK}clientCapabilities": {}}),
    *({**ENVELOPE, f"{MARK}protocolVersion": revision} for revision in ("2025-11-25", "2099-01-01", 7, None)),
    *({**ENVELOPE, f"{MARK}clientCapabilities": given} for given in (None, [], 7, {"roots": 7}, {"x": 1})),
    {**ENVELOPE, f"{MARK}clientCapabilities": {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}},
    *({**ENVELOPE, f"{MARK}clientInfo": given} for given in (None, [], {}, {"name": 7, "version": "0"})),
    *({**ENVELOPE, f"{MARK}logLevel": "debug"}, {**ENVELOPE, f"{MARK}logLevel": "loud"}),
)


HEADERS: tuple[dict[str, str], ...] = (
    *(
        {"Accept": accept}
        for accept in ("*/*", "application/*;q=0.5", " APPLICATION/JSON ", "text/html, */*")
    ),
    *({"Accept": accept} for accept in ("", "text/html", "text/event-stream", "application/jsonx", ",")),
    *(
        {"Content-Type": kind}
        for kind in ("application/json; charset=utf-8", "application/json;charset=latin-1")
    ),
    *({"Content-Type": kind} for kind in ("", "text/plain", "APPLICATION/JSON", "application/jsonx")),
    *({"Content-Type": kind} for kind in ("application/json, text/plain", "text/plain, application/json")),
    *({"MCP-Protocol-Version": revision} for revision in ("", "1999-01-01", "2025-11-25 ", "2099-01-01")),
    *({"MCP-Protocol-Version": revision} for revision in ("2026-07-28", "2025-06-18", "DRAFT")),
    *({"Mcp-Method": method} for method in ("", "tools/list", "TOOLS/CALL", "tools/call ")),
    *({"Mcp-Name": name} for name in ("", "whois", "Health_Check", "=?base64?aGVhbHRoX2NoZWNr?=")),
    *({"Mcp-Name": name} for name in ("=?base64?!!?=", "h\u00e9", "health_check ")),
    {"Mcp-Param-Project-Key": "x"},
    {"Mcp-Session-Id": "abc"},
    {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
    {"Postroom-Agent-Token": "wrong"},
    {"Last-Event-ID": "3"},
)


@each_row("revision", [None, "2025-11-25", NEWEST])
async def test_headers_decide_alike_also_where_they_come_twice_or_not_at_all(
    ways: Ways, revision: str | None
) -> None:
    document, headers = at(revision, asked())
    for more in HEADERS:
        encoded = [(name, value.encode("latin-1")) for name, value in {**headers, **more}.items()]
        await ways.compare(document, encoded)
    if revision is None:
        return
    for name in ("Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"):
        without = {key: value for key, value in headers.items() if key != name}
        await ways.compare(document, without)
        given = headers.get(name, "health_check")
        for other in (given, "other"):
            await ways.compare(document, [*without.items(), (name, given), (name, other)])
            await ways.compare(document, [*without.items(), (name, other), (name, given)])


@pytest.mark.parametrize("revision", ["2025-11-25", NEWEST])
async def test_who_calls_is_seen_alike(ways: Ways, revision: str) -> None:
    document, headers = at(revision, asked("fetch_inbox", {"project_key": HARBOR, "agent_name": "Ben"}))
    for proof in (await tokens(ways, "mail:read"), await tokens(ways, "mail:send")):
        ours = await ways.short.post(json.dumps(document).encode(), [*headers.items(), proof[0]], "/mcp")
        theirs = await ways.long.post(json.dumps(document).encode(), [*headers.items(), proof[1]], "/mcp")
        assert plain(ours) == plain(theirs)
        assert ours.status_code in (200, 403)
    for name in ("Ada", "Ben"):
        await ways.compare(document, [*headers.items(), ("Postroom-Agent-Token", f"pra_{name}" + "a" * 40)])


async def tokens(ways: Ways, *scopes: str) -> list[tuple[str, str]]:
    """Make a named token in each room and return the headers that show them."""
    return [
        ("Authorization", (await way.edge.named_token(scopes[0].replace(":", "-"), *scopes))["Authorization"])
        for way in (ways.short, ways.long)
    ]


@each_row("revision", ["2025-11-25", NEWEST])
async def test_a_failure_inside_tells_the_same_but_for_its_reference(
    ways: Ways, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    document, headers = at(revision, asked())
    found = []
    for way in (ways.short, ways.long):
        monkeypatch.setattr(way.edge.mail, "perform", crash)
        body = (await way.post(json.dumps(document).encode(), list(headers.items()), "/mcp")).json()
        reference = body["result"]["structuredContent"]["error"]["details"]["reference"]
        assert "secret" not in json.dumps(body)
        found.append(json.loads(json.dumps(body).replace(reference, "")))
    assert found[0] == found[1]


def test_what_a_server_loads_to_listen_holds_neither_the_sdk_nor_pictures() -> None:
    code = "import sys, postroom.app.serve; print(sorted({'mcp', 'mcp_types', 'PIL'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_those_who_come_first_together_are_served_by_one_server_and_without_them_there_is_none() -> (
    None
):
    made = []
    edge = Edge()

    def make() -> McpOverHttp:
        made.append(McpOverHttp(edge.mcp, max_request_bytes=LIMIT))
        return made[-1]

    lazy, unasked = LoadedOnUse(make), LoadedOnUse(lambda: pytest.fail("nobody asked"))
    transport = httpx2.ASGITransport(app=lazy)
    async with (
        asyncio.TaskGroup() as group,
        httpx2.AsyncClient(transport=transport, base_url=BASE, headers=BOTH) as client,
    ):
        for one in (lazy, unasked):
            group.create_task(one.run())
        asking = [group.create_task(client.post("/mcp", json=asked())) for _ in range(5)]
        assert [(await one).status_code for one in asking] == [200] * 5
        for one in (lazy, unasked):
            one.end_listening()
            one.end()
    assert len(made) == 1
    edge.close()


async def test_a_refusal_of_the_headers_says_what_to_send(ways: Ways) -> None:
    found, _ = await ways.compare(asked(), {"Content-Type": "text/plain"})
    assert (found.status_code, "application/json" in found.json()["error"]["message"]) == (400, True)
    unknown = {"Content-Type": "application/json", "MCP-Protocol-Version": "1999-01-01"}
    found, _ = await ways.compare(asked(), unknown)
    error = found.json()["error"]
    assert (found.status_code, error["code"], NEWEST in error["data"]["supported"]) == (400, -32022, True)
    assert "1999-01-01" in error["message"]


@each_row(
    "client, is_text_only",
    [
        *(("Cline", True), ("@cline/core", True), ("github-copilot-developer", True), ("claude-code", False)),
        *(("gemini-cli-mcp-client", False), ("somebody", False)),
    ],
)
async def test_a_client_whose_model_reads_text_and_structured_content_gets_text_only_and_no_schema_of_answers(
    ways: Ways, client: str, is_text_only: bool
) -> None:
    reading = asked("fetch_inbox", {"project_key": HARBOR, "agent_name": "Ben", "include_bodies": True})
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    meta = {"_meta": {f"{MARK}clientInfo": {"name": client, "version": "1"}}}
    for more, headers in (({}, {**BOTH, "Postroom-Client": client}), (meta, BOTH)):
        answer, _ = await ways.compare({**reading, "params": {**reading["params"], **more}}, headers)
        result = answer.json()["result"]
        [content] = result["content"]
        assert "A body" in content["text"]
        assert ("structuredContent" not in result) is is_text_only
        found, _ = await ways.compare({**listing, "params": more}, headers)
        tools = found.json()["result"]["tools"]
        assert all(("outputSchema" not in tool) is is_text_only for tool in tools)


@each_row("client", ["claude", "codex-mcp-client", "gemini", "copilot", ""])
async def test_the_answer_to_a_run_tells_a_message_that_came_for_it_where_its_model_reads_it(
    ways: Ways, client: str
) -> None:
    async def untold(run_id: str) -> str:
        return f"A message for {run_id}."

    token = "prr_" + "r" * 43
    for way in (ways.short, ways.long):
        way.edge.mcp.untold = untold
        way.edge.tokens.runs.issue(token, agent_id=1, agent="Ada", run_id="r1")
    given = {**BOTH, "Authorization": f"Bearer {token}", "Postroom-Client": client}
    answer, _ = await ways.compare(asked("list_agents", {"project_key": HARBOR}), given)
    result = answer.json()["result"]
    texts = [one["text"] for one in result["content"]]
    if client.startswith(("claude", "codex")):
        assert result["structuredContent"]["messages_for_this_run"] == "A message for r1."
        assert "A message for r1." not in texts
    else:
        assert texts[1:] == ["A message for r1."]
        assert "messages_for_this_run" not in result.get("structuredContent", {})
    answer, _ = await ways.compare(asked("list_agents", {"project_key": HARBOR}), BOTH)
    assert "A message for" not in answer.text
