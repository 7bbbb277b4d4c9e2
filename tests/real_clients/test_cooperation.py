"""Two real clients run into the failures of teams: without postroom each failure happens, with postroom none does."""

import pytest

from real_clients.cooperation import FAILURES, PAGE, Outcome, page, play
from real_clients.home import Home


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_happens_without_postroom_and_not_with_it(name: str, home: Home) -> None:
    """The `home` is not used: each play has its own. It marks the test as dependent on the clients."""
    without, with_it = (play(FAILURES[name], has_postroom=has_postroom) for has_postroom in (False, True))
    print(without, with_it)
    assert (without.failures > 0, with_it.failures) == (True, 0)


def test_the_page_has_a_row_for_each_failure_and_for_its_cost() -> None:
    rows = [row.split(" | ") for row in PAGE.read_text().splitlines() if row.startswith("| ")]
    named = [cells[0].removeprefix("| ") for cells in rows if len(cells) > 1]
    assert [name for name in named if name in FAILURES] == [*FAILURES, *FAILURES]
    for cells in rows:
        if cells[0].removeprefix("| ") in FAILURES and len(cells) == 6:
            assert (int(cells[3]) > 0, int(cells[4])) == (True, 0), cells


def test_the_page_is_what_the_program_writes() -> None:
    shown = PAGE.read_text()
    cost = {
        cells[0]: [int(cell.replace(",", "")) for cell in cells[1:]]
        for cells in _rows(shown)
        if cells[0] in FAILURES and len(cells) == 5
    }
    counts = {
        cells[0]: [int(cells[3]), int(cells[4])]
        for cells in _rows(shown)
        if cells[0] in FAILURES and len(cells) == 6
    }
    outcomes = {
        name: tuple(Outcome(counts[name][side], cost[name][side], cost[name][2 + side]) for side in (0, 1))
        for name in FAILURES
    }
    assert page(outcomes) == shown


def _rows(text: str) -> list[list[str]]:
    return [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
