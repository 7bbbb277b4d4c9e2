"""The leases of a server, each of which lets only one server on a database do a kind of work at a time.

    every third of its length, and when one is released ─▶ one change for all ─▶ acquired, or renewed

This server considers a lease as held until shortly before it expires for other servers, counted from the time
before the request. Therefore a server that was frozen, or cannot reach the database, has stopped the work
before another server may start it. `guarded` makes a change prove the lease when it is written, which may be
later than its start.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from postroom.concurrency import Tasks
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import StaleClaim, StoreError
from postroom.contracts.leases import (
    LEASES,
    SERVER,
    IsGone,
    Lease,
    named_places,
    nobody_is_gone,
    servers,
)
from postroom.contracts.messages import Json
from postroom.log import get_logger
from postroom.stores.store import SqlStore, Transaction

_LOG = get_logger(__name__)
T = TypeVar("T")

LENGTH: Final = timedelta(seconds=30)
AGAIN_AFTER: Final = timedelta(seconds=1)
"""The pause before a failed change is repeated."""
_SERVERS_KEPT: Final = timedelta(hours=1)
"""The time for which entries of former servers are kept in the database."""


class Leases:
    """The leases of this server, which are held only within the context `serving`."""

    def __init__(
        self,
        store: SqlStore,
        holder: str,
        about: Mapping[str, Json],
        *,
        is_gone: IsGone = nobody_is_gone,
        length: timedelta = LENGTH,
    ) -> None:
        """Create the leases of the server `holder`, which `about` describes.

        `is_gone` gets the description of another server, and returns whether that server has certainly
        exited; the function may block. A lease is renewed after a third of `length`, and counts as lost when
        a sixth of `length` is left.
        """
        self.holder = holder
        self._store, self._about, self._is_gone = store, about, is_gone
        self._length, self._every, self._sure = length, length / 3, length * 5 / 6
        self._wanted = {SERVER + holder}
        self._held: dict[str, tuple[int, int]] = {}
        """The fence of each lease, and the time until which no other server can have the lease, keyed by
        name.
        """
        self.gone: set[str] = set()
        """Other servers that had leases and have certainly exited."""
        self._taken_over: dict[str, Callable[[], Awaitable[object]]] = {}
        self._tasks = Tasks("leases")
        self._renewing = asyncio.Lock()
        """A lock that is held while leases are acquired; a release waits for this lock."""

    def want(self, *names: str, taken: Callable[[], Awaitable[object]] | None = None) -> None:
        """Acquire leases as soon as they are free, and keep renewing them.

        `taken` is called after each acquisition, to recover work that another server has left.
        """
        self._wanted |= set(names)
        if taken is not None:
            self._taken_over |= dict.fromkeys(names, taken)
        self._store.changes.tell((LEASES,))

    def holds(self, name: str) -> bool:
        """Return whether this server has a lease now, and may do the work of the lease."""
        return name in self._held and self._store.clock.now() < self._held[name][1]

    async def servers(self, place: str = "") -> list[Lease]:
        """Return the leases of the running servers.

        With `place`, only servers that have this place are returned.

        Raises:
            StoreError: The leases cannot be read.
        """
        return await self._store.read(lambda tx: servers(tx.leases.listed(), tx.now(), place))

    def places(self) -> list[str]:
        """Return the host name, the configured labels, and the names of the held leases of this server.

        A run that requires any of the returned places can execute on this server.
        """
        return [*named_places(self._about), *(name for name in self._held if self.holds(name))]

    def guarded(self, name: str, change: Callable[[Transaction], T]) -> Callable[[Transaction], T]:
        """Return a change that raises StaleClaim if this server has lost the lease `name`."""
        fence, _ = self._held.get(name, (0, 0))

        def proved(tx: Transaction) -> T:
            if not tx.leases.holds(name, self.holder, fence):
                raise StaleClaim(f"another server has the lease of {name}", value=name)
            return change(tx)

        return proved

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Acquire the wanted leases, hold them within the context, and release them at its end."""
        self._tasks = Tasks("leases")
        await self.renew(log=_LOG.debug)
        self._tasks.start(self._serve(), name="renewal")
        try:
            yield
        finally:
            await self._tasks.close()
            await self.give_back(*self._wanted)

    async def give_back(self, *names: str) -> None:
        """Release leases, so that another server can acquire them at once.

        A lease that cannot be released expires.
        """
        held = [name for name in names if self._held.pop(name, None) is not None]
        self._wanted -= {name for name in names if not name.startswith(SERVER)}

        def change(tx: Transaction) -> None:
            tx.lock(LEASES)
            known_leases = [lease for lease in tx.leases.listed() if lease.name in names]
            tx.leases.renew(
                [lease.name for lease in known_leases if _is_holder(lease, self.holder, tx.now())], tx.now()
            )
            tx.tell(LEASES)

        if not (held or self._renewing.locked()):
            return
        async with self._renewing:
            try:
                await self._store.write(change, key=LEASES)
            except StoreError as error:
                _LOG.warning("leases.not_given_back", reason=error.describe())

    async def _serve(self) -> None:
        with self._store.changes.listen(LEASES) as news:
            while True:
                is_renewed = await self.renew()
                await news.wait(self._every if is_renewed else AGAIN_AFTER)

    async def renew(self, log: Callable[..., None] = _LOG.info) -> bool:
        """Acquire and renew the wanted leases; return False if this failed or took too long.

        The function `log` is called for each lease that was acquired or lost.
        """
        async with self._renewing:
            asked_at, names, before = self._store.clock.now(), frozenset(self._wanted), set(self._held)
            try:
                # Find servers that have certainly exited, but whose leases have not expired yet.
                leases = await self._store.read(lambda tx: tx.leases.listed())
                others = {
                    lease.holder: lease.about
                    for lease in leases
                    if lease.holder not in {self.holder, *self.gone}
                }
                look = partial(
                    lambda known: {name for name, about in known.items() if self._is_gone(about)}, others
                )
                self.gone |= await asyncio.to_thread(look)
                fences = await self._store.write(partial(self._take, names=names), key=LEASES)
            except StoreError as error:
                _LOG.warning("leases.not_renewed", reason=error.describe())
                return False
            until = asked_at + milliseconds(self._sure)
            self._held = {name: (fence, until) for name, fence in fences.items() if name in self._wanted}
        for name in sorted(before ^ self._held.keys()):
            log("lease.taken" if name in self._held else "lease.lost", name=name)
        for name in sorted(self._held.keys() - before):
            try:
                if name in self._taken_over:
                    await self._taken_over[name]()
            except StoreError as error:
                # the unfinished work is recovered when the other server's lease expires
                _LOG.warning("lease.nothing_taken_over", name=name, reason=error.describe())
        return self._store.clock.now() < until

    def _take(self, tx: Transaction, *, names: frozenset[str]) -> dict[str, int]:
        """Renew held leases, acquire free leases, and return the fences of both."""
        tx.lock(LEASES)
        now, until = tx.now(), tx.now() + milliseconds(self._length)
        by_name = {lease.name: lease for lease in tx.leases.listed()}
        mine = {name for name in names & by_name.keys() if _is_holder(by_name[name], self.holder, now)}
        tx.leases.renew(mine, until)
        kept_since = now - milliseconds(_SERVERS_KEPT)
        if gone := [
            name
            for name, lease in by_name.items()
            if name.startswith(SERVER) and (lease.until <= kept_since or lease.holder in self.gone)
        ]:
            tx.leases.remove(gone)
        fences = {name: by_name[name].fence for name in mine}
        for name in sorted(names - mine):
            former = by_name.get(name)
            if former is not None and former.until > now and former.holder not in self.gone:
                continue
            fences[name] = 1 if former is None else former.fence + 1
            tx.leases.put(
                Lease(
                    name=name,
                    holder=self.holder,
                    about=self._about,
                    fence=fences[name],
                    since=now,
                    until=until,
                )
            )
        return fences


def _is_holder(lease: Lease, holder: str, now: int) -> bool:
    return lease.holder == holder and lease.until > now
