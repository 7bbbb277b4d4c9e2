"""Stores schedules, as a transaction reads and writes them."""

from collections.abc import Sequence
from dataclasses import fields

from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.schedules import SCHEDULES, Missed, Overlap, Schedule
from postroom.stores.codec import decode_json, encode, escape_nul, unescape_nul, unreadable
from postroom.stores.sql_transaction import Row, Tables, Values

_NAMES = tuple(field.name for field in fields(Schedule))


class ScheduleTables(Tables):
    """The rows of `schedules`."""

    def named(self, kind: str, name: str) -> Schedule | None:
        """Return the schedule with this kind and this name, or None."""
        row = self._sql.one("schedules.named", {"kind": kind, "name": name})
        return None if row is None else _schedule(row)

    def listed(self, kind: str, *, after: str, limit: int) -> list[Schedule]:
        """Return up to `limit` schedules of a kind, ordered by name, from the first name after `after`."""
        rows = self._sql.all("schedules.listed", {"kind": kind, "after": after, "limit": limit})
        return list(map(_schedule, rows))

    def due(self, kind: str, *, limit: int) -> list[Schedule]:
        """Return up to `limit` due schedules of a kind, longest overdue first."""
        rows = self._sql.all("schedules.due", {"kind": kind, "now": self._now(), "limit": limit})
        return list(map(_schedule, rows))

    def next_at(self, kinds: Sequence[str]) -> int | None:
        """Return when the first schedule of the given kinds is due, or None if there is none."""
        answer = self._sql.ask(*(("schedules.next_at", {"kind": kind}) for kind in kinds))
        return min((rows[0][0] for rows in answer if rows), default=None)

    def insert(self, schedule: Schedule) -> None:
        """Store a new schedule, whose name must not be in use."""
        self._sql.run("schedules.insert", _values(schedule))
        self._tell(SCHEDULES)

    def put(self, schedule: Schedule) -> None:
        """Replace the stored schedule that has the id of `schedule`."""
        values = dict(_values(schedule))
        for name in ("kind", "name", "created_at"):
            del values[name]
        self._sql.run("schedules.put", values)

    def remove(self, schedule_id: str) -> None:
        """Delete a schedule; its submitted work continues."""
        self._sql.run("schedules.remove", {"schedule_id": schedule_id})


def _values(schedule: Schedule) -> Values:
    values = {name: getattr(schedule, name) for name in _NAMES}
    values |= {"payload": encode(schedule.payload), "last_error": escape_nul(schedule.last_error)}
    return values | {"missed": schedule.missed.value, "overlap": schedule.overlap.value}


def _schedule(row: Row) -> Schedule:
    """Create a schedule from a row of the table `schedules`.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    values = dict(zip(_NAMES, row, strict=True))
    try:
        values["payload"] = decode_json(values["payload"], where="payload")
        values["missed"], values["overlap"] = Missed(values["missed"]), Overlap(values["overlap"])
        values["last_error"] = unescape_nul(values["last_error"])
        return Schedule(**values)
    except (ValueError, StoreCorrupt) as error:
        raise unreadable("schedule", row[0], error) from error
