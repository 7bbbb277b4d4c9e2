"""Operations for operators on unread messages, open questions and dead letters."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, InvalidArgument, UnknownDispatch
from postroom.contracts.messages import Message, PendingMessage
from postroom.contracts.questions import schema_of
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.embedded.handle import RunHandle, open_questions, unknown_run
from postroom.embedded.items import refuse_other_id, refuse_other_text

if TYPE_CHECKING:
    from postroom.embedded.mailbox import Mailbox


class Pending:
    """The unread messages of threads, which can be edited, withdrawn or reordered."""

    def __init__(self, mailbox: "Mailbox") -> None:
        self._queue = mailbox.admin

    async def list(self, thread: str) -> tuple[PendingMessage, ...]:
        """Return the unread messages of a thread in order."""
        _refuse_other_texts(thread)
        return await self._queue.pending(thread)

    async def edit(self, thread: str, id: str, text: str) -> PendingMessage:
        """Replace the text of an unread message.

        Raises:
            AlreadyConsumed, UnknownMessage: A run has read the message, or the message does not exist.
        """
        _refuse_other_texts(thread, id)
        refuse_other_text("the text of a message", text)
        return await self._queue.edit_pending(thread, Message.user(text, id=id))

    async def retract(self, thread: str, id: str) -> PendingMessage:
        """Withdraw an unread message.

        Raises:
            AlreadyConsumed, UnknownMessage: A run has read the message, or the message does not exist.
        """
        _refuse_other_texts(thread, id)
        return await self._queue.retract_pending(thread, id)

    async def reorder(self, thread: str, ids: Sequence[str]) -> tuple[PendingMessage, ...]:
        """Change the order of a thread's unread messages.

        Raises:
            VersionConflict, InvalidRecord: `ids` are not the ids of the unread messages.
        """
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
            raise InvalidArgument(
                f"ids must be a list of message ids, not {type(ids).__name__}",
                value=repr(ids)[:80],
                remedy="pass the ids of all messages that pending.list(thread) returns, in the new order",
            )
        _refuse_other_texts(thread, *ids)
        return await self._queue.reorder_pending(thread, ids)


def _refuse_other_texts(thread: str, *ids: str) -> None:
    refuse_other_id("the id of a thread", thread)
    for id in ids:
        refuse_other_id("the id of a message", id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question of a waiting run.

    `at` is the time of the question in milliseconds since 1970.
    """

    question_id: str
    """The id that `RunHandle.answer` requires. No later question of the run has the same id."""
    run_id: str
    thread_id: str
    text: str
    at: int
    choices: tuple[str, ...] = ()
    """The choices, if the question has any."""
    form: Mapping[str, Any] | None = None
    """The JSON schema of the fields, if the question has a form."""


class Questions:
    """The open questions of all runs in the database."""

    def __init__(self, mailbox: "Mailbox") -> None:
        self._threads = mailbox.stores.threads

    async def __aiter__(self) -> AsyncIterator[OpenQuestion]:
        """Yield the open questions, ordered by run id."""
        query = RunQuery(statuses=(RunStatus.WAITING,))
        while page := await self._threads.list_runs(query):
            for run in page:
                for question in open_questions(run):
                    yield OpenQuestion(
                        question_id=question.tool_call_id,
                        run_id=run.run_id,
                        thread_id=run.thread_id,
                        text=question.question,
                        at=question.updated_at,
                        choices=question.asked.choices,
                        form=schema_of(question.asked) if question.asked.fields else None,
                    )
            query = replace(query, after=page[-1].run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A failed run with the last error and the number of failed attempts.

    `at` is in milliseconds since 1970. `interruptions` is the number of executions that ended early because a
    server stopped or a lease was lost.
    """

    run_id: str
    thread_id: str
    error: str
    attempts: int
    at: int
    interruptions: int = 0


class DeadLetters:
    """The failed runs that an operator must replay or discard."""

    def __init__(self, mailbox: "Mailbox") -> None:
        self._mailbox = mailbox
        self._queue = mailbox.admin

    async def __aiter__(self) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters, oldest first."""
        last: RunDispatch | None = None
        while page := await self._queue.dead_letters(after=last):
            for row in page:
                yield DeadLetter(
                    run_id=row.run_id,
                    thread_id=row.thread_id,
                    error=row.last_error or "",
                    attempts=row.failed_attempts,
                    at=row.updated_at,
                    interruptions=row.interruption_count,
                )
            last = page[-1]

    async def replay(self, run_id: str) -> RunHandle:
        """Retry a dead letter as a new run with the same messages, and return the handle of the new run.

        Raises:
            UnknownRun, IllegalTransition: No such dead letter exists, or its thread has an open question.
        """
        dispatch_id = await self._find_dispatch(run_id)
        try:
            again = await self._queue.replay_dead_letter(dispatch_id)
        except UnknownDispatch as error:  # another caller has already replayed it
            raise _no_dead_letter(run_id) from error
        return RunHandle(self._mailbox, again.thread_id, again.run_id)

    async def discard(self, run_id: str) -> None:
        """Delete a dead letter permanently.

        The run keeps the error.

        Raises:
            UnknownRun, IllegalTransition: No such dead letter exists.
        """
        dispatch_id = await self._find_dispatch(run_id)
        try:
            await self._queue.discard_dead_letter(dispatch_id)
        except UnknownDispatch as error:  # another caller has already discarded it
            raise _no_dead_letter(run_id) from error

    async def _find_dispatch(self, run_id: str) -> str:
        refuse_other_id("the id of a run", run_id)
        stores = self._mailbox.stores
        run = await stores.threads.load_run(run_id)
        if run is None:
            raise unknown_run(run_id)
        row = run.dispatch_id and await stores.dispatches.load_dispatch(run.dispatch_id)
        if not row or row.status is not RunDispatchStatus.DEAD_LETTER:
            raise _no_dead_letter(run_id)
        return row.dispatch_id


def _no_dead_letter(run_id: str) -> IllegalTransition:
    return IllegalTransition(
        f"run {run_id!r} is not a dead letter",
        value=run_id,
        remedy="list `mailbox.dead_letters`; a run that was replayed or discarded is no longer listed",
    )
