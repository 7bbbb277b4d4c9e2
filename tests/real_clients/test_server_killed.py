"""A server that is killed leaves no client behind that works on."""

import pytest

from real_clients.asked import CallTool
from real_clients.bench import Bench


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
