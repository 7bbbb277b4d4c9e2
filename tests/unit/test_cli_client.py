"""How commands reach the server, against a fake one."""

import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fake_postroom import FakePostroom, Raw, Short, Stream, rpc_error, rpc_result
from postroom.app import places
from postroom.cli.client import Server, events, locate, rebuilt
from postroom.cli.wire import Call, Endpoint, Exchange
from postroom.contracts import errors, progress
from postroom.contracts.errors import PostroomError, all_errors
from table_rows import each_row


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        yield running


@pytest.fixture
def server(fake: FakePostroom) -> Server:
    return Server(Endpoint(url=fake.url, token="prm_x", agent_token="pra_y"), timeout=timedelta(seconds=5))


def note(folder: Path, url: str) -> None:
    places.write_server_note(folder, places.ServerNote(url=url, pid=1, version="0", started_at=0))


def test_a_server_is_found_by_its_note_and_its_token_and_the_environment_wins(tmp_path: Path) -> None:
    with pytest.raises(errors.ServerUnavailable) as caught:
        locate({}, data_dir=tmp_path)
    assert str(caught.value) == f"no server is running for {tmp_path}"
    assert "postroom up" in caught.value.remedy
    note(tmp_path, "http://192.168.1.5:8765")
    places.token_file(tmp_path).write_text("prm_kept\n")
    found = locate({"POSTROOM_DATA_DIR": str(tmp_path), "POSTROOM_AGENT_TOKEN": "pra_1"})
    assert found == Endpoint(url="http://192.168.1.5:8765", token="prm_kept", agent_token="pra_1")
    assert "prm_kept" not in repr(found)
    assert "pra_1" not in repr(found)
    named = {"POSTROOM_URL": "https://mail.example/house/mcp", "POSTROOM_TOKEN": "t"}
    found = locate(named, data_dir=tmp_path)
    assert (found.url, found.token) == ("https://mail.example/house", "t")
    named = {"POSTROOM_URL": "https://mail.example/agents/", "POSTROOM_MCP_PATH": "/agents"}
    found = locate(named, data_dir=tmp_path)
    assert (found.url, found.mcp_path) == ("https://mail.example", "/agents")


@each_row(
    "url, token",
    [
        *(("http://127.0.0.1:9", "prm_kept"), ("http://localhost:9", "prm_kept")),
        *(("http://[::1]:9", "prm_kept"), ("https://mail.example", ""), ("http://localhost.example:9", "")),
        ("http://127.0.0.1.example:9", ""),
    ],
)
def test_the_kept_token_goes_to_this_machine_alone(tmp_path: Path, url: str, token: str) -> None:
    places.token_file(tmp_path).write_text("prm_kept")
    assert locate({"POSTROOM_URL": url}, data_dir=tmp_path).token == token
    with_agent = {"POSTROOM_URL": url, "POSTROOM_AGENT_TOKEN": "pra_1"}
    assert locate(with_agent, data_dir=tmp_path).token == (token or "pra_1")


def test_an_address_that_is_none_and_a_token_with_a_line_end_are_wrong_settings(tmp_path: Path) -> None:
    for url in ("ftp://x", "127.0.0.1:8765", "http://", "http://x:99999", "http://[::1"):
        with pytest.raises(errors.ConfigError):
            locate({"POSTROOM_URL": url}, data_dir=tmp_path)
    with pytest.raises(errors.ConfigError) as caught:
        locate({"POSTROOM_URL": "http://127.0.0.1:1", "POSTROOM_TOKEN": "a\r\nX: y"}, data_dir=tmp_path)
    assert "X: y" not in str(caught.value.as_dict())


def test_a_tool_is_called_with_what_is_given_and_proves_who_calls(fake: FakePostroom, server: Server) -> None:
    fake.tools |= {"whois": lambda _: {"name": "Ada"}, "fetch_inbox": lambda _: [1, 2]}
    assert server.call_tool("whois", {"agent_name": "Ada", "limit": None}) == {"name": "Ada"}
    seen = fake.seen[0]
    assert seen.path == "/mcp/full"  # a command may need what agents seldom do
    assert seen.body["params"] == {"name": "whois", "arguments": {"agent_name": "Ada"}}
    sent = {
        **{"Authorization": "Bearer prm_x", "Postroom-Agent-Token": "pra_y"},
        **{"MCP-Protocol-Version": "2025-11-25", "Accept": "application/json, text/event-stream"},
    }
    assert {name: seen.headers[name] for name in sent} == sent
    assert server.call_tool("fetch_inbox", {}) == [1, 2], "a list comes without its wrapping"
    result = {"structuredContent": {"a": 1}, "content": []}
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress"})
    fake.rpc["tools/call"] = lambda seen: Stream([told, json.dumps(rpc_result(seen, result), indent=1)])
    assert server.call_tool("any", {}) == {"a": 1}, "an answer may come as a stream"


def test_a_refusal_comes_back_as_what_it_was(fake: FakePostroom, server: Server) -> None:
    for kind in all_errors():
        sent = kind("why", value=[1], remedy="do this", details={"near": ["a"]}).as_dict()
        fake.tools["any"] = lambda _, sent=sent: {"error": sent}
        with pytest.raises(kind) as caught:
            server.call_tool("any", {})
        assert caught.value.as_dict() == sent
    only_there = rebuilt({"code": "internal_error", "detail": "failed", "request_id": "r1"})
    assert (type(only_there), only_there.message) == (PostroomError, "failed")
    assert only_there.details == {"code": "internal_error", "request_id": "r1"}
    for text in ('{"error": {"code": "unknown_agent", "message": "who"}}', "who"):
        fake.rpc["tools/call"] = lambda _, text=text: {
            "isError": True,
            "content": [{"type": "text", "text": text}],
        }
        with pytest.raises(errors.InputError, match="who"):
            server.call_tool("any", {})
    fake.rpc["tools/call"] = lambda seen: rpc_error(seen, -32601, "no such method", status=404)
    with pytest.raises(PostroomError, match="no such method"):
        server.call_tool("any", {})


@each_row(
    "raw, kind",
    [
        (Raw(401, b'{"code": "token_required", "detail": "no token"}'), errors.TokenRequired),
        (Raw(401, b"go away", "text/plain"), errors.WrongToken),
        (Raw(413, b"", "text/plain"), errors.TooLarge),
        (Raw(503, b"<html>", "text/html"), errors.ServerUnavailable),
        (Raw(418, b"", "text/plain"), PostroomError),
        (Raw(200, b"<html>", "text/html"), PostroomError),
        (Raw(200, b'{"jsonrpc": "2.0", "id": 99, "result": {}}'), PostroomError),
        (Raw(200, b'{"jsonrpc": "2.0", "id": 1, "result": 3}'), PostroomError),
    ],
)
def test_what_is_no_answer_is_a_typed_failure(
    fake: FakePostroom, raw: Raw, kind: type[PostroomError]
) -> None:
    fake.rpc["tools/call"] = lambda _: raw
    with pytest.raises(PostroomError) as caught:
        Server(Endpoint(url=fake.url)).call_tool("any", {})
    assert type(caught.value) is kind


def test_the_administration_answers_with_an_object_or_its_refusal(fake: FakePostroom, server: Server) -> None:
    fake.admin["POST", "/admin/backup"] = lambda seen: {"target": seen.body["target"]}
    assert server.admin("POST", "/admin/backup", {"target": "/x"}) == {"target": "/x"}
    assert fake.seen[0].headers["Content-Type"] == "application/json"
    problem = {"type": "urn:x", "status": 404, "code": "unknown_agent", "detail": "no agent", "value": "Bo"}
    told = Raw(404, json.dumps(problem).encode(), "application/problem+json")
    fake.admin["GET", "/admin/x"] = lambda _: told
    with pytest.raises(errors.UnknownAgent) as caught:
        server.admin("GET", "/admin/x")
    assert (caught.value.message, caught.value.value) == ("no agent", "Bo")
    assert caught.value.remedy == errors.UnknownAgent.default_remedy


def test_a_server_that_is_gone_silent_or_breaks_off_is_unavailable(
    fake: FakePostroom, server: Server
) -> None:
    fake.admin["GET", "/admin/x"] = lambda _: Short(200, b'{"a": 1}')
    with pytest.raises(errors.ServerUnavailable, match="is incomplete"):
        server.admin("GET", "/admin/x")
    fake.rpc["tools/call"] = lambda _: Stream([], stays_open=True)
    silent = Server(Endpoint(url=fake.url), timeout=timedelta(milliseconds=200))
    with pytest.raises(errors.ServerUnavailable, match="did not answer in time") as caught:
        silent.call_tool("any", {})
    assert "idempotency key" in caught.value.remedy
    seen = len(fake.seen)
    line = Exchange(Endpoint(url=fake.url))
    line.break_off()
    with pytest.raises(errors.ServerUnavailable):
        line.send(Call(path="/mcp", body=b"{}"))
    line.close()
    assert len(fake.seen) == seen, "a call that was broken off sends nothing"
    fake.__exit__()
    with pytest.raises(errors.ServerUnavailable, match=fake.url):
        server.call_tool("any", {})
    assert not server.is_ready()
    fake.__enter__()


def test_a_refusal_that_comes_before_everything_was_sent_is_heard() -> None:
    problem = b'{"code": "too_large", "detail": "too much"}'

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            head = f"HTTP/1.1 413 Too Large\r\nContent-Length: {len(problem)}\r\n\r\n"
            connection.sendall(head.encode() + problem)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = Server(Endpoint(url=url), timeout=timedelta(seconds=5))
        with pytest.raises(errors.TooLarge, match="too much"):
            server.call_tool("any", {"text": "x" * (8 << 20)})
        thread.join(5)


@each_row("size", [1, 2, 3, 1000])
def test_a_stream_is_read_alike_however_it_is_cut(size: int) -> None:
    text = b": hello\r\n\r\nevent: message\r\nid: 1\r\ndata: a\r\ndata:b\r\n\r\ndata: \xc3\xa4\n\ndata: cut"
    pieces = iter([text[at : at + size] for at in range(0, len(text), size)] + [b""])
    assert list(events(lambda _: next(pieces))) == ["a\nb", "ä"]


class Watching:
    """Records its calls; `heard` is set at the second time."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.heard = threading.Event()

    def __call__(self, *far: object) -> None:
        self.told.append(far)
        if len(self.told) > 1:
            self.heard.set()


def test_how_far_long_work_is_comes_from_the_server_while_it_is_waited_for(
    fake: FakePostroom, server: Server
) -> None:
    far = {"doing": "copying: pages", "done": 3, "total": 9}
    fake.admin["GET", "/admin/progress?of=%2Fadmin%2Fbackup"] = lambda _: far
    for work, told in (("backup", ("copying: pages", 3, 9)), ("doctor", ("looking",))):  # that does not say
        watch = Watching()
        fake.admin["POST", f"/admin/{work}"] = lambda _, watch=watch: {"done": watch.heard.wait(30)}
        with progress.watched(watch):
            found = server.admin_long("looking", "POST", f"/admin/{work}", {})
        assert (found, watch.told[:2]) == ({"done": True}, [("looking",), told])
