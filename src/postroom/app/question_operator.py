"""What runs wait to be told, on all threads: listed and answered by the operator; the first answer counts."""

from collections.abc import Mapping, Sequence

from postroom.app.house_runs import HouseRuns
from postroom.contracts.clock import Clock, iso
from postroom.contracts.errors import StaleDecision
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.gateway.asking import hand_over
from postroom.gateway.replies import Question, question_of


class QuestionOperator:
    """Answers the operator's routes to questions."""

    def __init__(self, runs: HouseRuns, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock

    async def questions(self) -> Sequence[Mapping[str, object]]:
        """Return every open question, the run that waits longest first."""
        return [
            {
                "number": question.number,
                "question": question.text,
                "thread_id": run.thread_id,
                "run_id": run.run_id,
                "waiting_since": iso(run.updated_at),
            }
            for run, question in await self._open()
        ]

    async def answer(self, number: str, *, approved: bool, why: str) -> Mapping[str, object]:
        """Answer a question with yes or no."""
        found = [(run, one) for run, one in await self._open() if one.number == number.strip().lower()]
        if not found:
            raise StaleDecision(
                f"nothing is asked under the number {number!r}; it may have been answered", value=number
            )
        run, question = found[0]
        decision = ToolCallResume(
            decision_id=f"operator/{question.number}",
            action=ResumeDecisionAction.RESUME if approved else ResumeDecisionAction.CANCEL,
            result={"approved": approved},
            reason=why or None,
            updated_at=self._clock.now(),
        )
        if not await hand_over(self._runs.mailbox, run.thread_id, question, decision):
            raise StaleDecision(f"question {number} was answered already", value=number)
        return {"number": question.number, "answer": "yes" if approved else "no"}

    async def _open(self) -> list[tuple[RunRecord, Question]]:
        found: list[tuple[RunRecord, Question]] = []
        after = ""
        while page := await self._runs.stores.threads.list_runs(
            RunQuery(statuses=(RunStatus.WAITING,), after=after)
        ):
            after = page[-1].run_id
            for run in page:
                tickets = run.waiting.tickets if run.waiting is not None else ()
                found += [(run, question_of(run, ticket)) for ticket in tickets]
        return sorted(found, key=lambda one: one[0].updated_at)
