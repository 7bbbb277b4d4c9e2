"""One database in memory for all servers of a world, the way to it, and the faults on that way.

    server ──sent──▶ (way) ──▶ change runs ──▶ (way back) ──▶ reply
       │                │            │              └ lost: the caller hears CommitUnknown
       │                │            └ twice; or undone; or the server dies or freezes right behind it
       │                └ refused, or the server is cut off: StoreUnavailable
       └ the server dies or freezes, or the caller hangs up, while the change is on its way

A change runs in one piece: changes are serial, as on SQLite. Locks and isolation of PostgreSQL are not simulated.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from random import Random
from typing import Any

from postroom.contracts.errors import CommitUnknown, StoreUnavailable
from postroom.stores.changes import ChangeNotifier
from postroom.stores.sqlite.connection import SqliteTransaction
from postroom.stores.store import SqlStore
from postroom.stores.stores import Stores
from simulation.inline import InlineDatabase
from simulation.loop import Process, ProcessClock, SimulatedLoop
from simulation.mail import furnish
from simulation.plan import Fault

WAYS = (0, 0, 1, 1, 2, 5, 0, 1)
"""Milliseconds that one way to the database takes."""
CALL: "ContextVar[Call | None]" = ContextVar("CALL", default=None)
"""The call of a caller, in whose tasks a change was sent."""


class Call:
    """One call of a caller to a server; the caller may hang up at the n-th step to the database."""

    def __init__(self, hangs_up_at: int | None, slow_ms: int = 0) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.slow_ms = slow_ms
        """How much longer each change of the call takes to arrive."""
        self._left = hangs_up_at

    def step(self, loop: SimulatedLoop, process: Process) -> None:
        """Count a step; cancel the task of the call when the caller hangs up here."""
        if self._left is None:
            return
        self._left -= 1
        if self._left == 0 and self.task is not None:
            loop.call_in(process, self.task.cancel)


class Database:
    """The rows, and an observer that gets each commit."""

    shared: InlineDatabase
    """The rows of all worlds, one world after another."""

    def __init__(self, loop: SimulatedLoop, faults: Iterable[Fault], random: Random) -> None:
        """Begin with the rows that every world begins with; `close` undoes what a world has written."""
        self.loop = loop
        self.shared.begin()
        self.rows = self.shared.rows
        self.read = self.shared.read
        self.random = random
        self.faults: dict[tuple[str, int], list[Fault]] = {}
        for fault in faults:
            self.faults.setdefault((fault.change, fault.n), []).append(fault)
        self.is_calm = False
        """Whether the faults have ended."""
        self.sent = 0
        """How many changes were sent."""
        self.sent_by_name: Counter[str] = Counter()
        self.commits = 0
        self.looks = 0
        self.happened: Counter[str] = Counter()
        """The faults that happened, by kind."""
        self.on_commit: Callable[[Process, str], None] = lambda process, change: None
        self.on_fault: Callable[[Process, Fault], None] = lambda process, fault: None
        self.note: Callable[[str], None] | None = None

    def close(self) -> None:
        """Undo everything that this world has written."""
        self.shared.undo()

    def way_ms(self) -> int:
        """Draw how long a way takes."""
        return WAYS[int(self.random.random() * 8)]

    def write(
        self,
        process: Process,
        change: Callable[[SqliteTransaction], Any],
        *,
        times: int = 1,
        is_undone: bool = False,
    ) -> Any:
        """Run a change; when it runs several times, only the last run is kept, and none if it is undone."""
        done, has_written = self.shared.write(change, runs=times, keeps=not is_undone)
        self.commits += 1
        if has_written:
            self.on_commit(process, name_of(change) if self.note else "")
        return done

    def faults_now(self, n: int, change: str = "") -> list[Fault]:
        """Return the faults of the n-th change, or of the n-th of this name."""
        return [] if self.is_calm else self.faults.get((change, n), [])


def prepare_rows() -> None:
    """Store what every world begins with: a mail project and its agents."""
    Database.shared = InlineDatabase()
    loop = SimulatedLoop(Random(0))
    database = Database(loop, (), Random(0))
    stores = Stores(
        SqlStore(SimulatedEngine(database, loop.outside, Network(loop, database, ()))), is_exclusive=False
    )
    loop.run_until_complete(furnish(stores))
    Database.shared.keep()


class Network:
    """Carries hints between the servers; a stretch of hints may be lost or doubled."""

    def __init__(self, loop: SimulatedLoop, database: Database, faults: Iterable[Fault]) -> None:
        self.ends: dict[Process, ChangeNotifier] = {}
        self.count = 0
        self._loop, self._database = loop, database
        self._faults = tuple(faults)

    def share(self, sender: Process, topics: Iterable[str]) -> None:
        """Notify the other servers."""
        told = sorted(topics)
        self.count += 1
        times = 1
        if not self._database.is_calm:
            for fault in self._faults:
                if fault.n <= self.count < fault.n + fault.ms:
                    times = 0 if fault.kind == "hint lost" else 2
                    self._database.happened[fault.kind] += 1
        for process, changes in self.ends.items():
            if process is sender or process.is_dead:
                continue
            for _ in range(times):
                at = self._loop.ms + self._database.way_ms()
                self._loop.call_at_ms(at, changes.tell, told, process=process)


class SimulatedEngine:
    """The engine of one server over the shared database: what `postroom.stores.engine.Engine` promises."""

    release = "simulated"
    checks_pages = False
    grouping = (0, 0)
    identity = "simulated"

    def __init__(self, database: Database, process: Process, network: Network) -> None:
        self.clock = ProcessClock(database.loop, process)
        self._database, self._process, self._network = database, process, network
        self.slow_until = 0
        """Until when an answer of the database is on its way that takes long, or the server is cut off."""
        self.cut_until = 0
        """Until when nothing that the server sends arrives."""
        self._behind: dict[str, int] = {}

    async def read(self, look: Callable[[SqliteTransaction], Any]) -> Any:
        """Run a read; it takes one way there and one way back."""
        database = self._database
        loop, future = database.loop, database.loop.create_future()
        database.looks += 1
        if (call := CALL.get()) is not None:
            call.step(loop, self._process)
        fault = next(iter(database.faults_now(-database.looks)), None)

        def arrive() -> None:
            if self._process.is_dead:
                self._process.left_behind.append(future)
                return
            try:
                self._refuse_cut_off()
                value, error = self._looked(look, fault), None
            except BaseException as raised:
                value, error = None, raised
            loop.call_at_ms(
                loop.ms + database.way_ms(), _reply, future, value, error, None, process=self._process
            )

        loop.call_at_ms(loop.ms + database.way_ms(), arrive, process=loop.outside)
        return await future

    async def write(
        self,
        change: Callable[[SqliteTransaction], Any],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> Any:
        """Run a change. It is also made if its caller is cancelled during it, as on a thread."""
        database, process = self._database, self._process
        loop, future = database.loop, database.loop.create_future()
        database.sent += 1
        name = name_of(change).rpartition(".")[2]
        database.sent_by_name[name] += 1
        faults = database.faults_now(database.sent) + database.faults_now(database.sent_by_name[name], name)
        call = CALL.get()
        if call is not None:
            call.step(loop, process)
        at = loop.ms + database.way_ms() + (call.slow_ms if call is not None else 0)
        for fault in faults:
            if fault.kind == "slow there":
                at += self._happens(fault, change).ms
            elif fault.kind == "cut off":
                self.cut_until = max(self.cut_until, loop.ms + self._happens(fault, change).ms)
                self.slow_until = max(self.slow_until, self.cut_until)
            elif fault.kind in ("killed while sent", "frozen while sent"):
                database.on_fault(process, self._happens(fault, change))
                if fault.late and process.is_dead:  # its bytes were on their way
                    at += fault.ms
                elif fault.late:  # the bytes leave when it goes on
                    at = process.frozen_until + 1
        if key:
            at = self._behind[key] = max(at, self._behind.get(key, 0))
        if at > loop.ms + 100:
            self.slow_until = max(self.slow_until, at)

        def arrive() -> None:
            try:
                value, error = self._changed(change, faults), None
            except BaseException as raised:
                value, error = None, raised
            back = loop.ms + database.way_ms()
            for fault in faults:
                if fault.kind == "slow back":
                    back += self._happens(fault, change).ms
                    self.slow_until = max(self.slow_until, back)
                elif fault.kind.endswith(" behind") and not process.is_dead:
                    database.on_fault(process, self._happens(fault, change))
            if call is not None:
                call.step(loop, process)
            loop.call_at_ms(back, _reply, future, value, error, committed, process=process)

        loop.call_at_ms(at, arrive, process=loop.outside)
        return await future

    async def settle(self) -> None:
        """Do nothing: no index lags."""

    def share(self, topics: Iterable[str]) -> None:
        """Notify the other servers of these topics."""
        self._network.share(self._process, topics)

    def close(self) -> None:
        """Do nothing: the world closes the database."""

    def _refuse_cut_off(self) -> None:
        if self._database.loop.ms < self.cut_until and not self._database.is_calm:
            raise StoreUnavailable("the server is cut off from the database")

    def _looked(self, look: Callable[[SqliteTransaction], Any], fault: Fault | None) -> Any:
        if fault is not None:
            self._database.happened[fault.kind] += 1
            raise StoreUnavailable("the way to the database is broken")
        return self._database.read(look)

    def _changed(self, change: Callable[[SqliteTransaction], Any], faults: list[Fault]) -> Any:
        database, times, is_lost, is_undone = self._database, 1, False, False
        self._refuse_cut_off()
        for fault in faults:
            if fault.kind == "refused":
                self._happens(fault, change)
                raise StoreUnavailable("the way to the database is broken")
            if fault.kind == "change lost":
                is_undone = True
            if fault.kind == "run twice":
                self._happens(fault, change)
                times = 2
            is_lost |= fault.kind in ("reply lost", "change lost")
        try:
            done = database.write(self._process, change, times=times, is_undone=is_undone)
        finally:
            if database.note is not None:
                database.note(f"{self._process.name} change {database.sent}: {name_of(change)}")
        for fault in faults:
            if fault.kind in ("reply lost", "change lost"):
                self._happens(fault, change)
        if is_lost:
            raise CommitUnknown("the connection broke before the answer")
        return done

    def _happens(self, fault: Fault, change: Callable[..., Any]) -> Fault:
        self._database.happened[fault.kind] += 1
        if self._database.note is not None:
            self._database.note(f"{self._process.name} FAULT {fault.kind} at {name_of(change)}")
        return fault


def _reply(
    future: "asyncio.Future[Any]",
    value: Any,
    error: BaseException | None,
    committed: Callable[[], None] | None,
) -> None:
    if error is None and committed is not None:
        committed()
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def name_of(run: Callable[..., Any]) -> str:
    """Return the name of the change that the store wraps."""
    code, cells = getattr(run, "__code__", None), getattr(run, "__closure__", None) or ()
    if code is not None and "change" in code.co_freevars:
        run = cells[code.co_freevars.index("change")].cell_contents
    run = getattr(run, "func", run)
    return str(getattr(run, "__qualname__", run)).replace(".<locals>", "")
