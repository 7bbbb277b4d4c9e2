"""Tables of platforms as a `gateway.toml` would give them to an adapter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from postroom.app.tables import read_table
from postroom.gateway.config import PlatformConfig
from postroom.toml_files import TableName

T = TypeVar("T", bound=PlatformConfig)
SECRETS = {"token", "api_key", "secret", "callback_secret", "signing_secret"}


def table_of(kind: type[T], **told: Any) -> T:
    """Return the table of a platform. Its secrets are given directly; None leaves one out."""
    environment: dict[str, str] = {}
    return read_table(
        TableName(Path("/gateway.toml"), "platforms.x"), _named(told, environment), kind, environment
    )


def _named(told: Mapping[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Return a table that names its secrets, and put them into the environment."""
    found: dict[str, Any] = {}
    for name, value in told.items():
        if name in SECRETS and isinstance(value, str):
            variable = f"SECRET_{len(environment)}"
            environment[variable], found[f"{name}_env"] = value, variable
        elif isinstance(value, Mapping):
            found[name] = _named(value, environment)
        elif name not in SECRETS or value is not None:
            found[name] = value
    return found
