"""A person works on the pages of a real server in a real browser, with the keyboard and without a script."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e.browser import Browser, log_in
from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment, soon
from e2e.test_accessibility import axe, examined

pytestmark = pytest.mark.long

__all__ = ["axe"]

T = TypeVar("T")

ASKER = """
import os, sys
from postroom.cli.client import Server

if "You asked a person" in sys.stdin.read():
    print("It is gone.")
else:
    asked = {"project_key": os.getcwd(), "agent_name": "Ada"}
    Server.find().call_tool("ask_person", {**asked, "question": "May I delete the branch?"})
    print("It is merged.")
"""
SLOW = 'cat > /dev/null; echo "I have begun"; exec sleep 300'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def agent(server: RunningServer, folder: Path, name: str, argv: list[str]) -> None:
    with server.line() as line:
        line.tool("register_agent", project_key=str(folder), name=name, program="script", model="none")
        environment = {"POSTROOM_DATA_DIR": str(server.data_dir)}
        runner = {"argv": argv, "env": environment}
        told = json.dumps({"project": str(folder), "agent": name, "runner": runner}).encode()
        put = line.request("PUT", "/admin/runners", body=told, headers={"Content-Type": "application/json"})
        assert put.status == 200, put.text


def command(server: RunningServer, *said: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the server."""
    environment = plain_environment(server.data_dir.parent)
    return run_here(*said, "--data-dir", str(server.data_dir), environment=environment)


def sees(browser: Browser, address: str, words: str) -> None:
    """Load a page until it shows some words, within a bound."""

    def shown() -> str:
        browser.open(address, width=390)
        return str(browser.see("document.querySelector('main').textContent"))

    soon(lambda: words in shown(), shown)


def press(browser: Browser, selector: str) -> None:
    """Press a button with the keyboard and wait for the page that comes."""
    browser.see(f"document.querySelector({selector!r}).focus()")
    assert browser.see(f"document.activeElement === document.querySelector({selector!r})") is True
    browser.events.clear()
    browser.press("Enter", 13)
    browser.wait_for("Page.loadEventFired")


def fill(browser: Browser, selector: str, text: str) -> None:
    """Replace the content of a field, such as a name that the browser remembers."""
    browser.see(f"document.querySelector({selector!r}).focus()")
    browser.see(f"document.querySelector({selector!r}).select()")
    browser.ask("Input.insertText", text=text)


def enter_sends_nothing(browser: Browser, selector: str, text: str) -> None:
    """Press Enter in a field of a form with two opposite buttons, and see that the form is not sent."""
    browser.see("window.sent = 0; addEventListener('submit', () => { window.sent += 1 })")
    fill(browser, selector, text)
    browser.press("Enter", 13)
    assert browser.see("window.sent") == 0


def test_a_person_writes_answers_and_cancels_without_a_script(
    server: RunningServer, browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with server.line() as line:
        slug = line.tool("ensure_project", human_key=str(folder))["slug"]
    agent(server, folder, "Ada", [sys.executable, "-c", ASKER])
    agent(server, folder, "Bo", ["sh", "-c", SLOW])
    log_in(server, browser)
    home = f"{server.url}/p/{slug}"
    browser.open(f"{home}/write", width=390)
    fill(browser, "input[name=name]", "Ana")
    press(browser, "button[value=name]")
    browser.see("document.querySelectorAll('input[name=to]').forEach(one => one.click())")
    fill(browser, "input[name=subject]", "The branch")
    fill(browser, "textarea", "Please tidy up.")
    press(browser, ".write .choices button")
    assert "Sent." in str(browser.see("document.querySelector('main').textContent"))
    assert "wake by runner" in str(browser.see("document.querySelector('main').textContent"))
    sees(browser, f"{home}/questions", "May I delete the branch?")
    assert browser.see("document.querySelector('input[name=by]').value") == "Ana"
    for page in (home, f"{home}/questions"):
        sees(browser, page, "May I delete the branch?")
        enter_sends_nothing(browser, "input[name=why]", "NO! Not before the backup is done")
    enter_sends_nothing(browser, "input[name=by]", "Ana")
    fill(browser, "input[name=why]", "it is merged")
    press(browser, "button[value=yes]")
    assert "Answered with yes" in str(browser.see("document.querySelector('[role=status]').textContent"))
    sees(browser, f"{home}/threads", "It is gone.")
    sees(browser, f"{home}/runs", "active")
    run = str(browser.see("document.querySelector('.row.run, .row h3 a').href"))
    sees(browser, run, "I have begun")
    press(browser, "button[value=cancel]")
    sees(browser, run, "cancelled")
    sees(
        browser,
        f"{server.url}/p/postroom-people/agents/Ana?box=inbox",
        "Bo could not process your message: cancelled",
    )
    assert not browser.complaints()
    assert "Traceback" not in server.log()


def test_what_comes_back_from_a_form_reads_well_too(
    server: RunningServer, browser: Browser, axe: str, tmp_path: Path
) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with server.line() as line:
        slug = line.tool("ensure_project", human_key=str(folder))["slug"]
    agent(server, folder, "Ada", [sys.executable, "-c", ASKER])
    log_in(server, browser)
    home = f"{server.url}/p/{slug}"

    def reads_well(words: str) -> None:
        assert words in str(browser.see("document.querySelector('main').textContent"))
        assert examined(browser, axe) == [], words

    browser.open(f"{home}/write", width=390)
    reads_well("Who are you?")
    fill(browser, "input[name=name]", "Ana")
    press(browser, "button[value=name]")
    fill(browser, "input[name=others]", "Nobody-here")
    fill(browser, "input[name=subject]", "The branch")
    fill(browser, "textarea", "Please tidy up.")
    press(browser, ".write .choices button")
    reads_well("Not sent.")
    fill(browser, "input[name=others]", "Ada")
    press(browser, ".write .choices button")
    reads_well("Answers arrive in your messages")
    sees(browser, f"{home}/questions", "May I delete the branch?")
    number = browser.see("document.querySelector('input[name=number]').value")
    told = json.dumps({"number": number, "answer": "no"}).encode()
    with server.line() as line:
        typed = {"Content-Type": "application/json"}
        assert line.request("POST", "/admin/questions", body=told, headers=typed).status == 200
    press(browser, "button[value=yes]")
    reads_well("This question was answered already")
    sees(browser, f"{server.url}/p/postroom-people/agents/Ana", "It is gone.")
    browser.open(str(browser.see("document.querySelector('.row h3 a').href")), width=390)
    reads_well("Mark as read")
    press(browser, "button[value=read]")
    reads_well("read just now")


def test_the_command_line_sees_and_does_the_same(server: RunningServer, tmp_path: Path) -> None:
    folder = tmp_path / "yard"
    folder.mkdir()
    with server.line() as line:
        line.tool("ensure_project", human_key=str(folder))
    agent(server, folder, "Ada", ["sh", "-c", SLOW])
    agent(server, folder, "Cy", ["sh", "-c", "cat > /dev/null; echo 'no such branch' >&2; exit 3"])

    def runs(*said: str) -> Any:
        told = command(server, "runs", *said, "--json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    def until(state: str, name: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            listed = runs("list", "--project", str(folder))["runs"]
            return next((one for one in listed if (one["state"], one["agent"]) == (state, name)), None)

        return soon(found)

    with server.line() as line:
        written = {"project_key": str(folder), "sender_name": "Cy", "body_md": "x", "subject": "x"}
        line.tool("send_message", to=["Ada"], **written)
        line.tool("send_message", to=["Cy"], **{**written, "sender_name": "Ada"})
    slow, failed = until("at work", "Ada"), until("failed", "Cy")
    assert "I have begun" in soon(lambda: runs("show", slow["run_id"])["output"])
    assert "no such branch" in runs("why", failed["run_id"])["why"]
    again = runs("replay", failed["dispatch_id"])
    assert again["parent_run_id"] == failed["run_id"]
    runs("cancel", slow["run_id"])
    assert until("cancelled", "Ada")["run_id"] == slow["run_id"]
    table = command(server, "runs", "list")
    assert "cancelled" in table.stdout
    unknown = command(server, "runs", "show", "none")
    assert (unknown.returncode, "there is no run 'none'" in unknown.stderr) == (2, True)
    assert soon(lambda: runs("dead")["dead"])[0]["run_id"] == again["run_id"]
    seen = command(server, "runs", "overview", "--project", str(folder))
    assert f"\n  {again['run_id']}  Cy: command failed" in seen.stdout.partition("FAILED")[2], seen.stdout
    assert runs("discard", again["run_id"][:24]) == {"discarded": [again["run_id"]]}
    for listed in (runs("dead")["dead"], runs("overview", "--project", str(folder))["given_up"]):
        assert again["run_id"] not in [one["run_id"] for one in listed]
    late = command(server, "runs", "hasten", again["run_id"])
    assert (late.returncode, "is not waiting for its next attempt" in late.stderr) == (2, True), late.stderr
