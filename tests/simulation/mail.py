"""Mail in a world: agents that are woken by messages, and what must be true of their messages."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.errors import PostroomError
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Boundary, Message
from postroom.contracts.runs import TerminationReason
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.dispatch.routing import ExecutorsByThread
from postroom.mail.context import Caller
from postroom.mail.people import StoredChatDelivery
from postroom.mail.service import Mail
from postroom.mail.waking.mail_runs import MailRunExecutor, MessageEffects
from postroom.mail.waking.prompts import AGENT_THREAD
from postroom.mail.waking.subscription_rounds import SubscriptionRounds
from postroom.mail.waking.waker import Waker
from postroom.ports import RunControl, get_claim
from postroom.stores.stores import Stores
from simulation.loop import SimulatedLoop
from task_log import check_claims

PROJECT = "/projects/world"
SENDER, READERS = "Ada", ("Ben", "Cyd")
_LEASE = 2
"""Seconds of a claim: shorter than some suspensions of servers."""
_NUMBER = re.compile(r"job (\d+)\.")
_TOLD = re.compile(r"job (\d+)\b")
_READY = re.compile(r"Task (\d+) is ready")


async def furnish(stores: Stores) -> None:
    """Open a project with a sender and two agents that messages wake."""
    mail = Mail(stores, stores.clock)
    await mail.call("ensure_project", {"human_key": PROJECT})
    for name in (SENDER, *READERS):
        registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
        await mail.call("register_agent", registered)
    for name in READERS:
        await mail.set_runner(PROJECT, name, "{}")
    for number, depends_on in enumerate(([], [], [1], [2, 3], [], [5], [], []), start=1):
        task = {"title": f"Task {number}", "depends_on": depends_on, "paths": [f"src/{number % 3}"]}
        await mail.call("add_task", {"project_key": PROJECT, "agent_name": SENDER, **task})
    await mail.call("subscribe", {"project_key": PROJECT, "agent_name": SENDER, "kind": "task_ready"})


class Agents(RunDispatchExecutor):
    """Runs the agents: each message of a run names a job, whose script the run follows."""

    def __init__(self, server: Any, watch: Any, scripts: dict[int, list[list[Any]]]) -> None:
        self._server, self._watch, self._scripts = server, watch, scripts

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        numbers = _jobs_of([*activation.messages, *await self._received(activation)])
        run_id = activation.run_id or ""
        run = SimpleNamespace(
            id=run_id, thread_id=activation.thread_id, attempt=activation.attempt, data=None
        )
        watch, server = self._watch, self._server
        for number in numbers:
            watch.reads[number].add(run_id)
        one = watch.begin(server, run)
        server.executing[run_id] += 1
        try:
            task = await self._claimed(activation)
            for number in numbers:  # the messages that the run reads later are added to them
                for what, about in self._scripts.get(number, []):
                    if what == "wait":
                        await watch.wait(one, about)
                    elif watch.failures[run_id] < about:
                        watch.failures[run_id] += 1
                        watch.act(one)
                        raise ConnectionError(f"failure {watch.failures[run_id]} of {about}")
                    watch.act(one)
                    numbers += await self._arrived(activation)
            if task is not None:
                await self._noted(activation, task)
                await self._task_call(activation, "done_task", task_id=task["id"], epoch=task["epoch"])
        finally:
            one.is_over = True
            server.executing[run_id] -= 1
        return AgentRunResult(
            run_id=run_id,
            response="did " + " ".join(f"job {n}" for n in numbers),
            termination=TerminationReason.natural_end(),
            steps=1,
        )

    async def _received(self, activation: RunActivation) -> list[Message]:
        """Return the messages that earlier attempts of the run received, as `ProgramExecutor` does."""
        control = activation.control
        if not isinstance(control, RunControl) or control.run is None or control.run.input is None:
            return []
        known = {message.id for message in activation.messages}
        ids = [one for one in control.run.input.trigger_message_ids if one not in known]
        records = await control.threads.load_message_records(activation.thread_id, ids) if ids else ()
        return [record.message for record in records]

    async def _arrived(self, activation: RunActivation) -> list[int]:
        """Return the jobs of the messages that the run reads before its next step."""
        control = activation.control
        if self._server.mail is None or not self._server.mail.steers or not isinstance(control, RunControl):
            return []
        assert control.pending is not None
        numbers = _jobs_of(await control.pending.freeze(Boundary.NEXT_STEP))
        for number in numbers:
            self._watch.reads[number].add(activation.run_id or "")
        return numbers

    async def _noted(self, activation: RunActivation, task: Any) -> None:
        """Note a fact about the task of the run."""
        name = f"{activation.run_id} {activation.attempt} {task['epoch']}"
        told = {"subject": name, "text": "a fact", "task_id": task["id"], "idempotency_key": f"note {name}"}
        if await self._task_call(activation, "add_note", **told):
            self._watch.notes.add(name)

    async def _claimed(self, activation: RunActivation) -> Any:
        """Return a task that the run claims, in a world with tasks."""
        if self._server.mail is None or not self._server.mail.has_tasks:
            return None
        key = f"{activation.run_id} {activation.attempt}"
        asked = {"ttl_seconds": _LEASE, "idempotency_key": key}
        return ((await self._task_call(activation, "claim_task", **asked)) or {}).get("task")

    async def _task_call(self, activation: RunActivation, operation: str, **asked: Any) -> Any:
        """Call an operation as the agent of a run; None if it is refused or its reply is lost."""
        name = (activation.agent_id or "").partition("@")[0]
        asked = {"project_key": PROJECT, "agent_name": name, **asked}
        with suppress(PostroomError):
            caller = Caller(run_id=activation.run_id, claim=get_claim(activation))
            return await self._server.mail.mail.call(operation, asked, caller=caller)
        return None


def _jobs_of(messages: Sequence[Message]) -> list[int]:
    return [int(n) for message in messages for n in _NUMBER.findall(message.text())]


class MailServer:
    """The parts of a server of a mail world in addition to its mailbox: the mail room, and the waker of its agents."""

    def __init__(
        self, stores: Stores, agents: Agents, options: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        self.has_tasks = bool(settings.get("tasks"))
        """Whether the runs of agents claim and finish tasks, and `SENDER` gets a message for each ready task."""
        self.steers = bool(settings.get("steers"))
        """Whether runs read the messages that arrive on their mail thread while they execute."""
        self.mail = Mail(stores, stores.clock, waker=lambda: self.waker)
        self.queue = Queue(
            ExecutorsByThread({AGENT_THREAD: MailRunExecutor(agents, stores, stores.clock)}),
            stores.runs,
            effects=MessageEffects(self.mail.own_context),
            **options,
        )
        self.waker = Waker(stores, self.queue, verified=False, chat_delivery=StoredChatDelivery(self.mail))

    async def tell_of_tasks(self, loop: SimulatedLoop) -> None:
        """Send the messages about tasks that are ready, round after round."""
        rounds = SubscriptionRounds(self.mail, self.waker)
        while True:
            with suppress(PostroomError):  # the next round looks again
                await rounds.round()
            await loop.passes(1_000)

    async def send(self, n: int, data: dict[str, Any]) -> str:
        """Send the message of a job; return its id."""
        asked = {"project_key": PROJECT, "sender_name": SENDER, "to": data["to"], "subject": f"Job {n}"}
        asked |= {"body_md": f"Please do job {n}.", "idempotency_key": f"job-{n}"}
        if data["mail_thread"]:
            asked["thread_id"] = data["mail_thread"]
        answer = await self.mail.call("send_message", asked)
        return str(answer["deliveries"][0]["payload"]["id"])


def audit_mail(
    rows: Any, jobs: dict[int, tuple[str | None, list[str]]], runs: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Yield the faults of messages; `jobs` has the id of each message that was taken, and its readers."""
    names = dict(rows("SELECT id, name FROM agents"))
    by_subject: dict[str, list[int]] = defaultdict(list)
    for id, subject in rows(
        "SELECT id, subject FROM messages WHERE subject LIKE 'Job %' AND reply_to IS NULL"
    ):
        by_subject[subject].append(id)
    for subject, ids in by_subject.items():
        if len(ids) > 1:
            yield f"SENT TWICE: {subject} is messages {ids}"
    handled: dict[tuple[int, str], list[tuple[str, Any, str]]] = defaultdict(list)
    for message_id, agent_id, run_id, ended_at, failure in rows(
        "SELECT message_id, agent_id, run_id, ended_at, failure FROM message_runs"
    ):
        handled[message_id, names[agent_id]].append((run_id, ended_at, failure))
    read = {(m, names[a]): at for m, a, at in rows("SELECT message_id, agent_id, read_at FROM recipients")}
    for n, (message_id, readers) in jobs.items():
        if message_id is None:
            continue
        for reader in readers:
            found = handled.get((int(message_id), reader), [])
            if (int(message_id), reader) not in read:
                yield f"MESSAGE LOST: {message_id} of job {n} is not in the inbox of {reader}"
            elif not found:
                yield f"NOT WOKEN: no run has had message {message_id} of job {n} for {reader}"
            for run_id, ended_at, failure in found:
                if ended_at is None:
                    yield f"IN HAND STILL: run {run_id} of {reader} has message {message_id}, and has ended"
                elif not failure and read[int(message_id), reader] is None:
                    yield f"UNREAD: message {message_id} was handled by {run_id}, and {reader} has not read it"
                elif not failure and str(n) not in _TOLD.findall(
                    runs.get(run_id, {}).get("final_output") or ""
                ):
                    yield f"NOT DONE: run {run_id} of {reader} ended well without job {n}"
    answers: dict[str, int] = dict(rows("SELECT run_id, count(*) FROM run_answers GROUP BY run_id"))
    for run_id in {run_id for found in handled.values() for run_id, _, _ in found}:
        if run_id in runs and answers.get(run_id, 0) != 1:
            yield f"MAIL ANSWERS: run {run_id} has {answers.get(run_id, 0)} answers in the mail"
    for agent_id, first, last, number in rows(
        "SELECT agent_id, min(seq), max(seq), count(*) FROM recipients GROUP BY 1"
    ):
        if (first, last) != (1, number):
            yield f"INBOX GAP: {number} messages of {names[agent_id]} from {first} to {last}"


def has_untold(rows: Any) -> bool:
    """Return whether a subscription has not yet processed a ready task."""
    return bool(
        rows(
            "SELECT 1 FROM subscriptions u JOIN event_scopes s ON s.scope LIKE 'project:%' AND s.seq > u.cursor "
            "JOIN events e ON e.event_id = s.event_id AND e.event_kind = 'task.ready' "
            "WHERE json_extract(e.payload, '$.agent_id') IS NOT u.agent_id LIMIT 1"
        )
    )


def audit_notes(rows: Any, confirmed: set[str]) -> Iterator[str]:
    """Yield the faults of notes: a note that a run got as stored is missing, or a note is stored twice."""
    stored = Counter(subject for (subject,) in rows("SELECT subject FROM notes"))
    yield from (f"NOTE LOST: {one}" for one in sorted(confirmed - stored.keys()))
    yield from (f"NOTE TWICE: {one}" for one, count in stored.items() if count > 1)


def audit_subscriptions(rows: Any) -> Iterator[str]:
    """Yield the tasks about which the subscriber got too many messages, or none."""
    ready: Counter[int] = Counter()
    for (payload,) in rows(
        "SELECT e.payload FROM event_scopes s JOIN events e ON e.event_id = s.event_id, subscriptions u "
        "WHERE s.scope LIKE 'project:%' AND e.event_kind = 'task.ready' "
        "AND json_extract(e.payload, '$.agent_id') IS NOT u.agent_id"
    ):
        ready[json.loads(payload)["detail"]["task_id"]] += 1
    told: Counter[int] = Counter()
    for (body,) in rows("SELECT body_md FROM messages WHERE thread_id LIKE 'subscription-%'"):
        told.update(int(n) for n in _READY.findall(body))
    for task_id in ready.keys() | told.keys():
        if not (bool(ready[task_id]) <= told[task_id] <= ready[task_id]):
            yield f"SUBSCRIPTION: task {task_id} was ready {ready[task_id]} times, and told {told[task_id]} times"


def audit_tasks(rows: Any, runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the faults of tasks: two holders in the log, a lost task, a claim of a run that has ended."""
    log = rows(
        "SELECT e.event_kind, e.payload FROM event_scopes s JOIN events e ON e.event_id = s.event_id "
        "WHERE s.scope LIKE 'project:%' AND e.event_kind LIKE 'task.%' ORDER BY s.scope, s.seq"
    )
    told = [{"kind": kind, **json.loads(payload)} for kind, payload in log]
    try:
        held = check_claims([{"agent": one["agent_id"], **one} for one in told])
    except AssertionError as error:
        yield f"TWO HOLDERS: {error}"
        return
    for task_id, state, epoch, run_id in rows("SELECT id, state, epoch, run_id FROM tasks"):
        is_held = held.get(task_id, ("", 0))[1] == epoch
        if (state == "claimed") != (task_id in held) or (task_id in held and not is_held):
            yield f"TASK: {task_id} is {state} with epoch {epoch}, and the log says {held.get(task_id)}"
        if state == "claimed" and runs.get(run_id, {}).get("status") == "done":
            yield f"TASK: the run {run_id} has ended, and holds task {task_id}"
