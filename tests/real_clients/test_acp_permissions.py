"""A permission that a real ACP agent asks for: it stays open, is answered once, and each sender has their own answer."""

import json

import pytest

from e2e.running import Line
from e2e.test_acp_runners import shown
from real_clients.asked import Asked, CallTool, Say, Script, Step
from real_clients.bench import Bench

pytestmark = pytest.mark.timeout(240)


def asks_once(call: CallTool) -> Script:
    """Return a script that makes a call for the first message, and answers every other at once."""

    def script(asked: Asked) -> Step:
        said = asked.new_text
        if "Dig." in said or "The answer is yes." in said:
            return call
        return Say("It was dug.") if "Dig." in asked.text and "Greet." not in said else Say("Good day.")

    return script


@pytest.mark.parametrize(("client", "call"), [
    ("codex", CallTool("exec_command", {"cmd": "touch dug.txt"})),
    ("claude", CallTool("Bash", {"command": "touch dug.txt", "description": "Dig"})),
])  # fmt: skip
def test_a_permission_stays_open_and_a_yes_is_recognised(client: str, call: CallTool, bench: Bench) -> None:
    project = str(bench.home.project)
    if client == "codex":
        config = bench.home.path / ".codex" / "config.toml"
        config.write_text(f'approval_policy = "untrusted"\n{config.read_text()}')
    bench.model.script = asks_once(call)
    runner = {"kind": "acp", "recipe": client, "pass_env": list(bench.client.pass_env)}
    with bench.home.server.line() as line:

        def send(name: str, text: str) -> None:
            line.tool(
                "send_message", project_key=project, sender_name=name, to=["Bo"], subject="Quay", body_md=text
            )

        def inbox(name: str) -> list[str]:
            found = line.tool("fetch_inbox", project_key=project, agent_name=name, after=0)
            return [one["body_md"] for one in found]

        def questions() -> list[dict[str, str]]:
            found: list[dict[str, str]] = line.request("GET", "/admin/questions").json()["questions"]
            return found

        line.tool("ensure_project", human_key=project)
        for name in ("Ada", "Bo", "Cyd"):
            line.tool("register_agent", project_key=project, name=name, program="test", model="none")
        assert _posted(line, "PUT", "/admin/runners", {"project": project, "agent": "Bo", "runner": runner})
        send("Ada", "Dig.")
        shown(lambda: inbox("Ada"))
        assert len(questions()) == 1, (inbox("Ada"), bench.model.story())
        [question] = questions()
        send("Cyd", "Greet.")
        assert questions() == [question]
        assert _posted(line, "POST", "/admin/questions", {"number": question["number"], "answer": "yes"})
        shown(lambda: inbox("Cyd"))
        assert questions() == [], bench.model.story()
        assert inbox("Ada")[-1].endswith("It was dug."), (inbox("Ada"), bench.model.story())
        [greeted] = inbox("Cyd")
        assert greeted.endswith("Good day."), greeted  # Codex puts a warning about its model before it
    assert (bench.home.project / "dug.txt").exists()


def _posted(line: Line, method: str, path: str, document: object) -> bool:
    body = json.dumps(document).encode()
    return line.request(method, path, body=body, headers={"Content-Type": "application/json"}).status == 200
