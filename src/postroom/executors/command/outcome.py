"""What a program's end means for its run: an answer, a failure that may pass, or one for good."""

import signal
from dataclasses import dataclass, field

from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import (
    CommandBusy,
    CommandError,
    CommandFailed,
    CommandFlooded,
    CommandKilled,
    CommandNotEnded,
    CommandSaidNothing,
    CommandTimedOut,
)
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason
from postroom.executors.command.limits import ERRORS_KEPT, ERRORS_SHOWN
from postroom.executors.command.output import Tail
from postroom.executors.command.recipes import RECIPES, Reading, refuses_session
from postroom.executors.command.stopping import StopReason
from postroom.executors.command.supervision import Ended
from postroom.executors.command.surroundings import masked

TRY_LATER = 75
"""EX_TEMPFAIL of sysexits.h: how a program asks to be started again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A program that has ended, with what it said; `secrets` are not to be shown."""

    program: str
    runner: Runner
    ended: Ended
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
        run_id, said = activation.run_id or "", self.reading.said
        if self.ended.left:
            pids = [one.pid for one in self.ended.left]
            raise self._failure(
                CommandNotEnded, f"left processes that could not be ended: {pids}", value=pids
            )
        if self.ended.stopped is StopReason.CANCELLED:
            return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled(), usage=said.usage)
        if self.ended.stopped is not None:
            raise self._stopped(self.ended.stopped)
        if self.ended.code != 0:
            raise self._exited(self.ended.code)
        if said.error is not None:
            raise self._failure(CommandFailed, f"says that it failed{self._words()}")
        answer = self.reading.answer()
        if not answer.strip():
            raise self._failure(CommandSaidNothing, f"ended well and put nothing out{self._words()}")
        return AgentRunResult(run_id=run_id, response=answer, steps=1, usage=said.usage)

    def _stopped(self, reason: StopReason) -> CommandError:
        runner, words = self.runner, self._words()
        if reason is StopReason.TIMED_OUT:
            limit = f"{milliseconds(runner.timeout) / 1000:g} s"
            return self._failure(
                CommandTimedOut, f"was not done after its time-out of {limit} and was ended{words}"
            )
        if reason is StopReason.IDLE and runner.idle_timeout is not None:
            limit = f"{milliseconds(runner.idle_timeout) / 1000:g} s"
            return self._failure(
                CommandTimedOut, f"put nothing out for its idle time-out of {limit} and was ended{words}"
            )
        if reason is StopReason.FLOODED:
            taken = self.reading.taken + self.errors.total
            return self._failure(CommandFlooded, f"put out {taken} bytes and was ended", value=taken)
        return self._failure(CommandFailed, f"was ended, for its output could not be read{words}")

    def _exited(self, code: int | None) -> CommandError:
        if code is not None and code < 0:
            return self._failure(CommandKilled, f"was killed by {_name(-code)}{self._words()}", value=-code)
        kind = CommandBusy if code == TRY_LATER else CommandFailed
        return self._failure(kind, f"ended with exit code {code}{self._words()}", value=code)

    def _failure(self, kind: type[CommandError], what: str, *, value: object = None) -> CommandError:
        return kind(f"the command {self.program!r} {what}", value=value)

    def _words(self) -> str:
        """Return the program's own words about its end, the last of them, with no secret in them."""
        if self.reading.said.error:
            shown = masked(self.reading.said.error, self.secrets)
        else:
            tail = self.errors if self.errors.plain().strip() else self.reading.raw
            whole = tail.plain()
            is_cut = tail.is_cut or len(whole) > ERRORS_KEPT
            shown = masked(whole[-ERRORS_KEPT:], self.secrets, is_cut=is_cut)
        shown = shown.strip()
        cut = "…" if len(shown) > ERRORS_SHOWN else ""
        return f": {cut}{shown[-ERRORS_SHOWN:]}" if shown else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
