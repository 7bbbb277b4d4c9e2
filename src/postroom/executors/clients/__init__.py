"""The coding clients that a recipe can name; each client has its own module.

`docs/internals/new-client.md` describes how to add a client. `docs/clients.md` names the tested releases. If
another release needs a different command, `argv` of the runner replaces the command here.
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
"""Any other program, which prints its answer as text."""
CLIENTS: Final[Mapping[Recipe, CodingClient]] = {
    client.recipe: client for client in (SHELL, CLAUDE, CODEX, GEMINI, OPENCODE, COPILOT, CLINE)
}
