"""Every button can be hit, and does what it says: on a phone and a desk, light and dark, with a script and without."""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.browser import Browser, log_in
from e2e.running import RunningServer, soon
from e2e.test_accessibility import axe, examined
from e2e.test_work_in_a_browser import agent, fill, press

pytestmark = pytest.mark.long

__all__ = ["axe"]


class Look(NamedTuple):
    """The appearance of the pages."""

    width: int
    dark: bool
    script: bool


LOOKS = [Look(1440, dark=False, script=True), Look(390, dark=True, script=False)]
ASKING = """
import http.client, json, os, sys, urllib.parse
if "You asked a person" not in sys.stdin.read():
    at = http.client.HTTPConnection(urllib.parse.urlsplit(os.environ["POSTROOM_URL"]).netloc)
    said = {"project_key": os.getcwd(), "agent_name": os.environ["POSTROOM_AGENT"], "question": "May I go on?"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask_person", "arguments": said}}
    shown = {"Authorization": "Bearer " + os.environ["POSTROOM_TOKEN"], "Content-Type": "application/json",
             "Accept": "application/json, text/event-stream"}
    at.request("POST", "/mcp/full", json.dumps(call), shown)
    assert at.getresponse().status == 200
print("I have begun")
"""
RUNNERS = {
    "Ask": [sys.executable, "-I", "-S", "-c", ASKING],
    "Fail": ["sh", "-c", "cat > /dev/null; echo 'no such branch' >&2; exit 3"],
    "Work": ["sh", "-c", "cat > /dev/null; echo 'I have begun'; exec sleep 300"],
}
COVERED = """
[...document.querySelectorAll('main button, main summary, main select, main a.button, .menu summary')].filter(one => {
  if (!one.checkVisibility({visibilityProperty: true})) return false;
  one.scrollIntoView({block: 'center'});
  const {x, y, width, height} = one.getBoundingClientRect();
  const hit = document.elementFromPoint(x + width / 2, y + height / 2);
  return !one.contains(hit) || height < %d;
}).map(one => one.outerHTML.slice(0, 160))
"""


class Shop:
    """A project in which something waits for a person in every way, twice."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        folder.mkdir()
        self.server, self.project = server, {"project_key": str(folder)}
        with server.line() as line:
            self.slug = line.tool("ensure_project", human_key=str(folder))["slug"]
            for name in ("Bo", "Cy"):
                line.tool("register_agent", **self.project, name=name, program="script", model="none")
        for name, argv in RUNNERS.items():
            for number in "12":
                agent(server, folder, name + number, argv)

    @property
    def home(self) -> str:
        return f"{self.server.url}/p/{self.slug}"

    def stir(self, path: str) -> None:
        """Make runs ask, fail and work, two agents reserve files, and Ana get a message; `path` tells times apart."""
        with self.server.line() as line:
            for name, held in product(("Bo", "Cy"), (f"{path}/a.py", f"{path}/b.py")):
                line.tool("file_reservation_paths", **self.project, agent_name=name, paths=[held])
            written = {**self.project, "sender_name": "Bo", "body_md": "- [x] please"}
            for name, number in product(RUNNERS, "12"):
                told = {"subject": f"{name} {path}", "thread_id": f"{name}-{number}"}
                line.tool("send_message", **written, to=[name + number], **told)
            for is_owed in (False, True):
                told = {"subject": f"For Ana {path}", "thread_id": f"mail-{path}-{is_owed}".lower()}
                line.tool("send_message", **written, to=["human:Ana"], ack_required=is_owed, **told)


class Person:
    """Ana at her browser, who sees the pages in one way."""

    def __init__(self, browser: Browser, shop: Shop, look: Look) -> None:
        self.browser, self.shop, self.look = browser, shop, look

    def see(self, address: str) -> None:
        self.browser.open(address, width=self.look.width, dark=self.look.dark)

    def until(self, address: str, selector: str) -> None:
        """Load a page until it has an element, within a bound."""

        def there() -> bool:
            self.see(address)
            return bool(self.browser.see(f"document.querySelector({selector!r}) !== null"))

        soon(there)

    def press(self, address: str, selector: str, told: str) -> None:
        """Press a button once a page has it; the next content confirms the action."""
        self.until(address, selector)
        press(self.browser, selector)
        assert told in self.text(), (address, selector, self.text()[:500])

    def text(self) -> str:
        return str(self.browser.see("document.querySelector('main').textContent"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[RunningServer]:
    """A server that knows Ana, who uses this browser."""
    folder = tmp_path_factory.mktemp("shop")
    with RunningServer(folder / "data") as running:
        opened = Shop(running, folder / "shop")
        log_in(running, browser, f"/p/{opened.slug}/write", 1440)
        fill(browser, "input[name=name]", "Ana")
        press(browser, "button[value=name]")
        yield running


@pytest.fixture
def ana(
    request: pytest.FixtureRequest, browser: Browser, server: RunningServer, tmp_path: Path
) -> Iterator[Person]:
    look, shop = request.param, Shop(server, tmp_path / "shop")
    shop.stir(f"src{LOOKS.index(look)}")
    log_in(server, browser, f"/p/{shop.slug}", look.width)
    browser.ask("Emulation.setScriptExecutionDisabled", value=not look.script)
    yield Person(browser, shop, look)
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("ana", LOOKS, indirect=True, ids=str)
def test_every_button_can_be_hit_and_does_what_it_says(ana: Person, axe: str) -> None:
    home, number = ana.shop.home, LOOKS.index(ana.look)
    for needed in ("yes", "replay", "share", "read", "ack"):
        ana.until(home, f"button[value={needed}]")
    run, other = at_work(ana)
    hit_everything(ana, run, axe)
    copies_and_follows(ana, run)
    for address, selector, told in (
        (home, "button[value=end]", "The reservation was ended"),
        (home, "button[value=share]", "The agents now share it"),
        (home, "button[value=read]", "Ana"),
        (home, "button[value=ack]", "Ana"),
        (home, "[data-key^=dead] button[value=discard]", "The dead letter was dismissed"),
        (home, "[data-key^=dead] button[value=replay]", "This is the new run"),
        (f"{home}/runs", "button[value=replay]", "This is the new run"),
        (f"{home}/runs", "button[value=discard]", "The dead letter was dismissed"),
        (home, "button[value=yes]", "Answered with yes"),
        (f"{home}/questions", "button[value=no]", "Answered with no"),
        (run, "button[value=cancel]", "Stopping…"),
        (f"{home}/runs", f"[data-key='{other}'] button[value=cancel]", "Stopping…"),
    ):
        ana.press(address, selector, told)
    writes_and_answers(ana, f"mail-src{number}-false")
    assert not ana.browser.complaints()
    leaves(ana)


def at_work(ana: Person) -> tuple[str, str]:
    """Return the address of one run that can be cancelled, and the id of another."""
    rows = (
        "[...document.querySelectorAll('.row:has([value=cancel])')].filter(one => "
        "one.querySelector('h3').textContent.startsWith('Work')).map(one => one.dataset.key)"
    )

    def both() -> list[str] | None:
        ana.see(f"{ana.shop.home}/runs")
        found: list[str] = ana.browser.see(rows)  # type: ignore[assignment]
        return found if len(found) == 2 else None

    first, second = soon(both)
    return f"{ana.shop.home}/runs/{first}", second


def hit_everything(ana: Person, run: str, axe: str) -> None:
    """No page is wider than the window, no element covers a button, and axe finds no fault if it can run."""
    number = LOOKS.index(ana.look)
    paths = ("", "/threads", "/t/ask-1", f"/t/mail-src{number}-true", "/runs", "/questions", "/reservations")
    for address in (*(f"{ana.shop.home}{path}" for path in paths), f"{ana.shop.home}/write", run):
        ana.see(address)
        assert ana.browser.see(COVERED % (43 if ana.look.width == 390 else 23)) == [], address
        assert ana.browser.see("document.documentElement.scrollWidth") <= ana.look.width, address
        if ana.look.script and ana.look.dark is (ana.look.width == 390):
            assert examined(ana.browser, axe) == [], address


def copies_and_follows(ana: Person, run: str) -> None:
    """Two buttons of a run's page are there where a script can do what they say."""
    ana.see(run)
    follows = "document.querySelector('#follows').checkVisibility()"
    ana.browser.see("document.querySelector('#copy').focus()")
    for is_there in ("document.activeElement.id === 'copy'", follows):
        assert ana.browser.see(is_there) is ana.look.script
    if ana.look.script:
        ana.browser.press("Enter", 13)
        soon(lambda: ana.browser.see("document.querySelector('#copy').textContent") == "copied")
        for is_pressed in ("false", "true"):
            ana.browser.see("document.querySelector('#follows').click()")
            assert ana.browser.see("document.querySelector('#follows').ariaPressed") == is_pressed


def writes_and_answers(ana: Person, thread: str) -> None:
    browser, home = ana.browser, ana.shop.home
    ana.see(f"{home}/threads")
    browser.see("document.querySelector('select[name=person]').value = 'Ana'")
    press(browser, ".threads-filter button")
    assert "person=Ana" in str(browser.see("location.search"))
    assert thread in str(browser.see("document.querySelector('main').innerHTML"))
    ana.see(f"{home}/t/{thread}")
    fill(browser, ".reply textarea", "I see.")
    press(browser, ".reply button")
    assert "Sent." in ana.text()
    assert "I see." in ana.text()
    assert browser.see("document.querySelectorAll('details.fold:not([open])').length") == 1
    browser.see("document.querySelector('details.fold:not([open]) summary').focus()")
    browser.press("Enter", 13)
    assert browser.see("document.querySelectorAll('details.fold:not([open])').length") == 0
    ana.see(f"{home}/write")
    fill(browser, "input[name=others]", "Bo")
    fill(browser, "input[name=subject]", "Hello")
    fill(browser, "textarea", "From Ana.")
    press(browser, ".write .choices button")
    assert "Sent." in ana.text()
    fill(browser, "input[name=q]", "please")
    browser.events.clear()
    browser.press("Enter", 13)
    browser.wait_for("Page.loadEventFired")
    assert browser.see("document.querySelector('mark').textContent") == "please"


def leaves(ana: Person) -> None:
    browser = ana.browser
    ana.see(ana.shop.home)
    browser.see("document.querySelector('.menu summary').focus()")
    browser.press("Enter", 13)
    assert "You write as Ana" in str(browser.see("document.querySelector('.menu-body').innerText"))
    press(browser, ".menu-body button")
    assert browser.see("location.pathname") == "/login"


@pytest.mark.parametrize("ana", LOOKS, indirect=True, ids=str)
def test_keys_lead_everywhere_and_send_nothing(ana: Person) -> None:
    browser, at = ana.browser, "document.activeElement.%s"
    for needed in ("[data-need]:nth-of-type(2)", "button[value=yes]", "button[value=replay]"):
        ana.until(ana.shop.home, needed)
    if not ana.look.script:
        browser.type("1jkyngh?")
        assert browser.see("document.activeElement === document.body") is True
        assert browser.see("location.href") == ana.shop.home
        return
    needs = browser.see("[...document.querySelectorAll('[data-need]')].map(one => one.dataset.key)")
    failed = browser.see(
        "[...document.querySelectorAll('[data-need]')].findIndex(one => one.querySelector('[value=replay]'))"
    )
    goes: tuple[tuple[str, str, object], ...] = (
        ("1", at % "dataset.key", needs[0]),
        ("j", at % "dataset.key", needs[1]),
        ("k", at % "dataset.key", needs[0]),
        ("y", at % "value", "yes"),
        ("n", at % "value", "no"),
        ("r", at % "value", "no"),  # it is another card's
        (str(failed + 1), at % "dataset.key", needs[failed]),
        ("y", at % "dataset.key", needs[failed]),
        ("r", at % "value", "replay"),
        ("?", "document.querySelector('#help').open", True),
    )
    for key, seen, expected in goes:
        browser.type(key)
        assert browser.see(seen) == expected, key
    browser.press("Escape", 27)
    assert browser.see("document.querySelector('#help').open") is False
    browser.type("/gh?")
    assert browser.see(f"[{at % 'name'}, {at % 'value'}]") == ["q", "gh?"]
    browser.press("Escape", 27)
    assert browser.see("document.activeElement === document.body") is True
    pages = {
        "t": "timeline",
        "h": "threads",
        "r": "runs",
        "k": "tasks",
        "n": "notes",
        "a": "agents",
        "v": "reservations",
        "s": "schedules",
    }
    follow: Callable[[str, str], None] = lambda keys, page: _leads(browser, keys, f"/p/{ana.shop.slug}{page}")  # noqa: E731
    for key, page in pages.items():
        follow(f"g{key}", f"/{page}")
    follow("gc", "")
    follow("w", "/write")
    ana.until(f"{ana.shop.home}/runs", "button[value=cancel]")
    browser.type("c")
    assert browser.see(at % "value") == "cancel"
    follow("", "/runs")
    ana.see(f"{ana.shop.home}/t/mail-src{LOOKS.index(ana.look)}-true")  # its own: others come in any order
    are_open = "[...document.querySelectorAll('main details')].every(one => one.open)"
    is_all_open = browser.see(are_open)
    browser.type("e")
    assert browser.see(are_open) is not is_all_open
    assert not browser.complaints()


def _leads(browser: Browser, keys: str, path: str) -> None:
    if keys:
        browser.events.clear()
        browser.type(keys)
        browser.wait_for("Page.loadEventFired")
    assert browser.see("location.pathname") == path
