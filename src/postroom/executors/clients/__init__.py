"""The coding clients that runners name by a recipe: one file for each.

`docs/internals/new-client.md` lists what a new client needs. `docs/clients.md` names the tested releases. If
another release needs a different command, set `argv` in the runner, which replaces the command here.
"""

from collections.abc import Mapping
from typing import Final

from postroom.contracts.runners import Recipe
from postroom.executors.clients.claude import CLAUDE
from postroom.executors.clients.client import CodingClient
from postroom.executors.clients.cline import CLINE
from postroom.executors.clients.codex import CODEX
from postroom.executors.clients.copilot import COPILOT
from postroom.executors.clients.gemini import GEMINI
from postroom.executors.clients.opencode import OPENCODE

SHELL: Final = CodingClient(recipe=Recipe.SHELL)
"""Any other program: it prints its answer as text."""
CLIENTS: Final[Mapping[Recipe, CodingClient]] = {
    client.recipe: client for client in (SHELL, CLAUDE, CODEX, GEMINI, OPENCODE, COPILOT, CLINE)
}
