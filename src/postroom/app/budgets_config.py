"""The `[[budgets]]` tables of the configuration file: limits for conversations, agents, or all runs."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from postroom.app import places
from postroom.app.config import read_tables
from postroom.app.tables import read_table
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ConfigError
from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow, same_limits
from postroom.contracts.records import Meta
from postroom.contracts.tables import Duration, Table

TABLE: Final = "budgets"
_PER: Final = {
    "conversation": BudgetScope.THREAD,
    "agent": BudgetScope.AGENT,
    "all": BudgetScope.ALL,
}
_NAMES: Final = {"wall_ms": "work", "cost_micros": "cost"}
_MAX_AMOUNT: Final = 10**15
_MICROS: Final = 1_000_000


def _cost(value: object) -> object:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= _MAX_AMOUNT / _MICROS
    ):
        raise ValueError("write a number greater than 0")
    return value


_Limit = Annotated[int, Meta(ge=1, le=_MAX_AMOUNT)]


class BudgetTable(Table, frozen=True, kw_only=True):
    """A `[[budget]]` table of the configuration file."""

    per: Literal["conversation", "agent", "all"]
    window: BudgetWindow | None = None
    zone: str | None = None
    runs: _Limit | None = None
    work: Duration | None = None
    tokens: _Limit | None = None
    cost: Annotated[float, Meta(extra={"read": _cost})] | None = None

    def __post_init__(self) -> None:
        if (self.runs, self.work, self.tokens, self.cost) == (None, None, None, None):
            raise ConfigError(
                "the budget sets no limit",
                remedy='add a limit, such as runs = 100, work = "8h", tokens or cost',
            )
        if self.zone is not None and self.window is None:
            raise ConfigError(
                "the budget sets zone, but not window",
                value="zone",
                remedy="also set window, or remove zone",
            )

    def budget(self) -> Budget:
        """Convert the configuration table to a budget.

        Raises:
            ConfigError: The time zone is unknown.
        """
        return Budget(
            per=_PER[self.per],
            window=self.window,
            zone=self.zone or "UTC",
            runs=self.runs,
            wall_ms=None if self.work is None else milliseconds(self.work),
            tokens=self.tokens,
            cost_micros=None if self.cost is None else round(self.cost * _MICROS),
        )


def load_budgets(environment: Mapping[str, str]) -> tuple[Budget, ...]:
    """Return the budgets in the configuration file; return no budgets if there is no file.

    Raises:
        ConfigError: A budget is invalid.
    """
    budgets: tuple[Budget, ...] = ()
    for place, fields in read_tables(environment, TABLE):
        table = read_table(place, fields, BudgetTable, environment)
        try:
            budgets += (table.budget(),)
        except ConfigError as error:
            raise place.error(error.message, value=error.value, remedy=error.remedy) from error
    for name in same_limits(budgets):
        file, limit = places.config_file(environment), _NAMES.get(name, name)
        raise ConfigError(
            f"{file} [[{TABLE}]]: two budgets set {limit} for the same runs and the same window",
            remedy="remove one of the two budgets",
        )
    return budgets
