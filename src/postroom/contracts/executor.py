"""The interface between the mailbox and the executors that run agents.

An executor runs at most one claimed run of a thread at a time. An executor may block for days, crash, or
ignore a cancellation; the lease limits the damage. An executor writes through
`activation.control.coordinator`, which checks in each write that the claim is still valid.
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
"""The set of tools that is available at the URL for a run."""
STDIO: Final = ("-m", "postroom", "mcp", "--tools", TOOLS)
"""The arguments of Python that start a bridge from stdio to the tools, for programs without HTTP support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccess:
    """The server's URLs, and a token that is valid while the program of a run is active."""

    url: str
    mcp_path: str
    data_dir: str
    token: str = field(repr=False)

    @property
    def mcp_url(self) -> str:
        """The URL of the MCP endpoint with the run's tools."""
        return f"{self.url}{self.mcp_path}/{TOOLS}"

    def variables(self) -> Mapping[str, str]:
        """Return environment variables for the `postroom` commands and hooks of the run's program."""
        return {
            URL_VARIABLE: self.url,
            PATH_VARIABLE: self.mcp_path,
            FOLDER_VARIABLE: self.data_dir,
            TOKEN_VARIABLE: self.token,
        }


AccessOf = Callable[[RunActivation], AbstractAsyncContextManager[RunAccess | None]]
"""Returns a context in which a run has access to the server, or in which the value is None without a server.
"""


class AgentRunResult(Record, frozen=True, kw_only=True):
    """The result of an execution.

    If `waiting` is set, the run has not ended.
    """

    run_id: str
    response: str = ""
    termination: TerminationReason = TerminationReason(type=TerminationKind.NATURAL_END)
    steps: int = 0
    usage: Usage = Usage()
    counted: Usage = Usage()
    """The part of `usage` that budgets have already counted together with the run's steps."""
    waiting: RunWaitingState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRunPlan:
    """The configuration to which a run is pinned."""

    resolution_id: str
    replayable: bool = True


def build_identity(activation: RunActivation, *, run_id: str | None = None) -> RunIdentity:
    """Return the identity and origin of a requested run.

    A run without an id gets a generated id.
    """
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
    """Executes runs of agents.

    A subclass must define `run`; all other methods are optional.
    """

    @abstractmethod
    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run, and return the result.

        If `run` raises a `PostroomError`, the error's `retryable` decides whether the run is retried. An
        exception of any foreign class leads to a retry. A cancelled `run` must end soon.
        """

    def recovery(self, activation: RunActivation) -> Recovery:
        """Return RESUME if an interrupted run continues from a checkpoint, or else RESTART."""
        return Recovery.RESTART

    def cancel(self, id: str) -> bool:
        """Ask an active run to stop; return False without an active run.

        `id` is a dispatch, run or thread id.
        """
        return False

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's active run to stop, and wait until the run has ended.

        Return False if the process executes no run of the thread, or if the run does not end.
        """
        return False

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to an active run; return False if the run does not accept the decision.

        `id` is a dispatch, run or thread id.
        """
        return False

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Pass messages to an active run; return False if the run does not accept the messages.

        The run reads the messages at its next step.
        """
        return False

    def wake_pending_boundary(self, id: str) -> bool:
        """Notify an active run that messages are waiting; return False if the run does not read messages."""
        return False

    def listen_to(self, live: LiveChannels | None) -> None:
        """Set the channel through which other processes command active runs, or None for no channel."""
        return

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the configuration that `pinned` names, or the live configuration if `pinned` is None.

        Raises:
            ResolveFailed: The configuration cannot be assembled.
        """
        return ResolvedRunPlan(resolution_id=pinned or "live")

    def live_registry(self) -> RegistrySet | None:
        """Return the live registry, or None for an executor without a registry."""
        return None

    def commit_coordinator(self) -> CommitCoordinator | None:
        """Return the coordinator that stores the executor's steps, or None without a common coordinator."""
        return None

    def has_commit_coordinator(self) -> bool:
        """Return whether the executor commits steps through a coordinator."""
        return self.commit_coordinator() is not None

    def waits_for_outages(self, thread_id: str) -> bool:
        """Return whether a thread's runs are retried for minutes after a failure that may be an outage."""
        return True

    def can_pause(self, thread_id: str) -> bool:
        """Return whether the runs of a thread can pause between steps.

        A run that can pause survives an expired lease unless another process claims the run. A run that
        cannot pause is stopped when its lease expires.
        """
        return False

    def commits_steps(self, thread_id: str) -> bool:
        """Return whether the executor itself commits the steps and answers of a thread's runs."""
        return self.has_commit_coordinator()

    def agent_of(self, thread_id: str) -> str | None:
        """Return the agent that executes all runs of a thread, or None if each request names its agent."""
        return None

    def stages_events(self) -> bool:
        """Return whether the executor commits each step together with the step's events."""
        return self.commit_coordinator() is not None


_PASSED_ON = tuple(name for name in vars(RunDispatchExecutor) if not name.startswith("_") and name != "run")


class ExecutorAround(RunDispatchExecutor):
    """An executor that wraps another executor and forwards all methods that a subclass does not define."""

    def __init__(self, within: RunDispatchExecutor) -> None:
        """Wrap the executor `within`."""
        self._within = within
        for name in _PASSED_ON:
            if getattr(type(self), name) is getattr(RunDispatchExecutor, name):
                setattr(self, name, getattr(within, name))
