"""Several servers on one PostgreSQL behind Caddy: one is killed repeatedly, one is suspended, one is cut off.

Their clocks are wrong by five seconds in either direction. Each has a separate data folder, as on separate machines, and
reaches the database by a separate proxy; if chosen, also in a separate network: then the cable to the database is pulled
out, and everything else stays reachable.
"""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from addresses import free_address
from balancer import balanced
from networks import Network, found_from_everywhere, networks
from postgres_server import PostgresServer
from postroom import testing
from postroom.leases import LENGTH
from soak.books import Postgres, look
from soak.killing import Soak, Soaked, close, make_callers, until_answered
from soak.peers import Peers
from soak.progress import Progress
from soak.proxies import Proxy, running
from soak.world import START_PATIENCE, Environment, Server, furnish, write_chats

SCHEMA = "soak"
SLOW = 0.01
ECHOES = 5
STANDSTILL = LENGTH.total_seconds() + 10
"""How long a server is suspended and another is cut off: their leases end during it, and others take over."""
KILL_EVERY = 5.0
WRONG_BY = (5.0, -5.0, 0.0)
"""By how many seconds the clocks of servers are wrong, in turn."""
TEMPFAIL = 75
"""With which a server ends that finds no database at its start; a supervisor starts it again."""


@dataclass(kw_only=True)
class Cluster:
    """The servers, and their common address for callers."""

    servers: list[Server]
    cables: list[Proxy] | list[Network]
    """By which each of them reaches the database."""
    database: PostgresServer
    yard: Path
    token: str
    address: tuple[str, int] = ("127.0.0.1", 0)
    around: Environment = field(default_factory=Environment)
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    starts: int = 0
    slow: float = SLOW
    echoes: int = ECHOES

    @property
    def data_dir(self) -> Path:
        """The folder where commands write their files."""
        return self.servers[0].data_dir

    @property
    def books(self) -> Postgres:
        """Where the servers keep everything."""
        return Postgres(self.database.dsn, SCHEMA)

    async def ready(self) -> None:
        """Return when all servers are.

        Raises:
            TimeoutError: A server was not in time.
        """
        async with asyncio.timeout(START_PATIENCE):
            for server in self.servers:
                while not await server.answers():
                    await asyncio.sleep(0.1)


@asynccontextmanager
async def cluster(number: int, folder: Path, apart: Sequence[Network] = ()) -> AsyncIterator[Cluster]:
    """Create a database and this many servers, none of them started; each in one of these networks, if given."""
    (folder / "yard").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        database = stack.enter_context(PostgresServer())
        await asyncio.to_thread(database.start)
        token = f"prm_{secrets.token_urlsafe(32)}"
        servers, proxies = [], []
        for one in range(number):
            host = apart[one].here if apart else "127.0.0.1"
            proxies.append(await stack.enter_async_context(running(database.dsn, host)))
            around = Environment(
                settings={"POSTROOM_DATABASE_URL": proxies[-1].dsn, "POSTROOM_DATABASE_SCHEMA": SCHEMA},
                within=apart[one].within if apart else (),
                wrong_by=WRONG_BY[one % len(WRONG_BY)],
            )
            servers.append(_server(folder / f"server-{one}", folder / "yard", around, token))
            stack.push_async_callback(servers[-1].kill)
        if apart:
            ports = [one.listens[1] for one in servers]
            await stack.enter_async_context(found_from_everywhere(apart, ports))
        yield Cluster(
            servers=servers,
            cables=list(apart) or proxies,
            database=database,
            yard=folder / "yard",
            token=token,
        )


@asynccontextmanager
async def served(cluster: Cluster, around: Peers, agents: Sequence[str]) -> AsyncIterator[None]:
    """Make all servers serve these agents at one address."""
    servers = cluster.servers
    await furnish(servers[0], around, agents, cluster.echoes)
    for server, url in zip(servers, around.telegram_urls, strict=True):
        write_chats(server.data_dir, around, url, str(cluster.yard))
    store = await cluster.books.store()
    await testing.record(store.runs)
    await asyncio.to_thread(store.close)
    for server in servers:
        await server.spawn()
    await cluster.ready()
    with ExitStack() as stack:
        behind = balanced([one.address for one in servers], cluster.yard.parent, host="127.0.0.1")
        cluster.address = await asyncio.to_thread(
            stack.enter_context, behind
        )  # proxies are served here meanwhile
        url = "http://{}:{}".format(*cluster.address)
        cluster.around = Environment(settings={"POSTROOM_URL": url, "POSTROOM_TOKEN": cluster.token})
        cluster.is_up.set()
        yield


def _server(folder: Path, yard: Path, around: Environment, token: str) -> Server:
    server = Server(folder, around, free_address())
    server.yard = yard
    server.data_dir.mkdir(parents=True, mode=0o700)
    (server.data_dir / "token").touch(0o600)
    (server.data_dir / "token").write_text(token)
    return server


class Faults:
    """The faults of servers and database until the end."""

    def __init__(self, cluster: Cluster, around: Peers, kill_every: float, progress: Progress) -> None:
        self._cluster, self._around, self._progress = cluster, around, progress
        self._kill_every = kill_every or KILL_EVERY
        self._dice = random.Random("several")
        self._away: set[int] = set()
        """The servers that are suspended or cut off."""
        self._is_over = asyncio.Event()
        self._starting = asyncio.Lock()
        self.kills = self.standstills = self.outages = self.starts_again = 0
        self.findings: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.standstills} times one stood still and another was cut off, "
            f"{self.outages} restarts of the database, {self.starts_again} servers ended without it"
        )

    @asynccontextmanager
    async def looked_after(self) -> AsyncIterator[None]:
        """Look after the servers while the block lasts, as a supervisor does."""
        looking_after = asyncio.create_task(self._look_after())
        try:
            yield
        finally:
            looking_after.cancel()
            await asyncio.wait([looking_after])

    async def last(self, seconds: float) -> None:
        """Make faults for this long, and return when all servers run again."""
        self._progress.stage(f"asking under faults for {seconds:.0f} s")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_again_and_again())
            group.create_task(self._stand_still_again_and_again())
            group.create_task(self._take_the_database_away(seconds))
            await asyncio.sleep(seconds)
            self._is_over.set()
            self._progress.stage("waiting for the last fault to end")
        self._progress.stage("waiting for all servers to be ready")
        await self._cluster.ready()

    async def _over_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
        return self._is_over.is_set()

    async def _kill_again_and_again(self) -> None:
        while not await self._over_within(self._kill_every):
            here = sorted(set(range(len(self._cluster.servers))) - self._away)
            server = self._cluster.servers[self._dice.choice(here)]
            async with self._starting:
                await server.kill()
                await server.spawn()
            self.kills += 1

    async def _stand_still_again_and_again(self) -> None:
        """In turn, the server that polls Telegram is cut off from the database, or suspended."""
        servers, is_last = self._cluster.servers, False
        while not is_last:
            poller = self._around.telegram.poller
            other = (poller + 1 + self.standstills // 2 % (len(servers) - 1)) % len(servers)
            cut_off, still = (other, poller) if self.standstills % 2 else (poller, other)
            async with self._starting:
                self._away = {still, cut_off}
                servers[still].pause()
            self._around.telegram.still.add(still)
            self._cluster.cables[cut_off].cut_off()
            await asyncio.sleep(STANDSTILL)
            self._around.telegram.still.discard(still)
            servers[still].go_on()
            self._cluster.cables[cut_off].join()
            self._away = set()
            self.standstills += 1
            is_last = await self._over_within(STANDSTILL / 2)

    async def _take_the_database_away(self, seconds: float) -> None:
        """Restart it in good order first, then by a crash."""
        database = self._cluster.database
        how: Callable[[], None]
        for how in (database.stop, database.kill):
            if await self._over_within(seconds / 3):
                return
            await asyncio.to_thread(how)
            await asyncio.to_thread(database.start)
            self.outages += 1

    async def _look_after(self) -> None:
        """Start a server again that has ended by itself, as a supervisor does."""
        while True:
            for number, server in enumerate(self._cluster.servers):
                async with self._starting:
                    code = server.ended()
                    if code is None:
                        continue
                    if code != TEMPFAIL:
                        self.findings.append(f"server {number} ended by itself with {code}")
                    self.starts_again += 1
                    await server.kill()
                    await server.spawn()
            await asyncio.sleep(0.5)


async def soak_several(chosen: Soak, folder: Path, tell: Callable[[str], None]) -> Soaked:
    """Make callers ask several servers under all faults, and return the result."""
    with networks(chosen.servers if chosen.networks else 0) as apart:
        return await _soak(chosen, folder, apart, tell)


async def _soak(chosen: Soak, folder: Path, apart: Sequence[Network], tell: Callable[[str], None]) -> Soaked:
    done = Soaked()
    history = done.findings.history
    began = time.monotonic()
    async with (
        Progress(tell).shown() as progress,
        Peers().serving(chosen.servers, apart) as around,
        cluster(chosen.servers, folder, apart) as found,
    ):
        callers, agents = make_callers(chosen, found, around)
        progress.stage(f"starting {chosen.servers} servers for {len(callers)} callers")
        async with served(found, around, agents):
            faults = Faults(found, around, chosen.kill_every, progress)
            progress.callers, progress.faults = callers, faults
            async with faults.looked_after():
                await until_answered(
                    callers, faults.last(chosen.seconds), lambda: progress.stage("waiting for answers")
                )
            for number, server in enumerate(found.servers):
                progress.stage(f"stopping server {number}")
                if code := await server.stop():
                    history.append(f"server {number} did not end in order, but with {code}")
        progress.stage("comparing the books")
        done.findings, states = await look(found.books, [one for caller in callers for one in caller.asked])
        done.findings.history += history + faults.findings
        close(done, callers, around, [one.log for one in found.servers])
        done.kills, done.standstills, done.outages = faults.kills, faults.standstills, faults.outages
        done.seconds, done.looks = time.monotonic() - began, 1
        polls = ", ".join(
            f"{polls} by server {one}" for one, polls in sorted(around.telegram.pollers.items())
        )
        tell(f"Telegram was asked for news {polls}; of its messages and others of chats {dict(states)}")
    return done
