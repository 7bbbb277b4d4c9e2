"""The first page of a real server in a real browser: by keyboard, live, with the number in the title."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.browser import Browser, log_in
from e2e.running import RunningServer, soon
from e2e.test_accessibility import axe, examined
from e2e.test_work_in_a_browser import ASKER, agent, command, fill

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

__all__ = ["axe"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def becomes(browser: Browser, expression: str, wanted: object = True) -> None:
    """Wait until an expression has a value in the page, which is not loaded again, within a bound."""
    soon(
        lambda: browser.see(expression) == wanted,
        lambda: (expression, browser.see(expression), browser.see("document.body.innerText")),
    )


def ask(server: RunningServer, folder: Path) -> str:
    """Make an agent ask a person, and return the slug of its project."""
    folder.mkdir()
    with server.line() as line:
        slug = line.crew(str(folder), "Bo")
    for name, argv in (("Ada", [sys.executable, "-c", ASKER]), ("Fay", ["false"])):
        agent(server, folder, name, argv)
    with server.line() as line:
        said = {"project_key": str(folder), "sender_name": "Bo", "subject": "Tidy", "body_md": "up"}
        line.tool("send_message", **said, to=["Ada"])
    return slug


def be_asked(server: RunningServer, browser: Browser, folder: Path) -> None:
    """Log in as lena, whom an agent asks."""
    log_in(server, browser)
    ask(server, folder)
    browser.ask("Network.setCookie", name="postroom_name", value="lena", url=server.url)


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


def test_snooze_by_keyboard_never_opens_the_run_and_never_answers(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    be_asked(server, browser, tmp_path / "yard")
    for keys in ("js", "ys"):
        browser.ask("Network.deleteCookies", name="postroom_later", url=server.url)
        browser.open(f"{server.url}/", width=1440)
        becomes(browser, "!!document.querySelector('.question')")
        browser.type(keys)
        becomes(browser, "document.activeElement.closest('.question .later .menu-body') !== null")
        browser.press("Escape", 27)
        becomes(browser, "document.activeElement.matches('.question .later:not([open]) summary')")
        browser.type("s")
        browser.events.clear()
        browser.press("Enter", 13)
        browser.wait_for("Page.loadEventFired")
        assert browser.see("(location.pathname + location.search).split('&')[0]") == "/?done=snoozed"
        with server.line() as line:
            [asked] = line.request("GET", "/admin/questions").json()["questions"]
            assert asked["snoozed_until"] is not None
            line.order("POST", "/admin/questions/snooze", {"number": asked["number"], "seconds": 0})
    assert not browser.complaints()


def test_a_draft_keeps_its_row_and_the_other_rows_follow(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    slug = ask(server, folder)
    agent(server, folder, "Ann", [sys.executable, "-c", ASKER.replace("Ada", "Ann")])
    log_in(server, browser)
    for place in ("/", f"/p/{slug}"):
        browser.open(f"{server.url}{place}", width=1440)
        becomes(browser, "!!document.querySelector('[data-item] [name=why]')")
        fill(browser, "[data-item] [name=why]", "Not before the backup")
        with server.line() as line:
            said = {"project_key": str(folder), "sender_name": "Bo", "subject": "Wall", "body_md": "up"}
            line.tool("send_message", **said, to=["Ann"])
        becomes(browser, "document.querySelectorAll('[data-item] [name=why]').length", 2)
        with server.line() as line:
            asked = line.request("GET", "/admin/questions").json()["questions"]
            number = next(one["number"] for one in asked if one["agent"] == "Ann")
            line.order("POST", "/admin/questions", {"number": number, "answer": "yes", "by": "lena"})
        becomes(browser, "document.querySelectorAll('[data-item] [name=why]').length", 1)
        assert browser.see("document.activeElement.value") == "Not before the backup"
    with server.line() as line:
        number = line.request("GET", "/admin/questions").json()["questions"][0]["number"]
        line.order("POST", "/admin/questions", {"number": number, "answer": "yes", "by": "lena"})
    becomes(browser, "!!document.querySelector('.news')")
    assert browser.see("document.activeElement.value") == "Not before the backup"
    browser.see("document.querySelector('.news').click()")
    becomes(browser, "document.querySelectorAll('[data-item] [name=why]').length", 0)
    assert not browser.complaints()


def test_take_back_leads_back_to_the_inbox_and_disappears_after_its_time(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    be_asked(server, browser, tmp_path / "yard")
    browser.open(f"{server.url}/", width=1440)
    approve, take_back = ".question button[value=yes]", "button[value=take_back]"
    for selector, place in (
        (approve, "/?done=yes"),
        (take_back, "/?done=taken_back"),
        (approve, "/?done=yes"),
    ):
        becomes(browser, f"!!document.querySelector('{selector}')")
        browser.see(f"document.querySelector('{selector}').click()")
        becomes(browser, "(location.pathname + location.search).split('&')[0]", place)
        becomes(browser, "document.activeElement.matches('.note.good')")
    browser.press("Tab", 9)
    becomes(browser, "document.activeElement.value", "take_back")
    becomes(browser, "!!document.querySelector('button[value=take_back]')")
    becomes(browser, "!!document.querySelector('button[value=take_back]')", False)
    assert "Approved." in str(browser.see("document.querySelector('main').textContent"))
    assert not browser.complaints()


def test_the_buttons_of_an_answer_have_whole_words_on_a_phone(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    slug = ask(server, tmp_path / "yard")
    log_in(server, browser)
    for place in ("/", f"/p/{slug}", f"/p/{slug}/questions"):
        browser.open(f"{server.url}{place}", width=390)
        becomes(browser, "!!document.querySelector('.answer .choices .button')")
        found = browser.see(
            "JSON.stringify([...document.querySelectorAll('.answer .choices .button')].map((one) => {"
            " const text = document.createRange(); text.selectNodeContents(one);"
            " return [one.textContent.trim(), one.offsetTop, text.getClientRects().length]; }))"
        )
        (yes, yes_top, *_), (no, no_top, *_), (words, words_top, *_) = buttons = json.loads(str(found))
        assert [yes, no, words] == ["Approve", "Deny", "Send the text as the answer"]
        assert yes_top == no_top < words_top, place
        assert [lines for *_, lines in buttons] == [1, 1, 1], place


def test_a_long_action_and_a_long_choice_without_spaces_are_wrapped_on_a_phone(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    folder, action = tmp_path / "yard", "x" * 54
    slug = ask(server, folder)
    for name, limit in (("Ann", f'"action": "{action}"'), ("Cy", f'"choices": ["{"y" * 60}", "EUR"]')):
        asker = ASKER.replace("Ada", name).replace('"question"', f'{limit}, "question"')
        agent(server, folder, name, [sys.executable, "-c", asker])
    with server.line() as line:
        said = {"project_key": str(folder), "sender_name": "Bo", "subject": "Wall", "body_md": "up"}
        line.tool("send_message", **said, to=["Ann", "Cy"])
    log_in(server, browser)
    for place in ("/", f"/p/{slug}", f"/p/{slug}/questions"):
        browser.open(f"{server.url}{place}", width=390)
        becomes(browser, "!!document.querySelector('pre[aria-label=Action]')")
        becomes(browser, "document.querySelectorAll('.choices button[name=answer]').length", 7)
        assert browser.see("document.documentElement.scrollWidth") <= 390, place
        browser.open(f"{server.url}{place}", width=1440)
        becomes(browser, "document.querySelectorAll('[name=why]').length", 3)
        widths = browser.see("[...document.querySelectorAll('[name=why]')].map((one) => one.offsetWidth)")
        assert isinstance(widths, list)
        assert min(widths) > 120, place
    assert not browser.complaints()


def test_no_other_button_comes_under_the_pointer_of_a_person_who_is_about_to_press_one(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    ask(server, folder)
    agent(server, folder, "Ann", [sys.executable, "-c", ASKER.replace("Ada", "Ann")])
    log_in(server, browser)
    browser.open(f"{server.url}/", width=1440)
    becomes(browser, "document.querySelectorAll('.question').length", 1)
    with server.line() as line:
        said = {"project_key": str(folder), "sender_name": "Bo", "subject": "Wall", "body_md": "up"}
        line.tool("send_message", **said, to=["Ann"])
    becomes(browser, "document.querySelectorAll('.question').length", 2)
    x, y = json.loads(
        str(
            browser.see(
                "(({x, y}) => JSON.stringify([x + 9, y + 9]))"
                "(document.querySelectorAll('.question button[value=yes]')[1].getBoundingClientRect())"
            )
        )
    )
    with server.line() as line:
        [first, _] = line.request("GET", "/admin/questions").json()["questions"]
        line.order("POST", "/admin/questions", {"number": first["number"], "answer": "no", "by": "lena"})

    def counted() -> bool:
        for away in (0, 1):
            browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x + away, y=y)
        aimed_at, title = json.loads(
            str(
                browser.see(
                    "JSON.stringify([document.querySelector('.question button:hover')"
                    "?.closest('.question').textContent ?? '', document.title])"
                )
            )
        )
        assert "Ann" in aimed_at
        return bool(title == "(1) postroom")

    soon(counted)
    becomes(browser, "document.querySelectorAll('.question').length", 1)
    assert not browser.complaints()


def test_the_bar_names_the_project_and_no_page_is_wider_than_its_window(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    slug = ask(server, tmp_path / "orchard")
    log_in(server, browser)
    for width in (390, 1280, 1440):
        for place in ("/", f"/p/{slug}", f"/p/{slug}/runs", f"/p/{slug}/tasks", f"/p/{slug}/questions"):
            browser.open(f"{server.url}{place}", width=width)
            assert browser.see("document.documentElement.scrollWidth <= innerWidth"), (place, width)
            assert browser.see(
                "(name => !name || name.scrollWidth <= name.clientWidth)(document.querySelector('.where'))"
            ), (place, width)


class Clicks:
    """A person at the first page, whose clicks are counted; keys are free."""

    def __init__(self, browser: Browser, home: str) -> None:
        self.browser = browser
        self.home = home
        self.used: dict[str, int] = {}
        self._count = 0

    def do(self, task: str, act: Callable[[], None]) -> None:
        """Do a task from the first page, and note its clicks."""
        self.browser.open(self.home, width=1440)
        self._count = 0
        act()
        self.used[task] = self._count

    def click(self, finding: str, *, leads: bool = True) -> None:
        """Click on an element that an expression finds, as a mouse does, and wait for the page it leads to."""
        self._count += 1
        becomes(self.browser, f"!!({finding})")
        self.browser.see(f"({finding}).scrollIntoView({{block: 'center'}})")
        place = self.browser.see(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(({finding}).getBoundingClientRect())"
        )
        assert isinstance(place, list)
        self.browser.events.clear()
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.ask(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )
        if leads:
            self.browser.wait_for("Page.loadEventFired")

    def shows(self, words: str) -> None:
        """Wait until the page shows some words."""
        becomes(self.browser, f"document.querySelector('main').textContent.includes({json.dumps(words)})")


def button(words: str, within: str = "main") -> str:
    """Return an expression that finds the first button or link in a part of the page that begins with words."""
    return (
        f"[...document.querySelectorAll('{within} button, {within} a')]"
        f".find(one => one.textContent.trim().startsWith({json.dumps(words)}))"
    )


def test_ten_tasks_take_the_clicks_that_the_design_allows(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    slug = ask(server, folder)
    agent(server, folder, "Hugo", ["sh", "-c", "cat > /dev/null; echo begun; exec sleep 300"])
    agent(server, folder, "Ann", [sys.executable, "-c", ASKER.replace("Ada", "Ann")])
    said = {"project_key": str(folder), "sender_name": "Bo", "body_md": "please"}
    with server.line() as line:
        line.order("PUT", "/admin/people", {"name": "lena"})
        for subject, to in (
            ("Fence", "Fay"),
            ("Gate", "Fay"),
            ("Roof", "Fay"),
            ("Tests", "Hugo"),
            ("Wall", "Ann"),
        ):
            line.tool("send_message", **said, subject=subject, to=[to])
        line.tool("send_message", **said, subject="Figures of November", to=["human:lena"])
    log_in(server, browser)
    browser.ask("Network.setCookie", name="postroom_name", value="lena", url=server.url)
    lena = Clicks(browser, f"{server.url}/")
    browser.open(lena.home, width=1440)
    becomes(browser, "document.querySelectorAll('.question').length", 2)
    becomes(
        browser,
        "document.querySelectorAll('[data-key^=failed] .badge')[0]?.textContent",
        "the same failure 3 times",
    )
    becomes(browser, "!!document.querySelector('.since .says')")

    lena.do("see what needs me", lambda: lena.shows("May I delete the branch?"))
    lena.do("what changed since I was here", lambda: lena.shows("3 failed"))

    def answer() -> None:
        lena.click(button("Approve"))
        lena.shows("Approved.")

    def answer_in_words() -> None:
        lena.click("document.querySelector('.question [name=why]')", leads=False)
        browser.ask("Input.insertText", text="not before the backup is done")
        lena.click(button("Deny"))
        lena.shows("Denied.")

    def newest_message() -> None:
        lena.click(button("Figures of November"))
        lena.shows("please")

    def find() -> None:
        lena.click("document.querySelector('[data-go-to]')", leads=False)
        becomes(browser, "document.querySelectorAll('#go-list li').length > 3")
        assert examined(browser, axe) == []
        browser.ask("Input.insertText", text="roof")
        becomes(browser, "document.querySelector('#go-list li')?.textContent.includes('Roof')")
        assert browser.see("document.activeElement.getAttribute('aria-activedescendant')") == "go-0"
        browser.events.clear()
        browser.press("Enter", 13)
        browser.wait_for("Page.loadEventFired")
        assert f"/p/{slug}/m/" in str(browser.see("location.pathname"))

    def why_silent() -> None:
        lena.click(button("Hugo", ".since"))
        lena.shows("last output")
        lena.shows("not in a Git repository")
        assert examined(browser, axe) == []

    def stop() -> None:
        lena.click(button("Stop", ".since"))
        lena.shows("Stopping…")

    def retry_all() -> None:
        lena.click(button("Retry all 3"))
        lena.shows("The runs start again.")

    def write_to_two() -> None:
        lena.click(button("Write", ".projects"))
        fill(browser, "input[name=others]", "Bo, Hugo")
        fill(browser, "input[name=subject]", "Plan")
        fill(browser, "textarea", "Here it is.")
        browser.see(
            "(() => { const given = new DataTransfer(); given.items.add(new File(['x'], 'plan.txt'));"
            " document.querySelector('textarea').dispatchEvent("
            "new DragEvent('drop', {dataTransfer: given, bubbles: true, cancelable: true})); })()"
        )
        assert browser.see("document.querySelector('[type=file]').files[0].name") == "plan.txt"
        lena.click(button("Send", ".write"))
        lena.shows("Sent.")
        lena.shows("plan.txt")

    for task, act in (
        ("answer", answer),
        ("answer in words", answer_in_words),
        ("newest message of a thread", newest_message),
        ("find a message", find),
        ("why is this agent silent", why_silent),
        ("stop a run", stop),
        ("retry all 3", retry_all),
        ("write to two with a file", write_to_two),
    ):
        lena.do(task, act)
    assert lena.used == {
        "see what needs me": 0,
        "what changed since I was here": 0,
        "answer": 1,
        "answer in words": 2,
        "newest message of a thread": 1,
        "find a message": 1,
        "why is this agent silent": 1,
        "stop a run": 1,
        "retry all 3": 1,
        "write to two with a file": 2,
    }
    assert not browser.complaints()


def test_home_the_table_and_the_control_room_count_the_same_rows(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    """Three equal failures are one row everywhere, and each of twelve finished tasks counts."""
    folder = tmp_path / "yard"
    slug = ask(server, folder)
    with server.line() as line:
        said = {"project_key": str(folder), "sender_name": "Bo", "body_md": "x", "to": ["Fay"]}
        for subject in ("Fence", "Gate", "Roof"):
            line.tool("send_message", **said, subject=subject)
        bo = {"project_key": str(folder), "agent_name": "Bo"}
        for number in range(1, 13):
            line.tool("add_task", **bo, title=f"Mend fence {number}", acceptance="person")
            line.tool("claim_task", **bo, task_id=number)
            line.tool("done_task", **bo, task_id=number, epoch=1)
    log_in(server, browser)
    browser.open(f"{server.url}/", width=1440)
    becomes(browser, "document.title", "(14) postroom")
    counted = "document.querySelector('{}').textContent.match(/\\d+/)[0]"
    assert browser.see(counted.format(f'.projects a[href="/p/{slug}#needs"]')) == "14"
    assert browser.see(counted.format(".sections [data-key=s-failed] .count")) == "1"
    assert browser.see(counted.format(".sections [data-key=s-reviews] .count")) == "12"
    assert "2 more tasks to check." in str(browser.see("document.querySelector('main').innerText"))
    browser.open(f"{server.url}/p/{slug}", width=1440)
    assert browser.see(counted.format("#needs .count")) == "14"
    assert browser.see(counted.format("[data-key=tab-control] .count")) == "14"
    [card] = json.loads(
        str(
            browser.see(
                "JSON.stringify([...document.querySelectorAll('.need.failed')].map(e => e.innerText))"
            )
        )
    )
    assert "the same failure 3 times" in card
    assert examined(browser, axe) == []
    browser.open(f"{server.url}/p/{slug}/threads", width=1440)
    assert browser.see(counted.format("[data-key=tab-control] .count")) == "14"
    browser.open(f"{server.url}/p/{slug}", width=1440)
    browser.events.clear()
    browser.see("document.querySelector('.need.failed button[value=discard]').click()")
    browser.wait_for("Page.loadEventFired")
    assert "Dismissed" in str(browser.see("document.querySelector('main').innerText"))
    assert browser.see(counted.format("[data-key=tab-control] .count")) == "13"
    shown = command(server, "inbox")
    assert "failed" not in shown.stdout, shown.stdout
    assert not browser.complaints()


def test_home_shows_what_holds_up_most_first_with_its_changes_and_the_saved_views(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    slug = ask(server, folder)
    agent(server, folder, "Ann", [sys.executable, "-c", ASKER.replace("Ada", "Ann")])
    log_in(server, browser)
    browser.open(f"{server.url}/", width=1440)
    becomes(browser, "document.querySelectorAll('.question').length", 1)
    with server.line() as line:
        said = {"project_key": str(folder), "sender_name": "Bo", "body_md": "up", "to": ["Ann"]}
        line.tool("send_message", **said, subject="Wall")
        becomes(browser, "document.querySelectorAll('.question').length", 2)
        for subject in ("Roof", "Gate"):
            line.tool("send_message", **said, subject=subject)
    heads = "[...document.querySelectorAll('.question header')].map((one) => one.innerText).join('|')"
    soon(
        lambda: str(browser.see(heads)).startswith("An") and "holds up 2 messages" in str(browser.see(heads))
    )
    assert str(browser.see(heads)).count("holds up") == 1
    assert examined(browser, axe) == []
    browser.events.clear()
    browser.see(f"{button('See what changed', '.question')}.click()")
    browser.wait_for("Page.loadEventFired")
    assert "not in a Git repository" in str(
        browser.see("document.querySelector('#changes').parentElement.innerText")
    )
    browser.open(f"{server.url}/", width=1440)
    browser.events.clear()
    browser.see(f"{button('See what changed', '.since')}.click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("location.pathname") == f"/p/{slug}/digest"
    browser.open(f"{server.url}/p/{slug}/runs?state=failed&since=day", width=1440)
    fill(browser, "#views input", "Failed today")
    browser.see("document.querySelector('#views form button').click()")
    browser.open(f"{server.url}/", width=1440)
    assert browser.see("[...document.querySelectorAll('#saved li > *')].map((one) => one.innerText)") == [
        "Failed today",
        slug,
    ]
    assert browser.see("document.documentElement.scrollWidth <= innerWidth")
    assert examined(browser, axe) == []
    browser.events.clear()
    browser.see("document.querySelector('#saved a').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("location.pathname + location.search") == f"/p/{slug}/runs?state=failed&since=day"
    assert not browser.complaints()


def test_a_finished_task_is_judged_on_home_and_enter_judges_nothing(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with server.line() as line:
        line.crew(str(folder), "Bo")
        line.order("PUT", "/admin/people", {"name": "lena"})
        bo = {"project_key": str(folder), "agent_name": "Bo"}
        for number in (1, 2):
            line.tool("add_task", **bo, title=f"Mend fence {number}", acceptance="person")
            line.tool("claim_task", **bo, task_id=number)
            line.tool("done_task", **bo, task_id=number, epoch=1, message="It holds.", commit="4f2a1c9")
    log_in(server, browser)
    for width in (390, 1440):
        browser.open(f"{server.url}/", width=width)
        assert examined(browser, axe) == []
        assert browser.see("document.documentElement.scrollWidth <= innerWidth")
    assert browser.see("document.title") == "(2) postroom"
    row = "[data-key=task-{}]"
    assert "Done by Bo: It holds. 4f2a1c9" in str(
        browser.see(f"document.querySelector('{row.format(1)}').innerText")
    )
    fill(browser, f"{row.format(1)} [name=name]", "lena")
    fill(browser, f"{row.format(1)} [name=why]", "The gate is open")
    browser.press("Enter", 13)
    browser.events.clear()
    browser.see(f"document.querySelector('{row.format(1)} button[value=reject]').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("(location.pathname + location.search).split('&')[0]") == "/?done=rejected"
    assert "The task was rejected." in str(browser.see("document.querySelector('.note').innerText"))
    assert browser.see(f"document.querySelector('{row.format(2)} [name=name]').value") == "lena"
    browser.events.clear()
    browser.see(f"document.querySelector('{row.format(2)} button[value=accept]').click()")
    browser.wait_for("Page.loadEventFired")
    assert "The task was accepted." in str(browser.see("document.querySelector('.note').innerText"))
    assert browser.see("document.title") == "postroom"
    with server.line() as line:
        tasks = line.tool("list_tasks", project_key=str(folder), state="done")["tasks"]
        assert [one["id"] for one in tasks] == [2]
        [ready] = line.tool("list_tasks", project_key=str(folder), state="ready")["tasks"]
        assert ready["reason"] == "The gate is open"
    assert not browser.complaints()


def test_a_question_outside_a_run_says_so_and_neighbouring_runs_are_linked_only_if_they_exist(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    slug = ask(server, folder)
    with server.line() as line:
        bo = {"project_key": str(folder), "agent_name": "Bo"}
        line.tool("ask_person", **bo, question="Which lamp is for the yard?")
        said = {"project_key": str(folder), "sender_name": "Bo", "body_md": "up", "to": ["Fay"]}

        def failed() -> list[str]:
            return [
                run
                for one in line.request("GET", "/admin/runs/failed").json()["failed"]
                for run in one["run_ids"]
            ]

        for number, subject in enumerate(("Roof", "Gate", "Wall"), start=1):
            line.tool("send_message", **said, subject=subject)
            soon(lambda number=number: len(failed()) == number, failed)
        newest, middle, oldest = failed()
        questions = line.request("GET", "/admin/questions").json()["questions"]
    [outside] = [one for one in questions if one["agent"] == "Bo"]
    log_in(server, browser)
    runs = f"{server.url}/p/{slug}/runs"
    browser.open(f"{runs}/{outside['run_id']}", width=1440)
    shown = str(browser.see("document.querySelector('main').innerText"))
    assert "Question of Bo" in shown
    assert "Asked outside a run by Bo" in shown
    assert "postroom starts nothing, and mails the answer to Bo." in shown
    assert ("Not started" in shown, "What changed" in shown, "previous run" in shown) == (False, False, False)
    assert examined(browser, axe) == []
    links = "[...document.querySelectorAll('.run-facts a')].map((one) => one.innerText).filter((one) => one.includes('run'))"
    for run, wanted in (
        (oldest, ["next run ▸"]),
        (middle, ["◂ previous run", "next run ▸"]),
        (newest, ["◂ previous run"]),
    ):
        browser.open(f"{runs}/{run}", width=1440)
        assert browser.see(links) == wanted, run
    browser.events.clear()
    browser.see(f"{button('◂ previous run')}.click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.see("location.pathname") == f"/p/{slug}/runs/{middle}"
    assert not browser.complaints()
