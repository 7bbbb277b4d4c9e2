"""Looks at budgets when a run is about to start. One that is used up makes the run wait and ask.

The question is a ticket of the waiting run; a yes to it grants the whole allowance once more, and behind a no
it is asked anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.budgets import BUDGET_TOOL, Budget, BudgetScope, Spending
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, WaitingReason
from postroom.contracts.tools import ToolCallResumeMode
from postroom.dispatch.core import Core

_WHOSE: Final = {
    BudgetScope.THREAD: "this conversation",
    BudgetScope.TENANT: "{tenant}",
    BudgetScope.ALL: "all runs",
}
_WORDS: Final = {
    "runs": "runs",
    "wall_ms": "seconds of work",
    "tokens": "tokens",
    "cost_micros": "in money",
}
_MS: Final = 1_000
_MICROS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    scope: str
    budget: Budget
    limit: str
    spent: Spending

    def ticket_id(self, dispatch_id: str) -> str:
        """Return the name of the question as a dispatch asks it: an answer is one to this question alone."""
        return f"{BUDGET_TOOL}/{self.scope}/{self.limit}#{dispatch_id}"

    def is_meant_by(self, call_id: str) -> bool:
        """Say whether an answer is one to this question, whichever dispatch asked it."""
        return call_id.partition("#")[0] == self.ticket_id("").partition("#")[0]

    def text(self, tenant: str) -> str:
        """Return what a person is asked."""
        allowed, spent = getattr(self.budget, self.limit), getattr(self.spent, self.limit)
        told = f"{_told(self.limit, spent)} of {_told(self.limit, allowed)} {_WORDS[self.limit]}"
        whose = _WHOSE[self.budget.per].format(tenant=tenant)
        return f"The budget of {whose} is used up: {told}. May it use as much again?"


class Budgets:
    """The budgets of one mailbox."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._budgets = core.config.budgets

    async def pause(self, activation: RunActivation, dispatch: RunDispatch) -> RunWaitingState | None:
        """Return what the run must wait for; None when it may start.

        Where the request brings a yes to the question, the allowance is granted once more first. A run that
        a person has let go on with their answer to another question goes on with it.
        """
        if not self._budgets or _is_let_go_on(activation):
            return None
        reached = await self._reached(dispatch)
        approved = [call for call, resume in activation.decisions if resume.approved]
        granted = [one for one in reached if any(one.is_meant_by(call) for call in approved)]
        if granted:
            await self._grant(dispatch, granted)
            reached = await self._reached(dispatch)
        return _question(reached, dispatch, now=self._core.now()) if reached else None

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


def _is_let_go_on(activation: RunActivation) -> bool:
    return any(not call.startswith(f"{BUDGET_TOOL}/") for call, _ in activation.decisions)


def _told(limit: str, used: int) -> str:
    """Return how much that is, in the unit that people count it in."""
    match limit:
        case "wall_ms":
            return str(used // _MS)
        case "cost_micros":
            return f"{used / _MICROS:.2f}"
    return str(used)


def _question(reached: Sequence[_Reached], dispatch: RunDispatch, *, now: int) -> RunWaitingState:
    tickets = tuple(
        RunWaitingTicket(
            ticket_id=one.ticket_id(dispatch.dispatch_id),
            tool_call_id=one.ticket_id(dispatch.dispatch_id),
            tool_name=BUDGET_TOOL,
            resume_mode=ToolCallResumeMode.PASS_DECISION_TO_TOOL,
            arguments={
                "scope": one.scope,
                "limit": one.limit,
                "allowed": getattr(one.budget, one.limit),
                "spent": getattr(one.spent, one.limit),
            },
            reason=one.text(dispatch.tenant),
            updated_at=now,
        )
        for one in reached
    )
    return RunWaitingState(reason=WaitingReason.MANUAL_PAUSE, tickets=tickets)
