"""Calls that are committed before they are made: a crash in between has them made again, under the same ids."""

from typing import Any

import pytest

from postroom.contracts.activation import Recovery
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.records import replace
from postroom.contracts.runs import WaitingReason
from postroom.contracts.tools import (
    ResumeDecisionAction,
    Suspension,
    ToolCallResume,
    ToolCallResumeMode,
    ToolResult,
)
from postroom.gateway.replies import question_of
from postroom.ports import RunControl
from postroom.runtime import FunctionTool, ToolContext, function_tool
from runtime.room import Room, call, calls
from table_rows import each_row


class Posted:
    """A fake post, for tests: keeps the sent messages, by the id of the call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent: dict[str, str] = {}

    def tool(self) -> FunctionTool:
        @function_tool({"type": "object", "properties": {"text": {"type": "string"}}})
        async def send(text: str, context: ToolContext) -> str:
            self.calls.append(context.call_id)
            self.sent.setdefault(context.call_id, text)
            return "sent"

        return send


class Falls:
    """A coordinator that disappears after this many commits, like a killed process."""

    def __init__(self, real: Any, after: int) -> None:
        self._real, self._left = real, after

    async def commit(self, commit: Any, *, now: int | None = None) -> Any:
        if not self._left:
            raise StoreUnavailable("killed")
        self._left -= 1
        return await self._real.commit(commit)


def a_room(post: Posted, *script: Any) -> Room:
    return Room(script=script, tools=[post.tool()], spec={"commits_calls": True})


async def test_what_a_crash_cut_off_is_made_again_under_the_same_id_and_the_model_is_not_asked_again() -> (
    None
):
    post = Posted()
    room = a_room(post, calls(call("send", "c1", text="one")), calls(call("send", "c1", text="two")))
    activation = await room.prepared()
    room.coordinator = Falls(room.stores.coordinator, after=2)  # the begin, and the calls
    with pytest.raises(StoreUnavailable):
        await room.execute(replace(activation, control=room.again().control))
    room.coordinator = room.stores.coordinator
    await room.execute(room.again(attempt=2))
    assert post.calls[0] == post.calls[1] == "c1"
    assert list(post.sent.values()) == ["one", "two"]
    assert [role for role, _ in await room.texts()] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert len(room.model.requests) == 3


async def test_calls_of_different_steps_have_different_ids_whatever_the_model_calls_them() -> None:
    post = Posted()
    script = [calls(call("send", "call_0", text=text)) for text in ("one", "two", "two")]
    room = a_room(post, *script)
    await room.execute()
    assert list(post.sent.values()) == ["one", "two", "two"]
    assert [text for role, text in room.asked(4) if role == "tool"] == ["sent"] * 3


async def test_begun_from_the_beginning_nothing_is_left_to_make() -> None:
    post = Posted()
    room = a_room(post, calls(call("send", "c1", text="one")), "two")
    activation = await room.prepared()
    room.coordinator = Falls(room.stores.coordinator, after=2)
    with pytest.raises(StoreUnavailable):
        await room.execute(replace(activation, control=room.again().control))
    room.coordinator = room.stores.coordinator
    await room.execute(room.again(attempt=2, recovery=Recovery.RESTART))
    assert post.calls == ["c1"]


def asking(seen: list[ToolCallResume]) -> FunctionTool:
    @function_tool()
    async def ask(context: ToolContext, why: str = "") -> ToolResult:
        if context.decision is None:
            question = Suspension(id="q1", action="ask", message="May I?")
            mode = ToolCallResumeMode.PASS_DECISION_TO_TOOL
            return ToolResult.suspended("ask", question, resume_mode=mode)
        seen.append(context.decision)
        return ToolResult.success("ask", f"heard {context.decision.approved}")

    return ask


@each_row("approved", [True, False])
async def test_a_question_of_a_tools_own_is_told_in_its_words_and_a_no_is_its_to_hear(approved: bool) -> None:
    heard: list[ToolCallResume] = []
    room = Room(script=[calls(call("ask", why="so"), text="It is old.")], tools=[asking(heard)])
    await room.execute()
    run = await room.run()
    assert run.waiting.reason is WaitingReason.USER_INPUT
    assert run.waiting.message == "It is old."
    assert question_of(run, run.waiting.tickets[0]).text == "May I?"
    action = ResumeDecisionAction.RESUME if approved else ResumeDecisionAction.CANCEL
    decided = ToolCallResume(decision_id="d", action=action, result={"approved": approved})
    await room.execute(room.again(("c1", decided)))
    assert heard == [decided]
    assert room.asked(2)[-1] == ("tool", f"heard {approved}")


async def test_a_question_that_is_given_up_is_not_put_to_the_tool() -> None:
    heard: list[ToolCallResume] = []
    room = Room(script=[calls(call("ask"))], tools=[asking(heard)])
    await room.execute()
    given_up = ToolCallResume(decision_id="d", action=ResumeDecisionAction.CANCEL, reason="not now")
    await room.execute(room.again(("c1", given_up)))
    assert heard == []
    assert "not now" in room.asked(2)[-1][1]


async def test_a_run_may_be_shown_its_own_messages_alone() -> None:
    post = Posted()
    room = a_room(post, calls(call("send", text="one")))
    await room.say("of another run")
    activation = await room.prepared("mine")
    await room.say("comes beside it")
    only = frozenset({activation.messages[0].id})
    control = RunControl(coordinator=room.coordinator, threads=room.stores.threads, only=only)
    await room.execute(replace(activation, control=control))
    assert [text for _, text in room.asked(1)] == ["mine"]
    assert [text for _, text in room.asked(2)] == ["mine", "", "sent"]
