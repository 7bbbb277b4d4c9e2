"""The server that clients are connected with: its address, whether it runs, a call by a client's file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from postroom.app.clients.config_paths import ConfigFile
from postroom.app.clients.table import Client
from postroom.cli.client import Server, locate
from postroom.contracts.errors import PostroomError, ServerUnavailable

_PROBE: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Served:
    """The server of this environment."""

    address: str
    """Of its MCP endpoint; where it will be, when it does not run."""
    runs: bool

    def trial(self, client: Client, file: ConfigFile, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return what a real call through a client's file saw."""
        if not self.runs:
            return {
                "state": "not tried",
                "detail": "no server runs",
                "remedy": "start it with `postroom up`; a client with a stdio entry starts it by itself",
            }
        from postroom.app.clients.trial import try_out

        try:
            return asdict(try_out(client, file, environment))
        except PostroomError as error:
            return {"state": "failed", "detail": error.message, "remedy": error.remedy}


def served(environment: Mapping[str, str]) -> Served:
    """Return the server that this environment leads to, or would start.

    Raises:
        ConfigError: the address, the note or a setting cannot be read.
    """
    try:
        endpoint = locate(environment)
    except ServerUnavailable:
        from postroom.app.config import load_settings

        settings = load_settings(environment=environment)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return Served(f"http://{host}:{settings.port}{settings.mcp_path}", runs=False)
    runs = Server(endpoint, timeout=_PROBE).is_ready()
    return Served(f"{endpoint.url}{endpoint.mcp_path}", runs=runs)
