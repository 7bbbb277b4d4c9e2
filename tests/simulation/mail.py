"""Mail in a world: agents that are woken by messages, and what must be true of their messages."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.errors import PostroomError
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.runs import TerminationReason
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.dispatch.routing import ExecutorsByThread
from postroom.mail.context import Caller
from postroom.mail.people import StoredChatDelivery
from postroom.mail.service import Mail
from postroom.mail.waking.mail_runs import MailRunExecutor, MessageEffects
from postroom.mail.waking.prompts import AGENT_THREAD
from postroom.mail.waking.waker import Waker
from postroom.stores.stores import Stores
from task_log import check_claims

PROJECT = "/projects/world"
SENDER, READERS = "Ada", ("Ben", "Cyd")
_LEASE = 2
"""Seconds of a claim: shorter than some suspensions of servers."""
_NUMBER = re.compile(r"job (\d+)\.")


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


class Agents(RunDispatchExecutor):
    """Runs the agents: each message of a run names a job, whose script the run follows."""

    def __init__(self, server: Any, watch: Any, scripts: dict[int, list[list[Any]]]) -> None:
        self._server, self._watch, self._scripts = server, watch, scripts

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        numbers = [int(n) for message in activation.messages for n in _NUMBER.findall(message.text())]
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
            for number in numbers:
                for what, about in self._scripts.get(number, []):
                    if what == "wait":
                        await watch.wait(one, about)
                    elif watch.failures[run_id] < about:
                        watch.failures[run_id] += 1
                        watch.act(one)
                        raise ConnectionError(f"failure {watch.failures[run_id]} of {about}")
                    watch.act(one)
            if task is not None:
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
            caller = Caller(run_id=activation.run_id)
            return await self._server.mail.mail.call(operation, asked, caller=caller)
        return None


class MailServer:
    """The parts of a server of a mail world in addition to its mailbox: the mail room, and the waker of its agents."""

    def __init__(
        self, stores: Stores, agents: Agents, options: dict[str, Any], *, has_tasks: bool = False
    ) -> None:
        self.has_tasks = has_tasks
        """Whether the runs of agents claim and finish tasks."""
        self.mail = Mail(stores, stores.clock, waker=lambda: self.waker)
        self.queue = Queue(
            ExecutorsByThread({AGENT_THREAD: MailRunExecutor(agents, stores, stores.clock)}),
            stores.runs,
            effects=MessageEffects(self.mail.own_context),
            **options,
        )
        self.waker = Waker(stores, self.queue, verified=False, chat_delivery=StoredChatDelivery(self.mail))

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
    for id, subject in rows("SELECT id, subject FROM messages WHERE reply_to IS NULL"):
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
    answers: dict[str, int] = dict(rows("SELECT run_id, count(*) FROM run_answers GROUP BY run_id"))
    for run_id in {run_id for found in handled.values() for run_id, _, _ in found}:
        if run_id in runs and answers.get(run_id, 0) != 1:
            yield f"MAIL ANSWERS: run {run_id} has {answers.get(run_id, 0)} answers in the mail"
    for agent_id, first, last, number in rows(
        "SELECT agent_id, min(seq), max(seq), count(*) FROM recipients GROUP BY 1"
    ):
        if (first, last) != (1, number):
            yield f"INBOX GAP: {number} messages of {names[agent_id]} from {first} to {last}"


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
