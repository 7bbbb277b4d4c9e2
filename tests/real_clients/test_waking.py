"""A person's own session of a real client that is idle begins a turn when mail comes for it."""

import json
import threading
import time

import psutil
import pytest

from real_clients.asked import Say
from real_clients.bench import Bench
from real_clients.home import PATIENCE
from real_clients.terminal import at_a_terminal

WAKE = "postroom watch --as Bo --wake --after 0"
TOLD = "A message from Ada came for Bo"


def _waits_for_mail(bench: Bench) -> None:
    """Make it wait for mail after the start and after each turn."""
    hook = {"type": "command", "command": WAKE, "async": True, "asyncRewake": True, "timeout": 86_400}
    group = [{"hooks": [hook]}]
    settings = {"hooks": {"SessionStart": group, "Stop": group}}
    bench.home.write("harbour/.claude/settings.json", json.dumps(settings))


@pytest.mark.parametrize("client", ["claude"])
def test_an_idle_session_of_claude_begins_a_turn_for_each_message(client: str, bench: Bench) -> None:
    home = bench.home
    words = bench.client.person(home)
    _waits_for_mail(bench)
    home.postroom("agents", "register", "Ada")
    home.postroom("agents", "register", "Bo")
    bench.model.script = lambda _asked: Say("I have seen it.")
    with at_a_terminal(home, words):
        for number in (1, 2):
            home.postroom("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "Quay", f"Message {number}.")
            bench.model.wait_for(lambda one, n=number: not one.is_aside and one.text.count(TOLD) == n)
    assert max(one.text.count(TOLD) for one in bench.model.conversation) == 2


@pytest.mark.parametrize("client", ["claude"])
def test_what_waits_for_mail_ends_when_claude_is_killed(client: str, bench: Bench) -> None:
    home = bench.home
    words = bench.client.person(home)
    _waits_for_mail(bench)
    home.postroom("agents", "register", "Bo")
    with at_a_terminal(home, words):
        watcher = _watcher(bench)
    # Claude was killed and told its hooks nothing: the watcher sees by itself that nobody reads it any more.
    watcher.wait(PATIENCE)


def _watcher(bench: Bench) -> psutil.Process:
    """Return what waits for mail in this home, when it holds its place; fail after a bound."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for kept in (bench.home.path / ".local").rglob("wake-*"):
            for process in psutil.process_iter(["cmdline"]):
                words = process.info["cmdline"] or []
                if "--wake" in words and str(kept) in {one.path for one in process.open_files()}:
                    return process
        threading.Event().wait(0.2)
    raise AssertionError("nothing waits for mail")
