"""Starts programs for runs, each with a note on disk, and watches them."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from postroom.concurrency import SystemTimer
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock, SystemClock, Timer
from postroom.contracts.errors import ConfigError, PostroomError
from postroom.contracts.files import ChatFile
from postroom.contracts.run_access import RunAccess
from postroom.contracts.runners import Runner
from postroom.executors.processes.active import ActiveRun, ActiveRuns
from postroom.executors.processes.child_environment import INSTANCE, SERVER, child_environment, marks
from postroom.executors.processes.connecting import CONNECTING, NO_CONNECTION, Connection
from postroom.executors.processes.keeping import Keeper
from postroom.executors.processes.limits import CommandLimits
from postroom.executors.processes.machine import Machine
from postroom.executors.processes.orphans import Orphans
from postroom.executors.processes.output import Tail
from postroom.executors.processes.records import Records
from postroom.executors.processes.starting import Launch, notes_kept, started
from postroom.executors.processes.supervision import ProgramEnd, Supervision, Talk, Watch
from postroom.log import get_logger
from postroom.ports import RunControl

_LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRunner:
    """Starts and watches the programs of one server; shared by its executors."""

    clock: Clock
    timer: Timer
    machine: Machine
    records: Records
    limits: CommandLimits
    server_name: str
    server: Mapping[str, str] = field(repr=False)
    keeper: Keeper | None = None
    """Ends programs where this process cannot, because it is gone or stands still; None: nobody does."""
    running: list[ActiveRuns] = field(default_factory=list)
    """The runs of each executor of this server: their programs are no orphans."""

    @classmethod
    def at(  # noqa: PLR0913 - every port by name
        cls,
        folder: Path,
        *,
        server_name: str,
        server: Mapping[str, str],
        clock: Clock | None = None,
        timer: Timer | None = None,
        limits: CommandLimits | None = None,
        keeper: Keeper | None = None,
        platform: str = sys.platform,
    ) -> "ProcessRunner":
        """Return the runner of a server; nothing is started or written.

        Raises:
            ConfigError: the server has no name, or the folder is not absolute.
        """
        if not server_name.strip() or "\0" in server_name or not folder.is_absolute():
            raise ConfigError(
                "programs as agents need a server's name and an absolute folder", value=server_name
            )
        return cls(
            clock=clock or SystemClock(),
            timer=timer or SystemTimer(),
            machine=Machine(platform),
            records=Records(folder),
            limits=limits or CommandLimits(),
            server_name=server_name,
            server=dict(server),
            keeper=keeper,
        )

    def instances(self) -> frozenset[str]:
        """Return the markers of all runs that execute here."""
        return frozenset().union(*(runs.instances() for runs in self.running))

    def orphans(self) -> Orphans:
        """Return the finder of programs that other servers left behind."""
        return Orphans(self.records, self.machine, self.server_name, limits=self.limits, timer=self.timer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run for a program to execute; `told` goes into its environment, `access` is to our server."""

    activation: RunActivation
    control: RunControl
    active: ActiveRun
    runner: Runner
    sink: EventSink
    told: Mapping[str, str]
    access: RunAccess | None = None
    received: tuple[tuple[ChatFile, Path], ...] = ()
    """The files of its messages, and where they are for the program."""


class Program:
    """Starts a run's program, once or again, and keeps a note beside it while any process of it is left."""

    def __init__(
        self, process_runner: ProcessRunner, work: Work, variables: Mapping[str, str] | None = None
    ) -> None:
        """Keep what it works with; the runner's own variables win over `variables`."""
        self._with = process_runner
        self._work = work
        self._marks = marks(
            work.activation, server_name=process_runner.server_name, instance=work.active.instance
        )
        access = {} if work.access is None else work.access.variables()
        told = {**access, **work.told}
        runner = replace(work.runner, env={**(variables or {}), **work.runner.env})
        self.environment = child_environment(runner, process_runner.server, told, self._marks)
        self._connection = NO_CONNECTION

    def connect(self) -> Connection:
        """Have the client told of our server for this run; return what must stand in its command too.

        Blocks: it may look at the client's settings.
        """
        access, connect = self._work.access, CONNECTING.get(self._work.runner.recipe)
        if access is not None and connect is not None:
            folder = self._with.records.settings_folder(self._work.active.instance)
            self._connection = connect(access, self.environment, folder)
            self.environment.update(self._connection.variables)
        return self._connection

    async def run(self, launch: Launch, talk: Talk, errors: Tail) -> ProgramEnd | None:
        """Run the program to its end; None when it was asked to end before it was started.

        Not to be cancelled: who wants it to end asks it by the active run's `stop`.

        Raises:
            CommandNotStarted, PromptTooLong, CommandBusy: it was not started; nothing of it is left.
        """
        active = self._work.active
        if active.stop.is_ending:
            return None
        try:
            process = await asyncio.to_thread(self._started, launch)
        except PostroomError:
            await self._forget()
            raise
        supervision = Supervision(process, self._watch(), active.stop, talk=talk, errors=errors)
        ended = await supervision.end()
        if ended.left:
            pids = [one.pid for one in ended.left]
            _LOG.error("command.processes_left", run_id=active.identity.run_id, pids=pids)
        else:
            await self._forget()
        return ended

    async def _forget(self) -> None:
        """Remove the note of the program: none of its processes is left."""
        await asyncio.to_thread(self._with.records.remove, self._work.active.instance)
        if self._with.keeper is not None:
            self._with.keeper.end(self._work.active.instance)

    def _started(self, launch: Launch) -> "subprocess.Popen[bytes]":
        identity, records = self._work.active.identity, self._with.records
        instance, connection = self._work.active.instance, self._connection
        with notes_kept():
            record = records.begin(
                instance=instance,
                server_name=self._with.server_name,
                run_id=identity.run_id,
                dispatch_id=identity.dispatch_id or "",
            )
            if connection.files:
                records.write_settings(instance, connection.files, connection.links)
        if self._with.keeper is not None:
            self._with.keeper.begin(instance)
        process = started(launch, platform=self._with.machine.platform)
        try:
            records.has_started(record, process.pid)
        except OSError as error:  # it runs: its marker alone tells it then
            _LOG.warning("command.pid_not_noted", run_id=identity.run_id, reason=str(error))
        return process

    def _watch(self) -> Watch:
        return Watch(
            runner=self._work.runner,
            limits=self._with.limits,
            clock=self._with.clock,
            timer=self._with.timer,
            machine=self._with.machine,
            marks=tuple((name, self._marks[name]) for name in (SERVER, INSTANCE)),
        )
