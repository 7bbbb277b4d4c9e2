"""The messages between us and another server, as values. Pure functions.

A run, its cancellation and its result each contain their kind and their dispatch, so that a signed message
cannot be mistaken for another.
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
"""The path below which results are posted; only a signature authenticates the sender."""
LARGEST_BODY: Final = 1 << 20
"""Maximum bytes of a result, however it arrives."""
_LONGEST_ERROR: Final = 2_000
_STOPPED: Final = (TerminationKind.CANCELLED, TerminationKind.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run: its answer, or the reason of its failure."""

    text: str = ""
    error: str | None = None

    def failure(self) -> RemoteFailed | None:
        """Return the failure in it; None for an answer."""
        if self.error is None:
            return None
        return RemoteFailed(f"the other server reported: {self.error or 'it failed'}")


class _Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["result"]
    dispatch: str
    text: str | None = None
    error: str | None = None


def run_body(identity: RunIdentity, runner: HttpRunner, prompt: str, *, base: str | None) -> bytes:
    """Return a run in its form for the wire; `base` is our own address, None if we cannot be reached.

    The same run has the same bytes each time, unless its runner was changed or its mail was read.
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
    """Return the request to end a run."""
    return msgspec.json.encode({"kind": "cancel", "dispatch": identity.dispatch_id, "run": identity.run_id})


def result_of(body: bytes, dispatch_id: str) -> Result:
    """Return the result in a body.

    Raises:
        InvalidArgument: The body is not a result, or belongs to another dispatch.
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
    """Accept a result with which its dispatch has ended, including repetitions.

    Raises:
        ResultConflict: The dispatch has ended with another answer.
        StaleResult: The result is no longer needed.
        ResultTooEarly: The dispatch is waiting, and not yet active here.
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
