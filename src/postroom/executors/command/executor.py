"""The executor of programs that are told everything at their start: what they put out is the answer.

Here are the words of one start, its talk, and what the program's end means for the run: an answer, a failure
that may pass, or one for good.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import StreamReset
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import CommandFailed, CommandSaidNothing
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.run_access import AccessOf
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import PROMPT, PROMPT_FILE, PromptWay, Recipe, Runner, Runners
from postroom.contracts.runs import TerminationReason
from postroom.executors.activations import prompt_of
from postroom.executors.command.recipes import RECIPES, SESSION, Reading, refuses_session
from postroom.executors.command.steering import SteeredTalk, steered_words
from postroom.executors.processes.active import StopReason
from postroom.executors.processes.advice import LastWords
from postroom.executors.processes.child_environment import secrets_in
from postroom.executors.processes.connecting import opencode_plugin
from postroom.executors.processes.executor import ProgramExecutor, from_the_start, no_server, nothing_more
from postroom.executors.processes.failing import Failing
from postroom.executors.processes.keeping import Keeper
from postroom.executors.processes.limits import ERRORS_KEPT, CommandLimits
from postroom.executors.processes.output import Stream, Tail
from postroom.executors.processes.process_runner import ProcessRunner, Program, Work
from postroom.executors.processes.records import write_private
from postroom.executors.processes.sessions import Sessions
from postroom.executors.processes.starting import Launch
from postroom.executors.processes.supervision import ProgramEnd, Talk
from postroom.log import get_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A program that has ended, with what it said; `secrets` are not to be shown."""

    program: str
    runner: Runner
    ended: ProgramEnd
    reading: Reading
    errors: Tail
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_cut_off(self) -> bool:
        """Whether the program ended before its work was over."""
        said = self.reading.said
        return said.must_end and not said.is_ended

    @property
    def session(self) -> str | None:
        """The client's session, as it told it."""
        return self.reading.said.session

    @property
    def refuses_session(self) -> bool:
        """Whether the program failed because it does not know the session."""
        if self.ended.stopped is not None or self.ended.left or (self.ended.code or 0) < 0:
            return False
        failed = self.ended.code != 0 or self.reading.said.error is not None
        words = f"{self.errors.plain()}\n{self.reading.raw.plain()}"
        return failed and refuses_session(RECIPES[self.runner.recipe], self.reading, words)

    def result(self, activation: RunActivation) -> AgentRunResult:
        """Return the run's result.

        Raises:
            CommandError: the program failed; its class and `retryable` say how.
        """
        run_id, said, ended = activation.run_id or "", self.reading.said, self.ended
        failing = Failing(
            program=self.program,
            runner=self.runner,
            taken=self.reading.taken + self.errors.total,
            secrets=self.secrets,
        )
        if ended.left:
            raise failing.left(ended)
        if ended.stopped is StopReason.CANCELLED:
            return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled(), usage=said.usage)
        words = failing.words(said.error, self.errors, self.reading.raw)
        if ended.stopped is not None:
            raise failing.stopped(ended.stopped, words)
        if ended.code != 0:
            raise failing.exited(ended.code, words)
        if said.error is not None:
            raise failing.by(CommandFailed, f"reported that it failed{words}")
        if self.reading.kinds_not_known() is not None:
            raise failing.by(CommandFailed, f"wrote an unknown format{words}")
        if self.is_cut_off:
            raise failing.by(CommandFailed, f"ended before its turn was complete{words}")
        answer = self.reading.answer()
        if not answer.strip():
            raise failing.by(CommandSaidNothing, f"ended successfully without an answer{words}")
        return AgentRunResult(run_id=run_id, response=answer, steps=1, usage=said.usage)

    def last_words(self) -> LastWords:
        """Return what it said, and the types of its lines where none was known."""
        rules, said = RECIPES[self.runner.recipe], self.reading.said
        words = "\n".join((said.error or "", self.errors.plain(), self.reading.raw.plain()))
        expected = rules.expects_steered if self.runner.is_steered else rules.expects
        return LastWords(words=words, expected=expected, found=self.reading.kinds_not_known() or "")


def words_of(
    runner: Runner, *, prompt: str, prompt_file: Path, session: str | None, connecting: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the command with the words to connect, to resume and the prompt where they belong.

    A prompt that begins with a dash is put behind a blank, so that no program takes it for an option: what an
    agent is told must not decide how it is run. So is one word where the program takes that for a command.
    """
    rules = RECIPES[runner.recipe]
    words = [word.replace(PROMPT_FILE, str(prompt_file)) for word in runner.argv or rules.command]
    words += connecting
    if session is not None:
        words += [session if word == SESSION else word for word in rules.resume]
    if runner.prompt is PromptWay.ARGUMENT and PROMPT not in words:
        words += rules.with_argument
    elif runner.prompt is PromptWay.STDIN and not _end_with(words, rules.with_stdin):
        words += rules.with_stdin
    is_command = rules.one_word_is_command and len(prompt.split()) == 1
    shown = f" {prompt}" if prompt.startswith("-") or is_command else prompt
    return tuple(shown if word == PROMPT else word for word in words)


def _end_with(words: Sequence[str], last: Sequence[str]) -> bool:
    return not last or tuple(words[-len(last) :]) == tuple(last)


def told_to(way: PromptWay, prompt: bytes, prompt_file: Path, opened: ExitStack) -> "IO[bytes] | int":
    """Return what the program reads; by stdin a file without a name, so that nobody waits for a reader."""
    if way is PromptWay.STDIN:
        held = opened.enter_context(tempfile.TemporaryFile(dir=prompt_file.parent))  # noqa: SIM115 - the stack closes it
        held.write(prompt)
        held.seek(0)
        return held
    if way is PromptWay.FILE:
        write_private(prompt_file, prompt)
    return subprocess.DEVNULL


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
        recipe = work.runner.recipe
        self._program = Program(process_runner, work, RECIPES[recipe].variables)
        self._prompt = prompt_of(work.activation)

    async def run(self, session: str | None) -> Outcome | None:
        """Run the program to its end; None when it was asked to end before it was started.

        Not to be cancelled: who wants it to end asks it by the active run's `stop`.

        Raises:
            CommandNotStarted, PromptTooLong, CommandBusy: it was not started; nothing of it is left.
        """
        runner, limits = self._work.runner, self._with.limits
        connecting = (await asyncio.to_thread(self._program.connect)).words
        reading = Reading(RECIPES[runner.recipe], most=runner.max_output_bytes)
        stream = Stream(
            self._work.sink,
            self._with.clock,
            per_second=limits.stream_per_second,
            in_all=runner.max_output_bytes,
        )
        launch, errors = self._launch(session, connecting), Tail(ERRORS_KEPT)
        talk: Talk = Heard(reading, stream)
        async with AsyncExitStack() as opened:
            if runner.is_steered:
                talk = steered = SteeredTalk(
                    self._work, reading, stream, prompt=self._prompt, session=session
                )
                if runner.recipe is Recipe.OPENCODE:
                    platform = self._with.machine.platform
                    socket = await opened.enter_async_context(steered.plugin_socket(platform=platform))
                    self._program.environment.update(opencode_plugin(launch.environment, socket))
            ended = await self._program.run(launch, talk, errors)
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

    def _launch(self, session: str | None, connecting: Sequence[str]) -> Launch:
        prompt_file = self._with.records.prompt_file(self._work.active.instance)
        runner = self._work.runner
        words = words_of(
            runner, prompt=self._prompt, prompt_file=prompt_file, session=session, connecting=connecting
        )
        return Launch(
            words=steered_words(runner, words, connecting) if runner.is_steered else words,
            cwd=runner.cwd,
            environment=self._program.environment,
            reads=partial(self._reads, prompt_file),
        )

    def _reads(self, prompt_file: Path, opened: ExitStack) -> "IO[bytes] | int":
        runner = self._work.runner
        if runner.is_steered and runner.recipe is not Recipe.OPENCODE:
            return subprocess.PIPE
        return told_to(runner.prompt, self._prompt.encode(), prompt_file, opened)


_LOG = get_logger(__name__)
KEY: Final = "postroom.executors.command"


class CommandExecutor(ProgramExecutor):
    """Runs each agent by the program that its runner names.

    `folder` is for its private files and is made for its owner alone. `server_name` names this server among
    all that ever run on the machine: what carries the name and is not known here is ended as left behind, so
    that no two servers that run at once may share it. `environment` is the server's, of which a program is
    given what its runner says; `environment_of` tells more of a run, as its project, and `access_of` opens
    the server to it.
    """

    kind = RunnerKind.COMMAND

    def __init__(  # noqa: PLR0913 - what it works with, by name
        self,
        runners: Runners,
        *,
        folder: Path,
        server_name: str,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        timer: Timer | None = None,
        limits: CommandLimits | None = None,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
        access_of: AccessOf = no_server,
        keeper: Keeper | None = None,
    ) -> None:
        """Keep what it works with; nothing is started or written.

        Raises:
            ConfigError: the server has no name, or the folder is not absolute.
        """
        process_runner = ProcessRunner.at(
            folder,
            server_name=server_name,
            server=environment,
            clock=clock,
            timer=timer,
            limits=limits,
            keeper=keeper,
        )
        super().__init__(
            runners,
            process_runner,
            name="command executor",
            environment_of=environment_of,
            access_of=access_of,
        )

    async def _attempted(self, work: Work) -> Outcome | None:
        """Run the program; once more without its session when it does not know that any more."""
        session = await _sessions(work).former() if work.runner.resume else None
        if session is None:
            return await self._executed_anew(work)
        outcome = await Execution(self.process_runner, work).run(session)
        if outcome is not None and outcome.refuses_session:
            _LOG.info("command.session_refused", run_id=work.active.identity.run_id)
            await work.sink.emit(
                StreamReset(reason="the client does not know its session; it starts a new session")
            )
            work.active.stop.open()
            return await self._executed_anew(work)
        return outcome

    async def _executed_anew(self, work: Work) -> Outcome | None:
        """Run the program without a session, and ask it all that its run was asked."""
        asked = await from_the_start(work.activation, work.control)
        return await Execution(self.process_runner, replace(work, activation=asked)).run(None)

    async def _keep(self, work: Work, finished: Outcome) -> None:
        if work.runner.resume and finished.ended.stopped is None:
            await _sessions(work).keep(finished.session)

    def words_of(self, runner: Runner) -> Sequence[str]:
        """Return the runner's command, or its recipe's."""
        return runner.argv or RECIPES[runner.recipe].command


def _sessions(work: Work) -> Sessions:
    return Sessions(
        control=work.control,
        thread_id=work.active.identity.thread_id,
        agent_id=work.active.identity.agent_id,
        key=KEY,
        per=work.runner.session_per,
        made_with=(work.runner.recipe.value, work.runner.cwd),
    )
