"""Finds the questions that waiting runs ask people, and accepts the first answer to each question."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock, iso
from postroom.contracts.errors import InvalidArgument, NotPermitted, StaleDecision, StateError
from postroom.contracts.plain_answers import check_person_name, unanswered
from postroom.contracts.questions import NOBODY, Given, QuestionKind, person
from postroom.contracts.quoting import exact, in_code_fence, one_line
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus, agent_of
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import QUESTION_NUMBER
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway.config import DEFAULT_AGENT
from postroom.gateway.replies import Question, agent_on, how_to_answer, is_chat, question_of
from postroom.gateway.session import SessionSource
from postroom.stores.runs.ports import ThreadStore

_SHOWN = 200
_SHOWN_ACTION = 300
"""Maximum characters of an action in a list of questions."""
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class Decided:
    """The reply to a person who answered a question, and the answered question."""

    note: str
    question: Question | None = None
    answer: str = ""
    """The text on the question's card that reports the answer."""
    thread_id: str = ""
    """The thread on which the question was asked."""


class Questions:
    """Finds open questions, and passes answers to the waiting runs."""

    def __init__(self, run_queue: Mailbox, threads: ThreadStore, clock: Clock) -> None:
        self._run_queue = run_queue
        self._threads = threads
        self._clock = clock

    async def open(self, thread_id: str) -> list[Question]:
        """Return the open questions of a thread's runs."""
        runs = await self._threads.list_runs(RunQuery(thread_id=thread_id, statuses=(RunStatus.WAITING,)))
        return [question_of(run, ticket) for run in runs for ticket in run.open_tickets]

    async def everywhere(self) -> AsyncIterator[tuple[str, Question, int | None]]:
        """Yield the open questions of all agents, the oldest runs first and snoozed questions last.

        Each item is a thread id, a question, and the time until which the question is snoozed.
        """
        place, later = (0, ""), list[tuple[str, Question, int]]()
        while (found := await self._threads.asked_since(*place))[0]:
            runs, snoozed = found
            place = (runs[-1].updated_at, runs[-1].run_id)
            for run in runs:
                for ticket in run.open_tickets:
                    question = question_of(run, ticket)
                    if until := snoozed.get((run.run_id, question.call_id)):
                        later.append((run.thread_id, question, until))
                    else:
                        yield run.thread_id, question, None
        for one in later:
            yield one

    async def inbox(self, words: str) -> str:
        """Return a text that lists the open questions of all agents, for a chat.

        If `words` is the number of a question, the text shows only this question, in full. If `words` is
        `after N`, the list begins after question N.
        """
        named, _, after = words.strip().lower().partition(" ")
        number = after.strip() if named == "after" else named
        found, lines, last = not number, list[str](), ""
        async for _, one, until in self.everywhere():
            if found and len(lines) == _MAX_LISTED:
                return "\n\n".join([*lines, f"More: /inbox after {last}"])
            if found:
                lines.append(listed_question(one, until))
                last = one.number
            elif one.number == number and named != "after":
                return listed_question(one, until, is_whole=True)
            found = found or one.number == number
        if not found:
            return f"Question {one_line(number)[:_SHOWN]} is not open. /inbox lists the open questions."
        return "\n\n".join(lines) or ("No more open questions." if number else "No open questions.")

    async def decide(
        self,
        thread_ids: Sequence[str],
        source: SessionSource,
        words: str,
        *,
        approved: bool | None,
        everywhere: bool = False,
    ) -> Decided:
        """Answer an open question of the threads `thread_ids`.

        The first word of `words` is the number of the question. The remaining words are the answer, or a
        comment if `approved` is not None. If `everywhere` is true, the question may belong to any thread. If
        the number is missing, no question is answered, and the reply lists the open questions.

        Raises:
            StoreError: The answer could not be stored. The question stays open.
        """
        open_questions = [
            (thread_id, question) for thread_id in thread_ids for question in await self.open(thread_id)
        ]
        first, _, rest = words.strip().partition(" ")
        number, why = (
            (first.lower(), rest.strip())
            if QUESTION_NUMBER.fullmatch(first.lower())
            else (None, words.strip())
        )

        def given_on(thread_id: str) -> Given:
            return Given(
                value=why if approved is None else approved,
                by=person(_name_for(source, asker_of(thread_id))),
                at="chat",
                why="" if approved is None else why,
            )

        matching = [pair for pair in open_questions if pair[1].number == number]
        if everywhere and number and not matching:
            matching = [(at, one) async for at, one, _ in self.everywhere() if one.number == number]
        if not matching:
            others = [question for _, question in open_questions]
            return await self._answered_before(thread_ids, number, others, given_on, approved=approved)
        if len(matching) > 1:
            return Decided(f"Several open questions have the number {number}: answer them on the pages.")
        thread_id, chosen = matching[0]
        try:
            decision = chosen.decision(given_on(thread_id), self._clock.now())
            if not await answer_run(self._run_queue, thread_id, chosen, decision):
                return await self._answered_before(
                    [thread_id], chosen.number, (), given_on, approved=approved
                )
        except (NotPermitted, InvalidArgument, StaleDecision) as error:
            return Decided(f"Not answered: {error.message}.")
        note = answer_note(chosen, decision)
        return Decided(note, chosen, note, thread_id)

    async def _answered_before(
        self,
        thread_ids: Sequence[str],
        number: str | None,
        others: Sequence[Question],
        given_on: Callable[[str], Given],
        *,
        approved: bool | None,
    ) -> Decided:
        """Return the reply to an answer that arrived after the question was answered."""
        for thread_id in thread_ids if number else ():
            for run in await self._threads.latest_runs(thread_id):
                for answered in run.answered:
                    question = question_of(run, answered.ticket)
                    if question.number == number:
                        decided = answer_note(question, answered.decision)
                        how = f"{'was answered already' if answered.is_answer else 'is not open'}. {decided}"
                        return Decided(
                            decided
                            if self._repeats(question, answered.decision, given_on(thread_id))
                            else _not_open(number, others, approved=approved, answered=how),
                            question,
                            decided,
                            thread_id,
                        )
        return Decided(_not_open(number, others, approved=approved))

    def _repeats(self, question: Question, decision: ToolCallResume, given: Given) -> bool:
        """Return whether an answer repeats the answer that the person already gave."""
        try:
            return question.decision(given, self._clock.now()).decision_id == decision.decision_id
        except (NotPermitted, InvalidArgument):
            return False


def _name_for(source: SessionSource, asker: str) -> str:
    """Return the name under which a person's answer is stored, or "" if the person is unknown."""
    for name in filter(None, (source.user_name, source.user_id)):
        with suppress(InvalidArgument):
            return check_person_name(name, asker=asker)
    return ""


def asker_of(thread_id: str) -> str:
    """Return the name of the agent that runs on a thread, or "" if the thread has no agent."""
    if is_chat(thread_id):
        return agent_on(thread_id) or DEFAULT_AGENT
    agent = agent_of(thread_id)
    return "" if agent is None else agent[1]


async def answer_run(
    run_queue: Mailbox, thread_id: str, question: Question, decision: ToolCallResume
) -> bool:
    """Store an answer for the run that asked the question.

    Return False if another answer arrived first.

    Raises:
        StaleDecision: The question has timed out.
        StoreError: The answer could not be stored. The question stays open.
    """
    request = RunActivation.new(
        thread_id, [], continue_run_id=question.run_id, decisions=[(question.call_id, decision)]
    )
    try:
        await run_queue.submit_background(request)
    except StateError as error:
        if "expires_at" in error.details:
            raise
        return False
    return True


def answer_note(question: Question, decision: ToolCallResume, where: str = "") -> str:
    """Return the line of a question's card that shows the answer and who gave the answer."""
    if decision.by == NOBODY:
        how = "Closed" if decision.result is None else unanswered(decision.approved)
        return f"{how}: {one_line(decision.reason or '')[:_SHOWN]}."
    word = {True: "Approved", False: "Denied"}.get(decision.approved)  # type: ignore[arg-type]
    by = decision.by or ("" if where else "an unknown person")
    text = word or f"Answered: {one_line(decision.reason or '')[:_SHOWN]}"
    return f"{text}{f' by {one_line(by)}' if by else ''}{f' {where}' if where else ''}."


def listed_question(one: Question, snoozed_until: int | None = None, *, is_whole: bool = False) -> str:
    """Return the text of a question for a list of open questions.

    A long question is shortened unless `is_whole` is true.
    """
    wanted, text, permits = one.asked, one.text, one.asked.permits
    if not is_whole and len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}…"
    if not is_whole and len(wanted.action) > _SHOWN_ACTION:
        beginning = in_code_fence(f"{exact(wanted.action[:_SHOWN_ACTION])}…")
        permits = (
            f"A yes permits an action of {len(wanted.action):,} characters, which begins like this. "
            f"/inbox {one.number} shows all of it.\n{beginning}"
        )
    who = f"From {wanted.who}." if wanted.to or wanted.not_by else ""
    snoozed = f"Snoozed until {iso(snoozed_until)}." if snoozed_until else ""
    return "\n".join(filter(None, (permits, text, how_to_answer(one), who, snoozed)))


def _not_open(
    number: str | None, asked: Sequence[Question], *, approved: bool | None, answered: str = ""
) -> str:
    """Return the reply to an answer that matches no open question."""
    if number is None:
        text = (
            "Not answered: the number of the question must come first."
            if asked
            else ("This chat has no open question.")
        )
    elif answered:
        text = f"Question {number} {answered}"
    else:
        text = f"Question {number} is not open; it may have been answered already."
    command = "/deny" if approved is False else "/approve"
    lines = [text]
    for question in asked:
        reply = command if question.asked.kind is QuestionKind.YES_NO else "/answer"
        lines.append(f"Open now: {reply} {question.number}: {question.text}")
    return "\n".join(lines)
