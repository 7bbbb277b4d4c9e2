"""A message, the run that it begins and the answer are one trace, through restarts and questions too."""

import pytest

from dispatch_room import done
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import PostroomError, Unauthorized
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.mail.context import Caller
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.services.calls import Calls
from tracing_room import CALLER, Watched, code_of, id_of, read_trace
from waking_room import PROJECT, Room, number


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
async def traced(room: Room, watched: Watched):
    """The same room, opened by a process that watches."""
    made = Room(store=room.store, runs=room.runs, clock=room.clock, tracing=watched.tracing)
    yield made
    await made.close()


async def send(room: Room, *to: str, follows: str | None = None, sender: str = "Ada", **more):
    calls = Calls(room.mail, MAIL_OPERATIONS)
    message = {"project_key": PROJECT, "sender_name": sender, "to": list(to), "subject": "s", "body_md": "b"}
    return await calls.perform("send_message", {**message, **more}, caller=Caller(), follows=follows)


async def test_a_message_its_run_and_what_the_answer_begins_are_one_trace(traced, watched):
    await traced.people("Ada", "Bo", runners=("Ada", "Bo"))
    await send(traced, "Bo", follows=CALLER)
    await traced.turn()
    sent, run = watched.span("execute_tool send_message"), watched.span("invoke_agent Bo")
    assert (read_trace(sent), sent["parent_id"]) == ("0x" + "a" * 32, "0x" + "b" * 16)
    assert (read_trace(run), run["parent_id"]) == (read_trace(sent), id_of(sent))
    assert {name: run["attributes"][name] for name in run["attributes"] if name != "postroom.run.id"} == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "postroom",
        "gen_ai.agent.name": "Bo",
        "gen_ai.conversation.id": "agent:projects-shop/Bo",
    }
    assert run["resource"]["attributes"]["service.name"] == "postroom"
    answered = watched.span("invoke_agent Ada")
    assert (read_trace(answered), answered["parent_id"]) == (read_trace(sent), id_of(run))
    assert code_of(run) is None


async def test_what_is_at_work_in_a_run_stands_below_it(traced, watched):
    await traced.people("Ada", "Bo", "Cy", runners=("Bo",))
    told = []

    async def act(activation):
        told.append(traced.tracing.traceparent())
        await send(traced, "Cy", sender="Bo", follows=CALLER)

    traced.agents.act = act
    await send(traced, "Bo")
    await traced.turn()
    run, sent = watched.span("invoke_agent Bo"), watched.span("execute_tool send_message")
    assert (sent["parent_id"], read_trace(sent)) == (id_of(run), read_trace(run))
    assert [one[:-3] for one in told] == [f"00-{read_trace(run)[2:]}-{id_of(run)[2:]}"]
    assert traced.tracing.traceparent() is None


async def test_a_run_of_several_messages_goes_on_from_the_first_and_points_to_the_others(traced, watched):
    await traced.people("Ada", "Bo", runners=("Bo",))
    for _ in range(2):
        await send(traced, "Bo")
    await traced.turn()
    first, second = [span for span in watched.spans() if span["name"] == "execute_tool send_message"]
    runs = [span for span in watched.spans() if span["name"] == "invoke_agent Bo"]
    followed = {span["parent_id"] for span in runs} | {
        link["context"]["span_id"] for span in runs for link in span["links"]
    }
    assert followed == {id_of(first), id_of(second)}


async def test_an_answer_by_hand_is_in_the_trace_of_its_message(traced, watched):
    await traced.people("Ada", "Bo")
    message = number(await send(traced, "Bo"))
    calls = Calls(traced.mail, MAIL_OPERATIONS)
    reply = {"project_key": PROJECT, "sender_name": "Bo", "message_id": message, "body_md": "b"}
    await calls.perform("reply_message", reply, caller=Caller())
    sent, by_itself = watched.span("execute_tool send_message"), watched.span("execute_tool reply_message")
    assert (read_trace(by_itself), by_itself["parent_id"]) == (read_trace(sent), id_of(sent))
    await calls.perform("reply_message", reply, caller=Caller(), follows=CALLER)
    below = watched.span("execute_tool reply_message")
    assert below["parent_id"] == "0x" + "b" * 16
    assert [link["context"]["span_id"] for link in below["links"]] == [id_of(sent)]
    await calls.perform("reply_message", {**reply, "message_id": str(message)}, caller=Caller())
    assert watched.span("execute_tool reply_message")["parent_id"] == id_of(sent)
    for odd in (True, 10**30, -1, "¹", "9" * 5000, None, [message, message]):
        with pytest.raises(PostroomError):
            await calls.perform("reply_message", {**reply, "message_id": odd}, caller=Caller())
        assert watched.span("execute_tool reply_message")["parent_id"] is None


async def test_a_run_that_failed_is_a_failed_span_and_says_no_more_than_its_code(traced, watched):
    await traced.people("Ada", "Bo", runners=("Bo",))
    acts = [Unauthorized("the hidden word"), None]

    async def act(activation):
        if (raised := acts.pop(0)) is not None:
            raise raised
        return replace(done(activation, "no"), termination=TerminationReason.error("the hidden word"))

    traced.agents.act = act
    for code in ("unauthorized", "error"):
        await send(traced, "Bo")
        await traced.turn()
        assert code_of(watched.span("invoke_agent Bo")) == code
    assert "hidden" not in str(watched.spans())


async def test_a_run_that_asked_goes_on_in_its_trace(traced, watched):
    await traced.people("Ada", "Bo", runners=("Bo",))

    async def act(activation):
        if activation.decisions:
            return done(activation, "went on")
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        await traced.mail.call("ask_person", {**asked, "question": "May I?"})
        return done(activation, "I wait.")

    traced.agents.act = act
    await send(traced, "Bo")
    await traced.turn()
    first = watched.span("invoke_agent Bo")
    [run] = await traced.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    told = ToolCallResume(decision_id="page/1", result={"approved": True}, by="Ana")
    decided = [(run.open_tickets[0].tool_call_id, told)]
    await traced.mailbox.submit_background(
        RunActivation.new(run.thread_id, [], continue_run_id=run.run_id, decisions=decided)
    )
    await traced.turn()
    again = watched.span("invoke_agent Bo")
    assert again["attributes"]["postroom.run.id"] == first["attributes"]["postroom.run.id"]
    assert (read_trace(again), again["parent_id"]) == (read_trace(first), id_of(first))


async def test_nothing_is_kept_of_traces_while_nobody_watches(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    message = number(await send(room, "Bo", follows=CALLER))
    await room.turn()
    handled = await room.handled(message, "Bo")
    names = [f"message/{message}", f"message/{message + 1}", f"run/{handled.run_id}"]
    assert await room.store.read(lambda tx: tx.traces(names)) == {}


async def test_a_message_that_was_written_while_nobody_watched_begins_a_trace(room, traced, watched):
    await room.people("Ada", "Bo", runners=("Bo",))
    room.wakes = False
    await room.send("Ada", "Bo")
    await traced.turn()
    assert watched.span("invoke_agent Bo")["parent_id"] is None
