"""One start of a program for a run, from its words to what its end means."""

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import CommandBusy, CommandNotStarted, PostroomError
from postroom.contracts.runners import Runner
from postroom.executors.activations import prompt_of
from postroom.executors.command.active import ActiveRun
from postroom.executors.command.launching import NO_ROOM, Launch, started, words_of
from postroom.executors.command.limits import ERRORS_KEPT, CommandLimits
from postroom.executors.command.outcome import Outcome
from postroom.executors.command.output import Stream, Tail
from postroom.executors.command.processes import Machine
from postroom.executors.command.recipes import RECIPES, Reading
from postroom.executors.command.records import Records
from postroom.executors.command.supervision import Supervision, Watch
from postroom.executors.command.surroundings import HOUSE, INSTANCE, environment, marks, secrets_in

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What every program is started and watched with."""

    clock: Clock
    timer: Timer
    machine: Machine
    records: Records
    limits: CommandLimits
    house: str
    server: Mapping[str, str] = field(repr=False)


class Execution:
    """Starts a run's program, once or, when it does not know its session any more, twice."""

    def __init__(
        self,
        workshop: Workshop,
        active: ActiveRun,
        activation: RunActivation,
        runner: Runner,
        sink: EventSink,
        told: Mapping[str, str],
    ) -> None:
        self._with = workshop
        self._active = active
        self._activation = activation
        self._runner = runner
        self._sink = sink
        self._marks = marks(activation, house=workshop.house, instance=active.instance)
        self._environment = environment(runner, workshop.server, told, self._marks)
        self._prompt = prompt_of(activation)

    async def run(self, session: str | None) -> Outcome | None:
        """Run the program to its end; None when it was asked to end before it was started.

        Not to be cancelled: who wants it to end asks it by `active.stop`.

        Raises:
            CommandNotStarted, PromptTooLong, CommandBusy: it was not started; nothing of it is left.
        """
        stop = self._active.stop
        if stop.is_ending:
            return None
        launch = self._launch(session)
        try:
            process, since = await asyncio.to_thread(self._started, launch)
        except PostroomError:
            await self._forget()
            raise
        outcome = await self._watched(launch, process, since)
        if not outcome.ended.left:
            await self._forget()
        return outcome

    async def _forget(self) -> None:
        """Remove the note of the program: none of its processes is left."""
        await asyncio.to_thread(self._with.records.remove, self._active.instance)

    def _launch(self, session: str | None) -> Launch:
        prompt_file = self._with.records.prompt_file(self._active.instance)
        runner = self._runner
        words = words_of(runner, prompt=self._prompt, prompt_file=prompt_file, session=session)
        return Launch(
            words=words,
            cwd=runner.cwd,
            environment=self._environment,
            prompt=self._prompt.encode(),
            way=runner.prompt,
            prompt_file=prompt_file,
        )

    def _started(self, launch: Launch) -> "tuple[subprocess.Popen[bytes], int]":
        identity, records = self._active.identity, self._with.records
        with notes_kept():
            record = records.begin(
                instance=self._active.instance,
                house=self._with.house,
                run_id=identity.run_id,
                dispatch_id=identity.dispatch_id or "",
            )
        process = started(launch)
        try:
            return process, records.has_started(record, process.pid)
        except OSError as error:  # it runs: its marker alone tells it then
            _LOG.warning("command.pid_not_noted", run_id=identity.run_id, reason=str(error))
            return process, 0

    async def _watched(self, launch: Launch, process: "subprocess.Popen[bytes]", since: int) -> Outcome:
        workshop, runner = self._with, self._runner
        limits, secrets = workshop.limits, secrets_in(self._environment)
        reading = Reading(RECIPES[runner.recipe], most=runner.max_output_bytes)
        errors = Tail(ERRORS_KEPT)
        watch = Watch(
            runner=runner,
            limits=limits,
            clock=workshop.clock,
            timer=workshop.timer,
            machine=workshop.machine,
            marks=tuple((name, self._marks[name]) for name in (HOUSE, INSTANCE)),
            since=since,
        )
        stream = Stream(
            self._sink,
            workshop.clock,
            per_second=limits.stream_per_second,
            in_all=runner.max_output_bytes,
        )
        supervision = Supervision(
            process, watch, self._active.stop, reading=reading, errors=errors, stream=stream
        )
        ended = await supervision.end()
        if ended.left:
            pids = [one.pid for one in ended.left]
            _LOG.error("command.processes_left", run_id=self._active.identity.run_id, pids=pids)
        return Outcome(
            program=launch.words[0],
            runner=runner,
            ended=ended,
            reading=reading,
            errors=errors,
            secrets=secrets,
        )


@contextmanager
def notes_kept() -> Iterator[None]:
    """Name what keeps a note of a program from being written; without one nothing is started."""
    try:
        yield
    except OSError as error:
        what = f"the private folder for programs cannot be written: {error.strerror}"
        raise (CommandBusy if error.errno in NO_ROOM else CommandNotStarted)(
            what, remedy="give the server's user write access to it, and free space"
        ) from error
