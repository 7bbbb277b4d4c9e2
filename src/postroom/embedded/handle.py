"""The handle of a run, with which any process can follow and control the run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, overload
from uuid import uuid4

import msgspec

from postroom.concurrency import SystemTimer, retried
from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Duration, seconds_of
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidArgument, RunUnsuccessful, StaleDecision, StateError, UnknownRun
from postroom.contracts.events import CanonicalEvent, EventScope
from postroom.contracts.messages import Json
from postroom.contracts.plain_answers import check_person_name
from postroom.contracts.questions import Given, QuestionKind, decision_on, person
from postroom.contracts.records import replace
from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingTicket, TerminationKind
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.sinks import RESET, TEXT
from postroom.dispatch.worker import ATTEMPT_FAILED
from postroom.embedded.effects import ENDED, WAITS, Watch
from postroom.embedded.items import T, plain, refuse_other_text, refuse_other_type
from postroom.embedded.running import LOGGED, SLEEP, STEP
from postroom.stores.runs.ports import LOOK_AGAIN_AFTER
from postroom.stores.store import refuse_forked

P = ParamSpec("P")

if TYPE_CHECKING:
    from postroom.embedded.mailbox import Mailbox

_PAGE: Final = 200
_TOLD_WITHIN_S: Final = 1
_MAX_LOOK_S: Final = 5
"""The maximum time in seconds that `result` with a short timeout waits for an unresponsive database."""
_ONE_LOOK_S: Final = 1
"""The time in seconds within which a working database answers a read."""
_MAX_CURSOR: Final = 10**18 - 1
"""The largest cursor that both databases can store."""


class State(StrEnum):
    """The state of a run.

    A run is `queued` before a retry, and before it resumes with an answer.
    """

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run at one moment.

    Times are in milliseconds since 1970.
    """

    state: State
    text: str = ""
    """The answer that the run returned."""
    error: str | None = None
    question: str | None = None
    """The question that the run asks, while it waits for a person."""
    question_id: str | None = None
    """The id of the open question, which `RunHandle.answer` requires."""
    enqueued_at: int = 0
    finished_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An event of a run.

    Pass `cursor` as `after` to read later events. The type `text` contains the next piece of the answer, and
    `reset` means that the answer starts again. `step` means that the result of a step was stored, and `log`
    contains a log line. `question` means that the run waits for a person. `end` means that the run has ended,
    and contains the whole answer.
    """

    cursor: int
    type: str
    text: str = ""
    data: Json = None

    @property
    def question_id(self) -> str:
        """The question id for `RunHandle.answer`, or "" for an event of any type except `question`."""
        is_question = self.type == "question" and isinstance(self.data, dict)
        return str(self.data["question_id"]) if is_question and isinstance(self.data, dict) else ""


def _needs_question_id(
    method: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Return a method that rejects calls without a question id."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if "question_id" not in kwargs:
            raise InvalidArgument(
                "answer() needs the question's id",
                remedy="pass question_id; mailbox.questions, the question event and status() contain it",
            )
        await method(*args, **kwargs)

    return call


class RunHandle:
    """Waits for a run, reads its state, answers its questions or cancels it, from any process."""

    def __init__(
        self,
        mailbox: "Mailbox",
        thread_id: str,
        run_id: str,
        watch: Watch | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Create the handle of a run.

        `watch` must exist before the process stores the run. `is_new` is true if the watch will receive the
        result of the run.
        """
        self._mailbox = mailbox
        self._watch = watch
        self._was_open = is_new
        self.thread_id = thread_id
        self.id = run_id

    def __repr__(self) -> str:
        return f"RunHandle({self.thread_id!r}, {self.id!r})"

    @overload
    async def result(self, *, timeout: Duration | None = None) -> str: ...

    @overload
    async def result(self, *, timeout: Duration | None = None, type: type[T]) -> T: ...

    async def result(self, *, timeout: Duration | None = None, type: Any = None) -> Any:
        """Return the answer of the run as text, or as a value of `type`.

        `timeout` is a number of seconds, a timedelta, or None for no limit. With a timeout of 0, the call
        does not wait.

        During a database outage, the call waits for the database.

        Raises:
            TimeoutError: The run did not end within `timeout`. The run continues; call `result` again to wait
                longer.
            RunUnsuccessful: The run failed or was cancelled.
            InvalidArgument: `timeout` is not a duration, `type` is not a type, or the answer is not a value
                of that type.
            UnknownRun: The run no longer exists.
        """
        refuse_forked(self._mailbox.process)
        timeout = None if timeout is None else seconds_of(timeout, "timeout")
        if type is not None:
            refuse_other_type("type", type)
        run = self._told_end()
        if run is None and timeout is not None and timeout < _ONE_LOOK_S:
            # Reading may take longer than `timeout`, so that the answer of an ended run is returned.
            with suppress(TimeoutError):
                async with asyncio.timeout(_MAX_LOOK_S):
                    run = await self._retry(self._load_run)
        if run is None or run.status is not RunStatus.DONE:
            try:
                async with asyncio.timeout(timeout):
                    run = await self._wait_for_end()
            except TimeoutError:
                raise TimeoutError(
                    f"run {self.id} did not end within {max(timeout or 0, 0):g} s. The run continues: call "
                    "result() again to keep waiting, or cancel() to end the run."
                ) from None
        text = run.final_output or ""
        if _state(run) is not State.DONE:
            what = (
                f"run {self.id} was cancelled" if _state(run) is State.CANCELLED else f"run {self.id} failed"
            )
            why = run.error or (run.termination.value if run.termination else None)
            remedy = (
                "enqueue the work again if it is still wanted"
                if _state(run) is State.CANCELLED
                else "correct the reason, then call mailbox.dead_letters.replay(run_id)"
            )
            raise RunUnsuccessful(f"{what}: {why}" if why else what, value=self.id, remedy=remedy)
        if type is None or type is str:
            return text
        try:
            return msgspec.json.decode(text, type=type)
        except msgspec.DecodeError as error:
            name = getattr(type, "__name__", type)
            raise InvalidArgument(
                f"the answer is not of type {name}: {error}",
                value=text[:80],
                remedy="leave out type to get the text, or pass the type that the run returns",
            ) from error

    async def status(self) -> RunState:
        """Return the current state of the run.

        Raises:
            UnknownRun: The run no longer exists.
        """
        run = await self._load_run()
        stores, row = self._mailbox.stores, None
        if run.status is not RunStatus.DONE and run.dispatch_id is not None:
            row = await stores.dispatches.load_dispatch(run.dispatch_id)
        state, tickets = _state(run, row, now=stores.clock.now()), open_questions(run)
        return RunState(
            state=state,
            text=run.final_output or "",
            error=run.error,
            question=tickets[0].question if tickets and state is State.WAITING else None,
            question_id=tickets[0].tool_call_id if tickets and state is State.WAITING else None,
            enqueued_at=run.created_at,
            finished_at=run.finished_at,
        )

    async def cancel(self) -> bool:
        """Cancel the run; return False if the run has already ended."""
        return await self._mailbox.cancel(self.id)

    @_needs_question_id
    async def answer(
        self,
        text: str = "",
        *,
        question_id: str,
        approved: bool | None = None,
        by: str = "",
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer a question of the run, and resume the run.

        For a question with choices, `text` must be one of the choices. For a question with a form, `values`
        contains the form's fields.

        During a database outage, the call waits for the database.

        `mailbox.questions`, the `question` event and `status()` provide the `question_id`.

        A repeated call with the same answer and `by` has no effect.

        Raises:
            InvalidArgument: An argument has the wrong type or cannot be stored, `question_id` is missing,
                there is neither a text nor `approved`, the question does not accept such an answer, or `by`
                is longer than 64 characters, contains hidden characters, or is the server's name.
            StaleDecision: The run does not ask this question now, or the question has another answer.
        """
        refuse_other_text("the answer", text)
        refuse_other_text("by", by)
        by = check_person_name(by)
        refuse_other_text("question_id", question_id)
        if approved is not None and not isinstance(approved, bool):
            raise InvalidArgument(
                "approved must be True, False or None",
                value=repr(approved)[:80],
                remedy="pass True for yes, False for no, or leave out approved",
            )
        if not text and approved is None and values is None:
            raise InvalidArgument("the answer is empty", remedy="pass a text, or approved=True or False")
        run = await self._retry(self._load_run)
        decision = self._decision(run, question_id, text if values is None else values, approved, by)
        if _has_answer(run, question_id, decision.result, by):
            return
        request = RunActivation.new(
            self.thread_id, [], continue_run_id=self.id, decisions=[(question_id, decision)]
        )
        try:
            await self._retry(lambda: self._mailbox.admin.submit_background(request))
        except StateError as error:
            if not _has_answer(await self._retry(self._load_run), question_id, decision.result, by):
                if isinstance(error, StaleDecision):
                    raise
                raise _not_open_error(self.id, question_id, ()) from error

    def _decision(
        self,
        run: RunRecord,
        question_id: str,
        given: str | Mapping[str, Any],
        approved: bool | None,
        by: str,
    ) -> ToolCallResume:
        """Return the decision to store for an answer.

        Raises:
            InvalidArgument: The open question does not accept such an answer.
        """
        tickets = [*open_questions(run), *(answered.ticket for answered in run.answered)]
        ticket = next((item for item in tickets if item.tool_call_id == question_id), None)
        if ticket is not None and (
            ticket.asked.kind is not QuestionKind.YES_NO or not isinstance(given, str)
        ):
            value = given if isinstance(given, str) else plain(given, "the values")
            now = self._mailbox.stores.clock.now()
            answer = Given(value=value, by=person(by), at="embedded")
            try:
                decision = decision_on(ticket.asked, question_id, ticket.question, answer, now)
                return replace(decision, decision_id=uuid4().hex)
            except InvalidArgument:
                if ticket in open_questions(run):
                    raise
        words: dict[str, Json] = {"text": given if isinstance(given, str) else ""}
        result = words | ({} if approved is None else {"approved": approved})
        return ToolCallResume(decision_id=uuid4().hex, result=result, by=by)

    async def events(self, *, after: int | str | None = 0) -> AsyncIterator[RunEvent]:
        """Yield the run's events after a cursor, including new events, until the run has ended.

        `after` is the `cursor` of the last received event, or the text that browsers send as `Last-Event-ID`.
        None and 0 start at the first event.

        During a database outage, the iteration waits for the database.

        Raises:
            InvalidArgument: `after` is not a cursor.
            CursorAhead: The cursor is beyond the newest event.
        """
        if after is None:
            after = 0
        elif (
            isinstance(after, str)
            and after.isascii()
            and after.isdigit()
            and len(after) <= len(str(_MAX_CURSOR))
        ):
            after = int(after)
        if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after <= _MAX_CURSOR:
            raise InvalidArgument(
                f"`after` must be the cursor of an event: an integer up to {_MAX_CURSOR}, or None for all "
                "events",
                value=repr(after)[:80],
                remedy="pass the `cursor` of the last event that you received",
            )
        store, scope = self._mailbox.stores.events, EventScope.run(self.id)
        has_text, is_over = after > 0, False  # events up to the cursor were not read
        question: object = None
        while True:
            page = await self._retry(partial(store.list, scope, after=after, limit=_PAGE))
            for event in page.events:
                after = event.sequences[scope.key]
                run_event = _convert_event(event, after)
                if run_event is None or (run_event.type == "reset" and not has_text):
                    continue
                if run_event.type == "question":
                    if run_event.data == question:  # the run restarted, and asks the same question again
                        continue
                    question = run_event.data
                has_text = run_event.type == "text" or (has_text and run_event.type != "reset")
                yield run_event
                if run_event.type == "end":
                    return
            if not page.events:
                if is_over:  # the reader has already received the last event
                    return
                is_over = await self._retry(self._has_its_last_event)
                if not is_over:
                    await self._retry(partial(store.wait, scope, after=after))
            after = max(after, page.cursor)

    async def _wait_for_end(self) -> RunRecord:
        watch, changes = self._watch, self._mailbox.stores.store.changes
        if watch is not None and self._mailbox.is_exclusive:
            if not self._was_open and (seen := await self._retry(self._load_run)).status is RunStatus.DONE:
                return seen
            self._was_open = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOLD_WITHIN_S):
                    await watch.told.wait()
        with changes.listen(EventScope.run(self.id).key) as news:
            while (run := self._told_end()) is None:
                run = await self._retry(self._load_run)
                if run.status is RunStatus.DONE:
                    break
                await news.wait(LOOK_AGAIN_AFTER)
        return run

    def _told_end(self) -> RunRecord | None:
        run = None if self._watch is None else self._watch.run
        return run if run is not None and run.run_id == self.id else None

    async def _has_its_last_event(self) -> bool:
        run = await self._load_run()
        if run.status is not RunStatus.DONE:
            return False
        row = run.dispatch_id and await self._mailbox.stores.dispatches.load_dispatch(run.dispatch_id)
        return not row or row.status.is_terminal

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T:
        return await retried(step, SystemTimer())

    async def _load_run(self) -> RunRecord:
        run = await self._mailbox.stores.threads.load_run(self.id)
        if run is None:
            raise unknown_run(self.id)
        return run


def _has_answer(run: RunRecord, question_id: str, result: Json, by: str) -> bool:
    """Return whether the question already has the given answer, or False for an open question.

    Raises:
        StaleDecision: The question has another answer, or the run does not ask it.
    """
    tickets = open_questions(run)
    if any(question.tool_call_id == question_id for question in tickets):
        return False
    given_resumes = [
        answered.decision for answered in run.answered if answered.ticket.tool_call_id == question_id
    ]
    if given_resumes and (given_resumes[-1].result, given_resumes[-1].by) == (
        result,
        by,
    ):
        return True
    raise _not_open_error(run.run_id, question_id, tickets, is_answered=bool(given_resumes))


def _not_open_error(
    run_id: str, question_id: str, asked: Sequence[RunWaitingTicket], *, is_answered: bool = False
) -> StaleDecision:
    now = ", and ".join(f"{ticket.question!r} (id {ticket.tool_call_id!r})" for ticket in asked) or "nothing"
    why = f"run {run_id} does not ask question {question_id!r} now"
    if is_answered:
        why = f"question {question_id!r} of run {run_id} has another answer already"
    return StaleDecision(
        f"{why}; the run asks {now}",
        value=question_id,
        remedy="read the open question, then answer it by its id" if asked else "no answer is needed",
        details={"open": [ticket.tool_call_id for ticket in asked]},
    )


def unknown_run(run_id: str) -> UnknownRun:
    """Return the error for an unknown run id."""
    return UnknownRun(
        f"there is no run {run_id!r}",
        value=run_id,
        remedy="pass the `id` of a handle that `enqueue` returned; old runs are deleted by retention",
    )


def open_questions(run: RunRecord) -> list[RunWaitingTicket]:
    """Return the open questions of a waiting run."""
    is_waiting = run.status is RunStatus.WAITING
    return [ticket for ticket in run.open_tickets if is_waiting and ticket.tool_name != SLEEP]


def _state(run: RunRecord, row: RunDispatch | None = None, *, now: int = 0) -> State:
    if row is not None and row.status is RunDispatchStatus.CLAIMED:
        return State.RUNNING
    if row is not None and row.status is RunDispatchStatus.QUEUED:
        is_waiting = run.status is RunStatus.WAITING and row.available_at > now
        return State.WAITING if is_waiting else State.QUEUED
    if run.status is RunStatus.DONE:
        end = run.termination.type if run.termination else TerminationKind.NATURAL_END
        if end is TerminationKind.CANCELLED:
            return State.CANCELLED
        return State.FAILED if end is TerminationKind.ERROR else State.DONE
    return {
        RunStatus.CREATED: State.QUEUED,
        RunStatus.RUNNING: State.RUNNING,
        RunStatus.WAITING: State.WAITING,
    }[run.status]


def _convert_event(event: CanonicalEvent, cursor: int) -> RunEvent | None:
    facts = event.payload
    if event.event_kind == TEXT:
        return RunEvent(cursor=cursor, type="text", text=facts.get("delta", ""))
    if event.event_kind == RESET:
        return RunEvent(cursor=cursor, type="reset", text=facts.get("reason", ""))
    if event.event_kind == ATTEMPT_FAILED:
        return RunEvent(cursor=cursor, type="reset", text=facts.get("error", ""), data=facts)
    if event.event_kind == STEP:
        return RunEvent(cursor=cursor, type="step", text=facts["name"], data=facts["value"])
    if event.event_kind == LOGGED:
        return RunEvent(cursor=cursor, type="log", text=facts["text"], data=facts)
    if event.event_kind == WAITS:
        return RunEvent(cursor=cursor, type="question", text=facts["question"], data=facts)
    if event.event_kind == ENDED:
        return RunEvent(cursor=cursor, type="end", text=facts["text"], data=facts)
    return None
