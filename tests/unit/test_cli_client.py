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


def test_a_server_is_found_by_the_note_it_left_and_its_token(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1234")
    places.token_file(tmp_path).write_text("prm_kept\n")
    found = locate({"POSTROOM_DATA_DIR": str(tmp_path), "POSTROOM_AGENT_TOKEN": "pra_1"})
    assert found == Endpoint(url="http://127.0.0.1:1234", token="prm_kept", agent_token="pra_1")


def test_the_environment_wins_over_the_note(tmp_path: Path) -> None:
    note(tmp_path, "http://127.0.0.1:1234")
    places.token_file(tmp_path).write_text("prm_kept")
    named = {"POSTROOM_URL": "https://mail.example/house/mcp", "POSTROOM_TOKEN": "t"}
    found = locate(named, data_dir=tmp_path)
    assert (found.url, found.token) == ("https://mail.example/house", "t")
    named = {"POSTROOM_URL": "https://mail.example/agents/", "POSTROOM_MCP_PATH": "/agents"}
    found = locate(named, data_dir=tmp_path)
    assert (found.url, found.mcp_path) == ("https://mail.example", "/agents")


@each_row(
    "url, token",
    [
        ("http://127.0.0.1:9", "prm_kept"),
        ("http://localhost:9", "prm_kept"),
        ("http://[::1]:9", "prm_kept"),
        ("https://mail.example", ""),
        ("http://localhost.example:9", ""),
        ("http://127.0.0.1.example:9", ""),
    ],
)
def test_the_kept_token_goes_to_this_machine_alone(tmp_path: Path, url: str, token: str) -> None:
    places.token_file(tmp_path).write_text("prm_kept")
    assert locate({"POSTROOM_URL": url}, data_dir=tmp_path).token == token


def test_the_kept_token_goes_wherever_this_machine_s_server_listens(tmp_path: Path) -> None:
    note(tmp_path, "http://192.168.1.5:8765")
    places.token_file(tmp_path).write_text("prm_kept")
    assert locate({}, data_dir=tmp_path).token == "prm_kept"


def test_without_a_note_there_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(errors.ServerUnavailable) as caught:
        locate({}, data_dir=tmp_path)
    assert str(caught.value) == f"no server is running for {tmp_path}"
    assert "postroom up" in caught.value.remedy


@each_row("url", ["ftp://x", "127.0.0.1:8765", "http://", "http://x:99999", "http://[::1"])
def test_an_address_that_is_none_is_a_wrong_setting(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.ConfigError):
        locate({"POSTROOM_URL": url}, data_dir=tmp_path)


def test_a_token_with_a_line_end_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        locate({"POSTROOM_URL": "http://127.0.0.1:1", "POSTROOM_TOKEN": "a\r\nX: y"}, data_dir=tmp_path)
    assert "X: y" not in str(caught.value.as_dict())


def test_tokens_are_not_shown() -> None:
    assert "secret" not in repr(Endpoint(url="http://x", token="secret", agent_token="secret"))


def test_a_tool_is_called_with_what_is_given_and_proves_who_calls(fake: FakePostroom, server: Server) -> None:
    fake.tools["whois"] = lambda _: {"name": "Ada"}
    assert server.call_tool("whois", {"agent_name": "Ada", "limit": None}) == {"name": "Ada"}
    seen = fake.seen[0]
    assert seen.path == "/mcp/full"  # a command may need what agents seldom do
    assert seen.body["params"] == {"name": "whois", "arguments": {"agent_name": "Ada"}}
    assert seen.headers["Authorization"] == "Bearer prm_x"
    assert seen.headers["Postroom-Agent-Token"] == "pra_y"
    assert seen.headers["MCP-Protocol-Version"] == "2025-11-25"
    assert seen.headers["Accept"] == "application/json, text/event-stream"


def test_a_list_comes_without_its_wrapping(fake: FakePostroom, server: Server) -> None:
    fake.tools["fetch_inbox"] = lambda _: [1, 2]
    assert server.call_tool("fetch_inbox", {}) == [1, 2]


def test_an_answer_may_come_as_a_stream(fake: FakePostroom, server: Server) -> None:
    result = {"structuredContent": {"a": 1}, "content": []}
    progress = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress"})
    fake.rpc["tools/call"] = lambda seen: Stream([progress, json.dumps(rpc_result(seen, result), indent=1)])
    assert server.call_tool("any", {}) == {"a": 1}


@each_row("kind", all_errors())
def test_a_refusal_of_a_tool_comes_back_as_what_it_was(
    fake: FakePostroom, server: Server, kind: type[PostroomError]
) -> None:
    sent = kind("why", value=[1], remedy="do this", details={"near": ["a"]})
    fake.tools["any"] = lambda _: {"error": sent.as_dict()}
    with pytest.raises(kind) as caught:
        server.call_tool("any", {})
    assert caught.value.as_dict() == sent.as_dict()


def test_a_refusal_that_only_the_server_knows_keeps_its_code() -> None:
    error = rebuilt({"code": "internal_error", "detail": "failed", "request_id": "r1"})
    assert type(error) is PostroomError
    assert (error.message, error.details) == ("failed", {"code": "internal_error", "request_id": "r1"})


@each_row("text", ['{"error": {"code": "unknown_agent", "message": "who"}}', "who"])
def test_a_refusal_may_come_as_text_alone(fake: FakePostroom, server: Server, text: str) -> None:
    fake.rpc["tools/call"] = lambda _: {"isError": True, "content": [{"type": "text", "text": text}]}
    with pytest.raises(errors.InputError, match="who"):
        server.call_tool("any", {})


def test_a_refusal_by_the_protocol_is_a_failure(fake: FakePostroom, server: Server) -> None:
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


def test_the_administration_answers_with_an_object(fake: FakePostroom, server: Server) -> None:
    fake.admin[("POST", "/admin/backup")] = lambda seen: {"target": seen.body["target"]}
    assert server.admin("POST", "/admin/backup", {"target": "/x"}) == {"target": "/x"}
    assert fake.seen[0].headers["Content-Type"] == "application/json"


def test_a_refusal_of_the_administration_comes_back_as_what_it_was(
    fake: FakePostroom, server: Server
) -> None:
    problem = {"type": "urn:x", "status": 404, "code": "unknown_agent", "detail": "no agent", "value": "Bo"}
    fake.admin[("GET", "/admin/x")] = lambda _: Raw(
        404, json.dumps(problem).encode(), "application/problem+json"
    )
    with pytest.raises(errors.UnknownAgent) as caught:
        server.admin("GET", "/admin/x")
    assert (caught.value.message, caught.value.value) == ("no agent", "Bo")
    assert caught.value.remedy == errors.UnknownAgent.default_remedy


def test_a_server_that_is_gone_is_unavailable(fake: FakePostroom, server: Server) -> None:
    fake.__exit__()
    with pytest.raises(errors.ServerUnavailable, match=fake.url):
        server.call_tool("any", {})
    assert not server.is_ready()
    fake.__enter__()


def test_a_server_that_says_nothing_is_given_up(fake: FakePostroom) -> None:
    fake.rpc["tools/call"] = lambda _: Stream([], stays_open=True)
    silent = Server(Endpoint(url=fake.url), timeout=timedelta(milliseconds=200))
    with pytest.raises(errors.ServerUnavailable, match="did not answer in time") as caught:
        silent.call_tool("any", {})
    assert "idempotency key" in caught.value.remedy


def test_an_answer_that_breaks_off_is_no_answer(fake: FakePostroom, server: Server) -> None:
    fake.admin[("GET", "/admin/x")] = lambda _: Short(200, b'{"a": 1}')
    with pytest.raises(errors.ServerUnavailable, match="is incomplete"):
        server.admin("GET", "/admin/x")


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


def test_a_call_that_was_broken_off_sends_nothing(fake: FakePostroom) -> None:
    line = Exchange(Endpoint(url=fake.url))
    line.break_off()
    with pytest.raises(errors.ServerUnavailable):
        line.send(Call(path="/mcp", body=b"{}"))
    line.close()
    assert fake.seen == []


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
    watch = Watching()
    fake.admin["POST", "/admin/backup"] = lambda _: {"done": watch.heard.wait(30)}
    fake.admin["GET", "/admin/progress?of=%2Fadmin%2Fbackup"] = lambda _: {
        "doing": "copying: pages",
        "done": 3,
        "total": 9,
    }
    with progress.watched(watch):
        found = server.admin_long("writing the backup", "POST", "/admin/backup", {})
    assert (found, watch.told[:2]) == ({"done": True}, [("writing the backup",), ("copying: pages", 3, 9)])


def test_a_server_that_does_not_say_how_far_it_is_is_waited_for_all_the_same(
    fake: FakePostroom, server: Server
) -> None:
    watch = Watching()
    fake.admin["GET", "/admin/doctor"] = lambda _: {"ok": watch.heard.wait(30)}
    with progress.watched(watch):
        found = server.admin_long("looking", "GET", "/admin/doctor?full=yes")
    assert (found, watch.told[:2]) == ({"ok": True}, [("looking",), ("looking",)])
