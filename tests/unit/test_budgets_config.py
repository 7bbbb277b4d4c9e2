"""Budgets in the configuration file: their values, and the words that refuse a wrong one."""

from pathlib import Path

import pytest

from postroom.app.budgets_config import load_budgets
from postroom.app.config import load_settings
from postroom.contracts.errors import ConfigError
from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow
from table_rows import each_row

GOOD = """
port = 8999

[[budgets]]
per = "conversation"
runs = 100
work = "8h"

[[budgets]]
per = "all"
tokens = 1000000
cost = 12.5

[[budgets]]
per = "agent"
window = "day"
zone = "Europe/Berlin"
runs = 50

[[budgets]]
per = "agent"
window = "month"
runs = 500
"""


def environment(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return {"POSTROOM_CONFIG": str(file), "HOME": str(tmp_path)}


def test_budgets_are_read_in_the_units_of_people(tmp_path: Path) -> None:
    given = environment(tmp_path, GOOD)
    assert load_budgets(given) == (
        Budget(per=BudgetScope.THREAD, runs=100, wall_ms=8 * 3_600_000),
        Budget(per=BudgetScope.ALL, tokens=1_000_000, cost_micros=12_500_000),
        Budget(per=BudgetScope.AGENT, window=BudgetWindow.DAY, zone="Europe/Berlin", runs=50),
        Budget(per=BudgetScope.AGENT, window=BudgetWindow.MONTH, runs=500),
    )
    assert load_settings(environment=given).port == 8999


def test_without_a_file_or_without_budgets_nothing_is_limited(tmp_path: Path) -> None:
    assert load_budgets({"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) == ()
    assert load_budgets(environment(tmp_path, "port = 1\n")) == ()


@each_row(
    "text, words",
    [
        ("budgets = 3", "not a list of tables"),
        ("[[budgets]]\nruns = 1", "number 1: per is missing"),
        ("[[budgets]]\nper = 'week'\nruns = 1", "per is 'week': write 'agent', 'all' or 'conversation'"),
        ("[[budgets]]\nper = 3\nruns = 1", "per is '3': write 'agent'"),
        ("[[budgets]]\nper = 'all'", "the budget sets no limit"),
        ("[[budgets]]\nper = 'all'\nrun = 1", "no setting is called 'run'"),
        ("[[budgets]]\nper = 'all'\nruns = 0", "runs is '0': write a whole number from 1 to"),
        ("[[budgets]]\nper = 'all'\ntokens = true", "tokens is 'True': write a whole number from 1"),
        ("[[budgets]]\nper = 'all'\nwork = 5", "work is '5': write a duration with its unit"),
        ("[[budgets]]\nper = 'all'\nwork = '5'", "duration"),
        ("[[budgets]]\nper = 'all'\ncost = nan", "cost is 'nan': write a number greater than 0"),
        ("[[budgets]]\nper = 'all'\ncost = '5 EUR'", "cost is '5 EUR': write a number greater than 0"),
        (2 * "[[budgets]]\nper = 'all'\nruns = 1\n", "two budgets set runs for the same runs"),
        (
            2 * "[[budgets]]\nper = 'all'\nwork = '1h'\nwindow = 'day'\n",
            "two budgets set work for the same runs",
        ),
        (
            "[[budgets]]\nper = 'all'\nruns = 1\nwindow = 'week'",
            "window is 'week': write one of hour, day, month",
        ),
        ("[[budgets]]\nper = 'all'\nruns = 1\nwindow = 1", "window is '1': write one of hour, day, month"),
        ("[[budgets]]\nper = 'all'\nruns = 1\nzone = 'UTC'", "the budget sets zone, but not window"),
        (
            "[[budgets]]\nper = 'all'\nruns = 1\nwindow = 'day'\nzone = 'Mars'",
            "budget's time zone is unknown",
        ),
    ],
)
def test_a_wrong_budget_is_refused_and_named(tmp_path: Path, text: str, words: str) -> None:
    given = environment(tmp_path, text)
    with pytest.raises(ConfigError, match=r"config\.toml") as caught:
        load_budgets(given)
    assert words in caught.value.message
    assert caught.value.remedy
