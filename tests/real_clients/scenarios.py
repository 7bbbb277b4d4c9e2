"""What is tried with every client. A scenario fails, or returns what stands in the table's cell beside `yes`."""

from collections.abc import Callable

from postroom.mail.operations import OPERATIONS
from postroom.mcp_server.profiles import CORE
from real_clients.asked import Say
from real_clients.bench import Bench
from real_clients.tokens import tokens_of

Scenario = Callable[[Bench], str]


def configuration_accepted(bench: Bench) -> str:
    """The client itself names our server as one that it uses."""
    bench.set_up()
    told = bench.home.must(*bench.client.servers())
    assert bench.client.accepts(told.text), bench.tell(told)
    return ""


def tools_offered(bench: Bench) -> str:
    """Our tools stand in the client's request to its model, with our words; the cell says how many, and their cost."""
    bench.set_up()
    done = bench.turn("Which tools are there?", Say("Some."))
    asked = bench.model.conversation[0]
    assert asked.ours == tuple(sorted(CORE)), bench.tell(done)
    offered = [tool for name in CORE if (tool := asked.tool(name)) is not None]
    for name, tool in zip(CORE, offered, strict=True):
        assert OPERATIONS[name].description in tool.description, tool
        assert set(tool.schema["properties"]) == set(OPERATIONS[name].command.__struct_fields__), tool
    return f"{len(offered)} tools, about {round(tokens_of(offered), -2):,} tokens"


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
