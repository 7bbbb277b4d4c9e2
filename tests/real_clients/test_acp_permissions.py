"""A permission that a real ACP agent asks for stays open through a kill of the server, and is answered once.

Five messages of three senders arrive during it: each of the six has a separate answer.
"""

import json
import re
from functools import partial

import pytest

from e2e.running import soon
from real_clients.asked import Asked, CallTool, Say, Script, Step
from real_clients.bench import Bench
from real_clients.home import Home

pytestmark = pytest.mark.timeout(240)


GREETING = re.compile(r"Greet(\d)\.")


def asks_once(call: CallTool) -> Script:
    """Return a script that makes a call for the task, and greets the named agent."""

    def script(asked: Asked) -> Step:
        said = asked.new_text
        if "Dig." in said or "The answer is yes." in said:
            return call
        if greetings := GREETING.findall(said):
            return Say(f"Good day{greetings[-1]}.")
        return Say("It was dug.")

    return script


@pytest.mark.parametrize(("client", "call"), [
    ("codex", CallTool("exec_command", {"cmd": "touch dug.txt"})),
    ("claude", CallTool("Bash", {"command": "touch dug.txt", "description": "Dig"})),
    ("opencode", CallTool("bash", {"command": "touch dug.txt", "description": "Dig"})),
    ("gemini", CallTool("run_shell_command", {"command": "touch dug.txt", "description": "Dig"})),
])  # fmt: skip
def test_six_messages_around_a_permission_are_six_answers(client: str, call: CallTool, bench: Bench) -> None:
    home, project = bench.home, str(bench.home.project)
    _have_it_ask(client, home)
    bench.model.script = asks_once(call)
    bench.team()
    for name in ("Cyd", "Dan"):
        bench.call("register_agent", name=name, program="test", model="none")
    runner = {"kind": "acp", "recipe": client, "pass_env": list(bench.client.pass_env)}
    _posted(bench, "PUT", "/admin/runners", {"project": project, "agent": "Bo", "runner": runner})
    bench.send("Ada", "Bo", "Quay", "Dig.", thread_id="dig")
    [question] = soon(lambda: _questions(bench))
    greeters = ("Cyd", "Dan", "Ada", "Cyd", "Dan")
    for number, sender in enumerate(greeters):
        bench.send(sender, "Bo", "Quay", f"Greet{number}.", thread_id=f"greet{number}")
    home.server.kill()
    home.server.start()
    assert [one["number"] for one in _questions(bench)] == [question["number"]]
    _posted(bench, "POST", "/admin/questions", {"number": question["number"], "answer": "yes"})
    soon(lambda: _answers(bench, "Ada")["dig"][1:])
    for number, sender in enumerate(greeters):  # between two runs none is at work
        soon(partial(_answered, bench, sender, f"greet{number}"))
    soon(lambda: not [run for run in bench.runs() if not run["finished_at"]])
    assert _questions(bench) == []
    told = {one: _answers(bench, one) for one in ("Ada", "Cyd", "Dan")}
    story = f"{told}\n{bench.model.story()}"
    assert [told["Ada"]["dig"][-1]] == ["It was dug."], story
    greeted = {
        name: {thread: texts for thread, texts in threads.items() if thread != "dig"}
        for name, threads in told.items()
    }
    assert greeted == {
        "Ada": {"greet2": ["Good day2."]},
        "Cyd": {"greet0": ["Good day0."], "greet3": ["Good day3."]},
        "Dan": {"greet1": ["Good day1."], "greet4": ["Good day4."]},
    }, story
    assert len(told["Ada"]["dig"]) == 2, story  # what it asks, and the answer
    assert (home.project / "dug.txt").exists()


def _have_it_ask(client: str, home: Home) -> None:
    """Have a client ask before it runs a command; Gemini CLI does so by itself."""
    if client == "claude":  # its newest release decides by itself, in its auto mode
        home.write(".claude/settings.json", json.dumps({"permissions": {"defaultMode": "default"}}))
    if client == "codex":
        config = home.path / ".codex" / "config.toml"
        config.write_text(f'approval_policy = "untrusted"\n{config.read_text()}')
    if client == "opencode":
        config = home.path / ".config" / "opencode" / "opencode.json"
        settings = json.loads(config.read_text())
        config.write_text(json.dumps({**settings, "permission": {"bash": "ask"}}))


def _questions(bench: Bench) -> list[dict[str, str]]:
    with bench.home.server.line() as line:
        found: list[dict[str, str]] = line.request("GET", "/admin/questions").json()["questions"]
    return found


def _answers(bench: Bench, name: str) -> dict[str, list[str]]:
    """Return the last line of what came for an agent, by thread: Codex puts a warning about its model before it."""
    found: dict[str, list[str]] = {}
    for one in bench.call("fetch_inbox", agent_name=name, after=0):
        found.setdefault(one["thread_id"], []).append(one["body_md"].splitlines()[-1])
    return found


def _answered(bench: Bench, name: str, thread: str) -> bool:
    return thread in _answers(bench, name)


def _posted(bench: Bench, method: str, path: str, document: object) -> None:
    body, typed = json.dumps(document).encode(), {"Content-Type": "application/json"}
    with bench.home.server.line() as line:
        answer = line.request(method, path, body=body, headers=typed)
    assert answer.status == 200, answer.text
