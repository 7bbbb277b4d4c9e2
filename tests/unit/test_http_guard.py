"""The HTTP middleware: accepted requests, refusals, and hostile requests that do not make the server fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from log_lines import capture_logs
from postroom.app.tokens import token_check
from postroom.contracts.errors import StoreUnavailable, UnknownAgent
from postroom.http_api.guard import SMALL_BODY, Credentials, Guard, GuardRules, OpenPath
from postroom.log import bound_facts
from postroom.mcp_server.callers import AGENT_TOKEN_SCOPE, OPERATOR_SCOPE
from postroom.services.login_codes import EndedSessions, Sessions
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from table_rows import each_row

TOKEN = "prm_" + "t" * 43
AGENT_TOKEN = "pra_" + "a" * 43
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LIMIT = 64 * 1024
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what the guard let through."""
    request = Request(scope, receive)
    answer = JSONResponse(
        {
            **{"path": request.url.path, "caller": request.state.caller},
            **{"request_id": request.state.request_id, "operator": scope.get(OPERATOR_SCOPE)},
            **{"agent_token": scope.get(AGENT_TOKEN_SCOPE), "bytes": len(await request.body())},
            "bound": dict(bound_facts()),
        }
    )
    await answer(scope, receive, send)


async def is_agent(token: str) -> bool:
    return token == AGENT_TOKEN


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    starts: int = 0

    def json(self) -> Any:
        return json.loads(self.body)


def sessions() -> Sessions:
    clock = ManualClock()
    return Sessions(b"k" * 32, clock, EndedSessions(SqliteStore.in_memory(clock)))


def guarded(app: ASGIApp = echo, **rules: Any) -> Guard:
    return Guard(
        app,
        GuardRules(max_request_bytes=LIMIT, **rules),
        Credentials(is_operator=token_check(TOKEN), sessions=sessions(), is_agent=is_agent),
    )


async def ask(
    app: ASGIApp,
    path: str = "/mcp",
    *,
    method: str = "GET",
    headers: list[tuple[bytes, bytes]] | None = None,
    raw_path: bytes | None = None,
    query: bytes = b"",
    body: list[bytes] | None = None,
) -> Reply:
    """Send a request as a server would hand it over, however odd it is."""
    given = [(b"host", b"127.0.0.1:8765")] if headers is None else headers
    scope: MutableMapping[str, Any] = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method},
        **{"scheme": "http", "path": path},
        "raw_path": path.encode("utf-8", "surrogatepass") if raw_path is None else raw_path,
        **{"query_string": query, "root_path": "", "headers": given, "client": ("127.0.0.1", 5)},
        "server": ("127.0.0.1", 8765),
    }
    parts = list(body or [b""])
    reply = Reply()

    async def receive() -> Message:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.starts += 1
            reply.status = message["status"]
            reply.headers = {
                key.decode().lower(): value.decode("latin-1") for key, value in message["headers"]
            }
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, send)
    return reply


def head(
    *extra: tuple[bytes, bytes], host: bytes = b"127.0.0.1:8765", token: bool = True
) -> list[tuple[bytes, bytes]]:
    proof = [(b"authorization", f"Bearer {TOKEN}".encode())] if token else []
    return [(b"host", host), *proof, *extra]


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=guarded())
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8765") as made:
        yield made


OURS = b"127.0.0.1 127.0.0.1:8765 127.0.0.1:1 localhost:9 LOCALHOST:9 [::1]:8765 [::1]".split()
OURS += b"[0:0:0:0:0:0:0:1]:8765 mail.example.com Mail.Example.com:443 10.0.0.7:8765".split()
THEIRS = (b"", b"evil.example", b"evil.example:8765", b"127.0.0.1.evil.example", b"localhost.evil.example")
THEIRS += (b"evil.example/localhost", b"localhost@evil.example", b"localhost:8765:8765", b"localhost:65536")
THEIRS += (b"localhost:99999999", b"localhost:", b"localhost:\xc2\xb2", b"local host", b"::1", b"[::1")
THEIRS += (b"[::ffff:]", b"[]", b"\xff\xfe", b"localhost\x00", b"x" * 5000)


@each_row("host, passes", [*((host, True) for host in OURS), *((host, False) for host in (*THEIRS, None))])
async def test_only_the_names_of_this_server_are_answered(host: bytes | None, passes: bool) -> None:
    app = guarded(host="10.0.0.7", allowed_hosts=("mail.example.com",))
    reply = await ask(app, headers=head()[1:] if host is None else head(host=host))
    assert reply.status == (200 if passes else 421)
    if not passes:
        assert reply.json()["code"] == "unknown_host"
        assert "POSTROOM_ALLOWED_HOSTS" in reply.json()["remedy"]


FOREIGN = b"http://localhost:3000 http://127.0.0.1:8765 https://localhost https://localhost:8765".split()
FOREIGN += b"http://evil.example http://evil.example:8765 http://localhost:8765.evil.example null".split()
FOREIGN += b"http://localhost:8765@evil.example http://localhost:8765/ file:// chrome-extension://abc".split()
FOREIGN += (b"", b"http://localhost:8765 http://evil.example", b"\xff")


@each_row(
    "host, origin, passes",
    [
        (b"localhost:8765", b"http://localhost:8765", True),
        (b"localhost:8765", b"HTTP://LOCALHOST:8765", True),
        (b"[::1]:8765", b"http://[::1]:8765", True),
        (b"localhost", b"http://localhost", True),
        (b"localhost:80", b"http://localhost", True),
        (b"mail.example.com", b"https://mail.example.com", True),
        (b"mail.example.com:443", b"https://mail.example.com", True),
        (b"127.0.0.1:8765", b"https://mail.example.com", True),
        (b"127.0.0.1:8765", b"http://mail.example.com:8765", True),
        (b"127.0.0.1:8765", b"http://mail.example.com:3000", False),
        (b"mail.example.com", b"https://mail.example.com:3000", False),
        (b"127.0.0.1:8765", b"https://127.0.0.1:8765", False),
        *((b"localhost:8765", origin, False) for origin in FOREIGN),
    ],
)
async def test_a_page_of_another_origin_may_send_nothing(host: bytes, origin: bytes, passes: bool) -> None:
    app = guarded(allowed_hosts=("mail.example.com",))
    for path in ("/mcp", "/p/x", "/healthz", "/login", "/static/x.css"):
        reply = await ask(app, path, method="POST", headers=head((b"origin", origin), host=host))
        assert reply.status == (200 if passes else 403)
        if not passes:
            assert reply.json()["code"] == "foreign_origin"


WRONG = (
    *(b"", b" ", b" wrong", b" " + TOKEN.encode()[:-1], b" " + TOKEN.encode() + b"t", b" \xff\xfe", b" \x00"),
)
WRONG += (b" " + TOKEN.upper().encode(), b" " + b"x" * 60_000)


async def test_a_wrong_token_opens_nothing() -> None:
    cookie = (b"cookie", f"{sessions().cookie_name}={sessions().issue()}".encode())
    for wrong in WRONG:
        headers = head((b"authorization", b"Bearer" + wrong), cookie, token=False)
        for path in ("/mcp", "/p/x", "/admin/status", "/metrics"):
            reply = await ask(guarded(), path, headers=headers)
            assert (reply.status, reply.json()["code"], reply.json()["value"]) == (401, "wrong_token", None)
            assert reply.headers["www-authenticate"] == 'Bearer realm="postroom"'
    app = Guard(echo, GuardRules(), Credentials(is_operator=token_check(TOKEN), sessions=sessions()))
    agents = head((b"authorization", f"Bearer {AGENT_TOKEN}".encode()), token=False)
    assert (await ask(app, headers=agents)).status == 401, "nobody looks for tokens of agents"


@each_row("headers", [{}, {"Authorization": "Basic dTpw"}, {"Authorization": TOKEN}])
async def test_without_a_token_the_answer_says_that_one_is_needed(
    client: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    for path in ("/mcp", "/p/x", "/", "/nowhere"):
        reply = await client.post(path, headers=headers)
        problem = reply.json()
        assert (reply.status_code, problem["code"], problem["status"]) == (401, "token_required", 401)
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.headers["www-authenticate"] == 'Bearer realm="postroom"'
        assert problem["request_id"] == reply.headers["x-request-id"]
        assert "Authorization: Bearer" in problem["remedy"]


async def test_the_servers_token_makes_an_operator(client: httpx2.AsyncClient) -> None:
    for path in ("/mcp", "/p/x", "/admin/status"):
        for scheme in ("Bearer", "bearer", "BEARER"):
            found = (await client.get(path, headers={"Authorization": f"{scheme} {TOKEN}"})).json()
            assert (found["caller"], found["operator"], found["agent_token"]) == ("operator", True, None)


async def test_an_agents_token_opens_the_mcp_endpoint_and_rest_alone(client: httpx2.AsyncClient) -> None:
    proof = {"Authorization": f"Bearer {AGENT_TOKEN}"}
    for path in ("/mcp", "/v1/send_message", "/v1/nowhere"):
        found = (await client.post(path, headers=proof)).json()
        assert (found["caller"], found["operator"], found["agent_token"]) == ("agent", False, AGENT_TOKEN)
    for path in ("/admin/agent-token", "/metrics", "/p/x", "/", "/mcpx", "/v1x"):
        assert (await client.get(path, headers=proof)).json()["code"] == "wrong_token"


async def test_a_session_opens_the_pages_and_rest_and_no_interface(client: httpx2.AsyncClient) -> None:
    browser = {"Accept": "text/html"}
    cookie = {"Cookie": f"a=b; {sessions().cookie_name}={sessions().issue()}; c=d", **browser}
    for path in ("/p/x", "/v1/fetch_inbox"):
        found = (await client.get(path, headers=cookie)).json()
        assert (found["caller"], found["operator"], found["agent_token"]) == ("person", False, None)
    for path in ("/mcp", "/mcp/", "/admin/status", "/metrics", "/health/detailed"):
        reply = await client.get(path, headers=cookie)
        assert (reply.status_code, reply.json()["code"]) == (401, "token_required")
    reply = await client.get("/v1/fetch_inbox", headers=browser)
    assert (reply.status_code, reply.json()["code"]) == (401, "token_required"), "no page is shown"


async def test_a_channel_does_not_get_the_addresses_of_rest_that_lie_below_its_own() -> None:
    channel = OpenPath(path="/v1", limit=100)
    door = guarded(channels=(channel,), rest_paths=frozenset({"/v1/send_message"}))
    key = [(b"host", b"localhost"), (b"authorization", b"Bearer the-channels-own-key")]
    agent = [(b"host", b"localhost"), (b"authorization", f"Bearer {AGENT_TOKEN}".encode())]
    assert (await ask(door, "/v1/models", headers=key)).json()["caller"] == "anyone"
    assert (await ask(door, "/v1/send_message/x", headers=agent)).json()["agent_token"] is None
    assert (await ask(door, "/v1/send_message", headers=key)).json()["code"] == "wrong_token"
    assert (await ask(door, "/v1/send_message", headers=head(token=False))).status == 401
    assert (await ask(door, "/v1/send_message", headers=agent)).json()["caller"] == "agent"
    large = [b"x" * 101]
    assert (await ask(door, "/v1/models", headers=key, body=large)).status == 413
    assert (await ask(door, "/v1/send_message", headers=head(), body=large)).json()["bytes"] == 101


async def test_a_browser_without_a_session_is_led_to_the_login_page(client: httpx2.AsyncClient) -> None:
    for method in ("GET", "POST"):
        reply = await client.request(method, "/p/x", headers={"Accept": "text/html,*/*;q=0.8"})
        expected = (303, "/login?next=/p/x") if method == "GET" else (307, "/login")
        assert (reply.status_code, reply.headers["location"]) == expected
        assert reply.headers["content-security-policy"] == POLICY


PUBLIC = "/healthz /readyz /login /static/postroom.css /.well-known/oauth-authorization-server /register"
PUBLIC += (
    " /authorize /.well-known/oauth-protected-resource/mcp /.well-known/openid-configuration /oauth/token"
)
PUBLIC += " /mcp/.well-known/openid-configuration"
CLOSED = "/ /healthz/ /healthzz /login/x /static //static/x /STATIC/x /.well-known/else /logout /admin/status /metrics"
CLOSED += " /.well-known/oauth-protected-resourcex /mcp"


async def test_only_the_public_paths_need_no_token() -> None:
    forged = head((b"postroom.operator", b"1"), token=False)
    for path in PUBLIC.split():
        reply = await ask(guarded(), path, headers=forged)
        assert (reply.status, reply.json()["caller"], reply.json()["operator"]) == (200, "anyone", False), (
            path
        )
    for path in CLOSED.split():
        assert (await ask(guarded(), path, headers=forged)).status == 401, path


CHANNELS = (OpenPath(path="/chat", limit=100_000), OpenPath(path="/channels/slack", limit=2_000))


OPENED = "/chat /chat/events /channels/slack /channels/slack/more"
SHUT = "/chats /chat.html /channels /channels/ /channels/slacker /channels/telegram /channels/telegram/../slack /Chat"
SHUT += " /v1/models / /mcp /health/detailed"


async def test_a_channels_address_is_open_when_the_gateway_has_it_and_no_other() -> None:
    door = guarded(channels=CHANNELS)
    foreign = [(b"host", b"127.0.0.1:8765"), (b"authorization", b"Bearer the-channels-own-key")]
    for path in OPENED.split():
        for headers in (None, head((b"x", b"y")), foreign):
            told = await ask(door, path, headers=headers)
            assert (told.status, told.json()["caller"], told.json()["operator"]) == (200, "anyone", False), (
                path
            )
        assert (await ask(guarded(), path)).status == 401, path
    for path in SHUT.split():
        for one in (door, guarded()):
            assert (await ask(one, path)).status == (400 if ".." in path else 401), path


async def test_a_channel_has_its_own_limit_and_the_doors_other_looks() -> None:
    door, here = guarded(channels=CHANNELS), (b"host", b"127.0.0.1:8765")

    async def post(path: str, *sizes: int, headers: list[tuple[bytes, bytes]] | None = None) -> Reply:
        body = [b"x" * size for size in sizes]
        return await ask(door, path, method="POST", headers=headers, body=body)

    assert (await post("/chat", 60_000, 40_000)).json()["bytes"] == 100_000
    for path, *sizes in (("/chat", 60_000, 40_001), ("/channels/slack", 2_001)):
        assert (await post(path, *sizes)).status == 413  # type: ignore[arg-type]  # sizes are numbers
    assert (await post("/chat", headers=[here, (b"content-length", b"100001")])).status == 413
    assert (await ask(door, "/chat", headers=[(b"host", b"evil.test")])).status == 421
    assert (await ask(door, "/chat", headers=[here, (b"origin", b"http://evil.test")])).status == 403


async def test_a_channels_own_policy_is_not_replaced() -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        own = {"Content-Security-Policy": "script-src 'self'", "X-Request-Id": "theirs"}
        await PlainTextResponse("x", headers=own)(scope, receive, send)

    for path, headers in (("/chat", None), ("/mcp", head((b"x-request-id", b"mine")))):
        told = await ask(guarded(page, channels=CHANNELS), path, headers=headers)
        assert told.headers["content-security-policy"] == "script-src 'self'"
        assert told.headers["x-frame-options"] == "DENY"
    assert told.headers["x-request-id"] == "mine"


MALFORMED: list[tuple[str, bytes | None, bytes]] = [
    *(("/p/\x00", b"/p/%00", b""), ("/p/\x1b[2J", b"/p/%1B[2J", b""), ("/p/%zz", b"/p/%zz", b"")),
    *(("/p/%", b"/p/%", b""), ("/p/%4", b"/p/%4", b""), ("/p/\ufffd", b"/p/%ff%fe", b"")),
    *(("/p/\ufffd", b"/p/%c0%af", b""), ("/p/\udcff", b"/p/x", b""), ("/static/../admin/status", None, b"")),
    *(("/static/..", b"/static/%2e%2e", b""), ("/p/./x", None, b""), ("/..\\x", None, b""), ("*", None, b"")),
    *(("", None, b""), ("http://evil.example/", None, b""), ("/" + "9" * 5000, None, b"")),
    ("/healthz", None, b"q=" + b"x" * 9000),
]


@each_row("path, raw_path, query", MALFORMED)
async def test_a_malformed_address_is_the_callers_fault(
    path: str, raw_path: bytes | None, query: bytes
) -> None:
    reply = await ask(guarded(), path, raw_path=raw_path, query=query, headers=head())
    assert reply.status == 400
    assert reply.json()["code"] == "malformed_request"


@each_row(
    "extra",
    [
        *([(b"host", b"evil.example")], [(b"origin", b"http://localhost:8765")] * 2),
        *([(b"authorization", b"Bearer x")], [(b"content-length", b"1"), (b"content-length", b"2")]),
        *([(b"content-length", size)] for size in (b"x", b"-1", b"1.5", b"\xc2\xb2", b"9" * 5000)),
    ],
)
async def test_headers_that_contradict_are_the_callers_fault(extra: list[tuple[bytes, bytes]]) -> None:
    reply = await ask(guarded(), headers=head(*extra))
    assert (reply.status, reply.json()["code"]) == (400, "malformed_request")


ODD = {b"accept": b"\xff", b"x-request-id": b"\xff\n", b"content-type": b"\xff\xfe", b"traceparent": b"\x00"}


@each_row(
    "name, value", [*ODD.items(), (b"cookie", b"\xff\xfe=\x00; ;;=; ==="), (b"cookie", b"a=b" * 10_000)]
)
async def test_odd_headers_harm_nobody(name: bytes, value: bytes) -> None:
    forged = (b"x", b"\r\n\r\nGET /admin/status HTTP/1.1")
    assert (await ask(guarded(), headers=head((name, value), forged))).status == 200
    assert (await ask(guarded(), "/p/x", headers=head((name, value), forged, token=False))).status == 401


async def test_a_body_that_is_announced_too_large_is_not_read(client: httpx2.AsyncClient) -> None:
    reply = await client.post("/mcp", content=b"x" * (LIMIT + 1), headers=BEARER)
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")
    assert (await client.post("/mcp", content=b"x" * LIMIT, headers=BEARER)).json()["bytes"] == LIMIT

    async def unreached(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the application was called")

    announced = head((b"content-length", str(LIMIT + 1).encode()))
    assert (await ask(guarded(unreached), method="POST", headers=announced)).status == 413
    assert (await client.post("/login", content=b"x" * (SMALL_BODY + 1))).status_code == 413


async def test_a_body_that_grows_too_large_is_cut_off_and_answered_once() -> None:
    """Also by an application that makes little of it."""

    async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        assert (await receive())["type"] == "http.disconnect"
        await PlainTextResponse("thanks")(scope, receive, send)

    parts = [b"x" * LIMIT, b"x", b"y" * LIMIT]
    for app in (echo, stubborn):
        for announced in ([], [(b"content-length", b"5")]):
            reply = await ask(guarded(app), method="POST", headers=head(*announced), body=parts)
            told = (reply.status, reply.starts, reply.json()["code"], reply.json()["value"])
            assert told == (413, 1, "too_large", LIMIT)


async def test_an_unexpected_failure_is_logged_whole_and_told_in_one_line() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the secret of /etc/shadow")

    with capture_logs() as logs:
        reply = await ask(guarded(broken), headers=head((b"x-request-id", b"r-1")))
    assert reply.status == 500
    assert reply.json()["code"] == "internal_error"
    assert reply.json()["request_id"] == reply.headers["x-request-id"] == "r-1"
    assert b"shadow" not in reply.body
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert [(entry["event"], entry["log_level"], entry["exc_info"]) for entry in logs] == [
        ("http.failed", "error", True)
    ]


async def test_a_failure_after_the_answer_began_and_a_client_that_leaves_are_not_answered() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("late")

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def cut(scope: Scope, receive: Receive, send: Send) -> None:
        await guarded()(scope, gone, send)

    with capture_logs() as logs:
        reply = await ask(guarded(broken), headers=head())
        left = await ask(cut, method="POST", headers=head())
    assert (reply.status, reply.starts, reply.body, left.starts) == (200, 1, b"", 0)
    assert [entry["event"] for entry in logs] == ["http.failed", "http.client_left"]


async def test_a_typed_failure_keeps_its_code_and_remedy() -> None:
    async def unknown(scope: Scope, receive: Receive, send: Send) -> None:
        raise UnknownAgent("no agent is called 'x'", value="x\udcff")

    reply = await ask(guarded(unknown), headers=head())
    assert (reply.status, reply.json()["code"], reply.json()["value"]) == (404, "unknown_agent", "x\udcff")
    assert reply.json()["remedy"].startswith("call `POST /v1/register_agent`")

    async def away(scope: Scope, receive: Receive, send: Send) -> None:
        raise StoreUnavailable("the store is closed")

    with capture_logs() as logs:
        reply = await ask(guarded(away), headers=head())
    assert (reply.status, reply.json()["retryable"], reply.headers["retry-after"]) == (503, True, "1")
    assert logs[0]["code"] == "store_unavailable"


@each_row("path", ["/mcp", "/p/x", "/nowhere", "/healthz", "/static/x.css", "/\x00"])
async def test_every_answer_carries_the_same_protection(path: str) -> None:
    for headers in (head(), head(token=False), head(host=b"evil.example"), head((b"origin", b"null"))):
        reply = await ask(guarded(), path, headers=headers)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "same-origin"
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["cache-control"] == ("no-cache" if path.startswith("/static/") else "no-store")
        assert reply.headers["x-request-id"]


MADE = [[b"a" * 65], [b""], [b"a b"], [b"a\nb"], [b"\xff"], [b"a", b"b"], []]


@each_row("given, kept", [([b"abc-123_X.y"], True), ([b"a" * 64], True), *((given, False) for given in MADE)])
async def test_a_request_id_is_kept_when_well_formed_and_made_otherwise(
    given: list[bytes], kept: bool
) -> None:
    reply = await ask(guarded(), headers=head(*((b"x-request-id", value) for value in given)))
    made = reply.headers["x-request-id"]
    assert (made == given[0].decode("latin-1")) if kept else (len(made) == 16 and made.isalnum())
    assert reply.json()["request_id"] == made
    assert reply.json()["bound"] == {"request_id": made}
    assert bound_facts() == {}


async def test_a_web_socket_is_closed_unheard_and_start_and_end_of_the_server_pass_through() -> None:
    sent: list[Message] = []
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    for kind in ("websocket", "lifespan"):
        await guarded(app)({"type": kind, "path": "/mcp", "headers": head()}, receive, send)
    assert (sent, seen) == ([{"type": "websocket.close", "code": 1008}], ["lifespan"])


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples: a loop for each of them would start a thread for each."""
    with asyncio.Runner() as one:
        yield one


@settings(max_examples=20)
@example(target=b"?\x80", host=b"localhost", name=b"cookie", value=b"", token=True)
@given(
    target=st.binary(max_size=60),
    host=st.one_of(st.just(b"localhost"), st.binary(max_size=30)),
    name=st.sampled_from(
        [b"origin", b"authorization", b"cookie", b"content-length", b"accept", b"x-request-id"]
    ),
    value=st.one_of(st.binary(max_size=60), st.text("0123456789.-+ ", max_size=40).map(str.encode)),
    token=st.booleans(),
)
def test_no_bytes_make_the_door_fail(
    runner: asyncio.Runner, target: bytes, host: bytes, name: bytes, value: bytes, token: bool
) -> None:
    raw = b"/" + target.partition(b"?")[0]
    path = unquote(raw.decode("latin-1"))
    given_head = head((name, value), host=host, token=token)
    reply = runner.run(
        ask(guarded(), path, raw_path=raw, query=target, headers=given_head, method="POST", body=[target])
    )
    assert reply.starts == 1
    assert reply.status in {200, 303, 400, 401, 403, 413, 421}
    assert reply.headers["x-request-id"]
