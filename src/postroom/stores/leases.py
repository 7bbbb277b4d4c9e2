"""Leases over an open transaction."""

from collections.abc import Collection
from dataclasses import asdict

from typing_extensions import override

from postroom.contracts import leases
from postroom.contracts.leases import Lease
from postroom.stores.codec import decode_json, encode
from postroom.stores.sql_transaction import Row, Tables


class LeaseTables(Tables, leases.LeaseTables):
    """The rows of `leases`."""

    @override
    def listed(self) -> list[Lease]:
        return list(map(_lease, self._sql.all("leases.listed")))

    @override
    def put(self, lease: Lease) -> None:
        self._sql.run("leases.put", {**asdict(lease), "about": encode(dict(lease.about))})

    @override
    def renew(self, names: Collection[str], until: int) -> None:
        self._sql.run("leases.renew", {"names": sorted(names), "until": until})

    @override
    def remove(self, names: Collection[str]) -> None:
        self._sql.run("leases.remove", {"names": sorted(names)})

    @override
    def holds(self, name: str, holder: str, fence: int) -> bool:
        asked = {"name": name, "holder": holder, "fence": fence, "now": self._now()}
        return self._sql.changed("leases.hold", asked) > 0  # written, so that nobody else writes it


def _lease(row: Row) -> Lease:
    name, holder, about, fence, since, until = row
    about = decode_json(about, where="about")
    return Lease(name=name, holder=holder, about=about, fence=fence, since=since, until=until)
