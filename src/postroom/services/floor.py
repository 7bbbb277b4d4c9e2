"""Reads the current activity of a project in one consistent view, with a limited number of queries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, Final

from postroom.contracts.dispatch import LEASE_ENDED, OWNER_GONE, RunDispatch, RunDispatchStatus
from postroom.contracts.mail import Attempt, Message, Project, Reservation, Span
from postroom.contracts.run_stores import MAX_PAGE
from postroom.contracts.runs import ASKING, RunRecord, RunStatus, TerminationKind
from postroom.contracts.work import (
    FailedRuns,
    Floor,
    HealthFact,
    Held,
    OwedMessage,
    ReservationConflict,
    Stretch,
    Waiting,
    Waits,
    Work,
    WorkState,
)
from postroom.gateway.replies import has_waiting_caller
from postroom.mail.reservations import conflicts
from postroom.mail.waking.open_questions import why_held
from postroom.mail.waking.prompts import messages_named
from postroom.services.last_lines import last_lines
from postroom.services.questions import asked_in, open_question
from postroom.services.runs import dispatches_of, open_runs, owner_of, project_threads, whose
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction

MAX_LINES: Final = 16
"""Maximum number of runs whose last output lines are read."""
MAX_GIVEN_UP: Final = 8
"""Maximum number of failures that are shown; equal failures of an agent count as one."""
MAX_WAITING: Final = 8
"""Maximum number of threads whose waiting messages are read."""
MAX_DEAD: Final = 500
"""Maximum number of dead letters of a project that are counted."""
_MAX_RUNS: Final = 2_000
"""Maximum number of open runs of a project that are read, and of dispatches in each status."""
_WELL: Final = (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED)
LEASES: Final = 200
"""Maximum number of active reservations that are read, oldest first."""
LATELY: Final = 60
"""Number of a project's newest messages among which unread ones are searched."""
OWED: Final = 8
HOUR: Final = 3_600_000
"""An hour in milliseconds."""
_MAX_AGENTS: Final = 200
_MAX_STRETCHES: Final = 250
_MAX_CHAINS: Final = 12
_CHAINS: Final[tuple[WorkState, ...]] = ("asks", "failed", "queued", "at work", "cancelled", "done")
_OF_HELD: Final = tuple(field.name for field in fields(Held))
_ORDER: Final[tuple[WorkState, ...]] = ("at work", "asks", "queued")


def floor_of(tx: Transaction, slug: str, health: Sequence[HealthFact] = ()) -> Floor:
    """Return the current activity of a project."""
    prefix, now = project_threads(slug), tx.now()
    runs = list(islice(open_runs(tx, prefix), _MAX_RUNS))
    rows = {
        row.run_id: row
        for status in (RunDispatchStatus.CLAIMED, RunDispatchStatus.QUEUED)
        for row in islice(dispatches_of(tx, status, prefix), _MAX_RUNS)
    }
    why, requested_items = _Why(runs, rows, now), asked_in(runs)
    snoozed = tx.mail.snoozed([run.run_id for run, _ in requested_items], now) if requested_items else {}
    works = [work_of(run, rows.get(run.run_id) or dispatch_of(tx, run), why) for run in runs]
    works.sort(key=lambda one: (_ORDER.index(one.state), one.created_at))
    dead = list(islice(dispatches_of(tx, RunDispatchStatus.DEAD_LETTER, prefix), MAX_DEAD))
    failed = equal_failures(dead) if dead else []
    given_up = [
        work_of(run, dispatch_of(tx, run))
        for one in failed[:MAX_GIVEN_UP]
        if (run := tx.runs.threads.load_run(one.run_ids[0])) is not None
    ]
    project = tx.mail.project(slug)
    last = {work.run_id: last_lines(tx, work.run_id) for work in (*works, *given_up)[:MAX_LINES]}
    return Floor(
        **({} if project is None else _of_mail(tx.mail, project, now)),
        waits=_waits(tx.mail, works, given_up) if works or given_up else (),
        works=works,
        open_in_all=len(runs) if len(runs) < _MAX_RUNS else tx.runs.threads.count_open(prefix),
        questions=sorted(
            [
                open_question(run, question, tx, snoozed.get((run.run_id, question.call_id)))
                for run, question in requested_items
            ],
            key=lambda one: (one.snoozed_until is not None, one.asked_at),
        ),
        failed=failed[:MAX_GIVEN_UP],
        failed_in_all=len(failed),
        given_up=given_up,
        waiting=waiting_messages(tx, slug, MAX_WAITING),
        last_lines={run_id: text for run_id, (text, _) in last.items() if text},
        heard_at={run_id: at for run_id, (_, at) in last.items() if at is not None},
        health=health,
    )


def equal_failures(dead: Sequence[RunDispatch]) -> list[FailedRuns]:
    """Group dead letters by agent and error, newest group first.

    The dead letters are given oldest first.
    """
    groups = dict[tuple[str, str, str, str], list[RunDispatch]]()
    for row in reversed(dead):
        groups.setdefault((*owner_of(row.thread_id), row.last_error or ""), []).append(row)
    return [
        FailedRuns(
            agent=agent,
            project=project,
            chat=chat,
            why=why,
            run_ids=[row.run_id for row in rows],
            newest_at=rows[0].updated_at,
            can_replay=not has_waiting_caller(chat),
        )
        for (agent, project, chat, why), rows in groups.items()
    ]


def state_of(run: RunRecord, row: RunDispatch | None) -> WorkState:
    """Return the state of a run as pages and commands show the state."""
    if run.status is RunStatus.DONE:
        end = run.termination
        if end is None or end.type in _WELL:
            return "done"
        return "cancelled" if end.type is TerminationKind.CANCELLED else "failed"
    if row is not None and row.status is RunDispatchStatus.CLAIMED:
        return "at work"
    if run.status is RunStatus.WAITING and (row is None or row.status is not RunDispatchStatus.QUEUED):
        return "asks"
    return "queued"


def work_of(run: RunRecord, row: RunDispatch | None, waits: "_Why | None" = None) -> Work:
    """Return a run as pages show the run.

    With `waits`, the reason why a queued run waits is included.
    """
    state, why, until = state_of(run, row), "", None
    agent, project, chat = owner_of(run.thread_id)
    is_dead = row is not None and row.status is RunDispatchStatus.DEAD_LETTER
    if state == "queued" and row is None:
        why = "" if waits else "the run is being queued"
    elif state == "queued" and row is not None and waits is not None:
        why, until = waits.of_queued(row)
    elif state == "asks":
        why = why_held(agent, run)
    elif state == "failed" or is_dead:
        ended = "" if run.termination is None else run.termination.value or run.termination.type.value
        why = run.error or ended or (row.last_error if row is not None else None) or ""
    return Work(
        run_id=run.run_id,
        project=project,
        agent=agent,
        chat=chat,
        state=state,
        messages=tuple(messages_named(run.input.trigger_message_ids if run.input else ())),
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        attempts=0 if row is None else row.executions - row.interruption_count,
        interruptions=0 if row is None else row.interruption_count,
        dispatch_id=run.dispatch_id,
        why=why,
        until=until,
        last_error=row.last_error or ""
        if row is not None and not row.status.is_terminal and row.attempt_count
        else "",
        questions=len(run.answered) + len(run.open_tickets),
        parent_run_id=run.parent_run_id,
        cost_micros=run.usage.cost_micros,
        is_asked_outside=ASKING in run.thread_id,
        can_cancel=state == "asks" or (row is not None and not row.status.is_terminal),
        can_hasten=state == "queued"
        and row is not None
        and row.attempt_count + row.interruption_count > 0
        and (until is not None or waits is None),
        can_replay=is_dead and not has_waiting_caller(chat),
        can_discard=is_dead,
    )


def _of_mail(reads: MailReads, project: Project, now: int) -> dict[str, Any]:
    live = reads.live_reservations(project.id, now=now, limit=LEASES)
    holds: dict[str, list[Held]] = {}
    for reservation in live:
        holds.setdefault(reservation.holder.casefold(), []).append(_reservation_view(reservation))
    agents = reads.member_names(project.id, include_retired=False, limit=_MAX_AGENTS)
    span = Span(begin=now - HOUR, end=now + 1)
    tried_alone = reads.attempts_alone(list(agents), span, limit=_MAX_STRETCHES)
    tried_together = [  # attempts with short gaps count as one, unless one failed or asked
        Attempt(
            id=group.first_id,
            run_id=group.run_id,
            agent_id=group.agent_id,
            queued_at=group.queued_at,
            began_at=group.began_at,
            ended_at=group.ended_at,
            outcome="cancelled" if group.is_cancelled else "done",
        )
        for group in reads.attempt_groups(list(agents), span, step=HOUR // 60)
    ]
    hour: dict[str, list[Stretch]] = {}
    for tried in sorted([*tried_alone, *tried_together], key=lambda one: one.began_at):
        hour.setdefault(agents[tried.agent_id].casefold(), []).append(
            Stretch(
                run_id=tried.run_id,
                began_at=tried.began_at,
                ended_at=tried.ended_at,
                outcome=tried.outcome,
            )
        )
    owed = _awaited_messages(reads, reads.newest_messages(project.id, limit=LATELY))
    return {
        "conflicts": [
            ReservationConflict(first=_reservation_view(pair.first), second=_reservation_view(pair.second))
            for pair in conflicts(live)
        ],
        "holds": holds,
        "owed": owed[:OWED],
        "owed_in_all": len(owed),
        "last_hour": hour,
    }


def _reservation_view(one: Reservation) -> Held:
    return Held(**{name: getattr(one, name) for name in _OF_HELD})


def _awaited_messages(reads: MailReads, lately: Iterable[Message]) -> list[OwedMessage]:
    messages = [message for message in lately if message.recalled_at is None][::-1]
    readers = reads.recipients([message.id for message in messages]) if messages else {}
    results = []
    for message in messages:
        seen = [reader for reader in readers.get(message.id, []) if reader.kind != "bcc"]
        missing = [
            reader for reader in seen if (reader.acked_at if message.ack_required else reader.read_at) is None
        ]
        if missing:
            owed = OwedMessage(
                id=message.id,
                subject=message.subject,
                sender=message.sender_name,
                ack_required=message.ack_required,
                created_at=message.created_at,
                missing=tuple(reader.name for reader in missing),
                readers=len(seen),
            )
            results.append(owed)
    return results


def _waits(reads: MailReads, works: Sequence[Work], given_up: Sequence[Work]) -> list[Waits]:
    """Return the chains of waiting agents, each of which ends with an open run or a dead letter."""
    ends = [work for work in (*works, *given_up) if work.messages]
    if not ends:
        return []
    first = reads.messages(sorted({end.messages[0] for end in ends}))
    writers = {end.run_id: first[end.messages[0]].sender_name for end in ends if end.messages[0] in first}
    at = {work.agent.casefold(): work for work in reversed(works)}
    waited_for = {writers[end.run_id].casefold() for end in ends if end.run_id in writers}
    chains = []
    for end in ends:
        is_in_the_middle = end.agent.casefold() in waited_for and end.state != "asks"
        if end.run_id not in writers or is_in_the_middle:
            continue
        names, messages, work = [end.agent], list[int](), end
        while (writer := writers.get(work.run_id)) is not None and writer not in names:
            names.insert(0, writer)
            messages.insert(0, work.messages[0])
            before = at.get(writer.casefold())
            if before is None:
                break
            work = before
        chains.append(Waits(names=tuple(names), run_id=end.run_id, state=end.state, messages=tuple(messages)))
    return sorted(chains, key=lambda one: _CHAINS.index(one.state))[:_MAX_CHAINS]


class _Why:
    """Determines why queued runs wait."""

    def __init__(self, runs: Sequence[RunRecord], rows: Mapping[str, RunDispatch], now: int) -> None:
        self._now = now
        self._at_work = {row.thread_id for row in rows.values() if row.status is RunDispatchStatus.CLAIMED}
        self._asking = {run.thread_id: run for run in runs if run.holds_others}

    def of_queued(self, row: RunDispatch) -> tuple[str, int | None]:
        """Return the reason why a dispatch is not executing, and the known end of the reason."""
        if row.available_at > self._now:
            # Why a queued dispatch is not due yet: its next attempt, and how many interruptions it had.
            if row.interruption_count and row.last_error in (LEASE_ENDED, OWNER_GONE):
                times = "once" if row.interruption_count == 1 else f"{row.interruption_count} times"
                why_later = (
                    f"interrupted {times} because its server ended or lost its lease; the run starts again"
                )
            else:
                why_later = (
                    f"attempt {row.attempt_count + 1} of {row.max_attempts}"
                    if row.attempt_count
                    else "the run is due later"
                )
            return why_later, row.available_at
        name = whose(row.thread_id)[1]
        if row.thread_id in self._at_work:
            return f"{name} is active, and reads this message after the active run", None
        if (asks := self._asking.get(row.thread_id)) is not None:
            return why_held(name, asks), None
        return "the run is about to start, or waits for a free slot", None


def dispatch_of(tx: Transaction, run: RunRecord) -> RunDispatch | None:
    """Return the current dispatch of a run, or None for a deleted dispatch."""
    row = None if run.dispatch_id is None else tx.runs.dispatches.load(run.dispatch_id)
    return row if row is not None and row.run_id == run.run_id else None


def waiting_messages(tx: Transaction, slug: str, most_threads: int | None = None) -> list[Waiting]:
    """Return the messages of a project that wait for the recipient's next run, longest waiting first.

    `slug` is "" for all projects. With `most_threads`, only the first threads by id are read.
    """
    items = list[Waiting]()
    for thread_id in islice(_threads_waiting(tx, project_threads(slug)), most_threads):
        project, name = whose(thread_id)
        claimed = tx.runs.dispatches.claimed(thread_id)
        latest = tx.runs.threads.latest_runs(thread_id, 1)
        why, behind = "the next run of the agent reads the message", None
        if claimed is not None:
            why, behind = "the agent is active, and reads this message after the active run", claimed.run_id
        elif latest and latest[0].status is RunStatus.WAITING:
            why, behind = why_held(name, latest[0]), latest[0].run_id
        items += [
            Waiting(
                message=number,
                project=project,
                agent=name,
                since_at=pending.created_at,
                why=why,
                behind_run_id=behind,
            )
            for pending in tx.runs.messages.waiting(thread_id)
            for number in messages_named([pending.message.id or ""])
        ]
    return sorted(items, key=lambda one: one.since_at)


def _threads_waiting(tx: Transaction, prefix: str) -> Iterator[str]:
    after = ""
    while page := tx.runs.messages.threads_with_waiting(MAX_PAGE, after):
        yield from (thread_id for thread_id in page if thread_id.startswith(prefix))
        after = page[-1]
