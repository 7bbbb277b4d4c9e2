"""The events of a project over HTTP: an answer that waits, a stream that is resumed, bounded and ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.types import ASGIApp, Message

from machine import PATIENCE
from mail_room import HARBOR
from postroom import sse
from postroom.http_api.rest import event_routes
from postroom.stores.changes import TopicListener
from rest_room import OPERATOR, Edge, opened
from table_rows import each_row

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
def empty() -> Iterator[Edge]:
    yield from opened()


@pytest.fixture
async def edge(empty: Edge) -> Edge:
    """Return the edge over a harbour with its agents, which are the events 1 to 4."""
    await empty.room.open()
    return empty


class Listener:
    """One request to the application, whose answer is taken piece by piece."""

    def __init__(self, app: ASGIApp, query: str, headers: dict[str, str]) -> None:
        told = {"host": "127.0.0.1:8765", **STREAM, **OPERATOR, **headers}
        self._scope: dict[str, Any] = {
            **{"type": "http", "method": "GET", "path": "/v1/events", "raw_path": b"/v1/events"},
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in told.items()],
            "client": ("127.0.0.1", 1),
        }
        self._app = app
        self.takes = asyncio.Event()
        self.takes.set()
        self.gone = asyncio.Event()
        self._pieces: asyncio.Queue[Message] = asyncio.Queue()

    async def run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.takes.wait()
        self._pieces.put_nowait(message)

    def statuses(self) -> list[int]:
        """Return the statuses of the answers that were sent, taking all of them."""
        sent = [self._pieces.get_nowait() for _ in range(self._pieces.qsize())]
        return [one["status"] for one in sent if one["type"] == "http.response.start"]

    async def piece(self) -> str:
        """Return the next piece of the body; empty at its end."""
        async with asyncio.timeout(PATIENCE):
            found = await self._pieces.get()
            if found["type"] == "http.response.start":
                assert found["status"] == 200, found
                return await self.piece()
            return bytes(found["body"]).decode()

    async def events(self, count: int) -> list[tuple[str, str]]:
        """Return number and kind of the next events."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            fields = dict(row.split(": ", 1) for row in (await self.piece()).splitlines() if row)
            if fields.get("event") == event_routes.ALIVE:
                assert fields["data"] == "{}"
            elif "data" in fields:
                assert json.loads(fields["data"]).get("kind", fields["event"]) == fields["event"]
                found.append((fields.get("id", ""), fields["event"]))
        return found


@asynccontextmanager
async def listening(
    edge: Edge, headers: dict[str, str] | None = None, **asked: Any
) -> AsyncIterator[Listener]:
    query = urlencode({"project_key": HARBOR, **asked}, doseq=True)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        listener = Listener(edge.app, query, headers or {})
        task = group.create_task(listener.run())
        yield listener
        listener.gone.set()
        edge.mail.changes.ring()
        task.cancel()


async def ask(edge: Edge, headers: dict[str, str] | None = None, **asked: Any) -> Any:
    return await edge.send(
        "GET", "/v1/events", params={"project_key": HARBOR, **asked}, headers={**OPERATOR, **(headers or {})}
    )


async def test_an_answer_is_that_of_the_operation_and_comes_at_once(edge: Edge) -> None:
    await edge.furnish()
    reply = await ask(edge, after=3, limit=2, wait=60)
    same = await edge.ask("fetch_events", {"project_key": HARBOR, "after": 3, "limit": 2})
    assert reply.json() == same.json()
    assert [one["seq"] for one in reply.json()["events"]] == [4, 5]
    newest = await ask(edge)
    assert (newest.json()["events"], newest.json()["next"]) == ([], newest.json()["newest"])


async def test_a_stream_tells_what_is_there_and_then_what_comes(edge: Edge) -> None:
    async with listening(edge, after=3) as listener:
        assert await listener.piece() == sse.retry(event_routes.RETRY_MS)
        assert await listener.events(1) == [("4", "agent.registered")]
        await edge.room.send("Ada", "Ben")
        await edge.room.call("mark_message_read", agent_name="Ben", message_id=1)
        assert await listener.events(2) == [("5", "message.sent"), ("6", "delivery.read")]


async def test_a_stream_is_resumed_where_it_broke_off(edge: Edge) -> None:
    async with listening(edge, {"Last-Event-ID": "2"}, after=0) as listener:
        assert await listener.events(2) == [("3", "agent.registered"), ("4", "agent.registered")]
    async with listening(edge) as listener:
        assert await listener.piece() == sse.retry(event_routes.RETRY_MS)
        assert await listener.piece() == "id: 4\nevent: beat\ndata: {}\n\n"
        await edge.room.send("Ada", "Ben")
        assert await listener.events(1) == [("5", "message.sent")]


async def test_a_stream_of_some_kinds_moves_on_past_the_others(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "BEAT", 0)
    async with listening(edge, after=0, kinds="message.sent") as listener:
        assert await listener.piece() == sse.retry(event_routes.RETRY_MS)
        assert await listener.piece() == "id: 4\nevent: beat\ndata: {}\n\n"
        await edge.room.send("Ada", "Ben")
        assert await listener.events(1) == [("5", "message.sent")]


async def test_a_stream_ends_when_the_server_stops_or_its_time_is_over(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(edge, after=3) as listener:
        assert await listener.events(1) == [("4", "agent.registered")]
        edge.mail.changes.stop()
        assert [await listener.piece() for _ in range(2)] == ["id: 4\nevent: beat\ndata: {}\n\n", ""]
    over = Edge()
    await over.room.open()
    monkeypatch.setattr(event_routes, "LIFE", event_routes.LIFE * 0)
    async with listening(over, after=3) as listener:
        assert await listener.events(1) == [("4", "agent.registered")]
        assert await listener.piece() == ""
    over.close()


async def test_a_stream_whose_token_ends_is_told_nothing_more_and_ends(edge: Edge) -> None:
    agents = {"Authorization": f"Bearer {await edge.token_of('Ada')}"}
    for headers, end in (
        (agents, lambda: edge.mail.issue_token(HARBOR, "Ada", None)),
        (await edge.named_token("ci", "mail:read"), lambda: edge.tokens.revoke("ci")),
    ):
        newest = (await ask(edge)).json()["newest"]
        async with listening(edge, headers, after=newest) as listener:
            assert await listener.piece() == sse.retry(event_routes.RETRY_MS)
            assert (await listener.piece()).endswith("\nevent: beat\ndata: {}\n\n")
            await end()
            await edge.room.send("Ada", "Ben")
            last = await listener.piece()
            assert last.startswith("event: refused\ndata: ")
            assert json.loads(last.partition("data: ")[2])["code"] == "wrong_token"
            assert await listener.piece() == ""


async def test_nobody_looks_on_for_who_has_gone(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "MAX_LISTENERS", 1)
    query = urlencode({"project_key": HARBOR, "after": 4, "wait": 60})
    for _ in range(3):
        listener = Listener(edge.app, query, {"Accept": "application/json"})
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(listener.run())
            await asyncio.sleep(0)
            listener.gone.set()
        assert listener.statuses() == [204]


async def test_who_waits_is_refused_when_its_token_ends(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, changes = asyncio.Event(), edge.mail.store.changes
    listen = changes.listen

    def listened(topic: str) -> TopicListener:
        waits.set()
        return listen(topic)

    monkeypatch.setattr(changes, "listen", listened)
    bearer = {"Authorization": f"Bearer {await edge.token_of('Ada')}"}
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        wait = group.create_task(ask(edge, bearer, after=4, wait=60))
        await waits.wait()
        await edge.mail.issue_token(HARBOR, "Ada", None)
    assert (wait.result().status_code, wait.result().json()["code"]) == (401, "wrong_token")


async def test_no_more_listeners_than_agreed_and_each_that_ends_makes_room(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "MAX_LISTENERS", 1)
    for _ in range(2):
        async with listening(edge, after=3) as listener:
            assert await listener.events(1) == [("4", "agent.registered")]
            for refused in (await ask(edge, STREAM, after=3), await ask(edge, after=4, wait=1)):
                assert (refused.status_code, refused.json()["code"]) == (503, "server_unavailable")
                assert refused.headers["retry-after"]
            assert (await ask(edge, after=3)).status_code == 200
    for _ in range(2):
        assert (await ask(edge, STREAM, after=99)).status_code == 409
        assert (await ask(edge, after=99, wait=1)).status_code == 409
        assert (await ask(edge, after=3, wait=1)).status_code == 200


async def test_a_reader_that_takes_nothing_is_cut_off(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SLOWEST", 0.01)
    monkeypatch.setattr(event_routes, "MAX_LISTENERS", 1)
    query = urlencode({"project_key": HARBOR, "after": 0})
    slow = Listener(edge.app, query, {})
    slow.takes.clear()
    async with asyncio.timeout(PATIENCE):
        await slow.run()
    async with listening(edge, after=3) as listener:
        assert await listener.events(1) == [("4", "agent.registered")]


@each_row(
    "asked, headers, status, code",
    [
        *(({"after": -1}, {}, 400, "invalid_argument"), ({"after": "x"}, {}, 400, "invalid_argument")),
        *(({"wait": 61}, {}, 400, "invalid_argument"), ({"kinds": "no.such"}, {}, 400, "invalid_argument")),
        ({"more": 1}, {}, 400, "invalid_argument"),
        ({"project_key": "/nowhere"}, {}, 404, "unknown_project"),
        *(({"after": 5}, {}, 409, "cursor_ahead"), ({"after": 1}, {}, 410, "cursor_expired")),
        ({"after": 1}, STREAM, 410, "cursor_expired"),
        ({}, {**STREAM, "Last-Event-ID": "5"}, 409, "cursor_ahead"),
        ({}, {**STREAM, "Last-Event-ID": "-1"}, 400, "invalid_argument"),
        ({}, {**STREAM, "Last-Event-ID": "9" * 17}, 400, "invalid_argument"),
        ({}, {**STREAM, "Last-Event-ID": "9" * 16}, 409, "cursor_ahead"),
        ({}, {**STREAM, "Last-Event-ID": "a7-3"}, 400, "invalid_argument"),
    ],
)
async def test_what_cannot_be_followed_is_refused_before_anything_is_streamed(
    edge: Edge, asked: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    await edge.store.write(lambda tx: tx.trim_log(1, keep=2, limit=9))
    reply = await ask(edge, headers, **asked)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["remedy"]


async def test_a_person_at_the_pages_may_listen_and_a_foreign_page_may_not(edge: Edge) -> None:
    await edge.room.send("Ada", "Ben", bcc=["Cyd"])
    await edge.room.call("acknowledge_message", agent_name="Cyd", message_id=1)
    async with listening(edge, {"Authorization": "", **edge.cookie}, after=3) as listener:
        assert await listener.events(2) == [("4", "agent.registered"), ("5", "message.sent")]
        assert await listener.piece() == "id: 7\nevent: beat\ndata: {}\n\n"
    foreign = await ask(edge, {**STREAM, "Origin": "http://evil.example"})
    assert foreign.status_code == 403


async def test_a_question_for_the_head_alone_never_streams(edge: Edge) -> None:
    async with asyncio.timeout(PATIENCE):
        reply = await edge.send(
            "HEAD",
            "/v1/events",
            params={"project_key": HARBOR, "after": 4, "wait": 60},
            headers={**OPERATOR, **STREAM},
        )
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
