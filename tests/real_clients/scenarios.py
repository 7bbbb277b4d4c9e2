"""What is tried with every client. A scenario fails, or returns what stands in the table's cell beside `yes`."""

from collections.abc import Callable

from real_clients.asked import Say
from real_clients.bench import Bench

Scenario = Callable[[Bench], str]


def configuration_accepted(bench: Bench) -> str:
    """The client itself names our server as one that it uses."""
    bench.set_up()
    told = bench.home.must(*bench.client.servers())
    assert bench.client.accepts(told.text), bench.tell(told)
    return ""


def tools_offered(bench: Bench) -> str:
    """Our tools stand in the client's request to its model; the cell says how many."""
    bench.set_up()
    done = bench.turn("Which tools are there?", Say("Many."))
    offered = bench.model.conversation[0].ours
    assert offered, bench.tell(done)
    assert {"send_message", "fetch_inbox"} <= set(offered), offered
    return f"{len(offered)} tools"


def session_resumed(bench: Bench) -> str:
    """A second turn in the session that the first one named has the first in its conversation."""
    bench.set_up()
    first = bench.turn("The boat is called Albatross.", Say("I know it now."))
    session = bench.client.session(first)
    second = bench.turn("What is it called?", Say("Albatross."), session=session)
    assert bench.client.session(second) == session
    asked = bench.model.conversation[-1].text
    for said in ("The boat is called Albatross.", "I know it now.", "What is it called?"):
        assert said in asked, bench.tell(second)
    assert bench.client.answer(second) == "Albatross."
    return ""


SCENARIOS: dict[str, Scenario] = {
    one.__name__: one for one in (configuration_accepted, tools_offered, session_resumed)
}
