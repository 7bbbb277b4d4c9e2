"""What a program's end means for its run: an answer, a failure that may pass, or one for good."""

from dataclasses import dataclass, field

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import CommandFailed, CommandSaidNothing
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason
from postroom.executors.command.recipes import RECIPES, Reading, refuses_session
from postroom.executors.processes.failing import Failing
from postroom.executors.processes.output import Tail
from postroom.executors.processes.stopping import StopReason
from postroom.executors.processes.supervision import ProgramEnd


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
            raise failing.by(CommandFailed, f"says that it failed{words}")
        answer = self.reading.answer()
        if not answer.strip():
            raise failing.by(CommandSaidNothing, f"ended well and put nothing out{words}")
        return AgentRunResult(run_id=run_id, response=answer, steps=1, usage=said.usage)
