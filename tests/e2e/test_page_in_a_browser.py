"""The pages in a real browser: how they look, and that nothing acts."""

import asyncio
import re
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from e2e.browser import PATIENCE
from e2e.running import soon
from postroom import sse
from postroom.contracts.clock import SystemClock
from postroom.stores.sqlite import SqliteStore
from postroom.web.pages import page_routes
from still_room import still_room
from web_samples import HOSTILE, Writer, picture

pytestmark = pytest.mark.long

POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
LOOKS = ((360, False), (768, True), (1440, False))
"""Width, and whether in dark: a dark page differs in its colours alone."""
PATHS = """
orchard orchard/threads orchard/threads?show=unread&agent=BlueFox orchard/t/hostile orchard/t/plain orchard/t/long
orchard/t/long?newest=1 orchard/agents orchard/agents/GreenLake orchard/reservations orchard/search?q=lake
orchard/search orchard/questions orchard/runs orchard/schedules orchard/runs/r1 orchard/write
orchard/write?reply=2 none
"""
ADDRESSES = ("/", "/find", "/find?q=claim", *(f"/p/{path}" for path in PATHS.split()))
DIFF = "```diff\n@@ -1,2 +1,2 @@\n kept\n-old\n+new\n\n```"
ACTING = """
[...document.querySelectorAll('*')].filter(one =>
  one.matches('script:not([src^="/static/"]:empty), style, iframe, object, embed, base, svg:not(.tl-svg), math')
  || [...one.attributes].some(({name, value}) => name.startsWith('on') || ['style', 'srcdoc'].includes(name)
       || (['href', 'src', 'action', 'formaction'].includes(name) && !/^(https?:|mailto:|[/#]|$)/.test(value)))
).map(one => one.outerHTML.slice(0, 200))
"""


@dataclass
class Site:
    """The pages, served on this machine."""

    address: str
    hostile: int
    message: int


def fill(writes) -> tuple[int, int]:
    """Store mail of every shape; return the number of the hostile message, and of a message with a picture."""
    write = Writer(writes)
    now = SystemClock().now()
    project = write.project("orchard", "/home/ana/a-folder-with-a-very-long-name/" * 4 + "orchard")
    names = (
        "GreenLake",
        "BlueFox",
        "Agent-with-a-name-of-sixty-four-characters-without-a-place-to-1",
        "D",
        "E",
        "F",
    )
    agents = [write.agent(project, name, "Keeps " + "everything_in_one_word_" * 8) for name in names]
    lake = agents[0]
    hostile = write.send(
        lake, "<img src=x onerror=alert(1)>" * 3, "\n\n".join(HOSTILE), to=tuple(agents), thread="hostile"
    )
    table = "\n".join(f"|{cell * 30}" for cell in ("column|", "-|", "cell|"))
    wide = f"{table}\n\n```\n{'x' * 500}\n```\n\n{'y' * 500}"
    message = write.send(
        agents[1],
        "Lake " + "w" * 300,
        wide,
        to=tuple(agents),
        thread="plain",
        importance="urgent",
        ack=True,
        at=now,
    )
    write.attach(
        message,
        "z" * 200 + ".png",
        "image/png",
        picture(size=(1200, 500)),
        picture(size=(320, 130), kind="WEBP"),
    )
    write.send(agents[1], "Diff", DIFF, to=(lake,), thread="diff", at=now)
    write.send(agents[1], "مراجعة", "مرحبا بالبحيرة\n\n- واحد", to=(lake,), thread="plain", at=now)
    for number in range(60):
        write.send(agents[number % 2], "Long", f"Message {number}", to=(agents[2],), thread="long", at=now)
    for agent in agents:
        write.reserve(agent, "src/" + "deep/" * 30 + agent.name + "/**", reason="because " * 30, at=now)
    return hostile.id, message.id


class Guarded:
    """Sends the policy that the server sends with every page."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        async def with_policy(message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Content-Security-Policy", POLICY)
            await send(message)

        await self.app(scope, receive, with_policy)


async def silence(request: Request) -> Response:
    """Answer as the stream of events does while nothing happens."""

    async def nothing() -> AsyncGenerator[str]:
        yield sse.entry("beat", "{}", number=0)
        await asyncio.Event().wait()

    return sse.SseResponse(nothing(), left=lambda: None)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    store = SqliteStore.open(tmp_path_factory.mktemp("store") / "postroom.db")
    hostile, message = asyncio.run(store.write(fill))
    room = still_room(now=SystemClock().now(), messages=(message, hostile))
    routes = [
        *page_routes(store.runs.store, clock=SystemClock(), services=room),
        Route("/v1/events", silence),
    ]
    config = uvicorn.Config(Guarded(Starlette(routes=routes)), log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],), name="pages")
    thread.start()
    yield Site(f"http://127.0.0.1:{listening.getsockname()[1]}", hostile, message)
    server.should_exit = True
    thread.join(PATIENCE)
    listening.close()
    store.close()
    assert not thread.is_alive()


@pytest.mark.timeout(300)
def test_a_page_fits_every_width_in_light_and_dark_and_fetches_from_home_only(site, browser):
    grounds, wrong = set(), []
    for address, (width, dark) in product(ADDRESSES, LOOKS):
        browser.open(site.address + address, width=width, dark=dark)
        grounds.add((dark, browser.see("getComputedStyle(document.body).backgroundColor")))
        missing = ["the server responded with a status of 404 (Not Found)"] if address == "/p/none" else []
        is_right = (
            browser.see("innerWidth") == width,
            browser.see("document.documentElement.scrollWidth") <= width,
            browser.see("document.styleSheets.length && document.styleSheets[0].cssRules.length") > 100,
            all(asked.startswith(site.address + "/") for asked in browser.fetched()),
            not browser.see(ACTING),
            [one.partition(": ")[2] for one in browser.complaints()] == missing,
        )
        wrong += [] if all(is_right) else [(address, width, dark, is_right)]
    assert wrong == []
    assert len(grounds) == 2


def test_the_number_that_needs_a_person_is_in_sight_on_a_phone_beside_the_current_tab(site, browser):
    browser.open(f"{site.address}/p/orchard/runs", width=390)
    for what in (".tabs [data-go=c] .count", ".tabs [aria-current]"):
        place = browser.see(
            f"(({{left, right}}) => [left, right])(document.querySelector('{what}').getBoundingClientRect())"
        )
        assert 0 <= place[0] < place[1] <= 390, (what, place)


def test_hostile_mail_does_nothing_in_a_browser(site, browser):
    browser.open(f"{site.address}/p/orchard/m/{site.hostile}")
    assert "alert(1)" in browser.see("document.querySelector('.prose').textContent")
    assert not browser.see(ACTING)
    assert not browser.complaints()
    assert browser.see("document.querySelectorAll('.prose img, .prose [id], .prose [name]').length") == 0
    assert browser.see("document.querySelectorAll('main').length") == 1
    links = (
        "[...document.querySelectorAll('.prose a')].every(one => one.rel === 'noopener noreferrer nofollow')"
    )
    assert browser.see(links) is True


def test_j_and_k_go_from_row_to_row(site, browser):
    at = "[...document.querySelectorAll('main [data-item]')].indexOf(document.activeElement.closest('[data-item]'))"
    for address in ("agents", "reservations", "schedules", "questions", "t/plain", "threads", "runs"):
        browser.open(f"{site.address}/p/orchard/{address}")
        assert browser.see("document.querySelectorAll('main [data-item]').length") > 1, address
        for key, code, place in (("j", 74, 0), ("j", 74, 1), ("k", 75, 0)):
            browser.press(key, code)
            assert browser.see(at) == place, (address, key)


def test_a_draft_outlives_an_error_until_a_message_was_sent(site, browser):
    write, body = f"{site.address}/p/orchard/write", "document.querySelector('[name=body]')"
    browser.open(write)
    browser.see(f"{body}.focus()")
    browser.ask("Input.insertText", text="A long letter")
    for there in (f"{site.address}/p/none", f"{write}?reply=2", write):
        browser.open(there)
    assert browser.see(f"{body}.value") == "A long letter"
    browser.open(f"{write}?reply=2")
    assert browser.see(f"{body}.value") == "", "the draft of another message"
    browser.open(f"{site.address}/p/orchard/m/{site.message}?sent=1")
    browser.open(write)
    assert browser.see(f"{body}.value") == "A long letter", "an address alone says nothing of what was sent"
    browser.open(f"{site.address}/p/orchard/m/{site.message}?sent=1&seal=ours")
    browser.open(write)
    assert browser.see(f"{body}.value") == ""
    assert not browser.complaints()


def test_clock_times_are_those_of_the_readers_place_and_of_utc_without_a_script(site, browser):
    address = f"{site.address}/p/orchard/m/{site.message}"
    told = "document.querySelector('.stamp time').outerHTML"
    browser.ask("Network.clearBrowserCookies")
    browser.ask("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    try:
        browser.ask("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(address)
        [utc, shown] = re.findall(
            r"([0-9]{2}:[0-9]{2}):[0-9]{2} UTC.*, (?:[0-9]+ [A-Z][a-z]+ )?([0-9:]+) UTC<", browser.see(told)
        )[0]
        assert shown == utc
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
        browser.open(address)  # its script tells the server the zone
        browser.open(address)
        minutes = (int(utc[:2]) * 60 + int(utc[3:]) + 330) % 1440
        assert f"{minutes // 60:02}:{minutes % 60:02}</span>" in browser.see(told)
        assert f"{utc}:" in browser.see("document.querySelector('.stamp time').title")
        assert not browser.complaints()
    finally:
        browser.ask("Emulation.setTimezoneOverride", timezoneId="")


def test_code_and_tables_have_their_room(site, browser):
    browser.open(f"{site.address}/p/orchard/t/plain", width=360)
    for part in (".prose pre", ".prose .wide"):
        assert browser.see(f"(one => one.scrollWidth > one.clientWidth)(document.querySelector('{part}'))")
    browser.open(f"{site.address}/p/orchard/t/diff")
    tops = """(code => { const range = document.createRange(), texts = document.createTreeWalker(code, 4), tops = [];
      while (texts.nextNode()) { range.selectNodeContents(texts.currentNode); tops.push(Math.round(range.getBoundingClientRect().top)) }
      return tops; })(document.querySelector('.prose pre code'))"""
    lines = [later - sooner for sooner, later in pairwise(browser.see(tops))]
    assert len(lines) >= 3
    assert all(15 < one < 30 for one in lines), "each line of a diff is a line"
    shown = "getComputedStyle(document.querySelector('.table tbody tr')).display"
    for width, display in ((1440, "table-row"), (360, "block")):
        browser.open(f"{site.address}/p/orchard/reservations", width=width)
        assert browser.see(shown) == display, "a table becomes cards where it has no room"


def test_a_preview_is_shown(site, browser):
    browser.open(f"{site.address}/p/orchard/m/{site.message}")
    # The picture is below the first screen and loads when it comes near.
    browser.see("document.querySelector('.file img').scrollIntoView()")
    soon(lambda: browser.see("document.querySelector('.file img').naturalWidth"), "the preview is loaded")
    assert browser.see("document.querySelector('.file img').naturalWidth") == 320
    assert not browser.complaints()


def test_the_first_key_reaches_the_content(site, browser):
    browser.open(f"{site.address}/p/orchard")
    browser.press("Tab", 9)
    assert browser.see("document.activeElement.className") == "skip"
    assert browser.see("document.activeElement.getBoundingClientRect().top") >= 0
    browser.press("Enter", 13)
    assert browser.see("location.hash") == "#main"


def test_the_search_box_and_the_lists_work_without_a_script(site, browser):
    browser.open(f"{site.address}/p/orchard")
    browser.see("document.querySelector('input[name=q]').focus()")
    browser.ask("Input.insertText", text="البحيرة OR column")
    browser.events.clear()
    browser.press("Enter", 13)
    browser.wait_for("Page.loadEventFired")
    assert browser.see("document.querySelector('mark').textContent") == "column"
    assert browser.see("document.querySelector('input[name=q]').value") == "البحيرة OR column"
    browser.open(f"{site.address}/p/orchard/m/{site.message}")
    assert browser.see("document.querySelector('details.people').open") is False
    browser.see("document.querySelector('details.people summary').click()")
    assert browser.see("document.querySelector('details.people').open") is True
    assert not browser.complaints()


def test_keys_find_what_needs_a_person_and_send_nothing(site, browser):
    browser.open(f"{site.address}/p/orchard")
    at = "document.activeElement.%s"
    browser.type("2")
    assert browser.see(at % "dataset.key") == "q-r3-000001"
    browser.type("y")
    assert browser.see(f"[{at % 'value'}, {at % 'closest(`[data-need]`).dataset.key'}]") == [
        "yes",
        "q-r3-000001",
    ]
    browser.type("n")
    assert browser.see(at % "value") == "no"
    browser.type("j")
    assert browser.see(at % "dataset.key") == "q-r3-000002"
    browser.type("k")
    assert browser.see(at % "dataset.key") == "q-r3-000001"
    browser.type("?")
    assert browser.see("document.querySelector('#help').open") is True
    browser.press("Escape", 27)
    assert browser.see("document.querySelector('#help').open") is False
    browser.type("/gh?")
    assert browser.see(f"[{at % 'name'}, {at % 'value'}]") == ["q", "gh?"]
    browser.press("Escape", 27)
    assert browser.see("document.activeElement === document.body") is True
    browser.see("document.querySelector('#keys-on').click()")
    browser.type("w")
    assert browser.see("location.pathname") == "/p/orchard"
    browser.see("document.querySelector('#keys-on').click()")
    browser.events.clear()
    browser.type("gh")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("location.pathname") == "/p/orchard/threads"
    assert not browser.complaints()
