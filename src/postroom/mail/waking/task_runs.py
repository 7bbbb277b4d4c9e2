"""Claims ready tasks for agents whose runner asks for this, and sends each task as a message.

ready task ─▶ one change: claimed, its files reserved, a message on its thread ─▶ the message starts a run
end of that run ─▶ the task is done, or blocked with the reason, so that no task is retried forever
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import PostroomError
from postroom.contracts.mail import Project
from postroom.contracts.records import replace
from postroom.contracts.tasks import AGENT, ANYBODY, place_in_message
from postroom.log import get_logger
from postroom.mail.context import Caller
from postroom.mail.projects import PEOPLE_KEY
from postroom.mail.sending import Addressee, NewMessage, refusals, store_message, wake_readers
from postroom.mail.tasks import end_leases, next_ready, take
from postroom.mail.waking.prompts import describe_claim, describe_task
from postroom.mail.waking.subscription_rounds import SubscriptionRounds
from postroom.mail.waking.waker import AFTER_FAILURE, POLL, OpenChange, Waker
from postroom.stores.changes import TASKS
from postroom.stores.mail.access import MailReads, MailWrites

if TYPE_CHECKING:
    from postroom.mail.service import Mail

_LOG = get_logger(__name__)
_BATCH: Final = 500


class TaskRuns:
    """Claims ready tasks for the agents whose runners claim tasks."""

    def __init__(self, mail: "Mail", waker: Waker) -> None:
        self._mail = mail
        self._waker = waker
        self._subscriptions = SubscriptionRounds(mail, waker)

    async def serve(self) -> None:
        """Assign tasks and notify subscribers at each hint, every 5 s, and 1 s after a failure."""
        with self._mail.store.changes.listen(TASKS) as hints:
            while True:
                count, pause = 0, POLL
                try:
                    count = await self.round() + await self._subscriptions.round()
                except PostroomError as error:
                    pause = AFTER_FAILURE
                    _LOG.warning("tasks.put_off", reason=error.describe())
                if not count:
                    await hints.wait(pause)

    async def round(self) -> int:
        """Assign at most one task to each agent, and return the number of assigned tasks.

        Raises:
            StoreError: The store could not be reached. The next round continues.
        """
        count, after = 0, 0
        while agent_ids := await self._mail.store.read(
            lambda tx, after=after: tx.claiming_agents(after=after, limit=_BATCH)  # type: ignore[misc]
        ):
            after = agent_ids[-1]
            for agent_id in agent_ids:
                work = await self._mail.store.read(partial(_with_work, agent_id=agent_id))
                count += work is not None and await self._give(*work)
        return count

    async def _give(self, project: Project, agent_id: int) -> bool:
        def change(tx: MailWrites, made: OpenChange) -> bool:
            people = tx.project(PEOPLE_KEY)
            tx.lock_projects({project.id, *([] if people is None else [people.id])})
            context = self._mail.context(tx, Caller(postroom=True), waking=made)
            agent = tx.agents_by_id([agent_id]).get(agent_id)
            is_due = agent_id in tx.claiming_agents(after=agent_id - 1, limit=1)
            if agent is None or agent.retired_at is not None or not is_due:
                return False
            end_leases(context, project)
            held = tx.tasks_held(agent_id)
            if len(held) >= agent.runs_at_once:
                return False
            own = [path for reservation in held for path in reservation.paths]
            task, _ = next_ready(context, project, agent, _assignees(agent_id), own)
            if task is None:
                return False
            author = tx.agents_by_id([task.author_id])[task.author_id]
            home = tx.project_by_id(author.project_id) or project
            reader = Addressee(project=project, agent=agent, kind="to")
            reach = tx.reach(author.id, [agent.id])
            if refusals(context, home, author, [reader], reach=reach):
                return False
            words = (describe_task(task), describe_claim(replace(task, epoch=task.epoch + 1)))
            message = NewMessage(
                project=home,
                sender=author,
                addressees=[reader],
                subject=f"Task {task.id}: {task.title}"[: context.rules.max_subject_chars],
                body_md="\n\n".join(filter(None, words)),
                thread_id=task.thread_id,
            )
            stored, woken = store_message(context, message, reach)
            rules = context.rules
            lease_ms = milliseconds(min(rules.default_reservation_ttl, rules.max_reservation_ttl))
            take(context, project, agent, task, lease_ms=lease_ms, place=place_in_message(stored.id))
            wake_readers(context, message, stored, woken)  # after the claim: the message is an order
            return True

        return await self._waker.write(change, key=project.slug)


def _assignees(agent_id: int) -> tuple[str, str]:
    return f"{AGENT}{agent_id}", ANYBODY


def _with_work(tx: MailReads, *, agent_id: int) -> tuple[Project, int] | None:
    agent = tx.agents_by_id([agent_id]).get(agent_id)
    project = None if agent is None else tx.project_by_id(agent.project_id)
    if agent is None or project is None or agent.retired_at is not None:
        return None
    is_busy = sum(task.lease_ends_at > tx.now() for task in tx.tasks_held(agent_id) if task.lease_ends_at)
    if is_busy >= agent.runs_at_once:
        return None
    is_ready = tx.ready_tasks(project.id, _assignees(agent_id), after=(-1, 0), limit=1)
    return (project, agent_id) if is_ready or tx.leases_ended(project.id, tx.now()) else None
