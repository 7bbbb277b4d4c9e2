"""How the program of a run reaches the server that started it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

from postroom.contracts.activation import RunActivation

TOKEN_VARIABLE: Final = "POSTROOM_TOKEN"  # noqa: S105 - the name of a variable
URL_VARIABLE: Final = "POSTROOM_URL"
PATH_VARIABLE: Final = "POSTROOM_MCP_PATH"
FOLDER_VARIABLE: Final = "POSTROOM_DATA_DIR"

TOOLS: Final = "core"
"""The tools that a run is offered, of those that an address may name."""
STDIO: Final = ("-m", "postroom", "mcp", "--tools", TOOLS)
"""The words after Python by which a program that speaks no HTTP reaches them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccess:
    """The server's addresses, and the token that opens them for one run while its program is at work."""

    url: str
    mcp_path: str
    data_dir: str
    token: str = field(repr=False)

    @property
    def mcp_url(self) -> str:
        """The address of the tools that a run is offered."""
        return f"{self.url}{self.mcp_path}/{TOOLS}"

    def variables(self) -> Mapping[str, str]:
        """Return what `postroom` commands and hooks read that the program starts."""
        return {
            URL_VARIABLE: self.url,
            PATH_VARIABLE: self.mcp_path,
            FOLDER_VARIABLE: self.data_dir,
            TOKEN_VARIABLE: self.token,
        }


AccessOf = Callable[[RunActivation], AbstractAsyncContextManager[RunAccess | None]]
"""Opens the server to a run, and closes it when the context ends; None where there is no server to reach."""
