"""Agents' questions to people: finds the questions of waiting runs, and accepts the first answer to each."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock
from postroom.contracts.errors import StateError
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.contracts.waking import QUESTION_NUMBER
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.replies import Question, question_of
from postroom.gateway.session import SessionSource
from postroom.stores.runs.ports import ThreadStore

_LONGEST_ID = 512
_LONGEST_NAME = 200
ANSWERED_ALREADY = "This question was already answered."


@dataclass(frozen=True, slots=True)
class Decided:
    """The reply to a decision, and the question that the decision answers, or that was answered before."""

    note: str
    question: Question | None = None
    answer: str = ""
    """The text on the question's card that reports the answer."""
    thread_id: str = ""
    """The thread on which the question was asked."""


class Questions:
    """Finds open questions and passes answers to the runs that wait for them."""

    def __init__(self, run_queue: Mailbox, threads: ThreadStore, clock: Clock) -> None:
        self._run_queue = run_queue
        self._threads = threads
        self._clock = clock

    async def open(self, thread_id: str) -> list[Question]:
        """Return the open questions of a thread's runs."""
        runs = await self._threads.list_runs(RunQuery(thread_id=thread_id, statuses=(RunStatus.WAITING,)))
        return [question_of(run, ticket) for run in runs for ticket in run.open_tickets]

    async def decide(
        self, thread_ids: Sequence[str], source: SessionSource, words: str, *, approved: bool
    ) -> Decided:
        """Answer the question on these threads whose number is the first of the given words.

        Without a number nothing is answered, because the question that the person saw may have been answered
        already, and another one may be open. The reply then lists the open questions with their numbers.

        Raises:
            StoreError: The answer could not be stored; the question stays open.
        """
        asked = [(thread_id, question) for thread_id in thread_ids for question in await self.open(thread_id)]
        number, why = _number_in(words)
        matching = [one for one in asked if one[1].number == number]
        if not matching:
            note = _not_open(number, [question for _, question in asked], approved=approved)
            repeated = _decision(approved=approved, by=source.user_name or source.user_id or "")
            return await self._answered_before(thread_ids, number, note, repeated)
        if len(matching) > 1:
            return Decided(f"Several open questions have the number {number}: answer them on the pages.")
        thread_id, chosen = matching[0]
        who = source.user_name or source.user_id or ""
        decision = decision_of(chosen, approved=approved, why=why, by=who, at="chat", now=self._clock.now())
        if not await answer_run(self._run_queue, thread_id, chosen, decision):
            return Decided(ANSWERED_ALREADY)
        note = _decision(approved=approved, by=who or "an unknown person")
        return Decided(note, chosen, note, thread_id)

    async def _answered_before(
        self, thread_ids: Sequence[str], number: str | None, note: str, repeated: str
    ) -> Decided:
        """Return this reply and the answered question, because its card may not show the answer yet.

        A person who repeats a decision gets `repeated`, because the page sends a button again if it did not
        get the first reply.
        """
        for thread_id in thread_ids if number else ():
            for run in await self._threads.latest_runs(thread_id):
                for one in run.answered:
                    question, by = question_of(run, one.ticket), one.decision.by
                    if question.number == number:
                        decided = _decision(approved=one.decision.approved, by=by)
                        told = decided if by and decided == repeated else note
                        return Decided(told, question, decided, thread_id)
        return Decided(note)


def _decision(*, approved: bool | None, by: str) -> str:
    """Return the sentence that reports an answer; `approved` is None for an answer in words."""
    word = {True: "Approved", False: "Denied", None: "Answered"}[approved]
    return f"{word} by {by}." if by else f"{word}."


def decision_of(
    question: Question, *, approved: bool, why: str, by: str, at: str, now: int
) -> ToolCallResume:
    """Return a person's decision. A repetition by the same person in the same chat counts only once."""
    word = "yes" if approved else "no"
    return ToolCallResume(
        decision_id=f"{at}/{question.number}/{word}/{by}"[:_LONGEST_ID],
        action=ResumeDecisionAction.RESUME if approved else ResumeDecisionAction.CANCEL,
        result={"approved": approved},
        reason=why or None,
        updated_at=now,
        by=by[:_LONGEST_NAME],
    )


async def answer_run(
    run_queue: Mailbox, thread_id: str, question: Question, decision: ToolCallResume, *, delay_ms: int = 0
) -> bool:
    """Pass an answer to the run that waits for it; return False if another answer arrived first.

    The run resumes with the answer after `delay_ms` milliseconds.

    Raises:
        StoreError: The answer could not be stored; the question stays open.
    """
    if await run_queue.send_decision_live(question.run_id, question.call_id, decision):
        return True
    request = RunActivation.new(
        thread_id, [], continue_run_id=question.run_id, decisions=[(question.call_id, decision)]
    )
    try:
        await run_queue.submit_background(request.delivered(delay_ms=delay_ms) if delay_ms else request)
    except StateError:
        return False
    return True


def _not_open(number: str | None, asked: Sequence[Question], *, approved: bool) -> str:
    """Return why a decision answers no question, with a list of the questions that are open now."""
    if number is None:
        told = (
            "Not answered: write the question's number first." if asked else "There is no open question here."
        )
    else:
        told = f"Question {number} is not open; it may have been answered already."
    command = "/approve" if approved else "/deny"
    return "\n".join([told, *(f"Open now: {command} {one.number}: {one.text}" for one in asked)])


def _number_in(words: str) -> tuple[str | None, str]:
    """Return the question's number at the start of the words, or None, and the remaining words."""
    first, _, rest = words.strip().partition(" ")
    if QUESTION_NUMBER.fullmatch(first.lower()):
        return first.lower(), rest.strip()
    return None, words.strip()
