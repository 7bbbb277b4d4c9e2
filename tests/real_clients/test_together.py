"""Claude Code and Codex work on one repository through postroom, and a person on the pages sees it and decides."""

import threading
from pathlib import Path
from typing import Any

import pytest

from e2e.browser import Browser
from e2e.test_work_in_a_browser import fill, log_in, press, sees
from real_clients.asked import Asked, CallTool, Say, Step
from real_clients.clients import CLIENTS
from real_clients.home import PATIENCE, PROXIES, Home
from real_clients.model_server import ModelServer
from real_clients.test_setup import trust_hooks

pytestmark = pytest.mark.timeout(300)
PATCH = "*** Begin Patch\n*** Update File: quay.txt\n@@\n-{old}\n+{new}\n*** End Patch\n"
FIRST, SECOND, THIRD = "one boat", "one boat at a mended quay", "one boat at a mended quay with lanterns"
TASK = "Mend the quay, and have Bo hang the lanterns."
ERRAND = "Hang the lanterns on the quay, please: quay.txt."
QUESTION = "May the lanterns burn all night?"
SHOWN = {
    "timeline": "Ada held quay.txt exclusively",
    "threads": "The quay is mended; Bo hangs the lanterns.",
    "questions": "they are pretty",
    "runs": "No open runs",
}
"""The final content of each page."""


class Crew:
    """The acts of the two models: Ada is Claude Code's, Bo is Codex's."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._was_refused = threading.Event()
        self.refusals: list[str] = []

    def __call__(self, asked: Asked) -> Step:
        return self._ada(asked) if asked.wire == "anthropic" else self._bo(asked)

    def _ada(self, asked: Asked) -> Step:
        """Reserve the file, change it, write to Bo; keep it until Bo has run into it."""
        if TASK not in asked.text:
            return Say("I have read it.")
        quay = {"file_path": str(self._project / "quay.txt")}
        steps = (
            self._ours("file_reservation_paths", agent_name="Ada", paths=["quay.txt"], reason="mending it"),
            CallTool("Read", quay),
            CallTool("Edit", {**quay, "old_string": FIRST, "new_string": SECOND}),
            self._ours("send_message", sender_name="Ada", to=["Bo"], subject="Lanterns", body_md=ERRAND),
        )
        if len(asked.returned) < len(steps):
            return steps[len(asked.returned)]
        assert self._was_refused.wait(PATIENCE), "Bo never tried to change the file"
        return Say("The quay is mended; Bo hangs the lanterns.")

    def _bo(self, asked: Asked) -> Step:
        """Change the file, which Ada holds; ask a person; with the answer change it again."""
        change = CallTool("apply_patch", {"input": PATCH.format(old=SECOND, new=THIRD)})
        search = CallTool("tool_search", {"query": "ask_person postroom", "limit": 100})
        last = asked.returned[-1] if asked.returned else ""
        if "The answer is" in asked.new_text:
            return change
        if "The answer is" in asked.text:
            assert "A quay.txt" in last or "Success" in last, last
            return Say("The lanterns hang, and burn all night.")
        if not asked.returned:
            return change
        if not self.refusals:
            self.refusals.append(last)
            self._was_refused.set()
            return search
        if asked.tool("ask_person") is None or "question_id" not in last:
            return self._ours("ask_person", agent_name="Bo", question=QUESTION)
        return Say("Ada holds the file; I have asked about the nights meanwhile.")

    def _ours(self, name: str, **arguments: Any) -> CallTool:
        return CallTool(name, {"project_key": str(self._project), **arguments})


def test_claude_and_codex_mend_one_quay_and_a_person_decides_on_the_page(
    home: Home, model: ModelServer, browser: Browser
) -> None:
    crew = model.script = Crew(home.project)
    home.must("git", "add", "--all")
    home.must("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "Quay")
    workers = (("Ada", CLIENTS["claude"]), ("Bo", CLIENTS["codex"]))
    for _, client in workers:
        client.prepare(home)  # the server passes on what it was itself started with
    with home.server as server:
        for name, client in workers:
            home.postroom("setup", client.setup)
            home.postroom("agents", "register", name)
            passed = [word for one in (*client.pass_env, *PROXIES) for word in ("--pass-env", one)]
            home.postroom("agents", "set-runner", name, *client.runner, "--resume", *passed)
        trust_hooks(home)
        with server.line() as line:
            pages = f"{server.url}/p/{line.tool('ensure_project', human_key=str(home.project))['slug']}"
        log_in(server, browser)
        _writes_to_ada(browser, pages)
        _seen(browser, f"{pages}/questions", QUESTION, model)
        assert "Ada" in crew.refusals[0], crew.refusals
        _seen(browser, f"{server.url}/p/postroom-people/agents/Cleo?box=inbox", "The quay is mended", model)
        assert (home.project / "quay.txt").read_text() == f"{SECOND}\n"
        browser.open(f"{pages}/questions")
        fill(browser, "input[name=why]", "they are pretty")
        press(browser, "button[value=yes]")
        _seen(browser, f"{pages}/threads", "The lanterns hang, and burn all night.", model)
        assert (home.project / "quay.txt").read_text() == f"{THIRD}\n"
        for page, words in SHOWN.items():
            _seen(browser, f"{pages}/{page}", words, model)
        assert not browser.complaints()
    changed = home.must("git", "diff", "--unified=0").out
    assert f"-{FIRST}\n+{THIRD}" in changed, changed
    assert not model.failures, model.story()


def _writes_to_ada(browser: Browser, pages: str) -> None:
    browser.open(f"{pages}/write")
    fill(browser, "input[name=name]", "Cleo")
    press(browser, "button[value=name]")
    browser.see("document.querySelector('input[name=to][value=Ada]').click()")
    fill(browser, "input[name=subject]", "The quay")
    fill(browser, "textarea", TASK)
    press(browser, ".write .choices button")
    sent = str(browser.see("document.querySelector('main').textContent"))
    assert "Sent." in sent, sent


def _seen(browser: Browser, address: str, words: str, model: ModelServer) -> None:
    try:
        sees(browser, address, words)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{model.story()}") from None
