"""Every client through every scenario: a run of the real program proves the table."""

import pytest

from real_clients import page
from real_clients.bench import Bench
from real_clients.clients import CLIENTS, PROGRAMS
from real_clients.home import PINS
from real_clients.scenarios import OF_THE_SERVER, SCENARIOS
from real_clients.table import TABLE, No, NotOffered, NotYet, Yes

pytestmark = pytest.mark.timeout(900)  # each step has its bound, which is longer on a busy machine
TRIED = [
    pytest.param(client, scenario, id=f"{client}-{scenario}")
    for client, row in TABLE.items()
    for scenario, cell in row.items()
    if not isinstance(cell, NotOffered)
]


@pytest.mark.parametrize(("client", "scenario"), TRIED)
def test_a_client_does_what_the_table_says(client: str, scenario: str, bench: Bench) -> None:
    cell = TABLE[client][scenario]
    if isinstance(cell, Yes):
        assert SCENARIOS[scenario](bench) == cell.detail
    elif isinstance(cell, No):
        with pytest.raises(AssertionError, match=cell.because):
            SCENARIOS[scenario](bench)
    elif isinstance(cell, NotYet):
        with pytest.raises(AssertionError):
            SCENARIOS[scenario](bench)


def test_every_client_has_a_cell_for_every_scenario() -> None:
    for client, row in TABLE.items():
        assert set(row) == set(SCENARIOS if client in PROGRAMS else OF_THE_SERVER), client


def test_the_page_says_what_the_table_says_of_the_pinned_versions() -> None:
    told = page.page(page.expected(), page.tried()["dates"])
    assert page.PAGE.read_text() == told, "run `make clients-table`"


def test_the_product_names_the_pinned_releases_as_tried() -> None:
    pinned = {one.package: PINS[one.package] for one in CLIENTS.values()}
    assert page.tried()["releases"] == pinned, "run `make clients-table`"
