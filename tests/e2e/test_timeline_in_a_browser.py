"""The timeline as a picture, and the output of a run, in a real browser: by hand, by keys, without a script."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from e2e.browser import PATIENCE
from e2e.running import soon
from e2e.test_accessibility import axe, examined
from e2e.test_buttons_in_a_browser import LOOKS
from e2e.test_page_in_a_browser import ACTING, Guarded, silence
from postroom.contracts.clock import SystemClock
from postroom.stores.sqlite import SqliteStore
from postroom.web.pages import page_routes
from still_room import StillRoom, still_room
from timeline_room import a_shop

pytestmark = pytest.mark.long

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
WIDEN = """
(async () => {
  const plot = document.querySelector('.tl-plot'), moved = document.querySelector('.tl-moved');
  const frame = () => new Promise(requestAnimationFrame), widths = [];
  const {x, y, width} = plot.getBoundingClientRect();
  plot.dispatchEvent(new WheelEvent('wheel', {bubbles: true, cancelable: true, ctrlKey: true, deltaY: -200, clientX: x + width / 2, clientY: y}));
  await frame(); await frame();
  widths.push(moved.getBoundingClientRect().width > 1.5 * width);
  while (moved.getBoundingClientRect().width > width) await frame();
  window.widths = [...widths, moved.getBoundingClientRect().width > width];
})()
"""
"""A wheel widens the picture at the next frame, and the following fetch has the new width."""
END = "Number(document.querySelector('.tl-picture').dataset.end)"
NOW = "Number(document.querySelector('.tl-picture').dataset.now)"
BEGIN = "Number(document.querySelector('.tl-picture')?.dataset.begin)"
HIT = """
(one => { one.scrollIntoView({block: 'center', inline: 'center'}); const {x, y, width, height} = one.getClientRects()[0];
  return one.contains(document.elementFromPoint(x + width / 2, y + height / 2)); })(document.querySelector(%r))
"""
NAMED = """
((name, note) => {
  const about = name.closest('.tl-name')?.querySelector('.soft');
  if (about) about.textContent = note;
  name.textContent = 'S';
  const line = name.getBoundingClientRect().height;
  name.textContent = 'Streamlining';
  const link = name.parentElement;
  return [name.getBoundingClientRect().height <= line, link.scrollWidth > link.clientWidth ? 'cut' : 'whole'];
})(document.querySelector(%r), %r)
"""
"""A long name, with or without a note: whether it has one line, and is whole."""
LOG = "document.querySelector('#log')"
HOUR = 3_600_000


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    now, clock = SystemClock().now(), SystemClock()
    store = SqliteStore.open(tmp_path_factory.mktemp("store") / "postroom.db")
    asyncio.run(store.write(lambda tx: a_shop(tx, now=now, agents=12)))
    routes = page_routes(store.runs.store, clock=clock, services=still_room(now=now, messages=(1, 2)))
    app = Guarded(Starlette(routes=[*routes, Route("/v1/events", silence)]))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],), name="timeline")
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/p/orchard"
    server.should_exit = True
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


def test_a_mark_opens_beside_the_picture_and_escape_closes_it(address, browser):
    browser.open(f"{address}/timeline")
    browser.see("window.untouched = true")
    browser.see("document.querySelector('.tl-row [data-pick^=message]').click()")
    soon(lambda: "Only this thread" in str(browser.see("document.querySelector('.tl-panel').textContent")))
    assert "sel=message" in str(browser.see("location.search"))
    browser.press("Escape", 27)
    soon(lambda: browser.see("document.querySelector('.tl-panel').hidden"))
    assert browser.see("window.untouched") is True
    assert not browser.complaints()


def test_back_closes_what_is_chosen_and_closing_leaves_no_step_back(address, browser):
    browser.open(f"{address}/agents", width=390)
    browser.open(f"{address}/timeline", width=390)
    panel = "document.querySelector('.tl-panel')"
    pick = "document.querySelector('.tl-row [data-pick^=message]').click()"
    browser.see("window.untouched = true")
    for close in ("history.back()", f"{panel}.querySelector('[data-close]').click()"):
        browser.see(pick)
        soon(lambda: "Only this thread" in str(browser.see(f"{panel}.textContent")))
        browser.see(close)
        soon(lambda: browser.see(f"{panel}.hidden"))
        assert "sel=" not in str(browser.see("location.search"))
    assert browser.see("window.untouched") is True
    browser.see("history.back()")
    soon(lambda: str(browser.see("location.pathname")).endswith("/agents"))
    assert not browser.complaints()


def test_no_row_of_the_list_is_clipped_on_a_phone(address, browser):
    browser.open(f"{address}/timeline?span=all", width=360)
    clipped = """[...document.querySelectorAll('.tl-row')].filter((row) => {
      const box = row.getBoundingClientRect();
      return [...row.children].some((part) => {
        const its = part.getBoundingClientRect();
        return its.height && (its.top < box.top || its.bottom > box.bottom || its.right > box.right);
      });
    }).map((row) => row.textContent.replace(/\\s+/g, ' '))"""
    assert browser.see("document.querySelectorAll('.tl-row').length") > 20
    browser.see(
        "document.querySelectorAll('.tl-row').forEach((row) => (row.style.contentVisibility = 'visible'))"
    )
    assert browser.see(clipped) == []


def test_wheel_drag_and_keys_move_the_picture_and_the_address_says_where(address, browser):
    browser.open(f"{address}/timeline")
    browser.see("window.untouched = true")
    x, y = browser.see(PLOT)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -200, "modifiers": 2}
    browser.ask("Input.dispatchMouseEvent", **wheel)
    soon(lambda: browser.see(SPAN) < 6 * HOUR)
    browser.see(WIDEN)
    assert soon(lambda: browser.see("window.widths")) == [True, False]
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


def test_a_name_of_twelve_letters_is_whole_on_one_line(address, browser):
    wrong = []
    for width in (1440, 1280, 1200, 1080, 961):
        browser.open(address, width=width)
        names = (".crew-table .person bdi", ".crew-table .under bdi")
        wrong += [(width, name) for name in names if browser.see(NAMED % (name, "")) != [True, "whole"]]
    for width in (1440, 1280):
        browser.open(f"{address}/timeline", width=width)
        is_right = browser.see(NAMED % (".tl-name a bdi", "dead letter")) == [True, "whole"]
        wrong += [] if is_right else [(width, "timeline")]
    assert wrong == []
    browser.open(address, width=1000)
    wide = "[...document.querySelectorAll('.crew-table :is(th, td)')].filter(one => one.scrollWidth > one.clientWidth + 1)"
    assert browser.see(f"{wide}.map(one => one.dataset.label ?? one.textContent)") == []


def test_the_wheel_keeps_to_the_limits_of_the_buttons_and_ends_at_most_a_moment_after_now(address, browser):
    browser.open(f"{address}/timeline?span=8h")
    x, y = browser.see(PLOT)
    longest = browser.see("Number(document.querySelector('.tl-picture').dataset.longest)")
    browser.see("(window.changes = 0, document.addEventListener('postroom:changed', () => window.changes++))")

    def moved(act: Callable[[], object]) -> None:
        """Move the picture, and wait until the fetched content is there."""
        before = browser.see("window.changes")
        act()
        soon(lambda: browser.see("window.changes") > before)

    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "modifiers": 2}
    for by, length in ((-5000, 2000), (5000, longest), (-5000, 2000), (5000, longest)):
        moved(lambda by=by: browser.ask("Input.dispatchMouseEvent", **wheel, deltaY=by))
        # What zooming out ends at grows with the project's age.
        assert length - 2 <= browser.see(SPAN) <= length * 1.01
    for _ in range(3):
        moved(lambda: browser.press("ArrowRight", 39))
        assert browser.see(f"{NOW} < {END} && {END} <= {NOW} + {longest} / 19")
    assert not browser.complaints()


def test_the_picture_is_moved_as_before_once_the_whole_page_was_fetched_anew(address, browser):
    browser.open(f"{address}/timeline")
    browser.see("document.querySelector('.tl-page').isTheFirst = true")
    browser.see(
        "(document.addEventListener('postroom:changed', () => window.isAnew = true),"
        " document.dispatchEvent(new CustomEvent('postroom:renew', {detail: ['main']})))"
    )
    assert soon(lambda: browser.see("window.isAnew"))
    assert browser.see("document.querySelector('.tl-page').isTheFirst")


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_lengths_zoom_and_choice_are_links_of_which_a_script_makes_changes_in_place(address, browser, look):
    browser.ask("Emulation.setScriptExecutionDisabled", value=not look.script)
    browser.open(f"{address}/timeline", width=look.width, dark=look.dark)
    browser.see("window.untouched = true")

    def follows(link: str, seen: str, expected: object) -> None:
        """A link can be clicked, and leads to the expected page."""
        assert browser.see(HIT % link) is True, link
        browser.see(f"document.querySelector({link!r}).click()")
        # One look for both: of two, the first may see the page that is left, the second half of the next.
        soon(lambda: browser.see(f"document.readyState === 'complete' ? ({seen}) : null") == expected)

    for name, length in (
        ("1h", HOUR),
        ("2s", 2000),
        ("8h", 8 * HOUR),
        ("15m", HOUR // 4),
        ("1m", HOUR // 60),
    ):
        follows(f".tl-presets a[href*='span={name}']", SPAN, length)
    kinds = "[...new Set([...document.querySelectorAll('.tl-drawing [data-mark]')].map(one => one.dataset.mark.split(':')[0]))]"
    browser.open(f"{address}/timeline", width=look.width, dark=look.dark)
    for name, kind in (("files", "held"), ("messages", "message")):
        follows(f"[aria-label=Kind] a[href*='kind={name}']", kinds, [kind])
        assert browser.see(MARKS) == browser.see(ROWS) != ""
    follows("[aria-label=Kind] a:first-child", "location.search", "?span=8h")
    follows(".tl-presets a[href*='span=1m']", SPAN, HOUR // 60)
    follows('[aria-label="Zoom in"]', SPAN, HOUR // 120)
    follows('[aria-label="Zoom out"]', SPAN, HOUR // 60)
    browser.open(f"{address}/timeline?span=all", width=look.width, dark=look.dark)
    begin = browser.see(BEGIN)
    browser.see("document.querySelector('[aria-label=Earlier]').click()")
    soon(lambda: browser.see(f"document.readyState === 'complete' && {BEGIN} < {begin}"))
    follows(".tl-tools a.button.quiet", "document.querySelector('.tl-follows') !== null", True)
    follows(".tl-row [data-pick^=message]", "document.querySelector('.tl-panel').hidden", False)
    follows("[data-close]", "document.querySelector('.tl-panel').hidden", True)
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
        """Send each part to readers that have the part before it, however often a page asks."""
        parts = told[after:]
        return "".join(parts), after + len(parts)

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
