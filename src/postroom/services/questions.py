"""Open questions of runs, which people list and answer on the pages and at the command line.

The first answer counts. The transaction that resumes the run records who answered. If nobody answers in time,
the run is cancelled, or gets "no" as the answer, because silence never counts as approval. The deadline is
stored with the question in the waiting run, so that a server that was down still enforces it later.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from postroom.contracts.chat import CHAT_THREAD
from postroom.contracts.clock import Clock, Timer, iso
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidArgument, PostroomError, StaleDecision
from postroom.contracts.messages import Json
from postroom.contracts.plain_answers import MAX_NAME_LENGTH, check_person_name, unanswered
from postroom.contracts.questions import (
    COMMAND_LINE,
    IN_WINDOW,
    NOBODY,
    SILENT,
    Answerer,
    Given,
    QuestionKind,
    answered_where,
    decision_on,
    form_in_words,
    person,
    schema_of,
)
from postroom.contracts.quoting import exact, quoted
from postroom.contracts.records import replace
from postroom.contracts.run_stores import thread_lock
from postroom.contracts.runs import (
    ASKING,
    AnsweredTicket,
    OnTimeout,
    RunRecord,
    RunStatus,
    RunWaitingTicket,
    agent_of,
)
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import QUESTION_NUMBER, number_of
from postroom.contracts.work import GivenAnswer, OpenQuestion
from postroom.dispatch.budgets import answers_budget
from postroom.dispatch.control import holder_of
from postroom.gateway.notices import Notices
from postroom.gateway.questions import answer_note, answer_run, asker_of
from postroom.gateway.replies import (
    Question,
    build_outbox_target,
    closed_card,
    is_chat,
    list_inbound_ids,
    question_of,
)
from postroom.gateway.sessions import find_chat
from postroom.log import get_logger
from postroom.mail.identity import find_agent
from postroom.mail.projects import find_project
from postroom.mail.views import maybe_iso
from postroom.mail.waking.open_questions import retired
from postroom.mail.waking.prompts import ASKED, ASKING_LANES, agent_thread, asking_thread
from postroom.services.administration import (
    AnsweredQuestion,
    QuestionRecord,
    QuestionsView,
    SnoozedQuestion,
    WaitingQuestion,
)
from postroom.services.cut_ids import whole_id
from postroom.services.runs import RunService, owner_of, project_threads, whose
from postroom.services.shown import CAN_TAKE_BACK, SurfaceRecords, surfaces_of
from postroom.stores.store import Transaction

_LOG = get_logger(__name__)
POLL_MS = 5_000
SILENCE = "no answer came in time"
TAKE_BACK_MS: Final = 8_000
"""Number of milliseconds during which an answer from the pages can be withdrawn, before the agent gets it."""
_NAMED: Final = 3
"""Maximum number of open questions that the error for a rejected answer lists."""
_PLACE: Final = re.compile(r"([0-9]{1,15})/([^/]{1,512})/([0-9a-f]{6})")
_BELOW: Final = "snoozed/"
"""The beginning of a snoozed question's place in the list."""
_SHOWN: Final = 80
"""Maximum number of characters of each listed question."""
_LATELY_MS: Final = 7 * 24 * 3_600_000
"""The time after its answer during which a part of a question's number still finds the question."""
_MOST_NUMBERED: Final = 100
"""Maximum number of questions that are read for one number, or for the beginning of one."""
_AT_ONCE: Final = 50
"""Maximum number of runs that are read at a time to handle timeouts or to index questions."""
MAX_OPEN: Final = 50
"""Maximum number of runs of a project, or of chats, whose open questions a page shows."""
MAX_COUNTED: Final = 500
"""Maximum number of open questions that are counted, and of snoozed ones that a count leaves out."""
_BATCH: Final = 50
"""The number of runs that are read at a time for a list of questions."""


class QuestionService:
    """Implements the operator's routes and the pages for questions."""

    def __init__(self, runs: RunService, clock: Clock, *, take_back_ms: int = TAKE_BACK_MS) -> None:
        """Create the service.

        `take_back_ms` is the time for which answers from the pages can be withdrawn.
        """
        self._runs = runs
        self._store = runs.stores.store
        self._clock = clock
        self._take_back_ms = take_back_ms
        self._surfaces = SurfaceRecords(self._store)

    async def questions(self) -> Sequence[WaitingQuestion]:
        """Return the open questions of agents and chats, longest waiting first and snoozed questions last."""
        return (await self.page())["questions"]

    async def page(self, limit: int | None = None, after: str = "") -> QuestionsView:
        """Return a page of that list. `after` is the cursor of the previous page.

        Raises:
            InvalidArgument: `after` is not a place in this list.
        """
        most = None if limit is None else limit + 1
        found = await self._store.read(lambda tx: list(islice(self.listed(tx, after), most)))
        place = found[limit - 1].place if limit is not None and len(found) > limit else None
        views: list[WaitingQuestion] = [
            {
                "number": one.number,
                "question": one.text,
                "agent": one.agent,
                "project": one.project,
                "chat": one.chat,
                "who": one.who,
                "thread_id": one.thread_id,
                "run_id": one.run_id,
                "waiting_since": iso(one.asked_at),
                "takes": one.asked.kind,
                "in_words": one.asked.in_words,
                "choices": list(one.asked.choices),
                "form": schema_of(one.asked) if one.asked.fields else None,
                "to": list(one.asked.to),
                "not_by": list(one.asked.not_by),
                "action": one.asked.action,
                "action_shown": exact(one.asked.action),
                "digest": one.asked.digest,
                "expires_at": maybe_iso(one.expires_at),
                "snoozed_until": maybe_iso(one.snoozed_until),
                "reply_to": one.reply_to,
            }
            for one in found[:limit]
        ]
        return {"questions": views, "next": place}

    def listed(self, tx: Transaction, after: str = "") -> Iterator[OpenQuestion]:
        """Yield the open questions of agents and chats, longest waiting first and snoozed questions last.

        `after` is the cursor after which the list continues.

        Raises:
            InvalidArgument: `after` is not a place in this list.
        """
        is_below, place = after.startswith(_BELOW), _place(after.removeprefix(_BELOW))
        if not is_below:
            yield from (one for one in self._asked_after(tx, *place) if one.snoozed_until is None)
            place = _place("")
        yield from (one for one in self._asked_after(tx, *place) if one.snoozed_until is not None)

    def _asked_after(self, tx: Transaction, at: int, run_id: str, number: str) -> Iterator[OpenQuestion]:
        run = tx.runs.threads.load_run(run_id) if number else None
        if run is not None and run.updated_at == at:
            asked = asked_in([run])
            places = [one.number for _, one in asked]
            yield from self._as_open(tx, asked[places.index(number) + 1 :] if number in places else asked)
        while runs := tx.runs.threads.asked_since(at, run_id, _BATCH):
            yield from self._as_open(tx, asked_in(runs))
            at, run_id = runs[-1].updated_at, runs[-1].run_id

    def newest(self, tx: Transaction, limit: int) -> Sequence[OpenQuestion]:
        """Return the newest open questions, without snoozed questions, oldest first."""
        found = self._as_open(tx, asked_in(tx.runs.threads.asked_last(limit)))
        return [one for one in found if one.snoozed_until is None][-limit:]

    def snoozed(self, tx: Transaction, limit: int) -> Sequence[OpenQuestion]:
        """Return the snoozed open questions, ordered by the end of the snooze."""
        found = list[OpenQuestion]()
        for run_id, call_id, until in tx.mail.all_snoozed(tx.now(), MAX_COUNTED):
            run = tx.runs.threads.load_run(run_id)
            asked = [] if run is None else asked_in([run])
            found += [open_question(run, one, tx, until) for run, one in asked if one.call_id == call_id]
            if len(found) == limit:
                break
        return found

    def count_due(self, tx: Transaction) -> int:
        """Return the number of open questions that are not snoozed, up to `MAX_COUNTED + 1`."""
        return tx.runs.threads.count_asked([""], MAX_COUNTED + 1)[0]

    async def answer(
        self, number: str, given: Json, *, why: str = "", by: str = "", at: str = COMMAND_LINE
    ) -> AnsweredQuestion:
        """Answer a question.

        A unique prefix of the question's number is enough.

        A prefix that also matches a recently answered question is refused.

        Raises:
            StaleDecision: The question is not open; the error names the open questions.
            InvalidArgument: Several numbers have this prefix, several open questions have this number, or the
                question does not accept the answer.
            NotPermitted: This person may not answer the question.
        """
        run, question = await self._meant(number)
        answer = Given(value=given, by=person(by), at=at, why=why)
        decision = await self._hand_over(run, question, answer)
        word = {True: "yes", False: "no"}.get(decision.approved)  # type: ignore[arg-type]
        return {"number": question.number, "answer": word or decision.reason or ""}

    async def in_window(self, project_key: str, name: str, number: str) -> OpenQuestion | GivenAnswer | None:
        """Return a question that was asked outside a run, or the answer to the question, or None.

        Raises:
            UnknownProject, UnknownAgent: The project or the agent does not exist.
        """

        def look(tx: Transaction) -> OpenQuestion | GivenAnswer | None:
            project = find_project(tx.mail, project_key)
            agent = find_agent(tx.mail, project, name).name
            runs = [
                run
                for run in _numbered(tx, number)
                if ASKING in run.thread_id and whose(run.thread_id) == (project.slug, agent)
            ]
            for run, question in asked_in(runs):
                if question.number == number:
                    return open_question(run, question, tx)
            answers = (self._given_answer(tx, run, answered) for run in runs for answered in run.answered)
            return next((answer for answer in answers if answer.number == number), None)

        return await self._store.read(look)

    async def answer_in_window(self, question: OpenQuestion, given: Json, client: str) -> None:
        """Answer a question for the person at the client program of the asking agent.

        Raises:
            StaleDecision: The question has another answer, or is not open.
            InvalidArgument, NotPermitted: As for `answer`.
        """
        meant = await self._asked_in(question.project, question.run_id, question.number)
        by = Answerer(name=f"the person at {client or 'the client'}"[:MAX_NAME_LENGTH])
        await self._hand_over(*meant, Given(value=given, by=by, at=IN_WINDOW))

    async def snooze(self, number: str, *, for_ms: int, by: str = "") -> SnoozedQuestion:
        """Snooze a question for everybody. 0 ms ends the snooze.

        Raises:
            StaleDecision, InvalidArgument: As for `answer`.
        """
        return await self._put_off(*await self._meant(number), for_ms=for_ms, by=by)

    async def snooze_on_page(self, slug: str, run_id: str, number: str, *, for_ms: int, by: str) -> None:
        """Snooze a question for a person on the pages.

        `slug` is "" for a chat.

        Raises:
            StaleDecision: The question is not open.
        """
        await self._put_off(*await self._asked_in(slug, run_id, number), for_ms=for_ms, by=by)

    async def _put_off(self, run: RunRecord, question: Question, *, for_ms: int, by: str) -> SnoozedQuestion:
        now, by = self._clock.now(), check_person_name(by, asker=asker_of(run.thread_id))
        until = now + for_ms
        await self._store.write(
            lambda tx: tx.mail.snooze(run.run_id, question.call_id, until=until, by=by, now=now),
            key=run.thread_id,
        )
        return {"number": question.number, "snoozed_until": iso(until) if for_ms else None}

    async def note_shown(self, questions: Iterable[tuple[str, str]], where: str) -> None:
        """Record that questions were shown at a place.

        Each question is a pair of run id and number.
        """
        await self._surfaces.note(questions, where)

    async def show(self, number: str) -> QuestionRecord:
        """Return the record of a question.

        A unique prefix of the question's number is enough.

        Raises:
            StaleDecision: There is no such question.
            InvalidArgument: Several questions have this number or prefix.
        """
        number = number.strip().lower()

        def look(tx: Transaction) -> list[QuestionRecord]:
            rows = [
                (run, ticket, answered)
                for run in _numbered(tx, number)
                for ticket, answered in (
                    *((answered.ticket, answered) for answered in run.answered),
                    *((ticket, None) for ticket in run.open_tickets if run.status is RunStatus.WAITING),
                )
                if number_of(run.run_id, ticket).startswith(number)
            ]
            return [self._record(tx, *row) for row in rows[:_NAMED]]

        records = await self._store.read(look)
        if not records:
            raise await self._unknown(number)
        if len(records) > 1:
            raise InvalidArgument(
                f"several questions begin with {number}: {', '.join(record['number'] for record in records)}",
                value=number,
                remedy="pass the whole number; if several questions have the same number, answer on the "
                "page of the run",
            )
        return records[0]

    def _record(
        self, tx: Transaction, run: RunRecord, ticket: RunWaitingTicket, answered: AnsweredTicket | None
    ) -> QuestionRecord:
        wanted, (agent, project, _) = ticket.asked, owner_of(run.thread_id)
        number = number_of(run.run_id, ticket)
        places = sorted(surfaces_of(tx, run).get(number, ()), key=lambda one: one.at or 0)
        answer = None if answered is None else self._given_answer(tx, run, answered)
        return {
            "number": number,
            "state": "open" if answered is None else "answered" if answered.is_answer else "closed",
            "question": ticket.question,
            "agent": agent,
            "project": project,
            "chat": "" if project else place_of(tx, run)[0],
            "run_id": run.run_id,
            "asked_at": iso(ticket.updated_at),
            "takes": wanted.kind,
            "choices": list(wanted.choices),
            "to": list(wanted.to),
            "not_by": list(wanted.not_by),
            "action": wanted.action,
            "digest": wanted.digest,
            "expires_at": maybe_iso(ticket.expires_at),
            "shown": [{"where": place.where, "at": maybe_iso(place.at)} for place in places],
            "approved": None if answer is None else answer.approved,
            "answer": "" if answer is None else answer.why,
            "answered_by": "" if answer is None else answer.by,
            "where": "" if answer is None else answer.where,
            "answered_at": None if answer is None else iso(answer.answered_at),
            "can_take_back": answer is not None and answer.can_take_back,
        }

    async def _meant(self, number: str) -> tuple[RunRecord, Question]:
        """Return the open question with a number or number prefix, and the run that asks."""
        number = number.strip().lower()
        remedy = "list the questions: `postroom questions list`"
        runs = await self._store.read(lambda tx: _numbered(tx, number))
        questions = asked_in(runs)
        numbers = [question.number for _, question in questions]
        answers = {
            number_of(run.run_id, answered.ticket): (run, answered)
            for run in runs
            for answered in run.answered
        }
        meant = whole_id(number, [*numbers, *answers], what="questions", remedy=remedy)
        if meant not in numbers:
            if meant is None:
                raise await self._unknown(number)
            run, answered = answers[meant]
            before, others = await self._store.read(
                lambda tx: (self._given_answer(tx, run, answered), _others(tx, run))
            )
            raise _stale(meant, before, [question for _, question in others])
        if numbers.count(meant) > 1:  # a number has only 24 bits, so several runs may have the same one
            raise InvalidArgument(
                f"{numbers.count(meant)} open questions have the number {meant}, so none was answered",
                value=meant,
                remedy="answer each question on its page",
            )
        return questions[numbers.index(meant)]

    async def _unknown(self, number: str) -> StaleDecision:
        return _stale(
            number,
            None,
            [
                one
                for _, one in await self._store.read(lambda tx: asked_in(tx.runs.threads.asked_last(_NAMED)))
            ],
        )

    def open_questions(self, tx: Transaction, slug: str, limit: int = MAX_OPEN) -> Sequence[OpenQuestion]:
        """Return the open questions of a project's agents, oldest first, snoozed questions last.

        `slug` is "" for chats.
        """
        asked = self._as_open(tx, asked_in(tx.runs.threads.asked_in(home_of(slug), limit)))
        return sorted(asked, key=lambda one: (one.snoozed_until is not None, one.asked_at))

    def questions_of(self, tx: Transaction, slug: str, run_id: str) -> Sequence[OpenQuestion]:
        """Return the open questions of a run.

        `slug` is the run's project, or "" for a chat.
        """
        run = tx.runs.threads.load_run(run_id)
        return self._as_open(tx, [] if run is None or whose(run.thread_id)[0] != slug else asked_in([run]))

    def others(self, tx: Transaction, slug: str, run_id: str) -> Sequence[OpenQuestion]:
        """Return the newest open questions of a run's agent.

        `slug` is the run's project, or "" for a chat.
        """
        run = tx.runs.threads.load_run(run_id)
        return self._as_open(tx, [] if run is None or whose(run.thread_id)[0] != slug else _others(tx, run))

    def _as_open(self, tx: Transaction, asked: Sequence[tuple[RunRecord, Question]]) -> list[OpenQuestion]:
        snoozed = tx.mail.snoozed([run.run_id for run, _ in asked], self._clock.now()) if asked else {}
        return [
            open_question(run, question, tx, snoozed.get((run.run_id, question.call_id)))
            for run, question in asked
        ]

    def is_asked_in_chats(self, tx: Transaction) -> bool:
        """Return whether chats have open questions."""
        return bool(tx.runs.threads.asked_in(home_of(""), 1))

    def given_answers(self, tx: Transaction, slug: str, *, limit: int) -> Sequence[GivenAnswer]:
        """Return the recent answers to a project's agents, newest first."""
        runs = tx.runs.threads.answered_in(home_of(slug), limit)
        answers = [self._given_answer(tx, run, answered) for run in runs for answered in run.answered]
        return sorted(answers, key=lambda one: one.answered_at, reverse=True)[:limit]

    def given_answer(self, tx: Transaction, slug: str, run_id: str, number: str) -> GivenAnswer | None:
        """Return the answer to a question of a run, or None.

        `slug` is the run's project, or "" for a chat.
        """
        run = tx.runs.threads.load_run(run_id)
        if run is None or whose(run.thread_id)[0] != slug:
            return None
        answers = [answered for answered in run.answered if number_of(run_id, answered.ticket) == number]
        return self._given_answer(tx, run, answers[0]) if answers else None

    async def decide(self, slug: str, run_id: str, number: str, given: Given) -> None:
        """Answer a question for a person on the pages.

        `slug` is the run's project, or "" for a chat.

        Raises:
            StaleDecision: The question is not open, or no longer; no run gets the answer.
            InvalidArgument, NotPermitted: The question does not accept the answer, or this person may not
                answer it.
        """
        await self._hand_over(*await self._asked_in(slug, run_id, number), given)

    async def _asked_in(self, slug: str, run_id: str, number: str) -> tuple[RunRecord, Question]:
        """Return an open question of a run, and the run.

        Raises:
            StaleDecision: The question is not open.
        """
        run = await self._runs.stores.threads.load_run(run_id)
        mine = [] if run is None or whose(run.thread_id)[0] != slug else asked_in([run])
        meant = [one for one in mine if one[1].number == number]
        if not meant:
            raise await self._stale(slug, run_id, number)
        return meant[0]

    async def _hand_over(self, run: RunRecord, question: Question, given: Given) -> ToolCallResume:
        if given.by.is_operator:
            name = check_person_name(given.by.name, asker=asker_of(run.thread_id))
            given = replace(given, by=person(name))
        decision = question.decision(given, self._clock.now())
        # An extended budget lets other runs start at once, and a chat shows an answer at once, so these
        # answers cannot be withdrawn.
        is_final = (
            given.at not in CAN_TAKE_BACK or is_chat(run.thread_id) or answers_budget([question.call_id])
        )
        if not is_final and self._take_back_ms:
            now = await self._store.read(lambda tx: tx.now())  # by the clock that decides when work is due
            decision = replace(decision, held_until=now + self._take_back_ms)
        if not await answer_run(self._runs.mailbox, run.thread_id, question, decision):
            raise await self._stale(whose(run.thread_id)[0], run.run_id, question.number)
        await _remove_buttons(
            self._runs, run, question, answer_note(question, decision, answered_where(decision))
        )
        return decision

    async def _stale(self, slug: str, run_id: str, number: str) -> StaleDecision:
        def look(tx: Transaction) -> StaleDecision:
            mine = tx.runs.threads.load_run(run_id)
            others = [] if mine is None else [question for _, question in _others(tx, mine)]
            return _stale(number, self.given_answer(tx, slug, run_id, number), others)

        return await self._store.read(look)

    async def take_back(self, slug: str, run_id: str, number: str, answer_id: str) -> AnsweredTicket:
        """Withdraw the answer with this id, which a page or notification gave, and return the question.

        If the agent has asked again or the deadline has passed, the question is closed instead of reopened.

        Raises:
            StaleDecision: The agent has the answer already, or was retired, or the question is open or has
                another answer.
        """
        run = await self._runs.stores.threads.load_run(run_id)
        lanes = [] if run is None else _asking_lanes(run)

        def instead(tx: Transaction, answered: AnsweredTicket) -> ToolCallResume | None:
            whose = None if run is None else agent_of(run.thread_id)
            addressed = None if whose is None else tx.mail.agent_addressed(*whose)
            if addressed is not None and addressed.agent.retired_at is not None:
                raise StaleDecision(
                    f"the answer to question {number} cannot be withdrawn: {retired(addressed.agent.name)}",
                    value=number,
                    remedy="leave the answer as it is",
                )
            asking = tx.runs.threads.load_run(run_id)
            again = None if asking is None else _closed_if_replaced(tx, asking, answered.ticket)
            if again is not None and addressed is not None:
                tx.mail.note_withdrawn(run_id, addressed.agent.id, [number], now=tx.now())
            return again or _closed_if_asked_again(tx, lanes, answered)

        answers = () if run is None or whose(run.thread_id)[0] != slug else run.answered
        for answered in answers:
            decision_id = answered.decision.decision_id
            is_meant = number_of(run_id, answered.ticket) == number
            if is_meant and _answer_id(answered.decision) == answer_id and run is not None:
                taken = await self._runs.mailbox.take_back_decision(
                    run.thread_id,
                    run_id,
                    decision_id,
                    beside=lanes,
                    instead=instead,
                )
                now = await self._store.read(lambda tx: tx.now())
                if taken is not None and taken.is_answer and taken.ticket.is_over(now):
                    reopened = await self._runs.stores.threads.load_run(run_id)
                    if reopened is not None and taken.ticket in reopened.open_tickets:
                        await _end_overdue(self._runs, reopened, taken.ticket, now)
                    reopened = await self._runs.stores.threads.load_run(run_id)
                    ends = () if reopened is None else reopened.answered
                    return next((one for one in ends if one.ticket == taken.ticket), taken)
                if taken is not None:
                    return taken

        def look(tx: Transaction) -> tuple[GivenAnswer | None, list[str]]:
            mine = self.questions_of(tx, slug, run_id)
            return self.given_answer(tx, slug, run_id, number), [one.number for one in mine]

        held, open_numbers = await self._store.read(look)
        if number in open_numbers:
            raise StaleDecision(
                f"the answer to question {number} was withdrawn before, and the question is open",
                value=number,
                remedy="answer the question",
            )
        if held is None or held.answer_id != answer_id:
            raise await self._stale(slug, run_id, number)
        raise StaleDecision(
            f"the answer to question {number} cannot be withdrawn: the agent has already received it",
            value=number,
            remedy="write to the agent, or cancel the agent's run",
        )

    def _given_answer(self, tx: Transaction, run: RunRecord, answered: AnsweredTicket) -> GivenAnswer:
        question, decision = question_of(run, answered.ticket), answered.decision
        agent, project, _ = owner_of(run.thread_id)
        return GivenAnswer(
            number=question.number,
            text=question.text,
            run_id=run.run_id,
            approved=decision.approved,
            why=decision.reason or "",
            by=decision.by,
            where=answered_where(decision),
            answered_at=decision.updated_at,
            answer_id=_answer_id(decision),
            project=project,
            agent=agent,
            is_closed=not answered.is_answer,
            is_default=answered.is_answer and decision.by == NOBODY,
            is_in_words=question.asked.kind is QuestionKind.YES_NO and decision.approved is None,
            can_take_back=run.status is RunStatus.WAITING
            and holder_of(tx, run, decision) is not None
            and ((asker := tx.mail.agent_addressed(project, agent)) is None or not asker.agent.retired_at),
        )


def _answer_id(decision: ToolCallResume) -> str:
    """Return the id of an answer, which differs even if a person gives a withdrawn answer again."""
    return f"{decision.updated_at}/{decision.decision_id}"


def _asking_lanes(run: RunRecord) -> list[str]:
    """Return the threads on which the run's agent may have asked again outside a run."""
    agent, slug, _ = owner_of(run.thread_id)
    is_outside = ASKING in run.thread_id
    return [asking_thread(slug, agent, lane) for lane in range(ASKING_LANES)] if is_outside else []


def _closed_if_replaced(tx: Transaction, run: RunRecord, ticket: RunWaitingTicket) -> ToolCallResume | None:
    """Return the decision that closes a question if its run has asked the question again, or None."""
    tickets = run.waiting.tickets if run.waiting is not None else ()
    asked = [(one.ticket_id, one.question) for one in tickets if one.updated_at > ticket.updated_at]
    row = tx.runs.dispatches.load(run.dispatch_id or "")
    if row is not None and row.status is RunDispatchStatus.CLAIMED:  # questions of a lost turn are void
        asked += [(one.id, one.text) for one in tx.mail.questions(run.run_id)]
    for number, text in reversed(asked):
        if text == ticket.question and number != ticket.ticket_id:
            return AnsweredTicket.asked_again(ticket, asker_of(run.thread_id), number, now=tx.now()).decision
    return None


def _closed_if_asked_again(
    tx: Transaction, lanes: Sequence[str], answered: AnsweredTicket
) -> ToolCallResume | None:
    """Return the decision that closes a question if the agent has asked it again, or None."""
    ticket, since = answered.ticket, answered.decision.updated_at
    for lane in lanes:
        asked = [entry.message for entry in tx.runs.messages.waiting(lane)]
        for run in tx.runs.threads.latest_runs(lane, _NAMED):
            if run.input is not None and run.created_at >= since:
                named = tx.runs.messages.named(lane, run.input.trigger_message_ids)
                asked += [record.message for record in named]
        for message in asked:
            number = (message.id or "").removeprefix(ASKED)
            if number not in (message.id, ticket.ticket_id) and message.text() == ticket.reason:
                return AnsweredTicket.asked_again(ticket, owner_of(lane)[0], number, now=tx.now()).decision
    return None


def home_of(slug: str) -> str:
    """Return the first segment of the thread ids of a project, or of chats for ""."""
    return (project_threads(slug) if slug else CHAT_THREAD).partition("/")[0]


def _numbered(tx: Transaction, number: str) -> Sequence[RunRecord]:
    if not number:
        return ()
    since = 0 if QUESTION_NUMBER.fullmatch(number) else tx.now() - _LATELY_MS
    return tx.runs.threads.numbered(number, since, _MOST_NUMBERED)


def _others(tx: Transaction, run: RunRecord) -> list[tuple[RunRecord, Question]]:
    name, slug, _ = owner_of(run.thread_id)
    prefix = run.thread_id if is_chat(run.thread_id) else agent_thread(slug, name)
    runs = tx.runs.threads.asking_below(prefix, MAX_OPEN)
    return asked_in(one for one in runs if is_of_same(one.thread_id, run))


def asked_in(runs: Iterable[RunRecord]) -> list[tuple[RunRecord, Question]]:
    """Return the open questions of runs, longest waiting run first."""
    waiting = [run for run in runs if run.status is RunStatus.WAITING]
    questions = [(run, question_of(run, ticket)) for run in waiting for ticket in run.open_tickets]
    return sorted(questions, key=lambda one: (one[0].updated_at, one[0].run_id))


def _place(after: str) -> tuple[int, str, str]:
    """Return the time, run and question number of a list cursor.

    Raises:
        InvalidArgument: The text is not a place in this list.
    """
    if not after:
        return 0, "", ""
    given = _PLACE.fullmatch(after)
    if given is None:
        raise InvalidArgument(
            "after must be the `next` value of a page of questions",
            value=after[:80],
            remedy="pass the `next` of the previous page, or leave out after to start with the first page",
        )
    return int(given[1]), given[2], given[3]


def is_of_same(thread_id: str, run: RunRecord) -> bool:
    """Return whether a thread belongs to the run's agent or chat."""
    if is_chat(run.thread_id):
        return thread_id == run.thread_id
    return owner_of(thread_id) == owner_of(run.thread_id)


def place_of(tx: Transaction, run: RunRecord) -> tuple[str, str]:
    """Return the chat of a run, and the person who wrote in the chat, or "" for an unknown person."""
    source = find_chat(tx, thread_id=run.thread_id, inbound_ids=list_inbound_ids(run))
    return (
        (build_outbox_target(run.thread_id), "")
        if source is None
        else (source.address.name, source.description)
    )


def open_question(
    run: RunRecord, question: Question, tx: Transaction, snoozed_until: int | None = None
) -> OpenQuestion:
    """Return an open question in the form that pages and commands show."""
    agent, project, chat = owner_of(run.thread_id)
    chat, who = place_of(tx, run) if chat else ("", "")
    ticket = next(one for one in run.open_tickets if one.tool_call_id == question.call_id)
    below = "" if snoozed_until is None else _BELOW
    reply_to = tx.mail.newest_report(run.run_id) if question.asked.kind is QuestionKind.FILE else None
    return OpenQuestion(
        number=question.number,
        text=question.text,
        run_id=run.run_id,
        thread_id=run.thread_id,
        asked_at=ticket.updated_at,
        place=f"{below}{run.updated_at}/{run.run_id}/{question.number}",
        project=project,
        agent=agent,
        chat=chat,
        who=who,
        asked=question.asked,
        expires_at=ticket.expires_at,
        snoozed_until=snoozed_until,
        is_asked_outside=ASKING in run.thread_id,
        reply_to=reply_to,
    )


def _stale(number: str, before: GivenAnswer | None, now: Sequence[Question]) -> StaleDecision:
    if before is None:
        named = f"question {number}" if number.strip() else "a question without a number"
        text = f"{named} is not open; it may have been answered"
    else:
        word = {True: "yes", False: "no"}.get(before.approved)  # type: ignore[arg-type]
        detail = ": ".join(
            filter(None, (word, quoted(form_in_words(before.why), longest=_SHOWN) if before.why else ""))
        )
        who = " ".join(part for part in (before.by or "somebody", before.where) if part)
        how = f"closed: {detail}," if before.by == NOBODY else f"answered already: {who} answered {detail}"
        text = f"question {before.number} was {how} at {iso(before.answered_at)}"
        if before.is_default:
            means = unanswered(before.approved, f" question {before.number} until {iso(before.answered_at)}")
            text = f"{means}: {quoted(before.why, longest=_SHOWN)}"
    newest = ", ".join(f"{question.number} ({question.text[:_SHOWN]})" for question in now[-_NAMED:])
    if before is None:
        text += f"; open questions are: {newest}" if newest else ""
    else:
        more = f"other open questions: {newest}" if newest else "no other open question"
        text += f"; {before.agent} has {more}"
    return StaleDecision(
        text,
        value=number,
        remedy="list the questions: `postroom questions list`",
        details={"open": [question.number for question in now[-_NAMED:]]},
    )


async def _remove_buttons(runs: RunService, run: RunRecord, question: Question, note: str) -> None:
    try:
        notices = Notices(runs.stores.outbox)
        await notices.show_answered(run.thread_id, question.number, closed_card(question, note))
    except PostroomError as error:
        _LOG.warning("question.card_left", question=question.number, reason=error.describe())


async def _end_overdue(runs: RunService, run: RunRecord, ticket: RunWaitingTicket, now: int) -> None:
    """End a question after the deadline: cancel the run, or answer the question."""
    question = question_of(run, ticket)
    _LOG.info("question.over", run_id=run.run_id, question=question.number, means=ticket.on_timeout.value)
    if ticket.on_timeout is OnTimeout.CANCEL:
        await runs.mailbox.cancel_waiting(run, reason=SILENCE)
        return
    wanted = replace(question.asked, to=(), not_by=())
    value: Json = False if wanted.default is None else wanted.default
    answer = Given(value=value, by=Answerer(name=NOBODY), at=SILENT, why=SILENCE)
    decision = decision_on(wanted, question.number, question.text, answer, now)
    if await answer_run(runs.mailbox, run.thread_id, question, decision):
        await _remove_buttons(runs, run, question, answer_note(question, decision))


class QuestionTimeouts:
    """Ends the wait for questions whose deadline has passed."""

    def __init__(self, runs: RunService, clock: Clock, timer: Timer) -> None:
        self._runs = runs
        self._clock = clock
        self._timer = timer

    async def serve(self) -> None:
        """Call `round` at each deadline, and every `POLL_MS`, until cancelled."""
        while True:
            began, pause_ms = self._clock.now(), POLL_MS
            try:
                await self.round()
                pause_ms = await self._until_next(began)
            except PostroomError as error:
                _LOG.warning("questions.put_off", reason=error.describe())
            await self._timer.sleep(pause_ms)

    async def _until_next(self, began: int) -> int:
        last = began + POLL_MS
        found = await self._runs.stores.store.read(
            lambda tx: tx.runs.threads.overdue(last, (began + 1, ""), 1)
        )
        return max(min([last, *(ends_at for ends_at, _ in found)]) - self._clock.now(), 0)

    async def round(self) -> int:
        """End the wait for questions whose deadline has passed; return the number of ended questions.

        The clock of the store, which also refuses late answers, decides whether a deadline has passed.

        Raises:
            StoreError: Runs could not be read; the next round tries again.
        """
        store, ended, after = self._runs.stores.store, 0, (0, "")
        # Index the questions of runs that an older release has stored.
        while found := await store.read(lambda tx: tx.runs.threads.unnumbered(_AT_ONCE)):

            def change(tx: Transaction, found: Sequence[RunRecord] = found) -> None:
                tx.lock(*sorted({thread_lock(run.thread_id) for run in found}))
                for run in found:
                    if tx.runs.threads.load_run(run.run_id) == run:
                        tx.runs.threads.put_questions(run)
                        tx.runs.threads.mark_numbered(run)

            await store.write(change)
        now = await store.read(lambda tx: tx.now())

        def look(tx: Transaction) -> Sequence[tuple[int, RunRecord]]:
            return tx.runs.threads.overdue(now, after, _AT_ONCE)

        while page := await store.read(look):
            after = page[-1][0], page[-1][1].run_id
            for run in {run.run_id: run for _, run in page}.values():  # it may have several questions
                over = [ticket for ticket in run.open_tickets if ticket.is_over(now)]
                cancels = [ticket for ticket in over if ticket.on_timeout is OnTimeout.CANCEL]
                for ticket in cancels[:1] or over:  # the end of the run closes its other questions, too
                    await _end_overdue(self._runs, run, ticket, now)
                    ended += 1
        return ended
