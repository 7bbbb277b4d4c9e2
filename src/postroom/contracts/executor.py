"""The boundary between the mailbox and whatever runs an agent: `run`, and what else an executor can do.

An executor runs one claimed run at a time a thread. It may block for days, die, or ignore a cancel: the
lease contains it. What it writes goes through `activation.control.coordinator`, which proves with each write
that the run is still its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink, RunIdentity
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import Message
from postroom.contracts.records import Record
from postroom.contracts.registry import RegistrySet
from postroom.contracts.run_stores import CommitCoordinator
from postroom.contracts.runs import RunWaitingState, TerminationKind, TerminationReason, Usage
from postroom.contracts.tools import ToolCallResume


class AgentRunResult(Record, frozen=True, kw_only=True):
    """How an execution ended. With `waiting` the run is not done: something else will wake it."""

    run_id: str
    response: str = ""
    termination: TerminationReason = TerminationReason(type=TerminationKind.NATURAL_END)
    steps: int = 0
    usage: Usage = Usage()
    counted: Usage = Usage()
    """The part of `usage` that budgets have counted already, with the steps of the run."""
    waiting: RunWaitingState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRunPlan:
    """What a run is pinned to; a plan that cannot be put together again is refused."""

    resolution_id: str
    replayable: bool = True


def identity_of(activation: RunActivation, *, run_id: str) -> RunIdentity:
    """Return which run it is that a request begins, and where it comes from."""
    trace = activation.trace
    return RunIdentity(
        thread_id=activation.thread_id,
        run_id=run_id,
        agent_id=activation.agent_id or "default",
        parent_thread_id=trace.parent_thread_id,
        parent_run_id=trace.parent_run_id,
        dispatch_id=trace.dispatch_id,
        session_id=trace.session_id,
        transport_request_id=trace.transport_request_id,
        origin=trace.origin,
        run_mode=trace.run_mode,
        adapter=trace.adapter,
    )


class RunDispatchExecutor(ABC):
    """Runs agents. `run` is all that one needs; a default says that it does not do that."""

    @abstractmethod
    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run and return how it ended.

        What it raises decides about trying again: a `RunFailure`, and any other failure of postroom, says
        so by `retryable`; everything else is tried again. A cancelled task must end soon.
        """

    def recovery(self, activation: RunActivation) -> Recovery:
        """Say how a run that was cut off is executed again: RESUME from its checkpoint, or RESTART."""
        return Recovery.RESTART

    def cancel(self, id: str) -> bool:
        """Ask the run that has this dispatch, run or thread id to end; False when none runs here."""
        return False

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to end and wait until it has; False when none runs here or it does not end."""
        return False

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to the run with this dispatch, run or thread id; False when it does not take it."""
        return False

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Hand messages to the run with this id for its next step; False when it does not take them."""
        return False

    def wake_pending_boundary(self, id: str) -> bool:
        """Tell the run with this id that messages wait for it; False when it does not look at them."""
        return False

    def listen_to(self, live: LiveChannels | None) -> None:
        """Take what other processes have for runs at work here from this channel; None: there is none."""
        return

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return what the run is pinned to: `pinned` where a pin exists, else what is live now.

        Raises:
            ResolveFailed: it cannot be put together.
        """
        return ResolvedRunPlan(resolution_id=pinned or "live")

    def live_registry(self) -> RegistrySet | None:
        """Return the registry that is live now; None when the executor has none."""
        return None

    def commit_coordinator(self) -> CommitCoordinator | None:
        """Return what the executor writes with on its own; None: it is given one with each run."""
        return None

    def has_commit_coordinator(self) -> bool:
        """Say whether its steps are committed through a coordinator at all."""
        return self.commit_coordinator() is not None

    def waits_for_outages(self, thread_id: str) -> bool:
        """Say whether this thread's runs are tried again for minutes when their failure may be an outage."""
        return True

    def can_pause(self, thread_id: str) -> bool:
        """Return whether this thread's runs stand still between the steps of their coroutine.

        Such a run waits if its lease ends during an outage, and continues if its claim is untouched then. Any
        other run is stopped, because its program would go on beside the next owner.
        """
        return False

    def commits_steps(self, thread_id: str) -> bool:
        """Return whether the executor commits the steps and the answers of this thread's runs."""
        return self.has_commit_coordinator()

    def agent_of(self, thread_id: str) -> str | None:
        """Return which agent all runs of a thread are of; None where each request says so."""
        return None

    def stages_events(self) -> bool:
        """Say whether its commits go through the coordinator it is given, with the events of the step."""
        return self.commit_coordinator() is not None


_PASSED_ON = tuple(name for name in vars(RunDispatchExecutor) if not name.startswith("_") and name != "run")


class ExecutorAround(RunDispatchExecutor):
    """Stands around another executor: what it does not do itself, that one does."""

    def __init__(self, within: RunDispatchExecutor) -> None:
        """Take the methods of `within` that the class does not define."""
        self._within = within
        for name in _PASSED_ON:
            if getattr(type(self), name) is getattr(RunDispatchExecutor, name):
                setattr(self, name, getattr(within, name))
