"""`docs/clients.md`: what each client does, written from a run of every scenario: `make clients-table`."""

import json
import sys
from collections.abc import Mapping

from real_clients.clients import CLIENTS
from real_clients.home import PINS, ROOT
from real_clients.scenarios import SCENARIOS
from real_clients.table import TABLE, Cell, NotOffered, Yes

PAGE = ROOT / "docs" / "clients.md"
RESULTS = ROOT / ".clients" / "results"
HEAD = """\
# Clients

What works with which client, seen with the real programs: each is run without a person, in a home of its own, against
a model that follows a script. This page is written from that run by `make clients-table`; `make test-clients` repeats
it. `postroom setup` and the runners are documented in [setup](setup.md) and [runners](runners.md).
"""


def word(cell: Cell) -> str:
    """Return what a cell of the page says."""
    if isinstance(cell, Yes):
        detail = f"`{cell.detail}`" if cell.detail.startswith("-") else cell.detail
        return f"yes: {detail}" if detail else "yes"
    return f"{'not offered' if isinstance(cell, NotOffered) else 'no'}: {cell.reason}"


def page(words: Mapping[tuple[str, str], str]) -> str:
    """Return the page for what the cells say."""
    rows = ["", "| | " + " | ".join(TABLE) + " |", "|---" * (len(TABLE) + 1) + "|"]
    rows.append("| version | " + " | ".join(PINS[CLIENTS[client].package] for client in TABLE) + " |")
    for scenario in SCENARIOS:
        cells = [words[client, scenario] for client in TABLE]
        rows.append(f"| {scenario.replace('_', ' ')} | " + " | ".join(cells) + " |")
    rows += ["", "The rows:", ""]
    for name, scenario in SCENARIOS.items():
        rows.append(f"- **{name.replace('_', ' ')}**: {(scenario.__doc__ or '').splitlines()[0]}")
    rows += ["", "The programs:", ""]
    rows += [f"- `{client}` is npm's `{CLIENTS[client].package}`" for client in TABLE]
    return HEAD + "\n".join(rows) + "\n"


def expected() -> dict[tuple[str, str], str]:
    """Return what the cells say when every test of the table passes."""
    return {(client, scenario): word(TABLE[client][scenario]) for client in TABLE for scenario in SCENARIOS}


def keep(client: str, scenario: str, *, passed: bool) -> None:
    """Keep what the run of one scenario came to."""
    RESULTS.mkdir(exist_ok=True)
    said = word(TABLE[client][scenario]) if passed else "fails"
    found = {"version": PINS[CLIENTS[client].package], "says": said}
    (RESULTS / f"{client}.{scenario}.json").write_text(json.dumps(found))


def of_the_run() -> dict[tuple[str, str], str]:
    """Return what the last run found; a scenario that was not run with the pinned version is `not tried`."""
    words = {}
    for client, row in TABLE.items():
        for scenario, cell in row.items():
            words[client, scenario] = word(cell) if isinstance(cell, NotOffered) else _found(client, scenario)
    return words


def _found(client: str, scenario: str) -> str:
    path = RESULTS / f"{client}.{scenario}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return str(found["says"]) if found.get("version") == PINS[CLIENTS[client].package] else "not tried"


if __name__ == "__main__":
    PAGE.write_text(page(of_the_run()))
    sys.exit(of_the_run() != expected())
