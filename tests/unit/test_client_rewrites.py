"""A client rewrites its file in its own form while postroom's part is in it: then only that part is removed."""

import json
from itertools import product
from typing import Any

import pytest

from clients_room import Rooms

MINE = {"mine": {"command": "mine"}}
BEFORE: dict[str, dict[str, Any] | None] = {
    "no file": None,
    "empty": {},
    "empty containers": {"mcpServers": {}, "mcp": {}, "servers": {}, "hooks": {}, "version": 1},
    "others' entries": {
        **{"mcpServers": MINE, "mcp": {"mine": {"type": "local", "command": ["mine"]}}},
        **{"servers": MINE, "hooks": {"Mine": []}, "version": 1},
    },
    "own keys": {"theme": "dark", "nested": {"list": [1, {"a": "b"}]}},
}
ADDED = {"startups": 3, "tips": {"seen": [1, 2]}}
CLIENTS = ("claude", "codex", "gemini", "cursor", "copilot", "opencode")
"""One for each form of a file."""
WAYS = [
    *((None, "", False), (None, "\n", True), (2, "\n", True), (2, "", False), (4, "", True)),
    (4, "\n", False),
]
"""How it was written before, whether the new file ends its last line, and where the client adds keys: each two together."""


def anew(document: Any, *, end: str, first: bool = False) -> str:
    """Return a document as a client writes it, with extra keys before or after all others."""
    whole = {**ADDED, **document} if first else {**document, **ADDED}
    return json.dumps(whole, indent=2, ensure_ascii=False) + end


@pytest.mark.parametrize("name", CLIENTS)
def test_only_our_part_goes_when_the_client_wrote_its_file_anew(name: str, rooms: Rooms) -> None:
    room = rooms()
    room.set_up(name)
    files = [path for path, content in room.tree().items() if content and path.endswith(".json")]
    for before, (indent, end, first) in product(BEFORE.values(), WAYS):
        room = rooms()
        for path in files:
            if before is not None:
                room.write(path, json.dumps(before, indent=indent) + "\n")
        room.set_up(name)
        for path in files:
            room.write(path, anew(json.loads(room.read(path)), end=end, first=first))
        room.take_out(name)
        left = {path: room.read(path) for path in files}
        assert left == dict.fromkeys(files, anew(before or {}, end=end, first=first)), (before, indent)
