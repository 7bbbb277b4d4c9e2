"""Executes programs that get their whole input at the start and print an answer.

The executor builds the command, and parses the output. The end of the program becomes an answer, a temporary
failure or a permanent failure.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import StreamReset
from postroom.contracts.client_programs import ClientProgram
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import CommandFailed
from postroom.contracts.executor import AccessOf, AgentRunResult
from postroom.contracts.runners import PROMPT, PROMPT_FILE, PromptWay, Runner, RunnerKind, Runners
from postroom.contracts.runs import TerminationReason
from postroom.executors.clients import CLIENTS
from postroom.executors.clients.client import SESSION
from postroom.executors.command.reading import Reading, refuses_session
from postroom.executors.command.steering import SteeredTalk
from postroom.executors.processes.active import StopReason
from postroom.executors.processes.executor import (
    Failing,
    LastWords,
    ProgramExecutor,
    Sessions,
    from_the_start,
    no_server,
    nothing_more,
)
from postroom.executors.processes.output import ERRORS_KEPT, CommandLimits, Stream, Tail
from postroom.executors.processes.process_runner import Launch, ProcessRunner, Program, ProgramEnd, Talk, Work
from postroom.executors.requests import build_prompt
from postroom.log import get_logger

_LOG = get_logger(__name__)
_PROMPT: Final = "prompt"
"""The name of the file with the prompt, in the run's private folder, if the prompt is passed in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an ended program and the program's output."""

    program: str
    runner: Runner
    ended: ProgramEnd
    reading: Reading
    errors: Tail
    environment: Mapping[str, str] = field(repr=False)

    @property
    def failing(self) -> Failing:
        """The errors for a program that failed."""
        return Failing(
            program=self.program,
            runner=self.runner,
            taken=self.ended.taken,
            environment=self.environment,
            said=self.reading.said.error,
            tails=(self.errors, self.reading.raw),
        )

    @property
    def refuses_session(self) -> bool:
        """Whether the program failed because it did not know the session to resume."""
        if self.ended.stopped is not None or self.ended.left or (self.ended.code or 0) < 0:
            return False
        failed = self.ended.code != 0 or self.reading.said.error is not None
        words = f"{self.errors.plain()}\n{self.reading.raw.plain()}"
        return failed and refuses_session(CLIENTS[self.runner.recipe], self.reading, words)

    def result(self, activation: RunActivation) -> AgentRunResult:
        """Return the result of the run.

        Raises:
            CommandError: The program failed; the error's class and `retryable` give details.
        """
        run_id, output, ended = activation.run_id or "", self.reading.said, self.ended
        if ended.left:
            raise self.failing.left(ended)
        if ended.stopped is StopReason.CANCELLED:
            return AgentRunResult(
                run_id=run_id, termination=TerminationReason.cancelled(), usage=output.usage
            )
        if ended.stopped is not None:
            raise self.failing.stopped(ended.stopped)
        if ended.code != 0:
            raise self.failing.exited(ended.code)
        if output.error is not None:
            raise self.failing.by(CommandFailed, f"reported that it failed{self.failing.words}")
        if self.reading.list_unknown_types() is not None:
            raise self.failing.by(CommandFailed, f"wrote an unknown format{self.failing.words}")
        if output.must_end and not output.is_ended:
            raise self.failing.by(CommandFailed, f"ended before its turn was complete{self.failing.words}")
        return AgentRunResult(run_id=run_id, response=self.reading.answer(), steps=1, usage=output.usage)

    def last_words(self) -> LastWords:
        """Return the last output of the program, which the advice on a failure needs."""
        client, output = CLIENTS[self.runner.recipe], self.reading.said
        words = "\n".join((output.error or "", self.errors.plain(), self.reading.raw.plain()))
        expected = client.expects_steered if self.runner.is_steered else client.expects
        return LastWords(words=words, expected=expected, found=self.reading.list_unknown_types() or "")


def build_command(
    runner: Runner, *, prompt: str, prompt_file: Path, session: str | None, connecting: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the command and arguments that start a run's program.

    A leading space is added to a prompt that the program would read as an option or as a command.
    """
    client = CLIENTS[runner.recipe]
    words = [word.replace(PROMPT_FILE, str(prompt_file)) for word in runner.argv or client.command]
    words += connecting
    if session is not None:
        words += [session if word == SESSION else word for word in client.resume]
    if runner.prompt is PromptWay.ARGUMENT and PROMPT not in words:
        words += client.with_argument
    elif runner.prompt is PromptWay.STDIN and tuple(words[-len(client.with_stdin) :]) != client.with_stdin:
        words += client.with_stdin  # the prompt may be empty
    is_command = client.one_word_is_command and len(prompt.split()) == 1
    shown = f" {prompt}" if prompt.startswith("-") or is_command else prompt
    return tuple(shown if word == PROMPT else word for word in words)


class Heard:
    """Reads the output of a program that receives the whole prompt at the start."""

    def __init__(self, reading: Reading, stream: Stream) -> None:
        self._reading = reading
        self._stream = stream

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Do nothing, because the program has received the whole prompt."""

    async def take(self, chunk: bytes) -> None:
        """Read a piece of output, and stream the text in the piece."""
        await self._stream.pass_on(self._reading.take(chunk))

    async def part(self, gone: asyncio.Event) -> None:
        """Do nothing, because the program cannot be asked to finish."""

    async def end(self) -> None:
        """Stream the rest of the program's output."""
        await self._stream.pass_on(self._reading.end())


KEY: Final = "postroom.executors.command"


class CommandExecutor(ProgramExecutor):
    """Executes runs by starting the command of the agent's runner.

    `folder` is the folder for private files; each server needs a separate folder. `environment` is the
    server's environment. `environment_of` returns additional variables for a run. `access_of` gives a run
    access to the server.
    """

    kind = RunnerKind.COMMAND

    def __init__(  # noqa: PLR0913 - its dependencies, by name
        self,
        runners: Runners,
        *,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        timer: Timer | None = None,
        limits: CommandLimits | None = None,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
        access_of: AccessOf = no_server,
    ) -> None:
        super().__init__(
            runners,
            ProcessRunner(folder, environment=environment, clock=clock, timer=timer, limits=limits),
            name="command executor",
            environment_of=environment_of,
            access_of=access_of,
        )

    async def _attempt(self, work: Work) -> Outcome | None:
        session = await _sessions(work).former() if work.runner.resume else None
        if session is not None:
            outcome = await self._ran(work, session)
            if outcome is None or not outcome.refuses_session:
                return outcome
            _LOG.info("command.session_refused", run_id=work.active.identity.run_id)
            await work.sink.emit(
                StreamReset(reason="the client does not know its session; it starts a new session")
            )
            work.active.stop.open()
        activation = await from_the_start(work.activation, work.control)
        return await self._ran(replace(work, activation=activation), None)

    async def _ran(self, work: Work, session: str | None) -> Outcome | None:
        runner, process_runner, client = work.runner, self.process_runner, CLIENTS[work.runner.recipe]
        program = Program(process_runner, work, client.variables)
        connecting = (await program.connect(client)).words
        prompt = build_prompt(work.activation)
        words = build_command(
            runner,
            prompt=prompt,
            prompt_file=work.folder.path / _PROMPT,
            session=session,
            connecting=connecting,
        )
        reading = Reading(client, most=runner.max_output_bytes)
        stream = Stream(
            work.sink,
            process_runner.clock,
            per_second=process_runner.limits.stream_per_second,
            in_all=runner.max_output_bytes,
        )
        errors = Tail(ERRORS_KEPT)
        talk: Talk = Heard(reading, stream)
        stdin: bytes | None = prompt.encode() if runner.prompt is PromptWay.STDIN else b""
        async with AsyncExitStack() as opened:
            if client.steering is not None and runner.is_steered:
                if client.steering.command:
                    words = (*(runner.argv or client.steering.command), *connecting)
                elif not runner.argv:
                    words = (*words, *client.steering.more_words)
                talk = steered = SteeredTalk(
                    client.steering, work, reading, stream, prompt=prompt, session=session
                )
                if client.steering_plugin is None:
                    stdin = None
                else:
                    socket = await opened.enter_async_context(steered.plugin_socket())
                    program.environment.update(client.steering_plugin(program.environment, socket))
            launch = Launch(
                words=words,
                cwd=runner.cwd,
                environment=program.environment,
                stdin=stdin,
                files={_PROMPT: prompt.encode()} if runner.prompt is PromptWay.FILE else {},
            )
            ended = await program.run(launch, talk, errors)
        if ended is None:
            return None
        return Outcome(
            program=words[0],
            runner=runner,
            ended=ended,
            reading=reading,
            errors=errors,
            environment=program.environment,
        )

    async def _keep(self, work: Work, finished: Outcome) -> None:
        if work.runner.resume and finished.ended.stopped is None:
            await _sessions(work).keep(finished.reading.said.session)

    def build_command(self, runner: Runner) -> Sequence[str]:
        """Return the command of a runner, or the default command of the runner's recipe."""
        return runner.argv or CLIENTS[runner.recipe].command

    def find_client(self, runner: Runner) -> ClientProgram | None:
        """Return the client program for the advice on failures, or None if the client is unknown."""
        return CLIENTS[runner.recipe].program


def _sessions(work: Work) -> Sessions:
    return Sessions(
        control=work.control,
        thread_id=work.active.identity.thread_id,
        agent_id=work.active.identity.agent_id,
        key=KEY,
        per=work.runner.session_per,
        made_with=(work.runner.recipe.value, work.runner.cwd),
    )
