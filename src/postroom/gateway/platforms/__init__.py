"""The base of every chat platform's adapter, and the adapters; each is loaded on demand."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

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
"""The platforms that `gateway.toml` can have, with the module and the class of each."""


def adapter_of(platform: Platform) -> "type[BasePlatformAdapter]":
    """Load the adapter of a platform and return its class."""
    module, _, name = ADAPTERS[platform].partition(".")
    found: type[BasePlatformAdapter] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found
