"""Deletes old data in small steps, according to the settings and the `[[keep]]` rules.

    every minute   entries of project logs beyond `event_keep`; results older than `answer_retention`
    every hour     messages that no rule keeps any longer; threads idle for `run_retention`, with
                   their files; bytes of unreferenced files

Each step is a separate transaction, and other callers can write after it. If the server is killed, the
remaining steps are done later.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated, Final, TypeVar

from postroom.app.config import Settings, read_tables
from postroom.app.tables import read_table
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts import progress
from postroom.contracts.clock import Timer, milliseconds
from postroom.contracts.errors import ConfigError, PostroomError
from postroom.contracts.events import EventScope
from postroom.contracts.mail import KeepRule, Project
from postroom.contracts.records import Meta
from postroom.contracts.run_stores import thread_lock
from postroom.contracts.tables import Table
from postroom.contracts.tracing import run_trace
from postroom.leases import Leases
from postroom.log import get_logger
from postroom.mail.retention import STEP as MESSAGES
from postroom.mail.retention import (
    ProjectRules,
    Verdict,
    delete_some,
    judge_messages,
    rules_of_projects,
    select_messages_to_delete,
)
from postroom.stores.chats.files import FileStore
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.store import SqlStore, Transaction

TABLE: Final = "keep"
_Text = Annotated[str, Meta(pattern=r"\S", extra={"write": "a text that is not empty"})]


class KeepTable(Table, frozen=True, kw_only=True):
    """A `[[keep]]` table: which messages are kept, and for how long."""

    project: _Text | None = None
    topic: _Text | None = None
    thread: _Text | None = None
    days: Annotated[int, Meta(ge=1, le=36_500)] | None = None
    unread_stays: bool | None = None
    hold: bool = False

    def __post_init__(self) -> None:
        if self.hold and (self.days is not None or self.unread_stays is not None):
            raise ConfigError(
                "hold keeps messages forever, so it cannot be combined with days or unread_stays",
                value="hold",
                remedy="remove days and unread_stays, or remove hold",
            )
        if not self.hold and self.days is None:
            raise ConfigError(
                "the setting days is missing",
                value="days",
                remedy="set days = 90 to keep messages for 90 days, or hold = true to keep them forever",
            )

    def rule(self) -> KeepRule:
        """Convert the configuration table to a retention rule."""
        return KeepRule(
            project=self.project,
            topic=self.topic,
            thread=self.thread,
            keep=None if self.days is None else timedelta(days=self.days),
            unread_stays=self.unread_stays is not False,
        )


def load_keep_rules(environment: Mapping[str, str]) -> tuple[KeepRule, ...]:
    """Return the `[[keep]]` rules of the configuration file, or no rules if there is no file.

    Raises:
        ConfigError: A rule is invalid.
    """
    tables = read_tables(environment, TABLE)
    return tuple(read_table(place, table, KeepTable, environment).rule() for place, table in tables)


RETENTION: Final = "retention"
"""The lease without which a server deletes nothing."""
INTERVAL: Final = timedelta(minutes=1)
HOUR: Final = 60
"""The number of intervals between two checks of all messages."""
LOOK: Final = 1_000
"""The number of messages in one check, which takes a few milliseconds."""
STEP: Final = 500
"""The number of rows that one transaction deletes.

Such a transaction takes some milliseconds, during which the server answers no caller.
"""
THREADS: Final = 10
"""The number of threads of runs that one transaction deletes, with all their messages."""
FILES: Final = 20
"""The number of files whose content one transaction removes."""
UNUSED: Final = timedelta(days=7)
"""How long unreferenced files are kept. The message of such a file may still wait for its run."""
_PAGE: Final = 500
_REST: Final = 4
"""The factor by which the pause after a step is longer than the step, so that other callers can write."""
_IS_TIMED: Final = ContextVar("is_timed", default=False)
"""Whether the work is done periodically, and not at the request of an operator."""
_LOG = get_logger(__name__)
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Preview:
    """The number of a project's messages that would be deleted or kept, keyed by reason."""

    project: str
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Add decisions about messages to the counts."""
        for verdict in verdicts:
            self.counts[verdict] = self.counts.get(verdict, 0) + 1


class Retention:
    """Deletes old data in the background, between the calls of `start` and `stop`."""

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        settings: Settings,
        store: MailStore,
        rules: Sequence[KeepRule] = (),
        *,
        runs: SqlStore | None = None,
        files: FileStore | None = None,
        timer: Timer | None = None,
        leases: Leases | None = None,
    ) -> None:
        self._event_keep = settings.event_keep
        self._answers_kept = milliseconds(settings.answer_retention)
        self._runs_kept = milliseconds(settings.run_retention)
        self._store = store
        self._rules = rules
        self._runs, self._files = runs, files
        self._timer = timer or SystemTimer()
        self._leases = leases
        self._tasks = Tasks("retention")

    @property
    def rules(self) -> int:
        """The number of retention rules."""
        return len(self._rules)

    def start(self) -> None:
        """Start the periodic deletions; the first deletion takes place after one minute."""
        self._tasks.start(self._serve(), name="timer")

    async def stop(self) -> None:
        """Stop the periodic deletions."""
        await self._tasks.close()

    async def logs(self) -> int:
        """Delete the oldest events of every project log that is too long, and return the number of events.

        Raises:
            StoreError: The store failed. Completed deletions stay.
        """
        keep, gone, after = self._event_keep, 0, 0

        def next_logs(tx: MailReads) -> list[tuple[int, int]]:
            bounds = [
                (project.id, tx.log_bounds(project.id)) for project in tx.projects(limit=_PAGE, after=after)
            ]
            return [(number, bound.newest - bound.oldest - keep) for number, bound in bounds]

        while page := await self._store.read(next_logs):
            for project_id, beyond in page:
                trimmed = 0
                while trimmed < beyond:
                    step = await self._step(partial(_trim, project_id=project_id, keep=keep))
                    if not step:
                        break
                    trimmed += step
                gone += trimmed
            after = page[-1][0]
        return gone

    async def answers(self) -> int:
        """Delete expired results of calls with an idempotency key, and return the number of results.

        Raises:
            StoreError: The store failed. Completed deletions stay.
        """
        keep_ms = self._answers_kept
        gone = 0
        while True:
            went = await self._step(lambda tx: tx.purge_answers(tx.now() - keep_ms, limit=STEP))
            gone += went
            if went < STEP:
                return gone

    async def messages(self) -> int:
        """Delete messages that no retention rule keeps, and return the number of deleted messages.

        Raises:
            UnknownProject: A rule with `hold` names a project that does not exist. Nothing was deleted.
            StoreError: The store failed. Completed deletions stay.
        """
        gone = 0
        for project, rules in await self._projects():
            delete = partial(delete_some, project_id=project.id, rules=rules)
            going: list[int] = []  # delete many pages at once: each transaction delays callers
            async for page in self._pages(
                partial(select_messages_to_delete, project_id=project.id, rules=rules), LOOK
            ):
                progress.tell("deleting messages", gone)
                going += page
                while len(going) >= MESSAGES:
                    gone += await self._step(partial(delete, ids=going[:MESSAGES]))
                    del going[:MESSAGES]
            if going:
                gone += await self._step(partial(delete, ids=going))
        return gone

    async def preview(self) -> list[Preview]:
        """Count the messages of each project that would be deleted, and the messages that would be kept.

        Raises:
            UnknownProject: As for `messages`.
            StoreError: The store failed.
        """
        counts = []
        for project, rules in await self._projects():
            preview = Preview(project=project.slug)
            look = partial(judge_messages, project_id=project.id, rules=rules)
            async for verdicts in self._pages(look, _PAGE):
                preview.add(verdicts)
                progress.tell(f"checking the messages of {project.slug}", sum(preview.counts.values()))
            counts.append(preview)
        return counts

    async def runs(self) -> int:
        """Delete threads of runs that have been idle for `run_retention`, and return the number of threads.

        Raises:
            StoreError: The store failed. Completed deletions stay.
        """
        if self._runs is None or not self._runs_kept:
            return 0
        keep_ms, store, gone = self._runs_kept, self._runs, 0
        while True:
            idle = await store.read(lambda tx: tx.runs.threads.idle(tx.now() - keep_ms, limit=THREADS))
            if not idle:
                return gone
            forget = self._guard(partial(_forget, threads=idle, kept=keep_ms))
            forgotten = await self._do_and_rest(store.write(forget))
            if not forgotten:
                return gone
            gone += forgotten

    async def files(self) -> int:
        """Delete files that no record has referenced for a week, and return the number of deleted files.

        Raises:
            StoreError: The store failed. Completed deletions stay.
        """
        if self._files is None:
            return 0
        before = await self._store.read(lambda tx: tx.now()) - milliseconds(UNUSED)
        gone = 0
        while True:
            went = await self._do_and_rest(self._files.purge(before, limit=FILES))
            gone += went
            if went < FILES:
                return gone

    async def _projects(self) -> list[tuple[Project, ProjectRules]]:
        if not self._rules:
            return []

        def look(tx: MailReads) -> list[tuple[Project, ProjectRules]]:
            projects: list[Project] = []
            while page := tx.projects(limit=_PAGE, after=projects[-1].id if projects else 0):
                projects += page
            rules = rules_of_projects(tx, self._rules, [project.id for project in projects])
            return [(project, rules[project.id]) for project in projects if rules[project.id].rules]

        return await self._store.read(look)

    async def _pages(
        self, look: Callable[..., tuple[list[T], int | None]], limit: int
    ) -> AsyncIterator[list[T]]:
        after: int | None = 0
        while after is not None:
            page, after = await self._do_and_rest(self._store.read(partial(look, after=after, limit=limit)))
            yield page

    async def _step(self, change: Callable[[MailWrites], int]) -> int:
        if self._runs is None:
            return await self._do_and_rest(self._store.write(change))
        return await self._do_and_rest(self._runs.write(self._guard(lambda tx: change(tx.mail))))

    def _guard(self, change: Callable[[Transaction], int]) -> Callable[[Transaction], int]:
        return self._leases.guarded(RETENTION, change) if self._leases and _IS_TIMED.get() else change

    async def _do_and_rest(self, step: Awaitable[T]) -> T:
        clock = asyncio.get_running_loop().time
        began = clock()
        done = await step
        await self._timer.sleep(max(1, round((clock() - began) * 1000 * _REST)))
        return done

    async def _serve(self) -> None:
        _IS_TIMED.set(True)
        minutes = 0
        while True:
            await self._timer.sleep(milliseconds(INTERVAL))
            jobs = [("events", self.logs), ("answers", self.answers)]
            if minutes % HOUR == 0:
                jobs += [("messages", self.messages), ("threads of runs", self.runs), ("files", self.files)]
            for what, job in jobs:
                if self._leases is None or self._leases.holds(RETENTION):
                    try:
                        if gone := await job():
                            _LOG.info("retention.deleted", what=what, count=gone)
                    except PostroomError as error:
                        _LOG.warning("retention.failed", what=what, code=error.code, reason=error.message)
            minutes += 1


def _trim(tx: MailWrites, *, project_id: int, keep: int) -> int:
    return tx.trim_log(project_id, keep=keep, limit=STEP)


def _forget(tx: Transaction, *, threads: Sequence[str], kept: int) -> int:
    tx.lock(*map(thread_lock, threads))
    idle = tx.runs.threads.idle(tx.now() - kept, limit=len(threads), among=threads)
    runs = tx.runs.threads.list_run_ids(idle)
    scopes = [
        *map(EventScope.thread, idle),
        *map(EventScope.run, runs),
        *map(EventScope.questions, runs),
    ]
    tx.events.drop([scope.key for scope in scopes])
    tx.mail.drop_traces([run_trace(run_id) for run_id in runs])
    tx.mail.drop_attempts(runs)
    tx.chats.drop_files(idle)
    for thread_id in idle:
        tx.runs.threads.delete(thread_id, "detach")
    return len(idle)
