"""The chat page over HTTP: access, stored messages, events for the page, and limits for foreign pages."""

import asyncio
import json
import logging
import re
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest

from channels.http_room import FakeGateway, calling, served, unavailable, until
from platform_tables import table_of
from postroom.contracts.errors import ConfigError, InvalidArgument
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import FILES, Button, Card, SendErrorKind
from postroom.gateway.platforms import web
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.web import ChatLog, Entry, WebAdapter, WebOptions
from postroom.stores.memory import MemoryRunStores
from postroom.testing import ManualClock
from table_rows import each_row

TOKEN = "the token of the harbour"
BENS = "another token, which is Ben's"
SENT = {"X-Postroom": "1", "Origin": "http://room.test", "Sec-Fetch-Site": "same-origin"}
FORM = {"Origin": "http://room.test", "Sec-Fetch-Site": "same-origin"}
MESSAGE_ID = "0123456789abcdef"


@pytest.fixture
async def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
async def adapter(clock: ManualClock, gateway: FakeGateway):
    config = table_of(WebOptions, token=TOKEN, name="Ada", people={"Ben": {"token": BENS}})
    made = WebAdapter(config, clock=clock, timer=clock)
    made.set_message_handler(gateway)
    made.web_chats = MemoryRunStores(clock).chat.web_chats
    await made.connect()
    yield made
    await made.disconnect()
    assert len(made._tasks) == 0


@pytest.fixture
async def visitor(adapter):
    """Somebody who opened the page and has not signed in."""
    async with calling(adapter) as client:
        yield client


async def signed_in(client: httpx2.AsyncClient, token: str = TOKEN, below: str = "") -> None:
    answer = await client.post(
        f"{below}/chat/sign-in", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}
    )
    assert answer.status_code == 303


@pytest.fixture
async def ada(visitor):
    await signed_in(visitor)
    return visitor


class Page:
    """Reads the events of an open page, as its script does."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()
        self.last_id: str | None = None

    async def event(self) -> tuple[str, dict]:
        """Return the name and the data of the next event."""
        name, data = "message", {}
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line[4:]
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif not line and (data or name != "message"):
                return name, data
        return "end", {}

    async def entry(self) -> dict:
        """Return the next entry; that the list of conversations has changed is passed over."""
        name, data = await self.event()
        while name == "conversations":
            name, data = await self.event()
        assert name == "entry"
        return data


@asynccontextmanager
async def opened(client: httpx2.AsyncClient, **headers: str):
    async with asyncio.timeout(60), client.stream("GET", "/chat/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Page(answer)


# Who gets in.


async def test_the_page_asks_for_a_token_and_then_is_the_chat(visitor) -> None:
    before = await visitor.get("/chat")
    assert 'name="token"' in before.text
    assert 'id="composer"' not in before.text
    await signed_in(visitor)
    after = await visitor.get("/chat")
    assert 'id="composer"' in after.text
    assert "Ada" in after.text
    assert TOKEN not in after.text


async def test_the_session_is_a_cookie_that_no_script_and_no_other_site_sees(visitor, clock) -> None:
    answer = await visitor.post("/chat/sign-in", data={"token": TOKEN}, headers=FORM)
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/chat", "Max-Age=43200"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert (await visitor.get("/chat/events", headers={"Cookie": "postroom_chat=x"})).status_code == 401
    clock.advance(timedelta(hours=12))
    assert 'name="token"' in (await visitor.get("/chat")).text


async def test_over_https_the_cookie_is_for_https_only(adapter) -> None:
    async with calling(adapter) as client:
        answer = await client.post(
            "https://room.test/chat/sign-in", data={"token": TOKEN}, headers={"Origin": "https://room.test"}
        )
    assert "Secure" in answer.headers["set-cookie"].split("; ")


async def test_a_wrong_token_is_refused_and_many_have_to_wait(visitor, adapter, clock, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(10):
        answer = await visitor.post("/chat/sign-in", data={"token": "wrong <b>"}, headers=FORM)
        assert answer.status_code == 401
        assert "Unknown token" in answer.text
    wait = await visitor.post("/chat/sign-in", data={"token": TOKEN}, headers=FORM)
    assert (wait.status_code, wait.headers["retry-after"]) == (429, "60")
    assert adapter.liveness.refused == 11
    clock.advance(timedelta(minutes=1))
    await signed_in(visitor)
    assert "wrong" not in caplog.text
    assert TOKEN not in caplog.text


async def test_signing_out_ends_the_session_and_its_open_pages(adapter, gateway, clock) -> None:
    async with served(adapter) as client:
        await signed_in(client)
        async with opened(client) as page:
            await adapter.send("Ada", "Hello")
            assert (await page.entry())["text"] == "Hello"
            out = await client.post("/chat/sign-out", headers={"Sec-Fetch-Site": "same-origin"})
            assert out.status_code == 303
            assert (await page.event())[0] == "end"
        assert (await client.get("/chat/events")).status_code == 401


async def test_a_session_outlives_a_restart_until_its_person_signs_out(ada, adapter, gateway, clock) -> None:
    cookies = dict(ada.cookies)
    new = await restarted(adapter, clock, gateway)
    async with calling(new) as client:
        client.cookies.update(cookies)
        assert (await client.get("/chat/conversations")).status_code == 200
        assert (await client.post("/chat/sign-out", headers=FORM)).status_code == 303
    third = await restarted(new, clock, gateway)
    async with calling(third) as client:
        client.cookies.update(cookies)
        assert (await client.get("/chat/conversations")).status_code == 401
        assert 'name="token"' in (await client.get("/chat")).text
    await third.disconnect()


async def test_a_session_ends_when_the_token_or_the_name_of_its_person_changes(
    ada, adapter, gateway, clock
) -> None:
    for token, name in ((BENS, "Ada"), (TOKEN, "Eve")):
        config = table_of(WebOptions, token=token, name=name)
        adapter = await restarted(adapter, clock, gateway, config)
        async with calling(adapter) as client:
            client.cookies.update(dict(ada.cookies))
            assert (await client.get("/chat/conversations")).status_code == 401
    await adapter.disconnect()


async def test_a_cookie_that_was_changed_is_no_session(ada, clock) -> None:
    [(name, session)] = ada.cookies.items()
    ends_at, nonce, signed = session.split(".")
    forged = [
        f"{int(ends_at) + 1}.{nonce}.{signed}",
        f"{ends_at}.{nonce[::-1]}.{signed}",
        f"{ends_at}.{nonce}.{signed[::-1]}",
        f"{ends_at}.{nonce}.",
        f"{ends_at}.{nonce}",
        "",
    ]
    ada.cookies.clear()
    for one in forged:
        answer = await ada.get("/chat/conversations", headers={"Cookie": f"{name}={one}"})
        assert answer.status_code == 401, one
    real = await ada.get("/chat/conversations", headers={"Cookie": f"{name}={session}"})
    assert real.status_code == 200


async def test_two_people_have_chats_of_their_own(adapter, gateway, ada) -> None:
    async with calling(adapter) as ben:
        await signed_in(ben, BENS)
        await ben.post("/chat/messages", json={"id": MESSAGE_ID, "text": "I am Ben"}, headers=SENT)
    await ada.post("/chat/messages", json={"id": MESSAGE_ID, "text": "I am Ada"}, headers=SENT)
    told = [(one.source.chat_id, one.source.user_id, one.message_id, one.text) for one in gateway.accepted]
    assert told == [("Ben", "web:Ben", MESSAGE_ID, "I am Ben"), ("Ada", "web:Ada", MESSAGE_ID, "I am Ada")]


CHANGES = [
    ("POST", "/chat/messages", {"id": MESSAGE_ID, "text": "x"}),
    ("PUT", f"/chat/messages/{MESSAGE_ID}", {"text": "x"}),
    ("DELETE", f"/chat/messages/{MESSAGE_ID}", None),
    ("POST", "/chat/buttons", {"message_id": MESSAGE_ID, "value": "yes", "press_id": MESSAGE_ID}),
    ("PUT", "/chat/conversations/main", {"title": "x"}),
    ("DELETE", "/chat/conversations/main", None),
    ("POST", "/chat/conversations/main/stop", {}),
]
LOOKS = [
    ("GET", "/chat/events", None),
    ("GET", "/chat/conversations", None),
    ("GET", "/chat/conversations/main", None),
]
FOREIGN = [
    {},
    {"Origin": "http://room.test"},
    {"X-Postroom": "0"},
    {"X-Postroom": "1", "Origin": "http://evil.test"},
    {"X-Postroom": "1", "Origin": "null"},
    {"X-Postroom": "1", "Origin": "http://room.test:81"},
    {"X-Postroom": "1", "Origin": "http://[", "Sec-Fetch-Site": "same-origin"},
    {"X-Postroom": "1", "Sec-Fetch-Site": "cross-site"},
    {"X-Postroom": "1", "Sec-Fetch-Site": "same-site", "Origin": "http://room.test"},
]


async def test_a_foreign_page_changes_nothing(ada, adapter, gateway) -> None:
    asked = [(headers, *change) for headers in FOREIGN for change in CHANGES]
    taken: list[object] = []
    for headers, method, path, body in asked:
        answer = await ada.request(method, path, json=body, headers=headers)
        if answer.status_code != 403:
            taken.append((headers, method, path))
    for headers in ({}, {"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
        for path in ("/chat/sign-in", "/chat/sign-out"):
            answer = await ada.post(path, data={"token": BENS}, headers=headers)
            assert answer.status_code == 403, (headers, path)
    assert taken == []
    assert (gateway.accepted, gateway.edits, gateway.deletions, gateway.presses) == ([], [], [], [])
    assert adapter.liveness.refused == len(asked) + 6
    assert "Ada" in (await ada.get("/chat")).text


async def test_who_has_not_signed_in_gets_nothing(visitor, gateway) -> None:
    for method, path, body in (*CHANGES, *LOOKS):
        answer = await visitor.request(method, path, json=body, headers=SENT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "signed_out"), path
    assert gateway.accepted == []


# The page itself.


async def test_the_page_runs_nothing_but_its_own_script(ada) -> None:
    page = await ada.get("/chat")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert re.findall(r"<script[^>]*>", page.text) == ['<script src="/chat/static/chat.js" defer>']
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|<style", page.text)
    assert set(re.findall(r'(?:src|href|action)="([^"#][^"]*)"', page.text)) == {
        "/chat/static/icon.svg",
        "/chat/static/chat.css",
        "/chat/static/chat.js",
        "/chat/sign-out",
    }
    script = (await ada.get("/chat/static/chat.js")).text
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script
    )


async def test_the_files_of_the_page_are_asked_for_again_only_when_they_changed(visitor) -> None:
    for name, kind in (
        ("chat.js", "text/javascript"),
        ("chat.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        found = await visitor.get(f"/chat/static/{name}")
        assert found.headers["content-type"].startswith(kind)
        again = await visitor.get(f"/chat/static/{name}", headers={"If-None-Match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("chat.html", "..%2fweb.py", "x"):
        assert (await visitor.get(f"/chat/static/{name}")).status_code == 404


async def test_names_are_shown_as_text_wherever_the_page_is_mounted(clock, gateway) -> None:
    extra = {"name": '<img src=x onerror="alert(1)">{{base}}', "title": "</title><script>"}
    adapter = WebAdapter(table_of(WebOptions, token=TOKEN, **extra), clock=clock, timer=clock)
    adapter.set_message_handler(gateway)
    adapter.web_chats = MemoryRunStores(clock).chat.web_chats
    await adapter.connect()
    async with calling(adapter, below="/channels/web") as client:
        await signed_in(client, below="/channels/web")
        page = (await client.get("/channels/web/chat")).text
        assert (await client.get("/channels/web/chat/static/chat.css")).status_code == 200
    await adapter.disconnect()
    assert "<img" not in page
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;{{base}}" in page
    assert 'src="/channels/web/chat/static/chat.js"' in page


# What comes in.


async def test_a_message_is_acknowledged_when_it_is_kept(ada, adapter, gateway, clock) -> None:
    gateway.failure = unavailable()
    body = {"id": MESSAGE_ID, "text": " Is the light on?\u0000 "}
    refused = await ada.post("/chat/messages", json=body, headers=SENT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    gateway.failure = None
    for _ in range(2):
        taken = await ada.post("/chat/messages", json=body, headers=SENT)
        assert (taken.status_code, taken.json()) == (202, {"id": MESSAGE_ID, "state": "kept"})
    assert [(one.message_id, one.text) for one in gateway.accepted] == [
        (MESSAGE_ID, " Is the light on? ")
    ] * 2
    assert adapter.liveness.inbound_at == clock.now()
    gateway.failure = InvalidArgument("never")
    assert (await ada.post("/chat/messages", json={**body, "id": "f" * 16}, headers=SENT)).status_code == 400


@each_row(
    "body, status",
    [
        ({"id": MESSAGE_ID}, 400),
        ({"id": MESSAGE_ID, "text": " \n"}, 400),
        ({"id": MESSAGE_ID, "text": 7}, 400),
        ({"id": "short", "text": "x"}, 400),
        ({"id": "a/b/c/d/e/f", "text": "x"}, 400),
        ({"text": "x"}, 400),
        ({"id": MESSAGE_ID, "text": "x" * 100_001}, 413),
        ([], 400),
    ],
)
async def test_a_message_that_cannot_be_is_refused(ada, gateway, body, status) -> None:
    answer = await ada.post("/chat/messages", json=body, headers=SENT)
    assert (answer.status_code, gateway.accepted) == (status, [])


@each_row(
    "content, kind, status",
    [
        (b"{", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b" " * 1_048_577, "application/json", 413),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(ada, adapter, content, kind, status) -> None:
    refused = adapter.liveness.refused
    answer = await ada.post("/chat/messages", content=content, headers={**SENT, "Content-Type": kind})
    assert (answer.status_code, adapter.liveness.refused) == (status, refused + 1)


async def test_a_pressed_button_is_told_with_who_pressed_it(ada, gateway) -> None:
    body = {"message_id": "out-12345678", "value": "approve p1", "press_id": MESSAGE_ID}
    answer = await ada.post("/chat/buttons", json=body, headers=SENT)
    assert answer.json() == {"note": "noted: approve p1"}
    (press,) = gateway.presses
    assert (press.source.user_id, press.value, press.message_id, press.press_id) == (
        "web:Ada",
        "approve p1",
        "out-12345678",
        MESSAGE_ID,
    )
    for wrong in ({"value": "é"}, {"value": "x" * 61}, {"value": 1}, {"message_id": "x"}, {"press_id": None}):
        assert (await ada.post("/chat/buttons", json={**body, **wrong}, headers=SENT)).status_code == 400


# What the page is told.


async def test_an_open_page_sees_each_change_as_it_comes(adapter, gateway, clock) -> None:
    async with served(adapter) as client:
        await signed_in(client)
        async with opened(client) as page:
            body = {"id": MESSAGE_ID, "text": "Hello"}
            assert (
                await client.post("/chat/messages", json=body, headers={"X-Postroom": "1"})
            ).status_code == 202
            shown = await page.entry()
            assert (shown["kind"], shown["text"], shown["answered"]) == ("message", "Hello", False)
            await adapter.send_typing("Ada")
            assert await page.event() == ("typing", {"conversation": "main"})
            draft = await adapter.send("Ada", "He", None, {"answers": [MESSAGE_ID]})
            assert (await page.entry())["answered"] is True
            assert (await page.entry())["draft"] is True
            await adapter.edit_message("Ada", draft.message_id, "Hello, A", {"answers": [MESSAGE_ID]})
            assert (await page.entry())["text"] == "Hello, A"
            final = await adapter.send("Ada", "Hello, Ada", None, {"answers": [MESSAGE_ID], "final": True})
            shown = await page.entry()
            assert (shown["id"], shown["replaces"]) == (final.message_id, draft.message_id)
            assert (shown["text"], shown["draft"]) == ("Hello, Ada", False)
            clock.set(clock.now() + 15_000)
            assert (await page.event())[0] == "alive"
            await adapter.delete_message("Ada", final.message_id)
            assert (await page.entry())["gone"] is True


async def test_a_page_that_was_cut_off_is_told_what_it_missed(adapter) -> None:
    async with served(adapter) as client:
        await signed_in(client)
        async with opened(client) as page:
            await adapter.send("Ada", "One", None, {"dedupe_key": "1"})
            await page.entry()
        await until(lambda: not adapter._logs["Ada"]._watchers)
        two = await adapter.send("Ada", "Two", None, {"dedupe_key": "2"})
        await adapter.edit_message("Ada", two.message_id, "Two!")
        async with opened(client, **{"Last-Event-ID": page.last_id}) as back:
            assert (await back.entry())["text"] == "Two!"
            await adapter.send("Ada", "Two!", None, {"dedupe_key": "2"})
            await adapter.send("Ada", "Three", None, {"dedupe_key": "3"})
            assert (await back.entry())["text"] == "Three"  # "Two!" is shown already
        async with opened(client) as new:
            assert [(await new.entry())["text"] for _ in range(3)] == ["One", "Two!", "Three"]


async def test_a_page_of_another_time_is_told_so_and_gets_all_there_is(adapter) -> None:
    await adapter.send("Ada", "One")
    async with served(adapter) as client:
        await signed_in(client)
        for last_id in ("00000000-1", "nonsense", "-1", ""):
            async with opened(client, **{"Last-Event-ID": last_id}) as page:
                if last_id:
                    assert await page.event() == ("reset", {})
                assert (await page.entry())["text"] == "One"


async def test_stopping_lets_the_pages_go_and_takes_nothing_more(adapter, gateway) -> None:
    async with served(adapter) as client:
        await signed_in(client)
        async with opened(client) as page:
            await adapter.disconnect()
            assert (await page.event())[0] == "end"
        body = {"id": MESSAGE_ID, "text": "x"}
        answer = await client.post("/chat/messages", json=body, headers={"X-Postroom": "1"})
    assert (answer.status_code, gateway.accepted) == (503, [])
    assert adapter.liveness.state is AdapterState.STOPPED


async def test_only_so_many_pages_are_open(adapter, monkeypatch) -> None:
    monkeypatch.setattr(web, "MAX_WATCHERS", 1)
    async with served(adapter) as client:
        await signed_in(client)
        async with opened(client):
            assert (await client.get("/chat/events")).status_code == 429
        await until(lambda: not adapter._logs["Ada"]._watchers)
        async with opened(client):
            pass


async def test_a_message_is_read_when_its_answer_takes_the_place_of_a_draft_that_named_none(
    ada, adapter
) -> None:
    """A run's text after its question is shown as a draft before the answered message is looked up."""
    await ada.post("/chat/messages", json={"id": MESSAGE_ID, "text": "Delete it"}, headers=SENT)
    draft = await adapter.send("Ada", "It is", None, {"answers": []})
    assert not adapter._logs["Ada"].find(MESSAGE_ID).answered
    await adapter.edit_message(
        "Ada", draft.message_id, "It is gone.", {"answers": [MESSAGE_ID], "final": True}
    )
    assert adapter._logs["Ada"].find(MESSAGE_ID).answered


async def test_what_is_for_nobody_or_nothing_is_not_said_to_be_shown(adapter) -> None:
    card = Card(text="x")
    results = [
        await adapter.send("Nobody", "x"),
        await adapter.send_card("Nobody", card),
        await adapter.edit_message("Nobody", "x", "y"),
        await adapter.edit_message("Ada", "out-0", "y"),
        await adapter.delete_message("Ada", "out-0"),
        await adapter.update_card("Ada", "out-0", card),
    ]
    assert {one.error_kind for one in results} == {SendErrorKind.NOT_FOUND}
    await adapter.send_typing("Nobody")


# Conversations, and what is still there later.


async def write(client: httpx2.AsyncClient, text: str, conversation: str = "main", number: int = 0) -> str:
    message_id = f"{conversation}-{number:08}"
    body = {"id": message_id, "text": text, "conversation": conversation}
    assert (await client.post("/chat/messages", json=body, headers=SENT)).status_code == 202
    return message_id


async def listed(client: httpx2.AsyncClient, **asked: int) -> list[tuple[str, str]]:
    found = (await client.get("/chat/conversations", params=asked)).json()["conversations"]
    return [(one["id"], one["title"]) for one in found]


async def shown(client: httpx2.AsyncClient, conversation: str = "main", **asked: int) -> list[str]:
    found = (await client.get(f"/chat/conversations/{conversation}", params=asked)).json()["entries"]
    return [one["text"] for one in found]


async def restarted(
    adapter: WebAdapter, clock: ManualClock, gateway: FakeGateway, config: PlatformConfig | None = None
) -> WebAdapter:
    """Return another process over the same store."""
    await adapter.disconnect()
    clock.advance(timedelta(seconds=1))
    new = WebAdapter(config or adapter.config, clock=clock, timer=clock)
    new.set_message_handler(gateway)
    new.web_chats, new.files = adapter.web_chats, adapter.files
    await new.connect()
    return new


async def test_each_conversation_is_a_thread_of_its_own_and_the_last_active_is_first(
    ada, adapter, gateway, clock
) -> None:
    await write(ada, "## The *north* light\n\nIs it on?")
    clock.advance(timedelta(seconds=1))
    asked = await write(ada, "x" * 100, "c0ffee00")
    assert [one.source.thread_id for one in gateway.accepted] == [None, "c0ffee00"]
    assert await listed(ada) == [("c0ffee00", "x" * 59 + "…"), ("main", "The *north* light")]
    clock.advance(timedelta(seconds=1))
    await adapter.send("Ada", "Yes.", None, {"answers": [asked], "final": True, "thread_id": "c0ffee00"})
    await adapter.send("Ada", "A letter came.")
    assert await shown(ada, "c0ffee00") == ["x" * 100, "Yes."]
    assert await shown(ada) == ["## The *north* light\n\nIs it on?", "A letter came."]
    assert [one for one, _ in await listed(ada)] == ["main", "c0ffee00"]
    assert await shown(ada, "unknown0") == []


async def test_after_a_restart_everything_stands_as_it_was_and_a_card_can_still_be_closed(
    ada, adapter, gateway, clock
) -> None:
    asked = await write(ada, "Delete it")
    card = Card(text="May I?", buttons=(Button(label="Yes", value="approve 1"),))
    sent = await adapter.send_card("Ada", card, {"read": [asked]})
    await adapter.send("Ada", "It is", None, {"answers": [asked], "draft": True})
    before = (await ada.get("/chat/conversations/main")).json()["entries"]
    assert [(one["kind"], one["draft"]) for one in before] == [
        ("message", False),
        ("card", False),
        ("answer", True),
    ]
    new = await restarted(adapter, clock, gateway)
    async with calling(new) as client:
        await signed_in(client)
        after = (await client.get("/chat/conversations/main")).json()["entries"]
        assert after == before[:2]
        assert (await new.update_card("Ada", sent.message_id, card.answered("Ada said yes"))).success
        pressed = {"message_id": sent.message_id, "value": "approve 1", "press_id": MESSAGE_ID}
        await client.post("/chat/buttons", json=pressed, headers=SENT)
        await new.send("Ada", "It is gone.", None, {"answers": [asked], "final": True})
        found = (await client.get("/chat/conversations/main")).json()["entries"]
    await new.disconnect()
    assert [one["text"] for one in found] == ["Delete it", "May I?\n\nAda said yes", "It is gone."]
    assert found[1]["buttons"] == []
    assert found[0]["answered"]


async def test_a_conversation_is_read_from_its_newest_entries_backwards(ada, adapter) -> None:
    for number in range(100):
        await adapter.send("Ada", f"{number}")
    newest = (await ada.get("/chat/conversations/main")).json()
    assert [one["text"] for one in newest["entries"]] == [str(one) for one in range(60, 100)]
    assert newest["more"]
    before = newest["entries"][0]["order"]
    assert await shown(ada, before=before) == [str(one) for one in range(20, 60)]
    for wrong in ("x", "-1", "1" * 19):
        answer = await ada.get("/chat/conversations/main", params={"before": wrong})
        assert answer.status_code == 400
    adapter._logs["Ada"] = ChatLog("0" * 8)  # nothing is in memory any more
    assert await shown(ada, before=before) == [str(one) for one in range(20, 60)]


async def test_the_list_of_conversations_comes_in_pages(ada, clock) -> None:
    for number in range(60):
        clock.advance(timedelta(seconds=1))
        await write(ada, f"{number}", f"c{number:07}")
    first = (await ada.get("/chat/conversations")).json()
    assert [one["title"] for one in first["conversations"]] == [str(one) for one in range(59, 9, -1)]
    assert first["more"]
    last = first["conversations"][-1]["at"]
    assert [title for _, title in await listed(ada, before=last)] == [str(one) for one in range(9, -1, -1)]


async def test_a_conversation_is_renamed_on_the_page_and_by_its_command(ada) -> None:
    await write(ada, "Hello")
    answer = await ada.put("/chat/conversations/main", json={"title": " North\nlight "}, headers=SENT)
    assert answer.json() == {"id": "main", "title": "North"}
    assert await listed(ada) == [("main", "North")]
    await write(ada, "/title The pier", number=1)
    assert await listed(ada) == [("main", "The pier")]
    for title in ("", " \n", 7, None):
        wrong = await ada.put("/chat/conversations/main", json={"title": title}, headers=SENT)
        assert wrong.status_code == 400
    gone = await ada.put("/chat/conversations/unknown0", json={"title": "x"}, headers=SENT)
    assert gone.status_code == 404
    odd = await ada.put("/chat/conversations/a b", json={"title": "x"}, headers=SENT)
    assert odd.status_code == 400
    assert await listed(ada) == [("main", "The pier")]


@pytest.mark.parametrize("conversation", ["main", "c0ffee00"])
async def test_a_deleted_conversation_is_stopped_and_what_comes_late_is_not_shown(
    ada, adapter, gateway, conversation
) -> None:
    there = {} if conversation == "main" else {"thread_id": conversation}
    asked = await write(ada, "Hello", conversation)
    await write(ada, "Other words", "another0")
    draft = await adapter.send("Ada", "Hel", None, {"answers": [asked], "draft": True, **there})
    gateway.failure = unavailable()
    assert (await ada.delete(f"/chat/conversations/{conversation}", headers=SENT)).status_code == 503
    assert await shown(ada, conversation) == ["Hello", "Hel"]
    gateway.failure = None
    gone = await ada.delete(f"/chat/conversations/{conversation}", headers=SENT)
    assert gone.json() == {"id": conversation, "state": "deleted"}
    assert [(one.value, one.source.thread_id) for one in gateway.presses] == [
        ("stop all", there.get("thread_id")),
        ("new", there.get("thread_id")),
    ]
    late = {"answers": [asked], "final": True, **there}
    assert (await adapter.edit_message("Ada", draft.message_id, "Hel", late)).error_kind is (
        SendErrorKind.NOT_FOUND
    )
    assert (await adapter.send("Ada", "Stopped.", None, late)).success
    assert await listed(ada) == [("another0", "Other words")]
    assert await shown(ada, conversation) == []
    await write(ada, "Anew", conversation, 1)
    assert await shown(ada, conversation) == ["Anew"]


async def test_stop_ends_the_run_of_the_conversation_that_is_shown(ada, gateway) -> None:
    await write(ada, "Hello", "c0ffee00")
    answer = await ada.post("/chat/conversations/c0ffee00/stop", json={}, headers=SENT)
    assert answer.json() == {"note": "noted: stop"}
    (press,) = gateway.presses
    assert (press.value, press.source.thread_id, press.source.user_id) == ("stop", "c0ffee00", "web:Ada")


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_command_whose_answer_has_buttons_is_read_and_no_run_waits(
    ada, adapter, gateway, is_late
) -> None:
    card = Card(text="model: small", buttons=(Button(label="large", value="model large"),))
    if is_late:  # the message is shown after its answer
        await adapter.send_card("Ada", card, {"answers": [MESSAGE_ID], "final": True})
    body = {"id": MESSAGE_ID, "text": "/model"}
    assert (await ada.post("/chat/messages", json=body, headers=SENT)).status_code == 202
    if not is_late:
        await adapter.send_card("Ada", card, {"answers": [MESSAGE_ID], "final": True})
    await adapter.send_card("Ada", Card(text="May I?"), {"read": [MESSAGE_ID]})
    shown = (await ada.get("/chat/conversations/main")).json()["entries"]
    assert [one["answered"] for one in shown if one["kind"] == "message"] == [True]
    assert [one["asks"] for one in shown if one["kind"] == "card"] == [False, True]


async def test_typing_and_cards_name_the_conversation_that_they_belong_to(ada, adapter, gateway) -> None:
    asked = await write(ada, "Hello", "c0ffee00")
    there = {"thread_id": "c0ffee00"}
    sent = await adapter.send_card("Ada", Card(text="May I?"), {"read": [asked], **there})
    pressed = {"message_id": sent.message_id, "value": "approve 1", "press_id": MESSAGE_ID}
    await ada.post("/chat/buttons", json=pressed, headers=SENT)
    await ada.put(f"/chat/messages/{asked}", json={"text": "Other words"}, headers=SENT)
    assert [one.source.thread_id for one in (*gateway.presses, *gateway.edits)] == ["c0ffee00"] * 2
    async with served(adapter) as client:
        await signed_in(client)
        number = (await client.get("/chat/conversations/c0ffee00")).json()["event"]
        async with opened(client, **{"Last-Event-ID": number}) as page:
            await adapter.send_typing("Ada", there)
            assert await page.event() == ("typing", {"conversation": "c0ffee00"})
            await adapter.send("Ada", "More", None, {"answers": [asked], **there})
            assert (await page.entry())["conversation"] == "c0ffee00"


async def test_an_answer_is_rendered_and_can_neither_act_nor_fetch(ada, adapter) -> None:
    hostile = (
        "# T\n\n<img src=x onerror=alert(1)>\n\n[a](javascript:alert(1)) ![b](https://evil.example/p.png)"
    )
    await adapter.send("Ada", hostile)
    (entry,) = (await ada.get("/chat/conversations/main")).json()["entries"]
    assert entry["html"].startswith("<h1>T</h1>")
    assert "&lt;img src=x" in entry["html"]
    assert not re.search(r"<img|javascript:alert\(1\)\"|<script", entry["html"])
    assert 'href="https://evil.example/p.png"' in entry["html"]


async def test_an_answer_that_failed_says_so(ada, adapter) -> None:
    asked = await write(ada, "Hello")
    failed = {"answers": [asked], "final": True, "error": "the model is away"}
    draft = await adapter.send("Ada", "It", None, {"answers": [asked], "draft": True})
    await adapter.edit_message("Ada", draft.message_id, "No answer.", failed)
    found = (await ada.get("/chat/conversations/main")).json()["entries"]
    assert [one["failed"] for one in found] == [False, True]


def entry(entry_id: str, text: str = "x", at: int = 0) -> Entry:
    return Entry(entry_id=entry_id, kind="message", text=text, at=at)


async def test_the_log_is_bounded_and_says_when_something_fell_away() -> None:
    log = ChatLog("0" * 8)
    for number in range(501):
        log.put(entry(str(number)))
    assert (log.find("0"), log.find("1") is not None) == (None, True)
    assert log._seen("00000000-0") == (0, False)
    assert log._seen("00000000-1") == (1, True)
    log.put(entry("long", "x" * 5_000_000))
    assert (log.find("500"), log.find("long") is not None) == (None, True)


def test_order_goes_on_over_restarts() -> None:
    old, new = ChatLog("0" * 8), ChatLog("1" * 8)
    for number in range(3):
        old.put(entry(f"a{number}", at=1_000))
    new.put(entry("b", at=2_000))
    assert old.find("a2").order < new.find("b").order


def say(log: ChatLog, *told, **more) -> str:
    """Show a part of an answer and what it changes, as the adapter does, and return its id."""
    changed = log.answer(*told, **more)
    for one in changed:
        log.put(one)
    return changed[-1].entry_id


def test_a_final_settles_drafts_that_it_did_not_grow_from() -> None:
    log = ChatLog("0" * 8)
    first = say(log, "p1", "Let me look.", ["k"], draft=True, at=0)
    second = say(log, "p2", "It is on.", ["k"], draft=False, at=0)
    assert first != second
    assert [log.find(one).draft for one in (first, second)] == [False, False]
    assert say(log, "p2", "It is on.", ["k"], draft=False, at=0) == second


def test_a_final_stands_in_the_place_of_its_draft_under_its_own_id() -> None:
    log = ChatLog("0" * 8)
    order = log.find(say(log, "p1", "It is", ["k"], draft=True, at=0)).order
    say(log, "notice", "The server restarts soon", (), draft=False, at=0)
    assert say(log, "p2", "It is on.", ["k"], draft=False, at=0) == "p2"
    assert (log.find("p1"), log.find("p2").order, log.find("p2").replaces) == (None, order, "p1")


@pytest.mark.parametrize("had_draft", [False, True])
async def test_what_is_sent_again_after_a_restart_is_shown_once_and_in_its_place(
    ada, adapter, gateway, clock, had_draft
) -> None:
    asked = await write(ada, "Delete it")
    card = Card(text="May I?", buttons=(Button(label="Yes", value="approve 1"),))
    sent = await adapter.send_card("Ada", card, {"read": [asked], "dedupe_key": "q"})
    await adapter.update_card("Ada", sent.message_id, Card(text="May I? Yes."))
    told = {"answers": [asked], "final": True, "dedupe_key": "a"}
    if had_draft:
        draft = await adapter.send("Ada", "It is", None, {"answers": [asked], "draft": True})
        await adapter.edit_message("Ada", draft.message_id, "It is gone.", told)
    else:
        await adapter.send("Ada", "It is gone.", asked, told)
    await adapter.send("Ada", "The server restarts soon", None, {"dedupe_key": "n"})
    new = await restarted(adapter, clock, gateway)
    assert (await new.send_card("Ada", card, {"read": [asked], "dedupe_key": "q"})).success
    assert (await new.send("Ada", "It is gone.", asked, told)).success
    async with calling(new) as client:
        await signed_in(client)
        found = (await client.get("/chat/conversations/main")).json()["entries"]
    await new.disconnect()
    assert [one["text"] for one in found] == [
        "Delete it",
        "May I? Yes.",
        "It is gone.",
        "The server restarts soon",
    ]
    assert found[1]["buttons"] == []


async def test_a_message_says_that_it_waits_until_an_agent_begins_with_it(
    ada, adapter, gateway, clock
) -> None:
    asked = [await write(ada, text, number=number) for number, text in enumerate(("One", "Two", "Three"))]
    for message_id in asked:
        await adapter.send("Ada", "Queued: it is next.", None, {"waits_for": message_id, "final": True})

    async def notes(client) -> list[str]:
        found = (await client.get("/chat/conversations/main")).json()["entries"]
        assert [one["text"] for one in found[:3]] == ["One", "Two", "Three"]
        return [one["note"] for one in found[:3]]

    assert await notes(ada) == ["Queued: it is next."] * 3
    await adapter.send_typing("Ada", {"answers": asked[:1]})
    assert await notes(ada) == ["", *["Queued: it is next."] * 2]
    new = await restarted(adapter, clock, gateway)
    async with calling(new) as client:
        await signed_in(client)
        assert await notes(client) == ["", *["Queued: it is next."] * 2]
        await new.send("Ada", "Two it is.", None, {"answers": asked[1:2], "final": True})
        await client.delete(f"/chat/messages/{asked[2]}", headers=SENT)
        found = (await client.get("/chat/conversations/main")).json()["entries"]
    await new.disconnect()
    assert [one["note"] for one in found] == [""] * 4


async def test_a_notice_is_no_draft_and_the_draft_of_a_run_that_goes_on_is_one(ada, adapter) -> None:
    shown = adapter._logs["Ada"]
    notice = await adapter.send("Ada", "The server restarts soon")
    assert shown.find(notice.message_id).draft is False
    draft = await adapter.send("Ada", "I go", None, {"answers": [], "draft": True})
    assert shown.find(draft.message_id).draft is True
    await adapter.edit_message("Ada", draft.message_id, "I go on.", {"final": True})
    assert shown.find(draft.message_id).draft is False


@each_row(
    "token, extra",
    [
        (None, {}),
        ("short", {}),
        (TOKEN, {"colour": "red"}),
        (TOKEN, {"name": ""}),
        (TOKEN, {"name": "a\nb"}),
        (TOKEN, {"people": []}),
        (TOKEN, {"people": {"Ben": {"token": "short"}}}),
        (TOKEN, {"people": {"Ben": {"token": TOKEN}}}),
        (TOKEN, {"people": {"owner": {"token": BENS}}}),
        (TOKEN, {"title": ""}),
        (TOKEN, {"title": 7}),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(token, extra) -> None:
    with pytest.raises(ConfigError) as refused:
        WebAdapter(table_of(WebOptions, token=token, **extra))
    assert refused.value.remedy
    assert TOKEN not in str(refused.value.as_dict())


def test_the_page_shows_edits_drafts_typing_and_files() -> None:
    can = WebAdapter.capabilities
    assert (can.edits, can.streams, can.typing, can.media, can.limit) == (True, True, True, FILES, 1_000_000)
