"""The card with the open questions: the reference SDK of MCP Apps shows it in a real browser, sandboxed and without a network."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from e2e.browser import Browser
from e2e.running import RunningServer, postroom, soon
from e2e.test_protocol_revisions import META, NEWEST
from mail_room import HARBOR
from real_clients.home import PROGRAMS, are_installed, beside_packages
from real_clients.test_elicitation import NODE, PRICE, answered, open_questions

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

needs_npm = pytest.mark.skipif(
    not are_installed(("@modelcontextprotocol/ext-apps", "node")),
    reason="the clients are not installed in their pinned versions: `make clients`",
)
EXTENSION = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
CARD_TOOLS = {"list_questions", "answer_question"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("cards") / "data") as running:
        with running.line() as line:
            line.tool("ensure_project", human_key=HARBOR)
            line.tool("register_agent", project_key=HARBOR, program="p", model="m", name="Ada")
        yield running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The host with the modules that it imports, in one file."""
    made = tmp_path_factory.mktemp("host") / "host.js"
    rolldown = PROGRAMS.parent / "rolldown" / "bin" / "cli.mjs"
    with beside_packages("card_host.mjs") as script:
        words = [NODE, rolldown, script, "--file", made, "--format", "esm", "--platform", "browser"]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return made.read_bytes()


@contextmanager
def hosted(server: RunningServer, program: bytes) -> Iterator[str]:
    """Serve the page of the host, which reaches the server at its own address and has the operator's token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b"<!doctype html><title>host</title><body><script type=module src=/host.js></script>"
            is_script = self.path == "/host.js"
            self._send(200, program if is_script else page, "text/javascript" if is_script else "text/html")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept = ("accept", "content-type", "mcp-")
            headers = {name: value for name, value in self.headers.items() if name.lower().startswith(kept)}
            headers["Authorization"] = f"Bearer {server.token}"
            found = httpx2.post(f"{server.url}/mcp", content=body, headers=headers, timeout=60)
            session = found.headers.get("mcp-session-id")
            self._send(found.status_code, found.content, found.headers.get("content-type", ""), session)

        def _send(self, status: int, body: bytes, kind: str, session: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if session:
                self.send_header("Mcp-Session-Id", session)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    page = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{page.server_port}/"
    finally:
        page.shutdown()
        thread.join()
        page.server_close()


class Card:
    """The card in its sandbox, which only the tools of a developer can look into."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        soon(lambda: browser.see("window.isShown === true"), "the host shows the card")
        self.tab, self.frame = browser.tab, browser.frame()

    def see(self, expression: str) -> Any:
        self.browser.go_to(self.frame)
        try:
            return self.browser.see(expression)
        finally:
            self.browser.go_to(self.tab)

    def press(self, text: str, question: str) -> None:
        self.see(
            f"[...document.querySelectorAll('li')].find(one => one.textContent.includes({question!r}))"
            f".querySelectorAll('button').forEach(one => one.textContent === {text!r} && one.click())"
        )

    def becomes(self, expression: str, wanted: Any = True) -> None:
        soon(lambda: self.see(expression) == wanted, f"{expression} is {wanted}")


def ask(server: RunningServer, question: str, **more: Any) -> str:
    with server.line() as line:
        asked = {"project_key": HARBOR, "agent_name": "Ada", "question": question}
        return str(line.tool("ask_person", **asked, **more)["question_id"])


def record(server: RunningServer, number: str) -> dict[str, Any]:
    with server.line() as line:
        return dict(line.request("GET", f"/admin/questions/one?number={number}").json())


@needs_npm
def test_a_person_answers_in_the_card_and_each_other_surface_shows_it(
    server: RunningServer, program: bytes, browser: Browser
) -> None:
    drop = ask(server, "May I <b>drop</b> it?", action="DROP TABLE payments_old")
    currency = ask(server, "Which currency?", choices=["EUR", "USD"])
    price = ask(server, "Which price?", form=PRICE)
    named = ask(server, "Only an operator?", to=["operator"])
    other = ask(server, "Answered elsewhere?")
    soon(lambda: len(open_questions(server)) == 5, "all are asked")
    with hosted(server, program) as address:
        browser.open(address)
        card = Card(browser)
        assert set(browser.see("window.tools")) >= CARD_TOOLS
        assert browser.see("window.mimeType") == "text/html;profile=mcp-app"
        card.becomes("document.querySelectorAll('li').length", 5)
        assert card.see("document.querySelector('.asked b')") is None
        assert card.see("document.querySelector('pre').textContent") == "DROP TABLE payments_old"
        assert card.see("document.querySelector('form')") is None  # Enter answers nothing
        card.press("USD", "Which currency?")
        card.becomes("document.querySelectorAll('li').length", 4)
        given = record(server, currency)
        assert (given["answer"], given["answered_by"]) == ("USD", "the person at the client")
        assert "in a card of the client" in [one["where"] for one in given["shown"]]
        card.press("Send", "Which price?")
        card.becomes("document.querySelector('.why:not(:empty)')?.textContent.includes('amount is missing')")
        assert record(server, price)["state"] == "open"
        card.see("document.querySelector('li input[inputmode=decimal]').value = '5'")
        card.press("Send", "Which price?")
        card.becomes("document.querySelectorAll('li').length", 3)
        assert record(server, price)["answer"] == '{"amount": 5}'
        answered(server, other, "no")
        card.becomes("document.querySelectorAll('li').length", 2)
        card.press("No", "drop")
        card.becomes("document.querySelectorAll('li').length", 1)
        assert record(server, drop)["approved"] is False
        assert card.see("document.querySelector('li button')") is None
        assert "answer it on the pages" in card.see("document.querySelector('li').textContent")
        answered(server, named, "no")
        card.becomes("document.getElementById('state').textContent.length > 0")
    assert not [one for one in browser.complaints() if "'type': 'debug'" not in one]  # the SDK's own log


def call(server: RunningServer, method: str, token: str = "", session: str = "", **params: Any) -> Any:
    """Call the server as a client of the newest revision, or of an earlier revision with a session id."""
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": EXTENSION}}
    headers = {"Authorization": f"Bearer {token or server.token}", "MCP-Protocol-Version": NEWEST}
    headers |= {"Mcp-Method": method, "Accept": "application/json, text/event-stream"}
    headers |= {"Mcp-Name": str(params.get("name") or params.get("uri"))} if len(params) else {}
    if session:
        headers = {"Authorization": headers["Authorization"], "Mcp-Session-Id": session}
        headers |= {"Accept": "application/json, text/event-stream"}
    document = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    if session:
        document["params"].pop("_meta")
    found = httpx2.post(f"{server.url}/mcp", json=document, headers=headers, timeout=60)
    return found.json()


def listed(server: RunningServer, **more: str) -> set[str]:
    return {one["name"] for one in call(server, "tools/list", **more)["result"]["tools"]}


def test_only_the_operator_at_a_client_that_shows_cards_is_offered_their_tools(server: RunningServer) -> None:
    assert listed(server) >= CARD_TOOLS
    assert listed(server, session="cards-0123") >= CARD_TOOLS
    assert not listed(server, session="elicits-0123") & CARD_TOOLS
    with server.line() as line:
        plain = line.rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()["result"]["tools"]
        assert not {one["name"] for one in plain} & CARD_TOOLS
    created = postroom(
        server.data_dir, "tokens", "create", "agent", "--scope", "mail:read", "--scope", "mail:send"
    )
    assert created.returncode == 0, created.stderr
    made = created.stdout.strip()
    assert not listed(server, token=made) & CARD_TOOLS
    number = ask(server, "May an agent answer this?")
    soon(lambda: number in [one["number"] for one in open_questions(server)], "it is asked")
    given = {"name": "answer_question", "arguments": {"number": number, "answer": "yes"}}
    for refused in (
        call(server, "tools/call", token=made, **given),
        call(server, "tools/call", session="x", **given),
    ):
        assert "error" in refused or refused["result"]["isError"], refused
    assert record(server, number)["state"] == "open"
    answered(server, number, "no")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"number": 7, "answer": "yes"},
        {"number": "ffffff", "answer": "yes"},
        {"number": "", "answer": {"a": 1}},
        {"number": "x" * 5_000, "answer": "yes", "why": "y" * 5_000},
        {"number": "ffffff", "answer": ["yes"]},
    ],
)
def test_bad_input_of_a_card_is_refused_and_changes_nothing(server: RunningServer, arguments) -> None:
    # Another question each time: asked again at once, it is the one that was just answered.
    number = ask(server, f"Is {str(arguments)[:40]} right?")
    soon(lambda: number in [one["number"] for one in open_questions(server)], "it is asked")
    found = call(server, "tools/call", name="answer_question", arguments=arguments)
    assert found["result"]["isError"], found
    assert json.loads(json.dumps(found["result"]["structuredContent"]))["error"]["remedy"]
    assert record(server, number)["state"] == "open"
    answered(server, number, "no")


def test_the_card_loads_nothing_and_only_one_resource_has_it(server: RunningServer) -> None:
    found = call(server, "resources/read", uri="ui://postroom/questions")["result"]["contents"]
    [content] = found
    assert content["mimeType"] == "text/html;profile=mcp-app"
    for outside in ("http:", "https:", "src=", "href=", "import ", "fetch(", "innerHTML", "eval("):
        assert outside not in content["text"], outside
    assert "error" in call(server, "resources/read", uri="ui://postroom/other")
