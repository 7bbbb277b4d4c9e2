"""One endpoint for every revision of the protocol, spoken to in raw JSON-RPC as any client might."""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.running import Answer, Line, RunningServer
from machine import Bound
from postroom.mail.operations import MAIL_OPERATIONS

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
"""Seconds in which a stopping server must end, whatever its listeners; its grace is longer."""


@pytest.fixture(scope="module")
def message(server: RunningServer) -> int:
    """A project with two agents, a reservation and one message, whose id this is."""
    with server.line() as line:
        line.crew(FOLDER, "Ada", "Ben")
        line.tool("file_reservation_paths", project_key=FOLDER, agent_name="Ada", paths=["src/**"])
        return write(line)


@pytest.fixture
def line(server: RunningServer, message: int) -> Iterator[Line]:
    with server.line() as opened:
        yield opened


def write(line: Line) -> int:
    plan = {"name": "plan.txt", "content_base64": base64.b64encode(PLAN).decode()}
    told = {
        "sender_name": "Ada",
        "to": ["Ben"],
        "subject": "Hello",
        "body_md": "Is it?",
        "thread_id": "dry:1",
    }
    sent = line.tool("send_message", project_key=FOLDER, attachments=[plan], **told)
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


def health(line: Line, *, headers: dict[str, str] | None = None, **params: Any) -> tuple[int, int | str]:
    """Call a tool in the newest revision; return the status, and the code of the error or the tool's answer."""
    answer = new(line, "tools/call", headers=headers, **{"name": "health_check", "arguments": {}, **params})
    found = answer.json()
    failed = "error" in found
    return answer.status, found["error"]["code"] if failed else found["result"]["structuredContent"]["status"]


ERAS = ("2025-06-18", NEWEST)


def test_a_handshake_agrees_on_the_revision_that_was_asked_for_or_names_a_known_one(line: Line) -> None:
    client: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
    for revision in HANDSHAKES:
        found = old(line, "initialize", protocolVersion=revision, **client)["result"]
        assert (found["protocolVersion"], found["serverInfo"]["name"]) == (revision, "postroom")
        assert "start_session" in found["instructions"]
        assert found["capabilities"]["resources"]["subscribe"] is False
    unknown = old(line, "initialize", protocolVersion="1999-01-01", **client)["result"]
    assert unknown["protocolVersion"] == HANDSHAKES[-1]


def test_no_handshake_and_no_session_are_needed(line: Line) -> None:
    for revision in (None, *HANDSHAKES):
        assert old(line, "ping", revision=revision)["result"] == {}
        tools = old(line, "tools/list", revision=revision)["result"]["tools"]
        assert [tool["name"] for tool in tools] == [operation.name for operation in MAIL_OPERATIONS]
        result = old(line, "tools/call", revision=revision, name="health_check", arguments={})["result"]
        assert (result["isError"], result["structuredContent"]["status"]) == (False, "ok")
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


def test_the_id_of_a_request_comes_back_as_it_was(line: Line) -> None:
    sent = ["a", "", 0, -7, 2**53, "\u00e9"]
    assert [line.rpc(asked("ping", number)).json()["id"] for number in sent] == sent


def test_what_needs_no_answer_is_taken_and_not_answered(line: Line) -> None:
    for method in ("initialized", "cancelled", "progress", "x"):
        name = f"notifications/{method}"
        told = {"jsonrpc": "2.0", "method": name, "params": {"requestId": 99}}
        for headers in ({}, {"MCP-Protocol-Version": NEWEST, "Mcp-Method": name}):
            answer = line.rpc(told, headers=headers)
            assert (answer.status, answer.body) == (202, b""), (name, headers)
    for nobody_asked in ({"result": {}}, {"error": {"code": 1, "message": "x"}}):
        assert line.rpc({"jsonrpc": "2.0", "id": 1, **nobody_asked}).status == 202


def test_the_newest_revision_is_discovered_without_a_handshake(line: Line) -> None:
    found = new(line, "server/discover").json()["result"]
    assert found["supportedVersions"] == [NEWEST]
    assert found["capabilities"]["resources"]["subscribe"] is True
    assert "start_session" in found["instructions"]
    result = new(line, "tools/call", name="health_check", arguments={}).json()["result"]
    assert (result["resultType"], result["structuredContent"]["status"]) == ("complete", "ok")


def test_headers_of_the_newest_revision_must_say_what_the_body_says(line: Line) -> None:
    contradict = [("Mcp-Method", ""), ("Mcp-Name", ""), ("Mcp-Method", "tools/list")]
    contradict += [("Mcp-Name", "send_message"), ("Mcp-Name", "=?base64?!!?=")]
    taken = [one for one in contradict if health(line, headers=dict([one])) != (400, -32020)]
    assert taken == []
    for same in ("=?base64?aGVhbHRoX2NoZWNr?=", "health_check  ", "\thealth_check\t "):
        assert health(line, headers={"Mcp-Name": same}) == (200, "ok"), same
    assert health(line, _meta={}) == (400, -32602), "it says who sends it"


def test_a_revision_or_a_method_that_does_not_exist_is_refused(line: Line) -> None:
    unknown = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    headers = {"MCP-Protocol-Version": "2099-01-01"}
    answer = new(line, "tools/call", headers=headers, _meta=unknown, name="health_check", arguments={})
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["data"]["supported"]) == (400, -32022, [NEWEST])
    assert health(line, headers=headers) == (400, -32020)
    assert old(line, "mail/nothing")["error"]["code"] == -32601
    answer = new(line, "mail/nothing")
    assert (answer.status, answer.json()["error"]["code"]) == (404, -32601)


def test_tools_come_in_the_same_order_and_the_same_words_each_time(line: Line) -> None:
    first, *others = [line.rpc(asked("tools/list")).body for _ in range(3)]
    assert all(other == first for other in others)
    modern = new(line, "tools/list").json()["result"]
    assert modern["tools"] == json.loads(first)["result"]["tools"]
    assert {"ttlMs", "cacheScope"} <= modern.keys()


REFUSALS: tuple[tuple[str, dict[str, Any], str, object], ...] = (
    ("whois", {"project_key": FOLDER, "agent_name": "Eve"}, "unknown_agent", "Eve"),
    ("whois", {"project_key": "/nowhere", "agent_name": "Eve"}, "unknown_project", "/nowhere"),
    ("whois", {"project_key": FOLDER}, "invalid_argument", None),
    ("whois", {"project_key": 7, "agent_name": "Eve"}, "unknown_project", "7"),
    ("whois", {"project_key": 7.5, "agent_name": "Eve"}, "invalid_argument", 7.5),
    ("wois", {}, "invalid_argument", "wois"),
    ("get_message", {"project_key": FOLDER, "agent_name": "Ada", "message_id": 999}, "unknown_message", 999),
)


@pytest.mark.parametrize("era", ERAS)
def test_refusals_are_structured_and_say_what_to_do(line: Line, era: str) -> None:
    for tool, arguments, code, value in REFUSALS:
        result = call(line, era, "tools/call", name=tool, arguments=arguments)["result"]
        error = result["structuredContent"]["error"]
        assert (result["isError"], error["code"], error["value"]) == (True, code, value)
        assert error["remedy"], tool
        assert result["content"][0]["text"] == f"{code}: {error['message']}\nremedy: {error['remedy']}"


TEMPLATES = {
    "mail://inbox/{project}/{agent}": INBOX,
    "mail://thread/{project}/{thread}": f"mail://thread/{SLUG}/dry%3A1",
    "mail://agents/{project}": f"mail://agents/{SLUG}",
    "mail://reservations/{project}": f"mail://reservations/{SLUG}",
    "mail://project/{project}": "mail://project/%2Fyard%2Frev",
}
ATTACHMENT = "mail://attachment/{project}/{agent}/{message}/{sha256}"
NOT_THERE = {
    "mail://inbox/yard-rev/Eve": "unknown_agent",
    "mail://inbox/nowhere/Ada": "unknown_project",
    "mail://thread/yard-rev/none": "unknown_thread",
    "mail://agents/nowhere": "unknown_project",
    "mail://reservations/nowhere": "unknown_project",
    "mail://project/nowhere": "unknown_project",
    "mail://project/%2F..%2Fx": "invalid_path",
    "mail://project/a%00b": "invalid_argument",
    "mail://inbox/yard-rev": "invalid_argument",
    "mail://nothing/yard-rev": "invalid_argument",
    "file:///etc/passwd": "invalid_argument",
}


@pytest.mark.parametrize("era", ERAS)
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
    assert found["thread"]["thread_id"] == "dry:1"
    assert [agent["name"] for agent in found["agents"]["agents"]][:2] == ["Ada", "Ben"]
    assert [one["path"] for one in found["reservations"]["reservations"]] == ["src/**"]
    assert found["project"]["human_key"] == FOLDER
    uri = f"mail://attachment/{SLUG}/Ben/{message}/{hashlib.sha256(PLAN).hexdigest()}"
    assert uri in [file["resource"] for one in found["inbox"] for file in one["attachments"]]
    (content,) = call(line, era, "resources/read", uri=uri)["result"]["contents"]
    assert (content["uri"], content["mimeType"]) == (uri, "text/plain")
    assert base64.b64decode(content["blob"]) == PLAN


@pytest.mark.parametrize("era", ERAS)
def test_a_resource_or_a_prompt_that_is_not_there_is_refused(
    server: RunningServer, line: Line, era: str
) -> None:
    for uri, code in NOT_THERE.items():
        error = call(line, era, "resources/read", uri=uri)["error"]
        assert (error["code"], error["data"]["code"], error["data"]["uri"]) == (-32602, code, uri)
        assert error["data"]["remedy"], uri
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


def test_messages_are_posted_to_any_name_of_the_endpoint_and_nowhere_else(line: Line) -> None:
    for path in ("/mcp", "/mcp/", "/mcp/core", "/mcp/full/", "/api", "/api/"):
        assert line.rpc(asked("ping"), path=path).json()["result"] == {}, path
        assert line.rpc({"jsonrpc": "2.0", "method": "notifications/x"}, path=path).status == 202
    for path in ("/mcp/cores", "/mcp/core/x", "/mcp/CORE", "/mcp//core"):
        assert line.rpc(asked("ping"), path=path).status == 404, path
    for method in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"):
        answer = line.request(method, "/mcp", headers={"Accept": "text/event-stream"})
        assert (answer.status, answer.headers["allow"], answer.is_stream) == (405, "POST", False), method


def test_an_answer_comes_in_the_form_that_is_accepted(line: Line) -> None:
    json_and_stream = "application/json, text/event-stream"
    for accept in (None, "application/json", json_and_stream, "*/*", "application/*;q=0.5", "text/html"):
        answer = line.rpc(asked("ping"), headers={} if accept is None else {"Accept": accept})
        assert (answer.status, answer.is_json) == (406 if accept == "text/html" else 200, True), accept


NO_JSON = (
    b"",
    b"{",
    b"\xff\xfe",
    b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}',
    b"[" * 100_000,
)
NO_MESSAGE = (
    b"[]",
    b'[{"jsonrpc": "2.0", "id": 1, "method": "initialize"}]',
    b"7",
    b"{}",
    b'{"id": 1, "method": "ping"}',
    b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
    *(b'{"jsonrpc": "2.0", "id": %s, "method": "ping"}' % one for one in (b"null", b"true", b"1.5", b"{}")),
    b'{"jsonrpc": "2.0", "id": 1, "method": 7}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}',
    b'{"jsonrpc": "2.0", "id": 1}',
)


def test_a_body_that_is_no_message_is_refused_in_plain_words(line: Line) -> None:
    for headers in ({}, {"MCP-Protocol-Version": NEWEST, "Mcp-Method": "ping"}):
        for body in NO_JSON + NO_MESSAGE:
            answer = line.rpc(body, headers=headers)
            error = answer.json()["error"]
            assert (answer.status, error["code"]) == (400, -32700 if body in NO_JSON else -32600), body[:80]
            assert len(error["message"]) < 120
            assert "\n" not in error["message"]


def test_a_batch_is_answered_in_one_list_by_the_revision_that_has_batches(line: Line) -> None:
    batch = [
        asked("tools/call", 1, name="health_check", arguments={}),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        asked("tools/list", "two"),
        asked("mail/nothing", 3),
        {"jsonrpc": "1.0", "id": 4, "method": "ping"},
        asked("tools/call", 5, name="fetch_inbox", arguments={"project_key": FOLDER, "agent_name": "Zoe"}),
    ]
    for headers in ({}, {"MCP-Protocol-Version": "2025-03-26"}):
        answer = line.rpc(batch, headers=headers)
        called, listed, unknown, broken, refused = answer.json()
        assert (answer.status, called["id"]) == (200, 1)
        assert called["result"]["structuredContent"]["status"] == "ok"
        assert (listed["id"], len(listed["result"]["tools"])) == ("two", len(MAIL_OPERATIONS))
        assert (unknown["id"], unknown["error"]["code"], broken["error"]["code"]) == (3, -32601, -32600)
        assert (refused["id"], refused["result"]["isError"]) == (5, True)
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answer = line.rpc([told, told])
    assert (answer.status, answer.body) == (202, b"")


def test_a_batch_is_refused_that_is_too_long_or_of_a_revision_without_batches(line: Line) -> None:
    answer = line.rpc([asked("ping")] * 101)
    assert (answer.status, answer.json()["error"]["message"]) == (400, "send 1 to 100 messages in a batch")
    for revision in ("2025-06-18", "2025-11-25", NEWEST):
        answer = line.rpc([asked("ping")], headers={"MCP-Protocol-Version": revision, "Mcp-Method": "ping"})
        assert (answer.status, answer.json()["error"]["code"]) == (400, -32600), revision
        assert "2025-03-26" in answer.json()["error"]["message"]


def test_the_server_stops_at_once_also_when_somebody_listens(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with RunningServer(tmp_path_factory.mktemp("stops") / "data") as running, running.line() as ear:
        with running.line() as line:
            line.tool("ensure_project", human_key=FOLDER)
        listen(ear, INBOX)
        bound = Bound(STOPPING)
        assert running.stop() == 0
        assert not bound.has_passed()
