"""Looks at budgets when a run is about to start. One that is used up makes the run wait and ask.

The question is a ticket of the waiting run; a yes to it grants the whole allowance once more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from postroom.contracts.activation import RunActivation
from postroom.contracts.budgets import Budget, Spending
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, WaitingReason
from postroom.dispatch.core import Core

TOOL_NAME = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    scope: str
    budget: Budget
    limit: str
    spent: Spending

    @property
    def ticket_id(self) -> str:
        """The question, the same until it is answered."""
        return f"{TOOL_NAME}/{self.scope}/{self.limit}"


class Budgets:
    """The budgets of one mailbox."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._budgets = core.config.budgets

    async def pause(self, activation: RunActivation, dispatch: RunDispatch) -> RunWaitingState | None:
        """Return what the run must wait for; None when it may start.

        Where the request brings a yes to the question, the allowance is granted once more first.
        """
        if not self._budgets:
            return None
        reached = await self._reached(dispatch)
        approved = {call for call, resume in activation.decisions if resume.approved}
        granted = [one for one in reached if one.ticket_id in approved]
        if granted:
            await self._grant(dispatch, granted)
            reached = await self._reached(dispatch)
        return _question(reached, now=self._core.now()) if reached else None

    def spent_by(
        self, dispatch: RunDispatch, result: AgentRunResult, *, wall_ms: int
    ) -> tuple[Spending, ...]:
        """Return what an execution adds to the scopes that are counted."""
        usage = result.usage
        return tuple(
            Spending(
                scope=scope,
                runs=1,
                wall_ms=wall_ms,
                tokens=usage.input_tokens + usage.output_tokens,
                cost_micros=usage.cost_micros,
            )
            for scope, _ in self._scopes(dispatch)
        )

    async def _reached(self, dispatch: RunDispatch) -> list[_Reached]:
        scopes = dict(self._scopes(dispatch))
        spent = await self._core.threads.spending(list(scopes))
        return [
            _Reached(scope=scope, budget=budget, limit=limit, spent=spent[scope])
            for scope, budget in scopes.items()
            if (limit := budget.spent_up(spent[scope])) is not None
        ]

    async def _grant(self, dispatch: RunDispatch, granted: Sequence[_Reached]) -> None:
        await self._core.stores.coordinator.commit(
            ThreadCommit(
                thread_id=dispatch.thread_id,
                claim=dispatch.claim_proof,
                spends=tuple(one.budget.grant(one.scope) for one in granted),
            )
        )

    def _scopes(self, dispatch: RunDispatch) -> Iterator[tuple[str, Budget]]:
        for budget in self._budgets:
            scope = budget.key(thread_id=dispatch.thread_id, tenant=dispatch.tenant)
            if scope is not None:
                yield scope, budget


def _question(reached: Sequence[_Reached], *, now: int) -> RunWaitingState:
    tickets = tuple(
        RunWaitingTicket(
            ticket_id=one.ticket_id,
            tool_call_id=one.ticket_id,
            tool_name=TOOL_NAME,
            arguments={
                "scope": one.scope,
                "limit": one.limit,
                "allowed": getattr(one.budget, one.limit),
                "spent": getattr(one.spent, one.limit),
            },
            reason=f"{one.scope} has used up its {one.limit}",
            updated_at=now,
        )
        for one in reached
    )
    return RunWaitingState(
        reason=WaitingReason.MANUAL_PAUSE,
        tickets=tickets,
        message="; ".join(ticket.reason for ticket in tickets),
    )
