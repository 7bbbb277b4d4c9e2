"""One endpoint for every revision of the protocol, spoken to in raw JSON-RPC as any client might."""

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.running import Answer, Line, RunningServer
from postroom.mail.operations import ALL_OPERATIONS

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEWEST = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "0"},
}
FOLDER = "/yard/rev"
SLUG = "yard-rev"
INBOX = f"mail://inbox/{SLUG}/Ben"
PLAN = b"the plan"
STOPPING = 3.0
"""Seconds in which a server that is told to stop must be gone, whoever listens; its grace is longer."""


@pytest.fixture(scope="module")
def message(server: RunningServer) -> int:
    """A project with two agents, a reservation and one message, whose id this is."""
    with server.line() as line:
        line.tool("ensure_project", human_key=FOLDER)
        for name in ("Ada", "Ben"):
            line.tool("register_agent", project_key=FOLDER, program="p", model="m", name=name)
        line.tool("file_reservation_paths", project_key=FOLDER, agent_name="Ada", paths=["src/**"])
        return write(line)


@pytest.fixture
def line(server: RunningServer, message: int) -> Iterator[Line]:
    with server.line() as opened:
        yield opened


def write(line: Line) -> int:
    asked = {
        "sender_name": "Ada",
        "to": ["Ben"],
        "subject": "Hello",
        "body_md": "Is it?",
        "thread_id": "first",
        "attachments": [{"name": "plan.txt", "content_base64": base64.b64encode(PLAN).decode()}],
    }
    sent = line.tool("send_message", project_key=FOLDER, **asked)
    return int(sent["deliveries"][0]["payload"]["id"])


def asked(method: str, number: int | str = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def old(line: Line, method: str, *, revision: str | None = None, **params: Any) -> Any:
    """Ask as clients of the revisions with a handshake do; return the document that came back."""
    headers = {} if revision is None else {"MCP-Protocol-Version": revision}
    answer = line.rpc(asked(method, **params), headers=headers)
    assert answer.status == 200, answer
    assert "mcp-session-id" not in answer.headers
    return answer.json()


def new(line: Line, method: str, *, headers: dict[str, str] | None = None, **params: Any) -> Answer:
    """Ask as clients of the newest revision do."""
    named = params.get("uri") if method == "resources/read" else params.get("name")
    routing = {"MCP-Protocol-Version": NEWEST, "Mcp-Method": method, **({"Mcp-Name": named} if named else {})}
    given = {name: text for name, text in {**routing, **(headers or {})}.items() if text}
    return line.rpc(asked(method, **{"_meta": META, **params}), headers=given)


def call(line: Line, era: str, method: str, **params: Any) -> Any:
    """Ask in either era; return the document."""
    return new(line, method, **params).json() if era == NEWEST else old(line, method, **params)


eras = pytest.mark.parametrize("era", ["2025-06-18", NEWEST])


@pytest.mark.parametrize("revision", HANDSHAKES)
def test_a_handshake_agrees_on_the_revision_that_was_asked_for(line: Line, revision: str) -> None:
    client = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
    found = old(line, "initialize", **client)["result"]
    assert found["protocolVersion"] == revision
    assert found["serverInfo"]["name"] == "postroom"
    assert "start_session" in found["instructions"]
    assert found["capabilities"]["resources"]["subscribe"] is False
    told = line.rpc({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (told.status, told.body) == (202, b"")


def test_a_handshake_for_an_unknown_revision_is_answered_with_a_known_one(line: Line) -> None:
    client = {
        "protocolVersion": "1999-01-01",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "0"},
    }
    assert old(line, "initialize", **client)["result"]["protocolVersion"] == HANDSHAKES[-1]


@pytest.mark.parametrize("revision", [None, *HANDSHAKES])
def test_no_handshake_and_no_session_are_needed(line: Line, revision: str | None) -> None:
    assert old(line, "ping", revision=revision)["result"] == {}
    tools = old(line, "tools/list", revision=revision)["result"]["tools"]
    assert [tool["name"] for tool in tools] == [operation.name for operation in ALL_OPERATIONS]
    result = old(line, "tools/call", revision=revision, name="health_check", arguments={})["result"]
    assert (result["isError"], result["structuredContent"]["status"]) == (False, "ok")
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@pytest.mark.parametrize("number", ["a", "", 0, -7, 2**53, "\u00e9"])
def test_the_id_of_a_request_comes_back_as_it_was(line: Line, number: int | str) -> None:
    assert line.rpc(asked("ping", number)).json()["id"] == number


def test_an_unknown_method_is_refused_in_the_way_of_each_era(line: Line) -> None:
    assert old(line, "mail/nothing")["error"]["code"] == -32601
    answer = new(line, "mail/nothing")
    assert (answer.status, answer.json()["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/progress", "notifications/x"])
def test_notifications_are_taken_and_not_answered(line: Line, method: str) -> None:
    told = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 99}}
    for headers in ({}, {"MCP-Protocol-Version": NEWEST, "Mcp-Method": method}):
        answer = line.rpc(told, headers=headers)
        assert (answer.status, answer.body) == (202, b"")


def test_the_newest_revision_is_discovered_without_a_handshake(line: Line) -> None:
    found = new(line, "server/discover").json()["result"]
    assert found["supportedVersions"] == [NEWEST]
    assert found["capabilities"]["resources"]["subscribe"] is True
    assert "start_session" in found["instructions"]
    result = new(line, "tools/call", name="health_check", arguments={}).json()["result"]
    assert (result["resultType"], result["structuredContent"]["status"]) == ("complete", "ok")


@pytest.mark.parametrize(
    "headers",
    [
        {"Mcp-Method": ""},
        {"Mcp-Name": ""},
        {"Mcp-Method": "tools/list"},
        {"Mcp-Name": "send_message"},
        {"Mcp-Name": "=?base64?!!?="},
    ],
)
def test_headers_that_are_missing_or_say_another_thing_than_the_body_are_refused(
    line: Line, headers: dict[str, str]
) -> None:
    answer = new(line, "tools/call", headers=headers, name="health_check", arguments={})
    assert (answer.status, answer.json()["error"]["code"]) == (400, -32020)


def test_a_name_in_base64_is_the_same_name(line: Line) -> None:
    answer = new(
        line,
        "tools/call",
        headers={"Mcp-Name": "=?base64?aGVhbHRoX2NoZWNr?="},
        name="health_check",
        arguments={},
    )
    assert answer.json()["result"]["structuredContent"]["status"] == "ok"


def test_a_revision_that_does_not_exist_is_refused_with_those_that_do(line: Line) -> None:
    unknown = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    headers = {"MCP-Protocol-Version": "2099-01-01"}
    answer = new(line, "tools/call", headers=headers, _meta=unknown, name="health_check", arguments={})
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["data"]["supported"]) == (400, -32022, [NEWEST])
    headers_alone = new(line, "tools/call", headers=headers, name="health_check", arguments={})
    assert (headers_alone.status, headers_alone.json()["error"]["code"]) == (400, -32020)


def test_a_message_of_the_newest_revision_says_who_sends_it(line: Line) -> None:
    answer = new(line, "tools/call", _meta={}, name="health_check", arguments={})
    assert (answer.status, answer.json()["error"]["code"]) == (400, -32602)


def test_tools_come_in_the_same_order_and_the_same_words_each_time(line: Line) -> None:
    first, *others = [line.rpc(asked("tools/list")).body for _ in range(3)]
    assert all(other == first for other in others)
    modern = new(line, "tools/list").json()["result"]
    assert modern["tools"] == json.loads(first)["result"]["tools"]
    assert {"ttlMs", "cacheScope"} <= modern.keys()


@eras
@pytest.mark.parametrize(
    ("tool", "arguments", "code", "value"),
    [
        ("whois", {"project_key": FOLDER, "agent_name": "Eve"}, "unknown_agent", "Eve"),
        ("whois", {"project_key": "/nowhere", "agent_name": "Eve"}, "unknown_project", "/nowhere"),
        ("whois", {"project_key": FOLDER}, "invalid_argument", None),
        ("whois", {"project_key": 7, "agent_name": "Eve"}, "unknown_project", "7"),
        ("whois", {"project_key": 7.5, "agent_name": "Eve"}, "invalid_argument", 7.5),
        ("wois", {}, "invalid_argument", "wois"),
        (
            "get_message",
            {"project_key": FOLDER, "agent_name": "Ada", "message_id": 999},
            "unknown_message",
            999,
        ),
    ],
)
def test_refusals_are_structured_and_say_what_to_do(
    line: Line, era: str, tool: str, arguments: dict[str, Any], code: str, value: object
) -> None:
    result = call(line, era, "tools/call", name=tool, arguments=arguments)["result"]
    error = result["structuredContent"]["error"]
    assert result["isError"] is True
    assert (error["code"], error["value"]) == (code, value)
    assert error["remedy"]
    assert result["content"][0]["text"] == f"{code}: {error['message']}\nremedy: {error['remedy']}"


TEMPLATES = {
    "mail://inbox/{project}/{agent}": INBOX,
    "mail://thread/{project}/{thread}": f"mail://thread/{SLUG}/first",
    "mail://agents/{project}": f"mail://agents/{SLUG}",
    "mail://reservations/{project}": f"mail://reservations/{SLUG}",
    "mail://project/{project}": "mail://project/%2Fyard%2Frev",
}
ATTACHMENT = "mail://attachment/{project}/{agent}/{message}/{sha256}"


@eras
def test_every_kind_of_resource_is_listed_and_can_be_read(line: Line, message: int, era: str) -> None:
    listed = call(line, era, "resources/templates/list")["result"]["resourceTemplates"]
    assert {kind["uriTemplate"] for kind in listed} == {*TEMPLATES, ATTACHMENT}
    assert call(line, era, "resources/list")["result"]["resources"] == []
    found = {}
    for template, uri in TEMPLATES.items():
        (content,) = call(line, era, "resources/read", uri=uri)["result"]["contents"]
        assert (content["uri"], content["mimeType"]) == (uri, "application/json")
        found[template.split("/")[2]] = json.loads(content["text"])
    assert message in [one["id"] for one in found["inbox"]]
    assert found["thread"]["thread_id"] == "first"
    assert [agent["name"] for agent in found["agents"]["agents"]] == ["Ada", "Ben"]
    assert [one["path"] for one in found["reservations"]["reservations"]] == ["src/**"]
    assert found["project"]["human_key"] == FOLDER
    name = hashlib.sha256(PLAN).hexdigest()
    uri = f"mail://attachment/{SLUG}/Ben/{message}/{name}"
    (content,) = call(line, era, "resources/read", uri=uri)["result"]["contents"]
    assert (content["uri"], content["mimeType"]) == (uri, "text/plain")
    assert base64.b64decode(content["blob"]) == PLAN


@eras
@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("mail://inbox/yard-rev/Eve", "unknown_agent"),
        ("mail://inbox/nowhere/Ada", "unknown_project"),
        ("mail://thread/yard-rev/none", "unknown_thread"),
        ("mail://agents/nowhere", "unknown_project"),
        ("mail://reservations/nowhere", "unknown_project"),
        ("mail://project/nowhere", "unknown_project"),
        ("mail://project/%2F..%2Fx", "invalid_path"),
        ("mail://project/a%00b", "invalid_argument"),
        ("mail://inbox/yard-rev", "invalid_argument"),
        ("mail://nothing/yard-rev", "invalid_argument"),
        ("file:///etc/passwd", "invalid_argument"),
    ],
)
def test_a_resource_that_is_not_there_is_refused_with_its_address(
    line: Line, era: str, uri: str, code: str
) -> None:
    error = call(line, era, "resources/read", uri=uri)["error"]
    assert (error["code"], error["data"]["code"], error["data"]["uri"]) == (-32602, code, uri)
    assert error["data"]["remedy"]


@eras
def test_there_are_no_prompts_and_to_ask_for_one_is_no_failure(
    server: RunningServer, line: Line, era: str
) -> None:
    assert call(line, era, "prompts/list")["result"]["prompts"] == []
    assert call(line, era, "prompts/get", name="greeting")["error"]["code"] == -32602
    assert "Traceback" not in server.log()


def listen(line: Line, *uris: str) -> Any:
    """Begin to listen and return the acknowledgement."""
    answer = new(line, "subscriptions/listen", notifications={"resourceSubscriptions": list(uris)})
    assert (answer.status, answer.is_stream) == (200, True)
    return line.events(1)[0]


def test_a_listener_is_told_of_messages_and_of_nothing_else(server: RunningServer, line: Line) -> None:
    with server.line() as ear:
        begun = listen(ear, INBOX, f"mail://reservations/{SLUG}")
        assert begun["method"] == "notifications/subscriptions/acknowledged"
        line.tool("register_agent", project_key=FOLDER, program="p", model="m", name="Cyd")
        write(line)
        line.tool("release_file_reservations", project_key=FOLDER, agent_name="Ben")
        told = ear.events(2)
    assert [one["method"] for one in told] == ["notifications/resources/updated"] * 2
    assert [one["params"]["uri"] for one in told] == [INBOX, f"mail://reservations/{SLUG}"]
    key = "io.modelcontextprotocol/subscriptionId"
    assert [one["params"]["_meta"][key] for one in (begun, *told)] == [1, 1, 1]
    (content,) = old(line, "resources/read", uri=INBOX)["result"]["contents"]
    assert json.loads(content["text"])[0]["subject"] == "Hello"


def test_many_listeners_each_hear_it_and_those_who_left_do_no_harm(server: RunningServer, line: Line) -> None:
    ears = [server.line() for _ in range(20)]
    for ear in ears:
        listen(ear, INBOX)
    for ear in ears[::2]:
        ear.close()
    write(line)
    for ear in ears[1::2]:
        assert ear.events(1)[0]["params"]["uri"] == INBOX
        ear.close()
    write(line)
    assert line.request("GET", "/readyz").status == 200


def test_the_older_revisions_have_no_listening(line: Line) -> None:
    for method in ("subscriptions/listen", "resources/subscribe", "resources/unsubscribe"):
        assert old(line, method, uri=INBOX, notifications={})["error"]["code"] == -32601


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/core", "/mcp/full/", "/api", "/api/"])
def test_the_endpoint_has_other_names(line: Line, path: str) -> None:
    assert line.rpc(asked("ping"), path=path).json()["result"] == {}
    assert line.rpc({"jsonrpc": "2.0", "method": "notifications/x"}, path=path).status == 202


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (None, 200),
        ("application/json", 200),
        ("application/json, text/event-stream", 200),
        ("*/*", 200),
        ("application/*;q=0.5", 200),
        ("text/html", 406),
    ],
)
def test_an_answer_comes_in_the_form_that_is_accepted(line: Line, accept: str | None, status: int) -> None:
    headers = {} if accept is None else {"Accept": accept}
    answer = line.rpc(asked("ping"), headers=headers)
    assert answer.status == status
    assert answer.is_json


def test_an_address_below_the_endpoint_that_is_none_of_ours_is_not_found(line: Line) -> None:
    for path in ("/mcp/cores", "/mcp/core/x", "/mcp/CORE", "/mcp//core"):
        assert line.rpc(asked("ping"), path=path).status == 404


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"])
def test_messages_are_posted_and_nothing_else(line: Line, method: str) -> None:
    answer = line.request(method, "/mcp", headers={"Accept": "text/event-stream"})
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert not answer.is_stream


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "initialize"}]', -32600),
        (b"7", -32600),
        (b"{}", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600),
    ],
)
@eras
def test_a_body_that_is_no_message_is_refused_in_plain_words(
    line: Line, era: str, body: bytes, code: int
) -> None:
    headers = {"MCP-Protocol-Version": NEWEST, "Mcp-Method": "ping"} if era == NEWEST else {}
    answer = line.rpc(body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (400, code)
    assert len(error["message"]) < 120
    assert "\n" not in error["message"]


@pytest.mark.parametrize("revision", [None, "2025-03-26"])
def test_a_batch_is_answered_in_one_list_by_the_revision_that_has_batches(
    line: Line, revision: str | None
) -> None:
    batch = [
        asked("tools/call", 1, name="health_check", arguments={}),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        asked("tools/list", "two"),
        asked("mail/nothing", 3),
        {"jsonrpc": "1.0", "id": 4, "method": "ping"},
        asked("tools/call", 5, name="fetch_inbox", arguments={"project_key": FOLDER, "agent_name": "Zoe"}),
    ]
    headers = {} if revision is None else {"MCP-Protocol-Version": revision}
    answer = line.rpc(batch, headers=headers)
    called, listed, unknown, broken, refused = answer.json()
    assert answer.status == 200
    assert (called["id"], called["result"]["structuredContent"]["status"]) == (1, "ok")
    assert (listed["id"], len(listed["result"]["tools"])) == ("two", len(ALL_OPERATIONS))
    assert (unknown["id"], unknown["error"]["code"], broken["error"]["code"]) == (3, -32601, -32600)
    assert (refused["id"], refused["result"]["isError"]) == (5, True)


def test_a_batch_of_notifications_has_no_answer(line: Line) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answer = line.rpc([told, told])
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", NEWEST])
def test_a_revision_without_batches_refuses_one_and_names_the_revision_that_has_them(
    line: Line, revision: str
) -> None:
    answer = line.rpc([asked("ping")], headers={"MCP-Protocol-Version": revision, "Mcp-Method": "ping"})
    assert (answer.status, answer.json()["error"]["code"]) == (400, -32600)
    assert "2025-03-26" in answer.json()["error"]["message"]


def test_a_batch_of_too_many_messages_is_refused(line: Line) -> None:
    answer = line.rpc([asked("ping")] * 101)
    assert (answer.status, answer.json()["error"]["message"]) == (400, "send 1 to 100 messages in a batch")


@pytest.mark.parametrize("name", ["health_check  ", "\thealth_check\t "])
def test_blanks_around_the_name_of_a_tool_in_the_header_say_nothing(line: Line, name: str) -> None:
    answer = new(line, "tools/call", headers={"Mcp-Name": name}, name="health_check", arguments={})
    assert answer.json()["result"]["structuredContent"]["status"] == "ok"


def test_an_answer_that_nobody_asked_for_is_passed_over(line: Line) -> None:
    assert line.rpc({"jsonrpc": "2.0", "id": 1, "result": {}}).status == 202
    assert line.rpc({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}).status == 202


@pytest.mark.parametrize(
    "path", ["/mcp", "/mcp/", "/mcp/core", "/mcp/full", "/api/", "/", "/admin/status", "/healthz", "/p/x"]
)
def test_another_host_or_a_foreign_page_reaches_nothing(line: Line, server: RunningServer, path: str) -> None:
    for host in ("evil.invalid", "127.0.0.1.evil.invalid", "169.254.169.254", ""):
        assert line.request("GET", path, headers={"Host": host}).status == 421
    for origin in ("http://evil.invalid", "null", "http://127.0.0.1:1", f"{server.url}.evil.invalid"):
        assert line.request("GET", path, headers={"Origin": origin}).status == 403


def test_our_own_page_may_call(line: Line, server: RunningServer) -> None:
    assert line.rpc(asked("ping"), headers={"Origin": server.url}).status == 200
    own = {"Host": f"localhost:{server.address[1]}", "Origin": f"http://localhost:{server.address[1]}"}
    assert line.rpc(asked("ping"), headers=own).status == 200


@pytest.mark.parametrize(
    "path", ["/mcp", "/mcp/", "/mcp/core", "/mcp/full", "/api/", "/admin/status", "/metrics"]
)
@pytest.mark.parametrize("proof", [None, "Bearer wrong", "Bearer ", "Basic dTpw", "Bearer prm_" + "x" * 43])
def test_nothing_is_done_without_the_right_token(
    server: RunningServer, message: int, path: str, proof: str | None
) -> None:
    headers = {"Content-Type": "application/json", **({"Authorization": proof} if proof else {})}
    with Line(server.address) as stranger:
        answer = stranger.request("POST", path, body=json.dumps(asked("ping")).encode(), headers=headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["code"] in ("token_required", "wrong_token")


def test_a_request_that_says_it_is_too_large_is_refused_before_it_is_sent(line: Line) -> None:
    answer = line.request("POST", "/mcp", headers={"Content-Length": str(10**12), "Expect": "100-continue"})
    assert (answer.status, answer.json()["code"]) == (413, "too_large")


def test_the_server_stops_at_once_also_when_somebody_listens(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with RunningServer(tmp_path_factory.mktemp("stops") / "data") as running, running.line() as ear:
        with running.line() as line:
            line.tool("ensure_project", human_key=FOLDER)
        listen(ear, INBOX)
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < STOPPING
