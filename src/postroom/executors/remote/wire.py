"""What passes between us and another server, as values. Pure functions.

A run, its cancellation and its result each say what they are, and which dispatch they are about: what was
signed as one of them is not taken for another.
"""

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.clock import milliseconds
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    InvalidArgument,
    RemoteFailed,
    ResultConflict,
    ResultTooEarly,
    StaleResult,
)
from postroom.contracts.messages import storable
from postroom.contracts.remote_runners import HttpRunner
from postroom.contracts.runs import TerminationKind

CALLBACKS: Final = "/callbacks"
"""Below this results are sent to; who sends them proves it by a signature and by nothing else."""
LARGEST_BODY: Final = 1 << 20
"""Bytes of a result, whichever way it comes."""
_LONGEST_ERROR: Final = 2_000
_STOPPED: Final = (TerminationKind.CANCELLED, TerminationKind.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a run: its answer, or why it failed."""

    text: str = ""
    error: str | None = None

    def failure(self) -> RemoteFailed | None:
        """Return the failure that it tells; None when it is an answer."""
        if self.error is None:
            return None
        return RemoteFailed(f"the other server reported: {self.error or 'it failed'}")


class _Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["result"]
    dispatch: str
    text: str | None = None
    error: str | None = None


def run_body(identity: RunIdentity, runner: HttpRunner, prompt: str, *, base: str | None) -> bytes:
    """Return a run as it is sent; `base` is our own address, None where we cannot be reached.

    The same run is the same bytes each time it is sent, unless its runner was changed or its mail was read.
    """
    told = {
        "kind": "run",
        "dispatch": identity.dispatch_id,
        "run": identity.run_id,
        "thread": identity.thread_id,
        "agent": identity.agent_id,
        "prompt": prompt,
        "timeout_ms": milliseconds(runner.timeout),
        "callback": None if base is None else f"{base}{CALLBACKS}/{identity.dispatch_id}",
    }
    return msgspec.json.encode(told)


def cancel_body(identity: RunIdentity) -> bytes:
    """Return the wish that a run end."""
    return msgspec.json.encode({"kind": "cancel", "dispatch": identity.dispatch_id, "run": identity.run_id})


def result_of(body: bytes, dispatch_id: str) -> Result:
    """Return the result that a body tells.

    Raises:
        InvalidArgument: it is none, or of another dispatch.
    """
    remedy = 'send {"kind": "result", "dispatch": ..., "text": ...}, or "error" instead of "text"'
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not a valid result: {error}"[:300], remedy=remedy) from error
    if told.dispatch != dispatch_id:
        raise InvalidArgument(
            "the result belongs to another dispatch", value=told.dispatch[:200], remedy=remedy
        )
    if (told.text is None) == (told.error is None):
        raise InvalidArgument("a result needs either a text or an error", remedy=remedy)
    if told.error is not None:
        return Result(error=storable(told.error[:_LONGEST_ERROR]))
    return Result(text=storable(told.text or ""))


def judge(row: RunDispatch | None, result: Result) -> None:
    """Accept a result that is how its dispatch has ended, however often it comes.

    Raises:
        ResultConflict: the dispatch has ended with another answer.
        StaleResult: nobody wants a result of it any more.
        ResultTooEarly: it is to be executed, and is not yet at work here.
    """
    if row is None:
        raise StaleResult("the run is unknown here")
    if not row.status.is_terminal:
        raise ResultTooEarly("the run is not active now", value=row.dispatch_id)
    failure = result.failure()
    if row.status is RunDispatchStatus.DEAD_LETTER:
        if failure is not None and row.last_error == storable(failure.describe()):
            return
        raise StaleResult("the run is a dead letter", value=row.dispatch_id)
    was_stopped = row.termination is not None and row.termination.type in _STOPPED
    if row.status is not RunDispatchStatus.ACKED or was_stopped:
        raise StaleResult("the run was cancelled or replaced", value=row.dispatch_id)
    if failure is not None or (row.run_response or "") != result.text:
        raise ResultConflict("the run has already ended with another result", value=row.dispatch_id)
