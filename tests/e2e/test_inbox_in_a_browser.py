"""The first page of a real server in a real browser: by keyboard, live, with the number in the title."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.browser import Browser, log_in
from e2e.running import RunningServer
from e2e.test_accessibility import axe, examined
from e2e.test_work_in_a_browser import ASKER, PATIENCE, agent, fill

pytestmark = pytest.mark.long

__all__ = ["axe"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def becomes(browser: Browser, expression: str, wanted: object = True) -> None:
    """Wait until an expression has a value in the page, which is not loaded again, within a bound."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE
    while (found := browser.see(expression)) != wanted:
        assert time.monotonic() < until, (expression, found, browser.see("document.body.innerText"))
        pause.wait(0.1)


def ask(server: RunningServer, folder: Path) -> str:
    """Let an agent ask a person, and return the slug of its project."""
    folder.mkdir()
    with server.line() as line:
        slug = line.crew(str(folder), "Bo")
    for name, argv in (("Ada", [sys.executable, "-c", ASKER]), ("Fay", ["false"])):
        agent(server, folder, name, argv)
    with server.line() as line:
        said = {"project_key": str(folder), "sender_name": "Bo", "subject": "Tidy", "body_md": "up"}
        line.tool("send_message", **said, to=["Ada"])
    return slug


def test_the_inbox_follows_by_keyboard_and_never_answers_by_enter(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    log_in(server, browser)
    browser.open(f"{server.url}/", width=1440)
    assert browser.see("document.title") == "postroom"
    slug = ask(server, tmp_path / "yard")
    becomes(browser, "document.title", "(1) postroom")
    becomes(browser, "document.querySelector('.asked')?.textContent", "May I delete the branch?")
    fill(browser, "input[name=why]", "NO! Not before the backup is done")
    browser.press("Enter", 13)
    with server.line() as line:
        said = {"project_key": str(tmp_path / "yard"), "sender_name": "Bo", "subject": "Fail", "body_md": "x"}
        line.tool("send_message", **said, to=["Fay"])
    becomes(browser, "document.title", "(2) postroom")
    kept = browser.see("document.querySelector('input[name=why]').value")
    assert kept == "NO! Not before the backup is done"
    assert examined(browser, axe) == []
    browser.press("Escape", 27)
    browser.open(f"{server.url}/", width=1440)
    browser.type("j")
    assert browser.see("document.activeElement.closest('[data-item]').className") == "card question"
    browser.type("j")
    assert "Fay" in str(browser.see("document.activeElement.closest('[data-item]').textContent"))
    browser.type("s")
    becomes(browser, "document.querySelector('.row .later').open")
    browser.events.clear()
    browser.see("document.querySelector('.row .later button').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("document.title") == "(1) postroom"
    browser.type("j")
    browser.events.clear()
    browser.press("Enter", 13)
    browser.wait_for("Page.loadEventFired")
    assert f"/p/{slug}/runs/" in str(browser.see("location.pathname"))
    with server.line() as line:
        assert len(line.request("GET", "/admin/questions").json()["questions"]) == 1
    assert not browser.complaints()
