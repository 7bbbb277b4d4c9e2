"""Conversations longer than the model's window: summarized messages, kept messages, and the effects of a failure."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from dispatch_room import make_resume
from postroom.contracts import errors
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.inference import InferenceRequest, InferenceResult, InferenceStop
from postroom.contracts.messages import COMPACT, STOPPED_MARK, ContentBlock, Message, MessageMetadata, Role
from postroom.contracts.records import replace
from postroom.contracts.runs import RunRecord, Summary, Usage
from postroom.runtime import AgentSpec, function_tool
from postroom.runtime.window import Windows, estimate_tokens, pieces
from runtime.room import call, calls
from runtime.test_with_a_mailbox import Application, application, asked, time_passing

__all__ = ["application"]
WINDOW = 1_200
FILLER = "boats " * 100


class Reader:
    """A model with a window, which it enforces; it knows the facts that it is shown, and sums up by keeping them."""

    name = "reader"

    def __init__(self) -> None:
        self.window = WINDOW
        self.says = True
        """Whether a refusal contains the size of the window."""
        self.requests: list[Any] = []
        self.refused = 0
        self.summaries: list[Any] = []
        """The answers to requests for summaries, in order; by default a good one."""
        self.summed_up = 0
        self.script: list[Any] = []

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        refuse_broken(request.messages)
        size = estimate_tokens(request)
        if size > self.window:
            self.refused += 1
            details = {"window": self.window, "asked": size} if self.says else None
            raise errors.ContextOverflow("too long", details=details)
        text = "\n".join(message.text() for message in request.messages)
        facts = " ".join(dict.fromkeys(re.findall(r"fact-\w+", text)))
        if request.system.startswith("Write the summary"):
            self.summed_up += 1
            said = self.summaries.pop(0) if self.summaries else f"summary {facts}"
        else:
            self.requests.append(request)
            wants = not request.messages[-1].text().startswith("message")
            said = self.script.pop(0) if self.script else f"I know {facts}" if wants else "well"
        if isinstance(said, Exception):
            raise said
        result = InferenceResult.text(said) if isinstance(said, str) else said
        yield InferenceStop(result=replace(result, usage=Usage(input_tokens=size, output_tokens=1)))


def refuse_broken(messages: Any) -> None:
    """Refuse what no provider takes: an answer without its call before it, or a call without its answer."""
    waiting: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [one.id for one in message.tool_calls]
    assert waiting == []


@pytest.fixture
def reader(application: Application) -> Reader:
    application.model = Reader()  # type: ignore[assignment]
    return application.model  # type: ignore[return-value]


async def said(application: Application, mailbox: Any, text: str, **fields: Any) -> RunRecord:
    """Send a message, and return the run when it has ended."""
    application.clock.advance(timedelta(seconds=1))
    request = text if isinstance(text, RunActivation) else asked(text, **fields)
    submitted = await mailbox.submit_background(request)
    await mailbox.settled()
    run = await application.stores.threads.load_run(submitted.run_id)
    assert run is not None
    return run


async def talk(application: Application, mailbox: Any, first: int, last: int) -> list[RunRecord]:
    return [
        await said(application, mailbox, f"message-{number} {FILLER}") for number in range(first, last + 1)
    ]


async def newest(application: Application) -> Summary | None:
    return await application.stores.store.read(lambda tx: tx.runs.messages.summary("t"))


def shown(reader: Reader) -> str:
    return "\n".join(message.text() for message in reader.requests[-1].messages)


async def test_a_conversation_goes_on_beyond_the_window(application: Application, reader: Reader) -> None:
    mailbox = application.open()
    await said(application, mailbox, "remember fact-lamp")
    await talk(application, mailbox, 1, 60)
    run = await said(application, mailbox, "what do you know?")
    assert run.final_output == "I know fact-lamp"
    assert reader.refused == 1
    assert "message-1 " not in shown(reader)
    assert "message-60 " in shown(reader)
    texts = await application.texts()
    assert len(texts) == 124
    assert "remember fact-lamp" in texts
    seen = await application.stores.threads.recent_conversation("t", run.run_id)
    assert len(seen.messages) < 30
    assert len(seen.turns) < 30
    assert len(await application.stores.threads.conversation("t", run.run_id)) == 124


async def test_a_window_that_nobody_names_is_found(application: Application, reader: Reader) -> None:
    reader.says = False
    mailbox = application.open()
    runs = await talk(application, mailbox, 1, 40)
    assert all(run.error is None for run in runs)
    assert reader.refused < 4


@pytest.mark.parametrize("talked", [0, 20])
async def test_a_small_request_that_is_refused_as_too_long_leaves_every_conversation_whole(
    application: Application, reader: Reader, talked: int
) -> None:
    reader.window = 100_000
    mailbox = application.open()
    await talk(application, mailbox, 1, talked)
    reader.script = [errors.ContextOverflow("Input is too long for requested model")]
    refused = await said(application, mailbox, RunActivation.new("u", [Message.user("hi")], agent_id="agent"))
    assert refused.termination is not None
    assert refused.termination.detail == "context_overflow"
    await talk(application, mailbox, talked + 1, talked + 20)
    assert reader.summed_up == 0
    assert await newest(application) is None
    assert "message-1 " in shown(reader)


async def test_a_window_without_a_number_is_never_below_the_largest_request_that_succeeded(
    application: Application, reader: Reader
) -> None:
    reader.window = 100_000
    mailbox = application.open()
    await talk(application, mailbox, 1, 40)
    reader.script = [errors.ContextOverflow("too long")]
    assert (await said(application, mailbox, "message-41 ")).error is None
    summary = await newest(application)
    assert summary is not None
    assert summary.window is not None
    assert summary.window >= estimate_tokens(reader.requests[39])


async def test_what_is_known_of_a_window_is_remembered_by_the_conversation(
    application: Application, reader: Reader
) -> None:
    await talk(application, application.open(), 1, 20)
    assert reader.refused == 1
    await talk(application, application.open(), 21, 40)  # a runtime as another process has it
    assert reader.refused == 1


async def test_calls_and_their_answers_are_summed_up_together(
    application: Application, reader: Reader
) -> None:
    @function_tool()
    async def look(place: int) -> str:
        return f"fact-place{place} {FILLER}"

    mailbox = application.open(look)
    steps = [calls(call("look", id=f"c{place}", place=place), text=FILLER) for place in range(20)]
    reader.script = [*steps, "seen"]
    run = await said(application, mailbox, "look at all of them")
    assert run.final_output == "seen"
    assert "fact-place0" in shown(reader)
    assert "look at all of them" in shown(reader)
    assert reader.summed_up > 2


@pytest.mark.parametrize(
    "summary",
    ["", FILLER * 20, errors.RequestRefused("no"), errors.ContentFiltered("no")],
    ids=["empty", "long", "refused", "withheld"],
)
async def test_what_cannot_be_summed_up_is_left_out_and_the_person_is_told(
    application: Application, reader: Reader, summary: Any
) -> None:
    mailbox = application.open()
    reader.summaries = [summary] * 3
    runs = await talk(application, mailbox, 1, 8)
    told = [run.final_output for run in runs if "could not summarize" in (run.final_output or "")]
    assert len(told) == 1
    assert "they are stored" in (told[0] or "")
    assert "earlier messages are omitted here" in shown(reader)
    assert len(await application.texts()) == 16
    reader.summaries = []
    run = await said(application, mailbox, "remember fact-lamp")
    assert run.final_output == "I know fact-lamp"


async def test_an_outage_while_it_is_summed_up_changes_nothing(
    application: Application, reader: Reader
) -> None:
    mailbox = application.open()
    await said(application, mailbox, "remember fact-lamp")
    reader.summaries = [errors.Overloaded("later")]
    async with time_passing(application):
        for number in range(8):
            submitted = await mailbox.submit_background(asked(f"message-{number} {FILLER}"))
            await acked(application, submitted.dispatch_id)
        run = await said(application, mailbox, "what do you know?")
    assert run.final_output == "I know fact-lamp"


async def acked(application: Application, dispatch_id: str) -> None:
    from dispatch_room import dispatch_in

    await dispatch_in(application.stores, dispatch_id, RunDispatchStatus.ACKED)


async def test_what_is_taken_back_behind_a_summary_is_not_in_what_is_shown(
    application: Application, reader: Reader
) -> None:
    mailbox = application.open()
    await said(application, mailbox, "remember fact-lamp")
    wrong = await said(application, mailbox, "remember fact-wrong")
    await talk(application, mailbox, 1, 8)
    before = await newest(application)
    assert before is not None
    assert before.text == "summary fact-lamp fact-wrong"
    request = asked("what do you know?")
    request = replace(request, options=replace(request.options, without_runs=(wrong.run_id,)))
    assert (await said(application, mailbox, request)).final_output == "I know fact-lamp"
    await talk(application, mailbox, 7, 20)
    assert (await said(application, mailbox, "and now?")).final_output == "I know fact-lamp"


@pytest.mark.parametrize("refusal", [errors.RequestRefused, errors.ContentFiltered])
async def test_a_message_that_was_refused_is_shown_again_to_the_run_that_is_begun_on_it_again(
    application: Application, reader: Reader, refusal: type[errors.PostroomError]
) -> None:
    mailbox = application.open()
    reader.script = [refusal("not so")]
    refused = await said(application, mailbox, "remember fact-lamp")
    assert refused.termination is not None
    assert refused.termination.detail == refusal.code
    await talk(application, mailbox, 1, 12)
    assert await newest(application) is not None
    assert (await said(application, mailbox, "what do you know?")).final_output == "I know "
    await mailbox.replay_dead_letter(refused.dispatch_id or "")
    await mailbox.settled()
    assert "remember fact-lamp" in shown(reader)
    assert (await said(application, mailbox, "what do you know?")).final_output == "I know fact-lamp"


async def test_a_message_that_alone_is_too_long_is_set_aside(
    application: Application, reader: Reader
) -> None:
    mailbox = application.open()
    run = await said(application, mailbox, FILLER * 50)
    assert run.termination is not None
    assert run.termination.detail == "context_overflow"
    assert (await said(application, mailbox, "and fact-lamp?")).final_output == "I know fact-lamp"


async def test_a_run_that_waits_goes_on_behind_a_summary(application: Application, reader: Reader) -> None:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    mailbox = application.open(pay)
    await said(application, mailbox, "remember fact-lamp")
    await talk(application, mailbox, 1, 8)
    assert await newest(application) is not None
    reader.script = [calls(call("pay", id="p1"))]
    run = await said(application, mailbox, "pay")
    assert run.waiting is not None
    decision = ("p1", make_resume())
    await mailbox.submit_background(
        RunActivation.new("t", [], agent_id="agent", continue_run_id=run.run_id, decisions=[decision])
    )
    await mailbox.settled()
    after = await application.stores.threads.load_run(run.run_id)
    assert after is not None
    assert after.final_output == "I know fact-lamp"


async def test_a_conversation_is_compacted_when_somebody_wishes(
    application: Application, reader: Reader
) -> None:
    reader.window = 100_000
    mailbox = application.open()
    wish = Message(role=Role.USER, content=(ContentBlock(text="/compact", data={"command": COMPACT}),))
    run = await said(application, mailbox, RunActivation.new("t", [wish], agent_id="agent"))
    assert run.final_output == "There is no earlier conversation to compact yet."
    await said(application, mailbox, "remember fact-lamp")
    await talk(application, mailbox, 1, 6)
    run = await said(application, mailbox, RunActivation.new("t", [wish], agent_id="agent"))
    assert (run.final_output or "").startswith("Compacted: a summary replaces ")
    run = await said(application, mailbox, "what do you know?")
    assert run.final_output == "I know fact-lamp"
    assert "/compact" not in shown(reader)
    assert "message-2 " not in shown(reader)


def test_the_text_to_summarize_says_which_answer_was_stopped() -> None:
    half = replace(Message.assistant("half"), metadata=MessageMetadata(is_stopped=True))
    [(_, text)] = pieces([Message.user("go"), half, Message.assistant("whole")], 100)
    assert text == f"user: go\n\nassistant: half\n\n{STOPPED_MARK}\n\nassistant: whole"


def test_windows_prefer_what_the_endpoint_counts() -> None:
    from postroom.contracts.inference import InferenceRequest

    windows, spec = Windows(), AgentSpec(model="m", context_window=10_000)
    request = InferenceRequest(model="m", messages=(Message.user("x" * 400),))
    assert windows.tokens(spec, 100) == 100
    windows.count(spec, request, Usage(input_tokens=2 * estimate_tokens(request)))
    assert windows.tokens(spec, 100) == 200
    assert windows.of(spec, None) == 10_000
    assert windows.of(spec, Summary(number=1, text="", model="m", window=4_000)) == 4_000
    assert windows.of(spec, Summary(number=1, text="", model="another", window=4_000)) == 10_000


def test_a_refusal_that_no_text_explains_leaves_the_estimates_of_others() -> None:
    windows, spec = Windows(), AgentSpec(model="m")
    request = InferenceRequest(model="m", messages=(Message.user("see the picture"),))
    told = {"asked": 9_000, "window": 4_000}
    assert windows.refused(spec, request, errors.ContextOverflow("too long", details=told)) == 4_000
    assert (
        windows.refused(spec, request, errors.ContextOverflow("too long", details={"window": 4_000})) == 4_000
    )
    assert windows.tokens(spec, 1_000) == 1_000
