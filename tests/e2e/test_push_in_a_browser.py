"""Notifications in a real browser: what the server sends to a push service is decrypted, shown and answered.

The push service is the test's own, because those of browsers are elsewhere: the page gets an address there and real
keys in place of `PushManager.subscribe`. The data that arrives there is decrypted by a library that is not ours, and handed to the
real service worker as Chromium's own push client would do it. A test cannot click on a notification of the desktop, so
the worker is notified of the click.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.browser import Browser, log_in
from e2e.running import RunningServer, plain_environment, soon
from e2e.test_accessibility import axe, examined
from e2e.test_inbox_in_a_browser import ask, becomes
from machine import PATIENCE
from push_room import FakeBrowser, PushService

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

__all__ = ["axe"]
SUBSCRIBED = """
PushManager.prototype.subscribe = async (options) => {
  const made = %s;
  return { toJSON: () => made, unsubscribe: async () => true, options };
};
"""
NOT_REACHED = "PushManager.prototype.subscribe = async () => { throw new Error('no push service'); };"
WORKER = "navigator.serviceWorker.getRegistration('/static/notify_worker.js')"
SHOWN = f"""navigator.locks.request("notifications", async () => {{
  const found = await {WORKER}, shown = found ? await found.getNotifications() : [];
  return shown.map(({{ title, body, actions }}) => [title, body, actions.map(({{ action }}) => action).join()]);
}})"""
"""A list takes the worker's lock, because Chromium forgets a notification that is listed while it is being shown."""


@pytest.fixture
def service() -> Iterator[PushService]:
    with PushService().serving() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, service: PushService) -> Iterator[RunningServer]:
    environment = {**plain_environment(tmp_path), "POSTROOM_PUSH_SERVICES": service.origin}
    with RunningServer(tmp_path / "data", environment=environment) as running:
        yield running


@pytest.fixture
def home(server: RunningServer, browser: Browser) -> str:
    """Log a person in, with the permission for notifications."""
    browser.permit_notifications(server.url)
    log_in(server, browser)
    browser.ask("ServiceWorker.enable")
    return f"{server.url}/"


def switch_on(browser: Browser, home: str, script: str, *, width: int = 1440) -> None:
    number = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    browser.open(home, width=width)
    browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=number)
    becomes(browser, "document.querySelector('#notify [value=on]').checkVisibility()")
    if browser.see("document.querySelector('#notify [name=by]').checkVisibility()"):
        browser.see("document.querySelector('#notify [name=by]').focus()")
        browser.type("lena")
    browser.see("document.querySelector('#notify [value=on]').click()")
    becomes(browser, "document.querySelector('#notify [value=off]').checkVisibility()")


def subscribed(made: FakeBrowser) -> str:
    told = dict(made.subscription)
    return SUBSCRIBED % json.dumps({"endpoint": told.pop("endpoint"), "keys": told})


def deliver(browser: Browser, home: str, notice: dict[str, Any]) -> None:
    """Hand a decrypted notification to the service worker."""
    told = [
        one["params"] for one in browser.events if one["method"] == "ServiceWorker.workerRegistrationUpdated"
    ]
    here = [one for some in told for one in some["registrations"] if one["scopeURL"].startswith(home)]
    number = here[-1]["registrationId"]
    browser.ask(
        "ServiceWorker.deliverPushMessage", origin=home, registrationId=number, data=json.dumps(notice)
    )


def shows(browser: Browser, *wanted: list[str]) -> None:
    """Wait until the browser shows these notifications, each with its title, its text and its buttons."""
    soon(lambda: browser.awaited(SHOWN) == [*wanted], lambda: browser.awaited(SHOWN))


def click(browser: Browser, home: str, action: str) -> None:
    """Click on a button of the notification that is shown."""
    browser.in_worker(
        home,
        f"registration.getNotifications().then(([notification]) => dispatchEvent("
        f"new NotificationEvent('notificationclick', {{ notification, action: '{action}' }})))",
    )


def questions(server: RunningServer) -> list[dict[str, Any]]:
    with server.line() as line:
        return list(line.request("GET", "/admin/questions").json()["questions"])


def answer_elsewhere(server: RunningServer) -> None:
    [asked] = questions(server)
    with server.line() as line:
        line.order("POST", "/admin/questions", {"number": asked["number"], "answer": "no", "by": "ben"})


def asking(slug: str) -> list[str]:
    return [f"Ada in {slug} asks", "May I delete the branch?", "yes,no"]


def test_a_question_goes_encrypted_to_the_push_service_and_is_answered_in_the_notification(
    home: str, server: RunningServer, service: PushService, browser: Browser, axe: str, tmp_path: Path
) -> None:
    made = service.browser()
    switch_on(browser, home, subscribed(made), width=390)
    assert "This browser notifies you, even while no page is open." in str(
        browser.see("document.querySelector('#notify').innerText")
    )
    assert browser.see("document.documentElement.scrollWidth") <= 390
    assert examined(browser, axe) == []
    slug = ask(server, tmp_path / "yard")
    request = service.got.get(timeout=PATIENCE)
    assert b"branch" not in request.body
    assert b"branch" not in json.dumps(request.headers).encode()
    deliver(browser, home, made.read(request.body))
    shows(browser, asking(slug))
    assert len(questions(server)) == 1, "silence is no answer"
    click(browser, home, "yes")
    shows(browser, ["You answered yes", "Open this notification to take it back within 8 seconds.", ""])
    assert questions(server) == []
    becomes(browser, "document.querySelector('#asked').nextElementSibling.textContent", "No open questions.")
    browser.open(f"{server.url}/p/{slug}/questions")
    said = str(browser.see("document.querySelector('main').textContent"))
    assert "lena" in said
    assert "in a notification" in said
    assert service.taken() == []
    assert not browser.complaints()


def test_a_question_that_is_answered_elsewhere_is_replaced_and_a_late_yes_says_who_answered(
    home: str, server: RunningServer, service: PushService, browser: Browser, tmp_path: Path
) -> None:
    made = service.browser()
    switch_on(browser, home, subscribed(made))
    slug = ask(server, tmp_path / "yard")
    deliver(browser, home, made.read(service.got.get(timeout=PATIENCE).body))
    shows(browser, asking(slug))
    answer_elsewhere(server)
    closed = made.read(service.got.get(timeout=PATIENCE).body)
    click(browser, home, "yes")
    settled = "Already answered by ben over HTTP: no"
    shows(browser, ["Not answered", settled, ""])
    deliver(browser, home, closed)
    shows(browser, [f"Ada in {slug}", settled, ""])
    browser.in_worker(home, "registration.getNotifications().then(([one]) => one.close())")
    shows(browser)
    deliver(browser, home, closed)
    shows(browser)
    other = ask(server, tmp_path / "mill")
    deliver(browser, home, made.read(service.got.get(timeout=PATIENCE).body))
    shows(browser, asking(other))
    browser.ask("Network.clearBrowserCookies")
    click(browser, home, "yes")
    shows(browser, ["Not answered", "You are logged out. Log in, and answer on the page.", ""])


def test_a_notification_without_buttons_opens_its_page_and_turning_off_ends_everything(
    home: str, server: RunningServer, service: PushService, browser: Browser, tmp_path: Path
) -> None:
    made = service.browser()
    switch_on(browser, home, subscribed(made))
    browser.see("document.querySelector('#notify [value=test]').click()")
    deliver(browser, home, made.read(service.got.get(timeout=PATIENCE).body))
    shows(browser, ["postroom", "lena gets notifications in this browser.", "open"])
    browser.see("document.querySelector('#notify [value=off]').click()")
    becomes(browser, "document.querySelector('#notify [value=on]').checkVisibility()")
    shows(browser)
    ask(server, tmp_path / "yard")
    browser.open(home, width=1440)
    becomes(browser, "document.querySelector('.asked')?.textContent", "May I delete the branch?")
    assert service.taken() == []
    assert not browser.complaints()


def test_a_hidden_page_shows_a_question_once_over_all_tabs_if_no_push_service_is_reached(
    home: str, server: RunningServer, service: PushService, browser: Browser, tmp_path: Path
) -> None:
    switch_on(browser, home, NOT_REACHED)
    assert "Its push service cannot be used: no push service" in str(
        browser.see("document.querySelector('#notify').innerText")
    )
    hidden = """
    Object.defineProperty(document, 'hidden', { get: () => true });
    const post = ServiceWorker.prototype.postMessage;
    ServiceWorker.prototype.postMessage = function (told) {
      localStorage.posted = +(localStorage.posted ?? 0) + 1;
      return post.call(this, told);
    };"""
    for tab in (browser.tab, browser.new_tab()):
        browser.go_to(tab)
        browser.ask("Page.addScriptToEvaluateOnNewDocument", source=hidden)
        browser.open(home, width=1440)
    slug = ask(server, tmp_path / "yard")
    for tab in browser.tabs:
        browser.go_to(tab)
        becomes(browser, "document.querySelector('.asked')?.textContent", "May I delete the branch?")
    shows(browser, asking(slug))
    assert browser.see("localStorage.posted") == "1"
    click(browser, home, "no")
    shows(browser, ["You answered no", "Open this notification to take it back within 8 seconds.", ""])
    assert questions(server) == []
    assert service.taken() == []


def test_a_page_says_why_it_cannot_notify(home: str, browser: Browser) -> None:
    for script, words in (
        ("Object.defineProperty(window, 'isSecureContext', { value: false })", "need HTTPS or localhost"),
        ("delete window.Notification", "has no notifications"),
        ("Object.defineProperty(Notification, 'permission', { value: 'denied' })", "blocks notifications"),
    ):
        number = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        browser.open(home)
        browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=number)
        becomes(browser, f"document.querySelector('#notify').innerText.includes({json.dumps(words)})")
        assert browser.see("document.querySelector('#notify [value=on]').hidden")
    assert not browser.complaints()
