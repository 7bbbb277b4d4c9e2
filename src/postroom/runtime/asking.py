"""Questions that a run waits on: tickets for suspended calls, and what a decision makes of each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from postroom.contracts.messages import ToolCall
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
    by_other_side = question is not None and question.action == FRONTEND
    return RunWaitingTicket(
        ticket_id=question.id if question else f"ask_{call.id}",
        tool_call_id=call.id,
        tool_name=call.name,
        arguments=call.arguments,
        resume_mode=result.resume_mode,
        reason=WaitingReason.USER_INPUT if by_other_side else WaitingReason.TOOL_PERMISSION,
        updated_at=now,
    )


def waiting_for(tickets: Sequence[RunWaitingTicket], dispatch_id: str | None) -> RunWaitingState:
    """Return what a run with these open questions waits for; a permission goes before an input."""
    reasons = {ticket.reason for ticket in tickets}
    reason = WaitingReason.USER_INPUT if reasons == {WaitingReason.USER_INPUT} else None
    return RunWaitingState(
        reason=reason or WaitingReason.TOOL_PERMISSION,
        tickets=tuple(tickets),
        since_dispatch_id=dispatch_id,
    )


def waits(record: RunRecord, waiting: RunWaitingState) -> RunRecord:
    """Return the run as it is while it waits."""
    return replace(record, status=RunStatus.WAITING, waiting=waiting, termination=None, finished_at=None)


def settled_by(
    decision: ToolCallResume, ticket: RunWaitingTicket
) -> tuple[ToolCall, ToolResult | CallRequest]:
    """Return what a decision makes of a call: its answer at once, or that it is to be made.

    A no is an answer, except where the decision is the answer itself or the tool's to judge.
    """
    call = ToolCall(id=ticket.tool_call_id, name=ticket.tool_name, arguments=ticket.arguments)
    mode = ticket.resume_mode
    refused = mode is ToolCallResumeMode.REPLAY_TOOL_CALL and decision.approved is False
    if decision.action is ResumeDecisionAction.CANCEL or refused:
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
