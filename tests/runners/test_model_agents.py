"""Agents that a model runs: messages in, calls of the mail room, answers out, against a server on real sockets."""

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroom.app.model_tools import TOOLS, AskTool, MailTool, check_tools
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.errors import IdentityMismatch, InvalidRunner
from postroom.contracts.records import replace
from postroom.contracts.runners import ModelRunner
from postroom.contracts.runs import RunStatus
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.mail.context import Caller, Rules
from postroom.mail.operations import OPERATIONS
from postroom.runtime import ToolContext
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from runners.room import KEY, RunnerRoom
from runtime.endpoint import CUT, END, SILENCE, FakeEndpoint, chunk, fragment, refusal
from table_rows import each_row
from waking_room import PROJECT, number


def says(text: str) -> list[Any]:
    return [chunk(content=text), chunk("stop"), END]


def calls(name: str, id: str = "call_0", **arguments: Any) -> list[Any]:
    return [fragment(id=id, name=name, args=json.dumps(arguments)), chunk("tool_calls"), END]


def bo(endpoint: FakeEndpoint, **changes: Any) -> ModelRunner:
    given = {"base_url": endpoint.url, "model": "small", "api_key_env": "MODEL_KEY"}
    return ModelRunner(**{**given, **changes})


def seen(endpoint: FakeEndpoint, number: int) -> list[tuple[str, str]]:
    """The messages that the model got in this call, from 1; without its instructions."""
    told = endpoint.bodies[number - 1]["messages"]
    return [(one["role"], one.get("content") or "") for one in told if one["role"] != "system"]


async def test_a_message_is_read_tools_are_called_as_the_agent_and_the_answer_is_mailed_back(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint, instructions="Be brief."))
    await room.people("Cy")
    endpoint.answers = [
        calls("whois", agent_name="Cy"),
        calls("send_message", to=["Cy"], subject="Lights", body_md="Are they on?"),
        says("I have asked Cy."),
    ]
    sent = await room.send("Ada", "Bo", body="Are the lights on?")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "I have asked Cy.")]
    assert await room.texts("Cy") == [("Bo", "Are they on?")]
    assert (await room.handled(number(sent), "Bo")).ended_at is not None
    assert all(one["read_at"] for one in await room.inbox("Bo"))
    first = endpoint.bodies[0]
    assert "Are the lights on?" in seen(endpoint, 1)[0][1]
    assert first["model"] == "small"
    assert first["messages"][0]["content"].startswith("You are Bo, an agent of the project")
    assert first["messages"][0]["content"].endswith("Be brief.")
    assert f"Bearer {KEY}" in endpoint.heads[0]
    by_name = {one["function"]["name"]: one["function"]["parameters"] for one in first["tools"]}
    assert set(by_name["send_message"]["required"]) == {"subject", "body_md"}
    hidden = {"project_key", "sender_name", "idempotency_key", "run_id"}
    assert not any(hidden & schema["properties"].keys() for schema in by_name.values())
    assert "agent_name" in by_name["whois"]["properties"]
    assert "agent_name" not in by_name["fetch_inbox"]["properties"]
    [run] = await room.runs_of()
    assert (run.status, run.steps) == (RunStatus.DONE, 3)
    said = await room.runs.threads.load_messages(run.thread_id)
    assert [one.text() for one in said or ()].count("I have asked Cy.") == 1


async def test_on_a_verified_server_it_acts_without_a_token_and_as_nobody_else(
    store: SqliteStore, clock: ManualClock, endpoint: FakeEndpoint
) -> None:
    room = RunnerRoom(store=store, runs=store.runs, clock=clock)
    await room.employ(Bo=bo(endpoint))
    await room.send("Ada", "Bo")
    room.mail.rules = replace(Rules(), verified=True)
    endpoint.answers = [
        calls("send_message", to=["Ada"], subject="Hi", body_md="forged", sender_name="Ada"),
        calls("send_message", to=["Ada"], subject="Hi", body_md="mine"),
        says("done"),
    ]
    await room.turn()
    assert "sender_name" in seen(endpoint, 2)[-1][1]
    room.mail.rules = Rules()
    assert await room.texts("Ada") == [("Bo", "mine"), ("Bo", "done")]
    await room.end()


async def test_what_a_run_reserves_ends_with_it_and_what_its_agent_holds_otherwise_stays(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint, tools=("file_reservation_paths", "ask_person")))
    by_hand = {"project_key": PROJECT, "agent_name": "Bo", "paths": ["by-hand"]}
    await room.mail.call("file_reservation_paths", by_hand)
    endpoint.answers = [
        calls("file_reservation_paths", paths=["mine"]),
        calls("ask_person", "call_1", question="May I?"),
    ]
    await room.send("Ada", "Bo")
    await room.turn()
    [run] = await room.runs_of()
    assert run.status is RunStatus.WAITING
    assert await held(room) == ["by-hand", "mine"]
    await room.mailbox.cancel(run.run_id)
    await room.turn()
    assert await held(room) == ["by-hand"]


async def held(room: RunnerRoom) -> list[str]:
    found = await room.mail.call("list_file_reservations", {"project_key": PROJECT})
    return sorted(one["path"] for one in found["reservations"])


async def test_the_server_acts_for_the_agent_whose_run_it_is_alone(room: RunnerRoom) -> None:
    await room.people("Ada", "Bo")
    ada = await room.store.read(lambda tx: tx.agent(tx.project(PROJECT).id, "Ada").id)  # type: ignore[union-attr]
    asked = {"project_key": PROJECT, "agent_name": "Bo"}
    with pytest.raises(IdentityMismatch):
        await room.mail.call("fetch_inbox", asked, caller=Caller(agent_id=ada))
    assert (
        await room.mail.call("fetch_inbox", asked | {"agent_name": "Ada"}, caller=Caller(agent_id=ada)) == []
    )


async def test_a_call_that_is_made_again_changes_nothing_twice(room: RunnerRoom) -> None:
    await room.people("Ada", "Bo")
    tool = MailTool(OPERATIONS["send_message"], room.calls, project=PROJECT, agent="Bo", caller=Caller())
    asked: dict[str, Any] = {"to": ["Ada"], "subject": "Hi", "body_md": "once"}

    async def make(run_id: str, call_id: str) -> Any:
        identity = RunIdentity(thread_id="t", run_id=run_id, agent_id="Bo")
        context = ToolContext(identity=identity, call_id=call_id, tool_name="send_message", sink=None)  # type: ignore[arg-type]
        return (await tool.execute(asked, context)).data

    assert await make("r1", "c1") == await make("r1", "c1")
    assert len(await room.texts("Ada")) == 1
    await make("r1", "c2")
    await make("r2", "c1")
    assert len(await room.texts("Ada")) == 3


async def test_a_run_that_was_cut_off_goes_on_behind_what_it_did(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    endpoint.answers = [calls("send_message", to=["Ada"], subject="Hi", body_md="first"), [SILENCE]]
    await room.send("Ada", "Bo")
    async with asyncio.timeout(60):
        await endpoint.asked(2)
    await room.end()
    room.begin()
    endpoint.answers = [says("second")]
    await room.mailbox.recover()
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "first"), ("Bo", "second")]
    assert seen(endpoint, 3)[1:] == seen(endpoint, 2)[1:]


@pytest.mark.parametrize(("approved", "word"), [(True, "yes"), (False, "no")])
async def test_a_question_suspends_the_run_and_the_answer_is_what_the_call_returns(
    room: RunnerRoom, endpoint: FakeEndpoint, approved: bool, word: str
) -> None:
    await room.employ(Bo=bo(endpoint))
    endpoint.answers = [
        [chunk(content="It is old."), *calls("ask_person", question="May I delete it?")],
        says("as you wish"),
    ]
    await room.send("Ada", "Bo")
    await room.turn()
    [(_, asked)] = await room.texts("Ada")
    assert asked.startswith("It is old.\n\nBo has a question:\n\n- May I delete it?")
    [run] = await room.runs_of()
    assert (run.status, len(endpoint.bodies)) == (RunStatus.WAITING, 1)
    [ticket] = run.waiting.tickets  # type: ignore[union-attr]
    await room.end()
    room.begin()
    decision = ToolCallResume(
        decision_id="d",
        action=ResumeDecisionAction.RESUME if approved else ResumeDecisionAction.CANCEL,
        result={"approved": approved},
        reason="it is copied",
    )
    request = RunActivation.new(
        run.thread_id, [], continue_run_id=run.run_id, decisions=[(ticket.tool_call_id, decision)]
    )
    await room.mailbox.submit_background(request)
    await room.turn()
    told = f"The answer is {word}. They said: it is copied\nContinue with this answer."
    assert seen(endpoint, 2)[1:] == [("assistant", "It is old."), ("tool", told)]
    assert [text for _, text in await room.texts("Ada")][1:] == ["as you wish"]
    assert all(one["read_at"] for one in await room.inbox("Bo"))


async def test_its_questions_stay_open_when_one_is_answered_and_messages_of_its_thread_came_meanwhile(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    asked = [
        fragment(number, id=f"c{number}", name="ask_person", args=json.dumps({"question": question}))
        for number, question in enumerate(("Red?", "Now?"))
    ]
    endpoint.answers = [[*asked, chunk("tool_calls"), END], says("painted")]
    await room.send("Ada", "Bo", thread_id="paint")
    await room.turn()
    await room.send("Ada", "Bo", thread_id="paint", body="Mind the cat.")
    await room.turn()
    for left in (1, 0):
        [run] = await room.runs_of()
        ticket = run.open_tickets[0]
        decision = ToolCallResume(decision_id=ticket.reason, result={"approved": True})
        request = RunActivation.new(
            run.thread_id, [], continue_run_id=run.run_id, decisions=[(ticket.tool_call_id, decision)]
        )
        await room.mailbox.submit_background(request)
        await room.turn()
        [run] = await room.runs_of()
        assert (len(run.open_tickets), len(endpoint.bodies)) == (left, 2 - left)
    roles = [role for role, _ in seen(endpoint, 2)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert "Mind the cat." in seen(endpoint, 2)[-1][1]
    assert (await room.texts("Ada"))[-1] == ("Bo", "painted")


async def test_each_message_has_a_run_that_sees_nothing_of_the_one_before(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    endpoint.answers = [says("one"), says("two")]
    for body in ("the first message", "the second message"):
        await room.send("Ada", "Bo", body=body)
        await room.turn()
    [(role, text)] = seen(endpoint, 2)
    assert role == "user"
    assert "the second message" in text
    assert "the first message" not in text


async def test_a_key_that_is_not_set_is_named_to_the_sender_and_nobody_is_asked(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    for name in ("NO_SUCH_KEY", "BLANK"):
        await room.employ(Bo=bo(endpoint, api_key_env=name))
        await room.send("Ada", "Bo")
        await room.turn()
        assert f"the variable {name} is not set" in (await room.texts("Ada"))[-1][1]
    assert endpoint.bodies == []
    assert len(await room.dead()) == 2


@each_row(
    "answers, why",
    [
        ([refusal(401, {"error": {"message": f"no such key {KEY}"}})], "answered 401"),
        ([refusal(429, {"error": {"message": "slow down"}})], "slow down"),
        ([refusal(503)], "answered 503"),
        ([refusal(404, {"error": {"message": "no model small"}})], "no model small"),
        ([[chunk(content="half"), CUT]] * 3, "was lost before the response was complete"),
        ([[chunk(content="half")]] * 3, "ended before"),
        ([refusal(302, Location="http://127.0.0.1:1/")], "answered 302"),
    ],
)
async def test_whoever_wrote_learns_why_the_endpoint_failed_and_never_the_key(
    room: RunnerRoom,
    endpoint: FakeEndpoint,
    answers: list[Any],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    await room.employ(Bo=bo(endpoint))
    endpoint.answers = list(answers)
    sent = await room.send("Ada", "Bo")
    await room.turn()
    message = (await room.inbox("Ada"))[-1]
    assert message["importance"] == "high"
    assert message["body_md"].startswith("Bo could not process your message: ")
    assert why in message["body_md"]
    assert (await room.handled(number(sent), "Bo")).failure
    kept = [one.runner for one in await room.store.read(lambda tx: tx.runners(limit=9, after=0))]
    assert KEY not in caplog.text + str(message) + str(await room.dead()) + str(await room.runs_of()) + str(
        kept
    )


async def test_an_endpoint_that_is_busy_is_asked_again_later(
    store: SqliteStore, clock: ManualClock, endpoint: FakeEndpoint
) -> None:
    room = RunnerRoom(store=store, runs=store.runs, clock=clock, most_attempts=3)
    await room.employ(Bo=bo(endpoint))
    endpoint.answers = [refusal(429, Retry_After="7"), says("done")]
    await room.send("Ada", "Bo")
    await room.turn()
    assert await room.texts("Ada") == []
    clock.advance(timedelta(seconds=6))
    await room.mailbox.recover()
    await room.turn()
    assert len(endpoint.bodies) == 1
    clock.advance(timedelta(minutes=5))
    await room.mailbox.recover()
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "done")]
    await room.end()


async def test_a_run_over_its_steps_is_stopped_and_its_sender_is_told_so_in_words(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint, max_steps=2))
    endpoint.answers = [calls("whois", agent_name="Ada") for _ in range(2)]
    await room.send("Ada", "Bo")
    await room.turn()
    [(_, told)] = await room.texts("Ada")
    assert told.endswith("it reached its limit of steps before it was done")


async def test_a_tool_that_the_runner_does_not_name_is_not_there(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint, tools=("whois",)))
    endpoint.answers = [calls("send_message", to=["Ada"], subject="Hi", body_md="x"), says("done")]
    await room.send("Ada", "Bo")
    await room.turn()
    assert "there is no tool 'send_message'" in seen(endpoint, 2)[-1][1]
    assert await room.texts("Ada") == [("Bo", "done")]


async def test_an_answer_that_is_too_long_is_to_be_asked_for_in_parts(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    for index in range(60):
        known = {"program": "p", "model": "m", "name": f"Cy{index}", "task_description": "x" * 4_000}
        await room.mail.call("register_agent", {"project_key": PROJECT, **known})
    await room.send("Ada", "Bo")
    endpoint.answers = [calls("list_agents"), calls("list_agents", limit=10), says("done")]
    await room.turn()
    assert "request less at once" in seen(endpoint, 2)[-1][1]
    assert "Cy7" in seen(endpoint, 3)[-1][1]


async def test_a_long_message_is_read_on_from_where_the_answer_ends(
    room: RunnerRoom, endpoint: FakeEndpoint
) -> None:
    await room.employ(Bo=bo(endpoint))
    sent = number(await room.send("Ada", "Bo", body="y" * 50_000))
    endpoint.answers = [
        calls("fetch_inbox"),
        calls("fetch_inbox", message_id=sent, offset=39_000),
        says("done"),
    ]
    await room.turn()
    [first] = json.loads(seen(endpoint, 2)[-1][1])
    [rest] = json.loads(seen(endpoint, 3)[-1][1])
    assert (first["truncated"], first["next_offset"] >= 39_000) == (True, True)
    assert (rest["body_md"], "truncated" in rest) == ("y" * 11_000, False)


@each_row("name", ["register_agent", "rotate_agent_token", "no_such", "ensure_project"])
def test_what_no_model_may_call_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRunner, match=name):
        check_tools(["whois", name])
    check_tools(TOOLS)
    assert set(TOOLS) - {"send_file"} <= set(OPERATIONS)


async def test_a_run_on_mail_has_no_chat_to_send_files_to(room: RunnerRoom, endpoint: FakeEndpoint) -> None:
    await room.employ(Bo=bo(endpoint, tools=("whois", "send_file")))
    endpoint.answers = [calls("send_file"), says("done")]
    await room.send("Ada", "Bo")
    await room.turn()
    assert [one["function"]["name"] for one in endpoint.bodies[0]["tools"]] == ["whois"]
    assert "there is no tool 'send_file'" in seen(endpoint, 2)[-1][1]


async def test_a_refused_tool_tells_the_model_what_to_do(room: RunnerRoom, endpoint: FakeEndpoint) -> None:
    await room.employ(Bo=bo(endpoint))
    endpoint.answers = [
        calls("get_message", message_id=999),
        calls("whois", "call_1", agent_name="Nobody"),
        says("done"),
    ]
    await room.send("Ada", "Bo")
    await room.turn()
    for number_of_call in (2, 3):
        role, told = seen(endpoint, number_of_call)[-1]
        problem, _, remedy = told.partition("; ")
        assert (role, bool(problem), bool(remedy)) == ("tool", True, True), told


async def test_a_question_without_words_is_refused() -> None:
    context = ToolContext(identity=None, call_id="c", tool_name="ask_person", sink=None)  # type: ignore[arg-type]
    for question in (" ", "x" * 2_001):
        result = await AskTool().execute({"question": question}, context)
        assert "1 to 2000 characters" in (result.message or "")
