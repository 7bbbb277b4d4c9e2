"""The adapters of chat platforms, from postroom and from plug-ins, which are loaded on demand."""

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from postroom.contracts.errors import ConfigError
from postroom.gateway.session import Platform

if TYPE_CHECKING:
    from postroom.gateway.platforms.base import BasePlatformAdapter

ADAPTERS: Final[Mapping[Platform, str]] = MappingProxyType(
    {
        Platform.TELEGRAM: "telegram.TelegramAdapter",
        Platform.DISCORD: "discord.DiscordAdapter",
        Platform.SLACK: "slack.SlackAdapter",
        Platform.MATRIX: "matrix.MatrixAdapter",
        Platform.EMAIL: "email.EmailAdapter",
        Platform.WEBHOOK: "webhook.WebhookAdapter",
        Platform.WEB: "web.WebAdapter",
        Platform.API_SERVER: "api_server.ApiServerAdapter",
    }
)
"""The built-in platforms, with the module and class of each adapter."""
PLUG_INS: Final = "postroom.channels"
"""The entry-point group of channel plug-ins. An entry maps a platform to an adapter, as `module:class`."""


def plug_ins() -> dict[str, EntryPoint]:
    """Return the installed channel plug-ins, keyed by the name of the platform."""
    return {
        entry_point.name: entry_point
        for entry_point in entry_points(group=PLUG_INS)
        if entry_point.name not in ADAPTERS
    }


def load_adapter_class(platform: Platform) -> "type[BasePlatformAdapter]":
    """Load and return the adapter class of a platform.

    Raises:
        ConfigError: No plug-in for this platform is installed, or the plug-in does not provide an adapter.
    """
    if platform in ADAPTERS:
        module, _, name = ADAPTERS[platform].partition(".")
        own: type[BasePlatformAdapter] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return own
    plug_in = plug_ins().get(platform.value)
    if plug_in is None:
        raise ConfigError(
            f"no plug-in for the platform {platform.value} is installed",
            value=platform.value,
            remedy="install the plug-in in the server's Python environment, or remove the platform's table",
        )
    try:
        value = plug_in.load()
    except (ImportError, AttributeError) as error:
        raise _unusable(plug_in, f"cannot be imported: {error}") from error
    base = importlib.import_module(f"{__name__}.base")
    if not (isinstance(value, type) and issubclass(value, base.BasePlatformAdapter)):
        raise _unusable(plug_in, "is not a subclass of BasePlatformAdapter")
    adapter: type[BasePlatformAdapter] = value
    if adapter.platform is not platform:
        raise _unusable(plug_in, f"is an adapter for another platform, {adapter.platform.value}")
    return adapter


def _unusable(plug_in: EntryPoint, why: str) -> ConfigError:
    package = "unknown" if plug_in.dist is None else plug_in.dist.name
    return ConfigError(
        f"the plug-in for the platform {plug_in.name} is not usable: {plug_in.value} {why}",
        value=plug_in.name,
        remedy=f"correct or upgrade the package {package}, or remove [platforms.{plug_in.name}]",
    )
