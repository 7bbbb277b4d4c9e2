"""The pages of a real server for readers and editors: nothing jumps, nothing is covered, everything can be reached."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.browser import Browser
from e2e.running import RunningServer, soon
from e2e.test_work_in_a_browser import agent, command

pytestmark = pytest.mark.long

OUTPUT = "document.querySelector('#log')"
AT_END = f"(one => one.scrollTop > 0 && one.scrollTop + one.clientHeight >= one.scrollHeight - 4)({OUTPUT})"
MIDDLE = """
(one => { one.scrollIntoView({block: 'center'}); const {x, y, width, height} = one.getBoundingClientRect();
  return [x + width / 2, y + height / 2]; })(document.querySelector('button[value=cancel]'))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


class Yard:
    """A project with an agent that outputs the content of a file, until it is cancelled."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        folder.mkdir()
        self.said, self.server = folder / "said.txt", server
        self.said.write_text("".join(f"line {number}\n" for number in range(400)))
        with server.line() as line:
            project = {"project_key": str(folder)}
            self.slug = line.tool("ensure_project", human_key=str(folder))["slug"]
            agent(server, folder, "Ada", ["sh", "-c", f"cat > /dev/null; exec tail -n +1 -f {self.said}"])
            line.tool("register_agent", **project, name="Bo", program="person", model="none")
            line.tool("send_message", **project, sender_name="Bo", to=["Ada"], subject="Go", body_md="on")
        self.run = soon(self._at_work)

    def say(self, text: str) -> None:
        with self.said.open("a") as file:
            file.write(text)

    def _at_work(self) -> str | None:
        found = json.loads(command(self.server, "runs", "list", "--json").stdout)["runs"]
        return next((one["run_id"] for one in found if one["state"] == "at work"), None)


def log_in(server: RunningServer, browser: Browser, path: str, width: int) -> None:
    link = command(server, "open", path).stdout.strip()
    browser.open(link, width=width)


def shows(browser: Browser, words: str) -> None:
    soon(lambda: words in str(browser.see("document.querySelector('main').textContent")))


def test_a_run_is_followed_and_ended(server: RunningServer, browser: Browser, tmp_path: Path) -> None:
    width = 390
    yard = Yard(server, tmp_path / "yard")
    page = f"/p/{yard.slug}/runs/{yard.run}?live=1"
    log_in(server, browser, page, width)
    assert browser.see("location.pathname + location.search") == page
    browser.see("window.untouched = true")
    shows(browser, "line 399")
    soon(lambda: browser.see(AT_END))
    yard.say("next at the end\n")
    shows(browser, "next at the end")
    assert browser.see(AT_END) is True
    browser.see(
        f"{OUTPUT}.scrollTop = 40; getSelection().setBaseAndExtent({OUTPUT}.firstChild, 0, {OUTPUT}.firstChild, 6)"
    )
    yard.say("next above\n")
    shows(browser, "next above")
    assert browser.see(f"[{OUTPUT}.scrollTop, getSelection().toString(), window.untouched]") == [
        40,
        "line 0",
        True,
    ]
    browser.open(f"{server.url}/p/{yard.slug}/runs?live=1", width=width)
    x, y = browser.see(MIDDLE)  # type: ignore[misc]
    assert browser.see(f"document.elementFromPoint({x}, {y}).closest('button')?.value") == "cancel"
    browser.events.clear()
    for kind in ("mousePressed", "mouseReleased"):
        browser.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.wait_for("Page.loadEventFired")
    assert "Cancelling the run" in str(browser.see("document.querySelector('[role=status]').textContent"))
    assert not browser.complaints()
    browser.events.clear()
    browser.see("document.querySelector('form[action=\"/logout\"] button').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("location.pathname") == "/login"
    browser.open(f"{server.url}/p/{yard.slug}", width=width)
    assert browser.see("location.pathname") == "/login"
    assert "Traceback" not in server.log()
