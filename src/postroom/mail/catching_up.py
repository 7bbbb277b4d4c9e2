"""The operation that summarises the events of a project since a cursor, from the project's log.

    after ──▶ newest 2,000 entries that the caller may see ──▶ sentences, threads, runs, usage ──▶ next

A summary reads at most `MAX_ENTRIES_READ` entries, so its cost does not grow with the project. Older entries
after the cursor are only counted, in `skipped`. A summary contains at most `LISTED` sentences for each
subject of `SUBJECTS`. Texts by agents are in quotes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict, TypeVar, get_args

from postroom.contracts.clock import iso
from postroom.contracts.mail import OTHER, Happening, Message, Project
from postroom.contracts.plain_answers import unanswered
from postroom.contracts.questions import NOBODY, form_in_words
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.records import replace
from postroom.contracts.runs import ASKING, CANCELLED_BY, RunStatus
from postroom.contracts.subscriptions import SUBSCRIPTION_THREAD
from postroom.mail.commands import CatchUp
from postroom.mail.context import ReadContext
from postroom.mail.event_log import agent_addresses, check_cursor, find_caller, visible_events
from postroom.mail.projects import find_project

MAX_ENTRIES_READ: Final = 2_000
"""Maximum number of log entries that a summary reads."""
LISTED: Final = 10
"""Maximum number of threads, questions, failed runs and paths that a summary lists, newest first."""
_SENDERS_OF: Final = 20
"""Maximum number of messages of a thread that are read to find their senders."""
_SERVER: Final = "postroom"
"""The name for the server as the sender of a message. No agent can have this name."""
_HOUR: Final = 3_600_000
_STATE_AFTER: Final = {
    "run.began": "active",
    "run.cut_off": "active",
    "run.waiting": "waiting",
    "run.ended": "succeeded",
    "run.failed": "failed",
}
K = TypeVar("K")
Subject = Literal["asked", "added", "decided", "done", "failed", "cancelled", "changed", "said", "spent"]
"""The subject of a sentence. A summary contains the subjects in this order."""
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
_LONGEST: Final = 200
"""Maximum number of characters of a text that a sentence quotes."""


class CaughtSentence(TypedDict):
    """A sentence of a summary, with the ids of the records that it describes."""

    about: str
    text: str
    at: str
    task_id: NotRequired[int]
    note_id: NotRequired[int]
    run_id: NotRequired[str]
    question_id: NotRequired[str]
    thread_id: NotRequired[str]
    message_id: NotRequired[int]


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
    """The number of runs in each state."""

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
    """The reported usage of the runs that ended; `cost_micros` is in millionths of a US dollar."""

    tokens: int
    cost_micros: int


class CaughtUpView(TypedDict):
    """A summary of the events after a cursor.

    Pass `next` as the cursor `after` of the next call. `skipped` is the number of entries between the cursor
    and the first entry of the summary. Each list holds at most the newest 10 items.
    """

    since: str
    events: int
    skipped: int
    next: int
    sentences: list[CaughtSentence]
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
    """Return a summary of the events in a project after a cursor, or within the last hours.

    Raises:
        CursorExpired: Entries after the cursor were deleted.
        CursorAhead: The cursor is greater than the number of the newest entry.
    """
    project = find_project(context.projects, asked.project_key)
    return summary(context, project, after=asked.after, begin=context.now - asked.hours * _HOUR)


def summary(context: ReadContext, project: Project, *, after: int | None, begin: int) -> CaughtUpView:
    """Return a summary of the events in a project after a cursor, or since the time `begin`.

    Raises:
        CursorExpired, CursorAhead: As for `catch_up`.
    """
    bounds = context.tx.log_bounds(project.id)
    oldest = bounds.oldest if after is None else after
    check_cursor(oldest, bounds)
    entries = context.tx.project_events(
        project.id, after=max(oldest, bounds.newest - MAX_ENTRIES_READ), limit=MAX_ENTRIES_READ
    )
    skipped = max(0, bounds.newest - MAX_ENTRIES_READ - oldest)
    since = entries[0].happening.at if entries else context.now
    if after is None and since < begin:
        entries, skipped, since = [entry for entry in entries if entry.happening.at >= begin], 0, begin
    events = visible_events(context, project, entries)
    names = agent_addresses(context.tx, project, events)
    log = [event.happening for event in events]
    recalled = {event.message_id for event in log if event.kind == "message.recalled"}
    sent = [event for event in log if event.kind == "message.sent" and event.message_id not in recalled]
    runs = {event.run_id: event for event in log if event.kind.startswith("run.")}
    failed = [
        CaughtRun(run_id=str(run_id), agent=names.get(event.agent_id), at=iso(event.at))
        for run_id, event in _newest(runs)
        if event.kind == "run.failed" and not event.detail.get("cancelled")
    ]
    reserved, threads = _live_reservations(context, log), _threads(context, sent)
    sentences = _Sentences(context, names)
    open_questions = sentences.add_questions(log)
    sentences.add_work(log, runs)
    sentences.add_changes(log, reserved)
    sentences.add_threads(threads, sent)
    spent = sentences.add_spent(log)
    return CaughtUpView(
        since=iso(since),
        events=len(events),
        skipped=skipped,
        next=bounds.newest,
        sentences=sentences.listed(),
        threads=threads,
        threads_in_all=len({event.detail["thread_id"] for event in sent}),
        questions=open_questions,
        answered=len(
            {
                (event.run_id, event.detail["question_id"])
                for event in log
                if event.kind == "question.answered"
            }
        ),
        runs=_count_states(runs.values()),
        failed=failed[:LISTED],
        reserved=[
            CaughtPath(agent=names.get(event.agent_id), path=str(event.detail["path"]))
            for event in reserved[:LISTED]
        ],
        spent=spent,
        counts=dict(sorted(Counter(str(event.kind) for event in log).items())),
    )


def _live_reservations(context: ReadContext, told: Sequence[Happening]) -> list[Happening]:
    made = {event.reservation_id: event for event in told if event.kind == "reservation.made"}
    reserved = {
        reservation.id: made[reservation.id]
        for reservation in context.tx.reservations_by_id([number for number in made if number is not None])
        if reservation.released_at is None and reservation.expires_at > context.now
    }
    return [event for _, event in _newest(reserved)]


def _newest_of_questions(told: Sequence[Happening]) -> list[Happening]:
    newest, of_run = dict[tuple[str | None, str], Happening](), dict[str | None, set[str]]()
    for event in told:
        if event.kind.startswith("question."):
            number = str(event.detail["question_id"])
            newest[event.run_id, number] = event
            of_run.setdefault(event.run_id, set()).add(number)
        elif event.kind in _WHY_CLOSED:
            for number in of_run.pop(event.run_id, ()):
                if newest[event.run_id, number].kind == "question.asked":
                    detail = {**event.detail, "question_id": number}
                    newest[event.run_id, number] = replace(event, detail=detail)
    return list(newest.values())


class _Sentences:
    """Writes the sentences of a summary."""

    def __init__(self, context: ReadContext, names: Mapping[int | None, str]) -> None:
        self._context, self._names = context, names
        self._found: dict[Subject, list[tuple[int, CaughtSentence]]] = {subject: [] for subject in SUBJECTS}
        self._left_out: dict[Subject, list[int]] = {subject: [] for subject in SUBJECTS}
        """The times of the entries that get no sentence, because they are too old to be listed."""

    def add(self, about: Subject, at: int, text: str, **ids: object) -> None:
        sentence: CaughtSentence = {"about": about, "text": text, "at": iso(at), **ids}  # type: ignore[typeddict-item]
        self._found[about].append((at, sentence))

    def newest(self, about: Subject, entries: Iterable[Happening]) -> list[Happening]:
        ordered = sorted(entries, key=lambda event: event.at)
        self._left_out[about] += [event.at for event in ordered[:-LISTED]]
        return ordered[-LISTED:]

    def listed(self) -> list[CaughtSentence]:
        rows = list[CaughtSentence]()
        for about, found in self._found.items():
            found.sort(key=lambda pair: pair[0])
            more = [*self._left_out[about], *(at for at, _ in found[:-LISTED])]
            if more:
                text = f"{len(more)} earlier {'one is' if len(more) == 1 else 'ones are'} not listed."
                rows.append({"about": about, "text": text, "at": iso(max(more))})
            rows += [sentence for _, sentence in found[-LISTED:]]
        return rows

    def add_questions(self, told: Sequence[Happening]) -> list[CaughtQuestion]:
        reader, found = find_caller(self._context), _newest_of_questions(told)
        asked = self.newest("asked", [event for event in found if event.kind == "question.asked"])
        ended = self.newest("decided", [event for event in found if event.kind != "question.asked"])
        known = {run_id: self._context.tx.run_of(str(run_id)) for run_id in {e.run_id for e in asked + ended}}
        still_open = list[CaughtQuestion]()
        for event in (*asked, *ended):
            run, number, who = known[event.run_id], str(event.detail["question_id"]), self._who(event)
            is_open_to = reader is None or reader.id == event.agent_id
            tickets = {} if run is None else {ticket.ticket_id: ticket for ticket in run.open_tickets}
            given = (
                next((one for one in run.answered if one.ticket.ticket_id == number), None) if run else None
            )
            may_ask = run is None or run.status in (RunStatus.CREATED, RunStatus.RUNNING)
            about: Subject = "decided"
            if number in tickets or (event.kind == "question.asked" and given is None and may_ask):
                agent, at = self._names.get(event.agent_id), iso(event.at)
                question = CaughtQuestion(question_id=number, run_id=str(event.run_id), agent=agent, at=at)
                still_open.append(question)
                said = f": {_quote(tickets[number].reason)}" if number in tickets and is_open_to else ""
                about, sentence = "asked", f"{who} asks a person (question {number}){said}."
            elif given is not None:
                what = f", {_quote(given.ticket.question)}," if is_open_to else ""
                word = {True: "yes", False: "no"}.get(given.decision.approved)  # type: ignore[arg-type]
                words = _quote(form_in_words(given.decision.reason)) if given.decision.reason else ""
                how = ": ".join(filter(None, (word, words))) if is_open_to else ""
                by = (one_line(given.decision.by) if is_open_to else "") or "A person"
                sentence = f"{by} answered question {number} of {who}{what}{f' with {how}' if how else ''}."
                if given.decision.by == NOBODY:
                    sentence = f"Question {number} of {who}{what} was closed{f': {how}' if how else ''}."
                if given.decision.by == NOBODY and given.is_answer:
                    approved, end = (given.decision.approved, f": {words}") if is_open_to else (None, "")
                    which = f" question {number} of {who}{what}".removesuffix(",")
                    sentence = f"{unanswered(approved, which)}{end}."
            elif event.kind == "question.answered":
                sentence = f"A person answered question {number} of {who}."
            elif event.kind == "question.withdrawn":
                continue  # replaced by another question before anybody saw it
            else:
                cancelled = "the run was cancelled" if event.detail.get("cancelled") else ""
                why = cancelled or _WHY_CLOSED.get(event.kind, "the run no longer asks it")
                sentence = f"Question {number} of {who} was closed: {_quote(why)}."
            self.add(about, event.at, sentence, run_id=str(event.run_id), question_id=number)
        return still_open[::-1]

    def add_work(self, told: Sequence[Happening], runs: Mapping[str | None, Happening]) -> None:
        self._add_tasks(told)
        self._add_notes(told)
        self._add_runs(runs, told)

    def _add_tasks(self, told: Sequence[Happening]) -> None:
        added = {event.detail["task_id"]: event for event in told if event.kind == "task.added"}
        states, rejected = dict[str | int | bool, Happening](), list[Happening]()
        for event in told:
            number = event.detail.get("task_id", 0)
            if event.kind == "task.ready":
                if number in states and states[number].kind == "task.review":
                    rejected.append(event)
                    del states[number]
            elif event.kind in _OF_TASK:
                states[number] = event
        by_subject: dict[Subject, list[Happening]] = {}
        for event in (*added.values(), *states.values(), *rejected):
            by_subject.setdefault(_OF_TASK.get(event.kind, _ADDED)[0], []).append(event)
        rows = [(about, event) for about, found in by_subject.items() for event in self.newest(about, found)]
        tasks = self._context.tx.tasks_by_id([int(event.detail["task_id"]) for _, event in rows])
        for about, event in rows:
            number = int(event.detail["task_id"])
            task, done = tasks.get(number), _OF_TASK.get(event.kind, _ADDED)[1]
            if task and event.kind == "task.done" and event.agent_id != task.holder_id:
                done = "{who} accepted {task}."
            title = f" {_quote(task.title)}" if task else ""
            facts = "."
            if task and event.kind in ("task.done", "task.review"):
                commit = f"; commit {_quote(task.commit)}" if task.commit else ""
                result = f"; it says {_quote(task.result)}" if task.result else ""
                facts = f"{commit}{result}."
            elif task and task.reason:
                # A later state has another reason.
                is_rejected = event.kind == "task.ready" and task.state == "ready"
                if is_rejected or event.kind in ("task.blocked", "task.cancelled", "task.released"):
                    facts = f": {_quote(task.reason)}."
            text = done.format(who=self._who(event), task=f"task {number}{title}")
            self.add(about, event.at, text.removesuffix(".") + facts, task_id=number)

    def _add_notes(self, told: Sequence[Happening]) -> None:
        known = {event.detail["note_id"]: event for event in told if event.kind == "note.ended"}
        known |= {event.detail["note_id"]: event for event in told if event.kind == "note.added"}
        listed = self.newest("decided", known.values())
        notes = self._context.tx.notes_by_id([int(event.detail["note_id"]) for event in listed])
        for event in listed:
            note = notes.get(int(event.detail["note_id"]))
            said = f" {_quote(note.subject)}: {_quote(note.text)}" if note else ""
            old = f", in place of note {', '.join(map(str, note.replaces))}" if note and note.replaces else ""
            is_added = event.kind == "note.added"
            text = (
                f"{self._who(event)} {'added' if is_added else 'ended'} note {event.detail['note_id']}{said}"
            )
            text += f"{old}." if is_added else "."
            if is_added and note and note.ends_at <= self._context.now:
                by = f" was replaced by note {note.replaced_by}" if note.replaced_by else " ended"
                text += f" It{by} at {iso(note.ends_at)}."
            self.add("decided", event.at, text, note_id=int(event.detail["note_id"]))
        contacts = [event for event in told if event.kind in ("contact.granted", "contact.blocked")]
        for event in self.newest("decided", contacts):
            verb = "allowed" if event.kind == "contact.granted" else "forbade"
            other = self._context.tx.agents_by_id([int(event.detail[OTHER])]).get(int(event.detail[OTHER]))
            whom = other.name if other else "an agent"
            self.add("decided", event.at, f"{self._who(event)} {verb} {whom} to write to it.")

    def _add_runs(self, runs: Mapping[str | None, Happening], told: Sequence[Happening]) -> None:
        failures = {event.run_id: event for event in told if event.kind == "delivery.failed"}
        over = [event for event in runs.values() if event.kind == "run.failed"]
        cancelled = self.newest("cancelled", [event for event in over if event.detail.get("cancelled")])
        failed = self.newest("failed", [event for event in over if not event.detail.get("cancelled")])
        known = [failures[event.run_id] for event in cancelled + failed if event.run_id in failures]
        messages = [event.message_id for event in known if event.message_id is not None]
        states = self._context.tx.message_runs(messages)
        for entry in cancelled + failed:
            failure = failures.get(entry.run_id)
            state = states.get(failure.message_id or 0, {}).get(failure.agent_id or 0) if failure else None
            why = state.failure if state else ""
            about: Subject = "cancelled" if entry.detail.get("cancelled") else "failed"
            end = "failed" if about == "failed" else "was cancelled"
            if about == "cancelled" and why.startswith(CANCELLED_BY):
                end, why = f"was {one_line(why)}", ""
            why = f": {_quote(why)}" if why and why != about else ""
            text, run = f"A run of {self._who(entry)} {end}{why}.", self._context.tx.run_of(str(entry.run_id))
            if run is not None and run.status is not RunStatus.DONE:
                text = f"An attempt of a run of {self._who(entry)} failed. The run is retried."
            self.add(about, entry.at, text, run_id=str(entry.run_id))
        well: dict[int | None, list[Happening]] = {}
        for entry in runs.values():
            if entry.kind == "run.ended":
                well.setdefault(entry.agent_id, []).append(entry)
        for ended in well.values():
            last = max(ended, key=lambda event: event.at)
            number = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
            text = f"{self._who(last)} ended {number} well."
            self.add("done", last.at, text, run_id=str(last.run_id))

    def add_changes(self, told: Sequence[Happening], reserved: Sequence[Happening]) -> None:
        files = {
            (event.agent_id, event.detail["path"]): event for event in told if event.kind == "file.changed"
        }
        for event in self.newest("changed", files.values()):
            self.add("changed", event.at, f"{self._who(event)} changed {_quote(str(event.detail['path']))}.")
        for event in self.newest("changed", reserved):
            text = f"{self._who(event)} reserved {_quote(str(event.detail['path']))} and still holds it."
            self.add("changed", event.at, text)
        for event in self.newest("changed", [event for event in told if event.kind == "branch.merged"]):
            branch, into = _quote(str(event.detail["branch"])), _quote(str(event.detail["into"]))
            self.add("changed", event.at, f"Branch {branch} was merged into {into}.")
        agents = [event for event in told if event.kind in ("agent.registered", "agent.retired")]
        for event in self.newest("changed", agents):
            text = f"{self._who(event)} was {event.kind.removeprefix('agent.')} as an agent."
            self.add("changed", event.at, text)

    def add_threads(self, threads: Sequence[CaughtThread], sent: Sequence[Happening]) -> None:
        times = {event.message_id: event.at for event in sent}
        for thread in threads:
            if thread["thread_id"].startswith(SUBSCRIPTION_THREAD):
                continue  # the thread's messages repeat events of the log
            number = "a message" if thread["messages"] == 1 else f"{thread['messages']} messages"
            who = (
                " and ".join(filter(None, (", ".join(thread["senders"][:-1]), *thread["senders"][-1:])))
                or "Somebody"
            )
            subject, thread_id = _quote(thread["subject"]), _quote(thread["thread_id"])
            text = f"{who} wrote {number} about {subject} (thread {thread_id})."
            ids = {"thread_id": thread["thread_id"], "message_id": thread["newest_id"]}
            self.add("said", times[thread["newest_id"]], text, **ids)

    def add_spent(self, told: Sequence[Happening]) -> Spent:
        ended = [event.detail for event in told if event.kind in ("run.ended", "run.failed")]
        tokens, cost_micros = (
            sum(int(event.get(detail, 0)) for event in ended) for detail in ("tokens", "cost_micros")
        )
        if tokens or cost_micros:
            cost = f"{cost_micros / 1e6:.2f} USD"
            self.add("spent", told[-1].at, f"Runs used {tokens:,} tokens and {cost}.")
        return Spent(tokens=tokens, cost_micros=cost_micros)

    def _who(self, one: Happening) -> str:
        return self._names.get(one.agent_id) or "Somebody"


_WHY_CLOSED: Final = {"run.ended": "the run ended", "run.failed": "the run failed"}
"""Why the open questions of a run are closed, keyed by the kind of the log entry of its end."""
_ADDED: Final[tuple[Subject, str]] = ("added", "{who} added {task}.")
_OF_TASK: Final[Mapping[str, tuple[Subject, str]]] = {
    "task.claimed": ("changed", "{who} claimed {task}."),
    "task.released": ("changed", "{who} gave back {task}."),
    "task.lease_ended": ("failed", "{who} lost {task}, because its lease ended."),
    "task.blocked": ("failed", "{who} blocked {task}."),
    "task.review": ("asked", "{who} asks a person to accept {task}."),
    "task.ready": ("decided", "{who} rejected {task}."),
    "task.done": ("done", "{who} finished {task}."),
    "task.cancelled": ("decided", "{who} cancelled {task}."),
}
"""The subject and the sentence for a task, keyed by the kind of its newest log entry.

`task.ready` is the rejection of a task that was in review; elsewhere it has no sentence.
"""


def _quote(text: str) -> str:
    return quoted(text, longest=_LONGEST)


def _count_states(newest_events: Iterable[Happening]) -> CaughtRuns:
    states = Counter(
        "cancelled" if event.detail.get("cancelled") else _STATE_AFTER[event.kind] for event in newest_events
    )
    return CaughtRuns(
        active=states["active"],
        waiting=states["waiting"],
        succeeded=states["succeeded"],
        failed=states["failed"],
        cancelled=states["cancelled"],
    )


def _newest(found: Mapping[K, Happening]) -> list[tuple[K, Happening]]:
    return sorted(found.items(), key=lambda item: item[1].at, reverse=True)


def _threads(context: ReadContext, sent: Sequence[Happening]) -> list[CaughtThread]:
    by_thread: dict[object, list[int]] = {}
    for event in reversed(sent):
        if event.message_id is not None:
            by_thread.setdefault(event.detail["thread_id"], []).append(event.message_id)
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
                    _SERVER
                    if number == ids[-1] and _is_answer_of_person(context, messages[number])
                    else messages[number].sender_name
                    for number in ids[:_SENDERS_OF]
                    if number in messages
                )
            ),
        }
        for thread_id, ids in listed
    ]


def _is_answer_of_person(context: ReadContext, message: Message) -> bool:
    run_id = None if message.reply_to is not None else context.tx.answering_run(message.id)
    run = None if run_id is None else context.tx.run_of(run_id)
    return run is not None and ASKING in run.thread_id
