"""A person answers in Codex's own window, at a terminal."""

import pytest

from real_clients.asked import CallTool, Say
from real_clients.bench import Bench
from real_clients.terminal import at_a_terminal


@pytest.mark.parametrize("client", ["codex"])
def test_it(client: str, bench: Bench) -> None:
    bench.set_up("--tools", "full")
    bench.team()
    asked = {"project_key": str(bench.home.project), "agent_name": "Ada", "question": "EUR or USD?", "choices": ["EUR", "USD"]}
    bench.model.script = lambda seen: Say("Done.") if seen.returned else CallTool("ask_person", asked)
    words = bench.client.person(bench.home)
    with at_a_terminal(bench.home, words) as terminal:
        terminal.type("Ask.", behind=bench.client.drawn)
        terminal.await_idle()
        print(bench.home.postroom("questions", "list"))
        open("/tmp/b-codex.raw", "wb").write(terminal._drawn)
        print(bench.model.story())
        raise AssertionError("look")
