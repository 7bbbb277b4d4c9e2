"""Questions that a run waits on: tickets for suspended calls, and what a decision makes of each."""

from collections.abc import Mapping, Sequence

from postroom.contracts.messages import ToolCall
from postroom.contracts.records import replace
from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingState, RunWaitingTicket, WaitingReason
from postroom.contracts.tools import (
    ResumeDecisionAction,
    ToolCallResume,
    ToolCallResumeMode,
    ToolResult,
)
from postroom.runtime.calls import FRONTEND, CallRequest, rejected


def ticket_for(call: ToolCall, result: ToolResult, *, now: int) -> RunWaitingTicket:
    """Return the ticket of a call that was suspended."""
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
    """Return what a run with these open questions waits for; a permission goes before an input."""
    asks = any(ticket.reason == WaitingReason.TOOL_PERMISSION for ticket in tickets)
    return RunWaitingState(
        reason=WaitingReason.TOOL_PERMISSION if asks else WaitingReason.USER_INPUT,
        tickets=tuple(tickets),
        since_dispatch_id=dispatch_id,
        message=said or None,
    )


def waits(record: RunRecord, waiting: RunWaitingState) -> RunRecord:
    """Return the run as it is while it waits."""
    return replace(record, status=RunStatus.WAITING, waiting=waiting, termination=None, finished_at=None)


def settled_by(
    decision: ToolCallResume, ticket: RunWaitingTicket
) -> tuple[ToolCall, ToolResult | CallRequest]:
    """Return what a decision makes of a call: its answer at once, or that it is to be made.

    A no is an answer, except where the decision is the answer itself or the tool's to judge. A question that
    is given up is answered so, whoever asked.
    """
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
    """Return the open questions that were decided; a decision names the call, or the ticket."""
    found = []
    for ticket in tickets.values():
        decision = decisions.get(ticket.tool_call_id) or decisions.get(ticket.ticket_id)
        if decision is not None:
            found.append((ticket, decision))
    return found
