"""The interface between the mailbox and an executor of agents.

An executor runs at most one claimed run of a thread at a time. An executor may block for days, crash, or
ignore a cancellation; the lease limits the damage. An executor writes through
`activation.control.coordinator`, which checks with each write that the claim is still valid.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink, RunIdentity
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import Message
from postroom.contracts.records import Record
from postroom.contracts.registry import RegistrySet
from postroom.contracts.run_stores import CommitCoordinator
from postroom.contracts.runs import RunWaitingState, TerminationKind, TerminationReason, Usage
from postroom.contracts.tools import ToolCallResume

TOKEN_VARIABLE: Final = "POSTROOM_TOKEN"  # noqa: S105 - the name of a variable
URL_VARIABLE: Final = "POSTROOM_URL"
PATH_VARIABLE: Final = "POSTROOM_MCP_PATH"
FOLDER_VARIABLE: Final = "POSTROOM_DATA_DIR"

TOOLS: Final = "core"
"""The tool set that the URL for a run selects."""
STDIO: Final = ("-m", "postroom", "mcp", "--tools", TOOLS)
"""Arguments with which Python starts a stdio bridge to the tools, for programs without HTTP support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccess:
    """The server's URLs, and a token for one run, which is valid while the run's program is active."""

    url: str
    mcp_path: str
    data_dir: str
    token: str = field(repr=False)

    @property
    def mcp_url(self) -> str:
        """The address of the run's tools."""
        return f"{self.url}{self.mcp_path}/{TOOLS}"

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables for `postroom` commands and hooks that the program starts."""
        return {
            URL_VARIABLE: self.url,
            PATH_VARIABLE: self.mcp_path,
            FOLDER_VARIABLE: self.data_dir,
            TOKEN_VARIABLE: self.token,
        }


AccessOf = Callable[[RunActivation], AbstractAsyncContextManager[RunAccess | None]]
"""Opens access to the server for a run until the context ends; None if there is no server."""


class AgentRunResult(Record, frozen=True, kw_only=True):
    """The result of an execution. If `waiting` is set, the run has not ended: another event resumes it."""

    run_id: str
    response: str = ""
    termination: TerminationReason = TerminationReason(type=TerminationKind.NATURAL_END)
    steps: int = 0
    usage: Usage = Usage()
    counted: Usage = Usage()
    """The part of `usage` that budgets have already counted with the steps of the run."""
    waiting: RunWaitingState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRunPlan:
    """The configuration to which a run is pinned. A run is refused if its plan can no longer be assembled."""

    resolution_id: str
    replayable: bool = True


def identity_of(activation: RunActivation, *, run_id: str | None = None) -> RunIdentity:
    """Return the identity and origin of the run that a request starts; without an id the run gets one."""
    trace, run_id = activation.trace, run_id or activation.run_id or f"run_{uuid.uuid4().hex}"
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
    """Runs agents. A subclass must define `run`. By default, it has none of the other capabilities."""

    @abstractmethod
    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run and return how it ended.

        Whether a failed run is retried depends on the error: postroom's errors, including `RunFailure`, have
        a `retryable` flag, and the run is retried after any other error. A cancelled task must end soon.
        """

    def recovery(self, activation: RunActivation) -> Recovery:
        """Return how an interrupted run continues: RESUME from its checkpoint, or RESTART from the start."""
        return Recovery.RESTART

    def cancel(self, id: str) -> bool:
        """Ask the run with this dispatch, run or thread id to stop; return False if no such run is active."""
        return False

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to stop, and wait until it has ended.

        Return False if this process executes no run of the thread, or if it does not end.
        """
        return False

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to the run with this dispatch, run or thread id.

        Return False if the run does not accept the decision.
        """
        return False

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Pass messages to the run with this id for its next step.

        Return False if the run does not accept the messages.
        """
        return False

    def wake_pending_boundary(self, id: str) -> bool:
        """Tell the run with this id that messages are waiting; return False if the run does not read them."""
        return False

    def listen_to(self, live: LiveChannels | None) -> None:
        """Receive commands for active runs that other processes send through this channel.

        None if there is no channel.
        """
        return

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the run's configuration: the one that `pinned` names or, without it, the live one.

        Raises:
            ResolveFailed: The configuration cannot be assembled.
        """
        return ResolvedRunPlan(resolution_id=pinned or "live")

    def live_registry(self) -> RegistrySet | None:
        """Return the live registry; None if the executor has none."""
        return None

    def commit_coordinator(self) -> CommitCoordinator | None:
        """Return the coordinator for the executor's writes; None if each run provides its own."""
        return None

    def has_commit_coordinator(self) -> bool:
        """Return whether the executor commits its steps through a coordinator."""
        return self.commit_coordinator() is not None

    def waits_for_outages(self, thread_id: str) -> bool:
        """Return whether this thread's runs are retried for minutes after a failure that may be an outage."""
        return True

    def can_pause(self, thread_id: str) -> bool:
        """Return whether this thread's runs can pause between the steps of their coroutine.

        If the lease of such a run expires during an outage, the run pauses, and continues after the outage if
        no other process has claimed it. Any other run is stopped, because its program would continue
        alongside the next owner.
        """
        return False

    def commits_steps(self, thread_id: str) -> bool:
        """Return whether the executor itself commits the steps and answers of this thread's runs."""
        return self.has_commit_coordinator()

    def agent_of(self, thread_id: str) -> str | None:
        """Return the agent that executes all runs of a thread; None if each request names an agent."""
        return None

    def stages_events(self) -> bool:
        """Return whether it commits through the run's coordinator and includes the events of the step."""
        return self.commit_coordinator() is not None


_PASSED_ON = tuple(name for name in vars(RunDispatchExecutor) if not name.startswith("_") and name != "run")


class ExecutorAround(RunDispatchExecutor):
    """Wraps another executor and forwards every call that it does not handle."""

    def __init__(self, within: RunDispatchExecutor) -> None:
        """Forward to `within` every method that the class does not define."""
        self._within = within
        for name in _PASSED_ON:
            if getattr(type(self), name) is getattr(RunDispatchExecutor, name):
                setattr(self, name, getattr(within, name))
