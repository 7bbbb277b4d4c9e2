"""`postroom up` with chats: a real process with a gateway.toml, a model's endpoint of the test, and people."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from channels.fake_telegram import TOKEN as TELEGRAM_TOKEN
from channels.fake_telegram import FakeTelegram
from e2e.running import START_PATIENCE, Line, RunningServer, plain_environment
from machine import PATIENCE
from runtime.test_openai_model import END, FakeEndpoint, chunk

pytestmark = pytest.mark.long

KEY = "key-of-the-api-0123456789"
HOOK_SECRET = "secret-of-the-build-server"
CHAT_TOKEN = "the token of the harbour"


class EchoingModel(FakeEndpoint):
    """Answers with the last message and how many messages it was shown; it can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.asked = threading.Event()
        self.hold: Callable[[], None] = self.free.clear
        self.release: Callable[[], None] = self.free.set

    async def _stream(self, writer: asyncio.StreamWriter, *answer: Any) -> None:
        self.asked.set()
        await self.free.wait()
        await super()._stream(writer, *answer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answers = _Echo(self.bodies)  # type: ignore[assignment]  # made when it is asked for
        try:
            await super()._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()


class _Echo:
    def __init__(self, bodies: list[Any]) -> None:
        self._bodies = bodies

    def pop(self, _: int) -> list[str]:
        told = [one for one in self._bodies[-1]["messages"] if one["role"] != "system"]
        text = told[-1]["content"]
        words = text if isinstance(text, str) else text[0]["text"]
        return [chunk(content=f"re: {words} "), chunk("stop", content=f"({len(told)})"), END]


@contextmanager
def on_a_loop_of_its_own(serving: Callable[[], Any]) -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """Serve a fake from another thread, while the test waits for processes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def there(work: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(work), loop).result(PATIENCE)

    context = serving()
    try:
        yield there(context.__aenter__()), loop
    finally:
        there(context.__aexit__(None, None, None))
        there(_nothing_left())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


async def _nothing_left() -> None:
    """End what still waits for clients that are gone."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=PATIENCE)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


@pytest.fixture
def model() -> Iterator[EchoingModel]:
    @asynccontextmanager
    async def serving():
        async with EchoingModel().serving() as fake:
            yield fake

    with on_a_loop_of_its_own(serving) as (fake, loop):
        fake.hold = lambda: loop.call_soon_threadsafe(fake.free.clear)
        fake.release = lambda: loop.call_soon_threadsafe(fake.free.set)
        yield fake
        fake.release()


def secret(folder: Path, name: str, text: str, mode: int = 0o600) -> None:
    path = folder / name
    path.write_text(text + "\n")
    path.chmod(mode)


def configured(tmp_path: Path, model_url: str, more: str = "", name: str = "data") -> Path:
    """Make a data folder with a gateway.toml: the chat page, the API, and `more`."""
    data = tmp_path / name
    data.mkdir(mode=0o700)
    secret(data, "chat.token", CHAT_TOKEN)
    secret(data, "api.key", KEY)
    (data / "gateway.toml").write_text(
        f'[agent]\nbase_url = "{model_url}"\nmodel = "echo"\ninstructions = "Be brief."\n'
        '[platforms.web]\ntoken_file = "chat.token"\nname = "ada"\n'
        f'[platforms.api_server]\napi_key_file = "api.key"\n{more}'
    )
    return data


def command(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of postroom on a data folder."""
    return subprocess.run(
        [sys.executable, "-m", "postroom", *words, "--data-dir", str(data)],
        env=plain_environment(data.parent),
        capture_output=True,
        text=True,
        timeout=START_PATIENCE * 2,
    )


def told(data: Path, *words: str) -> Any:
    done = command(data, "gateway", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def ask(server: RunningServer, text: str, session: str = "harbour") -> str:
    """Send a message over the API and return the answer."""
    answer = httpx2.post(
        f"{server.url}/v1/chat/completions",
        json={"model": "postroom", "messages": [{"role": "user", "content": text}]},
        headers={"Authorization": f"Bearer {KEY}", "X-Postroom-Session": session},
        timeout=PATIENCE,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


@contextmanager
def chat_page(server: RunningServer) -> Iterator[httpx2.Client]:
    """A browser that signed in."""
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as browser:
        own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        assert browser.post("/chat/sign-in", data={"token": CHAT_TOKEN}, headers=own).status_code == 303
        browser.headers["X-Postroom"] = "1"
        yield browser


def shown(browser: httpx2.Client, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Watch the page until an entry is as wanted."""
    with browser.stream("GET", "/chat/events") as events:
        for line in events.iter_lines():
            if line.startswith("data: ") and is_it(entry := json.loads(line[6:])):
                return entry
    raise AssertionError("the page was told no more")


def is_answer(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda entry: entry.get("text") == text and not entry["draft"]


def test_chats_are_answered_and_go_on_after_a_restart(tmp_path: Path, model: EchoingModel) -> None:
    data = configured(tmp_path, model.url)
    server = RunningServer(data)
    with server:
        assert ask(server, "good morning") == "re: good morning (1)"
        with chat_page(server) as browser:
            kept = browser.post("/chat/messages", json={"id": "message-of-ada", "text": "lights?"})
            assert (kept.status_code, kept.json()["state"]) == (202, "kept")
            assert shown(browser, is_answer("re: lights? (1)"))["kind"] == "answer"
        found = told(data, "status")
        assert found["state"] == "running"
        assert {name: one["state"] for name, one in found["channels"].items()} == {
            "web": "connected",
            "api_server": "connected",
        }
        messages = found["messages"]
        assert (messages["accepted"], messages["rejected"], messages["adds_up"]) == (2, 0, True)
        with server.line() as line:
            numbers = line.request("GET", "/metrics").text
            assert 'postroom_chat_messages_total{outcome="started"} 2.0' in numbers
            assert 'postroom_mailbox_dispatch_depth{status="acked"} 2.0' in numbers
            assert line.request("GET", "/readyz").json()["checks"]["channels"] == {
                "state": "ok",
                "connected": 2,
                "of": 2,
            }
        assert server.stop() == 0
    assert model.bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    with server:
        assert ask(server, "and now?") == "re: and now? (3)"
        with chat_page(server) as browser:
            browser.post("/chat/messages", json={"id": "message-two-of-ada", "text": "still?"})
            shown(browser, is_answer("re: still? (3)"))
    assert "Traceback" not in server.log()
    assert (data / "gateway").stat().st_mode & 0o777 == 0o700


def entries(browser: httpx2.Client, conversation: str) -> list[str]:
    found = browser.get(f"/chat/conversations/{conversation}").json()["entries"]
    return [one["text"] for one in found]


def test_an_answer_streams_in_the_openai_protocol(tmp_path: Path, model: EchoingModel) -> None:
    text = "where is the harbour master, and who has the keys of the north shed tonight?"
    with RunningServer(configured(tmp_path, model.url)) as server:
        asked = {"model": "postroom", "messages": [{"role": "user", "content": text}], "stream": True}
        pieces = []
        with httpx2.stream(
            "POST",
            f"{server.url}/v1/chat/completions",
            json=asked,
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=PATIENCE,
        ) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line.removeprefix("data: "))["choices"][0])
            assert line == "" or line == "data: [DONE]"
        said = "".join(one["delta"].get("content") or "" for one in pieces)
        assert said == f"re: {text} (1)"
        assert [one["finish_reason"] for one in pieces if one["finish_reason"]] == ["stop"]


def test_a_server_that_dies_before_it_learns_of_a_hang_up_finishes_the_run_and_serves_the_retry(
    tmp_path: Path, model: EchoingModel
) -> None:
    asked = {"model": "postroom", "messages": [{"role": "user", "content": "who has the keys?"}]}
    head = {"Authorization": f"Bearer {KEY}", "X-Postroom-Session": "harbour"}
    with RunningServer(configured(tmp_path, model.url)) as server:
        model.hold()
        with server.line() as line:
            body = json.dumps(asked).encode()
            raw = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {':'.join(map(str, server.address))}\r\n".encode()
            for name, value in (
                head | {"Content-Type": "application/json", "Content-Length": len(body)}
            ).items():
                raw += f"{name}: {value}\r\n".encode()
            line.send(raw + b"\r\n" + body)
            assert model.asked.wait(PATIENCE)
            os.kill(server.pid, signal.SIGSTOP)  # what the client does from now on reaches no code
        server.kill()
        model.release()
        server.start()
        retry = httpx2.post(
            f"{server.url}/v1/chat/completions",
            json=asked,
            headers=head | {"x-stainless-retry-count": "1"},
            timeout=PATIENCE,
        )
        assert retry.json()["choices"][0]["message"]["content"] == "re: who has the keys? (1)"
        assert ask(server, "and the lamp?") == "re: and the lamp? (3)", "the question is in the session once"


def test_what_the_operator_says_appears_in_the_chat_and_strangers_stay_out(
    tmp_path: Path, model: EchoingModel
) -> None:
    data = configured(tmp_path, model.url)
    with RunningServer(data) as server:
        sent = told(data, "send", "web", "ada", "The lights go out at ten.", "--idempotency-key", "ten")
        again = told(data, "send", "web", "ada", "The lights go out at ten.", "--idempotency-key", "ten")
        assert sent["outbox_id"] == again["outbox_id"]
        with chat_page(server) as browser:
            shown(browser, is_answer("The lights go out at ten."))
        listed = told(data, "people")
        assert [(one["platform"], one["role"], one["from"]) for one in listed["people"]] == [
            ("web", "owner", "secret"),
            ("api_server", "operator", "secret"),
        ]
        assert listed["asking"] == []
        assert told(data, "dead") == {"undelivered": []}
        for words, code in (
            (("pair", "web", "ABCDEFGH"), 2),
            (("pair", "slack", "ABCDEFGH"), 2),
            (("people", "--remove", "web/nobody"), 2),
            (("send", "telegram", "1", "hi"), 2),
            (("dead", "--revive", "nothing"), 2),
        ):
            done = command(data, "gateway", *words)
            assert (done.returncode, "remedy" in done.stderr) == (code, True), words


def test_every_other_address_still_needs_the_token(shared: RunningServer) -> None:
    get = ("/health/detailed", "/admin/gateway/people", "/metrics", "/channels", "/chats", "/v1x")
    post = (
        "/admin/gateway/send",
        "/mcp",
        "/channels/telegram",
        "/channels/webhooks/ci",
        "/webhook/ci",
    )
    with Line(shared.address) as line:
        asked = [("GET", path) for path in get] + [("POST", path) for path in post]
        assert [one for one in asked if line.request(*one, body=b"{}").status != 401] == []


def test_a_channel_looks_itself_who_calls(shared: RunningServer) -> None:
    with Line(shared.address) as line:
        wrong = line.request("GET", "/v1/models", headers=shared.headers)
        assert wrong.status == 401
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        page = line.request("GET", "/chat")
        assert page.status == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert line.request("GET", "/chat", headers={"Host": "evil.test"}).status == 421
        assert line.request("GET", "/chat", headers={"Origin": "http://evil.test"}).status == 403


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    hook = '[platforms.webhook.routes.ci]\nsecret_file = "ci.secret"\n'
    with refusing_endpoint() as url:
        data = configured(tmp_path_factory.mktemp("shared"), url, hook)
        secret(data, "ci.secret", HOOK_SECRET)
        with RunningServer(data) as running:
            yield running


class Refusing(BaseHTTPRequestHandler):
    """Refuses every key: a failure that is reported at once, because it does not pass by itself."""

    def do_POST(self) -> None:
        self.send_error(401)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def refusing_endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    serving.join()


def up(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command(data, *(words or ("up",)), "--port", "0")


def test_a_start_that_cannot_be_ends_with_78_and_one_sentence(tmp_path: Path) -> None:
    data = configured(tmp_path, "http://127.0.0.1:9/v1")
    (data / "api.key").chmod(0o640)
    for done in (up(data), command(data, "gateway", "config", "check")):
        assert (done.returncode, "Traceback" in done.stderr) == (78, False)
        assert "api.key can be used by other users (mode 0640)" in done.stderr
        assert "remedy: " in done.stderr
        assert not (data / "server.json").exists()


def test_without_a_file_the_server_runs_and_the_gateway_does_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for words in (("gateway", "run"), ("gateway", "config", "check")):
        done = command(data, *words)
        assert (done.returncode, "gateway.toml" in done.stderr) == (78, True)
    with RunningServer(data):
        assert told(data, "status") == {"state": "off"}
        assert command(data, "gateway", "status").stdout.startswith("off")
        done = command(data, "gateway", "people")
        assert (done.returncode, "has no gateway" in done.stderr) == (78, True)


def test_two_servers_cannot_share_one_bot(tmp_path: Path) -> None:
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (telegram, _):
        table = f'[platforms.telegram]\ntoken_file = "bot.token"\nbase_url = "{telegram.url}"\n'
        first, second = (
            configured(tmp_path, "http://127.0.0.1:9/v1", table, name=name) for name in ("first", "second")
        )
        for data in (first, second):
            secret(data, "bot.token", TELEGRAM_TOKEN)
        with RunningServer(first):
            assert told(first, "status")["channels"]["telegram"]["state"] == "connected"
            done = up(second)
            assert done.returncode == 78
            assert "another process receives messages with the same telegram token" in done.stderr
            assert "Traceback" not in done.stderr
            assert told(first, "status")["channels"]["telegram"]["state"] == "connected"
