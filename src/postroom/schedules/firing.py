"""Stores schedules, and submits the work of due ticks; if several workers try a tick, only one submits it.

    hint, or the time of a tick ─▶ due schedules ─▶ each in one change: still due? submitted, advanced
                                                    └─▶ skipped or failed: advanced, and the reason is stored

Any number of workers may use one database. A worker does not scan all schedules: it sleeps until the first
schedule is due. A worker also checks at intervals, because a notification may be lost, or the clock may be
changed.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Final, Protocol, TypeVar
from uuid import uuid4
from zoneinfo import ZoneInfo

from postroom.contracts.clock import ClockWatch, Duration, given_duration, milliseconds
from postroom.contracts.errors import (
    DuplicateRecord,
    InvalidSchedule,
    MailboxClosed,
    PostroomError,
    StoreCorrupt,
    StoreError,
    UnknownSchedule,
)
from postroom.contracts.messages import Json, storable
from postroom.contracts.schedules import SCHEDULES, Missed, Overlap, Schedule, schedule_lock
from postroom.log import get_logger
from postroom.schedules.ticks import Plan, after_set_back, due_at, next_tick, planned, refuse_unfit
from postroom.stores.store import Joined, SqlStore, Transaction

_LOG = get_logger(__name__)

LOOK_AGAIN: Final = timedelta(seconds=30)
"""Maximum time until a worker notices a changed clock, or a change whose notification was lost."""
AFTER_FAILURE: Final = timedelta(milliseconds=500)
"""The time that a worker waits after a failure of the store."""
AT_ONCE: Final = 64
"""Number of schedules that a worker reads and submits at a time; the store commits them together."""
MAX_NAME_LENGTH: Final = 200
MAX_LISTED: Final = 1_000
_MAX_ERROR_LENGTH: Final = 500

C = TypeVar("C", bound=StrEnum)


class NotDue(Exception):
    """A schedule is not due now, because another worker was faster or the schedule changed."""


class StillOpen(Exception):
    """The previous run of a schedule is still open, and the overlap policy is `skip`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """A submission of a schedule's work."""

    schedule: Schedule
    key: str
    """The key of the submission; all workers that try to submit a tick use the same key for it."""
    lock: str
    begin: Callable[[Transaction], None]
    """The first step, which runs under the lock before anything is written; raises to prevent the submission.
    """
    done: Callable[[Transaction, str], None]
    """The second step, which gets the submission's id and advances the schedule to its next tick."""

    def joined(self, made: str) -> Joined:
        """Return a change that runs `begin` and `done`; `made` must be the id of the submission."""

        def change(tx: Transaction) -> None:
            self.begin(tx)
            self.done(tx, made)

        return Joined(locks=(self.lock,), change=change)


class Target(Protocol):
    """Submits the work of all schedules of one kind."""

    async def submit(self, firing: Firing) -> str:
        """Submit the work, run `begin` and `done` of `firing` in the transaction, and return the id."""
        ...

    def is_open(self, tx: Transaction, made: str) -> bool:
        """Return whether the submission with the id `made` is still open."""
        ...


def new_schedule(  # noqa: PLR0913 - the options, by name
    kind: str,
    name: str,
    payload: dict[str, Json],
    *,
    cron: str | None,
    every: Duration | None,
    zone: str | ZoneInfo,
    missed: Missed | str,
    overlap: Overlap | str,
    jitter: Duration,
) -> Schedule:
    """Create a schedule from its properties, without storing the schedule.

    Raises:
        InvalidSchedule: An argument has the wrong type, or there is no policy of that name.
        InvalidArgument: `every` or `jitter` is not a duration.
    """
    zone = zone.key if isinstance(zone, ZoneInfo) else zone
    for what, given_text, wanted, allowed in (
        ("the name", name, str, "text"),
        ("cron", cron, str | None, "text such as '0 9 * * MON'"),
        ("zone", zone, str, "text such as 'Europe/Berlin'"),
    ):
        if not isinstance(given_text, wanted) or (
            isinstance(given_text, str) and storable(given_text) != given_text
        ):
            raise InvalidSchedule(
                f"{what} of a schedule is invalid: {given_text!r:.80}",
                value=repr(given_text)[:80],
                remedy=f"pass {allowed}",
            )
    return Schedule(
        schedule_id="",
        kind=kind,
        name=name,
        cron=cron,
        every_ms=None if every is None else milliseconds(given_duration(every, "every")),
        zone=zone,
        payload=payload,
        missed=_chosen(Missed, missed, "missed"),
        overlap=_chosen(Overlap, overlap, "overlap"),
        jitter_ms=milliseconds(given_duration(jitter, "jitter")),
        created_at=0,
        starts_at=0,
        tick_at=0,
        next_at=None,
    )


class Schedules:
    """The schedules of a database, and the worker that submits them."""

    def __init__(self, store: SqlStore, targets: Mapping[str, Target]) -> None:
        """Create the worker; `targets` maps each kind of schedule to the target that submits its work."""
        self._store = store
        self._targets = targets
        self._clock = ClockWatch()

    async def add(self, schedule: Schedule, *, replaces: bool = False) -> Schedule:
        """Store a schedule under its name; an equal stored schedule stays unchanged.

        The schedule starts with its first tick after now. With `replaces`, a different schedule with this
        name is replaced.

        Raises:
            InvalidSchedule: The schedule cannot be stored; nothing was written.
            DuplicateRecord: A different schedule has this name; nothing was written.
        """
        name = schedule.name
        if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise InvalidSchedule(
                f"a schedule's name must have 1 to {MAX_NAME_LENGTH} printable characters",
                value=name[:MAX_NAME_LENGTH],
                remedy="use a short name such as 'report', without line breaks",
            )
        made = replace(schedule, schedule_id=uuid4().hex)
        now = self._store.clock.now()
        await asyncio.to_thread(lambda: refuse_unfit(replace(made, created_at=now)))

        def change(tx: Transaction) -> Schedule:
            tx.lock(made.lock)
            known_schedule = tx.schedules.named(made.kind, made.name)
            if known_schedule is not None and _says(known_schedule) == _says(made):
                return known_schedule
            if known_schedule is not None and not replaces:
                raise DuplicateRecord(
                    f"a schedule named {made.name!r} already exists",
                    value=made.name,
                    remedy="choose another name, or replace or remove the existing schedule",
                )
            new = replace(made, created_at=tx.now(), starts_at=tx.now())
            if known_schedule is None:
                tx.schedules.insert(moved := _at(new, next_tick(new, tx.now())))
                return moved
            kept_fields = {name: getattr(new, name) for name in (*_SAID, "starts_at")}
            tick = next_tick(new, max(tx.now(), known_schedule.last_at or 0))
            start, tick = after_set_back(replace(new, tick_at=tick), tx.now(), 0)
            moved = replace(
                _at(replace(known_schedule, **kept_fields), tick, paused=known_schedule.is_paused),
                starts_at=start,
            )
            _put(tx, moved)
            return moved

        return await self._store.write(change, key=made.lock)

    async def named(self, kind: str, name: str) -> Schedule:
        """Return the schedule with this kind and this name.

        Raises:
            UnknownSchedule: No schedule has this name.
        """
        return await self._store.read(lambda tx: _require_schedule(tx, kind, name))

    async def listed(self, kind: str, *, after: str = "", limit: int = MAX_LISTED) -> list[Schedule]:
        """Return up to `limit` schedules of a kind, ordered by name, from the first name after `after`."""
        limit = max(0, min(limit, MAX_LISTED))
        return await self._store.read(lambda tx: tx.schedules.listed(kind, after=after, limit=limit))

    async def pause(self, kind: str, name: str) -> Schedule:
        """Pause a schedule until `resume` is called; a second call has no effect.

        Raises:
            UnknownSchedule: No schedule has this name.
        """
        return await self._change_schedule(kind, name, lambda tx, known: replace(known, next_at=None))

    async def resume(self, kind: str, name: str) -> Schedule:
        """Resume a paused schedule at its next tick; ticks during the pause are skipped.

        Raises:
            UnknownSchedule: No schedule has this name.
        """

        def resumed(tx: Transaction, known: Schedule) -> Schedule:
            if not known.is_paused:
                return known
            if known.tick_at <= tx.now():
                return _at(known, next_tick(known, tx.now()))
            start, tick = after_set_back(known, tx.now(), 0)
            return _start_interval(known, start=start, tick=tick)

        return await self._change_schedule(kind, name, resumed)

    async def remove(self, kind: str, name: str) -> bool:
        """Remove a schedule, or return False if no schedule has this name.

        Work that the schedule has submitted continues.
        """

        def change(tx: Transaction) -> bool:
            tx.lock(schedule_lock(kind, name))
            known_schedule = tx.schedules.named(kind, name)
            if known_schedule is not None:
                tx.schedules.remove(known_schedule.schedule_id)
            return known_schedule is not None

        return await self._store.write(change, key=schedule_lock(kind, name))

    async def trigger(self, kind: str, name: str) -> str:
        """Submit the work of a schedule now, regardless of ticks, overlap policy and pause; return the id.

        Raises:
            UnknownSchedule: No schedule has this name.
            PostroomError: The work was rejected; nothing was submitted.
        """
        known_schedule = await self.named(kind, name)

        def done(tx: Transaction, made: str) -> None:
            row = _require_schedule(tx, kind, name)
            tx.schedules.put(_count_submission(tx, row, made))

        key = f"schedule-{known_schedule.schedule_id}-{uuid4().hex}"
        firing = Firing(schedule=known_schedule, key=key, lock=known_schedule.lock, begin=_nothing, done=done)
        return await self._targets[kind].submit(firing)

    async def serve(self) -> None:
        """Submit due work until cancelled; failures are logged and retried."""
        with self._store.changes.listen(SCHEDULES) as news:
            while True:
                try:
                    pause = timedelta(0) if await self.submit_due() else await self._until_due()
                except PostroomError as error:
                    _LOG.warning("schedules.put_off", reason=error.describe())
                    pause = AFTER_FAILURE
                if pause:
                    await news.wait(pause)

    async def submit_due(self) -> int:
        """Submit or skip due ticks in order of time; return the number of schedules that advanced.

        Raises:
            StoreError: The store could not be read, or a due tick could not be written.
        """
        kinds = tuple(self._targets)

        def look(tx: Transaction) -> tuple[int, list[Schedule]]:
            return tx.now(), [
                schedule for kind in kinds for schedule in tx.schedules.due(kind, limit=AT_ONCE)
            ]

        now, due = await self._store.read(look)
        back_ms = self._clock.set_back_ms(now)
        if back_ms is None or back_ms:  # The clock may have been set back before the first check.
            await self._follow_clock(back_ms or 0)
        self._clock.remember(now)
        plans = await asyncio.to_thread(lambda: [_plan(schedule, now) for schedule in due])
        moved, put_off = list[bool](), list[PostroomError]()

        async def move(one: Schedule, plan: Plan | InvalidSchedule) -> None:
            try:
                moved.append(await self._moved_on(one, plan))
            except PostroomError as error:  # continue with the other schedules
                put_off.append(error)

        planned = sorted(zip(due, plans, strict=True), key=lambda one: one[0].next_at or 0)
        for _, at_once in groupby(planned, key=lambda one: one[0].next_at):  # submit the earliest tick first
            async with asyncio.TaskGroup() as group:
                for schedule, plan in at_once:
                    group.create_task(move(schedule, plan), name=f"schedule {schedule.name}")
        if put_off:
            raise put_off[0]
        return sum(moved)

    async def _follow_clock(self, back_ms: int) -> None:
        """Move the next ticks of schedules after the clock was set back by `back_ms`."""

        def moved(page: list[Schedule], now: int) -> list[tuple[Schedule, int, int]]:
            changes = []
            for schedule in page:
                try:
                    start, tick = after_set_back(schedule, now, back_ms)
                except InvalidSchedule:  # its time zone is unknown now; it is paused when due
                    continue
                if tick != schedule.tick_at:
                    changes.append((schedule, start, tick))
            return changes

        for kind in self._targets:
            page = await self.listed(kind)
            while page:
                now = self._store.clock.now()  # read after the list, so that no schedule in it is newer
                due_later = [
                    schedule for schedule in page if schedule.next_at is not None and schedule.next_at > now
                ]
                for schedule, start, tick in await asyncio.to_thread(moved, due_later, now):
                    move = partial(_start_interval, start=start, tick=tick)
                    if await self._store_skip(schedule, move):
                        _LOG.warning("schedule.clock_set_back", kind=kind, schedule=schedule.name)
                page = await self.listed(kind, after=page[-1].name)

    async def _until_due(self) -> timedelta:
        kinds = tuple(self._targets)
        now, due = await self._store.read(lambda tx: (tx.now(), tx.schedules.next_at(kinds)))
        if due is None:
            return LOOK_AGAIN
        return min(max(timedelta(milliseconds=due - now), timedelta(milliseconds=1)), LOOK_AGAIN)

    async def _moved_on(self, due: Schedule, plan: Plan | InvalidSchedule) -> bool:
        """Submit or skip a due tick; return False if another worker was faster."""
        if isinstance(plan, InvalidSchedule):  # its time zone is unknown now, so it has no next tick
            unfit = plan.describe()
            return await self._store_skip(due, lambda row: _record_error(replace(row, next_at=None), unfit))
        then = plan.then
        if not plan.submits:
            return await self._store_skip(due, lambda row: _passed_over(row, then))
        try:
            target = self._targets[due.kind]

            def begin(tx: Transaction) -> None:
                row = _still_due(tx, due)
                last = row.last_id
                if row.overlap is Overlap.SKIP and last is not None and target.is_open(tx, last):
                    raise StillOpen

            def done(tx: Transaction, made: str) -> None:
                tx.schedules.put(_count_submission(tx, _at(_still_due(tx, due), then), made))

            # After the clock was set back, the same tick time can come again. That tick is a separate
            # submission.
            key = f"schedule-{due.schedule_id}-{due.submitted}-{plan.tick}"
            firing = Firing(schedule=due, key=key, lock=due.lock, begin=begin, done=done)
            await self._targets[due.kind].submit(firing)
        except NotDue:
            return False
        except StillOpen:
            return await self._store_skip(due, lambda row: _passed_over(row, then))
        except PostroomError as error:
            if isinstance(error, (StoreError, MailboxClosed)) and not isinstance(error, StoreCorrupt):
                raise  # the next round tries again
            _LOG.warning("schedule.not_submitted", kind=due.kind, schedule=due.name, reason=error.describe())
            reason = error.describe()
            return await self._store_skip(due, lambda row: _record_error(_at(row, then), reason))
        except Exception as error:  # one failing schedule must not stop the others
            _LOG.exception("schedule.target_crashed", kind=due.kind, schedule=due.name)
            crash = f"{type(error).__name__} inside postroom; its log has the cause"
            return await self._store_skip(due, lambda row: _record_error(_at(row, then), crash))
        return True

    async def _store_skip(self, due: Schedule, moved: Callable[[Schedule], Schedule]) -> bool:
        """Advance a schedule without a submission; return False if another worker was faster."""

        def change(tx: Transaction) -> bool:
            tx.lock(due.lock)
            try:
                row = _still_due(tx, due)
            except NotDue:
                return False
            tx.schedules.put(moved(row))
            return True

        return await self._store.write(change, key=due.lock)

    async def _change_schedule(
        self, kind: str, name: str, changed: Callable[[Transaction, Schedule], Schedule]
    ) -> Schedule:
        def change(tx: Transaction) -> Schedule:
            tx.lock(schedule_lock(kind, name))
            made = changed(tx, _require_schedule(tx, kind, name))
            _put(tx, made)
            return made

        return await self._store.write(change, key=schedule_lock(kind, name))


def _nothing(_: Transaction) -> None:
    """Do nothing, as the first step of a submission without a condition."""


_SAID: Final = ("cron", "every_ms", "zone", "payload", "missed", "overlap", "jitter_ms")


def _says(schedule: Schedule) -> tuple[object, ...]:
    return tuple(getattr(schedule, name) for name in _SAID)


def _put(tx: Transaction, schedule: Schedule) -> None:
    tx.schedules.put(schedule)
    tx.tell(SCHEDULES)


def _plan(due: Schedule, now: int) -> Plan | InvalidSchedule:
    try:
        return planned(due, now)
    except InvalidSchedule as error:
        return error


def _at(schedule: Schedule, tick: int, *, paused: bool = False) -> Schedule:
    """Return a copy of a schedule with the next tick `tick`."""
    return replace(schedule, tick_at=tick, next_at=None if paused else due_at(schedule, tick))


def _start_interval(schedule: Schedule, *, start: int, tick: int) -> Schedule:
    """Return a copy of a schedule with the next tick `tick`, whose intervals count from `start`."""
    return _at(replace(schedule, starts_at=start), tick)


def _count_submission(tx: Transaction, schedule: Schedule, made: str) -> Schedule:
    return replace(
        schedule, submitted=schedule.submitted + 1, last_at=tx.now(), last_id=made, last_error=None
    )


def _passed_over(schedule: Schedule, then: int) -> Schedule:
    return replace(_at(schedule, then), passed_over=schedule.passed_over + 1)


def _record_error(schedule: Schedule, reason: str) -> Schedule:
    return replace(schedule, last_error=reason[:_MAX_ERROR_LENGTH])


def _require_schedule(tx: Transaction, kind: str, name: str) -> Schedule:
    known_schedule = tx.schedules.named(kind, name)
    if known_schedule is None:
        raise UnknownSchedule(f"there is no schedule named {name[:80]!r}", value=name[:80])
    return known_schedule


def _still_due(tx: Transaction, due: Schedule) -> Schedule:
    """Return the stored schedule if it has not changed since the caller read `due`.

    Raises:
        NotDue: The schedule was advanced, changed, paused or removed.
    """
    row = tx.schedules.named(due.kind, due.name)
    if row is None or row.next_at is None or (row.schedule_id, row.tick_at) != (due.schedule_id, due.tick_at):
        raise NotDue
    return row


def _chosen(policy: type[C], given: str, argument: str) -> C:
    """Return the policy with this name.

    Raises:
        InvalidSchedule: No policy has this name.
    """
    try:
        return policy(given)
    except ValueError as error:
        raise InvalidSchedule(
            f"`{argument}` must be one of {', '.join(policy)}, not {str(given)[:40]!r}",
            value=str(given)[:40],
            remedy=f"leave out `{argument}` to use its default",
        ) from error
