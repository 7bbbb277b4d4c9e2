"""The HTTP routes: health, log-in, administration, and the form of every refusal."""

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from log_lines import capture_logs
from postroom.app.admin_service import AdminService
from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.app.tokens import token_check
from postroom.contracts import errors
from postroom.contracts.operations import Operation
from postroom.contracts.outbox import Backlog
from postroom.http_api.errors import to_problem
from postroom.http_api.guard import Credentials, Guard, GuardRules
from postroom.http_api.permissions import table
from postroom.http_api.readiness import (
    Check,
    FreshReadiness,
    LagMeter,
    Readiness,
    archive_check,
    loop_check,
    measure_lag,
    store_check,
)
from postroom.http_api.routes import application, routes
from postroom.http_api.sessions import Attempts, LoginService
from postroom.services.login_codes import FORM_TOKEN, MAX_CODES, EndedSessions, LoginCodes, Sessions
from postroom.services.statuses import STATUSES, status_of
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from postroom.version import __version__
from table_rows import each_row

TOKEN = "prm_" + "t" * 43
BEARER = {"Authorization": f"Bearer {TOKEN}"}
BASE = "http://127.0.0.1:8765"


ANSWERS: dict[str, object] = {
    **{
        "status": {"projects": 1},
        "cluster": {"servers": [], "work": []},
        "projects": [],
        "support_bundle": {},
    },
    **{"doctor": {"checks": []}, "back_up": {"path": "/b"}, "prune": {"rules": 0}},
    **{"rebuild_archive": {"files": 3}, "issue_agent_token": "pra_x", "revoke_agent_token": True},
}


class FakeOperations:
    """Answers as the test says and keeps its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.readiness = Readiness(checks=(Check(name="store", state="ok"),))
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        async def answered(*given: object, **named: object) -> object:
            self.asked.append((name, *given, *named.values()))
            if self.error is not None:
                raise self.error
            return self.readiness if name == "ready" else ANSWERS[name]

        return answered


def _of_a_fake(operation: Operation) -> Operation:
    """Return an operation whose service is a fake: the function is that of the fake."""
    name = operation.run.__name__
    if operation.run is not getattr(AdminService, name, None):
        return operation

    @wraps(operation.run)
    async def run(fake: Any, **given: Any) -> Any:
        return await getattr(fake, name)(**given)

    return replace(operation, run=run)


class Server:
    """The whole edge over fake operations, and clients of it."""

    def __init__(self, rules: GuardRules = GuardRules()) -> None:  # noqa: B008 - it is frozen
        self.clock = ManualClock()
        self.operations: Any = FakeOperations()
        self.registry = CollectorRegistry()
        self.store = SqliteStore.in_memory(self.clock)
        self.codes = LoginCodes(self.store, self.clock)
        sessions = Sessions(b"k" * 32, self.clock, EndedSessions(self.store))
        self.sessions = sessions
        self.cookie_name = sessions.cookie_name
        is_operator = token_check(TOKEN)
        desk = LoginService(sessions, self.codes, self.clock, is_operator=is_operator)
        made = self.routes(desk)
        pages = [Route("/", _home), Route("/p/{slug}", _home)]
        self.app = Guard(
            application([*made, *pages], permissions=table(ALL_OPERATIONS)),
            rules,
            Credentials(is_operator=is_operator, sessions=sessions),
        )

    def routes(self, desk: LoginService) -> list[Route]:
        return routes(
            desk,
            ready=self.operations.ready,
            registry=self.registry,
            clock=self.clock,
            operations=tuple(map(_of_a_fake, ADMINISTRATION)),
            services={AdminService: self.operations},
        )

    def client(self, *, scheme: str = "http", address: str = "127.0.0.1") -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(app=self.app, client=(address, 5), raise_app_exceptions=True)
        return httpx2.AsyncClient(transport=transport, base_url=BASE.replace("http", scheme))


async def _home(request: Request) -> Response:
    return PlainTextResponse(request.state.caller)


@pytest.fixture
def server() -> Server:
    return Server()


async def post(server: Server, path: str, **arguments: Any) -> httpx2.Response:
    async with server.client() as client:
        return await client.post(path, headers=BEARER, **arguments)


async def get(server: Server, path: str, **arguments: Any) -> httpx2.Response:
    async with server.client() as client:
        return await client.get(path, **{"headers": BEARER, **arguments})


async def test_the_process_says_that_it_is_up_and_its_metrics_to_who_has_the_token(server: Server) -> None:
    reply = await get(server, "/healthz", headers={})
    assert (reply.status_code, reply.json()) == (200, {"status": "ok", "version": __version__})
    Counter("messages", "Messages.", registry=server.registry).inc()
    reply = await get(server, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert "messages_total 1.0" in reply.text
    assert (await get(server, "/metrics", headers={})).status_code == 401


async def test_readiness_needs_every_required_part_to_be_known_well() -> None:
    rows = "ok ok 200, ok failed 200, ok unknown 200, failed ok 503, unknown ok 503"
    for store, archive, status in (row.split() for row in rows.split(", ")):
        server = Server()
        waits = {"waiting": 2, "oldest_ms": 7}
        checks = (
            Check(name="store", state=store, facts={"took_ms": 3}),  # type: ignore[arg-type]
            Check(name="archive", state=archive, required=False, facts=waits),  # type: ignore[arg-type]
        )
        server.operations.readiness = Readiness(checks=checks)
        reply = await get(server, "/readyz", headers={})
        told = {"store": {"state": store, "took_ms": 3}, "archive": {"state": archive, **waits}}
        ready = "ready" if status == "200" else "not_ready"
        assert (reply.status_code, reply.json()) == (int(status), {"status": ready, "checks": told})


async def test_many_who_ask_whether_it_is_ready_share_one_look(server: Server) -> None:
    for _ in range(5):
        assert (await get(server, "/readyz", headers={})).status_code == 200
    assert server.operations.asked == [("ready",)]
    server.clock.advance(timedelta(seconds=1))
    await get(server, "/readyz", headers={})
    server.clock.advance(timedelta(hours=-1))
    await get(server, "/readyz", headers={})
    assert len(server.operations.asked) == 3


async def test_a_failed_look_is_not_remembered() -> None:
    outcomes: list[Readiness | Exception] = [errors.StoreUnavailable("away"), Readiness(checks=())]

    async def look() -> Readiness:
        found = outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    fresh = FreshReadiness(look, ManualClock())
    with pytest.raises(errors.StoreUnavailable):
        await fresh()
    assert (await fresh()).is_ready


OAUTH = "/register /authorize /oauth/token /token /.well-known/oauth-authorization-server"
OAUTH += " /.well-known/oauth-authorization-server/mcp /.well-known/oauth-protected-resource"
OAUTH += " /.well-known/oauth-protected-resource/mcp /.well-known/openid-configuration"
OAUTH += " /.well-known/openid-configuration/mcp/ /mcp/.well-known/openid-configuration"
OAUTH += (
    " /.well-known/oauth-protected-resource /.well-known/oauth-protected-resource/mcp /oauth/token /token"
)
OAUTH += " /.well-known/openid-configuration /.well-known/openid-configuration/mcp/"
OAUTH += " /mcp/.well-known/openid-configuration"


@each_row("path", OAUTH.split())
async def test_clients_that_look_for_oauth_are_told_plainly_that_there_is_none(
    server: Server, path: str
) -> None:
    async with server.client() as client:
        for method in ("GET", "POST", "OPTIONS"):
            reply = await client.request(method, path, headers={"Accept": "text/html"})
            assert reply.status_code == 404
            assert reply.headers["content-type"] == "application/json"
            assert reply.json()["error"] == "not_found"
            assert "OAuth" in reply.json()["error_description"]


AGENT = {"project": "p", "agent": "A"}
ORDERS: list[tuple[str, Any, tuple[object, ...], object]] = [
    ("GET /admin/status", None, ("status",), {"projects": 1}),
    ("GET /admin/doctor", None, ("doctor", False), {"checks": []}),
    ("GET /admin/doctor?full=yes&other=x", None, ("doctor", True), {"checks": []}),
    ("POST /admin/backup", None, ("back_up", None), {"path": "/b"}),
    ("POST /admin/backup", {}, ("back_up", None), {"path": "/b"}),
    ("POST /admin/backup", {"target": "/b/x.db"}, ("back_up", Path("/b/x.db")), {"path": "/b"}),
    ("POST /admin/agent-token", AGENT, ("issue_agent_token", "p", "A"), {"token": "pra_x"}),
    ("DELETE /admin/agent-token", AGENT, ("revoke_agent_token", "p", "A"), {"revoked": True}),
    ("POST /admin/prune", {}, ("prune", False), {"rules": 0}),
    ("POST /admin/prune", {"dry_run": True}, ("prune", True), {"rules": 0}),
    ("POST /admin/rebuild-archive", None, ("rebuild_archive", None), {"files": 3}),
    ("POST /admin/rebuild-archive", {"project": "p"}, ("rebuild_archive", "p"), {"files": 3}),
]


@each_row("route, body, call, answer", ORDERS)
async def test_the_operator_gives_orders(
    server: Server, route: str, body: Any, call: tuple[object, ...], answer: object
) -> None:
    """Who else may: `test_permissions.py`."""
    method, path = route.split()
    server.operations.asked.clear()
    async with server.client() as client:
        reply = await client.request(method, path, headers=BEARER, **({} if body is None else {"json": body}))
    assert (reply.status_code, reply.json(), server.operations.asked) == (200, answer, [call])


NO_AGENTS = (b"", b"{}", b'{"project": "p"}', b'{"project": "p", "agent": 5}')
NO_AGENTS += (b'{"project": "p", "agent": null}', b'{"project": "p", "agent": "a", "x": 1}')
NO_JSON = (b"{", b"[]", b"null", b"\xff\xfe", b'{"target": "\xff"}', b'{"target": "\\ud800"}', b"[" * 100_000)
NO_JSON += (b'{"target": ' + b"[" * 100_000, b'{"x": ' + b"[" * 100_000)


@each_row(
    "path, body, code",
    [
        *(("/admin/agent-token", body, "invalid_argument") for body in NO_AGENTS),
        *(("/admin/backup", body, "invalid_argument") for body in NO_JSON),
        *(
            ("/admin/backup", b'{"target": "' + target + b'"}', "invalid_path")
            for target in (b"b.db", b"", b"/a\\u0000b", b"/" + b"a" * 5000)
        ),
    ],
)
async def test_an_order_that_cannot_be_read_is_refused(
    server: Server, path: str, body: bytes, code: str
) -> None:
    reply = await post(server, path, content=body)
    assert (reply.status_code, reply.json()["code"]) == (400, code)
    assert reply.json()["remedy"]
    problem = (await get(server, "/admin/doctor?full=maybe")).json()
    assert (problem["status"], problem["code"]) == (400, "invalid_argument")
    assert problem["remedy"] == "the parameters are: full"
    assert server.operations.asked == []


async def test_without_the_guard_the_operators_routes_refuse_everybody(server: Server) -> None:
    desk = LoginService(server.sessions, server.codes, server.clock, is_operator=lambda _: True)
    bare = application([*server.routes(desk)], permissions=table(ALL_OPERATIONS))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=bare), base_url=BASE) as client:
        reply = await client.get("/admin/status", headers=BEARER)
    assert (reply.status_code, reply.json()["code"]) == (403, "not_permitted")


async def test_failures_of_an_order_keep_their_code(server: Server) -> None:
    server.operations.error = errors.UnknownAgent("no agent is called 'A'", value="A")
    reply = await post(server, "/admin/agent-token", json={"project": "p", "agent": "A"})
    problem = reply.json()
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["title"]) == ("urn:postroom:problem:unknown_agent", "Unknown agent")
    assert (problem["detail"], problem["value"], problem["status"]) == ("no agent is called 'A'", "A", 404)
    assert problem["request_id"] == reply.headers["x-request-id"]


async def test_an_unknown_address_is_answered_in_json_and_to_a_browser_with_the_way_to_the_pages(
    server: Server,
) -> None:
    for path in ("/nowhere", "/admin", "/admin/else", "/p/a/b/c", "/static/none.css", "/mcp/x"):
        reply = await get(server, path)
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
        assert reply.headers["content-type"] == "application/problem+json"
    reply = await get(server, "/nowhere", headers={**BEARER, "Accept": "text/html,*/*;q=0.8"})
    assert (reply.status_code, 'href="/p"' in reply.text) == (404, True)
    assert reply.headers["content-type"].startswith("text/html")


async def test_a_wrong_method_is_answered_with_the_right_ones(server: Server) -> None:
    for row in (
        *("POST /healthz GET HEAD", "DELETE /login GET HEAD POST", "GET /logout POST"),
        *("GET /admin/agent-token DELETE POST", "BREW /admin/status GET HEAD"),
    ):
        method, path, *allowed = row.split()
        async with server.client() as client:
            reply = await client.request(method, path, headers=BEARER)
        assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")
        assert sorted(reply.headers["allow"].split(", ")) == allowed


async def log_in(client: httpx2.AsyncClient, token: str = TOKEN) -> httpx2.Response:
    return await client.post(
        "/login", data={"token": token}, headers={"Origin": str(client.base_url).rstrip("/")}
    )


async def test_the_login_page_is_plain_and_has_a_form(server: Server) -> None:
    reply = await get(server, "/login", headers={})
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert '<form method="post" action="/login">' in reply.text
    assert "/static/postroom.css" in reply.text
    assert not re.search(r"<script|style=|https?://", reply.text)
    assert (await get(server, "/login", headers={"Origin": "null"})).status_code == 403


async def test_the_token_logs_a_person_in_and_logging_out_forgets_it(server: Server) -> None:
    async with server.client() as client:
        assert (await client.get("/", headers={"Accept": "text/html"})).headers["location"] == "/login"
        reply = await log_in(client)
        assert (reply.status_code, reply.headers["location"]) == (303, "/")
        cookie = reply.headers["set-cookie"].lower()
        parts = ("httponly", "samesite=strict", "path=/", "max-age=2592000", "secure", TOKEN)
        assert [part in cookie for part in parts] == [True] * 4 + [False] * 2
        assert (await client.get("/")).text == "person"
        reply = await log_out(client, server)
        assert (reply.status_code, reply.headers["location"]) == (303, "/login")
        assert (await client.get("/")).status_code == 401
    behind_a_proxy = Server(GuardRules(allowed_hosts=("127.0.0.1",)))
    async with behind_a_proxy.client(scheme="https") as client:
        assert "; secure" in (await log_in(client)).headers["set-cookie"].lower()


async def log_out(client: httpx2.AsyncClient, server: Server, token: str | None = None) -> httpx2.Response:
    own = server.sessions.form_token(cookie_of(client))
    return await client.post("/logout", data={FORM_TOKEN: own if token is None else token})


def cookie_of(client: httpx2.AsyncClient) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


async def test_a_session_that_was_logged_out_is_taken_by_no_server_again(server: Server) -> None:
    """Any copy of the cookie; other sessions continue."""
    beside = Sessions(b"k" * 32, server.clock, EndedSessions(server.store))
    async with server.client() as client, server.client() as other:
        await log_in(client)
        await log_in(other)
        copied = cookie_of(client)
        assert await beside.recognises(copied)
        await log_out(client, server)
        for path in ("/", "/p/x"):
            assert (await get(server, path, headers={"Cookie": copied})).status_code == 401
        assert not await beside.recognises(copied)
        assert await beside.recognises(cookie_of(other))
        assert (await other.get("/")).text == "person"


async def test_log_out_takes_the_token_of_the_session_as_every_form_does(server: Server) -> None:
    async with server.client() as client, server.client() as other:
        await log_in(client)
        await log_in(other)
        for token in ("", "x", server.sessions.form_token(cookie_of(other))):
            assert (await log_out(client, server, token)).status_code == 403
        assert (await client.post("/logout")).status_code == 415
        assert (await client.get("/")).text == "person"


async def test_a_session_that_cannot_be_ended_is_forgotten_by_its_browser_and_that_is_said(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server.client() as client:
        await log_in(client)
        copied = cookie_of(client)

        async def full(*_: object, **__: object) -> None:
            raise errors.StoreFull("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(server.store, "write", full)
            reply = await log_out(client, server)
        assert (reply.status_code, "could not end it" in reply.text) == (507, True)
        assert (await client.get("/")).status_code == 401
        assert await server.sessions.recognises(copied)


async def test_who_logs_in_comes_to_the_page_that_was_asked_for(server: Server) -> None:
    wanted = "/p/a%20b/runs?live=1&x=%3C"
    async with server.client() as client:
        asked = await client.get(wanted, headers={"Accept": "text/html"})
        form = await client.get(asked.headers["location"])
        assert asked.headers["location"].startswith("/login?next=")
        assert 'name="next" value="/p/a%20b/runs?live=1&amp;x=%3C"' in form.text
        told = {"token": TOKEN, "next": wanted}
        reply = await client.post("/login", data=told, headers={"Origin": BASE})
        assert (reply.status_code, reply.headers["location"]) == (303, wanted)
        for other in ("//evil.example", "/\\evil.example", "https://evil.example", "/a b", "", "/\n"):
            reply = await client.post(
                "/login", data={"token": TOKEN, "next": other}, headers={"Origin": BASE}
            )
            assert (reply.status_code, reply.headers["location"]) == (303, "/"), other


async def test_what_was_typed_into_a_form_of_an_ended_session_is_shown_on_the_login_page(
    server: Server,
) -> None:
    typed = {FORM_TOKEN: "old", "do": "send", "subject": "Hi <b>", "body": "a\nlong text", "why": " "}
    headers = {"Origin": BASE, "Accept": "text/html", "Referer": f"{BASE}/p/x/t/long-1?a=1"}
    async with server.client() as client:
        sent = await client.post("/p/x/write", data=typed, headers=headers)
        assert (sent.status_code, sent.headers["location"]) == (307, "/login")  # the form goes along
        shown = await client.post("/login", data=typed, headers=headers)
        nothing = await client.post("/login", data={FORM_TOKEN: "old", "do": "ack"}, headers=headers)
    assert (shown.status_code, "so nothing was sent; copy what you typed" in shown.text) == (401, True)
    assert re.findall("<pre.*?>(.*?)</pre>", shown.text, re.DOTALL) == ["Hi &lt;b&gt;", "a\nlong text"]
    assert 'name="next" value="/p/x/t/long-1?a=1"' in shown.text
    assert ("so nothing was sent" in nothing.text, "<pre>" in nothing.text) == (True, False)


FORM = "application/x-www-form-urlencoded"


async def test_a_login_that_proves_nothing_shows_the_form_again() -> None:
    for content, kind, status in (
        *((b"token=wrong", FORM, 401), (b"", FORM, 401)),
        (b"token=%ff%00&token=%zz&&==", f"{FORM}; charset=x", 401),
        *((b"\xff\xfe", FORM, 401), (b"&" * 16_000, FORM, 401), (b'{"token": "x"}', "application/json", 415)),
        (b"token=x", "", 415),
    ):
        async with Server().client() as client:
            reply = await client.post("/login", content=content, headers={"Content-Type": kind})
        assert (reply.status_code, "<form" in reply.text) == (status, True), content
        assert "set-cookie" not in reply.headers


async def test_after_ten_failures_an_address_waits_and_others_do_not(server: Server) -> None:
    async with server.client() as client:
        for _ in range(10):
            assert (await log_in(client, "wrong")).status_code == 401
        server.clock.advance(timedelta(seconds=20))
        reply = await log_in(client)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "40")
        assert "set-cookie" not in reply.headers
    async with server.client(address="127.0.0.2") as other:
        assert (await log_in(other)).status_code == 303
    server.clock.advance(timedelta(seconds=40))
    async with server.client() as client:
        assert (await log_in(client)).status_code == 303


def test_the_list_of_failed_addresses_stays_small() -> None:
    attempts = Attempts(ManualClock())
    for number in range(3000):
        attempts.failed(str(number))
    for _ in range(10):
        attempts.failed("2999")
    assert attempts.wait("2999") == 60
    assert attempts.wait("0") == 0
    assert len(attempts._failures) == 1024


async def test_a_login_link_works_once(server: Server) -> None:
    url = (await post(server, "/admin/login-code")).json()["url"]
    assert url.startswith(f"{BASE}/login?code=prl_")
    async with server.client() as client:
        assert (await client.head(url)).status_code == 200
        reply = await client.get(url)
        assert (reply.status_code, reply.headers["location"]) == (303, "/")
        assert (await client.get("/")).text == "person"
    again = await get(server, url, headers={})
    assert (again.status_code, "used before" in again.text) == (401, True)
    for code in ("", "x", "prl_" + "x" * 43, "%00", "%ff", "\u00e9" * 100, "<script>"):
        reply = await get(server, f"/login?code={code}", headers={})
        assert (reply.status_code, "<script" in reply.text) == (401, False), code
        assert "set-cookie" not in reply.headers


LEADS = ("/", "/p/shop", "/p/a%20b?live=1")
ASTRAY = ("/logout", "/%2f/evil", "//evil", "/p", "/nothing", "https://evil.example", "")


@each_row("path, status", [*((one, 200) for one in LEADS), *((one, 400) for one in ASTRAY)])
async def test_a_login_link_leads_to_a_page_and_nowhere_else(server: Server, path: str, status: int) -> None:
    reply = await post(server, "/admin/login-code", json={"path": path})
    assert reply.status_code == status
    assert status == 200 or "not a page of this server" in reply.text


async def test_codes_end_after_ten_minutes_and_the_oldest_of_too_many_is_dropped() -> None:
    clock = ManualClock()
    codes = LoginCodes(SqliteStore.in_memory(clock), clock)
    made = []
    for _ in range(MAX_CODES + 1):
        made.append(await codes.make())
        clock.advance(timedelta(milliseconds=1))
    assert len(set(made)) == MAX_CODES + 1
    assert not await codes.use(made[0])
    assert await codes.use(made[1])
    assert not await codes.use(made[1])
    clock.advance(timedelta(minutes=10))
    assert not await codes.use(made[2])


async def test_a_session_that_was_changed_is_none() -> None:
    clock = ManualClock()
    sessions = Sessions(b"k" * 32, clock, EndedSessions(SqliteStore.in_memory(clock)))
    value = sessions.issue()
    assert await sessions.recognises(f"x=y; {sessions.cookie_name}={value}")
    for changed in (
        *(value[:-1] + ("0" if value[-1] != "0" else "1"), "9" + value[1:], value.replace(".", ""), ""),
        *(
            *(value + "x", f'"{value}"', value.split(".")[0], "." * len(value), value.upper()),
            "\u00b2" + value[1:],
        ),
    ):
        assert not await sessions.recognises(f"{sessions.cookie_name}={changed}"), changed


async def test_a_session_ends_and_belongs_to_one_server() -> None:
    clock = ManualClock()
    store = SqliteStore.in_memory(clock)
    sessions, other = (
        Sessions(b"k" * 32, clock, EndedSessions(store)),
        Sessions(b"j" * 32, clock, EndedSessions(store)),
    )
    value = sessions.issue()
    assert sessions.cookie_name != other.cookie_name
    assert not await other.recognises(f"{other.cookie_name}={value}")
    clock.advance(timedelta(days=30) - timedelta(milliseconds=1))
    assert await sessions.recognises(f"{sessions.cookie_name}={value}")
    clock.advance(timedelta(milliseconds=1))
    assert not await sessions.recognises(f"{sessions.cookie_name}={value}")


def test_every_failure_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = errors.all_errors()
    assert set(STATUSES) == set(kinds)
    for kind in kinds:
        problem = to_problem(kind("it failed", value="v"))
        assert 400 <= problem.status <= 599
        assert (problem.status, problem.code) == (status_of(kind("x")), kind.code)
        says_how = problem.status == 401 or kind is errors.InsufficientScope
        assert ("WWW-Authenticate" in problem.headers) == says_how
        assert (problem.value is None) == issubclass(kind, errors.AccessError)
    monkeypatch.delitem(STATUSES, errors.UnknownAgent)
    assert status_of(errors.UnknownAgent("x")) == STATUSES[errors.InputError]


async def nothing() -> None:
    return None


async def never() -> Any:
    await asyncio.Event().wait()


async def test_a_store_is_well_if_it_writes_and_what_is_lacking_is_told_in_the_log_alone() -> None:
    remedy = 'let an administrator run GRANT UPDATE ON "t" TO "u"'

    async def full() -> None:
        raise errors.StoreFull("the disk is full: /srv/mail")

    async def lacking() -> None:
        missing = {"lacking": ["UPDATE"]}
        raise errors.StoreReadOnly("the user u lacks UPDATE on t", remedy=remedy, details=missing)

    assert (await store_check(nothing)).state == "ok"
    failed = await store_check(full)
    assert (failed.state, failed.facts) == ("failed", {"code": "store_full"})
    slow = await store_check(never, patience=timedelta(milliseconds=1))
    assert (slow.state, slow.facts) == ("failed", {"code": "store_unavailable"})
    with capture_logs() as told:
        found = await store_check(lacking)
    assert found.facts == {"code": "store_read_only", "lacking": ["UPDATE"]}
    assert told[0]["remedy"] == remedy


async def test_an_archive_that_falls_behind_is_told_and_one_that_cannot_be_seen_is_unknown() -> None:
    for waiting, oldest, state, waited in (
        *((0, None, "ok", 0), (3, 1_000_000, "ok", 900_000)),
        *((3, 999_999, "failed", 900_001), (3, 9_000_000, "ok", 0)),
    ):

        async def look(waiting: int = waiting, oldest: int | None = oldest) -> Backlog:
            return Backlog(waiting=waiting, oldest_at=oldest)

        check = await archive_check(look, 1_900_000)
        told = (check.state, check.facts, check.required)
        assert told == (state, {"waiting": waiting, "oldest_ms": waited}, False)

    async def away() -> Backlog:
        raise errors.StoreUnavailable("closed")

    assert (await archive_check(away, 0)).state == "unknown"
    assert (await archive_check(never, 0, patience=timedelta(milliseconds=1))).state == "unknown"


def test_the_loop_is_unknown_until_measured_and_failed_when_it_stalled_lately() -> None:
    meter = LagMeter()
    assert loop_check(meter, 0).state == "unknown"
    meter.note(5, 1000)
    assert (loop_check(meter, 1000).state, loop_check(meter, 1000).facts) == ("ok", {"lag_ms": 5})
    meter.note(2001, 2000)
    meter.note(-3, 3000)
    assert loop_check(meter, 3000).state == "failed"
    assert meter.worst(11_999) == 2001
    assert meter.worst(12_000) == 0
    assert meter.worst(13_000) is None


async def test_the_meter_measures_how_late_it_woke_until_it_is_stopped() -> None:
    meter, clock = LagMeter(), ManualClock()
    moments = iter([0.0, 0.25, 0.5, 1.75])

    def seconds() -> float:
        moment = next(moments)
        if moment == 1.75:
            meter.stop()
        return moment

    async with asyncio.timeout(60):
        await measure_lag(meter, clock, every=timedelta(milliseconds=1), seconds=seconds)
    assert meter.worst(clock.now()) == 1249
    assert [lag for _, lag in meter._seen] == [249, 249, 1249]
