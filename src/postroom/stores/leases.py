"""Reads and writes leases within a transaction."""

from collections.abc import Collection
from dataclasses import asdict

from postroom.contracts.leases import Lease
from postroom.stores.codec import decode_json, encode
from postroom.stores.sql_transaction import Row, Tables


class LeaseTables(Tables):
    """The rows of `leases`."""

    def listed(self) -> list[Lease]:
        """Return all leases ordered by name, including expired ones."""
        return list(map(_lease, self._sql.all("leases.listed")))

    def put(self, lease: Lease) -> None:
        """Store a lease under its name."""
        self._sql.run("leases.put", {**asdict(lease), "about": encode(dict(lease.about))})

    def renew(self, names: Collection[str], until: int) -> None:
        """Set the end of the leases with these names to `until`."""
        self._sql.run("leases.renew", {"names": sorted(names), "until": until})

    def remove(self, names: Collection[str]) -> None:
        """Delete the leases with these names."""
        self._sql.run("leases.remove", {"names": sorted(names)})

    def holds(self, name: str, holder: str, fence: int) -> bool:
        """Return whether `holder` has the lease with this fence.

        The row of the lease is locked until the transaction ends.
        """
        parameters = {"name": name, "holder": holder, "fence": fence, "now": self._now()}
        # a write to the row keeps other transactions from writing it
        return self._sql.changed("leases.hold", parameters) > 0


def _lease(row: Row) -> Lease:
    name, holder, about, fence, since, until = row
    about = decode_json(about, where="about")
    return Lease(name=name, holder=holder, about=about, fence=fence, since=since, until=until)
