"""What becomes of questions that nobody answers in time: a cancelled run, or a no. Silence is never a yes.

The instant is kept with the question, in the run that waits: a server that was down makes up for it.
"""

import structlog

from postroom.app.run_service import RunService
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import PostroomError
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import OnTimeout, RunRecord, RunStatus, RunWaitingTicket
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.gateway.questions import answer_run
from postroom.gateway.replies import question_of

_LOG = structlog.get_logger(__name__)
POLL_MS = 5_000
NOBODY = "nobody"
SILENCE = "nobody has answered in time"


class QuestionTimeouts:
    """Ends the waiting of questions whose time is over."""

    def __init__(self, runs: RunService, clock: Clock, timer: Timer) -> None:
        self._runs = runs
        self._clock = clock
        self._timer = timer

    async def serve(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                await self.round()
            except PostroomError as error:
                _LOG.warning("pauses.put_off", reason=error.describe())
            await self._timer.sleep(POLL_MS)

    async def round(self) -> int:
        """End the waiting of what is over now; return of how many questions.

        Raises:
            StoreError: runs could not be looked at; the next round does it.
        """
        now, ended, after = self._clock.now(), 0, ""
        while page := await self._runs.stores.threads.list_runs(
            RunQuery(statuses=(RunStatus.WAITING,), after=after)
        ):
            after = page[-1].run_id
            for run in page:
                for ticket in run.open_tickets:
                    if ticket.is_over(now):
                        await self._ended(run, ticket)
                        ended += 1
        return ended

    async def _ended(self, run: RunRecord, ticket: RunWaitingTicket) -> None:
        question = question_of(run, ticket)
        _LOG.info("pause.over", run_id=run.run_id, question=question.number, means=ticket.on_timeout.value)
        if ticket.on_timeout is OnTimeout.CANCEL:
            await self._runs.mailbox.cancel_waiting(run, reason=SILENCE)
            return
        decision = ToolCallResume(
            decision_id=f"silence/{question.number}",
            action=ResumeDecisionAction.CANCEL,
            result={"approved": False},
            reason=SILENCE,
            updated_at=self._clock.now(),
            by=NOBODY,
        )
        await answer_run(self._runs.mailbox, run.thread_id, question, decision)
