"""The view of runs for people, who cancel and retry runs on pages and at the command line."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from postroom.contracts.chat import CHAT_THREAD
from postroom.contracts.clock import iso
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, UnknownDispatch, UnknownRun
from postroom.contracts.events import EventScope
from postroom.contracts.plain_answers import check_person_name
from postroom.contracts.run_stores import MAX_PAGE, RunCursor, RunQuery, ThreadQuery
from postroom.contracts.runs import CANCELLED_BY, RunRecord
from postroom.contracts.tasks import TaskDecision
from postroom.contracts.work import (
    SHOWN_STATES,
    ChatWork,
    FailedRuns,
    FoundRuns,
    HealthFact,
    Output,
    QueuedRun,
    QueueState,
    RunAtWork,
    RunSearch,
    Work,
    WorkCounts,
    WorkState,
)
from postroom.dispatch.sinks import ALL_KEPT, SHOWN, output_after, read_output
from postroom.mail.catching_up import CaughtUpView, catch_up
from postroom.mail.commands import CatchUp
from postroom.mail.context import Caller
from postroom.mail.conversation import here
from postroom.mail.identity import find_person
from postroom.mail.projects import find_project
from postroom.mail.service import Mail
from postroom.mail.tasks import decide_task
from postroom.mail.tasks import views as task_views
from postroom.mail.waking.prompts import messages_named
from postroom.services.administration import DeadLetterView, DecidedTaskView, OpenTaskView
from postroom.services.cut_ids import whole_id
from postroom.services.floor import (
    MAX_DEAD,
    dispatch_of,
    equal_failures,
    floor_of,
    state_of,
    waiting_messages,
    work_of,
)
from postroom.services.last_lines import last_lines, newest_events, output_in
from postroom.services.questions import MAX_COUNTED, home_of, place_of
from postroom.services.run_story import Story, story_of
from postroom.services.runs import (
    RunService,
    dispatches_of,
    open_runs,
    owner_of,
    project_threads,
    whose,
)
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.store import Transaction

_TWO: Final = 2
"""Maximum number of ids that are read for a prefix; two are enough to see that it is ambiguous."""
FOUND: Final = 50
"""Number of runs on a page."""
AMONG: Final = 2_000
"""Maximum number of runs that a page reads for its search."""
_ORDER: Final[tuple[WorkState, ...]] = ("at work", "queued", "asks", "done", "cancelled", "failed")
_OPEN: Final[tuple[WorkState, ...]] = ("at work", "queued", "asks")


class WorkService:
    """Implements the operator's routes and the pages for runs.

    Methods that take a transaction read the content of a page.
    """

    floor = staticmethod(floor_of)
    waiting = staticmethod(waiting_messages)

    def __init__(
        self,
        runs: RunService,
        mail: Mail,
        health: Callable[[], Awaitable[Sequence[HealthFact]]],
    ) -> None:
        """Create the service.

        `health` returns the state of the server.
        """
        self._runs = runs
        self.store = runs.stores.store
        self._mail = mail
        self.health = health

    async def slug(self, project: str) -> str:
        """Return the slug of the project with a given path or slug.

        Raises:
            UnknownProject: No such project exists.
        """
        return await self._mail.slug(project)

    async def open_tasks(self, project: str | None) -> Sequence[OpenTaskView]:
        """Return open tasks of one or all projects, claimed tasks first, at most 50 per project."""

        def look(tx: MailReads) -> list[OpenTaskView]:
            projects = tx.projects(limit=MAX_PAGE) if project is None else [find_project(tx, project)]
            results = list[OpenTaskView]()
            for item in projects:
                tasks = [
                    task
                    for state in ("claimed", "review", "blocked", "ready")
                    for task in tx.tasks_in(item.id, state, after=(-1, 0), limit=FOUND)
                ]
                shown = task_views(tx, item, tasks[:FOUND], now=tx.now())
                results += [{**task, "project": item.slug} for task in shown]
            return results

        return await self._mail.store.read(look)

    async def decide_task(
        self, project: str, task: int, name: str, *, answer: TaskDecision, why: str
    ) -> DecidedTaskView:
        """Accept, reject or cancel a task for a person, and notify the agent that finished or holds the task.

        Raises:
            UnknownAgent, UnknownTask: No such person or task exists.
            TaskNotReady: The task has ended, or it is not in review and the person accepts or rejects it.
        """

        def change(tx: MailWrites) -> DecidedTaskView:
            home, person = find_person(tx, tx, name)
            of = find_project(tx, project)
            tx.lock_projects({home.id, of.id})
            context = self._mail.context(tx, Caller(postroom=True, operator=True))
            decided = decide_task(context, of, task, home=home, by=person, answer=answer, why=why)
            return {"task": decided.id, "state": decided.state}

        return await self._mail.store.write(change)

    async def dead(self) -> Sequence[DeadLetterView]:
        """Return up to 500 dead letters of agents and chats, oldest first."""
        return [_work_view(dispatch) for dispatch in await self.store.read(lambda tx: _dead(tx, ""))]

    def dead_in_chats(self, tx: Transaction) -> Sequence[ChatWork]:
        """Return the failed runs of chats, newest first."""
        works = list[ChatWork]()
        for row in reversed(_dead(tx, CHAT_THREAD)):
            run = tx.runs.threads.load_run(row.run_id)
            if run is not None:
                ids = tuple(run.input.trigger_message_ids) if run.input else ()
                records = tx.runs.messages.named(run.thread_id, ids)
                text = " · ".join(record.message.text() for record in records)
                works.append(ChatWork(work_of(run, row), text, *place_of(tx, run)))
        return works

    def failed(self, tx: Transaction) -> Sequence[FailedRuns]:
        """Return all dead letters of agents and chats, grouped by error, newest group first."""
        return failed_runs(tx)

    async def failed_runs(self) -> Sequence[FailedRuns]:
        """Return all dead letters of agents and chats, grouped by error, newest group first."""
        return await self.store.read(self.failed)

    def active(self, tx: Transaction, most: int) -> tuple[Sequence[RunAtWork], int]:
        """Return up to `most` active runs of all projects, and the number of all active runs.

        The runs are ordered by start.
        """
        rows = list(dispatches_of(tx, RunDispatchStatus.CLAIMED, project_threads("")))
        items = list[RunAtWork]()
        for row in rows[:most]:
            project, agent = whose(row.thread_id)
            text, heard_at = last_lines(tx, row.run_id)
            items.append(
                RunAtWork(
                    run_id=row.run_id,
                    project=project,
                    agent=agent,
                    since_at=row.claimed_at or row.updated_at,
                    heard_at=heard_at,
                    last_line=(text.splitlines() or [""])[-1],
                )
            )
        return items, len(rows)

    async def works(self, slug: str) -> Sequence[Work]:
        """Return the runs of a project, or of all projects and chats for "".

        Open runs come first, then dead letters, then ended runs of agents.
        """

        def look(tx: Transaction) -> list[Work]:
            known_works, ended = (
                self.unsettled(tx, slug),
                self.found(tx, slug, RunSearch(state="ended")).works,
            )
            ids = {work.run_id for work in known_works}
            return [*known_works, *(work for work in ended if work.run_id not in ids)]

        return await self.explained(await self.store.read(look))

    def unsettled(self, tx: Transaction, slug: str) -> Sequence[Work]:
        """Return the open runs and then the dead letters of a project, or of all projects for ""."""
        threads = project_threads(slug) if slug else ""
        dead = [tx.runs.threads.load_run(dispatch.run_id) for dispatch in _dead(tx, threads)]
        runs = [*open_runs(tx, threads), *(run for run in dead if run is not None)]
        works = [work_of(run, dispatch_of(tx, run)) for run in {run.run_id: run for run in runs}.values()]
        going = [work for work in works if work.state in _OPEN]
        return [
            *sorted(going, key=lambda one: (_ORDER.index(one.state), one.created_at)),
            *(work for work in works if work.state not in _OPEN),
        ]

    def found(self, tx: Transaction, slug: str, wanted: RunSearch) -> FoundRuns:
        """Return up to 50 runs of a project that match a search, last changed first.

        "" means all projects.
        """
        runs, place, is_full = _found(slug, wanted, tx)
        return FoundRuns([work_of(run, dispatch_of(tx, run)) for run in runs], place, is_full)

    async def explained(self, works: Sequence[Work]) -> list[Work]:
        """Return the runs with the reasons why queued runs are not executing yet."""
        return [await self._explain(work) if work.state == "queued" else work for work in works]

    async def _explain(self, work: Work) -> Work:
        if work.why or work.dispatch_id is None:
            return work
        try:
            reason = await self._runs.mailbox.why_not(work.dispatch_id)
        except UnknownDispatch:
            return replace(work, why="it has just ended", can_hasten=False)
        can_hasten = work.can_hasten and reason.until is not None
        return replace(
            work, why=reason.text, until=reason.until, gate=reason.why.value, can_hasten=can_hasten
        )

    def counts(self, tx: Transaction, slug: str) -> WorkCounts:
        """Return the number of open runs, questions and failures in a project."""
        prefix = project_threads(slug)
        return WorkCounts(
            open_runs=tx.runs.threads.count_open(prefix),
            questions=tx.runs.threads.count_asked([home_of(slug)], MAX_COUNTED + 1)[0],
            failures=_count_failures(tx, prefix),
        )

    def for_people(self, tx: Transaction, slugs: Sequence[str], most: int) -> dict[str, int]:
        """Return the number of questions and failures that need people, keyed by project."""
        due = tx.runs.threads.count_asked([home_of(slug) for slug in slugs], most + 1)
        return {
            slug: asked + _count_failures(tx, project_threads(slug))
            for slug, asked in zip(slugs, due, strict=True)
        }

    def work(self, tx: Transaction, named: str) -> Work:
        """Return a run by run id or dispatch id.

        A unique prefix of the id is enough.

        Raises:
            UnknownRun: No such run exists.
            InvalidArgument: Several ids have this prefix.
        """
        if (run := tx.runs.threads.load_run(named)) is None:
            begun_so = tx.runs.threads.list_runs(RunQuery(id_prefix=named), _TWO)
            runs = {run.run_id: run.run_id for run in begun_so}
            dispatches = tx.runs.dispatches.begun_with(named, _TWO)
            known_values = dispatches if named in dispatches else runs or dispatches
            meant = whole_id(named, known_values, what="runs", remedy="list the runs: `postroom runs list`")
            run = None if meant is None else tx.runs.threads.load_run(known_values[meant])
        if run is None:
            raise UnknownRun(f"there is no run {named!r}", value=named)
        return work_of(run, dispatch_of(tx, run))

    async def output(self, run_id: str, *, whole: bool = False) -> Output:
        """Return the end of a run's stored output, or the whole output."""
        most = ALL_KEPT if whole else SHOWN
        return await read_output(self._runs.stores.events, EventScope.run(run_id), most=most)

    def last_output(self, tx: Transaction, run_id: str) -> Output:
        """Return the end of a run's output so far, from the newest events."""
        events, newest, is_cut = newest_events(tx, run_id, MAX_PAGE)
        return output_in(events, newest, is_cut=is_cut)

    async def output_after(self, run_id: str, after: int) -> tuple[str, int]:
        """Return a run's output after a log position, and the position of the next page.

        Raises:
            CursorAhead, CursorExpired: The log does not have this position.
        """
        return await output_after(self._runs.stores.events, EventScope.run(run_id), after)

    def caught_up(self, tx: Transaction, slug: str, hours: int) -> CaughtUpView:
        """Return a summary of the events in a project within the last hours.

        Raises:
            UnknownProject: No such project exists.
        """
        return catch_up(self._mail.context(tx.mail, Caller()), CatchUp(project_key=slug, hours=hours))

    def heard_at(self, tx: Transaction, work: Work) -> int | None:
        """Return the time of a run's newest event or of the run's start, or None before the start."""
        return last_lines(tx, work.run_id)[1] or work.started_at

    def story(self, tx: Transaction, run_id: str) -> Story:
        """Return the steps of a run so far, and the end of the output."""
        run = tx.runs.threads.load_run(run_id)
        return Story() if run is None else story_of(tx, run)

    def standing(self, tx: Transaction, slug: str) -> QueueState:
        """Return the queued runs and the dead letters of a project's agents."""
        prefix = project_threads(slug)
        queued = [
            QueuedRun(run_id=row.run_id, agent=whose(row.thread_id)[1], since=row.updated_at)
            for row in dispatches_of(tx, RunDispatchStatus.QUEUED, prefix)
        ]
        return QueueState(
            queued=tuple(queued), given_up=frozenset(dispatch.run_id for dispatch in _dead(tx, prefix))
        )

    def at_work(self, tx: Transaction, slug: str) -> Mapping[str, int]:
        """Return the start times of a project's active runs, keyed by the agent's name in lower case."""
        return {
            name.casefold(): row.claimed_at or row.updated_at
            for row in dispatches_of(tx, RunDispatchStatus.CLAIMED, project_threads(slug))
            if (name := whose(row.thread_id)[1])
        }

    async def named(self, run_id: str) -> Work:
        """Return a run by run id or dispatch id, with the reason why a queued run waits.

        A unique prefix of the id is enough.

        Raises:
            UnknownRun, InvalidArgument: As for `work`.
        """
        work = await self.store.read(lambda tx: self.work(tx, run_id))
        return await self._explain(work) if work.state == "queued" else work

    async def cancel(self, run: str, by: str = "") -> Work:
        """Cancel a queued, active or waiting run, and notify the caller of the run.

        The questions of a waiting run are withdrawn. `by` is the name of the person who cancels the run.

        Raises:
            InvalidArgument: `by` is not a name.
            UnknownRun: No such run exists.
            IllegalTransition: The run can no longer be cancelled.
        """
        work = await self.named(run)
        named = work.run_id if work.state == "asks" else work.dispatch_id or run
        reason = f"{CANCELLED_BY}{check_person_name(by) or 'an operator'}"
        can_cancel = work.can_cancel and await self._runs.mailbox.cancel(named, reason)
        if not can_cancel:
            raise IllegalTransition(
                f"run {work.run_id} is {(await self.named(work.run_id)).state} and cannot be cancelled",
                value=run,
                remedy=f"run `postroom runs show {work.run_id}` to see how it ended",
            )
        return await self.named(work.run_id)

    async def replay(self, run: str) -> Work:
        """Retry a dead letter as a new run with the same messages, and return the new run.

        `run` is a run id or a dispatch id. Repeated calls retry a dead letter only once.

        Raises:
            UnknownRun: No such run exists.
            IllegalTransition: The run is not a dead letter, or its caller no longer waits for the answer.
        """
        work, dispatch_id = await self._given_up(run)
        if not work.can_replay:
            raise IllegalTransition(
                f"the caller of run {work.run_id} has already received the error",
                value=run,
                remedy="discard this dead letter with `postroom runs discard`; the caller can send the "
                "request again",
            )
        try:
            result = await self._runs.mailbox.replay_dead_letter(dispatch_id)
        except UnknownDispatch as error:
            raise _not_dead_error(work.run_id) from error
        return await self.named(result.run_id)

    async def discard(self, run: str) -> Work:
        """Delete a dead letter permanently, and return the run.

        The run keeps the error.

        Raises:
            UnknownRun: No such run exists.
            IllegalTransition: The run is not a dead letter.
        """
        work, dispatch_id = await self._given_up(run)
        try:
            await self._runs.mailbox.discard_dead_letter(dispatch_id)
        except UnknownDispatch as error:
            raise _not_dead_error(work.run_id) from error
        return await self.named(work.run_id)

    async def _given_up(self, run_id: str) -> tuple[Work, str]:
        work = await self.named(run_id)
        if not work.can_discard or work.dispatch_id is None:
            raise _not_dead_error(work.run_id)
        return work, work.dispatch_id

    async def hasten(self, run: str) -> Work:
        """Retry a queued run now, before the end of the retry delay.

        Raises:
            UnknownRun: No such run exists.
            IllegalTransition: The run is not waiting for a later time.
        """
        work = await self.named(run)
        if not work.can_hasten or work.dispatch_id is None:
            raise IllegalTransition(
                f"run {work.run_id} is {SHOWN_STATES[work.state]} and is not waiting for its next attempt",
                value=run,
                remedy=(
                    "only a run that waits for its next attempt can be retried now; `postroom runs why "
                    "{work.run_id}` explains the state of this run"
                ),
            )
        await self._runs.mailbox.hasten(work.dispatch_id)
        return await self.named(work.run_id)


def _count_failures(tx: Transaction, prefix: str) -> int:
    """Return the number of failures on threads with a prefix, counting repeated failures once."""
    return len(set(map(_failure, tx.runs.dispatches.dead_errors(prefix, MAX_DEAD))))


def _failure(dead: tuple[str, str]) -> tuple[str, ...]:
    return *owner_of(dead[0]), dead[1]


def failed_runs(tx: Transaction) -> Sequence[FailedRuns]:
    """Return all dead letters of agents and chats, grouped by error, newest group first."""
    return equal_failures(_dead(tx, ""))


def _dead(tx: Transaction, prefix: str) -> list[RunDispatch]:
    return list(islice(dispatches_of(tx, RunDispatchStatus.DEAD_LETTER, prefix), MAX_DEAD))


def _found(slug: str, wanted: RunSearch, tx: Transaction) -> tuple[list[RunRecord], RunCursor | None, bool]:
    """Return the runs that a search finds, the next page's cursor, and whether the search is complete."""
    words = wanted.text.casefold().split()
    project = tx.mail.project(slug) if slug else None
    runs, run_records, looked, place = _newest(tx, slug, wanted), list[RunRecord](), 0, wanted.before
    while batch := list(islice(runs, FOUND)):
        ids = {
            run.run_id: messages_named(run.input.trigger_message_ids if run.input else ()) for run in batch
        }
        began = (
            tx.mail.messages(sorted({number for each in ids.values() for number in each})) if words else {}
        )
        shown = list(began.values()) if project is None else here(tx.mail, project, list(began.values()))
        subjects = {message.id: message.subject for message in shown if message.recalled_at is None}
        for run in batch:
            if len(run_records) == FOUND or looked == AMONG:
                return run_records, place, len(run_records) == FOUND
            if run.updated_at < wanted.since:  # all others changed before this run
                return run_records, None, True
            looked, place = looked + 1, _place(run)
            texts = (whose(run.thread_id)[1], run.run_id, run.final_output or "", run.error or "")
            text = "\n".join([*texts, *(subjects.get(number, "") for number in ids[run.run_id])]).casefold()
            if all(word in text for word in words) and _is_in(tx, run, wanted.state):
                run_records.append(run)
    return run_records, None, True


def _newest(tx: Transaction, slug: str, wanted: RunSearch) -> Iterator[RunRecord]:
    agent = wanted.agent.casefold()

    def is_of_agent(thread_id: str) -> bool:
        return not agent or whose(thread_id)[1].casefold() == agent

    if wanted.state in _OPEN:  # there are only a few of them, however old they are
        runs = sorted(open_runs(tx, project_threads(slug)), key=_place, reverse=True)
        yield from (run for run in runs if _place(run) < wanted.before and is_of_agent(run.thread_id))
        return
    threads, after = list[str](), ""
    while page := tx.runs.threads.list(ThreadQuery(id_prefix=project_threads(slug), after=after), MAX_PAGE):
        after = page[-1].id
        threads += [thread.id for thread in page if is_of_agent(thread.id)]
    yield from tx.runs.threads.newest_runs(threads, wanted.before)


def _place(run: RunRecord) -> RunCursor:
    return RunCursor(run.updated_at, run.created_at, run.run_id)


def _is_in(tx: Transaction, run: RunRecord, state: str) -> bool:
    if state in ("", "ended"):
        return not state or not run.is_open
    return state_of(run, dispatch_of(tx, run) if run.is_open else None) == state


def _not_dead_error(run_id: str) -> IllegalTransition:
    return IllegalTransition(
        f"run {run_id} is not a dead letter",
        value=run_id,
        remedy="list the dead letters with `postroom runs dead`; replayed and discarded ones are no longer "
        "listed",
    )


def _work_view(dispatch: RunDispatch) -> DeadLetterView:
    agent, project, chat = owner_of(dispatch.thread_id)
    return {
        "agent": agent,
        "project": project,
        "chat": chat,
        "dispatch_id": dispatch.dispatch_id,
        "run_id": dispatch.run_id,
        "thread_id": dispatch.thread_id,
        "attempts": dispatch.failed_attempts,
        "interruptions": dispatch.interruption_count,
        "since": iso(dispatch.updated_at),
        "error": dispatch.last_error,
    }
