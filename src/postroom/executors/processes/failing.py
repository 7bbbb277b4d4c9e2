"""Turns the failure of a program into an error that quotes its last output."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import (
    CommandBusy,
    CommandError,
    CommandFailed,
    CommandFlooded,
    CommandKilled,
    CommandNotEnded,
    CommandTimedOut,
)
from postroom.contracts.quoting import without_escapes
from postroom.contracts.runners import Runner
from postroom.executors.processes.active import StopReason
from postroom.executors.processes.child_environment import masked, secrets_in
from postroom.executors.processes.limits import ERRORS_KEPT, ERRORS_SHOWN
from postroom.executors.processes.output import Tail
from postroom.executors.processes.process_runner import ProgramEnd

TRY_LATER: Final = 75
"""EX_TEMPFAIL of sysexits.h: how a program asks to be started again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Makes the errors of one program that has ended.

    Attributes:
        taken: The number of bytes of output.
        environment: The program's; secrets of it are masked in errors.
        said: The failure in the program's own words, if it told one.
        tails: The ends of its outputs, of which the first that holds something is quoted if `said` is empty.
    """

    program: str
    runner: Runner
    taken: int
    environment: Mapping[str, str] = field(repr=False)
    said: str | None
    tails: tuple[Tail, ...]

    @property
    def words(self) -> str:
        """The end of the program's output, with secrets masked, as a suffix of an error."""
        return self.quoted(self.said, *self.tails)

    def left(self, ended: ProgramEnd) -> CommandError:
        """Return the error for processes that could not be ended."""
        pids = list(ended.left)
        return self.by(CommandNotEnded, f"left processes that could not be ended: {pids}", value=pids)

    def stopped(self, reason: StopReason) -> CommandError:
        """Return the error for a program that we ended."""
        if reason is StopReason.TIMED_OUT:
            limit = f"{milliseconds(self.runner.timeout) / 1000:g} s"
            return self.by(
                CommandTimedOut, f"did not finish within its time-out of {limit} and was ended{self.words}"
            )
        if reason is StopReason.IDLE and self.runner.idle_timeout is not None:
            limit = f"{milliseconds(self.runner.idle_timeout) / 1000:g} s"
            return self.by(
                CommandTimedOut,
                f"wrote nothing within its idle time-out of {limit} and was ended{self.words}",
            )
        if reason is StopReason.FLOODED:
            return self.by(
                CommandFlooded,
                f"wrote {self.taken} bytes, more than its limit, and was ended",
                value=self.taken,
            )
        return self.by(CommandFailed, f"was ended, because its output could not be read{self.words}")

    def exited(self, code: int | None) -> CommandError:
        """Return the error for a program that ended with a code other than 0."""
        if code is not None and code < 0:
            return self.by(CommandKilled, f"was killed by {_name(-code)}{self.words}", value=-code)
        kind = CommandBusy if code == TRY_LATER else CommandFailed
        return self.by(kind, f"ended with exit code {code}{self.words}", value=code)

    def by(self, kind: type[CommandError], what: str, *, value: object = None) -> CommandError:
        """Return a failure of this program."""
        return kind(f"the command {self.program!r} {what}", value=value)

    def quoted(self, said: str | None, *tails: Tail) -> str:
        """Return the program's own message, or else the first non-empty output, masked."""
        secrets = secrets_in(self.environment)
        if said:
            shown = masked(without_escapes(said), secrets)
        else:
            tail = next((one for one in tails if one.plain().strip()), tails[-1])
            whole = tail.plain()
            is_cut = tail.is_cut or len(whole) > ERRORS_KEPT
            shown = masked(whole[-ERRORS_KEPT:], secrets, is_cut=is_cut)
        shown = shown.strip()
        cut = "…" if len(shown) > ERRORS_SHOWN else ""
        return f": {cut}{shown[-ERRORS_SHOWN:]}" if shown else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
