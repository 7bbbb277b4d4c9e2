"""Computes the ticks of a schedule, and decides what to do at each tick.

A cron expression is evaluated in its time zone, by the rules of Debian's cron; time zones are read from
files. If a clock change skips a local time, its tick is due at the first minute after the change. If a clock
change repeats a local time, its tick is due only the first time. An expression whose minute or hour begins
with `*` follows the elapsed time, so its ticks are neither skipped nor repeated.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from postroom.contracts.clock import MAX_INTERVAL, SET_BACK_MS, duration_text, milliseconds
from postroom.contracts.errors import InvalidSchedule
from postroom.contracts.schedules import Missed, Schedule

LATE: Final = timedelta(minutes=1)
"""The policy `skip` skips a tick that would be submitted more than this long after its time."""
MAX_MISSED: Final = 100
"""The policy `all` submits at most this number of missed ticks, namely the latest ones."""
MIN_INTERVAL: Final = timedelta(seconds=1)
"""The shortest interval that a schedule may have."""
KEPT_SILENT: Final = timedelta(hours=3)
"""After the clock was set back by at most this much, fixed times of a cron expression do not fire again."""
_MAX_LINE_LENGTH: Final = 200
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a local time without a zone
_LOOKED_AT: Final = 50
"""Number of ticks that are examined to check that the jitter is shorter than the time between ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision about a due tick, and the tick after it."""

    tick: int
    submits: bool
    """Whether to submit this tick; otherwise it is skipped."""
    then: int
    """The next tick."""


def planned(schedule: Schedule, now: int) -> Plan:
    """Decide what to do about a due schedule, according to its policy for missed ticks.

    Raises:
        InvalidSchedule: The time zone of the schedule is no longer known.
    """
    tick = schedule.tick_at
    then = next_tick(schedule, tick)
    if then > now:
        late = now - (schedule.next_at or now)
        is_missed = schedule.missed is Missed.SKIP and late > milliseconds(LATE)
        return Plan(tick=tick, submits=not is_missed, then=then)
    if schedule.missed is Missed.ALL:
        last = list(islice(_before(schedule, now), MAX_MISSED))
        first = max(last[-1], tick)
        return Plan(tick=first, submits=True, then=then if first == tick else next_tick(schedule, first))
    then = next_tick(schedule, now)
    return Plan(
        tick=tick, submits=schedule.missed is Missed.ONCE or now - tick <= milliseconds(LATE), then=then
    )


def next_tick(schedule: Schedule, after: int) -> int:
    """Return the first tick of a schedule after the time `after`.

    Raises:
        InvalidSchedule: No tick exists in the next 50 years, or the time zone is unknown.
    """
    if schedule.every_ms is not None:
        start, every = schedule.starts_at, schedule.every_ms
        return start + (max(after - start, 0) // every + 1) * every
    for tick in _cron(schedule, after):
        if tick > after:  # When clocks are set back, local times repeat.
            return tick
    raise InvalidSchedule(
        f"{schedule.cron!r} never fires",
        value=schedule.cron,
        remedy="choose a day and month that exist together",
    )


def after_set_back(schedule: Schedule, now: int, back_ms: int) -> tuple[int, int]:
    """Return the start and the next tick of a schedule after the clock was set back by `back_ms`.

    If `back_ms` is 0, the extent is unknown, and differences below `SET_BACK_MS` are ignored.

    - The ticks of an interval schedule move back, so that the next tick is at most one interval away.
    - A cron expression with `*` as its minute or hour continues with its first tick after `now`.
    - Any other cron expression keeps its next tick, unless an earlier tick is more than 3 hours after `now`.

    Raises:
        InvalidSchedule: The time zone is unknown.
    """
    start, tick = schedule.starts_at, schedule.tick_at
    ignored = 0 if back_ms else SET_BACK_MS - 1
    if schedule.every_ms is not None:
        too_far = tick - now - schedule.every_ms
        shift = max(back_ms, too_far) if too_far > ignored else 0
        return start - shift, tick - shift
    kept_count = ignored if _follows_elapsed_time(schedule) else milliseconds(KEPT_SILENT)
    if tick <= now + kept_count or next_tick(schedule, now + kept_count) >= tick:
        return start, tick
    return start, next_tick(schedule, now)


def due_at(schedule: Schedule, tick: int) -> int:
    """Return when a tick is submitted: the tick plus its jitter, which is constant for each tick."""
    if not schedule.jitter_ms:
        return tick
    digest = hashlib.blake2b(f"{schedule.schedule_id}/{tick}".encode(), digest_size=8).digest()
    return tick + int.from_bytes(digest) % (schedule.jitter_ms + 1)


def refuse_unfit(schedule: Schedule) -> None:
    """Check that a schedule can be stored.

    Raises:
        InvalidSchedule: The error names the argument, its value and the allowed values.
    """
    _zone(schedule.zone)
    if (schedule.cron is None) == (schedule.every_ms is None):
        raise InvalidSchedule(
            "a schedule needs either a cron expression or an interval",
            value=schedule.cron,
            remedy="pass either `cron`, such as 0 9 * * MON, or `every`",
        )
    if schedule.every_ms is not None:
        least, most = milliseconds(MIN_INTERVAL), milliseconds(MAX_INTERVAL)
        if not least <= schedule.every_ms <= most:
            raise InvalidSchedule(
                f"`every` must be from {duration_text(MIN_INTERVAL)} to {duration_text(MAX_INTERVAL)}",
                value=f"{schedule.every_ms / 1000:g} s",
                remedy="choose another value for `every`",
            )
    first = next_tick(schedule, schedule.created_at)
    if not schedule.jitter_ms:
        return
    closest = schedule.every_ms
    if not closest:
        ticks = [first]
        while len(ticks) < _LOOKED_AT:
            try:
                ticks.append(next_tick(schedule, ticks[-1]))
            except InvalidSchedule:  # it fires rarely, for example only on 29 February
                break
        closest = min((b - a for a, b in pairwise(ticks)), default=milliseconds(MAX_INTERVAL))
    if not 0 <= schedule.jitter_ms < closest:
        raise InvalidSchedule(
            f"`jitter` must be at least 0 and less than {duration_text(timedelta(milliseconds=closest))}, "
            f"the shortest time between two scheduled times",
            value=f"{schedule.jitter_ms / 1000:g} s",
            remedy="choose a shorter `jitter`, or leave it out",
        )


def _before(schedule: Schedule, now: int) -> Iterator[int]:
    """Yield the ticks of a schedule up to the time `now`, latest first."""
    if schedule.every_ms is not None:
        tick = next_tick(schedule, now) - schedule.every_ms
        while True:
            yield tick
            tick -= schedule.every_ms
    last = now + 1
    # Start two hours later, because local times repeat when clocks are set back.
    for tick in _cron(schedule, now + milliseconds(timedelta(hours=2)), reverse=True):
        if tick < last:
            yield tick
            last = tick


def _cron(schedule: Schedule, start: int, *, reverse: bool = False) -> Iterator[int]:
    """Yield the ticks of a cron expression from the time `start` on, or backwards if `reverse`."""
    # Some of the first ticks may lie up to an hour on the other side of `start`.
    line, zone = schedule.cron or "", _zone(schedule.zone)
    if len(line.split()) != 5 or len(line) > _MAX_LINE_LENGTH:
        raise InvalidSchedule(
            "a cron expression needs five fields: minute, hour, day of month, month, day of week",
            value=line[:_MAX_LINE_LENGTH],
            remedy='use an expression such as "0 9 * * MON"',
        )
    ticks = _by_offset if _follows_elapsed_time(schedule) else _by_wall
    return (moment * 1000 for moment in ticks(line, zone, start // 1000, reverse))


def _follows_elapsed_time(schedule: Schedule) -> bool:
    """Return whether the minute or the hour of a cron expression begins with `*`."""
    return any(field.startswith("*") for field in (schedule.cron or "").split()[:2])


def _by_wall(line: str, zone: ZoneInfo, start: int, reverse: bool) -> Iterator[int]:
    """Yield the ticks of a cron expression by the local clock, in seconds since the epoch."""
    for tick in _local_ticks(line, start + _offset(zone, start), reverse):
        first, second = (int(tick.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
        # If clocks are set ahead, the later offset results in the earlier time, and the change lies in
        # between.
        yield first if first <= second else _change(zone, second, first)


def _by_offset(line: str, zone: ZoneInfo, start: int, reverse: bool) -> Iterator[int]:
    """Yield the ticks of a cron expression by elapsed time, in seconds since the epoch."""
    begin, known_number, offset = start, start, _offset(zone, start)
    while True:
        for tick in _local_ticks(line, begin + offset, reverse):
            number = int((tick - _EPOCH).total_seconds()) - offset
            if _offset(zone, number) != offset:
                break
            yield number
            known_number = number
        else:
            return
        change = _change(zone, *sorted((known_number, number)))
        known_number, begin = (change - 1, change) if reverse else (change, change - 1)
        offset = _offset(zone, known_number)


def _local_ticks(line: str, start: int, reverse: bool) -> Iterator[datetime]:
    """Yield the ticks of a cron expression as local times, as if there were no clock changes."""
    try:
        return CronSim(line, _EPOCH + timedelta(seconds=start), reverse=reverse)
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidSchedule(
            f"{line!r} is not a valid cron expression: {error}",
            value=line,
            remedy='use an expression such as "0 9 * * MON"',
        ) from error


def _offset(zone: ZoneInfo, moment: int) -> int:
    """Return the number of seconds by which local time is ahead of UTC at a moment."""
    shown = datetime.fromtimestamp(moment, tz=zone).utcoffset() or timedelta(0)
    return int(shown.total_seconds())


def _change(zone: ZoneInfo, before: int, behind: int) -> int:
    """Return when the UTC offset of a time zone changes between two times."""
    offset = _offset(zone, before)
    while behind - before > 1:
        middle = (before + behind) // 2
        before, behind = (middle, behind) if _offset(zone, middle) == offset else (before, middle)
    return behind


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidSchedule(
            f"unknown time zone {name[:80]!r}",
            value=name[:80],
            remedy="use a name such as Europe/Berlin, America/New_York or UTC",
        ) from error
