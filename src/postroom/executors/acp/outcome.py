"""What the end of a talk means for its run: an answer, a question to a person, or a failure."""

from dataclasses import dataclass, field
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import AgentProtocolBroken, AgentStopped, CommandError, CommandSaidNothing
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import storable
from postroom.contracts.runners import Runner
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
from postroom.executors.acp.conversation import Conversation
from postroom.executors.acp.permissions import Permission
from postroom.executors.processes.failing import Failing
from postroom.executors.processes.output import Tail
from postroom.executors.processes.stopping import StopReason
from postroom.executors.processes.supervision import ProgramEnd

TOOL: Final = "permission"
DONE: Final = "end_turn"
MOST_NAMED: Final = 80
"""Characters of a reason of the agent's own that are told."""
_STOPS: Final = {
    "max_tokens": "it reached its limit of tokens",
    "max_turn_requests": "it reached its limit of model requests",
    "refusal": "it refuses to go on",
    "cancelled": "it says that its turn was cancelled, which nobody here did",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A program that has ended, with what was said; `secrets` are not to be shown."""

    program: str
    runner: Runner
    ended: ProgramEnd
    talk: Conversation
    errors: Tail
    now: int
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_kept(self) -> bool:
        """Whether the agent may go on with its session."""
        return self.talk.asked is not None or self.ended.stopped is not StopReason.CANCELLED

    def result(self, activation: RunActivation) -> AgentRunResult:
        """Return the run's result, or what it waits for.

        Raises:
            CommandError: the program failed; its class and `retryable` say how.
        """
        run_id, talk, ended = activation.run_id or "", self.talk, self.ended
        failing = self._failing()
        if ended.left:
            raise failing.left(ended)
        if ended.stopped is StopReason.CANCELLED:
            return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled(), usage=talk.usage)
        said = talk.turn.said.text()
        if talk.asked is not None:
            return AgentRunResult(
                run_id=run_id,
                response=said,
                steps=1,
                usage=talk.usage,
                termination=TerminationReason.suspended(),
                waiting=self._waiting(talk.asked, said),
            )
        if talk.stop_reason != DONE:
            raise self._failure(failing)
        if not said.strip():
            raise failing.by(CommandSaidNothing, f"ended its turn and said nothing{self._words(failing)}")
        return AgentRunResult(run_id=run_id, response=said, steps=1, usage=talk.usage)

    def _failing(self) -> Failing:
        taken = self.talk.taken + self.errors.total
        return Failing(program=self.program, runner=self.runner, taken=taken, secrets=self.secrets)

    def _words(self, failing: Failing) -> str:
        fault = self.talk.fault
        return failing.words(fault.words if fault else None, self.errors, self.talk.noise)

    def _failure(self, failing: Failing) -> CommandError:
        talk, ended, words = self.talk, self.ended, self._words(failing)
        if ended.stopped not in (None, StopReason.DONE):
            return failing.stopped(ended.stopped, words)
        if talk.fault is not None:
            return failing.by(talk.fault.kind, f"{talk.fault.what}{words}")
        if talk.stop_reason is not None:
            return self._stopped(failing, talk.stop_reason)
        if ended.code != 0:
            return failing.exited(ended.code, words)
        return failing.by(AgentProtocolBroken, f"ended before it had answered {talk.stage!r}{words}")

    def _stopped(self, failing: Failing, reason: str) -> CommandError:
        why = _STOPS.get(reason, "it gives a reason that is not known")
        named = storable(reason[:MOST_NAMED])
        last = failing.words(None, self.talk.turn.said) or " nothing"
        what = f"stopped before it was done: {why} ({named}); it said{last}"
        return failing.by(AgentStopped, what, value=named)

    def _waiting(self, asked: Permission, said: str) -> RunWaitingState:
        ticket = RunWaitingTicket(
            ticket_id=asked.id, tool_call_id=asked.id, tool_name=TOOL, reason=asked.text, updated_at=self.now
        )
        return RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,), message=said or None)
