"""The picture of the rooms, the two walks and the named functions of `docs/architecture.md` are what the code does."""

import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.dispatch_mailbox import Nothing
from benchmarks.shape import import_depth

from postroom.contracts.activation import RunActivation
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from table_rows import each_row
from waking_room import Room
from walks import HOME, Walk, traced

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
TABLE = r"<!-- walk: {} -->\n\| call .*\n\|[-|]+\n((?:\|.*\n)+)"

DEEPEST = 7
"""How many modules of a room at most import one another in a chain."""
DEEPER = {
    "app": 8,
    "contracts": 8,
    "gateway": 8,
    "mail": 9,
    "stores": 12,
}
"""Rooms that are deeper, and how deep; the numbers may only go down."""


def walked(name: str) -> list[str]:
    """Return the functions that a walk of the page names, in its order."""
    table = re.search(TABLE.format(name), PAGE)
    assert table, f"the page has no walk {name}"
    return re.findall(r"^\| `([\w.<>]+)` \| .+ \|$", table[1], re.MULTILINE)


def compared(walk: Walk, names: list[str]) -> None:
    assert walk.out_of_order(names) == [], "the page names what is not called there"
    assert sorted(walk.important - set(names)) == [], "the page leaves out what opens, changes or writes"


@pytest.fixture
def walk() -> Iterator[Walk]:
    with traced() as walk:
        yield walk


@pytest.fixture
def store(walk: Walk, tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    """A store whose threads are traced; opened and closed outside of the event loop."""
    store = SqliteStore.open(tmp_path / "postroom.db", clock=clock)
    yield store
    store.close()


async def test_the_walk_of_a_run_is_what_a_run_goes_through(walk: Walk, store: SqliteStore) -> None:
    mailbox = Mailbox(Nothing(), store.runs)
    for walk.is_on in (False, True):  # the first makes the thread
        await mailbox.submit_background(RunActivation.new("echo", ["go"]))
        await mailbox.settled()
    walk.is_on = False
    await mailbox.aclose()
    compared(walk, walked("run"))


async def test_the_walk_of_a_message_is_what_a_message_goes_through(
    walk: Walk, store: SqliteStore, clock: ManualClock
) -> None:
    room = Room(store, store.runs, clock)

    async def at_work(_: RunActivation) -> None:
        walk.is_on = False

    await room.people("Ada", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo")
    await room.turn()
    room.agents.act = at_work
    walk.is_on = True
    await room.send("Ada", "Bo")
    await room.turn()
    assert not walk.is_on, "Bo was not woken"
    await room.close()
    compared(walk, walked("message"))


def test_the_rooms_of_the_picture_are_the_packages_and_the_layers() -> None:
    picture = PAGE.partition("```text\n")[2].partition("```")[0]
    floors = [set(re.findall(r"\w+", line[:61])) for line in picture.splitlines() if not line.startswith(" ")]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    layers = [
        set(layer.replace(" ", "").split("|")) - {"__main__", "version"} for layer in contract["layers"]
    ]
    assert floors == [layer for layer in layers if layer]
    rooms = {path.parent.name for path in HOME.glob("*/__init__.py")}
    assert rooms <= set().union(*floors)


def exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_each_function_that_the_page_names_exists() -> None:
    rooms = "|".join(sorted(path.stem for path in HOME.iterdir()))
    text = re.sub(
        TABLE.format(r"\w+"), "", PAGE
    )  # the walks are compared with calls, nested functions included
    names = re.findall(rf"`(?:postroom\.)?((?:{rooms})(?:\.\w+)+)`", text)
    assert len(names) > 30
    assert [name for name in names if not exists(f"postroom.{name}")] == []


@each_row("room", sorted(path.parent.name for path in HOME.glob("*/__init__.py")))
def test_a_room_is_not_deeper_than_it_was(room: str) -> None:
    depth = import_depth(HOME / room)
    assert depth <= DEEPER.get(room, DEEPEST)
    assert depth > DEEPEST or room not in DEEPER, "take the room out of the table"


def test_a_walk_that_names_what_is_not_called_fails() -> None:
    walk = Walk(calls={1: ["a.f", "a.g"], 2: ["b.h"]}, important={"a.g"})
    compared(walk, ["a.f", "b.h", "a.g"])
    assert walk.out_of_order(["a.g", "a.f"]) == ["a.f"]
    assert walk.out_of_order(["a.x"]) == ["a.x"]
    with pytest.raises(AssertionError, match="leaves out"):
        compared(walk, ["a.f"])
