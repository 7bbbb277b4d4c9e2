"""Pages of a real server that change as things happen, in many tabs, and take nothing from who reads them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.browser import Browser, log_in
from e2e.running import RunningServer, soon

pytestmark = pytest.mark.long

SOON_MS = 1_000
"""Milliseconds from a change to the page that shows it, on a machine that has nothing else to do."""
WATCH = """
window.shown = new Promise(done => new MutationObserver((_, self) => {
  if (document.body.textContent.includes(%r)) { self.disconnect(); done(performance.timeOrigin + performance.now()); }
}).observe(document.body, {subtree: true, childList: true, characterData: true}))
"""
HURRY = "{ const wait = setTimeout; window.setTimeout = (f, ms, ...more) => wait(f, ms >= 60000 ? 0 : ms, ...more); }"
HIDE = """
Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
document.dispatchEvent(new Event("visibilitychange", {bubbles: true}))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("follow") / "data") as running:
        yield running


class Yard:
    """A project of a server whose two agents write to each other."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        folder.mkdir()
        self.server, self.key = server, str(folder)
        with server.line() as line:
            self.slug = line.tool("ensure_project", human_key=self.key)["slug"]
            for name in ("Ada", "Bo"):
                line.tool("register_agent", project_key=self.key, name=name, program="none", model="none")

    def send(self, subject: str) -> None:
        with self.server.line() as line:
            told = {"project_key": self.key, "sender_name": "Ada", "to": ["Bo"], "body_md": "x"}
            line.tool("send_message", **told, subject=subject)

    def reserve(self, name: str, path: str) -> None:
        with self.server.line() as line:
            line.tool("file_reservation_paths", project_key=self.key, agent_name=name, paths=[path])


@pytest.fixture
def yard(server: RunningServer, tmp_path: Path) -> Yard:
    return Yard(server, tmp_path / "yard")


def streams(browser: Browser, subject: str, yard: Yard) -> int:
    """Send a message; return how many streams of the browser's tabs have brought the event once all show it."""
    browser.events.clear()
    yard.send(subject)
    for tab in browser.tabs:
        browser.go_to(tab)
        shows(browser, subject)
    told = [one for one in browser.events if one["method"] == "Network.eventSourceMessageReceived"]
    return sum(one["params"]["eventName"] == "message.sent" for one in told)


def is_live(browser: Browser) -> None:
    soon(lambda: browser.see("document.querySelector('#following').textContent") == "live")


def shows(browser: Browser, words: str) -> None:
    soon(lambda: words in str(browser.see("document.querySelector('main').textContent")))


def test_a_change_shows_at_once_and_takes_nothing_from_the_reader(
    server: RunningServer, browser: Browser, yard: Yard
) -> None:
    log_in(server, browser, f"/p/{yard.slug}/threads", 1440)
    is_live(browser)
    browser.see("window.untouched = true")
    browser.see(WATCH % "The first of all")
    sent: list[float] = []

    def send() -> None:
        yard.send("The first of all")
        sent.append(time.time() * 1_000)

    send()
    at = browser.ask("Runtime.evaluate", expression="shown", awaitPromise=True, returnByValue=True)
    assert at["result"]["value"] - sent[0] <= 5 * SOON_MS
    browser.see("getSelection().selectAllChildren(document.querySelector('.row h3'))")
    yard.send("If the previous message reads")
    soon(lambda: browser.see("document.querySelector('.news')?.textContent") == "1 new")
    assert "If the previous message" not in str(browser.see("document.querySelector('main').textContent"))
    assert browser.see("getSelection().toString()") == "The first of all"
    browser.see("document.querySelector('.news').click()")
    shows(browser, "If the previous message reads")
    assert browser.see("[window.untouched, document.querySelector('.news')]") == [True, None]
    assert not browser.complaints()


ROW = "[...document.querySelectorAll('main .row')].find(row => row.textContent.includes('The one that is read'))"


def test_a_row_that_comes_above_leaves_the_others_their_focus_and_their_selection(
    server: RunningServer, browser: Browser, yard: Yard
) -> None:
    yard.send("The one that is read")
    log_in(server, browser, f"/p/{yard.slug}/threads", 1440)
    is_live(browser)
    browser.see(f"window.row = {ROW}; row.querySelector('h3 a').focus()")
    yard.send("It comes above")
    shows(browser, "It comes above")
    assert browser.see(f"window.row === {ROW} && row.contains(document.activeElement)") is True
    browser.see("getSelection().selectAllChildren(row.querySelector('h3'))")
    yard.send("And another")
    soon(lambda: browser.see("document.querySelector('.news') !== null"))
    browser.see("document.querySelector('.news').click()")
    shows(browser, "And another")
    assert browser.see("getSelection().toString()") == "The one that is read"
    assert not browser.complaints()


def test_eight_tabs_have_one_stream_which_another_takes_over_when_its_tab_is_hidden(
    server: RunningServer, browser: Browser, yard: Yard
) -> None:
    log_in(server, browser, f"/p/{yard.slug}/threads", 1440)
    first = browser.tab
    browser.ask("Page.addScriptToEvaluateOnNewDocument", source=HURRY)
    browser.ask("Page.reload")
    for _ in range(7):
        browser.new_tab()
        browser.ask("Page.navigate", url=f"{server.url}/p/{yard.slug}/threads")
    for tab in browser.tabs:
        browser.go_to(tab)
        shows(browser, "No mail yet")
        is_live(browser)
    assert streams(browser, "For eight tabs", yard) == 1
    browser.go_to(first)
    browser.see(HIDE % "true")
    yard.send("When one is hidden")
    others = [tab for tab in browser.tabs if tab != first]
    for tab in others:
        browser.go_to(tab)
        shows(browser, "When one is hidden")
    browser.go_to(first)
    assert "When one is hidden" not in str(browser.see("document.querySelector('main').textContent"))
    browser.see(HIDE % "false")
    shows(browser, "When one is hidden")
    assert streams(browser, "When it is back", yard) == 1
    for tab in others:
        browser.close_tab(tab)
    browser.go_to(first)
    assert streams(browser, "After all others are closed", yard) == 1


def test_a_server_that_was_away_is_told_and_nothing_is_missed(
    server: RunningServer, browser: Browser, yard: Yard
) -> None:
    log_in(server, browser, f"/p/{yard.slug}/threads", 390)
    is_live(browser)
    browser.see("window.untouched = true")
    address = server.address
    server.kill()
    soon(lambda: "not live since" in str(browser.see("document.querySelector('#following').textContent")))
    server.start(port=address[1])
    yard.send("Written before it was back")
    shows(browser, "Written before it was back")
    is_live(browser)
    assert browser.see("window.untouched") is True
    assert browser.see("document.querySelectorAll('main .row').length") == 1


def test_the_timeline_goes_on_with_the_present_though_nothing_happens(yard: Yard, browser: Browser) -> None:
    log_in(yard.server, browser, f"/p/{yard.slug}/timeline?span=1m", 1440)
    begin = "Number(document.querySelector('.tl-picture').dataset.begin)"
    browser.see(f"window.begun = {begin}; window.untouched = true")
    soon(lambda: browser.see(f"{begin} - window.begun >= 4000"))
    assert browser.see("window.untouched") is True
    assert browser.see("location.search") == "?span=1m"
    assert not browser.complaints()


def submit(browser: Browser, field: str) -> None:
    """Send the form that has a field as its button does, and wait for the page that answers."""
    browser.events.clear()
    button = (
        f"[...document.querySelector('main [name={field}]').form.elements].find(one => one.type === 'submit')"
    )
    browser.see(f"{button}.click()")
    browser.wait_for("Page.loadEventFired")


def test_who_is_logged_out_keeps_what_was_typed_and_sends_it_after_the_next_log_in(
    yard: Yard, browser: Browser
) -> None:
    log_in(yard.server, browser, f"/p/{yard.slug}/write", 1440)
    browser.see("document.querySelector('[name=name]').value = 'Ana'")
    submit(browser, "name")
    browser.see("document.querySelector('[name=to][value=Bo]').click()")
    for name, text in {"subject": "Lights", "body": "On the north pier"}.items():
        browser.see(f"document.querySelector('[name={name}]').value = {text!r}")
    body, told = (
        "document.querySelector('[name=body]').value",
        "document.querySelector('#out').checkVisibility()",
    )
    assert browser.see(told) is False
    browser.ask("Network.clearBrowserCookies")
    yard.send("Somebody else writes")
    soon(lambda: browser.see(told))
    assert browser.see(f"[location.pathname, {body}]") == [f"/p/{yard.slug}/write", "On the north pier"]
    here = browser.tab
    browser.go_to(browser.new_tab())
    log_in(yard.server, browser, "/", 1440)
    browser.go_to(here)
    soon(lambda: yard.send("And once more") or not browser.see(told))
    submit(browser, "body")
    assert "On the north pier" in str(browser.see("document.querySelector('main').textContent"))


SKIP = "{ const clocks = [Date, performance].map(one => [one, one.now.bind(one)]); window.skipped = 0; \
for (const [one, now] of clocks) one.now = () => now() + window.skipped; }"
"""The page's clocks go on by as many milliseconds as `skipped` says."""
FOLLOWING = "document.querySelector('#following').textContent"
RENEW = "document.dispatchEvent(new CustomEvent('postroom:renew', {detail: ['main']}))"


@contextlib.contextmanager
def stopped(server: RunningServer) -> Iterator[None]:
    """A suspended server, which is continued in any case."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def followed(server: RunningServer, browser: Browser, yard: Yard) -> Iterator[Browser]:
    """A live page of threads whose clocks a test moves."""
    added = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=SKIP)["identifier"]
    log_in(server, browser, f"/p/{yard.slug}/threads", 1440)
    is_live(browser)
    yield browser
    browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=added)


def test_a_page_says_that_it_waits_for_a_server_that_stands_still_and_goes_on_with_it(
    server: RunningServer, followed: Browser, yard: Yard
) -> None:
    with stopped(server):
        followed.see(RENEW)
        soon(lambda: followed.see("1") and any("part=main" in one for one in followed.fetched()))
        followed.see("window.skipped = 15_000")
        soon(lambda: "not live since" in str(followed.see(FOLLOWING)))
        followed.see("window.skipped = 35_000")
    yard.send("After it stood still")
    shows(followed, "After it stood still")
    is_live(followed)


def test_a_page_asks_again_though_a_request_hangs(server: RunningServer, followed: Browser) -> None:
    followed.see(
        "{ const limit = AbortSignal.timeout; AbortSignal.timeout = ms => limit.call(AbortSignal, ms / 100) }"
    )
    with stopped(server):
        followed.events.clear()
        followed.see(RENEW)
        soon(lambda: followed.see("1") and sum("part=main" in one for one in followed.fetched()) >= 2)
    is_live(followed)


def test_a_page_of_a_machine_that_slept_listens_anew(
    server: RunningServer, followed: Browser, yard: Yard
) -> None:
    followed.see("window.skipped = 3_600_000")
    soon(lambda: "not live since" in str(followed.see(FOLLOWING)))
    is_live(followed)
    streams = [one for one in followed.fetched() if "/v1/events" in one]
    assert len(streams) == 2
    yard.send("In the morning")
    shows(followed, "In the morning")


def test_a_key_answers_for_the_chosen_card_and_never_for_another(
    server: RunningServer, browser: Browser, yard: Yard
) -> None:
    for subject in ("It asks", "It does not"):
        yard.send(subject)
    log_in(server, browser, f"/p/{yard.slug}/threads", 1440)
    browser.see(
        "const card = words => [...document.querySelectorAll('[data-item]')]"
        ".find(one => one.textContent.includes(words));"
        "const yes = Object.assign(document.createElement('button'), {textContent: 'Approve'});"
        "yes.dataset.hotkey = 'y'; card('It asks').append(yes)"
    )
    for words, goes in {"It does not": False, "It asks": True}.items():
        browser.see(f"card({words!r}).querySelector('a').focus()")
        browser.press("y", 89)
        assert browser.see("document.activeElement === yes") is goes, words
    browser.see("document.activeElement.blur()")
    browser.press("y", 89)
    assert browser.see("document.activeElement === yes") is True


def test_deep_quotations_and_lists_scroll_within_their_message(
    server: RunningServer, browser: Browser, yard: Yard
) -> None:
    with server.line() as line:
        told = {"project_key": yard.key, "sender_name": "Ada", "to": ["Bo"], "subject": "Deep"}
        lists = "\n".join("  " * at + "- a" for at in range(200))
        sent = line.tool("send_message", **told, body_md=f"{'> ' * 5_000}x\n\n{lists}")["deliveries"][0]
    shown = sent["payload"]
    for page in (f"/m/{shown['id']}", f"/t/{shown['thread_id']}"):
        log_in(server, browser, f"/p/{yard.slug}{page}", 390)
        shows(browser, "Deep")
        assert browser.see("document.documentElement.scrollWidth") <= 390, page
        assert browser.see("[...document.querySelectorAll('.wide')].map(one => one.scrollWidth > 390)") == [
            True,
            True,
        ]
