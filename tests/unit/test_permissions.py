"""Every address of the whole server, for everybody who calls: each row of the table of permissions, as it is answered."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import pytest
import pytest_asyncio
from from_code.permissions import CALLERS, answers
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route

from mail_room import HARBOR, SHORE
from postroom.app.config import Settings
from postroom.app.gateway_config import load_gateway
from postroom.app.operations import ALL_OPERATIONS
from postroom.app.serve import Site
from postroom.app.tokens import new_named_token
from postroom.app.wiring import Application, Declared
from postroom.contracts.operations import Who
from postroom.contracts.tokens import SCOPES
from postroom.http_api.permissions import Permission, close, table
from postroom.http_api.rest.document import EVENTS
from postroom.mail.context import token_hash
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from postroom.mcp_server.resources import RESOURCES
from postroom.testing import ManualClock
from rest_room import BASE, arguments_of, as_query
from unit.test_gateway_wiring import AGENT, CHANNELS, SECRET

SERVERS_OWN: Final = "prs_" + "s" * 43
ALL: Final = tuple(one for one in SCOPES)


@dataclass
class Room:
    """The whole server, with every channel, and what each caller shows."""

    site: Site
    app: Starlette
    shown: dict[str, dict[str, str]]

    def rows(self) -> tuple[Permission, ...]:
        """Return the table of this server, with the rows of its channels."""
        gateway = self.site._application.gateway
        assert gateway is not None
        return table(ALL_OPERATIONS, channels=gateway.routes())

    async def ask(self, caller: str, method: str, path: str, **more: Any) -> int:
        """Return the status of an answer; 401 also for the way to the log-in page."""
        transport = httpx2.ASGITransport(app=self.site.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
            headers = {**self.shown[caller], **more.pop("headers", {})}
            answer = await client.request(method, path, headers=headers, **more)
        return answer.status_code

    async def begin(self, caller: str, path: str, query: str = "", *, accept: str = "*/*") -> int:
        """Return the status with which an answer begins, and leave: a stream has no end."""
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        headers = {"Host": BASE.partition("://")[2], "Accept": accept, **self.shown[caller]}
        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"},
            **{"scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode()},
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            **{"server": ("127.0.0.1", 8765), "client": ("127.0.0.1", 1)},
        }

        asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            if (message := next(asked, None)) is not None:
                return message
            await asyncio.wait({begun})
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start" and not begun.done():
                begun.set_result(message["status"])

        serving = asyncio.ensure_future(self.site.app(scope, receive, send))
        await asyncio.wait({serving, begun}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        await asyncio.wait({serving})
        return begun.result()


def routes_of(found: Any, below: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Yield every address of an application with its methods."""
    for one in found:
        if isinstance(one, Mount):
            yield from routes_of(one.routes, below + one.path)
        else:
            assert isinstance(one, Route)
            yield below + one.path, frozenset(one.methods or {"POST"}) - {"HEAD"}


@pytest_asyncio.fixture
async def room(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    kept: list[Starlette] = []
    monkeypatch.setattr("postroom.app.serve.asgi_application", _keeping(kept))
    application = await asyncio.to_thread(_opened, tmp_path, clock)
    site = Site(application, SERVERS_OWN)
    for project in (HARBOR, SHORE):
        await application.mail.call("ensure_project", {"human_key": project})
        asked = {"project_key": project, "program": "p", "model": "m", "name": "Ada"}
        await application.mail.call("register_agent", asked)
    await application.mail.issue_token(HARBOR, "Ada", token_hash("pra_" + "a" * 43))
    tokens: dict[str, str] = {"wrong token": "x" * 43, "agent": "pra_" + "a" * 43, "operator": SERVERS_OWN}
    for name, scopes, project in (
        ("revoked token", ALL, None),
        ("other project", tuple(one for one in ALL if one != "admin"), SHORE),
        ("named token", ALL, None),
    ):
        made = new_named_token()
        await application.tokens.create(name.replace(" ", "-"), made.id, made.hash, scopes, project=project)
        tokens[name] = made.token
    await application.tokens.revoke("revoked-token")
    shown = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
    sessions = site._visitors
    shown |= {"no token": {}, "person": {"Cookie": f"{sessions.cookie_name}={sessions.issue()}"}}
    async with asyncio.TaskGroup() as group:
        group.create_task(site._mcp.run())
        yield Room(site, kept[0], shown)
        site._mcp.end()
    await asyncio.to_thread(application.close)


def _keeping(kept: list[Starlette]) -> Any:
    from postroom.http_api.routes import application

    def made(*given: Any, **more: Any) -> Starlette:
        kept.append(application(*given, **more))
        return kept[-1]

    return made


def _opened(folder: Path, clock: ManualClock) -> Application:
    (folder / "gateway.toml").write_text(AGENT + CHANNELS)
    settings = Settings(data_dir=folder, archive_enabled=False)
    given = {"SECRET": SECRET, "BOT": "4711:abc", "SLACK": "xoxb-1", "HOME": str(folder)}
    return Application.open(
        settings, clock=clock, declared=Declared(chats=load_gateway(settings, environment=given))
    )


async def test_each_address_has_a_row_and_each_row_an_address(room: Room) -> None:
    known: dict[str, frozenset[str]] = {}
    for one in room.rows():
        known[one.path] = known.get(one.path, frozenset()) | one.methods
    found: dict[str, frozenset[str]] = {}
    for path, methods in routes_of(room.app.routes):
        found[path] = found.get(path, frozenset()) | methods
    assert found.keys() == known.keys()
    assert all(found[path] <= known[path] for path in found)


async def test_each_row_of_the_table_is_answered_as_it_says(room: Room) -> None:
    wrong = []
    for row in room.rows():
        if row.who is Who.PROVED_THERE or row.path == EVENTS:
            continue  # both below
        path = re.sub(r"\{[^}]*\}", "x", row.path)
        operation = OPERATIONS.get(row.path.removeprefix("/v1/"))
        for method in sorted(row.methods - {"OPTIONS"}):
            for caller in CALLERS:
                more: dict[str, Any] = {}
                if operation is not None:
                    given = arguments_of(operation.name)
                    more = {"json": given} if operation.changes else {"params": as_query(given)}
                elif method in ("POST", "PUT", "DELETE"):
                    more = {"content": b"[]", "headers": {"Content-Type": "application/json"}}
                status = await room.ask(caller, method, path, **more)
                if (method, caller) == ("POST", "operator") and path in ("/", "/push"):
                    assert (
                        status == 403
                    )  # let in, and refused by the form, which needs a session of the pages
                    continue
                if row.who is Who.PEOPLE and status == 303 and caller != "person" and caller != "operator":
                    status = 401
                expected = answers(row)[CALLERS.index(caller)]
                found = "in" if status not in (401, 403) else str(status)
                if caller == "other project" and status == 404 and expected != "in":
                    found = "404"
                about_all = expected == "404" and found == "403"  # an operation that is about more than one
                if found != expected and not about_all:
                    wrong.append((method, path, caller, expected, status))
    assert wrong == []


async def test_the_stream_of_events_begins_for_whom_the_table_says(room: Room) -> None:
    [row] = [one for one in room.rows() if one.path == EVENTS]
    query = f"project_key={quote(HARBOR, safe='')}"
    for accept in ("application/json", "text/event-stream"):
        begun = [await room.begin(caller, EVENTS, query, accept=accept) for caller in CALLERS]
        assert tuple("in" if status == 200 else str(status) for status in begun) == answers(row)


async def test_no_token_of_ours_is_worth_anything_at_a_channel(room: Room) -> None:
    for row in room.rows():
        if row.who is Who.PROVED_THERE:
            for method in row.methods:
                path = re.sub(r"\{[^}]*\}", "x", row.path)
                if method == "GET":
                    answers = {caller: await room.begin(caller, path) for caller in CALLERS}
                else:
                    answers = {
                        caller: await room.ask(caller, method, path, content=b"{}") for caller in CALLERS
                    }
                assert len(set(answers.values())) == 1, (row.path, answers)


async def test_what_no_row_names_answers_nobody() -> None:
    async def done(_: Any) -> PlainTextResponse:
        return PlainTextResponse("open")

    below: list[BaseRoute] = [Route("/y", done, methods=["GET", "POST"])]
    app = Starlette(routes=[Route("/new", done), Mount("/x", routes=below)])
    close(app.routes, [Permission(path="/x/y", methods=frozenset({"GET"}), who=Who.ANYONE)])
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
        assert (await client.get("/x/y")).text == "open"
        for method, path in (("GET", "/new"), ("POST", "/x/y")):
            assert (await client.request(method, path)).status_code == 500  # no page for a refusal here
    with pytest.raises(TypeError, match="no permission is declared for"):
        close([BaseRoute()], [])


def test_each_resource_is_behind_an_operation_and_each_operation_names_its_scopes() -> None:
    assert {one.operation for one in RESOURCES} <= OPERATIONS.keys()
    assert all(one.needs for one in MAIL_OPERATIONS)
