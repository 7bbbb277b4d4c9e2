"""Leases on the paths of a project."""

from collections.abc import Sequence

from typing_extensions import override

from postroom.contracts.errors import UnknownReservation
from postroom.contracts.mail import Agent, LivePattern, Reservation
from postroom.contracts.store import MailWrites
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part, unknown

_NO_LIMIT = 2**62


class Reservations(Part, MailWrites):
    """Reservations, live ones and those that have ended."""

    @override
    def reservation(self, reservation_id: int) -> Reservation | None:
        row = self._tx.one("mail.reservation", {"id": reservation_id})
        return rows.reservation(row) if row else None

    @override
    def live_reservations(
        self,
        project_id: int,
        *,
        now: int,
        near: str | None = None,
        agent_id: int | None = None,
        limit: int | None = None,
    ) -> list[Reservation]:
        values = _near(project_id, now, near)
        values |= {"limit": _NO_LIMIT if limit is None else limit, "agent_id": agent_id}
        if agent_id is not None:
            statement = "mail.reservations_held"
        else:
            statement = "mail.live_reservations_near" if near else "mail.live_reservations"
        return [rows.reservation(row) for row in self._tx.all(statement, values)]

    @override
    def live_patterns(
        self, project_id: int, *, now: int, near: str, but: int, exclusive_only: bool
    ) -> list[LivePattern]:
        values = _near(project_id, now, near) | {"but": but, "exclusive_only": exclusive_only}
        found = self._tx.all("mail.live_patterns_near" if near else "mail.live_patterns", values)
        return [(row[0], row[1]) for row in found]

    @override
    def reservations_by_id(self, reservation_ids: Sequence[int]) -> list[Reservation]:
        found = self._tx.all("mail.reservations_by_id", {"ids": reservation_ids})
        return [rows.reservation(row) for row in found]

    @override
    def reservations(self, project_id: int, *, limit: int, after: int = 0) -> list[Reservation]:
        values = {"project_id": project_id, "after": after, "limit": limit}
        return [rows.reservation(row) for row in self._tx.all("mail.reservations", values)]

    @override
    def insert_reservation(
        self, agent: Agent, *, pattern: str, prefix: str, exclusive: bool, reason: str, ttl: int, now: int
    ) -> Reservation:
        values = {
            "project_id": agent.project_id,
            "agent_id": agent.id,
            "pattern": pattern,
            "prefix": prefix,
            "exclusive": exclusive,
            "reason": reason,
            "now": now,
            "expires_at": now + ttl,
            "ttl": ttl,
        }
        made = self._stored(rows.written(self._tx.one("mail.insert_reservation", values))[0])
        self._events.reserved("reservation.made", made, now)
        return made

    @override
    def extend_reservation(
        self, reservation_id: int, *, expires_at: int, ttl: int, exclusive: bool, reason: str, now: int
    ) -> Reservation:
        values = {
            "id": reservation_id,
            "expires_at": expires_at,
            "ttl": ttl,
            "exclusive": exclusive,
            "reason": reason,
        }
        self._tx.run("mail.extend_reservation", values)
        extended = self._stored(reservation_id)
        self._events.reserved("reservation.renewed", extended, now)
        return extended

    @override
    def release_reservation(self, reservation_id: int, *, now: int, by: str, reason: str) -> Reservation:
        values = {"id": reservation_id, "now": now, "by": by, "reason": reason}
        is_new = self._tx.changed("mail.release_reservation", values) > 0
        released = self._stored(reservation_id)
        if is_new:
            self._events.released(released, now, by)
        return released

    @override
    def expire_reservations(self, project_id: int, now: int) -> list[Reservation]:
        found = self._tx.all("mail.expired_reservations", {"project_id": project_id, "now": now})
        over = [rows.reservation(row) for row in found]
        self._tx.run_many("mail.expire_reservation", [{"id": one.id} for one in over])
        for one in over:
            self._events.expired(one, now)
        return over

    def _stored(self, reservation_id: int) -> Reservation:
        found = self.reservation(reservation_id)
        if found is None:
            raise unknown(UnknownReservation, reservation_id)
        return found


def _near(project_id: int, now: int, near: str | None) -> dict[str, object]:
    """Return the parameters that find reservations whose prefix lies on the way to `near`, or below it."""
    return {
        "project_id": project_id,
        "now": now,
        "anywhere": not near,
        "ancestors": _whole_segment_prefixes(near) if near else [],
        "below": f"{near}/",
        "beyond": f"{near}0",  # "0" follows "/" in every encoding
    }


def _whole_segment_prefixes(prefix: str) -> list[str]:
    parts = prefix.split("/")
    return ["", *("/".join(parts[: count + 1]) for count in range(len(parts)))]
