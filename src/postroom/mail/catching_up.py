"""The operation that summarizes the events of a project since a cursor, computed from the project's log.

    after ──▶ newest 2,000 entries that the caller may see ──▶ sentences, threads, runs, usage ──▶ next

The summary reads at most `MAX_ENTRIES_READ` entries, however long the log is, so that its cost does not grow
with the project. Older entries after the cursor are only counted, in `skipped`. For each subject of
`SUBJECTS` it has at most `LISTED` sentences. Text that agents have written is in quotes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict, TypeVar, get_args

from postroom.contracts.clock import iso
from postroom.contracts.mail import OTHER, Happening, Project
from postroom.contracts.quoting import one_line, quoted
from postroom.contracts.subscriptions import SUBSCRIPTION_THREAD
from postroom.contracts.tasks import Task
from postroom.mail.commands import CatchUp
from postroom.mail.context import ReadContext
from postroom.mail.event_log import agent_addresses, check_cursor, reader_of, visible_events
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
Subject = Literal["asked", "added", "decided", "done", "failed", "changed", "said", "spent"]
"""What a sentence is about, in the order of the summary."""
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
_LONGEST: Final = 200
"""Maximum number of characters that a sentence quotes of one text."""


class CaughtSentence(TypedDict):
    """A sentence about one of the subjects, with ids that lead to more."""

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

    `skipped` entries lie between the cursor and the first entry of the summary. Lists hold the newest 10, and
    `sentences` the newest 10 of each kind, oldest first.
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
    reserved, threads = _still_reserved(context, told), _threads(context, sent)
    sentences = _Sentences(context, names)
    sentences.add_questions(questions)
    sentences.add_work(told, runs)
    sentences.add_changes(told, reserved)
    sentences.add_threads(threads, sent)
    spent = sentences.add_spent(told)
    return CaughtUpView(
        since=iso(since),
        events=len(events),
        skipped=skipped,
        next=bounds.newest,
        sentences=sentences.listed(),
        threads=threads,
        threads_in_all=len({one.detail["thread_id"] for one in sent}),
        questions=open_questions[:LISTED],
        answered=sum(one.kind == "question.answered" for one in questions.values()),
        runs=_count_states(runs.values()),
        failed=failed[:LISTED],
        reserved=[
            CaughtPath(agent=names.get(one.agent_id), path=str(one.detail["path"]))
            for one in reserved[:LISTED]
        ],
        spent=spent,
        counts=dict(sorted(Counter(str(one.kind) for one in told).items())),
    )


def _still_reserved(context: ReadContext, told: Sequence[Happening]) -> list[Happening]:
    """Return the entries of the reservations that are still held, newest first."""
    made = {one.reservation_id: one for one in told if one.kind == "reservation.made"}
    reserved = {
        one.id: made[one.id]
        for one in context.tx.reservations_by_id([number for number in made if number is not None])
        if one.released_at is None and one.expires_at > context.now
    }
    return [one for _, one in _newest(reserved)]


class _Sentences:
    """Writes the sentences of a summary; each method adds those about one part of the log."""

    def __init__(self, context: ReadContext, names: Mapping[int | None, str]) -> None:
        self._context, self._names = context, names
        self._found: dict[Subject, list[tuple[int, CaughtSentence]]] = {one: [] for one in SUBJECTS}
        self._left_out: dict[Subject, list[int]] = {one: [] for one in SUBJECTS}
        """The times of entries that are too old to be listed, and for which no sentence is written."""

    def add(self, about: Subject, at: int, text: str, **ids: object) -> None:
        """Add a sentence with the ids of the things that it is about."""
        sentence: CaughtSentence = {"about": about, "text": text, "at": iso(at), **ids}  # type: ignore[typeddict-item]
        self._found[about].append((at, sentence))

    def newest(self, about: Subject, entries: Iterable[Happening]) -> list[Happening]:
        """Return the entries that may be listed, oldest first; the others are only counted."""
        ordered = sorted(entries, key=lambda one: one.at)
        self._left_out[about] += [one.at for one in ordered[:-LISTED]]
        return ordered[-LISTED:]

    def listed(self) -> list[CaughtSentence]:
        """Return the newest sentences of each kind, and how many more there are."""
        rows = list[CaughtSentence]()
        for about, found in self._found.items():
            found.sort(key=lambda one: one[0])
            more = [*self._left_out[about], *(at for at, _ in found[:-LISTED])]
            if more:
                text = f"{len(more)} earlier {'one is' if len(more) == 1 else 'ones are'} not listed."
                rows.append({"about": about, "text": text, "at": iso(max(more))})
            rows += [sentence for _, sentence in found[-LISTED:]]
        return rows

    def add_questions(self, questions: Mapping[tuple[str | None, str | int | bool], Happening]) -> None:
        """Add the open questions with their texts, and those that were answered.

        An agent reads only the texts of its own questions.
        """
        reader = reader_of(self._context)
        found = questions.values()
        asked = self.newest("asked", [one for one in found if one.kind == "question.asked"])
        answered = self.newest("decided", [one for one in found if one.kind == "question.answered"])
        run_ids = {str(one.run_id) for one in (*asked, *answered)}
        known = list(filter(None, map(self._context.tx.run_of, run_ids)))
        texts = {(run.run_id, one.ticket_id): one.reason for run in known for one in run.open_tickets}
        answers = {(run.run_id, one.ticket.ticket_id): one for run in known for one in run.answered}
        for one in (*asked, *answered):
            run_id, number, who = str(one.run_id), str(one.detail["question_id"]), self._who(one)
            is_open_to = reader is None or reader.id == one.agent_id
            if one.kind == "question.answered":
                given = answers.get((run_id, number))
                by, what = "A person", ""
                if given is not None and is_open_to:
                    decision = given.decision
                    word = {True: "yes", False: "no"}.get(decision.approved)  # type: ignore[arg-type]
                    words = _quoted(decision.reason) if decision.reason else ""
                    by = one_line(decision.by) or by
                    what = (
                        f", {_quoted(given.ticket.question)}, with {': '.join(filter(None, (word, words)))}"
                    )
                about: Subject = "decided"
                sentence = f"{by} answered question {number} of {who}{what}."
            else:
                text = texts.get((run_id, number), "") if is_open_to else ""
                said = f": {_quoted(text)}" if text else ""
                about, sentence = "asked", f"{who} asks a person (question {number}){said}."
            self.add(about, one.at, sentence, run_id=run_id, question_id=number)

    def add_work(self, told: Sequence[Happening], runs: Mapping[str | None, Happening]) -> None:
        """Add the tasks, the notes, and the runs."""
        self._add_tasks(told)
        self._add_notes(told)
        self._add_runs(runs, told)

    def _add_tasks(self, told: Sequence[Happening]) -> None:
        """Add a sentence for each task that was added, and one for its newest state."""
        added = {one.detail["task_id"]: one for one in told if one.kind == "task.added"}
        states = {one.detail["task_id"]: one for one in told if one.kind in _OF_TASK}
        by_subject: dict[Subject, list[Happening]] = {}
        for one in (*added.values(), *states.values()):
            by_subject.setdefault(_OF_TASK.get(one.kind, _ADDED)[0], []).append(one)
        rows = [(about, one) for about, found in by_subject.items() for one in self.newest(about, found)]
        tasks = self._context.tx.tasks_by_id([int(one.detail["task_id"]) for _, one in rows])
        for about, one in rows:
            number = int(one.detail["task_id"])
            task, done = tasks.get(number), _OF_TASK.get(one.kind, _ADDED)[1]
            title = f" {_quoted(task.title)}" if task else ""
            facts = _facts(task, one) if task else "."
            text = done.format(who=self._who(one), task=f"task {number}{title}")
            self.add(about, one.at, text.removesuffix(".") + facts, task_id=number)

    def _add_notes(self, told: Sequence[Happening]) -> None:
        """Add the notes with their texts."""
        added = self.newest("decided", [one for one in told if one.kind == "note.added"])
        notes = self._context.tx.notes_by_id([int(one.detail["note_id"]) for one in added])
        for one in added:
            note = notes.get(int(one.detail["note_id"]))
            said = f" {_quoted(note.subject)}: {_quoted(note.text)}" if note else ""
            old = f", in place of note {', '.join(map(str, note.replaces))}" if note and note.replaces else ""
            text = f"{self._who(one)} added note {one.detail['note_id']}{said}{old}."
            self.add("decided", one.at, text, note_id=int(one.detail["note_id"]))
        contacts = [one for one in told if one.kind in ("contact.granted", "contact.blocked")]
        for one in self.newest("decided", contacts):
            verb = "allowed" if one.kind == "contact.granted" else "forbade"
            other = self._context.tx.agents_by_id([int(one.detail[OTHER])]).get(int(one.detail[OTHER]))
            whom = other.name if other else "an agent"
            self.add("decided", one.at, f"{self._who(one)} {verb} {whom} to write to it.")

    def _add_runs(self, runs: Mapping[str | None, Happening], told: Sequence[Happening]) -> None:
        """Add the failed runs with their reasons, and the number of each agent's runs that succeeded."""
        failures = {one.run_id: one for one in told if one.kind == "delivery.failed"}
        failed = self.newest("failed", [one for one in runs.values() if one.kind == "run.failed"])
        known = [failures[one.run_id] for one in failed if one.run_id in failures]
        messages = [one.message_id for one in known if one.message_id is not None]
        states = self._context.tx.message_runs(messages)
        for one in failed:
            if one.detail.get("cancelled"):
                self.add(
                    "failed", one.at, f"A run of {self._who(one)} was cancelled.", run_id=str(one.run_id)
                )
                continue
            failure = failures.get(one.run_id)
            state = states.get(failure.message_id or 0, {}).get(failure.agent_id or 0) if failure else None
            why = f": {_quoted(state.failure)}" if state and state.failure else ""
            self.add("failed", one.at, f"A run of {self._who(one)} failed{why}.", run_id=str(one.run_id))
        well: dict[int | None, list[Happening]] = {}
        for one in runs.values():
            if one.kind == "run.ended":
                well.setdefault(one.agent_id, []).append(one)
        for ended in well.values():
            last = max(ended, key=lambda one: one.at)
            number = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
            text = f"{self._who(last)} ended {number} well."
            self.add("done", last.at, text, run_id=str(last.run_id))

    def add_changes(self, told: Sequence[Happening], reserved: Sequence[Happening]) -> None:
        """Add the changed files, the merged branches, the paths that are still reserved, and new agents."""
        files = {(one.agent_id, one.detail["path"]): one for one in told if one.kind == "file.changed"}
        for one in self.newest("changed", files.values()):
            self.add("changed", one.at, f"{self._who(one)} changed {_quoted(str(one.detail['path']))}.")
        for one in self.newest("changed", reserved):
            text = f"{self._who(one)} reserved {_quoted(str(one.detail['path']))} and still holds it."
            self.add("changed", one.at, text)
        for one in self.newest("changed", [one for one in told if one.kind == "branch.merged"]):
            branch, into = _quoted(str(one.detail["branch"])), _quoted(str(one.detail["into"]))
            self.add("changed", one.at, f"Branch {branch} was merged into {into}.")
        agents = [one for one in told if one.kind in ("agent.registered", "agent.retired")]
        for one in self.newest("changed", agents):
            text = f"{self._who(one)} was {one.kind.removeprefix('agent.')} as an agent."
            self.add("changed", one.at, text)

    def add_threads(self, threads: Sequence[CaughtThread], sent: Sequence[Happening]) -> None:
        """Add the threads with new messages."""
        times = {one.message_id: one.at for one in sent}
        for one in threads:
            if one["thread_id"].startswith(SUBSCRIPTION_THREAD):
                continue  # its messages repeat events of the log, in the name of their reader
            number = "a message" if one["messages"] == 1 else f"{one['messages']} messages"
            who = (
                " and ".join(filter(None, (", ".join(one["senders"][:-1]), *one["senders"][-1:])))
                or "Somebody"
            )
            text = (
                f"{who} wrote {number} about {_quoted(one['subject'])} (thread {_quoted(one['thread_id'])})."
            )
            ids = {"thread_id": one["thread_id"], "message_id": one["newest_id"]}
            self.add("said", times[one["newest_id"]], text, **ids)

    def add_spent(self, told: Sequence[Happening]) -> Spent:
        """Add the reported usage of runs, and return it."""
        ended = [one.detail for one in told if one.kind in ("run.ended", "run.failed")]
        tokens, cost_micros = (
            sum(int(one.get(detail, 0)) for one in ended) for detail in ("tokens", "cost_micros")
        )
        if tokens or cost_micros:
            cost = f"{cost_micros / 1e6:.2f} USD"
            self.add("spent", told[-1].at, f"Runs used {tokens:,} tokens and {cost}.")
        return Spent(tokens=tokens, cost_micros=cost_micros)

    def _who(self, one: Happening) -> str:
        return self._names.get(one.agent_id) or "Somebody"


_ADDED: Final[tuple[Subject, str]] = ("added", "{who} added {task}.")
_OF_TASK: Final[Mapping[str, tuple[Subject, str]]] = {
    "task.claimed": ("changed", "{who} claimed {task}."),
    "task.released": ("changed", "{who} gave back {task}."),
    "task.lease_ended": ("failed", "{who} lost {task}, because its lease ended."),
    "task.blocked": ("failed", "{who} blocked {task}."),
    "task.review": ("asked", "{who} asks a person to accept {task}."),
    "task.done": ("done", "{who} finished {task}."),
    "task.cancelled": ("decided", "{who} cancelled {task}."),
}
"""By kind of log entry, the subject and the sentence of a task whose newest state it is."""


def _facts(task: Task, one: Happening) -> str:
    """Return the end of the sentence about a task: its evidence, or the reason for its state."""
    if one.kind in ("task.done", "task.review"):
        commit = f"; commit {_quoted(task.commit)}" if task.commit else ""
        said = f"; it says {_quoted(task.result)}" if task.result else ""
        return f"{commit}{said}."
    has_reason = one.kind in ("task.blocked", "task.cancelled", "task.released") and task.reason
    return f": {_quoted(task.reason)}." if has_reason else "."


def _quoted(text: str) -> str:
    return quoted(text, longest=_LONGEST)


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
