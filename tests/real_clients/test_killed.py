"""A kill leaves no process: a killed server no working client, a killed client no watch."""

import pytest

from real_clients.asked import CallTool, Say
from real_clients.bench import Bench
from real_clients.terminal import at_a_terminal


@pytest.mark.parametrize("client", ["opencode"])
def test_no_opencode_works_on_when_the_server_is_killed(bench: Bench) -> None:
    bench.set_up()
    bench.team()
    bench.employ("Bo")
    bench.model.script = lambda _asked: CallTool("bash", {"command": "sleep 600", "description": "wait"})
    bench.send("Ada", "Bo", "Quay", "Look at the quay.")
    bench.model.wait_for(lambda one: not one.is_aside and "Look at the quay." in one.text)
    [run] = [one for one in bench.runs() if one["agent"] == "Bo"]
    bench.home.server.kill()
    bench.home.await_end_of(f"POSTROOM_RUN={run['run_id']}")


@pytest.mark.parametrize("client", ["opencode"])
def test_nothing_waits_for_mail_any_more_when_opencode_is_killed(bench: Bench) -> None:
    words = bench.client.person(bench.home)
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")
    bench.model.script = lambda _asked: Say("I have seen it.")
    with at_a_terminal(bench.home, words) as terminal:
        terminal.type("Good morning.", behind=bench.client.drawn)
        bench.send("Ada", "Bo", "Quay", "A boat.")
        bench.model.wait_for(lambda one: not one.is_aside and "A message from Ada came for Bo" in one.text)
    bench.home.await_end_of("POSTROOM_AGENT=Bo")
