"""One start of a program for a run, from its words to what its end means."""

import asyncio
import subprocess
from functools import partial

from postroom.executors.activations import prompt_of
from postroom.executors.command.launching import told_to, words_of
from postroom.executors.command.outcome import Outcome
from postroom.executors.command.recipes import RECIPES, Reading
from postroom.executors.processes.child_environment import secrets_in
from postroom.executors.processes.limits import ERRORS_KEPT
from postroom.executors.processes.output import Stream, Tail
from postroom.executors.processes.process_runner import ProcessRunner, Program, Work
from postroom.executors.processes.starting import Launch


class Heard:
    """The talk with a program that is told everything at its start: its output is read."""

    def __init__(self, reading: Reading, stream: Stream) -> None:
        self._reading = reading
        self._stream = stream

    @property
    def taken(self) -> int:
        """How many bytes have come in all."""
        return self._reading.taken

    async def begin(self, process: "subprocess.Popen[bytes]") -> None:
        """Say nothing."""

    async def take(self, chunk: bytes) -> None:
        """Read a piece of output and stream what is in it."""
        await self._stream.pass_on(self._reading.take(chunk))

    async def part(self, gone: asyncio.Event) -> None:
        """Say nothing."""

    async def end(self) -> None:
        """Stream the rest."""
        await self._stream.pass_on(self._reading.end())


class Execution:
    """Starts a run's program, once or, when it does not know its session any more, twice."""

    def __init__(self, process_runner: ProcessRunner, work: Work) -> None:
        self._with = process_runner
        self._work = work
        self._program = Program(process_runner, work)
        self._prompt = prompt_of(work.activation)

    async def run(self, session: str | None) -> Outcome | None:
        """Run the program to its end; None when it was asked to end before it was started.

        Not to be cancelled: who wants it to end asks it by the active run's `stop`.

        Raises:
            CommandNotStarted, PromptTooLong, CommandBusy: it was not started; nothing of it is left.
        """
        runner, limits = self._work.runner, self._with.limits
        reading = Reading(RECIPES[runner.recipe], most=runner.max_output_bytes)
        stream = Stream(
            self._work.sink,
            self._with.clock,
            per_second=limits.stream_per_second,
            in_all=runner.max_output_bytes,
        )
        launch, errors = self._launch(session), Tail(ERRORS_KEPT)
        ended = await self._program.run(launch, Heard(reading, stream), errors)
        if ended is None:
            return None
        return Outcome(
            program=launch.words[0],
            runner=runner,
            ended=ended,
            reading=reading,
            errors=errors,
            secrets=secrets_in(self._program.environment),
        )

    def _launch(self, session: str | None) -> Launch:
        prompt_file = self._with.records.prompt_file(self._work.active.instance)
        runner = self._work.runner
        return Launch(
            words=words_of(runner, prompt=self._prompt, prompt_file=prompt_file, session=session),
            cwd=runner.cwd,
            environment=self._program.environment,
            reads=partial(told_to, runner.prompt, self._prompt.encode(), prompt_file),
        )
