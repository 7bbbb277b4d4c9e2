"""The rights of a named token: over REST and MCP by the table of operations, at the operator's addresses by `admin`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from log_lines import capture_logs
from mail_room import HARBOR, SHORE, THE_PLAN, everything, furnish
from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.app.tokens import new_named_token
from postroom.contracts.errors import InsufficientScope, NotPermitted, StoreClosed, UnknownProject
from postroom.contracts.operations import Operation
from postroom.contracts.tokens import ADMIN, SCOPES, Grant
from postroom.http_api.administration import administration_routes
from postroom.http_api.guard import Credentials, Guard, GuardRules
from postroom.http_api.permissions import table
from postroom.http_api.rest.routes import rest_paths
from postroom.http_api.routes import application
from postroom.mail.commands import HealthCheck
from postroom.mail.context import Caller
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from postroom.mail.tokens import NamedTokens
from postroom.mcp_server import resources
from postroom.mcp_server.endpoint import Endpoint
from postroom.mcp_server.resources import RESOURCES
from postroom.services.calls import Subscriptions
from postroom.services.people import PeopleService
from rest_room import BASE, OPERATOR, Edge, arguments_of
from table_rows import each_row

EVERY = frozenset(SCOPES)
WITHOUT_ADMIN = tuple(one for one in SCOPES if one != "admin")


@asynccontextmanager
async def furnished() -> AsyncIterator[Edge]:
    made = Edge()
    await furnish(made.room)
    await made.room.open("Ada", "Eve", project=SHORE)
    yield made
    made.close()


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with furnished() as made:
        yield made


EACH = each_row("operation", MAIL_OPERATIONS)


def grant(*scopes: Any, **more: Any) -> Grant:
    return Grant(token_id="a" * 12, name="ci", scopes=frozenset(scopes), **more)


# The table


def test_every_operation_declares_its_scopes_and_one_that_does_not_cannot_be_made() -> None:
    for one in MAIL_OPERATIONS:
        assert one.needs
        assert one.needs <= EVERY
        assert not (one.changes and one.needs <= {"mail:read"}), one.name
    shows = {kind.operation for kind in RESOURCES} - {"list_file_reservations"}
    shows |= {"start_session", "get_message", "fetch_inbox_events", "search_messages", "delivery_status"}
    assert [name for name in shows if "mail:read" not in OPERATIONS[name].needs] == []
    for wrong in (frozenset(), frozenset({"everything"}), frozenset({"mail:read", ""})):
        with pytest.raises(ValueError, match="declares an unknown scope"):
            replace(MAIL_OPERATIONS[0], needs=wrong)
    with pytest.raises(TypeError):
        Operation(name="x", command=HealthCheck, run=MAIL_OPERATIONS[0].run, changes=False)  # type: ignore[call-arg]


def test_an_operation_that_does_not_say_so_is_refused_to_a_bound_token() -> None:
    new = Operation(
        name="new",
        command=HealthCheck,
        run=MAIL_OPERATIONS[0].run,
        changes=False,
        needs=frozenset({"mail:read"}),
    )
    assert new.is_open_to(None)
    assert new.is_open_to(grant("mail:read"))
    with pytest.raises(NotPermitted):
        new.check(grant("mail:read", project_id=1))


# REST


@pytest.fixture
async def lacking(edge: Edge) -> dict[str, dict[str, str]]:
    """Tokens by the one scope that each lacks."""
    return {
        missing: await edge.named_token(f"no-{missing.replace(':', '-')}", *(EVERY - {missing}))
        for missing in SCOPES
    }


@EACH
async def test_a_scope_too_few_is_refused_and_named_on_each_operation(
    edge: Edge, lacking: dict[str, dict[str, str]], operation: Operation
) -> None:
    """Over REST and over MCP: there a refusal is a 403 of HTTP too."""
    call = _call("tools/call", name=operation.name, arguments={})
    needed = " ".join(one for one in SCOPES if one in operation.needs)
    for missing in sorted(operation.needs):
        before = await everything(edge.store)
        answer = await edge.ask(operation.name, headers=lacking[missing])
        told = answer.json()
        assert (answer.status_code, told["code"]) == (403, "insufficient_scope")
        assert (told["details"]["missing"], f"`{missing}`" in told["detail"]) == ([missing], True)
        assert answer.headers["www-authenticate"] == (
            f'Bearer realm="postroom", error="insufficient_scope", scope="{needed}"'
        )
        over_mcp = await _ask(edge, "POST", "/mcp", lacking[missing], json=call)
        error = over_mcp.json()["error"]["data"]
        assert (over_mcp.status_code, over_mcp.json()["id"]) == (403, 7)
        assert (error["code"], error["details"]["missing"]) == ("insufficient_scope", [missing])
        assert missing in over_mcp.headers["www-authenticate"]
        assert await everything(edge.store) == before
    enough = await edge.named_token(f"enough-{operation.name}", *operation.needs)
    assert (await _ask(edge, "POST", "/mcp", enough, json=call)).json() == {"passed": True}


@EACH
async def test_the_scopes_that_are_declared_are_enough(operation: Operation) -> None:
    async with furnished() as as_operator, furnished() as edge:
        expected = await as_operator.ask(operation.name)
        answer = await edge.ask(operation.name, headers=await edge.named_token("ci", *operation.needs))
        assert answer.status_code == 200
        if operation.name != "reply_message":  # its answer has the subject of a message for `mail:read` alone
            assert answer.content == expected.content


async def test_a_token_that_may_only_send_learns_no_subject_by_an_answer(edge: Edge) -> None:
    send = await edge.named_token("send", "mail:send")
    both = await edge.named_token("both", "mail:send", "mail:read")
    keyed = {**arguments_of("reply_message"), "idempotency_key": "once"}
    shown = (await edge.ask("reply_message", keyed, headers=both)).json()["deliveries"][0]["payload"]
    for asked in (keyed, arguments_of("reply_message")):
        [delivery] = (await edge.ask("reply_message", asked, headers=send)).json()["deliveries"]
        assert (delivery["payload"]["subject"], delivery["payload"]["topic"]) == ("", "")
    assert shown["subject"].startswith("Re: ")


async def test_the_log_names_who_asked_for_each_change(edge: Edge) -> None:
    headers = await edge.named_token("night-shift", *EVERY)
    with capture_logs() as lines:
        await edge.ask("send_message", headers=headers)
        await edge.ask("fetch_inbox", headers=headers)
        await edge.ask("send_message")
        for asking in (headers, OPERATOR):
            await _ask(edge, "DELETE", "/admin/tokens", asking, json={"name": "none"})
        await _ask(edge, "GET", "/admin/tokens", headers)
    [line] = [one for one in lines if one["event"] == "mail.changed_with_token"]
    assert (line["by"], line["operation"], line["agent"]) == ("night-shift", "send_message", "Ada")
    asked = [(one["by"], one["path"]) for one in lines if one["event"] == "http.admin_change_asked"]
    assert asked == [("night-shift", "/admin/tokens"), ("operator", "/admin/tokens")]


async def test_a_store_that_does_not_answer_opens_nothing(edge: Edge) -> None:
    headers = await edge.named_token("ci", *EVERY)
    edge.store.close()
    answer = await edge.ask("health_check", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (503, StoreClosed.code)


async def test_a_named_token_is_nobodys_identity(edge: Edge) -> None:
    """It acts as any agent if names are asserted; an agent's token in the same call decides."""
    headers = await edge.named_token("ci", "mail:send")
    ada = await edge.token_of("Ada")
    assert (await edge.ask("send_message", headers=headers)).status_code == 200
    beside = {**headers, "Postroom-Agent-Token": ada}
    assert (await edge.ask("send_message", headers=beside)).status_code == 200
    answer = await edge.ask("reply_message", headers=beside)  # by Ben
    assert answer.json()["code"] == "identity_mismatch"
    itself = {**headers, "Postroom-Agent-Token": headers["Authorization"].removeprefix("Bearer ")}
    assert (await edge.ask("send_message", headers=itself)).json()["code"] == "wrong_token"


# One project


@EACH
async def test_a_bound_token_sees_no_other_project(operation: Operation) -> None:
    """Another project has no owner here; not even a kept answer is given."""
    async with furnished() as edge:
        await _sees_no_other_project(edge, operation)


async def _sees_no_other_project(edge: Edge, operation: Operation) -> None:
    key = {"idempotency_key": "k1"} if "idempotency_key" in operation.command.__struct_fields__ else {}
    asked = {**arguments_of(operation.name), **key}
    headers = await edge.named_token("shore", *WITHOUT_ADMIN, project=SHORE)
    if "admin" in operation.needs:
        assert (await edge.ask(operation.name, headers=headers)).json()["code"] == "insufficient_scope"
        return
    if not operation.is_of_one_project:
        answer = await edge.ask(operation.name, asked, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")
        return
    assert (await edge.ask(operation.name, asked)).status_code == 200
    before = await everything(edge.store)
    answer = await edge.ask(operation.name, asked, headers=headers)
    expected = {(404, "unknown_project"), (403, "not_permitted")}
    assert (answer.status_code, answer.json()["code"]) in expected
    assert "harbor" not in answer.json()["detail"].replace(HARBOR, "")
    assert await everything(edge.store) == before


@EACH
async def test_a_bound_token_works_in_its_own_project(operation: Operation) -> None:
    async with furnished() as edge:
        headers = await edge.named_token("harbor", *WITHOUT_ADMIN, project=HARBOR)
        asked = {"human_key": HARBOR} if operation.name == "ensure_project" else arguments_of(operation.name)
        answer = await edge.ask(operation.name, asked, headers=headers)
    may = operation.is_of_one_project and "admin" not in operation.needs
    assert answer.status_code == (200 if may else 403)


@pytest.fixture
async def bound_to_harbor(edge: Edge) -> dict[str, str]:
    return await edge.named_token("harbor", *WITHOUT_ADMIN, project=HARBOR)


async def test_within_one_project_no_other_has_a_name(edge: Edge) -> None:
    bound = await edge.store.read(lambda tx: tx.project(SHORE))
    assert bound is not None
    told = grant("mail:read", project_id=bound.id)

    def look(tx: Any) -> tuple[Any, ...]:
        seen = edge.mail.context(tx, Caller(grant=told)).projects
        return (
            [seen.project(key) for key in (SHORE, HARBOR, "projects-harbor")],
            seen.projects(limit=9),
            seen.projects(limit=9, after=bound.id),
            seen.projects_spelled(HARBOR),
            seen.projects_spelled(SHORE),
            edge.mail.context(tx, Caller(grant=grant("mail:read"))).projects is tx,
        )

    assert await edge.store.read(look) == ([bound, None, None], [bound], [], [], [bound], True)
    with pytest.raises(UnknownProject):
        await edge.mail.call("show_project", {"project_key": HARBOR}, caller=Caller(grant=told))


@each_row("key", [SHORE, "projects-shore", f"{SHORE}/", "/projects/nowhere", "C:\\shore"])
async def test_a_bound_token_reaches_no_project_by_another_name(
    edge: Edge, bound_to_harbor: dict[str, str], key: str
) -> None:
    headers = bound_to_harbor
    before = await everything(edge.store)
    for name, more in (
        ("show_project", {"project_key": key}),
        ("whois", {"project_key": HARBOR, "agent_name": f"Eve@{key}"}),
        ("send_message", {**arguments_of("send_message"), "to": [f"Eve@{key}"]}),
        ("request_contact", {**arguments_of("request_contact"), "to": f"Eve@{key}"}),
        ("ensure_project", {"human_key": key}),
        ("start_session", {**arguments_of("start_session"), "project_key": key}),
    ):
        answer = await edge.ask(name, more, headers=headers)
        assert answer.status_code in (400, 403, 404), (name, answer.json())
        assert "shore" not in json.dumps(answer.json()["details"])
    assert await everything(edge.store) == before


async def test_a_bound_token_writes_to_no_person_and_the_answer_is_as_if_nobody_was_named(edge: Edge) -> None:
    people = PeopleService(edge.mail, lambda _: True)
    headers = await edge.named_token("harbor", *WITHOUT_ADMIN, project=HARBOR)
    message = {**arguments_of("send_message"), "to": ["human:alice", "chat:telegram/77"]}
    before = (await edge.ask("send_message", message, headers=headers)).json()
    await people.add("alice", "telegram/77")
    after = await edge.ask("send_message", message, headers=headers)
    assert (after.status_code, after.json()["details"]) == (400, before["details"])
    assert (await edge.ask("send_message", message)).status_code == 200


# The operator's addresses, pages, MCP


def _guard(edge: Edge) -> Guard:
    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({"passed": True})(scope, receive, send)

    made = administration_routes(ADMINISTRATION, {NamedTokens: edge.tokens})
    open_to = [Route(path, Endpoint(passed)) for path in ("/mcp", "/admin/status")]
    app = application([*made, *open_to], permissions=table(ALL_OPERATIONS))
    credentials = Credentials(
        is_operator=lambda token: OPERATOR["Authorization"].endswith(token),
        sessions=edge.sessions,
        is_agent=edge.mail.knows_token,
        grant_of=edge.tokens.recognise,
    )
    return Guard(app, GuardRules(rest_paths=rest_paths()), credentials)


async def _ask(edge: Edge, method: str, path: str, headers: dict[str, str], **more: Any) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=_guard(edge))
    async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
        return await client.request(method, path, headers=headers, **more)


async def test_the_operator_makes_lists_replaces_and_revokes(edge: Edge) -> None:
    some = await edge.named_token("some", *WITHOUT_ADMIN)
    lacks = await _ask(edge, "GET", "/admin/status", some)
    assert (lacks.status_code, lacks.json()["details"]["missing"]) == (403, ["admin"])
    assert 'scope="admin"' in lacks.headers["www-authenticate"]
    await edge.tokens.revoke("some")
    first, second = new_named_token(), new_named_token()
    asked = {"name": "ci", "id": first.id, "hash": first.hash, "scopes": ["run"], "life_seconds": 60}
    for _ in range(2):
        made = (await _ask(edge, "POST", "/admin/tokens", OPERATOR, json=asked)).json()
        assert (made["scopes"], made["state"]) == (["run"], "valid")
    again = {"name": "ci", "id": second.id, "hash": second.hash, "overlap_seconds": 9}
    assert (await _ask(edge, "POST", "/admin/tokens/rotate", OPERATOR, json=again)).json()["id"] == second.id
    listed = await _ask(edge, "GET", "/admin/tokens", OPERATOR)
    assert [one["state"] for one in listed.json()["tokens"]] == ["replaced", "valid"]
    assert first.hash not in listed.text
    gone = await _ask(edge, "DELETE", "/admin/tokens", OPERATOR, json={"name": "ci"})
    assert gone.json() == {"revoked": 2}
    assert (await _ask(edge, "GET", "/admin/tokens", OPERATOR)).json() == {"tokens": []}
    every = await _ask(edge, "GET", "/admin/tokens?all=yes", OPERATOR)
    assert [one["state"] for one in every.json()["tokens"]] == ["revoked"] * 3
    for wrong in ({**asked, "life_seconds": -1}, {**asked, "life_seconds": 10**12}, {**asked, "more": 1}, {}):
        refused = await _ask(edge, "POST", "/admin/tokens", OPERATOR, json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")


def _call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


@each_row("kind", RESOURCES)
async def test_a_resource_needs_what_its_operation_needs(edge: Edge, kind: Any) -> None:
    there = {"thread": "msg-1", "message": 1, "sha256": THE_PLAN}
    uri = kind.template.format(project="projects-harbor", agent="Ben", **there)
    elsewhere = kind.template.format(project="projects-shore", agent="Eve", **there)
    needs = OPERATIONS[kind.operation].needs
    few = await edge.named_token(f"few-{kind.name}", *(EVERY - needs))
    enough = await edge.named_token(f"enough-{kind.name}", *needs)
    bound = await edge.named_token(f"bound-{kind.name}", *needs, project=HARBOR)
    for method, params, theirs in (
        ("resources/read", {"uri": uri}, {"uri": elsewhere}),
        (
            "subscriptions/listen",
            {"notifications": {"resourceSubscriptions": [uri]}},
            {"notifications": {"resourceSubscriptions": [uri, elsewhere]}},
        ),
    ):
        refused = await _ask(edge, "POST", "/mcp", few, json=_call(method, **params))
        assert (refused.status_code, refused.json()["error"]["data"]["code"]) == (403, "insufficient_scope")
        for headers in (enough, bound):
            assert (
                await _ask(edge, "POST", "/mcp", headers, json=_call(method, **params))
            ).status_code == 200
        other = await _ask(edge, "POST", "/mcp", bound, json=_call(method, **theirs))
        # What is read is narrowed where it is read; news is not, and is refused here.
        assert other.status_code == (403 if method == "subscriptions/listen" else 200)


@pytest.fixture
async def a_token(edge: Edge) -> dict[str, str]:
    return await edge.named_token("ci", *EVERY)


@each_row(
    "params",
    [
        *({}, {"name": None}, {"name": ["send_message"]}, {"name": "no_such_tool"}, {"uri": 5}),
        {"notifications": []},
        {"notifications": {"resourceSubscriptions": "mail://project/projects-shore"}},
        {"notifications": {"resourceSubscriptions": [5, None, "x"]}},
    ],
)
@each_row("method", ["tools/call", "resources/read", "subscriptions/listen", "tools/list", "ping"])
async def test_a_message_that_makes_no_sense_is_left_to_who_reads_it(
    edge: Edge, a_token: dict[str, str], method: str, params: dict[str, Any]
) -> None:
    assert (await _ask(edge, "POST", "/mcp", a_token, json=_call(method, **params))).status_code == 200


async def test_a_resource_of_another_project_is_not_read_by_a_bound_token(edge: Edge) -> None:
    bound = await edge.store.read(lambda tx: tx.project(HARBOR))
    assert bound is not None
    told = Caller(grant=grant("mail:read", project_id=bound.id, project_slug=bound.slug))
    assert await resources.read(edge.mail, "mail://project/projects-harbor", told)
    with pytest.raises(UnknownProject):
        await resources.read(edge.mail, "mail://project/projects-shore", told)
    with pytest.raises(InsufficientScope):
        await resources.read(edge.mail, "mail://reservations/projects-harbor", told)
    with pytest.raises(NotPermitted):
        await edge.mail.call("health_check", {}, caller=told)


async def test_news_is_told_to_a_token_while_it_is_good() -> None:
    good = {"first", "second"}
    news = Subscriptions(holds=lambda one: one.name in good)
    heard: list[tuple[str, str]] = []
    for name in ("first", "second"):
        with news.heard_by(replace(grant(*ADMIN), name=name)):
            news.subscribe(lambda event, name=name: heard.append((name, event.uri)))  # type: ignore[misc]
    news.subscribe(lambda event: heard.append(("operator", event.uri)))  # type: ignore[union-attr]
    await news.announce(["mail://agents/a"])
    good.discard("first")
    await news.announce(["mail://agents/b"])
    assert [name for name, uri in heard if uri.endswith("a")] == ["first", "second", "operator"]
    assert [name for name, uri in heard if uri.endswith("b")] == ["second", "operator"]


async def test_suggestions_for_addresses_are_for_those_who_may_read_them(edge: Edge) -> None:
    inbox = "mail://inbox/{project}/{agent}"
    few, reader = await edge.named_token("few", "mail:send"), await edge.named_token("reader", "mail:read")
    asked = {"ref": {"type": "ref/resource", "uri": inbox}, "argument": {"name": "project", "value": ""}}
    for headers, status in ((few, 403), (reader, 200)):
        answer = await _ask(edge, "POST", "/mcp", headers, json=_call("completion/complete", **asked))
        assert answer.status_code == status
    harbor = await edge.store.read(lambda tx: tx.project(HARBOR))
    assert harbor is not None
    bound = Caller(grant=grant("mail:read", project_id=harbor.id, project_slug=harbor.slug))
    assert await resources.suggested(edge.mail, inbox, "project", "", {}, bound) == [harbor.slug]
    with pytest.raises(UnknownProject):
        await resources.suggested(edge.mail, inbox, "agent", "", {"project": "projects-shore"}, bound)
    with pytest.raises(InsufficientScope):
        await resources.suggested(edge.mail, inbox, "project", "", {}, Caller(grant=grant("mail:send")))
