"""Access of a run's program to the server that started it."""

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
"""The set of tools in the address that a run gets."""
STDIO: Final = ("-m", "postroom", "mcp", "--tools", TOOLS)
"""Arguments for Python with which a program without HTTP support reaches the tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccess:
    """The server's addresses, and a token for one run that is valid while its program runs."""

    url: str
    mcp_path: str
    data_dir: str
    token: str = field(repr=False)

    @property
    def mcp_url(self) -> str:
        """The address of the run's tools."""
        return f"{self.url}{self.mcp_path}/{TOOLS}"

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables for `postroom` commands and hooks that the program starts."""
        return {
            URL_VARIABLE: self.url,
            PATH_VARIABLE: self.mcp_path,
            FOLDER_VARIABLE: self.data_dir,
            TOKEN_VARIABLE: self.token,
        }


AccessOf = Callable[[RunActivation], AbstractAsyncContextManager[RunAccess | None]]
"""Opens the server to a run until the context ends; None if there is no server."""
