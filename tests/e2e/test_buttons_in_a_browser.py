"""Every button of threads, control room and runs can be hit, and does what it says, with a script and without."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.running import RunningServer
from e2e.test_accessibility import axe, examined
from e2e.test_live_pages import log_in
from e2e.test_page_in_a_browser import Browser, browser
from e2e.test_work_in_a_browser import ASKER, agent, fill, press, soon

__all__ = ["axe", "browser"]

LOOKS = ((1440, False, True), (1440, True, False), (390, True, True), (390, False, False))
"""Width, whether dark, and whether scripts run: each value of one with each of the others in pairs."""
FAILING = "cat > /dev/null; echo 'no such branch' >&2; exit 3"
COVERED = """
[...document.querySelectorAll('main button, main summary, main select, main a.button')].filter(one => {
  if (!one.checkVisibility({visibilityProperty: true})) return false;
  one.scrollIntoView({block: 'center'});
  const {x, y, width, height} = one.getBoundingClientRect();
  const hit = document.elementFromPoint(x + width / 2, y + height / 2);
  return !one.contains(hit) || height < %d;
}).map(one => one.outerHTML.slice(0, 160))
"""


class Shop:
    """A project in which something waits for a person in every way."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        folder.mkdir()
        self.server, self.project = server, {"project_key": str(folder)}
        with server.line() as line:
            self.slug = line.tool("ensure_project", human_key=str(folder))["slug"]
            for name in ("Bo", "Cy"):
                line.tool("register_agent", **self.project, name=name, program="script", model="none")
        agent(server, folder, "Ada", [sys.executable, "-c", ASKER])
        agent(server, folder, "Fay", ["sh", "-c", FAILING])

    @property
    def home(self) -> str:
        return f"{self.server.url}/p/{self.slug}"

    def stir(self, path: str) -> None:
        """Have a question asked, a run fail, two agents hold the same file, and Ana written to."""
        with self.server.line() as line:
            for name, held in (("Bo", f"{path}/**"), ("Cy", f"{path}/total.py")):
                line.tool("file_reservation_paths", **self.project, agent_name=name, paths=[held])
            for to, thread in (("Ada", "ask"), ("Fay", "fail"), ("human:Ana", f"mail-{path}")):
                written = {"subject": f"{thread} {path}", "body_md": "- [x] please", "thread_id": thread}
                line.tool("send_message", **self.project, sender_name="Bo", to=[to], **written)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with RunningServer(tmp_path / "data") as running:
        yield Shop(running, tmp_path / "shop")


def text(browser: Browser) -> str:
    return str(browser.see("document.querySelector('main').textContent"))


def has(browser: Browser, address: str, selector: str, *, width: int, dark: bool) -> None:
    """Load a page until it has an element, within a bound."""

    def there() -> bool:
        browser.open(address, width=width, dark=dark)
        return bool(browser.see(f"document.querySelector({selector!r}) !== null"))

    soon(there)


def test_every_button_can_be_hit_and_does_what_it_says(
    shop: Shop, browser: Browser, axe: str, tmp_path: Path
) -> None:
    log_in(shop.server, browser, f"/p/{shop.slug}/write", 1440)
    fill(browser, "input[name=name]", "Ana")
    press(browser, "button[value=name]")
    fill(browser, "input[name=others]", "Bo")
    fill(browser, "input[name=subject]", "Hello")
    fill(browser, "textarea", "From Ana.")
    press(browser, ".write .choices button")
    for number, (width, dark, script) in enumerate(LOOKS):
        shop.stir(f"src{number}")
        browser.ask("Emulation.setScriptExecutionDisabled", value=not script)
        for needed in (
            "button[value=yes]",
            "button[value=replay]",
            "button[value=share]",
            "button[value=read]",
        ):
            has(browser, shop.home, needed, width=width, dark=dark)
        run = str(browser.see("document.querySelector('[data-key^=\"dead\"] .run-link').href"))
        pages = ("", "/threads", "/t/ask", f"/t/mail-src{number}", "/runs", "/questions")
        for page in (*(f"{shop.home}{one}" for one in pages), run):
            browser.open(page, width=width, dark=dark)
            assert browser.see(COVERED % (43 if width == 390 else 23)) == [], (page, width, script)
            assert browser.see("document.documentElement.scrollWidth") <= width, (page, width)
            if script:
                assert examined(browser, axe) == [], (page, width, dark)
        for selector, told in (
            (
                "button[value=share]" if number % 2 else "button[value=end]",
                "reservation" if not number % 2 else "share it",
            ),
            ("button[value=read]", "Ana"),
            (
                "[data-key^=dead] button[value=discard]"
                if number % 2
                else "[data-key^=dead] button[value=replay]",
                "Run of",
            ),
            ("button[value=yes]", "Answered with"),
        ):
            has(browser, shop.home, selector, width=width, dark=dark)
            press(browser, selector)
            assert told in text(browser), (selector, text(browser)[:500])
        answered_at_the_end_of_a_thread(shop, browser, f"mail-src{number}", width=width, dark=dark)
        assert not browser.complaints()
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def answered_at_the_end_of_a_thread(
    shop: Shop, browser: Browser, thread: str, *, width: int, dark: bool
) -> None:
    browser.open(f"{shop.home}/threads", width=width, dark=dark)
    browser.see("document.querySelector('select[name=person]').value = 'Ana'")
    press(browser, ".threads-filter button")
    assert "person=Ana" in str(browser.see("location.search"))
    assert thread in text(browser)
    browser.open(f"{shop.home}/t/{thread}", width=width, dark=dark)
    fill(browser, ".reply textarea", "I see.")
    press(browser, ".reply button")
    assert "Sent." in text(browser)
    assert "I see." in text(browser)
    assert browser.see("document.querySelectorAll('details.fold:not([open])').length") == 1
    browser.see("document.querySelector('details.fold:not([open]) summary').focus()")
    browser.press("Enter", 13)
    assert browser.see("document.querySelectorAll('details.fold:not([open])').length") == 0
