"""`postroom mcp` as a real process in front of a fake server."""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from mcp import Client, StdioServerParameters

from e2e.running import soon
from fake_postroom import FakePostroom, Raw, Seen, Stream, rpc_error, rpc_result
from machine import PATIENCE
from postroom.app import places
from postroom.cli.client import Server, locate
from postroom.stores.sqlite.lock import read_owner

pytestmark = pytest.mark.long

MODERN = "2026-07-28"


class Proxy:
    """A running `postroom mcp` and its pipes."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postroom", "mcp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._log: queue.Queue[str] = queue.Queue()
        self._readers = [threading.Thread(target=self._read_lines), threading.Thread(target=self._read_log)]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _read_log(self) -> None:
        for line in self.process.stderr:
            self._log.put(line.decode())

    def send(self, *documents: object) -> None:
        for document in documents:
            line = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def line(self, patience: float = PATIENCE) -> Any:
        """Return the next document on stdout; None at its end."""
        line = self._lines.get(timeout=patience)
        return json.loads(line) if line else None

    def logged(self) -> str:
        """Return the next line on stderr."""
        return self._log.get(timeout=PATIENCE)

    def is_silent(self) -> bool:
        """Return whether stderr holds nothing unread."""
        return self._log.empty()

    def end(self) -> int:
        """Close stdin and return the exit code."""
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        yield running


@pytest.fixture
def environment(fake: FakePostroom, tmp_path: Path) -> dict[str, str]:
    return environment_for(fake.url, tmp_path)


def environment_for(url: str, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    return {**kept, "POSTROOM_URL": url, "POSTROOM_TOKEN": "prm_test", "POSTROOM_DATA_DIR": str(home)}


@pytest.fixture
def proxy(environment: dict[str, str]) -> Iterator[Proxy]:
    running = Proxy(environment, "--no-start")
    yield running
    if running.process.poll() is None and not running.process.stdin.closed:
        running.end()


def ask(named: object, method: str, **parameters: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": named, "method": method, "params": parameters}


def modern(named: object, method: str, **parameters: object) -> dict[str, object]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return ask(named, method, _meta=meta, **parameters)


def tell(method: str, **parameters: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, "params": parameters}


def waiting_for(event: threading.Event) -> Callable[[Seen], object]:
    def answer(seen: Seen) -> object:
        assert event.wait(PATIENCE)
        return {"answered": seen.body["id"]}

    return answer


def test_answers_come_as_they_finish_in_the_server_s_own_words(fake: FakePostroom, proxy: Proxy) -> None:
    release = threading.Event()
    fake.rpc["slow"] = waiting_for(release)
    fake.rpc["quick"] = lambda _: {"text": "grüße\u2028"}
    proxy.send(ask("a", "slow"), tell("notifications/roots/list_changed"), ask(2, "quick"))
    assert proxy.line() == {"jsonrpc": "2.0", "id": 2, "result": {"text": "grüße\u2028"}}
    release.set()
    assert proxy.line()["id"] == "a"
    fake.wait_for(1, "notifications/roots/list_changed")
    fake.rpc["*"] = lambda seen: [
        {"jsonrpc": "2.0", "id": one["id"], "result": {}} for one in seen.body if "id" in one
    ]
    batch = [ask(1, "ping"), tell("notifications/x"), ask("1", "ping")]
    proxy.send(batch)
    assert [one["id"] for one in proxy.line()] == [1, "1"]
    assert fake.seen[-1].body == batch
    assert proxy.end() == 0


def test_at_most_sixty_four_requests_are_on_their_way_and_it_stays_small(
    fake: FakePostroom, proxy: Proxy
) -> None:
    release = threading.Event()
    fake.rpc["slow"] = waiting_for(release)
    proxy.send(*(ask(number, "slow") for number in range(80)))
    fake.wait_for(64)
    # A line that needs no server is still answered, so the other 16 are read and wait.
    proxy.send(b"{")
    assert proxy.line()["error"]["code"] == -32700
    assert len(fake.seen) == 64
    release.set()
    assert {proxy.line()["id"] for _ in range(80)} == set(range(80))
    status = Path(f"/proc/{proxy.process.pid}/status")
    if status.exists():
        peak = int(status.read_text().partition("VmHWM:")[2].split()[0])
        assert peak < 30 * 1024, f"{peak} kB resident"


PROBLEM = {"status": 401, "code": "wrong_token", "detail": "no such token", "remedy": "take the right one"}
REFUSALS: tuple[tuple[Callable[[Seen], object], int, str | None], ...] = (
    (lambda seen: rpc_error(seen, -32601, "no such method", status=404), -32601, None),
    (
        lambda _: Raw(
            400, b'{"jsonrpc": "2.0",\n "id": null, "error": {"code": -32020, "message": "headers"}}'
        ),
        -32020,
        None,
    ),
    (lambda _: Raw(401, json.dumps(PROBLEM).encode(), "application/problem+json"), -32000, "wrong_token"),
    (lambda _: Raw(202, b""), -32000, "server_unavailable"),
    (lambda _: Raw(200, b"<html>", "text/html"), -32000, "server_unavailable"),
    (lambda _: Raw(200, b'{"a": 1}'), -32000, "server_unavailable"),
)


def test_refusals_are_told_as_answers_to_their_request(fake: FakePostroom, proxy: Proxy) -> None:
    for number, (answer, code, ours) in enumerate(REFUSALS):
        fake.rpc["ping"] = answer
        proxy.send(ask(number, "ping"))
        found = proxy.line()
        assert (found["id"], found["error"]["code"]) == (number, code), number
        if ours == "wrong_token":
            told = found["error"]["data"]
            assert (told["code"], told["remedy"]) == (ours, PROBLEM["remedy"])


def test_the_revision_agreed_on_goes_out_with_all_that_follows(fake: FakePostroom, proxy: Proxy) -> None:
    fake.rpc["initialize"] = lambda _: {"protocolVersion": "2025-06-18"}
    fake.rpc["ping"] = lambda _: {}
    # All at once, as a client in a hurry does: what follows still waits for what initialize settles.
    proxy.send(ask(1, "initialize"), tell("notifications/initialized"), ask(2, "ping"))
    assert [proxy.line()["id"], proxy.line()["id"]] == [1, 2]
    versions = {one.body["method"]: one.headers.get("MCP-Protocol-Version") for one in fake.wait_for(3)}
    assert versions == {"initialize": None, "notifications/initialized": "2025-06-18", "ping": "2025-06-18"}


def test_the_choice_of_tools_is_the_address_that_is_called(
    fake: FakePostroom, environment: dict[str, str]
) -> None:
    fake.rpc["tools/list"] = lambda _: {"tools": []}
    for words in ([], ["--tools", "core"], ["--tools", "full"]):
        proxy = Proxy(environment, "--no-start", *words)
        proxy.send(ask(1, "tools/list"))
        assert proxy.line()["result"] == {"tools": []}
        assert proxy.end() == 0
        assert fake.seen[-1].path == "/".join(["/mcp", *words[1:]])


def test_every_request_proves_who_the_caller_is(fake: FakePostroom, environment: dict[str, str]) -> None:
    fake.rpc["ping"] = lambda _: {}
    proxy = Proxy({**environment, "POSTROOM_AGENT_TOKEN": "pra_mine"}, "--no-start")
    proxy.send(ask(1, "ping"))
    proxy.line()
    assert proxy.end() == 0
    headers = fake.seen[0].headers
    assert headers["Authorization"] == "Bearer prm_test"
    assert headers["Postroom-Agent-Token"] == "pra_mine"
    assert headers["Accept"] == "application/json, text/event-stream"


def test_a_stream_comes_event_by_event(fake: FakePostroom, proxy: Proxy) -> None:
    step = json.dumps(tell("notifications/progress", progress=1), indent=1)
    fake.rpc["tools/call"] = lambda seen: Stream([step, json.dumps(rpc_result(seen, {"ok": True}))])
    proxy.send(ask(7, "tools/call"))
    assert proxy.line()["method"] == "notifications/progress"
    assert proxy.line() == {"jsonrpc": "2.0", "id": 7, "result": {"ok": True}}


def test_a_stream_that_ends_without_its_answer_is_told_as_a_failure(fake: FakePostroom, proxy: Proxy) -> None:
    for named, chunked in enumerate((True, False)):
        fake.rpc["tools/call"] = lambda _, chunked=chunked: Stream(
            [json.dumps(tell("notifications/x"))], chunked=chunked
        )
        proxy.send(ask(named, "tools/call"))
        assert proxy.line()["method"] == "notifications/x"
        found = proxy.line()
        assert (found["id"], found["error"]["code"]) == (named, -32000)
        assert found["error"]["data"]["code"] == "server_unavailable"
        assert "the change may or may not have been stored" in found["error"]["message"]


def test_a_call_whose_answer_was_lost_is_told_as_unknown_and_sent_once(
    fake: FakePostroom, proxy: Proxy
) -> None:
    def cut(seen: Seen) -> object:
        raise ConnectionAbortedError("the server was killed")

    fake.rpc["tools/call"] = cut
    proxy.send(ask(7, "tools/call", name="send_message"))
    error = proxy.line()["error"]
    assert "the change may or may not have been stored" in error["message"]
    assert "same idempotency_key" in error["data"]["remedy"]
    assert "postroom up" not in error["message"]
    assert [one.body["id"] for one in fake.wait_for(1, "tools/call")] == [7]


REPEATED: tuple[tuple[str, dict[str, object]], ...] = (
    ("tools/list", {}),
    ("resources/read", {"uri": "mail://agents/harbour"}),
    ("tools/call", {"name": "fetch_inbox", "arguments": {}}),
    ("tools/call", {"name": "send_message", "arguments": {"idempotency_key": "lamp"}}),
)


def test_a_read_and_a_keyed_change_whose_answer_was_lost_are_sent_once_more(
    fake: FakePostroom, proxy: Proxy
) -> None:
    for (method, parameters), is_stream in product(REPEATED, (False, True)):
        tries: list[Seen] = []

        def answer(seen: Seen, tries: list[Seen] = tries, is_stream: bool = is_stream) -> object:
            tries.append(seen)
            if len(tries) == 2:
                return {"try": 2}
            if is_stream:
                return Stream([])
            raise ConnectionAbortedError("the server was killed")

        fake.rpc[method] = answer
        proxy.send(ask(7, method, **parameters))
        assert proxy.line()["result"] == {"try": 2}
        assert [one.body for one in tries] == [ask(7, method, **parameters)] * 2


def test_a_cancelled_request_loses_its_stream_and_its_answer(fake: FakePostroom, proxy: Proxy) -> None:
    first = json.dumps(tell("notifications/subscriptions/acknowledged"))
    fake.rpc["subscriptions/listen"] = lambda _: Stream([first], stays_open=True)
    fake.rpc["ping"] = lambda _: {}
    proxy.send(modern("l", "subscriptions/listen"))
    assert proxy.line()["method"] == "notifications/subscriptions/acknowledged"
    proxy.send(tell("notifications/cancelled", requestId="l"))
    assert fake.left.wait(PATIENCE)
    proxy.send(ask(1, "ping"))
    assert proxy.line()["id"] == 1
    assert not [one for one in fake.seen if one.body["method"] == "notifications/cancelled"]


def test_a_request_that_still_waits_can_be_cancelled(fake: FakePostroom, proxy: Proxy) -> None:
    release = threading.Event()
    fake.rpc["slow"] = waiting_for(release)
    proxy.send(*(ask(number, "slow") for number in range(66)), tell("notifications/cancelled", requestId=65))
    proxy.send(b"{")
    assert proxy.line()["error"]["code"] == -32700  # all before it were read
    release.set()
    assert {proxy.line()["id"] for _ in range(65)} == set(range(65))
    assert proxy.end() == 0
    assert proxy.line() is None


def test_an_older_server_is_told_of_a_cancellation_too(fake: FakePostroom, proxy: Proxy) -> None:
    release = threading.Event()
    fake.rpc["slow"] = waiting_for(release)
    proxy.send(ask(1, "slow"))
    fake.wait_for(1, "slow")
    proxy.send(tell("notifications/cancelled", requestId=1))
    fake.wait_for(1, "notifications/cancelled")
    release.set()
    assert proxy.end() == 0
    assert proxy.line() is None


def test_it_outlives_its_server_and_works_when_that_is_back(tmp_path: Path) -> None:
    with FakePostroom(rpc={"ping": lambda _: {}}) as fake:
        proxy = Proxy(environment_for(fake.url, tmp_path), "--no-start")
        proxy.send(ask(1, "ping"))
        assert proxy.line()["result"] == {}
    proxy.send(ask(2, "ping"), tell("notifications/x"))
    error = proxy.line()["error"]
    assert (error["code"], error["data"]["code"]) == (-32000, "server_unavailable")
    assert "postroom up" in error["data"]["remedy"]
    assert "notifications/x was not delivered" in proxy.logged()
    with FakePostroom(rpc={"ping": lambda _: {}}, port=fake.port):
        proxy.send(ask(3, "ping"))
        assert proxy.line() == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert proxy.end() == 0


def test_it_ends_when_stdin_closes_and_closes_what_is_open(fake: FakePostroom, proxy: Proxy) -> None:
    first = json.dumps(tell("notifications/subscriptions/acknowledged"))
    fake.rpc["subscriptions/listen"] = lambda _: Stream([first], stays_open=True)
    proxy.send(modern("l", "subscriptions/listen"))
    proxy.line()
    assert proxy.end() == 0
    assert fake.left.wait(PATIENCE)
    assert proxy.line() is None
    assert proxy.is_silent()


def test_a_question_piped_in_is_answered_although_stdin_closes_at_once(
    fake: FakePostroom, environment: dict[str, str]
) -> None:
    fake.rpc["ping"] = lambda _: {}
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "mcp", "--no-start"],
        input=json.dumps(ask(1, "ping")).encode() + b"\n",
        env=environment,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert done.stderr == b""


def test_ctrl_c_ends_it_quietly(fake: FakePostroom, proxy: Proxy) -> None:
    fake.rpc["ping"] = lambda _: {}
    proxy.send(ask(1, "ping"))
    proxy.line()
    proxy.process.send_signal(signal.SIGINT)
    assert proxy.process.wait(PATIENCE) == 130
    proxy.end()
    assert proxy.is_silent()


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of an installation without a server; a started server is stopped."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    data = tmp_path / "data"
    yield {
        **environment,
        "POSTROOM_DATA_DIR": str(data),
        "POSTROOM_PORT": "0",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    # On a busy machine a second server may wait for the database of the first.
    started = [one for one in psutil.process_iter() if data_folder_of(one) == str(data)]
    for process in started:
        process.terminate()
    assert not psutil.wait_procs(started, timeout=PATIENCE)[1]


def data_folder_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("POSTROOM_DATA_DIR")
    except psutil.Error:
        return None


def test_clients_that_begin_at_once_share_one_server_which_outlives_them(env: dict[str, str]) -> None:
    data = Path(env["POSTROOM_DATA_DIR"])
    proxies = [Proxy(env) for _ in range(3)]
    for proxy in proxies:
        proxy.send(ask(1, "tools/call", name="health_check", arguments={}))
    for proxy in proxies:
        assert proxy.line(patience=60)["result"]["structuredContent"]["status"] == "ok"
        assert proxy.end() == 0
    note = places.read_server_note(data)
    assert note is not None
    assert read_owner(data / "postroom.db")["pid"] == note.pid
    assert Server(locate(env)).is_ready()
    assert (data / "server.log").stat().st_mode & 0o077 == 0


def test_calls_in_flight_at_a_killed_server_are_repeated_or_told_as_unknown_and_stored_once(
    env: dict[str, str],
) -> None:
    data, folder = Path(env["POSTROOM_DATA_DIR"]), env["POSTROOM_DATA_DIR"]
    proxy = Proxy(env)

    def call(number: int, tool: str, **arguments: object) -> dict[str, object]:
        return ask(number, "tools/call", name=tool, arguments={"project_key": folder, **arguments})

    def send(number: int) -> dict[str, object]:
        message = {"sender_name": "Ada", "to": ["Ada"], "subject": "Lamp", "body_md": f"It is lit: {number}."}
        return call(number, "send_message", **message, idempotency_key=f"lamp-{number}")

    proxy.send(ask(1, "tools/call", name="ensure_project", arguments={"human_key": folder}))
    assert "error" not in proxy.line(patience=60)
    proxy.send(call(2, "register_agent", program="p", model="m", name="Ada"))
    assert "error" not in proxy.line()
    proxy.send(send(10))
    assert "error" not in proxy.line()
    note = places.read_server_note(data)
    assert note is not None
    process = psutil.Process(note.pid)
    process.suspend()
    open_before = len(process.net_connections("tcp"))
    numbers = (10, 11, 12, 13)
    message = {"sender_name": "Ada", "to": ["Ben"], "subject": "Lamp", "body_md": "It is lit."}
    proxy.send(*map(send, numbers), call(14, "list_agents"), call(15, "send_message", **message))
    client = psutil.Process(proxy.process.pid)
    established = lambda: sum(one.status == "ESTABLISHED" for one in client.net_connections("tcp"))  # noqa: E731
    soon(lambda: established() >= len(numbers) + 2, lambda: (open_before, established()))
    process.kill()
    answers = [proxy.line(patience=60) for _ in (*numbers, 14, 15)]
    told = {one["id"]: one["error"]["message"] for one in answers if "error" in one}
    assert {one["id"] for one in answers} == {*numbers, 14, 15}
    unknown = "the change may or may not have been stored"
    assert unknown in told.pop(15)
    left = set(told) - {14}
    assert all(unknown in told[number] for number in left)
    for _ in range(5 if left else 0):  # on a busy machine a start may take longer than the proxy waits for it
        proxy.send(*map(send, left))
        left -= {one["id"] for one in [proxy.line(patience=60) for _ in set(left)] if "error" not in one}
        if not left:
            break
    proxy.send(call(20, "fetch_inbox", agent_name="Ada", include_bodies=True))
    inbox = proxy.line()["result"]["structuredContent"]
    bodies = sorted(one["body_md"] for one in inbox["result"])
    assert bodies == [f"It is lit: {number}." for number in numbers]
    assert proxy.end() == 0


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdk_s_client_works_through_it_in_both_eras(
    env: dict[str, str], tmp_path: Path, mode: Literal["auto", "legacy"]
) -> None:
    first = Proxy(
        env
    )  # starts the server: the SDK falls back to the older revision if the first answer takes long
    first.send(ask(1, "ping"))
    first.line()
    command = StdioServerParameters(command=sys.executable, args=["-m", "postroom", "mcp"], env=env)
    project = {"project_key": str(tmp_path)}
    async with Client(command, mode=mode, read_timeout_seconds=PATIENCE) as client:
        made = await client.call_tool("ensure_project", {"human_key": str(tmp_path)})
        for name in ("Ada", "Bo"):
            await client.call_tool("register_agent", {**project, "name": name, "program": "p", "model": "m"})
        refused = await client.call_tool("whois", {**project, "agent_name": "Nobody"})
        assert refused.structured_content["error"]["code"] == "unknown_agent"
        message = {**project, "sender_name": "Ada", "to": ["Bo"], "subject": "s", "body_md": "b"}
        if mode == "auto":
            inbox_uri = f"mail://inbox/{made.structured_content['slug']}/Bo"
            async with client.listen(resource_subscriptions=[inbox_uri]) as news:
                await client.call_tool("send_message", message)
                async with asyncio.timeout(PATIENCE):
                    event = await anext(aiter(news))
            assert event.uri == inbox_uri
        else:
            await client.call_tool("send_message", message)
        inbox = await client.call_tool("fetch_inbox", {**project, "agent_name": "Bo"})
        assert [one["subject"] for one in inbox.structured_content["result"]] == ["s"]
    first.end()


def test_a_server_that_cannot_start_leaves_the_reason_in_its_log(env: dict[str, str]) -> None:
    proxy = Proxy({**env, "POSTROOM_PROFILE": "enormous"})
    proxy.send(ask(1, "ping"))
    error = proxy.line()["error"]
    assert error["data"]["code"] == "server_unavailable"
    assert "exit code 78: profile is 'enormous'" in error["message"]
    log = Path(env["POSTROOM_DATA_DIR"]) / "server.log"
    assert str(log) in proxy.logged()
    assert "enormous" in log.read_text()
    assert proxy.end() == 0
