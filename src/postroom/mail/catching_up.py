"""The operation that summarizes the events of a project since a cursor, computed from the project's log.

    after ──▶ newest 2,000 entries that the caller may see ──▶ threads, questions, runs, usage ──▶ next

The summary reads at most `MAX_ENTRIES_READ` entries, however long the log is, so that its cost does not grow
with the project. Older entries after the cursor are only counted, in `skipped`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypedDict, TypeVar

from postroom.contracts.clock import iso
from postroom.contracts.mail import Happening, Project
from postroom.mail.commands import CatchUp
from postroom.mail.context import ReadContext
from postroom.mail.event_log import agent_addresses, check_cursor, visible_events
from postroom.mail.projects import find_project

MAX_ENTRIES_READ: Final = 2_000
"""Maximum number of log entries that one summary reads."""
LISTED: Final = 10
"""Maximum number of threads, questions, failed runs and paths that a summary lists, newest first."""
_SENDERS_OF: Final = 20
"""Maximum number of messages per thread that are read to find out who sent them."""
_HOUR: Final = 3_600_000
_STATE_AFTER: Final = {
    "run.began": "active",
    "run.cut_off": "active",
    "run.waiting": "waiting",
    "run.ended": "succeeded",
    "run.failed": "failed",
}
K = TypeVar("K")


class CaughtThread(TypedDict):
    """A thread with new messages."""

    thread_id: str
    subject: str
    messages: int
    newest_id: int
    senders: list[str]


class CaughtQuestion(TypedDict):
    """A question of a run that nobody has answered yet."""

    question_id: str
    run_id: str
    agent: str | None
    at: str


class CaughtRun(TypedDict):
    """A run that failed and has not started again."""

    run_id: str
    agent: str | None
    at: str


class CaughtRuns(TypedDict):
    """The number of runs in each state, according to the newest event of each run."""

    active: int
    waiting: int
    succeeded: int
    failed: int
    cancelled: int


class CaughtPath(TypedDict):
    """A path that an agent reserved after the cursor and still holds."""

    agent: str | None
    path: str


class Spent(TypedDict):
    """The reported usage of the runs that ended or failed; `cost_micros` in millionths of a US dollar."""

    tokens: int
    cost_micros: int


class CaughtUpView(TypedDict):
    """A summary of the events after a cursor; pass `next` as `after` of the next call.

    `skipped` entries lie between the cursor and the first entry of the summary. Lists hold the newest 10.
    """

    since: str
    events: int
    skipped: int
    next: int
    threads: list[CaughtThread]
    threads_in_all: int
    questions: list[CaughtQuestion]
    answered: int
    runs: CaughtRuns
    failed: list[CaughtRun]
    reserved: list[CaughtPath]
    spent: Spent
    counts: dict[str, int]


def catch_up(context: ReadContext, asked: CatchUp) -> CaughtUpView:
    """Return what happened in a project after a cursor, or within the last hours.

    Raises:
        CursorExpired: Entries after the cursor were deleted.
        CursorAhead: The cursor is greater than the newest entry's number.
    """
    project = find_project(context.projects, asked.project_key)
    return summary(context, project, after=asked.after, begin=context.now - asked.hours * _HOUR)


def summary(context: ReadContext, project: Project, *, after: int | None, begin: int) -> CaughtUpView:
    """Return what happened in a project after a cursor or, without a cursor, since the time `begin`.

    Raises:
        CursorExpired, CursorAhead: As for `catch_up`.
    """
    bounds = context.tx.log_bounds(project.id)
    oldest = bounds.oldest if after is None else after
    check_cursor(oldest, bounds)
    found = context.tx.project_events(
        project.id, after=max(oldest, bounds.newest - MAX_ENTRIES_READ), limit=MAX_ENTRIES_READ
    )
    skipped = max(0, bounds.newest - MAX_ENTRIES_READ - oldest)
    since = found[0].happening.at if found else context.now
    if after is None and since < begin:
        found, skipped, since = [one for one in found if one.happening.at >= begin], 0, begin
    events = visible_events(context, project, found)
    names = agent_addresses(context.tx, project, events)
    told = [one.happening for one in events]
    recalled = {one.message_id for one in told if one.kind == "message.recalled"}
    sent = [one for one in told if one.kind == "message.sent" and one.message_id not in recalled]
    runs = {one.run_id: one for one in told if one.kind.startswith("run.")}
    questions = {
        (one.run_id, one.detail["question_id"]): one for one in told if one.kind.startswith("question.")
    }
    open_questions = [
        CaughtQuestion(
            question_id=str(question_id), run_id=str(run_id), agent=names.get(one.agent_id), at=iso(one.at)
        )
        for (run_id, question_id), one in _newest(questions)
        if one.kind == "question.asked"
    ]
    failed = [
        CaughtRun(run_id=str(run_id), agent=names.get(one.agent_id), at=iso(one.at))
        for run_id, one in _newest(runs)
        if one.kind == "run.failed" and not one.detail.get("cancelled")
    ]
    made = {one.reservation_id: one for one in told if one.kind == "reservation.made"}
    reserved = {
        one.id: made[one.id]
        for one in context.tx.reservations_by_id([number for number in made if number is not None])
        if one.released_at is None and one.expires_at > context.now
    }
    return CaughtUpView(
        since=iso(since),
        events=len(events),
        skipped=skipped,
        next=bounds.newest,
        threads=_threads(context, sent),
        threads_in_all=len({one.detail["thread_id"] for one in sent}),
        questions=open_questions[:LISTED],
        answered=sum(one.kind == "question.answered" for one in questions.values()),
        runs=_count_states(runs.values()),
        failed=failed[:LISTED],
        reserved=[
            CaughtPath(agent=names.get(one.agent_id), path=str(one.detail["path"]))
            for _, one in _newest(reserved)[:LISTED]
        ],
        spent=Spent(
            tokens=_sum(told, "tokens"),
            cost_micros=_sum(told, "cost_micros"),
        ),
        counts=dict(sorted(Counter(str(one.kind) for one in told).items())),
    )


def _count_states(newest_events: Iterable[Happening]) -> CaughtRuns:
    states = Counter(
        "cancelled" if one.detail.get("cancelled") else _STATE_AFTER[one.kind] for one in newest_events
    )
    return CaughtRuns(
        active=states["active"],
        waiting=states["waiting"],
        succeeded=states["succeeded"],
        failed=states["failed"],
        cancelled=states["cancelled"],
    )


def _sum(told: Sequence[Happening], detail: str) -> int:
    return sum(int(one.detail.get(detail, 0)) for one in told)


def _newest(found: Mapping[K, Happening]) -> list[tuple[K, Happening]]:
    return sorted(found.items(), key=lambda item: item[1].at, reverse=True)


def _threads(context: ReadContext, sent: Sequence[Happening]) -> list[CaughtThread]:
    """Return the threads that have the newest messages, each with its new messages and their senders."""
    by_thread: dict[object, list[int]] = {}
    for one in reversed(sent):
        if one.message_id is not None:
            by_thread.setdefault(one.detail["thread_id"], []).append(one.message_id)
    listed = list(by_thread.items())[:LISTED]
    messages = context.tx.messages([number for _, ids in listed for number in ids[:_SENDERS_OF]])
    return [
        {
            "thread_id": str(thread_id),
            "subject": messages[ids[0]].subject if ids[0] in messages else "",
            "messages": len(ids),
            "newest_id": ids[0],
            "senders": list(
                dict.fromkeys(
                    messages[number].sender_name for number in ids[:_SENDERS_OF] if number in messages
                )
            ),
        }
        for thread_id, ids in listed
    ]
