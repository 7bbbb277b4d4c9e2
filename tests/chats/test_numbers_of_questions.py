"""A number that two open questions share answers neither of them."""

from typing import Any, cast

from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingState, RunWaitingTicket, WaitingReason
from postroom.gateway.questions import Questions
from postroom.gateway.session import Platform, SessionSource
from postroom.stores.memory import MemoryRunStores


def asks(run_id: str) -> RunRecord:
    ticket = RunWaitingTicket(ticket_id="abc123", tool_call_id="abc123", tool_name="ask", reason="Go on?")
    return RunRecord(
        run_id=run_id,
        thread_id="t",
        status=RunStatus.WAITING,
        waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=(ticket,)),
    )


async def test_a_number_that_two_open_questions_share_answers_neither() -> None:
    stores = MemoryRunStores()
    for run_id in ("r1", "r2"):
        await stores.threads.create_run(asks(run_id))
    nobody = cast("Any", None)  # no run is reached
    questions = Questions(nobody, stores.threads, stores.clock)
    source = SessionSource(platform=Platform.TELEGRAM, chat_id="c1", user_id="u1")
    decided = await questions.decide(["t"], source, "abc123", approved=True)
    assert decided.question is None
    assert decided.note == "Several open questions have the number abc123: answer them on the pages."
