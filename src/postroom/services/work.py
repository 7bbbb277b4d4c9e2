"""Runs as people see them, at the pages and at the command line: looked at, ended, tried again."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from postroom.contracts.chat import CHAT_THREAD
from postroom.contracts.clock import iso
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, UnknownDispatch, UnknownRun
from postroom.contracts.events import EventScope
from postroom.contracts.run_stores import MAX_PAGE, RunCursor, RunQuery, ThreadQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.work import (
    ChatWork,
    Floor,
    FoundRuns,
    HealthFact,
    Output,
    QueuedRun,
    QueueState,
    RunSearch,
    Waiting,
    Work,
    WorkCounts,
    WorkState,
)
from postroom.dispatch.sinks import ALL_KEPT, SHOWN, output_after, output_of
from postroom.gateway.replies import inbound_ids_of, target_of
from postroom.gateway.sessions import chat_of
from postroom.mail.conversation import here
from postroom.mail.service import Mail
from postroom.mail.waking.open_questions import why_held
from postroom.mail.waking.prompts import messages_named
from postroom.services.cut_ids import whole_id
from postroom.services.floor import dispatch_of, floor_of, open_runs, state_of, work_of
from postroom.services.questions import asked_in
from postroom.services.run_story import Story, story_of
from postroom.services.runs import RunService, project_threads, whose
from postroom.stores.transaction import Transaction

_MOST: Final = 500
_TWO: Final = 2
"""Ids that are looked at by what they begin with: a second one is enough to say that several do."""
FOUND: Final = 50
"""Runs of a page."""
AMONG: Final = 2_000
"""Runs that one page looks at for those that a search asks for."""
_ORDER: Final[tuple[WorkState, ...]] = ("at work", "queued", "asks", "done", "cancelled", "failed")
_OPEN: Final[tuple[WorkState, ...]] = ("at work", "queued", "asks")


class WorkService:
    """Answers the operator's routes and pages to runs."""

    def __init__(
        self,
        runs: RunService,
        mail: Mail,
        health: Callable[[], Awaitable[Sequence[HealthFact]]] | None = None,
    ) -> None:
        """`health` says how the server is; without it nothing is told of that."""
        self._runs = runs
        self._mail = mail
        self._health = health

    async def slug(self, project: str) -> str:
        """Return the slug of the project that a path or slug names.

        Raises:
            UnknownProject: there is none.
        """
        return await self._mail.slug(project)

    async def dead(self) -> Sequence[Mapping[str, object]]:
        """Return the dead letters, also those of chats, oldest first, up to 500."""
        return [_shown(one) for one in await self._dead("")]

    async def dead_in_chats(self) -> Sequence[ChatWork]:
        """Return the runs of chats that were given up, the newest first."""
        threads, found = self._runs.stores.threads, list[ChatWork]()
        for row in reversed(await self._dead(CHAT_THREAD)):
            run = await threads.load_run(row.run_id)
            if run is not None:
                ids = run.input.trigger_message_ids if run.input else ()
                records = await threads.load_message_records(run.thread_id, ids)
                asked = " · ".join(one.message.text() for one in records)
                look = partial(chat_of, thread_id=run.thread_id, inbound_ids=inbound_ids_of(run))
                source = await self._runs.stores.store.read(look)
                where = (
                    (target_of(run.thread_id), "")
                    if source is None
                    else (source.address.name, source.description)
                )
                found.append(ChatWork(await self._of(run), asked, *where))
        return found

    async def count_dead_in_chats(self) -> int:
        """Count the runs of chats that were given up, up to 500."""
        return await self._runs.stores.store.read(
            lambda tx: tx.runs.dispatches.count_dead(CHAT_THREAD, _MOST)
        )

    async def works(self, slug: str) -> Sequence[Work]:
        """Return the runs of a project's agents, or with "" of all agents and chats.

        Those not done come first, then the dead letters, then the last ended, of agents alone.
        """
        ended = await self.found(slug, RunSearch(state="ended"))
        known = await self.unsettled(slug)
        return [*known, *(one for one in ended.works if one.run_id not in {work.run_id for work in known})]

    async def unsettled(self, slug: str) -> Sequence[Work]:
        """Return the runs that are not done, then the dead letters, of a project or with "" of all."""
        stores = self._runs.stores
        threads = project_threads(slug) if slug else ""
        dead = [await stores.threads.load_run(one.run_id) for one in await self._dead(threads)]
        runs = [*await self._runs.open(slug or None), *(run for run in dead if run is not None)]
        found = [await self._of(run) for run in {run.run_id: run for run in runs}.values()]
        going = [one for one in found if one.state in _OPEN]
        return [
            *sorted(going, key=lambda one: (_ORDER.index(one.state), one.created_at)),
            *(one for one in found if one.state not in _OPEN),
        ]

    async def found(self, slug: str, wanted: RunSearch) -> FoundRuns:
        """Return up to 50 runs of a project's agents, or with "" of all agents, the last changed first.

        At most 2,000 runs are looked at.
        """
        look = partial(_found, slug, wanted)
        runs, place, is_full = await self._runs.stores.store.read(look)
        return FoundRuns([await self._of(run) for run in runs], place, is_full)

    async def counts(self, slug: str) -> WorkCounts:
        """Return how many runs of a project's agents are open, ask, and are dead letters."""
        prefix = project_threads(slug)

        def counted(tx: Transaction) -> tuple[int, int]:
            return tx.runs.threads.count_open(prefix), tx.runs.dispatches.count_dead(prefix, _MOST)

        open_runs, dead = await self._runs.stores.store.read(counted)
        asking = await self._runs.open(slug, (RunStatus.WAITING,))
        return WorkCounts(open_runs=open_runs, questions=len(asked_in(asking)), given_up=dead)

    async def for_people(self, slugs: Sequence[str]) -> dict[str, int]:
        """Return by project how many questions and failed runs wait for a person; leave out zeros."""
        asking = await self._runs.open("", (RunStatus.WAITING,))
        found = Counter(whose(run.thread_id)[0] for run, _ in asked_in(asking))
        dead = await self._runs.stores.store.read(
            lambda tx: {one: tx.runs.dispatches.count_dead(project_threads(one), _MOST) for one in slugs}
        )
        return {one: number for one in slugs if (number := found[one] + dead[one])}

    async def floor(self, slug: str) -> Floor:
        """Return what goes on in a project now, in one read of the store, and how the server is."""
        found = await self._runs.stores.store.read(lambda tx: floor_of(tx, slug))
        return found if self._health is None else replace(found, health=await self._health())

    async def waiting(self, slug: str) -> Sequence[Waiting]:
        """Return the messages that wait for their reader's next run, those that wait longest first."""
        found: list[Waiting] = []
        after, prefix = "", project_threads(slug)
        while page := await self._runs.stores.threads.threads_with_pending(after=after):
            after = page[-1]
            for thread_id in page:
                if thread_id.startswith(prefix):
                    found += await self._waiting_on(thread_id)
        return sorted(found, key=lambda one: one.since_at)

    async def work(self, run_id: str) -> Work:
        """Return one run of an agent, on mail or in a chat.

        Raises:
            UnknownRun: there is none.
        """
        run = await self._runs.stores.threads.load_run(run_id)
        if run is None:
            raise UnknownRun(f"there is no run {run_id!r}", value=run_id)
        return await self._of(run)

    async def output(self, run_id: str, *, whole: bool = False) -> Output:
        """Return the end of what a run has put out so far, or all of it, as far as that was kept."""
        most = ALL_KEPT if whole else SHOWN
        return await output_of(self._runs.stores.events, EventScope.run(run_id), most=most)

    async def output_after(self, run_id: str, after: int) -> tuple[str, int]:
        """Return what a run has put out behind a number of its log, and the number to go on from.

        Raises:
            CursorAhead, CursorExpired: the log does not have it.
        """
        return await output_after(self._runs.stores.events, EventScope.run(run_id), after)

    async def story(self, run_id: str) -> Story:
        """Return what a run did so far, step by step.

        Raises:
            UnknownRun: there is none.
        """
        run = await self._runs.stores.threads.load_run(run_id)
        if run is None:
            raise UnknownRun(f"there is no run {run_id!r}", value=run_id)
        return await story_of(self._runs, self._mail, run, now=self._runs.stores.clock.now())

    async def standing(self, slug: str) -> QueueState:
        """Return which runs of a project's agents wait to be executed, and which are dead letters."""
        prefix, queued = project_threads(slug), list[QueuedRun]()
        async for row in self._of_status(RunDispatchStatus.QUEUED, prefix):
            _, name = whose(row.thread_id)
            queued.append(QueuedRun(run_id=row.run_id, agent=name, since=row.updated_at))
        dead = await self._dead(prefix)
        return QueueState(queued=tuple(queued), given_up=frozenset(one.run_id for one in dead))

    async def at_work(self, slug: str) -> Mapping[str, int]:
        """Return which agents of a project have a run at work, by name in small letters, and since when."""
        found: dict[str, int] = {}
        async for row in self._of_status(RunDispatchStatus.CLAIMED, project_threads(slug)):
            if name := whose(row.thread_id)[1]:
                found[name.casefold()] = row.claimed_at or row.updated_at
        return found

    async def _of_status(self, status: RunDispatchStatus, prefix: str) -> AsyncIterator[RunDispatch]:
        after: tuple[int, str] | None = None
        while page := await self._runs.stores.dispatches.list_by_status(
            status, limit=MAX_PAGE, after=after, thread_prefix=prefix
        ):
            after = (page[-1].updated_at, page[-1].dispatch_id)
            for row in page:
                yield row

    async def named(self, run_id: str) -> Work:
        """Return one run, named by its id or its dispatch's, or by the beginning of one.

        A beginning is that of a run's id, unless no run's begins so.

        Raises:
            UnknownRun: there is none.
            InvalidArgument: several begin so.
        """
        return await self.work(await self._run_id(run_id))

    async def cancel(self, run_id: str) -> None:
        """End a run that is queued, at work or waits for a person; whoever waits for it is told.

        The questions of one that waits are withdrawn.

        Raises:
            UnknownRun: there is none.
            IllegalTransition: it can be cancelled no more.
        """
        work = await self.named(run_id)
        named = work.run_id if work.state == "asks" else work.dispatch_id or run_id
        asked = work.can_cancel and await self._runs.mailbox.cancel(named)
        if not asked:
            raise IllegalTransition(
                f"run {work.run_id} is {(await self.work(work.run_id)).state} and cannot be cancelled",
                value=run_id,
                remedy=f"run `postroom runs show {work.run_id}` to see how it ended",
            )

    async def replay(self, run_id: str) -> Work:
        """Have a dead letter tried again, as a new run on the same messages; return the new one.

        It may be named by its dispatch. Done twice, it is tried again once. Of a chat's run the chat has the
        answer.

        Raises:
            UnknownRun: there is none.
            IllegalTransition: it is no dead letter, or whoever asked does not wait for its answer any more.
        """
        work, dispatch_id = await self._given_up(run_id)
        if not work.can_replay:
            raise IllegalTransition(
                f"the caller of run {work.run_id} has already received the error",
                value=run_id,
                remedy="let the caller ask again; discard this dead letter with `postroom runs discard`",
            )
        try:
            result = await self._runs.mailbox.replay_dead_letter(dispatch_id)
        except UnknownDispatch as error:
            raise _gone(work.run_id) from error
        return await self.work(result.run_id)

    async def discard(self, run_id: str) -> Work:
        """Take a dead letter off the list, for good; it keeps its error. Return it.

        Raises:
            UnknownRun: there is none.
            IllegalTransition: it is no dead letter.
        """
        work, dispatch_id = await self._given_up(run_id)
        try:
            await self._runs.mailbox.discard_dead_letter(dispatch_id)
        except UnknownDispatch as error:
            raise _gone(work.run_id) from error
        return await self.work(work.run_id)

    async def _given_up(self, run_id: str) -> tuple[Work, str]:
        """Return a dead letter, and its dispatch."""
        work = await self.named(run_id)
        if not work.can_discard or work.dispatch_id is None:
            raise _gone(work.run_id)
        return work, work.dispatch_id

    async def hasten(self, run_id: str) -> Work:
        """Have a queued run that is tried again later tried now.

        Raises:
            UnknownRun: there is none.
            IllegalTransition: it waits for no instant.
        """
        work = await self.named(run_id)
        if not work.can_hasten or work.dispatch_id is None:
            raise IllegalTransition(
                f"run {work.run_id} is {work.state}, and does not wait for another attempt", value=run_id
            )
        await self._runs.mailbox.hasten(work.dispatch_id)
        return await self.work(work.run_id)

    async def _dead(self, prefix: str) -> list[RunDispatch]:
        """Return the dead letters of threads whose names begin like this, oldest first, up to 500."""
        found: list[RunDispatch] = []
        async for row in self._of_status(RunDispatchStatus.DEAD_LETTER, prefix):
            found.append(row)
            if len(found) == _MOST:
                break
        return found

    async def _run_id(self, named: str) -> str:
        def look(tx: Transaction) -> dict[str, str]:
            runs = {
                run.run_id: run.run_id for run in tx.runs.threads.list_runs(RunQuery(id_prefix=named), _TWO)
            }
            dispatches = tx.runs.dispatches.begun_with(named, _TWO)
            return dispatches if named in dispatches else runs or dispatches

        found = await self._runs.stores.store.read(look)
        meant = whole_id(named, found, what="runs", remedy="see `postroom runs list`")
        return named if meant is None else found[meant]

    async def _of(self, run: RunRecord) -> Work:
        row = await self._row(run)
        state = state_of(run, row)
        why, until, gate = await self._why(run, row, state)
        return work_of(run, row, state=state, why=why, until=until, gate=gate)

    async def _row(self, run: RunRecord) -> RunDispatch | None:
        """Return the dispatch of a run, as far as it is still there and this run's."""
        if run.dispatch_id is None:
            return None
        row = await self._runs.stores.dispatches.load_dispatch(run.dispatch_id)
        return row if row is not None and row.run_id == run.run_id else None

    async def _why(
        self, run: RunRecord, row: RunDispatch | None, state: WorkState
    ) -> tuple[str, int | None, str]:
        if state == "queued":
            if row is None:
                return "it is being queued", None, ""
            try:
                reason = await self._runs.mailbox.why_not(row.dispatch_id)
            except UnknownDispatch:
                return "it has just ended", None, ""
            return reason.text, reason.until, reason.why.value
        if state == "asks":
            return why_held(whose(run.thread_id)[1], run), None, ""
        end = run.termination
        if state != "failed" or end is None:
            return "", None, ""
        return run.error or end.value or end.type.value, None, ""

    async def _waiting_on(self, thread_id: str) -> list[Waiting]:
        slug, name = whose(thread_id)
        claimed = await self._runs.stores.dispatches.claimed_dispatch(thread_id)
        asks = await self._runs.stores.threads.latest_run(thread_id)
        behind = None if claimed is None else claimed.run_id
        why = (
            "its next run takes the message"
            if claimed is None
            else "it is active, and reads this message afterwards"
        )
        if claimed is None and asks is not None and asks.status is RunStatus.WAITING:
            why, behind = why_held(name, asks), asks.run_id
        return [
            Waiting(
                message=message,
                project=slug,
                agent=name,
                since_at=one.created_at,
                why=why,
                behind_run_id=behind,
            )
            for one in await self._runs.mailbox.pending(thread_id)
            for message in messages_named([one.message.id or ""])
        ]


def _found(slug: str, wanted: RunSearch, tx: Transaction) -> tuple[list[RunRecord], RunCursor | None, bool]:
    """Return the runs that a search asks for, and how its next page begins, as `FoundRuns` says it."""
    words = wanted.text.casefold().split()
    project = tx.mail.project(slug) if slug else None
    runs, found, looked, place = _newest(tx, slug, wanted), list[RunRecord](), 0, wanted.before
    while batch := list(islice(runs, FOUND)):
        ids = {
            run.run_id: messages_named(run.input.trigger_message_ids if run.input else ()) for run in batch
        }
        began = tx.mail.messages(sorted({one for each in ids.values() for one in each})) if words else {}
        shown = list(began.values()) if project is None else here(tx.mail, project, list(began.values()))
        subjects = {one.id: one.subject for one in shown if one.recalled_at is None}
        for run in batch:
            if len(found) == FOUND or looked == AMONG:
                return found, place, len(found) == FOUND
            looked, place = looked + 1, _place(run)
            texts = (whose(run.thread_id)[1], run.run_id, run.final_output or "", run.error or "")
            said = "\n".join([*texts, *(subjects.get(one, "") for one in ids[run.run_id])]).casefold()
            if all(word in said for word in words) and _is_in(tx, run, wanted.state):
                found.append(run)
    return found, None, True


def _newest(tx: Transaction, slug: str, wanted: RunSearch) -> Iterator[RunRecord]:
    """Yield the runs of the agent that a search names, or of all, after its place: the last changed first."""
    prefix, agent = project_threads(slug), wanted.agent.casefold()

    def is_of_agent(thread_id: str) -> bool:
        return not agent or whose(thread_id)[1].casefold() == agent

    if wanted.state in _OPEN:  # of which there are few, however old they are
        runs = sorted(open_runs(tx, prefix), key=_place, reverse=True)
        yield from (run for run in runs if _place(run) < wanted.before and is_of_agent(run.thread_id))
        return
    threads, after = list[str](), ""
    while page := tx.runs.threads.list(ThreadQuery(id_prefix=prefix, after=after), MAX_PAGE):
        after = page[-1].id
        threads += [one.id for one in page if is_of_agent(one.id)]
    yield from tx.runs.threads.newest_runs(threads, wanted.before)


def _place(run: RunRecord) -> RunCursor:
    return RunCursor(run.updated_at, run.created_at, run.run_id)


def _is_in(tx: Transaction, run: RunRecord, state: str) -> bool:
    if state in ("", "ended"):
        return not state or not run.is_open
    return state_of(run, dispatch_of(tx, run) if run.is_open else None) == state


def _gone(run_id: str) -> IllegalTransition:
    return IllegalTransition(
        f"run {run_id} is not a dead letter",
        value=run_id,
        remedy="see `postroom runs dead`; a dead letter that was replayed or discarded is no longer listed",
    )


def _shown(dispatch: RunDispatch) -> dict[str, object]:
    return {
        "dispatch_id": dispatch.dispatch_id,
        "run_id": dispatch.run_id,
        "thread_id": dispatch.thread_id,
        "attempts": dispatch.failed_attempts,
        "interruptions": dispatch.interruption_count,
        "since": iso(dispatch.updated_at),
        "error": dispatch.last_error,
    }
