"""The timeline as a picture, and the output of a run, in a real browser: by hand, by keys, without a script."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from e2e.browser import PATIENCE
from e2e.test_accessibility import axe, examined
from e2e.test_page_in_a_browser import ACTING, Guarded, silence
from e2e.test_work_in_a_browser import soon
from postroom.contracts.clock import SystemClock
from postroom.stores.sqlite import SqliteStore
from postroom.web.pages import page_routes
from still_room import StillRoom, still_room
from timeline_room import a_shop

__all__ = ["axe"]

MARKS = (
    "[...document.querySelectorAll('.tl-drawing [data-mark]')].map(one => one.dataset.mark).sort().join(' ')"
)
ROWS = "[...document.querySelectorAll('.tl-row')].map(one => one.dataset.key).sort().join(' ')"
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
SPAN = "(one => Number(one.dataset.end) - Number(one.dataset.begin))(document.querySelector('.tl-picture'))"
PLOT = (
    "(box => [box.x + box.width / 2, box.y + 60])(document.querySelector('.tl-plot').getBoundingClientRect())"
)
LOG = "document.querySelector('#log')"
HOUR = 3_600_000


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    now, clock = SystemClock().now(), SystemClock()
    store = SqliteStore.open(tmp_path_factory.mktemp("store") / "postroom.db")
    asyncio.run(store.write(lambda tx: a_shop(tx, now=now, agents=12)))
    routes = page_routes(store, clock=clock, services=still_room(now=now, messages=(1, 2)))
    app = Guarded(Starlette(routes=[*routes, Route("/v1/events", silence)]))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],), name="timeline")
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/p/orchard"
    server.should_exit = server.force_exit = True  # a page that is still open has its stream
    thread.join(PATIENCE)
    listening.close()
    store.close()
    assert not thread.is_alive()


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1440, False)])
def test_the_picture_has_what_the_list_has_with_and_without_a_script(address, browser, axe, width, dark):
    told = []
    for script in (True, False):
        browser.ask("Emulation.setScriptExecutionDisabled", value=not script)
        browser.open(f"{address}/timeline", width=width, dark=dark)
        assert browser.see(SIDEWAYS) is False
        assert browser.see(MARKS) == browser.see(ROWS) != ""
        assert not browser.see(ACTING)
        assert not browser.complaints()
        told.append(browser.see(MARKS))
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert told[0] == told[1]
    for chosen in ("", "?sel=message:1&span=all"):
        browser.open(f"{address}/timeline{chosen}", width=width, dark=dark)
        assert examined(browser, axe) == []


@pytest.mark.parametrize("width", [390, 1440])
def test_a_mark_opens_beside_the_picture_and_escape_closes_it(address, browser, width):
    browser.open(f"{address}/timeline", width=width)
    browser.see("window.untouched = true")
    browser.see("document.querySelector('.tl-row [data-pick^=message]').click()")
    soon(lambda: "Only this thread" in str(browser.see("document.querySelector('.tl-panel').textContent")))
    assert "sel=message" in str(browser.see("location.search"))
    browser.press("Escape", 27)
    soon(lambda: browser.see("document.querySelector('.tl-panel').hidden"))
    assert browser.see("window.untouched") is True
    assert not browser.complaints()


def test_wheel_drag_and_keys_move_the_picture_and_the_address_says_where(address, browser):
    browser.open(f"{address}/timeline")
    browser.see("window.untouched = true")
    x, y = browser.see(PLOT)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -200, "modifiers": 2}
    browser.ask("Input.dispatchMouseEvent", **wheel)
    soon(lambda: browser.see(SPAN) < 6 * HOUR)
    assert browser.see("location.search").startswith("?from=")
    begin = browser.see("Number(document.querySelector('.tl-picture').dataset.begin)")
    for kind, at in (
        ("mousePressed", x),
        ("mouseMoved", x + 60),
        ("mouseMoved", x + 120),
        ("mouseReleased", x + 120),
    ):
        browser.ask("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", buttons=1, clickCount=1)
    soon(lambda: browser.see("Number(document.querySelector('.tl-picture').dataset.begin)") < begin)
    span = browser.see(SPAN)
    browser.press("-", 189)
    soon(lambda: browser.see(SPAN) > span)
    browser.press("0", 48)
    soon(lambda: "span=all" in browser.see("location.search"))
    assert browser.see("window.untouched") is True
    assert not browser.complaints()


def test_without_a_script_zoom_and_choice_are_links(address, browser):
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(f"{address}/timeline")
    zoom = browser.see("document.querySelector('[aria-label=\"Zoom in\"]').getAttribute('href')")
    browser.open(address.removesuffix("/p/orchard") + zoom)
    assert browser.see(SPAN) == 4 * HOUR
    mark = browser.see("document.querySelector('.tl-drawing [data-mark^=attempt]').getAttribute('href')")
    browser.open(address.removesuffix("/p/orchard") + mark)
    assert browser.see("document.querySelector('.tl-panel').hidden") is False
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert not browser.complaints()


def test_a_browser_whose_clock_is_wrong_sees_the_same_places(address, browser):
    end = SystemClock().now()
    page = f"{address}/timeline?from={end - 8 * HOUR}&to={end + HOUR}"
    places = "[...document.querySelectorAll('.tl-drawing rect')].map(one => one.getAttribute('x')).join()"
    browser.open(page)
    right = browser.see(places)
    wrong = browser.ask(
        "Page.addScriptToEvaluateOnNewDocument",
        source="const late = Date.now() + 600000; Date.now = () => late;",
    )
    browser.open(page)
    browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=wrong["identifier"])
    assert browser.see(places) == right


def test_ten_thousand_lines_stick_to_the_end_unless_one_scrolls(address, browser, monkeypatch):
    told = []

    async def output_after(self, run_id, after):
        text = told.pop() if told else ""
        return text, after + bool(text)

    monkeypatch.setattr(StillRoom, "output_after", output_after)
    browser.open(f"{address}/runs/r1")
    told.append("".join(f"line {number}\n" for number in range(10_000)))
    soon(lambda: "line 9999\n" in str(browser.see(f"{LOG}.textContent")))
    assert browser.see(f"{LOG}.scrollTop + {LOG}.clientHeight >= {LOG}.scrollHeight - 8") is True
    assert browser.see(f"{LOG}.textContent.split('\\n').length") == 5_001
    browser.see(f"{LOG}.scrollTop = 3000")
    told.append("one more\n")
    soon(lambda: browser.see("document.querySelector('#log-new').textContent") == "1 new line")
    assert browser.see(f"{LOG}.scrollTop + {LOG}.clientHeight < {LOG}.scrollHeight - 1000") is True
    browser.see("document.querySelector('#log-new').click()")
    assert browser.see(f"{LOG}.scrollTop + {LOG}.clientHeight >= {LOG}.scrollHeight - 8") is True
    assert not browser.complaints()
