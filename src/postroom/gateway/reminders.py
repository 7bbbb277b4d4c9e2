"""Scheduled messages in a chat: one-time reminders, and repeated messages to the agent.

    /remind ─▶ a schedule ─▶ at its first tick, in one change: the reminder is queued, the schedule ends
    /every  ─▶ a schedule ─▶ at each tick, in one change: the text is sent to the agent of the chat

Chats use the same schedules as runs. So each tick happens exactly once, even after restarts and with several
processes. The schedules of a person who may no longer write are removed when they are next due.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from postroom.contracts.clock import MAX_DURATION, leading_duration
from postroom.contracts.errors import InvalidSchedule
from postroom.contracts.messages import (
    ContentBlock,
    DeliveryMode,
    Granularity,
    Json,
    Message,
    Role,
    storable,
)
from postroom.contracts.records import Record
from postroom.contracts.schedules import Schedule
from postroom.contracts.waking import Accept
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway import wording
from postroom.gateway.replies import Reply, ReplyKind, thread_name
from postroom.gateway.session import SessionSource
from postroom.schedules.firing import Firing, Schedules, new_schedule
from postroom.stores.store import SqlStore, Transaction

CHAT: Final = "chat"
"""The `kind` of the schedules of chats."""
MAX_SCHEDULES: Final = 20
"""Maximum number of schedules in one session."""
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_GROUPS: Final = {"day": "*", "weekday": "1-5", "weekend": "0,6"}
_NAME: Final = rf"({'|'.join(_DAYS)})(?:(?:s|nes|rs|ur)?day)?"
_DAY: Final = re.compile(rf"{_NAME}(?:-{_NAME})?")
_AT: Final = re.compile(
    r"(?P<days>[^\s,]+(?:\s*,\s*[^\s,]+)*)\s+at\s+(?P<time>\S+)(?P<rest>.*)", re.DOTALL | re.IGNORECASE
)
_TIME: Final = re.compile(r"(\d{1,2})(?:[:.](\d\d))?(am|pm)?", re.ASCII)
_ZONE: Final = re.compile(
    r"\s+(UTC|[A-Z][A-Z_]+(?:/[A-Z0-9_+-]+)+)(?=\s|$)(.*)", re.DOTALL | re.IGNORECASE | re.ASCII
)
_MIN_EVERY: Final = timedelta(minutes=1)
_MAX_DELAY: Final = timedelta(days=366)


class When(Record, frozen=True, kw_only=True):
    """The time of a scheduled message: after a time span, at an interval, or at a time of day."""

    words: str
    """The time in words, such as `every mon, wed at 18:30 Europe/Berlin`."""
    every: timedelta | None = None
    cron: str | None = None
    zone: str = "UTC"


class Reminders:
    """The reminders and repeated messages that people schedule in chats."""

    def __init__(
        self,
        store: SqlStore,
        run_queue: Mailbox,
        find_place: Callable[[SessionSource], Awaitable[tuple[str, Json] | None]],
    ) -> None:
        """Create the schedules of all chats.

        `find_place` returns the thread of a chat, and the model and instructions of the chat. `find_place`
        returns None if the person may no longer write.
        """
        self._run_queue = run_queue
        self._place_of = find_place
        self._store = store
        self.kept = Schedules(store, {CHAT: self})

    async def add(
        self, session_key: str, source: SessionSource, when: When, text: str, *, once: bool, key: str
    ) -> Schedule:
        """Store a reminder or a repeated message to the agent, and return the schedule.

        If a schedule with an equal `key` already exists, nothing is changed.

        Raises:
            InvalidSchedule: The text is empty, the time is invalid, or the session has too many schedules.
            StoreError: The schedule could not be stored.
        """
        span = when.every
        if not text.strip() or (span and (span > _MAX_DELAY or (not once and span < _MIN_EVERY))):
            raise InvalidSchedule(wording.WHEN_AND_WHAT)
        if len(await self.listed(session_key)) >= MAX_SCHEDULES:
            raise InvalidSchedule(wording.too_many_schedules(MAX_SCHEDULES))
        payload = {
            "source": source.to_dict(),
            "text": storable(text.strip()),
            "once": once,
            "when": when.words,
        }
        schedule = new_schedule(
            CHAT,
            f"{_prefix(session_key)}{key}",
            payload,
            cron=when.cron,
            every=span,
            zone=when.zone,
            missed="once",
            overlap="queue",
            jitter=timedelta(0),
        )
        return await self.kept.add(schedule)

    async def listed(self, session_key: str) -> Sequence[Schedule]:
        """Return the schedules of a session, oldest first."""
        prefix = _prefix(session_key)
        schedules = await self.kept.listed(CHAT, after=prefix, limit=MAX_SCHEDULES + 1)
        mine = [schedule for schedule in schedules if schedule.name.startswith(prefix)]
        return sorted(mine, key=lambda one: (one.created_at, one.name))

    async def submit(self, firing: Firing) -> str:
        """Send the message of a schedule, in one transaction with the change of the schedule."""
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
        """Return False, so that a schedule never skips a message."""
        return False


def parse_span(words: str) -> tuple[timedelta | None, str]:
    """Split a text such as `2h Look` into the time span at the start and the remaining text.

    Return None and the whole text if the text does not begin with a valid time span.
    """
    span, rest = leading_duration(words)
    return (span, rest) if span and span <= MAX_DURATION else (None, words)


def read_once(words: str) -> tuple[When, str]:
    """Parse a reminder such as `10m Lock the door` into its time and its text.

    Raises:
        InvalidSchedule: The words do not begin with a time span.
    """
    span, text = parse_span(words.removeprefix("in "))
    if span is None:
        raise InvalidSchedule(wording.WHEN_AND_WHAT, value=words[:80])
    return When(every=span, words=f"in {span_in_words(span)}"), text


def read_every(words: str, zone: str) -> tuple[When, str]:
    """Parse a repeated message to the agent into its time and its text.

    Examples of `words` are `1d Look` and `mon,wed at 18:30 Europe/Berlin Look`. `zone` applies to a time of
    day without a time zone. Zone names are not case-sensitive. The function blocks while it reads the time
    zone database.

    Raises:
        InvalidSchedule: The words begin neither with a time span nor with days and a time of day.
    """
    span, text = parse_span(words)
    if span is not None:
        return When(every=span, words=f"every {span_in_words(span)}"), text
    match = _AT.fullmatch(words)
    if match is None:
        raise InvalidSchedule(wording.WHEN_AND_WHAT, value=words[:80])
    days = [part.strip().casefold() for part in match["days"].split(",")]
    clock = _TIME.fullmatch(match["time"].casefold())
    hour, minute = (int(clock[1]), int(clock[2] or 0)) if clock else (24, 0)
    if clock and clock[3]:
        hour = 24 if not 1 <= hour <= 12 else hour % 12 + (12 if clock[3] == "pm" else 0)
    elif clock and clock[2] is None:
        hour = 24
    if hour > 23 or minute > 59:
        raise InvalidSchedule(wording.no_time_of_day(match["time"]), value=match["time"][:80])
    rest, named = match["rest"], _ZONE.fullmatch(match["rest"])
    if named is not None:
        zones = {name.casefold(): name for name in available_timezones()}
        areas = {name.partition("/")[0] for name in zones if "/" in name}
        folded = named[1].casefold()
        is_place = named[1][0].isupper() or folded.partition("/")[0] in areas
        timezone = zones.get(folded, named[1] if is_place else None)  # in the spelling of the database
        if timezone is not None:
            zone, rest = timezone, named[2]
    at = f"every {', '.join(days)} at {hour}:{minute:02} {zone}"
    numbers = list[str]()  # the last field of a cron expression, such as `1,3-5`
    for day in days:
        group, one = _GROUPS.get(day.removesuffix("s")), _DAY.fullmatch(day)
        if group is None and one is None:
            raise InvalidSchedule(wording.no_day(day), value=day[:80])
        if group is not None:
            numbers.append(group)
        elif one is not None:
            first, last = (_DAYS.index(item) for item in (one[1], one[2] or one[1]))
            numbers += [str(number % 7) for number in range(first, last + 1 if last >= first else last + 8)]
    week = "*" if "*" in numbers else ",".join(dict.fromkeys(numbers))
    return When(cron=f"{minute} {hour} * * {week}", zone=zone, words=at), rest


def in_words(schedule: Schedule, *, shows_next: bool = False) -> str:
    """Return a one-line description of a schedule.

    If `shows_next` is true, the description includes the next time. The function may block while it reads the
    time zone database.
    """
    span = span_in_words(timedelta(milliseconds=schedule.every_ms or 0))
    when = schedule.payload.get("when") or f"{'in' if schedule.payload['once'] else 'every'} {span}"
    coming = f", next {next_time(schedule)}" if shows_next and schedule.next_at is not None else ""
    return f"{when}{coming}: {schedule.payload['text']}"


def next_time(schedule: Schedule) -> str:
    """Return the next time of a schedule as text, such as `Mon 2026-11-30 18:30 CET`.

    The function blocks while it reads the time zone database.
    """
    moment = datetime.fromtimestamp((schedule.next_at or 0) / 1_000, ZoneInfo(schedule.zone))
    return f"{_DAYS[moment.isoweekday() % 7].title()} {moment:%Y-%m-%d %H:%M %Z}"


def span_in_words(span: timedelta) -> str:
    """Return a time span in short form, such as `2h` or `1d 2h`."""
    left, parts = int(span.total_seconds()), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        parts += [f"{count}{unit}"] if count else []
    return " ".join(parts)


def _prefix(session_key: str) -> str:
    return f"{sha256(session_key.encode()).hexdigest()[:32]}/"
