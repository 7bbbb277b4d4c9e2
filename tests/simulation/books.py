"""Conditions that hold in every world: after each commit, every half second, and when all work has ended.

Each finding begins with the name of its rule in capital letters.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from postroom.testing.checking import check
from simulation.callers import DELIVERED, Job
from simulation.chats import ChatPlatform, audit_chats
from simulation.database import Database
from simulation.loop import START_MS, Process
from simulation.mail import audit_mail, audit_notes, audit_subscriptions, audit_tasks
from simulation.servers import ALONE, Post, Server
from simulation.work import Watch, answer_of


class Row(NamedTuple):
    """A dispatch."""

    id: str
    thread: str
    run: str
    status: str
    attempts: int
    most: int
    epoch: int
    token: str | None
    by: str | None
    claimed_at: int | None
    lease_until: int | None
    due_at: int
    limit_key: str
    deadline_at: int | None


_ROWS = (
    "SELECT dispatch_id, thread_id, run_id, status, attempt_count, max_attempts, dispatch_epoch, claim_token,"
    " claimed_by, claimed_at, lease_until, available_at, limit_key, deadline_at FROM run_dispatches"
)
_NEVER = {"store_error", "internal_error", "store_corrupt", "duplicate_record"}
"""Codes with which no work may be refused for good."""
ENDED = {"Acked", "Cancelled", "Superseded", "DeadLetter"}
_MAY_BECOME = {
    "Queued": {"Queued", "Claimed", "Cancelled", "Superseded"},
    "Claimed": {"Claimed", "Queued"} | ENDED,
}


@dataclass
class Commits:
    """Looks at the queue after each commit that wrote rows."""

    database: Database
    has_leases: bool = False
    at_once: int | None = None
    """How many dispatches may be claimed at once; None for any number."""
    of_a_key: int | None = None
    """How many of one key may be."""
    found: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    _leases: dict[str, tuple[str, int]] = field(default_factory=dict)
    _raw: list[Any] = field(default_factory=list)
    _epochs: dict[str, int] = field(default_factory=dict)
    _interrupts: dict[str, int] = field(default_factory=dict)
    """The epoch of each thread that was interrupted."""

    def look(self, process: Process, change: str) -> None:
        """Compare the queue and the leases of servers with how they were before a change of a process."""
        if self.has_leases:
            self._look_at_leases(process)
        who, now = process.name, START_MS + self.database.loop.ms + process.skew_ms
        raw = self.database.rows(_ROWS)
        if raw == self._raw:
            return
        before_rows, self._raw = self.rows, raw
        known = self._interrupts
        self._interrupts = dict(self.database.rows("SELECT thread_id, epoch FROM dispatch_epochs"))
        self.rows = rows = {row[0]: Row._make(row) for row in raw}
        at = self.database.loop.ms
        for id, row in rows.items():
            before = before_rows.get(id)
            if before == row:
                continue
            if before is not None:
                moved = (*_moved(now, before, row), *_moved_by(who, now, before, row))
                self.found += [f"{one} (at {at}, by {who} {change})" for one in moved]
            ends = before is not None and before.status == "Claimed" and row.status == "Acked"
            if ends and row.epoch < known.get(row.thread, 0):
                self.found.append(
                    f"OLD EPOCH ENDS: {row.run} was interrupted, and its end was written (at {at}, by {who})"
                )
            claims = row.token is not None and (before is None or before.token != row.token)
            if claims and row.epoch < self._epochs.get(row.thread, 0):
                self.found.append(
                    f"OLD EPOCH: {row.run} is claimed in an epoch that is over (at {at}, by {who})"
                )
            self._epochs[row.thread] = max(self._epochs.get(row.thread, 0), row.epoch)
        if self.at_once is not None or self.of_a_key is not None:
            self._look_at_limits(f"(at {at}, by {who} {change})")

    def _look_at_limits(self, where: str) -> None:
        claimed = Counter(row.limit_key for row in self.rows.values() if row.status == "Claimed")
        if self.at_once is not None and claimed.total() > self.at_once:
            self.found.append(f"LIMIT EXCEEDED: {claimed.total()} dispatches are claimed {where}")
        for key, number in claimed.items():
            if key and self.of_a_key is not None and number > self.of_a_key:
                self.found.append(f"LIMIT EXCEEDED: {number} dispatches of key {key} are claimed {where}")

    def _look_at_leases(self, process: Process) -> None:
        at, before = self.database.loop.ms, self._leases
        asked = "SELECT name, holder, until FROM leases"
        self._leases = {name: (holder, until) for name, holder, until in self.database.rows(asked)}
        for name, (holder, _) in self._leases.items():
            former, until = before.get(name, (holder, 0))
            if former != holder and until > START_MS + at + process.skew_ms:
                self.found.append(
                    f"LEASE TAKEN EARLY: {holder} took {name} from {former} at {at}, {until - START_MS} was its end"
                )


def _moved(now: int, before: Row, row: Row) -> Iterator[str]:
    name = f"the dispatch of {row.run}"
    is_too_late = (before.status, row.status) == ("Queued", "DeadLetter") and (row.deadline_at or now) < now
    if not is_too_late and row.status not in _MAY_BECOME.get(before.status, {before.status}):
        yield f"ILLEGAL MOVE: {name} went from {before.status} to {row.status}"
    if row.attempts < before.attempts:
        yield f"ATTEMPTS FELL: {name} has {row.attempts} attempts after {before.attempts}"
    if row.epoch < before.epoch:
        yield f"EPOCH FELL: {name} went back to epoch {row.epoch}"
    if before.status == row.status == "Claimed" and before.by != row.by:
        yield f"TAKEN OVER: {name} went to {row.by} from {before.by} in one step"


def _moved_by(who: str, now: int, before: Row, row: Row) -> Iterator[str]:
    """Yield what a server whose clock says `now` may not do to a claim of another server."""
    if before.status != "Claimed" or before.by == who:
        return
    if row.status == "Acked":
        yield f"ENDED BY ANOTHER: {who} acknowledged {row.run}, which {before.by} had claimed"
    elif row.status in ("Queued", "DeadLetter") and (before.lease_until or 0) >= now:
        left = (before.lease_until or 0) - now
        yield f"TAKEN BACK EARLY: {who} took {row.run} back from {before.by}, whose lease had {left} ms left"


@dataclass
class Rounds:
    """Looks every half second for work that no server does though one could."""

    commits: Commits
    servers: list[Server]
    settings: dict[str, Any]
    patience_ms: int = 3_500
    """How long it may stay undone."""
    idle_ms: int = 2_400
    """How long a claim may lie that its server does not execute: less than a lease, after which others have it."""
    found: list[str] = field(default_factory=list)
    _since: dict[tuple[str, ...], int] = field(default_factory=dict)
    _told: set[tuple[str, ...]] = field(default_factory=set)
    _unheld_since: int = 0

    def look(self) -> None:
        """Record the present faults; report those that lasted longer than the patience."""
        now = self.commits.database.loop.ms
        wrong = dict(self._wrong(now))
        self._since = {one: self._since.get(one, now) for one in wrong}
        for one, since in self._since.items():
            patience = self.idle_ms if one[0] == "idle" else self.patience_ms
            if now - since > patience and one not in self._told:
                self._told.add(one)
                self.found.append(f"{wrong[one]} (since {since}, seen at {now})")
        if self.settings["leases"]:
            self._look_at_leases(now)

    def look_at_holder(self, server: Server) -> None:
        """Compare a server that does what only one server may do with all others."""
        now = self.commits.database.loop.ms
        for other in self.servers:
            has = (
                other is not server
                and other.is_awake
                and other.leases is not None
                and other.leases.holds(ALONE)
            )
            if has and ("lease", server.name, other.name) not in self._told:
                self._told.add(("lease", server.name, other.name))
                self.found.append(f"TWO HOLDERS: {server.name} and {other.name} have the same lease at {now}")

    def _look_at_leases(self, now: int) -> None:
        # A server that is shutting down keeps its leases until its runs have ended.
        is_held = any(
            one.leases is not None and one.leases.holds(ALONE)
            for one in self.servers
            if not one.process.is_dead and one.process.frozen_until <= now
        )
        able = any(one.is_awake for one in self.servers)
        self._unheld_since = now if is_held or not able else self._unheld_since
        if now - self._unheld_since > 2 * self.settings["lease_ms"] + self.patience_ms:
            self.found.append(
                f"NO HOLDER: no server has held the lease since {self._unheld_since} (seen at {now})"
            )
            self._unheld_since = now

    @property
    def _is_held_back(self) -> bool:
        """Whether a due run may wait for a limit, a budget, or the server that has its channel."""
        settings = self.settings
        return bool(settings["chats"] or settings.get("limits") or settings.get("budget") is not None)

    def _wrong(self, ms: int) -> Iterator[tuple[tuple[str, ...], str]]:
        rows, now = self.commits.rows.values(), START_MS + ms
        open_rows = [row for row in rows if row.status not in ENDED]
        if not open_rows:
            return
        names = {one.name: one for one in self.servers}
        awake = [one for one in self.servers if one.is_awake]
        busy = {row.thread for row in open_rows if row.status == "Claimed"}
        at_once = self.settings["at_once"]
        is_full = at_once is not None and sum(row.status == "Claimed" for row in open_rows) >= at_once
        free = [] if is_full else [one for one in awake if one.free_slots]
        asking: set[str] | None = None
        for row in open_rows:
            if row.status == "Claimed":
                server = names[row.by or ""]
                if server.process.is_dead:
                    late = now - (row.lease_until or 0) - self.settings["sweep_s"] * 1_000
                    if late > 0 and awake:
                        yield (
                            ("left", row.id, row.token or ""),
                            f"LEFT BEHIND: {row.run} is claimed by {row.by}, which is dead; its lease has ended",
                        )
                elif server.is_awake and not server.executing[row.run]:
                    yield (
                        ("idle", row.id, row.token or ""),
                        f"IDLE CLAIM: {row.run} is claimed by {row.by}, which does not execute it",
                    )
            elif self._is_held_back:
                continue
            elif row.due_at <= now - 200 and row.thread not in busy and free:
                if asking is None:
                    asked = "SELECT thread_id FROM runs WHERE status = 'waiting'"
                    asking = {thread for (thread,) in self.commits.database.rows(asked)}
                if row.thread not in asking:  # other runs wait behind a question
                    yield (
                        ("due", row.id, str(row.attempts)),
                        f"NOT BEGUN: {row.run} is due since {row.due_at - START_MS}; its thread and a slot of {free[0].name} are free",
                    )


@dataclass
class Outcome:
    """Everything that the last look needs."""

    servers: Sequence[Server]
    jobs: Sequence[Job]
    watch: Watch
    post: Post
    commits: Commits
    settings: dict[str, Any]
    answered: dict[str, list[str]]
    may_lose_attempts: bool
    """Whether servers died, froze or lost replies: an attempt may be used up without an execution."""
    is_replayed: bool
    platform: ChatPlatform


async def audit(world: Outcome) -> list[str]:
    """Return the broken conditions when all work has ended."""
    rows = world.commits.database.rows
    is_by_agents = bool(world.settings["mail"] or world.settings["chats"])
    runs: dict[str, dict[str, Any]] = {}
    for run_id, thread, status, body in rows("SELECT run_id, thread_id, status, body FROM runs"):
        runs[run_id] = {"thread": thread, "status": status, **json.loads(body)}
    found = [
        f"LEFT OPEN: {row.run} of {row.thread} is {row.status} still, attempt {row.attempts} of {row.most}"
        for row in world.commits.rows.values()
        if row.status not in ENDED
    ]
    found += [
        f"LEFT OPEN: run {one} is {run['status']} still"
        for one, run in runs.items()
        if run["status"] != "done"
    ]
    found += [
        f"REFUSED: job {job.n} with {job.refused}"
        for job in world.jobs
        if job.refused in _NEVER and job.how != "now"
    ]
    if world.settings["chats"]:
        said = {job.n: job.act.data["chat"] for job in world.jobs}
        failing = {said[job.n] for job in world.jobs if ["fail", 99] in job.script}
        found += audit_chats(rows, said, world.platform, world.watch.reads, failing)
    elif world.settings["mail"]:
        sent = {job.n: (job.run_id, job.act.data["to"]) for job in world.jobs}
        found += [
            f"NEITHER: job {job.n} was neither taken nor refused"
            for job in world.jobs
            if not (job.run_id or job.refused)
        ]
        found += audit_mail(rows, sent, runs)
        found += audit_tasks(rows, runs)
        found += audit_notes(rows, world.watch.notes)
        found += audit_subscriptions(rows) if world.settings.get("tasks") else []
    else:
        found += _of_jobs(world, runs)
    found += _of_messages(rows)
    if not world.is_replayed and not is_by_agents:  # a replayed message has a second run
        found += _of_deliveries(rows, world.jobs, runs)
    found += _of_answers(rows, runs)
    if world.settings["schedules"]:
        found += _of_schedules(rows, runs)
    if world.settings["relay"]:
        found += _of_notices(rows, world.post, runs)
    found += [
        f"TWO ANSWERS to question {one}: {answers} were taken"
        for one, answers in world.answered.items()
        if len(answers) > 1
    ]
    found += [
        f"ANSWER LOST: {answers} to question {one} was taken, and its run ended without it"
        for one, answers in world.answered.items()
        if (run := runs.get(one.rpartition("/")[0])) is not None
        and (run.get("termination") or {}).get("type") == "natural_end"
        and "/ask-" in one
        and not world.watch.heard[one.rpartition("/")[0]].intersection(answers)
        # A message that joins an answered run before it continues brings another script, which asks nothing.
        and len({begun.n for begun in world.watch.seen if begun.run_id == one.rpartition("/")[0]}) == 1
    ]
    for server in world.servers:
        if server.is_up:
            found += _of_server(server)
    up = next(one for one in world.servers if one.is_awake)
    accepted = (
        {}
        if is_by_agents
        else {
            job.run_id: job.thread
            for job in world.jobs
            if job.run_id not in (None, DELIVERED) and job.policy == "queue"
        }
    )
    told = await world.watch.loop.joined(
        up.process, check(up.mailbox.stores if is_by_agents else up.mailbox, accepted=accepted)
    )
    return found + [f"CHECK: {one}" for one in told]


def _of_jobs(world: Outcome, runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    by_run: dict[str, list[Row]] = defaultdict(list)
    for row in world.commits.rows.values():
        by_run[row.run].append(row)
    for job in world.jobs:
        if job.run_id is None:
            if not job.refused:
                yield f"NEITHER: job {job.n} was neither taken nor refused"
            continue
        if job.run_id == DELIVERED:
            continue
        run = runs.get(job.run_id)
        if run is None:
            yield f"LOST: job {job.n} was taken as {job.run_id}, which is not there"
            continue
        ended, said = run.get("termination") or {}, run.get("final_output")
        kind, rows = ended.get("type"), by_run[job.run_id]
        dead = [row for row in rows if row.status == "DeadLetter"]
        if kind == "natural_end":
            joined = {answer_of(other.n) for other in world.jobs if job.run_id == other.run_id}
            joined |= {
                answer_of(other.n)
                for other in world.jobs
                if other.how == "deliver" and other.thread == job.thread
            }
            if said not in joined:
                yield f"WRONG ANSWER: job {job.n} has answered {said!r}"
        elif kind in ("cancelled", "superseded"):
            if not job.was_cancelled and job.thread not in world.watch.interrupted:
                yield f"CANCELLED BY NOBODY: job {job.n} ({job.run_id}) is {kind}"
        elif job.deadline_ms is not None and ended.get("detail") == "deadline_passed":
            pass  # a budget's question held it back until its deadline
        elif not dead and not world.is_replayed:
            yield f"ENDED BADLY: job {job.n} ({job.run_id}) ended as {ended}, and is not a dead letter"
        executed = sum(one.run_id == job.run_id for one in world.watch.seen)
        fails, is_late = sum(one[1] for one in job.script if one[0] == "fail"), job.deadline_ms is not None
        if dead and not executed and not world.may_lose_attempts and not is_late:
            yield f"DEAD WITHOUT A TRY: job {job.n} was given up ({said or ended.get('value')})"
        if dead and not fails and not is_late and not any(row.attempts >= row.most for row in rows):
            yield f"DEAD TOO EARLY: job {job.n} was given up after fewer attempts than it has"
    for run_id, told_at in world.watch.cancelled.items():
        ended = (runs.get(run_id, {}).get("termination") or {}).get("type")
        if ended == "natural_end" and not world.is_replayed:
            yield f"CANCELLED IN VAIN: at {told_at} a caller was told that {run_id} is cancelled, and it went on to its end"
    by_job: dict[Any, set[str]] = defaultdict(set)
    for one in world.watch.seen:
        by_job[one.n].add(one.run_id)
    for job in world.jobs:
        if (
            job.how in ("enqueue", "many")
            and job.policy == "queue"
            and len(by_job[job.n]) > 1
            and not world.is_replayed
        ):
            yield f"TWO RUNS: job {job.n} was executed as {sorted(by_job[job.n])}"
    for (run_id, name), times in world.watch.kept.items():
        if times and not world.watch.effects[run_id, name]:
            yield f"STEP NEVER EXECUTED: step {name} of {run_id} was returned as done {times} times"


def _of_messages(rows: Any) -> Iterator[str]:
    seqs: dict[str, list[int]] = defaultdict(list)
    for thread, seq in rows("SELECT thread_id, seq FROM run_messages ORDER BY thread_id, seq"):
        seqs[thread].append(seq)
    for thread, seq in seqs.items():
        if seq != list(range(1, len(seq) + 1)):
            yield f"GAP: messages of {thread} are {seq}"
    counted = "SELECT thread_id, message_id, count(*) FROM run_messages GROUP BY 1, 2 HAVING count(*) > 1"
    for thread, id, times in rows(counted):
        yield f"TWICE THERE: message {id} of {thread} is there {times} times"
    for thread, number in rows("SELECT thread_id, count(*) FROM pending_messages GROUP BY 1"):
        yield f"NEVER READ: {number} messages of {thread}"
    for scope, first, last, number in rows(
        "SELECT scope, min(seq), max(seq), count(*) FROM event_scopes GROUP BY scope"
    ):
        if (first, last) != (1, number):
            yield f"GAP: events of {scope}: {number} from {first} to {last}"


def _of_deliveries(rows: Any, jobs: Sequence[Job], runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    readers: Counter[str] = Counter()
    for run in runs.values():
        readers.update(set((run.get("input") or {}).get("trigger_message_ids", ())))
    there = {id for (id,) in rows("SELECT message_id FROM run_messages")}
    for job in jobs:
        if job.run_id != DELIVERED:
            continue
        if job.message_id not in there:
            if not job.may_be_retracted:
                yield f"LOST: message {job.message_id} was taken but does not exist"
        elif job.is_retracted:
            yield f"READ AFTER RETRACTION: message {job.message_id}"
        elif readers[job.message_id] != 1:
            yield f"READERS: message {job.message_id} was given to {readers[job.message_id]} runs"


def _of_schedules(rows: Any, runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    asked = "SELECT schedule_id, starts_at, every_ms, missed, overlap, submitted FROM schedules"
    for id, starts_at, every, missed, overlap, submitted in rows(asked):
        ticks = sorted(int(one.rsplit("-", 1)[1]) for one in runs if one.startswith(f"schedule-{id}-"))
        if len(ticks) != submitted:
            yield f"TICKS: the schedule counts {submitted}, and there are {len(ticks)} runs"
        between = {later - tick for tick, later in pairwise(ticks)}
        if missed == "all" and overlap == "queue" and between - {every}:
            yield f"TICKS: ticks every {every} ms are {sorted(between)} ms apart"
        if any((tick - starts_at) % every for tick in ticks):
            yield f"TICKS: ticks every {every} ms from {starts_at} are {ticks}"


def _of_notices(rows: Any, post: Post, runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    unmarked = Counter(n for _, n, is_marked in post.arrived if not is_marked)
    came: dict[str, int] = {}
    for place, (_, n, _) in enumerate(post.arrived):
        came.setdefault(n, place)
    yield from (f"NOTICE TWICE: of {n}, {times} times unmarked" for n, times in unmarked.items() if times > 1)
    yield from (f"NOTICE LOST: of {one}" for one in runs if one not in came)
    yield from (f"NOTICE OF NOTHING: of {n}" for n in came.keys() - runs.keys())
    last: dict[str, tuple[int, str]] = {}
    for order_key, payload in rows(
        "SELECT order_key, payload FROM outbox WHERE kind = 'notice' ORDER BY place"
    ):
        n = json.loads(payload)["run"]
        if n in came:
            if order_key in last and came[n] < last[order_key][0]:
                yield f"NOTICE TOO EARLY: of {n}, before that of {last[order_key][1]}"
            last[order_key] = came[n], n


def _of_answers(rows: Any, runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A run that ends well has one answer in its thread; a run that failed has none."""
    asked = "SELECT run_id, count(*) FROM run_messages WHERE json_extract(body, '$.role') = 'assistant' GROUP BY 1"
    said = dict(rows(asked))
    for run_id, run in runs.items():
        kind = (run.get("termination") or {}).get("type")
        if kind == "cancelled":
            continue  # what it said by then is kept
        if said.get(run_id, 0) != int(kind == "natural_end"):
            yield f"ANSWERS: run {run_id} ended as {run.get('termination')} and has {said.get(run_id, 0)} answers"


def _of_server(server: Server) -> Iterator[str]:
    dispatcher = server.queue._dispatcher
    if dispatcher.slots.used:
        yield f"SLOTS: {server.name} has {dispatcher.slots.used} in use, and nothing executes"
    if dispatcher._executing:
        yield f"SLOTS: {server.name} counts {dispatcher._executing} executions, and there is none"
    if dispatcher.leases.jobs:
        yield f"RENEWALS: {server.name} renews {len(dispatcher.leases.jobs)} claims of nothing"
    if dispatcher.slots.waiting:
        yield f"LINE: {len(dispatcher.slots.waiting)} threads wait in the line of {server.name}"
    for thread, worker in dispatcher.workers._workers.items():
        if worker.status.value != "idle" or worker.foreground:
            yield f"WORKER: that of {thread} in {server.name} is {worker.status.value} still"
