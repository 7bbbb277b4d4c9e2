"""Finds the questions that waiting runs ask people, and accepts the first answer to each question."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock, iso
from postroom.contracts.errors import InvalidArgument, NotPermitted, StateError
from postroom.contracts.plain_answers import check_person_name
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
ANSWERED_ALREADY = "This question was already answered."


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
    """Finds open questions and passes answers to the runs that wait for them."""

    def __init__(self, run_queue: Mailbox, threads: ThreadStore, clock: Clock) -> None:
        self._run_queue = run_queue
        self._threads = threads
        self._clock = clock

    async def open(self, thread_id: str) -> list[Question]:
        """Return the open questions of a thread's runs."""
        runs = await self._threads.list_runs(RunQuery(thread_id=thread_id, statuses=(RunStatus.WAITING,)))
        return [question_of(run, ticket) for run in runs for ticket in run.open_tickets]

    async def everywhere(self) -> AsyncIterator[tuple[str, Question, int | None]]:
        """Yield the open questions of all agents, oldest runs first. Snoozed questions come last.

        Each question comes with its thread and the time until which it is snoozed. Runs are read page by
        page.
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
        """Format the open questions of all agents for a chat, each with the command that answers it.

        With a question's number as `words`, only that question is shown, uncut. With `after N`, the list
        continues after question N.
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
        """Answer an open question of the threads `thread_ids`. The first word of `words` is its number.

        If `approved` is None, the remaining words are the answer. Otherwise, these words are a comment. If
        `everywhere` is true and these threads have no question with that number, the questions of all other
        agents are searched for the number.

        Without a number, no question is answered: the question that the person saw may be closed already, and
        another question may be open. The reply then lists the open questions with their numbers.

        Raises:
            StoreError: The answer could not be stored. The question stays open.
        """
        open_questions = [
            (thread_id, question) for thread_id in thread_ids for question in await self.open(thread_id)
        ]
        number, why = _number_in(words)

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
        except (NotPermitted, InvalidArgument) as error:
            return Decided(f"Not answered: {error.message}.")
        if not await answer_run(self._run_queue, thread_id, chosen, decision):
            return Decided(ANSWERED_ALREADY)
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
        """Return the reply to an answer that came too late, and the question that was answered already.

        A person who gives the same answer twice gets the first reply again. For example, the page repeats a
        button press if the response was lost.
        """
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
        """Return whether the same person already gave this answer in the same chat."""
        try:
            return question.decision(given, self._clock.now()).decision_id == decision.decision_id
        except (NotPermitted, InvalidArgument):
            return False


def _name_for(source: SessionSource, asker: str) -> str:
    """Return the name under which the answer of a chat's person to this agent is stored, or "" if unknown.

    People choose their display names. A display name that is refused elsewhere, such as the name of the agent
    that asks, is replaced by the platform's id.
    """
    for name in filter(None, (source.user_name, source.user_id)):
        with suppress(InvalidArgument):
            return check_person_name(name, asker=asker)
    return ""


def asker_of(thread_id: str) -> str:
    """Return the name of the agent whose runs on this thread ask questions; "" if it belongs to no agent."""
    if is_chat(thread_id):
        return agent_on(thread_id) or DEFAULT_AGENT
    agent = agent_of(thread_id)
    return "" if agent is None else agent[1]


async def answer_run(
    run_queue: Mailbox, thread_id: str, question: Question, decision: ToolCallResume, *, delay_ms: int = 0
) -> bool:
    """Pass an answer to the run that asked, and return False if another answer arrived first.

    The run resumes with the answer after `delay_ms` milliseconds.

    Raises:
        StoreError: The answer could not be stored. The question stays open.
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


def answer_note(question: Question, decision: ToolCallResume, where: str = "") -> str:
    """Return the line of a question's card that shows the answer, who gave it, and where."""
    if decision.by == NOBODY and decision.result is None:
        return f"Closed: {one_line(decision.reason or '')[:_SHOWN]}."
    word = {True: "Approved", False: "Denied"}.get(decision.approved)  # type: ignore[arg-type]
    by = decision.by or ("" if where else "an unknown person")
    text = word or f"Answered: {one_line(decision.reason or '')[:_SHOWN]}"
    return f"{text}{f' by {one_line(by)}' if by else ''}{f' {where}' if where else ''}."


def listed_question(one: Question, snoozed_until: int | None = None, *, is_whole: bool = False) -> str:
    """Return the text of a question, and the time until which the question is snoozed.

    Unless `is_whole`, a long action and a long text are cut.
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
    """Return the reply to a decision that answers no question, with a list of the open questions."""
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


def _number_in(words: str) -> tuple[str | None, str]:
    """Return the question's number at the start of the words, or None, and the remaining words."""
    first, _, rest = words.strip().partition(" ")
    if QUESTION_NUMBER.fullmatch(first.lower()):
        return first.lower(), rest.strip()
    return None, words.strip()
