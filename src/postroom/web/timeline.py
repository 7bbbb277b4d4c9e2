"""Reads the events of a project within a time span, from one snapshot of the store, up to fixed limits.

Successful runs that are less than three pixels apart are drawn as one bar with their number. Failures,
questions and conflicts are always drawn separately. Messages are drawn separately up to a limit, beginning
with the newest, and only counted beyond it. Blind copies are omitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from postroom.contracts.errors import UnknownThread
from postroom.contracts.mail import (
    Agent,
    Attempt,
    AttemptGroup,
    Project,
    Recipient,
    Reservation,
    Span,
    Written,
)
from postroom.contracts.records import replace
from postroom.contracts.waking import MessageRun
from postroom.mail.projects import PEOPLE_KEY
from postroom.stores.mail.access import MailReads
from postroom.web.reading import known_agent
from postroom.web.timeline_axis import DAY, HOUR
from postroom.web.wording import absolute, one_line

AGENTS: Final = 2_000
PEOPLE: Final = 12
WIDTH: Final = 1_000
"""The assumed width of the picture, in pixels."""
NEAR: Final = 3
"""The distance in pixels below which runs become one bar."""
GROUPS: Final = 2_000
"""Maximum number of groups of successful runs that are read. About a third of these groups are drawn."""
ARROWS: Final = 300
SAID: Final = 3
"""Maximum number of recipients of a message that are named."""
ALONE: Final = 250
"""Maximum number of newest attempts that are drawn separately."""
HELD: Final = 150
PARTS: Final = 100
COUNTED: Final = 250
"""Maximum number of messages that are counted in each part of a span."""
TOTAL: Final = 10_000
"""Maximum number of messages in a span that are counted."""
LOOKED_THROUGH: Final = 2_000
"""Maximum number of newest messages that are read with their senders and recipients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message with its recipients, and the run that the message started for each recipient."""

    message: Written
    readers: Sequence[Recipient] = ()
    runs: Mapping[int, MessageRun] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The description of the message for screen readers."""
        to = ", ".join(one_line(reader.name) for reader in self.readers[:SAID])
        more = f" and {len(self.readers) - SAID} more" if len(self.readers) > SAID else ""
        wrote = f"{one_line(self.message.sender_name)} wrote #{self.message.id}"
        return f"{wrote}{f' to {to}{more}' if to else ''}, {absolute(self.message.created_at)}"

    @property
    def came(self) -> str:
        """The state of the message, such as recalled, unread or read."""
        if self.message.recalled_at is not None:
            return "recalled"
        if self.runs:
            return f"started {len(self.runs)}"
        unread = sum(reader.read_at is None for reader in self.readers)
        return f"{unread} unread" if unread else "read"


@dataclass(frozen=True, slots=True)
class _Mail:
    """The messages within a time span."""

    sent: Sequence[Sent]
    total: int
    _: KW_ONLY
    is_counted_out: bool
    took_part: frozenset[int]
    counts: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The events of a project within a time span."""

    project: Project
    span: Span
    agent: Agent | None
    thread_id: str
    people: Sequence[Agent]
    agents: Sequence[Agent]
    bars: Sequence[AttemptGroup]
    alone: Sequence[Attempt]
    sent: Sequence[Sent]
    counts: Sequence[int]
    """The number of messages in each part, if there are too many for `sent` to contain all of them."""
    total: int
    """The number of messages."""
    is_counted_out: bool
    """Whether there are more messages than were counted."""
    took_part: frozenset[int]
    """The ids of the agents that wrote messages, or received them visibly."""
    held: Sequence[Reservation]
    is_cut: bool
    """Whether further events were omitted that would be drawn separately."""
    day: Span
    """The longer span around this one, whose activity a small overview picture shows."""
    day_counts: Sequence[int]

    @property
    def runs(self) -> int:
        """The number of executions of runs that the timeline shows."""
        return len(self.alone) + sum(group.count for group in self.bars)


def window(reads: MailReads, project: Project, span: Span, *, agent: str = "", thread_id: str = "") -> Window:
    """Return the events of a project, an agent or a thread within a time span.

    Raises:
        UnknownAgent, UnknownThread: The agent or thread does not exist.
    """
    whose = known_agent(reads, project, agent) if agent else None
    agents = [whose] if whose else reads.agents(project.id, include_retired=True, limit=AGENTS)
    people_home = reads.project(PEOPLE_KEY)
    homes = [project] if people_home is None or people_home.id == project.id else [project, people_home]
    if thread_id and not any(reads.thread(home.id, thread_id, limit=1) for home in homes):
        raise UnknownThread(f"{project.slug} has no thread {thread_id!r}", value=thread_id)
    mail = _messages(reads, project, homes, span, whose, thread_id)
    sent = mail.sent
    if thread_id:
        bars, alone = _of_thread(reads, sent, {agent.id for agent in agents}, span)
    else:
        bars, alone = _attempts(reads, [agent.id for agent in agents], span)
    held = list[Reservation]()
    if not thread_id:
        reservations = reads.reservations_in(project.id, span, since=span.begin - DAY, limit=HELD)
        held = [one for one in reservations if whose is None or one.agent_id == whose.id]
    day = around(span)
    lanes = agents
    if whose is not None or thread_id:
        # The agents that sent messages, received messages visibly, or had runs.
        ids = {one.message.sender_id for one in sent} | {to.agent_id for one in sent for to in one.readers}
        ids |= {bar.agent_id for bar in bars} | {attempt.agent_id for attempt in alone}
        by_id = {agent.id: agent for agent in agents if agent.id in ids}
        by_id |= reads.agents_by_id(sorted(ids - by_id.keys()))
        took_part = sorted(by_id.values(), key=lambda one: one.id)
        first = [] if whose is None else [whose]
        lanes = [*first, *(one for one in took_part if one.project_id == project.id and one not in first)]
    people = [] if people_home is None else reads.agents(people_home.id, include_retired=False, limit=PEOPLE)
    return Window(
        project=project,
        span=span,
        agent=whose,
        thread_id=thread_id,
        people=[] if project.id == getattr(people_home, "id", None) else people,
        agents=lanes,
        bars=bars,
        alone=alone,
        sent=sent,
        counts=mail.counts,
        total=mail.total,
        is_counted_out=mail.is_counted_out,
        took_part=mail.took_part,
        held=held,
        is_cut=len(alone) >= ALONE or len(held) >= HELD or len(agents) >= AGENTS,
        day=day,
        day_counts=reads.written_counts(project.id, day, parts=PARTS, most=COUNTED),
    )


def around(span: Span) -> Span:
    """Return the day that contains a span, or a wider span if the span lasts at least 16 hours."""
    length = span.end - span.begin
    if length < 16 * HOUR:
        begin = span.begin // DAY * DAY
        return Span(begin=begin, end=max(begin + DAY, -(-span.end // DAY) * DAY))
    return Span(begin=span.begin - length // 10, end=span.end + length // 10)


def _attempts(
    reads: MailReads, agent_ids: Sequence[int], span: Span
) -> tuple[list[AttemptGroup], list[Attempt]]:
    count, lanes = reads.attempt_count(agent_ids, span)
    step = nearness(span)
    if count > GROUPS:  # too many to draw: the database joins them faster
        step = max(step, (span.end - span.begin) * lanes // GROUPS)
    bars = joined(reads.attempt_groups(agent_ids, span, step=step), step)
    alone = list(reads.attempts_alone(agent_ids, span, limit=ALONE))
    if len(alone) >= ALONE:  # more attempts of agents that are active or wait
        open_now = {
            attempt.agent_id
            for attempt in alone
            if attempt.ended_at is None or (attempt.waited_until is None and attempt.outcome == "waiting")
        }
        more = reads.attempts_alone(sorted(open_now), span, limit=ALONE) if open_now else []
        alone = list({attempt.id: attempt for attempt in (*alone, *more)}.values())
    for attempt in reads.attempts_before(agent_ids, span.begin):
        if attempt.outcome in ("done", "cancelled"):
            if (attempt.ended_at or 0) > span.begin:
                bars.append(_as_bar(attempt))
        elif reaches(attempt, span.begin):
            alone.append(attempt)
    return bars, sorted(alone, key=lambda one: (one.began_at, one.id))


def nearness(span: Span) -> int:
    """Return the distance, in milliseconds, below which the runs of an agent become one bar."""
    return max((span.end - span.begin) * NEAR // WIDTH, 1)


def reaches(attempt: Attempt, begin: int) -> bool:
    """Return whether an attempt of a run, including a wait for an answer, continues beyond a time."""
    if attempt.ended_at is None or attempt.ended_at > begin:
        return True
    return attempt.outcome == "waiting" and (attempt.waited_until is None or attempt.waited_until > begin)


def _as_bar(attempt: Attempt) -> AttemptGroup:
    return AttemptGroup(
        agent_id=attempt.agent_id,
        count=1,
        first_id=attempt.id,
        run_id=attempt.run_id,
        queued_at=attempt.queued_at,
        began_at=attempt.began_at,
        ended_at=attempt.ended_at or attempt.began_at,
        is_cancelled=attempt.outcome == "cancelled",
    )


def joined(groups: Sequence[AttemptGroup], step: int) -> list[AttemptGroup]:
    """Return groups ordered by agent and time, with neighbouring groups joined.

    Groups of an agent are joined if they are less than `step` milliseconds apart.
    """
    bars: list[AttemptGroup] = []
    for group in groups:
        last = bars[-1] if bars else None
        if last is None or last.agent_id != group.agent_id or group.began_at - last.ended_at >= step:
            bars.append(group)
            continue
        bars[-1] = replace(
            last,
            count=last.count + group.count,
            ended_at=max(last.ended_at, group.ended_at),
            is_cancelled=last.is_cancelled or group.is_cancelled,
        )
    return bars


def _messages(
    reads: MailReads,
    project: Project,
    homes: Sequence[Project],
    span: Span,
    whose: Agent | None,
    thread_id: str,
) -> _Mail:
    """Return the newest messages in a span, the number of all messages, and all participants."""
    is_whole = whose is None and not thread_id
    agent_id = None if whose is None else whose.id
    messages: list[Written] = []
    for home in homes:
        if is_whole and home.id != project.id:
            messages += reads.written_into(home.id, span, to=project.id, limit=ARROWS + 1)
        else:
            messages += reads.written(home.id, span, limit=ARROWS + 1, thread_id=thread_id, agent_id=agent_id)
    ids = [message.id for message in messages]
    readers, runs = reads.recipients(ids), reads.message_runs(ids)
    sent = []
    for message in sorted(messages, key=lambda one: (one.created_at, one.id)):
        seen = [reader for reader in readers[message.id] if reader.kind != "bcc"]
        if message.project_id == project.id or any(reader.project_slug == project.slug for reader in seen):
            sent.append(Sent(message=message, readers=seen, runs=runs[message.id]))
    newest = sent[-ARROWS:]
    part = {sent.message.sender_id for sent in newest} | {
        to.agent_id for sent in newest for to in sent.readers
    }
    if len(sent) <= ARROWS or not is_whole:
        return _Mail(newest, len(newest), is_counted_out=len(sent) > ARROWS, took_part=frozenset(part))
    total = sum(
        reads.written_count(home.id, span, most=TOTAL + 1, to=None if home.id == project.id else project.id)
        for home in homes
    )
    return _Mail(
        newest,
        min(total, TOTAL),
        is_counted_out=total > TOTAL,
        took_part=frozenset(part.union(reads.took_part(project.id, span, newest=LOOKED_THROUGH))),
        counts=reads.written_counts(project.id, span, parts=PARTS, most=COUNTED),
    )


def _of_thread(
    reads: MailReads, sent: Sequence[Sent], agent_ids: set[int], span: Span
) -> tuple[list[AttemptGroup], list[Attempt]]:
    """Return the attempts of runs that received messages on a thread."""
    runs = sorted({run.run_id for sent in sent for run in sent.runs.values()})
    bars, alone = list[AttemptGroup](), list[Attempt]()
    for attempt in reads.attempts_of_runs(runs) if runs else ():
        if (
            attempt.agent_id not in agent_ids
            or attempt.began_at >= span.end
            or not reaches(attempt, span.begin)
        ):
            continue
        if attempt.outcome in ("done", "cancelled"):
            bars.append(_as_bar(attempt))
        else:
            alone.append(attempt)
    return bars, alone
