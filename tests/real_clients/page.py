"""`docs/clients.md`: what each client does, written from a run of every scenario: `make clients-table`."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from real_clients.clients import CLIENTS, PROGRAMS
from real_clients.home import PINS, ROOT
from real_clients.scenarios import OF_A_PERSON, OF_THE_SERVER, Scenario
from real_clients.table import COLLIDES, TABLE, Cell, NotOffered, Yes

PAGE = ROOT / "docs" / "clients.md"
RESULTS = ROOT / ".clients" / "results"
TRIED = ROOT / "src" / "postroom" / "app" / "clients" / "tried.json"
"""The date and the releases of the newest run that passed; `postroom setup status` reads them."""
COLLISIONS = ROOT / "tests" / "real_clients" / "collisions.json"
"""The outcomes of the newest whole run of the collisions, with its date."""
WHOLE_RUN = 6
"""How many collisions of each kind with each client are a whole run."""
KEPT = timedelta(days=7)
"""How long a run of the table may go on from the results of an earlier one."""
HEAD = """\
# Clients

This page lists which features work with which client. The tests run each real client without a person, in its own home
folder, and with a model that follows a script. `make clients-table` runs these tests and writes this page from the results.
`make test-clients` runs some of the tests again. [Setup](setup.md) describes `postroom setup`, and [Runners](runners.md) describes
the runners.

**Age of this page:** the oldest result is from {date}. Each client was tested in the newest release of that day. The
row "tested on" contains the date for each client. Clients update themselves, and a newer release may behave differently.
`postroom setup status` shows the installed release, and warns if this page describes another release.

The tables have {total} cells. {yes} cells ({share} %) say yes, {no} say no, and {missing} say "not offered". Of the {tried} features
that the clients offer, {share_tried} % work. The notes explain each cell that does not say yes.
"""
AGENTS = """\
The server starts these agents when mail arrives. An agent is either a client without a person, or a program that uses the Agent
Client Protocol (ACP).
"""
COLLIDING = """\
In each test, Bo reads a file and Ada then changes this file. Without reading the file again, Bo writes the file with a tool of the
client. The table shows the outcomes of {total} such collisions on {date}. The number of edits that were lost without notice
is {lost}. [Hooks](hooks.md#no-edit-lost) describes how the hooks prevent lost edits.
"""
OUTCOMES = """\
- **held**: The hook refuses the write. The model gets the changed lines and Ada's name.
- **made and told**: The hook allows the write. Together with the result of the tool, the model gets the changed lines and Ada's name.
- **refused by the client**: The client's own check refuses the write before the hook runs. After the next tool call, the model is told of Ada's change.
- **no such tool**: The client has no tool of this kind. Codex and Cline edit files by patches. Clients without a tool for patches apply patches with a shell command.

If the setting `stale_edit_mode` is `block`, edits, patches and shell commands are held, too. There is one exception in every
client: a shell command that changes a file without naming the file is not held. The agent is told of the collision after the
command."""
STEERED = """\
Claude Code, Codex and opencode get a message that arrives during a run at once. The other clients get such a message with the
result of the next postroom tool."""
HANGS = """\
`opencode run` sometimes hangs without output (its issues 35870 and 44901). If `opencode run` has not
called a tool before it hangs, the tests start it once more."""


def word(cell: Cell) -> str:
    """Return what a run of a cell comes to."""
    if isinstance(cell, Yes):
        detail = f"`{cell.detail}`" if cell.detail.startswith("-") else cell.detail
        return f"yes: {detail}" if detail else "yes"
    return f"{'not offered' if isinstance(cell, NotOffered) else 'no'}: {cell.reason}"


Words = Mapping[tuple[str, str], str]
"""The result of a client and a scenario: a word, and after a colon the note."""


def page(words: Words, dates: Mapping[str, str]) -> str:
    """Return the page for the cells, and the date (YYYY-MM-DD) of each client's oldest cell."""
    notes: dict[str, int] = {}
    rows = [
        HEAD.format(date=min(dates.values()), **_counts(words)),
        "## Clients of people",
        "",
        "A person starts these sessions. The numbers refer to the notes below.",
        "",
    ]
    rows += _row("", PROGRAMS) + _row("---", ["---"] * len(PROGRAMS))
    rows += _row("version", [PINS[one.package] for one in PROGRAMS.values()])
    rows += _row("tested on", [dates[client] for client in PROGRAMS])
    for scenario in OF_A_PERSON:
        rows += _row(_named(scenario), [_short(words[client, scenario], notes) for client in PROGRAMS])
    rows += [
        "",
        *_explained(OF_A_PERSON),
        "",
        *_collisions(),
        "",
        "## Agents that the server runs",
        "",
        AGENTS,
    ]
    rows += _row("", map(_named, OF_THE_SERVER)) + _row("---", ["---"] * len(OF_THE_SERVER))
    for client in CLIENTS:
        cells = [_short(words[client, scenario], notes) for scenario in OF_THE_SERVER]
        rows += _row(f"{client} {PINS[CLIENTS[client].package]}", cells)
    rows += ["", *_explained(OF_THE_SERVER), "", STEERED, "", "## Notes", ""]
    rows += [f"{number}. {note}" for note, number in notes.items()]
    rows += ["", "## The programs", ""]
    rows += [
        f"- `{client}` is the npm package `{one.package}`, tested on {dates[client]}"
        for client, one in CLIENTS.items()
    ]
    rows += ["", HANGS]
    return "\n".join(rows) + "\n"


def _collisions() -> list[str]:
    """Return the part about agents that change one file at the same time."""
    found = json.loads(COLLISIONS.read_text())
    kinds = list(next(iter(COLLIDES.values())))
    outcomes: dict[str, dict[str, Counter[str]]] = {
        client: {kind: Counter(one) for kind, one in row.items()} for client, row in found["outcomes"].items()
    }
    total = sum((one for row in outcomes.values() for one in row.values()), Counter[str]())
    intro = COLLIDING.format(total=total.total(), date=found["date"], lost=total["lost in silence"])
    rows = ["## Two agents that change one file", "", intro]
    rows += _row("", kinds) + _row("---", ["---"] * len(kinds))
    for client in COLLIDES:
        cells = [
            ", ".join(
                f"{outcome} ({count})"
                for outcome, count in sorted(outcomes[client].get(kind, Counter()).items())
            )
            or "no such tool"
            for kind in kinds
        ]
        rows += _row(f"{client} {PINS[CLIENTS[client].package]}", cells)
    return [*rows, "", OUTCOMES]


def _counts(words: Words) -> dict[str, Any]:
    """Return how many cells there are of each kind, and the share of yes in percent."""
    found = Counter(said.partition(": ")[0] for said in words.values())
    total, yes, missing = found.total(), found["yes"], found["not offered"]
    return {
        "total": total,
        "yes": yes,
        "no": total - yes - missing,
        "missing": missing,
        "tried": total - missing,
        "share": f"{100 * yes / total:.1f}",
        "share_tried": f"{100 * yes / (total - missing):.1f}",
    }


def _row(first: str, cells: Iterable[str]) -> list[str]:
    return [f"| {' | '.join((first, *cells))} |"]


def _named(scenario: str) -> str:
    return scenario.replace("_", " ")


def _short(said: str, notes: dict[str, int]) -> str:
    """Return a cell: the word, and the number of its note."""
    word, _, note = said.partition(": ")
    return f"{word} ({notes.setdefault(note, len(notes) + 1)})" if note else word


def _explained(scenarios: Mapping[str, Scenario]) -> list[str]:
    return [f"- **{_named(name)}**: {one.__doc__}" for name, one in scenarios.items()]


def keep_collisions(client: str, kind: str, outcomes: Counter[str]) -> None:
    """Keep the outcomes of a client's collisions, if they are of a whole run."""
    if outcomes.total() < WHOLE_RUN:
        return
    found = json.loads(COLLISIONS.read_text()) if COLLISIONS.exists() else {"outcomes": {}}
    found["date"] = datetime.now(UTC).date().isoformat()
    found["outcomes"].setdefault(client, {})[kind] = dict(outcomes)
    COLLISIONS.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def expected() -> dict[tuple[str, str], str]:
    """Return what the cells say when every test of the table passes."""
    return {(client, scenario): word(cell) for client, row in TABLE.items() for scenario, cell in row.items()}


def keep(client: str, scenario: str, *, passed: bool) -> None:
    """Keep what the run of one scenario came to."""
    RESULTS.mkdir(exist_ok=True)
    said = word(TABLE[client][scenario]) if passed else "fails"
    today = datetime.now(UTC).date().isoformat()
    found = {"version": PINS[CLIENTS[client].package], "says": said, "date": today}
    (RESULTS / f"{client}.{scenario}.json").write_text(json.dumps(found))


def _result(client: str, scenario: str) -> dict[str, str]:
    """Return the kept result of a scenario; empty if it was not driven with the pinned release."""
    path = RESULTS / f"{client}.{scenario}.json"
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found if found.get("version") == PINS[CLIENTS[client].package] else {}


def is_left(client: str, scenario: str) -> bool:
    """Return whether a scenario has no result of the last 7 days that is what its cell says."""
    found = _result(client, scenario)
    newest_stale = (datetime.now(UTC) - KEPT).date().isoformat()
    return found.get("says") != word(TABLE[client][scenario]) or found.get("date", "") <= newest_stale


def tried() -> dict[str, Any]:
    """Return the date and the releases that the product names as tried."""
    found: dict[str, Any] = json.loads(TRIED.read_text())
    return found


def note_tried() -> None:
    """Note the pinned releases, and the day of each client's oldest result.

    A client with a scenario that is left keeps the day of its last whole run.
    """
    dates: dict[str, str] = tried()["dates"]
    for client in TABLE:
        results = [_result(client, scenario) for scenario in TABLE[client] if is_driven(client, scenario)]
        if not any(is_left(client, scenario) for scenario in TABLE[client] if is_driven(client, scenario)):
            dates[client] = min(result["date"] for result in results)
    releases = {one.package: PINS[one.package] for one in CLIENTS.values()}
    document = {"date": min(dates.values()), "dates": dates, "releases": dict(sorted(releases.items()))}
    TRIED.write_text(json.dumps(document, indent=2) + "\n")


def is_driven(client: str, scenario: str) -> bool:
    """Return whether a scenario is tried with a client."""
    return not isinstance(TABLE[client][scenario], NotOffered)


def left() -> list[str]:
    """Return the scenarios that are left, with what their last run came to."""
    cells = [
        (client, scenario) for client, row in TABLE.items() for scenario in row if is_driven(client, scenario)
    ]
    return [
        f"{client}, {_named(scenario)}: {_result(client, scenario).get('says', 'not tried')}"
        for client, scenario in cells
        if is_left(client, scenario)
    ]


if __name__ == "__main__":
    note_tried()
    PAGE.write_text(page(expected(), tried()["dates"]))
    if open_cells := left():
        print("not driven, or not as the table says:", *open_cells, sep="\n  ")
    sys.exit(bool(open_cells))
