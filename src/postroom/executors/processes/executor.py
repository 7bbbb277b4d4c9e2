"""The base class of executors that run agents as programs; no process outlives its run.

The session of a client is stored with the state of the thread, if this server still owns the run. Each agent
has a session for each mail thread or, if the runner is configured so, one session for all threads. A session
is valid only for the same program and working folder.
"""

import asyncio
import re
import signal
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final, Protocol

from postroom.concurrency import Tasks, within
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink, RunStart
from postroom.contracts.client_programs import ClientProgram
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import (
    CommandBusy,
    CommandError,
    CommandFailed,
    CommandFlooded,
    CommandKilled,
    CommandNotEnded,
    CommandNotStarted,
    CommandSaidNothing,
    CommandTimedOut,
    InvalidActivation,
    InvalidRunner,
    PostroomError,
    RunnerNotFound,
    StaleClaim,
)
from postroom.contracts.executor import (
    AccessOf,
    AgentRunResult,
    RunAccess,
    RunDispatchExecutor,
    build_identity,
)
from postroom.contracts.messages import Boundary, Json
from postroom.contracts.quoting import without_escapes
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runners import Runner, RunnerKind, Runners, SessionPer
from postroom.contracts.runs import TerminationKind, TerminationReason
from postroom.executors.processes.active import ActiveRun, ActiveRuns, StopReason
from postroom.executors.processes.asking import asked, version_in
from postroom.executors.processes.output import ERRORS_KEPT, ERRORS_SHOWN, Tail
from postroom.executors.processes.process_runner import (
    AGENT,
    ProcessRunner,
    ProgramEnd,
    Work,
    child_environment,
    find_program,
    mask_secrets,
    secrets_in,
)
from postroom.executors.requests import file_room
from postroom.log import get_logger
from postroom.ports import RunControl

_LOG = get_logger(__name__)


_MAX_TRIES: Final = 3
_MAX_LENGTH: Final = 256
_MAX_KEPT: Final = 100
"""Maximum number of sessions stored with a thread; then the session that was stored first is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The stored sessions of an agent on a thread.

    `key` identifies the executor, and `made_with` is the command that created the sessions.
    """

    control: RunControl
    thread_id: str
    agent_id: str
    key: str
    made_with: Sequence[str]
    per: SessionPer = SessionPer.THREAD

    @property
    def _name(self) -> str:
        conversation = self.control.conversation if self.per is SessionPer.THREAD else None
        return self.agent_id if conversation is None else f"{self.agent_id} {conversation}"

    async def former(self, *, of_run: str | None = None) -> str | None:
        """Return the id of the session to resume, or None for a new session.

        A run that must not see earlier messages gets a new session. If `of_run` is given, only a session of
        the run `of_run` is returned.
        """
        if self.control.hidden_runs:
            return None
        fields = self._stored_fields(await self.control.threads.load_thread_state(self.thread_id)).get(
            self._name
        )
        if not isinstance(fields, dict) or fields.get("made_with") != list(self.made_with):
            return None
        if of_run is not None and fields.get("run") != of_run:
            return None
        session = fields.get("session")
        return session if is_session(session) else None

    async def keep(self, session: str | None, *, of_run: str | None = None) -> None:
        """Store a session for the agent's next run on the thread, or for the run `of_run`.

        If the store fails, the error is only logged.

        Raises:
            StaleClaim: The worker no longer owns the run; nothing was written.
        """
        if not is_session(session):
            return
        entry: dict[str, Json] = {"made_with": list(self.made_with), "session": session}
        if of_run is not None:
            entry["run"] = of_run
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                state = await self.control.threads.load_thread_state(self.thread_id)
                sessions = self._stored_fields(state)
                if sessions.get(self._name) != entry:
                    others = [item for item in sessions.items() if item[0] != self._name]
                    newest = dict([*others, (self._name, entry)][-_MAX_KEPT:])
                    whole: dict[str, Json] = {**(state or {}), self.key: newest}
                    commit = ThreadCommit(thread_id=self.thread_id, thread_state=whole)
                    await self.control.coordinator.commit(commit)
                return
            except StaleClaim:
                raise
            except PostroomError as error:
                if not (error.retryable and tries_left):
                    reason = error.describe()
                    _LOG.warning("command.session_not_kept", thread_id=self.thread_id, reason=reason)
                    return
        return

    def _stored_fields(self, state: dict[str, Json] | None) -> dict[str, Any]:
        fields = (state or {}).get(self.key)
        return fields if isinstance(fields, dict) else {}


def is_session(session: object) -> bool:
    """Return whether a session id is safe as an argument of a command."""
    if not isinstance(session, str) or not 0 < len(session) <= _MAX_LENGTH:
        return False
    return session.isprintable() and not session.startswith("-")


_UNTRUSTED: Final = re.compile(r"trusted (directory|folder|workspace)|not trusted|untrusted", re.IGNORECASE)
_LOGGED_OUT: Final = re.compile(
    r"not logged in|/login|log(?:ged)? in|\blogin\b|api[ _-]?key|auth method|authenticat|unauthorized|\b401\b"
    r"|missing environment variable",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"(unknown (option|argument)|unexpected argument|unrecognized option)[^\n]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """The last output of a failed program, and the output that was expected."""

    words: str = ""
    """The text on the program's standard output and standard error."""
    version: str = ""
    """The version in the client's output; if it is empty, the client is started to ask for its version."""
    expected: str = ""
    found: str = ""
    """A description of the output, if it does not have the expected format."""


def add_advice(
    error: CommandError,
    client: ClientProgram,
    runner: Runner,
    command: str,
    environment: Mapping[str, str],
    said: LastWords,
) -> CommandError:
    """Return the error of a client program with advice for the user.

    Blocks. `command` is the program that was started, and `environment` is its environment.
    """
    if isinstance(error, CommandNotStarted):
        if error.value != command:  # the error is about the working folder
            return error
        more = f"expected {client.title} as `{client.program}`; install it: `{client.install}`"
    else:
        version = said.version or _version(client, runner, command, environment)
        more = f"{client.title} {version}{_what_helps(client, runner, said)}"
    return type(error)(f"{error.message} [{more}]", value=error.value, remedy=error.remedy)


def _what_helps(client: ClientProgram, runner: Runner, said: LastWords) -> str:
    if said.found:
        value = f"expected {said.expected}, found {said.found}"
        return f": {value}; its format may have changed: `{client.install}`, or a newer postroom"
    if option := _OPTION.search(said.words):
        return (
            f": expected a release that supports each option, found: {option[0].strip()}; `{client.install}`"
        )
    if _UNTRUSTED.search(said.words):
        return f": expected a trusted folder, found {runner.cwd} untrusted; `{client.trust}`"
    if _LOGGED_OUT.search(said.words):
        value = "expected a login or a valid key, found neither"
        return f": {value}; run `{client.log_in}`, or pass its key with pass_env"
    return ""


def _version(client: ClientProgram, runner: Runner, command: str, environment: Mapping[str, str]) -> str:
    if PurePath(command).name != client.program:
        return "of an unknown version"
    code, text = asked(environment, command, "--version", cwd=Path(runner.cwd))
    return (version_in(text) if code == 0 else "") or "of an unreported version"


TRY_LATER: Final = 75
"""EX_TEMPFAIL of sysexits.h, the exit code with which a program asks for a later retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Creates the errors for a failed program.

    Attributes:
        taken: The number of bytes of output.
        environment: The environment of the program; errors do not show the secrets that it contains.
        said: The program's own message about its failure; empty if there is none.
        tails: The ends of the program's outputs. If `said` is empty, the first output that is not empty is
            quoted.
    """

    program: str
    runner: Runner
    taken: int
    environment: Mapping[str, str] = field(repr=False)
    said: str | None
    tails: tuple[Tail, ...]

    @property
    def words(self) -> str:
        """The end of the program's output with secrets masked, for an error message."""
        return self.quoted(self.said, *self.tails)

    def left(self, ended: ProgramEnd) -> CommandError:
        """Return the error for processes that could not be ended."""
        pids = list(ended.left)
        return self.by(CommandNotEnded, f"left processes that could not be ended: {pids}", value=pids)

    def stopped(self, reason: StopReason) -> CommandError:
        """Return the error for a program that was stopped for the given reason."""
        if reason is StopReason.TIMED_OUT:
            limit = f"{milliseconds(self.runner.timeout) / 1000:g} s"
            return self.by(
                CommandTimedOut, f"did not finish within its time-out of {limit} and was stopped{self.words}"
            )
        if reason is StopReason.IDLE and self.runner.idle_timeout is not None:
            limit = f"{milliseconds(self.runner.idle_timeout) / 1000:g} s"
            return self.by(
                CommandTimedOut,
                f"wrote nothing within its idle time-out of {limit} and was stopped{self.words}",
            )
        if reason is StopReason.FLOODED:
            return self.by(
                CommandFlooded,
                f"wrote {self.taken} bytes, more than its limit, and was stopped",
                value=self.taken,
            )
        return self.by(CommandFailed, f"was ended, because its output could not be read{self.words}")

    def exited(self, code: int | None) -> CommandError:
        """Return the error for a program that exited with a code other than 0."""
        if code is not None and code < 0:
            return self.by(CommandKilled, f"was killed by {_name(-code)}{self.words}", value=-code)
        kind = CommandBusy if code == TRY_LATER else CommandFailed
        return self.by(kind, f"ended with exit code {code}{self.words}", value=code)

    def by(self, kind: type[CommandError], what: str, *, value: object = None) -> CommandError:
        """Return an error of the class `kind` about the program."""
        return kind(f"the command {self.program!r} {what}", value=value)

    def quoted(self, said: str | None, *tails: Tail) -> str:
        """Return the program's error message, or the first non-empty output, with secrets masked."""
        secrets = secrets_in(self.environment)
        if said:
            shown = mask_secrets(without_escapes(said), secrets)
        else:
            tail = next((tail for tail in tails if tail.plain().strip()), tails[-1])
            whole = tail.plain()
            is_cut = tail.is_cut or len(whole) > ERRORS_KEPT
            shown = mask_secrets(whole[-ERRORS_KEPT:], secrets, is_cut=is_cut)
        shown = shown.strip()
        cut = "…" if len(shown) > ERRORS_SHOWN else ""
        return f": {cut}{shown[-ERRORS_SHOWN:]}" if shown else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_MARGIN_MS = 2_000  # time to check the processes on a busy machine


class Finished(Protocol):
    """The result of a program that has executed a run."""

    @property
    def failing(self) -> Failing:
        """The errors for a program that failed."""
        ...

    def result(self, activation: RunActivation) -> AgentRunResult:
        """Return the result of the run; the answer may be empty.

        Raises:
            CommandError: The program failed; the error's class and `retryable` give details.
        """
        ...

    def last_words(self) -> LastWords:
        """Return the last output of the program, which the advice on a failure needs."""
        ...


Ended = Finished | PostroomError | None
"""The end of the work: a finished program, a failure, or None if nothing was started."""


def nothing_more(activation: RunActivation) -> dict[str, str]:
    """Return no additional environment variables."""
    return {}


@asynccontextmanager
async def no_server(activation: RunActivation) -> AsyncIterator[RunAccess | None]:
    """Yield None: the program of a run gets no access to this server."""
    yield None


async def _add_received_messages(activation: RunActivation, control: RunControl) -> RunActivation:
    if control.beginning is not None:
        return activation  # the run starts with this execution
    run = await control.threads.load_run(activation.run_id or "")
    if run is None or run.input is None or run.activation is None:
        return activation
    known_values = {*run.activation.trigger_message_ids, *(message.id for message in activation.messages)}
    ids = [value for value in run.input.trigger_message_ids if value not in known_values]
    asked_at = run.activation.range.to_seq if run.activation.range is not None else 0
    records = await control.threads.load_message_records(activation.thread_id, ids) if ids else ()
    taken = (record.message for record in records if record.seq > asked_at and control.shows(record.message))
    return replace(activation, messages=(*activation.messages, *taken))


async def from_the_start(activation: RunActivation, control: RunControl) -> RunActivation:
    """Return the request with all earlier prompts of the run, for a program without a session."""
    if activation.continue_run_id is None:
        return activation
    run = await control.threads.load_run(activation.continue_run_id)
    if run is None or run.input is None:
        return activation
    given_ids = {message.id for message in activation.messages}
    ids = [value for value in run.input.trigger_message_ids if value not in given_ids]
    records = await control.threads.load_message_records(activation.thread_id, ids)
    before = (record.message for record in records if control.shows(record.message))
    return replace(activation, messages=(*before, *activation.messages))


class ProgramExecutor(RunDispatchExecutor):
    """Executes each run with a program; a subclass implements the conversation with the program.

    Several executors may share a `process_runner`. `environment_of` returns additional variables for a run.
    `access_of` gives the program of a run access to this server.
    """

    kind: ClassVar[RunnerKind]
    """The kind of runners for this executor."""

    def __init__(
        self,
        runners: Runners,
        process_runner: ProcessRunner,
        *,
        name: str,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
        access_of: AccessOf = no_server,
    ) -> None:
        self._access_of = access_of
        self._runners = runners
        self._environment_of = environment_of
        self._runs = ActiveRuns()
        self._tasks = Tasks(name)
        self.process_runner = process_runner

    @abstractmethod
    async def _attempt(self, work: Work) -> Finished | None:
        """Run the program of a run; return None if the run was stopped before the program started."""

    @abstractmethod
    async def _keep(self, work: Work, finished: Any) -> None:
        """Store the session for the thread's next run."""

    @abstractmethod
    def build_command(self, runner: Runner) -> Sequence[str]:
        """Return the command of a runner without the arguments for a run."""

    @abstractmethod
    def find_client(self, runner: Runner) -> ClientProgram | None:
        """Return the client program for the advice on failures, or None if the client is unknown."""

    @property
    def executing(self) -> int:
        """The number of runs that this process executes."""
        return len(self._runs)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Run the agent's program until all processes of the program have ended, and return the answer.

        A cancelled call ends the program and all processes of the program.

        Raises:
            ThreadAlreadyRunning: A run of the thread is already executing in this process.
            RunnerNotFound: The agent has no runner.
            InvalidRunner: The runner is not of the kind of this executor.
            InvalidActivation: The request has no prompt, or does not come from a mailbox.
            CommandError: The program was not started, or failed; `retryable` states whether a retry can help.
            StaleClaim: The worker no longer owns the run.
        """
        control = activation.control
        if not isinstance(control, RunControl):
            raise InvalidActivation(
                "this executor needs a thread store and a coordinator to execute a run",
                value=activation.run_id,
            )
        active = ActiveRun(build_identity(activation))
        await self._runs.enter(active)
        try:
            identity = active.identity
            await sink.emit(
                RunStart(
                    thread_id=identity.thread_id,
                    run_id=identity.run_id,
                    parent_run_id=identity.parent_run_id,
                    identity=identity,
                )
            )
            agent_id = identity.agent_id
            runner = await self._runners.runner_of(agent_id, control.agent)
            if runner is None:
                raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
            if not isinstance(runner, Runner) or runner.kind is not self.kind:
                kind = runner.kind.value
                what = f"the runner of {agent_id!r} is of the kind {kind!r}, not {self.kind.value!r}"
                raise InvalidRunner(what, value=kind)
            activation = await _add_received_messages(activation, control)
            async with (
                self.process_runner.open_run_folder(identity.run_id) as folder,
                file_room(activation, control.files, folder.path / "files") as room,
                self._access_of(activation) as access,
            ):
                work = Work(
                    activation=room.activation,
                    control=room.activation.control,
                    active=active,
                    folder=folder,
                    runner=runner,
                    sink=sink,
                    told={AGENT: identity.agent_id, **self._environment_of(activation), **room.variables},
                    access=access,
                    received=room.received,
                )
                active.pending = None if runner.is_steered else control.pending
                result = await self._ended(work)
                if active.told and result.termination.type is not TerminationKind.CANCELLED:
                    await self._assign_messages(active)
                await room.send()
                return result
        finally:
            self._runs.leave(active)

    async def _ended(self, work: Work) -> AgentRunResult:
        finished: Finished | None = None
        task = self._tasks.start(self._begun(work), name=work.active.identity.run_id)
        try:
            try:
                done: Ended = await asyncio.shield(task)
            except asyncio.CancelledError:
                work.active.cancel()
                # Wait until the work has ended, even if this call is cancelled; the wait has a time limit.
                while not task.done():
                    try:
                        await asyncio.wait((task,))
                    except asyncio.CancelledError:  # the caller raises the cancellation that caused this wait
                        continue
                raise
            if isinstance(done, PostroomError):
                raise done
            finished = done
            if finished is None:
                run_id = work.active.identity.run_id
                return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled())
            result = finished.result(work.activation)
            ends = result.termination.type is TerminationKind.NATURAL_END
            if ends and not result.response.strip() and not await work.control.continues():
                words = finished.failing.words
                raise finished.failing.by(CommandSaidNothing, f"ended successfully without an answer{words}")
        except CommandError as error:
            client = self.find_client(work.runner)
            if client is None:
                raise
            environment = child_environment(work.runner, self.process_runner.server, {}, {})
            command = self.build_command(work.runner)[0]
            last_words = finished.last_words() if finished else LastWords()
            raise await asyncio.to_thread(
                add_advice, error, client, work.runner, command, environment, last_words
            ) from error
        await self._keep(work, finished)
        return result

    async def _assign_messages(self, active: ActiveRun) -> None:
        """Assign the messages that tool calls have returned to the run.

        Raises:
            StaleClaim: The worker no longer owns the run.
        """
        assert active.pending is not None  # noqa: S101 - `told` comes from `pending`
        try:
            await active.pending.freeze(Boundary.NEXT_STEP, only=frozenset(active.told))
        except StaleClaim:
            raise
        except PostroomError as error:
            run_id = active.identity.run_id
            _LOG.warning("program.told_not_noted", run_id=run_id, reason=error.describe())

    async def untold(self, run_id: str) -> str:
        """Return the texts of messages that have arrived for a run since the last call, or ""."""
        active = self._runs.find(run_id)
        return "" if active is None else await active.untold()

    async def _begun(self, work: Work) -> Ended:
        try:
            return await self._attempt(work)
        except PostroomError as error:
            return error

    def cancel(self, id: str) -> bool:
        """Ask an active run to end; `id` is a dispatch, run or thread id.

        Return False if no run is active.
        """
        active = self._runs.find(id)
        return active is not None and active.cancel()

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the active run of a thread to end, and wait; return False if processes are left."""
        if (active := self._runs.on_thread(thread_id)) is None:
            return False
        active.cancel()
        limits = self.process_runner.limits
        most = milliseconds(limits.farewell + limits.grace + limits.kill_wait + limits.drain) + _MARGIN_MS
        return await within(active.ended.wait(), most, self.process_runner.timer)

    def wake_pending_boundary(self, id: str) -> bool:
        """Notify a run of new messages; return False if the run's program accepts no messages."""
        active = self._runs.find(id)
        return active is not None and active.wake()

    def find_program(self, runner: Runner) -> str:
        """Return the path of the program that a runner would start, without starting the program.

        Blocks.

        Raises:
            CommandNotStarted: The program could not be started.
        """
        return find_program(self.build_command(runner)[0], runner, self.process_runner.server)

    async def close(self) -> None:
        """End every program, and wait until no program is left; a repeated call has no effect."""
        for active in self._runs.all():
            active.cancel()
        for active in self._runs.all():
            await active.ended.wait()
        await self._tasks.close()
        await asyncio.to_thread(self.process_runner.launcher.close)
