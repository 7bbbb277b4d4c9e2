"""What runs may use up, and what they have: counted where the runs are kept, in the step that ends each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BUDGET_TOOL: Final = "budget"
"""What asks whether a run may go on where its budget is used up: the name of the tool in such a question."""


class BudgetScope(StrEnum):
    """Whose runs a budget counts."""

    THREAD = "thread"
    TENANT = "tenant"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What the runs of a scope used up; money in millionths of a currency. Negative: a grant."""

    scope: str
    runs: int = 0
    wall_ms: int = 0
    tokens: int = 0
    cost_micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much the runs of a thread, a tenant or of all together may use up; None is no limit.

    It is looked at when a run is about to start: one that is at work is never cut off by it.
    """

    per: BudgetScope
    runs: int | None = None
    wall_ms: int | None = None
    tokens: int | None = None
    cost_micros: int | None = None

    def key(self, *, thread_id: str, tenant: str) -> str | None:
        """Return the scope that this budget counts a run in; None when it does not concern it."""
        ids = {BudgetScope.THREAD: thread_id, BudgetScope.TENANT: tenant, BudgetScope.ALL: "*"}
        return f"{self.per}:{ids[self.per]}" if ids[self.per] else None

    def spent_up(self, spent: Spending) -> str | None:
        """Return which limit is reached: `runs`, `wall_ms`, `tokens` or `cost_micros`; None when none is."""
        limits = {
            "runs": (self.runs, spent.runs),
            "wall_ms": (self.wall_ms, spent.wall_ms),
            "tokens": (self.tokens, spent.tokens),
            "cost_micros": (self.cost_micros, spent.cost_micros),
        }
        reached = (name for name, (limit, used) in limits.items() if limit is not None and used >= limit)
        return next(reached, None)

    def grant(self, scope: str) -> Spending:
        """Return what gives the whole allowance once more."""
        return Spending(
            scope=scope,
            runs=-(self.runs or 0),
            wall_ms=-(self.wall_ms or 0),
            tokens=-(self.tokens or 0),
            cost_micros=-(self.cost_micros or 0),
        )
