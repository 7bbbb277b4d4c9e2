"""Sends messages about log entries to the agents that have subscribed to them.

new entries of a log ─▶ one change for each subscription: the message, and the cursor after the entries

The message and the cursor are stored together, so each entry causes only one message, even after restarts and
with several servers. If a subscription does not match an entry, only this process remembers that it has read
the entry. The cursor is stored after at most `MAX_EVENTS_READ` entries, so a new process reads only a few of
them again.

Git reports no merges. Therefore, for subscriptions to merged branches, each round compares the main branch of
the project's repository with its commit in the log, and logs the difference. The cursors of these
subscriptions stay at the newest such entry, so that a new process finds it.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from postroom.contracts.errors import PostroomError
from postroom.contracts.mail import ProjectEvent
from postroom.contracts.subscriptions import SUBSCRIPTION_THREAD, Subscription
from postroom.log import get_logger
from postroom.mail.branches import MainBranch, merged_since, read_main_branch
from postroom.mail.context import Caller
from postroom.mail.sending import Addressee, NewMessage, post
from postroom.mail.subscriptions import KINDS_OF, message_about, news_for
from postroom.mail.waking.waker import OpenChange, Waker
from postroom.stores.mail.access import MailReads, MailWrites

if TYPE_CHECKING:
    from postroom.mail.service import Mail

_LOG = get_logger(__name__)
MAX_EVENTS_READ: Final = 500
"""Maximum number of entries in a message, and of entries read before the cursor is stored."""
_PAGE: Final = 500


class SubscriptionRounds:
    """Sends messages about new log entries to the agents that subscribed to the events."""

    def __init__(self, mail: "Mail", waker: Waker) -> None:
        self._mail = mail
        self._waker = waker
        self._seen: dict[int, int] = {}
        """The newest entry that this process has read, for each subscription."""
        self._main: dict[int, MainBranch] = {}
        """The main branch of each project, as this process last read it."""

    async def round(self) -> int:
        """Send messages about new log entries, and return the number of sent messages.

        A later round sends messages that cannot be sent now.

        Raises:
            StoreError: The store could not be reached.
        """
        sent, after, cursors, watched = 0, 0, dict[int, int](), set[int]()
        sensitive = self._mail.rules.case_sensitive_paths
        while page := await self._mail.store.read(
            lambda tx, after=after: tx.subscriptions(after=after, limit=_PAGE)  # type: ignore[misc]
        ):
            after = page[-1][0].id
            for subscription, newest in page:
                if subscription.kind == "branch_merged" and subscription.project_id not in watched:
                    watched.add(subscription.project_id)
                    await self._look_at_branches(subscription.project_id)
                seen = max(subscription.cursor, self._seen.get(subscription.id, 0))
                cursors[subscription.id] = newest
                look = partial(_has_news, one=subscription, seen=seen, newest=newest, sensitive=sensitive)
                if newest == seen or not await self._mail.store.read(look):
                    continue
                cursors[subscription.id] = min(seen, newest)
                try:
                    sent += await self._send(subscription, newest)
                except PostroomError as error:  # a failure must not delay the other subscriptions
                    _LOG.warning(
                        "subscription.put_off", subscription=subscription.id, reason=error.describe()
                    )
        self._seen = cursors
        self._main = {number: seen for number, seen in self._main.items() if number in watched}
        return sent

    async def _look_at_branches(self, project_id: int) -> None:
        project = await self._mail.store.read(lambda tx: tx.project_by_id(project_id))
        main = None if project is None else await asyncio.to_thread(read_main_branch, project.human_key)
        if project is None or main is None or self._main.get(project_id) == main:
            return
        logged = await self._mail.store.read(lambda tx: _logged_main(tx, project_id))
        before, merged = self._main.get(project_id) if logged is None else logged[1], list[str]()
        if before is not None and before.name == main.name:
            merged = await asyncio.to_thread(merged_since, project.human_key, main, before.commit)

        def change(tx: MailWrites) -> bool:
            tx.lock_projects({project_id})
            if _logged_main(tx, project_id) != logged:
                return False  # another server has logged the merge
            if logged is None or logged[1] != main:
                tx.note_branches(project_id, merged, into=main.name, commit=main.commit, now=tx.now())
            return True

        if await self._mail.store.write(change):
            self._main[project_id] = main

    async def _send(self, one: Subscription, newest: int) -> bool:
        def change(tx: MailWrites, made: OpenChange) -> bool:
            tx.lock_projects({one.project_id})
            now = tx.subscription(one.id)
            project = tx.project_by_id(one.project_id)
            agent = tx.agents_by_id([one.agent_id]).get(one.agent_id)
            if now is None or now.cursor != one.cursor:
                return False
            if project is None or agent is None or agent.retired_at is not None:
                tx.drop_subscription(one.id)
                return False
            events = _events_after(tx, now, now.cursor, newest)
            sensitive = self._mail.rules.case_sensitive_paths
            sentences = news_for(tx, project, now, events, case_sensitive=sensitive)
            if sentences and now.is_once:
                tx.drop_subscription(one.id)
            else:
                is_last = len(events) < MAX_EVENTS_READ and one.kind != "branch_merged"
                tx.move_cursor(one.id, newest if is_last else events[-1].seq)
            if not sentences:
                return False
            subject, text = message_about(now, sentences)
            context = self._mail.context(tx, Caller(postroom=True), waking=made)
            message = NewMessage(
                project=project,
                sender=agent,
                addressees=[Addressee(project=project, agent=agent, kind="to")],
                subject=subject[: context.rules.max_subject_chars],
                body_md=text,
                thread_id=f"{SUBSCRIPTION_THREAD}{one.id}-{one.created_at}",  # ids can be used again
            )
            post(context, message, bad=[], skipped=[])
            return True

        project = await self._mail.store.read(lambda tx: tx.project_by_id(one.project_id))
        return await self._waker.write(change, key=project.slug if project else "")


def _has_news(tx: MailReads, *, one: Subscription, seen: int, newest: int, sensitive: bool) -> bool:
    if one.kind != "branch_merged" and (newest - one.cursor > MAX_EVENTS_READ or newest < one.cursor):
        return True
    project, events = tx.project_by_id(one.project_id), _events_after(tx, one, seen, newest)
    return project is None or bool(events and news_for(tx, project, one, events, case_sensitive=sensitive))


def _events_after(tx: MailReads, one: Subscription, after: int, newest: int) -> Sequence[ProjectEvent]:
    events = tx.project_events(one.project_id, after=after, limit=MAX_EVENTS_READ, kinds=KINDS_OF[one.kind])
    return [entry for entry in events if entry.seq <= newest]


def _logged_main(tx: MailReads, project_id: int) -> tuple[int, MainBranch] | None:
    cursors = [subscription.cursor for subscription in tx.subscriptions_in(project_id, "branch_merged")]
    after, event = max(0, min(cursors, default=0) - 1), None
    while page := tx.project_events(project_id, after=after, limit=MAX_EVENTS_READ, kinds=["branch.moved"]):
        event, after = page[-1], page[-1].seq
    if event is None:
        return None
    detail = event.happening.detail
    return event.seq, MainBranch(name=str(detail["into"]), commit=str(detail["commit"]))
