"""A message that comes while a real client works on a run of ours is in its model's next request, and answered."""

import subprocess
import threading
from collections.abc import Mapping

import pytest

from real_clients.asked import Asked, CallTool, Say, Step
from real_clients.bench import Bench
from real_clients.home import PATIENCE

SHELL: Mapping[str, CallTool] = {
    "claude": CallTool("Bash", {"command": "true", "description": "wait"}),
    "codex": CallTool("exec_command", {"cmd": "true"}),
    "opencode": CallTool("bash", {"command": "true", "description": "wait"}),
}
FIRST, SECOND = "Look at the quay.", "And count the gulls."
GULLS = {"sender_name": "Bo", "to": ["Cy"], "subject": "Gulls", "body_md": "There are four."}
MOST_STEPS = 200


def woken(bench: Bench) -> None:
    """Have an agent whose runner is the client, which is set up, and one that writes to it."""
    bench.set_up()
    home, name = bench.home, bench.client.name
    passed = [word for variable in bench.client.pass_env for word in ("--pass-env", variable)]
    home.postroom("agents", "register", "Ada")
    home.postroom("agents", "register", "Bo")
    home.postroom("agents", "register", "Cy")
    home.postroom("agents", "set-runner", "Bo", "--recipe", name, "--resume", *passed)


def first_answer(bench: Bench) -> None:
    """Wait until there is a message for Ada."""
    words = ("postroom", "watch", "--as", "Ada", "--after", "0", "--json")
    home = bench.home
    with subprocess.Popen(words, cwd=home.project, env=home.environment, stdout=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        ended = threading.Timer(PATIENCE, watch.terminate)
        ended.start()
        line = watch.stdout.readline()
        ended.cancel()
        watch.terminate()
    assert line, bench.model.story()


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_a_second_message_reaches_the_model_in_the_middle_of_a_turn_and_both_are_answered(
    client: str, bench: Bench
) -> None:
    steps, told = list[int](), list[int]()

    def script(asked: Asked) -> Step:
        steps.append(len(asked.turns))
        if told or len(steps) > MOST_STEPS:
            return Say("One boat, and four gulls.")
        if SECOND in asked.text:
            told.append(len(steps))
            return CallTool("send_message", {"project_key": str(bench.home.project), **GULLS})
        if len(steps) == 1:
            bench.home.postroom(
                "mail", "send", "--as", "Ada", "--to", "Bo", "-s", "Quay", "--thread", "quay", SECOND
            )
        return SHELL[client]

    woken(bench)
    bench.model.script = script
    bench.home.postroom("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "Quay", "--thread", "quay", FIRST)
    asked = bench.model.wait_for(lambda one: not one.is_aside and SECOND in one.text)
    assert FIRST in asked.text, bench.model.story()
    assert asked.text.count(SECOND) == 1
    first_answer(bench)
    gulls = bench.home.postroom("mail", "inbox", "--as", "Cy", "--bodies")["messages"]
    assert [one["body_md"] for one in gulls] == ["There are four."], bench.model.story()
    answers = bench.home.postroom("mail", "inbox", "--as", "Ada", "--bodies")["messages"]
    assert [one["body_md"] for one in answers] == ["One boat, and four gulls."], bench.model.story()
    assert bench.home.postroom("mail", "inbox", "--as", "Bo", "--unread")["messages"] == []


def test_no_opencode_works_on_when_the_server_is_killed(bench: Bench) -> None:
    woken(bench)
    bench.model.script = lambda _asked: CallTool("bash", {"command": "sleep 600", "description": "wait"})
    bench.home.postroom("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "Quay", FIRST)
    bench.model.wait_for(lambda one: not one.is_aside and FIRST in one.text)
    bench.home.server.kill()
    bench.home.await_end_of("POSTROOM_STEERING=")
