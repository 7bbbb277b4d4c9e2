"""What people ask for later in a chat: a reminder, once, or words for the agent again and again.

    /remind ─▶ a schedule ─▶ at its first tick, in one change: the reminder is to be said, the schedule ends
    /every  ─▶ a schedule ─▶ at each tick, in one change: the words are a message to the agent of the chat

They stand on the schedules of runs, so that each tick happens once, also over restarts and among processes.
The schedules of somebody who may not write any more are removed when they are due.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Final

from postroom.contracts.accepting import Accept
from postroom.contracts.messages import (
    ContentBlock,
    DeliveryMode,
    Granularity,
    Json,
    Message,
    Role,
    storable,
)
from postroom.contracts.run_queue import RunQueue
from postroom.contracts.schedules import Schedule
from postroom.contracts.transactions import Store, Transaction
from postroom.gateway import wording
from postroom.gateway.replies import Reply, ReplyKind, thread_name
from postroom.gateway.session import SessionSource
from postroom.schedules.firing import Firing, Schedules, new_schedule

CHAT: Final = "chat"
"""The kind of these schedules."""
MOST_SCHEDULES: Final = 20
"""So many may stand in one session."""
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LEAST_EVERY: Final = timedelta(minutes=1)
_LONGEST: Final = timedelta(days=366)


class Reminders:
    """The schedules of chats."""

    def __init__(
        self,
        store: Store,
        run_queue: RunQueue,
        place_of: Callable[[SessionSource], Awaitable[tuple[str, Json] | None]],
    ) -> None:
        """`place_of` returns the thread of a session now, and what its chat asks of the agent.

        None: its person may not write any more.
        """
        self._run_queue = run_queue
        self._place_of = place_of
        self._store = store
        self.kept = Schedules(store, {CHAT: self})

    async def add(
        self, session_key: str, source: SessionSource, span: timedelta, text: str, *, once: bool, key: str
    ) -> str | None:
        """Keep a reminder, or words for the agent; return what is wrong with them, None when nothing is.

        The same `key` again changes nothing.

        Raises:
            StoreError: it could not be kept.
        """
        if not text.strip() or span > _LONGEST or (not once and span < _LEAST_EVERY):
            return wording.WHEN_AND_WHAT
        if len(await self.listed(session_key)) >= MOST_SCHEDULES:
            return wording.too_many_schedules(MOST_SCHEDULES)
        payload = {"source": source.to_dict(), "text": storable(text.strip()), "once": once}
        schedule = new_schedule(
            CHAT,
            f"{_prefix(session_key)}{key}",
            payload,
            cron=None,
            every=span,
            zone="UTC",
            missed="once",
            overlap="queue",
            jitter=timedelta(0),
        )
        await self.kept.add(schedule)
        return None

    async def listed(self, session_key: str) -> Sequence[Schedule]:
        """Return what stands in a session, in the order in which it was asked for."""
        prefix = _prefix(session_key)
        found = await self.kept.listed(CHAT, after=prefix, limit=MOST_SCHEDULES + 1)
        mine = [one for one in found if one.name.startswith(prefix)]
        return sorted(mine, key=lambda one: (one.created_at, one.name))

    async def submit(self, firing: Firing) -> str:
        """Say a reminder, or give the agent its words, in the change that moves the schedule on."""
        schedule = firing.schedule
        source = SessionSource.from_dict(schedule.payload["source"])
        thread_id, asked = await self._place_of(source) or (None, None)

        def change(tx: Transaction, accept: Accept) -> str:
            tx.lock(firing.lock)
            firing.begin(tx)
            text = schedule.payload["text"]
            if thread_id is not None and schedule.payload["once"]:
                notice = Reply(
                    kind=ReplyKind.NOTICE,
                    thread_id=thread_name(source.platform.value, source.account, "notice"),
                    text=wording.reminder(text),
                    source=source.to_dict(),
                )
                tx.outbox.enqueue((notice.draft(firing.key),))
            elif thread_id is not None:
                block = ContentBlock(text=text, data={} if asked is None else {"caller": asked})
                message = Message(role=Role.USER, content=(block,), id=firing.key)
                accept(thread_id, message, DeliveryMode(granularity=Granularity.ONE, starts_run=True))
            if thread_id is None or schedule.payload["once"]:
                tx.schedules.remove(schedule.schedule_id)
            else:
                firing.done(tx, firing.key)
            return firing.key

        return await self._run_queue.accepting([thread_id] if thread_id else [], change, key=firing.lock)

    def is_open(self, tx: Transaction, made: str) -> bool:
        """Nothing is passed over: what is behind waits on its thread."""
        return False


def span_of(word: str) -> timedelta | None:
    """Return the span that a word such as `10m` or `2h` names; None when it names none."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", word.casefold())
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found and int(found[1]) else None


def in_words(schedule: Schedule) -> str:
    """Return what stands in a chat in one line."""
    when = when_of(timedelta(milliseconds=schedule.every_ms or 0), once=schedule.payload["once"])
    return f"{when}: {schedule.payload['text']}"


def when_of(span: timedelta, *, once: bool) -> str:
    """Return when something comes, as somebody would write it: `in 10m`, `every 1d 2h`."""
    return f"{'in' if once else 'every'} {span_in_words(span)}"


def span_in_words(span: timedelta) -> str:
    """Return a span as somebody would write it: `2h`, `1d 2h`."""
    left, parts = int(span.total_seconds()), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        parts += [f"{count}{unit}"] if count else []
    return " ".join(parts)


def _prefix(session_key: str) -> str:
    return f"{sha256(session_key.encode()).hexdigest()[:32]}/"
