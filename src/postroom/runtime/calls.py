"""Checks tool calls, executes each within its time limit, and returns its answer.

A failed tool call does not fail the run.

A suspended tool call becomes a question that the run asks. The decision about the question determines how the
call continues.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from postroom.concurrency import Tasks
from postroom.contracts.agent_events import EventSink, RunIdentity, ToolCallDone
from postroom.contracts.clock import Timer
from postroom.contracts.dispatch import Claim
from postroom.contracts.errors import PostroomError, StaleClaim
from postroom.contracts.files import RunFiles
from postroom.contracts.messages import Json, Message, MessageMetadata, ToolCall
from postroom.contracts.records import replace
from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingState, RunWaitingTicket, WaitingReason
from postroom.contracts.tools import (
    ResumeDecisionAction,
    Suspension,
    ToolCallOutcome,
    ToolCallResume,
    ToolCallResumeMode,
    ToolDescriptor,
    ToolResult,
    ToolStatus,
)
from postroom.runtime.interrupting import TimeUp, limited
from postroom.runtime.tools import Tool, ToolContext, find_violation

FRONTEND = "frontend_tool"
"""The action in a question for a tool call that the client executes and answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """A tool call to execute, with the person's decision or None."""

    call: ToolCall
    decision: ToolCallResume | None = None


@dataclass(slots=True)
class Answers:
    """The answers to tool calls, keyed by call id.

    An interrupted call has a partial answer.
    """

    results: dict[str, ToolResult] = field(default_factory=dict)
    message_ids: dict[str, str] = field(default_factory=dict)

    def messages(self, calls: Sequence[ToolCall], metadata: MessageMetadata) -> list[Message]:
        """Return the messages that contain the answers to `calls`; calls without an answer are omitted."""
        return [
            replace(
                Message.tool(call.id, told(self.results[call.id]), id=self.message_ids[call.id]),
                metadata=metadata,
            )
            for call in calls
            if call.id in self.results and self.results[call.id].status is not ToolStatus.PENDING
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """Executes the tool calls of a run."""

    tools: dict[str, Tool]
    frontend: dict[str, ToolDescriptor]
    identity: RunIdentity
    sink: EventSink
    timer: Timer
    timeout_ms: int | None
    parallel: bool
    new_id: Callable[[], str]
    claim: Claim | None
    files: RunFiles | None

    def descriptors(self) -> tuple[ToolDescriptor, ...]:
        """Return the descriptions of all tools, for the model."""
        own = [tool.descriptor for tool in self.tools.values()]
        return (*own, *(tool for name, tool in self.frontend.items() if name not in self.tools))

    async def make(self, requests: Sequence[CallRequest], answers: Answers) -> None:
        """Execute tool calls and record the answers; calls run in parallel if the agent permits this.

        Raises:
            StaleClaim: A tool noticed that the worker has lost the run.
        """
        lanes = [[request] for request in requests] if self.parallel else [list(requests)]

        async def make_in_turn(lane: Sequence[CallRequest]) -> None:
            for request in lane:
                call = request.call
                result = serializable(await self._result(request))
                answers.results[call.id] = result
                await self.tell(call, result, answers)

        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(make_in_turn(lane))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None

    async def tell(self, call: ToolCall, result: ToolResult, answers: Answers) -> None:
        """Publish the outcome of a call, and record the id of the message with the answer."""
        outcome = {
            ToolStatus.SUCCESS: ToolCallOutcome.SUCCEEDED,
            ToolStatus.ERROR: ToolCallOutcome.FAILED,
            ToolStatus.PENDING: ToolCallOutcome.SUSPENDED,
        }[result.status]
        message_id = answers.message_ids.setdefault(call.id, self.new_id())
        await self.sink.emit(ToolCallDone(id=call.id, message_id=message_id, result=result, outcome=outcome))

    async def _result(self, request: CallRequest) -> ToolResult:
        call = request.call
        tool = self.tools.get(call.name)
        if tool is None:
            if call.name in self.frontend:
                question = Suspension(id=f"do_{call.id}", action=FRONTEND, parameters=call.arguments)
                mode = ToolCallResumeMode.USE_DECISION_AS_TOOL_RESULT
                return ToolResult.suspended(call.name, question, resume_mode=mode)
            names = ", ".join(tool.name for tool in self.descriptors()) or "none"
            return ToolResult.error(call.name, f"there is no tool {call.name!r}; tools: {names}")
        arguments = {} if call.arguments is None else call.arguments
        if problem := find_violation(arguments, {"type": "object", **tool.descriptor.parameters}):
            return ToolResult.error(call.name, f"{problem}; the tool was not called", invalid_arguments=True)
        context = ToolContext(
            identity=self.identity,
            call_id=call.id,
            tool_name=call.name,
            sink=self.sink,
            decision=request.decision,
            claim=self.claim,
            files=self.files,
        )
        name = context.tool_name

        async def execute() -> ToolResult | StaleClaim:
            try:
                return await limited(lambda: tool.execute(arguments, context), self.timeout_ms, self.timer)
            except TimeUp:
                text = f"the tool did not end within {self.timeout_ms} ms and was cancelled"
                return ToolResult.error(name, text, timed_out=True)
            except StaleClaim as lost:
                return lost
            except PostroomError as error:
                text = f"{error.describe()}; {error.remedy}" if error.remedy else error.describe()
                return ToolResult.error(name, text, code=error.code)

        # Run a tool in its own task, so that even its cancellation only becomes the answer to the call.
        work = Tasks(f"tool {name}")
        try:
            done = work.start(execute(), name=context.call_id)
            await asyncio.wait({done})
        finally:
            await work.close()
        if done.cancelled():
            return ToolResult.error(name, "the tool was cancelled")
        if error := done.exception():
            return ToolResult.error(name, f"{type(error).__name__}: {error}")
        result = done.result()
        if isinstance(result, StaleClaim):
            raise result
        return result if isinstance(result, ToolResult) else ToolResult.error(name, "no tool result")


def rejected(call: ToolCall, decision: ToolCallResume) -> ToolResult:
    """Return the answer to a rejected tool call."""
    reason = f": {decision.reason}" if decision.reason else ""
    return ToolResult.error(call.name, f"the call was rejected{reason}", rejected=True)


def given_up(call: ToolCall) -> ToolResult:
    """Return the answer to an interrupted tool call, which may have done part of its work."""
    return ToolResult.error(
        call.name, "the call was interrupted before it ended; the tool may have been executed", cut_off=True
    )


def serializable(result: ToolResult) -> ToolResult:
    """Return a result, or an error if the result cannot be represented as JSON."""
    parameters = result.suspension.parameters if result.suspension else None
    try:
        json.dumps((result.data, result.message, result.metadata, parameters), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return ToolResult.error(result.tool_name, f"the tool's answer is not JSON: {error}")
    return result


def told(result: ToolResult) -> str:
    """Return the text of a tool result for the model."""
    if result.status is ToolStatus.ERROR:
        content: Json = {"error": result.message or "the tool failed"}
        content |= {"data": result.data} if result.data is not None else {}
    elif isinstance(result.data, str):
        return result.data
    else:
        content = result.data if result.data is not None or result.message is None else result.message
    return (
        content
        if isinstance(content, str)
        else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    )


def ticket_for(call: ToolCall, result: ToolResult, *, now: int) -> RunWaitingTicket:
    """Return a ticket for the question that a suspended tool call asks."""
    question = result.suspension
    reason: str = WaitingReason.TOOL_PERMISSION
    if question is not None and question.action == FRONTEND:
        reason = WaitingReason.USER_INPUT
    elif question is not None and question.message and result.resume_mode.is_a_question:
        reason = question.message
    return RunWaitingTicket(
        ticket_id=question.id if question else f"ask_{call.id}",
        tool_call_id=call.id,
        tool_name=call.name,
        arguments=call.arguments,
        resume_mode=result.resume_mode,
        reason=reason,
        updated_at=now,
    )


def waiting_for(
    tickets: Sequence[RunWaitingTicket], dispatch_id: str | None, *, said: str = ""
) -> RunWaitingState:
    """Return the waiting state of a run that has asked the questions in `tickets`."""
    asks = any(ticket.reason == WaitingReason.TOOL_PERMISSION for ticket in tickets)
    return RunWaitingState(
        reason=WaitingReason.TOOL_PERMISSION if asks else WaitingReason.USER_INPUT,
        tickets=tuple(tickets),
        since_dispatch_id=dispatch_id,
        message=said or None,
    )


def waits(record: RunRecord, waiting: RunWaitingState) -> RunRecord:
    """Return a copy of the run record with the status `waiting`."""
    return replace(record, status=RunStatus.WAITING, waiting=waiting, termination=None, finished_at=None)


def settled_by(
    decision: ToolCallResume, ticket: RunWaitingTicket
) -> tuple[ToolCall, ToolResult | CallRequest]:
    """Return the tool call of a ticket, with the answer or with a request to execute the call."""
    call = ToolCall(id=ticket.tool_call_id, name=ticket.tool_name, arguments=ticket.arguments)
    mode = ticket.resume_mode
    is_no = decision.approved is False
    given_up = decision.action is ResumeDecisionAction.CANCEL and not (is_no and mode.is_a_question)
    if given_up or (is_no and mode is ToolCallResumeMode.REPLAY_TOOL_CALL):
        return call, rejected(call, decision)
    if mode is ToolCallResumeMode.USE_DECISION_AS_TOOL_RESULT:
        return call, ToolResult.success(call.name, decision.result)
    return call, CallRequest(call=call, decision=decision)


def decided(
    tickets: Mapping[str, RunWaitingTicket], decisions: Mapping[str, ToolCallResume]
) -> list[tuple[RunWaitingTicket, ToolCallResume]]:
    """Return the decided tickets, each with the decision.

    `decisions` are keyed by the id of the tool call or of the ticket.
    """
    resolved = []
    for ticket in tickets.values():
        decision = decisions.get(ticket.tool_call_id) or decisions.get(ticket.ticket_id)
        if decision is not None:
            resolved.append((ticket, decision))
    return resolved
