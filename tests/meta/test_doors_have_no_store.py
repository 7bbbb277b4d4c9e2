"""No route, page, tool or command reaches a store without the services: each operation has a row of permissions.

`permissions` and the table of operations define who may call each. That holds for methods of stores only as long as no entry
point has a store: routes and tools have none, pages only read, and the command line opens files of its own user.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "postroom"
DOORS = ("http_api", "mcp_server", "web", "cli")
PORTS = (
    "postroom.stores.mail.access",
    "postroom.stores.runs.ports",
    "postroom.stores",
)
"""Where stores and what they are used by come from."""

LOOKS = {"MailReads", "SqlStore", "Transaction"}
"""The access of pages: views of a store, for people only, who see all. A view refuses to write, and no page asks for more.
"""
OFFLINE = {"backup.py", "database.py", "rebuild.py"}
"""Commands that open the file of a database that no server has: their user can read it anyway."""


def reached(tree: ast.AST) -> Iterator[str]:
    """Yield what a file has of stores: imported names, and calls of `write` on one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PORTS):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith(PORTS))
        elif isinstance(node, ast.Attribute) and node.attr in ("write", "write_together"):
            if "store" in ast.unparse(node.value):
                yield f"{ast.unparse(node)}()"
        elif isinstance(node, ast.Attribute) and node.attr == "store" and "mail" in ast.unparse(node.value):
            yield ast.unparse(node)


def allowed(file: Path) -> set[str] | None:
    """Return what of stores a file may have; None for anything."""
    room = file.relative_to(SOURCE).parts[0]
    if room == "web":
        return LOOKS
    return None if room == "cli" and file.name in OFFLINE else set()


def test_no_door_has_more_of_a_store_than_it_is_let() -> None:
    found = {}
    for file in (one for room in DOORS for one in sorted((SOURCE / room).rglob("*.py"))):
        let = allowed(file)
        more = set() if let is None else set(reached(ast.parse(file.read_text(encoding="utf-8")))) - let
        if more:
            found[str(file.relative_to(SOURCE))] = sorted(more)
    assert found == {}, "ask a service, which checks what the caller's token may do"


def test_each_exception_is_needed() -> None:
    looked = {name for one in (SOURCE / "web").rglob("*.py") for name in reached(ast.parse(one.read_text()))}
    assert looked == LOOKS
    for name in OFFLINE:
        assert set(reached(ast.parse((SOURCE / "cli" / name).read_text()))), name


def test_the_look_sees_every_way_to_a_store() -> None:
    for planted in (
        "from postroom.stores.mail.access import MailWrites",
        "from postroom.stores.sqlite import SqliteStore",
        "import postroom.stores.postgres.store",
        "async def f(page): await page.store.write(lambda tx: tx.mark_read(1, 1, 1))",
        "async def f(self): await self._mail.store.read(lambda tx: tx.projects(limit=1))",
    ):
        assert list(reached(ast.parse(planted))), planted
